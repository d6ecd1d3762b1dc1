"""KernelFusion, CodeGen, RTCGen: passes that make kernels of a graph.

They hand over to `loopnest.graph_kernels`, which is loaded when one of them runs: the graph layer
itself needs nothing of what makes kernels.

Source: NNVM-Fusion (github.com/dmlc/nnvm-fusion: its passes "CodeGen" and "RTCGen", and the
attributes that they pass on).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.decorators import register_pass
from loopnest.graph.passes.info import PassInfo
from loopnest.graph.passes.manager import FunctionPass
from loopnest.graph.passes.module import Unit
from loopnest.graph.program import Graph


def _made(module: str, function: str, *arguments: Any) -> Graph:
    found: Graph = getattr(import_module(f"loopnest.graph_kernels.{module}"), function)(*arguments)
    return found


class KernelFusion(FunctionPass):
    """Partition a graph into groups that are a kernel each; calls of functions are inlined first.

    A group may have several outputs. Reductions fuse on where what they reduced is broadcast back,
    siblings that read one tensor stand together, and whatever follows a contraction joins it: as
    far as a scheduler accepts the group for the target (`Target.current()`, else the first that
    this machine can do). What has no attribute ``lower`` stays as it is. The attribute ``subgraph``
    of the result maps each call to its body, as after "Fusion".

    Args:
        library: whether products of matrices are left to a library, and stay as they are.
    """

    info = PassInfo("KernelFusion", opt_level=1, required=("Decompose",), provides=("subgraph",))

    def __init__(self, library: bool = False) -> None:
        self.library = library

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return _made("kernel_fusion", "kernel_fusion", func, self.library)


class CodeGen(FunctionPass):
    """Make a kernel of each group: the attribute ``kernel`` maps calls to `loopnest.Kernel`.

    The attribute ``schedule`` has the name of the scheduler, by call too, and ``fallback`` says of
    other calls why they have no kernel.
    """

    info = PassInfo(
        "CodeGen", opt_level=1, depends=("subgraph",), provides=("kernel",), changes_graph=False
    )

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return _made("code_gen", "code_gen", func)


class RTCGen(FunctionPass):
    """Compile the kernels: the attribute ``rtc`` maps calls to what runs on arrays.

    `loopnest.graph.compile` makes a function of such a graph.
    """

    info = PassInfo(
        "RTCGen", opt_level=1, depends=("kernel",), provides=("rtc",), changes_graph=False
    )

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return _made("code_gen", "rtc_gen", func)


register_pass("KernelFusion", KernelFusion)
register_pass("CodeGen", CodeGen)
register_pass("RTCGen", RTCGen)
