"""ln.bisect and the script of a trace: every state of a schedule, by going back and by replay."""

from __future__ import annotations

import copy
import re
from random import Random

import pytest

import loopnest as ln
from end_to_end.test_goldens import CASES
from fuzzing.fusions import FusionWriter
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.facade.kernel_class import lower


def math_of(kernel):
    """Return the math of a kernel, without a schedule."""
    with ln.Fusion(kernel.name) as f:
        kernel.math(f)
    return f


def nest_of(f):
    """Return the nest of a fusion, or why it has none."""
    try:
        return str(lower(f))
    except ln.LoopnestError as error:
        return str(error)


@pytest.mark.parametrize(("kernel", "schedule"), CASES)
def test_script_of_a_kernel(kernel, schedule):
    f, again = kernel.fusion(schedule), math_of(kernel)
    exec(str(f.trace), {"f": again})
    assert nest_of(again) == nest_of(f)
    assert again.trace.script() == f.trace.script()


@pytest.mark.parametrize("number", range(24))
def test_script_of_a_random_schedule(number):
    """Every prefix of its calls makes the state that going back finds."""
    session, again = random_schedule(number)
    f = session.fusion
    exec(str(f.trace), {"f": again.fusion})
    assert [*map(str, again.fusion.tensors)] == [*map(str, f.tensors)]
    assert nest_of(again.fusion) == nest_of(f)
    before, nest = [*map(str, f.tensors)], nest_of(f)
    for count in range(0, len(f.trace), 5):
        part = copy.copy(again_of(session))
        exec(f.trace.script(count), {"f": part})
        with f.as_of(f.after_call(count - 1)):
            assert [*map(str, f.tensors)] == [*map(str, part.tensors)]
            assert nest_of(f) == nest_of(part)
    assert ([*map(str, f.tensors)], nest_of(f)) == (before, nest)


def random_schedule(number):
    """Return a random schedule, and its math alone."""
    session = Session(f"case_{number}")
    FusionWriter(session, Random(f"7/math/{number // 4}")).write()
    again = Session(session.fusion.name)
    for line in session.math:
        again.define(line)
    ScheduleWriter(session, Random(f"7/schedule/{number}")).write()
    return session, again


def again_of(session):
    """Return the math of a session once more."""
    again = Session(session.fusion.name)
    for line in session.math:
        again.define(line)
    return again.fusion


def softmax_rows():
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.assume("D % 4 == 0")
        m = ln.max(x, axis=1, keepdims=True)
        e = ln.exp(x - m).named("e")
        y = f.output(e / ln.sum(e, axis=1, keepdims=True), "y")
    return f, y


def test_script_has_names_and_assumptions_of_the_schedule():
    f, y = softmax_rows()
    f.assume("N % 8 == 0")
    f["T1"].named("most")
    part = y.cache_before().named("held")
    y.split(axis=0, factor=8, inner=True).parallelize({0: ln.ParallelType.grid_x})
    part.memory = ln.SHARED
    f.assume("N <= 4096")
    ln.inline_most([part])
    assert str(f.trace) == (
        "import loopnest as ln\n"
        "\n"
        "f.assume('N % 8 == 0')\n"
        "most = f.tensors[1].named('most')\n"
        'y = f["y"]\n'
        "held = y.cache_before()\n"
        "held.named('held')\n"
        "y.split(0, 8)\n"
        "y.parallelize({0: ln.ParallelType.grid_x})\n"
        "held.memory = ln.SHARED\n"
        "f.assume('N <= 4096')\n"
        "ln.inline_most([held])"
    )
    again, _ = softmax_rows()
    exec(f.trace.script(), {"f": again})
    assert nest_of(again) == nest_of(f)
    copied = copy.copy(f)
    assert copied.trace.script() == f.trace.script()


def test_script_of_stages():
    """An automatic schedule of several stages is made again, stage by stage."""
    f, again = staged(), staged()
    ln.auto_schedule(f)
    assert "with focused(f, " in str(f.trace)
    exec(str(f.trace), {"f": again})
    assert nest_of(again) == nest_of(f)


def staged():
    with ln.Fusion("stages") as f:
        x = f.input("x", ("N", "K"), ln.float32)
        w = f.input("w", ("K", "M"), ln.float32)
        v = f.input("v", ("M", "K"), ln.float32)
        f.output(ln.matmul(ln.matmul(x, w), v), "y")
    return f


def test_bisect_through_stages():
    f = staged()
    ln.auto_schedule(f)
    nest = nest_of(f)
    index, call = ln.bisect(f, lambda kernel: "cpu_parallel" in str(kernel))
    assert "cpu_parallel" in call.call
    assert call is f.trace[index]
    part = staged()
    exec(f.trace.script(index), {"f": part})
    assert "cpu_parallel" not in nest_of(part)
    assert nest_of(f) == nest


def test_bisect_finds_the_first():
    """Also where the predicate fails again behind a later call."""
    f, y = softmax_rows()
    y.split(0, 4)
    ln.inline_most([f["e"]])
    y.axis(1).parallelize(ln.ParallelType.unroll)
    y.axis(1).parallelize(ln.ParallelType.serial)
    assert ln.bisect(f, lambda kernel: "unroll" in str(kernel))[0] == 2
    sizes = []
    index, call = ln.bisect(f, lambda kernel: sizes.append(kernel) or len(sizes) == 3)
    assert (index, call.call) == (1, f.trace[1].call)
    assert "ceildiv(N, 4)" not in str(sizes[0])
    assert "ceildiv(N, 4)" in str(sizes[1])


def test_bisect_passes_over_what_has_no_kernel():
    with ln.Fusion("sums") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = ln.exp(x)
        y = f.output(ln.sum(t, axis=1), "y")
    t.parallelize({0: ln.ParallelType.block_x})
    y.parallelize({0: ln.ParallelType.grid_x})
    t.memory = ln.GLOBAL
    t.parallelize({0: ln.ParallelType.grid_x})
    index, _ = ln.bisect(f, lambda kernel: "grid_x" in str(kernel))
    assert index == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda f: (3, bool), "bisect(3, ...): an int is no Fusion; use bisect(f, predicate)"),
        (lambda f: (f, 3), "bisect(rows, ...): 3 is no function; pass a function of a Kernel"),
        (
            lambda f: (f, lambda kernel: False),
            "bisect(rows, ...): the predicate holds behind none of the 1 calls; "
            "ask of ln.lower(f) first",
        ),
        (
            lambda f: (f, lambda kernel: True),
            "bisect(rows, ...): the predicate holds of the math, before the first call; "
            "ask for what a call brings about",
        ),
        (
            lambda f: (copy.copy(f), lambda kernel: True),
            "bisect(rows, ...): this fusion was copied or loaded, and has no earlier states; "
            "bisect the one that the calls were made on",
        ),
    ],
)
def test_bisect_refuses(arguments, message):
    f, y = softmax_rows()
    y.split(0, 4)
    with pytest.raises(ln.LoopnestError, match=f"^{re.escape(message)}$"):
        ln.bisect(*arguments(f))
