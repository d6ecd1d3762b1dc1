"""new_launch: a kernel of several launches, workspace between them.

A tensor that starts a launch is computed after everything that the loops around it read and do not
compute themselves. `LoopBody.number_launches` gives each nest of the kernel its launch from that;
here is the primitive, and what it refuses.
"""

from __future__ import annotations

from loopnest.schedule.loop_forest import LoopForest
from loopnest.schedule.loop_groups import SEPARATE, Conflict
from loopnest.schedule.transaction import PrimitiveRefused, primitive, require_computed
from loopnest.tensor.tensor_view import TensorView


@primitive
def new_launch(tensor: TensorView) -> TensorView:
    """Let the loops that compute `tensor` start the next launch; see `TensorView.new_launch`."""
    require_computed(tensor)
    for twin in tensor.siblings:
        tensor.fusion.change(twin, "_starts_launch", True)
    check_launches(tensor)
    return tensor


def check_launches(tensor: TensorView) -> None:
    """Refuse a fusion in which a launch would read, in its own loops, what it computes itself.

    Raises:
        PrimitiveRefused: a tensor shares loops with one in GLOBAL memory that it starts a launch
            after.
    """
    try:
        LoopForest(tensor.fusion).check()
    except Conflict as conflict:
        raise PrimitiveRefused(conflict.reason, SEPARATE) from None


def require_no_launch(tensor: TensorView, call: str) -> None:
    """Refuse to replace the definition of a tensor that starts a launch.

    Which of the two tensors would start it, the new one that reads what `tensor` read or `tensor`
    itself, is for the user to say.
    """
    if tensor.starts_launch:
        raise PrimitiveRefused(
            f"{tensor.name} starts a launch already",
            f"call {call} first, then new_launch() of the tensor that shall start it",
        )
