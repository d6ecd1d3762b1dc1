"""Memory and layout of one tensor: every pair of calls, in both orders, is right or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations

import numpy as np
import pytest

import loopnest as ln


def put(memory: ln.Memory) -> Callable[[ln.TensorView], None]:
    def call(tensor: ln.TensorView) -> None:
        tensor.memory = memory

    return call


MEMORIES: Mapping[str, ln.Memory] = {"local": ln.LOCAL, "shared": ln.SHARED, "global": ln.GLOBAL}
CALLS: Mapping[str, Callable[[ln.TensorView], object]] = {
    **{name: put(memory) for name, memory in MEMORIES.items()},
    "order": lambda t: t.set_allocation(order=(1, 0, 2)),
    "pad": lambda t: t.set_allocation(pad={2: 1}),
    "swizzle": lambda t: t.swizzle(ln.Swizzle.XOR, 1, 2),
    "circular_buffer": lambda t: t.circular_buffer(2),
    "vectorize": lambda t: t.parallelize({2: ln.ParallelType.vectorize}),
}
LAID_OUT = ("swizzle", "circular_buffer")
SWIZZLED = (
    "T1.set_memory({}): T1 is swizzled, as only a SHARED tensor may be; choose the memory before "
    "swizzle"
)
CIRCULAR = (
    "T1.set_memory({}): T1 has a circular buffer of 2 stages, as only a LOCAL or a SHARED "
    "tensor may; choose the memory before circular_buffer"
)


def scaled() -> tuple[ln.Fusion, ln.TensorView]:
    with ln.Fusion("scaled") as f:
        x = f.input("x", (4, 8, 8), ln.float32)
        t = -x
        y = f.output(t * 2.0, "y")
    t.compute_at(y, 1)
    return f, t


def allowed(call: str, memory: str, layout: set[str]) -> bool:
    """Whether a call is: a swizzle lies in SHARED memory, a circular buffer not in GLOBAL."""
    match call:
        case "swizzle":
            return memory == "shared"
        case "circular_buffer":
            return memory != "global"
        case "local":
            return "swizzle" not in layout
        case "global":
            return not layout.intersection(LAID_OUT)
    return True


@pytest.mark.parametrize("start", MEMORIES)
@pytest.mark.parametrize("pair", list(permutations(CALLS, 2)), ids="-".join)
def test_pairs_of_calls(start: str, pair: tuple[str, str]) -> None:
    """A call that is refused changes nothing; what is accepted is computed, and proved."""
    f, tensor = scaled()
    put(MEMORIES[start])(tensor)
    memory, layout = start, set[str]()
    for call in pair:
        before = (tensor.memory, tensor.layout, str(f.trace))
        if allowed(call, memory, layout):
            CALLS[call](tensor)
            memory = call if call in MEMORIES else memory
            layout.add(call)
        else:
            with pytest.raises(ln.ScheduleError):
                CALLS[call](tensor)
            assert (tensor.memory, tensor.layout, str(f.trace)) == before
    assert tensor.memory is MEMORIES[memory]
    kernel = ln.lower(f)
    assert ln.verify(kernel).status == "proved"
    x = np.random.default_rng(0).normal(size=(4, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(ln.compile(kernel, target="interpret")(x), -2 * x)


@pytest.mark.parametrize(
    ("call", "sentence", "memory"),
    [
        ("swizzle", SWIZZLED, "local"),
        ("swizzle", SWIZZLED, "global"),
        ("circular_buffer", CIRCULAR, "global"),
    ],
)
def test_what_not_every_memory_has(call: str, sentence: str, memory: str) -> None:
    _, tensor = scaled()
    tensor.memory = ln.SHARED
    CALLS[call](tensor)
    with pytest.raises(ln.ScheduleError) as caught:
        tensor.memory = MEMORIES[memory]
    assert str(caught.value) == sentence.format(memory)
    tensor.memory = ln.SHARED


@pytest.mark.parametrize("call", ["order", "pad", "swizzle", "circular_buffer"])
def test_no_output_of_a_tensor_that_is_laid_out(call: str) -> None:
    f, tensor = scaled()
    tensor.memory = ln.SHARED
    CALLS[call](tensor)
    with pytest.raises(ln.DefinitionError) as caught:
        f.output(tensor, "z")
    assert str(caught.value) == (
        "output('z'): the buffer of T1 was laid out, but that of an output is the caller's; "
        "declare outputs before set_allocation, swizzle and circular_buffer"
    )
    assert len(f.outputs) == 1
    assert tensor.memory is ln.SHARED
