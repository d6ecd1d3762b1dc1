"""Loop promotion: the domain of each shared loop, and each tensor's indices in it.

A loop group is one loop for several tensors. Where one of them lacks an axis of the math that
another merged into the loop (a broadcast not yet made concrete, or an axis that it does not have at
all), its own axis is too small: the loop runs over the *promoted* axis, the group's transforms on
concrete roots (rule 35). A tensor that has less computes an element more than once.

`promote` finds, for every group, the promoted axis, and for every tensor the axis that each of its
leaves stands for; indices and predicates follow from these alone.

Source: the notion is nvFuser's loop promotion (Fuser, csrc/id_model/loop_promotion.cpp); the
construction here works backwards from the richest member of a group instead of over an id graph.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from loopnest.base.errors import LoweringError
from loopnest.lowering.loops.never_empty import AtLeastOne
from loopnest.lowering.loops.reshaped_axes import ReshapedAxes, RootKey, axes_behind
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.loop_forest import LoopForest, LoopGroup, RootClass
from loopnest.tensor.domain import (
    IterDomain,
    Merge,
    TensorDomain,
    Transform,
    ancestors,
    transforms_between,
    undone,
)
from loopnest.tensor.overlapping_tiles import is_tile_loop
from loopnest.tensor.tensor_view import TensorView

_NOWHERE = TensorDomain((), (), ())


@dataclass(eq=False, slots=True)
class Promotion:
    """What the loops of one tensor run over.

    `leaf` is one axis a leaf axis of the tensor: its own, or the promoted one. `image` maps inner
    axes of the tensor to promoted axes, where they differ. `steps` are the transforms behind
    `leaf`, inputs first.
    """

    leaf: tuple[IterDomain, ...]
    image: dict[IterDomain, IterDomain] = field(default_factory=dict)
    steps: tuple[Transform, ...] = ()

    @property
    def repeats(self) -> bool:
        """Whether a loop runs at points that the tensor lacks; loops around tiles do not count."""
        return any(not is_tile_loop(axis) for axis in self.image)


class Promoter:
    """Find promoted axes for all units of a forest."""

    def __init__(self, forest: LoopForest, algebra: Simplifier) -> None:
        self.forest = forest
        self.algebra = algebra
        self.node_of: dict[LoopGroup, IterDomain] = {}
        self.promotions: dict[TensorView, Promotion] = {}
        self._covers: dict[IterDomain, frozenset[RootKey]] = {}
        self._keys: dict[IterDomain, frozenset[RootKey]] = {}
        self._canonical: dict[IterDomain, IterDomain] = {}
        self._roots: dict[RootClass, IterDomain] = {}
        self._made: dict[tuple[Hashable, tuple[IterDomain, ...]], tuple[IterDomain, ...]] = {}
        self._reshaped = ReshapedAxes()
        self._owner: dict[IterDomain, TensorView] = {}
        self.loop_of: dict[IterDomain, IterDomain] = {}
        """For loops around a tile whose transform was made anew, the leaf axes that they are."""

    def run(self) -> None:
        """Fill `node_of` and `promotions`."""
        groups: dict[LoopGroup, None] = {}
        # Reshapes first: what an axis was made from, and which axes are one, is asked of all other
        # tensors in terms of the axes that reshapes make.
        for unit in self.forest.units:
            self._note_reshape(unit)
        for unit in self.forest.units:
            for twin in unit.siblings:
                for axis in twin.domain.leaf:
                    self._owner[axis] = twin
                    groups[self.forest.find(axis)] = None
        for group in groups:
            self.node_of[group] = self._promoted_axis(group)
        # Before any image is made: images refer to the transforms that the loops have in the end.
        self._keep_running(groups)
        for unit in self.forest.units:
            for twin in unit.siblings:
                self.promotions[twin] = self._promotion(twin)

    def _note_reshape(self, unit: TensorView) -> None:
        """Take the axes that a reshape makes as axes of the math, related to those it made them of.

        Units come producers first, so that the inputs of a step are known when its outputs are.
        """
        definition, domain = unit.definition, unit.domain
        if domain.rfactor is domain.root or definition is None or definition.reducer is not None:
            return
        for step in transforms_between(domain.root, domain.rfactor):
            inputs = tuple([self.canonical(axis) for axis in step.inputs])
            made = self._made.get((step.key, inputs)) or self._undone(step, inputs)
            if made is None:
                made = self._made[step.key, inputs] = tuple([self._known(a) for a in step.outputs])
            for axis, node in zip(step.outputs, made, strict=True):
                self._canonical[axis] = node
                group = self.forest.class_of.get(axis)
                if group is not None:
                    self._roots.setdefault(group.find(), node)
                self._reshaped.axes.add(node)
            self._reshaped.steps.append(step)

    @property
    def reshapes(self) -> bool:
        """Whether any tensor is reshaped."""
        return bool(self._reshaped.axes)

    @property
    def reshape_steps(self) -> Sequence[Transform]:
        """The splits and merges of all reshapes, producers first."""
        return self._reshaped.steps

    def _known(self, axis: IterDomain) -> IterDomain:
        """Return the representative of the class of `axis`, by default the axis itself."""
        group = self.forest.class_of.get(axis)
        return axis if group is None else self._roots.get(group.find(), axis)

    # Which axes of the math an axis runs over

    def keys(self, axis: IterDomain) -> frozenset[RootKey]:
        """Return the root classes that `axis` was made from; an axis in no class is its own.

        An axis that a factored reduction derived stands for the roots that it was derived from.
        """
        found = self._keys.get(axis)
        if found is None:
            found = self._keys[axis] = self._find_keys(axis)
        return found

    def _find_keys(self, axis: IterDomain) -> frozenset[RootKey]:
        group = self.forest.class_of.get(axis)
        derived = axis if axis.definition is not None else None
        made = self._reshaped_node(axis, group)
        if made is not None:
            return frozenset([made])
        if group is not None:
            group = group.find()
            derived = group.derived or derived
        if derived is not None:
            assert derived.definition is not None
            return frozenset().union(*(self.keys(a) for a in derived.definition.sources(derived)))
        return frozenset([axis if group is None else group])

    def _reshaped_node(self, axis: IterDomain, group: RootClass | None) -> IterDomain | None:
        """Return the axis of a reshaped tensor that `axis` is, or None."""
        if not self._reshaped.axes:
            return None
        if group is not None:
            return self.reshaped(group.find())
        node = None if axis.definition is None else self.canonical(axis)
        return node if node in self._reshaped.axes else None

    def reshaped(self, group: RootClass) -> IterDomain | None:
        """Return the axis of a reshaped tensor that a class of axes is, or None."""
        node = self._roots.get(group)
        return node if node in self._reshaped.axes else None

    def _cover(self, axis: IterDomain) -> frozenset[RootKey]:
        """Return the keys of what `axis` was made from and is not broadcast in its own tensor."""
        found = self._covers.get(axis)
        if found is None:
            found = self._covers[axis] = self._closed(self._own_keys(axis))
        return found

    def covered(self, axis: IterDomain) -> frozenset[RootKey]:
        """Return which axes of the math a tensor's own axis runs over."""
        return self._cover(axis)

    def _own_keys(self, axis: IterDomain) -> frozenset[RootKey]:
        if axis.is_broadcast:
            return frozenset()
        if self._reshaped.axes and axis.definition is not None:
            axis = self.canonical(axis)
            if axis in self._reshaped.axes:
                return frozenset([axis])
        if axis.definition is None:
            return self.keys(axis)
        return frozenset().union(*map(self._own_keys, axis.definition.sources(axis)))

    def concrete_keys(self, axis: IterDomain) -> frozenset[RootKey]:
        """Return what `axis` covers once its broadcast roots are made concrete."""
        return self._closed(
            frozenset(key for key in self.keys(axis) if not _concrete(key).is_broadcast)
        )

    def _closed(self, keys: frozenset[RootKey]) -> frozenset[RootKey]:
        """Return `keys` and all that reshapes make of just these, and that made them."""
        return self._reshaped.closed(keys, self.keys) if self._reshaped.steps else keys

    def _promoted_axis(self, group: LoopGroup) -> IterDomain:
        first = group.axes[0]
        if len(group.axes) == 1:
            return first
        parts = [self._cover(axis) for axis in group.axes]
        whole = self._closed(frozenset().union(*parts))
        # A member that covers what all others do has the extents of the loop; only where none does
        # is an axis made that no tensor owns.
        for axis in group.axes:
            if self._cover(axis) == whole:
                return axis
        return self._combined(group, whole)

    def _combined(self, group: LoopGroup, whole: frozenset[RootKey]) -> IterDomain:
        """Make an axis that no tensor has: a member's transforms on concrete roots (rule 35)."""
        best, missing = group.axes[0], whole
        for axis in group.axes:
            left = whole - self.concrete_keys(axis)
            if len(left) < len(missing):
                best, missing = axis, left
        node = self._on_concrete_roots(best)
        if missing:
            self._require_merges_only(group, best, missing)
            missing = self._least(group, whole - missing)
        # Any order of these merges is right; this one is the same in every run, that of a set is
        # not.
        for root in sorted(map(_concrete, missing), key=lambda axis: str(axis.size)):
            node = Merge(node, root, self.algebra).outputs[0]
        return node

    def _least(self, group: LoopGroup, held: frozenset[RootKey]) -> frozenset[RootKey]:
        """Return keys of members that give, with those in `held`, all that a loop runs over."""
        result: frozenset[RootKey] = frozenset()
        for axis in group.axes:
            more = self._own_keys(axis) - held
            result, held = result | more, self._closed(held | more)
        return result

    def _on_concrete_roots(self, axis: IterDomain) -> IterDomain:
        domain = self._owner[axis].domain
        image: dict[IterDomain, IterDomain] = {}
        for root in domain.root:
            found = self.forest.class_of.get(root)
            image[root] = root if found is None else found.find().concrete()
        for step in domain.history:
            copy = self._again(step, [image[a] for a in step.inputs])
            image.update(zip(step.outputs, copy.outputs, strict=True))
        return image[axis]

    def _require_merges_only(
        self, group: LoopGroup, best: IterDomain, missing: frozenset[RootKey]
    ) -> None:
        richer = next(a for a in group.axes if not self._cover(a).isdisjoint(missing))
        for axis in (best, *group.axes):
            tensor = self._owner[axis]
            inner = ancestors((axis,), tensor.domain) - set(tensor.domain.root)
            if not all(isinstance(a.definition, Merge) for a in inner):
                other = self._owner[richer if axis is best else best]
                raise LoweringError(
                    f"{tensor.name} and {other.name}",
                    f"a loop that they share has no common domain: {tensor.name} splits an axis "
                    f"merged with axes that {other.name} does not have",
                    f"compute {tensor.name} and {other.name} in separate loops",
                )

    # A loop over an axis that one of its tensors lacks must run for it even where the axis is empty

    def _lacked(self) -> dict[LoopGroup, list[tuple[TensorView, frozenset[RootKey]]]]:
        """Return, for each loop, what it runs over that a tensor needed outside of it lacks."""
        result: dict[LoopGroup, list[tuple[TensorView, frozenset[RootKey]]]] = {}
        for unit in self.forest.units:
            path = self.forest.path(unit)
            seen = any(twin.is_output for twin in unit.siblings)
            # Where a loop that a tensor shares with its consumers is empty, nothing reads the
            # tensor. An output is read outside of all loops.
            shared = 0 if seen else self.forest.shared_depth(unit)
            held = self.held(unit)
            for group in path[shared:]:
                keys = frozenset(
                    key
                    for key in self.concrete_keys(self.node_of[group]) - held
                    if not self.algebra.proves_positive(_concrete(key).size)
                )
                if keys:
                    result.setdefault(group, []).append((unit, keys))
        return result

    def held(self, unit: TensorView) -> frozenset[RootKey]:
        """Return the axes of the math that `unit` has points along; a broadcast axis is none."""
        own = (self.keys(axis) for axis in unit.domain.root if not axis.is_broadcast)
        return self._closed(frozenset().union(*own))

    def canonical(self, node: IterDomain) -> IterDomain:
        """Return the representative of the axes that equal transforms made of the same axes.

        Loops of one tensor may get their axes from several tensors; what these made of one axis by
        the same steps must then be one axis too.
        """
        found = self._canonical.get(node)
        if found is None:
            found = self._canonical[node] = self._find_canonical(node)
        return found

    def _find_canonical(self, node: IterDomain) -> IterDomain:
        step = node.definition
        if step is None or node in self._reshaped.axes:
            group = self.forest.class_of.get(node)
            if group is None or node.is_broadcast:
                return node
            derived = group.find().derived
            if derived is not None:
                return self.canonical(derived)
            return self._roots.setdefault(group.find(), node)
        inputs = tuple([self.canonical(axis) for axis in step.inputs])
        again = self._undone(step, inputs)
        if again is not None:
            return again[step.outputs.index(node)]
        present = [not axis.is_broadcast for axis in inputs]
        if not all(present):  # a merge with one point more leaves what it was
            for position, output in step.carries(present).items():
                if step.outputs[output] is node:
                    return inputs[position]
        made = self._made.get((step.key, inputs))
        if made is None:
            same = inputs == step.inputs
            made = step.outputs if same else self._again(step, inputs).outputs
            self._made[step.key, inputs] = made
        return made[step.outputs.index(node)]

    def _undone(
        self, step: Transform, inputs: tuple[IterDomain, ...]
    ) -> tuple[IterDomain, ...] | None:
        """Return the canonical axes that a split makes again, after a reshape merged them.

        A merge stays what it is: a tensor may lack a part of it. So does a split of a merge that
        a schedule made, beside any reshape: a tensor that lacks a part splits the other one.
        """
        again = len(step.outputs) > 1 and self._reshaped.axes & set(axes_behind(inputs[0]))
        found = undone(step, inputs, self.algebra) if again else None
        return None if found is None else tuple([self.canonical(axis) for axis in found])

    def _keep_running(self, groups: Iterable[LoopGroup]) -> None:
        """Make the loops that `_lacked` names run at least once.

        Every loop over one of the roots concerned is made anew, from one copy of their transforms:
        the outputs of one split must stay the outputs of one split.
        """
        short: set[IterDomain] = set()
        for group, found in self._lacked().items():
            for unit, lacked in found:
                for root in self.parts_of(self.canonical(self.node_of[group]), self.held(unit)):
                    if not root.is_broadcast and not self.keys(root).isdisjoint(lacked):
                        short.add(root)
        image: dict[IterDomain, IterDomain] = {}
        for group in groups if short else ():
            node = self.canonical(self.node_of[group])
            if not short.isdisjoint(axes_behind(node)):
                self.node_of[group] = self._never_empty(node, short, image)

    def _never_empty(
        self, node: IterDomain, short: set[IterDomain], image: dict[IterDomain, IterDomain]
    ) -> IterDomain:
        """Return `node` made from axes of which those in `short` have at least one point."""
        found = image.get(node)
        if found is None:
            above = [axis for axis in axes_behind(node) if axis is not node]
            grown = not short.isdisjoint(above)
            if node in short and grown:  # a part of it must run, and all of it for another tensor
                short.update(axis for axis in above if axis.definition is None)
            if grown:
                step = node.definition
                assert step is not None
                copy = self._again(step, [self._never_empty(a, short, image) for a in step.inputs])
                image.update(zip(step.outputs, copy.outputs, strict=True))
            else:
                own = node in short
                image[node] = AtLeastOne(node, self.algebra).outputs[0] if own else node
            found = image[node]
        return found

    def parts_of(self, node: IterDomain, held: frozenset[RootKey]) -> list[IterDomain]:
        """Return the axes of the math that `node` was made from, each held as a whole or lacked.

        Where a reshape lies behind `node`, they are those of the shape in which a tensor that has
        the axes `held` has some of them, and lacks the others.
        """
        stop = set(self._reshaped.axes)
        while True:
            behind = axes_behind(node, stop)
            parts = [axis for axis in behind if axis.definition is None or axis in stop]
            passed = stop.intersection(parts)
            keys: frozenset[RootKey] = frozenset().union(*map(self.keys, parts))
            if not passed or held & self._closed(keys) <= self._closed(held & keys):
                return parts
            stop -= passed

    def _again(self, step: Transform, inputs: Sequence[IterDomain]) -> Transform:
        """Return a step on other axes; the loops that it is given stay those of before."""
        copy = step.replay(inputs, self.algebra)
        for mine, theirs in zip(copy.given(), step.given(), strict=True):
            self.loop_of[mine] = self.loop_of.get(theirs, theirs)
        return copy

    # Each tensor's place

    def _promotion(self, tensor: TensorView) -> Promotion:
        domain = tensor.domain
        nodes = [self._node(axis) for axis in domain.leaf]
        if all(axis is node for axis, node in zip(domain.leaf, nodes, strict=True)):
            return Promotion(domain.leaf, {}, domain.history)
        image = self._image(tensor, nodes)
        leaf = tuple(
            [
                image.get(axis, axis) if self._cover(node) else axis  # one point stays one
                for axis, node in zip(domain.leaf, nodes, strict=True)
            ]
        )
        return Promotion(leaf, image, tuple(steps_behind(leaf)))

    def _node(self, axis: IterDomain) -> IterDomain:
        """Return what the loop of `axis` runs over: the axis itself where it has the same points.

        A neighbour's axis in its place would not fit the tensor's other axes: those of one split
        may share loops with several tensors.
        """
        node = self.node_of[self.forest.find(axis)]
        own = node in self._owner and self._cover(axis) == self._cover(node)
        return axis if own else self.canonical(node)

    def _image(
        self, tensor: TensorView, nodes: Sequence[IterDomain]
    ) -> dict[IterDomain, IterDomain]:
        domain = tensor.domain
        image: dict[IterDomain, IterDomain] = {}
        for axis, node in zip(domain.leaf, nodes, strict=True):
            if node is not axis:
                image[axis] = node
        # Upwards first: the promoted axis of a leaf tells those of its siblings and of what it was
        # made from. Downwards then, for inner axes of which no leaf told.
        for step in reversed(domain.history):
            self._match_upwards(step, domain, image)
        for step in domain.history:
            told = not image.keys().isdisjoint(step.outputs)
            if any(axis in image for axis in step.inputs) and not told:
                copy = self._again(step, [image.get(a, a) for a in step.inputs])
                image.update(zip(step.outputs, copy.outputs, strict=True))
        return image

    def _match_upwards(
        self, step: Transform, domain: TensorDomain, image: dict[IterDomain, IterDomain]
    ) -> None:
        """Carry the image of one of a step's outputs to its other outputs and its inputs."""
        for slot, axis in enumerate(step.outputs):
            if axis not in image:
                continue
            node = self._narrow(image[axis], self.concrete_keys(axis))
            found = node.definition
            if found is None or found.key != step.key or found.outputs[slot] is not node:
                continue
            if self.reshapes and not self._runs_over(found.inputs, step.inputs):
                continue  # a reshape made this axis of another one
            for mine, theirs in zip(step.outputs, found.outputs, strict=True):
                if not mine.is_broadcast:  # no loop of its own makes it more than one point
                    image.setdefault(mine, theirs)
            for mine, theirs in zip(step.inputs, found.inputs, strict=True):
                image.setdefault(mine, theirs)
            return

    def _runs_over(self, axes: Iterable[IterDomain], others: Iterable[IterDomain]) -> bool:
        """Whether `axes` run over all that `others` do, pair by pair."""
        pairs = zip(axes, others, strict=True)
        return all(self.concrete_keys(b) <= self.concrete_keys(a) for a, b in pairs)

    def _narrow(self, node: IterDomain, keys: frozenset[RootKey]) -> IterDomain:
        """Pass down merges of which just one input has to do with `keys`."""
        while node.definition is not None and len(node.definition.outputs) == 1:
            inputs = node.definition.inputs
            present = [not keys.isdisjoint(self.concrete_keys(a)) for a in inputs]
            carried = node.definition.carries(present)
            if all(present) or len(carried) != 1:
                break
            node = inputs[next(iter(carried))]
        return node


def _concrete(key: RootKey) -> IterDomain:
    return key.concrete() if isinstance(key, RootClass) else key


def steps_behind(leaf: Sequence[IterDomain]) -> list[Transform]:
    """Return every transform behind `leaf`, inputs before users."""
    return list(transforms_between((), leaf))
