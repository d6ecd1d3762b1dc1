"""Automatic schedules: `auto_schedule(fusion, target)`.

In comes a fusion that is math alone, out goes the same one under a schedule of public primitives.
The three types to know: `iteration_space.IterationSpace` (which axes the tensors share, read and
fold), `loop_shapes.LabelledAxes` (axes by label, so that tensors of other axes get the same loops),
`processor_facts.Processor` (all that a schedule may know of the machine).

The way of the data: `scheduler_table` asks one scheduler after the other whether it accepts the
fusion, a user's own first; the first that does schedules it. Schedulers know no operation: they ask
the iteration space alone.

Each scheduler is a file to read as an example: `pointwise_loops` (gathers too), `fold_loops` (sums,
softmax, norms), `contraction_loops` (products of matrices, convolutions, with operands that are
computed on the way; `contraction_parts` finds these), `convolution_loops` (convolutions of many
channels on a CPU), `window_loops` (pooling), `scan_loops`, `scatter_loops`, `sort_loops`,
`transpose_loops`, `state_loops` (loops that carry state). What none of these takes as a whole goes
in stages (`composed_stages`), each by the one that takes it; `stage_loops` has the loops of the
rest.
"""

from loopnest.schedulers.processor_facts import Processor
from loopnest.schedulers.scheduler_table import (
    Scheduler,
    auto_schedule,
    has_only_own_schedulers,
    register_scheduler,
    scheduler_of,
    schedulers,
    unregister_scheduler,
)

__all__ = [
    "Processor",
    "Scheduler",
    "auto_schedule",
    "has_only_own_schedulers",
    "register_scheduler",
    "scheduler_of",
    "schedulers",
    "unregister_scheduler",
]
