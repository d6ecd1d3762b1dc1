"""Tensor programs as graphs: `import loopnest.graph as G`.

Data. A `Node` is an op on nodes, immutable and compared by identity (`node`); its type is inferred
when it is made (`registry.call`). A `Graph` is inputs, outputs and what lies between, immutable too
(`program`). A fused group is a node whose attribute is a Graph of its own. What an op is, and what
passes know about it, stands in one table that any module adds to (`registry`): ``pattern`` for
fusion, ``gradient``, ``lower``, layouts. Two graphs are compared by `structural`; `node_values` is
the oracle of all passes, `check` says what a graph must keep, and the text of a graph parses back.

Who imports whom, lowest first; a row imports rows above it.

- Row 0: `graph_error`, then `dimensions`, then `node`, `node_origins`, then `registry` ·
  `data_layout`.
- Row 1: `leaves`, `program`, then `rewriting` · `structural` · `size_binding`, then `state`,
  `node_values`.
- Row 2: `operators/` by family: `node_operands`, then the families.
- Row 3: `printer`, then `parser`; `gradients` (one attribute an op); `cost`.
- Row 4: passes.
- Row 5: `fusion_reasons` · `graph_picture` · `cse_across`.

`compile` and the passes that make kernels hand over to `loopnest.graph_kernels`, a room above this
one, when they are first used. Operators of `Node` hand over to `operators`, and `Graph.__str__` to
`printer`, inside their bodies, since users call them on the object. `loopnest` itself never imports
this package.
"""

import importlib
import types
import typing

from loopnest.graph import optim as optim
from loopnest.graph.cse_across import cse as cse
from loopnest.graph.data_layout import LayoutRule as LayoutRule
from loopnest.graph.fusion_reasons import explain_fusion as explain_fusion
from loopnest.graph.gradients import gradient as gradient
from loopnest.graph.graph_error import GraphError as GraphError
from loopnest.graph.graph_error import Refused as Refused
from loopnest.graph.graph_picture import html_of as _html_of
from loopnest.graph.graph_picture import show as show
from loopnest.graph.leaves import assign as assign
from loopnest.graph.leaves import const as const
from loopnest.graph.leaves import get_item as get_item
from loopnest.graph.leaves import group as group
from loopnest.graph.leaves import make_tuple as make_tuple
from loopnest.graph.leaves import var as var
from loopnest.graph.node import Node as Node
from loopnest.graph.node import TensorType as TensorType
from loopnest.graph.node import TupleType as TupleType
from loopnest.graph.node_values import Variable as Variable
from loopnest.graph.node_values import evaluate as evaluate
from loopnest.graph.operators.convolution import *  # noqa: F403
from loopnest.graph.operators.creation import *  # noqa: F403
from loopnest.graph.operators.indexing_ops import *  # noqa: F403
from loopnest.graph.operators.movement_ops import *  # noqa: F403
from loopnest.graph.operators.nn_ops import *  # noqa: F403
from loopnest.graph.operators.pointwise_ops import *  # noqa: F403
from loopnest.graph.operators.pooling import *  # noqa: F403
from loopnest.graph.operators.reduction_ops import *  # noqa: F403
from loopnest.graph.parser import parse as parse
from loopnest.graph.passes.alter_layout import AlterOpLayout as AlterOpLayout
from loopnest.graph.passes.alter_layout import register_alter_op_layout as register_alter_op_layout
from loopnest.graph.passes.alter_layout import (
    unregister_alter_op_layout as unregister_alter_op_layout,
)
from loopnest.graph.passes.auto_inline import AutoInline as AutoInline
from loopnest.graph.passes.compile_target import CodeGen as CodeGen
from loopnest.graph.passes.compile_target import KernelFusion as KernelFusion
from loopnest.graph.passes.compile_target import RTCGen as RTCGen
from loopnest.graph.passes.compile_target import Target as Target
from loopnest.graph.passes.dce import DeadCodeElimination as DeadCodeElimination
from loopnest.graph.passes.decompose import Decompose as Decompose
from loopnest.graph.passes.distribute import Distribute as Distribute
from loopnest.graph.passes.eliminate_common_subexpr import (
    EliminateCommonSubexpr as EliminateCommonSubexpr,
)
from loopnest.graph.passes.fold_constant import FoldConstant as FoldConstant
from loopnest.graph.passes.fuse_ops import FuseOps as FuseOps
from loopnest.graph.passes.instruments import PassTiming as PassTiming
from loopnest.graph.passes.instruments import PrintIR as PrintIR
from loopnest.graph.passes.instruments import SameValues as SameValues
from loopnest.graph.passes.instruments import WellFormed as WellFormed
from loopnest.graph.passes.manager import FunctionPass as FunctionPass
from loopnest.graph.passes.manager import ModulePass as ModulePass
from loopnest.graph.passes.manager import Pass as Pass
from loopnest.graph.passes.manager import PassContext as PassContext
from loopnest.graph.passes.manager import PassInfo as PassInfo
from loopnest.graph.passes.manager import PassInstrument as PassInstrument
from loopnest.graph.passes.manager import Sequential as Sequential
from loopnest.graph.passes.manager import apply_passes as apply_passes
from loopnest.graph.passes.manager import function_pass as function_pass
from loopnest.graph.passes.manager import make_pass as make_pass
from loopnest.graph.passes.manager import module_pass as module_pass
from loopnest.graph.passes.manager import pass_instrument as pass_instrument
from loopnest.graph.passes.manager import pass_names as pass_names
from loopnest.graph.passes.manager import register_option as register_option
from loopnest.graph.passes.manager import register_pass as register_pass
from loopnest.graph.passes.manager import unregister_pass as unregister_pass
from loopnest.graph.passes.numbering import find as find
from loopnest.graph.passes.simplify_expr import SimplifyExpr as SimplifyExpr
from loopnest.graph.printer import to_text as to_text
from loopnest.graph.program import METHODS as _METHODS
from loopnest.graph.program import Graph as Graph
from loopnest.graph.program import Module as Module
from loopnest.graph.program import body_of as body_of
from loopnest.graph.program import call_graph as call_graph
from loopnest.graph.program import count_ops as count_ops
from loopnest.graph.registry import Pattern as Pattern
from loopnest.graph.registry import call as call
from loopnest.graph.registry import get_attr as get_attr
from loopnest.graph.registry import op_names as op_names
from loopnest.graph.registry import pattern_of as pattern_of
from loopnest.graph.registry import register_attr as register_attr
from loopnest.graph.registry import register_op as register_op
from loopnest.graph.rewriting import ExprMutator as ExprMutator
from loopnest.graph.rewriting import ExprVisitor as ExprVisitor
from loopnest.graph.rewriting import rewrite as rewrite
from loopnest.graph.rewriting import substitute as substitute
from loopnest.graph.size_binding import bind as bind
from loopnest.graph.state import check as check
from loopnest.graph.structural import structural_equal as structural_equal
from loopnest.graph.structural import structural_hash as structural_hash

if typing.TYPE_CHECKING:  # what is loaded when first used: the same names as in _LAZY
    from loopnest.graph_kernels.compiled_graph import compile_graph

    compile = compile_graph
else:
    __all__ = ["compile"]
    __all__ += [
        name
        for name, value in globals().items()
        if not (name.startswith("_") or isinstance(value, types.ModuleType))
    ]

_METHODS.update(find=find, html=_html_of, text=to_text)
_LAZY = {"compile": ("loopnest.graph_kernels.compiled_graph", "compile_graph")}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = found
    return found
