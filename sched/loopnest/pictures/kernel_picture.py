"""Pictures of a kernel: its whole nest as nested boxes, or one of its buffers by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from loopnest import kir
from loopnest.base.errors import LaunchError, LoopnestError, LoweringError
from loopnest.kir.nest_text import nest_lines, print_nest
from loopnest.pictures.domain_picture import style_of
from loopnest.pictures.svg import LINE, Canvas, Svg, width_of
from loopnest.pictures.tile_picture import chrome_trace, draw_tile, pipeline_of
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, loads

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


# The nest as nested boxes, with the life of each buffer beside them

_LEFT, _TOP, _INDENT, _CLOSING, _BAR = 12, 34, 16, 5, 20
"""Where the nest begins, how far bodies are indented, what a box adds below, a bar's column."""


@dataclass(slots=True)
class _DrawnLife:
    """The rows between which a buffer is there.

    Args:
        buffer: the buffer.
        first: the row that makes it.
        last: the last row that uses it.
    """

    buffer: Buffer
    first: int
    last: int


def draw_nest(program: kir.Program) -> Svg:
    """Draw a nest; see `Kernel.picture`."""
    picture = Canvas(f"loop nest of {program.name}")
    _DrawnNest(program).draw(picture)
    return picture.svg()


class _DrawnNest:
    """The lines of a nest, where each begins, and which boxes and lives reach over them.

    Args:
        program: the nest.
    """

    def __init__(self, program: kir.Program) -> None:
        self.program = program
        _, self.signature, *self.lines = print_nest(program).split("\n")
        self.nodes = {line - 3: node for node, line in nest_lines(program).items()}
        self.depths = [(len(line) - len(line.lstrip())) // 2 for line in self.lines]
        self.ends = [self._end(row) for row in range(len(self.lines))]
        self.lives = self._lives()
        self.tops: list[float] = []
        y = float(_TOP)
        for row, depth in enumerate(self.depths):
            self.tops.append(y)
            after = self.depths[row + 1] if row + 1 < len(self.depths) else 0
            y += LINE + _CLOSING * max(depth - after, 0)

    def _end(self, row: int) -> int:
        """Return the last row of the body that a row heads; the row itself where it heads none."""
        end = row
        while end + 1 < len(self.lines) and self.depths[end + 1] > self.depths[row]:
            end += 1
        return end

    def _lives(self) -> list[_DrawnLife]:
        spaces = [p.buffer for p in self.program.params if p.kind == "workspace"]
        lives = {b: _DrawnLife(b, row, row) for row, b in enumerate(spaces) if b is not None}
        for row, node in sorted(self.nodes.items()):
            if isinstance(node, kir.Allocate):
                lives[node.storage] = _DrawnLife(node.storage, row, row)
            used = [load.buffer for part in kir.expressions(node) for load in loads(part)]
            if isinstance(node, kir.Store):
                used.append(node.storage)
            for buffer in used:
                if buffer in lives:
                    lives[buffer].last = self._around(lives[buffer].first, row)
        return list(lives.values())

    def _around(self, first: int, row: int) -> int:
        """Return the end of the loop around a use that the making of the buffer is outside of."""
        end = row
        for outer in range(row):
            inside = outer <= row <= self.ends[outer]
            if inside and first < outer and isinstance(self.nodes.get(outer), kir.Loop):
                end = max(end, self.ends[outer])
        return end

    def draw(self, canvas: Canvas) -> None:
        """Draw the boxes from the outside in, the lines over them, the lives to the right."""
        canvas.text(_LEFT, 20, self.signature, "loud")
        texts = [width_of(line.lstrip()) + d * _INDENT for line, d in
                 zip(self.lines, self.depths, strict=True)]  # fmt: skip
        right = _LEFT + max(texts, default=0) + 40 + _CLOSING * max(self.depths, default=0)
        for row, (line, depth) in enumerate(zip(self.lines, self.depths, strict=True)):
            x, top = _LEFT + depth * _INDENT, self.tops[row]
            node = self.nodes.get(row)
            if self.ends[row] > row:
                bottom = self.tops[self.ends[row]] + LINE
                deeper = self.depths[self.ends[row]] - depth - 1
                height = bottom - top + _CLOSING * max(deeper, 0) + 2
                canvas.box(x, top, right - x - depth * _CLOSING, height, _style(node))
            made = self._made(row)
            if made is not None:
                width = width_of(line.lstrip()) + 12
                canvas.box(x + 2, top + 2, width, LINE - 3, made.memory.value)
            meets = isinstance(node, (kir.Barrier, kir.Wait))
            canvas.text(x + 8, top + 13, line.lstrip(), "loud" if meets else "")
        self._draw_lives(canvas, right + 12)

    def _made(self, row: int) -> Buffer | None:
        return next((life.buffer for life in self.lives if life.first == row), None)

    def _draw_lives(self, canvas: Canvas, x: float) -> None:
        """Draw a bar for each buffer, in the first column that is free over its whole life."""
        free: list[float] = []
        for life in sorted(self.lives, key=lambda life: life.first):
            top, bottom = self.tops[life.first], self.tops[life.last] + LINE
            reach = max(bottom, top + width_of(life.buffer.name) + 14)
            column = next((n for n, end in enumerate(free) if end <= top), len(free))
            free[column : column + 1] = [reach]
            buffer = life.buffer
            shape = ", ".join(map(str, buffer.shape))
            hint = f"{buffer.name}: {buffer.dtype}[{shape}] in {buffer.memory.value} memory"
            if buffer.alias_of is not None:
                hint = f"{hint}, in the space of {buffer.alias_of}"
            left = x + column * _BAR
            canvas.box(left, top + 2, 15, bottom - top - 4, buffer.memory.value, hint)
            canvas.text(left + 4, top + 8, buffer.name, turned=True)


_STYLES: dict[type, str] = {
    kir.Collective: "block folded",
    kir.Issue: "shared folded",
    kir.Tile: "warp",
    kir.Launch: "grid folded",
}
"""How the boxes of statements look that hold others and are no loops."""


def _style(node: kir.Stmt | None) -> str:
    if isinstance(node, kir.Loop):
        return style_of(node.parallel)
    return _STYLES.get(type(node), "box folded")
