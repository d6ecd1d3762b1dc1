"""The language of math, schedules and kernels: the public names that need no tool.

What stands on them is written in them: automatic schedulers, random schedules. `loopnest` itself
has these names, and those of the tools.

Types and errors are loaded at once; what is imported below for type checkers alone is loaded when
first used, so that `import loopnest` stays light, also where Python cannot keep what it has
compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import CodeType
from typing import TYPE_CHECKING

from loopnest.base.errors import (
    CompileError,
    CostError,
    DefinitionError,
    InternalError,
    KernelFault,
    LaunchError,
    LoopnestError,
    LoweringError,
    NotSupported,
    ScheduleError,
    VerifyError,
)
from loopnest.scalar.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
)
from loopnest.scalar.dtypes import bool_ as bool
from loopnest.scalar.enums import IterKind, Memory, ParallelType, Swizzle

if TYPE_CHECKING:  # what is loaded when first used
    from loopnest import kir
    from loopnest.backends.cpu.machine_probe import machine
    from loopnest.backends.interpret.diagnosis import diagnose
    from loopnest.facade.kernel_class import Kernel, compile, compile_many, load, lower
    from loopnest.kir.instruction_rows import Instruction, Operand, add_instruction, instructions
    from loopnest.numerics.error_bounds import error_bound
    from loopnest.numerics.oracle import evaluate
    from loopnest.proofs import verify
    from loopnest.proofs.bit_claims import batch_invariant, same_bits
    from loopnest.scalar.fragments import Fragment
    from loopnest.schedule.chains import common_consumers, dependency_chains, use_chains
    from loopnest.schedule.inlining import inline_most
    from loopnest.schedule.propagation import parallelize_like, propagate, replay_casp, replay_pasc
    from loopnest.schedule.root_maps import root_map
    from loopnest.tensor.domain import IterDomain, TensorDomain
    from loopnest.tensor.fusion import Fusion
    from loopnest.tensor.ops.conversions import cast
    from loopnest.tensor.ops.convolutions import conv, matmul
    from loopnest.tensor.ops.data_movement import broadcast, expand, full, iota, permute, squeeze
    from loopnest.tensor.ops.gathers import (
        RaggedRows,
        gather,
        index_add,
        scatter,
        scatter_add,
        scatter_max,
        scatter_min,
        segments,
        take,
    )
    from loopnest.tensor.ops.own_reducers import Reducer
    from loopnest.tensor.ops.pointwise import (
        abs,
        add,
        bitand,
        bitor,
        bitxor,
        ceil,
        clamp,
        cos,
        div,
        eq,
        erf,
        exp,
        exp2,
        floor,
        floordiv,
        fma,
        ge,
        gelu,
        gt,
        invert,
        isnan,
        le,
        log,
        log1p,
        log2,
        logical_and,
        logical_not,
        logical_or,
        lshift,
        lt,
        maximum,
        minimum,
        mod,
        mul,
        ne,
        neg,
        pow,
        reciprocal,
        relu,
        round,
        rshift,
        rsqrt,
        sigmoid,
        silu,
        sin,
        sqrt,
        sub,
        tan,
        tanh,
        trunc,
        where,
    )
    from loopnest.tensor.ops.random_numbers import dropout, random_bits, random_uniform
    from loopnest.tensor.ops.reductions import all, any, max, mean, min, prod, sum, var, welford
    from loopnest.tensor.ops.reshapes import flatten, reshape
    from loopnest.tensor.ops.slices import concatenate, flip, roll, slice, stack
    from loopnest.tensor.ops.sliding_windows import avg_pool, max_pool, pad, unfold
    from loopnest.tensor.ops.sorts import argsort, searchsorted, sort, topk
    from loopnest.tensor.ops.step_loops import recur
    from loopnest.tensor.ops.tuple_reductions import (
        argmax,
        argmin,
        cummax,
        cumprod,
        cumsum,
        logsumexp,
        reduce,
        scan,
    )
    from loopnest.tensor.tensor_view import TensorView

LOCAL, WARP = Memory.LOCAL, Memory.WARP
SHARED, GLOBAL = Memory.SHARED, Memory.GLOBAL

__all__ = [
    "GLOBAL",
    "LOCAL",
    "SHARED",
    "WARP",
    "CompileError",
    "CostError",
    "DType",
    "DefinitionError",
    "Fragment",
    "Fusion",
    "Instruction",
    "InternalError",
    "IterDomain",
    "IterKind",
    "Kernel",
    "KernelFault",
    "LaunchError",
    "LoopnestError",
    "LoweringError",
    "Memory",
    "NotSupported",
    "Operand",
    "ParallelType",
    "RaggedRows",
    "Reducer",
    "ScheduleError",
    "Swizzle",
    "TensorDomain",
    "TensorView",
    "VerifyError",
    "abs",
    "add",
    "add_instruction",
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "avg_pool",
    "batch_invariant",
    "bfloat16",
    "bitand",
    "bitor",
    "bitxor",
    "bool",
    "broadcast",
    "cast",
    "ceil",
    "clamp",
    "common_consumers",
    "compile",
    "compile_many",
    "concatenate",
    "conv",
    "cos",
    "cummax",
    "cumprod",
    "cumsum",
    "dependency_chains",
    "diagnose",
    "div",
    "dropout",
    "eq",
    "erf",
    "error_bound",
    "evaluate",
    "exp",
    "exp2",
    "expand",
    "flatten",
    "flip",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "floor",
    "floordiv",
    "fma",
    "full",
    "gather",
    "ge",
    "gelu",
    "gt",
    "index_add",
    "inline_most",
    "instructions",
    "int8",
    "int16",
    "int32",
    "int64",
    "invert",
    "iota",
    "isnan",
    "kir",
    "le",
    "load",
    "log",
    "log1p",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsumexp",
    "lower",
    "lshift",
    "lt",
    "machine",
    "matmul",
    "max",
    "max_pool",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mod",
    "mul",
    "ne",
    "neg",
    "pad",
    "parallelize_like",
    "permute",
    "pow",
    "prod",
    "propagate",
    "random_bits",
    "random_uniform",
    "reciprocal",
    "recur",
    "reduce",
    "relu",
    "replay_casp",
    "replay_pasc",
    "reshape",
    "roll",
    "root_map",
    "round",
    "rshift",
    "rsqrt",
    "same_bits",
    "scan",
    "scatter",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "searchsorted",
    "segments",
    "sigmoid",
    "silu",
    "sin",
    "slice",
    "sort",
    "sqrt",
    "squeeze",
    "stack",
    "sub",
    "sum",
    "take",
    "tan",
    "tanh",
    "topk",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "unfold",
    "use_chains",
    "var",
    "verify",
    "welford",
    "where",
]


def lazy_value(name: str, code: CodeType) -> object:
    """Return what the code of a module imports by `name`, in a block that does not run.

    Source: modulefinder of the standard library, which finds imports so.
    """
    source = _imported(code)[name]
    if source == "loopnest":
        return import_module(f"{source}.{name}")
    value: object = getattr(import_module(source), name)
    return value


@cache
def _imported(code: CodeType) -> Mapping[str, str]:
    """Return the module of each name that the code of a module imports from one."""
    from dis import get_instructions

    found, module = {}, ""
    for step in get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = step.argval
        elif step.opname == "IMPORT_FROM":
            found[step.argval] = module
    return found


_CODE = sys._getframe().f_code


def _attribute(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'loopnest' has no attribute '{name}'")
    globals()[name] = value = lazy_value(name, _CODE)
    return value


if not TYPE_CHECKING:  # for whom any name would be one of ours
    __getattr__ = _attribute
