"""Loops over steps that a condition ends: right on every target, and proved."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest.kir.legal_program import program_faults
from loopnest.kir.nest_parser import parse
from loopnest.kir.nest_text import print_nest
from loopnest.proofs.verifier import verify_program
from mutation.mutants import KINDS, mutants

PT = ln.ParallelType
F32 = ln.float32


def halved(**options: Any) -> ln.Fusion:
    """Halve what is at least 1, until all is below: a state a row, and the number of halvings."""
    with ln.Fusion("halved") as f:
        x = f.input("x", ("B", "N"), F32)

        def step(state: Any, _: ln.TensorView) -> Any:
            rows, count = state
            return (rows * 0.5).named("half"), count + 1

        def small(rows: ln.TensorView, _: ln.TensorView) -> ln.TensorView:
            return ln.all((rows < 1.0).named("below"), axis=(0, 1)).named("small")

        start = x, ln.full((), 0, dtype=ln.int64)
        rows, count = ln.recur(step, start, steps="T", keep="last", until=small, **options)
        f.output(rows, "rows")
        f.output(count, "count")
    return f


def halved_numpy(x: np.ndarray, steps: int) -> tuple[np.ndarray, np.int64]:
    count = 0
    while count < steps:
        x, count = x / 2, count + 1
        if (x < 1).all():
            break
    return x, np.int64(count)


def scheduled(inlined: bool = True, **dims: Any) -> ln.Fusion:
    """Return the halvings with the axes of the states and of the condition on threads."""
    f = halved()
    states = [t for t in f.tensors if t.memory is ln.GLOBAL and t.ndim == 3]
    folds = () if PT.cpu_parallel in dims.values() else (f["small"],)
    for tensor in (*states, *folds):
        tensor.parallelize({int(axis[1]): parallel for axis, parallel in dims.items()})
    f["rows"].parallelize({int(axis[1]) - 1: parallel for axis, parallel in dims.items()})
    if inlined:
        f.inline_most(replay=True)
    return f


X = np.array([[1, 9, 3], [0, 5, 40]], np.float32)


@pytest.mark.parametrize("t", [0, 1, 4, 6, 7, 50])
@pytest.mark.parametrize("inlined", [False, True])
def test_the_state_of_the_step_reached(t: int, inlined: bool) -> None:
    f = scheduled(inlined)
    kernel, wanted = ln.lower(f), halved_numpy(X, t)
    assert ln.verify(kernel).all_sizes
    calls: list[Callable[..., Any]] = [lambda *a, **s: ln.evaluate(f, *a, **s)]
    calls += [ln.compile(kernel, target=target) for target in ("interpret", "c")]
    calls.append(ln.compile(kernel, target="interpret", thread_order=1))
    for call in calls:
        for found, right in zip(call(X, T=t), wanted, strict=True):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    "dims",
    [
        {"a2": PT.block_x},
        {"a1": PT.block_y},
        {"a1": PT.grid_x, "a2": PT.block_x},
        {"a1": PT.cpu_parallel},
        {"a2": PT.unroll},
    ],
)
def test_threads_leave_the_loop_together(dims: dict[str, Any]) -> None:
    kernel = ln.lower(scheduled(PT.cpu_parallel not in dims.values(), **dims))
    report = ln.verify(kernel)
    assert report.ok, report
    for target, options in (("interpret", {}), ("interpret", {"thread_order": 3}), ("c", {})):
        call = ln.compile(kernel, target=target, **options)
        for t in (0, 3, 50):
            for found, right in zip(call(X, T=t), halved_numpy(X, t), strict=True):
                np.testing.assert_array_equal(found, right)


def test_no_step_is_run_behind_the_last_one() -> None:
    """A million steps would take the interpreter an hour, of which six are needed."""
    kernel = ln.lower(scheduled())
    assert "until" in str(kernel)
    assert ") break;" in kernel.c()
    assert ") break;" in kernel.cuda()
    for target in ("interpret", "c"):
        rows, count = ln.compile(kernel, target=target)(X, T=1_000_000)
        assert count == 6
        np.testing.assert_array_equal(rows, X / 64)


def test_a_state_that_the_condition_does_not_read() -> None:
    """It lies in the same loop, and ends with it."""
    with ln.Fusion("apart") as f:
        x, y = f.input("x", ("N",), F32), f.input("y", ("N",), F32)
        a, b = ln.recur(
            lambda s, _: (s[0] + 1.0, s[1] * 2.0), (x, y), steps="T", keep="last",
            until=lambda a, _: ln.max(a, axis=0) >= 5.0,
        )  # fmt: skip
        f.output(a, "a")
        f.output(b, "b")
    f.inline_most(replay=True)
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    a_, b_ = ln.compile(kernel, target="c")(np.float32([1, 2]), np.float32([1, 3]), T=1_000_000)
    np.testing.assert_array_equal(a_, [4, 5])
    np.testing.assert_array_equal(b_, [8, 24])


def test_the_last_two_states() -> None:
    with ln.Fusion("fibonacci") as f:
        one = ln.full((), 1, dtype=ln.int64)
        n = ln.recur(
            lambda past, _: past[0] + past[1], (one, one), steps="T", depth=2, keep="last",
            until=lambda n: n > 30,
        )  # fmt: skip
        f.output(n, "n")
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    for call in (ln.compile(kernel, target="c"), lambda T: ln.evaluate(f, T=T)):
        assert [int(call(T=t)) for t in (0, 1, 3, 40)] == [1, 2, 5, 34]


def test_over_what_is_sliced_from_the_end() -> None:
    with ln.Fusion("runs") as f:
        x = f.input("x", ("T",), F32)
        total = ln.recur(
            lambda s, x: s + x, ln.full((), 0.0), over=x, keep="last", reverse=True,
            until=lambda s: s > 10.0,
        )  # fmt: skip
        f.output(total, "total")
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    assert ln.compile(kernel, target="c")(np.array([1, 2, 8, 4, 3], np.float32)) == 15


def test_a_kernel_is_kept() -> None:
    kernel = ln.lower(scheduled(a2=PT.block_x))
    for other in (pickle.loads(pickle.dumps(kernel)), ln.Kernel.parse(kernel.text(full=True))):
        assert str(other) == str(kernel)
        assert ln.verify(other).ok
        np.testing.assert_array_equal(ln.evaluate(other, X, T=9)[0], X / 64)


def test_the_bound_of_the_error_is_that_of_each_step_that_may_be_the_last() -> None:
    with ln.Fusion("grown") as f:
        x, most = f.input("x", (), F32), f.scalar("most", F32)
        y = ln.recur(lambda y, _: ln.exp(y * x) * 0.9, ln.full((), 1.0), steps="T", keep="last",
                     until=lambda y: y > most)  # fmt: skip
        f.output(y, "y")
    x_ = np.float32(0.3)
    at_a_state = ln.evaluate(f, x_, T=2, most=9.0).item()
    assert ln.error_bound(f, x_, T=9, most=at_a_state) == np.inf
    assert 0 < ln.error_bound(f, x_, T=9, most=at_a_state - 1e-3) < 1e-5


# What is not proved


def ends(kernel: ln.Kernel) -> Iterator[tuple[str, Any]]:
    lowered = kernel._lowered
    assert lowered.math is not None
    for mutant in mutants(lowered.program, KINDS):
        if mutant.kind == "end":
            yield mutant.text, verify_program(mutant.program, lowered.math())


@pytest.mark.parametrize("dims", [{}, {"a2": PT.block_x}])
def test_a_loop_that_ends_elsewhere_is_refuted(dims: dict[str, Any]) -> None:
    found = dict(ends(ln.lower(scheduled(**dims))))
    assert len(found) >= 3
    assert {text: str(r) for text, r in found.items() if r.status != "refuted"} == {}


def test_other_mutants_are_not_proved() -> None:
    lowered = ln.lower(scheduled(a2=PT.block_x))._lowered
    assert lowered.math is not None
    math = lowered.math()
    wrong = [m for m in mutants(lowered.program) if m.kind in ("store", "index", "init", "order")]
    found = {m.text: verify_program(m.program, math).status for m in wrong}
    assert "refuted" in found.values()
    assert [text for text, s in found.items() if s == "proved" and text.startswith("drop")] == []


def test_what_may_end_a_loop() -> None:
    lines = [
        "# loopnest nest 1",
        "kernel k(x: float32[N]) -> (y: float32[N])",
        "for i0 in N:",
        "  until x[i0] < 1.0",
        "  y[i0] = x[i0]",
        "for i1 in N:  # cpu_parallel",
        "  y[i1] = x[i1]",
        "  until x[i1]",
    ]
    program = parse("\n".join(lines))
    assert print_nest(program).splitlines() == lines
    where = "is not the last statement of a loop that runs in order"
    assert program_faults(program) == [
        f"until x[i0] < 1.0 {where}",
        f"until x[i1] {where}",
        "a loop ends by x[i1], of the type float32",
    ]


# What is refused


def refused(call: Callable[[], object], error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def test_the_step_reached_lies_in_shared_memory() -> None:
    f = scheduled(a2=PT.block_x)
    fold_of(f).memory = ln.SHARED
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    np.testing.assert_array_equal(ln.compile(kernel, target="interpret")(X, T=9)[0], X / 64)


def fold_of(f: ln.Fusion) -> ln.TensorView:
    """Return what has the step that is reached."""
    (fold,) = [t for t in f.tensors if t.definition is not None and t.definition.op == "until"]
    return fold


def test_each_thread_knows_where_the_loop_ends() -> None:
    f = scheduled(a2=PT.block_x)
    fold = fold_of(f)
    fold.memory = ln.GLOBAL
    assert refused(lambda: ln.lower(f), ln.LoweringError) == (
        f"{fold.name}: it is in GLOBAL memory, where one thread folds it, and each thread that "
        "runs the loop over steps ends it by what it has folded; leave "
        f"{fold.name} in LOCAL or SHARED memory"
    )


def sums(until: object, **options: Any) -> str:
    with ln.Fusion("k") as f:
        x, h = f.input("x", ("T", "H"), F32), f.input("h", ("H",), F32)

        def call() -> None:
            ln.recur(lambda h, x: h + x, h, over=x, until=until, **{"keep": "last", **options})

        said = refused(call, ln.DefinitionError)
        assert f.tensors == (x, h)
    return said.partition("): ")[2]


def test_bad_conditions() -> None:
    assert sums(3) == "until=3 is no function; give one of the states that returns a bool"
    assert sums(lambda h: h, keep="all") == (
        "until= ends the loop early, and keep='all' asks for all states; use keep=\"last\""
    )
    assert sums(lambda h: True) == ("until returns True; return a bool of no axes, by the states")
    hint = "return a bool of no axes: compare a number, or take ln.any or ln.all"
    assert sums(lambda h: h > 1.0) == f"until returns T5, which is bool[H]; {hint}"
    assert sums(lambda h: ln.sum(h)) == f"until returns T5, which is float32[]; {hint}"
    assert sums(lambda h: ln.full((), True)) == (
        "until returns T5, which reads no state; compute it of the states that it is given"
    )
