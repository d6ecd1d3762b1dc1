"""What every launch needs, whatever the target: plan, outputs, timing, the disk cache.

In come a program and the sizes of a call; out goes a `LaunchPlan`. Three types to know: `Planner`
and its `LaunchPlan` (variant, configuration, width of indices, shapes of outputs and workspace),
`Outputs` (the caller's arrays, checked, or new ones), and `Executable`, which runs a plan.

`index_width` bounds indices, `launch_plan` plans, `new_arrays` and `outputs` make the arrays,
`strided_arrays` take inputs as they lie, `target_interface` says what a target is, `timing`
measures, and `disk_cache` keeps what was compiled where no other user can change it.
"""
