"""Kernels in files, and what looks at them: the command line, the pytest plugin, tuning, fuzzing.

In comes a function that declares math (``@ln.kernel``) and its schedules; out come verdicts on
them, tables, pages, parameters that are fast here. Everything stands on public names and on what
`numerics`, `proofs` and `costs` say; nothing below imports this room.

Types to know: `KernelDef` (a kernel of a file: math, reference, schedules), `Arguments` (of one
launch, made by `harness`), `Request` (what a command is asked about).

The way of the data: `kernel_def` registers kernels, `chosen_kernel` picks a schedule by sizes,
`tuning_space` declares what may be tuned. `harness` makes arguments and asks oracle and reference,
`trial_sizes` picks small sizes, `schedule_check` proves, runs and compares a schedule,
`explanation` says why it came out so, `kernel_report` shows all of it on a page. `tuning` times
candidates (`timed_candidate` is the process of one) and keeps rows (`tuned_rows`). `fuzzing` writes
random schedules and judges them. `work_farm` spreads work over processes. `cli_spec` reads what the
command line's arguments ask for, `cli` has the commands, `pytest_plugin` the fixture.
"""
