"""The backend "loopnest" of ``torch.compile``: graphs of AOTAutograd, forward and backward.

AOTAutograd makes graphs of core operators of ATen, in which nothing is changed in place and no
view is left: what the program changes (parameters, running statistics) it writes back itself. A
graph is compiled when it is first called.

Which operators loopnest's kernels compute faster than torch's libraries is measured: each operator
is a graph of its own, with the pointwise operators that follow it: a kernel computes
them with it, and a library leaves them to another pass over memory. It is compiled both ways and
called on made tensors of the sizes and strides that the graph says. Symbolic sizes are those that
the graph was traced with; what was measured holds for all that round to the same power of two.
"""

from __future__ import annotations

import logging
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, TypeAlias

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from loopnest.base.errors import LaunchError
from loopnest.graph.graph_error import GraphError
from loopnest.graph_kernels.library_times import LibraryTimes, Rivals, Run, is_measured, measured
from loopnest.scalar.target_names import target_name
from loopnest.torch.aten_graph import LIBRARY, translated
from loopnest.torch.compiled_program import CompiledProgram
from loopnest.torch.symbolic_sizes import NotTranslated, UnknownSizes, is_symbolic
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


_ALSO = (
    "_adaptive_avg_pool2d_backward",
    "_batch_norm_no_update",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_softmax_backward_data",
    "_to_copy",
    "addmm",
    "batch_norm_backward",
    "elu",
    "elu_backward",
    "gelu_backward",
    "hardsigmoid",
    "hardswish",
    "huber_loss",
    "huber_loss_backward",
    "leaky_relu_backward",
    "mish",
    "native_batch_norm",
    "native_batch_norm_backward",
    "native_dropout",
    "native_dropout_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
    "nll_loss_backward",
    "nll_loss_forward",
    "sigmoid_backward",
    "silu_backward",
    "softplus",
    "softplus_backward",
    "tanh_backward",
    "threshold_backward",
)
_OWN = (
    *("_to_copy", "addmm", "embedding_dense_backward", "index_select", "native_dropout"),
    *("square", "stack", "_scaled_dot_product_flash_attention_for_cpu"),
)
"""Operators that have a rule of their own, or that are to draw the numbers that torch draws."""


@cache
def decompositions() -> dict[Any, Any]:
    """Return the table that AOTAutograd takes operators apart by."""
    aten = torch.ops.aten
    found = dict(core_aten_decompositions())
    found.update(get_decompositions([getattr(aten, name) for name in _ALSO if hasattr(aten, name)]))
    own = [getattr(aten, name) for name in _OWN]
    return {
        key: value for key, value in found.items() if getattr(key, "overloadpacket", key) not in own
    }


_log = logging.getLogger("loopnest")
OPTIONS = ("library", "target", "compile")
Program: TypeAlias = "Callable[[Sequence[Any]], Any]"
_MOST = 64
"""Graphs of so many sets of sizes are kept."""


_listening: list[list[CompiledProgram]] = []


@contextmanager
def recording() -> Iterator[list[CompiledProgram]]:
    """List the programs that are compiled while it is entered.

    >>> import torch
    >>> from loopnest.torch import loopnest_backend, recording
    >>> with recording() as programs:
    ...     y = torch.compile(lambda x: x.exp().sum(), backend=loopnest_backend)(torch.ones(8))
    >>> [launch.schedule for launch in programs[0].kernels]
    ['fold']

    Returns:
        The list, which grows: a graph is compiled when it is first called.
    """
    found: list[CompiledProgram] = []
    _listening.append(found)
    try:
        yield found
    finally:
        _listening[:] = [x for x in _listening if x is not found]


class LazyProgram:
    """A graph of ATen operators that is compiled when it is first called.

    One function computes at all sizes where the rules of its operators know symbolic shapes; else
    one is compiled for each set of sizes that it is called with.

    Args:
        module: a ``torch.fx.GraphModule`` of ATen operators.
        options: see `loopnest_backend`.
    """

    def __init__(self, module: Any, options: Mapping[str, Any]) -> None:
        self.module, self.options = module, options
        self._boxed_call = True  # it takes a list, which it may empty
        self._symbolic = any(is_symbolic(node.meta.get("val")) for node in module.graph.nodes)
        self._by_size = False
        self._known: dict[object, Program] = {}
        self._lock = Lock()

    def __call__(self, args: list[Any]) -> Any:
        key = tuple([_key(x) for x in args]) if self._by_size else None
        run = self._known.get(key)
        found = None if run is None else run(args)
        if found is None:
            found = self._first(args)
        return found

    def _first(self, args: Sequence[Any]) -> Any:
        """Compile for arguments of these sizes, or that lie so in memory; and run."""
        with self._lock:
            if self._symbolic and not self._by_size and not self._known:
                self._by_size = not self._for_all_sizes(args)
            key = tuple([_key(x) for x in args]) if self._by_size else None
            for strided in (True, False):
                run = self._known.get(key if strided else (key, "copied"))
                if run is None:
                    if len(self._known) >= _MOST:
                        self._known.clear()
                    run = self._made(args, strided)
                    self._known[key if strided else (key, "copied")] = run
                given = args if strided else [_dense(x) for x in args]
                found = run(given)
                if found is not None:
                    return found
        raise AssertionError("contiguous arguments that are not contiguous")

    def _for_all_sizes(self, args: Sequence[Any]) -> bool:
        """Compile for all sizes; return whether that can be done."""
        places = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        try:
            self._known[None] = self._program(args, [node.meta["val"] for node in places], True)
        except (NotTranslated, UnknownSizes, GraphError) as missing:
            _log.info("a graph is compiled for each of its sizes: %s", missing)
            return False
        return True

    def _made(self, args: Sequence[Any], strided: bool) -> Program:
        """Return what runs the graph for arguments of these shapes."""
        try:
            return self._program(args, self._propagated(args), strided)
        except NotTranslated as missing:
            _log.info("torch computes a whole graph: %s", missing)
            module = self.module
            return lambda given: module(*given)

    def _program(self, args: Sequence[Any], values: Sequence[Any], strided: bool) -> Program:
        device = _device(args, values)
        own = "cuda" if device.type == "cuda" else "c"
        target = target_name(self.options.get("target") or own)
        library = bool(self.options.get("library", True))
        options = self.options.get("compile", {})
        times = library_times(self.module, target, device, options) if library else {}
        found = translated(self.module, values, library, target, strided, times)
        program = CompiledProgram(found, target, device, options)
        for listener in _listening:
            listener.append(program)
        return program

    def _propagated(self, args: Sequence[Any]) -> list[Any]:
        """Give each node of the graph its fake tensor for these sizes; return the arguments'."""
        places = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        if not self._symbolic or not self._by_size:
            return [node.meta["val"] for node in places]
        return shapes_propagated(self.module, args)


def _dense(value: Any) -> Any:
    return value.contiguous() if isinstance(value, torch.Tensor) else value


def _key(value: Any) -> object:
    """Return what a program depends on: of a tensor its shape, of a number the number."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype, value.device)
    return (type(value), value)


def _device(args: Sequence[Any], values: Sequence[Any]) -> Any:
    """Return where the tensors of a call are; numbers of the CPU may stand beside a GPU's."""
    devices = [x.device for x in args if isinstance(x, torch.Tensor)]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def loopnest_backend(
    module: Any, example_inputs: Sequence[Any], *, options: Any = None, mode: Any = None
) -> Callable[..., Any]:
    """Return a function that computes a graph of torch by loopnest's kernels.

    This is what ``torch.compile(model, backend="loopnest", options={…})`` calls. Options: `library`
    (whether products of matrices and convolutions are left to torch's libraries; True), `target`
    ("c", "cuda", "interpret"; by the tensors), `compile` (options of `loopnest.compile`).

    Args:
        module: the graph that TorchDynamo captured.
        example_inputs: its inputs, as fake tensors.
        options: see above.
        mode: not used.

    Raises:
        LaunchError: an option that there is not.

    Source: torch.compiler, custom backends.
    """
    given = dict(options or {})
    unknown = [key for key in given if key not in OPTIONS]
    if unknown:
        subject = 'torch.compile(backend="loopnest")'
        reason = f"there is no option {unknown[0]!r}"
        raise LaunchError(subject, reason, f"there are: {', '.join(OPTIONS)}")

    def compiler(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        return LazyProgram(graph, given)

    autograd = aot_autograd(fw_compiler=compiler, decompositions=decompositions())
    found: Callable[..., Any] = autograd(module, example_inputs)
    return found
