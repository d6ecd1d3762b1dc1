"""Schedule primitives: each validates, computes new domains, commits in one transaction."""

import loopnest.tensor.ops  # noqa: F401 - what tensors have operators by
from loopnest.base.pickling import load_table
from loopnest.schedule import (
    allocation_layout,
    allocation_steps,
    atomic_folds,
    caching,
    compute_at,
    inlining,
    instructed_tiles,
    rfactor,
    transaction,
    transforms,
)
from loopnest.tensor import schedule_methods as declared
from loopnest.tensor.fusion import Fusion


def _loaded(_: object, table: bytes) -> Fusion:
    """Return a fusion that was pickled."""
    fusion = load_table(table)
    assert isinstance(fusion, Fusion)
    return fusion


declared.fulfil(
    declared.ScheduleMethods,
    *(allocation_layout, atomic_folds, caching, compute_at, inlining, instructed_tiles, rfactor),
    *(transaction, transforms),
    _set_memory=transforms.set_memory,
)
declared.fulfil(declared.AllocationMethods, allocation_steps)
declared.fulfil(declared.FusionMethods, inline_most=inlining.inline_all)
Fusion.loaded = _loaded
