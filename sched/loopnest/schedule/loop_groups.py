"""What a loop forest is made of: groups of axes that share a loop, classes of root axes."""

from __future__ import annotations

from loopnest.tensor.domain import IterDomain
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import TensorView


class Conflict(Exception):
    """These positions have no loop nest; `reason` names the tensors."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


SEPARATE = "give them separate loops, or keep what is read in LOCAL or SHARED memory"
"""What helps against a `LaunchConflict`."""


class LaunchConflict(Conflict):
    """A tensor would be computed in the loops of one that starts a launch after it."""


ELSEWHERE = "compute it outside of that loop, or give the repetition a loop of its own"
"""What helps against a `MergedRepetition`."""


class MergedRepetition(Conflict):
    """A tensor would be computed in a loop that repeats it, merged with what tells its elements."""


def is_several_launches(fusion: Fusion) -> bool:
    """Whether a tensor starts a launch (`TensorView.new_launch`)."""
    return any(tensor.starts_launch for tensor in fusion.tensors)


class LoopGroup:
    """One loop: the leaf axes that share it, and the loop around it."""

    __slots__ = ("axes", "earliest", "forward", "outer")

    def __init__(self, axis: IterDomain, outer: LoopGroup | None, earliest: int) -> None:
        self.axes = [axis]
        self.earliest = earliest
        self.outer = outer
        self.forward: LoopGroup | None = None

    def find(self) -> LoopGroup:
        """Return the group that this one was united into."""
        group = self
        while group.forward is not None:
            group = group.forward
        if group is not self:
            self.forward = group
        return group

    def enclosing(self) -> LoopGroup | None:
        """Return the group of the loop around this one."""
        return None if self.outer is None else self.outer.find()

    def path(self) -> tuple[LoopGroup, ...]:
        """Return the groups from the outermost loop to this one."""
        result: list[LoopGroup] = []
        group: LoopGroup | None = self.find()
        while group is not None:
            result.append(group)
            group = group.enclosing()
        return tuple(reversed(result))


class RootClass:
    """Root axes that stand for one axis of the math inside shared loops (rules 18 to 20)."""

    __slots__ = ("_concrete", "derived", "forward", "members")

    def __init__(self, tensor: TensorView, axis: IterDomain) -> None:
        self.members: dict[tuple[TensorView, bool], IterDomain] = {
            (tensor, axis in tensor.domain.root): axis
        }
        self.forward: RootClass | None = None
        self._concrete = axis
        definition = tensor.definition
        folds = definition is not None and definition.reducer is not None
        self.derived = axis if folds and axis.definition is not None else None
        """A member that a factored reduction made from others, if there is one."""

    def find(self) -> RootClass:
        """Return the class that this one was united into."""
        found = self
        while found.forward is not None:
            found = found.forward
        return found

    def absorb(self, other: RootClass) -> None:
        """Take the members of `other`, which is this class from now on."""
        self.members.update(other.members)
        if self._concrete.is_broadcast:
            self._concrete = other._concrete
        if self.derived is None:
            self.derived = other.derived
        other.forward = self

    def concrete(self) -> IterDomain:
        """Return a member that is no broadcast, if there is one; else a broadcast (rule 20)."""
        return self._concrete
