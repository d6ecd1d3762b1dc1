"""Compiled kernels on arrays, on every target that this machine runs."""

from __future__ import annotations

import logging
import timeit
import warnings

import ml_dtypes
import numpy as np
import pytest

import loopnest as ln
from loopnest.backends import compiled_kernel, targets
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cuda.driver import gpu_driver
from loopnest.facade.kernel_class import Kernel, compile, compile_many, lower
from loopnest.kir import parse as parse_nest
from loopnest.kir.lowered import Lowered
from loopnest.launch import launch_plan

PT = ln.ParallelType
F = np.float32
TARGETS = ["interpret", *(["c"] if find_compiler() else [])]

on_targets = pytest.mark.parametrize("target", TARGETS)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Let "auto" find the same on every machine."""
    monkeypatch.setattr(gpu_driver, "_found", [])
    monkeypatch.setattr(gpu_driver, "_obstacle", ["no GPU was found"])


def kernel_of(text: str) -> Kernel:
    return Kernel(Lowered(parse_nest(text), (), (), ()))


def pointwise(name="double", dtype=ln.float32, shape=("N",)):
    with ln.Fusion(name) as f:
        x = f.input("x", shape, dtype)
        f.output(x + x, "y")
    return f


def softmax():
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        a = f.scalar("alpha", ln.float32)
        m = ln.max(x, axis=1, keepdims=True)
        e = ln.exp(a * (x - m))
        f.output(e / ln.sum(e, axis=1, keepdims=True), "y")
    return f


@on_targets
@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (64, 33), (0, 4), (3, 1)])
def test_a_fusion_runs(target, shape):
    fn = compile(softmax(), target=target)
    x = np.random.default_rng(0).standard_normal(shape).astype(F)
    y = fn(x, alpha=2)
    shifted = np.exp(2 * (x - x.max(axis=1, keepdims=True, initial=-np.inf)))
    np.testing.assert_allclose(y, shifted / shifted.sum(axis=1, keepdims=True), rtol=1e-5)
    assert (y.dtype, y.shape, fn.target) == (F, shape, target)


def told(caplog):
    """Return what was logged, but for the proofs that every test makes."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if not line.startswith("verify(")]


def test_auto_takes_c_and_says_so_once(caplog):
    if "c" not in TARGETS:
        pytest.skip("no C compiler")
    targets._tell.cache_clear()
    with caplog.at_level(logging.INFO, logger="loopnest"):
        first = compile(pointwise())
        second = compile(pointwise("again"), target="auto")
    assert (first.target, second.target) == ("c", "c")
    assert told(caplog) == ["target 'auto' takes 'c' on this machine: no GPU was found"]


def test_auto_without_a_compiler_interprets(monkeypatch, caplog):
    monkeypatch.setenv("CC", "no-such-compiler-here")
    targets._tell.cache_clear()
    with caplog.at_level(logging.INFO, logger="loopnest"):
        fn = compile(pointwise(), threads=2)
    assert fn.target == "interpret"
    assert told(caplog) == [
        "target 'auto' takes 'interpret' on this machine: no GPU was found; no C compiler was found"
    ]
    np.testing.assert_array_equal(fn(np.ones(3, F)), [2, 2, 2])


def test_auto_takes_the_target_that_knows_the_options():
    assert compile(pointwise(), thread_order=3).target == "interpret"


@on_targets
def test_a_kernel_or_a_fusion_can_be_compiled(target):
    f = pointwise()
    k = lower(f)
    fn = compile(k, target=target)
    assert fn.kernel is k
    assert compile(f, target=target).kernel.name == "double"
    assert repr(fn) == f"<CompiledKernel double on '{target}'>"


@on_targets
def test_several_outputs_come_as_a_tuple(target):
    with ln.Fusion("pair") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x + 1.0, "y")
        f.output(ln.sum(x), "s")
    y, s = compile(f, target=target)(np.arange(4, dtype=F))
    np.testing.assert_array_equal(y, [1, 2, 3, 4])
    assert (s.shape, float(s)) == ((), 6.0)


@on_targets
def test_arrays_without_axes(target):
    with ln.Fusion("point") as f:
        x = f.input("x", (), ln.float32)
        f.output(x * 3.0, "y")
    fn = compile(f, target=target)
    assert fn(np.array(2, F)).shape == ()
    assert fn(F(2)) == 6


@on_targets
def test_out_is_written_and_returned(target):
    fn = compile(pointwise(), target=target)
    x, out = np.arange(5, dtype=F), np.empty(5, F)
    assert fn(x, out=out) is out
    np.testing.assert_array_equal(out, x + x)
    assert fn(x, out=(out,)) is out
    assert fn(x, out=[None]) is not out


@on_targets
def test_scalars_are_converted_weakly(target):
    with ln.Fusion("mixed") as f:
        x = f.input("x", ("N",), ln.float32)
        a = f.scalar("a", ln.float32)
        i = f.scalar("i", ln.int32)
        h = f.scalar("h", ln.float16)
        b = f.scalar("b", ln.bool)
        w = f.scalar("w", ln.float64)
        y = ln.where(b, x * a, x) + ln.cast(i, ln.float32) + ln.cast(h, ln.float32)
        f.output(ln.cast(y, ln.float64) + w, "y")
    fn = compile(f, target=target)
    x = np.ones(3, F)
    expected = 1 * 2 + 3 + float(np.float16(0.1)) + 1e-9
    np.testing.assert_allclose(fn(x, a=2, i=3, h=0.1, b=True, w=1e-9), expected, rtol=1e-7)
    again = fn(x, a=F(2), i=np.int64(3), h=np.float16(0.1), b=np.bool_(True), w=np.float64(1e-9))
    np.testing.assert_array_equal(again, fn(x, a=2, i=3, h=0.1, b=True, w=1e-9))
    np.testing.assert_allclose(fn(x, a=2, i=3, h=0.1, b=False, w=0), 4.1, rtol=1e-4)


@on_targets
def test_sizes_of_no_input_are_keywords(target):
    with ln.Fusion("count") as f:
        x = f.input("x", ("N",), ln.float32)
        y = ln.full(("M", "N"), 1.0, ln.float32) * x
        f.output(y, "y")
    fn = compile(f, target=target)
    assert fn(np.ones(3, F), M=2).shape == (2, 3)
    assert fn(np.ones(3, F), M=4).shape == (4, 3)
    assert fn(np.ones(3, F), M=np.int64(4), N=3).shape == (4, 3)


@on_targets
def test_arguments_may_have_any_name_that_python_leaves_free(target):
    with ln.Fusion("names") as f:
        x = f.input("arrays", ("out", "plan"), ln.float32)
        f.output(x * f.scalar("self", ln.float32) + f.scalar("scalars", ln.float32), "kernel")
    fn = compile(f, target=target)
    x = np.ones((2, 3), F)
    np.testing.assert_array_equal(fn(x, self=2, scalars=1), np.full((2, 3), 3))
    assert fn.kernel.launch(out=2, plan=3).grid == (1, 1, 1)


ARRAY_TYPES = {
    "bool": np.bool_, "int32": np.int32, "int64": np.int64, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
}  # fmt: skip


@on_targets
@pytest.mark.parametrize("name", ARRAY_TYPES)
def test_every_type_of_array(target, name):
    dtype = getattr(ln, name)
    with ln.Fusion("copy") as f:
        x = f.input("x", ("N", 3), dtype)
        f.output(x, "y")
    x = np.arange(12).reshape(4, 3).astype(ARRAY_TYPES[name])
    y = compile(f, target=target)(x)
    assert y.dtype == ARRAY_TYPES[name]
    np.testing.assert_array_equal(y, x)


@on_targets
def test_other_layouts_are_copied_with_one_warning(target):
    fn = compile(pointwise(shape=("N", "M")), target=target)
    x = np.arange(12, dtype=F).reshape(3, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = fn(x.T)
        fn(x[::2])
    assert [str(w.message) for w in caught] == [
        "double(...): x is not C-contiguous, so it is copied; this is said once for this kernel"
    ]
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(y, x.T + x.T)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(fn(x[:, ::2]), x[:, ::2] * 2)


@on_targets
def test_read_only_and_unaligned_inputs(target):
    fn = compile(pointwise(), target=target)
    x = np.arange(4, dtype=F)
    x.flags.writeable = False
    np.testing.assert_array_equal(fn(x), x * 2)
    raw = np.zeros(17, np.uint8)[1:].view(F)
    raw[:] = x
    with pytest.warns(RuntimeWarning):
        np.testing.assert_array_equal(fn(raw), x * 2)


def step():
    with ln.Fusion("step") as f:
        p = f.input("p", ("N",), ln.float32)
        g = f.input("g", ("N",), ln.float32)
        q = p - 0.5 * g
        f.output(q, "q", inplace=p)
        f.output(g * g, "gg")
    ln.propagate(f["gg"])
    f.inline_most()
    return f


@on_targets
def test_in_place_outputs_overwrite_the_input(target):
    fn = compile(step(), target=target)
    p, g = np.arange(6, dtype=F), np.ones(6, F)
    q, gg = fn(p, g)
    assert q is p
    np.testing.assert_array_equal(p, np.arange(6) - 0.5)
    out = np.empty(6, F)
    q, again = fn(p, g, out=(p, out))
    assert q is p
    assert again is out
    np.testing.assert_array_equal(p, np.arange(6) - 1.0)
    np.testing.assert_array_equal(gg, g)


@on_targets
def test_bench_leaves_the_arrays_alone(target, monkeypatch):
    monkeypatch.setattr("loopnest.launch.timing.SECONDS", 0.0)
    fn = compile(step(), target=target)
    p, g = np.arange(6, dtype=F), np.ones(6, F)
    found = fn.bench(p, g)
    np.testing.assert_array_equal(p, np.arange(6))
    assert found.bytes == 4 * 6 * 4
    assert len(found.times) == 5
    assert found.gbps == pytest.approx(found.bytes / found.seconds / 1e9)
    assert str(found).endswith(" GB/s")


@on_targets
def test_workspace_is_made_by_the_runtime(target):
    with ln.Fusion("staged") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = ln.exp(x)
        f.output(t / ln.sum(t, axis=1, keepdims=True), "y")
    t.memory = ln.GLOBAL
    fn = compile(f, target=target)
    assert [p.kind for p in fn.kernel.params][-1] == "workspace"
    x = np.random.default_rng(0).random((6, 5), F)
    for _ in range(2):
        y = fn(x)
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(axis=1, keepdims=True), rtol=1e-6)


@on_targets
@pytest.mark.parametrize("n", [0, 1, 3, 8])
def test_threads_and_blocks(target, n):
    f = pointwise("tiles")
    y = f["y"]
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    x = np.arange(n, dtype=F)
    np.testing.assert_array_equal(compile(f, target=target)(x), x + x)


@on_targets
@pytest.mark.parametrize("reduce", ["sum", "max", "prod"])
def test_a_grid_of_no_blocks_leaves_the_identity(target, reduce):
    """One output has no element, so nothing is launched; the other one needs no block."""
    with ln.Fusion("none") as f:
        x = f.input("x", ("N",), ln.float32)
        z = f.input("z", (3, "N"), ln.float32)
        y = f.output(x + 1.0, "y")
        s = f.output(getattr(ln, reduce)(z, axis=1), "s")
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    fn = compile(f, target=target)
    assert fn.kernel.launch(N=0).grid == (0, 1, 1)
    y, s = fn(np.zeros(0, F), np.zeros((3, 0), F))
    assert y.shape == (0,)
    np.testing.assert_array_equal(s, [{"sum": 0, "max": -np.inf, "prod": 1}[reduce]] * 3)


@on_targets
def test_outputs_without_elements_need_no_launch(target):
    with ln.Fusion("parts") as f:
        x = f.input("x", ("N", "F"), ln.float32)
        y = f.output(x + 1.0, "y")
    y.split(0, "F")
    fn = compile(f, target=target)
    assert fn(np.zeros((4, 0), F)).shape == (4, 0)
    np.testing.assert_array_equal(fn(np.zeros((4, 3), F)), np.ones((4, 3)))


@on_targets
def test_what_no_launch_stores_starts_from_the_identity(target):
    k = kernel_of("""
    kernel hold(x: float32[N]) -> (y: float32[2])
    for i0 in N:  # grid_x
      for i1 in 2:
        y[i1] = x[i0]
    """)
    np.testing.assert_array_equal(compile(k, target=target)(np.zeros(0, F)), [0, 0])


# Index width


def test_indices_have_64_bits_where_32_do_not_do():
    bounds = launch_plan.Planner(lower(pointwise(shape=("N", "M"))).program)
    assert bounds.plan({"N": 2**15, "M": 2**15}, "k").index_bits == 32
    assert bounds.plan({"N": 2**16, "M": 2**15}, "k").index_bits == 64
    assert bounds.plan({"N": 2**16, "M": 2**15 - 1}, "k").index_bits == 32


def test_the_padding_of_a_split_loop_counts():
    f = pointwise()
    f["y"].split(0, 1024)
    bounds = launch_plan.Planner(lower(f).program)
    assert bounds.plan({"N": 2**31 - 2048}, "k").index_bits == 32
    assert bounds.plan({"N": 2**31 - 512}, "k").index_bits == 64


@pytest.mark.skipif("c" not in TARGETS, reason="no C compiler")
def test_the_64_bit_build_is_made_when_it_is_needed(monkeypatch):
    fn = compile(pointwise(), target="c")
    x = np.arange(100, dtype=F)
    monkeypatch.setattr(launch_plan, "INT32", 50)
    assert list(fn._executable.built) == [32]
    np.testing.assert_array_equal(fn(x), x + x)
    assert sorted(fn._executable.built) == [32, 64]
    np.testing.assert_array_equal(fn(x[:10]), x[:10] * 2)


# Targets


@pytest.mark.skipif("c" not in TARGETS, reason="no C compiler")
@pytest.mark.parametrize(
    "options", [{"threads": 1}, {"threads": 2}, {"fast_math": True}, {"optimize": 0}]
)
def test_options_of_c(options):
    f = softmax()
    x = np.random.default_rng(0).random((40, 30), F)
    expected = compile(f, target="c")(x, alpha=1.0)
    np.testing.assert_allclose(compile(f, target="c", **options)(x, alpha=1.0), expected, rtol=1e-5)


@pytest.mark.skipif("c" not in TARGETS, reason="no C compiler")
def test_threads_holds_for_one_kernel_only():
    f = pointwise()
    f["y"].split(0, 8)
    f["y"].parallelize({0: PT.cpu_parallel})
    fn = compile(f, target="c", threads=1)
    x = np.arange(1000, dtype=F)
    openmp = fn._executable.runtime
    before = openmp.read() if openmp is not None else 0
    try:
        for threads in (3, 2):
            if openmp is not None:
                openmp.write(threads)
            np.testing.assert_array_equal(fn(x), x + x)
            assert openmp is None or openmp.read() == threads
    finally:
        if openmp is not None:
            openmp.write(before)


@pytest.mark.skipif("c" not in TARGETS, reason="no C compiler")
@pytest.mark.parametrize(("splits", "level"), [(3, "-O3"), (40, "-O1")])
def test_what_is_deeply_nested_is_optimized_less(splits, level, monkeypatch):
    """At -O3 gcc takes minutes for 40 loops in each other."""
    from loopnest.backends.cpu import c_compiler

    asked = []
    build = c_compiler._build
    monkeypatch.setattr(c_compiler, "_build", lambda *a: asked.append(a[1]) or build(*a))
    monkeypatch.setattr(c_compiler, "_stored", lambda *_: None)
    monkeypatch.setattr(c_compiler, "_LIBRARIES", c_compiler._Once())
    monkeypatch.delenv("LOOPNEST_VERIFY", raising=False)
    f = pointwise()
    for _ in range(splits):
        f["y"].split(0, 2)
    compile(f, target="c")
    assert [flag for flag in asked[-1] if flag.startswith("-O")] == [level]


@pytest.mark.skipif("c" not in TARGETS, reason="no C compiler")
def test_many_kernels_in_one_build():
    integers = [pointwise("same", ln.int32), pointwise("int", ln.int64)]
    fusions = [pointwise("same"), softmax(), *integers]
    first, second, third, fourth = compile_many(fusions)
    np.testing.assert_array_equal(first(np.ones(3, F)), [2, 2, 2])
    np.testing.assert_allclose(second(np.ones((2, 4), F), alpha=1.0), 0.25)
    np.testing.assert_array_equal(third(np.array([3], np.int32)), [6])
    np.testing.assert_array_equal(fourth(np.array([3])), [6])
    assert [fn.target for fn in (first, second)] == ["c", "c"]
    assert compile_many([]) == []


def test_many_kernels_for_the_interpreter():
    (fn,) = compile_many([pointwise()], target="interpret")
    assert fn.target == "interpret"
    np.testing.assert_array_equal(fn(np.ones(3, F)), [2, 2, 2])


def test_thread_order():
    f = pointwise("tiles")
    f["y"].split(0, 4)
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x})
    x = np.arange(10, dtype=F)
    for seed in (0, 7):
        np.testing.assert_array_equal(compile(f, "interpret", thread_order=seed)(x), x + x)


# Cost


@pytest.mark.skipif("c" not in TARGETS, reason="no C compiler")
def test_a_call_on_small_arrays_is_cheap():
    """Well below 30 microseconds on an idle machine; the bound leaves room for a busy one."""
    fn = compile(pointwise(), target="c")
    x = np.ones(16, F)
    fn(x)
    assert min(timeit.repeat(lambda: fn(x), number=200, repeat=10)) / 200 < 100e-6


def test_plans_of_many_shapes_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(compiled_kernel, "MAX_PLANS", 3)
    fn = compile(pointwise(), target="interpret")
    for n in range(8):
        assert fn(np.ones(n, F)).shape == (n,)
    assert len(fn._plans) <= 3


def test_large_outputs_begin_at_a_cache_line():
    fn = compile(pointwise(), target="interpret")
    for n in (1024, 4097):
        assert fn(np.ones(n, F)).ctypes.data % 64 == 0
        assert fn(np.ones(n, F)).ctypes.data % 4096 == 2048  # NumPy's own: 16
