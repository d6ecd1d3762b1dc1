"""Compile printed C and call it."""

import ctypes

import numpy as np

from loopnest.backends.clike.identifiers import symbol
from loopnest.backends.cpu.c_compiler import compile_c
from loopnest.backends.cpu.c_printer import print_c
from loopnest.scalar.expr import Const, Op, Symbol

_SCALARS = {"bool": ctypes.c_bool, "int32": ctypes.c_int32, "int64": ctypes.c_int64,
            "float32": ctypes.c_float, "float64": ctypes.c_double}  # fmt: skip


def run_c(program, sizes=None, bits=64, optimize=1, openmp=True, before="", **values):
    """Run a program on arrays and scalars by name, and return what the kernel returned.

    Outputs that are not given are made, filled with what no kernel computes; all arrays are put
    into `values` of the result. Sizes that no input tells are given in `sizes`; `before` is put in
    front of the text.
    """
    library = compile_c(before + print_c(program, bits), optimize=optimize, openmp=openmp)
    function = library.function(symbol(program.name), restype=ctypes.c_int)
    function.argtypes = None
    sizes = dict(sizes or {})
    for param in program.params:
        if param.name in values and param.buffer is not None:
            shape = zip(param.shape, values[param.name].shape, strict=True)
            sizes.update({e.name: n for e, n in shape if isinstance(e, Symbol)})
    arguments = []
    for param in program.params:
        if param.kind == "size":
            arguments.append(ctypes.c_int64(sizes[param.name]))
        elif param.buffer is None:
            arguments.append(_SCALARS[param.dtype.name](values[param.name]))
        else:
            array = values.get(param.name)
            if array is None:
                shape = [evaluate(e, sizes) for e in param.shape]
                array = values[param.name] = np.full(shape, 77, param.dtype.numpy)
            assert array.dtype == param.dtype.numpy, param.name
            assert array.flags.c_contiguous, param.name
            arguments.append(ctypes.c_void_p(array.ctypes.data))
    return Result(function(*arguments), values)


class Result(dict):
    """The arrays after a call, by name, and the `status` that the kernel returned."""

    def __init__(self, status, values):
        super().__init__(values)
        self.status = status


def evaluate(node, sizes):
    """Return the value of an extent."""
    if isinstance(node, Const):
        return node.value
    if isinstance(node, Symbol):
        return sizes[node.name]
    assert isinstance(node, Op), node
    a, b = (evaluate(arg, sizes) for arg in node.args)
    return {"add": a + b, "sub": a - b, "mul": a * b, "floordiv": a // b}[node.op]
