"""Schedules of the passes of sorts: each row from its begin to its end, with a count a digit.

for row in ...:      # a core, or a thread
  for element in row:
    the place of the element: the count of its digit, which then grows; there it goes

The loop over digits runs over the one digit of the element: an element waits for the counts of
those before it. On a GPU long rows are shared out in segments, a thread each, by launches: how
often each digit stands in a segment; sums of these over the segments before, digit by digit; then
each segment goes as above, from where those before it end.
"""

from __future__ import annotations

from loopnest.facade import language as ln
from loopnest.scalar.enums import WARP
from loopnest.scalar.expr import Const
from loopnest.schedulers.iteration_space import upstream
from loopnest.schedulers.processor_facts import Processor

PASS, PLACE = "sort_pass", "digit_place"
"""The operations that a stage ends in: elements at their places, or the places alone."""

FOLDS = frozenset(
    [PASS, PLACE, "digit_rank", "digit_start", "digit_count", "rank", "order"]
)  # fmt: skip
"""All that a sort folds."""

THREADS = 64
"""Threads of a block, each with a row and the counts of its digits."""

SEGMENTS = 128
"""Threads of a block, each with a segment of a row: as many as other stages have, with which a pass
shares launches."""

SEGMENT = 512
"""Elements of a row that a thread goes along where others go along the rest."""

LANES = 256
"""Threads that add up the counts of a digit in the segments of one row."""

DIGITS = 4
"""Digits of a block whose warps add up one's counts each, where there are more rows."""

LONG = 1024
"""Rows of more elements are shared out."""


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is a pass of a sort, of digits that are made element by element."""
    if len(fusion.outputs) != 1 or fusion.inplace:
        return False
    chain = _chain(fusion)
    others = upstream(fusion.outputs) - {*chain, *fusion.inputs}
    return len(chain) > 1 and all(map(_is_made_for_one, others))


def accepts_whole(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is the order of what is made element by element: all passes of it."""
    if len(fusion.outputs) != 1 or fusion.inplace:
        return False
    (found,) = fusion.outputs
    own = upstream(fusion.outputs)
    while found.definition is not None and found.definition.is_copy and len(found.producers) == 1:
        (found,) = found.producers
    made = [t.definition for t in own if t.definition is not None]
    folds = {d.op for d in made if d.reducer is not None}
    whole = found.definition is not None and found.definition.op == "argsort"
    return whole and any(d.op == "ordinals" for d in made) and folds <= FOLDS


def _is_made_for_one(tensor: ln.TensorView) -> bool:
    """Whether a tensor is made element by element, of what it reads at the same place."""
    definition = tensor.definition
    if definition is None or definition.reducer is not None:
        return False
    return all(read.producer.is_input or not read.data for read in definition.reads)


def _chain(fusion: ln.Fusion) -> list[ln.TensorView]:
    """Return the output of a pass, the places that it stores to, and the ranks they are made of."""
    (output,) = fusion.outputs
    found, ops = [output], [PASS, PLACE, "digit_rank"]
    if output.definition is None or output.definition.op not in ops[:2]:
        return []
    for op in ops[ops.index(output.definition.op) + 1 :]:
        made = [t for t in found[-1].producers if t.definition is not None and not t.is_input]
        found += [t for t in made if t.definition is not None and t.definition.op == op]
    return found


def _walked(fusion: ln.Fusion) -> tuple[ln.TensorView, int]:
    """Let a pass walk along its rows; return its output and the number of loops over rows."""
    output, *rest = chain = _chain(fusion)
    rows = output.ndim - 2
    if len(rest) > 1:
        output.reorder({rows + 1: rows})
        rest[0].compute_at(output, rows + 1)
    rest[-1].compute_at(chain[-2], rows + 2)
    others = upstream(fusion.outputs) - {*chain, *fusion.inputs}
    for tensor in [t for t in reversed(fusion.tensors) if t in others]:
        tensor.compute_at(output, rows + 1)
    return output, rows


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give each core some rows."""
    output, rows = _walked(fusion)
    if rows:
        output.parallelize({0: ln.ParallelType.cpu_parallel})


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give each thread a short row, or a segment of a long one."""
    (output,) = fusion.outputs
    size = output.sizes[-1]
    if not isinstance(size, Const) or size.value > LONG:
        _in_segments(fusion)
        return
    last = output.ndim - 3
    if last >= 0:
        output.split(last, THREADS)
    _walked(fusion)
    if last >= 0:
        grid, block = ln.ParallelType.grid_x, ln.ParallelType.block_x
        output.parallelize({0: grid, last + 1: block})


def _in_segments(fusion: ln.Fusion) -> None:
    """Give each thread a segment of a row, in three launches of a pass.

    The digits of each segment are counted, the counts of those before it are added up, by digits,
    and each thread gives the elements of its segment the places behind them.
    """
    output, *rest = chain = _chain(fusion)
    rank, rows = chain[-1], output.ndim - 2
    others = upstream(fusion.outputs) - {*chain, *fusion.inputs}
    grid, block = ln.ParallelType.grid_x, ln.ParallelType.block_x
    if len(rest) > 1:
        start = output.atomic()
        while start.ndim > 1:
            start.merge(0)
        start.split(0, SEGMENTS)
        start.parallelize({0: grid, 1: block})
    rank.split(rows, SEGMENT)
    inner = rank.rfactor(rows + 1, refold=True)
    (before,) = [tensor for tensor in rank.producers if tensor is not inner]
    (count,) = before.producers
    count.memory = before.memory = ln.GLOBAL
    # [rows, segments, elements of a segment, digits or places], and [rows, digits, segments].
    count.reorder({rows + 1: rows + 2})
    before.reorder({rows: rows + 1})
    if len(rest) > 1:
        output.reorder({rows: rows + 1})
    output.split(rows, SEGMENT)
    first = min(rows, 2)
    for tensor in (count, before, output):
        for _ in range(rows - first):
            tensor.merge(0)
    for tensor in (count, output):
        tensor.split(first, SEGMENTS)
        _bind(tensor, first)
        tensor.axis(first + 1).parallelize(block)
    if first:
        before.split(first + 1, WARP)
        before.split(first, DIGITS)
        _bind(before, first)
        before.parallelize({first + 1: ln.ParallelType.block_y, first + 3: block})
    else:
        before.split(1, LANES)
        before.parallelize({0: grid, 2: block})
    inside = first + 3
    if len(rest) > 1:
        rest[0].compute_at(output, inside)
    rank.compute_at(chain[-2], inside + 1)
    inner.compute_at(rank, inside + 1)
    for tensor in sorted(others, key=lambda t: t.number, reverse=True):
        tensor.compute_at(output, inside, recompute=True)
        for clone in tensor.clones:
            clone.compute_at(count, inside)
    for tensor in (count, before, output):
        tensor.new_launch()


def _bind(tensor: ln.TensorView, rows: int) -> None:
    """Bind up to two axes of rows, and the blocks of each row behind them."""
    of_rows = [[], [ln.ParallelType.grid_x], [ln.ParallelType.grid_z, ln.ParallelType.grid_x]]
    blocks = ln.ParallelType.grid_y if rows else ln.ParallelType.grid_x
    tensor.parallelize(dict(enumerate([*of_rows[rows], blocks])))
