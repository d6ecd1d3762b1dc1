"""`assert_cost`: pin what a kernel costs, as a test."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from loopnest.base.errors import CostError, LoopnestError, NotSupported
from loopnest.costs.devices import DEVICES
from loopnest.costs.kernel_profile import Profile, profile
from loopnest.scalar.enums import Memory

if TYPE_CHECKING:
    from loopnest.facade.kernel_class import Kernel

COSTS = (
    "gmem_ratio", "bytes_moved", "wide_accesses", "bank_conflicts", "barriers", "flops", "special",
    "shared_bytes", "registers", "spills", "resident_blocks", "products", "again", "in_flight",
)  # fmt: skip
"""The properties of a profile that can be pinned."""

_OPERATORS = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq,
}  # fmt: skip
_LIMIT = re.compile(r"\s*(<=|>=|==|<|>)\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([KM]?)\s*")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def assert_cost(
    kernel: Kernel, sizes: Mapping[str, int], *, arch: str = "sm_90", **limits: object
) -> None:
    """Check what a kernel costs at given sizes: for tests.

    >>> import loopnest as ln
    >>> with ln.Fusion("doubled") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x + x, "y")
    >>> types = ln.ParallelType
    >>> y = f["y"].split(0, 256).parallelize({0: types.grid_x, 1: types.block_x})
    >>> ln.assert_cost(ln.lower(f), {"N": 4096}, gmem_ratio="<=1.0", barriers=0)

    Args:
        kernel: what `lower` returned.
        sizes: the value of every size.
        arch: of registers, spills and resident blocks.
        **limits: a number, which the cost must equal, or a comparison such as "<=1.05", ">=0.9" or
            "<=48K", by the names in `COSTS`.

    Raises:
        CostError: a cost is not within its limit; it says of which access that comes.
        LoopnestError: no such cost, an unknown architecture, or a limit that is none.
        NotSupported: registers, spills or resident blocks, where there is no NVRTC.
        LaunchError: as `Kernel.launch`.

    Source: as for `profile`.
    """
    subject = "assert_cost(...)"
    for name in limits:
        if name not in COSTS:
            raise LoopnestError(
                subject, f"there is no cost {name!r}", f"the costs are {', '.join(COSTS)}"
            )
    parsed = {name: _limit(subject, name, limit) for name, limit in limits.items()}
    if not isinstance(sizes, Mapping) or not all(isinstance(name, str) for name in sizes):
        raise LoopnestError(subject, f"sizes={sizes!r} names no sizes", 'use {"N": 4096}')
    names = [d.name for d in DEVICES.values() if isinstance(arch, str) and d.arch == arch]
    if not names:
        known = ", ".join(dict.fromkeys([device.arch for device in DEVICES.values()]))
        raise LoopnestError(subject, f"no device has the architecture {arch!r}", f"use {known}")
    found = profile(kernel, device=names[0], **sizes)
    wrong, unknown = [], []
    for name, (sign, limit) in parsed.items():
        value = _cost(found, name)
        if value is None:
            unknown.append(name)
        elif not _OPERATORS[sign](value, limit):
            wrong.append(f"{name} is {_shown(value)}, not {sign} {limit:g}{_reason(name, found)}")
    if wrong:
        at = ", ".join([f"{name}={size}" for name, size in found.sizes.items()])
        raise CostError(f"{kernel.name} at {at or 'its own sizes'}", "; ".join(wrong))
    if unknown:
        raise NotSupported(
            subject, f"{unknown[0]} is unknown: there is no machine code", "install NVRTC"
        )


def moved_costs(before: Profile, after: Profile) -> list[str]:
    """Return which costs are others than before, in words, with what decides them now."""
    found = []
    for name in COSTS:
        was, now = _cost(before, name), _cost(after, name)
        if was != now and was is not None and now is not None:
            found.append(f"{name} was {_shown(was)} and is {_shown(now)}{_reason(name, after)}")
    return found


def _cost(found: Profile, name: str) -> float | None:
    """Return a cost: of elements that are computed again, how often those of one tensor are."""
    value: float | None = (
        max(found.again.values(), default=1) if name == "again" else getattr(found, name)
    )
    return value


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _limit(subject: str, name: str, limit: object) -> tuple[str, float]:
    """Return the comparison and the number of a limit."""
    if isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit == limit:
        return "==", float(limit)
    match = _LIMIT.fullmatch(limit) if isinstance(limit, str) else None
    if match is None:
        raise LoopnestError(
            subject, f"{name}={limit!r} is no limit", 'pass a number, or as "<=1.05" or "<=48K"'
        )
    sign, number, unit = match.groups()
    return sign, float(number) * _UNITS[unit]


def _reason(name: str, found: Profile) -> str:
    """Return what decides a cost: the access that adds most to it."""
    if name in ("gmem_ratio", "bytes_moved"):
        worst = max(found.tensors, key=lambda t: t.moved - t.least, default=None)
        if worst is not None and worst.moved > worst.least:
            return f" ({worst.name} moves {worst.moved} bytes in sectors, where {worst.least} do)"
    if name == "again" and found.again:
        return f" (each element of {max(found.again, key=found.again.__getitem__)})"
    accesses = {
        "bank_conflicts": [a for a in found.accesses if a.conflicts],
        "wide_accesses": [a for a in found.accesses if a.memory is Memory.GLOBAL and a.width < 16],
    }.get(name, [])
    if accesses:
        most = max(accesses, key=lambda a: a.conflicts if name == "bank_conflicts" else a.bytes)
        kind = "store" if most.writes else "load"
        return f" (most by the {kind} {most.access}, of {most.width} bytes)"
    return ""
