"""Hold the value of a store against the template of its tensor's definition.

The two must be the same tree but for operands, which are loads or the results of collectives, and
coordinates, which are index expressions. Nothing is rewritten: lowering puts templates together
and this takes them apart. What is computed from coordinates may stand there in another form; a
condition of them not at all where it is decided. It must be shown to be the same at every point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from loopnest import kir
from loopnest.proofs.program_model import Access, Guards, Site, guarded, is_decidable, reads_memory
from loopnest.scalar import dtypes
from loopnest.scalar.conditions import decided
from loopnest.scalar.expr import (
    FALSE,
    TRUE,
    Arg,
    Const,
    Coordinate,
    Expr,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
    walk,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import at
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor
from loopnest.tensor.tensor_view import TracedReducer


@dataclass(frozen=True, eq=False, slots=True)
class Combined:
    """A use of a result of a collective.

    Args:
        site: whose points use it.
        moment: the collective.
        component: which of its results.
        guards: conditions beside those of the site.
    """

    site: Site
    moment: Site
    component: int
    guards: Guards = ()

    def __str__(self) -> str:
        assert isinstance(self.moment.node, kir.Collective)
        return self.moment.node.results[self.component].name


Operand: TypeAlias = "Access | Combined"


@dataclass(frozen=True, eq=False, slots=True)
class Agreement:
    """A condition of the math, and what must say the same at every point where `guards` hold."""

    wanted: Expr
    found: Expr
    guards: Guards


class Mismatch(Exception):
    """A statement that is not the math's: (kind, whether that refutes it, sentence)."""

    def __init__(self, kind: str, refutes: bool, message: str) -> None:
        super().__init__(message)
        self.kind, self.refutes, self.message = kind, refutes, message


@dataclass(eq=False)
class StoredValue:
    """What a store's value turned out to be.

    Args:
        site: the store's.
        reads: (number of the template's operand, what stands in its place).
        equalities: (coordinate of the math, what stands in its place).
        conditions: what a condition of the math became.
        merges: whether it combines two partial results.
    """

    site: Site
    reads: list[tuple[int, Operand]] = field(default_factory=list)
    equalities: list[tuple[Expr, Expr]] = field(default_factory=list)
    conditions: list[Agreement] = field(default_factory=list)
    merges: bool = False

    def operand(self, value: Expr, moment: Site, guards: Guards) -> Operand | None:
        """Return a load or a collective's result; None for anything else."""
        value, moment = resolve(value, moment, self.site)
        if isinstance(value, Load):
            return Access(self.site, moment, value.buffer, value.args, value.flat, False, guards)
        if isinstance(value, Local):
            made = _definition(value, moment, self.site)
            if isinstance(made.node, kir.Collective):
                return Combined(self.site, made, made.node.results.index(value), guards)
        return None


def resolve(value: Expr, moment: Site, site: Site) -> tuple[Expr, Site]:
    """Return the value of a name, and the site that evaluates it.

    Raises:
        Mismatch: the name is not defined there.
    """
    # A name is bound once, before its uses, to an expression over names bound earlier: this ends.
    while isinstance(value, Local):
        made = _definition(value, moment, site)
        if not isinstance(made.node, kir.Let):
            break
        value, moment = made.node.value, made
    return value, moment


def _definition(name: Local, moment: Site, site: Site) -> Site:
    found = moment.names.get(name) or site.names.get(name)
    if found is None:
        raise Mismatch("scope", True, f"uses {name}, which is not defined there")
    return found


def match(site: Site, tensor: MathTensor, kind: str, algebra: Simplifier) -> StoredValue:
    """Return the operands of the store at `site`, of this role.

    Of conditions that lowering may have decided, those that `algebra` decides are taken so first.

    Raises:
        Mismatch: its value is not what the math says.
    """
    definition = tensor.definition
    store = site.node
    assert definition is not None
    assert isinstance(store, kir.Store)
    if kind == "fill":
        if not isinstance(store.value, Const):
            raise Mismatch("value", False, f"fills {tensor.name} with '{store.value}'")
        return StoredValue(site)
    if kind == "define" and tensor.accumulates:
        raise Mismatch("value", True, f"is no accumulation of {tensor.name}")
    if kind != "define" and not definition.reducer:
        raise Mismatch("value", True, f"is a '{kind}' of {tensor.name}, which is no reduction")
    component = definition.component
    found = StoredValue(site)
    if kind == "init":
        _identity(store.value, definition.identity[component], tensor)
    elif kind == "finish":
        operand = found.operand(store.value, site, ())
        if operand is None:
            reason = f"finishes {tensor.name} with '{store.value}', no load"
            raise Mismatch("value", False, reason)
        found.reads.append((0, operand))
    elif kind == "define":
        _Matcher(found, tensor, algebra).match(definition.values[component], store.value, site, ())
    else:
        return _update(site, tensor, algebra)
    return found


def _update(site: Site, tensor: MathTensor, algebra: Simplifier) -> StoredValue:
    """Match an update: by the value of an element, or by another partial result."""
    definition, store = tensor.definition, site.node
    assert definition is not None
    assert isinstance(store, kir.Store)
    component = definition.component
    found = StoredValue(site)
    try:
        _Matcher(found, tensor, algebra).match(definition.updates[component], store.value, site, ())
        refused = None
    except Mismatch as why:
        refused = why
    twins, producers = definition.outputs, definition.producers
    count = len(definition.reads)
    foreign = [o for n, o in found.reads if n < count and _holds(o, twins, producers)]
    if refused is None and not foreign:
        return found
    # The value of an element and a partial result may have one form (a sum adds both). It is the
    # second where the first does not fit, or where what would be the element lies in the memory of
    # the reduction.
    other = StoredValue(site, merges=True)
    try:
        _Matcher(other, tensor, algebra).match(
            reducer_of(tensor).combination[component], store.value, site, ()
        )
    except Mismatch:
        if refused is not None:
            raise refused from None
        return found
    return other


def _holds(operand: Operand, twins: Sequence[str], producers: Sequence[str]) -> bool:
    """Whether an operand holds a partial result of the reduction itself."""
    if isinstance(operand, Combined):
        return True
    return operand.buffer.tensor in twins and operand.buffer.tensor not in producers


def taken_apart(
    site: Site, math: MathSnapshot, tensor: MathTensor, kind: str
) -> tuple[StoredValue, Expr] | None:
    """Return the operands of a value that is not of the math's form, and the value over `Arg`s.

    A load is the operand of the tensor whose buffer it reads, an index that the store claims a
    `Coordinate`.

    Returns:
        None where it is made of anything else, and for what takes in partial results.
    """
    assert isinstance(site.node, kir.Store)
    if kind not in ("define", "update", "finish"):
        return None
    found = StoredValue(site)
    try:
        return found, _Apart(found, math, tensor, kind).opened(site.node.value, site, ())
    except Mismatch:
        return None


class _Apart:
    """Takes a value apart; see `taken_apart`."""

    def __init__(
        self, found: StoredValue, math: MathSnapshot, tensor: MathTensor, kind: str
    ) -> None:
        definition, store = tensor.definition, found.site.node
        assert definition is not None
        assert isinstance(store, kir.Store)
        self.found, self.store = found, store
        named = [read.producer for read in definition.reads]
        self.numbers = {name: n for n, name in enumerate(named) if named.count(name) == 1}
        if kind == "finish":
            self.numbers = {tensor.name: 0}
        elif kind == "update":
            own = {name: len(named) + n for n, name in enumerate(definition.outputs)}
            self.numbers = {**own, **self.numbers}
        for name, n in tuple(self.numbers.items()):
            held = math.tensor(name)
            if held is not None and held.inplace:  # it lies in the memory of that input
                self.numbers.setdefault(held.inplace, n)

    def opened(self, value: Expr, moment: Site, guards: Guards) -> Expr:
        value, moment = resolve(value, moment, self.found.site)
        if isinstance(value, (Const, ScalarParam, Symbol)):
            return value
        if value in self.store.coordinate:
            number = self.store.coordinate.index(value)
            self.found.equalities.append((value, value))
            return Coordinate(number)
        if isinstance(value, Op):
            args = [
                self.opened(arg, moment, guarded(value, number, guards))
                for number, arg in enumerate(value.args)
            ]
            return Op(value.op, tuple(args), value.dtype)
        operand = self.found.operand(value, moment, guards)
        if not isinstance(operand, Access) or operand.buffer.tensor not in self.numbers:
            raise Mismatch("value", False, f"reads {value}")
        number = self.numbers[operand.buffer.tensor]
        self.found.reads.append((number, operand))
        return Arg(number, value.dtype)


def reducer_of(tensor: MathTensor) -> TracedReducer:
    """Return how a tensor that is a reduction folds."""
    assert tensor.definition is not None
    assert tensor.definition.reducer is not None
    return tensor.definition.reducer


def _identity(found: Expr, wanted: Const, tensor: MathTensor) -> None:
    if found is wanted:
        return
    refutes = isinstance(found, Const) and _other_value(found, wanted)
    message = f"starts {tensor.name} from {found}, its identity is {wanted}"
    raise Mismatch("value", refutes, message)


def _other_value(found: Const, wanted: Const) -> bool:
    return found.dtype is not wanted.dtype or found.value != wanted.value


_Key: TypeAlias = "tuple[Expr, Expr, Site, Guards]"
_Mark: TypeAlias = "tuple[int, int, int, set[_Key]]"
"""How much was found so far."""


def _is_of_coordinates(part: Expr) -> bool:
    """Whether a part of a template depends on coordinates and sizes alone."""
    leaves = [node for node in walk(part) if not node.args]
    known = all(isinstance(node, (Coordinate, Symbol, Const)) for node in leaves)
    return known and any(isinstance(node, Coordinate) for node in leaves)


class _Matcher:
    def __init__(self, found: StoredValue, tensor: MathTensor, algebra: Simplifier) -> None:
        assert isinstance(found.site.node, kir.Store)
        self.found, self.tensor, self.algebra = found, tensor, algebra
        self.site, self.store = found.site, found.site.node
        self._seen: set[_Key] = set()

    def match(self, template: Expr, value: Expr, moment: Site, guards: Guards) -> None:
        value, moment = resolve(value, moment, self.site)
        key = (template, value, moment, guards)
        if key in self._seen:
            return
        # A value that stands twice in a tree of shared nodes is matched once: matching is a
        # function of this key, and what it found is a set of demands.
        self._seen.add(key)
        match template:
            case Arg():
                self._operand(template, value, moment, guards)
            case Coordinate():
                place = self.store.coordinate[template.number]
                self.found.equalities.append((place, value))
            case Op():
                self._operation(template, value, moment, guards)
            case _:
                if template is not value:
                    raise self._differs(template, value)

    def _operand(self, template: Arg, value: Expr, moment: Site, guards: Guards) -> None:
        operand = self.found.operand(value, moment, guards)
        if operand is None:
            raise self._differs(template, value)
        if value.dtype is not template.dtype:
            raise Mismatch(
                "value", False, f"reads a {value.dtype} where the math has a {template.dtype}"
            )
        self.found.reads.append((template.number, operand))

    def _choice(self, template: Op, value: Expr, moment: Site, guards: Guards) -> None:
        """Match a ``where`` whose condition is one of coordinates, which may be decided."""
        condition, yes, no = template.args
        wanted = at(condition, self.store.coordinate)
        ways: list[tuple[Expr, list[tuple[Expr, Expr, Guards]]]] = []
        if isinstance(value, Op) and value.op == "where" and is_decidable(value.args[0]):
            found, *sides = value.args
            inner = [guarded(value, n, guards) for n in (1, 2)]
            ways.append((found, list(zip((yes, no), sides, inner, strict=True))))
        ways += [(TRUE, [(yes, value, guards)]), (FALSE, [(no, value, guards)])]
        if (decision := decided(wanted, self.algebra)) in (TRUE, FALSE):
            # Of operands that are alike several ways fit: what is decided is tried first.
            ways.sort(key=lambda way: way[0] is not decision)
        refused: Mismatch | None = None
        for found, pairs in ways:
            before = self._mark()
            try:
                for part, there, under in pairs:
                    self.match(part, there, moment, under)
            except Mismatch as why:
                refused = refused or why
                self._back(before)
                continue
            self.found.conditions.append(Agreement(wanted, found, guards))
            return
        assert refused is not None
        raise refused

    def _mark(self) -> _Mark:
        found = self.found
        return len(found.reads), len(found.equalities), len(found.conditions), set(self._seen)

    def _back(self, mark: _Mark) -> None:
        """Forget what was found since `mark`."""
        reads, equalities, conditions, self._seen = mark
        del self.found.reads[reads:]
        del self.found.equalities[equalities:]
        del self.found.conditions[conditions:]

    def _operation(self, template: Op, value: Expr, moment: Site, guards: Guards) -> None:
        if template.op == "where" and _is_of_coordinates(template.args[0]):
            self._choice(template, value, moment, guards)
            return
        if template.dtype is dtypes.index and _is_of_coordinates(template):
            if value.dtype is not dtypes.index or reads_memory(value):
                raise self._differs(template, value)
            self.found.equalities.append((at(template, self.store.coordinate), value))
            return
        same = isinstance(value, Op) and (value.op, value.dtype) == (template.op, template.dtype)
        if not same or len(value.args) != len(template.args):
            raise self._differs(template, value)
        for number, (a, b) in enumerate(zip(template.args, value.args, strict=True)):
            self.match(a, b, moment, guarded(value, number, guards))

    def _differs(self, template: Expr, value: Expr) -> Mismatch:
        whole = self.tensor.definition
        assert whole is not None
        return Mismatch(
            "value",
            False,
            f"computes '{value}' where the math of {self.tensor.name} "
            f"({whole.op}) has '{template}'",
        )


def unified(template: Expr, value: Expr) -> tuple[tuple[Arg, Expr], ...] | None:
    """Match a template with an expression: return the part for each `Arg`; None if they differ."""
    found: dict[Arg, Expr] = {}
    stack, seen = [(template, value)], set()
    while stack:
        pair = stack.pop()
        if pair in seen:
            continue
        seen.add(pair)
        a, b = pair
        if isinstance(a, Arg):
            if a.dtype is not b.dtype or found.setdefault(a, b) is not b:
                return None
        elif isinstance(a, Op):
            if not isinstance(b, Op) or (a.op, a.dtype) != (b.op, b.dtype):
                return None
            stack += list(zip(a.args, b.args, strict=True))
        elif a is not b:
            return None
    return tuple(found.items())
