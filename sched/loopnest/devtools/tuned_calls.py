"""A tuned schedule as data: its calls, which are made again on equal math of any names and sizes.

Tensors have numbers: those of the math in the order in which its outputs need them, then those that
calls make. Math is equal where its operations, their types and the axes that they read along are,
by a digest of these; sizes may differ. Calls change no math, so that a kernel which takes those of
another is right in any case: what they do not fit, they refuse.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from loopnest.base.errors import LoopnestError, ScheduleError
from loopnest.devtools import tuned_rows
from loopnest.devtools.tuned_rows import TunedRow
from loopnest.facade import language as ln
from loopnest.scalar.arguments import size_value
from loopnest.scalar.enums import Memory, ParallelType, Swizzle
from loopnest.scalar.expr import Coordinate, Expr, whole
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.schedule_methods import AllocationMethods, ScheduleMethods
from loopnest.tensor.schedule_trace import Step
from loopnest.tensor.tensor_view import TensorView

_log = logging.getLogger("loopnest")
_ENUMS: Mapping[str, type[Enum]] = {e.__name__: e for e in (Memory, ParallelType, Swizzle)}
_FUNCTIONS = ("_inline_most", "_propagate", "_parallelize_like")
_LAYOUT = "allocation_domain."


class _NoData(Exception):
    """A call that depends on sizes by name, or takes what no row holds."""


def in_order(fusion: Fusion) -> list[TensorView]:
    """Return the tensors that the outputs of unscheduled math need, producers first."""
    found: dict[TensorView, None] = {}
    pending = [*reversed(fusion.outputs)]
    while pending:
        tensor = pending[-1]
        missing = [p for p in tensor.producers if p not in found]
        if missing:
            pending += reversed(missing)
        else:
            pending.pop()
            found.update(dict.fromkeys(tensor.siblings))
    return [*found]


def form(fusion: Fusion) -> str:
    """Return the digest of unscheduled math without its names and sizes."""
    order = in_order(fusion)
    numbers = {tensor: number for number, tensor in enumerate(order)}
    rows: list[object] = []
    for tensor in order:
        row: list[object] = [tensor.dtype.name, tensor.is_output]
        row.append([axis.kind.value for axis in tensor.root_domain])
        if tensor.definition is not None:
            reads = [
                (numbers[read.producer], [i.number if isinstance(i, Coordinate) else None
                                          for i in read.indices])
                for read in tensor.definition.reads
            ]  # fmt: skip
            row += [tensor.definition.op, len(tensor.definition.outputs), reads]
        rows.append(row)
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def of_graphs(plain: Fusion, scheduled: Fusion, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the fields of a row by which equal math takes a schedule; none where it cannot.

    Args:
        plain: the math, unscheduled.
        scheduled: the same, made once more and scheduled.
        sizes: at which it was tuned.
    """
    if plain.trace:  # its math makes calls, too
        return {}
    twins = dict(zip(plain.tensors, scheduled.tensors, strict=False))
    order = in_order(plain)
    numbers = {twins[tensor]: number for number, tensor in enumerate(order)}
    inputs = [
        [[axis.names[0] if axis.names else None, size_value(axis.size, sizes)]
         for axis in tensor.root_domain]
        for tensor in order if tensor.definition is None
    ]  # fmt: skip
    try:
        steps = [step for step in scheduled.trace.steps if step.name != "named"]
        calls = [_call_data(step, numbers) for step in steps]
    except _NoData:
        return {}
    return {"form": form(plain), "inputs": inputs, "calls": calls}


def _call_data(step: Step, numbers: dict[TensorView, int]) -> dict[str, Any]:
    if step.name != "set_memory" and _function(step.name) is None:
        raise _NoData
    of = None if step.tensor is None else numbers[step.tensor]
    given = [_as_data(arg, numbers) for arg in step.args]
    by_name = {key: _as_data(value, numbers) for key, value in step.keywords.items()}
    for tensor, _ in step.made:
        numbers[tensor] = len(numbers)
    return {"name": step.name, "tensor": of, "args": given, "keywords": by_name}


def _function(name: str) -> Callable[..., Any] | None:
    """Return what a call is a call of: a schedule call, and nothing else."""
    if name in _FUNCTIONS:
        found: Callable[..., Any] = getattr(ln, name[1:])
        return found
    if name.startswith(_LAYOUT):
        return vars(AllocationMethods).get(name.removeprefix(_LAYOUT))
    return None if name.startswith("_") else vars(ScheduleMethods).get(name)


def _as_data(value: object, numbers: Mapping[TensorView, int]) -> Any:
    match value:
        case TensorView():
            return {"tensor": numbers[value]}
        case Enum() if type(value).__name__ in _ENUMS:
            return {"enum": type(value).__name__, "value": value.name}
        case Mapping():
            pairs = [[_as_data(k, numbers), _as_data(v, numbers)] for k, v in value.items()]
            return {"dict": pairs}
        case tuple():
            return {"tuple": [_as_data(item, numbers) for item in value]}
        case list():
            return [_as_data(item, numbers) for item in value]
        case bool() | str() | None:
            return value
    number = whole(value)
    if number is None:
        raise _NoData
    return number


def _as_value(data: Any, tensors: Sequence[TensorView]) -> Any:
    match data:
        case {"tensor": number}:
            return tensors[number]
        case {"enum": kind, "value": name}:
            return _ENUMS[kind][name]
        case {"dict": pairs}:
            return {_as_value(k, tensors): _as_value(v, tensors) for k, v in pairs}
        case {"tuple": items}:
            return tuple([_as_value(item, tensors) for item in items])
        case list():
            return [_as_value(item, tensors) for item in data]
    return data


def tuned_row(fusion: Fusion, target: str) -> TunedRow | None:
    """Return the row of equal math whose sizes are nearest, of this target and machine."""
    known = [row for row in tuned_rows.rows() if row.calls and row.target == target]
    if not known or fusion.inplace or fusion.scalars:
        return None
    own, here = form(fusion), tuned_rows.machine_name(target)
    found = [row for row in known if row.form == own and row.machine == here]
    extents = [axis.extent for x in _inputs(fusion) for axis in x.root_domain]
    return min(found, key=lambda row: _distance(row, extents), default=None)


def _inputs(fusion: Fusion) -> list[TensorView]:
    return [tensor for tensor in in_order(fusion) if tensor.definition is None]


def _distance(row: TunedRow, extents: Sequence[int | Expr]) -> float:
    sizes = [size for axes in row.inputs for _, size in axes]
    return sum(
        [
            abs(math.log2((size + 1) / (extent + 1)))
            for size, extent in zip(sizes, extents, strict=True)
            if isinstance(extent, int)
        ]
    )


def axis_names(fusion: Fusion, row: TunedRow) -> list[list[str | None]]:
    """Return the names that a row's calls know the axes of inputs by, in the inputs' order."""
    names = [[name for name, _ in axes] for axes in row.inputs]
    by_input = dict(zip(_inputs(fusion), names, strict=True))
    return [by_input.get(x, [None] * len(x.root_domain)) for x in fusion.inputs]


def make_calls(fusion: Fusion, row: TunedRow) -> None:
    """Make a row's calls on equal math, whose axes have the names of `axis_names`.

    Raises:
        ScheduleError: a call does not fit.
    """
    tensors = in_order(fusion)
    count = len(fusion.tensors)
    for call in row.calls:
        try:
            _make(call, tensors, fusion)
        except LoopnestError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ScheduleError(f"{row.kernel}@{row.schedule}", f"{call}: {error}") from None
        tensors += fusion.tensors[count:]
        count = len(fusion.tensors)


def _make(call: Mapping[str, Any], tensors: Sequence[TensorView], fusion: Fusion) -> None:
    args = [_as_value(arg, tensors) for arg in call["args"]]
    keywords = {key: _as_value(value, tensors) for key, value in call["keywords"].items()}
    name: str = call["name"]
    of = [] if call["tensor"] is None else [tensors[call["tensor"]]]
    if name == "set_memory":
        of[0].memory = args[0]
        return
    function = _function(name)
    if function is None:
        raise ValueError("it is no schedule call")
    with fusion:
        if name.startswith(_LAYOUT):
            function(of[0].allocation_domain, *args, **keywords)
        else:
            function(*of, *args, **keywords)


def note_misfit(fusion: Fusion, row: TunedRow, error: LoopnestError) -> None:
    """Say once in the log why math does not take the schedule of a row."""
    _log.warning(
        "%s: what was tuned as %s@%s does not fit it: %s", fusion.name, row.kernel, row.schedule,
        error,
    )  # fmt: skip
