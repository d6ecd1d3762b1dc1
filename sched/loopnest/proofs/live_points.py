"""The elements of a reduction that count: those that the math does not say are the identity.

A nest may fold an element or leave it out where the math, written out in coordinates, has the
identity there. Pointwise definitions are put into what reads them, so that a mask made of `iota`s
becomes a comparison of coordinates; then each ``where`` around the value whose other side is the
identity is a condition of the elements that count. An element of an input that no statement stores
to is one and the same number wherever it is loaded: a coordinate may be compared to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loopnest import kir
from loopnest.numerics.float64_math import fold
from loopnest.proofs.program_model import Site
from loopnest.proofs.single_launches import LaunchMath
from loopnest.proofs.template_matching import reducer_of
from loopnest.scalar import dtypes
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import (
    ZERO,
    Arg,
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    cast,
    integer,
    loads,
    substitute,
    walk,
)
from loopnest.scalar.templates import at
from loopnest.tensor.math_snapshot import MathDefinition, MathSnapshot, MathTensor
from loopnest.tensor.tensor_view import data_of

_LARGEST = 400
"""How many nodes a value may have when it is written out."""

_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_INT64_SAFE = 1 << 31
_SMALL_FACTOR = 1 << 16


class LivePoints:
    """The conditions of the elements that count, of each reduction."""

    def __init__(self, math: MathSnapshot, program: kir.Program) -> None:
        whole = math.whole if isinstance(math, LaunchMath) else None
        self.math = math if whole is None else whole
        self.inputs = dict(_kept_inputs(program))
        self._known: dict[str, tuple[Expr, ...]] = {}

    def conditions(self, tensor: MathTensor) -> tuple[Expr, ...]:
        """Return comparisons of indices outside of which an element of `tensor` is the identity.

        They are of the root's coordinates, of `Arg`s of the definition, where its indices are data,
        and of loads of inputs.
        """
        found = self._known.get(tensor.name)
        if found is None:
            found = self._known[tensor.name] = tuple(self._of(tensor))
        return found

    def _of(self, tensor: MathTensor) -> list[Expr]:
        definition = tensor.definition
        if definition is None or definition.reducer is None:
            return []
        reducer = reducer_of(tensor)
        common: list[Expr] | None = None
        for value, identity in zip(definition.values, reducer.identity, strict=True):
            mine = _peeled(self._written_out(value, definition, True), identity)
            # All components are folded at once: an element may be left out only where each of them
            # is the identity.
            common = mine if common is None else [c for c in common if c in mine]
        return common or []

    def at_elements(self, tensor: MathTensor) -> tuple[Expr, ...]:
        """Return the conditions with the loads of inputs in place of the `Arg`s that read them.

        What an earlier launch stored is an input, too.
        """
        conditions, definition = self.conditions(tensor), tensor.definition
        assert definition is not None
        loaded = {arg: self._loaded(arg, definition) for arg in data_of(conditions)}
        found: dict[Expr, Expr] = {a: x for a, x in loaded.items() if x is not None}
        return tuple([substitute(condition, found) for condition in conditions])

    def data(self, tensor: MathTensor) -> tuple[Arg | Load, ...]:
        """Return what the conditions of a tensor are computed from that is data, each once."""
        conditions = self.conditions(tensor)
        found = dict.fromkeys([load for c in conditions for load in loads(c)])
        return (*data_of(conditions), *found)

    def is_kept(self, load: Load) -> bool:
        """Whether a load finds an element of an input, the same at any time."""
        return self.inputs.get(load.buffer.tensor) is load.buffer

    def _written_out(self, value: Expr, definition: MathDefinition, outermost: bool) -> Expr:
        """Return a template with the pointwise definitions of what it reads put in.

        Other operands stay the `Arg`s that they are; of inner definitions they become unknown.
        """
        mapping: dict[Expr, Expr] = {}
        asked = _asked(value) if outermost else frozenset()
        for arg in [n for n in walk(value) if isinstance(n, Arg)]:
            if arg.number >= len(definition.reads):
                continue
            inner = self._inlined(arg, definition)
            # Of an integer in a condition that is no affine index there is a variable: the data
            # themselves.
            if arg in asked and arg.dtype in dtypes.INTEGERS:
                form = None if inner is None else _as_index(inner)
                if form is None or loads(form):
                    continue
            if inner is not None:
                mapping[arg] = inner
            elif not outermost:
                found = self._loaded(arg, definition)
                mapping[arg] = Arg(-1, arg.dtype) if found is None else found
        result = substitute(value, mapping)
        size = sum(1 for _ in walk(result))
        # Diamonds of pointwise definitions grow exponentially when they are written out; without
        # that an element counts, which is safe.
        return result if size <= _LARGEST else value

    def _loaded(self, arg: Arg, definition: MathDefinition) -> Load | None:
        """Return the load of an integer of an input that a read finds, at coordinates."""
        read = definition.reads[arg.number]
        buffer = self.inputs.get(read.producer)
        producer = self.math.tensor(read.producer)
        if buffer is None or producer is None or data_of(read.indices):
            return None
        if arg.dtype not in dtypes.INTEGERS:
            return None
        return Load(buffer, _element(producer, read.indices) or (ZERO,))

    def _inlined(self, arg: Arg, definition: MathDefinition) -> Expr | None:
        read = definition.reads[arg.number]
        producer = self.math.tensor(read.producer)
        if producer is None or producer.definition is None or data_of(read.indices):
            return None
        own = producer.definition
        # A reduction is no function of one element of what it reads, nor a state of earlier steps.
        if own.reducer is not None or producer.is_factored or own.carried:
            return None
        value = self._written_out(own.values[own.component], own, False)
        return cast(at(value, _element(producer, read.indices)), producer.dtype)


def _kept_inputs(program: kir.Program) -> Iterator[tuple[str, Buffer]]:
    """Yield the inputs that a program leaves as they are, with their buffers."""
    stored = kir.written(program.body)
    given = {output.inplace for output in program.outputs}
    for param in program.params:
        buffer = param.buffer
        if param.kind != "input" or buffer is None:
            continue
        if buffer not in stored and param.name not in given:
            yield buffer.tensor, buffer


def _element(producer: MathTensor, indices: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the element that a read finds, at 0 along axes of one element."""
    return tuple([
        ZERO if axis.kind is IterKind.BROADCAST else place
        for axis, place in zip(producer.logical, indices, strict=True)
    ])  # fmt: skip


def _asked(value: Expr) -> frozenset[Arg]:
    """Return the operands that the conditions of a template read."""
    conditions = [n.args[0] for n in walk(value) if isinstance(n, Op) and n.op == "where"]
    return frozenset(n for c in conditions for n in walk(c) if isinstance(n, Arg))


def _peeled(value: Expr, identity: Const) -> list[Expr]:
    """Return the conditions of each ``where`` around a value whose other side is the identity."""
    found: list[Expr] = []
    while isinstance(value, Op):
        if value.op == "cast":
            source = _before(identity, value.args[0].dtype)
            if source is None:
                break
            value, identity = value.args[0], source
        elif value.op == "where" and fold(value.args[2]) is identity:
            found += _conjuncts(value.args[0], True)
            value = value.args[1]
        elif value.op == "where" and fold(value.args[1]) is identity:
            found += _conjuncts(value.args[0], False)
            value = value.args[2]
        else:
            break
    return found


def _before(identity: Const, dtype: dtypes.DType) -> Const | None:
    """Return the literal that a conversion of a value of `dtype` makes the identity of."""
    if dtype is identity.dtype:
        return identity
    if not (dtype.is_float and identity.dtype.is_float):
        return None
    made = fold(cast(Const(identity.value, dtype.compute), dtype))
    same = isinstance(made, Const) and fold(cast(made, identity.dtype)) is identity
    return made if same and isinstance(made, Const) else None


def _conjuncts(condition: Expr, wanted: bool) -> list[Expr]:
    """Return the conditions of indices that must hold for a condition to be `wanted`."""
    if not isinstance(condition, Op):
        return []
    if condition.op == "not":
        return _conjuncts(condition.args[0], not wanted)
    if condition.op in ("and", "or"):
        if wanted != (condition.op == "and"):
            return []
        return [c for arg in condition.args for c in _conjuncts(arg, wanted)]
    if condition.op not in _OPPOSITE:
        return []
    other = condition.args[-1]
    if isinstance(other, Const) and condition.op == ("ne" if wanted else "eq"):
        return _peeled(condition.args[0], other)  # what must hold where it is not that literal
    sides = [_side(arg) for arg in condition.args]
    if any(side is None for side in sides):
        return []
    op = condition.op if wanted else _OPPOSITE[condition.op]
    return [Op(op, tuple([s for s in sides if s is not None]), dtypes.bool_)]


def _side(value: Expr) -> Expr | None:
    """Return a side of a comparison as an index: as `_as_index`, or an int64 of an input alone."""
    if isinstance(value, Op) and value.op == "cast" and value.dtype is dtypes.int64:
        (value,) = value.args if isinstance(value.args[0], Load) else (value,)
    return cast(value, dtypes.index) if isinstance(value, Load) else _as_index(value)


def _as_index(value: Expr) -> Expr | None:
    """Return an int64 or an index as an index expression that isl may have; None for others.

    No sum of an index and such numbers wraps in 64 bits, and no product by a small one.
    """
    if isinstance(value, Const) and value.dtype.kind in "ix":
        return integer(int(value.value)) if abs(value.value) < _INT64_SAFE else None
    if value.dtype is dtypes.index and not any(isinstance(n, (Arg, Load)) for n in walk(value)):
        return value
    if not isinstance(value, Op) or value.dtype not in (dtypes.int64, dtypes.index):
        return None
    if value.op == "cast":
        (inner,) = value.args
        # A sum with an int64 of an input may wrap.
        data = isinstance(inner, Load) and inner.dtype.size < dtypes.int64.size
        data = data or (isinstance(inner, Arg) and inner.number >= 0)
        if data and inner.dtype in dtypes.INTEGERS:
            return cast(inner, dtypes.index)
        return _as_index(inner) if inner.dtype in (dtypes.int64, dtypes.index) else None
    if value.op == "mul" and not any(
        isinstance(a, Const) and abs(a.value) < _SMALL_FACTOR for a in value.args
    ):
        return None
    if value.op in ("floordiv", "mod") and not _is_small_divisor(value.args[1]):
        return None
    if value.op in ("add", "sub", "neg", "mul", "min", "max", "floordiv", "mod"):
        args = [_as_index(arg) for arg in value.args]
        if not any(arg is None for arg in args):
            return Op(value.op, tuple([a for a in args if a is not None]), dtypes.index)
    return None


def _is_small_divisor(value: Expr) -> bool:
    return isinstance(value, Const) and 0 < value.value < _SMALL_FACTOR


def with_temporaries(
    chosen: Mapping[Site, Mapping[Expr, Load]], sites: Sequence[Site]
) -> dict[Site, Mapping[Expr, Load]]:
    """Return by which loads data choose what runs.

    These are those of stores, of temporaries under the same tests, since an update of several
    components computes them all before it stores one, and of the tests themselves, of which one
    may stand inside of others.
    """
    given = [(site, found) for site, found in chosen.items() if found]
    tests = {(site.loops, site.guards): found for site, found in given}
    result = dict(chosen)
    for site in sites:
        if isinstance(site.node, kir.Let) and (site.loops, site.guards) in tests:
            result[site] = tests[site.loops, site.guards]
        elif isinstance(site.node, kir.If):
            asked = {load for condition, _ in site.guards for load in loads(condition)}
            inside = [found for s, found in given if s.guards[: len(site.guards)] == site.guards]
            result[site] = {a: x for found in inside for a, x in found.items() if x in asked}
    return result
