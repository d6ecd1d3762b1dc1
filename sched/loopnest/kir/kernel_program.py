"""The whole of a kernel: its parameters, its results, its statements, and what a launch checks.

`loopnest.kir.nodes` says what the statements mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from loopnest.base.fast_init import fast_init
from loopnest.kir.nodes import Allocate, Barrier, Launch, Loop, Stmt, walk
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Buffer, Expr, Op, Symbol, variables
from loopnest.scalar.expr import walk as walk_expression


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Param:
    """A parameter of the kernel.

    Args:
        name: the identifier in the nest.
        kind: "input", "output", "scalar", "size" or "workspace".
        dtype: of the elements, of the scalar, or `index` for a size.
        buffer: the array, for inputs, outputs and workspace.
        shape: the logical shape of the array (its buffer has one dimension where this is `()`).
        strides: of an input that need not be C-contiguous, in elements; None of other arrays.
    """

    name: str
    kind: str
    dtype: DType
    buffer: Buffer | None = None
    shape: tuple[Expr, ...] = ()
    strides: tuple[Expr, ...] | None = None

    @property
    def c_type(self) -> str:
        """The type in the C signature."""
        names = {
            "bool": "bool", "float16": "half_t", "float32": "float", "float64": "double",
            "index": "int64_t",
        }  # fmt: skip
        base = names.get(self.dtype.name, f"{self.dtype.name}_t")
        if self.buffer is None:
            return base
        return f"const {base}*" if self.kind == "input" else f"{base}*"


@dataclass(frozen=True, eq=False, slots=True)
class Output:
    """A result: its name, the buffer that holds it, its logical shape.

    `inplace` names the input whose memory it takes, else "".
    """

    name: str
    buffer: Buffer
    shape: tuple[Expr, ...]
    inplace: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class IndexCheck:
    """Data that are indices of an axis, and that nothing keeps inside of it.

    Or, where `distinct`, data of which those inside were declared to differ along an axis.

    Args:
        source: the tensor of the indices.
        dtype: of the indices.
        shape: of the indices.
        table: the tensor that is read there; "" where `distinct`.
        axis: of `table`; of `source` where `distinct`.
        extent: of that axis: an index is below that, and not negative.
        reader: the tensor that is computed.
        always: whether they may be outside at all sizes; else only where a size is 0.
        program: what computes `source`, as its only output, where that is no input. Its inputs,
            scalars and sizes are among those of the kernel.
        distinct: whether no two of those that differ in nothing but their place along the axis may
            be the same index.
    """

    source: str
    dtype: DType
    shape: tuple[Expr, ...]
    table: str
    axis: int
    extent: Expr
    reader: str
    always: bool = True
    program: Program | None = None
    distinct: bool = False


@fast_init
@dataclass(frozen=True, eq=False)
class Program:
    """A whole kernel.

    Args:
        name: an identifier.
        params: inputs, outputs, scalars, sizes in order of first appearance, workspace. An output
            in the memory of an input is no parameter; the input's buffer is then written.
        body: statements.
        launch: extent of each launch dimension in use, in the order x, y, z of grid, then block; of
            several launches the largest.
        outputs: the results, in order.
        conditions: assumptions, as text and as a boolean expression over sizes.
        requires: what this variant needs beside them, in the same form: that vectors divide sizes.
            Where one fails, or an array is not aligned for its vectors, the scalar variant runs.
        about: what messages say of tensors that not every target has a place for, by name: their
            math and their axes.
        ranges: what is declared of the elements of inputs, and checked at each launch.
        counts: tensors that count elements, by name, each with the most that it counts; a target
            may count in the width of indices.
        index_checks: what a launch asks of data that are indices, where an access outside is not
            found otherwise.
    """

    name: str
    params: tuple[Param, ...]
    body: tuple[Stmt, ...]
    launch: tuple[tuple[ParallelType, Expr], ...] = ()
    outputs: tuple[Output, ...] = ()
    conditions: tuple[tuple[str, Expr], ...] = ()
    requires: tuple[tuple[str, Expr], ...] = ()
    about: tuple[tuple[str, str], ...] = ()
    ranges: tuple[DataRange, ...] = ()
    counts: tuple[tuple[str, Expr], ...] = ()
    index_checks: tuple[IndexCheck, ...] = ()

    def __getstate__(self) -> list[object]:
        """Return the fields, without what was found of the body."""
        return [getattr(self, field.name) for field in fields(self)]

    def __setstate__(self, state: Sequence[object]) -> None:
        self.__dict__.update(zip([field.name for field in fields(self)], state, strict=True))

    @cached_property
    def nodes(self) -> tuple[Stmt, ...]:
        """All statements, pre-order: each as often as it stands in the body."""
        return tuple([node for node, _ in walk(self.body)])

    def __copy__(self) -> Program:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Program:
        return self

    def launch_extent(self, dimension: ParallelType) -> Expr | None:
        """Return the launch extent of `dimension`, None where it is not used (1)."""
        return next((size for d, size in self.launch if d is dimension), None)

    def with_body(self, body: tuple[Stmt, ...]) -> Program:
        """Return this program with other statements; itself where they are the same."""
        if body is self.body:
            return self
        return replace(self, body=body)

    @property
    def assumed(self) -> tuple[tuple[str, Expr], ...]:
        """What holds wherever this variant runs: the conditions, and what it requires."""
        return (*self.conditions, *self.requires)

    @property
    def launches(self) -> tuple[Program, ...]:
        """The launches, a program each; this program itself where it is one.

        All have its name, its parameters and its outputs, though each uses some of them only.
        """
        parts = [n for n in self.body if isinstance(n, Launch)]
        return tuple([replace(self, body=n.body, launch=n.extents) for n in parts]) or (self,)

    @cached_property
    def split_factors(self) -> tuple[Expr, ...]:
        """What axes of loops and buffers are split by: arithmetic on sizes, numbers left out.

        A launch is refused at sizes for which one of them is not 1 or more. A loop of no axis folds
        what threads left: their number, which divides its extent, is no factor.
        """
        loops = [node for node in self.nodes if isinstance(node, Loop) and "." in node.axis]
        buffers = [node.storage for node in self.nodes if isinstance(node, Allocate)]
        buffers += [p.buffer for p in self.params if p.kind == "workspace" and p.buffer is not None]
        extents = [*[size for _, size in self.launch], *[loop.var.extent for loop in loops]]
        extents += [size for buffer in buffers for size in buffer.shape]
        parts = [n for e in extents for n in walk_expression(e) if isinstance(n, Op)]
        found = dict.fromkeys([n.args[1] for n in parts if n.op == "ceildiv"])
        used = {factor: variables(factor) for factor in found}
        return tuple(
            [f for f, v in used.items() if v and all(isinstance(size, Symbol) for size in v)]
        )

    @cached_property
    def is_cooperative(self) -> bool:
        """Whether blocks wait for each other, so that all must be resident at once."""
        return any(isinstance(n, Barrier) and n.scope == "grid" for n in self.nodes)
