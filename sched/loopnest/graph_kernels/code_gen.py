"""CodeGen and RTCGen: the kernel of each group of a graph, and the kernel ready to run.

Source: NNVM-Fusion (github.com/dmlc/nnvm-fusion: passes of these names, with the graph attributes
``kernel`` and ``rtc``).
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import loopnest as ln
from loopnest.base.errors import CompileError, LoopnestError
from loopnest.devtools import tuned_calls, tuned_rows
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import LEAVES, Node
from loopnest.graph.node_origins import place_of
from loopnest.graph.passes.compile_target import Target
from loopnest.graph.program import Graph, body_of
from loopnest.graph.structural import structural_key
from loopnest.graph_kernels.group_math import GroupMath, Inplace, scheduled_by
from loopnest.graph_kernels.kernel_groups import VIEWS
from loopnest.proofs.bit_claims import BitClaim
from loopnest.schedulers import Processor
from loopnest.schedulers.processor_facts import this_processor

Runner: TypeAlias = "Any"
"""A compiled kernel: what `ln.compile` returns."""


@dataclass(frozen=True, slots=True)
class GroupKernel:
    """A kernel that was made for a group.

    Args:
        kernel: the lowered kernel.
        schedule: the name of its scheduler.
        inputs: for each input of the kernel the number of the call's operand.
        inplace: pairs of an output and the operand that it overwrites.
    """

    kernel: ln.Kernel
    schedule: str
    inputs: tuple[int, ...]
    inplace: Inplace


@dataclass(frozen=True, slots=True)
class Generated:
    """What CodeGen found: the kernel of each call, and why others have none."""

    kernels: Mapping[Node, GroupKernel]
    refused: Mapping[Node, str]


_KERNELS: dict[Hashable, GroupKernel | str] = {}
_KEPT = 1024


def schedule_target(target: str) -> str:
    """Return whose schedules a kernel for a target has."""
    return "cuda" if target == "cuda" else "c"


def current_target() -> str:
    """Return what `G.Target` says, else the first target that this machine can do."""
    from loopnest.backends.targets import preferred

    entered = Target.current()
    if entered is None:
        return preferred()
    return "c" if entered.kind == "llvm" else entered.kind


def generated(graph: Graph, target: str, processor: Processor | None = None) -> Generated:
    """Return the kernels of a graph's calls, each made once for all calls of a structure."""
    kernels: dict[Node, GroupKernel] = {}
    refused: dict[Node, str] = {}
    for call in graph.calls:
        found = _kernel_of(body_of(call), target, _overwritten(graph, call), processor)
        if isinstance(found, str):
            refused[call] = found
        else:
            kernels[call] = found
    return Generated(kernels, refused)


def _overwritten(graph: Graph, call: Node) -> Inplace:
    """Return which outputs of a call a variable is assigned that the call reads, and where."""
    pairs: list[tuple[int, int]] = []
    read = [_viewed(x) for x in call.inputs]
    for user in graph.users[call]:
        number = user.attrs["index"] if user.op == "get_item" else 0
        if user.op != "get_item" and call.is_tuple:
            continue
        value = user if user.op == "get_item" else call
        for assign in _readers(graph, value):
            if assign.op == "assign" and _viewed(assign.inputs[1]) is value:
                old = assign.inputs[0]
                if old in read and all(number != n for n, _ in pairs):
                    pairs.append((number, read.index(old)))
    return tuple(sorted(pairs))


def _viewed(node: Node) -> Node:
    """Return what a node is another shape of."""
    while node.op in VIEWS:
        (node,) = node.inputs
    return node


def _readers(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield what reads a node, in its own shape or in another one."""
    pending = [node]
    while pending:
        for user in graph.users[pending.pop()]:
            yield user
            if user.op in VIEWS:
                pending.append(user)


def _kernel_of(
    body: Graph, target: str, inplace: Inplace, processor: Processor | None
) -> GroupKernel | str:
    """Return the kernel of a body, or why there is none."""
    key = (structural_key(body), schedule_target(target), inplace, processor, tuned_rows.state())
    found = _KERNELS.get(key)
    if found is None:
        found = _made(body, target, inplace, processor)
        if isinstance(found, str) and inplace:
            fewer = tuple([pair for pair in inplace if len(body.users[body.inputs[pair[1]]]) == 1])
            found = _kernel_of(body, target, fewer if fewer != inplace else (), processor)
        if len(_KERNELS) >= _KEPT:
            _KERNELS.clear()
        _KERNELS[key] = found
    return found


def _made(
    body: Graph, target: str, inplace: Inplace, processor: Processor | None
) -> GroupKernel | str:
    try:
        math, scheduler = scheduled_by(body, schedule_target(target), processor, inplace)
        if scheduler is None:
            return f"{math.fusion.name}: no scheduler for a single nest accepts it"
        tuned = _as_tuned(body, math, target, inplace) if processor is None else None
        if tuned is not None:
            return tuned
        scheduler.schedule(math.fusion, this_processor() if processor is None else processor)
        kernel = ln.lower(math.fusion)
    except LoopnestError as error:
        return str(error)
    return GroupKernel(kernel, scheduler.name, math.inputs, inplace)


def _as_tuned(body: Graph, math: GroupMath, target: str, inplace: Inplace) -> GroupKernel | None:
    """Return the kernel of a body by the schedule that a tuning found for equal math, if any did.

    Raises:
        LoopnestError: as `scheduled_by`.
    """
    own = schedule_target(target)
    row = tuned_calls.tuned_row(math.fusion, own)
    if row is None:
        return None
    try:
        names = tuned_calls.axis_names(math.fusion, row)
        again, _ = scheduled_by(body, own, None, inplace, names)
        tuned_calls.make_calls(again.fusion, row)
        kernel = ln.lower(again.fusion)
        if own == "cuda":
            kernel.cuda()
    except LoopnestError as error:
        tuned_calls.note_misfit(math.fusion, row, error)
        return None
    return GroupKernel(kernel, f"{row.kernel}@{row.schedule}", again.inputs, inplace)


def without_sizes_in_bits(found: Generated, target: str, sizes: Sequence[str]) -> Generated:
    """Return kernels whose bits do not depend on sizes: plain loops where a schedule's may.

    Raises:
        GraphError: those of plain loops may, too.
    """
    kernels = dict(found.kernels)
    for call, made in found.kernels.items():
        if _dependence(made.kernel, sizes) is None:
            continue
        math, _ = scheduled_by(body_of(call), schedule_target(target), None, made.inplace)
        plain = ln.lower(math.fusion)
        why = _dependence(plain, sizes)
        if why is not None:
            ops = ", ".join([x.op for x in body_of(call).nodes if x.op not in LEAVES])
            hint = "leave that size out of invariant"
            raise GraphError(f"{call}", f"the bits of its kernel ({ops}) may differ: {why}", hint)
        kernels[call] = GroupKernel(plain, "plain", math.inputs, made.inplace)
    return Generated(kernels, found.refused)


def _dependence(kernel: ln.Kernel, sizes: Sequence[str]) -> BitClaim | None:
    """Return the first claim on a kernel's sizes that does not hold."""
    known = {p.name for p in kernel.params if p.kind == "size"}
    claims = (ln.batch_invariant(kernel, size) for size in sizes if size in known)
    return next((claim for claim in claims if not claim), None)


def code_gen(graph: Graph) -> Graph:
    """Return a graph that knows its kernels: its attribute ``kernel``, from a call to its kernel.

    Attributes ``schedule`` (the scheduler's name) and ``fallback`` (why a call has no kernel) are
    by call too.
    """
    found = generated(graph, current_target())
    return graph.with_attrs(
        kernel={call: made.kernel for call, made in found.kernels.items()},
        schedule={call: made.schedule for call, made in found.kernels.items()},
        fallback=dict(found.refused),
        generated=found,
    )


def rtc_gen(graph: Graph) -> Graph:
    """Return a graph that knows its compiled kernels: its attribute ``rtc``, by call."""
    found: Generated = graph.attrs["generated"]
    return graph.with_attrs(rtc=compiled(found, current_target(), {}))


def compiled(
    found: Generated, target: str, options: Mapping[str, Any], variants: bool = False
) -> dict[Node, Runner]:
    """Return kernels ready to run, distinct ones compiled side by side.

    Args:
        found: the kernels.
        target: where they run.
        options: of `loopnest.compile`.
        variants: whether what only some sizes need is compiled too, so that no call compiles.

    Raises:
        GraphError: the compiler fails; it names the call.
    """
    distinct = dict.fromkeys([made.kernel for made in found.kernels.values()])

    def compile_one(kernel: ln.Kernel) -> Runner | CompileError:
        try:
            runner = ln.compile(kernel, target=target, **options)
            if variants:
                runner.build_variants()
            return runner
        except CompileError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        runners = dict(zip(distinct, pool.map(compile_one, distinct), strict=True))
    for call, made in found.kernels.items():
        error = runners[made.kernel]
        if isinstance(error, CompileError):
            own = [x for x in body_of(call).nodes if x.op not in LEAVES]
            ops = ", ".join([f"{x.op}{place_of(x)}" for x in own])
            reason = f"its kernel ({ops}) does not compile: {error}"
            raise GraphError(str(call), reason) from error
    return {call: runners[made.kernel] for call, made in found.kernels.items()}
