"""Loops that carry state: a step, built once, and repeated along an axis of its own.

The step is traced on tensors of one step. Each tensor that it makes of the state or of what is
sliced then gets the axis of steps in front, and its definition one coordinate more: it is the
tensor of all steps. The state before step t is the initial one where t is 0, else the state after
step t - 1. That read is carried (`Definition.carried`): it makes no producer of what it reads, so
that the graph of tensors has no circle. What lies between the two shares the loop over steps from
the start, so that a step is complete when the next one begins.

Source: Halide's update definitions over reduction domains; jax.lax.scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, overload

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import IterKind, Memory
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    Op,
    cast,
    integer,
    substitute,
)
from loopnest.scalar.templates import coordinates
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import (
    Axis,
    axes_of,
    define,
    fresh_domain,
    normalized_axes,
)
from loopnest.tensor.ops.data_movement import Extent
from loopnest.tensor.ops.operands import call_text, require_flag, require_tensor, show
from loopnest.tensor.ops.slices import flip
from loopnest.tensor.tensor_view import Definition, Read, TensorView

State: TypeAlias = "TensorView | tuple[TensorView, ...]"
_Past: TypeAlias = tuple[TensorView, ...]
"""A state in the last steps, oldest first."""


@overload
def recur(
    step: Callable[..., object], initial: TensorView,
    over: TensorView | Sequence[TensorView] = (), axis: int = 0, steps: Extent | None = None,
    keep: str = "all", reverse: bool = False, depth: int = 1,
    until: Callable[..., object] | None = None,
) -> TensorView: ...  # fmt: skip
@overload
def recur(
    step: Callable[..., object], initial: Sequence[object],
    over: TensorView | Sequence[TensorView] = (), axis: int = 0, steps: Extent | None = None,
    keep: str = "all", reverse: bool = False, depth: int = 1,
    until: Callable[..., object] | None = None,
) -> tuple[TensorView, ...]: ...  # fmt: skip
def recur(
    step: Callable[..., object],
    initial: TensorView | Sequence[object],
    over: TensorView | Sequence[TensorView] = (),
    axis: int = 0,
    steps: Extent | None = None,
    keep: str = "all",
    reverse: bool = False,
    depth: int = 1,
    until: Callable[..., object] | None = None,
) -> TensorView | tuple[TensorView, ...]:
    """Return the states of a loop that carries state: each is `step` of the one before.

    The results have the axis of steps in front (`IterKind.STEP`): its loop runs in order, and all
    that reads the state is computed in it. What does not read it, as a product of `over` with
    weights, is better written outside of `step`, for all steps at once.

    Args:
        step: called once, with the state and a slice of each tensor of `over`; it builds the next
            state of ordinary operations, which may read any tensor of the fusion. The state is a
            tensor, or a tuple where `initial` is one; it keeps shape and type.
        initial: the state before the first step: a tensor, or a tuple of tensors.
        over: what is sliced along `axis`: a tensor, or several of one length along it.
        axis: of each tensor of `over`.
        steps: the number of steps, for a loop over nothing: an int, the name of a size symbol, or
            an extent. `step` then gets the number of the step as its last argument, an int64.
        keep: "all" states, [T, …], or the "last" alone, which is `initial` where there is no step.
        reverse: whether to go from the end of `over`; the states stand where their elements do.
        depth: how many states back a step reads. With 2 or more each state is a tuple of so many
            tensors, oldest first, in `initial` and for `step`.
        until: ends the loop early, with keep="last": called once, with the states behind a step, it
            returns a bool of no axes. The result is the state behind the first step at which it
            holds, or behind the last one. No state of an earlier step is asked, nor `initial`.

    Raises:
        DefinitionError: operands that are no tensors, lengths that differ, a step that changes the
            number, shape or type of states, or reads none of one; other flags than those named,
            `reverse` with `depth` or without `over`, `until` without keep="last" or with anything
            but a bool of no axes that reads a state, or a recur inside of a step.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("rnn") as f:
    ...     x, w = f.input("x", ("T", "H"), ln.float32), f.input("w", ("H", "H"), ln.float32)
    ...     zero = ln.full("H", 0.0)
    ...     h = f.output(ln.recur(lambda h, x: ln.sum(w * h, axis=1) + x, zero, over=x), "h")
    >>> x, w = np.array([[1, 0], [0, 1]], np.float32), np.array([[1, 1], [0, 2]], np.float32)
    >>> ln.evaluate(f, x, w)
    array([[1., 0.],
           [1., 1.]], dtype=float32)

    Source: Halide's update definitions; jax.lax.scan.
    """
    found = (over,) if isinstance(over, TensorView) else _items("recur(…)", over, "over")
    given = tuple([require_tensor("recur", x) for x in found])
    deep = "" if show(depth) == "1" else f"depth={show(depth)}"  # of any type, an array too
    call = call_text("recur", (initial, *given), deep)
    _check_flags(call, keep, reverse, depth, bool(given))
    if until is not None:
        _check_until(call, until, keep)
    pasts = _pasts(call, initial, depth)
    fusion = pasts[0][0].fusion
    places = [normalized_axes("recur", x, axis)[0] for x in given]
    count = _count(call, fusion, given, places, steps)
    if reverse:
        given = tuple([flip(x, place) for x, place in zip(given, places, strict=True)])
    alone = isinstance(initial, TensorView) or (depth > 1 and isinstance(initial[0], TensorView))
    loop = _StepLoop(call, fusion, count, pasts, alone, until)
    mark, names = fusion.begin(), dict(fusion._names)
    try:
        states = loop.states(step, given, places, numbered=steps is not None)
    except Exception:
        fusion.rollback(mark)
        fusion._names = names
        raise
    finally:
        fusion.end()
    if keep == "last":
        pairs = zip(states, pasts, strict=True)
        states = [_last(s, past[-1], count, loop.reached) for s, past in pairs]
    elif reverse:
        states = [flip(state, 0) for state in states]
    return states[0] if loop.single else tuple(states)


def _check_flags(call: str, keep: object, reverse: object, depth: object, sliced: bool) -> None:
    if keep not in ("all", "last"):
        raise DefinitionError(call, f"keep={show(keep)} is neither", 'use "all" or "last"')
    require_flag(call, "reverse", reverse, "use True or False")
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise DefinitionError(call, f"depth={show(depth)} is no depth", "use an int of 1 or more")
    if reverse and depth > 1:
        raise DefinitionError(call, "reverse goes with a depth of 1", "flip what is sliced")
    if reverse and not sliced:
        raise DefinitionError(call, "nothing is sliced that could be reversed", "leave it out")


def _check_until(call: str, until: object, keep: str) -> None:
    if not callable(until):
        found = f"until={show(until)} is no function"
        raise DefinitionError(call, found, "give one of the states that returns a bool")
    if keep != "last":
        found = f"until= ends the loop early, and keep={show(keep)} asks for all states"
        raise DefinitionError(call, found, 'use keep="last"')


def _pasts(call: str, initial: object, depth: int) -> list[_Past]:
    """Return the initial states, each as the last `depth` ones."""
    states: list[object] = (
        [initial] if isinstance(initial, TensorView) else list(_items(call, initial))
    )
    if depth > 1 and all(isinstance(state, TensorView) for state in states):
        states = [tuple(states)]  # one state
    if not states:
        raise DefinitionError(call, "there is no state", "give a tensor, or a tuple of them")
    found: list[_Past] = []
    for state in states:
        past = (state,) if depth == 1 else tuple(_items(call, state))
        for tensor in past:
            require_tensor("recur", tensor)
        if len(past) != depth:
            what = f"a state is given in {len(past)} steps, and depth={depth}"
            raise DefinitionError(call, what, "give as many, oldest first")
        first, *others = [t for t in past if isinstance(t, TensorView)]
        for other in others:
            _require_alike(call, f"{other.name}, a state of an earlier step,", other, first)
        found.append((first, *others))
    return found


def _items(call: str, value: object, what: str = "the state") -> Iterator[object]:
    if not isinstance(value, (tuple, list)):
        raise DefinitionError(call, f"{what} is {show(value)}", "use tensors, or tuples of them")
    yield from value


def _require_alike(call: str, what: str, found: TensorView, state: TensorView) -> None:
    """Refuse a tensor that has not the shape and type of a state."""
    equal = found.fusion.algebra.equal
    sizes = [axis.size for axis in state.domain.logical]
    own = [axis.size for axis in found.domain.logical]
    alike = len(own) == len(sizes) and all(map(equal, own, sizes))
    if not alike or found.dtype is not state.dtype:
        raise DefinitionError(
            call,
            f"{what} is {_shape(found)}, and the state {_shape(state)}",
            "a state keeps its shape and type: broadcast, reshape or cast it",
        )


def _shape(tensor: TensorView) -> str:
    sizes = ", ".join([str(axis.size) for axis in tensor.domain.logical])
    return f"{tensor.dtype}[{sizes}]"


def _count(
    call: str,
    fusion: Fusion,
    over: Sequence[TensorView],
    places: Sequence[int],
    steps: Extent | None,
) -> Expr:
    """Return the number of steps."""
    lengths = [x.domain.logical[n].size for x, n in zip(over, places, strict=True)]
    if steps is not None:
        lengths.insert(0, fusion.size(call, steps))
    if not lengths:
        raise DefinitionError(call, "nothing says how many steps there are", "give over= or steps=")
    for x, size in zip(over[::-1], lengths[::-1], strict=False):
        if not fusion.algebra.equal(size, lengths[0]):
            what = f"{x.name} has {size} steps, and there are {lengths[0]}"
            raise DefinitionError(call, what, "slices have one length")
    if not fusion.algebra.proves_le(ZERO, lengths[0]):
        fusion.require(Op("le", (ZERO, lengths[0]), dtypes.bool_))
    return lengths[0]


def _last(
    states: TensorView, initial: TensorView, count: Expr, reached: TensorView | None
) -> TensorView:
    """Return the state after the last step; the initial one where there is no step.

    The last step is the one `reached`, where that is given.
    """
    axes = axes_of(initial)
    own = tuple([Coordinate(n) for n in range(len(axes))])
    made = [states] if reached is None else [states, reached]
    back = states.fusion.algebra.sub(count, ONE)
    if reached is not None:
        back = cast(Arg(2, reached.dtype), dtypes.index)
    reads = (Read(initial, own), Read(states, (back, *own)), *[Read(t, ()) for t in made[1:]])
    some = Op("lt", (ZERO, count), dtypes.bool_)
    found = _chosen(some, Arg(1, states.dtype), Arg(0, states.dtype), states.dtype)
    return define(states.fusion, "last", tuple(made), reads, axes, states.dtype, found)


def _chosen(condition: Expr, yes: Expr, no: Expr, dtype: DType) -> Expr:
    if isinstance(condition, Const):
        return yes if condition.value else no
    return Op("where", (condition, yes, no), dtype)


@dataclass(slots=True, eq=False)
class _StepLoop:
    """One loop over steps.

    Args:
        call: for errors.
        fusion: of its tensors.
        count: the number of steps.
        pasts: the initial states.
        single: whether there is one state, given alone.
        until: whether the states behind a step end the loop.
        reached: the number of the step that is the last one, where there is `until`.
    """

    call: str
    fusion: Fusion
    count: Expr
    pasts: list[_Past]
    single: bool
    until: Callable[..., object] | None = None
    reached: TensorView | None = None

    def states(
        self,
        step: Callable[..., object],
        over: Sequence[TensorView],
        places: Sequence[int],
        *,
        numbered: bool,
    ) -> list[TensorView]:
        """Return the states after each step."""
        before = [tuple([self._of_one_step(axes_of(t), t.dtype) for t in p]) for p in self.pasts]
        sliced = [
            self._of_one_step([a for n, a in enumerate(axes_of(x)) if n != place], x.dtype)
            for x, place in zip(over, places, strict=True)
        ]
        number = [self._of_one_step([], dtypes.int64)] if numbered else []
        known = len(self.fusion.tensors)
        found = self._stepped(step, before, [*sliced, *number])
        ends = None if self.until is None else self._ended(self.until, found)
        self._require_read(before, found, ends)
        traced = self.fusion.tensors[known:]
        starts = [t for past in before for t in past]
        self._lift([*starts, *sliced, *number], traced)
        for tensor, x, place in zip(sliced, over, places, strict=True):
            index: list[Expr] = [Coordinate(n + 1) for n in range(len(tensor.domain.root) - 1)]
            read = Read(x, (*index[:place], Coordinate(0), *index[place:]))
            value = (Arg(0, x.dtype),)
            note = f"{{}}[{place}: step]"
            tensor.define(Definition("slice", (x,), (read,), (tensor,), value, note=note))
        for tensor in number:
            steps = cast(Coordinate(0), dtypes.int64)
            tensor.define(Definition("step", (), (), (tensor,), (steps,)))
        loops = _loops(before, found if ends is None else [*found, ends])
        states = []
        for place, (past, after, own) in enumerate(zip(self.pasts, found, before, strict=True)):
            apart = any(loops.get(tensor) != loops[place] for tensor in own)
            states.append(self._state(past[-1], after, own if apart else ()))
        if ends is not None:
            others = [t for t in starts if loops.get(t) != loops[len(found)]]
            self.reached = self._reached(ends, others)
        for state, own, past in zip(states, before, self.pasts, strict=True):
            for back, tensor in enumerate(reversed(own), 1):
                tensor.define(self._earlier(tensor, state, past, back))
        self._share(starts, states if self.reached is None else [*states, self.reached])
        return states

    def _of_one_step(self, axes: Sequence[Axis], dtype: DType) -> TensorView:
        return TensorView(self.fusion, fresh_domain(axes), dtype)

    def _stepped(
        self,
        step: Callable[..., object],
        before: Sequence[_Past],
        elements: Sequence[TensorView],
    ) -> list[TensorView]:
        """Return what a step makes of the state."""
        deep = len(self.pasts[0]) > 1
        given = [past if deep else past[0] for past in before]
        made = step(given[0] if self.single else tuple(given), *elements)
        found = [made] if self.single else list(made) if isinstance(made, (tuple, list)) else [made]
        if len(found) != len(self.pasts) or not all(isinstance(t, TensorView) for t in found):
            what = f"the step returns {_said(made)}, and there are {len(self.pasts)} states"
            raise DefinitionError(self.call, what, "return the next state, a tensor for each")
        tensors = [t for t in found if isinstance(t, TensorView)]
        for number, (tensor, past) in enumerate(zip(tensors, self.pasts, strict=True)):
            if tensor.fusion is not self.fusion:
                raise DefinitionError(self.call, f"{tensor.name} is of another fusion", "")
            _require_alike(self.call, f"what the step makes of state {number}", tensor, past[-1])
        return tensors

    def _require_read(
        self, before: Sequence[_Past], after: Sequence[TensorView], ends: TensorView | None
    ) -> None:
        """Refuse a state that neither a step nor the end of the loop reads."""
        needed = set() if ends is None else _computed_from(ends)
        for number, (past, tensor) in enumerate(zip(before, after, strict=True)):
            read = any(t.consumers or t in after for t in past)
            if not read and tensor not in needed:
                what = f"no step reads state {number}, {self.pasts[number][-1].name}"
                raise DefinitionError(self.call, what, "leave it out, and compute it for all steps")

    def _ended(self, until: Callable[..., object], after: Sequence[TensorView]) -> TensorView:
        """Return whether the states that a step makes end the loop."""
        known = len(self.fusion.tensors)
        made = until(*after)
        if not isinstance(made, TensorView):
            what = f"until returns {show(made)}"
            raise DefinitionError(self.call, what, "return a bool of no axes, by the states")
        if made.fusion is not self.fusion:
            raise DefinitionError(self.call, f"{made.name} is of another fusion", "")
        if made.domain.logical or made.dtype is not dtypes.bool_:
            raise DefinitionError(
                self.call,
                f"until returns {made.name}, which is {_shape(made)}",
                "return a bool of no axes: compare a number, or take ln.any or ln.all",
            )
        if made in self.fusion.tensors[:known] or _computed_from(made).isdisjoint(after):
            what = f"until returns {made.name}, which reads no state"
            raise DefinitionError(self.call, what, "compute it of the states that it is given")
        return made

    def _reached(self, ends: TensorView, before: Sequence[TensorView]) -> TensorView:
        """Return the number of the first step at which the loop ends, or of the last one.

        It is the least of such numbers, which no step behind the first one changes. It shares the
        loop of all states: of those in `before`, which lead to it by nothing else, it needs no
        element.
        """
        last = self.fusion.algebra.sub(self.count, ONE)
        number, final = cast(Coordinate(0), dtypes.int64), cast(last, dtypes.int64)
        value = Op("where", (Arg(0, dtypes.bool_), number, final), dtypes.int64)
        steps = (Coordinate(0),)
        reads = [Read(ends, steps if ends.domain.root else ())]
        for tensor in before:
            reads.append(Read(tensor, (*steps, *[ZERO] * (len(tensor.domain.root) - 1))))
        reached = self._of_one_step([(self.count, IterKind.REDUCTION)], dtypes.int64)
        least = reducers.MIN.of(dtypes.int64)
        definition = Definition(
            "until", (ends,), tuple(reads), (reached,), (value,), least, "first step"
        )
        reached.define(definition)
        return reached

    # From one step to all of them

    def _lift(self, starts: Sequence[TensorView], traced: Sequence[TensorView]) -> None:
        """Give the axis of steps to what a step makes of the state, or of what is sliced."""
        of_steps = set(starts)
        for tensor in traced:
            definition = tensor.definition
            assert definition is not None
            if definition.carried:
                raise DefinitionError(
                    self.call, "a step holds a loop over steps", "build it outside of the step"
                )
            if not of_steps.isdisjoint(definition.producers):
                of_steps.update(tensor.siblings)
        lifted = {*starts, *traced}
        for tensor in (*starts, *traced):
            # What no step changes is the same for all of them.
            axis = IterDomain(ONE, IterKind.BROADCAST)
            if tensor in of_steps:
                axis = IterDomain(self.count, IterKind.STEP)
            own = tensor.domain
            root = (axis, *own.root)
            rfactor = root if own.rfactor == own.root else (axis, *own.rfactor)
            tensor.bind(TensorDomain(root, rfactor, (axis, *own.leaf)))
        for found in dict.fromkeys([t.definition for t in traced if t.definition is not None]):
            made = _lifted(found, lifted)
            for twin in found.outputs:
                twin.define(made)

    def _state(
        self, initial: TensorView, after: TensorView, before: Sequence[TensorView]
    ) -> TensorView:
        """Return the states after each step, of which `after` is the value.

        It shares the loop of what it reads: of `before`, too, of which it needs no element.
        """
        dtype = after.dtype
        axes: list[Axis] = [(self.count, IterKind.STEP), *axes_of(initial)]
        own = tuple([Coordinate(n) for n in range(len(axes))])
        reads = [Read(after, own if len(after.domain.logical) == len(own) else own[1:])]
        for tensor in before:
            reads.append(Read(tensor, (own[0], *[ZERO] * (len(tensor.domain.root) - 1))))
        state = self._of_one_step(axes, dtype)
        value = (Arg(0, dtype),)
        state.define(Definition("recur", (after,), tuple(reads), (state,), value))
        self.fusion.change(state, "_memory", Memory.GLOBAL)
        return state

    def _earlier(self, tensor: TensorView, state: TensorView, past: _Past, back: int) -> Definition:
        """Return the definition of the state `back` steps ago."""
        dtype = state.dtype
        own = [Coordinate(n) for n in range(len(tensor.domain.root))]
        first = [t for n, t in enumerate(past) if n >= len(past) - back]
        reads = [Read(t, tuple(own[1:])) for t in first]
        ago = Op("sub", (own[0], integer(back)), dtypes.index)
        reads.append(Read(state, (ago, *own[1:])))
        value: Expr = Arg(back, dtype)
        for number in reversed(range(back)):
            begun = Op("lt", (own[0], integer(number + 1)), dtypes.bool_)
            value = Op("where", (begun, Arg(number, dtype), value), dtype)
        note = f"{', '.join(['{}'] * back)}, then {{}}[step - {back}]"
        return Definition(
            "recur", (*first, state), tuple(reads), (tensor,), (value,), note=note, carried=(back,)
        )

    def _share(self, starts: Sequence[TensorView], states: Sequence[TensorView]) -> None:
        """Let all that is computed of the state share the loop over steps."""
        change, inner = self.fusion.change, set(starts)
        for tensor in self.fusion.topological():
            if inner.isdisjoint(p for twin in tensor.siblings for p in twin.producers):
                continue
            change(tensor, "_produced_at_pos", 1)
            if tensor not in states:
                inner.add(tensor)
        for tensor in inner:
            change(tensor, "_compute_at_pos", 1)


def _computed_from(tensor: TensorView) -> set[TensorView]:
    """Return a tensor, and all that it is computed from."""
    needed, stack = {tensor}, [tensor]
    while stack:
        fresh = [p for p in stack.pop().producers if p not in needed]
        needed.update(fresh)
        stack += fresh
    return needed


def _loops(before: Sequence[_Past], after: Sequence[TensorView]) -> dict[TensorView | int, int]:
    """Return which loop is joined by what a step computes, of its starts and, by number, `after`.

    A loop joins what a step starts from and what it makes of that.
    """
    joined: list[set[TensorView | int]] = []
    for number, tensor in enumerate(after):
        needed = _computed_from(tensor)
        mine: set[TensorView | int] = {number, *[t for past in before for t in past if t in needed]}
        rest = [other for other in joined if other.isdisjoint(mine)]
        joined = [*rest, mine.union(*[other for other in joined if not other.isdisjoint(mine)])]
    return {part: place for place, group in enumerate(joined) for part in group}


def _lifted(found: Definition, lifted: set[TensorView]) -> Definition:
    """Return a definition of one step for all of them."""
    reads = []
    for read in found.reads:
        index = tuple([_moved(i) for i in read.indices])
        if read.producer in lifted:
            index = (Coordinate(0), *index)
        reads.append(Read(read.producer, index))
    scan = None if found.scan is None else replace(found.scan, axis=found.scan.axis + 1)
    note = f"{found.note}, in each step" if found.note and "{}" not in found.note else found.note
    values = tuple([_moved(value) for value in found.values])
    return replace(found, reads=tuple(reads), values=values, scan=scan, note=note)


def _moved(template: Expr) -> Expr:
    """Return a template of one step, whose coordinates stand behind that of the step."""
    return substitute(template, {c: Coordinate(c.number + 1) for c in coordinates(template)})


def _said(made: object) -> str:
    if isinstance(made, (tuple, list)):
        return f"{len(made)} values"
    return made.name if isinstance(made, TensorView) else show(made)
