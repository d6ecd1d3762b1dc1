"""What lowering hands over: the loop nest, and what the Kernel facade tells about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from loopnest.base.fast_init import fast_init
from loopnest.kir.kernel_program import Program
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Expr
from loopnest.scalar.origin import Origin
from loopnest.scalar.record_text import MemberKind, record_fields

if TYPE_CHECKING:
    from loopnest.tensor.math_snapshot import MathSnapshot


@fast_init
@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as it was scheduled when the kernel was lowered.

    Args:
        name: of the TensorView.
        dtype: of its elements.
        shape: logical extents, ints where static.
        memory: where it lives.
        buffer: the name of the buffer that holds it, None where it needs none.
        compute_at_pos: how many leading leaf axes share loops with its consumers.
        leaf: the leaf axes as text.
    """

    name: str
    dtype: DType
    shape: tuple[int | Expr, ...]
    memory: Memory
    buffer: str | None
    compute_at_pos: int
    leaf: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was asked of a schedule and that the loop nest does not show.

    Args:
        subject: the tensor, loop or fusion concerned.
        asked: what was asked, as the call reads.
        became: what happens instead, and what that costs.
        why: the reason, as it reads after "because".
        remedy: the call that changes it.
        origin: the schedule call, with its file and line.
    """

    subject: str
    asked: str
    became: str
    why: str
    remedy: str
    origin: Origin | None

    def __str__(self) -> str:
        at = "" if self.origin is None else f" ({self.origin.file}:{self.origin.line})"
        return f"{self.subject}: {self.asked}: {self.became}, because {self.why}; {self.remedy}{at}"


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a tensor came out as it did.

    Args:
        name: of the tensor.
        place: where it is computed, what keeps it there, and the calls that take it deeper.
        buffers: why its memory is as large as it is: its buffer, then its accumulator.
        tests: those around what computes it; the remedy of each makes it superfluous.
        notes: those of the kernel that concern it.
    """

    name: str
    place: Note
    buffers: tuple[Note, ...]
    tests: tuple[Note, ...]
    notes: tuple[Note, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Lowered:
    """The result of lowering one fusion.

    Args:
        program: the loop nest after the last pass.
        stages: name of each pass, in order, with a function that prints its result.
        tensors: every tensor of the fusion, in order of creation.
        buffers: every buffer of the program, parameters first.
        math: makes, once, the math as it was then; None for a program made by hand.
        scalar: makes, once, the variant without wide accesses, which runs where the program's
            `requires` do not hold; None where the program requires nothing.
        notes: looks, once, for what was asked in the program, and says what is not there; None
            for a program made by hand and for a scalar variant.
        explained: tells of each tensor why it came out so; None where there is no schedule to ask:
            likewise, and for what was pickled.
    """

    program: Program
    stages: tuple[tuple[str, Callable[[], str]], ...]
    tensors: tuple[TensorInfo, ...]
    buffers: tuple[Buffer, ...]
    math: Callable[[], MathSnapshot] | None = None
    scalar: Callable[[], Lowered] | None = None
    notes: Callable[[], tuple[Note, ...]] | None = None
    explained: Callable[[], tuple[Explained, ...]] | None = None

    def __reduce__(self) -> tuple[Callable[..., Lowered], tuple[object, ...]]:
        """Pickle all that it would make, made."""
        from loopnest.base.pickling import STAMP

        return _made, (
            STAMP,
            self.program,
            tuple([(name, text()) for name, text in self.stages]),
            self.tensors,
            self.buffers,
            None if self.math is None else self.math(),
            None if self.scalar is None else self.scalar(),
            () if self.notes is None else self.notes(),
        )


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """What the full text of a kernel holds: a `Lowered` without the texts of its passes.

    `math` is left out of a scalar variant that has the kernel's.
    """

    program: Program
    tensors: tuple[TensorInfo, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    math: MathSnapshot | None = None
    scalar: KernelRecord | None = None

    @staticmethod
    def of(lowered: Lowered, known: MathSnapshot | None = None) -> KernelRecord:
        """Return the record of `lowered`; `known` is the math of its kernel, if that is known."""
        math = None if lowered.math is None else lowered.math()
        return KernelRecord(
            lowered.program,
            lowered.tensors,
            lowered.buffers,
            None if math == known else math,
            None if lowered.scalar is None else KernelRecord.of(lowered.scalar(), math),
        )

    def lowered(self, known: MathSnapshot | None = None) -> Lowered:
        """Return what the record was made of."""
        math = known if self.math is None else self.math
        scalar = None if self.scalar is None else self.scalar.lowered(math)
        return _made(None, self.program, (), self.tensors, self.buffers, math, scalar, ())


BUFFERS: Mapping[str, MemberKind] = {"Buffer": MemberKind(Buffer, record_fields(Buffer))}
"""The members of a kernel's full text that belong to the loop nest."""

T = TypeVar("T")


def _made(
    _: object,
    program: Program,
    stages: tuple[tuple[str, str], ...],
    tensors: tuple[TensorInfo, ...],
    buffers: tuple[Buffer, ...],
    math: MathSnapshot | None,
    scalar: Lowered | None,
    notes: tuple[Note, ...],
) -> Lowered:
    """Return what was pickled."""
    return Lowered(
        program,
        tuple([(name, _always(text)) for name, text in stages]),
        tensors,
        buffers,
        None if math is None else _always(math),
        None if scalar is None else _always(scalar),
        _always(notes),
    )


def _always(value: T) -> Callable[[], T]:
    return lambda: value
