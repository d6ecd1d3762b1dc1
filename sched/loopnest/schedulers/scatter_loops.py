"""Schedules of scatters: loops over the updates, each of which goes to the element that data name.

On a GPU threads take updates, and add by atomic operations to what an earlier launch stored; cores
own columns of the result, and walk through the updates, so that the order of a sum is fixed.

    for update in ...: for column in ...:  # blocks and threads
      atomic: result[index[update], column] += updates[update, column]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopnest.facade import language as ln
from loopnest.scalar.expr import Const, Coordinate
from loopnest.schedulers.iteration_space import reads_parts, reductions, steps
from loopnest.schedulers.processor_facts import Processor

FOLDS = (
    "last_update", "scatter_add", "scatter_max", "scatter_min", "scatter_prod", "index_add",
    "digit_count", "order",
)  # fmt: skip
"""The operations whose updates go to elements that data choose."""

COLUMNS = 32
"""Neighbouring columns of a core: two lines of a cache, of float32."""


@dataclass(frozen=True, slots=True)
class _Scatter:
    """The fold of a scatter, the axis that data choose, and the pointwise result that reads it."""

    fold: ln.TensorView
    place: int
    result: ln.TensorView | None


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is a scatter of what is made element by element, into zeros or into an input."""
    return _scatter(fusion) is not None


def accepts_atomic(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is one whose sums atomic operations can take, in any order."""
    found = _scatter(fusion)
    definition = None if found is None else found.fold.definition
    if found is None or found.fold.dtype.size not in (4, 8) or definition is None:
        return False
    fixed = definition.deterministic and found.fold.dtype.is_float
    return found.fold.dtype.compute is found.fold.dtype and not fixed


def _scatter(fusion: ln.Fusion) -> _Scatter | None:
    folds = reductions(fusion)
    if len(folds) != 1 or len(fusion.outputs) != 1 or fusion.inplace:
        return None
    (fold,), (output,) = folds, fusion.outputs
    definition = fold.definition
    if definition is None or definition.op not in FOLDS:
        return None
    if not all(map(_is_made_for_one, definition.producers)):
        return None
    folded = [n for n, axis in enumerate(fold.root_domain) if axis.is_reduction]
    chosen = [n for n, i in enumerate(definition.reads[-1].indices) if i is Coordinate(folded[0])]
    if len(folded) != 1 or len(chosen) != 1 or len(fold.root_domain) != len(fold.sizes) + 1:
        return None
    if fold is output:
        return _Scatter(fold, chosen[0], None)
    others = [t for t in output.producers if t is not fold]
    plain = all(map(_is_made_for_one, others)) and fold.consumers == (output,)
    if output.definition is None or output.definition.reducer is not None:
        return None
    plain = plain and all(r.producer.is_input for r in output.definition.reads if r.data)
    return _Scatter(fold, chosen[0], output) if plain and output.ndim == fold.ndim - 1 else None


def _is_made_for_one(tensor: ln.TensorView) -> bool:
    """Whether a tensor is an input, or made of inputs element by element for a single reader."""
    if tensor.is_input:
        return True
    definition = tensor.definition
    if definition is None or definition.reducer is not None or len(tensor.consumers) != 1:
        return False
    return not reads_parts(tensor) and all(map(_is_made_for_one, tensor.producers))


def _is_chosen_by_column(fold: ln.TensorView) -> bool:
    """Whether each column has indices of its own: its loop is then outside of the chosen one."""
    assert fold.definition is not None
    return len(fold.definition.reads[0].indices) > 1


def _compute_updates(fold: ln.TensorView, read: Sequence[ln.TensorView], chosen: int) -> None:
    """Compute what `read` has of an update outside of the loop over the axis that data choose.

    Nothing that is read has that axis.
    """
    place = fold.leaf_domain.index(fold.root_domain[chosen])
    for tensor in steps(*read):
        tensor.compute_at(fold, place)


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Let a launch store what the sums start from; in the next one blocks take the updates."""
    found = _scatter(fusion)
    assert found is not None
    fold, last, read = found.fold, found.fold.ndim - 1, found.fold.producers
    if found.result is not None:
        fold.memory = ln.GLOBAL
    start = fold.atomic()
    _elements(start, processor.threads)
    fold.new_launch()
    others = [n for n in range(last) if n != found.place]
    fold.reorder({n: place for place, n in enumerate([last, *others, found.place])})
    if others:
        _merged(fold, 1, len(others))
        columns = fold.ndim - 2
        extent = fold.leaf_domain[columns].size
        known = int(extent.value) if isinstance(extent, Const) else processor.threads + 1
        if known > processor.threads:
            fold.split(columns, processor.threads)
            fold.axis(columns).parallelize(ln.ParallelType.grid_y)
            columns += 1
        fold.parallelize({0: ln.ParallelType.grid_x, columns: ln.ParallelType.block_x})
    else:
        fold.split(0, processor.threads)
        fold.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    _compute_updates(fold, read, found.place)
    if found.result is not None:
        found.result.new_launch()
        _elements(found.result, processor.threads)
        _inline_operands(found.result, fold)


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give each core some columns; it walks through the updates, and adds to one row of each."""
    found = _scatter(fusion)
    assert found is not None
    fold, last, read = found.fold, found.fold.ndim - 1, found.fold.producers
    if found.result is not None and fold.definition is not None:
        for tensor in fold.definition.outputs:
            tensor.memory = ln.GLOBAL
        found.result.parallelize({0: ln.ParallelType.cpu_parallel})
    others = [n for n in range(last) if n != found.place]
    fold.reorder({n: place for place, n in enumerate([*others, last, found.place])})
    if others and not _is_chosen_by_column(fold):
        columns = len(others) - 1
        fold.split(columns, COLUMNS)
        fold.reorder({columns + 1: columns + 3, columns + 2: columns + 1, columns + 3: columns + 2})
    if others:
        fold.parallelize({0: ln.ParallelType.cpu_parallel})
    _compute_updates(fold, read, found.place)
    if found.result is not None:
        _inline_operands(found.result, fold)


def _inline_operands(result: ln.TensorView, fold: ln.TensorView) -> None:
    """Compute what a result reads beside the fold where it is read."""
    others = [t for t in result.producers if t is not fold]
    for tensor in steps(*others) if others else ():
        tensor.compute_at(result, -1)


def _elements(tensor: ln.TensorView, threads: int) -> None:
    """Give neighbouring elements to the threads of a block."""
    if not tensor.ndim:
        return
    _merged(tensor, 0, tensor.ndim)
    tensor.split(tensor.ndim - 1, threads)
    tensor.parallelize({tensor.ndim - 1: ln.ParallelType.block_x, 0: ln.ParallelType.grid_x})


def _merged(tensor: ln.TensorView, first: int, count: int) -> None:
    """Make one axis of neighbours where their extents are numbers."""
    axes = tensor.leaf_domain[first : first + count]
    if all(isinstance(axis.size, Const) for axis in axes):
        for _ in range(count - 1):
            tensor.merge(first)
