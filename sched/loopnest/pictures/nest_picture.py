"""The picture of a kernel: its nest as nested boxes, with the life of each buffer beside them."""

from __future__ import annotations

from dataclasses import dataclass

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.kir.nest_text import nest_lines, print_nest
from loopnest.pictures.domain_picture import style_of
from loopnest.pictures.svg import LINE, Canvas, Svg, width_of
from loopnest.scalar.expr import loads

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
