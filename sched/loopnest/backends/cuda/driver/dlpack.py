"""DLPack: taking and giving arrays in a GPU's memory without copies.

Source: dlpack.h, version 1.1, and the Python specification of DLPack.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType

HOST, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY = 1
_CODES = {"i": 0, "f": 2, "b": 6}
_UNSIGNED = 1
_OWN_CODES = {dtypes.bfloat16: 4, dtypes.float8_e4m3fn: 10, dtypes.float8_e5m2: 12}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_KINDS: dict[bytes, Any] = {b"dltensor_versioned": _Versioned, b"dltensor": _Managed}

# By address alone: a capsule that is being destroyed must not be counted as in use again.
_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


class Taken(NamedTuple):
    """An array of another package; `strides` is in elements, `capsule` keeps it alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    device: int
    read_only: bool
    capsule: object


def device_of(array: object) -> tuple[int, int] | None:
    """Return the kind and number of the device of an array that speaks DLPack, else None."""
    tell = getattr(array, "__dlpack_device__", None)
    if tell is None or not hasattr(array, "__dlpack__"):
        return None
    kind, number = tell()
    return int(kind), int(number)


def take(array: Any, stream: int) -> Taken:
    """Return an array in a GPU's memory, ready for work on `stream`.

    The array stays its owner's: its memory is kept as long as the capsule.
    """
    wanted = stream or 1  # DLPack's number of the legacy default stream
    try:
        capsule = array.__dlpack__(stream=wanted, max_version=(1, 1))
    except TypeError:  # a package from before version 1
        capsule = array.__dlpack__(stream=wanted)
    name = _name_of(id(capsule))
    managed = _KINDS[name].from_address(_pointer_of(id(capsule), name))
    tensor = managed.tensor
    axes = range(tensor.ndim)
    return Taken(
        (tensor.data or 0) + tensor.byte_offset,
        tuple([tensor.shape[i] for i in axes]),
        tuple([tensor.strides[i] for i in axes]) if tensor.strides else None,
        _numpy_type(tensor.dtype),
        tensor.device.id,
        name == b"dltensor_versioned" and bool(managed.flags & _READ_ONLY),
        capsule,
    )


def _numpy_type(found: _Type) -> np.dtype[Any]:
    for dtype in dtypes.ALL:
        if element_code(dtype) == (found.code, found.bits) and found.lanes == 1:
            return dtype.numpy
    letter = {0: "i", 1: "u", 2: "f", 5: "c"}.get(found.code, "V")
    try:
        return np.dtype(f"{letter}{found.bits * found.lanes // 8}")
    except TypeError:
        return np.dtype(f"V{found.bits * found.lanes // 8}")


def element_code(dtype: DType) -> tuple[int, int]:
    """Return what DLPack has of an element type: the code of its kind, and its bits."""
    code = _CODES[dtype.kind] if dtype.signed else _UNSIGNED
    return _OWN_CODES.get(dtype, code), dtype.bits


_given: dict[int, tuple[Any, ...]] = {}
"""What lent tensors need to stay alive, by the address of each, until its deleter is called."""


def give(address: int, shape: tuple[int, ...], dtype: DType, device: int, owner: object) -> object:
    """Return a capsule of an array in C order; `owner` lives as long as anybody uses it."""
    tensor = _Managed()
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    code, bits = element_code(dtype)
    tensor.tensor.data = address
    tensor.tensor.device = _Device(CUDA, device)
    tensor.tensor.ndim = len(shape)
    tensor.tensor.dtype = _Type(code, bits, 1)
    tensor.tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.deleter = _release
    place = ctypes.addressof(tensor)
    _given[place] = (tensor, extents, owner)
    capsule: object = _new_capsule(place, _LENT, ctypes.cast(_destructor, ctypes.c_void_p))
    return capsule


def _forget(place: int) -> None:
    """Let go of a tensor; called by whoever took it out of its capsule."""
    _given.pop(place, None)


def _destroy(capsule: int) -> None:
    """Let go of a tensor whose capsule nobody took: those who do rename it."""
    if _name_of(capsule) == _LENT:
        _forget(_pointer_of(capsule, _LENT))


_LENT = b"dltensor"
_release = _Deleter(_forget)
_destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_destroy)
