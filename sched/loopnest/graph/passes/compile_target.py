"""What graphs are compiled for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

from loopnest.graph.graph_error import GraphError
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
