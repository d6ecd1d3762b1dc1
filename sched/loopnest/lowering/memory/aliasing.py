"""Pass "aliases": SHARED buffers that do not live at the same time take the same space.

Requires guarded statements. Ensures that a buffer with `alias_of` is live in no item of a body in
which another buffer of its space is live; a buffer lives from its first access to its last, in the
innermost body that holds the homes of both. It comes after circular buffers, which prolong lives,
and before barriers, which order the last access to the one and the first to the other.

Scratch of collectives takes part only where that saves a kilobyte: an alias may cost a barrier.

Before: ``T2: float32[256] shared; T2 = x; y = T2; T5: float32[256] shared``; after: ``T5 … = T2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from loopnest.kir import Allocate, Store, expressions
from loopnest.lowering.loops.guarded_tree import Guarded, Tree, TreeItem, with_buffers
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Const, loads

_LEAST_SCRATCH = 1024
"""Bytes of scratch that are worth a barrier."""

_Path = tuple[int, ...]
"""A place in the tree: the position of an item in each body on the way to it."""


@dataclass(eq=False, slots=True)
class _Life:
    """Where a buffer is made, and where it is accessed."""

    buffer: Buffer
    home: _Path
    accesses: list[_Path] = field(default_factory=list)


def share_space(tree: Tree) -> Tree:
    """Return `tree` with SHARED buffers in each other's space where their lives allow it."""
    leaves = list(_leaves(tree, ()))
    lives = {
        item.storage: _Life(item.storage, path)
        for path, item in leaves
        if isinstance(item, Allocate) and item.storage.memory is Memory.SHARED
    }
    if len(lives) < 2:
        return tree
    for path, item in leaves:
        if isinstance(item, Guarded):
            for buffer in _accessed(item):
                if buffer in lives:
                    lives[buffer].accesses.append(path)
    spaces: list[_Space] = []
    renamed: dict[Buffer, Buffer] = {}
    for life in lives.values():
        space = next((s for s in spaces if s.fits(life)), None)
        if space is None:
            spaces.append(_Space(life))
        else:
            space.add(life)
            first = space.lives[0].buffer
            renamed[life.buffer] = replace(life.buffer, alias_of=first.name)
    made = with_buffers(tree, renamed) if renamed else tree
    assert isinstance(made, Tree)
    return made


def _leaves(tree: Tree, path: _Path) -> Iterator[tuple[_Path, TreeItem]]:
    for place, item in enumerate(tree.body):
        if isinstance(item, Tree):
            yield from _leaves(item, (*path, place))
        else:
            yield (*path, place), item


def _accessed(item: Guarded) -> Iterator[Buffer]:
    for term in item.terms:  # a test of data reads them
        yield from (load.buffer for load in loads(term.condition))
    for node in item.statements:
        if isinstance(node, Store):
            yield node.storage
        for value in expressions(node):
            yield from (load.buffer for load in loads(value))


class _Space:
    """Buffers in one space, whose lives are apart.

    All of them live in one body, at `depth`; there they are over at `last`.
    """

    def __init__(self, life: _Life) -> None:
        self.lives = [life]
        self.scratch = life.buffer.kind == "scratch"
        self.depth = len(life.home) - 1
        self.last = _last(life, self.depth)

    def fits(self, life: _Life) -> bool:
        """Whether a buffer may take this space too."""
        if not self._is_over(life) and not all(_apart(life, other) for other in self.lives):
            return False
        scratch = self.scratch or life.buffer.kind == "scratch"
        # An alias may cost a barrier, which scratch of a few warps does not pay for.
        return not scratch or _bytes(life.buffer) >= _LEAST_SCRATCH

    def _is_over(self, life: _Life) -> bool:
        """Whether all is over, in the body that all live in, before `life` begins there."""
        body = self.lives[0].home[: self.depth]
        if life.home[: self.depth] != body or len(life.home) <= self.depth:
            return False
        return self.last < life.home[self.depth]

    def add(self, life: _Life) -> None:
        """Put a buffer there that fits."""
        self.lives.append(life)
        self.scratch = self.scratch or life.buffer.kind == "scratch"
        depth, first = self.depth, self.lives[0].home
        while life.home[:depth] != first[:depth] or len(life.home) <= depth:
            depth -= 1
        if depth < self.depth:
            self.depth = depth
            self.last = max([_last(other, depth) for other in self.lives])
        self.last = max(self.last, _last(life, depth))


def _last(life: _Life, depth: int) -> int:
    """Return the last place at a depth where a buffer is made or accessed."""
    return max([path[depth] for path in (life.home, *life.accesses)])


def _bytes(buffer: Buffer) -> int:
    if not isinstance(buffer.size, Const):
        return 0
    return int(buffer.size.value) * buffer.dtype.size


def _apart(a: _Life, b: _Life) -> bool:
    """Whether the one is not accessed any more before the other is."""
    depth = 0
    # In the innermost body that both are made in: in a loop inside of it, the accesses of one
    # iteration are followed by those of the next, so that whole items of that body are compared.
    while depth < min(len(a.home), len(b.home)) - 1 and a.home[depth] == b.home[depth]:
        depth += 1
    mine = [path[depth] for path in a.accesses]
    theirs = [path[depth] for path in b.accesses]
    if not mine or not theirs:
        return True
    return max(mine) < min(theirs) or max(theirs) < min(mine)
