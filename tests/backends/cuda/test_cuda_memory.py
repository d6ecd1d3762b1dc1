"""When memory of the GPU is given back: in the order of its streams, or after a wait."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest

import loopnest as ln
from helpers import cuda_cases as cases
from helpers.fake_gpu import FakeGpu, plug_in
from loopnest import kir
from loopnest.facade.kernel_class import Kernel, compile
from loopnest.kir.lowered import Lowered

F = np.float32


@pytest.fixture
def gpu(monkeypatch):
    return plug_in(monkeypatch, FakeGpu())


@pytest.fixture
def doubled(gpu):
    with ln.Fusion("doubled") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x + x, "y")
    return compile(f, target="cuda")


def stream(number):
    return SimpleNamespace(cuda_stream=number)


def freed(gpu, address):
    """Return the stream on which the memory at an address was given back."""
    gc.collect()
    (found,) = [on for place, on in gpu.calls("free") if place == address]
    return found


def waits_since(gpu, start):
    return [entry[1:] for entry in gpu.log[start:] if entry[0] == "wait" and entry[1] != entry[2]]


def test_a_dropped_result_waits_for_nothing(gpu, doubled):
    y = doubled(gpu.array(np.ones(8, F)))
    address = y.memory.address
    start = len(gpu.log)
    del y
    assert freed(gpu, address) == 0
    assert not [entry for entry in gpu.log[start:] if entry[0] != "free"]


def test_on_a_stream_that_an_object_keeps(gpu, doubled):
    own = stream(7)
    y = doubled(gpu.array(np.ones(8, F)), stream=own)
    address = y.memory.address
    assert ("allocate", 32, 7) in gpu.log
    del y
    assert freed(gpu, address) == 7


@pytest.mark.parametrize("number", [7, 2])
def test_on_a_stream_that_may_be_gone(gpu, doubled, number):
    """A mere number keeps no stream alive, and 2 is another stream in each thread."""
    y = doubled(gpu.array(np.ones(8, F)), stream=number)
    address = y.memory.address
    del y
    assert freed(gpu, address) is None


def test_a_result_that_another_stream_reads(gpu, doubled):
    own = stream(7)
    y = doubled(gpu.array(np.ones(8, F)))
    address = y.memory.address
    z = doubled(y, stream=own)
    np.testing.assert_array_equal(z.numpy(), np.full(8, 4, F))
    start = len(gpu.log)
    del y
    assert freed(gpu, address) == 0
    assert waits_since(gpu, start) == [(0, 7)]


def test_a_result_on_a_stream_that_the_default_one_reads(gpu, doubled):
    y = doubled(gpu.array(np.ones(8, F)), stream=stream(7))
    address = y.memory.address
    doubled(y)
    start = len(gpu.log)
    del y
    assert freed(gpu, address) == 7
    assert waits_since(gpu, start) == [(7, 0)]


@pytest.mark.parametrize("lend", ["interface", "dlpack"])
def test_a_result_that_was_lent(gpu, doubled, lend):
    """Nobody tells on which streams another package works on it."""
    y = doubled(gpu.array(np.ones(8, F)))
    address = y.memory.address
    if lend == "interface":
        assert y.__cuda_array_interface__["data"] == (address, False)
    else:
        y.__dlpack__(stream=1)
    del y
    assert freed(gpu, address) is None


def test_a_chain_of_kernels_never_waits(gpu, doubled):
    x = gpu.array(np.ones(8, F))
    start = len(gpu.log)
    y = doubled(x)
    for _ in range(5):
        y = doubled(y)
    done = [entry[0] for entry in gpu.log[start:]]
    assert done.count("launch") == 6
    assert "synchronize" not in done
    assert not [e for e in gpu.log if e[0] == "free" and e[2] is None]
    np.testing.assert_array_equal(gpu.read(y), np.full(8, 64, F))


def test_a_launch_does_not_walk_the_nest(gpu, monkeypatch):
    """What a program alone tells is asked once: a walk takes longer than the launch."""
    fn = compile(Kernel(Lowered(cases.neighbours(), (), (), ())), target="cuda")
    x = gpu.array(np.arange(128, dtype=F))
    fn(x)
    monkeypatch.setattr("helpers.fake_gpu.FakeGpu.launch", lambda *a: gpu._note("launch"))
    asked = []
    found = kir.Program.is_cooperative.func
    monkeypatch.setattr(
        kir.Program, "is_cooperative", property(lambda p: asked.append(p) or found(p))
    )
    fn(x)
    assert not asked
