"""Proofs: does a loop nest compute its math? Reads the loop nest and the math, nothing between.

No claim is trusted: a store's coordinate says what it means to compute, and everything that reads
the value is held against it. The passes of the lowering take no part. The simplifier takes part
where two expressions of sizes are compared, an assumed equation is solved for a size, or indices
that the math computes are bounded; it decides nothing else.

In comes a program (`kir.Program`) with the math that it should compute (`MathSnapshot`); out goes a
`Report`: proved, for which sizes; refuted, with a witness; or unknown, and why.

Three types to know:

- `program_model.Model`: the statements as the checkers see them: a `Site` has the loops and tests
  around a statement and its time, an `Access` the element that it reads or writes;
- `obligations.Work`: a store with what the math demands of everything that it reads;
- `report.Finding`: a fact that does not hold, or could not be decided, with where and who.

The way of the data:

1. `verifier` takes a program with several launches apart (`single_launches`), looks at launches
   without threads (`empty_launches`) and at the interface, and asks for the obligations.
2. `template_matching`, `data_indices`, `live_points` and `obligations` hold each store against the
   definition of its tensor.
3. `symbolic` proves for all sizes by isl. `quasi_affine` makes polynomials of index expressions,
   `index_variables` has the variables of loops, `isl_spaces` those that stand for sums, products
   and quotients of them, `affine` the conditions and the matrices that isl reads.
   Loops that end early are proved as if they ran to their end; `early_ends` shows that what they
   leave out changes nothing.
4. Where that ends, `enumeration` looks at every point at the small sizes of `size_choice`, on
   arrays of points (`point_arrays`).
5. `collectives` executes what threads do together; `witness` names who and where for a `report`.

Steps 3 and 4 both ask `wide_accesses` where vectors stand, and `out_of_domain` what holds beyond
the end of a tensor.

Beside it, `barrier_necessity` asks which barriers are superfluous, `bit_claims` whether results
have the same bits (from the order of their `fold_steps`), `value_comparison` whether a value of
another form is equal, and `size_cover` whether kernels that are chosen by size cover all sizes.
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
