"""Helpers for tests of schedules: chains, refusals, what a fusion lowers to and computes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest.backends.interpret import interpret
from loopnest.kir import Program
from loopnest.kir.nest_text import print_nest
from loopnest.lowering.pipeline import lower
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.scalar.arguments import broken_condition
from loopnest.scalar.expr import Symbol
from loopnest.tensor.domain import TensorDomain

PT = ln.ParallelType


def chain(*shape: int | str, length: int) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return x -> T1 … of pointwise tensors, the last the output y."""
    with ln.Fusion("chain") as f:
        tensors = [f.input("x", shape, ln.float32)]
        for number in range(length):
            tensors.append(tensors[-1] + float(number + 1))
        f.output(tensors[-1], "y")
    return f, tensors[1:]


def refused(message: str) -> pytest.RaisesExc[ln.ScheduleError]:
    """Expect a ScheduleError with exactly this message."""
    return pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$")


def taken_back(f: ln.Fusion, *calls: int) -> str:
    """Return the advice to take back calls of the trace, as refusals give it."""
    shown = [f"{f.trace[n].call} ({Path(f.trace[n].file).name}:{f.trace[n].line})" for n in calls]
    them = " and ".join(shown)
    return f"take back {them}, and make {'it' if len(calls) == 1 else 'them'} after this call"


def program(f: ln.Fusion) -> Program:
    """Return the loop nest of `f`."""
    return lower(f).program


def nest(f: ln.Fusion) -> str:
    """Return the body of the nest text of `f`: what stands below the signature."""
    lines = print_nest(program(f)).splitlines()
    return "\n".join(lines[2:])


def body(text: str) -> str:
    """Return an expected nest body, written indented in a test."""
    return textwrap.dedent(text).strip("\n")


def loops(f: ln.Fusion) -> list[str]:
    """Return the nest with loops as ``for EXTENT`` and statements as the tensor stored."""
    result = []
    for line in nest(f).splitlines():
        pad = line[: len(line) - len(line.lstrip())]
        text = line.strip()
        if text.startswith("for "):
            result.append(pad + "for " + text.split(" in ", 1)[1].split(":")[0])
        elif text.startswith("if "):
            result.append(pad + text.rstrip(":"))
        elif "] = " in text and not text.endswith((" local", " global")):
            result.append(pad + text.split("[")[0].removesuffix(".flat"))
    return result


def leaf(tensor: ln.TensorView | TensorDomain) -> str:
    """Return the leaf axes as kind and extent: ``i:ceildiv(I, 4) i:4 r:J``."""
    domain = tensor.domain if isinstance(tensor, ln.TensorView) else tensor
    return " ".join(f"{axis.kind.letter}:{axis.size}" for axis in domain.leaf)


def positions(*tensors: ln.TensorView) -> tuple[int, ...]:
    """Return the compute-at positions."""
    return tuple(t.compute_at_pos for t in tensors)


def state(f: ln.Fusion) -> list[object]:
    """Return all that a schedule primitive may change, to see that a failed one changed nothing."""
    result: list[object] = [f.tensors, f.inputs, f.outputs, dict(f.inplace), len(f.trace)]
    for t in f.tensors:
        result += [str(t), t.name, t.definition, t.consumers, t.clones, t.domain, t.placed]
        result += [t.domain.root, t.domain.rfactor, t.domain.leaf]
        result += [(a.parallel, a.pinned, a.owner) for a in t.domain.leaf]
    return result


def sizes_of(f: ln.Fusion, arrays: tuple[np.ndarray, ...]) -> dict[str, int]:
    """Return the sizes that the arrays have."""
    found: dict[str, int] = {}
    for tensor, array in zip(f.inputs, arrays, strict=True):
        for size, extent in zip(tensor.sizes, array.shape, strict=True):
            if isinstance(size, Symbol):
                found[size.name] = extent
    return found


def interpreted(f: ln.Fusion, *arrays: np.ndarray, **scalars: object) -> tuple[np.ndarray, ...]:
    """Return what the nest of `f` computes of `arrays`, by the interpreter."""
    lowered = lower(f)
    sizes: Mapping[str, int] = sizes_of(f, arrays)
    fits = broken_condition(lowered.program.requires, sizes) is None
    kernel = lowered.program if fits or lowered.scalar is None else lowered.scalar().program
    held = {t.name: a.copy() for t, a in zip(f.inputs, arrays, strict=True)}
    for output in kernel.outputs:
        if not output.inplace:
            shape = tuple(_number(s, sizes) for s in output.shape)
            held[output.name] = np.zeros(shape, output.buffer.dtype.numpy)
    interpret(kernel, held, sizes, scalars)
    return tuple(held[o.inplace or o.name] for o in kernel.outputs)


def _number(size: Any, sizes: Mapping[str, int]) -> int:
    return int(eval(str(size), {"ceildiv": lambda a, b: -(-a // b)}, dict(sizes)))


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Return random elements in [-1, 1)."""
    return np.random.default_rng(seed + sum(shape)).uniform(-1, 1, shape).astype(dtype)


def assert_computes(f: ln.Fusion, *arrays: np.ndarray, **scalars: object) -> None:
    """Check the nest of `f` against the math of it: what rounding may do to it is let pass."""
    wanted = enclosures(f, arrays, scalars)
    for tensor, actual in zip(f.outputs, interpreted(f, *arrays, **scalars), strict=True):
        assert actual.dtype == tensor.dtype.numpy
        verdict = compare(tensor.name, actual, wanted[tensor.name])
        assert verdict.ok, str(verdict)


def mapped(producer: ln.TensorView, consumer: ln.TensorView) -> dict[int, int]:
    """Return the root map as positions: logical axis of the producer -> root axis."""
    logical = [axis for axis in producer.rfactor_domain if not axis.is_reduction]
    root = consumer.root_domain
    found = ln.root_map(producer, consumer)
    return {logical.index(a): root.index(b) for a, b in found.items()}
