"""The primitives that change the loops of one tensor: split, merge, reorder, parallelize, pin.

new_launch makes a kernel of several launches, workspace between them. A tensor that starts one is
computed after everything that the loops around it read and do not compute themselves.
`LoopBody.number_launches` gives each nest of the kernel its launch from that; here is the
primitive, and what it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.enums import STEP_TYPES, Memory, ParallelType
from loopnest.scalar.expr import ZERO, Expr, Symbol, integer, variables, whole
from loopnest.scalar.facts import size_expression
from loopnest.schedule.loop_forest import SEPARATE, Conflict, LoopForest, is_several_launches
from loopnest.schedule.replay import mirror, sharers
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    axis_names,
    frozen_refusal,
    leaf_position,
    named_in_errors,
    new_places,
    place_text,
    primitive,
    require_computed,
    require_flag,
    require_names,
    require_not_atomic,
)
from loopnest.tensor.axis_names import Axis, AxisKey
from loopnest.tensor.domain import IterDomain, Merge, Split, TensorDomain
from loopnest.tensor.layout_transforms import swizzles_of
from loopnest.tensor.tensor_view import TensorView


def rebind(tensor: TensorView, domain: TensorDomain) -> None:
    """Give `tensor` the domain, and its siblings (outputs of one definition) the same loops."""
    if domain is tensor.domain:
        return
    tensor.bind(domain)
    for twin in tensor.siblings:
        if twin is not tensor:
            twin.bind(mirror(domain, twin))


def _free_position(tensor: TensorView, axis: object, *, steps: bool = False) -> int:
    """Return the position of a leaf axis that may be transformed; one of `steps` may be shared."""
    require_computed(tensor)
    position = leaf_position(tensor, axis)
    if position < tensor.frozen and not (steps and tensor.domain.leaf[position].is_step):
        raise frozen_refusal(tensor, tensor.domain, tensor.frozen)
    return position


def _require_serial(tensor: TensorView, position: int, call: str) -> None:
    parallel = tensor.domain.leaf[position].parallel
    if parallel is not ParallelType.serial:
        bound = f"bound to {parallel.cuda_name}" if parallel.is_thread else f"{parallel.value}"
        text = place_text(tensor.domain.leaf[position], position)
        raise PrimitiveRefused(f"axis {text} is {bound}", f"{call} before parallelize")


def factor_of(tensor: TensorView, factor: object) -> Expr:
    """Return what to split by: an extent, a size symbol of the fusion, or arithmetic on these.

    Launches refuse sizes at which it is not >= 1.
    """
    fusion = tensor.fusion
    size: Expr | None = None
    if isinstance(factor, str) and factor.isidentifier():
        size = Symbol(factor)
    elif isinstance(factor, str):
        known = {symbol.name for symbol in fusion.symbols}
        try:
            size = size_expression(factor, known.__contains__, "split")
        except DefinitionError as refused:
            raise PrimitiveRefused(refused.reason, refused.hint) from None
    elif isinstance(factor, Expr) and factor.dtype is dtypes.index:
        size = factor
    if size is not None:
        return _known_size(tensor, size)
    extent = whole(factor)
    if extent is None or extent < 1:
        written = repr(str(factor) if isinstance(factor, Expr) else factor)
        raise PrimitiveRefused(f"the factor {written} is not allowed", _FACTORS)
    return integer(extent)


def _known_size(tensor: TensorView, size: Expr) -> Expr:
    """Return a factor of sizes that the fusion has, if it can be 1 or more."""
    fusion = tensor.fusion
    for symbol in variables(size):
        if symbol not in fusion.symbols:
            names = ", ".join([known.name for known in fusion.symbols]) or "none"
            raise PrimitiveRefused(
                f"'{symbol}' is no size symbol of fusion {fusion.name}", f"the symbols are {names}"
            )
    if isinstance(size, Symbol):
        return size
    found = fusion.algebra.simplify(size)
    if fusion.algebra.holds_le(found, ZERO):
        raise PrimitiveRefused(f"the factor '{size}' is never 1 or more", _FACTORS)
    return found


_FACTORS = "use an int >= 1, the name of a size symbol, or arithmetic on these"


@primitive
@named_in_errors("axis", "factor")
def split(
    tensor: TensorView,
    axis: Axis,
    factor: int | str | Expr,
    *,
    inner: bool = True,
    names: Sequence[str | None] | None = None,
) -> TensorView:
    """Split a leaf axis in two; see `TensorView.split`."""
    position = _free_position(tensor, axis, steps=True)
    size = factor_of(tensor, factor)
    require_flag("inner", inner)
    _require_serial(tensor, position, "split")
    before, _, behind = _around(tensor.domain.leaf, position)
    if names is not None:
        require_names(names, 2, (*before, *behind))

    def halved(axis: IterDomain) -> Split:
        step = Split(axis, size, tensor.fusion.algebra, inner=inner)
        for made, name in zip(step.outputs, names or (None, None), strict=True):
            made.pinned = axis.pinned
            made.take_name(name)
        return step

    if position < tensor.frozen:
        _split_steps(tensor, position, halved)
    else:
        rebind(tensor, _halved(tensor.domain, position, halved))
    return tensor


def _halved(
    domain: TensorDomain, position: int, halved: Callable[[IterDomain], Split]
) -> TensorDomain:
    before, axis, behind = _around(domain.leaf, position)
    return domain.with_leaf((*before, *halved(axis).outputs, *behind))


def _split_steps(tensor: TensorView, position: int, halved: Callable[[IterDomain], Split]) -> None:
    """Split a loop over steps in all tensors that share it; they share both loops then."""
    change = tensor.fusion.change
    for other, place in sharers(tensor, position).items():
        _require_serial(other, place, "split")
        other.bind(_halved(other.domain, place, halved))
        if place < other.compute_at_pos:
            change(other, "_compute_at_pos", other.compute_at_pos + 1)
        change(other, "_produced_at_pos", other.produced_at_pos + (place < other.produced_at_pos))


@primitive
def merge(
    tensor: TensorView,
    axis: Axis,
    other: Axis | None = None,
    *,
    name: str | None = None,
) -> TensorView:
    """Merge two leaf axes into one; see `TensorView.merge`."""
    outer = _free_position(tensor, axis)
    text = place_text(tensor.domain.leaf[outer], outer)
    if other is None and outer == tensor.ndim - 1:
        raise PrimitiveRefused(
            f"axis {text} is the last of the leaf axes {axis_names(tensor.domain)}, "
            "there is none to merge it with",
            f"name the inner axis: merge({outer}, other)",
        )
    inner = _free_position(tensor, outer + 1 if other is None else other)
    if outer == inner:
        raise PrimitiveRefused(f"axis {text} cannot be merged with itself", "name two axes")
    leaf = tensor.domain.leaf
    a, b = leaf[outer], leaf[inner]
    for position in (outer, inner):
        _require_serial(tensor, position, "merge")
    if {a.is_reduction, b.is_reduction} == {True, False} and not (a.is_broadcast or b.is_broadcast):
        raise PrimitiveRefused(
            f"axis {place_text(a, outer)} is {_article(a)} axis and axis {place_text(b, inner)} "
            f"{_article(b)} axis",
            "an iteration axis merges with iteration or broadcast axes only",
        )
    place = min(outer, inner)
    rest = [x for x in leaf if x is not a and x is not b]
    if name is not None:
        require_names((name,), 1, rest)
    merged = Merge(a, b, tensor.fusion.algebra).outputs[0]
    merged.pinned = a.pinned or b.pinned
    merged.take_name(name)
    rebind(tensor, tensor.domain.with_leaf((*rest[:place], merged, *rest[place:])))
    return tensor


def _around(
    leaf: Sequence[IterDomain], place: int
) -> tuple[Sequence[IterDomain], IterDomain, Sequence[IterDomain]]:
    """Return the axes in front of a place, the one there, and those behind."""
    return leaf[:place], leaf[place], leaf[place + 1 :]


def _article(axis: IterDomain) -> str:
    names = {"i": "an iteration", "r": "a reduction", "b": "a broadcast", "s": "a step"}
    return names[axis.kind.letter]


@primitive
def reorder(
    tensor: TensorView,
    order: Mapping[AxisKey, Axis] | Sequence[Axis] | int,
    *more: Axis,
) -> TensorView:
    """Permute the leaf axes; see `TensorView.reorder`."""
    require_computed(tensor)
    domain, count = tensor.domain, tensor.ndim
    listed = f"{tensor.name} has {count} leaf axes {axis_names(domain)}"
    moves = new_places((order, *more), count, partial(leaf_position, tensor), listed)
    leaf = tensor.domain.leaf
    places: list[IterDomain | None] = [None] * len(leaf)
    for old, new in moves.items():
        places[new] = leaf[old]
    rest = iter([axis for position, axis in enumerate(leaf) if position not in moves])
    result = tuple([axis if axis is not None else next(rest) for axis in places])
    frozen = tensor.frozen
    if result[:frozen] != leaf[:frozen]:
        raise frozen_refusal(tensor, tensor.domain, frozen)
    if result != leaf:
        rebind(tensor, tensor.domain.with_leaf(result))
    return tensor


@primitive
def parallelize(
    tensor: TensorView,
    /,
    types: Mapping[AxisKey, ParallelType] | None = None,
    **axes: ParallelType,
) -> TensorView:
    """Give leaf axes parallel types; see `TensorView.parallelize`."""
    require_computed(tensor)
    wanted = _wanted_types(tensor, types, axes)
    leaf = tensor.domain.leaf
    _require_no_tile(tensor, wanted)
    after = [wanted.get(place, axis.parallel) for place, axis in enumerate(leaf)]
    for place, parallel in enumerate(after):
        first = after.index(parallel)
        if parallel.is_thread and first < place:
            raise PrimitiveRefused(
                f"axes {place_text(leaf[first], first)} and {place_text(leaf[place], place)} of "
                f"{tensor.name} would both be "
                f"{parallel.value}",
                "one axis of a tensor may have a launch dimension",
            )
    for place, parallel in wanted.items():
        if leaf[place].is_step and parallel not in STEP_TYPES:
            raise PrimitiveRefused(
                f"axis {place_text(leaf[place], place)} of {tensor.name} is one of steps, each of "
                f"which reads the state of the one before; it cannot be {parallel.value}",
                "leave it serial, or unroll it, and share out the axes of the state",
            )
    for twin in tensor.siblings:
        for place, parallel in wanted.items():
            tensor.fusion.change(twin.domain.leaf[place], "parallel", parallel)
    return tensor


def _require_no_tile(tensor: TensorView, wanted: Mapping[int, ParallelType]) -> None:
    """Refuse types of the axes of a tile, and the type that `instruct` gives to these alone."""
    for place, parallel in wanted.items():
        axis = tensor.domain.leaf[place]
        if parallel is ParallelType.mma:
            raise PrimitiveRefused(
                f"axis {place_text(axis, place)} of {tensor.name} would be mma, as axes of tiles "
                "are",
                "instruct makes a tile of the axes of a reduction",
            )
        if tensor.instruction and axis.parallel in (ParallelType.mma, ParallelType.block_x):
            raise PrimitiveRefused(
                f"axis {place_text(axis, place)} of {tensor.name} is {axis.parallel.value}, of a "
                f"tile of {tensor.instruction}",
                "the axes of a tile stay as instruct made them",
            )


def _wanted_types(
    tensor: TensorView, types: object, axes: Mapping[str, object]
) -> dict[int, ParallelType]:
    """Return the parallel types by leaf position; an axis has one, however it is given."""
    if types is not None and not isinstance(types, Mapping):
        raise PrimitiveRefused(f"{types!r} is no mapping", "use {axis: ln.ParallelType.grid_x}")
    wanted: dict[int, ParallelType] = {}
    for axis, parallel in [*(types or {}).items(), *axes.items()]:
        if not isinstance(parallel, ParallelType):
            names = ", ".join(p.value for p in ParallelType)
            raise PrimitiveRefused(
                f"{parallel!r} is no ParallelType", f"use ln.ParallelType.{{{names}}}"
            )
        place = leaf_position(tensor, axis)
        if wanted.setdefault(place, parallel) is not parallel:
            raise PrimitiveRefused(
                f"axis {place_text(tensor.domain.leaf[place], place)} of {tensor.name} would be "
                f"{wanted[place].value} and {parallel.value}",
                "give an axis one parallel type",
            )
    return wanted


@primitive
def pin(tensor: TensorView, axis: Axis) -> TensorView:
    """Never inline past a leaf axis; see `TensorView.pin`."""
    require_computed(tensor)
    position = leaf_position(tensor, axis)
    for twin in tensor.siblings:
        tensor.fusion.change(twin.domain.leaf[position], "pinned", True)
    return tensor


@primitive
def set_memory(tensor: TensorView, memory: Memory) -> TensorView:
    """Place an intermediate in LOCAL, WARP, SHARED or GLOBAL memory.

    Raises:
        ScheduleError: an input or output, no Memory, another than SHARED for a tensor that is
            swizzled, or GLOBAL for one that is circular-buffered.
    """
    if not isinstance(memory, Memory):
        raise PrimitiveRefused(
            f"{memory!r} is no memory", "use ln.LOCAL, ln.WARP, ln.SHARED or ln.GLOBAL"
        )
    if tensor.is_input or tensor.is_output:
        role = "an input" if tensor.is_input else "an output"
        raise PrimitiveRefused(
            f"{tensor.name} is {role}, which is global",
            "set the memory of an intermediate: cache_before or cache_after makes one",
        )
    if memory is Memory.WARP and tensor.is_state:
        raise PrimitiveRefused(
            f"{tensor.name} is a state, which the next steps read",
            "use ln.LOCAL, ln.SHARED or ln.GLOBAL",
        )
    if memory is not tensor.memory:
        require_not_atomic(tensor, "memory =")
        _require_no_move(tensor)
    if memory is not Memory.SHARED:
        _require_no_shared_layout(tensor, memory)
    tensor.fusion.change(tensor, "_memory", memory)
    if memory is Memory.GLOBAL and is_several_launches(tensor.fusion):
        check_launches(tensor)
    return tensor


def _require_no_move(tensor: TensorView) -> None:
    """Refuse another memory than that to which an instruction copies."""
    if tensor.layout.move:
        raise PrimitiveRefused(
            f"{tensor.name} is moved by {tensor.layout.move}, to {tensor.memory.name} memory",
            "choose the memory before move_by",
        )


def _require_no_shared_layout(tensor: TensorView, memory: Memory) -> None:
    """Refuse what `memory` does not have: else it would be half applied, loops without buffer."""
    layout = tensor.layout
    if layout.stages > 1 and memory is Memory.GLOBAL:
        raise PrimitiveRefused(
            f"{tensor.name} has a circular buffer of {layout.stages} stages, as only a LOCAL or a "
            "SHARED tensor may",
            "choose the memory before circular_buffer",
        )
    if swizzles_of(tensor.domain.allocation or ()):
        raise PrimitiveRefused(
            f"{tensor.name} is swizzled, as only a SHARED tensor may be",
            "choose the memory before swizzle",
        )


@primitive
def new_launch(tensor: TensorView) -> TensorView:
    """Let the loops that compute `tensor` start the next launch; see `TensorView.new_launch`."""
    require_computed(tensor)
    for twin in tensor.siblings:
        tensor.fusion.change(twin, "_starts_launch", True)
    check_launches(tensor)
    return tensor


def check_launches(tensor: TensorView) -> None:
    """Refuse a fusion in which a launch would read, in its own loops, what it computes itself.

    Raises:
        PrimitiveRefused: a tensor shares loops with one in GLOBAL memory that it starts a launch
            after.
    """
    try:
        LoopForest(tensor.fusion).check()
    except Conflict as conflict:
        raise PrimitiveRefused(conflict.reason, SEPARATE) from None


def hand_over_launch(tensor: TensorView, made: Sequence[TensorView]) -> None:
    """Let new tensors that compute what `tensor` did start the launch that it started.

    Those do that read none of the others: what `tensor` read is still computed before the launch,
    and all that its value is made of in it.

    Args:
        tensor: with its new definition.
        made: the tensors that the call made; all that its old definition read, these read.
    """
    if not tensor.starts_launch:
        return
    fusion = tensor.fusion
    for new in made:
        if not any(producer in made for producer in new.producers):
            fusion.change(new, "_starts_launch", True)
    for twin in tensor.siblings:
        fusion.change(twin, "_starts_launch", False)
    check_launches(tensor)
