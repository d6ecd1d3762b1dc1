"""Kernels of several schedules, each for the sizes of its condition; one of them runs a call.

Sizes go to the first entry whose condition holds. Each entry is lowered with its condition as an
assumption, and with the opposite of those before it, so that tests of what they say fall away.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from loopnest.base.errors import DefinitionError
from loopnest.base.pickling import STAMP
from loopnest.scalar.arguments import broken_condition
from loopnest.scalar.dtypes import bool_
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import FALSE, Expr, Op, Symbol, integer, walk

if TYPE_CHECKING:
    from loopnest.backends.compiled_kernel import CompiledKernel
    from loopnest.facade.kernel_class import Kernel
    from loopnest.kir.lowered import Note
    from loopnest.launch.timing import BenchResult
    from loopnest.proofs.size_cover import Region
    from loopnest.tensor.fusion import Fusion

MAX_SHAPES = 512
"""What was chosen for other shapes is kept up to this number; then all are chosen anew."""

_OPPOSITE = {"lt": "ge", "le": "gt", "eq": "ne", "ne": "eq", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, slots=True)
class SizeCondition:
    """A condition over sizes.

    Args:
        text: as it was given; "True" where it always holds.
        terms: comparisons that all hold where it does.
    """

    text: str
    terms: tuple[Expr, ...]

    def __str__(self) -> str:
        return repr(self.text) if self.terms else "True"

    @classmethod
    def read(cls, given: object, fusion: Fusion, call: str) -> SizeCondition:
        """Return what a key of `choose` says of the sizes of a fusion.

        Raises:
            DefinitionError: it is neither True nor comparisons of sizes.
        """
        if given is True:
            return cls("True", ())
        if not isinstance(given, str):
            hint = 'write comparisons of sizes, such as "D <= 1024", or True'
            raise DefinitionError(call, f"the condition {given!r} is neither a text nor True", hint)
        facts = fusion.facts.copy()
        before = len(facts.conditions)
        known = {symbol.name for symbol in fusion.symbols}
        for text in _comparisons(given):
            try:
                facts.add(text, known.__contains__)
            except DefinitionError as error:
                hint = (
                    "write comparisons of integers and size symbols with + - * // %, joined by "
                    "'and', such as \"D % 4 == 0 and D <= 1024\""
                )
                raise DefinitionError(call, f"{given!r}: {error.reason}", hint) from None
        return cls(given, tuple([condition for _, condition in facts.conditions[before:]]))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it holds at sizes."""
        return broken_condition([("", term) for term in self.terms], sizes) is None

    @property
    def opposite(self) -> tuple[Expr, ...]:
        """What is known where it does not hold: nothing where that is no one comparison."""
        from loopnest.proofs.size_cover import divides_by_size

        if len(self.terms) != 1 or divides_by_size(self.terms[0]):
            return ()
        (term,) = self.terms
        assert isinstance(term, Op)
        return (Op(_OPPOSITE[term.op], term.args, bool_),)


def _comparisons(text: str) -> list[str]:
    """Return the comparisons that a text joins by "and", and those of a chain, as texts."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return [text]
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    found: list[str] = []
    for part in parts:
        if not isinstance(part, ast.Compare):
            found.append(ast.unparse(part))
            continue
        sides = [part.left, *part.comparators]
        for n, op in enumerate(part.ops):
            found.append(ast.unparse(ast.Compare(sides[n], [op], [sides[n + 1]])))
    return found


@dataclass(frozen=True, slots=True)
class ChosenSchedule:
    """An entry: a schedule, and the sizes at which it runs.

    Args:
        condition: of the sizes.
        schedule: its name.
        fusion: the math under this schedule, which assumes the condition.
    """

    condition: SizeCondition
    schedule: str
    fusion: Fusion


class ChosenKernel:
    """A kernel of several schedules, chosen by the sizes of each launch; see `KernelDef.choose`.

    Args:
        name: of the kernel.
        module: that called `choose`.
        plain: the math without a schedule, for launches of which every output is empty and that
            the chosen schedule does not take.
        entries: in the order in which they are tried.
    """

    def __init__(
        self, name: str, module: str, plain: Fusion, entries: Sequence[ChosenSchedule]
    ) -> None:
        self.name = name
        self.__module__ = module
        self._plain = plain
        self.entries = tuple(entries)
        self.definition: object = None
        """What the command line knows of it; no part of its value."""
        self._compiled: dict[str, ChosenFunction] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "definition": None, "_compiled": {}}

    def __repr__(self) -> str:
        shown = ", ".join([f"{e.condition.text}: {e.schedule}" for e in self.entries])
        return f"<chosen kernel {self.name}: {shown}>"

    def __str__(self) -> str:
        """Return the nest of each entry, below its condition."""
        parts = [
            f"# {e.condition.text}: schedule {e.schedule}\n{kernel}"
            for e, kernel in zip(self.entries, self.kernels, strict=True)
        ]
        return "\n\n".join(parts)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The condition of each entry, in order, as it was given."""
        return tuple([entry.condition.text for entry in self.entries])

    @property
    def schedules(self) -> tuple[str, ...]:
        """The name of the schedule of each entry, in order."""
        return tuple([entry.schedule for entry in self.entries])

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The lowered kernel of each entry, in order."""
        from loopnest.facade.kernel_class import lower

        return tuple([lower(entry.fusion) for entry in self.entries])

    @cached_property
    def plain(self) -> Kernel:
        """The kernel of launches that compute nothing."""
        from loopnest.facade.kernel_class import lower

        return lower(self._plain)

    def place(self, sizes: Mapping[str, int]) -> int:
        """Return the number of the entry that sizes go to; -1 where nothing is to be computed.

        They must fulfil the assumptions of the math.
        """
        for number, entry in enumerate(self.entries):
            if entry.condition.holds(sizes):
                conditions = entry.fusion.facts.conditions
                return number if broken_condition(conditions, sizes) is None else -1
        return -1

    def are_sizes(self, given: Mapping[str, Any]) -> bool:
        """Whether these are sizes of this kernel, among others, that its math allows."""
        names = [symbol.name for symbol in self._plain.symbols]
        if not all(isinstance(given.get(name), int) for name in names):
            return False
        return broken_condition(self._plain.facts.conditions, given) is None

    def schedule_at(self, **sizes: int) -> str:
        """Return the name of the schedule that runs at sizes; "" where nothing is computed.

        Raises:
            LaunchError: a size is missing, unknown or no int >= 0; an assumption does not hold.
        """
        given = ", ".join([f"{name}={size!r}" for name, size in sizes.items()])
        call = f"{self.name}.schedule_at({given})"
        number = self.place(self.plain.named_sizes(sizes, call))
        return self.entries[number].schedule if number >= 0 else ""

    def compiled(self, target: str, options: Mapping[str, Any]) -> ChosenFunction:
        """Return a function that runs it; what `loopnest.compile` calls."""
        return ChosenFunction(self, target, options)

    def __call__(self, *arrays: Any, target: str = "auto", **keywords: Any) -> Any:
        """Run it on arrays; what was compiled once is kept.

        Args:
            *arrays: the inputs, in order.
            target: see `loopnest.compile`.
            **keywords: `out`, `stream`, run-time scalars, and sizes that no input has.
        """
        found = self._compiled.get(target)
        if found is None:
            found = self._compiled[target] = self.compiled(target, {})
        return found(*arrays, **keywords)


class ChosenFunction:
    """A chosen kernel that runs on arrays: ``fn(*arrays, out=None, stream=None, **scalars)``.

    Made by `loopnest.compile`. `target` names where it runs, `kernel` is what was compiled.
    """

    def __init__(self, kernel: ChosenKernel, target: str, options: Mapping[str, Any]) -> None:
        self.kernel = kernel
        self._options = dict(options)
        self.functions = _on_one_target(kernel.kernels, target, options)
        self.target: str = self.functions[0].target
        self._key = _key_of_sizes(kernel)
        self._known: dict[object, CompiledKernel[Kernel]] = {}

    def __reduce__(self) -> tuple[Callable[..., ChosenFunction], tuple[object, ...]]:
        return _compiled_again, (STAMP, self.kernel, self.target, self._options)

    def __repr__(self) -> str:
        return f"<ChosenFunction {self.kernel.name} on '{self.target}'>"

    def __call__(
        self, /, *arrays: Any, out: Any = None, stream: object = None, **keywords: Any
    ) -> Any:
        """Run the kernel of the sizes once; see `CompiledKernel.__call__`."""
        try:
            found = self._known[self._key(arrays, keywords)]
        except (KeyError, AttributeError, IndexError, TypeError):
            found = self._chosen(arrays, keywords)
        return found(*arrays, out=out, stream=stream, **keywords)

    def bench(self, /, *arrays: Any, **keywords: Any) -> BenchResult:
        """Measure calls of the kernel of the sizes; see `CompiledKernel.bench`."""
        return self._chosen(arrays, keywords).bench(*arrays, **keywords)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The lowered kernel of each entry, in order."""
        return self.kernel.kernels

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes of all kernels."""
        return tuple([note for function in self.functions for note in function.notes])

    def _chosen(
        self, arrays: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> CompiledKernel[Kernel]:
        """Return the function of the sizes of arguments, all of which are checked.

        Raises:
            LaunchError: an argument does not fit.
        """
        sizes = self.functions[0].sizes_for(self.kernel.plain.program, arrays, keywords)
        number = self.kernel.place(sizes)
        found = self.functions[number] if number >= 0 else self._idle
        if number >= 0:
            if len(self._known) >= MAX_SHAPES:
                self._known.clear()
            # An array may show its shape otherwise.
            with suppress(AttributeError, KeyError, TypeError):
                self._known[self._key(arrays, keywords)] = found
        return found

    @cached_property
    def _idle(self) -> CompiledKernel[Kernel]:
        """What makes outputs without an element."""
        from loopnest.facade.kernel_class import compile

        return compile(self.kernel.plain, self.target)


def _compiled_again(
    _: object, kernel: ChosenKernel, target: str, options: Mapping[str, Any]
) -> ChosenFunction:
    return kernel.compiled(target, options)


def _on_one_target(
    kernels: Sequence[Kernel], target: str, options: Mapping[str, Any]
) -> list[CompiledKernel[Kernel]]:
    """Return all kernels compiled for one target: with "auto" the first that can do all."""
    from loopnest.backends.targets import TARGETS
    from loopnest.facade.kernel_class import compile

    found = [compile(kernel, target, **options) for kernel in kernels]
    last = max([function.target for function in found], key=[*TARGETS].index)
    return [
        function if function.target == last else compile(function.kernel, last, **options)
        for function in found
    ]


def _key_of_sizes(kernel: ChosenKernel) -> Callable[[Sequence[Any], Mapping[str, Any]], object]:
    """Return what makes a key of the arguments that tell all sizes that a choice depends on.

    It raises a KeyError where a size is told in another way, as a stride.
    """
    params = kernel.plain.program.params
    inputs = [p for p in params if p.kind == "input"]
    common = kernel.plain.program.conditions
    wanted = {
        node.name
        for entry in kernel.entries
        for stated in entry.fusion.facts.conditions
        if stated not in common
        for node in walk(stated[1])
        if isinstance(node, Symbol)
    }
    places: dict[int, None] = {}
    named = []
    for name in sorted(wanted):
        told = [n for n, p in enumerate(inputs) if Symbol(name) in p.shape]
        if told:
            places.setdefault(next((n for n in told if n in places), told[0]))
        elif any(Symbol(name) in (p.strides or ()) for p in inputs):
            return _no_key
        else:
            named.append(name)
    if len(places) == 1 and not named:
        (only,) = places
        return lambda arrays, keywords: arrays[only].shape
    return lambda arrays, keywords: (
        *[arrays[n].shape for n in places],
        *[keywords[name] for name in named],
    )


def _no_key(arrays: Sequence[Any], keywords: Mapping[str, Any]) -> object:
    raise KeyError


# What a choice must be


def entry_conditions(conditions: Sequence[SizeCondition], number: int) -> tuple[Expr, ...]:
    """Return what the schedule of entry `number` may assume."""
    earlier = [term for before in conditions[:number] for term in before.opposite]
    return tuple(dict.fromkeys([*earlier, *conditions[number].terms]))


def without_schedule(fusion: Fusion) -> Fusion:
    """Return the math with all that is computed in global memory, which every target can run."""
    for tensor in fusion.tensors:
        if tensor not in (*fusion.inputs, *fusion.outputs):
            tensor.memory = Memory.GLOBAL
    return fusion


def check_reachable(call: str, plain: Fusion, conditions: Sequence[SizeCondition]) -> None:
    """Refuse a condition whose sizes all go to those before it.

    Raises:
        DefinitionError: there is one.
    """
    from loopnest.proofs.size_cover import Undecided, left_out

    for number, condition in enumerate(conditions):
        before = [earlier.terms for earlier in conditions[:number]]
        try:
            dead = left_out([*_allowed(plain), *condition.terms], before) is None
        except Undecided:
            continue
        if dead:
            why = "the assumptions of the math and the conditions before it leave none"
            raise DefinitionError(
                call,
                f"no sizes reach the condition {condition}: {why}",
                "leave it out, or put it first",
            )


def check_cover(call: str, plain: Fusion, entries: Sequence[ChosenSchedule]) -> None:
    """Refuse entries that leave sizes out, by their conditions or by what schedules assume.

    Sizes at which every output is empty need no schedule.

    Raises:
        DefinitionError: they do, or it is not shown that they do not.
    """
    allowed, nothing = _allowed(plain), _nothing_to_compute(plain)
    conditions = [entry.condition for entry in entries]
    untaken = _left_out(call, allowed, [nothing, *[c.terms for c in conditions]])
    if untaken is not None:
        hint = "add the condition True, or widen one"
        raise DefinitionError(call, f"no condition takes {_listed(untaken)}", hint)
    for number, entry in enumerate(entries):
        stated = entry.fusion.facts.conditions
        known = {*allowed, *entry_conditions(conditions, number)}
        own = [condition for _, condition in stated if condition not in known]
        earlier = [condition.terms for condition in conditions[:number]]
        reached = [*allowed, *entry.condition.terms]
        sizes = _left_out(call, reached, [nothing, *earlier, own])
        if sizes is not None:
            raise DefinitionError(
                call,
                f"{entry.condition} gives {_listed(sizes)} to schedule {entry.schedule}, whose "
                f"assumption {broken_condition(stated, sizes)}",
                "narrow that condition, or widen what the schedule assumes",
            )


def _left_out(call: str, allowed: Region, regions: Sequence[Region]) -> dict[str, int] | None:
    from loopnest.proofs.size_cover import Undecided, left_out

    try:
        return left_out(allowed, regions)
    except Undecided:
        raise DefinitionError(
            call,
            "it is not shown that the conditions take all sizes",
            "give the last schedule the condition True, or use linear conditions of the sizes",
        ) from None


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join([f"{name} = {value}" for name, value in sizes.items()])


def _allowed(plain: Fusion) -> list[Expr]:
    """Return the assumptions of the math, and that sizes are not negative."""
    bounds = [Op("ge", (symbol, integer(0)), bool_) for symbol in plain.symbols]
    return [*[condition for _, condition in plain.facts.conditions], *bounds]


def _nothing_to_compute(plain: Fusion) -> Region:
    """Return the condition that every output is empty."""
    found: list[Expr] = []
    for output in plain.outputs:
        term: Expr = FALSE
        for size in output.sizes:
            empty = Op("le", (size, integer(0)), bool_)
            term = empty if term is FALSE else Op("or", (term, empty), bool_)
        found.append(term)
    return found
