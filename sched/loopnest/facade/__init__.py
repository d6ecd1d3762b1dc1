"""The kernel that a user holds, and the language that schedules are written in.

In comes a scheduled `Fusion`; out goes a `Kernel`, or what runs on arrays. This is the lowest room
that sees both how a nest is made and what is made of it, so that lowering and backends need not
know each other. There are three files: `kernel_class`; `kernel_operator`, what other packages need
to have a kernel as an operator; and `language`, the public names but for those of the tools, which
stand on it.

The three types to know: `Kernel` (immutable: a `Lowered` and what was computed of it since),
`kir.lowered.Lowered` (the program and the math, as lowering hands them over), and
`backends.compiled_kernel.CompiledKernel` (what `compile` returns: a kernel and its launches).

The way of the data: `lower` runs `lowering.pipeline` and puts its result into a `Kernel`. Each
method of that loads what it asks when it is called: texts from `backends`, launches from
`launch.launch_plan`, certificates, exports, pictures. `compile` and `compile_many` hand a kernel to
`backends.targets`; `load` reads one that was exported.
"""
