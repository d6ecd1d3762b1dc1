"""`profile`: what a kernel does at given sizes, by its nest, and what that costs a GPU."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from loopnest import kir
from loopnest.base.errors import LoopnestError, kind_of
from loopnest.costs.devices import GpuModel, Occupancy, find_device, occupancy
from loopnest.costs.launch_counts import AccessCount, count_launches
from loopnest.scalar.arguments import size_value
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import loads

if TYPE_CHECKING:
    from loopnest.backends.cuda.toolchain.cubin import Resources
    from loopnest.facade.kernel_class import Kernel
    from loopnest.pictures.svg import Svg

_UNROLLED = 16
"""Iterations of a loop of static extent that compilers unroll without being asked."""


@dataclass(frozen=True, slots=True)
class TensorCost:
    """What a tensor in GLOBAL memory costs.

    Args:
        name: of the parameter, or of the workspace.
        read, written: bytes that threads ask for.
        moved: bytes of the sectors that warps touch for it.
        least: bytes that must move: an input once, an output once; 0 of workspace.
    """

    name: str
    read: int
    written: int
    moved: int
    least: int


@dataclass(frozen=True, slots=True)
class Roof:
    """One thing that bounds the time of a kernel from below.

    Args:
        name: what it is.
        seconds: the least time.
        formula: how that follows.
    """

    name: str
    seconds: float
    formula: str


class Profile:
    """What a kernel does at given sizes; `print` shows it as tables.

    Attributes:
        name: of the kernel.
        sizes: the value of each size.
        variant: "vector" or "scalar".
        launches: what each launch does (`LaunchCounts`).
        device: the GPU that it is reckoned for.
    """

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int], device: GpuModel) -> None:
        config = kernel.launch(**sizes)
        chosen = kernel.scalar if config.variant == "scalar" and kernel.has_scalar else kernel
        assert chosen is not None
        self.name, self.sizes, self.device = kernel.name, dict(sizes), device
        self.variant = config.variant
        self.shared_bytes = config.shared_bytes
        self._kernel, self._program = chosen, chosen.program
        computed = sum([self._bytes(output.shape, 1) for output in self._program.outputs])
        # Where outputs have no element nothing is launched.
        runs = computed > 0 and not config.is_empty
        self.launches = count_launches(chosen.program, sizes) if runs else ()

    # Memory

    @property
    def accesses(self) -> tuple[AccessCount, ...]:
        """The accesses of GLOBAL and SHARED memory, of all launches."""
        return tuple([access for launch in self.launches for access in launch.accesses])

    @cached_property
    def tensors(self) -> tuple[TensorCost, ...]:
        """The costs of each array in GLOBAL memory, those of the user first."""
        least: dict[str, int] = {}
        for param in self._program.params:
            if param.buffer is not None:
                size = self._bytes(param.shape, param.dtype.size)
                least[param.buffer.name] = size if param.kind == "input" else 0
        for output in self._program.outputs:
            size = self._bytes(output.shape, output.buffer.dtype.size)
            least[output.buffer.name] = least.get(output.buffer.name, 0) + size
        found = []
        for name, size in least.items():
            own = [a for a in self.accesses if a.buffer == name]
            read = sum([a.bytes for a in own if not a.writes])
            written = sum([a.bytes for a in own if a.writes])
            found.append(TensorCost(name, read, written, sum([a.moved for a in own]), size))
        return tuple(found)

    def _bytes(self, shape: Sequence[Any], element: int) -> int:
        return math.prod([size_value(extent, self.sizes) for extent in shape]) * element

    @property
    def bytes_moved(self) -> int:
        """Bytes of the sectors of GLOBAL memory that all requests touch; caches see them all."""
        return sum([tensor.moved for tensor in self.tensors])

    @property
    def bytes_least(self) -> int:
        """Bytes that the math must move: every input read once, every output written once."""
        return sum([tensor.least for tensor in self.tensors])

    @property
    def gmem_ratio(self) -> float:
        """Bytes moved, by those that must be."""
        return self.bytes_moved / self.bytes_least if self.bytes_least else math.nan

    @property
    def wide_accesses(self) -> float:
        """The share of the bytes of GLOBAL memory that threads ask for by 16 bytes at once."""
        own = [a for a in self.accesses if a.memory is Memory.GLOBAL]
        total = sum([a.bytes for a in own])
        return sum([a.bytes for a in own if a.width == 16]) / total if total else math.nan

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts of SHARED memory that conflicts of banks add."""
        return sum([access.conflicts for access in self.accesses])

    # Work

    @property
    def barriers(self) -> int:
        """Barriers that a thread reaches, of blocks and of the grid, in all launches."""
        return sum([n for one in self.launches for s, n in one.barriers.items() if s != "warp"])

    @property
    def flops(self) -> int:
        """Arithmetic on floats, a multiply-add being two; without special functions and tiles."""
        return sum([launch.flops for launch in self.launches])

    @property
    def products(self) -> int:
        """Operations of tiles, by the instructions of tensor cores; a multiply-add being two."""
        return sum([sum(launch.products.values()) for launch in self.launches])

    @property
    def special(self) -> int:
        """Calls of exp, sqrt, tanh and the like."""
        return sum([launch.special for launch in self.launches])

    @cached_property
    def again(self) -> dict[str, float]:
        """How often an element of each tensor is computed, where that is more than once."""
        found = {}
        for info in self._kernel.tensors:
            stored = sum([one.computed[info.name] for one in self.launches])
            elements = math.prod(
                [s if isinstance(s, int) else size_value(s, self.sizes) for s in info.shape]
            )
            if stored > elements > 0:
                found[info.name] = stored / elements
        return found

    @property
    def exact(self) -> bool:
        """Whether all counts are exact: no data decides them, and nothing was sampled."""
        return all(launch.exact and not launch.sampled for launch in self.launches)

    # Machine code

    @cached_property
    def resources(self) -> Resources | None:
        """Registers and spills of the machine code; None where there is no NVRTC, or no CUDA."""
        try:
            return self._kernel.resources(self.device.arch)
        except LoopnestError:
            return None

    @property
    def registers(self) -> int | None:
        """Registers of a thread; None where `resources` is."""
        return None if self.resources is None else self.resources.registers

    @property
    def spills(self) -> int | None:
        """Bytes that a thread spills; None where `resources` is."""
        return None if self.resources is None else self.resources.spill_bytes

    @cached_property
    def occupancy(self) -> Occupancy | None:
        """Blocks that a multiprocessor holds at once; None where `resources` is."""
        if self.resources is None or not self.launches:
            return None
        threads = max([math.prod(launch.block) for launch in self.launches])
        return occupancy(self.device, threads, self.resources.registers, self.shared_bytes)

    @property
    def resident_blocks(self) -> int | None:
        """Blocks that a multiprocessor holds at once; None where `resources` is."""
        return None if self.occupancy is None else self.occupancy.blocks

    @cached_property
    def in_flight(self) -> int:
        """Bytes that a thread loads from GLOBAL memory before a loop comes round, at most."""
        found: dict[object, int] = {}
        for node, around in kir.walk(self._program.body):
            scope, times = _scope([n for n in around if isinstance(n, kir.Loop)])
            for load in [x for part in kir.expressions(node) for x in loads(part)]:
                if load.buffer.memory is Memory.GLOBAL:
                    found[scope] = found.get(scope, 0) + times * load.buffer.dtype.size
        return max(found.values(), default=0)

    @cached_property
    def roofs(self) -> tuple[Roof, ...]:
        """What bounds the time from below on the device, the highest bound first."""
        device, cycles = self.device, self.device.multiprocessors * self.device.clock
        shared = sum([a.wavefronts for a in self.accesses])
        found = [
            Roof("memory", self.bytes_least / device.bandwidth,
                 f"{self.bytes_least} bytes that must move / {device.bandwidth / 1e12} TB/s"),
            Roof("arithmetic", self.flops / device.flops,
                 f"{self.flops} operations / {device.flops / 1e12:.1f} T a second"),
            Roof("tensor cores", self._of_16_bits / device.tensor_flops,
                 f"{self._of_16_bits} operations of 16 bits / {device.tensor_flops / 1e12:.0f} T a "
                 "second"),
            Roof("special functions", self.special / (device.special * cycles),
                 f"{self.special} calls / ({device.special} a cycle of a multiprocessor)"),
            Roof("shared memory", shared / cycles,
                 f"{shared} wavefronts / (1 a cycle of a multiprocessor)"),
        ]  # fmt: skip
        found = [roof for roof in found if roof.name != "tensor cores" or self.products]
        found += self._latency()
        return tuple(sorted(found, key=lambda roof: -roof.seconds))

    def _latency(self) -> Iterator[Roof]:
        """Yield what latency leaves of the bandwidth, by Little's law: bytes in flight / latency.

        Nothing where `resources` is None: occupancy follows from registers.
        """
        held, device = self.occupancy, self.device
        if held is None or not self.in_flight:
            return
        most = held.blocks * device.multiprocessors
        shapes = [(math.prod(one.grid), math.prod(one.block)) for one in self.launches]
        at_once = max([min(blocks, most) * threads for blocks, threads in shapes]) * self.in_flight
        read = sum([min(tensor.read, tensor.least) for tensor in self.tensors])
        if at_once:
            yield Roof(
                "latency", read * device.latency / at_once,
                f"{read} bytes that must be read * {device.latency * 1e9:.0f} ns / {at_once} bytes "
                "in flight",
            )  # fmt: skip

    @property
    def _of_16_bits(self) -> int:
        """The operations of tiles, as many of 16 bits as take their time."""
        found = [item for launch in self.launches for item in launch.products.items()]
        return sum([size * count // 2 for size, count in found])

    # Shown

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as numbers, strings, lists and dictionaries."""
        return {
            "kernel": self.name, "sizes": self.sizes, "variant": self.variant,
            "device": self.device.name, "exact": self.exact,
            **{name: getattr(self, name) for name in _NUMBERS},
            "again": self.again,
            "occupancy": None if self.occupancy is None else asdict(self.occupancy),
            "tensors": [asdict(tensor) for tensor in self.tensors],
            "accesses": [
                {**asdict(a), "memory": a.memory.value, "bytes": a.bytes, "conflicts": a.conflicts}
                for a in self.accesses
            ],
            "roofs": [asdict(roof) for roof in self.roofs],
        }  # fmt: skip

    def _tables(self) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield titles and tables, each with its head first."""
        sizes = ", ".join([f"{name}={size}" for name, size in self.sizes.items()])
        told = "" if all(launch.exact for launch in self.launches) else "; at most: data decide"
        if any(launch.sampled for launch in self.launches):
            told += "; about: iterations were drawn that stand for others"
        yield (
            f"{self.name} at {sizes or 'its own sizes'}, {self.variant}, {self.device.name}{told}",
            [["", ""], *[[label, text] for label, text in self._facts()]],
        )
        rows = [["array", "read", "written", "sectors", "least", "ratio"]]
        for tensor in self.tensors:
            ratio = f"{tensor.moved / tensor.least:.2f}" if tensor.least else "-"
            sizes_of = (tensor.read, tensor.written, tensor.moved, tensor.least)
            rows.append([tensor.name, *map(_bytes, sizes_of), ratio])
        yield "bytes of GLOBAL memory", rows
        rows = [["access", "memory", "bytes", "requests", "a request", "conflicts", "from"]]
        for a in self.accesses:
            least = max(a.requests, 1)
            is_global = a.memory is Memory.GLOBAL
            each = f"{a.sectors / least:.2f} sectors" if is_global else (
                f"{a.wavefronts / least:.2f} wavefronts"
            )  # fmt: skip
            kind = "atomic " if a.atomic else "store " if a.writes else "load "
            conflicts = "" if is_global else str(a.conflicts)
            rows.append([kind + a.access, a.memory.value, str(a.width), str(a.requests), each,
                         conflicts, a.origin])  # fmt: skip
        yield "requests of warps", rows
        rows = [["bound", "least time", "formula"]]
        rows += [[r.name, f"{r.seconds * 1e6:.2f} µs", r.formula] for r in self.roofs]
        yield "roofs", rows

    def _facts(self) -> Iterator[tuple[str, str]]:
        for number, launch in enumerate(self.launches, 1):
            label = f"launch {number}" if len(self.launches) > 1 else "launch"
            yield label, f"{launch.grid} blocks of {launch.block} threads"
        yield (
            "GLOBAL memory",
            (
                f"{_bytes(self.bytes_moved)} in sectors, {_bytes(self.bytes_least)} must move: "
                f"ratio {self.gmem_ratio:.2f}"
            ),
        )
        yield "16 bytes at once", f"{self.wide_accesses:.0%} of GLOBAL bytes"
        yield "bank conflicts", f"{self.bank_conflicts} wavefronts"
        yield "barriers a thread", str(self.barriers)
        yield "arithmetic", f"{self.flops} operations, {self.special} special functions"
        if self.products:
            yield "tensor cores", f"{self.products} operations"
        for name, times in self.again.items():
            yield f"{name} again", f"each element is computed {times:.2f} times"
        yield "shared memory", f"{_bytes(self.shared_bytes)} a block"
        if self.resources is None or self.occupancy is None:
            yield "registers", "unknown: no machine code (it takes NVRTC)"
            return
        yield "registers", f"{self.registers} a thread, {self.spills} bytes spilled"
        held = self.occupancy
        yield (
            "resident",
            (
                f"{held.blocks} blocks, {held.warps} warps ({held.share:.0%}), "
                f"limited by {held.limit}"
            ),
        )
        needed = self.device.bandwidth * self.device.latency / self.device.multiprocessors
        there = held.warps * 32 * self.in_flight
        yield (
            "bytes in flight",
            (
                f"{_bytes(there)} a multiprocessor; {_bytes(round(needed))} keep the memory busy "
                f"({self.device.bandwidth / 1e12} TB/s * {self.device.latency * 1e9:.0f} ns)"
            ),
        )

    def __str__(self) -> str:
        return "\n\n".join([f"{title}\n{text_table(rows)}" for title, rows in self._tables()])

    def __repr__(self) -> str:
        return f"<Profile of {self.name}>"

    def picture(self) -> Svg:
        """Return the kernel under the roofs of its GPU (the roofline), as SVG text.

        Source: Williams, Waterman, Patterson, "Roofline", CACM 2009.
        """
        from loopnest.pictures.roofline_picture import draw_roofline

        at = ", ".join([f"{name}={size}" for name, size in self.sizes.items()])
        moved = {"that must move": self.bytes_least, "that warps touch": self.bytes_moved}
        title = f"{self.name} ({at})" if at else self.name
        flops, rate = self.flops, self.device.flops
        if self.products:
            flops, rate = self._of_16_bits, self.device.tensor_flops
        return draw_roofline(title, flops, rate, moved, self.device)

    def _repr_html_(self) -> str:
        tables = "".join([html_table(title, rows) for title, rows in self._tables()])
        return tables + (self.picture() if self.flops or self.products else "")


_NUMBERS = (
    "bytes_moved", "bytes_least", "gmem_ratio", "wide_accesses", "bank_conflicts", "barriers",
    "flops", "products", "special", "shared_bytes", "registers", "spills", "in_flight",
)  # fmt: skip
"""The properties of a profile that are one number."""


def profile(kernel: Kernel, /, *, device: str = "H100", **sizes: int) -> Profile:
    """Return what a kernel does at given sizes, counted from its nest without running it.

    Counts are exact where no data decide them; a test or an index that depends on data counts as
    the most that it may cost, and `.exact` is False.

    Args:
        kernel: what `lower` returned.
        device: the GPU that occupancy and bounds of time are reckoned for (`costs.devices`).
        **sizes: the value of every size.

    Returns:
        A `Profile`: a table by `print` and in notebooks, `.to_dict()` for programs.

    Raises:
        LoopnestError: no Kernel, or an unknown device.
        LaunchError: as `Kernel.launch`.

    Source: CUDA C++ Programming Guide (sectors, banks), Williams et al., "Roofline", CACM 2009.

    >>> import loopnest as ln
    >>> with ln.Fusion("doubled") as f:
    ...     x = f.input("x", ("N", 8), ln.float32)
    ...     y = f.output(x + x, "y")
    >>> y = f["y"].parallelize({0: ln.ParallelType.block_x})
    >>> found = ln.profile(ln.lower(f), N=32)
    >>> found.bytes_moved, found.bytes_least, found.flops
    (16384, 2048, 256)
    """
    from loopnest.facade.kernel_class import Kernel as Lowered

    if not isinstance(kernel, Lowered):
        raise LoopnestError(
            "profile(...)", f"{kind_of(kernel)} is no kernel", "pass what ln.lower returned"
        )
    return Profile(kernel, sizes, find_device(device, f"profile(device={device!r})"))


def _scope(loops: Sequence[kir.Loop]) -> tuple[kir.Loop | None, int]:
    """Return the innermost loop that is not unrolled, and how often it holds what is inside."""
    scope, times = None, 1
    for loop in loops:
        extent = loop.extent
        if loop.parallel.is_thread:
            continue
        unrolled = loop.parallel is not ParallelType.serial
        if isinstance(extent, int) and (unrolled or extent <= _UNROLLED):
            times *= extent
        else:
            scope, times = loop, 1
    return scope, times


def _bytes(count: int) -> str:
    """Return a number of bytes as people read it."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as lines of text."""
    shown = rows if any(rows[0]) else rows[1:]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(
        [
            "  ".join([c.ljust(w) for c, w in zip(row, widths, strict=True)]).rstrip()
            for row in shown
        ]
    )


def html_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return a table with its head first as HTML."""
    head, *body = rows
    top = "".join([f"<th>{html.escape(cell)}</th>" for cell in head]) if any(head) else ""
    lines = [
        f"<tr>{''.join([f'<td>{html.escape(cell)}</td>' for cell in row])}</tr>" for row in body
    ]
    return (
        f"<table><caption>{html.escape(title)}</caption>"
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )
