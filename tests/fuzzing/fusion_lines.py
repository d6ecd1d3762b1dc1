"""The lines of random math: definitions in a session, and operands among what there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import loopnest as ln
from loopnest.devtools.fuzzing.case_lines import Session


class FusionLines:
    """Defines tensors in a session, and picks operands among them.

    Args:
        session: an empty one.
        rng: decides everything.
        dims: the extents of inputs.
    """

    def __init__(self, session: Session, rng: Random, dims: Sequence[int | str] = ()) -> None:
        self.session, self.rng = session, rng
        self.count = 0
        self.dims: list[int | str] = list(dims)

    # Lines

    def _line(self, name: str, text: str) -> bool:
        return self.session.define(f"{name} = {text}")

    def _define(self, text: str) -> bool:
        """Define the next tensor; refused math is passed over."""
        if not self._line(f"t{self.count}", text):
            return False
        self.count += 1
        return True

    # What there is

    def _tensors(self, test: Callable[[ln.TensorView], bool] = lambda _: True) -> list[str]:
        session = self.session
        return [n for n in session.tensors if test(session.tensor(n))]

    def _pick(self, test: Callable[[ln.TensorView], bool] = lambda _: True) -> str | None:
        """Return a tensor, a recent one more often."""
        names = self._tensors(test)
        if not names:
            return None
        if self.rng.random() < 0.5:
            names = names[-3:]
        return self.rng.choice(names)

    def _mate(self, name: str) -> str:
        """Return a second operand: a tensor, a scalar or a number."""
        rng = self.rng
        if "a0" in self.session.names and rng.random() < 0.2:
            return "a0"
        if rng.random() < 0.2:
            return rng.choice(["2.0", "0.5", "-1.25", "3", "1", "-2"])
        own = self.session.tensor(name)
        mates = self._tensors(lambda t: meets(own, t))
        return rng.choice(mates)


def meets(a: ln.TensorView, b: ln.TensorView) -> bool:
    """Whether two tensors meet by NumPy's rule."""
    pairs = zip(reversed(a.domain.logical), reversed(b.domain.logical), strict=False)
    return all(x.is_broadcast or y.is_broadcast or x.size is y.size for x, y in pairs)
