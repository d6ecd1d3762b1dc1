"""A case: the math and the schedule of one fusion as lines of Python, and sizes to run it at.

Lines are what a user would type: `f` is the fusion, `ln` the package, every tensor has a variable.
A line whose variables do not exist is passed over, so that lines may be dropped freely.
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

import loopnest as ln
from loopnest.devtools.fuzzing.failures import Failure
from loopnest.devtools.fuzzing.invariants import require_sound
from loopnest.devtools.fuzzing.snapshot import Snapshot

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
                refusal that changed something; a promise of `fuzzing.invariants` that is broken.
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
