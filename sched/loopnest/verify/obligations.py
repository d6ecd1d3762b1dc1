"""What the math demands of each store: which element of which tensor every read must be.

A store's value is held against the template of its tensor's definition: the two must be the same
tree but for operands, which are loads, and coordinates, which are index expressions. What stands at
an operand's place must be that operand's element, at the coordinate that the store claims.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopnest import kir
from loopnest.enums import IterKind
from loopnest.expr import (
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    Load,
    Local,
    Op,
    ScalarParam,
    walk,
)
from loopnest.math_snapshot import MathSnapshot, MathTensor, at
from loopnest.verify.model import Access, Guards, Model, Site, reads_memory


@dataclass(frozen=True, eq=False, slots=True)
class Need:
    """A read and what it must read.

    Args:
        access: the read.
        tensor: the tensor whose element it must be.
        element: its logical index; for the partial result of a reduction ("own"), of the store.
        own: whether it reads the partial result that the store updates.
    """

    access: Access
    tensor: MathTensor
    element: tuple[Expr, ...]
    own: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Work:
    """A store with the math behind it.

    Args:
        site: the store's.
        store: the store.
        tensor: what it claims to compute.
        write: its write.
        element: the logical index that it claims; empty for "init".
        needs: its reads.
        equalities: (coordinate of the math, what stands in its place); both must be equal.
    """

    site: Site
    store: kir.Store
    tensor: MathTensor
    write: Access
    element: tuple[Expr, ...]
    needs: tuple[Need, ...]
    equalities: tuple[tuple[Expr, Expr], ...]

    @property
    def is_final(self) -> bool:
        """Whether it stores a whole value, no partial result of a reduction."""
        return self.store.role in ("define", "finish")


class Mismatch(Exception):
    """A statement that is not the math's: (kind, whether that refutes it, sentence)."""

    def __init__(self, kind: str, refutes: bool, message: str) -> None:
        super().__init__(message)
        self.kind, self.refutes, self.message = kind, refutes, message


def work_of(model: Model, math: MathSnapshot, site: Site) -> Work:
    """Return the store at `site` with what the math demands of it.

    Raises:
        Mismatch: it does not compute what its tensor is defined as.
    """
    store = site.node
    assert isinstance(store, kir.Store)
    tensor = math.tensor(store.tensor)
    if tensor is None or tensor.definition is None:
        raise Mismatch("value", True, f"stores '{store.tensor}', which the math does not compute")
    if len(store.coordinate) != len(tensor.root):
        raise Mismatch("claim", True, f"claims {len(store.coordinate)} coordinates for "
                       f"the {len(tensor.root)} root axes of {tensor.name}")  # fmt: skip
    write = Access(site, site, store.storage, store.index, store.flat, True)
    for index in store.index:
        if reads_memory(index):
            raise Mismatch("value", False, f"writes at '{index}', an index that depends on data")
    element = tuple([at(place, store.coordinate) for place in tensor.places])
    found = _Matcher(site, tensor).run()
    needs = tuple(_need(math, tensor, store, number, access) for number, access in found.reads)
    return Work(site, store, tensor, write, element, needs, tuple(found.equalities))


def _need(
    math: MathSnapshot, tensor: MathTensor, store: kir.Store, number: int, access: Access
) -> Need:
    definition = tensor.definition
    assert definition is not None
    for index in access.index:
        if reads_memory(index):
            raise Mismatch("value", False, f"reads at '{index}', an index that depends on data")
    if store.role == "finish":
        element = tuple([at(place, store.coordinate) for place in tensor.places])
        return Need(access, tensor, element)
    count = len(definition.producers)
    if number >= count:
        twin = math.tensor(definition.outputs[number - count])
        assert twin is not None
        return Need(access, twin, (), own=True)
    producer = math.tensor(definition.producers[number])
    assert producer is not None
    needed: list[Expr] = []
    for axis, place in zip(producer.logical, definition.maps[number], strict=True):
        repeated = place is None or axis.kind is IterKind.BROADCAST
        needed.append(ZERO if repeated or place is None else store.coordinate[place])
    return Need(access, producer, tuple(needed))


class _Matcher:
    """Hold the value of a store against its template."""

    def __init__(self, site: Site, tensor: MathTensor) -> None:
        assert isinstance(site.node, kir.Store)
        self.site, self.store, self.tensor = site, site.node, tensor
        self.reads: list[tuple[int, Access]] = []
        self.equalities: list[tuple[Expr, Expr]] = []
        self._seen: set[tuple[Expr, Expr, Site, Guards]] = set()

    def run(self) -> _Matcher:
        definition = self.tensor.definition
        assert definition is not None
        role = self.store.role
        if role == "define" and self.tensor.accumulates:
            raise Mismatch("value", True, f"is no accumulation of {self.tensor.name}")
        if role != "define" and not definition.reducer:
            reason = f"is a '{role}' of {self.tensor.name}, which is no reduction"
            raise Mismatch("value", True, reason)
        component = definition.component
        if role == "init":
            self._identity(definition.identity[component])
        elif role == "finish":
            self._finish()
        else:
            templates = definition.updates if role == "update" else definition.values
            self._match(templates[component], self.store.value, self.site, ())
        return self

    def _identity(self, wanted: Const) -> None:
        if self.store.value is not wanted:
            found = self.store.value
            refutes = isinstance(found, Const) and _other_value(found, wanted)
            raise Mismatch(
                "value",
                refutes,
                f"starts {self.tensor.name} from {found}, its identity is {wanted}",
            )

    def _finish(self) -> None:
        value = self.store.value
        if not isinstance(value, Load):
            raise Mismatch("value", False, f"finishes {self.tensor.name} with '{value}', no load")
        self.reads.append((0, self._read(value, self.site, ())))

    def _read(self, load: Load, moment: Site, guards: Guards) -> Access:
        return Access(self.site, moment, load.buffer, load.args, load.flat, False, guards)

    def _match(self, template: Expr, value: Expr, moment: Site, guards: Guards) -> None:
        while isinstance(value, Local):
            let = moment.lets.get(value) or self.site.lets.get(value)
            if let is None or not isinstance(let.node, kir.Let):
                raise Mismatch("scope", True, f"uses {value}, which is not defined there")
            value, moment = let.node.value, let
        key = (template, value, moment, guards)
        if key in self._seen:
            return
        self._seen.add(key)
        match template:
            case Arg():
                self._operand(template, value, moment, guards)
            case Coordinate():
                self.equalities.append((self.store.coordinate[template.number], value))
            case Op():
                self._operation(template, value, moment, guards)
            case _:
                if template is not value:
                    raise self._differs(template, value)

    def _operand(self, template: Arg, value: Expr, moment: Site, guards: Guards) -> None:
        if not isinstance(value, Load):
            raise self._differs(template, value)
        if value.dtype is not template.dtype:
            raise Mismatch("value", False, f"reads a {value.dtype} where the math has a "
                           f"{template.dtype}")  # fmt: skip
        self.reads.append((template.number, self._read(value, moment, guards)))

    def _operation(self, template: Op, value: Expr, moment: Site, guards: Guards) -> None:
        same = isinstance(value, Op) and (value.op, value.dtype) == (template.op, template.dtype)
        if not same or len(value.args) != len(template.args):
            raise self._differs(template, value)
        for number, (a, b) in enumerate(zip(template.args, value.args, strict=True)):
            self._match(a, b, moment, _guarded(value, number, guards))

    def _differs(self, template: Expr, value: Expr) -> Mismatch:
        whole = self.tensor.definition
        assert whole is not None
        return Mismatch(
            "value", False, f"computes '{value}' where the math of {self.tensor.name} "
            f"({whole.op}) has '{template}'"
        )  # fmt: skip


def _guarded(value: Expr, number: int, guards: Guards) -> Guards:
    """Return the conditions under which operand `number` of an operation is evaluated."""
    assert isinstance(value, Op)
    if number == 0 or reads_memory(value.args[0]) or not _decidable(value.args[0]):
        return guards
    if value.op == "where":
        return (*guards, (value.args[0], number == 1))
    if value.op in ("and", "or"):
        return (*guards, (value.args[0], value.op == "and"))
    return guards


def _decidable(condition: Expr) -> bool:
    """Whether a condition is one of indices and sizes alone."""
    nodes = list(walk(condition))
    return all(n.dtype.kind == "x" or n.dtype.is_bool for n in nodes) and not any(
        isinstance(n, (Local, ScalarParam)) for n in nodes
    )


def _other_value(found: Const, wanted: Const) -> bool:
    return found.dtype is not wanted.dtype or found.value != wanted.value
