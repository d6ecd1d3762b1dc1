"""Sorts along an axis: sort, argsort, the largest few, and places in what is sorted.

An element gets a number in the order of its type (`_numbers`). Short rows are sorted by counting
how many numbers come before each. Others go by passes over digits of 8 bits, the lowest first: a
pass counts the digits of a row, adds up where each digit starts, and gives an element the place
behind those of its digit that came before it, which is an exclusive scan of which only the element
of the digit is read. What passes move is a number with its place in the low half, or the place
alone where the number has 64 bits. Each element has a place of its own, so that the sum over what
goes to a place is just that element: nothing is assumed, and proofs see ordinary folds.

Source: Knuth, "The art of computer programming", volume 3, section 5.2.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.conditions import normal_le
from loopnest.scalar.dtypes import DType, int32, int64
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    Op,
    cast,
    integer,
    whole,
)
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import (
    Axis,
    along,
    axes_of,
    compared,
    define,
    fresh_domain,
    normalized_axes,
)
from loopnest.tensor.ops.data_movement import permute
from loopnest.tensor.ops.gathers import gather
from loopnest.tensor.ops.operands import call_text, fusion_of, require_tensor, show
from loopnest.tensor.ops.slices import slice, stack
from loopnest.tensor.ops.tuple_reductions import element_number, folded
from loopnest.tensor.tensor_view import Definition, Read, Scan, TensorView, TracedReducer

SHORT = 64
"""Rows of so many elements are sorted by counting."""

DIGITS = 256
"""How many digits there are: a pass sorts by 8 bits."""

LONGEST = 2**31 - 1
"""So many elements have places in the low half of what passes move."""


def sort(tv: TensorView, axis: int = -1, descending: bool = False) -> TensorView:
    """Return the elements of `tv` in their order along `axis`.

    A NaN counts as the largest: it comes last, or first where `descending`. Equal elements keep
    their order, also where `descending`.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", 4), ln.float32)
    ...     y = f.output(ln.sort(x), "y")
    >>> print(ln.evaluate(f, np.array([[3, np.nan, 1, 2]], np.float32)))
    [[ 1.  2.  3. nan]]

    Args:
        tv: the operand, of any shape with an axis; no bools.
        axis: an axis, negative from the end.
        descending: whether the largest comes first.

    Raises:
        DefinitionError: no TensorView, bools, or an axis that it does not have.

    Source: numpy.sort, with kind="stable".
    """
    place = _checked("sort", tv, axis, descending)
    return gather(tv, _order(tv, place, descending), place)


def argsort(tv: TensorView, axis: int = -1, descending: bool = False) -> TensorView:
    """Return where the elements of `tv` in their order along `axis` stand, as int64.

    A NaN counts as the largest: it comes last, or first where `descending`. Of equal elements the
    first comes first, also where `descending`.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", 4), ln.int32)
    ...     y = f.output(ln.argsort(x), "y")
    >>> print(ln.evaluate(f, np.array([[3, 0, 3, 2]], np.int32)))
    [[1 3 0 2]]

    Args:
        tv: the operand, of any shape with an axis; no bools.
        axis: an axis, negative from the end.
        descending: whether the largest comes first.

    Raises:
        DefinitionError: no TensorView, bools, or an axis that it does not have.

    Source: numpy.argsort, with kind="stable".
    """
    place = _checked("argsort", tv, axis, descending)
    return _order(tv, place, descending)


def topk(tv: TensorView, k: int, axis: int = -1) -> tuple[TensorView, TensorView]:
    """Return the `k` largest elements along `axis`, largest first, and their indices as int64.

    Of equals the first comes first, and a NaN counts as the largest. A launch with fewer than `k`
    elements along the axis is refused. Up to 16 are kept in registers on one way through the
    elements; of more all elements are sorted.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     values, indices = ln.topk(x, 2)
    ...     values, indices = f.output(values, "values"), f.output(indices, "indices")
    >>> for found in ln.evaluate(f, np.array([[1, 5, 5], [3, 2, 4]], np.float32)):
    ...     print(found)
    [[5. 5.]
     [4. 3.]]
    [[1 2]
     [2 0]]

    Args:
        tv: the operand, of any shape with an axis.
        k: how many.
        axis: an axis, negative from the end; it has `k` elements in the results.

    Raises:
        DefinitionError: no TensorView, an axis that it does not have, a `k` that is none, or more
            than there are elements; bools and a `k` above 16.

    Source: torch.topk, with the order of equals that numpy.argmax has.
    """
    count = whole(k)
    call = call_text("topk", (tv, k), f"axis={show(axis)}")
    place = _axis("topk", call, tv, axis)
    if count is None or isinstance(k, bool) or count < 1:
        raise DefinitionError(call, f"k is {show(k)}", "use an int from 1 to the axis' extent")
    enough = normal_le(integer(count), tv.sizes[place], tv.fusion.algebra)
    if enough is FALSE:
        hint = f"{tv.name} is {tv.signature}"
        raise DefinitionError(call, f"the axis has fewer than {count} elements", hint)
    if count > MOST_KEPT:
        _check_type(call, tv)
    if enough is not TRUE:
        tv.fusion.require(enough)
    if count <= MOST_KEPT:
        return kept_largest(tv, count, place)
    ends = [count if n == place else None for n in range(len(tv.sizes))]
    first = slice(_order(tv, place, True), [None] * len(ends), ends)
    return gather(tv, first, place), first


def searchsorted(sorted: TensorView, values: TensorView, side: str = "left") -> TensorView:
    """Return before which element of `sorted` each of `values` stands in the order, as int64.

    It is how many elements of `sorted` are less than the value; with `side` "right" those that are
    equal count, too. A NaN counts as the largest. Of elements that are not in order the result is
    one of 0..n.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x, v = f.input("x", ("N",), ln.float32), f.input("v", ("K",), ln.float32)
    ...     y = f.output(ln.searchsorted(x, v), "y")
    >>> print(ln.evaluate(f, np.array([1, 2, 2, 3], np.float32), np.array([2, 9], np.float32)))
    [1 4]

    Args:
        sorted: the elements in their order, along the last axis: of one axis, or of the axes of
            `values`, and of their extents but for the last.
        values: of the type of `sorted`.
        side: "left" or "right".

    Raises:
        DefinitionError: no TensorViews, types or shapes that do not fit, or another side.

    Source: numpy.searchsorted; torch.searchsorted, of rows.
    """
    call = call_text("searchsorted", (sorted, values), f"side={show(side)}")
    require_tensor("searchsorted", sorted, values)
    fusion_of("searchsorted", (sorted, values))
    if not isinstance(values, TensorView):
        raise DefinitionError(call, f"the values are {show(values)}", "use a TensorView")
    found = f"{sorted.name} is {sorted.signature}, {values.name} is {values.signature}"
    if sorted.dtype is not values.dtype:
        raise DefinitionError(call, found, "both have one type; convert one by ln.cast")
    if side not in ("left", "right"):
        raise DefinitionError(call, f"side is {show(side)}", 'use "left" or "right"')
    rows, algebra = len(sorted.sizes) - 1, sorted.fusion.algebra
    alike = rows == 0 or (
        rows == len(values.sizes) - 1
        and all(map(algebra.equal, sorted.sizes[:rows], values.sizes[:rows]))
    )
    if rows < 0 or not alike:
        hint = "what is sorted has one axis, or the axes of the values with another last one"
        raise DefinitionError(call, found, hint)
    return _searched(sorted, values, rows, side == "right")


def _searched(sorted: TensorView, values: TensorView, rows: int, right: bool) -> TensorView:
    """Return the result of a search by halves: a step of each power of two, the largest first.

    A step goes on where the element in front of its end is less than the value. The reads of the
    steps lie inside of the row wherever they count; elsewhere the nearest element is read.
    """
    fusion, algebra = values.fusion, values.fusion.algebra
    size, axes = sorted.sizes[rows], axes_of(values)
    own = tuple(range(len(axes)))
    most = algebra.range_at_launch(size)[1]
    count = LONGEST if most is None else most
    if most is None:
        fusion.require(normal_le(size, integer(LONGEST), algebra))
    found = define(fusion, "searchsorted", (), (), axes, int64, Const(0, int64))
    step = 1 << max(0, count.bit_length() - 1)
    while step and count:
        end = Op("add", (Arg(1, int64), Const(step, int64)), int64)
        at = algebra.sub(algebra.add(cast(Arg(1, int64), dtypes.index), integer(step)), ONE)
        nearest = algebra.max(algebra.min(at, algebra.sub(size, ONE)), ZERO)
        where = [along(n, axes[n]) for n in range(rows)]
        reads = (
            Read(sorted, (*where, nearest)), Read.along(found, own), Read.along(values, own)
        )  # fmt: skip
        inside = Op("le", (end, cast(size, int64)), dtypes.bool_)
        value, element = Arg(2, values.dtype), Arg(0, sorted.dtype)
        less = _not_before(value, element) if right else _is_before(element, value)
        goes = Op("and", (inside, less), dtypes.bool_)
        after: Expr = Op("where", (goes, end, Arg(1, int64)), int64)
        some = normal_le(ONE, size, algebra)
        if some is not TRUE:
            after = Op("where", (compared("lt", ZERO, size), after, Arg(1, int64)), int64)
        found = define(
            fusion, "searchsorted", (sorted, values), reads, axes, int64, after, f"step={step}"
        )
        step //= 2
    return found


def _is_before(a: Expr, b: Expr) -> Expr:
    """Return whether `a` is less than `b`, where a NaN is the largest."""
    less: Expr = Op("lt", (a, b), dtypes.bool_)
    if not a.dtype.is_float:
        return less
    nan_a, nan_b = [Op("isnan", (x,), dtypes.bool_) for x in (a, b)]
    only = Op("and", (nan_b, Op("not", (nan_a,), dtypes.bool_)), dtypes.bool_)
    return Op("or", (less, only), dtypes.bool_)


def _not_before(a: Expr, b: Expr) -> Expr:
    return Op("not", (_is_before(a, b),), dtypes.bool_)


# Arguments


def _checked(name: str, tv: TensorView, axis: object, descending: object) -> int:
    """Return the axis of a call, from 0 on.

    Raises:
        DefinitionError: it is none, or another argument does not fit.
    """
    call = call_text(name, (tv,), f"axis={show(axis)}")
    place = _axis(name, call, tv, axis)
    _check_type(call, tv)
    if not isinstance(descending, bool):
        raise DefinitionError(call, f"descending is {show(descending)}", "use True or False")
    return place


def _axis(name: str, call: str, tv: TensorView, axis: object) -> int:
    if isinstance(axis, (tuple, list)) or axis is None:
        raise DefinitionError(call, f"{name} goes along one axis", "name it by an int")
    (place,) = normalized_axes(name, tv, axis)
    return place


def _check_type(call: str, tv: TensorView) -> None:
    if tv.dtype.is_bool:
        hint = "sort numbers; convert it by ln.cast(…, ln.int8)"
        raise DefinitionError(call, f"{tv.name} is bool", hint)


# Orders


def _order(tv: TensorView, place: int, descending: bool) -> TensorView:
    """Return where the elements stand in the order along an axis, each inside of the axis."""
    last = len(tv.sizes) - 1
    if place != last:
        turned = [*[n for n in range(last + 1) if n != place], place]
        found = _order(permute(tv, turned), last, descending)
        return permute(found, [turned.index(n) for n in range(last + 1)])
    size = tv.sizes[last]
    known = int(size.value) if isinstance(size, Const) else None
    numbers, bits, signed = _numbers(tv, descending)
    if known is not None and known <= SHORT:
        moved = _moved("order", (_counted(numbers),), cast(Coordinate(last + 1), int64))
    else:
        moved = _sorted_by_digits(numbers, bits, signed)
    return _inside(moved, size)


def _numbers(tv: TensorView, descending: bool) -> tuple[TensorView, int, bool]:
    """Return the numbers of elements in the order, their bits, and whether one bit is a sign."""
    dtype, signed = tv.dtype, tv.dtype.is_float or tv.dtype.signed
    element: Expr = Arg(0, dtype)
    bits = 8 * dtype.size
    if dtype.is_float:
        bits = max(bits, 32)
        element = Op(f"ordinal{bits}", (cast(element, dtype.compute),), int64)
    value = cast(element, int64)
    if descending:
        most = -1 if signed else 2**bits - 1
        value = Op("sub", (Const(most, int64), value), int64)
    axes = axes_of(tv)
    reads = (Read.along(tv, tuple(range(len(axes)))),)
    return define(tv.fusion, "ordinals", (tv,), reads, axes, int64, value), bits, signed


def _counted(numbers: TensorView) -> TensorView:
    """Return how many elements of a row come before each."""
    last = len(numbers.sizes) - 1
    axes: list[Axis] = [*axes_of(numbers), (numbers.sizes[last], IterKind.REDUCTION)]
    rows = [Coordinate(n) for n in range(last)]
    mine, other = [Arg(n, int64) for n in (0, 1)]
    earlier = compared("lt", Coordinate(last + 1), Coordinate(last))
    same = Op("and", (Op("eq", (other, mine), dtypes.bool_), earlier), dtypes.bool_)
    first = Op("or", (Op("lt", (other, mine), dtypes.bool_), same), dtypes.bool_)
    reads = [Read(numbers, (*rows, Coordinate(n))) for n in (last, last + 1)]
    value = Op("where", (first, Const(1, int32), Const(0, int32)), int32)
    return _fold("rank", reads, axes, value)


def _sorted_by_digits(numbers: TensorView, bits: int, signed: bool) -> TensorView:
    """Return the places of elements in the order of their numbers, in the low 32 bits or alone."""
    fusion, axes = numbers.fusion, axes_of(numbers)
    last = len(axes) - 1
    size = numbers.sizes[last]
    own = Read.along(numbers, tuple(range(last + 1)))
    place = cast(Coordinate(last), int64)
    packed = bits <= 32
    if packed:
        fits = normal_le(size, integer(LONGEST), fusion.algebra)
        if fits is not TRUE:
            fusion.require(fits)
        high = Op("mul", (Arg(0, int64), Const(2**32, int64)), int64)
        start = Op("add", (high, place), int64)
        moved = define(fusion, "packed", (numbers,), (own,), axes, int64, start)
    else:
        moved = define(fusion, "places", (), (), axes, int64, place)
    for low in range(0, bits, 8):
        sign = signed and low + 8 == bits
        source = (moved, 32 + low) if packed else (numbers, low)
        count, rank = [_digit(moved, *source, sign) for _ in range(2)]
        moved = _moved("sort_pass", (_ranked(rank, _starts(count)), moved), Arg(1, int64))
    if not packed:
        return moved
    value = Op("bitand", (Arg(0, int64), Const(2**32 - 1, int64)), int64)
    reads = (Read.along(moved, tuple(range(last + 1))),)
    return define(fusion, "unpacked", (moved,), reads, axes, int64, value)


def _digit(moved: TensorView, numbers: TensorView, low: int, sign: bool) -> TensorView:
    """Return a digit of what stands at each place now, from bit `low` on."""
    axes, algebra = axes_of(moved), moved.fusion.algebra
    last = len(axes) - 1
    reads = [Read.along(moved, tuple(range(last + 1)))]
    if numbers is not moved:
        found = algebra.max(cast(Arg(0, int64), dtypes.index), ZERO)
        found = algebra.min(found, algebra.sub(numbers.sizes[last], ONE))
        reads.append(Read(numbers, (*[along(n, axes[n]) for n in range(last)], found)))
    number = Arg(len(reads) - 1, int64)
    value: Expr = Op("shr", (number, Const(low, int64)), int64)
    value = Op("bitand", (value, Const(DIGITS - 1, int64)), int64)
    if sign:
        value = Op("bitxor", (value, Const(DIGITS // 2, int64)), int64)
    return define(moved.fusion, "digit", (moved,), tuple(reads), axes, int32, cast(value, int32))


def _is_digit(place: int) -> Expr:
    """Return whether the digit that the first read finds is the coordinate at `place`."""
    return compared("eq", cast(Arg(0, int32), dtypes.index), Coordinate(place))


def _starts(digit: TensorView) -> TensorView:
    """Return how many elements of a row have a lower digit, by digits."""
    rows, last = axes_of(digit)[:-1], len(digit.sizes) - 1
    row = [Coordinate(n) for n in range(last)]
    digits = (integer(DIGITS), IterKind.ITERATION)
    one, none = Const(1, int64), Const(0, int64)
    counts = _fold(
        "digit_count",
        [Read(digit, (*row, Coordinate(last + 1)))],
        [*rows, digits, (digit.sizes[last], IterKind.REDUCTION)],
        Op("where", (_is_digit(last), one, none), int64),
    )
    own = [Read.along(counts, tuple(range(last + 1)))]
    return _fold("digit_start", own, [*rows, digits], Arg(0, int64), Scan(last, True))


def _ranked(digit: TensorView, starts: TensorView) -> TensorView:
    """Return the place of each element: behind those of lower digits, and those before it."""
    axes, last = axes_of(digit), len(digit.sizes) - 1
    row, digits = [Coordinate(n) for n in range(last)], integer(DIGITS)
    one, none = Const(1, int64), Const(0, int64)
    own = Read.along(digit, tuple(range(last + 1)))
    before = _fold(
        "digit_rank",
        [own],
        [*axes, (digits, IterKind.ITERATION)],
        Op("where", (_is_digit(last + 1), one, none), int64),
        Scan(last, True),
    )
    at = [Read.along(before, tuple(range(last + 2))), Read(starts, (*row, Coordinate(last + 1)))]
    sum_ = Op("add", (Arg(1, int64), Arg(2, int64)), int64)
    value = Op("where", (_is_digit(last + 1), sum_, none), int64)
    return _fold("digit_place", [own, *at], [*axes, (digits, IterKind.REDUCTION)], value)


def _moved(op: str, read: Sequence[TensorView], value: Expr) -> TensorView:
    """Return what stands at each place: `value` of the element that the first read sends there."""
    places = read[0]
    axes, last = axes_of(places), len(places.sizes) - 1
    source = (*[Coordinate(n) for n in range(last)], Coordinate(last + 1))
    here = compared("eq", cast(Arg(0, places.dtype), dtypes.index), Coordinate(last))
    found = Op("where", (here, value, Const(0, int64)), int64)
    reads = [Read(tensor, source) for tensor in read]
    return _fold(op, reads, [*axes, (places.sizes[last], IterKind.REDUCTION)], found)


def _inside(order: TensorView, size: Expr) -> TensorView:
    """Return places with what nobody can see from their sums: that they lie inside of the axis."""
    most = cast(order.fusion.algebra.sub(size, ONE), int64)
    value = Op("max", (Op("min", (Arg(0, int64), most), int64), Const(0, int64)), int64)
    reads = (Read.along(order, tuple(range(len(order.sizes)))),)
    return define(order.fusion, "argsort", (order,), reads, axes_of(order), int64, value)


def _fold(
    op: str, reads: Sequence[Read], axes: Sequence[Axis], value: Expr, scan: Scan | None = None
) -> TensorView:
    """Return the sum of `value` over the reduction axes, or along that of a scan."""
    fusion, dtype = reads[0].producer.fusion, value.dtype
    result = TensorView(fusion, fresh_domain(axes), dtype)
    operands = tuple([read.producer for read in reads])
    result.define(
        Definition(
            op, operands, tuple(reads), (result,), (value,), reducers.SUM.of(dtype), scan=scan
        )
    )
    return result


MOST_KEPT = 16
"""How many elements `topk` keeps at most: they stand in registers."""


def kept_largest(tv: TensorView, count: int, place: int) -> tuple[TensorView, TensorView]:
    """Return the `count` largest elements along an axis, largest first, and their indices.

    They are kept in registers on one way through the elements, `MOST_KEPT` at most.
    """
    kind = int32 if tv.dtype.is_bool else tv.dtype.compute
    reducer = _largest(count, kind)
    first = (cast(Arg(0, tv.dtype), kind), element_number(tv, (place,)))
    values = (*first, *reducer.identity[2:])
    types = [tv.dtype if not tv.dtype.is_bool else kind, int64] * count
    made = folded("topk", tv, (place,), types, values, reducer)
    kept, places = stack(made[::2], place), stack(made[1::2], place)
    if tv.dtype.is_bool:
        shape = axes_of(kept)
        reads = (Read.along(kept, tuple(range(len(shape)))),)
        value = cast(Arg(0, kind), dtypes.bool_)
        kept = define(tv.fusion, "topk", (kept,), reads, shape, dtypes.bool_, value)
    return kept, places


@cache
def _largest(count: int, kind: DType) -> TracedReducer:
    """Return the fold of `count` pairs (element, index), largest first, to those of two such."""
    neutral = (Const(reducers.least(kind), kind), Const(int64.greatest, int64))

    def combine(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        one, other = _pairs(a), _pairs(b)
        if all(pair == neutral for pair in other[1:]):
            kept = [_inserted(one, other[0], n) for n in range(count)]
        else:
            kept = [_merged(one, other, n, neutral) for n in range(count)]
        return tuple([part for pair in kept for part in pair])

    literals = [None, None, *(neutral * (count - 1))]
    return reducers.trace(f"topk_{count}", neutral * count, combine, literals)


_Pair: TypeAlias = "tuple[Expr, Expr]"


def _pairs(parts: Sequence[Expr]) -> list[_Pair]:
    return list(zip(parts[::2], parts[1::2], strict=True))


def _inserted(kept: Sequence[_Pair], new: _Pair, place: int) -> _Pair:
    """Return the pair at `place` of sorted pairs after one more pair is inserted."""
    here = _chosen_pair(_before(new, kept[place]), new, kept[place])
    return here if not place else _chosen_pair(_before(new, kept[place - 1]), kept[place - 1], here)


def _merged(
    one: Sequence[_Pair], other: Sequence[_Pair], place: int, neutral: tuple[Const, Const]
) -> _Pair:
    """Return the pair at `place` of two sorted lists of pairs, merged.

    It is pair n of one list, in front of which there are `place` - n pairs of the other.
    All tests are of the pairs themselves, so that the templates stay small.
    """
    result: _Pair = neutral
    for mine, theirs in ((one, other), (other, one)):
        for n in range(place + 1):
            test: Expr = Op("not", (_before(theirs[place - n], mine[n]),), dtypes.bool_)
            if n < place:
                enough = _before(theirs[place - n - 1], mine[n])
                test = Op("and", (enough, test), dtypes.bool_)
            result = _chosen_pair(test, mine[n], result)
    return result


def _before(a: _Pair, b: _Pair) -> Expr:
    return reducers.comes_first("gt", a, b)


def _chosen_pair(test: Expr, a: _Pair, b: _Pair) -> _Pair:
    value, index = [Op("where", (test, x, y), x.dtype) for x, y in zip(a, b, strict=True)]
    return value, index
