"""What a correct kernel may compute: for each element an interval, by running error analysis.

The oracle gives the value in float64. A kernel computes the same math in its own types: each
operation rounds, sums fold in an order that the schedule chooses, products may be fused with sums,
elements may be computed twice. An `Interval` holds, beside the value, an interval that contains
the result of every such computation, whatever the schedule; results are judged by it alone. It is
carried through the definitions operation by operation: from the operands' intervals the range of
the operation (`operation_ranges`), then what its own rounding adds (`target_accuracy`). So it is no
first-order estimate: a function is taken at the ends of its operand's interval, a comparison that
may go either way gives both, a divisor that may be zero gives anything.

Bounds are those of the worst case. A sum of n terms, in any order, errs by at most (n - 1) u times
the sum of the magnitudes, u being the unit roundoff. One that instructions of the table compute
errs by what their rows say (`error_bounds`).

Sources: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, chapters 2 to 4
(running error analysis: section 3.3); Moore, Kearfott and Cloud, "Introduction to Interval
Analysis", 2009; Rump, "Error estimation of floating-point summation and dot product", 2012, and
Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic", 2013
(n - 1 instead of Higham's gamma, for any n).
"""
