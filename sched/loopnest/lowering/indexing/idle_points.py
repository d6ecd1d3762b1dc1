"""The points at which a reduction takes something in; at all others an element is the identity.

An element ``where(j <= i, x, 0)`` adds nothing to a sum where j > i, so that its update need not
run there. That is read off the definition, and of the pointwise definitions of what it reads: a
mask is made of `iota`s, which are indices. Only what is the identity as it is written counts: 0 * x
is not 0 where x is infinite.

An index may be compared to data: to what the definition reads itself, or to elements of inputs, by
whatever pointwise definitions they come (the pointers of a sparse matrix, the lengths of rows). The
latter are loads: an input is there wherever a test stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loopnest.kir.buffers import Buffer
from loopnest.numerics.float64_math import fold
from loopnest.scalar import dtypes
from loopnest.scalar.expr import (
    ZERO,
    Arg,
    Const,
    Expr,
    Load,
    Op,
    cast,
    walk,
)
from loopnest.tensor.definition import Definition, Read
from loopnest.tensor.index_forms import index_form, moved, pointwise
from loopnest.tensor.tensor_view import TensorView

_SWAPPED = {"gt": "lt", "ge": "le"}
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


class LiveTerms:
    """What holds wherever elements of reductions are not the identity.

    Args:
        buffer_of: the buffer of an input.
    """

    def __init__(self, buffer_of: Callable[[TensorView], Buffer]) -> None:
        self.buffer_of = buffer_of

    def of(self, definition: Definition) -> tuple[Expr, ...]:
        """Return what holds wherever an element of a reduction is not the identity.

        Comparisons ``lt``, ``le`` and ``eq`` of indices, over the coordinates of the root; in one
        with an index that is data stands the `Arg` of the read that finds it, or the load of an
        input.
        """
        reducer = definition.reducer
        if reducer is None:
            return ()
        found: dict[Expr, None] | None = None
        # All components are folded by one update, which may stay away only where each of them takes
        # nothing in: of the conditions those that all have in common.
        for value, identity in zip(definition.values, reducer.identity, strict=True):
            mine = self._live(value, identity, definition.reads, outermost=True)
            found = dict.fromkeys(t for t in mine if found is None or t in found)
        return tuple(found or ())

    def _live(
        self, value: Expr, identity: Const, reads: Sequence[Read], *, outermost: bool
    ) -> tuple[Expr, ...]:
        """Return what holds wherever a template is not `identity`."""
        match value:
            case Op(op="where"):
                condition, yes, no = value.args
                if no is identity:
                    rest = self._live(yes, identity, reads, outermost=outermost)
                    return (*self._terms(condition, reads, True, outermost), *rest)
                if yes is identity:
                    rest = self._live(no, identity, reads, outermost=outermost)
                    return (*self._terms(condition, reads, False, outermost), *rest)
            case Op(op="cast"):
                (inner,) = value.args
                source = _converted_to(identity, inner.dtype)
                if source is None:
                    return ()
                return self._live(inner, source, reads, outermost=outermost)
            case Arg():
                found = pointwise(reads[value.number])
                if found is None:
                    return ()
                template = found.values[0]
                source = _converted_to(identity, template.dtype)
                if source is None:
                    return ()
                made = self._live(template, source, found.reads, outermost=False)
                return moved(made, reads[value.number])
        return ()

    def _terms(
        self, condition: Expr, reads: Sequence[Read], wanted: bool, outermost: bool
    ) -> tuple[Expr, ...]:
        """Return comparisons that hold wherever a condition is `wanted`; those that are known."""
        match condition:
            case Arg():
                found = pointwise(reads[condition.number])
                if found is None:
                    return ()
                inner = self._terms(found.values[0], found.reads, wanted, False)
                return moved(inner, reads[condition.number])
            case Op(op="not"):
                return self._terms(condition.args[0], reads, not wanted, outermost)
            # All parts of an `and` that holds hold; all parts of an `or` that fails fail. Of the
            # two other cases nothing follows for one part alone.
            case Op(op="and" | "or") if wanted == (condition.op == "and"):
                return tuple([
                    t for arg in condition.args
                    for t in self._terms(arg, reads, wanted, outermost)
                ])  # fmt: skip
            case Op(op="eq" | "ne", args=(value, Const() as literal)) if wanted == (
                condition.op == "ne"
            ):  # it is not that literal
                return self._live(value, literal, reads, outermost=outermost)
            case Op(op="lt" | "le" | "gt" | "ge" | "eq"):
                return self._comparison(condition, reads, wanted, outermost)
        return ()

    def _comparison(
        self, condition: Op, reads: Sequence[Read], wanted: bool, outermost: bool
    ) -> tuple[Expr, ...]:
        op, sides = condition.op, [self._index(arg, reads, outermost) for arg in condition.args]
        a, b = sides
        # Indices that are not equal lie on either side: no bound of a loop follows.
        if a is None or b is None or (op == "eq" and not wanted):
            return ()
        data = [part for part in walk(a, b) if isinstance(part, (Arg, Load))]
        # A sum of others with an integer of 64 bits may have more.
        if len(data) > 1 and any(part.dtype is dtypes.int64 for part in data):
            return ()
        op = op if wanted else _NEGATED[op]
        if op in _SWAPPED:
            op, a, b = _SWAPPED[op], b, a
        return (Op(op, (a, b), dtypes.bool_),)

    def _index(self, value: Expr, reads: Sequence[Read], outermost: bool) -> Expr | None:
        """Return an index as an expression of coordinates, sizes, and data."""
        found = index_form(value, reads, None if outermost else self._element)
        if found is not None:
            return found
        inner = value.args[0] if isinstance(value, Op) and value.op == "cast" else value
        if not isinstance(inner, Arg) or inner.dtype not in dtypes.INTEGERS:
            return None
        if outermost:
            return None if inner is value else cast(inner, dtypes.index)
        element = self._element(inner, reads) if inner.dtype is dtypes.int64 else None
        return None if element is None else cast(element, dtypes.index)

    def _element(self, value: Arg, reads: Sequence[Read]) -> Load | None:
        """Return the element of an input that a read finds, maybe by copies; None of others."""
        read = reads[value.number]
        if read.data:
            return None
        if read.producer.is_input:
            return _placed(self.buffer_of(read.producer), read)
        definition = pointwise(read)
        if definition is None or not definition.is_copy:
            return None
        (source,) = definition.values
        assert isinstance(source, Arg)
        element = self._element(source, definition.reads)
        if element is None or element.dtype is not value.dtype:
            return None
        (found,) = moved((element,), read)
        assert isinstance(found, Load)
        return found


def _placed(buffer: Buffer, read: Read) -> Load:
    """Return the load of what is read of an input, over the reader's coordinates."""
    axes = read.producer.domain.logical
    index = [ZERO if axis.is_broadcast else i for axis, i in zip(axes, read.indices, strict=True)]
    return Load(buffer, tuple(index) or (ZERO,))


def _converted_to(identity: Const, dtype: dtypes.DType) -> Const | None:
    """Return the literal of `dtype` that `identity` is when it is converted, None for none."""
    if dtype is identity.dtype:
        return identity
    if not (dtype.is_float and identity.dtype.is_float):
        return None
    found = fold(cast(Const(identity.value, dtype.compute), dtype))
    if not isinstance(found, Const) or found.dtype is not dtype:
        return None
    # Rounding to the narrower type may change the literal: only one that comes back is the identity
    # there, too.
    return found if fold(cast(found, identity.dtype)) is identity else None
