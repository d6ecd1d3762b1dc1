"""Compiled kernels: arguments checked, outputs made, then one call.

What depends on shapes alone is planned once and kept, so that a call on small arrays costs little
more than the call of the function.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from loopnest import kir
from loopnest.backends.interpret import interpret_target
from loopnest.backends.ready_call import ReadyCall
from loopnest.base.errors import LaunchError
from loopnest.kir.lowered import Note
from loopnest.lane_machine.stepping import Steps
from loopnest.launch.launch_plan import LaunchPlan, Planner, identity
from loopnest.launch.new_arrays import array_maker
from loopnest.launch.outputs import Outputs
from loopnest.launch.strided_arrays import element_strides, span, spread
from loopnest.launch.target_interface import (
    Array,
    ArrayForm,
    DataOutside,
    Executable,
)
from loopnest.launch.timing import BenchResult, measure
from loopnest.scalar.arguments import (
    ArraySpec,
    bind,
    check_conditions,
    scalar_value,
    size_value,
)
from loopnest.scalar.data_ranges import allowed_elements, check_data, first_outside
from loopnest.scalar.expr import ScalarParam, Symbol

_log = logging.getLogger("loopnest")

MAX_PLANS = 512
"""Plans of other shapes are kept up to this number; then all are made anew."""


class Launchable(Protocol):
    """What a launch needs of a kernel."""

    @property
    def program(self) -> kir.Program: ...


K = TypeVar("K", bound=Launchable)

Results: TypeAlias = "Any | tuple[Any, ...]"
"""An array, or one an output: NumPy's, or on "cuda" also the GPU's."""

Build: TypeAlias = Callable[[Any], Executable]
"""Makes a kernel executable: the scalar variant, when a launch needs it."""


@dataclass(frozen=True, slots=True)
class _Variant:
    """A variant that was built: its machine code, and the types of its workspace."""

    executable: Executable
    spaces: list[tuple[np.dtype[Any], bool]]


class CompiledKernel(Generic[K]):
    """A kernel that runs on arrays: ``fn(*arrays, out=None, stream=None, **scalars)``.

    Made by `loopnest.compile`. `target` names where it runs, `kernel` is what was compiled.
    """

    def __init__(
        self,
        kernel: K,
        target: str,
        executable: Executable,
        build: Build | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.options = dict(options)
        self._executable = executable
        program = kernel.program
        self._program = program
        self._subject = f"{program.name}(...)"
        inputs = [p for p in program.params if p.kind == "input"]
        self._inputs = [ArraySpec(p.name, p.dtype, p.shape, p.strides) for p in inputs]
        self._strided = [n for n, p in enumerate(inputs) if p.strides is not None]
        scalars = [p for p in program.params if p.kind == "scalar"]
        self._scalars = [ScalarParam(p.name, p.dtype) for p in scalars]
        self._symbols = [Symbol(p.name) for p in program.params if p.kind == "size"]
        self._outputs = Outputs(program, self._subject)
        self._build = build
        self._variants = {program: _Variant(executable, _spaces(program))}
        has_scalar = build is not None and getattr(kernel, "has_scalar", False)
        self._planner = Planner(program, self._scalar_program if has_scalar else None)
        self._told: set[str] = set()
        self._plans: dict[object, LaunchPlan] = {}
        self._plans_at: dict[tuple[int | None, ...], LaunchPlan] = {}
        """What `launch_at` found, by the sizes."""
        self._ready_calls: dict[object, ReadyCall | None] = {}
        self._ready: ReadyCall | None = None
        """The call that the last one was like."""
        self._warned = False

    def __repr__(self) -> str:
        return f"<CompiledKernel {self._program.name} on '{self.target}'>"

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """What was asked for and has no effect: the notes of the kernel, then those of options.

        Whether `fast_math` has one shows when the kernel is compiled without it, at the first look.
        """
        own: tuple[Note, ...] = getattr(self.kernel, "notes", ())
        idle = self._executable.idle_options()
        name = self._program.name
        return (*own, *[Note(name, i.asked, i.became, i.why, i.remedy, None) for i in idle])

    def __call__(
        self, /, *arrays: Any, out: Any = None, stream: object = None, **scalars: Any
    ) -> Results:
        """Run the kernel once.

        Args:
            *arrays: the inputs, in order.
            out: where the outputs go: an array, or one a output in a tuple; None allocates (in
                the tuple, too). The entry of an output in place is None or its input.
            stream: a CUDA stream; None on other targets.
            **scalars: the run-time scalars, and the sizes that are the extent of no input.

        Returns:
            The output, or a tuple of them.

        Raises:
            LaunchError: an argument does not fit; nothing ran.
        """
        if stream is not None:
            raise self._error("a stream was given", f"target '{self.target}' has none")
        ready = self._ready
        if ready is not None:
            results = ready(arrays, out, scalars)
            if results is not None:
                return results
        return self._call(arrays, out, scalars)

    def _call(self, arrays: tuple[Any, ...], out: Any, scalars: Mapping[str, Any]) -> Results:
        """Run the kernel once on arrays of the host, as an earlier call or the long way."""
        key = self._key(arrays, scalars)
        ready = self._ready_calls.get(key)
        if ready is not None and ready is not self._ready:
            self._ready = ready
            results = ready(arrays, out, scalars)
            if results is not None:
                return results
        plan, values = self._bound(arrays, scalars, key)
        inputs = list(map(self._contiguous, range(len(arrays)), arrays))
        self._check_data(arrays if self._strided else inputs, plan)
        results = self._outputs.take(out, inputs, plan)
        self._run(inputs, results, values, plan)
        self._outputs.give_back(results, arrays)
        self._make_ready(key, plan, arrays, scalars)
        return results[0] if len(results) == 1 else tuple(results)

    def _make_ready(
        self, key: object, plan: LaunchPlan, arrays: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        """Prepare the calls that are like one that has run."""
        if key is None or not all(type(array) is np.ndarray for array in arrays):
            return
        if key not in self._ready_calls:
            if len(self._ready_calls) >= MAX_PLANS:
                self._ready_calls.clear()
            self._ready_calls[key] = self._ready = self._ready_call(plan, arrays, keywords)
        elif (ready := self._ready_calls[key]) is not None:
            ready.learn(arrays)

    def _ready_call(
        self, plan: LaunchPlan, arrays: Sequence[Array], keywords: Mapping[str, Any]
    ) -> ReadyCall | None:
        variant, outputs = self._variant(plan.program), self._outputs
        inputs = [
            ArrayForm(a.dtype, a.shape, None if s.strides is None else a.strides,
                      s.name in outputs.overwritten)
            for s, a in zip(self._inputs, arrays, strict=True)
        ]  # fmt: skip
        made = [(plan.outputs[n], outputs.dtypes[n], False) for n in outputs.own_places]
        spaces = zip(plan.workspace, variant.spaces, strict=True)
        made += [((size,), dtype, counts) for size, (dtype, counts) in spaces]
        forms = [ArrayForm(dtype, shape, is_written=True) for shape, dtype, _ in made]
        prepared = variant.executable.prepared(plan, inputs, forms)
        if prepared is None:
            return None
        makers = [array_maker(*own) for own in made]
        sizes = {n: v for n, v in keywords.items() if n in plan.sizes}
        return ReadyCall(prepared, outputs, makers, self._scalars, sizes, self._subject)

    def bench(self, /, *arrays: Any, **scalars: Any) -> BenchResult:
        """Measure calls on `arrays`, writing the same outputs again and again.

        Inputs that an output overwrites are copied first; the caller's stay as they are.

        Raises:
            LaunchError: as a call.
        """
        inputs, results, values, plan = self._apart(arrays, scalars)
        moved = sum([a.nbytes for a in (*inputs, *results)])
        return measure(lambda: self._run(inputs, results, values, plan), moved)

    def step(
        self,
        /,
        *arrays: Any,
        block: int | tuple[int, ...] | None = None,
        thread: int | tuple[int, ...] | None = None,
        **scalars: Any,
    ) -> Steps:
        """Run the kernel one statement of one thread at a time, each when it is asked for.

        All threads go through the nest in step: first each executes a statement, then each the
        next one. A step tells the line of the nest, the loops around it, what was read and what
        that made. Loops and allocations are no steps of their own. The caller's arrays stay as
        they are; ``steps.outputs`` has what was stored so far.

        Args:
            *arrays: the inputs, in order.
            block: the block to look at, its place along x (or x, y and z) in the grid; None for
                all. The others run, and are not shown.
            thread: the thread to look at, its place in its block.
            **scalars: the run-time scalars, and the sizes that are the extent of no input.

        Returns:
            An iterator of `ThreadStep`, whose text is a few lines.

        Raises:
            LaunchError: an argument does not fit; there is no such block or thread; the kernel was
                not compiled for "interpret".
            KernelFault: at the step that breaks a rule.

        >>> import numpy as np
        >>> import loopnest as ln
        >>> with ln.Fusion("row_sum") as f:
        ...     x = f.input("x", ("N", "D"), ln.float32)
        ...     y = f.output(ln.sum(x, axis=1), "y")
        >>> steps = ln.compile(f, target="interpret").step(np.array([[1, 2]], np.float32))
        >>> print(next(steps))
        line 4: y[i0] = 0.0
            block (0, 0, 0), thread (0, 0, 0), i0=0
            -> y[0] = 0.0
        >>> print(next(steps))
        line 6: y[i0] = y[i0] + x[i0, i1]
            block (0, 0, 0), thread (0, 0, 0), i0=0, i1=0
            y[0] is 0.0, x[0, 0] is 1.0 -> y[0] = 1.0
        >>> steps.outputs
        {'y': array([1.], dtype=float32)}

        Source: triton-viz, and the debuggers of NVIDIA that step warps of a GPU.
        """
        if not isinstance(self._executable, interpret_target.Interpreted):
            hint = 'use ln.compile(f, target="interpret")'
            raise self._error(f"it was compiled for '{self.target}', which has no steps", hint)
        for name in ("block", "thread"):
            if name in [*self.sizes, *[scalar.name for scalar in self._scalars]]:
                reason = f"its argument '{name}' hides the keyword {name}= of step"
                raise self._error(reason, "give it another name")
        inputs, results, values, plan = self._apart(arrays, scalars)
        found = self._variant(plan.program).executable
        assert isinstance(found, interpret_target.Interpreted)
        given = self._with_workspace(inputs, results, plan)
        if plan.is_empty:
            self._fill_empty(results)
        return found.steps(given, values, plan, (block, thread), self._program.name)

    def _apart(
        self, arrays: Sequence[Any], scalars: Mapping[str, Any]
    ) -> tuple[list[Array], list[Array], list[bool | int | float], LaunchPlan]:
        """Return inputs, outputs, scalars and plan of runs that leave the caller's arrays alone."""
        plan, values = self._bound(arrays, scalars, self._key(arrays, scalars))
        inputs = [self._contiguous(i, a) for i, a in enumerate(arrays)]
        self._check_data(arrays if self._strided else inputs, plan)
        inputs = [
            a.copy() if spec.name in self._outputs.overwritten else a
            for spec, a in zip(self._inputs, inputs, strict=True)
        ]
        return inputs, self._outputs.take(None, inputs, plan), values, plan

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the size symbols, in the order of the parameters."""
        return tuple([symbol.name for symbol in self._symbols])

    def sizes_for(
        self, program: kir.Program, arrays: Sequence[Any], keywords: Mapping[str, Any]
    ) -> dict[str, int]:
        """Return the sizes that arguments give to a program with the parameters of this kernel.

        Raises:
            LaunchError: an argument does not fit the parameters and conditions of `program`.
        """
        inputs = [p for p in program.params if p.kind == "input"]
        specs = [ArraySpec(p.name, p.dtype, p.shape, p.strides) for p in inputs]
        symbols = [Symbol(p.name) for p in program.params if p.kind == "size"]
        return bind(
            specs, self._scalars, symbols, program.conditions, arrays, keywords, self._subject,
            self._strides_of,
        ).sizes  # fmt: skip

    def launch_at(self, sizes: Mapping[str, int]) -> tuple[LaunchPlan, Executable]:
        """Return the launch of a kernel without scalars at sizes, and its machine code.

        Raises:
            LaunchError: it has scalars that a call must tell, or sizes that are not among these; an
                assumption does not hold.
        """
        key = tuple([sizes.get(symbol.name) for symbol in self._symbols])
        plan = self._plans_at.get(key)
        if plan is None:
            untold = [name for name in self.sizes if name not in sizes]
            untold += [scalar.name for scalar in self._scalars]
            if untold:
                raise self._error(f"a call must tell {', '.join(untold)}", "call it with arrays")
            own = {name: sizes[name] for name in self.sizes}
            check_conditions(self._program.conditions, own, self._subject)
            plan = self._planner.plan(own, self._subject)
            if len(self._plans_at) >= MAX_PLANS:
                self._plans_at.clear()
            self._plans_at[key] = plan
        return plan, self._variant(plan.program).executable

    # Arguments

    def _error(self, reason: str, hint: str = "") -> LaunchError:
        return LaunchError(self._subject, reason, hint)

    def _bound(
        self, arrays: Sequence[Any], keywords: Mapping[str, Any], key: object
    ) -> tuple[LaunchPlan, list[bool | int | float]]:
        """Return the plan of a launch and the values of the scalars, all arguments checked.

        `key` is that of these arguments (`_key`).
        """
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(key, arrays, keywords)
        subject = self._subject
        return plan, [scalar_value(s, keywords[s.name], subject) for s in self._scalars]

    def _key(self, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> object:
        """Return what a plan depends on, and what shows that its arguments were checked.

        None of arguments that are none.
        """
        try:
            key: list[object] = [(a.shape, a.dtype) for a in arrays]
            key += [arrays[n].strides for n in self._strided]
            sizes = [keywords.get(s.name) for s in self._symbols] if keywords else []
            found = (*key, *keywords, *sizes, *map(type, sizes))
            hash(found)
        except (AttributeError, TypeError, IndexError):
            return None
        return found

    def _plan(self, key: object, arrays: Sequence[Any], keywords: Mapping[str, Any]) -> LaunchPlan:
        bound = bind(
            self._inputs, self._scalars, self._symbols, self._program.conditions, arrays, keywords,
            self._subject, self._strides_of,
        )  # fmt: skip
        plan = self._planner.plan(bound.sizes, self._subject)
        if plan.program is not self._program:
            self._tell_scalar(self._planner.unmet(bound.sizes) or "")
        if key is not None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan

    def _check_data(
        self, arrays: Sequence[Any], plan: LaunchPlan, fetched: Callable[[Any], Array] = np.asarray
    ) -> None:
        """Check what is declared of the elements of inputs; `fetched` gives those on the host.

        Raises:
            LaunchError: an element lies outside of its range.
        """
        ranges = self._program.ranges
        if ranges and not (self._executable.checks_data and not plan.is_empty):
            named = {s.name: a for s, a in zip(self._inputs, arrays, strict=True)}
            used = {r.name: fetched(named[r.name]) for r in ranges}
            check_data(ranges, used, plan.sizes, self._subject)

    def _strides_of(self, array: Any) -> tuple[int, ...]:
        """Return the strides of an array in elements."""
        return element_strides(array, self._subject)

    def _contiguous(self, position: int, array: Any) -> Array:
        if self._inputs[position].strides is not None:
            return span(np.asarray(array))
        if type(array) is np.ndarray and array.flags.c_contiguous and array.flags.aligned:
            return array
        name = self._inputs[position].name
        plain = np.asarray(array)
        if plain.flags.c_contiguous and plain.flags.aligned:
            if not isinstance(array, np.ndarray):
                self._outputs.refuse_copy(name, "no NumPy array")
            return plain
        self._outputs.refuse_copy(name, "not C-contiguous")
        self._warn_of_copy(name)
        return plain.copy(order="C")

    def _warn_of_copy(self, name: str) -> None:
        """Warn once of an input that is copied: what is called here is called by a call."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._subject}: {name} is not C-contiguous, so it is copied; this is said once "
                "for this kernel",
                RuntimeWarning,
                stacklevel=5,
            )

    # Variants

    def _scalar(self) -> Launchable:
        found: Launchable = self.kernel.scalar  # type: ignore[attr-defined]
        return found

    def _scalar_program(self) -> kir.Program:
        return self._scalar().program

    def _tell_scalar(self, reason: str) -> None:
        """Say once for each reason that the scalar variant runs."""
        if reason not in self._told:
            self._told.add(reason)
            _log.info("%s: the scalar variant runs: %s", self._subject, reason)

    def build_variants(self) -> None:
        """Build the scalar variant now, where there is one: no launch needs a compiler then."""
        if self._planner.scalar is not None:
            self._variant(self._planner.scalar.program)

    def _variant(self, program: kir.Program) -> _Variant:
        """Return a variant, built now if this is its first launch."""
        found = self._variants.get(program)
        if found is None:
            assert self._build is not None
            built = self._build(self._scalar())
            found = self._variants[program] = _Variant(built, _spaces(program))
        return found

    # The launch

    def _run(
        self,
        inputs: Sequence[Array],
        results: Sequence[Array],
        scalars: Sequence[Any],
        plan: LaunchPlan,
    ) -> None:
        arrays = self._with_workspace(inputs, results, plan)
        if plan.is_empty:
            self._run_empty(arrays, results, scalars, plan)
            return
        try:
            self._variant(plan.program).executable.run(arrays, scalars, plan)
        except DataOutside as found:
            raise self._outside(found.number, inputs, scalars, plan) from None

    def _with_workspace(
        self, inputs: Sequence[Array], results: Sequence[Array], plan: LaunchPlan
    ) -> list[Array]:
        """Return an array a parameter: inputs, outputs, and workspace that is made now."""
        spaces = [
            self._outputs.empty((size,), dtype, counts)
            for size, (dtype, counts) in zip(
                plan.workspace, self._variant(plan.program).spaces, strict=True
            )
        ]
        return [*inputs, *self._outputs.own(results), *spaces]

    def _outside(
        self, number: int, inputs: Sequence[Array], scalars: Sequence[Any], plan: LaunchPlan
    ) -> LaunchError:
        """Return the error of data outside of their range, by the number of the check."""
        named = {
            spec.name: self._as_passed(spec, array, plan.sizes)
            for spec, array in zip(self._inputs, inputs, strict=True)
        }
        ranges = self._program.ranges
        if number < len(ranges):
            check_data(ranges[number : number + 1], named, plan.sizes, self._subject)
        check = self._program.index_checks[number - len(ranges)]
        values = named.get(check.source)
        if values is None:
            values = interpret_target.computed_indices(check, named, scalars, plan)
        extent = size_value(check.extent, plan.sizes)
        if check.distinct:
            none = ("no memory is left to look at what unique=True declares", "")
            return self._error(*interpret_target.repeated(check, values, extent) or none)
        place, value = first_outside(values, 0, extent) or ("", -1)
        hint = allowed_elements(0, extent)
        if check.program is not None:
            hint = f"pass what keeps {check.source} in 0..{extent - 1}, or clamp it"
        return self._error(
            f"{check.source}{place} is {value}, where {check.reader} reads axis {check.axis} of "
            f"{check.table}, which has {extent} elements",
            hint,
        )

    def _as_passed(self, spec: ArraySpec, array: Array, sizes: Mapping[str, int]) -> Array:
        """Return an input in its shape; a launch has the memory that its strides span."""
        if spec.strides is None:
            return array
        shape = [size_value(extent, sizes) for extent in spec.shape]
        strides = [size_value(step, sizes) for step in spec.strides]
        return spread(array, shape, strides)

    def _run_empty(
        self,
        arrays: Sequence[Array],
        results: Sequence[Array],
        scalars: Sequence[Any],
        plan: LaunchPlan,
    ) -> None:
        """Fill the outputs of a launch of no thread; statements outside its loops run once."""
        self._fill_empty(results)
        if any(result.size for result in results):
            interpret_target.Interpreted(plan.program).run(arrays, scalars, plan)

    def _fill_empty(self, results: Sequence[Array]) -> None:
        """Fill outputs with what a sum over no element gives."""
        for output, result in zip(self._program.outputs, results, strict=True):
            if not output.inplace:
                result.fill(identity(self._program, output.buffer))


def _spaces(program: kir.Program) -> list[tuple[np.dtype[Any], bool]]:
    """Return the type of each workspace parameter, and whether it counts from 0."""
    return [
        (p.dtype.numpy, p.buffer is not None and p.buffer.kind == "counter")
        for p in program.params
        if p.kind == "workspace"
    ]
