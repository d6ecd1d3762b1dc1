"""What graphs are compiled for, and the passes that make kernels of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from importlib import import_module
from types import MappingProxyType
from typing import Any

from loopnest.graph.graph_error import GraphError
from loopnest.graph.passes.manager import FunctionPass, PassContext, PassInfo, register_pass
from loopnest.graph.program import Graph, Unit
from loopnest.scalar.target_names import target_name

_KINDS = {"llvm": "cpu", "c": "cpu", "interpret": "cpu", "cuda": "gpu"}
_TARGET = re.compile(r"(\w+)((?:\s+-[\w-]+=\S+)*)\s*")


class Target:
    """What graphs are compiled for, as a context manager: passes may ask `Target.current()`.

    Args:
        text: ``"cuda"``, ``"c"``, ``"interpret"`` or ``"llvm"``, then options:
            ``"cuda -arch=sm_90"``; ``"gpu"`` stands for the first, ``"cpu"`` for the second.

    Raises:
        GraphError: another kind, or malformed options.

    >>> with Target("cuda -arch=sm_90") as target:
    ...     Target.current() is target, target.kind, target.options["arch"]
    (True, 'cuda', 'sm_90')
    """

    def __init__(self, text: str) -> None:
        match = _TARGET.fullmatch(text) if isinstance(text, str) else None
        kind = "" if match is None else target_name(match[1])
        if match is None or kind not in _KINDS:
            raise GraphError(
                f"Target({text!r})",
                "there is no such target",
                f"write one of {', '.join(_KINDS)}, then options -name=value",
            )
        self.text = text
        self.kind = kind
        pairs = [part.lstrip("-").split("=", 1) for part in match[2].split()]
        self.options: Mapping[str, str] = MappingProxyType(dict(map(tuple, pairs)))

    @property
    def device(self) -> str:
        """Return "cpu" or "gpu"."""
        return _KINDS[self.kind]

    @staticmethod
    def current() -> Target | None:
        """Return the innermost target that is entered, or None."""
        stack = _ENTERED.get()
        return stack[-1] if stack else None

    def __enter__(self) -> Target:
        _ENTERED.set((*_ENTERED.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _ENTERED.set(_ENTERED.get()[:-1])

    def __repr__(self) -> str:
        return f"Target({self.text!r})"


_ENTERED: ContextVar[tuple[Target, ...]] = ContextVar("loopnest_target", default=())


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
