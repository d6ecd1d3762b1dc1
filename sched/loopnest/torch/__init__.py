"""PyTorch: `torch.compile(model, backend="loopnest")`, and kernels as operators of torch.

In comes a graph of ATen operators, as torch's AOTAutograd hands it over, or one scheduled kernel;
out goes a function of torch's tensors, or an operator of torch.

The three types to know: `aten_table.Call` (an operator with its arguments, which a rule makes nodes
of), `aten_graph.AtenGraph` (a graph that was translated), `compiled_program.CompiledProgram` (the
function that torch calls).

The way of the data: `dynamo_backend` is given the graph; it says which operators torch takes apart
first, and measures which of them torch's libraries compute. `aten_graph` makes a graph of
loopnest's of it: `input_layouts` says how inputs lie in memory, `symbolic_sizes` makes size
expressions of torch's, and `aten_table` holds the rules of operators, which `aten_arithmetic` and
`aten_movement` write. What has no rule is a call of torch (`torch_calls`). `compiled_program` has
`loopnest.graph_kernels` make kernels and a plan, and runs that on tensors (`tensor_arrays`).
`custom_op` is a way of its own: one kernel as an operator. So is `function_bounds`: how far results
of anybody's kernel may lie from a function of torch's, by the math of its graph.

Needs PyTorch: ``pip install loopnest[torch]``. `import loopnest` does not import torch.
"""

from importlib.metadata import entry_points

import torch._dynamo

from loopnest.torch.compiled_program import CompiledProgram
from loopnest.torch.custom_op import op
from loopnest.torch.dynamo_backend import loopnest_backend, recording
from loopnest.torch.function_bounds import assert_close, error_bound

__all__ = [
    "CompiledProgram",
    "assert_close",
    "error_bound",
    "loopnest_backend",
    "op",
    "recording",
]

# An installed package has an entry point, by which torch registers it; a source tree has none.
if not any(found.name == "loopnest" for found in entry_points(group="torch_dynamo_backends")):
    torch._dynamo.register_backend(loopnest_backend, name="loopnest")
