"""The judgement of one mutant: is it wrong, does a proof see it, does the sanitizer.

Wrong is what breaks a rule of `loopnest.kir` or gives other outputs than the oracle, found by
running it: on `thread_machine`, at three sizes, in two random orders of threads and with two
kinds of garbage, and on the interpreter, all threads in step. A declaration (`Store.coordinate`,
what a collective computes, types, parameters, outputs) that is changed is wrong although nothing
runs differently.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.backends.interpret import Interpreter
from loopnest.backends.interpret.diagnosis import diagnose_program
from loopnest.base.errors import KernelFault, LoopnestError
from loopnest.kir.nest_text import nest_lines
from loopnest.launch.strided_arrays import span
from loopnest.proofs import verify_program
from loopnest.proofs.size_choice import points_at
from loopnest.scalar.expr import Arg, walk
from loopnest.second_checker.thread_machine import MachineRun, run
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor
from mutation.mutant import Mutant
from mutation.mutants import KINDS, mutants
from mutation.reasons import explain
from mutation.subjects import MOST_POINTS, Subject, Trial

SEEDS = (0, 1)
CLASSES = ("race", "bounds", "undefined", "divergence", "unwritten", "lane")
"""Broken rules that the sanitizer must see; an "equal race" is counted apart."""

DECLARED = ("claim", "type", "interface")
"""Kinds of changes that are wrong although nothing may run differently: what is declared."""


@dataclass
class Verdict:
    """What became of one mutant.

    Args:
        subject: the kernel.
        number: of the mutant.
        kind, text: the change.
        line, code: the statement that was changed, in the original nest; 0 for the program.
        proof: the status of verify, or "error".
        finding: the kind of its first finding, or the error.
        scope: what verify proved it for.
        fault: what the sanitizer said, "" if nothing.
        failed: what it raised beside a fault.
        rules: the rules that it broke on the machine.
        values: how outputs differ from the oracle's.
        reason: why it is right, as far as can be told; only of those that are.
        inner: the tensor whose values differ from the math although the outputs are right.
        seconds: of the proof.
    """

    subject: str
    number: int
    kind: str
    text: str
    line: int
    code: str
    proof: str = ""
    finding: str = ""
    scope: str = ""
    fault: str = ""
    failed: str = ""
    rules: dict[str, str] = field(default_factory=dict)
    values: str = ""
    reason: str = ""
    inner: str = ""
    seconds: float = 0.0

    @property
    def is_wrong(self) -> bool:
        claims = self.kind in DECLARED and not self.reason
        return bool(self.rules or self.values or self.fault or claims)

    @property
    def is_proved(self) -> bool:
        return self.proof == "proved"

    @property
    def is_hole(self) -> bool:
        """Whether verify proves what it must not: an inner tensor is computed wrongly, too."""
        return self.is_proved and (self.is_wrong or bool(self.inner))

    @property
    def breaks(self) -> set[str]:
        """The rules that it breaks and the sanitizer must see; none where a name has no value."""
        return set() if "scope" in self.rules else set(self.rules) & set(CLASSES)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "wrong": self.is_wrong}


def mutants_of(subject: Subject, kinds: frozenset[str] = KINDS) -> list[Mutant]:
    """Return the mutants of a subject; their places are their numbers."""
    return list(mutants(subject.program, kinds))


def judge_mutant(
    subject: Subject, number: int, mutant: Mutant, seconds: float | None = None
) -> Verdict:
    """Judge one mutant of `subject`; the proof is unknown where it takes longer than `seconds`."""
    verdict = _described(subject, number, mutant)
    witness = _prove(verdict, mutant.program, subject, seconds)
    if mutant.kind in DECLARED:
        if isinstance(mutant.node, kir.Store) and mutant.node.role == "init":
            verdict.reason = "a reduction starts from one value everywhere"
        return verdict
    trials = list(subject.trials)
    for trial in trials:
        _run(verdict, mutant.program, trial)
    if not verdict.is_wrong and witness and points_at(subject.program, witness) <= MOST_POINTS:
        trial = subject.trial(witness)
        if trial is not None:
            trials.append(trial)
            _run(verdict, mutant.program, trial)
    if not verdict.is_wrong:
        verdict.reason = explain(subject.program, mutant, trials)
        verdict.inner = _inner(subject, mutant.program, trials)
    return verdict


def _inner(subject: Subject, program: kir.Program, trials: Sequence[Trial]) -> str:
    """Return the first tensor that is not what the math says, though the outputs are."""
    for trial in trials:
        keywords = trial.arguments.keywords(trial.fusion)
        try:
            found = diagnose_program(program, subject.math, trial.arguments.fresh(), keywords)
        except (LoopnestError, ArithmeticError, ValueError, LookupError, TypeError):
            return ""
        if found.tensor in _needed(subject.math):
            return found.tensor
    return ""


def _needed(math: MathSnapshot) -> set[str]:
    """Return the tensors that some output depends on; what others hold makes no difference."""
    found: set[str] = set()
    waiting = list(math.outputs)
    while waiting:
        name = waiting.pop()
        tensor = math.tensor(name)
        if name not in found and tensor is not None:
            found.add(name)
            waiting += tensor.definition.producers if tensor.definition is not None else ()
            waiting += _computed_from(tensor, math)
    return found


def _computed_from(tensor: MathTensor, math: MathSnapshot) -> list[str]:
    """Return the other components of a reduction that this one is computed from."""
    definition = tensor.definition
    if definition is None or not definition.updates:
        return []
    count = len(definition.reads)
    read = {n.number for n in walk(definition.updates[definition.component]) if isinstance(n, Arg)}
    return [name for place, name in enumerate(definition.outputs) if count + place in read]


def judge_original(subject: Subject, seconds: float | None = None) -> Verdict:
    """Judge the program as it was lowered: whatever is found is a false alarm, or a bug."""
    verdict = Verdict(subject.name, -1, "none", "unchanged", 0, "")
    _prove(verdict, subject.program, subject, seconds)
    for trial in subject.trials:
        _run(verdict, subject.program, trial)
    return verdict


def _described(subject: Subject, number: int, mutant: Mutant) -> Verdict:
    line = 0 if mutant.node is None else nest_lines(subject.program)[mutant.node]
    code = subject.lines[line - 1].strip() if line else ""
    return Verdict(subject.name, number, mutant.kind, mutant.text, line, code)


class TooLong(BaseException):
    """A proof takes longer than it may; nothing in it takes this for an error of its own."""


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """Raise TooLong when a time is over; in the main thread alone.

    The alarm comes again and again: a finalizer that it comes in would lose the exception.
    """
    if seconds is None:
        yield
        return
    over = False

    def stop(_: int, frame: FrameType | None) -> None:
        while frame is not None and not over:
            if frame.f_code.co_name == "__del__":
                return
            frame = frame.f_back
        if not over:
            raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.01)
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _prove(
    verdict: Verdict, program: kir.Program, subject: Subject, seconds: float | None
) -> Mapping[str, int] | None:
    """Ask verify; return the sizes of its witness."""
    started = time.perf_counter()
    witness = None
    try:
        with at_most(seconds):
            report = verify_program(program, subject.math)
        verdict.proof, verdict.scope = report.status, report.scope
        if report.findings:
            verdict.finding = f"{report.findings[0].kind}: {report.findings[0].message}"
            witness = report.findings[0].sizes or None
    except TooLong:
        verdict.proof, verdict.finding = "unknown", f"time: no verdict within {seconds:g} s"
    except Exception as error:  # a checker must not break, whatever it is given
        verdict.proof, verdict.finding = "error", f"{type(error).__name__}: {error}"
    verdict.seconds = time.perf_counter() - started
    return witness


def _run(verdict: Verdict, program: kir.Program, trial: Trial) -> None:
    """Run a program on the machine and on the interpreter; note what is wrong."""
    where = ", ".join([f"{n}={v}" for n, v in trial.sizes.items()])
    for seed in SEEDS:
        for rule, text in _on_machine(verdict, program, trial, seed, where):
            verdict.rules.setdefault(rule, text)
    if verdict.fault or verdict.failed:
        return
    try:
        outputs = _interpreted(program, trial)
    except KernelFault as fault:
        verdict.fault = f"{fault} at {where}"
    except (LoopnestError, ArithmeticError, ValueError, LookupError, TypeError) as error:
        verdict.failed = f"{type(error).__name__}: {error} at {where}"
    else:
        difference = trial.difference(outputs)
        if difference and not verdict.values:
            verdict.values = f"in step, at {where}: {difference}"


def _on_machine(
    verdict: Verdict, program: kir.Program, trial: Trial, seed: int, where: str
) -> Iterator[tuple[str, str]]:
    try:
        found = machine_run(program, trial, seed)
    except ZeroDivisionError:
        yield "bounds", f"a size is divided by 0 at {where}"
        return
    for rule, text in found.broken.items():
        yield rule, f"{text} at {where}"
    difference = trial.difference(found.outputs)
    if difference and not verdict.values:
        verdict.values = f"at {where}: {difference}"


def machine_run(program: kir.Program, trial: Trial, seed: int, trace: bool = False) -> MachineRun:
    """Run a program at a trial's arguments on `thread_machine`."""
    return run(program, trial.sizes, trial.inputs(), trial.arguments.scalars, seed, trace)


def _interpreted(program: kir.Program, trial: Trial) -> list[np.ndarray]:
    """Return what the interpreter computes, all threads in step.

    Raises:
        KernelFault: the sanitizer stops it.
    """
    arrays = {name: span(array) for name, array in trial.inputs().items()}
    for output, tensor in zip(program.outputs, trial.fusion.outputs, strict=True):
        if not output.inplace:
            shape = trial.wanted.arrays[trial.fusion.outputs.index(tensor)].shape
            arrays[output.name] = np.full(shape, 77, tensor.dtype.numpy)
    scalars = {
        s.name: s.dtype.numpy.type(trial.arguments.scalars[s.name]) for s in trial.fusion.scalars
    }
    Interpreter(program).run(arrays, trial.sizes, scalars)
    shapes = [array.shape for array in trial.wanted.arrays]
    found = [arrays[output.inplace or output.name] for output in program.outputs]
    return [array.reshape(shape) for array, shape in zip(found, shapes, strict=True)]
