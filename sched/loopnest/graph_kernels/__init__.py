"""Kernels of graphs: from ops to math, to groups, to a function that runs.

`op_math` says what each op is in the core, `group_math` makes a Fusion of a group, `kernel_groups`
and `kernel_fusion` find the groups, `code_gen` schedules, lowers and compiles them, `step_plan`
orders what a step does and lays out its memory, and `compiled_graph` is the function: `G.compile`.
`loopnest.graph` loads this package when `G.compile` or a pass that makes kernels is first used.
"""
