"""Targets: texts of a loop nest, compilers, drivers, calls; none reads lowering.

In comes a `kir.Program`; out go its text, and a kernel that runs on arrays. Three types to know:
`TargetRow` (what a target is; `targets` lists them), `Executable` (a program that was built), and
`CompiledKernel` (what `loopnest.compile` returns).

1. Text. `clike` has what C and CUDA share: `sink_allocations` and `narrow_counts` rewrite the nest,
   `statements` and `c_expressions` print it in a `dialect`. `cpu/c_printer` prints C: `fission`
   makes loops of threads, `border_loops` takes tests out of loops, `lane_vectors` finds what
   `vector_printer` prints with vector types, `data_checks` looks at data before a launch.
   `cuda/printing/cuda_printer` prints CUDA.
2. Machine code. `cpu/c_compiler` runs the system's compiler, with flags from `cpu/machine_probe`;
   `cuda/toolchain` runs NVRTC and reads what it made; `cuda/architecture_needs` says what a GPU
   must have.
3. Calls. `compiled_kernel` checks arguments, plans a launch (`loopnest.launch`) and runs it;
   `ready_call` is the short way of a call that is like an earlier one, by `cpu/host_call` one call
   of C. `cpu/c_target` and `cuda/cuda_target` are the executables, `cuda/driver` moves memory and
   launches. `interpret` is the target that runs a nest on the machine of `loopnest.lane_machine`.
"""
