"""Automatic schedules: `auto_schedule(fusion, target)`.

Schedulers use public primitives alone and know a fusion as math: which axes its tensors share, read
and fold (`iteration_space`). Each is a file to read as an example: `pointwise_loops` (gathers too),
`fold_loops` (sums, softmax, norms), `contraction_loops` (products of matrices, convolutions, with
operands that are computed on the way), `convolution_loops` (convolutions of many channels on a
CPU), `window_loops` (pooling), `scan_loops`, `scatter_loops`, `transpose_loops`. What none of these
takes as a whole goes in stages (`stage_parts`, `composed_stages`), each by the one that takes it;
`stage_loops` has the loops of the rest. `scheduler_table` is the registry; a user's own scheduler
is asked first.
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
