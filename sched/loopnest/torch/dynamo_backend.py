"""The backend "loopnest" of ``torch.compile``: graphs of AOTAutograd, forward and backward.

AOTAutograd makes graphs of core operators of ATen, in which nothing is changed in place and no
view is left: what the program changes (parameters, running statistics) it writes back itself. A
graph is compiled when it is first called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeAlias

import torch
from torch._dynamo.backends.common import aot_autograd

from loopnest.base.errors import LaunchError
from loopnest.graph.graph_error import GraphError
from loopnest.scalar.target_names import target_name
from loopnest.torch.aten_graph import translated
from loopnest.torch.compiled_program import CompiledProgram
from loopnest.torch.decompositions import decompositions
from loopnest.torch.op_times import library_times, shapes_propagated
from loopnest.torch.symbolic_sizes import NotTranslated, UnknownSizes, is_symbolic

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
