"""Twice the tensors take twice the work, counted in calls; `tools/scaling.py` measures the time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import loopnest as ln


def calls(run: Callable[[], object]) -> int:
    """Return how many functions `run` calls, those of Python and of C."""
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def chain(count: int) -> list[ln.TensorView]:
    with ln.Fusion("chain") as f:
        made = [f.input("x", (1024,), ln.float32)]
        for number in range(count):
            made.append(made[-1] * (1.0 + number))
        f.output(made[-1], "y")
    return made


def fan_out(count: int) -> None:
    with ln.Fusion("fan") as f:
        x = f.input("x", (64,), ln.float32)
        total = x
        for number in range(count):
            total = total + x * (1.0 + number)
        f.output(total, "y")


def from_the_output(count: int) -> Callable[[], object]:
    made = chain(count)

    def run() -> None:
        made[-1].split(0, 32)
        for number in range(count - 1, 0, -1):
            made[number].compute_at(made[number + 1], 2)

    return run


def from_the_input(count: int) -> Callable[[], object]:
    made = chain(count)

    def run() -> None:
        for number in range(1, count):
            made[number].compute_at(made[number + 1], 1)

    return run


def at_the_output(count: int) -> Callable[[], object]:
    made = chain(count)

    def run() -> None:
        made[-1].split(0, 32)
        for tensor in reversed(made[1:-1]):
            tensor.compute_at(made[-1], 2)

    return run


def inlined(count: int) -> Callable[[], object]:
    with ln.Fusion("norms") as f:
        x = f.input("x", (64, 128), ln.float32)
        for number in range(count // 4):
            x = x * (0.5 + number) - ln.sum(x, axis=1, keepdims=True)
        f.output(x, "y")
    return f.inline_most


@pytest.mark.parametrize(
    "make", [lambda n: lambda: fan_out(n), from_the_output, from_the_input, at_the_output, inlined],
    ids=["definition", "from the output", "from the input", "at the output", "inlined"],
)  # fmt: skip
def test_work_grows_with_the_tensors(make: Callable[[int], Callable[[], object]]) -> None:
    make(3)()
    few, many = calls(make(40)), calls(make(80))
    assert many < 2.1 * few
