"""The table of interned nodes: one object for all that are equal.

A key names a node by its fields. The table holds its nodes; those that nothing else refers to are
dropped whenever it has grown to twice what was left of it. A weak reference a node would free each
of them at once, and costs as much as the node itself, twice: where it is made, and where its
callback runs.

Source: the unique table of BDD packages, swept when it has grown (Brace, Rudell, Bryant, "Efficient
implementation of a BDD package", DAC 1990).
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from sys import getrefcount
from threading import Lock
from typing import Generic, TypeVar

Node = TypeVar("Node")

FEWEST = 1 << 14
"""The table is never swept below as many nodes."""

_UNSHARED = 3
"""References to a node that a sweep alone holds: its item, its variable, the count's argument."""


class InternTable(Generic[Node]):
    """Nodes by key. `find` looks for one; `add` makes one known."""

    def __init__(self) -> None:
        self._nodes: dict[Hashable, Node] = {}
        self._limit = FEWEST
        self._lock = Lock()
        # Looking for a node takes no lock: a sweep first takes all nodes out of the table, so that
        # who finds one holds it before the sweep counts its references.
        self.find = self._nodes.get

    def guard_forks(self) -> None:
        """Fork this process only between two additions, for a table that lives as long as it.

        A child has the thread that forked alone: a lock that another one held is never released
        there, and the nodes of a sweep under way are lost.
        """
        if hasattr(os, "register_at_fork"):
            release = self._lock.release
            os.register_at_fork(
                before=self._lock.acquire, after_in_parent=release, after_in_child=release
            )

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, key: Hashable, node: Node) -> Node:
        """Return the node of `key`: the known one if another thread was faster, else `node`."""
        with self._lock:
            found = self._nodes.setdefault(key, node)
            if len(self._nodes) > self._limit:
                self._sweep()
            return found

    def sweep(self) -> None:
        """Drop the nodes that nothing else refers to."""
        with self._lock:
            self._sweep()

    def _sweep(self) -> None:
        items = list(self._nodes.items())
        kept: list[tuple[Hashable, Node]] = []
        try:
            self._nodes.clear()
            # Operands are made before their users, so that backwards each node comes after all
            # that could still hold it.
            while items:
                item = items[-1]
                node = item[1]
                if getrefcount(node) > _UNSHARED:
                    kept.append(item)
                items.pop()
        finally:
            # A signal stops a sweep anywhere: nodes that it has not looked at stay known, or equal
            # expressions would not be one object any more.
            kept.reverse()
            self._nodes.update(items)
            self._nodes.update(kept)
        self._limit = max(FEWEST, 2 * len(kept))
