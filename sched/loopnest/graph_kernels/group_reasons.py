"""Why two ops share a kernel, or why they do not: the groups of `KernelFusion` in a sentence."""

from __future__ import annotations

from loopnest.base.errors import LoopnestError
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.program import Graph
from loopnest.graph.registry import get_attr
from loopnest.graph_kernels.axis_parts import NoCommonAxes
from loopnest.graph_kernels.code_gen import current_target, schedule_target
from loopnest.graph_kernels.free_ops import FREE
from loopnest.graph_kernels.group_math import scheduled_by
from loopnest.graph_kernels.kernel_groups import (
    GroupLimits,
    KernelGroups,
    is_left,
    kernel_body,
    operands_of,
    origins,
)
from loopnest.graph_kernels.op_math import lower_of
from loopnest.schedulers import schedulers


def kernel_reason(graph: Graph, a: Node, b: Node, library: bool) -> str:
    """Return why two nodes of a graph stand in one kernel, or why they do not."""
    limits = GroupLimits(schedule_target(current_target()), library)
    for node in (a, b):
        outside = _outside(node, limits)
        if outside:
            return f"{describe(node)} {outside}"
    groups = KernelGroups(graph, limits, frozenset())
    return _Reason(groups, limits).sentence(a, b)


def _outside(node: Node, limits: GroupLimits) -> str:
    """Return why a node is no member of any group; "" where it is one."""
    if node.op in LEAVES:
        return f"is a {node.op}: kernels read it, and a scalar constant stands in their text"
    if node.op == "reshape":
        return "is another shape of its operand: a kernel of ops on both sides of it does without"
    if node.op in FREE:
        return "computes nothing by itself: it stands in every kernel that reads it"
    if node.is_tuple:
        return "is a tuple: it says where values lie"
    if is_left(node, limits):
        return "is left to a library; library=False makes a kernel of it"
    if get_attr(node, "decompose", None) is not None:
        return "is made of other ops: apply G.Decompose() to the graph first"
    if lower_of(node) is None:
        return f"has no kernel: op {node.op} has no attribute 'lower'"
    return ""


class _Reason:
    def __init__(self, groups: KernelGroups, limits: GroupLimits) -> None:
        self.groups, self.limits = groups, limits

    def sentence(self, a: Node, b: Node) -> str:
        both = f"{describe(a)} and {describe(b)}"
        first, second = self.groups.members_of(a), self.groups.members_of(b)
        if first is second:
            name = self._scheduler(first)
            return f"{both} share a kernel of {len(first)} ops, by the scheduler '{name}'"
        return f"{both} do not share a kernel: {self._refused(first, second)}"

    def _scheduler(self, members: list[Node]) -> str:
        outputs = self.groups.outputs_of(members)
        try:
            body = kernel_body(members, outputs, "group")
            _, found = scheduled_by(body, self.limits.target, self.limits.processor)
        except LoopnestError as error:
            return str(error)
        return "" if found is None else found.name

    def _refused(self, first: list[Node], second: list[Node]) -> str:
        """Return why two groups are not one."""
        index = self.groups.graph.index
        both = sorted([*first, *second], key=index.__getitem__)
        if len(both) > self.limits.most:
            return f"together they have {len(both)} ops, a kernel at most {self.limits.most}"
        if self.groups.makes_cycle(both):
            return "what the one computes reaches the other through an op that is in neither kernel"
        of_first, of_second = [{*operands_of(members)} for members in (first, second)]
        of_first |= {y for x in of_first for y in origins(x)}
        of_second |= {y for x in of_second for y in origins(x)}
        if not of_first & (of_second | {*second}) and not of_second & {*first}:
            return "neither reads the other, and they read nothing in common"
        try:
            name = self._scheduler(both)
        except NoCommonAxes as reason:
            return f"a reshape is between them, and {reason}"
        if not name:
            asked = ", ".join([s.name for s in schedulers(self.limits.target)])
            found = f"no scheduler of '{self.limits.target}' accepts both together"
            return f"{found} (asked: {asked})"
        return f"each joined another kernel first; '{name}' would accept these two"
