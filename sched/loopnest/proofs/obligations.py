"""The proof obligations of each store: which element of which tensor every read must be.

A store's value is held against the template of its tensor's definition (`template_matching`). What
stands at an operand's place must be that operand's element, at the coordinate that the store
claims. A reduction goes through stages: partial results of threads, of blocks, of all. Each stage
is a store or a collective that takes partial results and makes one; what a partial result holds is
followed from stage to stage, never claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from loopnest import kir
from loopnest.base.errors import VerifyError
from loopnest.proofs.data_indices import DataIndices, Need, Trusted, Unbounded
from loopnest.proofs.live_points import LivePoints
from loopnest.proofs.program_model import Access, Model, Site, reads_memory
from loopnest.proofs.report import Finding
from loopnest.proofs.template_matching import (
    Agreement,
    Combined,
    Mismatch,
    Operand,
    StoredValue,
    match,
    reducer_of,
)
from loopnest.proofs.witness import Witness
from loopnest.scalar.expr import Expr, Load
from loopnest.scalar.templates import at
from loopnest.tensor.math_snapshot import MathDefinition, MathSnapshot, MathTensor
from loopnest.tensor.tensor_view import data_of

Kind: TypeAlias = 'Literal["define", "fill", "init", "update", "merge", "partial", "finish"]'

_KINDS: Mapping[str, Kind] = {
    "define": "define", "fill": "fill", "init": "init", "update": "update",
    "merge": "merge", "partial": "partial", "finish": "finish",
}  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Work:
    """A store with the math behind it.

    Args:
        site: the store's.
        store: the store.
        tensor: what it claims to compute.
        kind: its role; "merge" is an update by another partial result of the same reduction, "fill"
            stores a constant at an element that lies outside of the tensor.
        write: its write.
        element: the logical index that it claims; empty for "init" and "partial".
        needs: its reads.
        equalities: (coordinate of the math, index in the nest) that must be equal.
        conditions: conditions of the math, and what must say the same.
        trusted: what the math asks of the data that indices are computed from.
        unbounded: those of these data of which nothing says that they fulfil it.
    """

    site: Site
    store: kir.Store
    tensor: MathTensor
    kind: Kind
    write: Access
    element: tuple[Expr, ...]
    needs: tuple[Need, ...]
    equalities: tuple[tuple[Expr, Expr], ...]
    conditions: tuple[Agreement, ...] = ()
    trusted: tuple[Trusted, ...] = ()
    unbounded: tuple[Unbounded, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether it stores a whole value, no partial result of a reduction."""
        return self.kind in ("define", "fill", "finish")

    @property
    def starts(self) -> bool:
        """Whether it begins a value: does not continue what is there."""
        return self.kind not in ("update", "merge")

    @property
    def part(self) -> Need | None:
        """The partial result that it takes in, where there is one."""
        return next((n for n in self.needs if n.demand == "part" and n.tensor is self.tensor), None)


@dataclass(frozen=True, eq=False, slots=True)
class CollectiveMath:
    """A collective with the math behind it.

    Args:
        site: the collective's.
        node: the collective.
        tensors: of each value, the outputs of the reduction, one a component.
        args: what each thread contributes: of each value, one a component.
    """

    site: Site
    node: kir.Collective
    tensors: tuple[MathTensor, ...]
    args: tuple[Operand, ...]


def work_of(
    model: Model,
    math: MathSnapshot,
    live: LivePoints,
    site: Site,
    other: StoredValue | None = None,
) -> Work:
    """Return the store at `site` with what the math demands of it.

    Args:
        model: the program.
        math: what it should compute.
        live: which elements of its reductions count.
        site: the store's.
        other: the operands of its value, where that is not of the math's form.

    Raises:
        Mismatch: it does not compute what its tensor is defined as.
    """
    store = site.node
    assert isinstance(store, kir.Store)
    kind = _KINDS.get(store.role)
    tensor = math.tensor(store.tensor if kind != "partial" else store.storage.tensor)
    if tensor is None or tensor.definition is None or kind is None:
        raise Mismatch("value", True, f"stores '{store.tensor}', which the math does not compute")
    for index in store.index:
        if reads_memory(index):
            raise Mismatch("value", False, f"writes at '{index}', an index that depends on data")
    write = Access(site, site, store.storage, store.index, store.flat, True, (), store.atomic)
    _same_type(store, tensor, kind)
    if kind == "partial":
        needs = _part(math, tensor, site)
        return Work(site, store, tensor, kind, write, (), needs, ())
    axes = tensor.claims(whole=store.role in kir.WHOLE_ELEMENTS)
    if len(store.coordinate) != len(axes):
        domain = "root" if axes is tensor.root else "logical"
        raise Mismatch("claim", True, f"claims {len(store.coordinate)} coordinates for "
                       f"the {len(axes)} {domain} axes of {tensor.name}")  # fmt: skip
    element = () if kind == "init" else _claimed(tensor, store)
    found = other or match(site, tensor, "update" if kind == "merge" else kind, model.algebra)
    if store.atomic and kind != "update":
        raise Mismatch("value", True, f"is atomic, and no update of {tensor.name}")
    if kind == "merge" and not found.merges:
        raise Mismatch("value", True, f"takes in no partial result of {tensor.name}")
    if found.merges:
        kind = "merge"
    data = DataIndices(math, tensor, store)
    own = [_need(data, kind, number, operand) for number, operand in found.reads]
    for need in own:
        _same_component(math, need)
    own += data.needs
    own += _tested(model, site, own)
    if kind == "update" and tensor.definition.reducer is not None:
        own += _bounds(model, math, live, tensor, site)
    return Work(
        site, store, tensor, kind, write, element, tuple(own),
        tuple(found.equalities), tuple(found.conditions), tuple(data.trusted),
        tuple(data.unbounded),
    )  # fmt: skip


def _tested(model: Model, site: Site, needs: Sequence[Need]) -> Iterator[Need]:
    """Yield what the tests around a store read of what it reads itself: they must find the same."""
    if not model.tests_around(site):
        return
    read = {(n.operand.buffer, n.operand.index, n.operand.flat): n
            for n in needs if isinstance(n.operand, Access)}  # fmt: skip
    for test in model.tests_around(site):
        for access in model.accesses_of(test):
            need = read.get((access.buffer, access.index, access.flat))
            if need is not None and need.demand == "whole":
                found = replace(access, site=site, moment=test)
                yield Need(found, need.tensor, need.element)


def _bounds(
    model: Model, math: MathSnapshot, live: LivePoints, tensor: MathTensor, site: Site
) -> Iterator[Need]:
    """Yield what the tests around an update must find of the inputs by which elements count."""
    store = site.node
    assert isinstance(store, kir.Store)
    for data, test, access in bounding_loads(model, live, tensor, site):
        source = math.tensor(access.buffer.tensor)
        assert source is not None
        element = tuple([at(index, store.coordinate) for index in data.args])
        found = replace(access, site=site, moment=test)
        yield Need(found, source, element[: len(source.logical)])


def bounding_loads(
    model: Model, live: LivePoints, tensor: MathTensor, site: Site
) -> Iterator[tuple[Load, Site, Access]]:
    """Yield for each input element by which the math chooses what a store folds where it is tested.

    That is a load of the same input by a test around the store, of the same element where there is
    one. What is yielded is the element of the math, over coordinates, the test and its access.
    """
    store = site.node
    assert isinstance(store, kir.Store)
    left: dict[Load, tuple[Site, Access]] = {}
    for test in model.tests_around(site):
        for access in model.accesses_of(test):
            if not access.flat:
                left.setdefault(Load(access.buffer, access.index), (test, access))
    wanted = [data for data in live.data(tensor) if isinstance(data, Load)]
    placed = {data: [at(i, store.coordinate) for i in data.args] for data in wanted}

    def same(data: Load, load: Load) -> bool:
        pairs = zip(placed[data], load.args, strict=True)
        return data.buffer is load.buffer and all(model.algebra.equal(a, b) for a, b in pairs)

    # Those of the same element come first, so that another one is held against what is left.
    chosen = {data: next((x for x in left if same(data, x)), None) for data in wanted}
    for load in chosen.values():
        if load is not None and load in left:
            yield from [(d, *left[load]) for d, x in chosen.items() if x is load]
            del left[load]
    for data in [data for data, load in chosen.items() if load is None]:
        other = next((x for x in left if x.buffer is data.buffer), None)
        if other is not None:
            yield data, *left.pop(other)


def _claimed(tensor: MathTensor, store: kir.Store) -> tuple[Expr, ...]:
    """Return the logical index that a store claims."""
    return tensor.claimed(store.coordinate, whole=store.role in kir.WHOLE_ELEMENTS)


def _same_type(store: kir.Store, tensor: MathTensor, kind: Kind) -> None:
    """Check the element type of a store: a partial result is not rounded, a whole value once."""
    whole = kind in ("define", "fill", "finish")
    wanted = tensor.dtype if whole else tensor.dtype.compute
    if store.storage.dtype is not wanted:
        what = "" if whole else "a partial result of "
        raise Mismatch(
            "value",
            True,
            f"stores {what}{tensor.name} as {store.storage.dtype}, the math has {wanted}",
        )


def _part(math: MathSnapshot, tensor: MathTensor, site: Site) -> tuple[Need, ...]:
    """Return what a store of a partial result reads: one of its own tensor."""
    found = StoredValue(site)
    assert isinstance(site.node, kir.Store)
    assert tensor.definition is not None
    if not tensor.definition.reducer:
        raise Mismatch("value", True, f"is a part of {tensor.name}, which is no reduction")
    operand = found.operand(site.node.value, site, ())
    if operand is None:
        raise Mismatch(
            "value", False, f"stores '{site.node.value}' as a partial result of {tensor.name}"
        )
    _check_index(operand)
    need = Need(operand, tensor, (), "part")
    _same_component(math, need)
    return (need,)


def _need(data: DataIndices, kind: Kind, number: int, operand: Operand) -> Need:
    math, tensor, store = data.math, data.tensor, data.store
    definition = tensor.definition
    assert definition is not None
    reads = kind not in ("finish", "merge") and number < len(definition.reads)
    if not (reads and data_of(definition.reads[number].indices)):
        _check_index(operand)
    if kind == "finish":
        return Need(operand, tensor, _claimed(tensor, store))
    if kind == "merge":
        twins = _twins(math, definition)
        own = number < len(twins)
        return Need(operand, twins[number % len(twins)], (), "own" if own else "part")
    count = len(definition.reads)
    if number >= count:
        return Need(operand, _twins(math, definition)[number - count], (), "own")
    read = definition.reads[number]
    producer = math.tensor(read.producer)
    assert producer is not None
    needed = data.element(read, producer, operand)
    return Need(operand, producer, needed)


def _check_index(operand: Operand) -> None:
    if isinstance(operand, Access):
        for index in operand.index:
            if reads_memory(index):
                reason = f"reads at '{index}', an index that depends on data"
                raise Mismatch("value", False, reason)


def _twins(math: MathSnapshot, definition: MathDefinition) -> tuple[MathTensor, ...]:
    found = [math.tensor(name) for name in definition.outputs]
    return tuple([t for t in found if t is not None])


def collective_math_of(math: MathSnapshot, site: Site) -> CollectiveMath:
    """Return the collective at `site` with the reduction that it is a stage of.

    Raises:
        Mismatch: it is no stage of a reduction of the math.
    """
    node = site.node
    assert isinstance(node, kir.Collective)
    found = StoredValue(site)
    args: list[Operand] = []
    for arg in node.args:
        operand = found.operand(arg, site, ())
        if operand is None:
            raise Mismatch("value", False, f"combines '{arg}', which no buffer holds")
        _check_index(operand)
        args.append(operand)
    definition = _reduction(math, args[0])
    tensors = _twins(math, definition)
    count = len(node.identity)
    given = len(node.results) - len(args) if node.scan else len(node.results)
    if len(tensors) != count or len(args) % count or given not in _wanted_results(node):
        raise Mismatch(
            "value",
            True,
            f"combines {len(args)} values by {count} components of {tensors[0].name}, which has "
            f"{len(tensors)}",
        )
    _same_reducer(node, tensors)
    return CollectiveMath(site, node, tensors * (len(args) // count), tuple(args))


def _wanted_results(node: kir.Collective) -> tuple[int, ...]:
    """Return how many results there may be; of a scan, beside those of each thread."""
    return (0, len(node.args)) if node.scan else (len(node.args),)


def _reduction(math: MathSnapshot, operand: Operand) -> MathDefinition:
    """Return the definition whose partial result a collective takes."""
    while isinstance(operand, Combined):
        node = operand.moment.node
        assert isinstance(node, kir.Collective)
        first = StoredValue(operand.moment).operand(node.args[0], operand.moment, ())
        if first is None:
            raise Mismatch("value", False, f"combines '{node.args[0]}', which no buffer holds")
        operand = first
    tensor = math.tensor(operand.buffer.tensor)
    if tensor is None or tensor.definition is None or not tensor.definition.reducer:
        raise Mismatch(
            "value", True, f"combines {operand}, which is no partial result of a reduction"
        )
    return tensor.definition


def _same_component(math: MathSnapshot, need: Need) -> None:
    """Check that a store takes the component of a collective's result that its tensor is."""
    operand = need.operand
    if isinstance(operand, Combined):
        outputs = _reduction(math, operand).outputs
        found = outputs[operand.component % len(outputs)]
        if found != need.tensor.name:
            raise Mismatch("value", True, f"takes {operand}, a part of {found}, for one of "
                           f"{need.tensor.name}")  # fmt: skip


def _same_reducer(node: kir.Collective, tensors: tuple[MathTensor, ...]) -> None:
    """Check that a collective's reducer is the math's: the same identity and combination."""
    wanted = reducer_of(tensors[0])
    found = (node.name, node.identity, node.combine)
    if found != (wanted.name, wanted.identity, wanted.combination):
        raise Mismatch(
            "value", True, f"combines by '{node.name}', not by the reducer of {tensors[0].name}"
        )


def program_of(k: Any, name: str) -> tuple[kir.Program, MathSnapshot]:
    """Return the program of a kernel, and its math.

    Raises:
        VerifyError: no kernel, or one without math; `name` is the function that was called.
    """
    lowered = getattr(k, "_lowered", k)
    program, make = getattr(lowered, "program", None), getattr(lowered, "math", None)
    if not isinstance(program, kir.Program) or make is None:
        raise VerifyError(
            f"{name}({k!r})", "it is no kernel that carries its math", "pass what ln.lower returns"
        )
    return program, make()


def obligations(
    model: Model, math: MathSnapshot
) -> tuple[list[Work], list[CollectiveMath], list[Finding]]:
    """Return the stores and collectives with what the math demands, and what it does not know."""
    works: list[Work] = []
    exchanges: list[CollectiveMath] = []
    problems: list[Finding] = []
    witness, live = Witness(model, {}, (1, 1, 1), (1, 1, 1)), LivePoints(math, model.program)
    problems += [
        witness.statement("scope", f"it uses {name}, which is not defined there", node)
        for node, name in model.undefined
    ]
    problems += _counters(model, witness)
    problems += _conversions(model, witness)
    for site in model.sites:
        try:
            if site.within is not None:
                continue
            if isinstance(site.node, kir.Collective):
                exchanges.append(collective_math_of(math, site))
            elif isinstance(site.node, kir.Store):
                works.append(work_of(model, math, live, site))
        except Mismatch as found:
            problems.append(_problem(witness, site, found))
    return works, exchanges, problems


def _counters(model: Model, witness: Witness) -> Iterator[Finding]:
    """Yield uses of counters that are no arrivals, and arrivals at what is no counter."""
    counters = model.counters
    for access in model.accesses:
        node, name = access.site.node, access.buffer.name
        if isinstance(node, kir.Arrive):
            if access.buffer.kind != "counter":
                yield witness.bare(
                    "arrival", f"it arrives at {name}, which is no counter", access.site
                )
        elif access.buffer in counters or access.buffer.kind == "counter":
            yield witness.bare("arrival", f"it uses the counter {name}", access.site)


def _conversions(model: Model, witness: Witness) -> Iterator[Finding]:
    """Yield where a value becomes one of another type: only the store of a tensor may round it."""
    for site in model.sites:
        match site.node:
            case kir.Let(var=var, value=value) | kir.Shuffle(var=var, value=value):
                name, found = var.name, var.dtype
            case kir.Store(storage=storage, value=value) if site.within is not None:
                name, found = storage.name, storage.dtype
            case _:
                continue
        if found is not value.dtype:
            message = f"{name} is {found} and takes a {value.dtype}"
            yield witness.bare("value", message, site)


def _problem(witness: Witness, site: Site, found: Mismatch) -> Finding:
    status: Literal["refuted", "unknown"] = "refuted" if found.refutes else "unknown"
    subject = "store" if isinstance(site.node, kir.Store) else "collective"
    return witness.bare(found.kind, f"the {subject} {found.message}", site, status)
