"""Domains: axes, the transforms between them, and the domain of a tensor.

One graph: every `IterDomain` that is not a root knows the `Transform` that made it. A
`TensorDomain` names node sets in that graph: root, rfactor, leaf and allocation. Replay, indexing
and predicates are traversals that ask a transform only for what `Transform` declares, so a new
transform is one class and no other change.

Source: root, rfactor and leaf domains are nvFuser's (csarofeen/pytorch, torch/csrc/jit/codegen/
cuda/ir_internal_nodes.h).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, SupportsIndex

from loopnest.base.fast_init import fast_init
from loopnest.scalar.enums import IterKind, ParallelType
from loopnest.scalar.expr import ONE, ZERO, Const, Expr, integer
from loopnest.scalar.origin import Origin
from loopnest.scalar.simplify import Simplifier

_PLACE = re.compile(r"[irbs]\d+")
"""How axes without a name are called."""


class AxisOwner(Protocol):
    """What an axis needs of its tensor to act as a handle."""

    def parallelize(self, types: dict[int, ParallelType]) -> object: ...
    def pin(self, axis: int) -> object: ...
    @property
    def leaf_domain(self) -> tuple[IterDomain, ...]: ...
    @property
    def domain(self) -> TensorDomain: ...


class IterDomain:
    """An axis: an extent, a kind, and the transform that made it; compared by identity.

    `parallel` and `pinned` describe the loop of a leaf axis; only schedule primitives write them.
    `names` are what calls may name it by, which never change (see `axis_names`); `is_named` says
    that a user gave the first of them, which texts then show.
    """

    __slots__ = (
        "definition", "is_named", "kind", "names", "origin", "owner", "parallel", "pinned", "size",
    )  # fmt: skip

    def __init__(self, size: Expr, kind: IterKind = IterKind.ITERATION) -> None:
        self.size = size
        self.kind = kind
        self.definition: Transform | None = None
        self.parallel = ParallelType.serial
        self.pinned = False
        self.owner: AxisOwner | None = None
        self.origin: Origin | None = None
        self.names: tuple[str, ...] = ()
        self.is_named = False

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle a place in the domain of its tensor, where it has one."""
        if self.owner is not None:
            axes = connected(self.owner.domain.axes())
            if self in axes:
                return _axis_at, (self.owner, axes.index(self))
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        mark = "" if self.parallel is ParallelType.serial else f" {self.parallel.value}"
        name = f" {self.names[0]}" if self.is_named else ""
        return f"<{self.kind.letter}{name} {self.size}{mark}>"

    @property
    def name(self) -> str | None:
        """The name by which calls find it first; None where it has none."""
        return self.names[0] if self.names else None

    def label(self, place: int) -> str:
        """Return how texts call the axis at position `place`: ``i0``, or ``i0 do`` by its name."""
        return f"{self.kind.letter}{place}" + (f" {self.names[0]}" if self.is_named else "")

    def take_name(self, name: str | None) -> None:
        """Take the name that a user gives a new axis; the first of its names."""
        if name is not None:
            self.names = tuple(dict.fromkeys((name, *self.names)))
            self.is_named = True

    @property
    def extent(self) -> int | Expr:
        """The number of points: an int where static, else a symbolic expression."""
        return int(self.size.value) if isinstance(self.size, Const) else self.size

    @property
    def is_reduction(self) -> bool:
        """Whether it is folded."""
        return self.kind is IterKind.REDUCTION

    @property
    def is_broadcast(self) -> bool:
        """Whether it has extent 1 and maps to any extent."""
        return self.kind is IterKind.BROADCAST

    @property
    def is_iteration(self) -> bool:
        """Whether each of its indices has an element of its own."""
        return self.kind in (IterKind.ITERATION, IterKind.STEP)

    @property
    def is_step(self) -> bool:
        """Whether each of its indices reads what was computed at the one before."""
        return self.kind is IterKind.STEP

    def parallelize(self, parallel: ParallelType) -> IterDomain:
        """Run this leaf axis as `parallel`; see `TensorView.parallelize`."""
        owner, position = self._place()
        owner.parallelize({position: parallel})
        return self

    def pin(self) -> IterDomain:
        """Never inline past this leaf axis."""
        owner, position = self._place()
        owner.pin(position)
        return self

    def _place(self) -> tuple[AxisOwner, int]:
        from loopnest.base.errors import ScheduleError

        if self.owner is not None:
            for position, axis in enumerate(self.owner.leaf_domain):
                if axis is self:
                    return self.owner, position
        raise ScheduleError(
            repr(self), "it is not a leaf axis of a tensor", "take a handle by tv.axis(i)"
        )


def _axis_at(owner: AxisOwner, place: int) -> IterDomain:
    return connected(owner.domain.axes())[place]


class Transform(ABC):
    """A step of the domain graph: input axes become output axes.

    A subclass declares how it is replayed on other axes, how indices cross it both ways, and where
    the outputs visit points that the inputs do not have.
    """

    __slots__ = ("inputs", "outputs")
    inputs: tuple[IterDomain, ...]
    outputs: tuple[IterDomain, ...]

    def _bind(self, inputs: Sequence[IterDomain], outputs: Sequence[IterDomain]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        for axis in self.outputs:
            axis.definition = self

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """What two steps must share to be the same step on corresponding axes."""

    @abstractmethod
    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Transform:
        """Return the same step on other axes, with fresh outputs."""

    def replay_named(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Transform:
        """Return the same step on other axes, with fresh outputs of the same names."""
        copy = self.replay(inputs, algebra)
        for mine, theirs in zip(self.outputs, copy.outputs, strict=True):
            theirs.names, theirs.is_named = mine.names, mine.is_named
        return copy

    @abstractmethod
    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        """Return the indices of the inputs, given those of the outputs."""

    @abstractmethod
    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        """Return the indices of the outputs, given those of the inputs."""

    @abstractmethod
    def describe(self) -> str:
        """Return a short text for stage dumps."""

    def overshoots(self, algebra: Simplifier) -> tuple[IterDomain, ...]:
        """Return the inputs that the outputs overshoot: their index needs a test (rule 36)."""
        return ()

    def follows(self) -> tuple[IterDomain, ...]:
        """Return the outputs that lie within bounds wherever the inputs do."""
        return ()

    def accepts(self, inputs: Sequence[IterDomain]) -> bool:
        """Return whether the step may be replayed on these axes, by their kinds."""
        return True

    def undershoots(self, algebra: Simplifier) -> tuple[IterDomain, ...]:
        """Return the inputs whose index may be negative: it needs a test on this side too."""
        return ()

    def given(self) -> tuple[IterDomain, ...]:
        """Return the outputs that are loops of others, whose indices no input tells.

        `forward` is given them behind the inputs.
        """
        return ()

    def sources(self, output: IterDomain) -> tuple[IterDomain, ...]:
        """Return the inputs that an output runs over: none for one that is a loop of others."""
        return self.inputs

    def carries(self, present: Sequence[bool]) -> dict[int, int]:
        """Return input -> output position for inputs that pass through, others being absent.

        `present[i]` says whether the tensor that is mapped to has input i; an absent input is a
        broadcast axis there (rule 26).
        """
        return {}


class Split(Transform):
    """One axis to outer and inner; the inner has extent `factor`, or the outer (`inner=False`).

    A broadcast axis gives broadcast axes of extent 1, whatever the factor. `rest` is how the extent
    that is not the factor is written where the axis has the extent `whole`: a reshape knows it.
    """

    __slots__ = ("factor", "inner", "rest", "whole")

    def __init__(
        self,
        axis: IterDomain,
        factor: Expr,
        algebra: Simplifier,
        *,
        inner: bool = True,
        kinds: tuple[IterKind, IterKind] | None = None,
        whole: Expr | None = None,
        rest: Expr | None = None,
    ) -> None:
        self.factor, self.inner, self.whole, self.rest = factor, inner, whole, rest
        if rest is None or axis.size is not whole:
            rest = algebra.ceildiv(axis.size, factor)
        outer, within = (rest, factor) if inner else (factor, rest)
        if axis.is_broadcast:
            outer = within = ONE
        first, second = kinds if kinds is not None else (axis.kind, axis.kind)
        self._bind([axis], [IterDomain(outer, first), IterDomain(within, second)])

    @property
    def key(self) -> Hashable:
        return ("split", self.factor, self.inner)

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Split:
        axis, whole, rest = inputs[0], self.whole, self.rest
        return Split(axis, self.factor, algebra, inner=self.inner, whole=whole, rest=rest)

    def inner_extent(self, algebra: Simplifier) -> Expr:
        """Return the stride of the outer axis (also on broadcast axes, whose extents are 1)."""
        if self.inner:
            return self.factor
        return algebra.ceildiv(algebra.simplify(self.inputs[0].size), self.factor)

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        outer, within = outputs
        return (algebra.add(algebra.mul(outer, self.inner_extent(algebra)), within),)

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        width = self.inner_extent(algebra)
        return algebra.floordiv(inputs[0], width), algebra.mod(inputs[0], width)

    def overshoots(self, algebra: Simplifier) -> tuple[IterDomain, ...]:
        axis = self.inputs[0]
        if axis.is_broadcast or algebra.divides(self.factor, axis.size):
            return ()
        return self.inputs

    def follows(self) -> tuple[IterDomain, ...]:
        return self.outputs[:1]

    def describe(self) -> str:
        return f"split by {self.factor}" + ("" if self.inner else " outer")


class Merge(Transform):
    """Two axes to one, the second running fastest.

    `whole` is how the extent is written where it is `product`: a reshape knows it.
    """

    __slots__ = ("product", "whole")

    def __init__(
        self,
        outer: IterDomain,
        inner: IterDomain,
        algebra: Simplifier,
        *,
        kind: IterKind | None = None,
        product: Expr | None = None,
        whole: Expr | None = None,
    ) -> None:
        self.product, self.whole = product, whole
        size = algebra.mul(outer.size, inner.size)
        if whole is not None and size is product:
            size = whole
        merged = inner.kind if outer.is_broadcast else outer.kind
        self._bind([outer, inner], [IterDomain(size, kind or merged)])

    @property
    def key(self) -> Hashable:
        return ("merge",)

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Merge:
        return Merge(inputs[0], inputs[1], algebra, product=self.product, whole=self.whole)

    def accepts(self, inputs: Sequence[IterDomain]) -> bool:
        return len({axis.kind for axis in inputs if not axis.is_broadcast}) < 2

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        width = algebra.simplify(self.inputs[1].size)
        return algebra.floordiv(outputs[0], width), algebra.mod(outputs[0], width)

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        width = algebra.simplify(self.inputs[1].size)
        return (algebra.add(algebra.mul(inputs[0], width), inputs[1]),)

    def carries(self, present: Sequence[bool]) -> dict[int, int]:
        return {position: 0 for position, here in enumerate(present) if here}

    def describe(self) -> str:
        return "merge"


class Skew(Transform):
    """A loop over steps to one over waves: element i of step s is in wave ``s + factor * i``.

    With a factor below 0 elements are counted from the last one. The other axis stays as it is; the
    loop over waves is no longer than one over all steps and then so many more for each element.
    """

    __slots__ = ("factor",)

    def __init__(
        self, step: IterDomain, axis: IterDomain, factor: int, algebra: Simplifier
    ) -> None:
        self.factor = factor
        more = algebra.mul(integer(abs(factor)), axis.size)
        waves = ONE if step.is_broadcast else algebra.add(step.size, more)
        self._bind([step, axis], [IterDomain(waves, step.kind), IterDomain(axis.size, axis.kind)])

    @property
    def key(self) -> Hashable:
        return ("skew", self.factor)

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Skew:
        return Skew(inputs[0], inputs[1], self.factor, algebra)

    def _later(self, index: Expr, algebra: Simplifier) -> Expr:
        """Return how many waves later than its step an element is."""
        if self.factor < 0:
            index = algebra.sub(algebra.sub(self.inputs[1].size, ONE), index)
        return algebra.mul(integer(abs(self.factor)), index)

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        wave, index = outputs
        return algebra.sub(wave, self._later(index, algebra)), index

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        step, index = inputs
        return algebra.add(step, self._later(index, algebra)), index

    def overshoots(self, algebra: Simplifier) -> tuple[IterDomain, ...]:
        return () if self.inputs[0].is_broadcast else self.inputs[:1]

    def undershoots(self, algebra: Simplifier) -> tuple[IterDomain, ...]:
        return self.overshoots(algebra)

    def sources(self, output: IterDomain) -> tuple[IterDomain, ...]:
        return self.inputs if output is self.outputs[0] else self.inputs[1:]

    def describe(self) -> str:
        return f"skew by {self.factor}"


@fast_init
@dataclass(frozen=True, eq=False)
class TensorDomain:
    """The axes of a tensor at every level, as node sets of the domain graph; immutable.

    `root`: the axes that the definition computes over, reductions included. `rfactor`: what
    consumers see (with reductions, which they skip); the root itself unless a reduction was
    factored. `leaf`: the loops, outermost first. `allocation`: the axes of the buffer in the order
    of memory, made from the logical ones (see `layout_transforms`); None where they follow from
    the loops.
    """

    root: tuple[IterDomain, ...]
    rfactor: tuple[IterDomain, ...]
    leaf: tuple[IterDomain, ...]
    allocation: tuple[IterDomain, ...] | None = None

    @staticmethod
    def of_root(root: Iterable[IterDomain]) -> TensorDomain:
        """Return the untransformed domain."""
        axes = tuple(root)
        return TensorDomain(axes, axes, axes)

    def __getstate__(self) -> dict[str, tuple[IterDomain, ...] | None]:
        levels = {"root": self.root, "rfactor": self.rfactor, "leaf": self.leaf}
        return {**levels, "allocation": self.allocation}

    def axes(self) -> tuple[IterDomain, ...]:
        """Return the axes of every level."""
        return (*self.root, *self.rfactor, *self.leaf, *(self.allocation or ()))

    @cached_property
    def logical(self) -> tuple[IterDomain, ...]:
        """The rfactor axes without reductions: the shape that consumers index."""
        return tuple([axis for axis in self.rfactor if not axis.is_reduction])

    @cached_property
    def is_factored(self) -> bool:
        """Whether consumers index other axes than those of the root that are not reduced."""
        return self.logical != tuple([axis for axis in self.root if not axis.is_reduction])

    @cached_property
    def history(self) -> tuple[Transform, ...]:
        """Every transform from root to leaf and rfactor, inputs before users."""
        return tuple(transforms_between(self.root, (*self.rfactor, *self.leaf)))

    @cached_property
    def uses(self) -> dict[IterDomain, Transform]:
        """The transform that consumes each inner axis of this domain."""
        return {axis: step for step in self.history for axis in step.inputs}

    def with_leaf(self, leaf: Iterable[IterDomain]) -> TensorDomain:
        """Return this domain with other loops."""
        return replace(self, leaf=tuple(leaf))

    def with_allocation(self, allocation: Iterable[IterDomain] | None) -> TensorDomain:
        """Return this domain with another layout of the buffer."""
        return replace(self, allocation=None if allocation is None else tuple(allocation))

    def __str__(self) -> str:
        inner = ", ".join(f"{axis.label(i)}: {axis.size}" for i, axis in enumerate(self.leaf))
        return f"[{inner}]"

    def loop_label(self, place: int) -> str:
        """Return how the loop of a leaf axis is called beside its tensor: ``i0``, or its name.

        A name that two axes have, or that is like a position, would say nothing there.
        """
        axis = self.leaf[place]
        if axis.is_named and not _PLACE.fullmatch(axis.names[0]):
            same = [a for a in self.leaf if a.is_named and a.names[0] == axis.names[0]]
            if len(same) == 1:
                return axis.names[0]
        return f"{axis.kind.letter}{place}"


def undone(
    step: Transform, inputs: Sequence[IterDomain], algebra: Simplifier
) -> tuple[IterDomain, ...] | None:
    """Return the axes that a step on `inputs` makes again, which another step took away; else None.

    A split of a merge into extents of what was merged, and a merge of both parts of a split that
    leaves nothing over: of a reshape that another one turns back.
    """
    if not inputs or any(axis.is_broadcast for axis in inputs):
        return None
    made = inputs[0].definition
    if isinstance(step, Split) and isinstance(made, Merge):
        width = algebra.simplify(step.inner_extent(algebra))
        known = not any(axis.is_broadcast for axis in made.inputs)
        if known and algebra.equal(algebra.simplify(made.inputs[1].size), width):
            return made.inputs
    if isinstance(step, Merge) and isinstance(made, Split) and made.outputs == tuple(inputs):
        return None if made.overshoots(algebra) else made.inputs
    return None


def same_axes(domain: TensorDomain, algebra: Simplifier) -> dict[IterDomain, IterDomain]:
    """Return for axes of a reshaped tensor the earlier one that runs over the same points."""
    result: dict[IterDomain, IterDomain] = {}
    if domain.rfactor is domain.root or any(axis.is_reduction for axis in domain.root):
        return result
    own = set(transforms_between(domain.root, domain.rfactor))
    for step in domain.history:
        inputs = [result.get(axis, axis) for axis in step.inputs]
        ends = inputs and inputs[0].definition in own
        found = undone(step, inputs, algebra) if ends else None
        for axis, earlier in zip(step.outputs, found or (), strict=False):
            result[axis] = result.get(earlier, earlier)
    return result


def transforms_between(
    start: Iterable[IterDomain], ends: Iterable[IterDomain]
) -> Iterator[Transform]:
    """Yield the transforms from `start` to `ends` once, inputs before users."""
    stop = set(start)
    seen: set[Transform] = set()
    for end in ends:
        stack: list[tuple[IterDomain, bool]] = [(end, False)]
        while stack:
            axis, ready = stack.pop()
            step = axis.definition
            if step is None or axis in stop or step in seen:
                continue
            if ready:
                seen.add(step)
                yield step
            else:
                stack.append((axis, True))
                stack.extend((source, False) for source in reversed(step.inputs))


def connected(axes: Iterable[IterDomain]) -> list[IterDomain]:
    """Return `axes` and every axis that one was made from or beside, in a fixed order."""
    found: dict[IterDomain, None] = {}
    stack = list(axes)[::-1]
    while stack:
        axis = stack.pop()
        if axis not in found:
            found[axis] = None
            step = axis.definition
            if step is not None:
                stack.extend((*step.outputs, *step.inputs))
    return list(found)


def ancestors(axes: Iterable[IterDomain], within: TensorDomain) -> set[IterDomain]:
    """Return `axes` and every axis of `within` that they run over parts of."""
    stop = set(within.root)
    found: set[IterDomain] = set()
    stack = list(axes)
    while stack:
        axis = stack.pop()
        if axis in found:
            continue
        found.add(axis)
        if axis.definition is not None and axis not in stop:
            stack.extend(axis.definition.sources(axis))
    return found


def indices_backward(
    domain: TensorDomain, known: dict[IterDomain, Expr], algebra: Simplifier
) -> dict[IterDomain, Expr]:
    """Return `known` (indices of the leaves) completed to every axis back to the root."""
    result = dict(known)
    for step in reversed(domain.history):
        outputs = [result.get(axis, ZERO) for axis in step.outputs]
        for axis, value in zip(step.inputs, step.backward(outputs, algebra), strict=True):
            result.setdefault(axis, value)
    return result
