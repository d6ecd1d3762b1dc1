"""Steps of a run: one statement of one thread at a time, with what it read and made."""

import json
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import loopnest as ln
from helpers.flying_nests import pipeline, plain
from helpers.mma_gemm import mma_gemm
from kernels.cumsum import cumsum
from kernels.gemm import gemm
from kernels.grid_sum import grid_sum
from kernels.histogram import histogram
from kernels.lstm_sequence import lstm_sequence
from kernels.row_sum import row_sum
from kernels.softmax import softmax
from loopnest import kir
from loopnest.backends.interpret import Interpreter
from loopnest.devtools.harness import make_arguments
from loopnest.devtools.trial_sizes import trial_sizes
from loopnest.lane_machine.stepping import Steps, ThreadStep

P = ln.ParallelType
X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def threads_sum() -> ln.Fusion:
    """Return a sum whose terms two threads share."""
    with ln.Fusion("row_sum") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    t = y.cache_before()
    t.split(1, 2)
    t.parallelize({2: P.block_x})
    y.parallelize({0: P.grid_x})
    t.compute_at(y, 1)
    return f


def test_a_step_has_line_loops_values() -> None:
    steps = ln.compile(threads_sum(), target="interpret").step(X, block=1, thread=1)
    assert [str(step) for step in steps] == [
        "line 6: T2_acc[0] = 0.0\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1\n"
        "    -> T2_acc[0] = 0.0",
        "line 9: if i1 * 2 + i2 < D:\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1, i1=0, i2=1\n"
        "    -> condition = True",
        "line 10: T2_acc[0] = T2_acc[0] + x[i0, i1 * 2 + i2]\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1, i1=0, i2=1\n"
        "    T2_acc[0] is 0.0, x[1, 1] is 5.0 -> T2_acc[0] = 5.0",
        "line 9: if i1 * 2 + i2 < D:\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1, i1=1, i2=1\n"
        "    -> condition = False",
        "line 12: let v0 = T2_acc[0]\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1\n"
        "    T2_acc[0] is 5.0 -> v0 = 5.0",
        "line 13: let v1 = shuffle_xor(v0, 1)\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1\n"
        "    v0 is 5.0 -> v1 = 10.0",
        "line 14: let v2 = v0 + v1\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1\n"
        "    v0 is 5.0, v1 is 10.0 -> v2 = 15.0",
        "line 15: T2[0] = v2\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1\n"
        "    v2 is 15.0 -> T2[0] = 15.0",
        "line 16: if block_x == 0:\n"
        "    block (1, 0, 0), thread (1, 0, 0), i0=1\n"
        "    -> condition = False",
    ]
    np.testing.assert_array_equal(steps.outputs["y"], [6, 15])


RANGES = {"histogram": histogram.ranges}
CASES = {
    "cumsum": (cumsum.fusion("gpu"), {}),
    "gemm": (gemm.fusion("cpu"), {}),
    "grid_sum": (grid_sum.fusion("gpu", blocks=3, threads=32), {"N": 200}),
    "histogram": (histogram.fusion("gpu"), {}),
    "lstm_sequence": (lstm_sequence.fusion("gpu"), {}),
    "row_sum": (row_sum.fusion("gpu", threads=32), {}),
    "softmax": (softmax.fusion("gpu"), {}),
    "tiles": (
        mma_gemm("mma.m16n8k16.f32.f16", tiles=(1, 1, 1), stages=2, whole=False),
        {"M": 9, "N": 8, "K": 17},
    ),
}


@pytest.mark.parametrize("order", [None, 3])
@pytest.mark.parametrize("case", CASES)
def test_what_is_read_was_stored(case: str, order: int | None) -> None:
    """Hold each step against the ones before it: memory that only steps fill."""
    fusion, sizes = CASES[case]
    k = ln.lower(fusion)
    if not sizes:
        sizes = min(trial_sizes(k.program), key=lambda found: int(np.prod([*found.values()])))
    made = make_arguments(fusion, sizes, RANGES.get(case))
    fn = ln.compile(k, target="interpret", thread_order=order)
    whole = fn(*made.arrays, **made.scalars)
    memory = {b.name: b.memory for b in k.buffers}
    held: dict[object, object] = {}
    steps = fn.step(*made.arrays, **made.scalars)
    looked_at = 0
    for step in steps:
        for name, value in step.reads.items():
            key = place(name, step, memory)
            if key in held:
                assert np.array_equal(value, held[key], equal_nan=True), step
                looked_at += 1
        if not step.in_flight:
            held |= {place(name, step, memory): value for name, value in step.makes.items()}
        else:
            for name in step.makes:
                held.pop(place(name, step, memory), None)
    assert looked_at > 20
    results = whole if isinstance(whole, tuple) else (whole,)
    for result, output in zip(results, steps.outputs.values(), strict=True):
        np.testing.assert_array_equal(result, output)


def place(name: str, step: ThreadStep, memory: dict[str, ln.Memory]) -> object:
    """Return what tells an element, or a temporary, from those of other threads."""
    match memory.get(name.split("[")[0].removesuffix(".flat")):
        case ln.GLOBAL:
            return name
        case None | ln.LOCAL:
            return name, step.block, step.thread
    return name, step.block


def interpreted(text: str, x: np.ndarray, rows: int) -> list[ThreadStep]:
    """Return the steps of a nest that is written down."""
    y = np.zeros(64, np.float32)
    program = kir.parse(plain(text))
    run = Interpreter(program).steps(
        {"x": x, "y": y}, {"N": rows}, {}, None, None, None, program.name
    )
    return list(Steps(run, {}))


def test_copies_in_flight_say_when_they_store() -> None:
    x = np.arange(128, dtype=np.float32).reshape(2, 64)
    steps = interpreted(pipeline(2, 1), x, 2)
    flying = [step for step in steps if step.in_flight]
    assert len(flying) == 128
    assert str(flying[65]).splitlines()[-1].endswith("x[1, 1] is 65.0 -> "
        f"{next(iter(flying[65].makes))} = 65.0, when the copy lands")  # fmt: skip
    assert {step.text for step in steps} >= {"commit", "wait 0"}


def test_atomic_stores_come_one_after_the_other() -> None:
    text = """# loopnest nest 1
kernel k(x: float32[3]) -> (y: float32[1])
if block_x == 0:
  y[0] = 0.0
barrier block
for i0 in 3:  # block_x
  atomic y[0] = y[0] + x[i0]
"""
    arrays = {"x": np.array([1, 2, 4], np.float32), "y": np.zeros(1, np.float32)}
    run = Interpreter(kir.parse(text)).steps(arrays, {}, {}, None, None, None, "k")
    told = [str(step).splitlines()[-1].strip() for step in Steps(run, {})]
    assert told[-3:] == [
        "y[0] is 0.0, x[0] is 1.0 -> y[0] = 1.0",
        "y[0] is 1.0, x[1] is 2.0 -> y[0] = 3.0",
        "y[0] is 3.0, x[2] is 4.0 -> y[0] = 7.0",
    ]


def test_steps_are_made_when_they_are_asked_for() -> None:
    with ln.Fusion("long") as f:
        f.output(ln.sum(f.input("x", ("N",), ln.float32), axis=0), "y")
    steps = ln.compile(f, target="interpret").step(np.ones(1_000_000, np.float32))
    assert [next(steps).makes for _ in range(3)] == [{"y[0]": 0.0}, {"y[0]": 1.0}, {"y[0]": 2.0}]
    assert steps.outputs["y"] == 2.0
    del steps
    for _ in range(100):  # the thread that ran it ends
        if not any(t.name == "loopnest steps" for t in threading.enumerate()):
            break
        time.sleep(0.05)
    assert not any(t.name == "loopnest steps" for t in threading.enumerate())


def test_a_fault_comes_at_its_step() -> None:
    text = "kernel k(x: float32[4]) -> (y: float32[64])\ny[0] = 1.0\ny[1] = x[4]"
    program = kir.parse("# loopnest nest 1\n" + text)
    arrays = {"x": np.zeros(4, np.float32), "y": np.zeros(64, np.float32)}
    run = Interpreter(program).steps(arrays, {}, {}, None, None, None, "k")
    steps = Steps(run, {})
    assert next(steps).makes == {"y[0]": 1.0}
    with pytest.raises(ln.KernelFault) as caught:
        next(steps)
    assert str(caught.value) == (
        "k, nest line 4 'y[1] = x[4]': y reads x[4]: index 4 is out of bounds for axis 0 of "
        "buffer x (tensor x), which has extent 4; block (0, 0, 0), thread (0, 0, 0)"
    )


def test_no_element_and_inputs_that_are_overwritten() -> None:
    fn = ln.compile(threads_sum(), target="interpret")
    empty = fn.step(np.ones((2, 0), np.float32))
    assert all("x[" not in name for step in empty for name in step.reads)
    np.testing.assert_array_equal(empty.outputs["y"], [0, 0])
    assert list(fn.step(np.ones((0, 3), np.float32))) == []
    with ln.Fusion("add_to") as f:
        p = f.input("p", ("N",), ln.bfloat16)
        f.output(p + 1.5, "q", inplace=p)
    mine = np.zeros(2, ml_dtypes.bfloat16)
    steps = list(ln.compile(f, target="interpret").step(mine))
    assert [str(s.makes) for s in steps] == ["{'p[0]': 1.5}", "{'p[1]': 1.5}"]
    assert list(mine) == [0, 0]


def test_steps_are_json() -> None:
    steps = ln.compile(threads_sum(), target="interpret").step(X, block=0, thread=(1, 0, 0))
    found = json.loads(json.dumps([step.to_dict() for step in steps]))
    assert found[2] == {
        "line": 10, "text": "T2_acc[0] = T2_acc[0] + x[i0, i1 * 2 + i2]", "block": [0, 0, 0],
        "thread": [1, 0, 0], "loops": {"i0": 0, "i1": 0, "i2": 1},
        "reads": {"T2_acc[0]": 0.0, "x[0, 1]": 2.0}, "makes": {"T2_acc[0]": 2.0},
        "in_flight": False,
    }  # fmt: skip


def error(fn: object, *arrays: np.ndarray, **keywords: object) -> str:
    with pytest.raises(ln.LaunchError) as caught:
        fn.step(*arrays, **keywords)
    return str(caught.value)


def test_places_that_there_are_not() -> None:
    fn = ln.compile(threads_sum(), target="interpret")
    assert error(fn, X, block=2) == (
        "row_sum.step(block=2): there is none at (2, 0, 0); along x, y and z there are (2, 1, 1)"
    )
    assert error(fn, X, thread=(0, -1)) == (
        "row_sum.step(thread=(0, -1)): there is none at (0, -1, 0); along x, y and z there are "
        "(2, 1, 1)"
    )
    assert error(fn, X, block="first") == (
        "row_sum.step(block='first'): 'first' is no place; pass an int, or a tuple of at most 3, "
        "or None for all"
    )
    assert error(fn, X, block=(0, 0, 0, 0)) == (
        "row_sum.step(block=(0, 0, 0, 0)): (0, 0, 0, 0) is no place; pass an int, or a tuple of at "
        "most 3, or None for all"
    )
    assert error(fn) == error_of_a_call(fn)


def error_of_a_call(fn: object) -> str:
    with pytest.raises(ln.LaunchError) as caught:
        fn()
    return str(caught.value)


def test_other_targets_have_no_steps() -> None:
    assert error(ln.compile(threads_sum(), target="c"), X) == (
        "row_sum(...): it was compiled for 'c', which has no steps; "
        'use ln.compile(f, target="interpret")'
    )


def test_an_argument_that_hides_a_keyword() -> None:
    with ln.Fusion("k") as f:
        f.output(f.input("x", ("N",), ln.float32) * f.scalar("block", ln.float32), "y")
    fn = ln.compile(f, target="interpret")
    assert error(fn, np.ones(2, np.float32), block=2.0) == (
        "k(...): its argument 'block' hides the keyword block= of step; give it another name"
    )
