"""Checks of what a fusion declares: shapes, element types, outputs in the memory of inputs."""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import DType, listed
from loopnest.tensor.tensor_view import TensorView


def as_shape(call: str, shape: object) -> tuple[object, ...]:
    """Return a shape as a tuple of what may be extents.

    Raises:
        DefinitionError: it has no elements.
    """
    if isinstance(shape, (str, bytes)) or not isinstance(shape, Iterable):
        raise DefinitionError(call, f"the shape {shape!r} is not a tuple of extents")
    try:
        return tuple(shape)
    except TypeError:  # an array without axes
        raise DefinitionError(call, f"the shape {shape!r} is not a tuple of extents") from None


def check_dtype(call: str, dtype: object) -> None:
    """Refuse what is no element type.

    Raises:
        DefinitionError: `dtype` is no element type, or is the type of indices.
    """
    if not isinstance(dtype, DType) or dtype.kind == "x":
        raise DefinitionError(
            call,
            f"{dtype!r} is no element type",
            f"use {listed()}",
        )


def check_inplace(call: str, tensor: TensorView, target: object) -> None:
    """Refuse what an output cannot take the memory of.

    Raises:
        DefinitionError: no input, one that is overwritten already, another type or shape, strides.
    """
    fusion = tensor.fusion
    if not isinstance(target, TensorView) or target not in fusion.inputs:
        raise DefinitionError(call, "inplace= is not an input of this fusion")
    if target in fusion.inplace.values():
        raise DefinitionError(call, f"{target.name} is overwritten by another output already")
    if target.dtype is not tensor.dtype or target.sizes != tensor.sizes:
        raise DefinitionError(
            call,
            f"{tensor.name} is {tensor.signature} but {target.name} is {target.signature}",
            "an output takes the memory of an input of the same shape and type",
        )
    if target.strides is not None:
        raise DefinitionError(
            call, f"{target.name} has strides of its own", "an output is C-contiguous"
        )
