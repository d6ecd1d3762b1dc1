"""The primitives that change the loops of one tensor: split, merge, reorder, parallelize, pin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopnest.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ZERO, Expr, Symbol, integer, variables, whole
from loopnest.scalar.facts import size_expression
from loopnest.schedule.atomic_folds import require_not_atomic
from loopnest.schedule.launches import check_launches
from loopnest.schedule.loop_groups import is_several_launches
from loopnest.schedule.replay import mirror
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    axis_names,
    frozen_refusal,
    leaf_position,
    primitive,
    require_computed,
    require_flag,
)
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


def _free_position(tensor: TensorView, axis: object) -> int:
    """Return the position of a leaf axis that may be transformed."""
    require_computed(tensor)
    position = leaf_position(tensor, axis)
    if position < tensor.frozen:
        raise frozen_refusal(tensor, tensor.domain, tensor.frozen)
    return position


def _require_serial(tensor: TensorView, position: int, call: str) -> None:
    parallel = tensor.domain.leaf[position].parallel
    if parallel is not ParallelType.serial:
        bound = f"bound to {parallel.cuda_name}" if parallel.is_thread else f"{parallel.value}"
        raise PrimitiveRefused(f"axis {position} is {bound}", f"{call} before parallelize")


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
def split(
    tensor: TensorView, axis: int, factor: int | str | Expr, *, inner: bool = True
) -> TensorView:
    """Split a leaf axis in two; see `TensorView.split`."""
    position = _free_position(tensor, axis)
    size = factor_of(tensor, factor)
    require_flag("inner", inner)
    _require_serial(tensor, position, "split")
    leaf = tensor.domain.leaf
    step = Split(leaf[position], size, tensor.fusion.algebra, inner=inner)
    for made in step.outputs:
        made.pinned = leaf[position].pinned
    rebind(
        tensor, tensor.domain.with_leaf((*leaf[:position], *step.outputs, *leaf[position + 1 :]))
    )
    return tensor


@primitive
def merge(tensor: TensorView, axis: int, other: int | None = None) -> TensorView:
    """Merge two leaf axes into one; see `TensorView.merge`."""
    outer = _free_position(tensor, axis)
    if other is None and outer == tensor.ndim - 1:
        raise PrimitiveRefused(
            f"axis {outer} is the last of the leaf axes {axis_names(tensor.domain)}, "
            "there is none to merge it with",
            f"name the inner axis: merge({outer}, other)",
        )
    inner = _free_position(tensor, outer + 1 if other is None else other)
    if outer == inner:
        raise PrimitiveRefused(f"axis {outer} cannot be merged with itself", "name two axes")
    leaf = tensor.domain.leaf
    a, b = leaf[outer], leaf[inner]
    for position in (outer, inner):
        _require_serial(tensor, position, "merge")
    if {a.is_reduction, b.is_reduction} == {True, False} and not (a.is_broadcast or b.is_broadcast):
        raise PrimitiveRefused(
            f"axis {outer} is {_article(a)} axis and axis {inner} {_article(b)} axis",
            "an iteration axis merges with iteration or broadcast axes only",
        )
    place = min(outer, inner)
    rest = [x for x in leaf if x is not a and x is not b]
    merged = Merge(a, b, tensor.fusion.algebra).outputs[0]
    merged.pinned = a.pinned or b.pinned
    rebind(tensor, tensor.domain.with_leaf((*rest[:place], merged, *rest[place:])))
    return tensor


def _article(axis: IterDomain) -> str:
    return {"i": "an iteration", "r": "a reduction", "b": "a broadcast"}[axis.kind.letter]


@primitive
def reorder(tensor: TensorView, order: Mapping[int, int] | Sequence[int]) -> TensorView:
    """Permute the leaf axes; see `TensorView.reorder`."""
    require_computed(tensor)
    moves = _moves(tensor, order)
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


def _moves(tensor: TensorView, order: object) -> dict[int, int]:
    if isinstance(order, Mapping):
        pairs = [(old, new) for old, new in order.items()]
    elif isinstance(order, Sequence) and not isinstance(order, str):
        if len(order) != tensor.ndim:
            raise PrimitiveRefused(
                f"the permutation {list(order)!r} names {len(order)} axes",
                f"{tensor.name} has {tensor.ndim} leaf axes {axis_names(tensor.domain)}",
            )
        pairs = [(old, new) for new, old in enumerate(order)]
    else:
        raise PrimitiveRefused(f"{order!r} is no order", "use {old: new} or a permutation")
    moves = {leaf_position(tensor, old): leaf_position(tensor, new) for old, new in pairs}
    if len(moves) != len(pairs) or len(set(moves.values())) != len(pairs):
        raise PrimitiveRefused(f"{order!r} names an axis or a place twice", "each may stand once")
    return moves


@primitive
def parallelize(tensor: TensorView, types: Mapping[int, ParallelType]) -> TensorView:
    """Give leaf axes parallel types; see `TensorView.parallelize`."""
    require_computed(tensor)
    if not isinstance(types, Mapping):
        raise PrimitiveRefused(f"{types!r} is no mapping", "use {axis: ln.ParallelType.grid_x}")
    wanted: dict[int, ParallelType] = {}
    for axis, parallel in types.items():
        if not isinstance(parallel, ParallelType):
            names = ", ".join(p.value for p in ParallelType)
            raise PrimitiveRefused(
                f"{parallel!r} is no ParallelType", f"use ln.ParallelType.{{{names}}}"
            )
        wanted[leaf_position(tensor, axis)] = parallel
    leaf = tensor.domain.leaf
    after = [wanted.get(place, axis.parallel) for place, axis in enumerate(leaf)]
    for place, parallel in enumerate(after):
        if parallel.is_thread and parallel in after[:place]:
            raise PrimitiveRefused(
                f"axes {after.index(parallel)} and {place} of {tensor.name} would both be "
                f"{parallel.value}",
                "one axis of a tensor may have a launch dimension",
            )
    for twin in tensor.siblings:
        for place, parallel in wanted.items():
            tensor.fusion.change(twin.domain.leaf[place], "parallel", parallel)
    return tensor


@primitive
def pin(tensor: TensorView, axis: int) -> TensorView:
    """Never inline past a leaf axis; see `TensorView.pin`."""
    require_computed(tensor)
    position = leaf_position(tensor, axis)
    for twin in tensor.siblings:
        tensor.fusion.change(twin.domain.leaf[position], "pinned", True)
    return tensor


@primitive
def set_memory(tensor: TensorView, memory: Memory) -> TensorView:
    """Place an intermediate in LOCAL, SHARED or GLOBAL memory.

    Raises:
        ScheduleError: an input or output, no Memory, another than SHARED for a tensor that is
            swizzled, or GLOBAL for one that is circular-buffered.
    """
    if not isinstance(memory, Memory):
        raise PrimitiveRefused(f"{memory!r} is no memory", "use ln.LOCAL, ln.SHARED or ln.GLOBAL")
    if tensor.is_input or tensor.is_output:
        role = "an input" if tensor.is_input else "an output"
        raise PrimitiveRefused(
            f"{tensor.name} is {role}, which is global",
            "set the memory of an intermediate: cache_before or cache_after makes one",
        )
    if memory is not tensor.memory:
        require_not_atomic(tensor, "memory =")
    if memory is not Memory.SHARED:
        _require_no_shared_layout(tensor, memory)
    tensor.fusion.change(tensor, "_memory", memory)
    if memory is Memory.GLOBAL and is_several_launches(tensor.fusion):
        check_launches(tensor)
    return tensor


def _require_no_shared_layout(tensor: TensorView, memory: Memory) -> None:
    """Refuse what `memory` does not have: else it would be half applied, loops without buffer."""
    layout = tensor.layout
    if layout.stages > 1 and memory is Memory.GLOBAL:
        raise PrimitiveRefused(
            f"{tensor.name} has a circular buffer of {layout.stages} stages, as only a LOCAL or a "
            "SHARED tensor may",
            "choose the memory before circular_buffer",
        )
    if layout.move:
        raise PrimitiveRefused(
            f"{tensor.name} is moved by {layout.move}, to SHARED memory",
            "choose the memory before move_by",
        )
    if swizzles_of(tensor.domain.allocation or ()):
        raise PrimitiveRefused(
            f"{tensor.name} is swizzled, as only a SHARED tensor may be",
            "choose the memory before swizzle",
        )
