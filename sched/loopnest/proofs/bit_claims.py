"""Which results have the same bits: whatever a size is, and under two schedules.

A claim is decided on the nest for all sizes: the order of each fold (`fold_steps`) does not depend
on the size, or is that of the other kernel. Where that is not shown, values of the math and trees
of folds at given sizes are looked for that differ; where none do, the claim is unknown.

Two kernels compute the same bits where the value of each element has one form (`ValueForms`), as an
expression over inputs: the same operations on the same elements, each fold in steps of one form.
Copies leave no trace, so that tensors that a schedule made do not matter. A product that is added
at once may be rounded together with the sum; one that other loops, or other threads, read is
rounded by itself. How it gets to the sum, by copies and by changes of its sign too, and what else
its loops do with it, is a part of the form.

Claims are of one target, whose functions and contractions (``a * b + c`` rounded once) are the same
wherever the nest has the same statement; and of kernels that compute their math (`verify`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import prod
from operator import itemgetter
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest import kir
from loopnest.base.errors import LaunchError, VerifyError, kind_of
from loopnest.base.recursion import deep
from loopnest.kir.nest_text import nest_lines, print_nest
from loopnest.kir.tiles import without_tiles
from loopnest.numerics.error_bounds import enclosures
from loopnest.proofs.enumeration import EnumeratedFacts
from loopnest.proofs.enumeration.fold_trees import FoldTrees, TreeTable, ValueTrees, parted_sums
from loopnest.proofs.fold_steps import Folds, OrderDependence, mentions
from loopnest.proofs.obligations import CollectiveMath, Work, obligations, program_of
from loopnest.proofs.point_arrays import NoLaunch, TooMany, Undecidable, number
from loopnest.proofs.program_model import Model, equal_sizes
from loopnest.proofs.single_launches import single_launches
from loopnest.proofs.size_choice import fulfils, points_at, small_sizes, starts
from loopnest.proofs.template_matching import reducer_of
from loopnest.proofs.value_comparison import disjoint, drawn
from loopnest.scalar.enums import IterKind, Memory
from loopnest.scalar.expr import ZERO, Arg, Coordinate, Expr, Op, Symbol, walk
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import at
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathDefinition, MathSnapshot, MathTensor, thaw
from loopnest.tensor.tensor_view import TensorView, data_of

_MOST_PAIRS = 12
_MOST_POINTS = 1 << 18
_MOST_ELEMENTS = 64

BitStatus: TypeAlias = 'Literal["same", "different", "unknown"]'
Form: TypeAlias = "tuple[object, ...]"
Value: TypeAlias = "tuple[int, str]"
"""The form of a value, and how the product that it is gets here; "" where it is none."""

_AT_ONCE = "at once"
_STORED = "stored"
_CHOICES = ("neg", "where", "min", "max")
"""Operations that give an operand, or its negative: a product stays one."""
_SUMS = ("add", "sub", "fma")
_NEITHER = frozenset({
    "div", "neg", "abs", "min", "max", "eq", "ne", "lt", "le", "gt", "ge", "isnan",
    "floor", "ceil", "trunc", "round", "sqrt", "where", "cast",
})  # fmt: skip
"""Operations that add nothing and give no product. Others, as ``exp``, targets may write as sums of
products, which compilers take apart."""

_BOUND = 1000
"""The first number of coordinates that stand for the place of a term in a fold."""


@dataclass(frozen=True, slots=True)
class BitWitness:
    """Why bits may differ, or where they do.

    Args:
        tensor: the first tensor of which that is so, in the order of its definition.
        reason: a sentence.
        line: the line in the nest of the loop, test, store or exchange, counted from 1; 0 where the
            math is the reason.
        text: that line.
        sizes: two sets of sizes at which they differ; empty where nothing was found that differs.
        index: the element that differs.
        sums: the two orders of its terms.
    """

    tensor: str
    reason: str
    line: int = 0
    text: str = ""
    sizes: tuple[Mapping[str, int], ...] = ()
    index: tuple[int, ...] | None = None
    sums: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f", nest line {self.line} '{self.text}'" if self.line else ""
        parts = [f"{self.tensor}: {self.reason}{place}"]
        if self.index is not None:
            shown = " and ".join([_sizes_text(sizes) for sizes in self.sizes])
            where = f"{self.tensor}[{', '.join(map(str, self.index))}]"
            parts.append(f"{where} differs at {shown}")
        if self.sums:
            parts.append(f"{self.sums[0]}, but {self.sums[1]}")
        return "; ".join(parts)


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join([f"{name}={value}" for name, value in sizes.items()]) or "its sizes"


@dataclass(frozen=True, slots=True)
class BitClaim:
    """Whether bits are the same, with a witness where they are not known to be.

    It is true where they are shown to be the same for all sizes.

    Args:
        subject: what was asked.
        status: "same", "different" (shown at the sizes of the witness) or "unknown".
        witness: why; None where they are the same.
        others: further reasons.
    """

    subject: str
    status: BitStatus
    witness: BitWitness | None = None
    others: tuple[BitWitness, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return self.status == "same"

    def __str__(self) -> str:
        head = f"{self.subject}: {self.status}"
        return head if self.witness is None else f"{head}; {self.witness}"


@deep
def batch_invariant(k: Any, size: str) -> BitClaim:
    """Say whether the bits of each element are the same whatever a size is.

    Rows of a small batch inside of a large one then have the results that they have alone. Two
    launches are compared that differ in `size`, and whose inputs have the same values at the
    indices that both have.

    Args:
        k: a kernel, as `loopnest.lower` returns it, that computes its math.
        size: the name of a size symbol.

    Returns:
        A claim, true where the bits are the same for all sizes. Its `.witness` is else the loop,
        test or exchange whose order depends on the size, and the first sum that differs where one
        was found.

    Raises:
        VerifyError: no kernel, one without math, or no size of it.

    >>> import loopnest as ln
    >>> with ln.Fusion("row_sum") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(x, axis=1), "y")
    >>> k = ln.lower(f)
    >>> print(ln.batch_invariant(k, "N"))
    batch_invariant(row_sum, 'N'): same
    >>> bool(ln.batch_invariant(k, "D"))
    False

    Source: He, "Defeating nondeterminism in LLM inference", Thinking Machines Lab, 2025.
    """
    program, math = program_of(k, "batch_invariant")
    subject = f"batch_invariant({program.name}, {size!r})"
    known = [p.name for p in program.params if p.kind == "size"]
    if not isinstance(size, str) or size not in known:
        found = (
            f"{size!r} is no size of it" if isinstance(size, str) else f"{kind_of(size)} is no size"
        )
        raise VerifyError(subject, found, f"its sizes are {known}")
    varying = frozenset([Symbol(name) for name in _varying(program, size)])
    variants = _variants(k)
    reasons: list[BitWitness] = []
    for one in variants:
        for part in one.launches:
            reasons += [part.witness(d) for d in part.folds.dependences(varying)]
            reasons += part.problems
    if len(variants) > 1 and any(mentions(c, varying) for _, c in program.requires):
        wide, plain = variants
        text = "the variant without wide accesses, which sizes choose,"
        reasons += _other_order(wide, plain, text)
    if not reasons:
        return BitClaim(subject, "same")
    last = variants[-1].launches[0].program
    pairs = list(islice(_pairs(last, size, varying), _MOST_PAIRS))
    for trees, both in product((False, True), pairs):
        few, many = [_SizedKernel(variants, math, sizes) for sizes in both]
        shown = _shown(few, many, "its value depends on the size", trees=trees)
        if shown is not None:
            return BitClaim(subject, "different", shown, tuple(reasons))
    return BitClaim(subject, "unknown", reasons[0], tuple(reasons[1:]))


def _pairs(
    program: kir.Program, size: str, varying: frozenset[Symbol]
) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    """Yield two sets of sizes that differ in one of them, the smaller one first."""
    equal = {n: v for n, v in equal_sizes(program).items() if Symbol(n) in varying and n != size}
    plain = replace(program, requires=())
    for base in small_sizes(plain, {}):
        few = base[size]
        for many in (few + 1, few + 2, 2 * few, 2 * few + 1, 3 * few):
            sizes = {**base, size: many}
            sizes |= {name: number(value, sizes) for name, value in equal.items()}
            if 0 < few < many and _is_tried(plain, base) and _is_tried(plain, sizes):
                yield base, sizes


@dataclass(frozen=True, eq=False, slots=True)
class _SizedKernel:
    """A kernel at given sizes."""

    variants: Sequence[_VariantFolds]
    math: MathSnapshot
    sizes: Mapping[str, int]

    def trees(self, table: TreeTable) -> ValueTrees:
        """Return how its elements are computed, by the variant that runs.

        Raises:
            TooMany, NoLaunch, Undecidable, ZeroDivisionError: it cannot be told.
        """
        runs = next((v for v in self.variants if v.runs(self.sizes)), self.variants[-1])
        parts = [part.trees(self.sizes, table) for part in runs.launches]
        return ValueTrees(self.math, self.sizes, parts)


def _shown(one: _SizedKernel, other: _SizedKernel, why: str, *, trees: bool) -> BitWitness | None:
    """Return an element that has other bits, None where none was found.

    Args:
        one: a kernel at given sizes.
        other: another one, or the same at other sizes.
        why: what is said of values that differ, whatever is rounded.
        trees: whether to look at the trees of folds, which takes longer, instead of the values.
    """
    found = _other_trees(one, other) if trees else _other_values(one, other)
    if found is None:
        return None
    same = one.sizes == other.sizes
    sizes = (one.sizes,) if same else (one.sizes, other.sizes)
    return replace(found, reason=found.reason or why, sizes=sizes)


def _other_values(one: _SizedKernel, other: _SizedKernel) -> BitWitness | None:
    """Return an output whose values differ, whatever is rounded."""
    both = (one.sizes, other.sizes)
    found = []
    for kernel, arrays in zip((one, other), common_data(one.math, both), strict=True):
        fusion = thaw(kernel.math)
        named = {str(size) for t in fusion.inputs for size in t.sizes}
        keywords = {s.name: kernel.sizes[s.name] for s in fusion.symbols if s.name not in named}
        keywords |= scalar_data(fusion)
        try:
            with np.errstate(all="ignore"):
                found.append(enclosures(fusion, arrays, keywords, fusion.outputs))
        except LaunchError:  # the math asks of its data what does not hold of these
            return None
    for name in one.math.outputs:
        parts = [values[name] for values in found]
        shape = np.minimum(*[part.value.shape for part in parts])
        common = tuple(map(slice, shape))
        apart = disjoint(*[part.viewed(itemgetter(common)) for part in parts])
        if apart.any():
            first = int(np.flatnonzero(apart)[0])
            place = tuple([int(n) for n in np.unravel_index(first, apart.shape)])
            return BitWitness(name, "", index=place)
    return None


def _other_trees(one: _SizedKernel, other: _SizedKernel) -> BitWitness | None:
    """Return an element whose terms are folded in other trees."""
    table = TreeTable()
    try:
        first, second = one.trees(table), other.trees(table)
        for name in one.math.outputs:
            tensors = [t for k in (one, other) for t in k.math.tensors if t.name == name]
            shapes = [v.shape(t.logical) for v, t in zip((first, second), tensors, strict=True)]
            ends = [_ends(min(extents)) for extents in zip(*shapes, strict=True)]
            for place in islice(product(*ends), _MOST_ELEMENTS):
                a, b = first.value(tensors[0], place), second.value(tensors[1], place)
                parted = parted_sums(table, a, b) if a != b else None
                if parted is not None:
                    sums = tuple(map(table.text, parted))
                    text = "its terms are folded in another order"
                    return BitWitness(name, text, index=place, sums=sums)
    except (TooMany, NoLaunch, Undecidable, ZeroDivisionError):
        pass
    return None


@deep
def same_bits(k1: Any, k2: Any) -> BitClaim:
    """Say whether two kernels of the same math compute the same bits, at all sizes.

    Args:
        k1: a kernel, as `loopnest.lower` returns it, that computes its math.
        k2: another one, with the same inputs, scalars, sizes and outputs.

    Returns:
        A claim, true where each element of each output is computed by the same operations in the
        same order. Its `.witness` is else a fold that differs, with two sums where some were found.

    Raises:
        VerifyError: no kernel, one without math, or kernels that take or give other things.

    >>> import loopnest as ln
    >>> def row_sum(factor):
    ...     with ln.Fusion("row_sum") as f:
    ...         x = f.input("x", ("N", "D"), ln.float32)
    ...         y = f.output(ln.sum(x, axis=1), "y")
    ...     y.split(0, factor)
    ...     return ln.lower(f)
    >>> print(ln.same_bits(row_sum(4), row_sum(8)))
    same_bits(row_sum, row_sum): same

    Source: He, "Defeating nondeterminism in LLM inference", Thinking Machines Lab, 2025.
    """
    (one, math), (other, other_math) = [program_of(k, "same_bits") for k in (k1, k2)]
    subject = f"same_bits({one.name}, {other.name})"
    for (what, first), (_, second) in zip(_interface(one), _interface(other), strict=True):
        if first != second:
            found = (
                f"the {what} of the first are {first or 'none'}, of the second {second or 'none'}"
            )
            raise VerifyError(subject, found, "pass kernels of the same math")
    if k1 is k2 or (print_nest(one), math) == (print_nest(other), other_math):
        return BitClaim(subject, "same")
    kernels = [(_variants(k), m) for k, m in ((k1, math), (k2, other_math))]
    every = [(v, m) for variants, m in kernels for v in variants]
    reasons = [w for v, _ in every for part in v.launches for w in part.problems]
    if one.requires and [t for t, _ in one.requires] == [t for t, _ in other.requires]:
        # The same sizes choose the variant of both.
        together = [every[n :: len(kernels[0][0])] for n in range(len(kernels[0][0]))]
    else:
        together = [every]
    reasons += [witness for some in together for witness in _other_forms(some)]
    if not reasons:
        return BitClaim(subject, "same")
    plain = [replace(v[-1].launches[0].program, requires=()) for v, _ in kernels]
    sets = [
        sizes
        for sizes in islice(small_sizes(plain[0], {}), _MOST_PAIRS)
        if all(_is_tried(p, sizes) for p in plain)
    ]
    for trees, sizes in product((False, True), sets):
        first_one, second_one = [_SizedKernel(v, m, sizes) for v, m in kernels]
        shown = _shown(first_one, second_one, "its math is another", trees=trees)
        if shown is not None:
            return BitClaim(subject, "different", shown, tuple(reasons))
    return BitClaim(subject, "unknown", reasons[0], tuple(reasons[1:]))


def _is_tried(program: kir.Program, sizes: Mapping[str, int]) -> bool:
    """Whether a launch at these sizes is one, and soon looked at."""
    if not (fulfils(program, sizes) and starts(program, sizes)):
        return False
    arrays = [p.shape for p in program.params if p.kind in ("input", "output")]
    elements = sum(prod([number(size, sizes) for size in shape]) for shape in arrays)
    return elements <= _MOST_POINTS and points_at(program, sizes) <= 4 * _MOST_POINTS


def _interface(program: kir.Program) -> Iterator[tuple[str, str]]:
    """Yield what a kernel takes and gives, as text."""
    for kind in ("input", "scalar", "size"):
        found = [p for p in program.params if p.kind == kind]
        yield f"{kind}s", ", ".join([_typed(p.name, p.dtype, p.shape) for p in found])
    outputs = [_typed(o.name, o.buffer.dtype, o.shape) for o in program.outputs]
    yield "outputs", ", ".join(outputs)


def _typed(name: str, dtype: object, shape: Sequence[object]) -> str:
    return f"{name}: {dtype}[{', '.join(map(str, shape))}]"


def _other_forms(every: Sequence[tuple[_VariantFolds, MathSnapshot]]) -> list[BitWitness]:
    """Return the outputs that variants of kernels may compute in other ways."""
    table = FormTable()
    values = [
        ValueForms(math, v.forms, [w for part in v.launches for w in part.folds.works], table)
        for v, math in every
    ]
    forms = [{name: v.output(name) for name in v.math.outputs} for v in values]
    text = "its operations, or the order of its folds, were not shown to be the same"
    apart = [n for n in forms[0] if any(found[n] != forms[0][n] for found in forms)]
    parts = [part for variant, _ in every for part in variant.launches]
    atomic = [part.witness(found) for part in parts for found in part.folds.atomic()]
    return [*atomic, *[BitWitness(name, text) for name in apart]]


def _varying(program: kir.Program, size: str) -> Iterator[str]:
    """Yield the sizes that change with one: itself, and those that follow from it."""
    yield size
    for name, value in equal_sizes(program).items():
        if mentions(value, frozenset([Symbol(size)])):
            yield name


@dataclass(frozen=True, eq=False, slots=True)
class _LaunchFolds:
    """The folds of a launch.

    Args:
        folds: its folds.
        exchanges: its collectives.
        problems: what is not known of its stores.
        program: the launch.
        lines: how many lines further down its statements stand in the nest of the whole.
    """

    folds: Folds
    exchanges: tuple[CollectiveMath, ...]
    problems: tuple[BitWitness, ...]
    program: kir.Program
    lines: int

    def trees(self, sizes: Mapping[str, int], table: TreeTable) -> FoldTrees:
        """Return the trees of its folds at given sizes.

        Raises:
            TooMany, NoLaunch, Undecidable, ZeroDivisionError: they cannot be told.
        """
        folds = self.folds
        facts = EnumeratedFacts(
            folds.model, folds.math, folds.works, self.exchanges, sizes, _MOST_POINTS
        )
        return FoldTrees(facts, table)

    def witness(self, found: OrderDependence) -> BitWitness:
        """Return a dependence with its line in the nest."""
        if found.node is None:
            return BitWitness(found.tensor, found.reason)
        line = nest_lines(self.program)[found.node]
        text = print_nest(self.program).splitlines()[line - 1].strip()
        return BitWitness(found.tensor, found.reason, line + self.lines, text)


@dataclass(frozen=True, eq=False, slots=True)
class _VariantFolds:
    """A kernel, or its variant without wide accesses, launch by launch."""

    launches: tuple[_LaunchFolds, ...]

    def runs(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is the variant of a launch at these sizes."""
        return fulfils(self.launches[0].program, sizes)

    @property
    def forms(self) -> dict[str, tuple[str, ...]]:
        """The forms of all folds, by tensor."""
        found: dict[str, tuple[str, ...]] = {}
        for part in self.launches:
            for name, form in part.folds.forms.items():
                found[name] = found.get(name, ()) + form
        return found


def _variants(k: Any) -> tuple[_VariantFolds, ...]:
    """Return the kernel, and its variant without wide accesses where there is one."""
    lowered = getattr(k, "_lowered", k)
    make = getattr(lowered, "scalar", None)
    return tuple([_variant(n.program, n.math()) for n in (lowered, *([make()] if make else []))])


def _variant(program: kir.Program, math: MathSnapshot) -> _VariantFolds:
    program = without_tiles(program)
    if len(program.launches) == 1:
        return _VariantFolds((_launch_folds(program, math, 0),))
    parts = single_launches(program, math)
    return _VariantFolds(tuple([_launch_folds(p.program, p.math, p.lines) for p in parts]))


def _launch_folds(program: kir.Program, math: MathSnapshot, lines: int) -> _LaunchFolds:
    model = Model(program)
    works, exchanges, problems = obligations(model, math)
    found = [BitWitness(p.tensor, f"verify cannot tell: {p.message}") for p in problems]
    folds = Folds(model, math, works, exchanges)
    return _LaunchFolds(folds, tuple(exchanges), tuple(found), program, lines)


def _ends(extent: int) -> Sequence[int]:
    """Return the places along an axis that are looked at: the first, a middle and the last ones."""
    return sorted({n for n in (0, 1, extent // 2, extent - 1) if 0 <= n < extent})


def scalar_data(fusion: Fusion) -> dict[str, Any]:
    """Return the scalars of `common_data`."""
    draw = np.random.default_rng(1)
    return {s.name: drawn(draw, s.dtype, (), 0).item() for s in fusion.scalars}


def common_data(
    math: MathSnapshot, both: Sequence[Mapping[str, int]]
) -> list[list[npt.NDArray[Any]]]:
    """Return arrays for the inputs at two sets of sizes, equal at the indices that both have."""
    draw = np.random.default_rng(0)
    found: list[list[npt.NDArray[Any]]] = [[] for _ in both]
    for tensor in thaw(math).inputs:
        shapes = [[number(s, sizes) for s in tensor.sizes] for sizes in both]
        whole = _data(draw, math, tensor, np.max(shapes, 0, initial=0).tolist(), both)
        for arrays, shape in zip(found, shapes, strict=True):
            arrays.append(whole[tuple(map(slice, shape))])
    return found


def _data(
    draw: np.random.Generator,
    math: MathSnapshot,
    tensor: TensorView,
    shape: Sequence[int],
    both: Sequence[Mapping[str, int]],
) -> npt.NDArray[Any]:
    """Return random values of an input, of the range that is declared at all these sizes."""
    declared = [r for r in math.ranges if r.name == tensor.name]
    if not declared:
        return drawn(draw, tensor.dtype, shape, 0)
    low = max([number(r.low, sizes) for r in declared for sizes in both])
    high = min([number(r.high, sizes) for r in declared for sizes in both])
    return draw.integers(low, max(high, low + 1), shape).astype(tensor.dtype.numpy)


def _other_order(one: _VariantFolds, other: _VariantFolds, which: str) -> list[BitWitness]:
    """Return the tensors that two variants fold in different orders."""
    first, second = one.forms, other.forms
    return [
        BitWitness(name, f"{which} folds its terms in another order")
        for name in first
        if first[name] != second.get(name)
    ]


class FormTable:
    """Forms by number, which several kernels share."""

    def __init__(self) -> None:
        self._numbers: dict[Form, int] = {}
        self.forms: list[Form] = []

    def number(self, form: Form) -> int:
        """Return the number of a form."""
        found = self._numbers.get(form)
        if found is None:
            found = self._numbers[form] = len(self.forms)
            self.forms.append(form)
        return found


class ValueForms:
    """The forms of a kernel's values.

    Args:
        math: what it computes.
        orders: by tensor the forms of the steps of its fold.
        works: its stores.
        table: where forms are numbered.
    """

    def __init__(
        self,
        math: MathSnapshot,
        orders: Mapping[str, tuple[str, ...]],
        works: Iterable[Work],
        table: FormTable,
    ) -> None:
        self.math, self.orders, self.table = math, orders, table
        self.algebra = Simplifier()
        self._works: dict[str, list[Work]] = {}
        for work in works:
            self._works.setdefault(work.tensor.name, []).append(work)
        self._values: dict[tuple[str, tuple[Expr, ...]], Value] = {}
        self._plain: ValueForms | None = None

    def output(self, name: str) -> int:
        """Return the form of an element of an output."""
        tensor = self._tensor(name)
        return self._where(tensor)[0]

    def _tensor(self, name: str) -> MathTensor:
        found = self.math.tensor(name)
        assert found is not None
        return found

    def _value(self, tensor: MathTensor, index: tuple[Expr, ...], depth: int) -> Value:
        key = (tensor.name, index)
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = self._made(tensor, index, depth)
        return found

    def _made(self, tensor: MathTensor, index: tuple[Expr, ...], depth: int) -> Value:
        if tensor.definition is None:
            return self.table.number(("input", tensor.name, *map(str, index))), ""
        if tensor.accumulates:
            return self._fold(tensor, index, depth)
        value = tensor.definition.values[tensor.definition.component]
        if tensor.is_factored:
            places = [Coordinate(_BOUND + 16 * depth + n) for n in range(len(tensor.root))]
            named = zip(tensor.places, index, strict=True)
            shown = tuple([f"{at(place, places)} is {i}" for place, i in named])
            found, way = self._template(tensor, value, places, depth + 1)
            return self.table.number(("reshaped", tensor.dtype.name, shown, found)), way
        kept = iter(index)
        root = [ZERO if a.kind is IterKind.REDUCTION else next(kept) for a in tensor.root]
        found, way = self._template(tensor, value, root, depth)
        if tensor.dtype.is_narrow and value.dtype is not tensor.dtype:
            return self.table.number(("round", tensor.dtype.name, found)), ""
        return found, way

    def _fold(self, tensor: MathTensor, index: tuple[Expr, ...], depth: int) -> Value:
        definition, reducer = tensor.definition, reducer_of(tensor)
        assert definition is not None
        places = [Coordinate(_BOUND + 16 * depth + n) for n in range(len(tensor.root))]
        root: list[Expr] = list(places)
        named: tuple[str, ...] = ()
        if tensor.is_factored:
            named = tuple(
                [f"{at(p, places)} is {i}" for p, i in zip(tensor.places, index, strict=True)]
            )
        else:
            kept = iter(index)
            root = [
                p if a.kind is IterKind.REDUCTION else next(kept)
                for p, a in zip(places, tensor.root, strict=True)
            ]
        value = definition.values[definition.component]
        adds = any(_is_sum(node) for part in reducer.combination for node in walk(part))
        term, _ = self._template(tensor, value, root, depth + 1, adds=adds)
        way = _AT_ONCE if _is_product(reducer.combination[definition.component]) else ""
        how = (
            reducer.name,
            *map(str, reducer.combination),
            str(definition.scan),
            definition.component,
            tensor.instruction,
        )
        order = self.orders.get(tensor.name, ("exact",))
        return self.table.number(("fold", tensor.dtype.name, how, order, named, term)), way

    def _template(
        self, tensor: MathTensor, value: Expr, root: Sequence[Expr], depth: int, adds: bool = False
    ) -> Value:
        """Return the form of a template at an element of the root domain.

        `adds` tells that the value is added to others.
        """
        definition = tensor.definition
        assert definition is not None
        known: dict[tuple[Expr, bool], Value] = {}

        def visit(node: Expr, added: bool) -> Value:
            key = (node, added)
            if key not in known:
                found, way = made(node, added)
                if added and way:
                    found = self.table.number(("product", way, found))
                known[key] = found, way
            return known[key]

        def made(node: Expr, added: bool) -> Value:
            if isinstance(node, Arg):
                read = definition.reads[node.number]
                producer = self._tensor(read.producer)
                data = data_of(read.indices)
                place = [self.algebra.simplify(at(i, root)) for i in read.indices]
                if data:
                    chosen = [visit(arg, False)[0] for arg in data]
                    shown = tuple(map(str, place))
                    found, way = self._where(producer)
                    found = self.table.number(("gather", found, shown, *chosen))
                else:
                    places = tuple([
                        ZERO if a.kind is IterKind.BROADCAST else p
                        for a, p in zip(producer.logical, place, strict=True)
                    ])  # fmt: skip
                    found, way = self._value(producer, places, depth)
                return found, way and _later(way, self._reach(producer, tensor))
            if not isinstance(node, Op):
                leaf = at(node, root) if isinstance(node, Coordinate) else node
                return self.table.number(("leaf", str(leaf), node.dtype.name)), ""
            chooses = node.op in _CHOICES
            parts = [visit(arg, _is_sum(node) or (added and chooses)) for arg in node.args]
            ways = {way for _, way in parts if way and chooses}
            forms = [form for form, _ in parts]
            form = self.table.number(("op", node.op, node.dtype.name, *forms))
            return form, _AT_ONCE if _is_product(node) else " or ".join(sorted(ways))

        return visit(value, adds)

    def _where(self, tensor: MathTensor) -> Value:
        """Return the form of a tensor at the place that its coordinates name."""
        return self._value(tensor, tuple([Coordinate(n) for n in range(len(tensor.logical))]), 0)

    def _reach(self, producer: MathTensor, reader: MathTensor) -> str:
        """Return how a product gets to the sum that takes it in."""
        reads = [work.site.loops for work in self._works.get(reader.name, ())]
        for work in self._works.get(producer.name, ()):
            if work.site.loops in reads:
                return "; ".join(sorted(set(self._uses(producer, work.site.loops))))
        memories = {w.store.storage.memory for w in self._works.get(producer.name, ())}
        # What a thread keeps for later the compiler may add at once or not.
        return f"kept {id(self)}" if Memory.LOCAL in memories or not memories else _STORED

    def _uses(self, producer: MathTensor, loops: tuple[kir.Loop, ...]) -> Iterator[str]:
        """Yield what needs a product that loops add at once.

        Where that is more than sums, a compiler may round it by itself. What the loops compute
        twice, from the same elements, it computes once.
        """
        places = self._places(producer, loops)
        for tensor in self.math.tensors:
            if places.isdisjoint(self._places(tensor, loops)):
                continue
            if any(w.store.storage.memory is not Memory.LOCAL for w in self._works[tensor.name]):
                yield _STORED
            for other in self.math.tensors:
                made = other.definition
                if made is None or _is_copy(made):
                    continue
                args = [n for n, read in enumerate(made.reads) if read.producer == tensor.name]
                if args:
                    yield f"{args} of {', '.join(map(str, made.values))}"

    def _places(self, tensor: MathTensor, loops: tuple[kir.Loop, ...]) -> set[int]:
        """Return the forms of the elements that loops compute, whatever is rounded in between."""
        if self._plain is None:
            self._plain = ValueForms(self.math, self.orders, (), self.table)
        works = [w for w in self._works.get(tensor.name, ()) if w.site.loops == loops]
        return {self._plain._value(tensor, w.element, 0)[0] for w in works if w.element}


def _is_sum(node: Expr) -> bool:
    """Whether what computes an operation may add its operands to others."""
    return isinstance(node, Op) and node.dtype.is_float and node.op not in {*_NEITHER, "mul"}


def _is_product(node: Expr) -> bool:
    """Whether what computes an operation may end with a product."""
    return isinstance(node, Op) and node.dtype.is_float and node.op not in {*_NEITHER, *_SUMS}


def _is_copy(made: MathDefinition) -> bool:
    return not made.reducer and all(isinstance(value, Arg) for value in made.values)


def _later(way: str, reach: str) -> str:
    """Return how a product gets to a reader of what it got to: a stored one is rounded."""
    if way == _STORED or reach == _STORED or reach.startswith("kept"):
        return _STORED if way == _STORED else reach
    return " and ".join(dict.fromkeys([*way.split(" and "), reach]))
