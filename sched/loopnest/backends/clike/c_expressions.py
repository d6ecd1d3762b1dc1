"""Expressions in C and CUDA C++: one formatter, for each `Dialect`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager

from loopnest.backends.clike.dialect import (
    AND,
    ATOM,
    BITAND,
    BITOR,
    BITXOR,
    COND,
    EQ,
    OR,
    PRODUCT,
    REL,
    SUM,
    UNARY,
    Dialect,
    Text,
    literal,
)
from loopnest.backends.clike.identifiers import Names
from loopnest.base.errors import InternalError, kind_of
from loopnest.kir.shared_memory import swizzled
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
    TextFormat,
    cast,
    integer,
    walk,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.op_table import Column, ops
from loopnest.scalar.simplify import Simplifier

_INFIX: Mapping[str, tuple[str, int]] = {
    "or": ("||", OR), "and": ("&&", AND), "bitor": ("|", BITOR), "bitxor": ("^", BITXOR),
    "bitand": ("&", BITAND), "eq": ("==", EQ), "ne": ("!=", EQ), "lt": ("<", REL),
    "le": ("<=", REL), "gt": (">", REL), "ge": (">=", REL), "add": ("+", SUM), "sub": ("-", SUM),
    "mul": ("*", PRODUCT), "div": ("/", PRODUCT),
}  # fmt: skip


class CFormat(TextFormat):
    """Format expressions in one dialect; texts of nodes are kept, since nests repeat them.

    Args:
        dialect: types and functions.
        names: the identifiers, shared by everything in one text.
        sizes: the kind that size symbols are named as: "size" or "size argument".
        facts: what is known of sizes; one that is fixed is written as a number.
    """

    def __init__(
        self, dialect: Dialect, names: Names, sizes: str = "size", facts: Facts | None = None
    ) -> None:
        self.algebra = Simplifier(facts)
        self.dialect = dialect
        self.names = names
        self.sizes = sizes
        self.called: dict[str, None] = {}
        """Functions called so far, in order."""
        self.scalars: dict[Buffer, str] = {}
        """Buffers of one element that are plain variables."""
        self.launch: dict[ParallelType, str] = {}
        """The variable of each launch dimension in use."""
        self.quotients: frozenset[Expr] = frozenset()
        """Divisions of integers in floats, by ones >= 1: they need no care for odd operands."""
        self._texts: dict[Expr, Text] = {}
        self._renamed: dict[Expr, Text] = {}
        self._signs: dict[Expr, bool] = {}

    def format(self, node: Expr, level: int = 0) -> str:
        """Return the text of `node`, in parentheses where `level` binds tighter than it."""
        text, own = self.text(node)
        return f"({text})" if own < level else text

    def text(self, node: Expr) -> Text:
        """Return the text of `node` and its precedence."""
        found = self._texts.get(node)
        if found is None:
            found = self._texts[node] = self._text(node)
        return found

    def knows(self, node: Expr) -> bool:
        """Whether `node` was formatted before."""
        return node in self._texts and self._number(node) is None

    def _number(self, node: Expr) -> Const | None:
        """Return the number that a size, or an expression of sizes, is known to be."""
        if isinstance(node, Const) or any(isinstance(n, (Index, LaunchIndex)) for n in walk(node)):
            return None
        found = self.algebra.simplify(node)
        return found if isinstance(found, Const) else None

    def rename(self, node: Expr, text: str) -> None:
        """Write `text`, which binds as a name does, for `node` from here on."""
        self._texts[node] = self._renamed[node] = text, ATOM

    @contextmanager
    def renamed(self, texts: Mapping[Expr, str]) -> Iterator[None]:
        """Write other names for some nodes while a `with` block lasts.

        Nodes are shared: the same load, or an operation on it, may stand before the block, in it
        and behind it, and has a text of its own in each.
        """
        outer = self._texts
        self._texts = {**self._renamed, **{node: (text, ATOM) for node, text in texts.items()}}
        try:
            yield
        finally:
            outer.update((n, t) for n, t in self._texts.items() if isinstance(n, Symbol))
            self._texts = outer

    def _text(self, node: Expr) -> Text:
        match node:
            case Op(op="cast", args=(value,)) if value.dtype is dtypes.index:
                number = self._number(value)
                folded = node if number is None else cast(number, node.dtype)
                return self.text(folded) if isinstance(folded, Const) else self.operation(node)
            case Op():
                return self.operation(node)
            case Symbol() if (number := self._number(node)) is not None:
                return self.text(number)
            case Const():
                return literal(node, self.dialect)
            case Load():
                return self.load(node), ATOM
            case Index() | Symbol() | ScalarParam() | Local():
                return self.name(node), ATOM
            case LaunchIndex():
                return self.launch_index(node), ATOM
        raise InternalError(str(node), f"{kind_of(node)} is left in the loop nest")

    def name(self, node: Index | Symbol | ScalarParam | Local) -> str:
        """Return the identifier of a variable."""
        match node:
            case Symbol():
                prefix = "" if self.sizes == "size" else "size_"
                return self.names.of(self.sizes, prefix + node.name)
            case Index():
                return self.names.of("index", node.name)
            case ScalarParam():
                return self.names.of("scalar", node.name)
            case Local():
                return self.names.of("local", node.name)

    def launch_index(self, node: LaunchIndex) -> str:
        """Return the variable of a launch dimension; a dimension not in use has index 0."""
        if not node.dimension.is_thread:
            raise InternalError(str(node), f"{node.dimension.value} is no launch dimension")
        return self.launch.get(node.dimension, "0")

    # Memory

    def load(self, node: Load) -> str:
        """Return an access."""
        return self.element(node.buffer, node.args, flat=node.flat)

    def element(self, buffer: Buffer, index: tuple[Expr, ...], *, flat: bool) -> str:
        """Return the element of `buffer` at `index`, as an lvalue."""
        variable = self.scalars.get(buffer)
        if variable is not None:
            return variable
        offset = self.format(index[0]) if flat else self.offset(buffer, index)
        return f"{self.names.of('buffer', buffer.name)}[{offset}]"

    def offset(self, buffer: Buffer, index: tuple[Expr, ...]) -> str:
        """Return the distance from the first element, in elements."""
        terms = []
        for position, stride in zip(swizzled(buffer, index), buffer.strides, strict=True):
            if position is ZERO or stride is ZERO:
                continue
            if stride is ONE:
                terms.append(self.format(position, SUM))
            elif isinstance(position, Const) and isinstance(stride, Const):
                terms.append(self.format(integer(int(position.value) * int(stride.value))))
            else:
                terms.append(f"{self.format(position, PRODUCT)} * {self.format(stride, UNARY)}")
        return " + ".join(terms) or "0"

    # Operations

    def operation(self, node: Op) -> Text:
        """Return the text and the precedence of an operation."""
        if node.op not in ("cast", "where") and any(a.dtype.is_narrow for a in node.args):
            # A sum, product or quotient of two narrow floats that is rounded to float32 first is
            # rounded right to the narrow type then: float32 has twice its digits and two more.
            return self.text(_in_float32(node))
        rule = RULES.get(node.op)
        if rule is None:
            raise InternalError(str(node), f"C has no rule for operation '{node.op}'")
        return rule(self, node)

    def call(self, op: str, dtype: DType, *args: Expr) -> Text:
        """Return the call of the function for `op` on operands of `dtype`."""
        function = self.dialect.functions.get((op, dtype.name))
        if function is None:
            raise InternalError(f"{op}({', '.join(map(str, args))})", f"no {op} of {dtype}")
        return self.invoke(function, *args)

    def invoke(self, function: str, *args: Expr) -> Text:
        """Return the call of a function by its name."""
        self.called[function] = None
        return f"{function}({', '.join([self.format(a) for a in args])})", ATOM

    def infix(self, node: Op, sign: str, level: int) -> Text:
        """Return ``left sign right``, grouped as the tree is."""
        left, right = node.args
        if level >= SUM:
            return f"{self.format(left, level)} {sign} {self.format(right, level + 1)}", level
        # Comparisons bind tighter than && and ||; all else mixes only in parentheses.
        inner = EQ if level in (OR, AND) else SUM
        chained = isinstance(left, Op) and left.op == node.op and level <= BITAND
        first = self.format(left, level if chained else inner)
        return f"{first} {sign} {self.format(right, inner)}", level

    def converted(self, value: Expr, dtype: DType) -> str:
        """Return `value` as a store into `dtype` needs it."""
        return self.format(cast(value, dtype))

    def nonnegative(self, node: Expr) -> bool:
        """Whether the index `node` is seen to be >= 0: plain C division is then floor division."""
        found = self._signs.get(node)
        if found is None:
            found = self._signs[node] = self._nonnegative(node)
        return found

    def learn(self, variable: Local, value: Expr) -> None:
        """Take over what is known of `value` for the name that it gets."""
        self._signs[variable] = value.dtype is dtypes.index and self.nonnegative(value)

    def _nonnegative(self, node: Expr) -> bool:
        match node:
            case Index() | Symbol() | LaunchIndex():
                return True
            case Const():
                return node.value >= 0
            case Op(op="add" | "mul" | "min" | "floordiv" | "ceildiv"):
                return all(self.nonnegative(a) for a in node.args)
            case Op(op="max"):
                return any(self.nonnegative(a) for a in node.args)
            case Op(op="mod"):
                return self.nonnegative(node.args[1])
            case Op(op="where"):
                return all(self.nonnegative(a) for a in node.args[1:])
        return False


def _in_float32(node: Op) -> Expr:
    """Return an operation on narrow floats as one on float32, rounded once to its type."""
    args = tuple([cast(a, a.dtype.compute) for a in node.args])
    return cast(Op(node.op, args, node.dtype.compute), node.dtype)


# One rule for each operation of the scalar language.

Rule = Callable[[CFormat, Op], Text]


def _infix(form: CFormat, node: Op) -> Text:
    return form.infix(node, *_INFIX[node.op])


def _arithmetic(form: CFormat, node: Op) -> Text:
    """+, - and *: integer values wrap, which C's signed integers do not promise."""
    # Overflow of signed integers is undefined in C; unsigned ones wrap, and the conversion back
    # keeps the bits (two's complement, by every compiler that is supported).
    unsigned = form.dialect.unsigned.get(node.dtype.name)
    if unsigned is None:
        return _infix(form, node)
    sign, _ = _INFIX[node.op]
    left, right = [f"({unsigned}){form.format(a, UNARY)}" for a in node.args]
    return f"({form.dialect.types[node.dtype.name]})({left} {sign} {right})", UNARY


def _division(form: CFormat, node: Op) -> Text:
    if not node.dtype.is_float:
        raise InternalError(str(node), f"true division of {node.dtype}")
    if node in form.quotients and ("quotient", node.dtype.name) in form.dialect.functions:
        return form.call("quotient", node.dtype, *node.args)
    return _infix(form, node)


def _negation(form: CFormat, node: Op) -> Text:
    (value,) = node.args
    if node.dtype.name in form.dialect.unsigned:
        return _arithmetic(form, Op("sub", (Const(0, node.dtype), value), node.dtype))
    return f"-{form.format(value, ATOM)}", UNARY


def _not(form: CFormat, node: Op) -> Text:
    sign = "!" if node.dtype.is_bool else "~"
    text = sign + form.format(node.args[0], ATOM)
    if node.dtype in (dtypes.uint8, dtypes.uint16):  # the complement of an int
        return f"({form.dialect.types[node.dtype.name]}){text}", UNARY
    return text, UNARY


def _floor_division(form: CFormat, node: Op) -> Text:
    left, right = node.args
    if node.dtype is dtypes.index and form.nonnegative(left) and form.nonnegative(right):
        # C divides towards 0, which is the floor where no operand is negative.
        sign = "/" if node.op == "floordiv" else "%"
        return f"{form.format(left, PRODUCT)} {sign} {form.format(right, UNARY)}", PRODUCT
    return form.call(node.op, node.dtype, left, right)


def _ceil_division(form: CFormat, node: Op) -> Text:
    left, right = node.args
    if isinstance(right, Const):
        rest: Expr = Const(int(right.value) - 1, right.dtype)
    else:
        rest = Op("sub", (right, Const(1, right.dtype)), right.dtype)
    if node.dtype is dtypes.index and form.nonnegative(left) and form.nonnegative(right):
        above = f"{form.format(left, SUM)} + {form.format(rest, SUM)}"
        return f"({above}) / {form.format(right, UNARY)}", PRODUCT
    total = Op("add", (left, rest), node.dtype)
    return form.call("floordiv", node.dtype, total, right)


def _extremum(form: CFormat, node: Op) -> Text:
    if node.dtype.is_bool:
        return _infix(form, Op("or" if node.op == "max" else "and", node.args, node.dtype))
    return _function(form, node)


def _function(form: CFormat, node: Op) -> Text:
    return form.call(node.op, node.args[0].dtype, *node.args)


def _philox(form: CFormat, node: Op) -> Text:
    """Call for a word of a random block; neighbours name the same block, and so share it."""
    *words, number = node.args
    dtype = number.dtype
    if isinstance(number, Op) and number.op == "cast" and number.args[0].dtype is dtypes.index:
        places = [Op(op, (number.args[0], integer(4)), dtypes.index) for op in ("floordiv", "mod")]
        block, word = [cast(form.algebra.simplify(place), dtype) for place in places]
    else:
        block = Op("shr", (number, Const(2, dtype)), dtype)
        word = Op("bitand", (number, Const(3, dtype)), dtype)
    return form.call(node.op, node.args[0].dtype, *words, block, word)


def _rounding(form: CFormat, node: Op) -> Text:
    """floor, ceil, round, trunc: integers stay as they are."""
    return _function(form, node) if node.dtype.is_float else form.text(node.args[0])


def _abs(form: CFormat, node: Op) -> Text:
    (value,) = node.args
    natural = node.dtype.is_bool or not node.dtype.signed
    if natural or (node.dtype is dtypes.index and form.nonnegative(value)):
        return form.text(value)
    return _function(form, node)


def _isnan(form: CFormat, node: Op) -> Text:
    return _function(form, node) if node.args[0].dtype.is_float else ("false", ATOM)


def _reciprocal(form: CFormat, node: Op) -> Text:
    return _infix(form, Op("div", (Const(1.0, node.dtype), node.args[0]), node.dtype))


def _fma(form: CFormat, node: Op) -> Text:
    if node.dtype.is_float:
        return _function(form, node)
    a, b, c = node.args
    return form.text(Op("add", (Op("mul", (a, b), node.dtype), c), node.dtype))


def _where(form: CFormat, node: Op) -> Text:
    condition, first, second = node.args
    function = form.dialect.selects.get(node.dtype.name)
    if function is not None and _loads_anyway(node, form.scalars):
        return form.invoke(function, *node.args)
    return (
        f"{form.format(condition, OR)} ? {form.format(first, OR)} : {form.format(second, COND)}",
        COND,
    )


def _loads_anyway(node: Op, scalars: Container[Buffer]) -> bool:
    """Whether a choice by data loads from memory what lies in its buffer, whatever is chosen.

    A condition that guards a load speaks of indices. One that speaks of data alone guards none
    whose index is no data.
    """
    condition, *values = node.args
    loads = [n for value in values for n in walk(value) if isinstance(n, Load)]
    if all(load.buffer in scalars for load in loads):
        return False
    if any(isinstance(n, Load) for load in loads for index in load.args for n in walk(index)):
        return False
    data = [n for n in walk(condition) if isinstance(n, (Load, Local))]
    places = {n for load in data for index in load.args for n in walk(index)}
    sizes = (Index, LaunchIndex, Symbol)
    return bool(data) and not any(isinstance(n, sizes) and n not in places for n in walk(condition))


def _cast(form: CFormat, node: Op) -> Text:
    (value,), dtype = node.args, node.dtype
    if value.dtype is dtype:
        return form.text(value)
    function = form.dialect.casts.get((value.dtype.name, dtype.name))
    if function is not None:
        return form.invoke(function, value)
    if value.dtype.is_narrow or dtype.is_narrow:  # through float32, which holds every narrow float
        # An integer has more digits than float32, and would be rounded to bfloat16 twice: others
        # hold no integer so large.
        long = dtype is dtypes.bfloat16 and value.dtype.is_integer and value.dtype.size >= 4
        between = dtypes.float64 if long else dtypes.float32
        return _cast(form, Op("cast", (cast(value, between),), dtype))
    if value.dtype.is_float and dtype.kind == "i" and dtype not in (dtypes.int32, dtypes.int64):
        # A float beyond the range of the target type is undefined in C; through a wider type the
        # low bits remain.
        wide = dtypes.int64 if dtype is dtypes.uint32 else dtypes.int32
        return _cast(form, Op("cast", (cast(value, wide),), dtype))
    if dtype.is_bool:
        return f"{form.format(value, SUM)} != {form.format(Const(0, value.dtype))}", EQ
    return f"({form.dialect.types[dtype.name]}){form.format(value, UNARY)}", UNARY


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ops(lambda op: op.result == "float"), _function),
    **dict.fromkeys(("or", "and", "eq", "ne", "lt", "le", "gt", "ge"), _infix),
    **dict.fromkeys(("bitor", "bitxor", "bitand"), _infix),
    **dict.fromkeys(("add", "sub", "mul"), _arithmetic),
    **dict.fromkeys(("floordiv", "mod"), _floor_division),
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), _rounding),
    **dict.fromkeys(("min", "max"), _extremum),
    "div": _division, "neg": _negation, "not": _not, "bitnot": _not, "ceildiv": _ceil_division,
    "abs": _abs, "isnan": _isnan, "reciprocal": _reciprocal, "fma": _fma, "where": _where,
    "cast": _cast, "pow": _function, "shl": _function, "shr": _function, "ordinal32": _function,
    "ordinal64": _function, "philox": _philox,
}  # fmt: skip
RULES = Column("form in C and CUDA", __name__, _RULES)
