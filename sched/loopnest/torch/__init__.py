"""PyTorch: `torch.compile(model, backend="loopnest")`, and kernels as operators of torch.

Data. AOTAutograd hands over graphs of ATen operators (`dynamo_backend`, which says which of them
torch takes apart first, and measures which of them torch's libraries compute). `aten_graph` makes a
graph of loopnest's of one, by the rules of `aten_arithmetic` and `aten_movement`, which stand in
the table `aten_table`; what has no rule is a call of torch (`torch_calls`). `compiled_program` runs
its plan on tensors (`tensor_arrays`).

Needs PyTorch: ``pip install loopnest[torch]``. `import loopnest` does not import torch.
"""

from importlib.metadata import entry_points

import torch._dynamo

from loopnest.torch.compiled_program import CompiledProgram
from loopnest.torch.custom_op import op
from loopnest.torch.dynamo_backend import loopnest_backend, recording

__all__ = ["CompiledProgram", "loopnest_backend", "op", "recording"]

# An installed package has an entry point, by which torch registers it; a source tree has none.
if not any(found.name == "loopnest" for found in entry_points(group="torch_dynamo_backends")):
    torch._dynamo.register_backend(loopnest_backend, name="loopnest")
