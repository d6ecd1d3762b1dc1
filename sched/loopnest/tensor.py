"""TensorViews and the Fusion that holds them.

A schedule primitive rebinds fields of TensorViews, IterDomains and the Fusion; every such write
goes through `Fusion.change`, which journals it, so that a failed call is undone whole. Methods of
TensorView import the layers above (`ops`, `schedule`) when called: the one deliberate exception to
the import rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from loopnest.definition import Definition
from loopnest.domain import IterDomain, TensorDomain
from loopnest.dtypes import DType
from loopnest.enums import IterKind, Memory, ParallelType, Swizzle
from loopnest.errors import DefinitionError
from loopnest.expr import Const, Expr, ScalarParam, Symbol, integer
from loopnest.facts import Facts
from loopnest.origin import Origin, caller
from loopnest.simplify import Simplifier

if TYPE_CHECKING:
    from loopnest.ops.operands import Operand, ScalarOperand

_CURRENT: ContextVar[Fusion | None] = ContextVar("loopnest_fusion", default=None)
_AUTOMATIC = re.compile(r"T\d+(_\d+)?")
_MISSING = object()


def current_fusion() -> Fusion | None:
    """Return the fusion whose `with` block is running, or None."""
    return _CURRENT.get()


class Fusion:
    """One kernel's math and its schedule: a context that tensors are defined in.

    >>> import loopnest as ln
    >>> with ln.Fusion("scale") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> f.inputs == (x,) and f["y"] is y
    True
    """

    def __init__(self, name: str = "kernel") -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise DefinitionError(f"Fusion({name!r})", "the name is not an identifier")
        self.name = name
        self.facts = Facts()
        self.algebra = Simplifier(self.facts)
        self._tensors: tuple[TensorView, ...] | list[TensorView] = []
        self._inputs: tuple[TensorView, ...] = ()
        self._outputs: tuple[TensorView, ...] = ()
        self._scalars: dict[str, ScalarParam] = {}
        self._symbols: dict[str, Symbol] = {}
        self._names: dict[str, object] = {}
        self._inplace: dict[TensorView, TensorView] = {}
        self._tokens: list[Token[Fusion | None]] = []
        self._journal: list[tuple[object, str, object]] | None = None
        self._depth = 0
        self.calling: Origin | None = None
        """The schedule call that is running: the origin of what it makes."""
        self._numbers = 0
        self.trace: list[Origin] = []
        self.version = 0
        """Grows with every change of the graph of tensors; keys caches of its traversals."""
        self._topology: tuple[int, tuple[TensorView, ...]] | None = None
        self.matches: dict[tuple[TensorDomain, TensorDomain], object] = {}
        """Correspondences of axes of direct neighbours, by their domains (see `schedule.replay`)."""
        self._live: tuple[int, frozenset[TensorView]] | None = None

    def __enter__(self) -> Fusion:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._tokens.pop())

    def __repr__(self) -> str:
        return f"<Fusion {self.name}: {len(self._tensors)} tensors>"

    def __getitem__(self, name: str) -> TensorView:
        for tensor in self._tensors:
            if tensor.name == name:
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

    def input(self, name: str, shape: Sequence[int | str], dtype: DType) -> TensorView:
        """Declare an input array.

        Args:
            name: an identifier, unique among inputs, scalars and outputs.
            shape: an int (static) or a str (a size symbol; equal names are equal extents) an axis.
                A static 1 is a broadcast axis; a symbol never is.
            dtype: the element type.

        Raises:
            DefinitionError: a bad name, extent or type.
        """
        call = f"input({name!r}, {shape!r})"
        self._check_dtype(call, dtype)
        self._check_name(call, name)
        sizes = [self.size(call, extent) for extent in self._as_shape(call, shape)]
        tensor = TensorView(self, TensorDomain.of_root([root_axis(s) for s in sizes]), dtype)
        self._claim(name, tensor)
        tensor._name, tensor._memory = name, Memory.GLOBAL
        self._inputs = (*self._inputs, tensor)
        return tensor

    def scalar(self, name: str, dtype: DType) -> ScalarOperand:
        """Declare a run-time scalar argument; it is a scalar expression, no TensorView.

        Raises:
            DefinitionError: a bad name or type.
        """
        from loopnest.ops.operands import ScalarOperand

        call = f"scalar({name!r})"
        self._check_dtype(call, dtype)
        self._check_name(call, name)
        param = ScalarParam(name, dtype)
        self._claim(name, param)
        self._scalars[name] = param
        return ScalarOperand(param, self)

    def output(
        self, tensor: TensorView, name: str | None = None, inplace: TensorView | None = None
    ) -> TensorView:
        """Declare `tensor` an output, under `name`, in the memory of input `inplace` if given.

        An input, or a tensor that is an output already, is copied first. Returns the output.

        Raises:
            DefinitionError: no TensorView of this fusion, a bad name, or an `inplace` that is not
                an input of the same shape and type.
        """
        from loopnest.ops import structure

        call = f"output({name!r})"
        if not isinstance(tensor, TensorView) or tensor.fusion is not self:
            raise DefinitionError(call, f"{tensor!r} is no TensorView of fusion {self.name}")
        if name is not None:
            self._check_name(call, name)
        if inplace is not None:
            self._check_inplace(call, tensor, inplace)
        if tensor in self._inputs or tensor in self._outputs:
            tensor = structure.copy(tensor)
        if name is not None:
            if tensor._name is not None:
                self._names.pop(tensor._name, None)
            self._claim(name, tensor)
            tensor._name = name
        tensor._memory = Memory.GLOBAL
        self._outputs = (*self._outputs, tensor)
        self.version += 1
        if inplace is not None:
            self._inplace[tensor] = inplace
        return tensor

    def assume(self, condition: str) -> None:
        """Assume a comparison of integers and size symbols, such as ``"N % 128 == 0"``.

        The simplifier may use it; every launch checks it.

        Raises:
            DefinitionError: it cannot be read, or names an unknown symbol.
        """
        if not isinstance(condition, str):
            raise DefinitionError(f"assume({condition!r})", "it is not a string")
        facts = self.facts.copy()
        facts.add(condition, self._symbols.__contains__)
        self.facts = facts
        self.algebra = Simplifier(facts)

    def print_math(self) -> str:
        """Print the definitions, a line each, and return the text."""
        from loopnest.ops.describe import math_text

        text = math_text(self)
        print(text)
        return text

    def inline_most(self) -> None:
        """Inline every tensor as deep as is legal; see `ln.inline_most`."""
        from loopnest.schedule import inline

        inline.inline_all(self)

    # Names, sizes, numbers

    def size(self, call: str, extent: object) -> Expr:
        """Return an extent (int, symbol name or size expression) as an expression.

        Raises:
            DefinitionError: it is none of these, or negative.
        """
        match extent:
            case Expr():
                return extent
            case bool():
                pass
            case int() if extent >= 0:
                return integer(extent)
            case str() if extent.isidentifier():
                if extent in self._names:
                    raise DefinitionError(call, f"'{extent}' is the name of an argument already")
                return self._symbols.setdefault(extent, Symbol(extent))
        if hasattr(extent, "__index__") and not isinstance(extent, int):
            return self.size(call, int(extent))
        raise DefinitionError(
            call,
            f"{extent!r} is no extent",
            "use an int >= 0 or the name of a size symbol (an identifier)",
        )

    def _as_shape(self, call: str, shape: object) -> tuple[object, ...]:
        if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
            raise DefinitionError(call, f"the shape {shape!r} is not a tuple of extents")
        return tuple(shape)

    def _check_dtype(self, call: str, dtype: object) -> None:
        if not isinstance(dtype, DType) or dtype.kind == "x":
            raise DefinitionError(
                call,
                f"{dtype!r} is no element type",
                "use ln.bool, int32, int64, float16, bfloat16, float32 or float64",
            )

    def _check_name(self, call: str, name: object) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise DefinitionError(call, f"the name {name!r} is not an identifier")
        if not name.isascii() or _AUTOMATIC.fullmatch(name):
            raise DefinitionError(
                call, f"the name {name!r} is reserved", "names like T3 are given automatically"
            )
        if name in self._names:
            raise DefinitionError(call, f"the name {name!r} is taken already")
        if name in self._symbols:
            raise DefinitionError(call, f"the name {name!r} is a size symbol already")

    def _check_inplace(self, call: str, tensor: TensorView, target: object) -> None:
        if not isinstance(target, TensorView) or target not in self._inputs:
            raise DefinitionError(call, "inplace= is not an input of this fusion")
        if target in self._inplace.values():
            raise DefinitionError(call, f"{target.name} is overwritten by another output already")
        if target.dtype is not tensor.dtype or target.sizes != tensor.sizes:
            raise DefinitionError(
                call,
                f"{tensor.name} is {tensor.signature} but {target.name} is {target.signature}",
                "an output takes the memory of an input of the same shape and type",
            )

    def _claim(self, name: str, owner: object) -> None:
        self._names[name] = owner

    def _register(self, tensor: TensorView) -> int:
        number = self._numbers
        self.change(self, "_numbers", number + 1)
        assert isinstance(self._tensors, list)
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

    def begin(self) -> int:
        """Start or nest a transaction; return the mark to roll back to."""
        self._depth += 1
        if self._journal is None:
            self._journal = []
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every change since `mark`."""
        assert self._journal is not None
        while len(self._journal) > mark:
            target, attribute, old = self._journal.pop()
            setattr(target, attribute, old)
        self.version += 1

    def end(self) -> None:
        """End the innermost transaction; the outermost one drops the journal."""
        self._depth -= 1
        if not self._depth:
            self._journal = None

    def changed_since(self, mark: int) -> Sequence[tuple[object, str, object]]:
        """Return the changes since `mark` as (object, field, old value)."""
        return () if self._journal is None else self._journal[mark:]

    # The graph of tensors

    def topological(self) -> tuple[TensorView, ...]:
        """Return all tensors, producers before consumers, else in order of creation."""
        if self._topology is None or self._topology[0] != self.version:
            self._topology = (self.version, _topological(self._tensors))
        return self._topology[1]

    def live(self) -> frozenset[TensorView]:
        """Return the tensors that an output depends on, with siblings; all where none is declared.

        Only these are lowered, and only their use chains count.
        """
        if self._live is None or self._live[0] != self.version:
            found = set(self._outputs if self._outputs else self._tensors)
            stack = list(found)
            while stack:
                tensor = stack.pop()
                for other in (*tensor.siblings, *tensor.producers):
                    if other not in found:
                        found.add(other)
                        stack.append(other)
            self._live = (self.version, frozenset(found))
        return self._live[1]


class TensorView:
    """A tensor of a fusion: its math, its axes, and the place of its computation.

    Made by `Fusion.input`, by operations and by schedule primitives, never directly.
    """

    __slots__ = (
        "__weakref__", "_compute_at_pos", "_consumers", "_memory", "_name", "_produced_at_pos",
        "clones", "definition", "domain", "dtype", "fusion", "number", "origin", "placed",
        "reduction",
    )  # fmt: skip

    def __init__(self, fusion: Fusion, domain: TensorDomain, dtype: DType) -> None:
        self.fusion = fusion
        self.dtype = dtype
        self.definition: Definition | None = None
        self._name: str | None = None
        self._memory = Memory.LOCAL
        self._compute_at_pos = 0
        self._produced_at_pos = 0
        self._consumers: tuple[TensorView, ...] = ()
        self.clones: tuple[TensorView, ...] = ()
        self.reduction: TensorView | None = None
        """Of a keepdims reduction's result: the reduced TensorView below the broadcast."""
        self.origin = fusion.calling or caller()
        """Where the tensor was made."""
        self.placed: Origin | None = None
        """The call that last set its compute-at position."""
        self.domain = domain
        self.bind(domain)
        self.number = fusion._register(self)

    def bind(self, domain: TensorDomain) -> None:
        """Make `domain` this tensor's; its leaves become handles of this tensor."""
        self.fusion.change(self, "domain", domain)
        for axis in domain.leaf:
            if axis.owner is not self:
                self.fusion.change(axis, "owner", self)
                if axis.origin is None:
                    axis.origin = self.fusion.calling

    # Identity

    @property
    def name(self) -> str:
        """The name in errors, nests and CUDA: given by the user, or ``T3``."""
        return self._name if self._name is not None else f"T{self.number}"

    def named(self, name: str) -> TensorView:
        """Give this tensor a name.

        Raises:
            DefinitionError: not an identifier, or taken.
        """
        self.fusion._check_name(f"{self.name}.named({name!r})", name)
        if self._name is not None:
            self.fusion._names.pop(self._name, None)
        self.fusion._claim(name, self)
        self._name = name
        return self

    def __repr__(self) -> str:
        return f"<TensorView {self}>"

    def __str__(self) -> str:
        axes = ", ".join(
            f"{axis.kind.letter}{i}: {axis.size}"
            + ("" if axis.parallel is ParallelType.serial else f" {axis.parallel.value}")
            + (" pinned" if axis.pinned else "")
            for i, axis in enumerate(self.domain.leaf)
        )
        return (
            f"{self.name} {self.dtype} {self._memory.value} [{axes}] "
            f"compute_at={self._compute_at_pos} produced_at={self._produced_at_pos}"
        )

    @property
    def signature(self) -> str:
        """Type and shape: ``float32[N, D]``."""
        return f"{self.dtype}[{', '.join(str(s) for s in self.sizes)}]"

    # Domains

    @property
    def root_domain(self) -> tuple[IterDomain, ...]:
        """The axes that the definition computes over, reductions included."""
        return self.domain.root

    @property
    def rfactor_domain(self) -> tuple[IterDomain, ...]:
        """What consumers see: the root after rfactor, else the root."""
        return self.domain.rfactor

    @property
    def leaf_domain(self) -> tuple[IterDomain, ...]:
        """The loops, outermost first."""
        return self.domain.leaf

    @property
    def ndim(self) -> int:
        """The number of leaf axes."""
        return len(self.domain.leaf)

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The logical extents: the rfactor domain without reductions."""
        return tuple([axis.size for axis in self.domain.logical])

    @property
    def shape(self) -> tuple[int | Expr, ...]:
        """The logical extents, as ints where static."""
        return tuple([axis.extent for axis in self.domain.logical])

    def axis(self, position: int) -> IterDomain:
        """Return leaf axis `position` (negative from the end): a handle to parallelize or pin.

        Raises:
            ScheduleError: out of range.
        """
        from loopnest.schedule.funnel import Refusal, leaf_position

        try:
            return self.domain.leaf[leaf_position(self, position)]
        except Refusal as refusal:
            raise refusal.error(f"{self.name}.axis({position!r})") from None

    # Place

    @property
    def compute_at_pos(self) -> int:
        """How many leading leaf axes share their loops with the consumers; 0 = own nest."""
        return self._compute_at_pos

    @property
    def produced_at_pos(self) -> int:
        """The largest position in its own axes at which a producer was computed into it."""
        return self._produced_at_pos

    @property
    def frozen(self) -> int:
        """How many leading leaf axes no primitive may change."""
        return max(self._compute_at_pos, self._produced_at_pos)

    @property
    def memory(self) -> Memory:
        """Where the tensor lives; settable on intermediates."""
        return self._memory

    @memory.setter
    def memory(self, memory: Memory) -> None:
        from loopnest.schedule import transforms

        transforms.set_memory(self, memory)

    @property
    def is_input(self) -> bool:
        return self.definition is None

    @property
    def is_output(self) -> bool:
        return self in self.fusion._outputs

    @property
    def producers(self) -> tuple[TensorView, ...]:
        """The tensors that its definition reads, each once."""
        return () if self.definition is None else self.definition.producers

    @property
    def consumers(self) -> tuple[TensorView, ...]:
        """The tensors whose definitions read it, in order of creation."""
        return self._consumers

    @property
    def siblings(self) -> tuple[TensorView, ...]:
        """The outputs of its definition, itself included."""
        return (self,) if self.definition is None else self.definition.outputs

    def define(self, definition: Definition) -> None:
        """Make `definition` the one of this tensor, and keep the producers' consumers right."""
        old = self.producers
        self.fusion.change(self, "definition", definition)
        for producer in dict.fromkeys((*old, *definition.producers)):
            keep = [c for c in producer._consumers if c is not self]
            if producer in definition.producers:
                keep.append(self)
                keep.sort(key=lambda tensor: tensor.number)
            self.fusion.change(producer, "_consumers", tuple(keep))
        self.fusion.version += 1

    # Scheduling: each forwards to the module that owns it

    def split(self, axis: int, factor: int | str, inner: bool = True) -> TensorView:
        """Split a leaf axis in two.

        Before ``[i0: N]``; ``t.split(0, 4)`` gives ``[i0: ceildiv(N, 4), i1: 4]``;
        ``t.split(0, 4, inner=False)`` gives ``[i0: 4, i1: ceildiv(N, 4)]``.

        Args:
            axis: a leaf position, negative from the end.
            factor: the inner extent (the outer with ``inner=False``): an int >= 1, or the name of
                a size symbol of the fusion; it need not divide.
            inner: whether `factor` is the inner extent.

        Raises:
            ScheduleError: axis out of range, frozen or parallel; a bad factor; an input.

        Source: nvFuser TensorView::split; Halide Func::split.
        """
        from loopnest.schedule import transforms

        return transforms.split(self, axis=axis, factor=factor, inner=inner)

    def merge(self, axis: int, other: int | None = None) -> TensorView:
        """Merge two leaf axes into one.

        Before ``[i0: N, i1: D]``; ``t.merge(0)`` gives ``[i0: N * D]``.

        Args:
            axis: the outer of the two.
            other: the inner, by default `axis` + 1; they need not be neighbours. The result
                stands at the smaller of the two places.

        Raises:
            ScheduleError: out of range, the same axis twice, frozen, parallel, an iteration axis
                with a reduction axis, an input.

        Source: nvFuser TensorView::merge; Halide Func::fuse.
        """
        from loopnest.schedule import transforms

        return transforms.merge(self, axis, other)

    def reorder(self, order: Mapping[int, int] | Sequence[int]) -> TensorView:
        """Permute the leaf axes.

        Before ``[i0, i1, i2]``; ``t.reorder({2: 0})`` gives ``[i2, i0, i1]``, as does
        ``t.reorder([2, 0, 1])``.

        Args:
            order: ``{old: new}`` (axes not named keep their order in the places left), or a full
                permutation p (new axis i is old axis p[i]).

        Raises:
            ScheduleError: not a permutation, an axis out of range or frozen, an input.

        Source: nvFuser TensorView::reorder.
        """
        from loopnest.schedule import transforms

        return transforms.reorder(self, order)

    def parallelize(self, types: Mapping[int, ParallelType]) -> TensorView:
        """Give leaf axes parallel types: ``t.parallelize({0: ln.ParallelType.grid_x})``.

        Raises:
            ScheduleError: out of range, no ParallelType, a type that the tensor has already, an
                input.
        """
        from loopnest.schedule import transforms

        return transforms.parallelize(self, types)

    def pin(self, axis: int) -> TensorView:
        """Never inline past leaf axis `axis`, of this tensor or of a producer.

        Raises:
            ScheduleError: out of range, or an input.
        """
        from loopnest.schedule import transforms

        return transforms.pin(self, axis)

    def compute_at(self, consumer: TensorView, pos: int, recompute: bool = False) -> TensorView:
        """Compute this tensor inside the leading `pos` loops of `consumer`.

        See `loopnest.schedule.compute_at.compute_at`.
        """
        from loopnest.schedule import compute_at

        return compute_at.compute_at(self, consumer, pos, recompute=recompute)

    def inline_at(self, pos: int) -> TensorView:
        """Share the leading `pos` loops with the consumers, without any replay.

        Raises:
            ScheduleError: beyond the largest legal position.
        """
        from loopnest.schedule import inline

        return inline.inline_at(self, pos)

    def rfactor(self, axes: int | Sequence[int]) -> TensorView:
        """Factor a reduction in two; see `loopnest.schedule.rfactor.rfactor`."""
        from loopnest.schedule import rfactor

        return rfactor.rfactor(self, axes)

    def cache_after(self) -> TensorView:
        """Insert a copy between this tensor and its consumers; return the copy."""
        from loopnest.schedule import cache

        return cache.cache_after(self)

    def cache_before(self) -> TensorView:
        """Let a new tensor compute what this one did, and this one copy it; return the new."""
        from loopnest.schedule import cache

        return cache.cache_before(self)

    def cache_fork(self) -> TensorView:
        """Of an output that other tensors use: return a copy that becomes the output."""
        from loopnest.schedule import cache

        return cache.cache_fork(self)

    def circular_buffer(self, stages: int) -> TensorView:
        """Keep `stages` copies of this shared tensor in flight (not supported yet)."""
        from loopnest.schedule import transforms

        return transforms.unsupported(self, f"circular_buffer({stages!r})")

    def swizzle(self, kind: Swizzle, a: int, b: int) -> TensorView:
        """Permute the elements of this shared tensor's buffer (not supported yet)."""
        from loopnest.schedule import transforms

        return transforms.unsupported(self, f"swizzle({kind}, {a!r}, {b!r})")

    def set_allocation(
        self, order: Sequence[int] | None = None, pad: Mapping[int, int] | None = None
    ) -> TensorView:
        """Lay out this tensor's buffer (not supported yet)."""
        from loopnest.schedule import transforms

        return transforms.unsupported(self, f"set_allocation(order={order!r}, pad={pad!r})")

    # Math: operators forward to `ops`

    __array_ufunc__ = None  # an array on the left leaves the operator to the TensorView
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise DefinitionError(
            self.name, "a tensor has no truth value", "use ln.where(cond, a, b) or ln.logical_and"
        )

    def __add__(self, other: Operand) -> TensorView:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> TensorView:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> TensorView:
        return _binary("sub", self, other)

    def __rsub__(self, other: Operand) -> TensorView:
        return _binary("sub", other, self)

    def __mul__(self, other: Operand) -> TensorView:
        return _binary("mul", self, other)

    def __rmul__(self, other: Operand) -> TensorView:
        return _binary("mul", other, self)

    def __truediv__(self, other: Operand) -> TensorView:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> TensorView:
        return _binary("div", other, self)

    def __mod__(self, other: Operand) -> TensorView:
        return _binary("mod", self, other)

    def __rmod__(self, other: Operand) -> TensorView:
        return _binary("mod", other, self)

    def __pow__(self, other: Operand) -> TensorView:
        return _binary("pow", self, other)

    def __rpow__(self, other: Operand) -> TensorView:
        return _binary("pow", other, self)

    def __lt__(self, other: Operand) -> TensorView:
        return _binary("lt", self, other)

    def __le__(self, other: Operand) -> TensorView:
        return _binary("le", self, other)

    def __gt__(self, other: Operand) -> TensorView:
        return _binary("gt", self, other)

    def __ge__(self, other: Operand) -> TensorView:
        return _binary("ge", self, other)

    def __and__(self, other: Operand) -> TensorView:
        return _binary("bitand", self, other)

    def __rand__(self, other: Operand) -> TensorView:
        return _binary("bitand", other, self)

    def __or__(self, other: Operand) -> TensorView:
        return _binary("bitor", self, other)

    def __ror__(self, other: Operand) -> TensorView:
        return _binary("bitor", other, self)

    def __neg__(self) -> TensorView:
        return _unary("neg", self)

    def __abs__(self) -> TensorView:
        return _unary("abs", self)

    def __invert__(self) -> TensorView:
        return _unary("invert", self)

    def __matmul__(self, other: TensorView) -> TensorView:
        from loopnest.ops.linalg import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: TensorView) -> TensorView:
        from loopnest.ops.linalg import matmul

        return matmul(other, self)


def _binary(op: str, left: Any, right: Any) -> TensorView:
    from loopnest.ops import pointwise

    result = getattr(pointwise, op)(left, right)
    assert isinstance(result, TensorView)
    return result


def _unary(op: str, operand: TensorView) -> TensorView:
    from loopnest.ops import pointwise

    result = getattr(pointwise, op)(operand)
    assert isinstance(result, TensorView)
    return result


def root_axis(size: Expr, *, reduction: bool = False) -> IterDomain:
    """Return a root axis of extent `size`; a static 1 that is not reduced is a broadcast axis."""
    if reduction:
        return IterDomain(size, IterKind.REDUCTION)
    one = isinstance(size, Const) and size.value == 1
    return IterDomain(size, IterKind.BROADCAST if one else IterKind.ITERATION)


def _topological(tensors: Iterable[TensorView]) -> tuple[TensorView, ...]:
    """Sort definitions, the outputs of one together, by the first of their outputs' numbers."""
    import heapq

    unit_of: dict[TensorView, tuple[TensorView, ...]] = {t: t.siblings for t in tensors}
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
