"""Torch's tensors as arrays of NumPy and back, without copies; and its element types as ours."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType

Tensor: TypeAlias = "Any"  # torch is an extra: its types are not there for the type checker

_TYPES = {getattr(torch, dtype.name): dtype for dtype in dtypes.ALL if hasattr(torch, dtype.name)}
_TORCH = {dtype: own for own, dtype in _TYPES.items()}
_BITS = {1: torch.uint8, 2: torch.int16}


def dtype_of_torch(own: Any) -> DType | None:
    """Return the element type that torch calls `own`; None where loopnest has none."""
    return _TYPES.get(own)


def torch_dtype(dtype: DType) -> Any:
    """Return what torch calls an element type."""
    return _TORCH[dtype]


def array_of(tensor: Tensor) -> Any:
    """Return a tensor of the CPU as an array on the same memory.

    NumPy has no bfloat16 and no floats of 8 bits of its own: these go through their bits.
    """
    plain = tensor.detach()
    dtype = _TYPES[plain.dtype]
    if dtype.is_narrow and dtype is not dtypes.float16:
        return plain.view(_BITS[dtype.size]).numpy().view(dtype.numpy)
    return plain.numpy()


def tensor_of(array: Any) -> Tensor:
    """Return an array as a tensor on the same memory."""
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is not None and dtype.is_narrow and dtype is not dtypes.float16:
        bits = torch.from_numpy(array.view(f"i{dtype.size}" if dtype.size > 1 else "u1"))
        return bits.view(_TORCH[dtype])
    return torch.from_numpy(array)
