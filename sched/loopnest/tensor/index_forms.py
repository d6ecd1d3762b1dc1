"""Values that are indices: what is computed of `iota`s, as an expression of coordinates.

An int64 that is made of coordinates by sums, products and quotients is the same as an index, as
long as it does not wrap; its size in bits is followed for that. Pointwise definitions of what is
read are put in where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from loopnest.scalar import dtypes
from loopnest.scalar.expr import (
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    Op,
    cast,
    integer,
    substitute,
    walk,
)
from loopnest.tensor.tensor_view import Definition, Read

_COORDINATE_BITS = 40
_MOST_BITS = 62

DataOf: TypeAlias = Callable[[Arg, Sequence[Read]], "Expr | None"]
"""What an `Arg` among some reads is, as data; None where it may not be asked for."""


def index_form(value: Expr, reads: Sequence[Read], data: DataOf | None = None) -> Expr | None:
    """Return an index, or an int64 of a template, as an expression of coordinates and sizes.

    None where it is another, or may not fit 64 bits.

    Args:
        value: a template.
        reads: what its `Arg`s find.
        data: what tells which integers of at most 32 bits may be a part of an index.
    """
    found = _form(value, reads, data)
    return None if found is None or found[1] > _MOST_BITS else found[0]


def pointwise(read: Read) -> Definition | None:
    """Return the definition of what is read, if it is one of single elements."""
    definition, domain = read.producer.definition, read.producer.domain
    if definition is None or definition.reducer is not None or read.data or definition.carried:
        return None
    return definition if domain.rfactor == domain.root else None


def moved(terms: Sequence[Expr], read: Read) -> tuple[Expr, ...]:
    """Return expressions of a producer's coordinates as ones of its reader's."""
    places: dict[Expr, Expr] = {
        Coordinate(n): ZERO if axis.is_broadcast else index
        for n, (axis, index) in enumerate(
            zip(read.producer.domain.logical, read.indices, strict=True)
        )
    }
    return tuple([substitute(term, places) for term in terms])


def _form(value: Expr, reads: Sequence[Read], data: DataOf | None) -> tuple[Expr, int] | None:
    """Return the expression, and how many bits it may have."""
    match value:
        case Const() if value.dtype.is_integer or value.dtype.kind == "x":
            number = int(value.value)
            return integer(number), number.bit_length() + 1
        case _ if value.dtype is dtypes.index and not any(isinstance(n, Arg) for n in walk(value)):
            return value, _COORDINATE_BITS
        case Op() if value.dtype in (dtypes.int64, dtypes.index):
            return _operation(value, reads, data)
        case Arg() if value.dtype is dtypes.int64:
            definition = pointwise(reads[value.number])
            inner = None
            if definition is not None:
                inner = _form(definition.values[0], definition.reads, data)
            if inner is None:
                return None
            return moved((inner[0],), reads[value.number])[0], inner[1]
    return None


def _operation(value: Op, reads: Sequence[Read], data: DataOf | None) -> tuple[Expr, int] | None:
    if value.op == "cast":
        (source,) = value.args
        if source.dtype in (dtypes.int64, dtypes.index):
            return _form(source, reads, data)
        short = source.dtype in dtypes.INTEGERS and source.dtype.size < dtypes.int64.size
        if data is None or not short or not isinstance(source, Arg):
            return None
        element = data(source, reads)
        bits = 8 * source.dtype.size + 1
        return None if element is None else (cast(element, dtypes.index), bits)
    found = [_form(arg, reads, data) for arg in value.args]
    forms = [form for form in found if form is not None]
    if len(forms) < len(found):
        return None
    args, sizes = tuple([form for form, _ in forms]), [bits for _, bits in forms]
    match value.op:
        case "add" | "sub" | "neg":
            bits = max(sizes) + 1
        case "mul":
            bits = sum(sizes)
        case "min" | "max":
            bits = max(sizes)
        case "floordiv" | "mod" if isinstance(args[1], Const) and args[1].value > 0:
            bits = sizes[0]
        case _:
            return None
    return (Op(value.op, args, dtypes.index), bits) if bits <= _MOST_BITS else None
