"""``loopnest judge``: whether the code of a candidate computes what a reference in torch does.

A reference file defines ``Model`` (a module, made of ``get_init_inputs()`` where that is there) or
a function ``reference``, and ``get_inputs()``; a candidate file ``ModelNew`` or ``candidate``.
Results are judged by the error bound alone (`function_bounds`). What else goes wrong unseen is
looked for: memory that is never written holds NaN, inputs are new, lie where others lay before and
are compared afterwards, and sizes are odd where the reference takes such.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_map

from loopnest.base.errors import DefinitionError, LoopnestError
from loopnest.devtools.cli_spec import Source, require_file
from loopnest.torch.function_bounds import assert_close
from loopnest.torch.tensor_arrays import Tensor


@dataclass(frozen=True)
class Check:
    """What was looked at, and what is wrong there; "" where nothing is."""

    name: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.fault or 'right'}"


@dataclass
class CandidateJudge:
    """A reference and a candidate, and what was found.

    Args:
        reference: the function, or a module.
        candidate: likewise, with the parameters of the reference where it has the same ones.
        inputs: makes new arguments.
        seed: of the first arguments.
    """

    reference: Callable[..., Any]
    candidate: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]]
    seed: int = 0
    checks: list[Check] = field(default_factory=list)

    def run(self) -> list[Check]:
        """Look at everything; return what was found."""
        first = self._made(0)
        self._judge("inputs as given", first)
        self._judge_zeros(first)
        for number in (1, 2):
            self._judge(f"fresh inputs {number}", self._made(number))
        place = [_copy(x) for x in first]
        with torch.no_grad(), _poisoned():
            self._called(place)
        for old, new in zip(place, self._made(3), strict=True):
            if isinstance(old, torch.Tensor):
                old.copy_(new)
        self._judge("new values where others lay", place)
        for extent in _extents(first):
            for other in sorted({1, extent - 1 - extent % 2}, reverse=True):
                cut = [_cut(x, extent, other) for x in self._made(4)]
                if not self._takes(cut):
                    break  # the size is fixed; with 1 it would be another problem, by broadcasting
                self._judge(f"{other} in place of {extent}", cut)
        return self.checks

    def _made(self, number: int) -> list[Any]:
        torch.manual_seed(self.seed + number)
        return [*self.inputs()]

    def _takes(self, args: Sequence[Any]) -> bool:
        """Whether the reference takes arguments of other sizes."""
        try:
            with torch.no_grad():
                self.reference(*[_copy(x) for x in args])
        except Exception:  # whatever a model of fixed sizes raises
            return False
        return True

    def _called(self, args: Sequence[Any]) -> Any:
        """Return what the candidate does; an exception where it fails."""
        try:
            return self.candidate(*args)
        except Exception as error:  # of code that is judged
            return error

    def _judge(self, name: str, args: Sequence[Any]) -> None:
        before = [_copy(x) for x in args]
        with torch.no_grad(), _poisoned():
            got = self._called(args)
        self.checks.append(Check(name, self._fault(got, args, before)))

    def _fault(self, got: Any, args: Sequence[Any], before: Sequence[Any]) -> str:
        if isinstance(got, Exception):
            return f"it fails with {type(got).__name__}: {_line(got)}"
        for number, (x, old) in enumerate(zip(args, before, strict=True)):
            if isinstance(x, torch.Tensor) and not _is_same(x, old):
                return f"it changes argument {number}"
        try:
            assert_close(got, self.reference, *before)
        except AssertionError as error:
            return _line(error).partition("): ")[2]
        except LoopnestError as error:
            return f"undecided: {_line(error)}"
        return ""

    def _judge_zeros(self, args: Sequence[Any]) -> None:
        """Check that zeros are wrong: else these inputs tell nothing."""
        with torch.no_grad():
            zeros = tree_map(torch.zeros_like, self.reference(*[_copy(x) for x in args]))
        right = not self._fault(zeros, args, args)
        fault = "zeros lie within the bound, so these inputs tell nothing" if right else ""
        self.checks.append(Check("zeros are wrong", fault))


def judge_of(source: Source, reference: str, candidate: str, seed: int = 0) -> CandidateJudge:
    """Load both files, by a source of the command line, which then is the one that failed.

    Raises:
        DefinitionError: a file does not define what it should.
        CliError: it is no Python file, or cannot be read.
        Exception: whatever running it raises.
    """
    asked, other = _module(source, reference), _module(source, candidate)
    inputs = getattr(asked, "get_inputs", None)
    if inputs is None:
        raise DefinitionError(Path(reference).name, "it does not define get_inputs()")
    initial = [*getattr(asked, "get_init_inputs", list)()]
    own = _made_of(asked, reference, ("Model", "reference"), initial, seed)
    theirs = _made_of(other, candidate, ("ModelNew", "candidate"), initial, seed)
    if isinstance(own, torch.nn.Module) and isinstance(theirs, torch.nn.Module):
        state = own.state_dict()
        shapes = {name: value.shape for name, value in theirs.state_dict().items()}
        if shapes == {name: value.shape for name, value in state.items()}:
            theirs.load_state_dict(state)
    return CandidateJudge(own, theirs, inputs, seed)


def _module(source: Source, file: str) -> ModuleType:
    require_file(file, file)
    source.load(file)
    return sys.modules[source.module]


def _made_of(
    module: ModuleType, file: str, names: tuple[str, str], initial: Sequence[Any], seed: int
) -> Callable[..., Any]:
    kind, function = names
    if hasattr(module, kind):
        torch.manual_seed(seed)
        made: Callable[..., Any] = getattr(module, kind)(*initial)
        return made
    if not hasattr(module, function):
        raise DefinitionError(Path(file).name, f"it defines neither {kind} nor {function}()")
    found: Callable[..., Any] = getattr(module, function)
    return found


@contextmanager
def _poisoned() -> Iterator[None]:
    """Let memory that torch gives and nobody wrote hold NaN, and the largest integers."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = filled


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else x


def _is_same(x: Tensor, other: Tensor) -> bool:
    both = x.isnan() & other.isnan() if x.is_floating_point() else torch.zeros_like(x, dtype=bool)
    return x.shape == other.shape and bool((x.eq(other) | both).all())


def _extents(args: Sequence[Any]) -> list[int]:
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    return sorted({extent for x in tensors for extent in x.shape if extent > 1}, reverse=True)


def _cut(x: Any, extent: int, other: int) -> Any:
    """Return an argument with the first elements of each axis of an extent."""
    if not isinstance(x, torch.Tensor):
        return x
    return x[tuple([slice(other if own == extent else None) for own in x.shape])].clone()


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
