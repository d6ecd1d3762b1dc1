"""AutoInline: read through ops that only move elements, without a tensor between.

```
t = flip(transpose(x, (0, 2, 3, 1)), 3)                  # t[b, h, w, -c] = x[b, c, h, w]
u = exp(t)
y = sum(dy * transpose(flip(u, 3), (0, 3, 1, 2)))        =>   y = sum(dy * exp(x))
```

There is no node of another kind for an inlined expression: a read by an index map is one canonical
chain of the ops that move (`Builder`), so that text, evaluator, gradients and every other pass know
it. Such chains are left only on tensors that exist anyway: inputs, constants, the results of
reductions, contractions and opaque ops, and pointwise results that are read by several maps. All
other maps have been composed and carried through pointwise ops to their operands,
where many of them cancel; what repeats elements is left to broadcasting.

Source: TVM's RFC "CSE Optimization" (discuss.tvm.apache.org/t/8130; `TensorAutoInliner`).

Index maps go from the index of an element of a result to that of its source. An op that only moves
elements (transpose, flip, slice, broadcast…) is an `Affine` map: each axis of the source is read at
``start + step * i`` for one axis i of the result, or at a fixed place; an axis of the result that
no axis of the source follows repeats. Such maps compose to one. A reshape is none, unless it only
adds and drops axes of extent 1; maps with reshapes between them are a chain.

Source: the views of tinygrad's ShapeTracker (`shape/shapetracker.py`): a list of strided views that
merge where they can.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from loopnest.graph.dimensions import Dim, Shape, add, mul, sub
from loopnest.graph.node import Node
from loopnest.graph.passes.manager import FunctionPass, PassContext, PassInfo, register_pass
from loopnest.graph.program import Graph, Unit, body_of
from loopnest.graph.registry import Pattern, call, pattern_of, rebuild, with_attrs
from loopnest.graph.state import is_pure
from loopnest.graph.structural import node_key

MOVEMENTS = frozenset(
    {"transpose", "flip", "slice", "squeeze", "expand_dims", "broadcast_to", "reshape"}
)
"""Ops that are index maps."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Where an axis of the source is read: at start + step * index `out` of the result.

    `out` is None for one fixed place.
    """

    start: Dim = 0
    step: int = 0
    out: int | None = None


@dataclass(frozen=True, slots=True)
class Affine:
    """An index map; `axes` has one entry for each axis of the source."""

    source: Shape
    shape: Shape
    axes: tuple[Axis, ...]

    @property
    def followed(self) -> tuple[int, ...]:
        """The axes of the result that an axis of the source follows, in order."""
        return tuple(sorted([axis.out for axis in self.axes if axis.out is not None]))

    @property
    def is_identity(self) -> bool:
        """Whether each element is itself."""
        same = [
            axis.start == 0 and (extent == 1 or (axis.step == 1 and axis.out == i))
            for i, (axis, extent) in enumerate(zip(self.axes, self.source, strict=True))
        ]
        return self.source == self.shape and all(same)

    @property
    def is_trivial(self) -> bool:
        """Whether it only adds and drops axes of extent 1: a reshape could do it."""
        moved = [axis for axis, extent in zip(self.axes, self.source, strict=True) if extent != 1]
        places = [axis.out for axis in moved]
        wanted = [i for i, extent in enumerate(self.shape) if extent != 1]
        return places == wanted and all(axis.start == 0 and axis.step == 1 for axis in moved)


@dataclass(frozen=True, slots=True)
class Reshape:
    """The elements in row-major order, in another shape."""

    source: Shape
    shape: Shape


Step: TypeAlias = Affine | Reshape


@dataclass(frozen=True, slots=True)
class Chain:
    """Maps one after the other, from the source on; () is the identity. Equal chains are equal."""

    source: Shape
    steps: tuple[Step, ...] = ()

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return self.steps[-1].shape if self.steps else self.source

    def then(self, step: Step) -> Chain:
        """Return this chain with one more map, which is merged with the last where it can be."""
        steps = list(self.steps)
        step = _plain(step)
        while steps:
            merged = _merged(steps[-1], step)
            if merged is None:
                break
            steps.pop()
            step = _plain(merged)
        same = isinstance(step, Affine) and step.is_identity
        return Chain(self.source, tuple(steps) if same else (*steps, step))

    def followed_by(self, other: Chain) -> Chain:
        """Return this chain and then another."""
        found = self
        for step in other.steps:
            found = found.then(step)
        return found


def affine(source: Shape, shape: Shape, axes: Sequence[Axis]) -> Affine:
    """Return a map in its one form: what reads a single place follows no axis."""
    plain = []
    for axis in axes:
        if axis.out is None or shape[axis.out] == 1:
            axis = Axis(axis.start)
        plain.append(axis)
    return Affine(source, shape, tuple(plain))


def _plain(step: Step) -> Step:
    """Return a reshape that only adds and drops axes of extent 1 as an affine map."""
    if isinstance(step, Affine):
        return step
    kept = [extent for extent in step.source if extent != 1]
    if kept != [extent for extent in step.shape if extent != 1]:
        return step
    return trivial(step.source, step.shape, [i for i, e in enumerate(step.shape) if e != 1])


def trivial(source: Shape, shape: Shape, places: Sequence[int]) -> Affine:
    """Return the map under which the axes of extent other than 1 stand at `places`, in order."""
    follows = iter(places)
    return affine(
        source, shape, [Axis() if extent == 1 else Axis(0, 1, next(follows)) for extent in source]
    )


def repeated(source: Shape, shape: Shape) -> Affine:
    """Return the map by which a tensor broadcasts to a shape."""
    lead = len(shape) - len(source)
    axes = [Axis() if extent == 1 else Axis(0, 1, lead + i) for i, extent in enumerate(source)]
    return affine(source, shape, axes)


def _merged(first: Step, second: Step) -> Step | None:
    reshapes = isinstance(first, Reshape) or isinstance(second, Reshape)
    if reshapes and _is_reshape(first) and _is_reshape(second):
        return Reshape(first.source, second.shape)
    if isinstance(first, Affine) and isinstance(second, Affine):
        axes = [
            axis if axis.out is None else _through(axis, second.axes[axis.out])
            for axis in first.axes
        ]
        return affine(first.source, second.shape, axes)
    return None


def _is_reshape(step: Step) -> bool:
    return isinstance(step, Reshape) or step.is_trivial


def _through(inner: Axis, outer: Axis) -> Axis:
    start = add(inner.start, mul(outer.start, inner.step))
    return Axis(start, inner.step * outer.step, outer.out)


def map_of(node: Node) -> Step:
    """Return the index map of an op of `MOVEMENTS`."""
    source, shape, attrs = node.inputs[0].shape, node.shape, node.attrs
    if node.op in ("reshape", "squeeze", "expand_dims"):
        return Reshape(source, shape)
    if node.op == "broadcast_to":
        return repeated(source, shape)
    if node.op == "transpose":
        places = {old: new for new, old in enumerate(attrs["axes"])}
        return affine(source, shape, [Axis(0, 1, places[i]) for i in range(len(source))])
    if node.op == "flip":
        turned = attrs["axis"]
        parts: list[tuple[Dim, int]] = [
            (sub(e, 1), -1) if i in turned else (0, 1) for i, e in enumerate(source)
        ]
    else:
        parts = list(zip(attrs["starts"], attrs["steps"], strict=True))
    return affine(source, shape, [Axis(*part, i) for i, part in enumerate(parts)])


def core(chain: Chain) -> Chain:
    """Return a chain without the axes of the result that repeat or have extent 1.

    Chains with one core read the same elements, but for repetition and axes of extent 1.
    """
    places = {place: number for number, place in enumerate(followed_places(chain))}
    shape = tuple([chain.shape[place] for place in places])
    last = chain.steps[-1] if chain.steps else repeated(chain.source, chain.source)
    inner = Chain(chain.source, chain.steps[:-1])
    if isinstance(last, Reshape):
        return inner.then(Reshape(last.source, shape))
    axes = [
        axis if axis.out is None else Axis(axis.start, axis.step, places[axis.out])
        for axis in last.axes
    ]
    return inner.then(Affine(last.source, shape, tuple(axes)))


def without_repeats(chain: Chain) -> Chain:
    """Return a chain whose result has extent 1 where it would repeat, or no such axis in front."""
    last = chain.steps[-1] if chain.steps else None
    if isinstance(last, Affine):
        kept = set(last.followed)
        shape = tuple([extent if i in kept else 1 for i, extent in enumerate(last.shape)])
        once = Affine(last.source, shape, last.axes)
        chain = Chain(chain.source, chain.steps[:-1]).then(once)
    spare = len(chain.shape) - len(chain.source)
    lead = next((i for i, extent in enumerate(chain.shape) if extent != 1), len(chain.shape))
    drop = min(max(spare, 0), lead)  # broadcasting adds them again
    return chain.then(Reshape(chain.shape, chain.shape[drop:])) if drop else chain


def followed_places(chain: Chain) -> list[int]:
    """Return the axes of the result of extent other than 1 that do not repeat."""
    last = chain.steps[-1] if chain.steps else None
    if isinstance(last, Affine):
        return list(last.followed)
    return [i for i, extent in enumerate(chain.shape) if extent != 1]


def restricted(chain: Chain, operand: Shape) -> Chain | None:
    """Return the chain by which an operand of a pointwise op is read if its result is read by one.

    None if there is none: the operand is broadcast, and a reshape mixes its axes with others.

    Args:
        chain: the chain of the op's result, without repeats.
        operand: the shape of the operand, which broadcasts to the source of the chain.
    """
    rank = len(chain.shape)
    if all(extent == 1 for extent in operand):
        return Chain(operand).then(affine(operand, (1,) * rank, [Axis()] * len(operand)))
    if operand == chain.source:
        return chain
    if any(isinstance(step, Reshape) for step in chain.steps):
        return None
    (only,) = chain.steps
    assert isinstance(only, Affine)
    lead = len(chain.source) - len(operand)
    axes = [Axis() if extent == 1 else only.axes[lead + i] for i, extent in enumerate(operand)]
    followed = {axis.out for axis in axes}
    shape = tuple([extent if i in followed else 1 for i, extent in enumerate(only.shape)])
    return Chain(operand).then(affine(operand, shape, axes))


class AutoInline(FunctionPass):
    """Inline what moves elements (transpose, flip, slice, broadcast, reshape…) into its readers.

    Index maps compose, permuted and reversed ones too, and are carried through pointwise ops: a
    pointwise result that is read by one map only is computed in that form from the start. It is
    never computed twice: what is read by several maps is computed once and moved. Slices are thus
    taken before arithmetic, repetition happens after it. Bodies of fused calls are treated each by
    itself. What adds elements (pad, unslice, concatenate) or changes layouts is no index map.

    Each element is computed by the same operations as before. Idempotent.
    """

    info = PassInfo("AutoInline", 2)

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return inlined(func)


def inlined(graph: Graph) -> Graph:
    """Return a graph whose index maps are composed; itself where nothing changes."""
    return _Inliner(graph).run()


_SHAPED = frozenset({"shape", "axis", "axes"})


def is_pointwise(node: Node) -> bool:
    """Whether a map of a node's result may be carried to its operands, which broadcast."""
    if not node.inputs or node.op in MOVEMENTS or node.op == "assign" or node.is_tuple:
        return False
    if any(x.is_tuple for x in node.inputs) or not is_pure(node):
        return False
    pattern = pattern_of(node)
    if pattern is Pattern.ELEMWISE:
        return not _SHAPED & set(node.attrs)
    return pattern is Pattern.BROADCAST and not node.attrs


class _Inliner:
    """One run over one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.needs: dict[Node, dict[Chain, Chain]] = {}
        """For each tensor that is read: the chains, without what they repeat, and their cores."""
        self.pulled: dict[Node, Chain] = {}
        """Pointwise nodes that are computed in the form that a chain gives them."""
        self.built: dict[Node, Node] = {x: x for x in graph.inputs}
        moves = [node for node in graph.nodes if node.op in MOVEMENTS or node.op == "full"]
        self.builder = Builder(moves)

    def run(self) -> Graph:
        for output in self.graph.outputs:
            self._need(output)
        for node in reversed(self.graph.nodes):
            if node in self.needs:
                self._decide(node)
        for node in self.graph.nodes:
            if node in self.needs and node not in self.built:
                self.built[node] = self._build(node)
        return self.graph.with_outputs([self._read(x) for x in self.graph.outputs])

    # From the outputs: who is read how

    def _need(self, node: Node, chain: Chain | None = None) -> None:
        """Note that a node is read by a chain (as it is, by default)."""
        if node.is_tuple:
            self.needs.setdefault(node, {})
            return
        base, whole = _resolved(node, chain or Chain(node.shape))
        forms = self.needs.setdefault(base, {})
        if not whole.steps:
            forms[whole] = _own_form(whole.source)
        elif (kept := without_repeats(whole)) not in forms:
            forms[kept] = core(whole)

    def _decide(self, node: Node) -> None:
        """Decide in which form a node is computed, and note what it reads."""
        form = self._form(node)
        parts: list[Chain | None] = [None] * len(node.inputs)
        if form is not None:
            found = [restricted(form, x.shape) for x in node.inputs]
            if None not in found:
                self.pulled[node] = form
                parts = found
        for operand, part in zip(node.inputs, parts, strict=True):
            self._need(operand, part)

    def _form(self, node: Node) -> Chain | None:
        """Return the one form in which a pointwise node is read, None if it is as it is.

        Chains of one core differ in axes of extent 1 alone: they can share what is computed.
        """
        forms = self.needs[node]
        if len(set(forms.values())) != 1 or not is_pointwise(node):
            return None
        form, kernel = next(iter(forms.items()))
        if len(forms) > 1 and kernel == _own_form(node.shape):
            return None
        return form if form.steps else None

    # From the inputs: what is computed

    def _build(self, node: Node) -> Node:
        if node in self.pulled:
            kept = self.pulled[node]
            chains = [restricted(kept, x.shape) for x in node.inputs]
            pairs = zip(node.inputs, chains, strict=True)
            operands = [self._read(x, part, loose=True) for x, part in pairs]
            same = all(new is old for new, old in zip(operands, node.inputs, strict=True))
            return node if same else self.builder.call(node.op, operands, node.attrs)
        if node.op == "fused":
            body = body_of(node)
            changed = inlined(body)
            node = node if changed is body else with_attrs(node, body=changed)
            return rebuild(node, self._operands(node.inputs, loose=False))
        operands = self._operands(node.inputs, loose=is_pointwise(node))
        return rebuild(node, operands)

    def _operands(self, operands: Sequence[Node], loose: bool) -> list[Node]:
        return [self._read(x, loose=loose) for x in operands]

    def _read(self, node: Node, chain: Chain | None = None, loose: bool = False) -> Node:
        """Return what a chain reads of a node, by what is computed now.

        Args:
            node: the node of the old graph.
            chain: the chain; the node as it is, by default.
            loose: whether the result only has to broadcast to the shape of the chain.
        """
        if node.is_tuple:
            return self.built[node]
        base, whole = _resolved(node, chain or Chain(node.shape))
        found = self.built[base]
        if base not in self.pulled:
            if not whole.steps and found.shape == base.shape:
                return found
            link = Chain(found.shape).then(repeated(found.shape, base.shape)).followed_by(whole)
            read = self.builder.read(found, link, loose)
            # Where leading axes of extent 1 go is free: leave the node that is there.
            same = node.op == read.op == "expand_dims" and node.inputs == read.inputs
            return node if chain is None and same else read
        form = self.pulled[base].shape  # of the chain's core, so only repeats and ones differ
        link = Chain(found.shape).then(repeated(found.shape, form))
        places = followed_places(whole)
        return self.builder.read(found, link.then(trivial(form, whole.shape, places)), loose)


@cache
def _own_form(shape: Shape) -> Chain:
    """Return the core of the chain that reads a tensor as it is."""
    return core(Chain(shape))


def _resolved(node: Node, chain: Chain) -> tuple[Node, Chain]:
    """Return the tensor that is read in the end, and the whole chain from it."""
    while node.op in MOVEMENTS:
        (source,) = node.inputs
        chain = Chain(source.shape).then(map_of(node)).followed_by(chain)
        node = source
    return node, chain


register_pass("AutoInline", AutoInline)


class Builder:
    """Makes nodes, each once: one that stands in the graph already is taken from there."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._made: dict[Hashable, Node] = {}
        for node in nodes:
            if node.op != "var":
                self._made.setdefault(self._key(node), node)

    @staticmethod
    def _key(node: Node) -> Hashable:
        return (node_key(node), *[id(x) for x in node.inputs])

    def call(
        self, op: str, inputs: Sequence[Node], attrs: Mapping[str, object] | None = None
    ) -> Node:
        """Return a node; the same object for the same op, operands and attributes."""
        made = call(op, inputs, attrs)
        return self._made.setdefault(self._key(made), made)

    def read(self, source: Node, chain: Chain, loose: bool = False) -> Node:
        """Return what a chain reads of a tensor, as one canonical chain of ops.

        Affine maps become slice, flip, squeeze, transpose, expand_dims, broadcast_to, in this
        order, each only if it does something.

        Args:
            source: the tensor.
            chain: the map.
            loose: whether the result only has to broadcast to the shape of the chain.
        """
        for number, step in enumerate(chain.steps):
            if isinstance(step, Affine):
                last = number == len(chain.steps) - 1
                source = self._affine(source, step, loose and last)
            else:
                source = self.call("reshape", (source,), {"shape": step.shape})
        return source

    def _affine(self, source: Node, step: Affine, loose: bool) -> Node:
        if source.op == "full":
            return self.call("full", (), {**source.attrs, "shape": step.shape})
        found = self._flipped(self._sliced(source, step), step)
        repeats = any(extent != 1 for extent in dropped(step.shape, step.followed))
        found = self._arranged(found, step, loose or repeats)
        if loose or not repeats:
            return found
        return self.call("broadcast_to", (found,), {"shape": step.shape})

    def _sliced(self, source: Node, step: Affine) -> Node:
        places = [_places(axis, step.shape) for axis in step.axes]
        if all(place == (0, e, 1) for place, e in zip(places, source.shape, strict=True)):
            return source
        starts, stops, steps = zip(*places, strict=True)
        return self.call("slice", (source,), {"starts": starts, "stops": stops, "steps": steps})

    def _flipped(self, source: Node, step: Affine) -> Node:
        turned = tuple([i for i, axis in enumerate(step.axes) if axis.step < 0])
        return self.call("flip", (source,), {"axis": turned}) if turned else source

    def _arranged(self, found: Node, step: Affine, loose: bool) -> Node:
        """Return axes in order and axes of extent 1 where the result has them (or repeats)."""
        rank = len(step.shape)
        follows = [axis.out for axis in step.axes]
        lead = rank - len(follows)
        if loose and lead >= 0 and all(o in (None, lead + i) for i, o in enumerate(follows)):
            return found  # broadcasts as it is
        places = {out: i for i, out in enumerate(follows) if out is not None}
        wanted = tuple([extent if i in places else 1 for i, extent in enumerate(step.shape)])
        if loose:
            first = min(places, default=rank)
            places = {out - first: i for out, i in places.items()}
            wanted = wanted[first:]
        if list(places.values()) != [places[out] for out in sorted(places)]:
            found, places = self._transposed(found, places, wanted)
        return self._spaced(found, wanted)

    def _transposed(
        self, found: Node, places: dict[int, int], wanted: Shape
    ) -> tuple[Node, dict[int, int]]:
        """Return a tensor whose axes are in order, with as many of extent 1 as are wanted."""
        ones = [i for i in range(found.ndim) if i not in places.values()]
        spare = len(ones) - (len(wanted) - len(places))
        if spare > 0:
            gone = ones[len(ones) - spare :]
            found = self.call("squeeze", (found,), {"axis": tuple(gone)})
            moved = {out: i - sum(1 for g in gone if g < i) for out, i in places.items()}
            return self._transposed(found, moved, wanted)
        order: list[int] = []
        free = iter(ones)
        for out in range(len(wanted)):
            place = places[out] if out in places else next(free, None)
            order += [] if place is None else [place]
        return self.call("transpose", (found,), {"axes": tuple(order)}), places

    def _spaced(self, found: Node, wanted: Shape) -> Node:
        """Return a tensor with axes of extent 1 dropped and added."""
        if found.shape == wanted:
            return found
        added = _missing(found.shape, wanted)
        if added is None:
            dropped = _missing(wanted, found.shape)
            if dropped is None:
                dropped = tuple([i for i, extent in enumerate(found.shape) if extent == 1])
            found = self.call("squeeze", (found,), {"axis": dropped})
            added = _missing(found.shape, wanted)
            assert added is not None
        return self.call("expand_dims", (found,), {"axis": added}) if added else found


def _places(axis: Axis, shape: Shape) -> tuple[Dim, Dim, int]:
    """Return start, stop and step (forwards) of what an axis of the source is read at."""
    if axis.out is None:
        return axis.start, add(axis.start, 1), 1
    count = shape[axis.out]
    if count == 0:
        return 0, 0, 1
    last = add(axis.start, mul(sub(count, 1), axis.step))
    low, high = (axis.start, last) if axis.step > 0 else (last, axis.start)
    return low, add(high, 1), abs(axis.step)


def dropped(shape: Shape, places: Sequence[int]) -> Shape:
    """Return a shape without some axes."""
    return tuple([extent for i, extent in enumerate(shape) if i not in places])


def _missing(part: Shape, whole: Shape) -> tuple[int, ...] | None:
    """Return where `whole` has axes of extent 1 more than `part`; None if that is not all."""
    added: list[int] = []
    rest = list(part)
    for i, extent in enumerate(whole):
        if rest and rest[0] == extent:
            rest.pop(0)
        elif extent == 1:
            added.append(i)
        else:
            return None
    return None if rest else tuple(added)
