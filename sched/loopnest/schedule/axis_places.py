"""Where the axis is that a call names: by its position, or by a name that it has.

All primitives ask here, of leaf axes and of those of a buffer alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from loopnest.scalar.expr import whole
from loopnest.schedule.transaction import PrimitiveRefused, axis_names, shown
from loopnest.tensor.axis_names import refused
from loopnest.tensor.domain import IterDomain, ancestors
from loopnest.tensor.intents import place_of
from loopnest.tensor.tensor_view import TensorView


def leaf_position(tensor: TensorView, axis: object) -> int:
    """Return the position of a leaf axis counted from the front; it is given so, or by name.

    Raises:
        Refusal: neither an int nor a name, out of range, or a name that no axis or two axes have.
    """
    if isinstance(axis, str):
        return _named_leaf(tensor, axis)
    position, count = whole(axis), tensor.ndim
    if position is None:
        raise PrimitiveRefused(
            f"axis {shown(axis)} is not an int", "leaf axes are given by position, or by name"
        )
    if not -count <= position < count:
        allowed = f"so use {-count}..{count - 1}" if count else "so there is none to name"
        axes = "leaf axis" if count == 1 else "leaf axes"
        raise PrimitiveRefused(
            f"axis {position} is out of range",
            f"{tensor.name} has {count} {axes} {axis_names(tensor.domain)}, {allowed}",
        )
    return position % count if count else 0


def leading_position(tensor: TensorView, pos: object) -> int:
    """Return how many leading leaf axes of `tensor` position `pos` counts.

    The name of an axis means a position inside of its loop.

    Raises:
        Refusal: neither an int nor a name, out of range, or a name that no axis or two axes have.
    """
    if isinstance(pos, str):
        return _named_leaf(tensor, pos) + 1
    wanted = whole(pos)
    if wanted is None:
        raise PrimitiveRefused(
            f"position {shown(pos)} is not an int",
            "a position counts leading leaf axes, or names the innermost of them",
        )
    count = tensor.ndim
    place = wanted + (count + 1 if wanted < 0 else 0)
    if not 0 <= place <= count:
        raise PrimitiveRefused(
            f"position {wanted} is out of range",
            f"{tensor.name} has the leaf axes {axis_names(tensor.domain)}, "
            f"so use {-count - 1}..{count}",
        )
    return place


def named_place(axes: Sequence[IterDomain], name: str, of: str) -> int:
    """Return the place of the axis that `name` means, of the axes that `of` has.

    The first name of an axis goes before others that it has from another tensor, a size or the
    math.

    Raises:
        Refusal: no axis has it, or two.
    """
    first = [place for place, axis in enumerate(axes) if axis.name == name]
    found = first or [place for place, axis in enumerate(axes) if name in axis.names]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(
        f"{axis.kind.letter}{place}" + ("" if not axis.names else f" {'/'.join(axis.names)}")
        for place, axis in enumerate(axes)
    )
    named = any(axis.names for axis in axes)
    hint = f"its axes are [{listed}]" + ("" if named else ": none has a name, give a position")
    if found:
        places = f"{', '.join(map(str, found[:-1]))} and {found[-1]}"
        why = f"axes {places} of {of} are named {name!r}"
        raise PrimitiveRefused(why, f"{hint}: give another name, or a position")
    raise PrimitiveRefused(f"{of} has no axis named {name!r}", hint)


def _named_leaf(tensor: TensorView, name: str) -> int:
    try:
        return named_place(tensor.domain.leaf, name, tensor.name)
    except PrimitiveRefused as refusal:
        became = _became(tensor, name)
        if not became:
            raise
        raise PrimitiveRefused(refusal.reason + f" any more: {became}", refusal.hint) from None


def _became(tensor: TensorView, name: str) -> str:
    """Say what took the place of the axis of that name, which is no leaf axis."""
    for intent in reversed(tensor.fusion.intents):
        lost = intent.value if intent.kind == "lost" and intent.tensor is tensor else ()
        if isinstance(lost, tuple) and name in lost:
            return f"it gave way to other loops in {place_of(intent.origin)}"
    domain = tensor.domain
    above = [a for step in domain.history for a in step.inputs if name in a.names]
    for axis in above:
        made = [
            leaf.label(place)
            for place, leaf in enumerate(domain.leaf)
            if leaf is not axis and axis in ancestors((leaf,), domain)
        ]
        if made:
            return f"it became {' and '.join(made)}"
    return ""


def new_places(
    orders: Sequence[object], count: int, place_of: Callable[[object], int], listed: str
) -> dict[int, int]:
    """Return the new place by the old one, of the axes that a call of `reorder` names.

    Args:
        orders: a mapping, a permutation, or axes in the order in which they take their places.
        count: of the axes.
        place_of: returns the place of an axis.
        listed: the axes, for the refusal.

    Raises:
        Refusal: no order, or one that names an axis twice.
    """
    order = orders[0]
    pairs: list[tuple[object, object]]
    if len(orders) > 1 or isinstance(order, str):
        order = orders
        pairs = list(zip(orders, sorted(map(place_of, orders)), strict=True))
    elif isinstance(order, Mapping):
        pairs = list(order.items())
    elif isinstance(order, Sequence):
        if len(order) != count:
            raise PrimitiveRefused(
                f"the permutation {list(order)!r} names {len(order)} axes", listed
            )
        pairs = [(old, new) for new, old in enumerate(order)]
    else:
        raise PrimitiveRefused(
            f"{order!r} is no order", "use {old: new}, a permutation, or axes by name"
        )
    moves = {place_of(old): place_of(new) for old, new in pairs}
    if len(moves) != len(pairs) or len(set(moves.values())) != len(pairs):
        raise PrimitiveRefused(f"{order!r} names an axis or a place twice", "each may stand once")
    return moves


def require_names(names: object, count: int, beside: Sequence[IterDomain]) -> None:
    """Refuse what are no names for `count` new axes beside others."""
    why = refused(names, count, beside)
    if why is not None:
        raise PrimitiveRefused(*why)


def place_text(axis: IterDomain, place: int) -> str:
    """Return how a sentence calls the axis at a position: ``1``, or ``1 (do)`` by its name."""
    return f"{place}" + (f" ({axis.names[0]})" if axis.is_named else "")
