"""What a kernel tells of itself as plain data: parameters, memory, and texts of the passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopnest.base.errors import LoweringError
from loopnest.kir.kernel_program import Param
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Const, Expr


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Args:
        name: the identifier in the nest.
        kind: "input", "output", "scalar", "size" or "workspace".
        c_type: its type in C.
        dtype: of the elements or the scalar; `index` for a size.
        shape: logical extents of an array, ints where static; None for scalars and sizes.
    """

    name: str
    kind: str
    c_type: str
    dtype: DType
    shape: tuple[int | Expr, ...] | None

    @classmethod
    def of(cls, param: Param) -> Parameter:
        """Return what a parameter of a nest is to the caller."""
        shape = None if param.buffer is None else _plain(param.shape)
        return cls(param.name, param.kind, param.c_type, param.dtype, shape)


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """A piece of memory of a kernel; sizes are ints where static.

    Args:
        name: unique in the kernel.
        tensor: the name of the tensor that it holds.
        memory: LOCAL, SHARED or GLOBAL.
        dtype: of its elements.
        shape: extents, outermost first.
        strides: distances between neighbours, in elements.
        size: elements that it takes, padding and stages included.
        alias_of: the name of the buffer whose space it shares, or None.
    """

    name: str
    tensor: str
    memory: Memory
    dtype: DType
    shape: tuple[int | Expr, ...]
    strides: tuple[int | Expr, ...]
    size: int | Expr
    alias_of: str | None

    @classmethod
    def of(cls, buffer: Buffer) -> BufferInfo:
        """Return what a buffer of a nest is to the caller."""
        (size,) = _plain((buffer.size,))
        return cls(
            buffer.name, buffer.tensor, buffer.memory, buffer.dtype, _plain(buffer.shape),
            _plain(buffer.strides), size, buffer.alias_of,
        )  # fmt: skip


class Stages(Mapping[str, str]):
    """Pass name -> text of its result, in order; a text is made when it is first read."""

    def __init__(self, stages: Sequence[tuple[str, Callable[[], str]]], subject: str) -> None:
        self._makers = dict(stages)
        self._texts: dict[str, str] = {}
        self._subject = subject

    def __getitem__(self, name: str) -> str:
        if name not in self._makers:
            allowed = f"the stages are {', '.join(self._makers)}"
            raise LoweringError(f"{self._subject}.stages[{name!r}]", "no such stage", allowed)
        if name not in self._texts:
            self._texts[name] = self._makers[name]()
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def get(self, name: str, default: Any = None) -> Any:
        """Return the text of a stage, `default` where there is none."""
        return self[name] if name in self._makers else default

    def __repr__(self) -> str:
        return f"<stages {', '.join(self._makers)}>"


def _plain(sizes: Sequence[Expr]) -> tuple[int | Expr, ...]:
    """Return sizes as ints where they are static."""
    return tuple([int(size.value) if isinstance(size, Const) else size for size in sizes])
