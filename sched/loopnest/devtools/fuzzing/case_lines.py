"""A case: the math and the schedule of one fusion as lines of Python, and sizes to run it at.

Lines are what a user would type: `f` is the fusion, `ln` the package, every tensor has a variable.
A line whose variables do not exist is passed over, so that lines may be dropped freely. Each call
is judged at once: a refused one must change nothing, an accepted one leave a sound fusion.
"""

from __future__ import annotations

import builtins
import dis
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import CodeType
from typing import Any

from loopnest.facade import language as ln
from loopnest.schedule.replay import shared_positions
from loopnest.tensor.domain import ancestors
from loopnest.tensor.overlapping_tiles import same_loops


class Failure(AssertionError):
    """loopnest broke a promise.

    Args:
        kind: which promise: "definition", "call", "transaction", "frozen", "order", "oracle",
            "lowering", "compile", "fault", "result", "crash"…
        what: what was found, a sentence.
        line: the line of the case that was executed, if it was one.
        where: the sizes and the target, if it ran.
    """

    def __init__(self, kind: str, what: str, line: str = "", where: str = "") -> None:
        self.kind, self.what, self.line, self.where = kind, what, line, where
        parts = [f"{kind}: {what}", f"in: {line}" if line else "", f"at: {where}" if where else ""]
        super().__init__("\n  ".join(p for p in parts if p))

    def __reduce__(self) -> tuple[type[Failure], tuple[str, str, str, str]]:
        return Failure, (self.kind, self.what, self.line, self.where)

    @property
    def signature(self) -> str:
        """What two failures of one fault have in common: the sentence without names and numbers."""
        text = self.what.partition("\n")[0]
        text = re.sub(r"'[^']*'", "'…'", text)
        text = re.sub(r"\b[TAxyta]\d+(_\d+)?\b|\[[^\]]*\]|\bcase\w*", "·", text)
        text = re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?|\bnan\b|\binf\b", "#", text)
        return f"{self.kind}: {text[:100]}"


State = dict[str, Any]


class Snapshot:
    """The full state of a fusion at one moment, to prove that a refused call changed nothing.

    Everything is compared by identity where the library compares by identity: replacing an axis or
    a domain by an equal one is a change.
    """

    def __init__(self, fusion: ln.Fusion) -> None:
        self.fusion = fusion
        self.state = _state(fusion)
        self.frozen = {t: (t.leaf_domain[: t.frozen], _positions(t)) for t in fusion.tensors}

    def require_same(self, line: str, error: Exception | None) -> None:
        """Raise `Failure` where anything differs now from what it was.

        `error` is what refused the call; None where the call is a query.
        """
        changed = self.differences()
        if changed:
            call = "a query" if error is None else f"a call that was refused ({error})"
            raise Failure("transaction", f"{call} changed {'; '.join(changed[:6])}", line)

    def differences(self) -> list[str]:
        now = _state(self.fusion)
        keys = dict.fromkeys((*self.state, *now))
        return [
            f"{key} from {self.state.get(key, 'nothing')} to {now.get(key, 'nothing')}"
            for key in keys
            if self.state.get(key) != now.get(key)
        ]

    def require_frozen(self, line: str) -> None:
        """Raise `Failure` where a frozen axis moved, or a position fell: no call may do so."""
        for tensor, (leaf, positions) in self.frozen.items():
            if not same_loops(leaf, tensor.leaf_domain[: len(leaf)]):
                raise Failure("frozen", f"{tensor.name}: a frozen axis moved; now {tensor}", line)
            fell = [a for a, b in zip(positions, _positions(tensor), strict=True) if b < a]
            if fell:
                raise Failure("frozen", f"{tensor.name}: a position fell; now {tensor}", line)
        if self.fusion._depth or self.fusion.calling:
            raise Failure("transaction", "the call left its transaction open", line)


def _positions(tensor: ln.TensorView) -> tuple[int, int]:
    return tensor.compute_at_pos, tensor.produced_at_pos


def _state(fusion: ln.Fusion) -> State:
    state: State = {
        "tensors": fusion.tensors,
        "inputs": fusion.inputs,
        "outputs": fusion.outputs,
        "inplace": dict(fusion.inplace),
        "symbols": fusion.symbols,
        "names": dict(fusion._names),
        "numbers": fusion._numbers,
        "transaction": (fusion.state[0], fusion._depth, fusion.calling),
    }
    for number, tensor in enumerate(fusion.tensors):
        domain = tensor.domain
        state[f"tensor {number}"] = (
            tensor, str(tensor), tensor.definition, domain, tensor.consumers, tensor.clones,
            tensor.memory, tensor.layout, *_positions(tensor), tensor.placed, tensor.reduction,
            tensor.starts_launch,
        )  # fmt: skip
        state[f"domain {number}"] = (domain.root, domain.rfactor, domain.leaf, domain.allocation)
        axes = dict.fromkeys(domain.axes())
        for step in domain.history:
            axes |= dict.fromkeys((*step.inputs, *step.outputs))
        state[f"axes {number}"] = tuple(
            (a, a.size, a.kind, a.parallel, a.pinned, a.owner, a.definition) for a in axes
        )
    return state


# What holds of every fusion at any time, whatever was scheduled


def require_sound(fusion: ln.Fusion, line: str = "") -> None:
    """Raise `Failure` where a tensor breaks a promise of the documentation."""
    live = fusion.live()
    for tensor in fusion.tensors:
        problem = _of_domain(tensor) or _of_place(tensor, live) or _of_neighbours(tensor, live)
        if problem:
            raise Failure("invariant", f"{tensor.name} {problem}; now {tensor}", line)


def _of_domain(tensor: ln.TensorView) -> str:
    domain = tensor.domain
    if len(set(domain.leaf)) != len(domain.leaf):
        return "has a leaf axis twice"
    if set(domain.root) - ancestors(domain.leaf, domain):
        return "has a root axis that no loop runs over"
    if set(domain.rfactor) - ancestors(domain.leaf, domain):
        return "has an rfactor axis that no loop runs over"
    threads = [a.parallel for a in domain.leaf if a.parallel.is_thread]
    if len(set(threads)) != len(threads):
        return "has a launch dimension twice"
    for step in domain.history:
        mixed = {a.is_reduction for a in step.inputs if not a.is_broadcast}
        if len(mixed) > 1:
            return "joins an iteration and a reduction axis"
    return ""


def _of_place(tensor: ln.TensorView, live: frozenset[ln.TensorView]) -> str:
    pos = tensor.compute_at_pos
    if tensor.is_input and (pos or tensor.leaf_domain != tensor.root_domain):
        return "is an input with a schedule"
    if not 0 <= pos <= tensor.ndim or not 0 <= tensor.produced_at_pos <= tensor.ndim:
        return "has a position that is no position"
    if any(axis.is_reduction for axis in tensor.leaf_domain[:pos]):
        return "has a reduction axis inside its own compute-at position"
    if pos and not any(twin.consumers for twin in tensor.siblings):
        return "has a position without a consumer"
    for twin in tensor.siblings:
        if (twin.ndim, twin.compute_at_pos) != (tensor.ndim, pos):
            return f"has other loops than its sibling {twin.name}"
        kinds = [(a.kind, a.parallel, a.pinned) for a in twin.leaf_domain]
        if kinds != [(a.kind, a.parallel, a.pinned) for a in tensor.leaf_domain]:
            return f"has other axes than its sibling {twin.name}"
    return ""


def _of_neighbours(tensor: ln.TensorView, live: frozenset[ln.TensorView]) -> str:
    for consumer in tensor.consumers:
        if tensor not in consumer.producers:
            return f"has the consumer {consumer.name}, which does not read it"
        if consumer in live and tensor in live and tensor.compute_at_pos:
            places = shared_positions(tensor, consumer)
            if len(places) < tensor.compute_at_pos:
                return f"shares more loops with {consumer.name} than correspond"
            if places[tensor.compute_at_pos - 1] >= consumer.produced_at_pos:
                return f"shares loops of {consumer.name} that are not frozen there"
    for producer in tensor.producers:
        if tensor not in producer.consumers:
            return f"reads {producer.name}, which does not know it"
    return ""


Sizes = dict[str, int]

DEFINITION_ERRORS = (ln.DefinitionError, ln.NotSupported)


@dataclass(frozen=True)
class Case:
    """One test of everything.

    Args:
        name: of the fusion, and so of the kernel.
        math: lines that define the fusion, inside its `with` block.
        schedule: lines that schedule it.
        sizes: the values of the size symbols, a set a run.
        data: the seed of the arrays.
        ranges: input or scalar -> (least, greatest): where made values are drawn from.
        head: lines of a script in front of the math, where the math is that of a file: they make
            the fusion `f` in place of it.
    """

    name: str
    math: tuple[str, ...]
    schedule: tuple[str, ...]
    sizes: tuple[Sizes, ...]
    data: int = 0
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    head: tuple[str, ...] = ()

    def with_lines(self, math: Sequence[str], schedule: Sequence[str]) -> Case:
        return replace(self, math=tuple(math), schedule=tuple(schedule))

    def script(
        self, refused: Sequence[str] = (), title: str = "", targets: Sequence[str] = ()
    ) -> str:
        """Return a script that runs this case; it raises `Failure` where loopnest fails.

        Args:
            refused: the schedule lines that are wrapped in `judged`, which lets a ScheduleError
                pass after a check that nothing has changed.
            title: what the script says of itself.
            targets: what it is judged on, where that is not all that runs.
        """
        extra = f", {tuple(targets)!r}" if targets else ""
        sizes = ", ".join(str(s) for s in self.sizes)
        ranges = f", ranges={dict(self.ranges)!r}" if self.ranges else ""
        lines = [
            f'"""{title or self.name}',
            "",
            "Run it by Python, where loopnest is installed.",
            '"""',
            "",
            "import loopnest as ln",
            "from loopnest.devtools.fuzzing import check, expect, judged",
            "",
            *(self.head or self._math_lines()),
            f"expected = [expect(f, sizes, data={self.data}{ranges}) for sizes in [{sizes}]]",
            "",
        ]
        for line in self.schedule:
            lines.extend(["with judged(f):", f"    {line}"] if line in refused else [line])
        return "\n".join([*lines, "", "print(f)", f"check(f, expected{extra})", ""])

    def _math_lines(self) -> list[str]:
        return [f'with ln.Fusion("{self.name}") as f:', *[f"    {line}" for line in self.math]]


class Session:
    """The lines of a case so far, executed: a fusion that grows and is then scheduled."""

    def __init__(self, name: str) -> None:
        self.fusion = ln.Fusion(name)
        self.names: dict[str, object] = {"ln": ln, "f": self.fusion}
        self.math: list[str] = []
        self.schedule: list[str] = []
        self.refused: list[str] = []

    @staticmethod
    def of(fusion: ln.Fusion) -> Session:
        """Return a session whose math is there: each tensor has a variable of its name."""
        made = Session(fusion.name)
        made.fusion = made.names["f"] = fusion
        for tensor in fusion.tensors:
            made.names[variable_of(tensor)] = tensor
        return made

    def tensor(self, name: str) -> ln.TensorView:
        found = self.names[name]
        assert isinstance(found, ln.TensorView)
        return found

    @property
    def tensors(self) -> list[str]:
        """The variables that hold TensorViews, in order of definition."""
        return [n for n, v in self.names.items() if isinstance(v, ln.TensorView)]

    def define(self, line: str) -> bool:
        """Execute a line of math; return whether it was taken."""
        compiled = _compiled(line)
        if not self._known(compiled):
            return False
        try:
            with self.fusion:
                exec(compiled.code, self.names)
        except DEFINITION_ERRORS:
            return False
        except Exception as error:
            raise Failure("definition", _sentence(error), line) from error
        self.math.append(line)
        return True

    def attempt(self, line: str, report: Callable[[str, str], None] | None = None) -> bool:
        """Execute a schedule call, judge it, and return whether it was accepted.

        `report` is told the primitive and one of "accepted", "refused", "unsupported".

        Raises:
            Failure: another error than ScheduleError, or a refusal of what is always possible; a
                refusal that changed something; a promise of `require_sound` that is broken.
        """
        compiled = _compiled(line)
        if not self._known(compiled):
            return False
        self.schedule.append(line)
        target = self._target(line)
        before = Snapshot(self.fusion)
        outcome = "accepted"
        try:
            exec(compiled.code, self.names)
        except ln.ScheduleError as error:
            outcome = "refused"
            before.require_same(line, error)
            if line.startswith("f.inline_most("):
                raise Failure("call", f"inline_most was refused: {error}", line) from error
        except ln.NotSupported as error:
            outcome = "unsupported"
            before.require_same(line, error)
            _require_later(line, error)
        except Exception as error:
            raise Failure("call", _sentence(error), line) from error
        else:
            self._judge(line, before, target)
        if outcome != "accepted":
            self.refused.append(line)
        if report is not None:
            report(primitive_of(line), outcome)
        return outcome == "accepted"

    def _judge(self, line: str, before: Snapshot, target: Target | None) -> None:
        if primitive_of(line) in PURE or _NOTHING.search(line):
            before.require_same(line, None)
        before.require_frozen(line)
        require_sound(self.fusion, line)
        if target is not None and target[0].domain is not target[1]:
            what = f"the reference {target[0].name} of the call has another domain than before"
            raise Failure("call", what, line)

    def _target(self, line: str) -> Target | None:
        """Return the tensor that a call takes loops from, which must not change, and its domain."""
        found = _TARGET.search(line)
        tensor = self.names.get(found[1] or found[2]) if found else None
        return (tensor, tensor.domain) if isinstance(tensor, ln.TensorView) else None

    def _known(self, line: Line) -> bool:
        """Whether every variable that a line reads exists."""
        return all(n in self.names or hasattr(builtins, n) for n in line.reads)


def variable_of(tensor: ln.TensorView) -> str:
    """Return the variable of a tensor of a user's: its name, where that is free."""
    name = tensor.name
    return f"{name}_" if keyword.iskeyword(name) or name in ("f", "ln") else name


@dataclass(frozen=True)
class Line:
    """A compiled line, and the variables that it reads."""

    code: CodeType
    reads: tuple[str, ...]


@lru_cache(maxsize=4096)
def _compiled(line: str) -> Line:
    code = compile(line, "<case>", "exec")
    loads = [i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_NAME"]
    return Line(code, tuple(dict.fromkeys(loads)))


Target = tuple[ln.TensorView, ln.TensorDomain]

_TARGET = re.compile(r"\.compute_at\((\w+),|ln\.(?:propagate|parallelize_like)\((\w+)")
_NOTHING = re.compile(r"\.(compute_at\(\w+, 0|inline_at\(0)(, recompute=True)?\)$")
"""Calls at position 0, which change nothing."""

PURE = ("replay_pasc", "replay_casp", "common_consumers")
_LATER = ("circular_buffer", "swizzle", "set_allocation")


def _require_later(line: str, error: Exception) -> None:
    if not any(f".{name}(" in line for name in _LATER):
        raise Failure("call", f"NotSupported from a primitive that exists: {error}", line)


def primitive_of(line: str) -> str:
    """Return the name of the primitive that a schedule line calls."""
    if ".memory = " in line:
        return "memory"
    found = re.search(r"\.(\w+)\((?!.*\.axis)", line) or re.search(r"\.(\w+)\(", line)
    name = found[1] if found else line
    if name == "axis":
        return "pin" if ".pin(" in line else "parallelize"
    return name


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
