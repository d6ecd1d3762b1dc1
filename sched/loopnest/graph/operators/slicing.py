"""Ops that take parts out and put them back: slices, padding, NumPy's indexing."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from loopnest.graph.dimensions import Dim, DimLike, add, ceildiv, dim_of, mul, never_at_most, sub
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import get_item, shape_of
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.movement_ops import expand_dims, squeeze
from loopnest.graph.operators.node_operands import require_node, tensors
from loopnest.graph.registry import Pattern, call, call_text, register_op, short, takes_arguments
from loopnest.scalar.expr import Expr


@takes_arguments
def slice(
    x: Operand,
    starts: Sequence[DimLike],
    stops: Sequence[DimLike],
    steps: Sequence[int] | None = None,
) -> Node:
    """Return x[starts[0]:stops[0]:steps[0], …], one of each an axis.

    Negative places count from the end, places beyond an end are that end, as in Python. Where a
    place or the extent is a size, places must satisfy 0 <= start <= stop <= extent, which is
    checked when sizes are known. Steps are at least 1 (`flip` reverses).

    Raises:
        GraphError: not one of each an axis, or a step below 1.
    """
    node = require_node("slice", x)
    given = (tuple(starts), tuple(stops), tuple(steps) if steps is not None else (1,) * node.ndim)
    subject = call_text("slice", (node, *given))
    if any(len(part) != node.ndim for part in given):
        raise GraphError(
            subject, "not one start, stop and step an axis", f"it has {node.ndim} axes"
        )
    if any(not isinstance(p, (int, str, Expr)) for part in given[:2] for p in part):
        raise GraphError(subject, "a place is no integer")
    if any(not isinstance(p, int) or p < 1 for p in given[2]):
        raise GraphError(subject, "a step is below 1", "G.flip reverses an axis")
    first: list[Dim] = []
    last: list[Dim] = []
    for start, stop, extent in zip(given[0], given[1], node.shape, strict=True):
        low, high = _place(start, extent, subject), _place(stop, extent, subject)
        first.append(low)
        last.append(max(low, high) if isinstance(low, int) and isinstance(high, int) else high)
    return call("slice", (node,), {"starts": tuple(first), "stops": tuple(last), "steps": given[2]})


def _place(given: DimLike, extent: Dim, subject: str) -> Dim:
    """Return a place counted from the front; a static one within a static extent."""
    if not isinstance(given, int):
        return dim_of(given, subject)
    if isinstance(extent, int):
        return min(max(given + extent * (given < 0), 0), extent)
    return add(extent, given) if given < 0 else given


@takes_arguments
def unslice(
    x: Operand, shape: Sequence[DimLike], starts: Sequence[DimLike], steps: Sequence[int]
) -> Node:
    """Return zeros of `shape` with x at starts[i] + steps[i] * k: what `slice` takes out, put back.

    Raises:
        GraphError: x reaches beyond the shape.
    """
    node = require_node("unslice", x)
    subject = call_text("unslice", (node, tuple(shape), tuple(starts), tuple(steps)))
    places = [start if isinstance(start, int) else dim_of(start, subject) for start in starts]
    attrs = {"shape": shape_of(shape, subject), "starts": tuple(places), "steps": tuple(steps)}
    return call("unslice", (node,), attrs)


@takes_arguments
def pad(x: Operand, widths: Sequence[Sequence[int]], value: float = 0) -> Node:
    """Return x with `value` around it: widths[i] = (before, after) of axis i, in elements.

    Raises:
        GraphError: not two widths >= 0 an axis.
    """
    node = require_node("pad", x)
    pairs = tuple(tuple(pair) for pair in widths)
    typed = bool(value) if node.dtype.is_bool else value
    return call("pad", (node,), {"widths": pairs, "value": typed})


@takes_arguments
def index(x: Node, key: object) -> Node:
    """Return x[key]: a field of a tuple, or a tensor by ints, slices, None and `...`.

    Raises:
        GraphError: another key, or one out of range.
    """
    if x.is_tuple:
        if not _is_integer(key):
            raise GraphError(f"{x}[{short(key)}]", "a tuple takes an integer")
        return get_item(x, key)  # type: ignore[arg-type]
    parts = list(key) if isinstance(key, tuple) else [key]
    subject = f"{x}[{short(key)}]"
    for part in parts:
        _check_place(part, subject)
    axes = sum(1 for part in parts if part is not None and part is not Ellipsis)
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    if axes > x.ndim or len(dots) > 1:
        raise GraphError(subject, f"there are {axes} places for {x.ndim} axes")
    place = dots[0] if dots else len(parts)
    parts[place : place + 1] = [_ALL] * (x.ndim - axes)
    taken, dropped, added = _taken(x, parts, subject)
    whole = all(t == (0, e, 1) for t, e in zip(taken, x.shape, strict=True))
    result = x if whole else slice(x, *[list(part) for part in zip(*taken, strict=True)])
    result = squeeze(result, dropped) if dropped else result
    return expand_dims(result, added) if added else result


_PySlice = builtins.slice


_ALL = _PySlice(None)


def _taken(
    x: Node, parts: Sequence[object], subject: str
) -> tuple[list[tuple[Dim, Dim, int]], list[int], list[int]]:
    """Return (start, stop, step) an axis, the axes to squeeze, the axes of the result to add."""
    taken: list[tuple[Dim, Dim, int]] = []
    dropped: list[int] = []
    added: list[int] = []
    for part in parts:
        if part is None:
            added.append(len(taken) - len(dropped) + len(added))
            continue
        axis = len(taken)
        extent = x.shape[axis]
        if isinstance(part, _PySlice):
            taken.append(_span(part, extent, subject))
            continue
        place = part.__index__()  # type: ignore[attr-defined]
        if isinstance(extent, int) and not -extent <= place < extent:
            raise GraphError(subject, f"place {place} is out of range", f"extent {extent}")
        first = add(extent, place) if place < 0 else place
        taken.append((first, add(first, 1), 1))
        dropped.append(axis)
    return taken, dropped, added


def _span(part: builtins.slice, extent: Dim, subject: str) -> tuple[Dim, Dim, int]:
    """Return start, stop and step of what a forward slice takes of an axis."""
    if isinstance(extent, int):
        return part.indices(extent)
    start = 0 if part.start is None else _place(part.start, extent, subject)
    stop = extent if part.stop is None else _place(part.stop, extent, subject)
    return start, stop, 1 if part.step is None else int(part.step)


def _check_place(part: object, subject: str) -> None:
    """Check that a part of a key is a place: an integer, a forward slice, None or `...`."""
    if part is None or part is Ellipsis or _is_integer(part):
        return
    if isinstance(part, _PySlice):
        ends = [end for end in (part.start, part.stop, part.step) if end is not None]
        if all(_is_integer(end) for end in ends) and (part.step is None or part.step > 0):
            return
    raise GraphError(
        subject, f"{short(part)} is no place", "use integers, forward slices, None, ..."
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _infer_slice(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    parts = list(zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True))
    if len(parts) != len(x.shape):
        raise Refused("not one start, stop and step an axis", f"it has {len(x.shape)} axes")
    for (start, stop, step), extent in zip(parts, x.shape, strict=True):
        ends = ((0, start), (start, stop), (stop, extent))
        if step < 1 or any(never_at_most(low, high) for low, high in ends):
            raise Refused(f"{start}:{stop}:{step} does not fit extent {extent}")
    shape = [ceildiv(sub(stop, start), step) for start, stop, step in parts]
    return TensorType(tuple(shape), x.dtype)


def _infer_unslice(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    shape, starts, steps = attrs["shape"], attrs["starts"], attrs["steps"]
    if not len(x.shape) == len(shape) == len(starts) == len(steps):
        raise Refused("not one extent, start and step an axis", f"it has {len(x.shape)} axes")
    for own, extent, start, step in zip(x.shape, shape, starts, steps, strict=True):
        last = add(start, mul(sub(own, 1), step))
        beyond = own != 0 and isinstance(last, int) and never_at_most(add(last, 1), extent)
        if never_at_most(0, start) or step < 1 or beyond:
            raise Refused(f"{own} elements from {start} by {step} do not fit extent {extent}")
    return TensorType(shape, x.dtype)


def _infer_pad(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    widths = attrs["widths"]
    bad = any(len(w) != 2 or any(not isinstance(e, int) or e < 0 for e in w) for w in widths)
    if bad or len(widths) != len(x.shape):
        raise Refused(f"widths={widths}", "a pair of integers >= 0 for each axis")
    shape = [add(extent, sum(pair)) for extent, pair in zip(x.shape, widths, strict=True)]
    return TensorType(tuple(shape), x.dtype)


def _places(starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> tuple[Any, ...]:
    parts = zip(starts, steps, shape, strict=True)
    return tuple([_PySlice(start, start + step * count, step) for start, step, count in parts])


def _slice(node: Node, x: Any) -> Any:
    return x[_places(node.attrs["starts"], node.attrs["steps"], node.static_shape)]


def _unslice(node: Node, x: Any) -> Any:
    result = np.zeros(node.static_shape, x.dtype)
    result[_places(node.attrs["starts"], node.attrs["steps"], x.shape)] = x
    return result


def _pad(node: Node, x: Any) -> Any:
    if not node.attrs["widths"]:
        return x
    return np.pad(x, node.attrs["widths"], constant_values=node.attrs["value"])


for _name, _infer, _evaluate, _params in (
    ("slice", _infer_slice, _slice, ("starts", "stops", "steps")),
    ("unslice", _infer_unslice, _unslice, ("shape", "starts", "steps")),
    ("pad", _infer_pad, _pad, ("widths", "value")),
):
    register_op(
        _name,
        infer=_infer,
        evaluate=_evaluate,
        arity=1,
        params=_params,
        pattern=Pattern.INJECTIVE,
    )
