"""The backend "loopnest" of ``torch.compile``: graphs of AOTAutograd, forward and backward.

AOTAutograd makes graphs of core operators of ATen, in which nothing is changed in place and no
view is left: what the program changes (parameters, running statistics) it writes back itself. A
graph is compiled when it is first called, and again for each new set of sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from loopnest.errors import LaunchError
from loopnest.torch.aten_graph import AtenGraph, AtenOutput, translated
from loopnest.torch.aten_table import NotTranslated
from loopnest.torch.decompositions import decompositions
from loopnest.torch.tensor_arrays import Tensor
from loopnest.torch.torch_graph import TorchGraph

_log = logging.getLogger("loopnest")
OPTIONS = ("library", "target", "compile")
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


class CompiledProgram:
    """A graph of ATen operators for one set of sizes.

    `kernels` are its launches, `in_torch` the operators without a rule, by name, and why.

    Args:
        found: the graph.
        target: of its kernels.
        device: of its tensors.
        options: of `loopnest.compile`.
    """

    def __init__(
        self, found: AtenGraph, target: str, device: Any, options: Mapping[str, Any]
    ) -> None:
        self.found = found
        self.in_torch = found.in_torch
        self.run = TorchGraph(found.graph, target, device, options, found.aliases)
        self.kernels = self.run.kernels
        self._device = device

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        found = self.found
        tensors = [
            given_tensor(args[x] if isinstance(x, int) else x, self._device) for x in found.inputs
        ]
        made = self.run(tensors)
        return [x[0] if isinstance(x, tuple) else _strided(made, x) for x in found.outputs]


def given_tensor(tensor: Tensor, device: Any) -> Tensor:
    """Return an input on a device, C-contiguous: itself, or a copy."""
    plain = tensor.detach()
    if plain.device != device:
        plain = plain.to(device)  # a number of the CPU beside tensors of a GPU
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain.contiguous()


def _strided(made: Sequence[Tensor], output: AtenOutput) -> Tensor:
    """Return an output with the strides that torch expects: itself where it has them."""
    tensor, strides = made[output.number], output.strides
    if output.axes is not None:
        tensor = tensor.permute(output.axes)
    if not tensor.numel() or len(strides) != tensor.dim():
        return tensor
    rows = zip(tensor.stride(), strides, tensor.shape, strict=True)
    if all(own == wanted or extent == 1 for own, wanted, extent in rows):
        return tensor
    if 0 in strides:
        return tensor
    result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return result.copy_(tensor)


class LazyProgram:
    """A graph of ATen operators that is compiled for the sizes that it is called with.

    Args:
        module: a ``torch.fx.GraphModule`` of ATen operators.
        options: see `loopnest_backend`.
    """

    def __init__(self, module: Any, options: Mapping[str, Any]) -> None:
        self.module, self.options = module, options
        self._boxed_call = True  # it takes a list, which it may empty
        self._symbolic = any(_is_symbolic(node.meta.get("val")) for node in module.graph.nodes)
        self._known: dict[object, Callable[[Sequence[Any]], Any]] = {}
        self._lock = Lock()

    def __call__(self, args: list[Any]) -> Any:
        key = tuple([_key(x) for x in args]) if self._symbolic else None
        run = self._known.get(key)
        if run is None:
            with self._lock:
                if len(self._known) >= _MOST:
                    self._known.clear()
                run = self._known[key] = self._made(args)
        return run(args)

    def _made(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        """Return what runs the graph for arguments of these shapes."""
        values = self._propagated(args)
        device = _device(args, values)
        target = self.options.get("target") or ("cuda" if device.type == "cuda" else "c")
        try:
            library = bool(self.options.get("library", True))
            found = translated(self.module, values, library, target)
            program = CompiledProgram(found, target, device, self.options.get("compile", {}))
        except NotTranslated as missing:
            _log.info("torch computes a whole graph: %s", missing)
            module = self.module
            return lambda given: module(*given)
        for listener in _listening:
            listener.append(program)
        return program

    def _propagated(self, args: Sequence[Any]) -> list[Any]:
        """Give each node of the graph its fake tensor for these sizes; return the arguments'."""
        places = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        if not self._symbolic:
            return [node.meta["val"] for node in places]
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fakes = [
            mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x
            for x in args
        ]
        with mode:
            _ShapePropagation(self.module).run(*fakes)
        return fakes


class _ShapePropagation(torch.fx.Interpreter):  # type: ignore[misc, unused-ignore]
    """Runs a graph on fake tensors, and keeps what each node is."""

    def run_node(self, n: Any) -> Any:
        found = super().run_node(n)
        n.meta["val"] = found
        return found


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_symbolic, value))
    if isinstance(value, torch.Tensor):
        sizes = (*value.shape, *value.stride())
        return any(isinstance(e, torch.SymInt) for e in sizes)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


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
