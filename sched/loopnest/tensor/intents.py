"""What a schedule call means to achieve: data for the notes on a lowered kernel, and for errors."""

from __future__ import annotations

import os
from dataclasses import dataclass

from loopnest.base.fast_init import fast_init
from loopnest.scalar.origin import Origin
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Intent:
    """What a schedule call means to achieve, as the lowered nest can witness it.

    Args:
        origin: the call, and its place in the user's code.
        kind: the field that it set: "parallel", "pinned", "place", "loops", "memory", "order",
            "pad", "swizzle", "stages", "move", "instruction", "launch" (it starts one), "tensor"
            (a new one), "assume", "range" (of an input's elements), "left" (it keeps loops that
            were to be shared),
            "lost" (axes that users named gave way to loops of another tensor; their names),
            "stored" and "elements" (an automatic schedule ends its loops there, or has the
            plainest), or "unchanged" where all was so before.
        tensor: whose field; None for an assumption.
        axis: the axis of which "parallel" and "pinned" speak.
        value: what it was set to, where a checker reads it.
        of: the tensor of which the call is a method; None for a function.
    """

    origin: Origin
    kind: str
    tensor: TensorView | None = None
    axis: IterDomain | None = None
    value: object = None
    of: TensorView | None = None


def place_of(call: Origin) -> str:
    """Return a call with file and line, for a sentence."""
    return f"{call.call} ({os.path.basename(call.file)}:{call.line})"


def take_back(tensor: TensorView) -> str:
    """Return the advice to take back the calls that placed a tensor, or others inside of it.

    They are those of ``Fusion.trace`` by which its leading loops are shared.
    """
    near = [t for twin in tensor.siblings for p in twin.producers for t in p.siblings]
    held = {t for t in (*tensor.siblings, *near) if t.compute_at_pos}
    calls = dict.fromkeys(
        [i.origin for i in tensor.fusion.intents if i.kind == "place" and i.tensor in held]
    )
    shown = [place_of(call) for call in calls]
    if not shown:
        return "make this call before compute_at"
    *others, last = shown
    them = f"{', '.join(others)} and {last}" if others else last
    return f"take back {them}, and make {'them' if others else 'it'} after this call"


@fast_init
@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Why a tensor keeps loops of its own: it was to share all, and shares the leading `pos`."""

    pos: int
    why: str
    remedy: str
