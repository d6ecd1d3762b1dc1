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

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index as as_index
from sys import getrefcount
from threading import Lock
from typing import Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar
from typing import cast as typed

from loopnest.base.errors import DefinitionError, InternalError
from loopnest.base.fast_init import fast_init
from loopnest.base.pickling import STAMP
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.op_table import OPS

Number: TypeAlias = "bool | int | float"

Node = TypeVar("Node")

FEWEST = 1 << 14
"""The table is never swept below as many nodes."""

_UNSHARED = 3
"""References to a node that a sweep alone holds: its item, its variable, the count's argument."""


class InternTable(Generic[Node]):
    """Nodes by key, one object for all that are equal. `find` looks for one; `add` makes one known.

    A key names a node by its fields. The table holds its nodes; those that nothing else refers to
    are dropped whenever it has grown to twice what was left of it. A weak reference a node would
    free each of them at once, and costs as much as the node itself, twice: where it is made, and
    where its callback runs.

    Source: the unique table of BDD packages, swept when it has grown (Brace, Rudell, Bryant,
    "Efficient implementation of a BDD package", DAC 1990).
    """

    def __init__(self) -> None:
        self._nodes: dict[Hashable, Node] = {}
        self._limit = FEWEST
        self._lock = Lock()
        # Looking for a node takes no lock: a sweep first takes all nodes out of the table, so that
        # who finds one holds it before the sweep counts its references.
        self.find = self._nodes.get

    def guard_forks(self) -> None:
        """Fork this process only between two additions, for a table that lives as long as it.

        A child has the thread that forked alone: a lock that another one held is never released
        there, and the nodes of a sweep under way are lost.
        """
        if hasattr(os, "register_at_fork"):
            release = self._lock.release
            os.register_at_fork(
                before=self._lock.acquire, after_in_parent=release, after_in_child=release
            )

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, key: Hashable, node: Node) -> Node:
        """Return the node of `key`: the known one if another thread was faster, else `node`."""
        with self._lock:
            found = self._nodes.setdefault(key, node)
            if len(self._nodes) > self._limit:
                self._sweep()
            return found

    def sweep(self) -> None:
        """Drop the nodes that nothing else refers to."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        items = list(self._nodes.items())
        kept: list[tuple[Hashable, Node]] = []
        try:
            self._nodes.clear()
            # Operands are made before their users, so that backwards each node comes after all
            # that could still hold it.
            while items:
                item = items[-1]
                node = item[1]
                if getrefcount(node) > _UNSHARED:
                    kept.append(item)
                items.pop()
        finally:
            # A signal stops a sweep anywhere: nodes that it has not looked at stay known, or equal
            # expressions would not be one object any more.
            kept.reverse()
            self._nodes.update(items)
            self._nodes.update(kept)
        self._limit = max(FEWEST, 2 * len(kept))


_TABLE: InternTable[Expr] = InternTable()
_TABLE.guard_forks()
_find = _TABLE.find

Leaf = TypeVar("Leaf", bound="Expr")


class SizeOperators:
    """The operators of size expressions, with ints and with each other; == stays identity.

    Results without symbols are ints. Other types of expressions have none of these: their
    operators stand on the tensors and scalars of a fusion. What they return is canonical: two ways
    to write one size give the same expression, so that extents made of them are equal.

    >>> import loopnest as ln
    >>> with ln.Fusion("halves") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     half = x.shape[1] // 2
    ...     y = f.output(x[:, :half] * x[:, half : half * 2], "y")
    >>> print(y.shape[1])
    D // 2

    Raises:
        DefinitionError: a divisor of 0 or less, or what may be no whole number: floats, / and **.
    """

    __slots__ = ()
    __array_ufunc__ = None  # a number of NumPy on the left leaves the operator to this side

    def __add__(self, other: object) -> Expr | int:
        return _operate("add", self, other)

    def __radd__(self, other: object) -> Expr | int:
        return _operate("add", other, self)

    def __sub__(self, other: object) -> Expr | int:
        return _operate("sub", self, other)

    def __rsub__(self, other: object) -> Expr | int:
        return _operate("sub", other, self)

    def __mul__(self, other: object) -> Expr | int:
        return _operate("mul", self, other)

    def __rmul__(self, other: object) -> Expr | int:
        return _operate("mul", other, self)

    def __floordiv__(self, other: object) -> Expr | int:
        return _operate("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> Expr | int:
        return _operate("floordiv", other, self)

    def __mod__(self, other: object) -> Expr | int:
        return _operate("mod", self, other)

    def __rmod__(self, other: object) -> Expr | int:
        return _operate("mod", other, self)

    def __truediv__(self, other: object) -> NoReturn:
        raise _no_size(f"{self} / {other}")

    def __rtruediv__(self, other: object) -> NoReturn:
        raise _no_size(f"{other} / {self}")

    def __pow__(self, other: object) -> NoReturn:
        raise _no_size(f"{self} ** {other}")

    def __rpow__(self, other: object) -> NoReturn:
        raise _no_size(f"{other} ** {self}")

    def __neg__(self) -> Expr | int:
        if isinstance(self, Op) and self.op == "floordiv":
            dividend, divisor = self.args
            # -(-a // b) is how Python rounds up; -(a // b) is what it is
            if all(count < 0 for count in _ARITHMETIC[0]().poly(dividend).values()):
                return _operate("ceildiv", _operate("sub", 0, dividend), divisor)
        return _operate("sub", 0, self)


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


@fast_init
@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Buffer:
    """A piece of memory with a layout; compared by identity.

    Args:
        name: unique in the kernel.
        tensor: the name of the TensorView that it holds.
        memory: LOCAL (one a thread), SHARED (one a block) or GLOBAL.
        dtype: the type of an element.
        shape: extents, outermost first; at least one (a scalar has the shape (1,)).
        strides: distance in elements between neighbours of each dimension, padding included.
        size: elements that the buffer takes, padding and stages included.
        kind: "input", "output", "workspace", "counter" (GLOBAL, 0 before and after a launch),
            "local", "shared", "scratch" (SHARED, of a collective) or "accumulator".
        alias_of: the name of the buffer whose space it shares; both begin at the same address, and
            a store to the one makes the elements of the other undefined.
        stages: copies of the buffer that circular buffering rotates through: the extent of the
            leading dimension where not 1.
        swizzles: pairs of dimensions (a, b) whose extents are static powers of two, in the order
            in which they are applied: the element at index (…a…b…) lies where (…a…b ^ a…) would,
            of `a` as many low bits as `b` has; indices stay as they are.
    """

    name: str
    tensor: str
    memory: Memory
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    size: Expr
    kind: str
    alias_of: str | None = None
    stages: int = 1
    swizzles: tuple[tuple[int, int], ...] = ()

    def __copy__(self) -> Buffer:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Buffer:
        return self


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


def is_zero(value: Expr) -> bool:
    """Whether all bits of a value are known to be 0."""
    (value,) = value.args if isinstance(value, Op) and value.op == "cast" else (value,)
    return isinstance(value, Const) and str(value.value) in ("0", "0.0", "False")


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


def map_loads(root: Expr, rule: Callable[[Load], Load]) -> Expr:
    """Return `root` with `rule` applied to each load, after those in its indices."""
    if not loads(root):
        return root

    def placed(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        args = tuple([map_loads(arg, rule) for arg in node.args])
        return rule(Load(node.buffer, args, node.flat))

    return rewrite(root, placed)


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


# Arithmetic on sizes


class SizeArithmetic(Protocol):
    """What makes sizes canonical."""

    def binary(self, op: str, a: Expr, b: Expr) -> Expr: ...
    def poly(self, node: Expr) -> Mapping[tuple[Expr, ...], int]: ...


_ARITHMETIC: list[Callable[[], SizeArithmetic]] = []


def sizes_by(arithmetic: Callable[[], SizeArithmetic]) -> None:
    """Let the operators of sizes use an arithmetic, which is made of expressions itself."""
    _ARITHMETIC[:] = [arithmetic]


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


def _no_size(call: str) -> DefinitionError:
    return DefinitionError(
        call,
        "sizes are whole numbers, with + - * // % by whole numbers",
        "f.extent(size) is a scalar of the math, of which there are all functions",
    )


def _operate(op: str, left: object, right: object) -> Expr | int:
    """Return the simplified result; NotImplemented where an operand is no size."""
    sizes = [_size(operand) for operand in (left, right)]
    one, other = sizes
    if isinstance(left, float) or isinstance(right, float):
        raise _no_size(f"{left} {_SIGNS[op]} {right}")
    if one is None or other is None:
        return typed("int", NotImplemented)  # Python tries the other operand, then raises TypeError
    if op in ("floordiv", "mod", "ceildiv") and isinstance(other, Const) and other.value <= 0:
        raise DefinitionError(
            f"{one} {'%' if op == 'mod' else '//'} {other}",
            "sizes are divided by what is 1 or more",
        )
    found = _ARITHMETIC[0]().binary(op, one, other)
    return int(found.value) if isinstance(found, Const) else found


def _size(operand: object) -> Expr | None:
    """Return an int or a size expression as an expression; None of anything else."""
    if isinstance(operand, Expr):
        return operand if operand.dtype is dtypes.index else None
    number = whole(operand)
    return None if number is None else integer(number)


# The text of expressions, as in the nest


class TextFormat:
    """Print expressions as in the nest: Python's operators and precedence.

    A subclass for another language overrides the methods, not the traversal.
    """

    def format(self, node: Expr, level: int = 0) -> str:
        """Return the text of `node`, in parentheses where `level` binds tighter than it."""
        match node:
            case Op():
                text, own = self.operation(node)
                return f"({text})" if own < level else text
            case Const():
                return self.literal(node, level)
            case Load():
                return self.load(node)
            case Index() | Symbol() | ScalarParam() | Local():
                return self.name(node)
            case LaunchIndex():
                return self.launch_index(node)
            case Arg():
                return f"${node.number}"
            case Coordinate():
                return f"#{node.number}"
        raise InternalError(type(node).__name__, "no text for expressions of this class")

    def name(self, node: Index | Symbol | ScalarParam | Local) -> str:
        """Return the name of a variable."""
        return node.name

    def launch_index(self, node: LaunchIndex) -> str:
        """Return the number of this block or thread along a launch dimension."""
        return node.dimension.value

    def literal(self, node: Const, level: int) -> str:
        """Return a literal: Python's repr."""
        text = repr(node.value)
        return f"({text})" if text.startswith("-") and level > 11 else text

    def load(self, node: Load) -> str:
        """Return an access: ``x[i, j]``, or ``x.flat[e]`` for one offset."""
        inner = ", ".join([self.format(a) for a in node.args])
        return f"{node.buffer.name}{'.flat' if node.flat else ''}[{inner}]"

    def operation(self, node: Op) -> tuple[str, int]:
        """Return the text and the precedence of an operation."""
        info = OPS[node.op]
        level = info.precedence
        if node.op == "cast":
            return f"{node.dtype.name}({self.format(node.args[0])})", 12
        if not info.infix:
            return f"{info.name}({', '.join([self.format(a) for a in node.args])})", 12
        if info.arity == 1:
            return info.infix + self.format(node.args[0], level), level
        left, right = node.args
        left_level = level + 1 if level == 4 else level
        text = f"{self.format(left, left_level)} {info.infix} {self.format(right, level + 1)}"
        return text, level


TEXT = TextFormat()
