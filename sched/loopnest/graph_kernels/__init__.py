"""Kernels of graphs: from ops to math, to groups, to a function that runs.

In comes a `Graph`; out goes a function of arrays, `G.compile`. `loopnest.graph` loads this package
when `G.compile` or a pass that makes kernels is first used, and `loopnest.torch` runs its plans on
tensors of torch.

The three types to know: `kernel_groups.KernelGroups` (which ops share a kernel),
`plan_records.StepPlan` (one evaluation of the graph as data: steps in order, and where each value
lies), `compiled_graph.CompiledGraph` (the function).

The way of the data:

1. `op_math` says what each op is in the math, `free_ops` which ops cost nothing and stand in every
   group that reads them, and `group_math` makes a `Fusion` of a group.
2. `kernel_groups` finds the groups: ops join as long as a scheduler accepts their fusion; across
   reshapes `axis_parts` finds the axes that they have in common. `group_reasons` says why two ops
   share a kernel or not. `kernel_fusion` writes the graph anew, each group a call of a function.
3. `code_gen` schedules, lowers and compiles the function of each call. `kernel_calls` does steps 2
   and 3 for a whole graph, and takes a group apart that has no kernel; `kept_groups` keeps the
   result on disk.
4. `step_plan` makes the plan (`plan_records`): the order of steps and the memory of values.
   `plan_proof` shows from the plan alone that it computes the graph.
5. `runs_by_size` carries the plan out: numbers for each set of sizes, launches, memory. Arrays are
   those of `step_arrays`; variables, which calls overwrite, lie in `variable_memory`.
6. `compiled_graph` is the function that users hold. Before it compiles, `library_times` measures
   whether a library computes a product faster; afterwards `graph_launch` lists its launches.
"""
