"""Folds of values with different axes: each component goes on along the axes that it needs.

In an online softmax the largest score and the sum have an element a row, their product with the
values one a row and column. Folded as they come, all three would be computed for each row and
column. Here the component that has more axes than those that it is combined with is a first-order
recurrence, ``y = F y' + v``, whose F and v follow from what the others held so far: an exclusive
scan of them. So what depends on rows alone is computed once a row, and all of it is ordinary math:
scans, pointwise tensors and reductions, which schedules reach like any other.

Source: Blelloch, "Prefix sums and their applications", 1990, section 1.4; Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from typing import TypeAlias

from loopnest.scalar.dtypes import DType, bool_
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, Arg, Const, Expr, Op, substitute, two_sides, walk
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import Axis, define_tuple
from loopnest.tensor.ops.data_movement import squeeze
from loopnest.tensor.ops.own_reducers import Reducer
from loopnest.tensor.tensor_view import Scan, TensorView, TracedReducer

_Parts: TypeAlias = "tuple[int, ...]"


@cache
def _affine(dtype: DType) -> TracedReducer:
    """Return the reducer that composes x -> F x + v: pairs (F, v)."""
    made = Reducer((1, 0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "recurrence")
    return made.of(dtype, dtype)


@dataclass(frozen=True, slots=True)
class _Linear:
    """A template as ``old * a + new * b + rest``, where a and b are the own component's sides.

    None is 0.
    """

    old: Expr | None
    new: Expr | None
    rest: Expr | None

    @property
    def is_free(self) -> bool:
        """Whether it does not depend on the own component."""
        return self.old is None and self.new is None


@dataclass(frozen=True, eq=False, slots=True)
class Recurrences:
    """The results of a reducer of one's own, whose values may lack axes of each other.

    Args:
        reducer: of the user.
        tensors: what is read, with broadcast axes up to the rank of `axes`.
        axes: those that the values broadcast to.
        reduced: the places of the axes that are reduced.
        types: of the results.
        elements: the partial result of an element, a template a component, in the tensors.
    """

    reducer: Reducer
    tensors: Sequence[TensorView]
    axes: Sequence[Axis]
    reduced: tuple[int, ...]
    types: Sequence[DType]
    elements: tuple[Expr, ...]
    _made: dict[object, tuple[TensorView, ...]] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[DType, ...]:
        """The types that components are folded in."""
        return tuple([value.dtype for value in self.elements])

    @property
    def plain(self) -> TracedReducer:
        """The reducer without tests for its identity."""
        return self.reducer.plain(self.kinds)

    def is_uneven(self) -> bool:
        """Whether one component varies along axes that another one, combined with it, lacks."""
        if all(self.axes[place][1] is IterKind.BROADCAST for place in self.reduced):
            return False
        every = range(len(self.elements))
        return any(self.needs(n) < self.needs(k) for k in every for n in self.closure(k))

    def results(self) -> tuple[TensorView, ...]:
        """Define and return the results, one a component, without the axes that are reduced."""
        folded = [n for n in self.reduced if self.axes[n][1] is not IterKind.BROADCAST]
        left = [n for n in range(len(self.axes)) if n not in folded]
        single = [place for place, n in enumerate(left) if n in self.reduced]
        made = tuple([self._result(n) for n in range(len(self.elements))])
        return tuple([squeeze(tensor, single) for tensor in made]) if single else made

    # What depends on what

    def closure(self, number: int) -> _Parts:
        """Return the components that `number` is combined with, itself among them."""
        found, stack = {number}, [number]
        while stack:
            for other in _components(self.plain.combination[stack.pop()], len(self.elements)):
                if other not in found:
                    found.add(other)
                    stack.append(other)
        return tuple(sorted(found))

    def needs(self, number: int) -> frozenset[int]:
        """Return the places of the axes along which component `number` varies, or is reduced.

        Where it depends on scalars alone it has all axes, as NumPy would broadcast it.
        """
        read = [self.tensors[n] for other in self.closure(number) for n in self._read(other)]
        if not read:
            return frozenset(range(len(self.axes)))
        return frozenset({*self.reduced, *_varying(read)})

    def _read(self, number: int) -> list[int]:
        """Return which tensors the value of a component reads."""
        return [node.number for node in walk(self.elements[number]) if isinstance(node, Arg)]

    # Results

    def _result(self, number: int) -> TensorView:
        whole = self.closure(number)
        if len(whole) > 1:
            found = self._recurrence(number)
            if found is not None:
                return found
        return self._fold(whole)[whole.index(number)]

    def _fold(self, parts: _Parts) -> tuple[TensorView, ...]:
        """Return the reduction of components that need no others."""
        needs = frozenset().union(*[self.needs(n) for n in parts])
        types = [self.types[n] for n in parts]
        values = tuple([self.elements[n] for n in parts])
        return self._kept(
            ("fold", parts),
            lambda: self._define(self._over(needs), types, values, self._part(parts)),
        )

    def _before(self, parts: _Parts) -> tuple[TensorView, ...]:
        """Return what the elements before each one fold to: an exclusive scan."""
        needs = frozenset().union(*[self.needs(n) for n in parts])
        kinds = [self.kinds[n] for n in parts]
        values = tuple([self.elements[n] for n in parts])
        scan = Scan(self.reduced[0], exclusive=True)
        return self._kept(
            ("scan", parts),
            lambda: self._define(
                self._over(needs, IterKind.ITERATION), kinds, values, self._part(parts), scan
            ),
        )

    def _recurrence(self, number: int) -> TensorView | None:
        """Return component `number` as a recurrence; None where it is not one."""
        count, kind = len(self.elements), self.kinds[number]
        if kind.is_bool or self.plain.identity[number].value != 0:
            return None
        linear = _linear(self.plain.combination[number], number, count)
        if linear is None or linear.old is None or linear.new is None:
            return None
        former = {n.number for e in _given(linear) for n in walk(e)
                  if isinstance(n, Arg) and n.number < count}  # fmt: skip
        if former and len(self.reduced) > 1:
            return None
        fixed = isinstance(linear.old, Const) and not _is_one(linear.old)
        if fixed or not all(self._varies(template, number) for template in _given(linear)):
            return None
        exact = self.reducer.is_exact(self.kinds)
        if not exact:
            linear = self._guarded(linear)
        assert linear.old is not None
        assert linear.new is not None
        step = self._step(linear, number, exact)
        needs, types = self.needs(number), [self.types[number]]
        if _is_one(linear.old):
            sums = reducers.SUM.of(kind)
            return self._define(self._over(needs), types, (Arg(0, kind),), sums, reads=[step])[0]
        factor = self._pointwise(linear.old)
        pair = (Arg(0, kind), Arg(1, kind))
        made = self._define(
            self._over(needs), [kind, *types], pair, _affine(kind), reads=[factor, step]
        )
        return made[1]

    def _varies(self, template: Expr, number: int) -> bool:
        """Whether what a template says can be computed as a tensor."""
        if isinstance(template, Const):
            return bool(self._read(number))
        places = {n for node in walk(template) if isinstance(node, Arg)
                  for n in self.closure(node.number % len(self.elements))}  # fmt: skip
        return all(self._read(n) for n in places)

    def _step(self, linear: _Linear, number: int, exact: bool) -> TensorView:
        """Return what an element adds: its value times its factor, and the rest.

        Nothing is 0 as it is written, whatever the factor is: such elements may be left out.
        """
        assert linear.new is not None
        count, kind = len(self.elements), self.kinds[number]
        own: Expr = Arg(count + number, kind)
        value = own
        given: list[TensorView] = []
        if not _is_one(linear.new):
            factor: Expr = linear.new
            if not isinstance(factor, Const):
                given.append(self._pointwise(factor))
                factor = Arg(2 * count, kind)
            value = Op("mul", (value, factor), kind)
            if not exact and linear.rest is None:
                nothing = Const(0, kind)
                value = Op("where", (Op("eq", (own, nothing), bool_), nothing, value), kind)
        if linear.rest is not None:
            value = Op("add", (value, linear.rest), kind)
        return self._pointwise(value, *given)

    def _guarded(self, linear: _Linear) -> _Linear:
        """Return `linear` such that a side counts whole where the other has had no element."""
        neutral = self.plain.identity
        sides = two_sides(self.kinds)
        used = dict.fromkeys([n for e in _given(linear) for n in walk(e) if isinstance(n, Arg)])
        places = dict.fromkeys([arg.number % len(neutral) for arg in used])
        if not places:
            return linear
        former, latter = [
            _all([Op("eq", (side[place], neutral[place]), bool_) for place in places])
            for side in sides
        ]

        def chosen(test: Expr, value: Expr | None, otherwise: int) -> Expr | None:
            if value is None or isinstance(value, Const):
                return value
            return Op("where", (test, Const(otherwise, value.dtype), value), value.dtype)

        return _Linear(
            chosen(latter, linear.old, 1),
            chosen(former, linear.new, 1),
            chosen(_all([former, latter]), linear.rest, 0),
        )

    # Definitions

    def _part(self, parts: _Parts) -> TracedReducer:
        return self.reducer.part(self.kinds, parts)

    def _over(self, needs: frozenset[int], kind: IterKind = IterKind.REDUCTION) -> list[Axis]:
        """Return the axes `needs`, those reduced of `kind`, and broadcast axes for the others."""
        result: list[Axis] = []
        for place, (size, own) in enumerate(self.axes):
            if place not in needs:
                result.append((ONE, IterKind.BROADCAST))
            else:
                folds = place in self.reduced and own is IterKind.ITERATION
                result.append((size, kind if folds else own))
        return result

    def _pointwise(self, template: Expr, *given: TensorView) -> TensorView:
        """Return the tensor of a template in the sides of the reducer.

        What the first side holds comes from scans; `given` are tensors that stand for `Arg`s behind
        both sides.
        """
        count = len(self.elements)
        reads: list[TensorView] = []
        mapping: dict[Expr, Expr] = {}

        def read(tensor: TensorView) -> Expr:
            if tensor not in reads:
                reads.append(tensor)
            return Arg(reads.index(tensor), tensor.dtype)

        for arg in dict.fromkeys([n for n in walk(template) if isinstance(n, Arg)]):
            if arg.number >= 2 * count:
                mapping[arg] = read(given[arg.number - 2 * count])
            elif arg.number >= count:
                value = self.elements[arg.number - count]
                loads: dict[Expr, Expr] = {
                    n: read(self.tensors[n.number]) for n in walk(value) if isinstance(n, Arg)
                }
                mapping[arg] = substitute(value, loads)
            else:
                parts = self.closure(arg.number)
                mapping[arg] = read(self._before(parts)[parts.index(arg.number)])
        value = substitute(template, mapping)
        if isinstance(value, Arg):
            return reads[value.number]
        axes = self._over(frozenset(_varying(reads)), IterKind.ITERATION)
        return self._kept(
            ("pointwise", value, tuple(reads)),
            lambda: self._define(axes, [value.dtype], (value,), None, reads=reads),
        )[0]

    def _define(
        self,
        axes: Sequence[Axis],
        types: Sequence[DType],
        values: tuple[Expr, ...],
        reducer: TracedReducer | None,
        scan: Scan | None = None,
        reads: Sequence[TensorView] | None = None,
    ) -> tuple[TensorView, ...]:
        """Define tensors over `axes` of what `values` say of `reads`, by default of all tensors."""
        found = list(self.tensors if reads is None else reads)
        if reads is None:
            used = sorted({n.number for v in values for n in walk(v) if isinstance(n, Arg)})
            renumbered: dict[Expr, Expr] = {
                Arg(n, found[n].dtype): Arg(i, found[n].dtype) for i, n in enumerate(used)
            }
            values = tuple([substitute(v, renumbered) for v in values])
            found = [found[n] for n in used] or found
        places = tuple(range(len(axes)))
        note = f"axis={self.reduced[0] if len(self.reduced) == 1 else self.reduced}"
        if reducer is None:
            note = str(values[0])
        elif scan is not None:
            note += ", exclusive=True"
        op = self.reducer.name
        return define_tuple(
            op, tuple(found), found, places, axes, types, values, reducer, note, scan
        )

    def _kept(
        self, key: object, make: Callable[[], tuple[TensorView, ...]]
    ) -> tuple[TensorView, ...]:
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found


def _varying(tensors: Sequence[TensorView]) -> set[int]:
    """Return the places of axes along which one of several tensors of equal rank varies."""
    return {n for t in tensors for n, axis in enumerate(t.domain.logical) if not axis.is_broadcast}


def _components(template: Expr, count: int) -> set[int]:
    return {node.number % count for node in walk(template) if isinstance(node, Arg)}


def _given(linear: _Linear) -> list[Expr]:
    return [e for e in (linear.old, linear.new, linear.rest) if e is not None]


def _all(tests: Sequence[Expr]) -> Expr:
    """Return whether all tests hold."""
    return reduce(lambda a, b: Op("and", (a, b), bool_), tests)


def _is_one(value: Expr) -> bool:
    return isinstance(value, Const) and value.value == 1


def _linear(template: Expr, number: int, count: int) -> _Linear | None:
    """Return `template` as linear in both sides of component `number`; None if it is not."""
    if isinstance(template, Arg) and template.number % count == number:
        one = Const(1, template.dtype)
        return _Linear(one, None, None) if template.number < count else _Linear(None, one, None)
    if number not in _components(template, count):
        return _Linear(None, None, template)
    if not isinstance(template, Op):
        return None
    parts = [_linear(arg, number, count) for arg in template.args]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    match template.op, known:
        case ("add" | "sub", [a, b]):
            return _Linear(*[
                _joined(template.op, x, y) for x, y in zip(_sides(a), _sides(b), strict=True)
            ])  # fmt: skip
        case ("neg", [a]):
            return _Linear(*[None if x is None else _negated(x) for x in _sides(a)])
        case ("mul", [a, b]) if a.is_free or b.is_free:
            scale, other = (a.rest, b) if a.is_free else (b.rest, a)
            return _Linear(*[_scaled("mul", x, scale) for x in _sides(other)])
        case ("div", [a, b]) if b.is_free:
            return _Linear(*[_scaled("div", x, b.rest) for x in _sides(a)])
    return None


def _sides(linear: _Linear) -> tuple[Expr | None, Expr | None, Expr | None]:
    return linear.old, linear.new, linear.rest


def _joined(op: str, a: Expr | None, b: Expr | None) -> Expr | None:
    if b is None:
        return a
    if a is None:
        return b if op == "add" else _negated(b)
    return Op(op, (a, b), a.dtype)


def _negated(value: Expr) -> Expr:
    if isinstance(value, Const):
        return Const(-value.value, value.dtype)
    return Op("neg", (value,), value.dtype)


def _scaled(op: str, value: Expr | None, scale: Expr | None) -> Expr | None:
    if value is None or scale is None:
        return None
    if op == "mul" and _is_one(value):
        return scale
    return Op(op, (value, scale), value.dtype)
