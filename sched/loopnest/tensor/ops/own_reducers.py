"""Reducers of one's own: a function of two partial results, traced for each choice of types.

What users write is a function on scalars of the math; what definitions hold are the templates that
it returned (see `reducers`). A reducer is tried when it is made, and again for each choice of types
that it is used with: is it associative, and is its identity neutral?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import TypeAlias

from loopnest.base.errors import DefinitionError, LoopnestError
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType, bool_, float32, int64
from loopnest.scalar.expr import Arg, Const, Expr, Op, cast, substitute, two_sides, walk
from loopnest.tensor.fusion import Fusion, Number, ScalarOperand, as_identifier
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.operands import OperandRefused, is_number, literal, show
from loopnest.tensor.ops.reducers import Family, Types
from loopnest.tensor.tensor_view import TracedReducer

Parts: TypeAlias = "tuple[ScalarOperand, ...]"

_BUILT_IN = {f.name: f for f in vars(reducers).values() if isinstance(f, Family)}

_SYMMETRIC = frozenset(
    ("add", "mul", "min", "max", "and", "or", "eq", "ne", "bitand", "bitor", "bitxor")
)
_MIRRORED = {"gt": "lt", "ge": "le"}

_MOST_CHOICES = 64
"""How many choices of types a reducer is tried with before it is used."""


class Reducer:
    """How `reduce` folds: an identity, and a function that combines two partial results.

    A partial result is a tuple of scalars, as long as the identity. `combine(a, b)` takes those of
    two neighbouring parts of the elements, a's first, and returns that of both together, by
    operators and the functions of this package (``ln.exp``, ``ln.where``, ``ln.eq``…). It must be
    associative but for rounding; it need not commute: then partial results keep the order of their
    elements, those of threads and blocks too, and schedules that cannot keep it are refused.

    >>> import loopnest as ln
    >>> last = ln.Reducer(
    ...     (0.0, False), lambda a, b: (ln.where(b[1], b[0], a[0]), a[1] | b[1]), "last"
    ... )
    >>> last
    Reducer('last')

    Args:
        identity: Python numbers: the partial result that is neutral beside all that occur (which is
            yours to see to where not all tuples occur: with a flag that says whether a value is
            there, the value is 0 where it is not). Beside a partial result in which it is not
            neutral, as 0 * inf is not 0, the result of all may be anything. A float stands for any
            float type, an int for integers and floats; the types are those of the values that are
            reduced.
        combine: is called with symbolic scalars when a reducer is made or used with new types.
        name: for nests, where what is no letter, digit or _ becomes _, and errors.
        commutative: says that the order of partial results does not matter although that does not
            show in what `combine` returns (as it does where both sides are treated alike).

    Raises:
        DefinitionError: no numbers, no function, a function that raises or returns something else,
            or a trial with random values that fails.
    """

    def __init__(
        self,
        identity: Number | Sequence[Number],
        combine: Callable[[Parts, Parts], Sequence[object]],
        name: str,
        *,
        commutative: bool = False,
    ) -> None:
        subject = f"Reducer({show(name)})"
        if not isinstance(name, str) or not name:
            raise DefinitionError(subject, "the name is no text", "as in 'log_sum_exp'")
        self.name, self._subject = name, subject
        self.identity = _numbers(subject, identity)
        if not callable(combine):
            reason = f"combine is of type {type(combine).__name__}"
            raise DefinitionError(subject, reason, "use a function of two partial results")
        if not isinstance(commutative, bool):
            reason = f"commutative={show(commutative)} is no bool"
            raise DefinitionError(subject, reason, "use commutative=True or commutative=False")
        self._combine, self._commutative = combine, commutative
        self._traced: dict[Types, TracedReducer] = {}
        self._plain: dict[Types, TracedReducer] = {}
        self._try_types()

    def __repr__(self) -> str:
        return f"Reducer({self.name!r})"

    def _try_types(self) -> None:
        """Trace and try it with the types that its identity may stand for, until one will do."""
        choices = islice(product(*map(_types_of, self.identity)), _MOST_CHOICES)
        refused: DefinitionError | None = None
        for types in choices:
            try:
                self.of(*types)
            except DefinitionError as why:
                refused = refused or why
            else:
                return
        assert refused is not None
        raise refused

    def of(self, *types: DType) -> TracedReducer:
        """Return it for partial results of `types`.

        Raises:
            DefinitionError: it does not fit these types, or fails its trial.
        """
        found = self._traced.get(types)
        if found is None:
            found = self._traced[types] = self._tried(self._trace(types))
        return found

    def plain(self, types: Types) -> TracedReducer:
        """Return what `combine` returned for partial results of `types`, without added tests."""
        reducer = self.of(*types)
        return self._plain.get(types, reducer)

    def is_exact(self, types: Types) -> bool:
        """Whether the identity is neutral without a test."""
        self.of(*types)
        return types not in self._plain

    def part(self, types: Types, components: Sequence[int]) -> TracedReducer:
        """Return the reducer of some components, which are combined with each other alone.

        Args:
            types: of all components.
            components: the numbers of those that it has, in their order.
        """
        whole = self.plain(types)
        if len(components) == len(types):
            return self.of(*types)
        kinds = tuple([types[n] for n in components])
        mapping: dict[Expr, Expr] = {
            sides[n]: own[place]
            for sides, own in zip(two_sides(types), two_sides(kinds), strict=True)
            for place, n in enumerate(components)
        }
        combination = tuple([substitute(whole.combination[n], mapping) for n in components])
        name = "_".join([as_identifier(self.name), *map(str, components)])
        identity = tuple([whole.identity[n] for n in components])
        ordered = not (self._commutative or _commutes(combination, kinds))
        made = TracedReducer(name, identity, combination, ordered=ordered)
        for family in _BUILT_IN.values():
            known = _same_built_in(replace(made, name=family.name), family)
            if known is not None:
                return known
        from loopnest.numerics.reducer_trials import trial  # by the arithmetic of the oracle

        return made if trial(made).exact else _neutral_by_test(made)

    def of_elements(self, elements: Sequence[Expr]) -> TracedReducer:
        """Return it for elements of which some components are literals.

        Raises:
            DefinitionError: it does not fit their types, or fails its trial.
        """
        types = tuple([value.dtype for value in elements])
        reducer = self.of(*types)
        plain = self._plain.get(types)
        known = tuple([value if isinstance(value, Const) else None for value in elements])
        pairs = zip(known, reducer.identity, strict=True)
        if plain is None or not any(a is not None and a.value != b.value for a, b in pairs):
            return reducer
        one, other = two_sides(types)  # an element that is not the identity needs no test for it
        literals: dict[Expr, Expr] = {
            arg: value for arg, value in zip(other, known, strict=True) if value is not None
        }
        special = [
            substitute(Op("where", (_is_neutral(one, plain), b, both), both.dtype), literals)
            for b, both in zip(other, plain.combination, strict=True)
        ]
        return replace(reducer, literals=known, special=tuple(special))

    def _trace(self, types: Types) -> TracedReducer:
        one, other = two_sides(types)
        tracing = Fusion()
        sides = [tuple([ScalarOperand(arg, tracing) for arg in side]) for side in (one, other)]
        try:
            returned = self._combine(*sides)
        except Exception as why:
            reason = str(why) if isinstance(why, LoopnestError) else f"{type(why).__name__}: {why}"
            raise DefinitionError(self._subject, f"combine raises {reason}") from why
        if not isinstance(returned, (tuple, list)) or len(returned) != len(types):
            raise DefinitionError(
                self._subject,
                f"combine returns {show(returned)}",
                f"it returns a tuple as long as the identity: {len(types)}",
            )
        pairs = enumerate(zip(returned, types, strict=True))
        combination = tuple([self._component(n, v, dtype, tracing) for n, (v, dtype) in pairs])
        identity = tuple(
            [self._literal(v, dtype) for v, dtype in zip(self.identity, types, strict=True)]
        )
        ordered = not (self._commutative or _commutes(combination, types))
        return TracedReducer(as_identifier(self.name), identity, combination, ordered=ordered)

    def _literal(self, value: Number, dtype: DType) -> Const:
        try:
            return literal(value, dtype)
        except (OperandRefused, OverflowError, ValueError):
            raise DefinitionError(
                self._subject, f"the identity {value!r} is no {dtype}", "use a number that fits"
            ) from None

    def _component(self, number: int, value: object, dtype: DType, tracing: Fusion) -> Expr:
        """Return one of the values that `combine` returned as an expression of `dtype`."""
        if is_number(value):
            return self._literal(value, dtype)
        if not isinstance(value, ScalarOperand) or value.fusion is not tracing:
            raise DefinitionError(
                self._subject,
                f"component {number} of what combine returns is {show(value)}",
                "compute it from the partial results and numbers",
            )
        if dtypes.promote(value.dtype, dtype) is not dtype:
            raise DefinitionError(
                self._subject,
                f"component {number} of what combine returns is {value.dtype}, that of its "
                f"operands {dtype}",
                "use ln.cast",
            )
        return cast(value.expr, dtype)

    def _tried(self, reducer: TracedReducer) -> TracedReducer:
        """Return a reducer that passed its trial, its identity exactly neutral.

        Raises:
            DefinitionError: it fails.
        """
        from loopnest.numerics.reducer_trials import trial  # by the arithmetic of the oracle

        family = _BUILT_IN.get(reducer.name)
        if family is not None:
            known = _same_built_in(reducer, family)
            if known is not None:
                return known
            reducer = replace(reducer, name=f"own_{reducer.name}")  # readers know the other
        found = trial(reducer, commutes=self._commutative)
        if found.failure is not None:
            shown = ", ".join(map(str, reducer.types))
            raise DefinitionError(self._subject, f"for components of {shown}, {found.failure}")
        if found.exact:
            return reducer
        self._plain[reducer.types] = reducer
        return _neutral_by_test(reducer)


def _same_built_in(reducer: TracedReducer, family: Family) -> TracedReducer | None:
    """Return the reducer of this package that folds in the same way, if that of the name does."""
    types = reducer.types
    known = family.of(*types) if len(types) == family.components else None
    same = known is not None and replace(reducer, ordered=known.ordered) == known
    return known if same else None


def _numbers(subject: str, identity: object) -> tuple[Number, ...]:
    found = tuple(identity) if isinstance(identity, (tuple, list)) else (identity,)
    if not found or not all(map(is_number, found)):
        raise DefinitionError(
            subject, f"the identity is {show(identity)}", "give a tuple of numbers, one a component"
        )
    return found


def _types_of(value: Number) -> tuple[DType, ...]:
    """Return types that a component of the identity may stand for, the natural one first."""
    if isinstance(value, bool):
        return (bool_, int64, float32)
    return (int64, float32) if isinstance(value, int) else (float32,)


def _commutes(combination: Sequence[Expr], types: Types) -> bool:
    """Whether templates treat both sides alike: with the sides exchanged they are the same."""
    one, other = two_sides(types)
    swapped = dict(zip((*one, *other), (*other, *one), strict=True))
    forms: dict[object, int] = {}

    def form(root: Expr, leaves: dict[Arg, Arg]) -> int:
        """Return a number for what `root` computes, whatever the order of operands."""
        done: dict[Expr, int] = {}
        for node in walk(root):
            parts = [done[arg] for arg in node.args]
            key: object = leaves.get(node, node) if isinstance(node, Arg) else node
            if isinstance(node, Op):
                parts = sorted(parts) if node.op in _SYMMETRIC else parts
                parts = parts[::-1] if node.op in _MIRRORED else parts
                key = (_MIRRORED.get(node.op, node.op), node.dtype, *parts)
            done[node] = forms.setdefault(key, len(forms))
        return done[root]

    return all(form(template, {}) == form(template, swapped) for template in combination)


def _neutral_by_test(reducer: TracedReducer) -> TracedReducer:
    """Return a reducer that gives one side wherever the other is the identity.

    For a combination that is not exactly neutral in it: that rounds there, or gives NaN where both
    sides are the identity, as ``exp(-inf - -inf)`` does.
    """
    one, other = two_sides(reducer.types)
    first, second = _is_neutral(one, reducer), _is_neutral(other, reducer)
    made: list[Expr] = []
    for a, b, both in zip(one, other, reducer.combination, strict=True):
        kept = Op("where", (first, b, both), both.dtype)
        made.append(Op("where", (second, a, kept), both.dtype))
    return replace(reducer, combination=tuple(made))


def _is_neutral(side: Sequence[Expr], reducer: TracedReducer) -> Expr:
    pairs = zip(side, reducer.identity, strict=True)
    tests: list[Expr] = [Op("eq", (a, b), bool_) for a, b in pairs]
    result = tests[0]
    for test in tests[1:]:
        result = Op("and", (result, test), bool_)
    return result
