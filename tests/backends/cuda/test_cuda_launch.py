"""Kernels on a GPU, as far as a GPU that is none can tell: what is passed, checked and copied."""

from __future__ import annotations

import ctypes
import logging
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import loopnest as ln
from helpers.fake_gpu import A100, H100
from helpers.fake_gpu_kernels import PT, SCALARS, F, message, scale
from loopnest.backends import targets
from loopnest.backends.cuda.driver.device_array import DeviceArray
from loopnest.backends.cuda.driver.gpu_driver import DriverLaunch
from loopnest.facade.kernel_class import compile

# Arrays of the host


def test_numpy_in_numpy_out(gpu):
    fn = compile(scale(), target="cuda")
    x = np.arange(15, dtype=F).reshape(3, 5)
    y = fn(x, **SCALARS)
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, x * 2 + 3.5)
    assert (fn.target, repr(fn)) == ("cuda", "<CompiledKernel scale on 'cuda'>")
    assert gpu.calls("compile") == [("sm_90", {"fast_math": False, "max_registers": None})]
    assert gpu.calls("launch") == [("scale", DriverLaunch((3, 2, 1), (4, 1, 1)), 0)]
    assert gpu.calls("upload") == [(60, 0)]
    assert gpu.calls("download") == [(60, 0)]
    assert not gpu.memory
    np.testing.assert_array_equal(fn(x, **SCALARS), y)
    assert len(gpu.calls("load")) == 1


def test_out_and_stream(gpu):
    fn = compile(scale(), target="cuda")
    x, out = np.ones((2, 4), F), np.empty((2, 4), F)
    assert fn(x, out=out, stream=7, **SCALARS) is out
    np.testing.assert_array_equal(out, np.full((2, 4), 5.5))
    assert gpu.calls("launch")[0][2] == 7
    assert gpu.calls("upload") == [(32, 7)]


def test_in_place_outputs_come_back(gpu):
    with ln.Fusion("step") as f:
        p, g = f.input("p", ("N",), ln.float32), f.input("g", ("N",), ln.float32)
        f.output(p - 0.5 * g, "q", inplace=p)
        f.output(g * g, "gg")
    ln.propagate(f["gg"])
    f.inline_most()
    fn = compile(f, target="cuda")
    p, g = np.arange(6, dtype=F), np.ones(6, F)
    q, gg = fn(p, g)
    assert q is p
    np.testing.assert_array_equal(p, np.arange(6) - 0.5)
    np.testing.assert_array_equal(gg, g)


def test_other_layouts_are_copied_with_one_warning(gpu):
    fn = compile(scale(), target="cuda")
    x = np.arange(12, dtype=F).reshape(3, 4)
    with pytest.warns(RuntimeWarning, match="x is not C-contiguous, so it is copied") as caught:
        np.testing.assert_array_equal(fn(x.T, **SCALARS), x.T * 2 + 3.5)
    assert caught[0].filename == __file__


def test_no_thread_and_no_element(gpu):
    with ln.Fusion("none") as f:
        x = f.input("x", ("N",), ln.float32)
        z = f.input("z", (3, "N"), ln.float32)
        y = f.output(x + 1.0, "y")
        f.output(ln.max(z, axis=1), "s")
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    fn = compile(f, target="cuda")
    y, s = fn(np.zeros(0, F), np.zeros((3, 0), F))
    assert y.shape == (0,)
    np.testing.assert_array_equal(s, [-np.inf] * 3)
    y, s = fn(gpu.array(np.zeros(0, F)), gpu.array(np.zeros((3, 0), F)))
    assert y.shape == (0,)
    np.testing.assert_array_equal(s.numpy(), [-np.inf] * 3)
    assert not gpu.calls("launch")


def test_what_no_thread_computes_is_read_on_the_calls_stream(gpu):
    """Else what another stream still computes might be read too early."""
    with ln.Fusion("none") as f:
        x = f.input("x", ("N",), ln.float32)
        g = f.input("g", (3,), ln.float32)
        y = f.output(x + 1.0, "y")
        f.output(g * 2.0, "s")
    y.parallelize({0: PT.grid_x})
    fn = compile(f, target="cuda")
    g = gpu.array(np.ones(3, F), stream=9)
    gpu.log.clear()
    fn(gpu.array(np.zeros(0, F)), g, stream=4)
    assert gpu.calls("wait") == [(4, 9)]
    assert {stream for _, stream in gpu.calls("download")} == {4}
    assert not gpu.calls("launch")


# Arrays of the GPU


def test_arrays_of_the_gpu_are_taken_and_given_without_copies(gpu):
    fn = compile(scale(), target="cuda")
    x = np.arange(15, dtype=F).reshape(3, 5)
    there = gpu.array(x)
    gpu.log.clear()
    y = fn(there, stream=5, **SCALARS)
    assert isinstance(y, DeviceArray)
    assert (y.shape, y.dtype, y.ndim, y.size, y.nbytes) == ((3, 5), F, 2, 15, 60)
    assert not gpu.calls("upload")
    assert not gpu.calls("download")
    np.testing.assert_array_equal(gpu.read(y), x * 2 + 3.5)
    np.testing.assert_array_equal(y.numpy(), x * 2 + 3.5)
    np.testing.assert_array_equal(np.asarray(y), x * 2 + 3.5)
    assert repr(y).startswith("<DeviceArray float32[3, 5] at 0x")
    again = fn(y, **SCALARS)  # a result is an argument
    np.testing.assert_array_equal(again.numpy(), (x * 2 + 3.5) * 2 + 3.5)


def test_results_give_their_memory_back(gpu):
    fn = compile(scale(), target="cuda")
    x = gpu.array(np.ones((2, 2), F))
    before = set(gpu.memory)
    y = fn(x, **SCALARS)
    assert len(set(gpu.memory) - before) == 1
    del y
    assert set(gpu.memory) == before


def test_out_on_the_gpu(gpu):
    fn = compile(scale(), target="cuda")
    x, out = np.ones((2, 4), F), gpu.array(np.zeros((2, 4), F))
    assert fn(x, out=out, **SCALARS) is out
    np.testing.assert_array_equal(gpu.read(out), np.full((2, 4), 5.5))


def test_a_result_that_is_written_again_is_ready_on_the_later_stream(gpu):
    fn, again = compile(scale(), target="cuda"), step(gpu)
    x = gpu.array(np.ones((2, 4), F))
    y = fn(x, stream=5, **SCALARS)
    assert y.__cuda_array_interface__["stream"] == 5
    assert fn(x, out=y, stream=6, **SCALARS) is y
    assert gpu.calls("wait")[-1:] == [(6, 5)]
    assert y.__cuda_array_interface__["stream"] == 6
    y.numpy()
    assert gpu.calls("download")[-1] == (32, 6)
    p = again(gpu.array(np.ones(4, F)), gpu.array(np.ones(4, F)))
    with ln.Fusion("plain") as f:
        f.output(f.input("x", ("N",), ln.float32) + 1.0, "q")
    q = compile(f, target="cuda")(p, stream=7)
    assert again(q, p, stream=8) is q
    assert q.__cuda_array_interface__["stream"] == 8


def test_a_result_keeps_its_stream(gpu):
    """A stream that is closed when nobody refers to it any more would be waited for in vain."""
    stream = type("Stream", (), {"ptr": 5})()
    kept = weakref.ref(stream)
    y = compile(scale(), target="cuda")(gpu.array(np.ones((1, 1), F)), stream=stream, **SCALARS)
    del stream
    assert kept() is not None
    y.numpy()
    assert gpu.calls("download")[-1] == (4, 5)
    del y
    assert kept() is None


def test_a_strided_array_of_the_gpu_is_copied(gpu):
    fn = compile(scale(), target="cuda")
    x = np.arange(24, dtype=F).reshape(4, 6)
    turned = gpu.array(x)
    described = turned.__cuda_array_interface__
    described["shape"], described["strides"] = (6, 4), (4, 24)
    with pytest.warns(RuntimeWarning, match="x is not C-contiguous, so it is copied"):
        y = fn(turned, **SCALARS)
    np.testing.assert_array_equal(y.numpy(), x.T * 2 + 3.5)
    described["shape"], described["strides"] = (2, 3), (-48, 8)  # from the last row but one
    address, _ = described["data"]
    described["data"] = (address + 48, False)
    np.testing.assert_array_equal(fn(turned, **SCALARS).numpy(), x[2::-2, ::2] * 2 + 3.5)


def test_a_producers_stream_is_waited_for(gpu):
    fn = compile(scale(), target="cuda")
    fn(gpu.array(np.ones((1, 1), F), stream=9), stream=4, **SCALARS)
    assert gpu.calls("wait") == [(4, 9)]


def step(gpu):
    with ln.Fusion("step") as f:
        p, g = f.input("p", ("N",), ln.float32), f.input("g", ("N",), ln.float32)
        f.output(p - g, "q", inplace=p)
    return compile(f, target="cuda")


def test_in_place_on_the_gpu(gpu):
    fn = step(gpu)
    p, g = gpu.array(np.arange(4, dtype=F)), gpu.array(np.ones(4, F))
    assert fn(p, g) is p
    assert fn(p, g, out=p) is p
    np.testing.assert_array_equal(gpu.read(p), np.arange(4) - 2)


def test_wrong_arguments_on_the_gpu(gpu):
    fn, two = compile(scale(), target="cuda"), step(gpu)
    x = gpu.array(np.ones((2, 4), F))
    p, g = gpu.array(np.ones(4, F)), gpu.array(np.ones(4, F))
    host = np.ones(4, F)
    gpu.log.clear()
    for call, expected in (
        (lambda: fn(gpu.array(np.ones((2, 4))), **SCALARS),
         "scale(...): x has dtype float64; pass float32[N, D]"),
        (lambda: fn(x, x, **SCALARS),
         "scale(...): 2 arrays were given; pass 1: x: float32[N, D]"),
        (lambda: fn(x, out=x, **SCALARS),
         "scale(...): out (y) shares memory with x; pass arrays apart"),
        (lambda: fn(x, out=np.ones((2, 4), F), **SCALARS),
         "scale(...): out (y) is of type ndarray, while inputs lie on the GPU; "
         "pass an array of the GPU"),
        (lambda: fn(x, out=gpu.array(np.ones((4, 2), F)), **SCALARS),
         "scale(...): out (y) is float32 of shape (4, 2); pass float32 of shape (2, 4)"),
        (lambda: fn(x, out=gpu.array(np.ones((2, 4), F), strides=(4, 8)), **SCALARS),
         "scale(...): out (y) is not C-contiguous; pass a C-contiguous array"),
        (lambda: fn(x, out=gpu.array(np.ones((2, 4), F), read_only=True), **SCALARS),
         "scale(...): out (y) is read-only; pass a writable array"),
        (lambda: fn(x, stream="main", **SCALARS),
         "scale(...): the stream is of type str; "
         "pass a stream of PyTorch, CuPy, cuda-core or pycuda, or its address"),
        (lambda: two(host, g),
         "step(...): p is no array of the GPU, as others are, but output q overwrites it; "
         "pass an array of the GPU"),
        (lambda: two(gpu.array(host, read_only=True), g),
         "step(...): p is read-only; pass a writable array"),
        (lambda: two(p, g, out=g),
         "step(...): out (q) is another array than p, which it overwrites; leave it None"),
        (lambda: two(p, p), "step(...): p shares memory with g; pass arrays apart"),
    ):  # fmt: skip
        assert message(ln.LaunchError, call) == expected
    assert not gpu.calls("launch")


def test_an_array_that_its_package_does_not_lend(gpu):
    class Grown:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **_):
            raise BufferError("it has a gradient; use detach()")

    fn = compile(scale(), target="cuda")
    assert message(ln.LaunchError, lambda: fn(Grown(), **SCALARS)) == (
        "scale(...): x is not lent: it has a gradient; use detach()"
    )


@pytest.mark.parametrize("where", ["cuda_stream", "ptr", "handle", "__cuda_stream__"])
def test_streams_of_other_packages(gpu, where):
    value = (lambda: (0, 11)) if where == "__cuda_stream__" else 11
    stream = type("Stream", (), {where: staticmethod(value) if callable(value) else value})()
    compile(scale(), target="cuda")(np.ones((1, 1), F), stream=stream, **SCALARS)
    assert gpu.calls("launch")[0][2] == 11


def test_the_default_stream_of_other_packages(gpu):
    """Numba's is a null pointer, which ctypes reads as None."""
    stream = SimpleNamespace(handle=ctypes.c_void_p(0))
    compile(scale(), target="cuda")(np.ones((1, 1), F), stream=stream, **SCALARS)
    assert gpu.calls("launch")[0][2] == 0


def test_bench_launches_in_batches(gpu, monkeypatch):
    monkeypatch.setattr("loopnest.launch.timing.SECONDS", 0.0)
    monkeypatch.setattr("loopnest.launch.timing.BATCH_SECONDS", 0.0)
    p, g = np.arange(4, dtype=F), np.ones(4, F)
    found = step(gpu).bench(p, g)
    assert found.bytes == 3 * 16
    np.testing.assert_array_equal(p, np.arange(4))
    assert len(gpu.calls("launch")) == 6
    there = gpu.array(p)
    step(gpu).bench(there, gpu.array(g))
    np.testing.assert_array_equal(gpu.read(there), p)


# The choice of a target


def test_auto_takes_the_gpu(gpu, caplog):
    targets._tell.cache_clear()
    with caplog.at_level(logging.INFO, logger="loopnest"):
        assert compile(scale()).target == "cuda"
    assert [r.getMessage() for r in caplog.records] == [
        "target 'auto' takes 'cuda' on this machine"
    ]
    assert targets.preferred() == "cuda"


def test_auto_goes_on_where_a_kernel_cannot_run_on_a_gpu(gpu):
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        e = ln.exp(x)
        y = f.output(e / ln.sum(e, axis=1, keepdims=True), "y")
    e.compute_at(y, 1)
    assert compile(f).target in ("c", "interpret")
    assert compile(f, thread_order=1).target == "interpret"
    with pytest.raises(ln.LoweringError):
        compile(f, target="cuda")


def test_the_64_bit_build_is_made_when_it_is_needed(gpu, monkeypatch):
    fn = compile(scale(), target="cuda")
    x = np.ones((3, 5), F)
    fn(x, **SCALARS)
    monkeypatch.setattr("loopnest.launch.launch_plan.INT32", 14)
    fn = compile(scale(), target="cuda")
    np.testing.assert_array_equal(fn(x, **SCALARS), np.full((3, 5), 5.5))
    assert any(b"typedef long long idx_t" in text for text in gpu.sources)
    assert len(gpu.calls("load")) == 2


def test_devices():
    assert (H100.arch, A100.arch) == ("sm_90", "sm_80")


def test_a_gpu_array_of_declared_strides_is_read_where_it_lies(gpu):
    with ln.Fusion("turned") as f:
        x = f.input("x", ("N", "D"), ln.float32, strides=("S", "R"))
        f.output(x * 2.0, "y")
    fn = compile(f, target="cuda")
    x = np.arange(24, dtype=F).reshape(4, 6)
    turned = gpu.array(x)
    described = turned.__cuda_array_interface__
    described["shape"], described["strides"] = (6, 2), (4, 48)
    np.testing.assert_array_equal(fn(turned).numpy(), x.T[:, ::2] * 2)
    np.testing.assert_array_equal(fn(x.T[1::2]), x.T[1::2] * 2)
    described["strides"] = (-4, 48)
    with pytest.raises(ln.LaunchError, match=r"x has the strides \(-1, 12\) in elements"):
        fn(turned)
