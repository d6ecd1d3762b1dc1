"""What a kernel needs of the architecture that it is compiled for."""

import pytest

import loopnest as ln

PT = ln.ParallelType


def over_blocks():
    """Return a sum over blocks whose result all blocks read."""
    with ln.Fusion("over_blocks") as f:
        x = f.input("x", (64, 8), ln.float32)
        total = ln.sum(x, axis=1, keepdims=True)
        y = f.output(x / total, "y")
    s = total.producers[0]
    for tensor in (s, y):
        tensor.parallelize({1: PT.grid_x, 0: PT.block_x})
    total.parallelize({0: PT.block_x})
    ln.inline_most([total])
    return ln.lower(f)


def atomic_sum(dtype):
    with ln.Fusion("atomic_sum") as f:
        x = f.input("x", ("N",), dtype)
        h = f.output(ln.sum(x, axis=0), "h")
    h.atomic()
    h.parallelize({0: PT.block_x})
    return ln.lower(f)


def of_rows(count):
    """Return a kernel whose blocks hold a row of float32 in shared memory."""
    with ln.Fusion("of_rows") as f:
        x = f.input("x", ("N", count), ln.float32)
        t = (x + 1.0).named("t")
        y = f.output(ln.flip(t, 1), "y")
    t.memory = ln.SHARED
    y.parallelize({0: PT.grid_x})
    t.compute_at(y, 1)
    return ln.lower(f)


def refused(call):
    with pytest.raises(ln.CompileError) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize("arch", ["compute_50", "sm_52"])
def test_a_barrier_of_the_grid_needs_sm_60(arch):
    k = over_blocks()
    assert "barrier grid" in str(k)
    for call in ("ptx", "cubin", "sass", "resources"):
        found = refused(lambda call=call: getattr(k, call)(arch))
        assert found == (
            f"over_blocks.{call}(arch='{arch}'): a barrier of the grid (T1 reads T1_blocks after "
            "T1 stores it in other threads) needs sm_60; compile for sm_60 or a newer one"
        )


def test_an_atomic_sum_of_float64_needs_sm_60():
    assert refused(lambda: atomic_sum(ln.float64).ptx("sm_53")) == (
        "atomic_sum.ptx(arch='sm_53'): an atomic sum of float64 (h) needs sm_60; compile for "
        "sm_60 or a newer one"
    )


@pytest.mark.parametrize("dtype", [ln.float32, ln.int64], ids=str)
def test_other_atomic_sums_need_nothing(dtype):
    """Where NVRTC knows no such architecture, it says so itself."""
    pytest.importorskip("cuda.bindings")
    found = refused(lambda: atomic_sum(dtype).ptx("sm_20"))
    assert "does not know this architecture" in found


@pytest.mark.parametrize(
    ("count", "arch", "limit", "enough"),
    [
        (20000, "sm_75", 65536, "sm_70, sm_72, sm_80, sm_86, sm_87, sm_89, sm_90, sm_100, sm_103, "
         "sm_110, sm_120, sm_121"),
        (40000, "sm_89", 101376, "sm_80, sm_87, sm_90, sm_100, sm_103, sm_110"),
        (50000, "sm_80", 166912, "sm_90, sm_100, sm_103, sm_110"),
    ],
)  # fmt: skip
def test_machine_code_has_the_memory_of_its_gpu(count, arch, limit, enough):
    k = of_rows(count)
    for call in ("cubin", "sass", "resources"):
        assert refused(lambda call=call: getattr(k, call)(arch)) == (
            f"of_rows.{call}(arch='{arch}'): a block needs {4 * count} bytes of shared memory: "
            f"t {4 * count}; {arch} has {limit}; use at most that, or compile for one that has "
            f"enough: {enough}"
        )


def test_ptx_runs_on_newer_gpus():
    """It is compiled again there."""
    pytest.importorskip("cuda.bindings")
    k = of_rows(40000)
    assert ".entry of_rows" in k.ptx("sm_80") == k.ptx("compute_80")
    assert k.resources("sm_90").shared_bytes == 160000


def test_memory_beyond_every_gpu():
    assert refused(lambda: of_rows(60000).cubin("sm_90")) == (
        "of_rows.cubin(arch='sm_90'): a block needs 240000 bytes of shared memory: t 240000; "
        "sm_90 has 232448; use at most that"
    )


def test_emulated_types_need_nothing():
    """Text of bfloat16 and float8 has a form for every architecture."""
    pytest.importorskip("cuda.bindings")
    for dtype in (ln.bfloat16, ln.float8_e4m3fn, ln.float8_e5m2):
        with ln.Fusion("narrow") as f:
            x = f.input("x", (256,), dtype)
            y = f.output(ln.cast(x, ln.float32), "y")
        y.parallelize({0: PT.block_x})
        assert ".entry narrow" in ln.lower(f).ptx("sm_80")
