"""The Kernel: texts, parameters, buffers, stages, launch configurations."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.facade.kernel_class import Kernel, compile, lower

PT = ln.ParallelType


def row_sum(name="row_sum"):
    with ln.Fusion(name) as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = ln.sum(x, axis=1)
        f.output(y, "y")
    t = y.cache_before()
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    t.compute_at(y, 2)
    return f


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return lower(row_sum())


NEST = """\
# loopnest nest 1
kernel row_sum(x: float32[N, D]) -> (y: float32[N])
for i0 in ceildiv(N, 4):  # grid_x
  for i1 in 4:  # block_y
    T2: float32[1] local
    T2[0] = 0.0
    if i0 * 4 + i1 < N:
      for i2 in D:
        T2[0] = T2[0] + x[i0 * 4 + i1, i2]
      y[i0 * 4 + i1] = T2[0]"""


def test_texts(kernel):
    assert str(kernel) == NEST
    assert kernel.name == "row_sum"
    assert repr(kernel) == "<Kernel row_sum>"
    assert 'extern "C" __global__ void' in kernel.cuda()
    assert "int row_sum(" in kernel.c()
    assert kernel.cuda() is kernel.cuda()


def test_a_kernel_is_a_snapshot():
    f = row_sum()
    before = lower(f)
    f["y"].split(1, 2) if f["y"].frozen < 1 else f["T2"].split(2, 8)
    after = lower(f)
    assert str(before) == NEST
    assert str(after) != NEST


def test_params_come_in_order_with_their_types(kernel):
    found = [(p.name, p.kind, p.c_type, p.dtype) for p in kernel.params]
    assert found == [
        ("x", "input", "const float*", ln.float32),
        ("y", "output", "float*", ln.float32),
        ("N", "size", "int64_t", kernel.params[2].dtype),
        ("D", "size", "int64_t", kernel.params[3].dtype),
    ]
    shapes = [None if p.shape is None else [str(s) for s in p.shape] for p in kernel.params]
    assert shapes == [["N", "D"], ["N"], None, None]


def test_params_with_scalars_and_workspace():
    with ln.Fusion("scale") as f:
        x = f.input("x", (4, "N"), ln.float16)
        a = f.scalar("alpha", ln.float64)
        t = ln.exp(ln.cast(x, ln.float32))
        f.output(t * ln.cast(ln.sum(t, axis=1, keepdims=True), ln.float32) * a, "y")
    t.memory = ln.GLOBAL
    found = [(p.name, p.kind, p.c_type) for p in lower(f).params]
    assert found == [
        ("x", "input", "const half_t*"),
        ("y", "output", "double*"),
        ("alpha", "scalar", "double"),
        ("N", "size", "int64_t"),
        (t.name, "workspace", "float*"),
    ]
    assert lower(f).params[0].shape[0] == 4


def test_buffers_tell_layout(kernel):
    x, y, t = kernel.buffers
    assert (x.name, x.tensor, x.memory, x.dtype) == ("x", "x", ln.GLOBAL, ln.float32)
    assert [str(s) for s in x.shape] == ["N", "D"]
    assert [str(s) for s in x.strides] == ["D", "1"]
    assert str(x.size) == "N * D"
    assert y.alias_of is None
    assert (t.name, t.tensor, t.memory, t.shape, t.strides, t.size) == (
        "T2", "T2", ln.LOCAL, (1,), (1,), 1,
    )  # fmt: skip


def test_stages_are_made_when_read(kernel):
    names = list(kernel.stages)
    assert len(names) == len(kernel.stages) > 1
    assert dict(kernel.stages)[names[-1]] == kernel.stages[names[-1]]
    assert kernel.stages[names[-1]].splitlines()[0] == "# loopnest nest 1"
    assert names[0] in kernel.stages
    assert "fuse" not in kernel.stages
    assert kernel.stages.get("fuse") is None


def test_walk_yields_the_same_nodes_each_time(kernel):
    first, second = list(kernel.walk()), list(kernel.walk())
    assert all(a is b for (a, _), (b, _) in zip(first, second, strict=True))
    kinds = [type(node).__name__ for node, _ in first]
    assert kinds == ["Loop", "Loop", "Allocate", "Store", "If", "Loop", "Store", "Store"]
    node, ancestors = first[6]
    assert [type(a).__name__ for a in ancestors] == ["Loop", "Loop", "If", "Loop"]
    assert isinstance(node, kir.Store)
    assert (node.buffer, node.tensor) == ("T2", "T2")
    loop = first[1][0]
    assert (loop.index, loop.extent, loop.parallel) == ("i1", 4, PT.block_y)


def test_tensor(kernel):
    found = kernel.tensor("T2")
    assert (found.name, found.dtype, found.memory, found.buffer) == (
        "T2",
        ln.float32,
        ln.LOCAL,
        "T2",
    )
    assert found.compute_at_pos == 2
    assert [str(s) for s in found.shape] == ["N"]


def test_launch(kernel):
    found = kernel.launch(N=10, D=3)
    assert found.grid == (3, 1, 1)
    assert found.block == (1, 4, 1)
    assert found.shared_bytes == 0
    assert found.variant == "scalar"
    assert kernel.launch(N=0, D=3).grid == (0, 1, 1)


def test_variant_tells_whether_vectors_run_whole():
    with ln.Fusion("wide") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
    y.split(0, 4)
    y.parallelize({1: PT.vectorize})
    k = lower(f)
    assert k.launch(N=16).variant == "vector"
    assert k.launch(N=18).variant == "scalar"


def message(error, call):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"N": 3}, "row_sum.launch(N=3): the size D is missing; pass N=..., D=..."),
        (
            {"N": 3, "D": 2, "M": 1},
            "row_sum.launch(N=3, D=2, M=1): it has no size 'M'; pass N=..., D=...",
        ),
        ({"N": -3, "D": 2}, "row_sum.launch(N=-3, D=2): N = -3 is no size; sizes are ints >= 0"),
        ({"N": 1.5, "D": 2}, "row_sum.launch(N=1.5, D=2): N = 1.5 is no size; sizes are ints >= 0"),
        (
            {"N": 2**40, "D": 2},
            "row_sum.launch(N=1099511627776, D=2): grid_x (y.i0) has extent 274877906944; "
            "use at most 2147483647",
        ),
        (
            {"N": 2**32, "D": 2**32},
            "row_sum.launch(N=4294967296, D=4294967296): for N = 4294967296, D = 4294967296 an "
            "index exceeds 64 bits: x has N * D elements; pass smaller sizes",
        ),
    ],
)
def test_launch_errors(kernel, sizes, expected):
    assert message(ln.LaunchError, lambda: kernel.launch(**sizes)) == expected


def test_launch_of_a_static_kernel_takes_no_sizes():
    with ln.Fusion("fixed") as f:
        x = f.input("x", (4,), ln.float32)
        f.output(x + 1.0, "y")
    k = lower(f)
    assert k.launch().grid == (1, 1, 1)
    assert message(ln.LaunchError, lambda: k.launch(N=3)) == (
        "fixed.launch(N=3): it has no size 'N'; pass none"
    )


def test_launch_checks_assumptions():
    with ln.Fusion("even") as f:
        x = f.input("x", ("N",), ln.float32)
        f.assume("N % 4 == 0")
        f.output(x + 1.0, "y")
    assert message(ln.LaunchError, lambda: lower(f).launch(N=6)) == (
        "even.launch(N=6): the assumption 'N % 4 == 0' does not hold for N = 6; "
        "pass sizes for which it does, or define the kernel without it"
    )


def test_too_many_threads():
    with ln.Fusion("many") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        y = f.output(x + 1.0, "y")
    y.parallelize({0: PT.block_y, 1: PT.block_x})
    k = lower(f)
    assert k.launch(N=32, M=32).block == (32, 32, 1)
    assert message(ln.LaunchError, lambda: k.launch(N=40, M=32)) == (
        "many.launch(N=40, M=32): a block has 1280 threads: "
        "block_x = 32 (y.i1) * block_y = 40 (y.i0); use at most 1024"
    )
    assert message(ln.LaunchError, lambda: k.launch(N=1, M=2000)) == (
        "many.launch(N=1, M=2000): block_x (y.i1) has extent 2000; use at most 1024"
    )


def test_split_by_a_size_that_is_zero():
    with ln.Fusion("parts") as f:
        x = f.input("x", ("N", "F"), ln.float32)
        y = f.output(x + 1.0, "y")
    y.split(0, "F")
    assert message(ln.LaunchError, lambda: lower(f).launch(N=4, F=0)) == (
        "parts.launch(N=4, F=0): an axis is split by F, which is 0; pass a size >= 1"
    )


def halves() -> Kernel:
    with ln.Fusion("halves") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, x.shape[1] // 2)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_y})
    return lower(f)


@pytest.mark.parametrize("target", ["interpret", "c"])
def test_split_by_a_quotient_of_sizes(target):
    fn = ln.compile(halves(), target=target)
    for size in (2, 3, 4, 7):
        x = np.arange(3 * size, dtype=np.float32).reshape(3, size)
        np.testing.assert_array_equal(fn(x), x.sum(axis=1))
    for size in (0, 1):
        x = np.ones((3, size), np.float32)
        assert message(ln.LaunchError, lambda x=x: fn(x)) == (
            f"halves(...): an axis is split by 'D // 2', which is 0 for D = {size}; pass sizes for "
            "which it is 1 or more"
        )


def test_memory_split_by_a_size_that_is_zero():
    with ln.Fusion("parts") as f:
        x = f.input("x", ("N", "F"), ln.float32)
        t = ln.exp(x)
        f.output(t + 1.0, "y")
    t.memory = ln.GLOBAL
    t.allocation_domain.split(0, "F // 2")
    assert message(ln.LaunchError, lambda: lower(f).launch(N=4, F=1)) == (
        "parts.launch(N=4, F=1): an axis is split by 'F // 2', which is 0 for F = 1; pass sizes "
        "for which it is 1 or more"
    )


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED, ln.GLOBAL])
def test_memory_split_by_a_multiple_of_its_size(memory):
    """One part holds all of it, unless the multiple is 0."""
    with ln.Fusion("parts") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = ln.sum(x, axis=1)
        f.output(t + 1.0, "y")
    t.memory = memory
    t.allocation_domain.split(0, "N * D")
    k = lower(f)
    assert ln.verify(k, N=3, D=0).ok
    fn = ln.compile(k, target="interpret")
    np.testing.assert_array_equal(fn(np.ones((3, 2), np.float32)), [3, 3, 3])
    assert message(ln.LaunchError, lambda: fn(np.ones((3, 0), np.float32))) == (
        "parts(...): an axis is split by 'N * D', which is 0 for N = 3, D = 0; pass sizes for "
        "which it is 1 or more"
    )


def plus_one(*shape: int | str, bound: bool = True) -> Kernel:
    with ln.Fusion("plus_one") as f:
        x = f.input("x", shape, ln.float32)
        y = f.output(x + 1.0, "y")
    while y.ndim > 1:
        y.merge(0)
    y.split(0, 256)
    if bound:
        y.parallelize({0: PT.grid_x, 1: PT.block_x})
    return lower(f)


@pytest.mark.parametrize(
    ("shape", "bits"),
    [
        (("N", "M"), 32),
        ((46340, 46340), 32),
        ((70000, 70000), 64),
        ((70000, 70000, "N"), 64),
        ((40000, "N", 40000), 32),
    ],
)
def test_texts_have_the_width_that_static_sizes_need(shape, bits):
    k = plus_one(*shape)
    wide = "typedef long long idx_t;"
    assert (wide in k.cuda()) == (bits == 64)
    assert f"typedef int{bits}_t idx_t;" in k.c()
    assert k.cuda(bits) is k.cuda()
    assert wide in k.cuda(64)
    assert "typedef int64_t idx_t;" in k.c(64)


def test_other_widths_are_sentences():
    small, large = plus_one("N"), plus_one(70000, 70000)
    for width in (16, 32.0, True, "64"):
        for name, call in (("cuda", small.cuda), ("c", small.c)):
            assert message(ln.LoweringError, lambda c=call, w=width: c(index_bits=w)) == (
                f"plus_one.{name}(index_bits={width!r}): {width!r} is no width of indices; "
                "use 32, 64, or None for what its static sizes need"
            )
    calls = {
        "cuda": large.cuda,
        "c": large.c,
        **{n: partial(getattr(large, n), "sm_90") for n in ("ptx", "cubin", "sass", "resources")},
    }
    for name, call in calls.items():
        assert message(ln.LoweringError, lambda c=call: c(index_bits=32)) == (
            f"plus_one.{name}(index_bits=32): its static sizes need 64-bit indices; "
            "use 64, or None for what they need"
        )
    assert message(ln.LoweringError, plus_one(1 << 32, 1 << 32, bound=False).cuda) == (
        "plus_one.cuda(index_bits=None): an index exceeds 64 bits: x has 18446744073709551616 "
        "elements; use smaller static sizes"
    )


def test_unknown_names_are_sentences(kernel):
    assert message(ln.LoweringError, lambda: kernel.stages["fuse"]) == (
        "row_sum.stages['fuse']: no such stage; the stages are " + ", ".join(kernel.stages)
    )
    assert message(ln.LoweringError, lambda: kernel.tensor("T9")) == (
        "row_sum.tensor('T9'): no tensor has this name; the tensors are x, y, T2"
    )
    assert message(ln.LoweringError, lambda: lower(3)) == "lower(3): an int is no Fusion"
    assert message(ln.CompileError, lambda: compile(3)) == (
        "compile(3): an int is neither a Fusion nor a Kernel"
    )


def test_machine_code(kernel):
    pytest.importorskip("cuda.bindings")
    assert "row_sum" in kernel.ptx("sm_80")
    assert kernel.cubin("sm_80")[:4] == b"\x7fELF"
    found = kernel.resources("sm_80")
    assert found.registers > 0
    assert (found.spill_bytes, found.shared_bytes) == (0, 0)
    with pytest.raises(ln.CompileError, match=re.escape("arch='banana': not an architecture")):
        kernel.cubin("banana")


def test_machine_code_has_the_width_that_static_sizes_need(kernel):
    pytest.importorskip("cuda.bindings")
    narrow, wide = kernel.ptx("sm_80", index_bits=32), kernel.ptx("sm_80", index_bits=64)
    assert kernel.ptx("sm_80") == narrow != wide
    large = plus_one(70000, 70000)
    assert large.ptx("sm_80") == large.ptx("sm_80", index_bits=64)
    assert large.cubin("sm_80") == large.cubin("sm_80", index_bits=64)
    assert large.resources("sm_80") == large.resources("sm_80", index_bits=64)
    with pytest.raises(ln.CompileError, match=re.escape("arch='banana': not an architecture")):
        large.ptx("banana")
