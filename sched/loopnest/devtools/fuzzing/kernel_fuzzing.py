"""Random schedules of one kernel of a file, each judged, and a failure made small."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from loopnest.base.errors import LaunchError
from loopnest.devtools.cli_spec import source_of
from loopnest.devtools.fuzzing.case_lines import Case, Failure, Session, Sizes, variable_of
from loopnest.devtools.fuzzing.judge import (
    Expected,
    choose_sizes,
    expect,
    judge_case,
    judge_schedule,
    lowered_or_serial,
)
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.devtools.kernel_def import KernelDef
from loopnest.devtools.work_farm import KernelFile
from loopnest.facade import language as ln
from loopnest.scalar.arguments import size_value


@dataclass
class Fuzzed:
    """What became of random schedules of a kernel.

    Args:
        schedules: how many were written.
        kernels: how many of them have a kernel.
        runs: how many launches were judged.
        calls: how many schedule calls were accepted.
        failure: the promise that was broken, if one was.
        script: a program that shows it, with as few calls as do.
        calls_left: how many calls that takes.
    """

    schedules: int = 0
    kernels: int = 0
    runs: int = 0
    calls: int = 0
    failure: Failure | None = None
    script: str = ""
    calls_left: int = 0

    def add(self, other: Fuzzed) -> None:
        """Take in what became of others; the failure is the first that was found."""
        self.schedules += other.schedules
        self.kernels += other.kernels
        self.runs += other.runs
        self.calls += other.calls
        if self.failure is None:
            self.failure, self.script = other.failure, other.script
            self.calls_left = other.calls_left


@dataclass(frozen=True)
class KernelFuzzer:
    """Writes and judges random schedules of a kernel's math.

    Args:
        kernel: whose math.
        file: that it was loaded from, for the script of a failure.
        schedule: the calls begin behind this one; "" begins with the math alone.
        params: of math and schedule.
        fixed: sizes and scalars that are given.
        seed: with the number of a schedule, decides all of it.
        targets: where kernels run; with "verify" they are proved, too.
    """

    kernel: KernelDef
    file: str
    schedule: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    targets: Sequence[str] = ("interpret", "c")

    @property
    def settings(self) -> dict[str, Any]:
        """What it was made with, apart from the kernel and its file."""
        return {name: value for name, value in vars(self).items() if name not in ("kernel", "file")}

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Where values are drawn from; a scalar that is given has one value."""
        scalars = {scalar.name for scalar in self.start().fusion.scalars}
        given = {n: (value, value) for n, value in self.fixed.items() if n in scalars}
        return {**self.kernel.ranges, **given}

    def start(self) -> Session:
        """Return a session with the math, and the schedule to begin with."""
        if self.schedule:
            return Session.of(self.kernel.fusion(self.schedule, **self.params))
        with ln.Fusion(self.kernel.name) as fusion:
            self.kernel.math(fusion, **self.params)
        return Session.of(fusion)

    def sizes(self) -> tuple[Sizes, ...]:
        """Return the sizes to run at.

        Raises:
            LaunchError: no small ones fulfil what the math assumes.
        """
        fusion = self.start().fusion
        drawn = choose_sizes(fusion, Random(f"{self.seed}/sizes"))
        known = {symbol.name for symbol in fusion.symbols}
        given = {name: int(size) for name, size in self.fixed.items() if name in known}
        chosen = [sizes for s in drawn if _has_data(fusion, sizes := {**s, **given})]
        found = list(dict.fromkeys([tuple(sizes.items()) for sizes in chosen]))
        if not found:
            raise LaunchError(
                f"fuzz {self.kernel.name}", "no small sizes fulfil what it assumes",
                "set sizes by -D",
            )  # fmt: skip
        return tuple([dict(items) for items in found])

    def run(
        self,
        count: int,
        seconds: float,
        tell: Callable[[Fuzzed, str], None] = lambda found, what: None,
        first: int = 0,
    ) -> Fuzzed:
        """Judge random schedules, to the first failure, and make that small.

        Args:
            count: how many at most.
            seconds: begin no more after so long.
            tell: is told what goes on.
            first: the number of the first one.
        """
        found, sizes = Fuzzed(), self.sizes()
        fusion = self.start().fusion
        expected = [expect(fusion, s, self.seed, self.ranges) for s in sizes]
        end = time.monotonic() + seconds
        for number in range(first, first + count):
            if time.monotonic() > end:
                break
            tell(found, "judging")
            session = self.start()
            try:
                self._judge(session, number, expected, found)
            except Failure as failure:
                tell(found, "shrinking")
                self._keep(found, session, sizes, failure)
            found.schedules += 1
            if found.failure is not None:
                break
        return found

    def _judge(
        self, session: Session, number: int, expected: Sequence[Expected], found: Fuzzed
    ) -> None:
        try:
            ScheduleWriter(session, Random(f"{self.seed}/schedule/{number}")).write()
        finally:
            found.calls += len(session.schedule) - len(session.refused)
        kernel, _ = lowered_or_serial(session)
        if not isinstance(kernel, str):
            found.kernels += 1
            found.runs += judge_schedule(session, expected, self.targets)

    def _keep(
        self, found: Fuzzed, session: Session, sizes: tuple[Sizes, ...], failure: Failure
    ) -> None:
        """Keep a failure, by as few calls as show it."""
        case = Case(
            self.kernel.name, (), tuple(session.schedule), sizes, self.seed,
            self.ranges, self._head(),
        )  # fmt: skip
        again, _ = self._judged(case, self.targets)
        if again is not None and again.signature == failure.signature:
            shrinker = Shrinker(case, again)
            shrinker.judge = lambda c: self._judged(c, shrinker.targets)[0]
            case, failure = shrinker.run()
        _, last = self._judged(case, self.targets)
        called = [line for line in case.schedule if line in {*last.refused, failure.line}]
        found.failure, found.calls_left = failure, len(case.schedule)
        only = ("verify",) if failure.where == "ln.verify" else ()
        found.script = case.script(called, f"{self.kernel.name}: {failure}", only)

    def _judged(self, case: Case, targets: Sequence[str]) -> tuple[Failure | None, Session]:
        return judge_case(replace(case, head=()), targets, self.start())

    def _head(self) -> tuple[str, ...]:
        """Return the lines of a script that make the fusion `f` and its variables."""
        given = "".join([f", {name}={_written(value)}" for name, value in self.params.items()])
        folder, _, _ = self.file.rpartition("/")
        lines = [
            "import runpy",
            "import sys",
            "",
            f"sys.path.insert(0, {folder!r})",
            f"kernel = runpy.run_path({self.file!r})[{self.kernel.name!r}]",
        ]
        if self.schedule:
            lines.append(f"f = kernel.fusion({self.schedule!r}{given})")
        else:
            lines += [f"with ln.Fusion({self.kernel.name!r}) as f:", f"    kernel.math(f{given})"]
        tensors = self.start().fusion.tensors
        return (*lines, *[f'{variable_of(t)} = f["{t.name}"]' for t in tensors])


def _has_data(fusion: ln.Fusion, sizes: Sizes) -> bool:
    """Whether each input of which a range is declared can have elements within it."""
    inputs = {tensor.name: tensor for tensor in fusion.inputs}
    for declared in fusion.ranges:
        empty = size_value(declared.low, sizes) >= size_value(declared.high, sizes)
        if empty and all(size_value(extent, sizes) for extent in inputs[declared.name].sizes):
            return False
    return True


@dataclass(frozen=True, slots=True)
class FuzzJob:
    """Some random schedules of a kernel, as a value.

    Args:
        file: that has the kernel.
        kernel: its name.
        settings: of the `KernelFuzzer`.
        first, count, seconds: as of its `run`.
    """

    file: KernelFile
    kernel: str
    settings: Mapping[str, Any]
    first: int
    count: int
    seconds: float


def fuzzed_job(job: FuzzJob) -> Fuzzed:
    """Judge the schedules of a job, in a worker."""
    source = source_of(job.file)
    fuzzer = KernelFuzzer(source.named(job.kernel), source.file, **job.settings)
    return fuzzer.run(job.count, job.seconds, first=job.first)


def _written(value: object) -> str:
    return f"ln.{value}" if isinstance(value, ln.DType) else repr(value)


# Making a failing case small, keeping the kind of its failure

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
