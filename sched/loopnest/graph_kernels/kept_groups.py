"""What was decided for a graph, kept on disk: its groups, and the kernels made for them.

Which ops share a kernel is asked of the schedulers hundreds of times, and each kernel is lowered;
none of it depends on the values of constants or variables, or on the process. An entry is named by
all that it follows from: the ops of the graph and their types, the limits of groups, and the source
of this package. A scheduler or a lowering of the user's own is no part of that: then nothing is
kept.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import loopnest as ln
from loopnest.base.pickling import SCHEMA
from loopnest.devtools import tuned_rows
from loopnest.graph.node import Node
from loopnest.graph.program import Graph
from loopnest.graph.registry import get_attr
from loopnest.graph.structural import node_key
from loopnest.graph_kernels.code_gen import Generated, GroupKernel
from loopnest.graph_kernels.kernel_groups import GroupLimits
from loopnest.launch.disk_cache import DiskCache, digest
from loopnest.schedulers import has_only_own_schedulers

_log = logging.getLogger("loopnest")
_FEW = 8
"""Graphs of fewer ops are decided anew: that takes no longer than to read what was decided."""


@dataclass(frozen=True, slots=True)
class KeptGroups:
    """What is kept of a graph.

    Args:
        groups: the numbers of the nodes of each group.
        made: distinct kernels, or why there is none.
        calls: for each call of a group, in order, the number of what was made for it.
    """

    groups: tuple[tuple[int, ...], ...]
    made: tuple[GroupKernel | str, ...]
    calls: tuple[int, ...]

    def generated(self, graph: Graph) -> Generated:
        """Return the kernels of the calls of a graph of groups."""
        pairs = [(c, self.made[n]) for c, n in zip(graph.calls, self.calls, strict=True)]
        kernels = {c: found for c, found in pairs if isinstance(found, GroupKernel)}
        return Generated(kernels, {c: why for c, why in pairs if isinstance(why, str)})


def groups_key(graph: Graph, limits: GroupLimits) -> str | None:
    """Return the name of a graph's entry; None where nothing is kept of it."""
    if len(graph.nodes) < _FEW or not has_only_own_schedulers():
        return None
    numbers: dict[Node, int] = {}
    rows: list[Hashable] = []
    for node in graph.nodes:
        if not _is_own(node):
            return None
        numbers[node] = len(numbers)
        operands = tuple([numbers[x] for x in node.inputs])
        rows.append((_row(node), operands))
    ends = tuple([numbers[x] for x in graph.outputs])
    tuned = repr(tuned_rows.state())
    return digest(package_digest(), tuned, repr(limits), repr(rows), repr(ends))


def _row(node: Node) -> Hashable:
    """Return what a kernel may depend on: all but the values of arrays."""
    if node.op in ("var", "variable") or (node.op == "const" and node.ndim):
        return (node.op, node.attrs.get("variable"), str(node.type))
    return node_key(node)


def _is_own(node: Node) -> bool:
    """Whether it is this package that says what an op is."""
    rules = [get_attr(node, key, None) for key in ("lower", "decompose")]
    names = [getattr(rule, "__module__", "") for rule in rules if rule is not None]
    return all(name.startswith("loopnest.") for name in names)


@cache
def package_digest() -> str:
    """Return what names the code that decides: its version, and when each file was written."""
    folder = Path(ln.__file__).parent
    files = []
    for path in sorted(folder.rglob("*.py")):
        state = os.stat(path)
        files.append(f"{path.relative_to(folder)} {state.st_mtime_ns} {state.st_size}")
    return digest(str(SCHEMA), *files)


def read_groups(key: str | None) -> KeptGroups | None:
    """Return what is kept under a name; None where there is nothing that can be read."""
    data = None if key is None else DiskCache("groups").get(key)
    if data is None:
        return None
    try:
        found = pickle.loads(data)
    except Exception as error:  # of another version of Python or NumPy: it is made again
        _log.info("kept groups cannot be read (%s): they are made again", error)
        return None
    return found if isinstance(found, KeptGroups) else None


def keep_groups(
    key: str | None, before: Graph, groups: Sequence[Sequence[Node]], graph: Graph, found: Generated
) -> None:
    """Keep what was decided.

    Args:
        key: the name, None for none.
        before: the graph whose nodes the groups are.
        groups: its groups.
        graph: the graph of calls.
        found: their kernels.
    """
    if key is None:
        return
    index = before.index
    numbers: dict[object, int] = {}
    made: list[GroupKernel | str] = []
    calls: list[int] = []
    for call in graph.calls:
        own: GroupKernel | str = found.kernels.get(call) or found.refused[call]
        if id(own) not in numbers:
            numbers[id(own)] = len(made)
            made.append(own)
        calls.append(numbers[id(own)])
    places = tuple([tuple([index[x] for x in group]) for group in groups])
    kept = KeptGroups(places, tuple(made), tuple(calls))
    DiskCache("groups").put(key, pickle.dumps(kept, pickle.HIGHEST_PROTOCOL))
