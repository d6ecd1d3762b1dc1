"""rfactor: factor a reduction into a partial one and a final one.

Of a scan it makes the scan of each segment, and a scan of what the segments fold to. Before
``y [i0, i1: D / 4, i2: 4]``, a scan along D; ``p = y.rfactor(2)`` gives p, which scans each
four elements by themselves, so that its loop over D / 4 may be bound to threads; the totals
``t [i0, D / 4]`` of the segments; ``c``, their exclusive scan; and y, which combines c and p. A
total is the last element of its segment's scan; with `refold` it folds the elements of the segment
again, ``t [i0, D / 4, r2: 4]``. Nothing but y then reads p, so that p may be computed in the loops
of y: the elements are read twice, and p is no array.

Source: Blelloch, "Prefix sums and their applications", 1990, section 1.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from loopnest.scalar.conditions import normal_le
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, Arg, Coordinate, Expr, Op, integer, substitute
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.caching import carry_allocation, clone_domain, new_tensor
from loopnest.schedule.fold_order import folded_by_segment, keeps_order, steps_along
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    axis_names,
    leaf_position,
    named_in_errors,
    place_text,
    primitive,
    require_computed,
    require_not_atomic,
    require_not_instructed,
)
from loopnest.schedule.transforms import hand_over_launch
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.domain import IterDomain, Split, TensorDomain, Transform, ancestors
from loopnest.tensor.intents import take_back
from loopnest.tensor.tensor_view import Definition, Read, Scan, TensorView, TracedReducer


@primitive
@named_in_errors("refold")
def rfactor(tensor: TensorView, axes: Axis | Sequence[Axis], refold: bool = False) -> TensorView:
    """Factor `axes` of a reduction out into a new producer.

    Before ``y [i0, r1: D / 4, r2: 4]``; ``p = y.rfactor(1)`` gives ``p [i0, r1: D / 4, i2: 4]``
    and ``y [i0, r1: 4]``, which reduces p. Of a scan, p scans each segment by itself; the totals of
    the segments and their exclusive scan are made too, and y combines p with the latter: they are
    ``y.producers``.

    Args:
        tensor: a reduction or a scan.
        axes: reduction leaf axes that the new tensor reduces; at least one other must stay. All
            outputs of a multi-output reduction are factored alike. Of a scan, the innermost of the
            axes that its axis was split to.
        refold: of a scan: whether the totals fold the elements again, in place of reading the last
            one of each segment's scan, which may then be computed in the loops of `tensor`.

    Returns:
        The new producer (of a 16-bit tensor in float32: partial results are not rounded). Where
        `tensor` started a launch, this one does now, and `tensor` is computed in that launch.

    Raises:
        ScheduleError: no reduction, an axis that is none, all of them, or a frozen prefix.

    Source: nvFuser TensorView::rFactor; Suriana et al., "Parallel Associative Reductions in
    Halide", CGO 2017.
    """
    require_computed(tensor)
    require_not_atomic(tensor, "rfactor")
    require_not_instructed(tensor, "rfactor")
    places = _places(tensor, axes)
    definition = tensor.definition
    assert definition is not None
    assert definition.reducer is not None
    known = len(tensor.fusion.tensors)
    if definition.scan is not None:
        segments = factor_scan(tensor, places, refold)
        hand_over_launch(tensor, tensor.fusion.tensors[known:])
        return segments[definition.outputs.index(tensor)]
    if refold:
        raise PrimitiveRefused(
            f"refold is asked for, and {tensor.name} is no scan",
            "a reduction has no totals of segments; leave refold out",
        )
    if definition.reducer.ordered:
        _require_order(tensor, definition.reducer, places)
    partials = tuple([_partial(twin, places) for twin in tensor.siblings])
    moved = definition.with_outputs(partials)
    for partial in partials:
        partial.define(moved)
    for twin, partial in zip(definition.outputs, partials, strict=True):
        reduced = [twin.domain.leaf[place] for place in places]
        before = twin.domain
        rest = _rest(before, partial.domain, reduced, tensor.fusion.algebra)
        if definition.reducer.ordered and _reductions(rest.root) != _reductions(rest.rfactor):
            raise _out_of_order(tensor, definition.reducer)
        twin.bind(rest)
        carry_allocation(twin, before)
    final = _final(definition, partials)
    for twin in definition.outputs:
        twin.define(final)
    hand_over_launch(tensor, partials)
    return partials[definition.outputs.index(tensor)]


def _places(tensor: TensorView, axes: object) -> tuple[int, ...]:
    names = axis_names(tensor.domain)
    if tensor.definition is None or tensor.definition.reducer is None:
        raise PrimitiveRefused(f"{tensor.name} is no reduction", "rfactor factors a reduction")
    if tensor.frozen:
        raise PrimitiveRefused(
            f"the leading {tensor.frozen} loops of {tensor.name} are shared already",
            f"call rfactor before compute_at: {take_back(tensor)}",
        )
    several = isinstance(axes, Sequence) and not isinstance(axes, str)
    chosen = list(axes) if isinstance(axes, Sequence) and several else [axes]
    places = sorted([leaf_position(tensor, axis) for axis in chosen])
    if not places:
        raise PrimitiveRefused("no axis is named", f"the leaf axes are {names}")
    for place, after in pairwise(places):
        if place == after:
            text = place_text(tensor.domain.leaf[place], place)
            raise PrimitiveRefused(
                f"axis {text} of {tensor.name} is named twice", "name each reduction axis once"
            )
    if tensor.definition.scan is not None:
        return tuple(places)  # `factor_scan` asks for more
    for place in places:
        axis = tensor.domain.leaf[place]
        if not axis.is_reduction:
            raise PrimitiveRefused(
                f"axis {place_text(axis, place)} is no reduction axis",
                f"{tensor.name} has the leaf axes {names}",
            )
    rest = [a for n, a in enumerate(tensor.domain.leaf) if a.is_reduction and n not in places]
    if not rest:
        raise PrimitiveRefused(
            f"all reduction axes of {tensor.name} are named, so nothing is left to reduce",
            f"leave one of the reduction axes of {names} to {tensor.name}; split first",
        )
    above = ancestors([tensor.domain.leaf[place] for place in places], tensor.domain)
    if any(axis in above and not axis.is_reduction for axis in tensor.domain.rfactor):
        raise PrimitiveRefused(
            f"one of the axes was made by merging a broadcast axis of {tensor.name} with a "
            "reduction axis",
            "call rfactor before that merge: the result keeps the broadcast axis",
        )
    return tuple(places)


def _require_order(tensor: TensorView, reducer: TracedReducer, places: Sequence[int]) -> None:
    """Refuse to factor out what does not leave neighbours together.

    Raises:
        PrimitiveRefused: the new tensor would reduce elements that others lie between.
    """
    domain = tensor.domain
    reduced = [domain.leaf[place] for place in places]
    frontier = _frontier(domain, ancestors(reduced, domain))
    rest = [axis for axis in _reductions(frontier) if axis not in reduced]
    inner = [axis for axis in frontier if axis in reduced]
    if not keeps_order([*rest, *inner], domain):
        raise _out_of_order(tensor, reducer)


def _out_of_order(tensor: TensorView, reducer: TracedReducer) -> PrimitiveRefused:
    return PrimitiveRefused(
        f"{reducer.name} combines neighbours only (it need not commute), and between those that "
        "the new tensor would reduce there are others",
        f"factor out the innermost of the reduction axes of {axis_names(tensor.domain)}",
    )


def _reductions(axes: Sequence[IterDomain]) -> list[IterDomain]:
    return [axis for axis in axes if axis.is_reduction]


def _partial(tensor: TensorView, places: Sequence[int]) -> TensorView:
    """Return the producer that reduces the leaf axes `places`, without its definition."""
    domain, _ = clone_domain(tensor.domain, tensor.fusion.algebra)
    reduced = {domain.leaf[place] for place in places}
    above = ancestors(reduced, domain)
    for axis in _all_axes(domain):
        if axis.is_reduction and axis not in above:
            axis.kind = IterKind.ITERATION
    shaped = TensorDomain(domain.root, tuple(_frontier(domain, above)), domain.leaf)
    return new_tensor(tensor, shaped, tensor.dtype.compute)


def _all_axes(domain: TensorDomain) -> list[IterDomain]:
    return [*domain.root, *(axis for step in domain.history for axis in step.outputs)]


def _frontier(domain: TensorDomain, above: set[IterDomain]) -> list[IterDomain]:
    """Return the axes, from the rfactor domain down, that no reduced axis was made from."""
    axes = list(domain.rfactor)
    for step in domain.history:
        if above.isdisjoint(step.outputs) or not set(axes).issuperset(step.inputs):
            continue
        first = min(axes.index(axis) for axis in step.inputs)
        axes[first : first + 1] = [*step.outputs, axes[first]]
        axes = [axis for axis in axes if axis not in step.inputs]
    return axes


def _rest(
    old: TensorDomain,
    partial: TensorDomain,
    reduced: Sequence[IterDomain],
    algebra: Simplifier,
) -> TensorDomain:
    """Return the domain of the final reduction over the logical axes of `partial`."""
    above = ancestors(reduced, old)
    frontier = [a for a in _frontier(old, above) if a not in reduced]
    image: dict[IterDomain, IterDomain] = {}
    for mine, theirs in zip(frontier, partial.logical, strict=True):
        image[mine] = IterDomain(theirs.size, mine.kind)
        image[mine].parallel, image[mine].pinned = mine.parallel, mine.pinned
    root = tuple([image[axis] for axis in frontier])
    for step in old.history:
        if all(axis in image for axis in step.inputs) and step.outputs[0] not in image:
            _copy_step(step, image, algebra)
    rfactor = tuple([image[axis] for axis in old.rfactor if axis in image])
    extra = [a for a in root if a.is_reduction and a not in rfactor]
    whole = _ordered(root, rfactor, extra)
    return TensorDomain(root, whole, tuple([image[a] for a in old.leaf if a in image]))


def _ordered(
    root: tuple[IterDomain, ...], rfactor: tuple[IterDomain, ...], extra: list[IterDomain]
) -> tuple[IterDomain, ...]:
    if not extra or set(root) == {*rfactor, *extra}:
        return root if extra or rfactor == root else rfactor
    return (*rfactor, *extra)


def _copy_step(step: Transform, image: dict[IterDomain, IterDomain], algebra: Simplifier) -> None:
    copy = step.replay_named([image[axis] for axis in step.inputs], algebra)
    for mine, theirs in zip(step.outputs, copy.outputs, strict=True):
        theirs.kind, theirs.size = mine.kind, mine.size
        theirs.parallel, theirs.pinned, theirs.origin = mine.parallel, mine.pinned, mine.origin
        image[mine] = theirs


def _final(definition: Definition, partials: Sequence[TensorView]) -> Definition:
    axes = tuple(range(len(partials[0].domain.logical)))
    return Definition(
        definition.op,
        tuple(partials),
        tuple([Read.along(partial, axes) for partial in partials]),
        definition.outputs,
        tuple([Arg(n, partial.dtype) for n, partial in enumerate(partials)]),
        definition.reducer,
        "final",
    )


def factor_scan(tensor: TensorView, places: Sequence[int], refold: bool) -> tuple[TensorView, ...]:
    """Factor the leaf axes `places` of a scan out; return the scans of segments, one an output.

    Args:
        tensor: the scan.
        places: of leaf axes.
        refold: whether the totals fold the elements again.

    Raises:
        PrimitiveRefused: they are not what is innermost of its axis.
    """
    definition = tensor.definition
    assert definition is not None
    assert definition.scan is not None
    segment = _segment(tensor, definition.scan, places)
    scan = Scan(definition.scan.axis, definition.scan.exclusive, segment)
    partials = tuple([
        new_tensor(t, clone_domain(t.domain, t.fusion.algebra)[0], t.dtype.compute)
        for t in definition.outputs
    ])  # fmt: skip
    moved = Definition(
        definition.op, definition.operands, definition.reads, partials, definition.values,
        definition.reducer, f"{definition.note}, segment={segment}", scan,
    )  # fmt: skip
    for partial in partials:
        partial.define(moved)
    totals = (_refolded if refold else _totals)(definition, partials, scan)
    carried = _carried(definition, totals, scan)
    _final_scan(definition, partials, carried, scan)
    return partials


def _segment(tensor: TensorView, scan: Scan, places: Sequence[int]) -> int:
    """Return how many elements the axes `places` go through."""
    domain = tensor.domain
    named = [domain.leaf[place] for place in places]
    steps = steps_along(domain.root[scan.axis], domain)
    mine = folded_by_segment(domain.root[scan.axis], domain, scan.segment)
    names = axis_names(domain)
    for place, leaf in zip(places, named, strict=True):
        if leaf not in mine:
            raise PrimitiveRefused(
                f"axis {place_text(leaf, place)} is none that {tensor.name} goes along",
                f"{tensor.name} has the leaf axes {names}; name what its scan axis was split to",
            )
    rest = [steps[leaf] for leaf in mine if leaf not in named]
    known = [step for step in rest if step is not None]
    inside = [steps[leaf] for leaf in named]
    if not rest:
        raise PrimitiveRefused(
            f"all axes that {tensor.name} goes along are named, so that nothing is left to scan",
            f"leave the outer one of {names}; split first",
        )
    segment = min(known, default=0)
    whole = scan.segment is None or not scan.segment % max(segment, 1)
    apart = [step for leaf, step in steps.items() if leaf not in mine and leaf.size is not ONE]
    known += [step for step in apart if step is not None]
    inner = all(step is not None and step < segment for step in inside)
    several = len(known) == len(rest) + len(apart) and not any(s % segment for s in known)
    if not (several and inner and whole):
        raise PrimitiveRefused(
            f"the named axes are not the innermost of those that {tensor.name} goes along",
            f"split its axis by an int, and name the inner ones of {names}",
        )
    return segment


def _segment_axes(tensor: TensorView, scan: Scan) -> TensorDomain:
    """Return the domain of one element a segment."""
    algebra = tensor.fusion.algebra
    axes = [IterDomain(axis.size, axis.kind) for axis in tensor.domain.root]
    assert scan.segment is not None
    count = algebra.ceildiv(axes[scan.axis].size, integer(scan.segment))
    axes[scan.axis] = IterDomain(count, axes[scan.axis].kind)
    return TensorDomain.of_root(axes)


def _totals(
    definition: Definition, partials: Sequence[TensorView], scan: Scan
) -> tuple[TensorView, ...]:
    """Define what each segment folds to: its last element, if the axis does not end before."""
    reducer, segment = definition.reducer, scan.segment
    assert reducer is not None
    assert segment is not None
    one = partials[0]
    algebra, size = one.fusion.algebra, one.domain.root[scan.axis].size
    start = algebra.mul(Coordinate(scan.axis), integer(segment))
    last = algebra.add(start, integer(segment - 1))
    at: dict[Expr, Expr] = {Coordinate(scan.axis): last}
    own = tuple([last if n == scan.axis else Coordinate(n) for n in range(len(one.domain.root))])
    reads = [Read(partial, own) for partial in partials]
    held: tuple[Expr, ...] = tuple([Arg(n, p.dtype) for n, p in enumerate(partials)])
    if scan.exclusive:
        moved: dict[Expr, Expr] = dict(at)
        for number, read in enumerate(definition.reads):
            moved[Arg(number, read.producer.dtype)] = Arg(len(reads), read.producer.dtype)
            reads.append(
                Read(
                    read.producer,
                    tuple([algebra.simplify(substitute(i, at)) for i in read.indices]),
                )
            )
        element = tuple([substitute(value, moved) for value in definition.values])
        held = reducer.combine(held, element)
    # The last segment may end early. Its total is never used (no segment stands behind it), so that
    # it may be the identity.
    inside = normal_le(algebra.add(last, integer(1)), size, algebra)
    values = tuple(
        [
            Op("where", (inside, value, neutral), value.dtype)
            for value, neutral in zip(held, reducer.identity, strict=True)
        ]
    )
    return _defined(definition.op, partials, _segment_axes(one, scan), reads, values, "totals")


def _refolded(
    definition: Definition, partials: Sequence[TensorView], scan: Scan
) -> tuple[TensorView, ...]:
    """Define what each segment folds to by a fold of its elements."""
    reducer, segment = definition.reducer, scan.segment
    assert reducer is not None
    assert segment is not None
    one = partials[0]
    algebra, size = one.fusion.algebra, one.domain.root[scan.axis].size
    rank = len(one.domain.root)
    start = algebra.mul(Coordinate(scan.axis), integer(segment))
    moved: dict[Expr, Expr] = {Coordinate(scan.axis): algebra.add(start, Coordinate(rank))}
    reads = [
        Read(r.producer, tuple([algebra.simplify(substitute(i, moved)) for i in r.indices]))
        for r in definition.reads
    ]
    # As in `_totals`: of a segment that ends early the total is never used.
    end = algebra.add(start, integer(segment))
    inside = normal_le(end, size, algebra)
    values = tuple(
        [
            Op("where", (inside, substitute(value, moved), neutral), value.dtype)
            for value, neutral in zip(definition.values, reducer.identity, strict=True)
        ]
    )
    domains = []
    for _ in partials:
        axes = [*_segment_axes(one, scan).root, IterDomain(integer(segment), IterKind.REDUCTION)]
        domains.append(TensorDomain.of_root(axes))
    made = tuple([new_tensor(t, d, t.dtype) for t, d in zip(partials, domains, strict=True)])
    shown = tuple(dict.fromkeys([read.producer for read in reads]))
    found = Definition(definition.op, shown, tuple(reads), made, values, reducer, "totals")
    for tensor in made:
        tensor.define(found)
    return made


def _carried(
    definition: Definition, totals: Sequence[TensorView], scan: Scan
) -> tuple[TensorView, ...]:
    """Define what all segments in front of each fold to."""
    one = totals[0]
    own = definition.scan
    assert own is not None
    assert scan.segment is not None
    segment = None if own.segment is None else own.segment // scan.segment
    axes = tuple(range(len(one.domain.logical)))
    domains = [_in_segments(total, scan.axis, segment) for total in totals]
    made = tuple([new_tensor(t, d, t.dtype) for t, d in zip(totals, domains, strict=True)])
    note = f"axis={scan.axis}, exclusive=True" + (f", segment={segment}" if segment else "")
    moved = Definition(
        definition.op,
        tuple(totals),
        tuple([Read.along(total, axes) for total in totals]),
        made,
        tuple([Arg(n, total.dtype) for n, total in enumerate(totals)]),
        definition.reducer,
        note,
        Scan(scan.axis, True, segment),
    )
    for tensor in made:
        tensor.define(moved)
    return made


def _in_segments(like: TensorView, axis: int, segment: int | None) -> TensorDomain:
    """Return the domain of a scan of `like`, whose loops go from segment to segment, and inside."""
    root = [IterDomain(a.size, a.kind) for a in like.domain.logical]
    if segment is None:
        return TensorDomain.of_root(root)
    split = Split(root[axis], integer(segment), like.fusion.algebra)
    leaf = (*root[:axis], *split.outputs, *root[axis + 1 :])
    return TensorDomain(tuple(root), tuple(root), leaf)


def _final_scan(
    definition: Definition,
    partials: Sequence[TensorView],
    carried: Sequence[TensorView],
    scan: Scan,
) -> None:
    """Define the scan itself: what is in front of a segment combined with what it holds."""
    one, reducer = partials[0], definition.reducer
    assert reducer is not None
    assert scan.segment is not None
    algebra, rank = one.fusion.algebra, len(one.domain.root)
    number = algebra.floordiv(Coordinate(scan.axis), integer(scan.segment))
    outer = tuple([number if n == scan.axis else Coordinate(n) for n in range(rank)])
    reads = [Read(t, outer) for t in carried]
    reads += [Read.along(t, tuple(range(rank))) for t in partials]
    args = [Arg(n, read.producer.dtype) for n, read in enumerate(reads)]
    values = reducer.combine(tuple(args[: len(carried)]), tuple(args[len(carried) :]))
    final = Definition(
        definition.op, (*carried, *partials), tuple(reads), definition.outputs, values, None,
        "final",
    )  # fmt: skip
    for twin in definition.outputs:
        twin.define(final)


def _defined(
    op: str,
    like: Sequence[TensorView],
    domain: TensorDomain,
    reads: Sequence[Read],
    values: tuple[Expr, ...],
    note: str,
) -> tuple[TensorView, ...]:
    """Define a pointwise tensor for each of `values`, in the types of `like`."""
    shapes = [
        domain if not n else TensorDomain.of_root([IterDomain(a.size, a.kind) for a in domain.root])
        for n in range(len(like))
    ]
    made = tuple([new_tensor(t, d, t.dtype) for t, d in zip(like, shapes, strict=True)])
    shown = tuple(dict.fromkeys([read.producer for read in reads]))
    found = Definition(op, shown, tuple(reads), made, values, None, note)
    for tensor in made:
        tensor.define(found)
    return made
