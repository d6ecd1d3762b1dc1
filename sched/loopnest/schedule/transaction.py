"""The transaction of a schedule primitive: validated, run, and committed or undone as a whole.

A primitive raises `PrimitiveRefused` (what was found, what is allowed); the transaction undoes
every change since its start and raises a `ScheduleError` that shows the call as the user wrote it.
On success it checks that no frozen prefix moved (rule 9), appends the call to the fusion's trace,
and reads from the journal what the call means to achieve: an `Intent` for each field that it set,
which `Kernel.notes` looks for in the loop nest.

All primitives ask here, too, where the axis is that a call names, by its position or by a name that
it has, of leaf axes and of those of a buffer alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import wraps
from inspect import Parameter, signature
from itertools import takewhile
from typing import Concatenate, ParamSpec, TypeVar

from loopnest.base.errors import ScheduleError
from loopnest.base.gc_pause import paused
from loopnest.scalar.expr import Expr, whole
from loopnest.scalar.origin import Origin, caller
from loopnest.tensor.axis_names import Axis, refused
from loopnest.tensor.domain import IterDomain, TensorDomain, ancestors
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.intents import Intent, place_of, take_back
from loopnest.tensor.layout_transforms import BufferLayout, paddings_of, stored_axes, swizzles_of
from loopnest.tensor.overlapping_tiles import same_loops
from loopnest.tensor.schedule_trace import Step
from loopnest.tensor.tensor_view import TensorView, started_by

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])


class PrimitiveRefused(Exception):
    """A primitive cannot be carried out: `reason`, and what is allowed (`hint`)."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint

    def error(self, subject: str) -> ScheduleError:
        """Return the user's error for the call `subject`."""
        return ScheduleError(subject, self.reason, self.hint)


def primitive(
    run: Callable[Concatenate[TensorView, P], R],
) -> Callable[Concatenate[TensorView, P], R]:
    """Make `run` a transactional schedule primitive of its first argument's fusion.

    Errors and the trace show it as a method of that tensor; as a function where its name begins
    with an underscore, without the tensor where that parameter's name does.
    """
    parameters = signature(run).parameters
    many = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    own = [n for n, parameter in [*parameters.items()][1:] if parameter.kind not in many]
    named = {n for n in own if parameters[n].kind is Parameter.KEYWORD_ONLY}
    named.update(getattr(run, "named", ()))
    front = list(takewhile(lambda name: name not in named, own))
    defaults = {name: parameter.default for name, parameter in parameters.items()}

    arranged: Callable[..., R] = run

    @wraps(run)
    def call(tensor: TensorView, /, *given: P.args, **by_name: P.kwargs) -> R:
        args, kwargs = _arranged(own, front, given, by_name)
        fusion = tensor.fusion
        outer, step = fusion.calling, None
        if outer is None:
            fusion.calling = caller(_call_text(tensor, run.__name__, args, kwargs, defaults))
            step = _step(tensor, run.__name__, parameters, args, kwargs)
            count = len(fusion.tensors)
        mark = fusion.begin()
        try:
            with paused():
                result = arranged(tensor, *args, **kwargs)
            _check_frozen(fusion, mark)
        except BaseException as problem:
            fusion.rollback(mark)
            if (
                isinstance(problem, PrimitiveRefused)
                and outer is None
                and fusion.calling is not None
            ):
                raise problem.error(fusion.calling.call) from None
            raise
        else:
            if step is not None and fusion.calling is not None:
                of = None if run.__name__.startswith("_") else tensor
                fusion.intents.extend(_intents(fusion, mark, fusion.calling, of))
                fusion.take_note(step.done(fusion.tensors[count:], result), fusion.calling)
            return result
        finally:
            fusion.calling = outer
            fusion.end()

    return call


def named_in_errors(*names: str) -> Callable[[F], F]:
    """Let errors of a primitive show arguments by name, however they were given."""

    def mark(run: F) -> F:
        run.named = names  # type: ignore[attr-defined]
        return run

    return mark


def _arranged(
    parameters: Sequence[str],
    front: Sequence[str],
    args: Sequence[object],
    kwargs: dict[str, object],
) -> tuple[Sequence[object], dict[str, object]]:
    """Return the arguments of a call as it is shown: those in `front` by place, others by name."""
    if not kwargs and len(args) <= len(front):
        return args, kwargs
    given = dict(zip(parameters, args, strict=False))
    if len(given) < len(args) or not given.keys().isdisjoint(kwargs):
        return args, kwargs  # so many by position, or an error
    given |= kwargs
    placed = [given.pop(name) for name in takewhile(given.__contains__, front)]
    return placed, {name: given.pop(name) for name in parameters if name in given} | given


def _call_text(
    tensor: TensorView,
    name: str,
    args: Sequence[object],
    kwargs: dict[str, object],
    defaults: dict[str, object],
) -> str:
    own = [*defaults.values()][1:]
    # A default that is None says that nothing was given.
    left_out = [place for place, default in enumerate(own) if default is None]
    given = [shown(a) for n, a in enumerate(args) if a is not None or n not in left_out]
    for key, value in kwargs.items():
        if value is not defaults.get(key):
            given.append(f"{key}={shown(value)}")
    if not name.startswith("_"):
        return f"{tensor.name}.{name}({', '.join(given)})"
    if not next(iter(defaults)).startswith("_"):
        given.insert(0, tensor.name)
    return f"{name[1:]}({', '.join(given)})"


def _step(
    tensor: TensorView,
    name: str,
    parameters: Mapping[str, Parameter],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Step:
    """Return a call for the trace: arguments in the order of parameters, no defaults.

    The first of the parameters is the tensor, which none is where that name says so.
    """
    given, named = [*args], dict(kwargs)
    of = None if next(iter(parameters)).startswith("_") else tensor
    for key, parameter in [*parameters.items()][1 + len(given) :]:
        if parameter.kind is not Parameter.POSITIONAL_OR_KEYWORD or key not in named:
            break
        given.append(named.pop(key))
    kept = {k: v for k, v in named.items() if k not in parameters or v is not parameters[k].default}
    defaults = [parameter.default for parameter in parameters.values()][1:]
    while given and len(given) <= len(defaults) and given[-1] is defaults[len(given) - 1]:
        given.pop()
    return Step.of(name, of, given, kept)


def shown(value: object) -> str:
    """Return an argument as a call shows it."""
    match value:
        case TensorView():
            return value.name
        case Enum():
            return str(value.value)
        case dict():
            return "{" + ", ".join(f"{k!r}: {shown(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(shown, value)) + "]"
        case tuple():
            return f"({', '.join(map(shown, value))}{',' if len(value) == 1 else ''})"
    # a size as text, which calls take too
    return repr(str(value) if isinstance(value, Expr) else value)


_KINDS = {
    "_compute_at_pos": "place", "_memory": "memory", "_starts_launch": "launch",
    "instruction": "instruction",
}  # fmt: skip
"""Field of a TensorView -> kind of the intent of a call that changed it."""


def _intents(fusion: Fusion, mark: int, origin: Origin, of: TensorView | None) -> list[Intent]:
    """Return what the call `origin` of a tensor set since `mark`, each field of an object once."""
    found: dict[tuple[int, str], Intent] = {}
    changes = fusion.changed_since(mark)
    # A tensor that is defined anew hands its axes to the one that it reads now.
    anew = {target for target, field, _ in changes if field == "definition"}
    for target, field, old in changes:
        for intent in _intent(fusion, target, field, old, origin):
            if intent.kind == "lost" and target in anew:
                continue
            known = id(intent.tensor if intent.axis is None else intent.axis)
            found[known, intent.kind] = replace(intent, of=of)
    return list(found.values()) or [Intent(origin, "unchanged", of=of)]


def _intent(
    fusion: Fusion, target: object, field: str, old: object, origin: Origin
) -> Iterator[Intent]:
    """Yield what a change of one field means."""
    match target, field:
        case TensorView(), "layout":
            new = target.layout
            before = old if isinstance(old, BufferLayout) else None
            if before is None or (before.stages, before.prefetch) != (new.stages, new.prefetch):
                yield Intent(origin, "stages", target, value=new.stages)
            if (before is None or before.move != new.move) and new.move:
                yield Intent(origin, "move", target, value=new.move)
        case TensorView(), "domain":
            yield from _domain_intents(target, old, origin)
        case TensorView(), _ if field in _KINDS and getattr(target, field) is not False:
            yield Intent(origin, _KINDS[field], target)
        case IterDomain(owner=TensorView() as tensor), ("parallel" | "pinned"):
            yield Intent(origin, field, tensor, target, getattr(target, field))
        case Fusion(), "_tensors":
            known = set(old) if isinstance(old, (list, tuple)) else set()
            yield from (Intent(origin, "tensor", t) for t in fusion.tensors if t not in known)


def _domain_intents(tensor: TensorView, old: object, origin: Origin) -> Iterator[Intent]:
    """Yield what a change of a tensor's axes means: of its loops, and of its buffer's layout."""
    new = tensor.domain
    before = old if isinstance(old, TensorDomain) else new
    if before.with_allocation(new.allocation).axes() != new.axes() or before is new:
        yield Intent(origin, "loops", tensor)
    lost = _lost(before, new)
    if lost:
        yield Intent(origin, "lost", tensor, lost[0], tuple([axis.names[0] for axis in lost]))
    if before.allocation == new.allocation:
        return
    one, other = ((_own_order(d), paddings_of(d), _pairs(d)) for d in (before, new))
    same = set(_stored(before)) == set(_stored(new))
    kinds = ("order" if same else "allocation", "pad", "swizzle")
    for kind, was, now in zip(kinds, one, other, strict=True):
        if was != now:
            yield Intent(origin, kind, tensor, value=now)


def _lost(before: TensorDomain, new: TensorDomain) -> list[IterDomain]:
    """Return the leaf axes of a name that other loops took the place of."""
    named = [axis for axis in before.leaf if axis.is_named and axis not in new.leaf]
    kept = {axis for step in new.history for axis in step.inputs} if named else ()
    same = {axis.names[0] for axis in new.leaf if axis.is_named}
    return [axis for axis in named if axis not in kept and axis.names[0] not in same]


def _own_order(domain: TensorDomain) -> tuple[IterDomain, ...] | None:
    """Return the axes in the order of memory, None where that is the order of the loops."""
    stored = _stored(domain)
    return None if stored == _stored(domain.with_allocation(None)) else stored


def _stored(domain: TensorDomain) -> tuple[IterDomain, ...]:
    """Return the axes in the order of memory: of the loops, where nobody laid the buffer out."""
    return stored_axes(domain) or tuple([axis for axis in domain.leaf if not axis.is_reduction])


def _pairs(domain: TensorDomain) -> tuple[tuple[IterDomain, ...], ...]:
    return swizzles_of(domain.allocation or ())


def _check_frozen(fusion: Fusion, mark: int) -> None:
    """Refuse a transaction that changed axes left of a frozen position."""
    before: dict[TensorView, dict[str, object]] = {}
    for target, field, old in reversed(fusion.changed_since(mark)):
        if isinstance(target, TensorView):
            before.setdefault(target, {})[field] = old
    for tensor, old_fields in before.items():
        domain = old_fields.get("domain")
        if not isinstance(domain, TensorDomain) or domain is tensor.domain:
            continue
        positions = [
            old_fields.get("_compute_at_pos", tensor.compute_at_pos),
            old_fields.get("_produced_at_pos", tensor.produced_at_pos),
        ]
        frozen = max(p for p in positions if isinstance(p, int))
        # Of a loop over steps there is what a call made of it for all that share it: it sets their
        # positions, too.
        uses = tensor.domain.uses if "_produced_at_pos" in old_fields else {}
        shared = [b for a in domain.leaf[:frozen] for b in (uses[a].outputs if a in uses else (a,))]
        if not same_loops(shared, tensor.domain.leaf[: len(shared)]):
            raise frozen_refusal(tensor, domain, frozen)


def frozen_refusal(tensor: TensorView, domain: TensorDomain, frozen: int) -> PrimitiveRefused:
    """Return the refusal to change one of the `frozen` leading axes of `tensor`."""
    return PrimitiveRefused(
        f"the leading {frozen} of the leaf axes {axis_names(domain)} of {tensor.name} are frozen: "
        f"their loops are shared by computeAt (compute_at_pos {tensor.compute_at_pos}, "
        f"produced_at_pos {tensor.produced_at_pos})",
        f"change only axes from position {frozen} on, or {take_back(tensor)}",
    )


def axis_names(domain: TensorDomain) -> str:
    """Return the leaf axes as errors name them: ``[i0, i1 do, r2]``."""
    return f"[{', '.join([axis.label(place) for place, axis in enumerate(domain.leaf)])}]"


def require_flag(name: str, value: object) -> None:
    """Refuse what is no bool."""
    if not isinstance(value, bool):
        raise PrimitiveRefused(
            f"{name}={shown(value)} is no bool", f"use {name}=True or {name}=False"
        )


def listed(call: str, tensors: object, *before: TensorView) -> list[TensorView]:
    """Return `tensors` (one or several), given to the function `call` after others, as a list.

    Raises:
        ScheduleError: they are no TensorViews of one fusion.
    """
    if isinstance(tensors, TensorView):
        return [tensors]
    if not isinstance(tensors, Iterable):
        asked = ", ".join(map(shown, (*before, tensors)))
        raise ScheduleError(f"{call}({asked})", f"{shown(tensors)} is no list of TensorViews")
    found: list[TensorView] = []
    try:
        given = list(tensors)
    except TypeError:  # an array without axes
        return listed(call, None, *before)
    for tensor in given:
        if not isinstance(tensor, TensorView) or (found and tensor.fusion is not found[0].fusion):
            raise ScheduleError(
                call, f"{shown(tensor)} is no TensorView of the same fusion", "give TensorViews"
            )
        found.append(tensor)
    return found


def require_computed(tensor: TensorView) -> None:
    """Refuse to schedule an input."""
    if tensor.is_input:
        raise PrimitiveRefused(
            f"{tensor.name} is an input, which has no loops of its own",
            "only cache_after and compute_at apply to inputs",
        )


def require_not_instructed(tensor: TensorView, call: str) -> None:
    """Refuse a call that would take a reduction and its tile apart.

    Raises:
        PrimitiveRefused: an instruction computes `tensor`.
    """
    if tensor.instruction:
        raise PrimitiveRefused(
            f"{tensor.name} is computed by {tensor.instruction}",
            f"{call} comes before instruct, if at all",
        )


def require_tensor(tensor: TensorView, other: object) -> TensorView:
    """Return `other` if it is a TensorView of the same fusion as `tensor`.

    Raises:
        Refusal: it is not.
    """
    if not isinstance(other, TensorView):
        raise PrimitiveRefused(f"{other!r} is no TensorView")
    if other.fusion is not tensor.fusion:
        raise PrimitiveRefused(
            f"{other.name} belongs to fusion {other.fusion.name}, not {tensor.fusion.name}",
            "both must be tensors of one fusion",
        )
    return other


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


def require_not_atomic(tensor: TensorView, call: str) -> None:
    """Refuse a call that would take an atomic reduction and its initial values apart.

    Raises:
        PrimitiveRefused: `tensor` is one of the two.
    """
    for twin in tensor.siblings:
        if twin.definition is not None and twin.definition.start is not None:
            start = twin.definition.starts_from
            assert start is not None
            raise PrimitiveRefused(
                f"{twin.name} is atomic: its memory is that of its initial values {start.name}",
                f"{call} comes before atomic(), if at all",
            )
    require_no_start(tensor, call)


def require_no_start(tensor: TensorView, call: str) -> None:
    """Refuse a call on the initial values of an atomic reduction.

    Raises:
        PrimitiveRefused: `tensor` holds such values.
    """
    fold = started_by(tensor)
    if fold is not None:
        raise PrimitiveRefused(
            f"{tensor.name} holds the initial values of {fold.name}, in its memory",
            f"{call} serves other tensors",
        )


def axis(tensor: TensorView, position: Axis) -> IterDomain:
    """Return a leaf axis; see `TensorView.axis`."""
    try:
        return tensor.domain.leaf[leaf_position(tensor, position)]
    except PrimitiveRefused as refusal:
        raise refusal.error(f"{tensor.name}.axis({position!r})") from None
