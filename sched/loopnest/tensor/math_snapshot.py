"""The math of a fusion as it was when a kernel was lowered: immutable, whatever is scheduled later.

A kernel carries it, so that checkers can hold the loop nest against the definitions. Everything is
plain data in the scalar language: which element of which producer a value needs, what a reduction
starts from, how it takes one element in. Indices of factored reductions are written out here, by
the transforms, without the simplifier.

In the templates `Coordinate(d)` is the index along root axis d, `Arg(i)` what read i finds for
i < n (their number), and `Arg(n + k)` the partial result of component k of a reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, partial
from typing import cast

from loopnest.base.pickling import State, dump_table, fields_of, load_table
from loopnest.scalar import dtypes
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import IterKind, Memory, ParallelType
from loopnest.scalar.expr import (
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    Op,
    ScalarParam,
    Symbol,
)
from loopnest.scalar.record_text import Field, MemberKind
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import at
from loopnest.tensor.domain import (
    IterDomain,
    Merge,
    Split,
    TensorDomain,
    Transform,
    connected,
    transforms_between,
)
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import Definition, Distinct, Read, Scan, TensorView, TracedReducer


@dataclass(frozen=True, slots=True)
class MathAxis:
    """An axis: how many points, of what kind."""

    extent: Expr
    kind: IterKind


@dataclass(frozen=True, slots=True)
class MathRead:
    """Which element of a tensor a definition reads.

    Args:
        producer: the name of the tensor read.
        indices: for each of its logical axes the index, in terms of the root's `Coordinate`s and,
            where it depends on data, of the `Arg`s of other reads.
    """

    producer: str
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class MathDefinition:
    """What a tensor is computed from.

    Args:
        op: the operation's name, for people.
        reads: what it reads; `Arg(i)` stands for what `reads[i]` finds.
        outputs: names of the tensors that are defined together, one a component.
        component: which of them this one is.
        values: for each component the value at an element (of a reduction: of that element alone).
        reducer: how the values fold; None for a pointwise definition.
        scan: along which axis they fold so far; None where over reduction axes.
        start: the number of the read in whose memory it folds, None where it makes its own start.
        updates: each component after one more element, in terms of `Arg(len(reads) + k)`.
        distinct: what is declared of the elements of the first read's producer.
        carried: the numbers of the reads of what an earlier step computed.
    """

    op: str
    reads: tuple[MathRead, ...]
    outputs: tuple[str, ...]
    component: int
    values: tuple[Expr, ...]
    reducer: TracedReducer | None = None
    updates: tuple[Expr, ...] = ()
    scan: Scan | None = None
    start: int | None = None
    distinct: Distinct | None = None
    carried: tuple[int, ...] = ()

    @property
    def producers(self) -> tuple[str, ...]:
        """The names of the tensors read, each once."""
        return tuple(dict.fromkeys([read.producer for read in self.reads]))

    @property
    def identity(self) -> tuple[Const, ...]:
        """What a reduction starts from, a component each."""
        return () if self.reducer is None else self.reducer.identity


@dataclass(frozen=True, slots=True)
class MathTensor:
    """A tensor.

    Args:
        name: of the TensorView.
        dtype: of its elements.
        root: the axes that its definition computes over, reductions included.
        logical: the axes that consumers index.
        places: for each logical axis its index, in terms of the root's `Coordinate`s.
        definition: None for an input.
        role: "input", "output" or "".
        inplace: the input whose memory an output takes, else "".
        strides: of an input that was declared with strides, in elements.
        instruction: the name of the row that computes it, of a reduction; "": none does.
        steps: how many of these instructions make an element.
        domain: the axes of the tensor, from which `thaw` makes it again.
    """

    name: str
    dtype: DType
    root: tuple[MathAxis, ...]
    logical: tuple[MathAxis, ...]
    places: tuple[Expr, ...]
    definition: MathDefinition | None
    role: str = ""
    inplace: str = ""
    strides: tuple[Expr, ...] | None = None
    instruction: str = ""
    steps: Expr = ZERO
    domain: TensorDomain | None = field(default=None, repr=False, compare=False)

    @property
    def is_factored(self) -> bool:
        """Whether consumers see other axes than those it computes over."""
        kept = [n for n, a in enumerate(self.root) if a.kind is not IterKind.REDUCTION]
        return self.places != tuple([Coordinate(n) for n in kept])

    def claimed(self, coordinate: Sequence[Expr], *, whole: bool) -> tuple[Expr, ...]:
        """Return the logical index that a store claims; `whole` as in `kir.WHOLE_ELEMENTS`."""
        if whole and self.is_factored:
            return tuple(coordinate)
        return tuple([at(place, coordinate) for place in self.places])

    def claims(self, *, whole: bool) -> tuple[MathAxis, ...]:
        """Return the axes that a store's claim runs along."""
        return self.logical if whole and self.is_factored else self.root

    @property
    def scan(self) -> Scan | None:
        """The axis along which each element has what is folded so far, if there is one."""
        return None if self.definition is None else self.definition.scan

    @property
    def accumulates(self) -> bool:
        """Whether a fold is needed: more than one element, or points that have none."""
        if self.definition is None or not self.definition.reducer:
            return False
        return (
            self.is_factored
            or self.scan is not None
            or any(a.kind is IterKind.REDUCTION and not _is_one(a.extent) for a in self.root)
        )


@dataclass(frozen=True)
class MathSnapshot:
    """The math of a kernel: tensors in order of creation, scalars, sizes, assumptions, outputs.

    `ranges` are those that are declared of the elements of inputs.
    """

    name: str
    tensors: tuple[MathTensor, ...]
    scalars: tuple[ScalarParam, ...]
    symbols: tuple[Symbol, ...]
    conditions: tuple[tuple[str, Expr], ...]
    outputs: tuple[str, ...] = ()
    ranges: tuple[DataRange, ...] = ()

    def tensor(self, name: str) -> MathTensor | None:
        """Return the tensor of that name, or None."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, MathTensor]:
        return {t.name: t for t in self.tensors}

    def __reduce__(self) -> tuple[Callable[[bytes], MathSnapshot], tuple[bytes]]:
        """Pickle a table of the axes, without the fusion that they are of."""
        domains = [t.domain for t in self.tensors if t.domain is not None]
        members = connected([axis for domain in domains for axis in domain.axes()])
        parts = tuple([getattr(self, f.name) for f in fields(self)])
        return _loaded, (dump_table(parts, members, _unscheduled_axis),)


def _unscheduled_axis(axis: IterDomain) -> State:
    """Return what the math knows of an axis."""
    fresh = IterDomain(axis.size, axis.kind)
    return {**fields_of(fresh), "definition": axis.definition}


def _loaded(table: bytes) -> MathSnapshot:
    return MathSnapshot(*load_table(table))


AXES: Mapping[str, MemberKind] = {
    "IterDomain": MemberKind(
        lambda: IterDomain(ZERO),
        {
            "size": Field(Expr),
            "kind": Field(IterKind),
            "definition": Field(Transform | None, None),
        },
        late=True,
        word="axis",
    ),
    **{
        kind.__name__: MemberKind(
            partial(object.__new__, kind),
            {
                **own,
                "inputs": Field(tuple[IterDomain, ...]),
                "outputs": Field(tuple[IterDomain, ...]),
            },
            late=True,
            word=kind.__name__.lower(),
        )
        for kind, own in (
            (
                Split,
                {
                    "factor": Field(Expr),
                    "inner": Field(bool),
                    "whole": Field(Expr | None, None),
                    "rest": Field(Expr | None, None),
                },
            ),
            (
                Merge,
                {"product": Field(Expr | None, None), "whole": Field(Expr | None, None)},
            ),
        )
    },
    "TensorDomain": MemberKind(
        lambda: TensorDomain((), (), ()),
        {"root": Field(tuple[IterDomain, ...]), "rfactor": Field(tuple[IterDomain, ...])},
        late=True,
        word="domain",
    ),
}
"""The members of a kernel's full text that belong to its math: what is kept of an axis."""


def capture(fusion: Fusion) -> Callable[[], MathSnapshot]:
    """Return a function that makes the snapshot of `fusion` as it is now, when first called.

    Only references are taken here (lowering pays for it): definitions and domains are immutable,
    names and outputs are not, so these are copied.
    """
    outputs = set(fusion.outputs)
    taken = [
        (
            t.name,
            t.dtype,
            t.domain,
            t.definition,
            "output" if t in outputs else "input" if t.definition is None else "",
            fusion.inplace[t].name if t in fusion.inplace else "",
            t.strides,
            t.instruction,
            _steps(t) if t.instruction else ZERO,
        )
        for t in fusion.tensors
    ]
    names = {t: t.name for t in fusion.tensors}
    named = tuple([t.name for t in fusion.outputs])
    rest = (fusion.name, fusion.scalars, fusion.symbols, tuple(fusion.facts.conditions))
    ranges = fusion.ranges

    @cache
    def make() -> MathSnapshot:
        tensors = tuple([_tensor(*fields, names) for fields in taken])
        return MathSnapshot(rest[0], tensors, *rest[1:], named, ranges)

    return make


def _steps(tensor: TensorView) -> Expr:
    """Return how many instructions make an element of what one computes."""
    return tensor.fusion.algebra.product(
        axis.size
        for axis in tensor.domain.leaf
        if axis.is_reduction and axis.parallel is not ParallelType.mma
    )


def snapshot(fusion: Fusion) -> MathSnapshot:
    """Return the math of `fusion` as it is now."""
    return capture(fusion)()


def _tensor(
    name: str,
    dtype: DType,
    domain: TensorDomain,
    definition: Definition | None,
    role: str,
    inplace: str,
    strides: tuple[Expr, ...] | None,
    instruction: str,
    steps: Expr,
    names: dict[TensorView, str],
) -> MathTensor:
    return MathTensor(
        name,
        dtype,
        _axes(domain.root),
        _axes(domain.logical),
        logical_places(domain),
        None if definition is None else _definition(name, definition, names),
        role,
        inplace,
        strides,
        instruction,
        steps,
        domain,
    )


def _axes(axes: Sequence[IterDomain]) -> tuple[MathAxis, ...]:
    return tuple([MathAxis(axis.size, axis.kind) for axis in axes])


def _definition(name: str, found: Definition, names: dict[TensorView, str]) -> MathDefinition:
    outputs = tuple([names[t] for t in found.outputs])
    reads = tuple([MathRead(names[r.producer], r.indices) for r in found.reads])
    reducer = found.reducer
    updates: tuple[Expr, ...] = ()
    if reducer is not None:
        partial = tuple([Arg(len(reads) + k, t) for k, t in enumerate(reducer.types)])
        updates = reducer.combine(partial, found.values)
    return MathDefinition(
        found.op,
        reads,
        outputs,
        outputs.index(name),
        found.values,
        reducer,
        updates,
        found.scan,
        found.start,
        found.distinct,
        found.carried,
    )


def logical_places(domain: TensorDomain) -> tuple[Expr, ...]:
    """Return the index of each logical axis in terms of the root's coordinates."""
    known: dict[IterDomain, Expr] = {a: Coordinate(n) for n, a in enumerate(domain.root)}
    plain = cast(Simplifier, _Plain())
    for step in transforms_between(domain.root, domain.rfactor):
        images = step.forward([known[axis] for axis in step.inputs], plain)
        known.update(zip(step.outputs, images, strict=True))
    return tuple([known[axis] for axis in domain.logical])


class _Plain:
    """What transforms ask of an algebra, without any rule: each call makes the node it names."""

    def simplify(self, value: Expr) -> Expr:
        """Return `value` itself."""
        return value

    def __getattr__(self, op: str) -> Callable[[Expr, Expr], Expr]:
        if op not in ("add", "sub", "mul", "floordiv", "mod", "ceildiv", "max", "min"):
            raise AttributeError(op)
        return lambda a, b: Op(op, (a, b), dtypes.index)


def thaw(math: MathSnapshot) -> Fusion:
    """Return a new fusion of the same math, without a schedule."""
    fusion = Fusion(math.name)
    fusion._scalars.update({s.name: s for s in math.scalars})
    fusion._symbols.update({s.name: s for s in math.symbols})
    for text, condition in math.conditions:
        fusion.facts.state(text, condition)
    fusion.ranges = math.ranges
    made: dict[str, TensorView] = {}
    for tensor in math.tensors:
        assert tensor.domain is not None
        made[tensor.name] = TensorView(fusion, _unscheduled(tensor.domain), tensor.dtype)
        made[tensor.name]._name = tensor.name
        made[tensor.name].strides = tensor.strides
    done: dict[tuple[str, ...], Definition] = {}
    for tensor in math.tensors:
        found = tensor.definition
        if found is None:
            continue
        if found.outputs not in done:
            done[found.outputs] = Definition(
                found.op,
                tuple([made[name] for name in found.producers]),
                tuple([Read(made[read.producer], read.indices) for read in found.reads]),
                tuple([made[name] for name in found.outputs]),
                found.values,
                found.reducer,
                scan=found.scan,
                start=found.start,
                distinct=found.distinct,
                carried=found.carried,
            )
        made[tensor.name].define(done[found.outputs])
    fusion._inputs = tuple([made[t.name] for t in math.tensors if t.role == "input"])
    fusion._outputs = tuple([made[name] for name in math.outputs])
    for array in (*fusion._inputs, *fusion._outputs):
        array._memory = Memory.GLOBAL
    fusion.version += 1
    return fusion


def _unscheduled(domain: TensorDomain) -> TensorDomain:
    image = {axis: IterDomain(axis.size, axis.kind) for axis in domain.root}
    plain = Simplifier()
    for step in transforms_between(domain.root, domain.rfactor):
        copy = step.replay([image[axis] for axis in step.inputs], plain)
        for old, new in zip(step.outputs, copy.outputs, strict=True):
            new.kind, new.size = old.kind, old.size
            image[old] = new
    root = tuple([image[axis] for axis in domain.root])
    rfactor = tuple([image[axis] for axis in domain.rfactor])
    return TensorDomain(root, rfactor, rfactor)


def _is_one(extent: Expr) -> bool:
    return isinstance(extent, Const) and extent.value == 1
