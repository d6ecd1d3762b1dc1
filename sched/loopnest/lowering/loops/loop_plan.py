"""Pass "groups": which axes share a loop, what it runs over, and how it runs.

Requires a fusion. Ensures one `LoopSpec` a group, one parallel type a loop, a `Promotion` for every
tensor, and an ordered tree of loops and tensors. It comes first because every later pass speaks of
loops, not of axes.

Before: T1 ``[i0, i1]`` computed at position 1 of T2 ``[i0, i1]``; after::

    loop T2.i0 shared by T1, T2
      loop T1.i1: T1
      loop T2.i1: T2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product, takewhile

from loopnest.base.errors import LoweringError
from loopnest.base.fast_init import fast_init
from loopnest.kir.instruction_table import gives_lanes
from loopnest.lowering.loops.promotion import Promoter, Promotion
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, ParallelType
from loopnest.scalar.expr import ONE, ZERO, Const, Expr
from loopnest.scalar.facts import Facts
from loopnest.scalar.origin import Origin
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.fold_order import carries, folded_axes, keeps_order
from loopnest.schedule.instructed_tiles import has_lanes, tile_axis, tile_tensors
from loopnest.schedule.loop_forest import Conflict, LoopBody, LoopForest, LoopGroup
from loopnest.schedule.transaction import PrimitiveRefused
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import TensorView


@dataclass(frozen=True, slots=True)
class TileSpec:
    """What a tile executes: an instruction, and by role the tensors that it computes with."""

    instruction: str
    operands: tuple[tuple[str, str], ...]


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class LoopSpec:
    """One loop: the axis that it runs over, its extent, its parallel type, who shares it.

    `tile` is of the loop over the lanes of an instruction.
    """

    node: IterDomain | None
    extent: Expr
    parallel: ParallelType
    axis: str
    tensors: tuple[str, ...]
    origin: Origin | None
    tile: TileSpec | None = None


@dataclass(frozen=True, eq=False, slots=True)
class LoopPlan:
    """The fusion's loops: what the passes after this one read.

    `order` is the tree of loops and first outputs of definitions in order of execution, `launch`
    the largest extent that any nest needs of each launch dimension, and `crossed` the launch
    dimensions that the reductions of a definition run over, by its first output: those of the grid,
    then those of a block, of each the one along which neighbours are combined first.
    """

    fusion: Fusion
    algebra: Simplifier
    forest: LoopForest
    specs: dict[LoopGroup, LoopSpec]
    promotions: dict[TensorView, Promotion]
    promoter: Promoter
    order: LoopBody
    launch: dict[ParallelType, Expr]
    crossed: dict[TensorView, tuple[ParallelType, ...]]

    def spec(self, axis: IterDomain) -> LoopSpec:
        """Return the loop of a leaf axis."""
        return self.specs[self.forest.find(axis)]

    def text(self) -> str:
        """Return the loop groups and the order, for the stage dump."""
        return "\n".join(["# loop groups", *self._order_lines()]) + "\n"

    def _order_lines(self) -> Iterator[str]:
        parts = self.order.parts()
        for number, body in enumerate(parts):
            if len(parts) > 1:
                yield f"launch {number}"
            yield from self._lines(body, 0 if len(parts) == 1 else 1)

    def _lines(self, body: LoopBody, depth: int) -> Iterator[str]:
        for item in body.order:
            if isinstance(item, TensorView):
                yield "  " * depth + ", ".join(t.name for t in item.siblings)
            else:
                assert item.group is not None
                spec = self.specs[item.group]
                shared = " shared by " + ", ".join(spec.tensors) if len(spec.tensors) > 1 else ""
                how = "" if spec.parallel is ParallelType.serial else f" {spec.parallel.value}"
                yield "  " * depth + f"loop {spec.axis} in {spec.extent}{how}{shared}"
                yield from self._lines(item, depth + 1)


def group_loops(fusion: Fusion, facts: Facts, like: LoopPlan | None = None) -> LoopPlan:
    """Return the loops of `fusion`, given what is known of its sizes.

    Which axes share a loop, and in which order, does not depend on that: `like` is a plan that has
    found it.

    Raises:
        LoweringError: the positions have no order, or a loop would have two parallel types.
    """
    algebra = Simplifier(facts)
    try:
        forest = LoopForest(fusion) if like is None else like.forest
        order = forest.order() if like is None else like.order
    except Conflict as conflict:
        raise LoweringError(fusion.name, conflict.reason, "change a compute-at position") from None
    promoter = Promoter(forest, algebra)
    promoter.run()
    axes: dict[LoopGroup, list[tuple[TensorView, int]]] = {}
    for unit in forest.units:
        for twin in unit.siblings:
            for place, axis in enumerate(twin.domain.leaf):
                axes.setdefault(forest.find(axis), []).append((twin, place))
    specs = {group: _spec(m, promoter.promotions, algebra) for group, m in axes.items()}
    _mark_tiles(forest, specs)
    crossed = {unit: _crossed(unit, forest, specs) for unit in forest.units}
    launch = algebra.launch = launch_extents(specs.values(), algebra)
    return LoopPlan(
        fusion, algebra, forest, specs, promoter.promotions, promoter, order, launch, crossed
    )


def _mark_tiles(forest: LoopForest, specs: dict[LoopGroup, LoopSpec]) -> None:
    """Let the outermost loops of tiles know what they execute."""
    for unit in forest.units:
        name = unit.instruction or unit.layout.move
        if not name or (unit.layout.move and not (gives_lanes(name) and has_lanes(unit))):
            continue
        try:
            operands = tuple([(role, tensor.name) for role, tensor in tile_tensors(unit)])
        except PrimitiveRefused as refused:  # a call after instruct changed an operand
            raise LoweringError(unit.name, refused.reason, refused.hint) from None
        group = forest.find(unit.domain.leaf[tile_axis(unit)])
        specs[group] = replace(specs[group], tile=TileSpec(name, operands))


def is_reduced(unit: TensorView) -> bool:
    """Whether `unit` accumulates: a reduction over more than one element (rule 29).

    One that was factored does in any case: its result has points that no element is reduced to. So
    does an atomic one, into whose memory its initial values were stored.
    """
    definition, domain = unit.definition, unit.domain
    if definition is None or definition.reducer is None:
        return False
    factored = domain.rfactor != domain.root or is_atomic(unit)
    return any(axis.is_reduction and (factored or axis.size is not ONE) for axis in domain.root)


def is_atomic(unit: TensorView) -> bool:
    """Whether all threads fold into the memory of `unit`, by atomic operations."""
    return unit.definition is not None and unit.definition.start is not None


def loops_with_start(plan: LoopPlan, unit: TensorView) -> tuple[LoopGroup, ...]:
    """Return the loops that an atomic fold shares with its initial values, outermost first."""
    assert unit.definition is not None
    fill = unit.definition.starts_from
    assert fill is not None
    both = zip(plan.forest.path(unit), plan.forest.path(fill.siblings[0]), strict=False)
    return tuple([a for a, _ in takewhile(lambda pair: pair[0] is pair[1], both)])


def _crossed(
    unit: TensorView, forest: LoopForest, specs: dict[LoopGroup, LoopSpec]
) -> tuple[ParallelType, ...]:
    """Return the launch dimensions that a definition reduces over: see `LoopPlan`."""
    if not is_reduced(unit) or is_atomic(unit):
        return ()
    reduced = [specs[forest.find(a)] for a in unit.domain.leaf if a.is_reduction]
    found = {s.parallel for s in reduced if s.parallel.is_thread and not _takes_one(s)}
    dims = tuple([d for d in LAUNCH_DIMENSIONS if d in found])
    if len(dims) < 2 or unit.definition is None or not is_ordered(unit):
        return dims
    # Any order of dimensions will do, if it is that of the elements.
    grid, block = [d for d in dims if d.is_grid], [d for d in dims if d.is_block]
    orders = [(*a, *b) for a, b in product(permutations(grid), permutations(block))]
    return next((o for o in orders if keeps_order(combined(unit, forest, specs, o), unit.domain)),
                dims)  # fmt: skip


def is_ordered(unit: TensorView) -> bool:
    """Whether `unit` folds by a reducer that need not commute."""
    definition = unit.definition
    return definition is not None and definition.reducer is not None and definition.reducer.ordered


def combined(
    unit: TensorView,
    forest: LoopForest,
    specs: Mapping[LoopGroup, LoopSpec],
    crossed: Sequence[ParallelType],
) -> list[IterDomain]:
    """Return the axes that `unit` reduces, in the order in which their elements are combined.

    A thread folds its own along the serial loops, then threads of a block combine what they hold,
    then blocks.
    """
    path = forest.path(unit)
    axes = [a for a in unit.domain.leaf if a.is_reduction]
    serial = sorted(
        [a for a in axes if specs[forest.find(a)].parallel not in crossed],
        key=lambda a: path.index(forest.find(a)),
    )
    order = [
        *[d for d in reversed(crossed) if d.is_grid],
        *[d for d in reversed(crossed) if d.is_block],
    ]
    bound = [a for d in order for a in axes if specs[forest.find(a)].parallel is d]
    return [*bound, *serial]


def scanned_over(plan: LoopPlan, unit: TensorView) -> tuple[ParallelType, ...]:
    """Return the dimensions of a block that a scan goes along, in the order of a launch."""
    if not carries(unit):
        return ()
    specs = [plan.spec(axis) for axis in folded_axes(unit)]
    found = {s.parallel for s in specs if s.parallel.is_block and not _takes_one(s)}
    return tuple([d for d in LAUNCH_DIMENSIONS if d in found])


def keeps_carry(plan: LoopPlan, unit: TensorView) -> bool:
    """Whether a thread needs what a scan folded in earlier iterations of a loop."""
    if not scanned_over(plan, unit):
        return True
    items = item_axes(plan, unit)
    return any(_goes_on(plan.spec(axis)) for axis in folded_axes(unit) if axis not in items)


def item_axes(plan: LoopPlan, unit: TensorView) -> tuple[IterDomain, ...]:
    """Return the axes along which each thread of a scan over threads goes through items alone.

    They are those inside of the loops that are bound to threads, the outermost first.
    """
    dims = scanned_over(plan, unit)
    axes = folded_axes(unit) if dims else ()
    bound = [n for n, axis in enumerate(axes) if plan.spec(axis).parallel in dims]
    return tuple([a for a in axes[max(bound) :] if _goes_on(plan.spec(a))]) if bound else ()


def refolded(plan: LoopPlan, unit: TensorView) -> tuple[TensorView, ...]:
    """Return what is computed twice for a scan over threads whose threads have several items.

    It is what the scan depends on in the loop over them: once to fold a thread's items, and once
    more for each of its elements.
    """
    group = plan.forest.find(item_axes(plan, unit)[0])
    found: dict[TensorView, None] = {}
    waiting = [unit]
    while waiting:
        definition = waiting.pop().definition
        for producer in definition.producers if definition is not None else ():
            source = producer.siblings[0]
            computed = source in plan.forest.position and source not in found
            if computed and group in plan.forest.path(source):
                found[source] = None
                waiting.append(source)
    return tuple(found)


def _goes_on(spec: LoopSpec) -> bool:
    """Whether a thread goes through several iterations of the loop."""
    return not spec.parallel.is_thread and not is_trivial(spec)


def launch_extents(specs: Iterable[LoopSpec], algebra: Simplifier) -> dict[ParallelType, Expr]:
    """Return the largest extent that any nest needs of each launch dimension.

    A loop over nothing needs no thread, and leaves one to all that stands outside of it.
    """
    extents: dict[ParallelType, Expr] = {}
    for spec in specs:
        if spec.parallel.is_thread and not is_trivial(spec):
            have, need = extents.get(spec.parallel), ONE if spec.extent is ZERO else spec.extent
            extents[spec.parallel] = need if have is None else algebra.max(have, need)
    return {d: extents[d] for d in LAUNCH_DIMENSIONS if d in extents}


def _spec(
    members: list[tuple[TensorView, int]],
    promotions: dict[TensorView, Promotion],
    algebra: Simplifier,
) -> LoopSpec:
    node, extent = _common_axis(members, promotions, algebra)
    parallel = ParallelType.serial
    holder = ""
    for tensor, place in members:
        found = tensor.domain.leaf[place].parallel
        if found is ParallelType.serial or found is parallel:
            continue
        if parallel is not ParallelType.serial:
            raise LoweringError(
                f"the loop of {holder} and {tensor.name}.{_label(tensor, place)}",
                f"it is {parallel.value} for the one and {found.value} for the other",
                "axes that share a loop share one parallel type",
            )
        parallel, holder = found, f"{tensor.name}.{_label(tensor, place)}"
    tensor, place = next(
        ((t, p) for t, p in reversed(members) if t.domain.leaf[p] is node), members[-1]
    )
    if not tensor.domain.leaf[place].is_named:
        named = ((t, p) for t, p in reversed(members) if t.domain.leaf[p].is_named)
        tensor, place = next(named, (tensor, place))
    return LoopSpec(
        node,
        extent,
        parallel,
        f"{tensor.name}.{_label(tensor, place)}",
        tuple(dict.fromkeys(t.name for t, _ in members)),
        tensor.domain.leaf[place].origin or tensor.origin,
    )


def _common_axis(
    members: list[tuple[TensorView, int]],
    promotions: dict[TensorView, Promotion],
    algebra: Simplifier,
) -> tuple[IterDomain, Expr]:
    """Return the axis that all members of a loop run over, and its extent."""
    first, place = members[-1]
    node = promotions[first].leaf[place]
    extent = algebra.simplify(node.size)
    for tensor, position in members:
        other = promotions[tensor].leaf[position]
        if other is not node and not algebra.equal(algebra.simplify(other.size), extent):
            raise LoweringError(
                f"the loop of {first.name}.{_label(first, place)} and "
                f"{tensor.name}.{_label(tensor, position)}",
                f"it would have the extents {extent} and {other.size}",
                "compute the two tensors in separate loops",
            )
    return node, extent


def _label(tensor: TensorView, place: int) -> str:
    return tensor.domain.loop_label(place)


def _takes_one(spec: LoopSpec) -> bool:
    """Whether the loop takes no more than one thread; each reduces alone there."""
    return spec.extent is ZERO or is_trivial(spec)


def is_trivial(spec: LoopSpec) -> bool:
    """Whether the loop runs just once."""
    return isinstance(spec.extent, Const) and spec.extent is ONE
