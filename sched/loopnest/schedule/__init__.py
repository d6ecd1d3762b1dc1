"""Schedule primitives: each validates, computes new domains, commits in one transaction.

In comes a `Fusion` and a call on one of its tensors; out goes the same fusion with other leaf axes,
places or copies, or a `ScheduleError` and no change. When this package is loaded it fulfils the
methods that `tensor.schedule_methods` declares, so that primitives are called on tensors.

The three types to know: `loop_forest.LoopForest` (which leaf axes share a loop, how the loops nest,
and in which order tensors are computed), `root_maps.Match` (which axes of a producer and of its
consumer correspond), `transaction.PrimitiveRefused` (what a primitive raises; the user sees the
`ScheduleError` that is made of it).

The way of the data:

1. `transaction` wraps each primitive: it finds the axes that a call names, undoes a call that is
   refused, and records one that succeeds, with what it meant to achieve.
2. Primitives that change one tensor: `transforms` (split, merge, reorder, parallelize, pin,
   set_memory, new_launch); `allocation_steps` and `allocation_layout` for its buffer;
   `instructed_tiles` for tiles that a warp holds and instructions that compute or copy them.
3. Primitives that make tensors: `caching` (copies), `rfactor` (a reduction in two steps),
   `atomic_folds` (a reduction by atomic updates).
4. How loops get from one tensor to another: `root_maps` says which axes correspond, `replay` gives
   one tensor the loops of a neighbour. Where windows are read, `read_footprints` says what a
   consumer reads, and `overlap` gives the producer tiles with a halo. `max_info_tree` replays many
   tensors from one, each along the path that keeps most axes; `chains` lists the tensors between
   two. The primitives that do so are `compute_at`, `inlining` (inline_at, inline_most) and
   `propagation` (propagate, parallelize_like).
5. `fold_order` says whether loops meet the elements of a reduction in their order, and
   `loop_forest` whether all loops together have an order. Primitives refuse a call by it, and
   `loopnest.lowering` begins with it, so that what is accepted can be lowered.

`stage_focus` lets a fusion be one of its stages for a while, for automatic schedules.
"""

import loopnest.tensor.ops  # noqa: F401 - what tensors have operators by
from loopnest.schedule import (
    allocation_layout,
    allocation_steps,
    atomic_folds,
    caching,
    compute_at,
    inlining,
    instructed_tiles,
    rfactor,
    skewing,
    transaction,
    transforms,
)
from loopnest.tensor import schedule_methods as declared

declared.fulfil(
    declared.ScheduleMethods,
    *(allocation_layout, atomic_folds, caching, compute_at, inlining, instructed_tiles, rfactor),
    *(skewing, transaction, transforms),
    _set_memory=transforms.set_memory,
)
declared.fulfil(declared.AllocationMethods, allocation_steps)
declared.fulfil(declared.FusionMethods, inline_most=inlining.inline_all)
