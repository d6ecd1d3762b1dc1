"""Pictures of a kernel: its whole nest, or one of its buffers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from loopnest import kir
from loopnest.base.errors import LaunchError, LoopnestError, LoweringError
from loopnest.kir.buffers import Buffer
from loopnest.pictures.nest_picture import draw_nest
from loopnest.pictures.stages_picture import chrome_trace, pipeline_of
from loopnest.pictures.svg import Svg
from loopnest.pictures.tile_picture import draw_tile
from loopnest.scalar.enums import Memory

if TYPE_CHECKING:
    from loopnest.kir.kernel_facts import Parameter
    from loopnest.launch.launch_plan import LaunchConfig


class DrawnKernel(Protocol):
    """What is drawn: `loopnest.Kernel`."""

    @property
    def name(self) -> str: ...
    @property
    def program(self) -> kir.Program: ...
    @property
    def params(self) -> tuple[Parameter, ...]: ...
    @property
    def scalar(self) -> DrawnKernel | None: ...
    @property
    def has_scalar(self) -> bool: ...
    def launch(self, /, **sizes: int) -> LaunchConfig: ...
    def named_sizes(self, sizes: Mapping[str, object], call: str) -> dict[str, int]: ...


_SIZES = (512, 1024, 4096, 256, 128, 64, 96, 32)
"""What all sizes are where none are given: the first with which the kernel may be launched."""


def draw_kernel(kernel: DrawnKernel, name: str | None, sizes: Mapping[str, int]) -> Svg:
    """Draw a kernel or one of its buffers; see `Kernel.picture`."""
    call = _call(kernel, name, sizes, "picture")
    if name is None:
        if sizes:
            raise LaunchError(
                call, "the picture of a nest is the same at all sizes",
                "leave the sizes out, or name a buffer",
            )  # fmt: skip
        return draw_nest(kernel.program)
    buffer = _buffer(kernel, name, call)
    chosen, values = _at_sizes(kernel, sizes, call)
    return draw_tile(chosen, values, buffer)


def trace_kernel(kernel: DrawnKernel, name: str) -> str:
    """Return the stages of a circular buffer in time; see `Kernel.chrome_trace`."""
    call = _call(kernel, name, {}, "chrome_trace")
    buffer = _buffer(kernel, name, call)
    program, sizes = _at_sizes(kernel, {}, call)
    pipeline = pipeline_of(program, buffer, sizes)
    if pipeline is None:
        raise LoweringError(
            call, f"{buffer.name} has no stages that a loop turns",
            f"ask for one by {buffer.tensor}.circular_buffer(stages)",
        )  # fmt: skip
    return chrome_trace(buffer.name, pipeline)


def _call(kernel: DrawnKernel, name: object, sizes: Mapping[str, object], method: str) -> str:
    given = [] if name is None else [repr(name)]
    given += [f"{size}={value!r}" for size, value in sizes.items()]
    return f"{kernel.name}.{method}({', '.join(given)})"


def _buffer(kernel: DrawnKernel, name: object, call: str) -> Buffer:
    """Return the buffer of SHARED or GLOBAL memory that has a name, or holds a tensor of it."""
    program = kernel.program
    found = [p.buffer for p in program.params if p.buffer is not None]
    found += [output.buffer for output in program.outputs]
    found += [node.storage for node, _ in kir.walk(program.body) if isinstance(node, kir.Allocate)]
    known = {b.name: b for b in found if b.memory in (Memory.SHARED, Memory.GLOBAL)}
    for buffer in known.values():
        if buffer.name == name:
            return buffer
    for buffer in known.values():
        if buffer.tensor == name:
            return buffer
    raise LoweringError(
        call, f"no buffer of shared or global memory is called {name!r}",
        f"the buffers are {', '.join(known)}",
    )  # fmt: skip


def _at_sizes(
    kernel: DrawnKernel, sizes: Mapping[str, int], call: str
) -> tuple[kir.Program, dict[str, int]]:
    """Return the variant of a kernel that runs at sizes, and all of these."""
    names = [p.name for p in kernel.params if p.kind == "size"]
    if sizes or not names:
        values = kernel.named_sizes(sizes, call)
        config = kernel.launch(**values)
    else:
        for size in _SIZES:
            values = dict.fromkeys(names, size)
            try:
                config = kernel.launch(**values)
            except LoopnestError:
                continue
            break
        else:
            raise LaunchError(
                call, "there are no sizes that all are one of the usual ones",
                f"give {', '.join([f'{name}=…' for name in names])}",
            )  # fmt: skip
    chosen = kernel.scalar if config.variant == "scalar" and kernel.has_scalar else kernel
    assert chosen is not None
    return chosen.program, values
