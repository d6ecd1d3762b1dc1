"""Passes: their infrastructure, and one module a pass. Importing this registers all.

`manager` runs passes (`module`, `info`, `options`, `context`, `target` are what it needs),
`instruments` and `print_ir` watch them.
"""

from loopnest.graph.passes.context import PassContext, PassInstrument, pass_instrument
from loopnest.graph.passes.decorators import function_pass, module_pass, register_pass
from loopnest.graph.passes.info import PassInfo, pass_names, unregister_pass
from loopnest.graph.passes.instruments import PassTiming, SameValues, WellFormed
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
from loopnest.graph.passes.target import Target

__all__ = [
    "FunctionPass",
    "Module",
    "ModulePass",
    "Pass",
    "PassContext",
    "PassInfo",
    "PassInstrument",
    "PassTiming",
    "PrintIR",
    "SameValues",
    "Sequential",
    "Target",
    "WellFormed",
    "apply_passes",
    "function_pass",
    "make_pass",
    "module_pass",
    "pass_instrument",
    "pass_names",
    "register_option",
    "register_pass",
    "unregister_pass",
]
