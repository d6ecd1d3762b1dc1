"""The public functions of the math, and what operators and methods of tensors hand over to."""

from loopnest.tensor.ops import convolutions, data_movement, gathers, pointwise, slices
from loopnest.tensor.schedule_methods import FusionMethods, ScalarMath, TensorMath, fulfil
from loopnest.tensor.tensor_view import TensorView


def _operate(_: object, name: str, *operands: object) -> object:
    return getattr(pointwise, name)(*operands)


def _operate_on_scalar(_: object, name: str, *operands: object) -> object:
    if isinstance(operands[-1], TensorView):
        return NotImplemented  # that of the TensorView takes over
    return getattr(pointwise, name)(*operands)


fulfil(
    TensorMath,
    _operate=_operate,
    _copied=data_movement.copy,
    __getitem__=slices.basic_index,
    __matmul__=lambda a, b: convolutions.matmul(a, b),
    __rmatmul__=lambda b, a: convolutions.matmul(a, b),
)
fulfil(ScalarMath, _operate=_operate_on_scalar)
fulfil(FusionMethods, _declared_range=gathers.declared_range)
