"""new_launch: a kernel of several launches, workspace between them.

A tensor that starts a launch is computed after everything that the loops around it read and do not
compute themselves. `LoopBody.number_launches` gives each nest of the kernel its launch from that;
here is the primitive, and what it refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def hand_over_launch(tensor: TensorView, made: Sequence[TensorView]) -> None:
    """Let new tensors that compute what `tensor` did start the launch that it started.

    Those do that read none of the others: what `tensor` read is still computed before the launch,
    and all that its value is made of in it.

    Args:
        tensor: with its new definition.
        made: the tensors that the call made; all that its old definition read, these read.
    """
    if not tensor.starts_launch:
        return
    fusion = tensor.fusion
    for new in made:
        if not any(producer in made for producer in new.producers):
            fusion.change(new, "_starts_launch", True)
    for twin in tensor.siblings:
        fusion.change(twin, "_starts_launch", False)
    check_launches(tensor)
