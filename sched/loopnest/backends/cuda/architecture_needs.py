"""What a program needs of the architecture that it is compiled for, for who asks for machine code.

Most of what texts use has a form for every architecture that NVRTC knows, and a device function
picks it (``__CUDA_ARCH__``). What is here has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopnest.backends.cuda.toolchain.nvrtc import Architecture
from loopnest.base.errors import CompileError
from loopnest.kir import Barrier, Issue, Program, Store, Tile
from loopnest.kir.atomic_updates import operation_of
from loopnest.kir.instruction_rows import instructions
from loopnest.kir.shared_memory import shared_layout, shared_places
from loopnest.scalar.dtypes import float64
from loopnest.scalar.expr import Const

_KIB = 1024
BLOCK_BYTES: Mapping[int, int] = {
    **dict.fromkeys((50, 52, 53, 60, 61, 62), 48 * _KIB), 70: 96 * _KIB, 72: 96 * _KIB,
    75: 64 * _KIB, 80: 163 * _KIB, 86: 99 * _KIB, 87: 163 * _KIB, 89: 99 * _KIB,
    **dict.fromkeys((90, 100, 103, 110), 227 * _KIB), 120: 99 * _KIB, 121: 99 * _KIB,
}  # fmt: skip
"""By architecture, the shared memory that a block can have, opting in.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""


def check_architecture(program: Program, target: Architecture, subject: str) -> None:
    """Check that an architecture has what a program uses, and the shared memory of its blocks.

    PTX is compiled again for the GPU that it runs on: a virtual architecture sets no limit of
    memory.

    Raises:
        CompileError: it lacks something.
    """
    for what, since in needs_of(program):
        if _number(target) < since:
            hint = f"compile for sm_{since} or a newer one"
            raise CompileError(subject, f"{what} needs sm_{since}", hint)
    if not target.virtual:
        _check_shared(program, target, subject)


def needs_of(program: Program) -> Iterator[tuple[str, int]]:
    """Yield what a program uses that not every GPU has, and the first architecture that does."""
    for node in program.nodes:
        if isinstance(node, Issue) and node.instruction in instructions:
            least = instructions[node.instruction].arch
            yield f"the instruction {node.instruction}", int(least.removeprefix("sm_").rstrip("af"))
        if isinstance(node, Barrier) and node.scope == "grid":
            yield "a barrier of the grid" + (node.reason and f" ({node.reason})"), 60
        if isinstance(node, Tile):
            yield f"the instruction {node.instruction}", _arch_of(node)
        if isinstance(node, Store) and node.atomic and node.storage.dtype is float64:
            found = operation_of(node)
            if found is not None and found[0] == "add":
                yield f"an atomic sum of float64 ({node.tensor})", 60


def _arch_of(tile: Tile) -> int:
    return int(instructions[tile.instruction].arch.removeprefix("sm_").rstrip("af"))


def _check_shared(program: Program, target: Architecture, subject: str) -> None:
    limit = BLOCK_BYTES.get(_number(target))
    for part in program.launches:
        total = shared_layout(part).total
        if limit is None or not isinstance(total, Const) or total.value <= limit:
            continue
        places = [
            f"{'/'.join([b.tensor for b in place.buffers])} {place.static_bytes}"
            for place in shared_places(part)
        ]
        found = f"a block needs {total} bytes of shared memory: {', '.join(places)}"
        enough = ", ".join([f"sm_{n}" for n, room in BLOCK_BYTES.items() if room >= total.value])
        hint = "use at most that"
        if enough:
            hint += f", or compile for one that has enough: {enough}"
        raise CompileError(subject, f"{found}; {target} has {limit}", hint)


def _number(target: Architecture) -> int:
    return int(target.capability.rstrip("af"))
