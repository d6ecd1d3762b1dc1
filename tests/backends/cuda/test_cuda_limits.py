"""Options, workspace, shared memory and variants of kernels on a GPU that is none."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

import loopnest as ln
from helpers import cuda_cases as cases
from helpers.fake_gpu import A100, FakeGpu, plug_in
from helpers.fake_gpu_kernels import SCALARS, F, kernel_of, message, scale
from loopnest.backends import targets
from loopnest.backends.cuda.driver.gpu_driver import DriverLaunch
from loopnest.facade.kernel_class import compile

# Options, memory, limits


def test_options(gpu):
    fn = compile(scale(), target="cuda", fast_math=True, min_blocks=3, max_registers=64)
    assert gpu.calls("compile") == [("sm_90", {"fast_math": True, "max_registers": 64})]
    assert any(b"__launch_bounds__(4, 3) scale(" in text for text in gpu.sources)
    assert fn(np.ones((1, 1), F), **SCALARS).shape == (1, 1)


def test_workspace_is_made_once_for_sizes_and_stream(gpu):
    fn = compile(kernel_of(cases.grid_sum()), target="cuda")
    x = np.random.default_rng(0).random(3000, F)
    for _ in range(3):
        np.testing.assert_allclose(fn(x), [x.sum()], rtol=1e-5)
    assert gpu.calls("allocate").count((512, 0)) == 1  # T3 and its counter
    assert gpu.calls("zero") == [(4, 0)]
    fn(x, stream=3)
    assert gpu.calls("zero") == [(4, 0), (4, 3)]
    fn(x[:1000])
    assert gpu.calls("zero") == [(4, 0), (4, 3), (4, 0)]


def test_threads_do_not_share_the_workspace_of_their_default_streams(gpu):
    """2 is one number for the streams of all threads, whose launches may run at the same time."""
    fn = compile(kernel_of(cases.grid_sum()), target="cuda")
    x = np.ones(3000, F)
    fn(x, stream=2)
    fn(x, stream=2)
    assert gpu.calls("zero") == [(4, 2)]
    other = threading.Thread(target=fn, args=(x,), kwargs={"stream": 2})
    other.start()
    other.join()
    assert gpu.calls("zero") == [(4, 2), (4, 2)]


def test_a_barrier_of_the_grid_is_launched_together(gpu):
    fn = compile(kernel_of(cases.neighbours()), target="cuda")
    x = np.arange(128, dtype=F)
    np.testing.assert_array_equal(fn(x), np.roll(x, -1))
    assert gpu.calls("launch") == [("neighbours", DriverLaunch((4, 1, 1), (32, 1, 1), 0, True), 0)]
    assert gpu.calls("resident_blocks") == [(32, 0)]
    fn(x)
    assert gpu.calls("zero") == [(4, 0)]
    assert len(gpu.calls("resident_blocks")) == 1


def test_blocks_that_wait_must_all_run_at_once(gpu):
    fn = compile(kernel_of(cases.neighbours(blocks=300)), target="cuda")
    assert message(ln.LaunchError, lambda: fn(np.zeros(9600, F))) == (
        "neighbours(...): its 300 blocks wait for each other, so all must run at once; "
        "Fake H100 holds 2 on each of 132 multiprocessors; use at most 264 blocks"
    )
    assert not gpu.calls("launch")
    assert not gpu.calls("upload")


@pytest.mark.parametrize(("kilobytes", "dynamic"), [(48, False), (52, True), (96, True)])
def test_shared_memory_beyond_48_kilobytes_is_asked_for(gpu, kilobytes, dynamic):
    fn = compile(kernel_of(cases.reverse(kilobytes * 256)), target="cuda")
    x = np.arange(64, dtype=F)
    for _ in range(2):
        np.testing.assert_array_equal(fn(x), x[::-1])
    count = kilobytes * 1024
    assert fn.kernel.launch().shared_bytes == count
    assert gpu.calls("allow_shared") == ([(count,)] if dynamic else [])
    assert gpu.calls("launch")[0][1].dynamic_bytes == (count if dynamic else 0)


def test_too_much_shared_memory(monkeypatch):
    gpu = plug_in(monkeypatch, FakeGpu(A100))
    fn = compile(kernel_of(cases.reverse(50000)), target="cuda")
    assert message(ln.LaunchError, lambda: fn(np.zeros(64, F))) == (
        "reverse(...): a block needs 200000 bytes of shared memory: T2 200000; "
        "use at most 166912 on Fake A100"
    )
    assert not gpu.calls("launch")
    k = kernel_of(cases.reverse(60000))
    assert message(ln.LaunchError, k.launch) == (
        "reverse.launch(): a block needs 240000 bytes of shared memory: T2 240000; "
        "use at most 232448"
    )


# Variants


def vectors():
    return kernel_of(cases.copy(), cases.copy(lanes=1))


def test_sizes_that_vectors_do_not_divide_take_the_scalar_variant(gpu, caplog):
    fn = compile(vectors(), target="cuda")
    x = np.arange(24, dtype=F).reshape(2, 12)
    with caplog.at_level(logging.INFO, logger="loopnest"):
        np.testing.assert_array_equal(fn(x), x)
        np.testing.assert_array_equal(fn(x[:, :9].copy()), x[:, :9])
        np.testing.assert_array_equal(fn(x[:, :9].copy()), x[:, :9])
    assert [(c[1].grid, c[1].block) for c in gpu.calls("launch")] == [
        ((2, 1, 1), (3, 1, 1)), ((2, 1, 1), (9, 1, 1)), ((2, 1, 1), (9, 1, 1)),
    ]  # fmt: skip
    assert [r.getMessage() for r in caplog.records] == [
        "copy(...): the scalar variant runs: 'D % 4 == 0' does not hold for D = 9"
    ]
    found = fn.kernel.launch(N=2, D=12), fn.kernel.launch(N=2, D=9)
    assert [f.variant for f in found] == ["vector", "scalar"]
    assert [f.block for f in found] == [(3, 1, 1), (9, 1, 1)]


def test_addresses_that_are_not_aligned_take_the_scalar_variant(gpu, caplog):
    fn = compile(vectors(), target="cuda")
    x = np.arange(24, dtype=F).reshape(2, 12)
    with caplog.at_level(logging.INFO, logger="loopnest"):
        y = fn(gpu.array(x, offset=4))
        out = gpu.array(x, offset=8)
        assert fn(gpu.array(x), out=out) is out
        fn(gpu.array(x, offset=16))
    np.testing.assert_array_equal(y.numpy(), x)
    assert [c[1].block for c in gpu.calls("launch")] == [(12, 1, 1), (12, 1, 1), (3, 1, 1)]
    assert [r.getMessage() for r in caplog.records] == [
        "copy(...): the scalar variant runs: x is not aligned to 16 bytes",
        "copy(...): the scalar variant runs: y is not aligned to 16 bytes",
    ]


def test_without_a_scalar_variant_what_is_required_must_hold(gpu):
    k = kernel_of(cases.copy())
    fn = compile(k, target="cuda")
    expected = (
        "the assumption 'D % 4 == 0' does not hold for D = 9; "
        "pass sizes for which it does, or define the kernel without it"
    )
    assert message(ln.LaunchError, lambda: fn(np.zeros((1, 9), F))) == f"copy(...): {expected}"
    assert message(ln.LaunchError, lambda: k.launch(N=1, D=9)) == (
        f"copy.launch(N=1, D=9): {expected}"
    )
    assert message(ln.LaunchError, lambda: fn(gpu.array(np.zeros((1, 8), F), offset=4))) == (
        "copy(...): x is not aligned to 16 bytes; pass an array that is"
    )


@pytest.mark.parametrize("target", ["c", "interpret"])
def test_variants_on_other_targets(target):
    if targets.TARGETS[target].obstacle():
        pytest.skip("no C compiler")
    fn = compile(vectors(), target=target)
    x = np.arange(24, dtype=F).reshape(2, 12)
    for columns in (12, 9, 1):
        np.testing.assert_array_equal(fn(x[:, :columns].copy()), x[:, :columns])
    assert len(fn._variants) == 2
