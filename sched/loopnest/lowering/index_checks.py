"""What a launch must look at: data that are indices, of which nothing says that they lie inside.

So it does at those that were declared to differ (`tensor.tensor_view.Distinct`).
Elements of an input are looked at as they are. For a tensor that the kernel computes there is a
program that computes it alone, before the kernel runs: a launch that is refused writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from loopnest.kir import IndexCheck, Program
from loopnest.tensor.computed_ranges import (
    IndexUse,
    data_index,
    distinct_data,
    index_bound,
    index_uses,
)
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor, thaw


def has_data_indices(fusion: Fusion) -> bool:
    """Whether a tensor is read at indices that are data, or data were declared to differ."""
    definitions = [t.definition for t in fusion.tensors if t.definition is not None]
    if any(found.distinct is not None for found in definitions):
        return True
    reads = [read for found in dict.fromkeys(definitions) for read in found.reads]
    return any(data_index(index) is not None for read in reads for index in read.indices)


def index_checks(math: MathSnapshot, lower: Callable[[Fusion], Program]) -> tuple[IndexCheck, ...]:
    """Return the indices of the math that a launch must look at, in order of the tensors.

    What the program of one reads at indices that are data was looked at by those before it.

    Args:
        math: the math of a kernel.
        lower: returns the program of a fusion.
    """
    programs: dict[str, Program] = {}

    def program_of(source: MathTensor) -> Program | None:
        if source.definition is None:
            return None
        if source.name not in programs:
            programs[source.name] = lower(_alone(math, source))
        return programs[source.name]

    found: dict[tuple[object, ...], IndexCheck] = {}
    for use in index_uses(math):
        holds = index_bound(math, use.source, use.extent).holds
        key = (use.source.name, use.extent)
        if holds == "always" or key in found:
            continue
        found[key] = _check(use, holds == "unknown", program_of(use.source))
    for source, reader, declared in distinct_data(math):
        found.setdefault(
            (source.name, declared),
            IndexCheck(
                source.name, source.dtype, tuple([axis.extent for axis in source.logical]), "",
                declared.axis, declared.extent, reader.name, True, program_of(source), True,
            ),
        )  # fmt: skip
    return tuple(found.values())


def _check(use: IndexUse, always: bool, program: Program | None) -> IndexCheck:
    source = use.source
    shape = tuple([axis.extent for axis in source.logical])
    return IndexCheck(
        source.name, source.dtype, shape, use.table.name, use.axis, use.extent, use.reader.name,
        always, program,
    )  # fmt: skip


def _alone(math: MathSnapshot, tensor: MathTensor) -> Fusion:
    """Return a fusion that computes one tensor of the math, and nothing that it does not need."""
    names = set(_needed(math, tensor.name))
    tensors = [replace(t, inplace="") for t in math.tensors if t.name in names]
    fusion = thaw(replace(math, tensors=tuple(tensors), outputs=(tensor.name,), ranges=()))
    for made in fusion.tensors:
        scan = None if made.definition is None else made.definition.scan
        if scan is not None and scan.segment is not None:
            made.split(scan.axis, scan.segment)  # its loops go from segment to segment
    fusion.inline_most()
    return fusion


def _needed(math: MathSnapshot, name: str) -> Iterator[str]:
    """Yield the tensors that one is computed from, itself and what is computed with it included."""
    seen, open_ = set[str](), [name]
    while open_:
        found = math.tensor(open_.pop())
        if found is None or found.name in seen:
            continue
        seen.add(found.name)
        yield found.name
        if found.definition is not None:
            open_ += [*found.definition.outputs, *found.definition.producers]
