"""A program of several launches as programs of one launch each, with the math of each.

A launch ends before the next one begins, so a proof of the whole is one of each launch and of what
passes between them. What one launch stores and a later one reads is an output of the one and an
input of the other: the proof of the first says that all of its elements are those of the math, the
proof of the second takes them for that. What is asked here is the rest: that no launch reads what
none before it has stored, and that one launch alone stores an array.

Before: ``launch: T2[i] = x[i] * 2.0 / launch: y[i] = T2[63 - i]``; after:
``k(x) -> (T2): T2[i] = x[i] * 2.0`` and ``k(x, T2) -> (y): y[i] = T2[63 - i]``.

Stages of one launch that have no memory in common are proved apart, too (`stages_apart`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from loopnest import kir
from loopnest.kir.nest_text import nest_lines
from loopnest.proofs.program_model import Model, Site
from loopnest.proofs.report import ALL_SIZES, Finding, Place, Report
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Op,
    all_of,
    loads,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.math_snapshot import MathAxis, MathSnapshot, MathTensor

# Atomic folds whose initial values an earlier launch stores, for the proofs of single launches.
#
# The launch that stores them computes a tensor of the math, the initial values; the one that
# folds finds them in memory, as if it had stored them itself before all else. So the first is
# asked to compute that tensor, in an array of its own, and the second is given the statements
# that store it: what it then has to show is that it folds each element once.
#
# Before: ``launch: w[i] = 0.0 / launch: atomic w[i] = w[i] + x[j]``; after:
# ``launch: T4[i] = 0.0 / launch: { w[i] = 0.0; barrier grid; atomic w[i] = w[i] + x[j] }``.


@dataclass(frozen=True, slots=True)
class StartedLaunches:
    """A program of several launches in which each fold is started by the launch that folds.

    Args:
        program: the program.
        starts: the arrays of initial values that earlier launches store.
        added: by number of a launch: how many lines of its nest were put in front.
    """

    program: kir.Program
    starts: tuple[Buffer, ...]
    added: dict[int, int]


def started_launches(program: kir.Program, math: MathSnapshot) -> StartedLaunches:
    """Return `program` with initial values apart from the folds that they are of."""
    found = StartedLaunches(program, (), {})
    for tensor in math.tensors:
        definition = tensor.definition
        if definition is not None and definition.start is not None:
            start = math.tensor(definition.reads[definition.start].producer)
            assert start is not None
            found = _apart(found, tensor, start)
    return found


def _apart(found: StartedLaunches, fold: MathTensor, start: MathTensor) -> StartedLaunches:
    """Return the launches with those of one fold apart, as they are where none stores its start."""
    launches = [node for node in found.program.body if isinstance(node, kir.Launch)]
    stores = [list(_stores(launch, fold)) for launch in launches]
    begins = [n for n, own in enumerate(stores) if any(s.role == "init" for s in own)]
    folds = [n for n, own in enumerate(stores) if any(s.role != "init" for s in own)]
    if len(begins) != 1 or len(folds) != 1 or begins[0] >= folds[0]:
        return found
    buffers = {store.storage for own in stores for store in own}
    buffer = buffers.pop()
    if buffers or any(_reads(launch, buffer) for launch in launches[: folds[0]]):
        return found
    preamble = _preamble(found.program, launches[folds[0]], fold, buffer)
    if preamble is None:
        return found
    own = replace(buffer, name=start.name, tensor=start.name, kind="workspace")

    def moved(node: kir.Stmt) -> kir.Stmt:
        if not isinstance(node, kir.Store) or node.storage is not buffer:
            return node
        element = fold.claimed(node.coordinate, whole=node.role in kir.WHOLE_ELEMENTS)
        return replace(node, storage=own, tensor=start.name, role="define", coordinate=element)

    body = list(launches)
    body[begins[0]] = replace(body[begins[0]], body=kir.map_body(body[begins[0]].body, moved))
    body[folds[0]] = replace(body[folds[0]], body=(*preamble, *body[folds[0]].body))
    shape = next(p.shape for p in found.program.params if p.buffer is buffer)
    param = kir.Param(own.name, "workspace", own.dtype, own, shape)
    program = replace(
        found.program, body=tuple(body), params=(*found.program.params, param)
    )  # fmt: skip
    lines = len(list(kir.walk(preamble)))
    added = {**found.added, folds[0]: found.added.get(folds[0], 0) + lines}
    return StartedLaunches(program, (*found.starts, own), added)


def _stores(launch: kir.Launch, fold: MathTensor) -> Sequence[kir.Store]:
    nodes = [node for node, _ in kir.walk(launch.body)]
    return [n for n in nodes if isinstance(n, kir.Store) and n.tensor == fold.name]


def _reads(launch: kir.Launch, buffer: Buffer) -> bool:
    return any(
        load.buffer is buffer
        for node, _ in kir.walk(launch.body)
        for value in kir.expressions(node)
        for load in loads(value)
    )


def _preamble(
    program: kir.Program, launch: kir.Launch, fold: MathTensor, buffer: Buffer
) -> tuple[kir.Stmt, ...] | None:
    """Return the statements by which one thread stores what `fold` starts from, before all else.

    None where the buffer does not have the axes of the math.
    """
    assert fold.definition is not None
    indices = [Index(f"{fold.name}_{n}", axis.extent) for n, axis in enumerate(fold.logical)]
    place: tuple[Expr, ...] = tuple(indices) or (ZERO,)
    if len(place) != len(buffer.shape):
        return None
    claim: list[Expr] = [ZERO] * len(fold.root)
    for index, where in zip(indices, fold.places, strict=True):
        if not isinstance(where, Coordinate):
            return None
        claim[where.number] = index
    value = fold.definition.identity[0]
    body: tuple[kir.Stmt, ...] = (
        kir.Store(buffer, place, value, fold.name, "init", False, tuple(claim)),
    )
    for index in reversed(indices):
        body = (kir.Loop(index, ParallelType.serial, "", body),)
    one = [
        Op("eq", (LaunchIndex(d), ZERO), dtypes.bool_)
        for d, size in launch.extents
        if size is not ONE
    ]
    if one:
        body = (kir.If(all_of(one), body, (), "one thread for all"),)
    return (*body, kir.Barrier("grid", "the launch before has ended"))


@dataclass(frozen=True, slots=True)
class LaunchMath(MathSnapshot):
    """The math of one launch of several.

    Args:
        whole: that of all, in which what earlier launches stored has definitions: a nest may leave
            out elements that they make the identity.
    """

    whole: MathSnapshot | None = None


@dataclass(frozen=True, slots=True)
class SingleLaunch:
    """One launch of several.

    Args:
        program: the launch.
        math: what it computes: arrays that earlier launches stored are its inputs.
        between: the tensors that pass from launch to launch in workspace.
        lines: how many lines further down its statements stand in the nest of the whole.
    """

    program: kir.Program
    math: MathSnapshot
    between: frozenset[str]
    lines: int = 0

    def placed(self, finding: Finding, number: int) -> Finding:
        """Return a finding of this launch as one of the whole."""
        found = finding.moved(self.place)
        if finding.status != "note":
            found = replace(found, message=f"in launch {number}, {finding.message}")
        # The caller sees no workspace: that it has a layout of its own is not wrong.
        own = finding.kind == "layout" and finding.tensor in self.between
        return replace(found, status="unknown") if own and found.status == "refuted" else found

    def place(self, place: Place) -> Place:
        """Return a place in the nest of this launch as one in that of the whole."""
        return replace(place, line=place.line + self.lines)


def order_faults(program: kir.Program, math: MathSnapshot) -> Iterator[tuple[bool, str, str]]:
    """Yield (whether it is wrong, tensor, sentence) of what passes between launches."""
    program = started_launches(program, math).program
    stored, read = _accesses(program)
    for output in program.outputs:
        if output.buffer not in stored:
            yield True, output.name, f"no launch stores the output {output.name}"
    for buffer, launches in stored.items():
        if len(launches) > 1 and buffer.kind != "counter":
            shown = ", ".join(map(str, sorted(launches)))
            yield False, buffer.tensor, f"the launches {shown} all store to {buffer.name}"
    for buffer, launches in read.items():
        if buffer.kind == "counter" or (buffer.kind == "input" and buffer not in stored):
            continue
        first = min(stored.get(buffer, {len(program.launches)}))
        early = sorted(number for number in launches if number < first)
        if early and buffer.kind != "input":
            yield (
                True,
                buffer.tensor,
                f"launch {early[0]} reads {buffer.name}, which no launch before it stores",
            )


def single_launches(program: kir.Program, math: MathSnapshot) -> tuple[SingleLaunch, ...]:
    """Return the launches of a program in which `order_faults` found nothing."""
    started = started_launches(program, math)
    stored, read = _accesses(started.program)
    crossing = (*_crossing(stored, read), *started.starts)
    found = []
    for number, part in enumerate(started.program.launches):
        launch = _LaunchProgram(number, part, math, stored, crossing).made()
        lines = _shift(program, number, launch.program) - started.added.get(number, 0)
        found.append(replace(launch, lines=lines))
    return tuple(found)


def stages_apart(model: Model, math: MathSnapshot) -> tuple[SingleLaunch, ...]:
    """Return the stages of one launch that are right where each is right alone; () of fewer than 2.

    What no stage finds or destroys of another's, it computes as a launch of its own would: nothing
    that is defined in front of a cut is used behind it, no array is stored on one side and accessed
    on the other, and where SHARED memory serves both, all threads of a block meet at the cut. Each
    may write the index of a block by other digits, then.
    """
    program = model.program
    cuts = [n for n in range(1, len(program.body)) if _is_cut(model, n)]
    bounds = pairwise((0, *cuts, len(program.body)))
    bodies = [program.body[begin:end] for begin, end in bounds]
    stages = [b for b in bodies if any(isinstance(n, kir.Store) for n, _ in kir.walk(b))]
    if len(stages) < 2:
        return ()
    parts = [kir.Launch(program.launch, _with_own_space(body)) for body in stages]
    whole = replace(program, body=tuple(parts))
    if any(order_faults(whole, math)):
        return ()
    lines = nest_lines(program)
    return tuple(
        [
            replace(found, lines=lines[body[0]] - nest_lines(found.program)[found.program.body[0]])
            for body, found in zip(stages, single_launches(whole, math), strict=True)
        ]
    )


def _is_cut(model: Model, number: int) -> bool:
    """Whether nothing passes between the statements of a launch in front of one, and the others."""
    if model.arrivals or model.commits:  # blocks that are counted, and copies that land later
        return False
    behind = [site for site in model.sites if _place(site) >= number]
    defined = [d for s in behind for d in (*s.names.values(), *s.allocations.values())]
    if any(_place(site) < number for site in defined):
        return False
    sides: tuple[set[Buffer], set[Buffer]] = (set(), set())
    for access in model.accesses:
        sides[_place(access.site) >= number].add(access.buffer)
    stored = {access.buffer for access in model.accesses if access.writes}
    if sides[0] & sides[1] & stored:
        return False
    before = model.program.body[number - 1]
    meet = isinstance(before, kir.Barrier) and before.scope != "warp"
    return meet or not any(other in sides[1] for b in sides[0] for other in model.aliases(b))


def _place(site: Site) -> int:
    """Return the place of a statement of the outermost body that a site is, or stands in."""
    place = site.time[0]
    assert isinstance(place, int)
    return place


def _with_own_space(body: tuple[kir.Stmt, ...]) -> tuple[kir.Stmt, ...]:
    """Return a stage that takes the space of none of another stage's buffers."""
    made = kir.allocated([node for node, _ in kir.walk(body)])
    first: dict[str, str] = {}
    own: dict[Buffer, Buffer] = {}
    for buffer in made:
        base = buffer.alias_of
        if base is not None and all(other.name != base for other in made):
            own[buffer] = replace(buffer, alias_of=first.get(base))
            first.setdefault(base, buffer.name)

    def rule(load: Load) -> Load:
        return Load(own.get(load.buffer, load.buffer), load.args, load.flat)

    return kir.map_body(body, lambda node: kir.map_accesses(node, rule, own)) if own else body


Launches = Mapping[Buffer, set[int]]
"""The numbers of the launches that access an array."""


def _accesses(program: kir.Program) -> tuple[Launches, Launches]:
    """Return by GLOBAL buffer the launches that store to it, and those that read it."""
    stored: dict[Buffer, set[int]] = {}
    read: dict[Buffer, set[int]] = {}
    arrays = {p.buffer for p in program.params}
    for number, part in enumerate(program.launches):
        for node, _ in kir.walk(part.body):
            if isinstance(node, kir.Store) and node.storage in arrays:
                stored.setdefault(node.storage, set()).add(number)
            for load in (found for value in kir.expressions(node) for found in loads(value)):
                if load.buffer in arrays:
                    read.setdefault(load.buffer, set()).add(number)
    return stored, read


def _crossing(stored: Launches, read: Launches) -> tuple[Buffer, ...]:
    """Return what one launch stores and a later one reads."""
    # A read in the launch of the store is the matter of that launch's own proof.
    return tuple([b for b, w in stored.items() if max(read.get(b, {-1})) > min(w)])


def _shift(program: kir.Program, number: int, part: kir.Program) -> int:
    """Return how far the statements of a launch stand behind those of `part`, its own nest."""
    whole = program.launches[number].body
    return nest_lines(program)[whole[0]] - nest_lines(part)[part.body[0]] if whole else 0


class _LaunchProgram:
    """The making of one launch."""

    def __init__(
        self,
        number: int,
        program: kir.Program,
        math: MathSnapshot,
        stored: Launches,
        crossing: Sequence[Buffer],
    ) -> None:
        self.number, self.program, self.math = number, program, math
        self.taken = {b: b.tensor for b in crossing if max(stored[b]) < number}
        self.given = [b for b in crossing if number in stored[b]]
        self.written = {b for b, launches in stored.items() if number in launches}
        self.changed: dict[Buffer, Buffer] = {}

    def made(self) -> SingleLaunch:
        for output in self.program.outputs:  # what lies in the memory of an input has its own name
            if output.inplace and output.buffer in self.taken:
                self.taken[output.buffer] = output.name
        for buffer, name in self.taken.items():
            held = self._as_declared(buffer)
            self.changed[buffer] = replace(held, name=name, tensor=name, kind="input")
        for buffer in self.given:
            if buffer.kind == "workspace":
                self.changed[buffer] = replace(self._as_declared(buffer), kind="output")
        outputs = self._outputs()
        math = self._math([output.name for output in outputs])
        program = replace(
            self.program,
            params=self._params(math),
            outputs=tuple([replace(o, buffer=self._buffer(o.buffer)) for o in outputs]),
            body=kir.map_body(self.program.body, self._statement),
        )
        between = [b.tensor for b in (*self.taken, *self.given) if b.kind == "workspace"]
        return SingleLaunch(program, math, frozenset(between))

    def _as_declared(self, buffer: Buffer) -> Buffer:
        """Return workspace with the extents as the math writes them, where these are equal.

        Of a variant that requires sizes to divide, they may be written in another way.
        """
        tensor = self.math.tensor(buffer.tensor)
        if buffer.kind != "workspace" or tensor is None:
            return buffer
        algebra = Simplifier(Facts.of([test for _, test in self.program.assumed]))
        extents = tuple([axis.extent for axis in tensor.logical]) or (ONE,)
        strides: list[Expr] = []
        size: Expr = ONE
        for extent in reversed(extents):
            strides.insert(0, size)
            size = algebra.mul(size, extent)
        found, wanted = (
            [algebra.simplify(e) for e in layout]
            for layout in (
                (*buffer.shape, *buffer.strides, buffer.size),
                (*extents, *strides, size),
            )
        )
        same = len(found) == len(wanted) and all(map(algebra.equal, found, wanted))
        if not same:
            return buffer
        return replace(buffer, shape=extents, strides=tuple(strides), size=size)

    def _outputs(self) -> list[kir.Output]:
        """Return what this launch computes for others: outputs, then what later launches read."""
        found = [o for o in self.program.outputs if o.buffer in self.written]
        names = {output.name for output in found}
        for buffer in self.given:
            if buffer.tensor not in names and buffer.kind == "workspace":
                found.append(kir.Output(buffer.tensor, buffer, self._shape(buffer)))
        return found

    def _shape(self, buffer: Buffer) -> tuple[Expr, ...]:
        """Return the logical extents of what a buffer holds."""
        found = next(p.shape for p in self.program.params if p.buffer is buffer)
        return self._buffer(buffer).shape if found else found

    def _buffer(self, buffer: Buffer) -> Buffer:
        return self.changed.get(buffer, buffer)

    def _statement(self, node: kir.Stmt) -> kir.Stmt:
        return kir.map_accesses(
            node, lambda load: Load(self._buffer(load.buffer), load.args, load.flat)
        )

    def _params(self, math: MathSnapshot) -> tuple[kir.Param, ...]:
        """Return the parameters: inputs and outputs as the math has them, workspace of its own."""
        arrays = {p.buffer.name: p for p in self.program.params if p.buffer is not None}
        for buffer in self.changed:
            found = next(p for p in self.program.params if p.buffer is buffer)
            new = self.changed[buffer]
            arrays[new.name] = replace(
                found,
                name=new.name,
                kind=new.kind,
                buffer=new,
                shape=self._shape(buffer),
                strides=None,
            )
        order = [t.name for t in math.tensors if t.role == "input"]
        order += [name for name in math.outputs if name in arrays and name not in order]
        rest = [p for p in self.program.params if p.kind in ("scalar", "size")]
        own = [p for p in self.program.params if p.kind == "workspace"]
        return (
            *[arrays[name] for name in order if name in arrays],
            *rest,
            *[p for p in own if p.buffer is not None and p.buffer not in self.changed],
        )

    def _math(self, outputs: Sequence[str]) -> MathSnapshot:
        """Return the math of this launch: what its outputs need, from what it takes on."""
        taken = set(self.taken.values())
        overwritten = {b.name for b in self.taken}  # an input whose memory has another tensor now
        kept = {t.name for t in self.math.tensors if t.role == "input"} - overwritten
        tensors = {tensor.name: tensor for tensor in self.math.tensors}
        # What is stored and read by nothing (an index along an axis of 1 is 0) is math, too.
        nodes = [node for node, _ in kir.walk(self.program.body)]
        own = {node.tensor for node in nodes if isinstance(node, kir.Store)} & tensors.keys()
        waiting = [*outputs, *sorted(own)]
        while waiting:
            name = waiting.pop()
            definition = tensors[name].definition
            if name in taken or definition is None:
                continue
            kept.add(name)
            more = (*definition.producers, *definition.outputs)
            waiting += [other for other in more if other not in kept]
        found: list[MathTensor] = []
        for tensor in self.math.tensors:
            if tensor.name in taken:
                found.append(_as_input(tensor))
            elif tensor.name in kept:
                role = "output" if tensor.name in outputs else tensor.role
                role = "" if role == "output" and tensor.name not in outputs else role
                inplace = tensor.inplace if role == "output" else ""
                found.append(replace(tensor, role=role, inplace=inplace))
        math = self.math
        return LaunchMath(
            math.name, tuple(found), math.scalars, math.symbols, math.conditions, tuple(outputs),
            math.ranges, math,
        )  # fmt: skip


def _as_input(tensor: MathTensor) -> MathTensor:
    """Return a tensor that an earlier launch computed, as an input of this one."""
    assert tensor.domain is not None
    domain = TensorDomain.of_root([IterDomain(a.size, a.kind) for a in tensor.domain.logical])
    axes = tuple([MathAxis(axis.extent, axis.kind) for axis in tensor.logical])
    places = tuple([Coordinate(n) for n in range(len(axes))])
    return MathTensor(tensor.name, tensor.dtype, axes, axes, places, None, "input", domain=domain)


def together(reports: Sequence[Report], launches: Sequence[SingleLaunch]) -> Report:
    """Return the report on a program from those on its launches."""
    findings = [
        launch.placed(finding, number)
        for number, (launch, report) in enumerate(zip(launches, reports, strict=True))
        for finding in report.findings
    ]
    if any(finding.status == "refuted" for finding in findings):
        refuted = tuple([finding for finding in findings if finding.status == "refuted"])
        return Report("refuted", refuted, _scope(reports))
    proved = all(report.ok for report in reports)
    return Report("proved" if proved else "unknown", tuple(findings), _scope(reports))


def _scope(reports: Sequence[Report]) -> str:
    scopes = [report.scope for report in reports]
    if len(set(scopes)) == 1:
        return scopes[0]
    named = [f"launch {n}: {s}" for n, s in enumerate(scopes)]
    return "; ".join(named) if any(s != ALL_SIZES for s in scopes) else ALL_SIZES
