"""Scalar expressions: one interned, typed family for values, indices and predicates.

A node is built once: the constructor returns the existing node where an equal one lives, so
equality is identity, hashing is free and shared subexpressions stay shared. Only `Index` (a loop
index) is unique by birth: two loops of extent 128 are two indices.

Semantics, for every reader of these trees (printers, interpreter, checkers):

- Integers wrap in their own type; `index` is mathematically unbounded, its width is chosen late.
- A shift by a count outside of the type's width gives 0, and -1 for `shr` of what is negative;
  `shr` is arithmetic on signed types.
- `philox` is word e % 4 of the random block number high * 2^64 + low + e // 4 under a key, of int64
  operands (key, low, high, e) that stand for 64 bits each, e >= 0.
- `floordiv` and `mod` round towards minus infinity and follow the divisor (Python, NumPy).
- `min` and `max` propagate NaN; `round` is half to even; a comparison with NaN is false.
- `and`, `or` and `where` may or may not evaluate all operands: operands have no effects, and a
  Load under a false condition is never performed (the reader must not touch the memory).
- There is no order of evaluation between operands, and no fused or reassociated operation unless
  written so (`fma`).

Source: interning and the two equalities follow GEM (tsfc) and UFL; weak Python scalars NEP 50.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index as as_index
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.interning import InternTable
from loopnest.scalar.size_operators import SizeOperators

if TYPE_CHECKING:
    from loopnest.kir.buffers import Buffer

Number: TypeAlias = "bool | int | float"

_TABLE: InternTable[Expr] = InternTable()
_TABLE.guard_forks()
_find = _TABLE.find

Leaf = TypeVar("Leaf", bound="Expr")


class Expr(SizeOperators):
    """A scalar expression. `dtype` is its type, `args` its operands."""

    __slots__ = ("_loads", "_text", "_variables", "args", "dtype")
    dtype: DType
    args: tuple[Expr, ...]
    _loads: tuple[Load, ...] | None
    _text: str | None
    _variables: frozenset[Expr] | None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        text = self._text
        if text is None:
            from loopnest.scalar.expr_text import TEXT

            text = self._text = TEXT.format(self)
        return text

    def __bool__(self) -> bool:
        raise TypeError(f"the value of '{self}' is known only at run time")

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Expr:
        return self


def _leaf(cls: type[Leaf], dtype: DType, **own: object) -> Leaf:
    """Return the node without operands that has these fields; a new one where none lives."""
    key = (cls, dtype, *own.values())
    node = _find(key)
    if node is None:
        node = object.__new__(cls)
        node.dtype, node.args = dtype, ()
        node._text = node._variables = node._loads = None
        for name, value in own.items():
            setattr(node, name, value)
        node = _TABLE.add(key, node)
    assert isinstance(node, cls)
    return node


class Const(Expr):
    """A literal."""

    __slots__ = ("value",)
    value: Number

    def __new__(cls, value: Number, dtype: DType) -> Const:
        if dtype.kind == "f":
            value = float(value)
            key: tuple[object, ...] = (cls, value.hex(), dtype)
        else:
            value = bool(value) if dtype.kind == "b" else int(value)
            key = (cls, value, dtype)
        node = _find(key)
        if node is None:
            node = object.__new__(cls)
            node.value, node.dtype, node.args = value, dtype, ()
            node._text = node._variables = node._loads = None
            node = _TABLE.add(key, node)
        assert isinstance(node, Const)
        return node

    def __reduce__(self) -> tuple[type[Const], tuple[Number, DType]]:
        return Const, (self.value, self.dtype)


class Symbol(Expr):
    """A size symbol: the extent of an axis, known at launch, >= 0."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Symbol:
        return _leaf(cls, dtypes.index, name=name)

    def __reduce__(self) -> tuple[type[Symbol], tuple[str]]:
        return Symbol, (self.name,)


class ScalarParam(Expr):
    """A run-time scalar argument of the kernel."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, dtype: DType) -> ScalarParam:
        return _leaf(cls, dtype, name=name)

    def __reduce__(self) -> tuple[type[ScalarParam], tuple[str, DType]]:
        return ScalarParam, (self.name, self.dtype)


class Index(Expr):
    """A loop index in [0, extent); identity, not name, tells two apart."""

    __slots__ = ("extent", "name")
    name: str
    extent: Expr

    def __init__(self, name: str, extent: Expr) -> None:
        self.name, self.extent = name, extent
        self.dtype, self.args = dtypes.index, ()
        self._text = self._variables = self._loads = None

    def __reduce__(self) -> tuple[type[Index], tuple[str, Expr]]:
        return Index, (self.name, self.extent)


class Local(Expr):
    """A scalar temporary, defined by one `kir.Let`."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, dtype: DType) -> None:
        self.name, self.dtype, self.args = name, dtype, ()
        self._text = self._variables = self._loads = None

    def __reduce__(self) -> tuple[type[Local], tuple[str, DType]]:
        return Local, (self.name, self.dtype)


class LaunchIndex(Expr):
    """The number of this block or thread along a launch dimension, in [0, its launch extent)."""

    __slots__ = ("dimension",)
    dimension: ParallelType

    def __new__(cls, dimension: ParallelType) -> LaunchIndex:
        return _leaf(cls, dtypes.index, dimension=dimension)

    def __reduce__(self) -> tuple[type[LaunchIndex], tuple[ParallelType]]:
        return LaunchIndex, (self.dimension,)


class Arg(Expr):
    """In the template of a definition: the value of operand `number` at the element at hand."""

    __slots__ = ("number",)
    number: int

    def __new__(cls, number: int, dtype: DType) -> Arg:
        return _leaf(cls, dtype, number=number)

    def __reduce__(self) -> tuple[type[Arg], tuple[int, DType]]:
        return Arg, (self.number, self.dtype)


class Coordinate(Expr):
    """In the template of a definition: the index of the element along root axis `number`."""

    __slots__ = ("number",)
    number: int

    def __new__(cls, number: int) -> Coordinate:
        return _leaf(cls, dtypes.index, number=number)

    def __reduce__(self) -> tuple[type[Coordinate], tuple[int]]:
        return Coordinate, (self.number,)


class Load(Expr):
    """The element of `buffer` at `args`: one index a dimension, or one flat offset in elements."""

    __slots__ = ("buffer", "flat")
    buffer: Buffer
    flat: bool

    def __new__(cls, buffer: Buffer, index: tuple[Expr, ...], flat: bool = False) -> Load:
        key = (cls, buffer, flat, *index)
        node = _find(key)
        if node is None:
            node = object.__new__(cls)
            node.buffer, node.flat, node.dtype = buffer, flat, buffer.dtype
            node.args = index
            node._text = node._variables = node._loads = None
            node = _TABLE.add(key, node)
        assert isinstance(node, Load)
        return node

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple[object, ...]]:
        return _from_rows, _rows(self)


class Op(Expr):
    """An operation of `OPS` on operands."""

    __slots__ = ("op",)
    op: str

    def __new__(cls, op: str, args: tuple[Expr, ...], dtype: DType) -> Op:
        key = (op, dtype, *args)
        node = _find(key)
        if node is None:
            node = object.__new__(cls)
            node.op, node.args, node.dtype = op, args, dtype
            node._text = node._variables = node._loads = None
            node = _TABLE.add(key, node)
        assert isinstance(node, Op)
        return node

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple[object, ...]]:
        return _from_rows, _rows(self)


def whole(value: object) -> int | None:
    """Return an int of Python or NumPy as an int; None where it is none, as a bool is."""
    if isinstance(value, bool):
        return None
    try:
        return as_index(value)  # type: ignore[arg-type] # raises where it is none
    except TypeError:
        return None


def integer(value: int) -> Const:
    """Return `value` as an index literal."""
    found = _find((Const, value, dtypes.index))
    return found if isinstance(found, Const) else Const(value, dtypes.index)


TRUE = Const(True, dtypes.bool_)
FALSE = Const(False, dtypes.bool_)
ZERO = integer(0)
ONE = integer(1)


def cast(value: Expr, dtype: DType) -> Expr:
    """Return `value` converted to `dtype`; literals are converted at once."""
    if value.dtype is dtype:
        return value
    if isinstance(value, Const) and not dtype.is_narrow:
        number = value.value
        if isinstance(number, int) and dtype.kind == "i":  # wraps
            return Const(dtype.wrapped(number), dtype)
        if dtype.holds(number):
            return Const(number, dtype)
    return Op("cast", (value,), dtype)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Yield every node below one of `roots` once, operands before their users."""
    seen: set[Expr] = set()
    for root in roots:
        stack: list[tuple[Expr, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif node not in seen:
                seen.add(node)
                if not node.args:
                    yield node
                    continue
                stack.append((node, True))
                for arg in reversed(node.args):
                    stack.append((arg, False))


def variables(root: Expr) -> frozenset[Expr]:
    """Return the nodes without operands below `root` that are no literals: what it depends on.

    Each node keeps its own, so that who asks for all parts of an expression walks it once.
    """
    found = root._variables
    if found is not None:
        return found
    stack = [root]
    while stack:
        node = stack[-1]
        waiting = [arg for arg in node.args if arg._variables is None]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if node._variables is None:
            node._variables = _own_variables(node)
    assert root._variables is not None
    return root._variables


def _own_variables(node: Expr) -> frozenset[Expr]:
    if not node.args:
        return frozenset() if isinstance(node, Const) else frozenset((node,))
    largest: frozenset[Expr] = frozenset()
    parts = [arg._variables for arg in node.args if arg._variables]
    for part in parts:
        if len(part) > len(largest):
            largest = part
    # Most operands depend on what their user does: they share one set.
    return largest if all(part <= largest for part in parts) else largest.union(*parts)


def _rows(root: Expr) -> tuple[object, ...]:
    """Return what `_from_rows` makes `root` of: a row a node, operands by their row's number.

    Nodes without operands stand for themselves; that they are shared with other expressions, the
    pickle knows.
    """
    from loopnest.base.pickling import STAMP

    numbers: dict[Expr, int] = {}
    rows: list[object] = []
    for node in walk(root):
        args = tuple([numbers[arg] for arg in node.args])
        numbers[node] = len(rows)
        match node:
            case Op():
                rows.append((node.op, args, node.dtype))
            case Load():
                rows.append((node.buffer, args, node.flat))
            case _:
                rows.append(node)
    return (STAMP, *rows)


def _from_rows(_: object, *rows: Any) -> Expr:
    """Return the expression of `_rows`, its nodes interned."""
    made: list[Expr] = []
    for row in rows:
        if isinstance(row, Expr):
            made.append(row)
            continue
        kind, args, detail = row
        operands = tuple([made[number] for number in args])
        op = isinstance(kind, str)
        made.append(Op(kind, operands, detail) if op else Load(kind, operands, detail))
    return made[-1]


def rebuild(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """Return `node` with other operands; the same object where they are the same."""
    if all(a is b for a, b in zip(node.args, args, strict=True)):
        return node
    if isinstance(node, Load):
        return Load(node.buffer, args, node.flat)
    assert isinstance(node, Op)
    return Op(node.op, args, node.dtype)


def substitute(
    root: Expr, mapping: Mapping[Expr, Expr], known: dict[Expr, Expr] | None = None
) -> Expr:
    """Return `root` with nodes replaced; shared nodes are visited once.

    `known`, empty at first, keeps what is found for other expressions with the same `mapping`.
    """
    if not root.args:
        return mapping.get(root, root)
    for key in mapping:
        if key.args or isinstance(key, Const):
            return _rewritten(root, mapping.get, {})
    return _substituted(root, mapping, {} if known is None else known)


def _substituted(node: Expr, mapping: Mapping[Expr, Expr], known: dict[Expr, Expr]) -> Expr:
    """Return `node` with variables replaced; `known` is what is found so far."""
    found = known.get(node, mapping.get(node))
    if found is None:
        found = node
        if not mapping.keys().isdisjoint(variables(node)):
            found = rebuild(node, tuple([_substituted(a, mapping, known) for a in node.args]))
        known[node] = found
    return found


def rewrite(root: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Return `root` rewritten bottom-up.

    `rule` sees a node before its operands are rewritten; what it returns, if not None, stands for
    the node and is not visited again.
    """
    return _rewritten(root, rule, {})


def _rewritten(node: Expr, rule: Callable[[Expr], Expr | None], memo: dict[Expr, Expr]) -> Expr:
    # No closure: one that calls itself is a cycle, which only the collector frees.
    found = memo.get(node)
    if found is None:
        found = rule(node)
        if found is None:
            args = node.args
            found = (
                rebuild(node, tuple([_rewritten(a, rule, memo) for a in args])) if args else node
            )
        memo[node] = found
    return found


def two_sides(types: Sequence[DType]) -> tuple[tuple[Arg, ...], tuple[Arg, ...]]:
    """Return the `Arg`s that stand for two values of `types` each in the templates of a fold."""
    args = [Arg(number, dtype) for number, dtype in enumerate((*types, *types))]
    return tuple(args[: len(types)]), tuple(args[len(types) :])


def free_indices(root: Expr) -> frozenset[Index]:
    """Return the loop indices that `root` depends on."""
    return frozenset([node for node in variables(root) if isinstance(node, Index)])


def loads(root: Expr) -> tuple[Load, ...]:
    """Return the loads in `root`, each once, in order of appearance."""
    if isinstance(root, Load):  # it keeps none: its own would hold it
        for arg in root.args:
            if loads(arg):
                return tuple([node for node in walk(root) if isinstance(node, Load)])
        return (root,)
    if not root.args:
        return ()
    found = root._loads
    if found is None:  # a root keeps its own: every pass asks for them again
        found = root._loads = tuple([node for node in walk(root) if isinstance(node, Load)])
    return found


def all_of(terms: Iterable[Expr]) -> Expr:
    """Return the conjunction; TRUE for none."""
    result: Expr = TRUE
    for term in terms:
        if term is TRUE or term is result:
            continue
        result = term if result is TRUE else Op("and", (result, term), dtypes.bool_)
    return result


def terms_of(condition: Expr) -> tuple[Expr, ...]:
    """Return the terms of a conjunction: what `all_of` was given."""
    if isinstance(condition, Op) and condition.op == "and":
        return (*terms_of(condition.args[0]), *terms_of(condition.args[1]))
    return (condition,)
