"""Proofs: does a loop nest compute its math? Reads the loop nest and the math, nothing between.

No claim is trusted: a store's coordinate says what it means to compute, and everything that reads
the value is held against it. The passes of the lowering take no part. The simplifier takes part
where two expressions of sizes are compared, an assumed equation is solved for a size, or indices
that the math computes are bounded; it decides nothing else.
"""

from loopnest.proofs.barrier_necessity import superfluous_barriers, wide_barriers
from loopnest.proofs.report import Finding, Place, Report
from loopnest.proofs.verifier import require_proved, verify, verify_program, verify_variant

__all__ = [
    "Finding",
    "Place",
    "Report",
    "require_proved",
    "superfluous_barriers",
    "verify",
    "verify_program",
    "verify_variant",
    "wide_barriers",
]
