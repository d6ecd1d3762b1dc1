"""What a correct kernel may compute: for each element an interval, by running error analysis.

In come a fusion or a kernel with arrays; out come the values of the math in float64 (`evaluate`),
a bound for each element on how far a right result may lie from them (`error_bound`), and verdicts
on results (`compare`). The oracle reads definitions alone, no loops and no buffers.

The three types to know: `oracle.Oracle` (one evaluation of all definitions, in an arithmetic that a
subclass brings: numbers or intervals), `intervals.Interval` (a value, and the interval that holds
every correct result), `compare.Verdict` (how one output compares with that).

A kernel computes the math in its own types: each operation rounds, sums fold in an order that the
schedule chooses, products may be fused with sums, elements may be computed twice. An `Interval`
contains the result of every such computation, whatever the schedule; results are judged by it
alone. It is no first-order estimate: a function is taken at the ends of its operand's interval, a
comparison that may go either way gives both, a divisor that may be zero gives anything. Bounds are
those of the worst case. A sum of n terms, in any order, errs by at most (n - 1) u times the sum of
the magnitudes, u being the unit roundoff.

The way of the data:

1. `oracle` goes through the definitions; what is large goes in blocks (`oracle_blocks`).
   `oracle_operands` finds what a template reads, and folds; `float64_math` computes numbers.
2. `error_bounds` runs the same oracle on intervals: `interval_rules` has the range of each
   operation, which `intervals` widens by what the operation itself errs, from the one table
   `target_accuracy`; `reduction_intervals` has the folds, in any order. A sum that an instruction
   of the table computes errs by what its row says.
3. `compare` judges results by that. `subsample` picks a part of the results where all of them
   would take too long.

Beside it, `reducer_trials` tries a user's reducer on random values when it is made.

Sources: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, chapters 2 to 4
(running error analysis: section 3.3); Moore, Kearfott and Cloud, "Introduction to Interval
Analysis", 2009; Rump, "Error estimation of floating-point summation and dot product", 2012, and
Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", 2013
(n - 1 instead of Higham's gamma, for any n).
"""
