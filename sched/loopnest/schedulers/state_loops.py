"""Schedules of loops that carry state: one after the other, each step with all that it computes.

for step in steps:
  for element of a state in ...:      # a thread each; all meet where they read what others store
    what is computed for it in this step

What the elements of a step have in common (a sum over the state) goes through memory, computed by
the same threads, an element each. Where elements along the leading axes of the states have nothing
to do with each other, as the rows of a batch, blocks go along with them through all steps. So it is
tried, and taken where no block waits for another; else one block does all.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

from loopnest import kir
from loopnest.facade import language as ln
from loopnest.schedulers.iteration_space import together
from loopnest.schedulers.loop_shapes import GRID, on_grid
from loopnest.schedulers.processor_facts import Processor

FEW = 64
"""So many elements of a tensor a thread keeps in registers, at most."""
WIDEST = 256
"""Threads of a block, at most: each step waits for all of them."""


def loops_of_state(fusion: ln.Fusion) -> list[list[ln.TensorView]]:
    """Return the tensors of each loop that carries state, in the order of their computation.

    They share the loop over steps from the start, or have its axis: no parallel one.
    """
    order = fusion.topological()
    loops: list[set[ln.TensorView]] = []
    for tensor in [t for t in order if t.compute_at_pos]:
        own = {t for other in (tensor, *tensor.consumers) for t in together(other)}
        joined = [loop for loop in loops if not loop.isdisjoint(own)]
        loops = [loop for loop in loops if loop not in joined]
        loops.append(own.union(*joined))
    for loop in loops:
        pending = [*loop]
        while pending:
            read = [p for p in pending.pop().producers if p not in loop and _has_steps(p)]
            loop.update(read)
            pending += read
    return [[t for t in order if t in loop] for loop in loops]


def _has_steps(tensor: ln.TensorView) -> bool:
    return any(axis.kind is ln.IterKind.STEP for axis in tensor.root_domain)


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether there is one loop that carries state, and nothing else folds."""
    loops = loops_of_state(fusion)
    inside = {tensor for loop in loops for tensor in loop}
    return len(loops) == 1 and not any(_folds(t) for t in fusion.tensors if t not in inside)


def _folds(tensor: ln.TensorView) -> bool:
    return tensor.definition is not None and tensor.definition.reducer is not None


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Compute one step after the other, each element of a state with what it is computed from."""
    fusion.inline_most(replay=True)


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give the elements of states to the threads of a block, and rows to blocks where it works."""
    for rows in (True, False):
        names = [t.name for t in _states(fusion)]
        while True:
            trial = deepcopy(fusion)
            left = _spread(trial, names, processor, rows=rows)
            if not left:
                break
            names += left
        if not rows or _blocks_are_alone(trial):
            break
    _spread(fusion, names, processor, rows=rows)


def _states(fusion: ln.Fusion) -> list[ln.TensorView]:
    """Return the states, and other outputs."""
    carried = {state for tensor in fusion.tensors for state in tensor.carried}
    return [t for t in fusion.tensors if t in carried or t.is_output]


def _spread(
    fusion: ln.Fusion, names: Iterable[str], processor: Processor, *, rows: bool
) -> list[str]:
    """Spread named tensors over threads; return the names of what else has loops of its own.

    Args:
        fusion: without calls.
        names: of tensors that lie in GLOBAL memory.
        processor: how many threads a block has.
        rows: whether blocks go along the axes in front of the last one.
    """
    named = [t for t in fusion.tensors if t.name in names]
    for tensor in named:
        if not tensor.is_output:
            tensor.memory = ln.GLOBAL
        others = (ln.IterKind.STEP, ln.IterKind.REDUCTION)
        kept = [n for n, axis in enumerate(tensor.leaf_domain) if axis.kind not in others]
        if kept:
            *outer, last = kept
            tensor.split(last, min(processor.threads, WIDEST))
            blocks = on_grid(outer[:GRID]) if rows else {}
            tensor.parallelize({**blocks, last + 1: ln.ParallelType.block_x})
    fusion.inline_most([t for t in fusion.tensors if t not in named], replay=True)
    return [t.name for t in fusion.tensors if t not in named and _is_large(t)]


def _is_large(tensor: ln.TensorView) -> bool:
    """Whether a thread has no registers for what a tensor keeps inside of the loops it shares."""
    if tensor.is_input or not tensor.consumers:
        return False
    elements = 1
    for axis in tensor.leaf_domain[tensor.compute_at_pos :]:
        if not axis.is_reduction and not axis.is_broadcast:
            elements *= axis.extent if isinstance(axis.extent, int) else FEW + 1
    return elements > FEW


def _blocks_are_alone(fusion: ln.Fusion) -> bool:
    """Whether a scheduled fusion has a kernel, in which no block waits for another."""
    try:
        kernel = ln.lower(fusion)
    except (ln.ScheduleError, ln.LoweringError):
        return False
    barriers = [node for node, _ in kernel.walk() if isinstance(node, kir.Barrier)]
    return all(barrier.scope != "grid" for barrier in barriers)
