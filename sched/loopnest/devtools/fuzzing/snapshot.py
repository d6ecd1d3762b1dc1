"""A full snapshot of a fusion, to prove that a refused call changed nothing.

Everything is compared by identity where the library compares by identity: replacing an axis or a
domain by an equal one is a change.
"""

from __future__ import annotations

from typing import Any

import loopnest as ln
from loopnest.devtools.fuzzing.failures import Failure
from loopnest.tensor.overlapping_tiles import same_loops

State = dict[str, Any]


class Snapshot:
    """The state of a fusion at one moment."""

    def __init__(self, fusion: ln.Fusion) -> None:
        self.fusion = fusion
        self.state = _state(fusion)
        self.frozen = {t: (t.leaf_domain[: t.frozen], _positions(t)) for t in fusion.tensors}

    def require_same(self, line: str, error: Exception | None) -> None:
        """Raise `Failure` where anything differs now from what it was.

        `error` is what refused the call; None where the call is a query.
        """
        changed = self.differences()
        if changed:
            call = "a query" if error is None else f"a call that was refused ({error})"
            raise Failure("transaction", f"{call} changed {'; '.join(changed[:6])}", line)

    def differences(self) -> list[str]:
        now = _state(self.fusion)
        keys = dict.fromkeys((*self.state, *now))
        return [
            f"{key} from {self.state.get(key, 'nothing')} to {now.get(key, 'nothing')}"
            for key in keys
            if self.state.get(key) != now.get(key)
        ]

    def require_frozen(self, line: str) -> None:
        """Raise `Failure` where a frozen axis moved, or a position fell (rules 7 and 9)."""
        for tensor, (leaf, positions) in self.frozen.items():
            if not same_loops(leaf, tensor.leaf_domain[: len(leaf)]):
                raise Failure("frozen", f"{tensor.name}: a frozen axis moved; now {tensor}", line)
            fell = [a for a, b in zip(positions, _positions(tensor), strict=True) if b < a]
            if fell:
                raise Failure("frozen", f"{tensor.name}: a position fell; now {tensor}", line)
        if self.fusion._depth or self.fusion.calling:
            raise Failure("transaction", "the call left its transaction open", line)


def _positions(tensor: ln.TensorView) -> tuple[int, int]:
    return tensor.compute_at_pos, tensor.produced_at_pos


def _state(fusion: ln.Fusion) -> State:
    state: State = {
        "tensors": fusion.tensors,
        "inputs": fusion.inputs,
        "outputs": fusion.outputs,
        "inplace": dict(fusion.inplace),
        "symbols": fusion.symbols,
        "names": dict(fusion._names),
        "numbers": fusion._numbers,
        "transaction": (fusion.state[0], fusion._depth, fusion.calling),
    }
    for number, tensor in enumerate(fusion.tensors):
        domain = tensor.domain
        state[f"tensor {number}"] = (
            tensor, str(tensor), tensor.definition, domain, tensor.consumers, tensor.clones,
            tensor.memory, tensor.layout, *_positions(tensor), tensor.placed, tensor.reduction,
            tensor.starts_launch,
        )  # fmt: skip
        state[f"domain {number}"] = (domain.root, domain.rfactor, domain.leaf, domain.allocation)
        axes = dict.fromkeys(domain.axes())
        for step in domain.history:
            axes |= dict.fromkeys((*step.inputs, *step.outputs))
        state[f"axes {number}"] = tuple(
            (a, a.size, a.kind, a.parallel, a.pinned, a.owner, a.definition) for a in axes
        )
    return state
