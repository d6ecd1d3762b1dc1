"""Quotients and remainders by sizes: with few values, of sizes alone, of data.

That no mutant of these kernels is proved is looked at by `tools/mutate.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import loopnest as ln
from loopnest import kir
from loopnest.proofs.verifier import verify_program
from mutation.judge import mutants_of
from mutation.rewriting import replaced
from mutation.subjects import keys_in, load

KERNELS = Path(__file__).resolve().parent.parent / "mutation" / "kernels"
KEYS = list(keys_in(KERNELS / "quotients.py"))
AT_SIZES = "rolled_sum"
"""The kernel whose quotient has no bound that is known."""


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.kernel != AT_SIZES], ids=lambda key: key.name
)
def test_it_is_proved_for_all_sizes(key) -> None:
    subject = load(key)
    assert subject is not None
    assert verify_program(subject.program, subject.math).scope == "all sizes"


def rolled(shift: int) -> ln.Kernel:
    with ln.Fusion("rolled") as f:
        f.output(ln.roll(f.input("x", ("M", "N"), ln.float32), shift, 0) * 2.0, "y")
    f["y"].split(0, 8)
    return ln.lower(f)


def test_a_roll_by_another_number_is_refuted() -> None:
    """The quotient of one index says nothing of that of another."""
    math = rolled(1)._lowered.math
    assert math is not None
    assert verify_program(rolled(2)._lowered.program, math()).status == "refuted"
    assert verify_program(rolled(1)._lowered.program, math()).scope == "all sizes"


def test_a_quotient_with_many_values_is_none_of_these() -> None:
    report = ln.verify(rolled(9))
    assert report.ok
    assert report.findings[-1].message == (
        "there is no proof for all sizes: it has no affine form: division by a symbol"
    )


def test_flat_windows_around_the_end_of_two_axes() -> None:
    """Products of quotients with sizes, in an offset that is taken apart."""
    with ln.Fusion("both") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        y = f.output(ln.roll(ln.roll(x, 1, 0), -1, 1) + x, "y")
    y.merge(0)
    y.split(0, 4)
    f.inline_most()
    report = ln.verify(ln.lower(f))
    assert report.scope == "all sizes"


def grouped(reads: int, schedule: str) -> ln.Kernel:
    """A row of 4 groups of channels; `reads` is the group whose rate the second one takes."""
    with ln.Fusion("grouped") as f:
        x = f.input("x", ("N", "C", "S"), ln.float32)
        rate = f.input("rate", ("N", 4), ln.float32)
        f.assume("C % 4 == 0")
        rows = ln.reshape(x, (x.shape[0], 4, -1)).named("rows")
        moved = ln.roll(rate, 1 - reads, 1)
        rated = (rows * ln.broadcast(moved, (False, False, True))).named("rated")
        y = f.output(ln.reshape(rated, x.shape) + 1.0, "y")
    y.split(1, 4, inner=False)
    if schedule == "cpu":
        y.merge(0)
        y.parallelize({0: ln.ParallelType.cpu_parallel})
        rated.compute_at(y, 1)
    else:
        y.merge(2)
        y.split(2, 2, inner=False)
        ln.propagate(y)
        y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.grid_y})
        rated.compute_at(y, 2)
        for tensor in (rated, y):
            tensor.axis(3).parallelize(ln.ParallelType.block_x)
    f.inline_most()
    return ln.lower(f)


@pytest.mark.parametrize("schedule", ["cpu", "gpu"])
def test_rows_of_a_reshape_at_another_group_are_refuted(schedule: str) -> None:
    """A product of a digit and a size may have any value, but it is that of its own digit."""
    math = grouped(2, schedule)._lowered.math
    assert math is not None
    assert verify_program(grouped(2, schedule)._lowered.program, math()).scope == "all sizes"
    assert verify_program(grouped(3, schedule)._lowered.program, math()).status == "refuted"


def test_a_collective_is_held_against_all_numbers_of_threads() -> None:
    """Where a proof is one at sizes, a mask may be off by one at none of these."""
    (key,) = [key for key in KEYS if key.kernel == AT_SIZES]
    subject = load(key)
    assert subject is not None
    assert verify_program(subject.program, subject.math).status == "proved"
    weak = [m for m in mutants_of(subject) if m.text.startswith("mask: weaken")]
    assert len(weak) == 5
    for mutant in weak:
        assert verify_program(mutant.program, subject.math).status != "proved", mutant.text


def folded(divided: int) -> ln.Kernel:
    """A row's sum over ceil(divided / M) threads."""
    with ln.Fusion("folded") as f:
        y = f.output(ln.sum(f.input("x", ("M", 4 * divided - 1), ln.float32), 1), "y")
    y.split(1, 4)
    y.split(1, "M")
    y.parallelize({0: ln.ParallelType.block_y, 1: ln.ParallelType.block_x})
    return ln.lower(f)


def test_a_quotient_is_at_most_what_is_divided() -> None:
    """That ceil(1/M) threads are one needs no barrier; ceil(2/M) are two at M=1."""
    assert ln.verify(folded(1)).ok
    kernel = folded(2)
    assert ln.verify(kernel).ok
    program, math = kernel._lowered.program, kernel._lowered.math
    assert math is not None
    barriers = [n for n, _ in kir.walk(program.body) if isinstance(n, kir.Barrier)]
    for node in barriers:
        assert verify_program(replaced(program, node, None), math()).status == "refuted"
    assert len(barriers) == 2
