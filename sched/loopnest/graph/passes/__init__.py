"""Passes: their infrastructure, and one module a pass. Importing this registers all.

`manager` runs passes (`module`, `info`, `options`, `context`, `compile_target` are what it needs),
`instruments` and `print_ir` watch them.
"""

from loopnest.graph.passes.alter_layout import AlterOpLayout
from loopnest.graph.passes.auto_inline import AutoInline
from loopnest.graph.passes.compile_target import Target
from loopnest.graph.passes.context import PassContext, PassInstrument, pass_instrument
from loopnest.graph.passes.dce import DeadCodeElimination
from loopnest.graph.passes.decompose import Decompose
from loopnest.graph.passes.decorators import function_pass, module_pass, register_pass
from loopnest.graph.passes.distribute import Distribute
from loopnest.graph.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from loopnest.graph.passes.fold_constant import FoldConstant
from loopnest.graph.passes.fuse_ops import FuseOps
from loopnest.graph.passes.info import PassInfo, pass_names, unregister_pass
from loopnest.graph.passes.instruments import PassTiming, SameValues, WellFormed
from loopnest.graph.passes.kernel_passes import CodeGen, KernelFusion, RTCGen
from loopnest.graph.passes.layout_rules import (
    LayoutRule,
    register_alter_op_layout,
    unregister_alter_op_layout,
)
from loopnest.graph.passes.manager import (
    FunctionPass,
    ModulePass,
    Pass,
    Sequential,
    apply_passes,
    make_pass,
)
from loopnest.graph.passes.module import Module
from loopnest.graph.passes.options import register_option
from loopnest.graph.passes.print_ir import PrintIR
from loopnest.graph.passes.simplify_expr import SimplifyExpr

__all__ = [
    "AlterOpLayout",
    "AutoInline",
    "CodeGen",
    "DeadCodeElimination",
    "Decompose",
    "Distribute",
    "EliminateCommonSubexpr",
    "FoldConstant",
    "FunctionPass",
    "FuseOps",
    "KernelFusion",
    "LayoutRule",
    "Module",
    "ModulePass",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassInstrument",
    "PassTiming",
    "PrintIR",
    "RTCGen",
    "SameValues",
    "Sequential",
    "SimplifyExpr",
    "Target",
    "WellFormed",
    "apply_passes",
    "function_pass",
    "make_pass",
    "module_pass",
    "pass_instrument",
    "pass_names",
    "register_alter_op_layout",
    "register_option",
    "register_pass",
    "unregister_alter_op_layout",
    "unregister_pass",
]
