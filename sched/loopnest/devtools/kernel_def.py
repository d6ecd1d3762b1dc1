"""Kernels in files: the math of a kernel, its reference and its named schedules, in one object.

``@ln.kernel(...)`` makes a `KernelDef` of a function that declares the math; its `schedule` method
registers schedules by name. Kernels are remembered by the module that defines them, so that the
command line can list what a file holds.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

from loopnest.base.errors import DefinitionError, LaunchError, ScheduleError
from loopnest.devtools.chosen_kernel import (
    ChosenKernel,
    ChosenSchedule,
    SizeCondition,
    check_cover,
    check_reachable,
    entry_conditions,
    without_schedule,
)
from loopnest.devtools.tuning_space import Choice, Space, taken_choices
from loopnest.scalar.target_names import among, target_name
from loopnest.tensor.fusion import Fusion

if TYPE_CHECKING:
    from loopnest.backends.compiled_kernel import CompiledKernel
    from loopnest.facade.kernel_class import Kernel
    from loopnest.scalar.expr import Expr

Function: TypeAlias = Callable[..., Any]
Range: TypeAlias = "tuple[float, float]"

_REGISTRY: dict[str, dict[str, KernelDef]] = {}


def kernels_of(module: str) -> tuple[KernelDef, ...]:
    """Return the kernels that the module of this name defined, in order of definition.

    Those that it chose schedules for by size come last, under the names of their variables.
    """
    own = tuple(_REGISTRY.get(module, {}).values())
    variables = vars(sys.modules[module]) if module in sys.modules else {}
    return (*own, *[
        value.definition.called(name)
        for name, value in variables.items()
        if isinstance(value, ChosenKernel) and value.__module__ == module
        and isinstance(value.definition, KernelDef)
    ])  # fmt: skip


def forget(module: str) -> None:
    """Drop the kernels of a module, whose file is about to be loaded again."""
    _REGISTRY.pop(module, None)


def kernel(
    *,
    sizes: Mapping[str, int] | None = None,
    reference: Function | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> Callable[[Function], KernelDef]:
    """Make a kernel of a function that declares its math in the fusion that it is given.

    ::

        @ln.kernel(sizes={"N": 4096, "D": 1024}, reference=softmax_numpy)
        def softmax(f, dtype=ln.float32):
            x = f.input("x", ("N", "D"), dtype)
            ...

    Args:
        sizes: of the size symbols, for runs from the command line.
        reference: the same math by NumPy; it takes the arrays in the order of the inputs (floats
            as float64), the run-time scalars by name, and those parameters of the math that it
            names. It returns an array or a tuple of them.
        ranges: input or scalar -> (least, greatest): where made values are drawn from, evenly.
            Others are normal (floats; scalars in [0.25, 0.75)), small (integers) or even (bool).

    Raises:
        DefinitionError: an argument of the wrong kind.

    >>> import loopnest as ln
    >>> @ln.kernel(sizes={"N": 100})
    ... def double(f):
    ...     f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
    >>> @double.schedule("gpu")
    ... def gpu(f, threads=128):
    ...     f["y"].split(0, threads)
    >>> double
    <kernel double: schedules gpu>

    Source: Exo's procedures and Triton's ``@triton.jit``: a kernel is a decorated function.
    """
    call = "kernel(...)"
    chosen = _named(call, "sizes", sizes)
    for name, size in chosen.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise DefinitionError(call, f"the size {name} = {size!r}", "sizes are ints >= 0")
    if reference is not None and not callable(reference):
        raise DefinitionError(call, f"reference={reference!r} is no function")
    places = _named(call, "ranges", ranges)
    for name, place in places.items():
        _check_range(call, name, place)

    def decorate(math: Function) -> KernelDef:
        if not callable(math):
            raise DefinitionError(
                call, f"{math!r} is no function", "write @ln.kernel(...) above one"
            )
        found = KernelDef(math, chosen, reference, places)
        _REGISTRY.setdefault(math.__module__, {})[found.name] = found
        return found

    return decorate


def _named(call: str, what: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `given`, which gives values to names, as a dict of its own."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise DefinitionError(call, f"{what}={given!r} is no mapping of names", "use a dict")
    return dict(given)


def _check_range(call: str, name: str, place: object) -> None:
    """Refuse what is no (least, greatest)."""
    pair = tuple(place) if isinstance(place, Sequence) else ()
    numbers = all(isinstance(bound, Real) for bound in pair)
    if len(pair) != 2 or not numbers or not -inf < pair[0] <= pair[1] < inf:
        raise DefinitionError(
            call, f"the range {name} = {place!r}", "use two numbers, (least, greatest)"
        )


class KernelDef:
    """A kernel: its math, its reference, its schedules. Made by `loopnest.kernel`.

    Where a schedule is left out, the first that was registered is taken; a kernel without any is
    taken as its math leaves it (which may schedule, too).
    """

    def __init__(
        self,
        math: Function,
        sizes: dict[str, int],
        reference: Function | None,
        ranges: dict[str, Range],
    ) -> None:
        self.math = math
        self.name: str = math.__name__
        self.sizes = sizes
        self.reference = reference
        self.ranges = ranges
        self.schedules: dict[str, Function] = {}
        self.costs: dict[str, dict[str, Any]] = {}
        """The limits of what each schedule costs, as it was registered."""
        self.spaces: dict[str, Space] = {}
        """What each schedule may be tuned by."""
        self.__doc__ = math.__doc__
        self.__module__ = math.__module__
        self._parameters = {"": _parameters(math, f"kernel {self.name}")}
        self._compiled: dict[object, CompiledKernel[Kernel]] = {}
        self._tuned: dict[tuple[str, str], dict[str, Any]] = {}
        self.chosen: ChosenKernel | None = None
        """What chooses among the schedules, where these are the entries of a choice."""

    def __repr__(self) -> str:
        return f"<kernel {self.name}: schedules {', '.join(self.schedules) or 'none'}>"

    def schedule(
        self,
        name: str,
        *,
        cost: Mapping[str, object] | None = None,
        where: Sequence[str] = (),
    ) -> Callable[[Function], Function]:
        """Register a function of the fusion as the schedule `name`; the first is the default.

        Its keyword parameters, all with defaults, can be set wherever the schedule is named.

        Args:
            name: a word.
            cost: limits of what it costs at the kernel's sizes, as those of `assert_cost`:
                ``{"gmem_ratio": "<=1.05", "bank_conflicts": 0}``. ``loopnest check`` and the
                fixture `schedule_regression` hold the schedule to them.
            where: what candidates of a tuning must meet: comparisons over parameters and sizes.

        Raises:
            ScheduleError: the name is taken or empty, a parameter has no default, or the limits
                are no mapping of names.
        """
        call = f"{self.name}.schedule({name!r})"
        if not isinstance(name, str) or not name or set(name) & set("@:/ "):
            raise ScheduleError(call, "a schedule's name is a word")
        if name in self.schedules:
            raise ScheduleError(call, "this kernel has a schedule of that name already")
        if cost is not None and (
            not isinstance(cost, Mapping) or not all(isinstance(key, str) for key in cost)
        ):
            raise ScheduleError(
                call, f"cost={cost!r} is no mapping of names", 'use {"bank_conflicts": 0}'
            )

        def decorate(function: Function) -> Function:
            self.spaces[name] = taken_choices(function, where)
            self._parameters[name] = _parameters(function, call)
            self.schedules[name] = function
            self.costs[name] = dict(cost or {})
            return function

        return decorate

    # What can be set

    def resolve(self, schedule: str | None = None) -> str:
        """Return the name of a schedule: the default where `schedule` is None, "" if there is none.

        A schedule "cpu" is found by the name of its target too, "c", and a "gpu" by "cuda"; the
        other way round likewise.

        Raises:
            ScheduleError: there is no such schedule.
        """
        if schedule is None:
            return next(iter(self.schedules), "")
        schedule = among(schedule, self.schedules) if isinstance(schedule, str) else schedule
        if schedule not in self.schedules:
            known = ", ".join(self.schedules)
            raise ScheduleError(
                f"{self.name}@{schedule}",
                f"kernel {self.name} has no schedule '{schedule}'",
                f"its schedules are {known}" if known else "it has none",
            )
        return schedule

    def suited(self, target: str, names: Sequence[str] = ()) -> str:
        """Return the schedule to run on `target` where none is named.

        That is "gpu" or "cpu", as the target's device is, where there is one of that name, else the
        default; of those that have the parameters `names`, if any has. "auto" stands for the target
        that it tries first on this machine.
        """
        from loopnest.backends.targets import TARGETS, preferred

        row = TARGETS.get(preferred() if target == "auto" else target_name(target))
        own = among("cpu" if row is None else row.device, self.schedules)
        order = sorted(self.schedules, key=lambda name: name != own)
        fitting = [s for s in order if all(n in self.parameters(s) for n in names)]
        return next(iter((*fitting, *order)), "")

    def parameters(self, schedule: str | None = None) -> dict[str, object]:
        """Return what can be set, with defaults: parameters of the math, then of the schedule."""
        name = self.resolve(schedule) if schedule != "" else ""
        return {**self._parameters[""], **self._parameters[name]}

    # What can be made

    def fusion(self, schedule: str | None = None, **params: Any) -> Fusion:
        """Return a new fusion: the math, scheduled.

        Args:
            schedule: by name; the default where it is None.
            **params: keyword parameters of the math, of the schedule, or of both.

        Raises:
            ScheduleError: there is no such schedule or parameter.
            DefinitionError: the math declares no output.
        """
        name = self.resolve(schedule)
        self._check_parameters(name, params)
        fusion = self.unscheduled(params)
        if name:
            with fusion:
                self.schedules[name](fusion, **self._chosen(name, params))
        return fusion

    def lower(self, schedule: str | None = None, **params: Any) -> Kernel:
        """Return the lowered kernel; raises as `fusion` and `loopnest.lower` do."""
        from loopnest.facade.kernel_class import lower

        return lower(self.fusion(schedule, **params))

    # Tunings

    def digest(self) -> str:
        """Return the digest of the math, by which a tuning finds its kernel again."""
        from loopnest.tensor.fusion import math_text

        return hashlib.sha256(math_text(self.unscheduled({})).encode()).hexdigest()

    def tuned(
        self, schedule: str, target: str, sizes: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Return the parameters that a tuning on this machine found; none where there was none.

        Args:
            schedule: its name.
            target: "c", "cuda" or "auto".
            sizes: those that the tuned ones should be near to; by default the kernel's.
        """
        space = self.spaces.get(schedule)
        if space is None or not space.choices:
            return {}
        from loopnest.backends.targets import preferred
        from loopnest.devtools.tuned_rows import nearest

        where = preferred() if target == "auto" else target_name(target)
        row = nearest(self.name, schedule, where, self.digest(), sizes or self.sizes)
        values = {} if row is None else row.values()
        known = {n: [repr(v) for v in c.values] for n, c in space.choices.items()}
        fits = values.keys() == known.keys() and all(repr(values[n]) in known[n] for n in values)
        return values if fits else {}

    def compiled(self, target: str, options: Mapping[str, Any]) -> CompiledKernel[Kernel]:
        """Return the schedule that suits `target`, as it was tuned: `loopnest.compile` calls it."""
        from loopnest.facade.kernel_class import compile

        name = self.suited(target)
        return compile(self.fusion(name or None, **self.tuned(name, target)), target, **options)

    def choose(
        self, entries: Mapping[str | bool, str | tuple[str, Mapping[str, Any]]], **params: Any
    ) -> ChosenKernel:
        """Return one kernel of several schedules, chosen by the sizes of each launch.

        A launch takes the first entry whose condition holds of its sizes. Each schedule assumes its
        condition, and the opposite of those before it, so that its nest has no test of these.

        ::

            softmax.choose({"D <= 1024": "gpu_warp", "D <= 8192": "gpu", True: "gpu_shared"})

        Args:
            entries: condition -> schedule, or (schedule, its parameters). A condition is
                comparisons as `Fusion.assume` takes them, joined by "and", or True.
            **params: parameters of the math, and of all schedules that have them.

        Returns:
            A kernel to call, or to compile by `loopnest.compile`. It has `kernels`, and `str`
            shows all of them.

        Raises:
            DefinitionError: sizes that the math allows and no entry takes; a condition that no
                sizes reach, or that cannot be read.
            ScheduleError: there is no such schedule or parameter.

        >>> import loopnest as ln
        >>> @ln.kernel()
        ... def double(f):
        ...     f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
        >>> @double.schedule("by_four")
        ... def by_four(f):
        ...     f["y"].split(0, 4)
        >>> @double.schedule("plain")
        ... def plain(f):
        ...     pass
        >>> print(double.choose({"N % 4 == 0": "by_four", True: "plain"}))
        # N % 4 == 0: schedule by_four
        # loopnest nest 1
        kernel double(x: float32[N]) -> (y: float32[N])
        for i0 in N // 4:
          for i1 in 4:
            y[i0 * 4 + i1] = x[i0 * 4 + i1] * 2.0
        <BLANKLINE>
        # True: schedule plain
        # loopnest nest 1
        kernel double(x: float32[N]) -> (y: float32[N])
        for i0 in N:
          y[i0] = x[i0] * 2.0

        Source: Halide's ``specialize``.
        """
        call = f"{self.name}.choose(...)"
        if not isinstance(entries, Mapping) or not entries:
            hint = 'pass a dict, such as {"D <= 1024": "gpu_warp", True: "gpu"}'
            raise DefinitionError(call, f"{entries!r} has no entry", hint)
        asked = [self._asked(call, value, params) for value in entries.values()]
        for name in params:
            if not any(name in self.parameters(schedule) for schedule, _ in asked):
                self._check_parameters(asked[0][0], {name: None})
        plain = without_schedule(self.unscheduled(params))
        conditions = [SizeCondition.read(key, plain, call) for key in entries]
        check_reachable(call, plain, conditions)
        definition = _chosen_definition(self, asked, conditions, params)
        labels = [*definition.schedules]
        made = [
            ChosenSchedule(condition, schedule, definition.fusion(label))
            for condition, (schedule, _), label in zip(conditions, asked, labels, strict=True)
        ]
        check_cover(call, plain, made)
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        chosen = ChosenKernel(self.name, caller, plain, made)
        chosen.definition = definition
        definition.chosen = chosen
        return chosen

    def _asked(
        self, call: str, value: object, params: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return the schedule of an entry, and its parameters."""
        match value:
            case str():
                schedule, own = self.resolve(value), {}
            case (str(name), Mapping() as given):
                schedule, own = self.resolve(name), dict(given)
            case _:
                hint = "give the name of a schedule, or (name, {parameter: value})"
                raise DefinitionError(call, f"{value!r} names no schedule", hint)
        for name in own:
            if name not in self._parameters[schedule]:
                self._check_parameters(schedule, {name: None})
                hint = "pass it to choose itself, for all schedules"
                raise DefinitionError(call, f"'{name}' is a parameter of the math", hint)
        return schedule, {**self._chosen(schedule, params), **own}

    def unscheduled(self, params: Mapping[str, Any]) -> Fusion:
        """Return a new fusion of the math alone, with those of the parameters that it has."""
        with Fusion(self.name) as fusion:
            self.math(fusion, **self._chosen("", params))
            if not fusion.outputs:
                raise DefinitionError(
                    f"kernel {self.name}", "it declares no output", "call f.output(tensor, name)"
                )
        return fusion

    def at_sizes(self, sizes: Mapping[str, Any]) -> str:
        """Return the schedule that a choice takes at sizes; the first where they do not tell."""
        names = [*self.schedules]
        if self.chosen is None or not self.chosen.are_sizes(sizes):
            return names[0]
        return names[max(self.chosen.place(sizes), 0)]

    def called(self, name: str) -> KernelDef:
        """Return this kernel under another name."""
        found = copy(self)
        found.name = name
        return found

    def __call__(
        self,
        *arrays: Any,
        schedule: str | None = None,
        target: str = "auto",
        out: Any = None,
        stream: object = None,
        **keywords: Any,
    ) -> Any:
        """Run the kernel on arrays; what was compiled once is kept.

        Args:
            *arrays: the inputs, in order.
            schedule: by name; see `suited` for the one that is taken where it is None.
            target: see `loopnest.compile`.
            out: where the outputs go.
            stream: a CUDA stream.
            **keywords: parameters of math and schedule, run-time scalars, and sizes that are the
                extent of no input.
        """
        compiled = self._ready(schedule, target, keywords)
        rest = {n: v for n, v in keywords.items() if n not in self._all_parameters}
        return compiled(*arrays, out=out, stream=stream, **rest)

    # Within

    @property
    def _all_parameters(self) -> set[str]:
        return {name for table in self._parameters.values() for name in table}

    def _ready(
        self, schedule: str | None, target: str, keywords: Mapping[str, Any]
    ) -> CompiledKernel[Kernel]:
        params = {n: v for n, v in keywords.items() if n in self._all_parameters}
        name = self.suited(target, tuple(params)) if schedule is None else self.resolve(schedule)
        if not params:
            params = self._tuned_once(name, target)
        key: object = (name, target, tuple(sorted(params.items(), key=lambda item: item[0])))
        try:
            found = self._compiled.get(key)
        except TypeError:  # a parameter that cannot be a key
            found = key = None
        if found is None:
            found = self._compile(name, target, params)
            if key is not None:
                self._compiled[key] = found
        self._check_keywords(found, name, keywords)
        return found

    def _tuned_once(self, name: str, target: str) -> dict[str, Any]:
        """Return what a tuning found, as it was when this kernel was first called so."""
        if (name, target) not in self._tuned:
            self._tuned[name, target] = self.tuned(name, target)
        return self._tuned[name, target]

    def _compile(self, name: str, target: str, params: Mapping[str, Any]) -> CompiledKernel[Kernel]:
        from loopnest.facade.kernel_class import compile

        return compile(self.fusion(name or None, **params), target=target)

    def _chosen(self, owner: str, params: Mapping[str, Any]) -> dict[str, Any]:
        own = self._parameters[owner]
        return {name: value for name, value in params.items() if name in own}

    def _check_parameters(self, schedule: str, params: Mapping[str, Any]) -> None:
        known = self.parameters(schedule)
        for name in params:
            if name not in known:
                raise ScheduleError(
                    self.label(schedule), f"there is no parameter '{name}'", self._allowed(schedule)
                )

    def _check_keywords(
        self, compiled: CompiledKernel[Kernel], schedule: str, keywords: Mapping[str, Any]
    ) -> None:
        """Refuse keywords that are no arguments; the error names the schedule's parameters, too."""
        known = self.parameters(schedule)
        taken = {p.name for p in compiled.kernel.params if p.kind in ("scalar", "size")}
        for name in keywords:
            if name not in known and name not in taken:
                raise LaunchError(
                    f"{self.name}(...)",
                    f"there is no parameter, scalar or size '{name}'",
                    self._allowed(schedule),
                )

    def label(self, schedule: str) -> str:
        """Return ``kernel@schedule``, or the kernel's name alone where it has no schedule."""
        return f"{self.name}@{schedule}" if schedule else self.name

    def _allowed(self, schedule: str) -> str:
        """Return a sentence that names the parameters."""
        parts = []
        for owner, whose in (("", "the math"), (schedule, f"schedule {schedule}")):
            names = ", ".join(self._parameters[owner])
            if owner or whose == "the math":
                parts.append(f"{whose} has {names or 'none'}")
        return "parameters: " + "; ".join(parts)


def _chosen_definition(
    kernel: KernelDef,
    asked: Sequence[tuple[str, Mapping[str, Any]]],
    conditions: Sequence[SizeCondition],
    params: Mapping[str, Any],
) -> KernelDef:
    """Return a kernel whose schedules are the entries of a choice, for commands and tests."""
    chosen = kernel._chosen("", params)

    def math(f: Fusion) -> None:
        kernel.math(f, **chosen)

    math.__name__, math.__doc__, math.__module__ = kernel.name, kernel.__doc__, kernel.__module__
    reference = kernel.reference
    if reference is not None:
        taken = inspect.signature(reference).parameters
        reference = partial(reference, **{n: v for n, v in chosen.items() if n in taken})
    found = KernelDef(math, kernel.sizes, reference, kernel.ranges)
    for number, (schedule, own) in enumerate(asked):
        label, count = schedule, 1
        while label in found.schedules:
            label, count = f"{schedule}_{count + 1}", count + 1
        known = entry_conditions(conditions, number)
        found.schedule(label)(_assuming(known, kernel.schedules[schedule], own))
    return found


def _assuming(conditions: Sequence[Expr], schedule: Function, own: Mapping[str, Any]) -> Function:
    """Return a schedule with parameters, for sizes of which conditions hold."""

    def scheduled(f: Fusion) -> None:
        f.require(*conditions)
        schedule(f, **own)
        told = [str(condition) for condition in conditions]  # what repeats one has an effect
        f.intents[:] = [i for i in f.intents if i.kind != "assume" or i.value not in told]

    return scheduled


def _parameters(function: Function, subject: str) -> dict[str, object]:
    """Return the keyword parameters after the fusion, with defaults.

    Raises:
        ScheduleError: a parameter without default, or no place for the fusion.
    """
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ScheduleError(subject, f"{function!r} is no function of a fusion") from None
    if not found or found[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ScheduleError(subject, "its function takes no fusion", "write def name(f, ...)")
    for parameter in found[1:]:
        if parameter.default is inspect.Parameter.empty:
            raise ScheduleError(
                subject,
                f"its parameter '{parameter.name}' has no default",
                f"give it one: {parameter.name}=...",
            )
        if isinstance(parameter.default, Choice):
            hint = "schedules have choices: @kernel.schedule(...)"
            raise ScheduleError(subject, f"'{parameter.name}' of the math is a choice", hint)
    return {parameter.name: parameter.default for parameter in found[1:]}
