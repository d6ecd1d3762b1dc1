"""From a schedule to a loop nest: one pass a module, in the order of `pipeline`.

In comes a scheduled `Fusion`; out goes a `kir.lowered.Lowered`: the program, a snapshot of the
math, and functions that make the stages' texts and the notes when somebody reads them. The fusion
is unchanged. No pass asks the proofs; only the hook `watchers` does, where a user wants it.

The three types to know: `passes.State` (what passes hand on: plan, nest, storage, tree, program, in
this order), `loops.loop_plan.LoopPlan` (the loops, and which axes of which tensors each of them
is), `loops.guarded_tree.Tree` (the nest between the passes: loops with computations in them, and
from "indexing" on `Guarded` statements with the terms of their tests beside them).

The way of the data, by passes:

1. `loops`. "groups" (`loop_plan`) takes the loop forest of `loopnest.schedule`, and `promotion`
   finds what each loop runs over, with `reshaped_axes` and `never_empty`. "nest" (`phase_nest`)
   makes the tree of loops and phases; `needed_components` says what need not be computed.
2. `memory`. "allocation" gives each tensor a buffer. Then "checks" (`plan_checks`) refuses what has
   no kernel, and "grid_reductions" (`reductions.grid_reduction`) says where blocks meet.
3. `indexing`. "indexing" (`indexer`) turns phases into statements: `axis_indices` and `accesses`
   find indices, `phase_terms` and `redundant_writes` the terms of tests,
   `reductions.block_exchange` writes out what threads of a block do together, and `indexed_tree`
   holds the result. "ownership" (`thread_ownership`) refuses a value that another thread has;
   "predicate_elimination" drops tests.
4. The tree of statements. `memory`: "circular_buffers", "aliases" (`aliasing`). `barriers`:
   "barriers" (`barrier_insertion`, which asks `thread_dependence`). `memory`: "addresses"
   (`flat_addresses`).
5. The program. `indexing`: "predicates" puts tests around statements. "inplace"
   (`barriers.inplace_order`) refuses an output that would overwrite what is still read. Then
   "tighten" (`loops.tightening`), "unswitch" (`indexing.unswitch`), "renumber" (`loops.renumber`).

Behind the last pass: `index_checks` says at which data a launch must look, and `schedule_notes`
compares what was asked for with what came out.
"""
