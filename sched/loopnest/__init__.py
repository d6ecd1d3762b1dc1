"""Write the math once, schedule its loops, read the loop nest, run it.

Types and errors are loaded at once; what `_LAZY` names is loaded when first used, so that
`import loopnest` stays light, also where Python cannot keep what it has compiled.
"""

from __future__ import annotations

from importlib import import_module
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

if TYPE_CHECKING:  # what is loaded when first used: the same names as in _LAZY
    from loopnest import kir
    from loopnest.backends.cpu.machine_probe import machine
    from loopnest.backends.interpret.diagnosis import diagnose
    from loopnest.costs import assert_cost, profile
    from loopnest.devtools.cli import main
    from loopnest.devtools.explanation import bisect, explain, explain_inline
    from loopnest.devtools.kernel_def import KernelDef, kernel
    from loopnest.devtools.tuning import tune
    from loopnest.devtools.tuning_space import choice
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
    from loopnest.schedulers.scheduler_table import auto_schedule
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

_LAZY = {
    name: module
    for module, names in {
        "loopnest.backends.cpu.machine_probe": "machine",
        "loopnest.backends.interpret.diagnosis": "diagnose",
        "loopnest.costs": "assert_cost profile",
        "loopnest.devtools.cli": "main",
        "loopnest.devtools.explanation": "bisect explain explain_inline",
        "loopnest.devtools.kernel_def": "KernelDef kernel",
        "loopnest.devtools.tuning": "tune",
        "loopnest.devtools.tuning_space": "choice",
        "loopnest.facade.kernel_class": "Kernel compile compile_many load lower",
        "loopnest.kir": "kir",
        "loopnest.kir.instruction_rows": "Instruction Operand add_instruction instructions",
        "loopnest.numerics.error_bounds": "error_bound",
        "loopnest.numerics.oracle": "evaluate",
        "loopnest.proofs": "verify",
        "loopnest.proofs.bit_claims": "batch_invariant same_bits",
        "loopnest.scalar.fragments": "Fragment",
        "loopnest.schedule.chains": "common_consumers dependency_chains use_chains",
        "loopnest.schedule.inlining": "inline_most",
        "loopnest.schedule.propagation": "parallelize_like propagate replay_casp replay_pasc",
        "loopnest.schedule.root_maps": "root_map",
        "loopnest.schedulers.scheduler_table": "auto_schedule",
        "loopnest.tensor.domain": "IterDomain TensorDomain",
        "loopnest.tensor.fusion": "Fusion",
        "loopnest.tensor.ops.conversions": "cast",
        "loopnest.tensor.ops.convolutions": "conv matmul",
        "loopnest.tensor.ops.data_movement": "broadcast expand full iota permute squeeze",
        "loopnest.tensor.ops.gathers": (
            "RaggedRows gather index_add scatter scatter_add scatter_max scatter_min segments take"
        ),
        "loopnest.tensor.ops.own_reducers": "Reducer",
        "loopnest.tensor.ops.pointwise": (
            "abs add bitand bitor bitxor ceil clamp cos div eq erf exp exp2 floor floordiv fma "
            "ge gelu gt invert isnan le log log1p log2 logical_and logical_not logical_or "
            "lshift lt maximum minimum mod mul ne neg pow reciprocal relu round rshift rsqrt "
            "sigmoid silu sin sqrt sub tan tanh trunc where"
        ),
        "loopnest.tensor.ops.random_numbers": "dropout random_bits random_uniform",
        "loopnest.tensor.ops.reductions": "all any max mean min prod sum var welford",
        "loopnest.tensor.ops.reshapes": "flatten reshape",
        "loopnest.tensor.ops.slices": "concatenate flip roll slice stack",
        "loopnest.tensor.ops.sliding_windows": "avg_pool max_pool pad unfold",
        "loopnest.tensor.ops.sorts": "argsort searchsorted sort topk",
        "loopnest.tensor.ops.step_loops": "recur",
        "loopnest.tensor.ops.tuple_reductions": (
            "argmax argmin cummax cumprod cumsum logsumexp reduce scan"
        ),
        "loopnest.tensor.tensor_view": "TensorView",
    }.items()
    for name in names.split()
}
"""Name -> the module that defines it; a module that is itself the name stands for its own."""

_CALLED_ELSEWHERE = {
    "broadcast_to": "expand",
    "cat": "concatenate",
    "clip": "clamp",
    "concat": "concatenate",
    "inverse": "reciprocal",
    "transpose": "permute",
    "view": "reshape",
    "zeros": "full",
    "ones": "full",
}
"""Names that NumPy and torch have for our functions."""

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
    "KernelDef",
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
    "assert_cost",
    "auto_schedule",
    "avg_pool",
    "batch_invariant",
    "bfloat16",
    "bisect",
    "bitand",
    "bitor",
    "bitxor",
    "bool",
    "broadcast",
    "cast",
    "ceil",
    "choice",
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
    "explain",
    "explain_inline",
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
    "kernel",
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
    "main",
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
    "profile",
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
    "tune",
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


def __getattr__(name: str) -> object:
    source = _LAZY.get(name)
    if source is None:
        ours = _CALLED_ELSEWHERE.get(name)
        hint = f"; it is called ln.{ours} here" if ours else ""
        raise AttributeError(f"module 'loopnest' has no attribute '{name}'{hint}")
    module = import_module(source)
    value: object = getattr(module, name, module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
