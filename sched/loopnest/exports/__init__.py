"""Kernels that leave Python: sources, libraries and launchers with a manifest, and back again.

In comes a kernel; out goes a folder, and from the folder again a kernel that runs. Three types to
know: `EntryPoint` (the functions in C by which a kernel is called), `CExport` and `CudaExport` (its
forms for both targets), and `Export` (a folder that was read, its digests checked).

`size_checks` writes in C what a launch asks of its sizes, `entry_point` the functions around it,
`ffi_entry` the one that apache-tvm-ffi calls, and `manifest` writes the folder, reads it and loads
the kernel.
"""
