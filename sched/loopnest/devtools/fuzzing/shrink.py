"""Make a failing case small, keeping the kind of its failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import loopnest as ln
from loopnest.devtools.fuzzing.case_lines import Case, Sizes
from loopnest.devtools.fuzzing.failures import Failure
from loopnest.devtools.fuzzing.verdicts import judge_case

T = TypeVar("T")
Judge = Callable[[Case], Failure | None]


class Shrinker:
    """Drops and simplifies lines of a case while it still fails in the same way.

    Args:
        case: fails.
        failure: how.
        budget: how many candidates to judge at most.
        judge: judges a candidate; by default here, on the failing target alone.
    """

    def __init__(
        self, case: Case, failure: Failure, budget: int = 600, judge: Judge | None = None
    ) -> None:
        self.case, self.failure, self.budget = case, failure, budget
        target = failure.where.rpartition(" ")[2]
        known: dict[str, tuple[str, ...]] = {
            "c": ("c",), "nvrtc": ("nvrtc",), "ln.verify": ("verify",),
        }  # fmt: skip
        self.targets = known.get(target, ("interpret",))
        self.judge = judge or (lambda c: judge_case(c, self.targets)[0])

    def run(self) -> tuple[Case, Failure]:
        """Return the smallest case found, and its failure."""
        steps = (
            self._sizes_apart, self._schedule, self._math, self._simpler_math, self._math,
            self._schedule, self._smaller_sizes, self._simpler_schedule,
        )  # fmt: skip
        before = None
        while before != self.case and self.budget > 0:
            before = self.case
            for step in steps:
                step()
        return replace(self.case, sizes=tuple(map(self._needed, self.case.sizes))), self.failure

    def _needed(self, sizes: Sizes) -> Sizes:
        if not self.case.math:
            return sizes
        text = "\n".join(self.case.math)
        return {name: value for name, value in sizes.items() if re.search(rf"\b{name}\b", text)}

    def _try(self, case: Case) -> bool:
        if case == self.case or self.budget <= 0:
            return False
        self.budget -= 1
        try:
            found = self.judge(case)
        except (ln.LoopnestError, ArithmeticError, KeyError):  # not a case any more
            return False
        if found is None or found.signature != self.failure.signature:
            return False
        self.case, self.failure = case, found
        return True

    def _sizes_apart(self) -> None:
        if len(self.case.sizes) > 1:
            for sizes in self.case.sizes:
                if self._try(replace(self.case, sizes=(sizes,))):
                    return

    def _schedule(self) -> None:
        self._drop(lambda lines: replace(self.case, schedule=lines), lambda: self.case.schedule)

    def _math(self) -> None:
        self._drop(lambda lines: replace(self.case, math=lines), lambda: self.case.math)

    def _drop(
        self,
        made: Callable[[tuple[str, ...]], Case],
        lines: Callable[[], tuple[str, ...]],
    ) -> None:
        """Drop runs of lines, long ones first, from the end."""
        width = max(len(lines()) // 2, 1)
        while width:
            stop = len(lines())
            while stop > 0:
                start = max(stop - width, 0)
                self._try(made((*lines()[:start], *lines()[stop:])))
                stop = start
            width //= 2

    def _simpler_math(self) -> None:
        for number in reversed(range(len(self.case.math))):
            for line in _simpler(self.case.math[number]):
                if self._try(replace(self.case, math=_put(self.case.math, number, line))):
                    break

    def _simpler_schedule(self) -> None:
        for number in range(len(self.case.schedule)):
            for line in _simpler_call(self.case.schedule[number]):
                now = _put(self.case.schedule, number, line)
                if self._try(replace(self.case, schedule=now)):
                    break

    def _smaller_sizes(self) -> None:
        self._try(replace(self.case, data=0))
        for number, sizes in enumerate(self.case.sizes):
            for name in sizes:
                for value in (1, 2, 3, 4, 5, 8):
                    now = self.case.sizes[number]
                    if value < now[name]:
                        smaller: Sizes = {**now, name: value}
                        if self._try(
                            replace(self.case, sizes=_put(self.case.sizes, number, smaller))
                        ):
                            break


def _put(items: Sequence[T], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _simpler(line: str) -> Iterator[str]:
    """Yield simpler lines of math: an operand for the result, float32, fewer axes."""
    name, _, text = line.partition(" = ")
    if "f.input" in text or "ln.iota" in text or "f.scalar" in text:
        yield re.sub(r"ln\.(float(8_\w+|16|64)|bfloat16|u?int\d+|bool)\b", "ln.float32", line)
        dims = re.search(r", \((.*?),?\), ", text)
        if dims:
            parts = dims[1].split(", ")
            for gone in range(len(parts)):
                rest = "".join(f"{p}, " for n, p in enumerate(parts) if n != gone).rstrip()
                yield line.replace(dims[0], f", ({rest}), ")
        return
    if "f.output" in text or "f.assume" in line:
        if ", inplace=" in line:
            yield re.sub(r", inplace=\w+", "", line)
        return
    for operand in dict.fromkeys(re.findall(r"\b[txb]\d+\b", text)):
        if "," not in name:
            yield f"{name} = {operand}"
    if ", keepdims=True" in line:
        yield line.replace(", keepdims=True", "")
    yield re.sub(r"= ln\.\w+\((\w+), (\w+)\)", r"= ln.add(\1, \2)", line)
    yield re.sub(r"= ln\.\w+\((\w+)\)", r"= ln.neg(\1)", line)


def _simpler_call(line: str) -> Iterator[str]:
    """Yield simpler calls; each is simpler in one order, so that this comes to an end."""
    found = re.search(r"\.split\(-?\d+, ([^,)]*)", line)
    if found is not None:
        factor = int(found[1]) if found[1].isdigit() else 99
        for smaller in (2, 3, 4):
            if smaller < factor:
                yield line[: found.start(1)] + str(smaller) + line[found.end(1) :]
    for extra in (", inner=False", ", recompute=True"):
        if extra in line:
            yield line.replace(extra, "")
