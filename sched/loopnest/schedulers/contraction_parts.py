"""What a contraction is made of: the tensor that folds, its two operands, and their dimensions.

An operand is what one side of the pairs is computed from, element by element: an input as it is,
moved, in windows, or what is made of inputs on the way (an activation, weights that are
dequantised, rows that data choose).
"""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.facade import language as ln
from loopnest.scalar.expr import Op, walk
from loopnest.scalar.op_table import OPS
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    MemoryAccess,
    copies,
    has_border,
    reads_parts,
    reductions,
    steps,
    upstream,
)
from loopnest.schedulers.loop_shapes import in_memory_order


@dataclass(frozen=True, slots=True)
class Contraction:
    """The parts of a contraction.

    Args:
        total: the tensor that folds.
        pairs: what it folds, or that is computed from: the tensor that reads both operands.
        left: the operand that has rows; computed from inputs, which it may only copy.
        right: the operand that has columns; likewise.
        groups: the dimensions by label: "batch" of both operands, "rows" of the left one,
            "columns" of the right one, "folded". One may be empty, which is no batch.
        copies_windows: whether the right operand has windows or parts of an input, or a border.
    """

    total: ln.TensorView
    pairs: ln.TensorView
    left: ln.TensorView
    right: ln.TensorView
    groups: tuple[tuple[str, list[int]], ...]
    copies_windows: bool

    def dims(self, label: str) -> list[int]:
        """Return the dimensions of a group."""
        return dict(self.groups)[label]

    @property
    def results(self) -> frozenset[int]:
        """The dimensions of the results."""
        return frozenset([d for label, dims in self.groups if label != "folded" for d in dims])


def contraction(fusion: ln.Fusion, space: IterationSpace) -> Contraction | None:
    """Return the parts of a contraction; None for other fusions."""
    folds = reductions(fusion)
    if len(folds) != 1:
        return None
    total = pairs = folds[0]
    while len(pairs.producers) == 1:
        (pairs,) = pairs.producers
        if len(pairs.consumers) != 1:
            return None
    if len(pairs.producers) != 2:
        return None
    first, second = pairs.producers
    one, other = _dimensions(first, space), _dimensions(second, space)
    folded = space.folded(total)
    a, b, both = one - other - folded, other - one - folded, one & other
    if not a or not b or not folded or not folded <= both or a | b | both != space.all_of(total):
        return None
    # Results lie as they are written: the largest operand, which has the say elsewhere, may have
    # their rows innermost.
    written = [d for write in space.writes for d in write.order]
    order = [*dict.fromkeys([*written, *in_memory_order(space, space.all)])]
    result = [d for d in order if d in space.all_of(total) - folded]
    indirect = has_windows(first), has_windows(second)
    # The right operand is the one that is copied, and whose lanes are vectors.
    if _is_copied(first, second, max(map(result.index, a)) > max(map(result.index, b))):
        first, second, a, b = second, first, b, a
    named = {"batch": both - folded, "rows": a, "columns": b, "folded": folded}
    groups = tuple([(label, [d for d in order if d in dims]) for label, dims in named.items()])
    return Contraction(total, pairs, first, second, groups, any(indirect))


def ends_in(space: IterationSpace, total: ln.TensorView, results: frozenset[int]) -> bool:
    """Whether what follows a fold has no dimensions but those of its results, and outputs all."""
    before = upstream([total])
    after = [tensor for tensor in space.axes if tensor not in before]
    return all(space.all_of(tensor) <= results for tensor in after) and all(
        frozenset(write.order) == results for write in space.writes
    )


def _dimensions(operand: ln.TensorView, space: IterationSpace) -> frozenset[int]:
    """Return the dimensions of an operand; none of one that shares tensors with something else."""
    if operand.is_input:
        return frozenset()
    own = {*steps(operand)}
    shared = any(not own.issuperset(t.consumers) for t in own if t is not operand)
    if shared or len(operand.consumers) != 1 or not own.isdisjoint(operand.fusion.outputs):
        return frozenset()
    reads = any(read.reader in own for read in space.reads)
    return space.present[operand] if reads else frozenset()


def has_windows(operand: ln.TensorView) -> bool:
    """Whether an operand has windows or parts of what it is computed from, or a border."""
    return any(has_border(tensor) or reads_parts(tensor) for tensor in steps(operand))


def is_computed(operand: ln.TensorView) -> bool:
    """Whether an operand is more than an input, moved, in windows or with a border."""
    return any(not copies(tensor) and not has_border(tensor) for tensor in steps(operand))


def dear_before_windows(parts: Contraction) -> list[ln.TensorView]:
    """Return what operands read in windows or repeated, and takes work: a function, a division.

    Sums, products and choices are as soon made again as loaded.
    """
    found: dict[ln.TensorView, None] = {}
    for operand in (parts.left, parts.right):
        for tensor in [x for t in steps(operand) if reads_parts(t) for x in t.producers]:
            while copies(tensor) or has_border(tensor):
                (tensor, *_) = tensor.producers
            if any(map(_is_dear, steps(tensor))):
                found[tensor] = None
    return [*found]


def _is_dear(tensor: ln.TensorView) -> bool:
    assert tensor.definition is not None
    nodes = [node for value in tensor.definition.values for node in walk(value)]
    ops = [node.op for node in nodes if isinstance(node, Op)]
    return any(OPS[op].result == "float" or op == "div" for op in ops)


def widest_read(space: IterationSpace, operand: ln.TensorView) -> MemoryAccess:
    """Return the read of an operand's input that has the most dimensions."""
    own = steps(operand)
    reads = [read for read in space.reads if read.reader in own]
    return max(reads, key=lambda read: len(read.order))


def _is_copied(first: ln.TensorView, second: ln.TensorView, later: bool) -> bool:
    """Whether the first of two operands is copied, and the second is read where it lies.

    A copy saves windows from being looked up again and again. Of two arrays with windows the larger
    one is copied, since all of the other one is read for each band of columns.

    Args:
        first: an operand.
        second: the other one.
        later: whether the results of the first operand lie closer together.
    """
    windows = has_windows(first), has_windows(second)
    if windows[0] != windows[1]:
        return windows[0]
    a, b = _elements(first), _elements(second)
    if not windows[0] or a is None or b is None or a == b:
        return later
    return a > b


def _elements(operand: ln.TensorView) -> int | None:
    """Return how many elements an operand's largest input has; None where one is symbolic."""
    counts = []
    for tensor in [t for t in upstream([operand]) if t.is_input]:
        product = 1
        for axis in tensor.rfactor_domain:
            if not isinstance(axis.extent, int):
                return None
            product *= axis.extent
        counts.append(product)
    return max(counts)
