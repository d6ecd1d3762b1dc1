"""The Fusion: one kernel's math and its schedule, and the order of its tensors.

`TensorOrder` is of one state of the graph of tensors: each answer is computed when it is first
asked for, and a fusion makes another one when its graph has changed.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import cached_property
from html import escape
from itertools import chain, count
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar.contradictions import contradiction
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.dtypes import DType, int64, listed
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, TEXT, Expr, ScalarParam, Symbol, cast, integer, walk, whole
from loopnest.scalar.facts import Facts, size_expression
from loopnest.scalar.op_table import OPS
from loopnest.scalar.operators import Operators
from loopnest.scalar.origin import Origin, caller
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.axis_names import named_axes
from loopnest.tensor.domain import IterDomain, TensorDomain, connected
from loopnest.tensor.intents import Intent
from loopnest.tensor.layout_transforms import PLAIN
from loopnest.tensor.schedule_methods import FusionMethods, ScalarMath
from loopnest.tensor.schedule_trace import Step, Trace
from loopnest.tensor.tensor_view import TensorView, root_axis


def as_shape(call: str, shape: object) -> tuple[object, ...]:
    """Return a shape as a tuple of what may be extents.

    Raises:
        DefinitionError: it has no elements.
    """
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
        raise DefinitionError(call, f"the shape {shape!r} is not a tuple of extents")
    try:
        return tuple(shape)
    except TypeError:  # an array without axes
        raise DefinitionError(call, f"the shape {shape!r} is not a tuple of extents") from None


def check_dtype(call: str, dtype: object) -> None:
    """Refuse what is no element type.

    Raises:
        DefinitionError: `dtype` is no element type, or is the type of indices.
    """
    if not isinstance(dtype, DType) or dtype.kind == "x":
        raise DefinitionError(
            call,
            f"{dtype!r} is no element type",
            f"use {listed()}",
        )


def check_inplace(call: str, tensor: TensorView, target: object) -> None:
    """Refuse what an output cannot take the memory of.

    Raises:
        DefinitionError: no input, one that is overwritten already, another type or shape, strides.
    """
    fusion = tensor.fusion
    if not isinstance(target, TensorView) or target not in fusion.inputs:
        raise DefinitionError(call, "inplace= is not an input of this fusion")
    if target in fusion.inplace.values():
        raise DefinitionError(call, f"{target.name} is overwritten by another output already")
    if target.dtype is not tensor.dtype or target.sizes != tensor.sizes:
        raise DefinitionError(
            call,
            f"{tensor.name} is {tensor.signature} but {target.name} is {target.signature}",
            "an output takes the memory of an input of the same shape and type",
        )
    if target.strides is not None:
        raise DefinitionError(
            call, f"{target.name} has strides of its own", "an output is C-contiguous"
        )


class TensorOrder:
    """The graph of tensors of a fusion in one version.

    Args:
        version: of the graph.
        tensors: all of them, in order of creation.
        outputs: those that are declared.

    Attributes:
        placed: what the schedule layer knows of where tensors are computed, as long as the graph is
            this one and no call was undone.
    """

    def __init__(
        self, version: int, tensors: Sequence[TensorView], outputs: Sequence[TensorView]
    ) -> None:
        self.version = version
        self._tensors, self._outputs = tuple(tensors), tuple(outputs)
        self.placed: dict[TensorView, object] = {}

    @cached_property
    def topological(self) -> tuple[TensorView, ...]:
        """All tensors, producers before consumers, else in order of creation.

        Definitions, the outputs of one together, come by the first of their outputs' numbers.
        """
        unit_of = {t: t.siblings for t in self._tensors}
        rank = {unit: min(t.number for t in unit) for unit in unit_of.values()}
        waiting = {
            unit: len({unit_of[p] for t in unit for p in t.producers}) for unit in unit_of.values()
        }
        ready = [(rank[unit], unit) for unit, count in waiting.items() if not count]
        heapq.heapify(ready)
        order: list[TensorView] = []
        while ready:
            _, unit = heapq.heappop(ready)
            order.extend(unit)
            for user in dict.fromkeys(unit_of[c] for t in unit for c in t._consumers):
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, (rank[user], user))
        return tuple(order)

    @cached_property
    def ranks(self) -> dict[TensorView, int]:
        """The place of each tensor in `topological`."""
        return {tensor: place for place, tensor in enumerate(self.topological)}

    @cached_property
    def live(self) -> frozenset[TensorView]:
        """The tensors that an output depends on, with siblings; all where none is declared."""
        found = set(self._outputs or self._tensors)
        stack = list(found)
        while stack:
            tensor = stack.pop()
            for other in (*tensor.siblings, *tensor.producers, *tensor.carried):
                if other not in found:
                    found.add(other)
                    stack.append(other)
        return frozenset(found)

    @cached_property
    def unit_axes(self) -> frozenset[IterDomain]:
        """The root axes that are broadcast in their tensor and in all that is computed from it.

        A loop over one of them is never that of an axis that has more than one element.
        """
        found: set[IterDomain] = set()
        for tensor in reversed(self.topological):
            logical = tensor.domain.logical
            for axis in tensor.domain.root:
                if axis.is_broadcast and axis in logical:
                    readers = _readers(tensor, logical.index(axis))
                    if all(other in found for other in readers):
                        found.add(axis)
        return frozenset(found)

    @cached_property
    def first_placed(self) -> int:
        """A rank below which no tensor shares a loop with a consumer."""
        placed = [rank for t, rank in self.ranks.items() if t.compute_at_pos]
        return min(placed, default=len(self._tensors))

    def note_placed(self, tensor: TensorView) -> None:
        """Take note that `tensor` shares a loop with a consumer from now on."""
        if "first_placed" in self.__dict__:
            self.first_placed = min(self.first_placed, self.ranks[tensor])


def _readers(tensor: TensorView, number: int) -> Iterator[IterDomain]:
    """Yield the root axes of consumers that stand for logical axis `number` of a tensor."""
    for consumer in tensor.consumers:
        definition, root = consumer.definition, consumer.domain.root
        assert definition is not None
        for read in definition.reads:
            place = read.equal_axes(root)[number] if read.producer is tensor else None
            if place is not None:
                yield root[place]


_CURRENT: ContextVar[Fusion | None] = ContextVar("loopnest_fusion", default=None)
_AUTOMATIC = re.compile(r"T\d+(_\d+)?")
_MISSING = object()
Number: TypeAlias = "bool | int | float"
Scalar: TypeAlias = "ScalarOperand | Expr | bool | int | float"
Operand: TypeAlias = "TensorView | ScalarOperand | Expr | bool | int | float"
State: TypeAlias = "tuple[int, int, int, int]"
"""A state of a schedule: how many changes, calls, steps and intents there are."""


def current_fusion() -> Fusion | None:
    """Return the fusion whose `with` block is running, or None."""
    return _CURRENT.get()


class Fusion(FusionMethods[TensorView]):
    """One kernel's math and its schedule: a context that tensors are defined in.

    >>> import loopnest as ln
    >>> with ln.Fusion("scale") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> f.inputs == (x,) and f["y"] is y
    True

    Args:
        name: of the kernel. What no identifier may contain becomes ``_``: "layer 1/norm" is
            ``layer_1_norm`` everywhere.
    """

    def __init__(self, name: str = "kernel") -> None:
        if not isinstance(name, str):
            raise DefinitionError(f"Fusion({name!r})", "the name is no string")
        self.name = as_identifier(name)
        self.facts = Facts()
        self.algebra = Simplifier(self.facts)
        self._tensors: tuple[TensorView, ...] | list[TensorView] = []
        self._inputs: tuple[TensorView, ...] = ()
        self._outputs: tuple[TensorView, ...] = ()
        self._scalars: dict[str, ScalarParam] = {}
        self._symbols: dict[str, Symbol] = {}
        self._names: dict[str, object] = {}
        self._inplace: dict[TensorView, TensorView] = {}
        self.ranges: tuple[DataRange, ...] = ()
        """What is declared of the elements of inputs."""
        self._tokens: list[Token[Fusion | None]] = []
        self._journal: list[tuple[object, str, object]] | None = None
        self._depth = 0
        self.calling: Origin | None = None
        """The schedule call that is running: the origin of what it makes."""
        self._numbers = 0
        self.trace = Trace()
        """The schedule calls, in order; printed, it is a script that makes them again."""
        self._states: list[State] = []
        """The state of the schedule behind each of them."""
        self.intents: list[Intent] = []
        """What each call of the trace, and each assumption, means to achieve."""
        self.version = 0
        """Grows with every change of the graph of tensors; keys caches of its traversals."""
        self.matches: dict[tuple[object, ...], object] = {}
        """Correspondences of the axes of direct neighbours, and what was replayed as what: told by
        tensors and domains (see `schedule.root_maps`, `schedule.replay`)."""
        self._order: TensorOrder | None = None

    def __reduce__(self) -> tuple[Callable[..., Fusion], tuple[object, bytes]]:
        """Pickle a table of the tensors and their axes; so is it copied."""
        from loopnest.base.pickling import STAMP, dump_table, fields_of

        seeds = [axis for t in self._tensors for axis in t.domain.axes()]
        seeds += [intent.axis for intent in self.intents if intent.axis is not None]
        members = [self, *self._tensors, *connected(seeds)]
        return _loaded, (STAMP, dump_table(self, members, fields_of))

    def __getstate__(self) -> dict[str, object]:
        """Return what is kept: no running calls, and no caches."""
        calls: dict[str, object] = {"_tokens": [], "_depth": 0, "calling": None}
        calls |= {"_journal": None, "_states": []}
        caches: dict[str, object] = {"_order": None, "matches": {}}
        return {**self.__dict__, **calls, **caches}

    def __enter__(self) -> Fusion:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._tokens.pop())

    def __repr__(self) -> str:
        return f"<Fusion {self.name}: {len(self._tensors)} tensors>"

    def _repr_html_(self) -> str:
        computed = [tensor for tensor in self._tensors if tensor.definition is not None]
        pictures = "".join([f"<div>{tensor.picture()}</div>" for tensor in computed])
        return f"<pre>{escape(math_text(self))}</pre>{pictures}"

    def __getitem__(self, name: str) -> TensorView:
        for tensor in self._tensors:
            if isinstance(name, str) and tensor.name == name:
                return tensor
        raise DefinitionError(
            f"{self.name}[{name!r}]",
            "no tensor has this name",
            "the tensors are " + ", ".join(t.name for t in self._tensors),
        )

    # What the user declares

    @property
    def inputs(self) -> tuple[TensorView, ...]:
        """The inputs, in order of declaration."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorView, ...]:
        """The outputs, in order of declaration."""
        return self._outputs

    @property
    def tensors(self) -> tuple[TensorView, ...]:
        """Every TensorView, in order of creation."""
        return tuple(self._tensors)

    @property
    def scalars(self) -> tuple[ScalarParam, ...]:
        """The run-time scalar arguments, in order of declaration."""
        return tuple(self._scalars.values())

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The size symbols, in order of first appearance."""
        return tuple(self._symbols.values())

    @property
    def inplace(self) -> Mapping[TensorView, TensorView]:
        """Output -> the input whose memory it takes."""
        return self._inplace

    def input(
        self,
        name: str,
        shape: Sequence[int | str | Expr],
        dtype: DType,
        strides: Sequence[int | str | None] | None = None,
        names: Sequence[str | None] | None = None,
    ) -> TensorView:
        """Declare an input array.

        Args:
            name: an identifier, unique among inputs, scalars and outputs.
            shape: an int (static) or a str (a size symbol; equal names are equal extents) an axis,
                or a size expression, such as the extent of another tensor. A static 1 is a
                broadcast axis; a symbol never is.
            dtype: the element type.
            strides: from one element to the next, in elements, an axis: an int (0 where all are
                the same element), a size symbol (any stride, of each launch's array), or None
                where the axis is contiguous with those behind it. By default the array is
                C-contiguous; others are copied first. An array whose strides were declared is
                read where it lies.
            names: of the axes, by which schedule calls may give those of all that is computed from
                it; None where an axis gets none. Without, an axis is named as its size, where that
                is a symbol that no other axis has.

        Raises:
            DefinitionError: a bad name, extent, stride or type.
            ScheduleError: no names of the axes, or two of one name.
        """
        call = f"input({name!r}, {shape!r})"
        check_dtype(call, dtype)
        extents = as_shape(call, shape)
        self._check_name(call, name, extents)
        sizes = [self.size(call, extent) for extent in extents]
        steps = None if strides is None else declared_strides(self, call, strides, sizes)
        axes = named_axes(call, [root_axis(s) for s in sizes], names)
        tensor = TensorView(self, TensorDomain.of_root(axes), dtype)
        tensor.strides = steps
        self._claim(name, tensor)
        tensor._name, tensor._memory = name, Memory.GLOBAL
        self._inputs = (*self._inputs, tensor)
        return tensor

    def scalar(self, name: str, dtype: DType) -> ScalarOperand:
        """Declare a run-time scalar argument; it is a scalar expression, no TensorView.

        Raises:
            DefinitionError: a bad name or type.
        """
        call = f"scalar({name!r})"
        check_dtype(call, dtype)
        self._check_name(call, name)
        param = ScalarParam(name, dtype)
        self._claim(name, param)
        self._scalars[name] = param
        return ScalarOperand(param, self)

    def symbol(self, name: str) -> Symbol:
        """Return the size symbol `name`; declare it where no shape has named it yet.

        An assumption may name it from here on. A size that no input's shape has is a keyword
        argument of each launch.

        Raises:
            DefinitionError: no identifier, or the name of an argument.
        """
        call = f"symbol({name!r})"
        if not isinstance(name, str):
            raise DefinitionError(call, "the name is no string")
        found = self.size(call, name)
        assert isinstance(found, Symbol)
        return found

    def extent(self, extent: int | str | Expr) -> ScalarOperand:
        """Return an extent as an int64 scalar, to compare indices with, as in a mask.

        Where an operand stands beside a tensor or a scalar, as in ``x / x.shape[0]``, sizes become
        such scalars by themselves.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N",), ln.float32)
        ...     y = f.output(ln.iota(4) < f.extent("N"), "y")
        >>> _ = f.print_math()
        k(x: float32[N]) -> (y: bool[4])
          T1: int64[4] = iota(0, 1)
          y: bool[4] = T1 < int64(N)

        Args:
            extent: the name of a size symbol, an int, or an extent of a tensor.

        Raises:
            DefinitionError: it is none of these.
        """
        return ScalarOperand(cast(self.size(f"extent({extent!r})", extent), int64), self)

    def output(
        self, tensor: TensorView, name: str | None = None, inplace: TensorView | None = None
    ) -> TensorView:
        """Declare `tensor` an output, under `name`, in the memory of input `inplace` if given.

        An input, or a tensor that is an output already, is copied first. Returns the output.

        Raises:
            DefinitionError: no TensorView of this fusion, a bad name, an `inplace` that is not an
                input of the same shape and type, or a tensor whose buffer was laid out.
        """
        call = f"output({name!r})"
        if not isinstance(tensor, TensorView) or tensor.fusion is not self:
            raise DefinitionError(call, f"{tensor!r} is no TensorView of fusion {self.name}")
        laid_out = tensor.layout is not PLAIN or tensor.domain.allocation is not None
        if laid_out and not tensor.is_output:
            raise DefinitionError(
                call,
                f"the buffer of {tensor.name} was laid out, but that of an output is the caller's",
                "declare outputs before set_allocation, swizzle and circular_buffer",
            )
        if name is not None:
            self._check_name(call, name)
        if inplace is not None:
            check_inplace(call, tensor, inplace)
        if tensor in self._inputs or tensor in self._outputs:
            tensor = tensor._copied()
        if name is not None:
            if tensor._name is not None:
                self._names.pop(tensor._name, None)
            self._claim(name, tensor)
            tensor._name = name
        self.change(tensor, "_memory", Memory.GLOBAL)
        self.change(self, "_outputs", (*self._outputs, tensor))
        self.trace.begin_math()
        self.version += 1
        if inplace is not None:
            self.change(self, "_inplace", {**self._inplace, tensor: inplace})
        return tensor

    def assume(self, condition: str) -> None:
        """Assume a comparison of integers and size symbols, such as ``"N % 128 == 0"``.

        The simplifier may use it; every launch checks it. `Kernel.notes` says where no step of
        the lowering did. A size to which assumptions leave one value (``"D == 4096"``) is that
        number in loops, masks, indices, buffers and constants.

        Raises:
            DefinitionError: it cannot be read, names an unknown symbol, or contradicts what was
                assumed before.
        """
        if not isinstance(condition, str):
            raise DefinitionError(f"assume({condition!r})", "it is not a string")
        facts = self.facts.copy()
        facts.add(condition, self._symbols.__contains__)
        why = contradiction(facts)
        if why is not None:
            raise DefinitionError(
                f"assume({condition!r})", why, "assume what some sizes fulfil, or leave one out"
            )
        self._know(facts)
        self.trace.note(Step.of("assume", None, (condition,)))
        call = f"{self.name}.assume({condition!r})"
        self.intents.append(Intent(caller(call), "assume", value=condition))

    def assume_range(
        self,
        indices: TensorView,
        low: int | str | Expr,
        high: int | str | Expr,
        ascending: bool = False,
    ) -> None:
        """Declare that every element of the input `indices` lies in ``low <= element < high``.

        Every launch checks it on the data, `ln.verify` names what it takes from it.

        Args:
            indices: an input of an integer type.
            low: an int, the name of a size symbol, or an expression of sizes.
            high: likewise.
            ascending: whether no element is below the one before it, along the one axis there is.

        Raises:
            DefinitionError: no input of integers, bounds that are none, an empty range, or an
                `ascending` that is no bool, or of an input of several axes.

        >>> import numpy as np
        >>> import loopnest as ln
        >>> with ln.Fusion("rows") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     i = f.input("i", ("K",), ln.int32)
        ...     f.assume_range(i, 0, "N")
        ...     y = f.output(ln.take(x, i, 0), "y")
        >>> print(ln.verify(ln.lower(f)))
        proved for all sizes
          range: 0 <= i < N, as declared by assume_range

        Source: TVM's ``T.assume``; the index checks of torch.embedding.
        """
        found = self._declared_range(indices, low, high, ascending)
        self.change(self, "ranges", (*self.ranges, found))
        more = {"ascending": True} if ascending else {}
        self.trace.note(Step.of("assume_range", None, (indices, low, high), more))
        how = ", ascending=True" if ascending else ""
        call = f"{self.name}.assume_range({found.name}, {found.low}, {found.high}{how})"
        self.intents.append(Intent(caller(call), "range", value=found.name))

    def require(self, *conditions: Expr) -> None:
        """Take what the definition of a tensor asks of sizes, as an assumption.

        The simplifier may use it; every launch checks it.
        """
        known = {text for text, _ in self.facts.conditions}
        fresh = {str(c): c for c in conditions if str(c) not in known}
        if fresh:
            facts = self.facts.copy()
            for text, condition in fresh.items():
                facts.state(text, condition)
            self._know(facts)

    def _know(self, facts: Facts) -> None:
        """Take facts on sizes, by which axes that differed so far may be equal."""
        self.change(self, "facts", facts)
        self.change(self, "algebra", Simplifier(facts))
        self.renew()

    def renew(self) -> None:
        """Forget what is remembered of the graph of tensors as it was."""
        self.matches, self._order = {}, None
        self.version += 1

    def print_math(self) -> str:
        """Print the definitions, a line each, and return the text."""
        text = math_text(self)
        print(text)
        return text

    # Names, sizes, numbers

    def size(self, call: str, extent: object) -> Expr:
        """Return an extent (int, symbol name, size expression or its text) as an expression.

        Raises:
            DefinitionError: it is none of these, or negative.
        """
        match extent:
            case Expr():
                for node in walk(extent):
                    if isinstance(node, Symbol):
                        self.size(call, node.name)
                return self.algebra.simplify(extent)
            case bool():
                pass
            case int() if extent >= 0:
                return integer(extent)
            case str() if extent.isidentifier():
                if extent in self._names:
                    raise DefinitionError(
                        call,
                        f"'{extent}' is the name of an argument already",
                        f"name the size otherwise, such as {self._free(f'{extent}_size')!r}",
                    )
                return self._symbols.setdefault(extent, Symbol(extent))
            case str() if set(extent) & set("+-*/%("):
                known = self._symbols.__contains__
                return self.algebra.simplify(size_expression(extent, known, call))
        if not isinstance(extent, (int, str)) and (number := whole(extent)) is not None:
            return self.size(call, number)
        allowed = "use an int >= 0 or the name of a size symbol (an identifier)"
        raise DefinitionError(call, f"{extent!r} is no extent", allowed)

    def _check_name(self, call: str, name: object, sizes: Sequence[object] = ()) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise DefinitionError(call, f"the name {name!r} is not an identifier")
        if not name.isascii() or _AUTOMATIC.fullmatch(name):
            raise DefinitionError(
                call, f"the name {name!r} is reserved", "names like T3 are given automatically"
            )
        if name in self._names:
            other = f"use another one, such as {self._free(f'{name}_2')!r}"
            raise DefinitionError(call, f"the name {name!r} is taken already", other)
        if name in self._symbols or name in [size for size in sizes if isinstance(size, str)]:
            other = f"use another one, such as {self._free(f'{name}_values')!r}"
            raise DefinitionError(call, f"the name {name!r} is a size symbol already", other)

    def _free(self, name: str) -> str:
        """Return a name that nothing has: `name`, or the first like it."""
        taken = {*self._names, *self._symbols}
        numbered = (f"{name}_{number}" for number in count(2))
        return next(n for n in chain((name,), numbered) if n not in taken)

    def rename(self, tensor: TensorView, name: str) -> None:
        """Give a tensor a name; see `TensorView.named`."""
        if isinstance(name, str) and name == tensor._name:
            return
        self._check_name(f"{tensor.name}.named({name!r})", name)
        step = Step.of("named", tensor, (name,))
        if tensor._name is not None:
            self._names.pop(tensor._name, None)
        self._claim(name, tensor)
        tensor._name = name
        self.trace.note(step)

    def _claim(self, name: str, owner: object) -> None:
        self._names[name] = owner

    def _register(self, tensor: TensorView) -> int:
        number = self._numbers
        self.change(self, "_numbers", number + 1)
        assert isinstance(self._tensors, list)
        if self.calling is None:
            self.trace.begin_math()
        if self._journal is None:
            self._tensors.append(tensor)
        else:
            self.change(self, "_tensors", [*self._tensors, tensor])
        self.version += 1
        return number

    # Changes

    def change(self, target: object, attribute: str, value: object) -> None:
        """Set a field, so that the running transaction can undo it."""
        if self._journal is not None:
            self._journal.append((target, attribute, getattr(target, attribute, _MISSING)))
        setattr(target, attribute, value)
        if attribute == "_compute_at_pos" and value and isinstance(target, TensorView):
            self.order.note_placed(target)

    def begin(self) -> int:
        """Start or nest a transaction; return the mark to roll back to.

        From the first one on, every change is kept, so that `as_of` can go back.
        """
        self._depth += 1
        if self._journal is None:
            self._journal = []
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every change since `mark`."""
        assert self._journal is not None
        if len(self._journal) == mark:
            return
        while len(self._journal) > mark:
            target, attribute, old = self._journal.pop()
            setattr(target, attribute, old)
        self.version += 1

    def end(self) -> None:
        """End the innermost transaction; what the outermost one changed can still be looked at."""
        self._depth -= 1

    def take_note(self, step: Step, origin: Origin) -> None:
        """Take note of a call that was carried out: in the trace, and of the state behind it."""
        self.trace.note(step, origin)
        self._states.append(self.state)

    @property
    def state(self) -> State:
        """The state that the schedule is in; see `as_of`."""
        return len(self._journal or ()), len(self.trace), len(self.trace.steps), len(self.intents)

    def after_call(self, number: int) -> State | None:
        """Return the state behind call `number` of the trace; None where it was not kept.

        That of -1 is the one before the first call. A fusion that was copied or loaded has no
        earlier states.
        """
        if len(self._states) < len(self.trace):
            return None
        return self._states[number] if number >= 0 else (0, 0, 0, 0)

    @contextmanager
    def as_of(self, state: State) -> Iterator[None]:
        """Let the schedule be what it was in an earlier state, for a while.

        Nothing may be changed in it but in a transaction that is rolled back.
        """
        changes, *counts, intents = state
        journal = self._journal if self._journal is not None else []
        later: list[tuple[object, str, object, object]] = []
        while len(journal) > changes:
            target, attribute, old = journal.pop()
            later.append((target, attribute, old, getattr(target, attribute)))
            setattr(target, attribute, old)
        kept = self.trace, self.intents
        self.trace, self.intents = self.trace.cut(*counts), self.intents[:intents]
        self.renew()
        try:
            yield
        finally:
            for target, attribute, old, new in reversed(later):
                journal.append((target, attribute, old))
                setattr(target, attribute, new)
            self.trace, self.intents = kept
            self.renew()

    def changed_since(self, mark: int) -> Sequence[tuple[object, str, object]]:
        """Return the changes since `mark` as (object, field, old value)."""
        return () if self._journal is None else self._journal[mark:]

    # The graph of tensors

    @property
    def order(self) -> TensorOrder:
        """The order of tensors, of the graph as it is."""
        if self._order is None or self._order.version != self.version:
            self._order = TensorOrder(self.version, self._tensors, self._outputs)
        return self._order

    def topological(self) -> tuple[TensorView, ...]:
        """Return all tensors, producers before consumers, else in order of creation."""
        return self.order.topological

    def live(self) -> frozenset[TensorView]:
        """Return the tensors that an output depends on, with siblings; all where none is declared.

        Only these are lowered, and only their use chains count.
        """
        return self.order.live


def _loaded(_: object, table: bytes) -> Fusion:
    from loopnest.base.pickling import load_table

    fusion = load_table(table)
    assert isinstance(fusion, Fusion)
    return fusion


def as_identifier(name: str) -> str:
    """Return a name as an identifier: itself where it is one."""
    words = re.sub(r"\W+", "_", name)
    text = "".join([c if f"_{c}".isidentifier() else "_" for c in words])
    return text if text.isidentifier() else f"_{text}"


def declared_strides(
    fusion: Fusion, call: str, strides: object, sizes: Sequence[Expr]
) -> tuple[Expr, ...] | None:
    """Return the stride of each axis; None where all are those of a C-contiguous array.

    Args:
        fusion: whose size symbols they may name.
        call: the call, for errors.
        strides: an int >= 0, a size symbol, or None (contiguous with the axes behind) an axis.
        sizes: the extents.

    Raises:
        DefinitionError: they are not one an axis, or one is no stride.
    """
    given = list(strides) if isinstance(strides, (tuple, list)) else []
    if not isinstance(strides, (tuple, list)) or len(given) != len(sizes):
        found = f"the strides {strides!r} are not one for each of {len(sizes)} axes"
        raise DefinitionError(call, found, "use an int >= 0, a size symbol or None an axis")
    result: list[Expr] = []
    behind: Expr = ONE
    for size, stride in zip(reversed(sizes), reversed(given), strict=True):
        result.insert(0, behind if stride is None else fusion.size(call, stride))
        behind = fusion.algebra.mul(result[0], size)
    return None if all(stride is None for stride in given) else tuple(result)


class ScalarOperand(ScalarMath, Operators["Scalar", "ScalarOperand"]):
    """A run-time scalar argument of a fusion, or an expression of such; no TensorView.

    With another scalar or a number it gives a scalar again, with a TensorView a TensorView. Each
    operation of a 16-bit scalar rounds once, as that of a tensor does.
    """

    __slots__ = ("expr", "fusion")

    def __init__(self, expr: Expr, fusion: Fusion) -> None:
        self.expr, self.fusion = expr, fusion

    @property
    def dtype(self) -> DType:
        """The type of the value."""
        return self.expr.dtype

    def __repr__(self) -> str:
        return f"<scalar {self.expr}: {self.dtype}>"

    def __str__(self) -> str:
        return str(self.expr)

    def __bool__(self) -> bool:
        raise DefinitionError(
            str(self), "a scalar has no truth value before the launch", "use ln.where(cond, a, b)"
        )


def math_text(fusion: Fusion) -> str:
    """Return the definitions of `fusion`, producers before consumers, a line each.

    ``T2: float32[N] = sum(T1, axis=1)``: name, type and shape, operation, operands, parameters.
    """
    lines = [_header(fusion)]
    lines += [f"  assume {text}" for text, _ in fusion.facts.conditions]
    lines += [f"  assume {declared}" for declared in fusion.ranges]
    lines += [
        f"  {tensor.name}: {tensor.signature} = {right_side(tensor)}"
        for tensor in fusion.topological()
        if tensor.definition is not None
    ]
    return "\n".join(lines)


def _header(fusion: Fusion) -> str:
    params = [f"{tensor.name}: {tensor.signature}" for tensor in fusion.inputs]
    params += [f"{scalar.name}: {scalar.dtype}" for scalar in fusion.scalars]
    results = [_result(fusion, tensor) for tensor in fusion.outputs]
    return f"{fusion.name}({', '.join(params)}) -> ({', '.join(results)})"


def _result(fusion: Fusion, tensor: TensorView) -> str:
    target = fusion.inplace.get(tensor)
    place = f" in {target.name}" if target is not None else ""
    return f"{tensor.name}: {tensor.signature}{place}"


def right_side(tensor: TensorView) -> str:
    """Return the definition of a computed tensor, as ``exp(T8)`` or ``x + 1.0``."""
    definition = tensor.definition
    assert definition is not None
    info = OPS.get(definition.op)
    if info is not None and info.infix and info.arity == 2 and len(definition.operands) == 2:
        left, right = [_operand(o, info.precedence + 1) for o in definition.operands]
        return f"{left} {info.infix} {right}"
    parts = [_operand(operand, 0) for operand in definition.operands]
    if "{}" in definition.note:
        return definition.note.format(*parts)
    text = f"{definition.op}({', '.join([*parts, definition.note] if definition.note else parts)})"
    if len(definition.outputs) == 1:
        return text
    return f"{text}[{definition.outputs.index(tensor)}]"


def _operand(operand: TensorView | Expr, level: int) -> str:
    if isinstance(operand, TensorView):
        return operand.name
    return TEXT.format(operand, level)
