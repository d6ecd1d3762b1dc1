"""Which operators of a graph loopnest's kernels compute faster than torch's libraries: measured.

Each operator is a graph of its own, with the pointwise operators that follow it: a kernel computes
them with it, and a library leaves them to another pass over memory. It is compiled both ways and
called on made tensors of the sizes and strides that the graph says. Symbolic sizes are those that
the graph was traced with; what was measured holds for all that round to the same power of two.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from loopnest.graph_kernels.library_times import LibraryTimes, Rivals, Run, is_measured, measured
from loopnest.torch.aten_graph import LIBRARY, translated
from loopnest.torch.compiled_program import CompiledProgram
from loopnest.torch.symbolic_sizes import NotTranslated, UnknownSizes
from loopnest.torch.tensor_arrays import Tensor

FxNode: TypeAlias = "Any"


def library_times(
    module: Any, target: str, device: Any, options: Mapping[str, Any]
) -> Mapping[FxNode, LibraryTimes]:
    """Return the times of the operators that a library may compute, by node of the module.

    There are none where nothing is measured.

    Args:
        module: a ``torch.fx.GraphModule`` of ATen operators.
        target: of the kernels.
        device: of the tensors.
        options: of `loopnest.compile`.
    """
    nodes = [x for x in module.graph.nodes if _packet(x) in LIBRARY]
    if not nodes or target == "interpret" or not is_measured():
        return {}
    found = {node: _SingleOp(node, target, device, options) for node in nodes}
    times = measured([x.rivals() for x in found.values()])
    return {node: times[x.text] for node, x in found.items()}


def shapes_propagated(module: Any, args: Sequence[Any]) -> list[Any]:
    """Give each node of a module its fake tensor for arguments; return those of the arguments."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [
        mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x for x in args
    ]
    with mode:
        _ShapePropagation(module).run(*fakes)
    return fakes


class _ShapePropagation(torch.fx.Interpreter):  # type: ignore[misc, unused-ignore]
    """Runs a graph on fake tensors, and keeps what each node is."""

    def run_node(self, n: Any) -> Any:
        found = super().run_node(n)
        n.meta["val"] = found
        return found


class _SingleOp:
    """An operator of a graph and the pointwise ones that follow it, as a graph of their own."""

    def __init__(self, node: FxNode, target: str, device: Any, options: Mapping[str, Any]) -> None:
        self.node, self.target, self.device, self.options = node, target, device, options
        self.graph = torch.fx.Graph()
        self._places: dict[FxNode, FxNode] = {}
        self._values: dict[FxNode, FxNode] = {}
        self.text = self._called(node)
        self._counts = [math.prod(map(_number, x.meta["val"].shape)) for x in self._places]
        after = _followers(node)
        if after:
            self.text += f", then {', '.join(map(self._called, after))}"
        self._return([x for x in (node, *after) if not set(x.users) <= {*after}])

    def _called(self, node: FxNode) -> str:
        """Put a node into the graph; return the call of it as text."""
        args = [self._argument(x) for x in node.args]
        kwargs = {key: self._argument(x) for key, x in node.kwargs.items()}
        self._values[node] = self.graph.call_function(node.target, tuple(args), kwargs)
        return f"{node.target}({_text([*args, *kwargs.items()], self._specs())})"

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self._operand(value)
        if isinstance(value, (tuple, list)):
            return [self._argument(item) for item in value]
        return _number(value)

    def _operand(self, node: FxNode) -> Any:
        own = node.meta.get("val")
        if not isinstance(own, torch.Tensor):
            return _number(own)
        if node in self._values:
            return self._values[node]
        if node not in self._places:
            self._places[node] = self.graph.placeholder(f"x{len(self._places)}")
        return self._places[node]

    def _specs(self) -> dict[FxNode, str]:
        found = {place: _spec(node.meta["val"]) for node, place in self._places.items()}
        return {**dict.fromkeys(self._values.values(), "it"), **found}

    def _return(self, nodes: Sequence[FxNode]) -> None:
        """Let the graph return the values of nodes."""
        found: list[FxNode] = []
        for node in nodes:
            value, own = node.meta["val"], self._values[node]
            if isinstance(value, torch.Tensor):
                found.append(own)
                continue
            kept = [n for n, x in enumerate(value) if isinstance(x, torch.Tensor)]
            found += [self.graph.call_function(operator.getitem, (own, n)) for n in kept]
        self.graph.output(tuple(found))

    def rivals(self) -> Rivals:
        """Return the operator as what is measured."""
        settings = (
            f"{torch.__version__} {torch.get_num_threads()} {self.device} {self.target} "
            f"{sorted(self.options.items())}"
        )
        finish: Run = torch.cuda.synchronize if self.device.type == "cuda" else lambda: None
        alone = torch.get_num_threads() == 1 and self.device.type == "cpu"
        clock = time.thread_time if alone else time.perf_counter
        return Rivals(
            self.text, settings, float(math.prod(self._counts)), self._made, finish, clock
        )

    def _made(self) -> tuple[Run, Run]:
        """Return a call of kernels, and one of torch.

        Raises:
            LoopnestError: kernels cannot be made.
            RuntimeError: there is no memory for the tensors, or no rule.
        """
        args = [_made_tensor(x.meta["val"], self.device) for x in self._places]
        calls = []
        for library in (False, True):
            module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
            try:
                fakes = shapes_propagated(module, args)
                found = translated(module, fakes, library, self.target)
            except (NotTranslated, UnknownSizes) as missing:
                raise RuntimeError(str(missing)) from missing
            if found.in_torch:
                raise RuntimeError(f"torch computes {', '.join(found.in_torch)}")
            calls.append(CompiledProgram(found, self.target, self.device, self.options))
        kernels, by_torch = calls
        return lambda: kernels(args), lambda: by_torch(args)


def _followers(node: FxNode) -> list[FxNode]:
    """Return the pointwise operators that need a value, and nothing else that is made of it."""
    own, beyond = {node}, set[FxNode]()
    found: list[FxNode] = []
    following = node.next
    while following.op == "call_function":
        operands = {*following.all_input_nodes}
        fits = _is_pointwise(following) and len(found) < _MOST_FOLLOWERS
        if operands & beyond or (operands & own and not fits):
            beyond.add(following)
        elif operands & own:
            own.add(following)
            found.append(following)
        following = following.next
    return found


_MOST_FOLLOWERS = 16


def _is_pointwise(node: FxNode) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and isinstance(node.meta.get("val"), torch.Tensor)


def _packet(node: FxNode) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))


def _number(value: Any) -> Any:
    """Return a number, of a symbolic one the value that the graph was traced with."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


def _bucket(value: Any) -> str:
    """Return a number as text, a symbolic one as the nearest power of two."""
    if not isinstance(value, torch.SymInt):
        return str(value)
    known = value.node.hint
    return f"~{known if known < 1 else 2 ** round(math.log2(known))}"


def _spec(tensor: Any) -> str:
    shape, strides = [", ".join(map(_bucket, x)) for x in (tensor.shape, tensor.stride())]
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}] at [{strides}]"


def _text(value: Any, specs: Mapping[FxNode, str]) -> str:
    if isinstance(value, torch.fx.Node):
        return specs[value]
    if isinstance(value, (tuple, list)):
        return f"[{', '.join([_text(x, specs) for x in value])}]"
    return str(value)


def _made_tensor(fake: Any, device: Any) -> Tensor:
    """Return a tensor of the shape, strides and type of a fake one, of random numbers."""
    shape = [_number(x) for x in fake.shape]
    strides = [_number(x) for x in fake.stride()]
    span = sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True)) + 1
    flat = torch.zeros(max(span, 0), device=device)
    with torch.random.fork_rng(devices=[]):
        flat.uniform_(-1, 1)
    return flat.to(fake.dtype).as_strided(shape, strides)
