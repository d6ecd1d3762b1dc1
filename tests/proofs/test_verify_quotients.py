"""Quotients and remainders by sizes: with few values, of sizes alone, of data.

That no mutant of these kernels is proved is looked at by `tools/mutate.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import loopnest as ln
from loopnest.proofs.verifier import verify_program
from mutation.subjects import keys_in, load

KERNELS = Path(__file__).resolve().parent.parent / "mutation" / "kernels"
KEYS = [key for key in keys_in(KERNELS) if key.file.endswith("quotients.py")]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
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
