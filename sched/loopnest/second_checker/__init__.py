"""A second checker of kernels, small and on its own: a nest is run, thread by thread, and compared.

In come a program and the math that it is to compute, as a certificate has them; out comes an
`Opinion`: right at the sizes that were tried, wrong with what was seen, or unknown. It is there to
be compared with `loopnest.proofs`, which decides the same question for all sizes: a kernel that one
of them calls right and the other wrong shows a fault in one of the two. So it shares nothing with
the proofs, nor with lowering, schedules, and the machine on lanes that the proofs and the target
"interpret" stand on. What it has in common with them is what the question is made of: the
statements (`kir`), the scalar language, and the values of the math, which the oracle (`numerics`)
computes from definitions alone.

1. `crossing_sizes` chooses sizes by the constants of the nest: each loop over tiles runs over two
   of them and begins a third, and circular buffers turn.
2. `thread_code` writes a nest at given sizes as a Python generator, which is one thread.
3. `thread_machine` runs the threads of all blocks, in random orders between barriers, with memory
   of its own. What breaks a rule of `loopnest.kir` is noted: accesses out of bounds, elements that
   were never stored, accesses without an order (by the number of barriers that each thread has
   passed), barriers that not all threads reach.
4. `second_opinion` draws inputs, runs, and compares each output with what any right computation
   may give.

A result at sizes is no proof: a fault that shows at other sizes alone, or with other data, stays
unseen. Nor does it look at what a nest declares beside what it does (the coordinate of a store,
what a collective says that it computes).
"""

from loopnest.second_checker.second_opinion import Opinion, second_opinion

__all__ = ["Opinion", "second_opinion"]
