"""Checking a schedule: it is proved, sanitized at small sizes, and compared with its math.

What ``loopnest check`` shows of each kernel and schedule; parts of it serve other tests of kernels.
Nothing is written but the caches that compiling writes anyway.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from loopnest.base.errors import CostError, KernelFault, LaunchError, LoopnestError, NotSupported
from loopnest.devtools.cli_spec import CliError, sentence_of, source_of
from loopnest.devtools.harness import (
    Arguments,
    Array,
    Wanted,
    expected,
    judge,
    make_arguments,
    oracle,
)
from loopnest.devtools.trial_sizes import MOST_POINTS, Sizes, may_run, sizes_of_variants
from loopnest.devtools.work_farm import KernelFile
from loopnest.scalar.arguments import size_value

if TYPE_CHECKING:
    from loopnest.backends.compiled_kernel import CompiledKernel
    from loopnest.backends.interpret.diagnosis import Diagnosis
    from loopnest.devtools.kernel_def import KernelDef
    from loopnest.facade.kernel_class import Kernel
    from loopnest.numerics.compare import Verdict
    from loopnest.proofs import Report
    from loopnest.proofs.bit_claims import BitClaim
    from loopnest.tensor.fusion import Fusion

ALL_SIZES = "all sizes"
"""The scope of a proof without limits."""

_QUICK = 0
"""The level of the C compiler for a few small sizes: what it does for speed takes longer than all
runs. What it does at the level of `loopnest.compile` is then not seen, but with `release`."""

Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One launch that was compared.

    Args:
        target: where it ran.
        against: "the oracle" or "the reference".
        sizes: at which it ran.
        verdicts: an output each.
    """

    target: str
    against: str
    sizes: Mapping[str, int]
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Whether all outputs are right."""
        return all(verdict.ok for verdict in self.verdicts)

    def __str__(self) -> str:
        wrong = "; ".join([str(v) for v in self.verdicts if not v.ok])
        return f"on {self.target}{_at(self.sizes)}, against {self.against}: {wrong}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one schedule of a kernel.

    Args:
        kernel, schedule: their names; "" for a kernel that has no schedule.
        proof: what `loopnest.verify` says; None where there is no kernel. Where there are two
            variants, the one of which it can say less.
        variant: "scalar" where that is the one without vectors.
        fault: the rule that the kernel broke on the interpreter, at the sizes `faulty`.
        runs: the comparisons.
        diagnosis: where the first wrong run goes wrong.
        error: what was raised first, if anything was, while `stage` was going on: "lowering",
            "proving" or "running".
        unprinted: why a schedule of blocks and threads has no CUDA text; "" where it has one, or
            no launch.
        cost: which limit of its costs it does not keep, in words; "" where it keeps all.
        sizes: the size symbols of the kernel.
        claims: whether bits are the same at all values of a size, by its name, where that was
            asked and the kernel has the size.
        notes: what was left out, and why; and what was asked of the schedule and has no effect on
            the nest (`Kernel.notes`).
        seconds: that all this took.
    """

    kernel: str
    schedule: str
    proof: Report | None = None
    variant: str = ""
    fault: KernelFault | None = None
    faulty: Mapping[str, int] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    diagnosis: Diagnosis | None = None
    error: BaseException | None = None
    stage: str = "lowering"
    unprinted: str = ""
    cost: str = ""
    sizes: tuple[str, ...] = ()
    claims: Mapping[str, BitClaim] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def label(self) -> str:
        """``kernel@schedule``."""
        return f"{self.kernel}@{self.schedule}" if self.schedule else self.kernel

    @property
    def wrong(self) -> tuple[Run, ...]:
        """The runs whose results are wrong."""
        return tuple([run for run in self.runs if not run.ok])

    def ok(self, strict: bool = False) -> bool:
        """Whether nothing is wrong.

        With `strict` all must be proved, something compared, and blocks and threads have CUDA text.
        """
        if self.error or self.fault or self.wrong or self.cost or self.proof is None:
            return False
        if not all(self.claims.values()):
            return False
        if strict and (self.unprinted or not (self.runs and self.proof.ok)):
            return False
        return self.proof.status != "refuted"


def check_schedule(
    kernel: KernelDef,
    schedule: str,
    params: Mapping[str, Any] | None = None,
    values: Mapping[str, float] | None = None,
    tell: Tell = lambda what: None,
    release: bool = False,
    invariant: Sequence[str] = (),
) -> Checked:
    """Prove, sanitize and compare one schedule of a kernel; what is raised is the result's `error`.

    Args:
        kernel: what ``@ln.kernel`` made.
        schedule: its name; "" for a kernel without schedules.
        params: parameters of math and schedule.
        values: sizes and scalars that are fixed; names that the kernel lacks are passed over.
        tell: is told what goes on.
        release: whether C is compiled as `loopnest.compile` does, in place of -O0.
        invariant: sizes that bits must not depend on; those that the kernel lacks are passed over.
    """
    started = time.perf_counter()
    level = None if release else _QUICK
    done = Checked(kernel.name, schedule)
    check = _Check(kernel, params or {}, values or {}, tell, level, done, tuple(invariant))
    try:
        check.run()
    except (Exception, SystemExit) as error:  # the user's math, schedule or reference may raise
        check.failed(error)
    return replace(check.done, seconds=time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class CheckJob:
    """The check of one schedule, as a value.

    Args:
        file: that has the kernel.
        kernel: its name.
        asked: the other arguments of `check_schedule`.
        place: in the order of what was asked for.
    """

    file: KernelFile
    kernel: str
    asked: Mapping[str, Any]
    place: int


def checked_job(job: CheckJob) -> Checked:
    """Check a schedule in a worker; an error is its sentence, with its place in the file."""
    source = source_of(job.file)
    found = check_schedule(source.named(job.kernel), **job.asked)
    if found.error is None:
        return found
    return replace(found, error=CliError(sentence_of(found.error, source.file)))


@dataclass(slots=True)
class _Check:
    """The check of one schedule.

    Attributes:
        level: of the C compiler; None where it is that of `loopnest.compile`.
        done: what is known so far.
        wanted: what results must be, for the arguments of this id.
    """

    kernel: KernelDef
    params: Mapping[str, Any]
    values: Mapping[str, float]
    tell: Tell
    level: int | None
    done: Checked
    invariant: tuple[str, ...] = ()
    wanted: dict[int, dict[str, Wanted]] = field(default_factory=dict)

    def run(self) -> None:
        """Prove; run at small sizes on the interpreter; then in C where nothing speaks against it.

        Raises:
            Exception: there is no kernel for this schedule, `values` break an assumption, or
                whatever the user's functions raise.
        """
        from loopnest.facade.kernel_class import lower

        self.tell("lowering")
        fusion = self.kernel.fusion(self.done.schedule or None, **self.params)
        lowered = lower(fusion)
        for note in lowered.notes:
            self._note(str(note))
        symbols = {symbol.name for symbol in fusion.symbols}
        self.done = replace(self.done, sizes=tuple(sorted(symbols)))
        fixed = {name: int(value) for name, value in self.values.items() if name in symbols}
        self.tell("proving")
        self.done = replace(self.done, stage="proving")
        try:
            self._prove(lowered, fixed)
            self._claim(lowered)
        except Exception as error:  # it can be run all the same
            self.failed(error)
        self.done = replace(self.done, stage="running") if not self.done.error else self.done
        self._print(lowered)
        cases = self._cases(fusion, lowered, fixed)
        if cases and self._runs(fusion, lowered, "interpret", cases) and self._is_safe():
            done = [run.sizes for run in self.done.runs]
            self._runs(fusion, lowered, "c", [case for case in cases if case.sizes in done])
        self._hold(lowered, fixed)

    def _hold(self, lowered: Kernel, fixed: Sizes) -> None:
        """Hold the kernel to the limits of what it costs, at its own sizes and the fixed ones."""
        from loopnest.costs import assert_cost

        limits = self.kernel.costs.get(self.done.schedule)
        if not limits:
            return
        self.tell("counting")
        try:
            assert_cost(lowered, cost_sizes(lowered, {**self.kernel.sizes, **fixed}), **limits)
        except CostError as error:
            self.done = replace(self.done, cost=str(error))
        except NotSupported as error:
            self._note(f"not counted: {error}")

    def failed(self, error: BaseException) -> None:
        """Keep the first error."""
        if self.done.error is None:
            self.done = replace(self.done, error=error)

    def _prove(self, lowered: Kernel, fixed: Sizes) -> None:
        """Prove the variants that may run at the fixed sizes; keep the proof that says least."""
        from loopnest.proofs import verify_variant

        ranks = ("refuted", "unknown", "proved")
        for variant in (lowered, lowered.scalar):
            if variant is None or not may_run(variant.program, fixed):
                continue
            proof = verify_variant(variant, **fixed)
            known = self.done.proof
            least = known is None or ranks.index(proof.status) < ranks.index(known.status)
            if least or (known is not None and known.scope == ALL_SIZES):
                name = "scalar" if variant is not lowered else ""
                self.done = replace(self.done, proof=proof, variant=name)

    def _claim(self, lowered: Kernel) -> None:
        """Keep whether bits depend on the sizes that were asked for."""
        from loopnest.proofs.bit_claims import batch_invariant

        known = {p.name for p in lowered.program.params if p.kind == "size"}
        claims = {n: batch_invariant(lowered, n) for n in self.invariant if n in known}
        self.done = replace(self.done, claims=claims)

    def _print(self, lowered: Kernel) -> None:
        """Keep why a schedule for blocks and threads has no CUDA text, of either variant."""
        for variant in (lowered, lowered.scalar):
            if variant is None or not variant.program.launch:
                continue
            try:
                variant.cuda()
            except LoopnestError as error:
                why = f"no CUDA text: {error}"
                self.done = replace(self.done, unprinted=why)
                self._note(why)
                return

    def _is_safe(self) -> bool:
        """Whether it can be run in C; notes why it cannot."""
        from loopnest.backends.cpu.c_compiler import find_compiler

        if self.done.proof is not None and self.done.proof.status == "refuted":
            self._note("not run in C: it was refuted, and might crash")
            return False
        if find_compiler() is None:
            self._note("not run in C: no compiler was found")
            return False
        return True

    def _note(self, text: str) -> None:
        self.done = replace(self.done, notes=(*self.done.notes, text))

    def _cases(self, fusion: Fusion, lowered: Kernel, fixed: Sizes) -> list[Arguments]:
        """Return made arguments at small sizes; none where there are none that run soon enough."""
        from loopnest.proofs.size_choice import points_at

        scalars = {s.name: self.values[s.name] for s in fusion.scalars if s.name in self.values}
        result: list[Arguments] = []
        chosen = sizes_of_variants(lowered.program, fixed)
        if not chosen:
            self._note("not run: no small sizes fulfil the assumptions; set sizes by -D")
        for sizes in chosen:
            count = points_at(lowered.program, sizes)
            if count > MOST_POINTS:
                hint = "; set small sizes by -D" if sizes else ""
                self._note(f"not run{_at(sizes)}: {count:.2g} statements are too many{hint}")
                return []
            made = make_arguments(fusion, {**self.kernel.sizes, **sizes}, self.kernel.ranges)
            result.append(replace(made, scalars={**made.scalars, **scalars}))
        return result

    def _runs(
        self, fusion: Fusion, lowered: Kernel, target: str, cases: Sequence[Arguments]
    ) -> bool:
        """Run and compare all cases on `target`, to the first that is wrong; return if none is.

        Raises:
            LaunchError: not one of them can be launched.
        """
        function = ready(lowered, target, self.level)
        doing = "sanitizing" if target == "interpret" else "running C"
        refused: list[str] = []
        for arguments in cases:
            self.tell(doing + _at(arguments.sizes))
            try:
                self._compare(fusion, function, arguments)
            except LaunchError as error:  # too many threads at this size, say
                refused.append(f"not run{_at(arguments.sizes)}: {error}")
                if len(refused) == len(cases):
                    raise
            except KernelFault as fault:
                self.done = replace(self.done, fault=fault, faulty=arguments.sizes)
            if self.done.fault or self.done.wrong:
                self.tell("diagnosing")
                found = diagnosed(lowered, fusion, arguments)
                self.done = replace(self.done, diagnosis=found)
                return False
        for text in refused:
            self._note(text)
        return True

    def _compare(
        self, fusion: Fusion, function: CompiledKernel[Kernel], arguments: Arguments
    ) -> None:
        wanted = self.wanted.get(id(arguments))
        if wanted is None:
            wanted = references(self.kernel, fusion, arguments, self.params)
            self.wanted[id(arguments)] = wanted
        out = poisoned(fusion, arguments.sizes)
        actual = function(*arguments.fresh(), out=out, **arguments.keywords(fusion))
        runs = tuple([
            Run(function.target, against, arguments.sizes,
                tuple(judge(fusion, arguments.sizes, actual, arrays)))
            for against, arrays in wanted.items()
        ])  # fmt: skip
        self.done = replace(self.done, runs=(*self.done.runs, *runs))


def cost_sizes(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes that a kernel has, of those that are known."""
    own = [param.name for param in kernel.params if param.kind == "size"]
    return {name: sizes[name] for name in own if name in sizes}


def ready(kernel: Kernel, target: str, level: int | None = _QUICK) -> CompiledKernel[Kernel]:
    """Return a kernel ready to run, without the proof first that LOOPNEST_VERIFY=1 asks for."""
    from loopnest.backends.targets import compile_variants

    return compile_variants(kernel, target, level)


def diagnosed(kernel: Kernel, fusion: Fusion, arguments: Arguments) -> Diagnosis | None:
    """Return where `kernel` goes wrong first; None where the run cannot be looked into."""
    from loopnest.backends.interpret.diagnosis import diagnose

    try:
        return diagnose(kernel, *arguments.fresh(), **arguments.keywords(fusion))
    except LoopnestError:
        return None


def references(
    kernel: KernelDef, fusion: Fusion, arguments: Arguments, params: Mapping[str, Any]
) -> dict[str, Wanted]:
    """Return what the results must be: by the oracle and by the reference.

    Raises:
        DefinitionError: the reference gives another number of arrays than there are outputs.
    """
    exact = oracle(fusion, arguments)
    found = {
        "the oracle": exact,
        "the reference": expected(kernel, fusion, arguments, params, exact=exact),
    }
    return {name: wanted for name, wanted in found.items() if wanted is not None}


def poisoned(fusion: Fusion, sizes: Mapping[str, int]) -> tuple[Array | None, ...]:
    """Return arrays to write outputs into, so that nothing is right by chance that was not stored.

    None stands for an output in the memory of an input.
    """
    import numpy as np

    result: list[Array | None] = []
    for tensor in fusion.outputs:
        shape = tuple([size_value(size, sizes) for size in tensor.sizes])
        kind = tensor.dtype.numpy
        if tensor in fusion.inplace:
            result.append(None)
        elif tensor.dtype.is_bool:
            result.append((np.arange(math.prod(shape)) % 2 == 0).reshape(shape))
        else:
            fill = np.full(math.prod(shape) * kind.itemsize, 0xA5, np.uint8)
            result.append(fill.view(kind).reshape(shape))
    return tuple(result)


def _at(sizes: Mapping[str, int]) -> str:
    shown = ", ".join([f"{name}={size}" for name, size in sizes.items()])
    return f" at {shown}" if shown else ""
