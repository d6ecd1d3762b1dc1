"""The machine: it executes a loop nest at given sizes, on lanes, every access under watch.

What comes in is a launch (`kir.Program`), sizes, arrays and scalars; what goes out are arrays, or a
fault that names statement, element and thread. "interpret" runs kernels on it; the proofs run the
bodies of collectives on it, whose values are whose contributions a thread has.

The types to know: a `Frame` is the lanes that execute a body together, with what is known of them;
`WatchedStorage` is the memory of a buffer, with a bit an element that says whether it was stored; a
`Machine` goes through the statements.

The way of the data: `concrete_program` makes numbers of extents and layouts, and frames of a
launch; `loop_dependence` says which loops may run their iterations side by side; `abstract_machine`
executes statements on a `frame`, `evaluator` their expressions by `native_math`, on
`watched_memory` and with `undefined_values`; `race_detector` is told of each access, `fault_report`
of each rule that is broken; `random_order` is a machine that lets threads run apart.
"""
