"""The picture of a TensorView's axes: from the root domain to the leaf domain by its transforms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loopnest.pictures.svg import LINE, Canvas, Svg, width_of
from loopnest.scalar.enums import ParallelType
from loopnest.tensor.domain import IterDomain, TensorDomain

_LEFT, _TOP, _ROW, _BOX, _GAP = 64, 40, 78, 40, 14
"""Where the rows begin, how far they lie apart, how high boxes are, what lies between them."""


def style_of(parallel: ParallelType) -> str:
    """Return the style of a loop: by the part of a launch, or what the compiler makes of it."""
    if parallel.is_grid:
        return "grid"
    if parallel.is_block:
        return "block"
    if parallel is ParallelType.vectorize or parallel is ParallelType.mma:
        return "vector"
    return "box" if parallel is ParallelType.serial else "unroll"


def draw_domain(title: str, domain: TensorDomain, positions: Mapping[str, int]) -> Svg:
    """Draw the axes of a tensor, and positions among its loops; see `TensorView.picture`."""
    canvas = Canvas(f"{title}: axes from root to leaf")
    canvas.text(12, 22, title, "loud")
    tree = _Tree(domain)
    tree.draw(canvas)
    bottom = tree.tops[tree.leaf_row] + _BOX
    for depth, (name, position) in enumerate(positions.items(), 1):
        if position:
            x = tree.right_of_leaf(position - 1) + _GAP / 2
            end = bottom + depth * LINE
            canvas.path(f"M{x:g} {bottom - _BOX - 8:g} V{end - 4:g}", "mark")
            canvas.text(x + 4, end, f"{name} {position}", "quiet")
    return canvas.svg()


class _Tree:
    """The places of axes: root axes above, loops below, what lies between them in rows by depth.

    Args:
        domain: the axes.
    """

    def __init__(self, domain: TensorDomain) -> None:
        self.domain = domain
        depth = dict.fromkeys(domain.root, 0)
        for step in domain.history:
            below = 1 + max(depth.get(axis, 0) for axis in (*step.inputs, *step.given()))
            depth.update(dict.fromkeys(step.outputs, below))
        leaf = set(domain.leaf)
        inner = [axis for axis in depth if axis not in leaf or axis in domain.root]
        self.leaf_row = 1 + max([depth[axis] for axis in inner], default=0)
        rows: list[list[IterDomain]] = [[] for _ in range(self.leaf_row)]
        for axis in inner:
            rows[depth[axis]].append(axis)
        self.tops = [_TOP + row * _ROW for row in range(self.leaf_row + 1)]
        self.labels = {axis: _label(axis) for axis in inner}
        self.loops = [axis.label(n) + f": {axis.size}" for n, axis in enumerate(domain.leaf)]
        self.leaf_x = self._in_a_row([_LEFT] * len(leaf), self.loops)
        self.inner_x: dict[IterDomain, float] = {}
        for axes in reversed(rows):
            wanted = {axis: self._above_its_parts(axis) for axis in axes}
            ordered = sorted(axes, key=wanted.__getitem__)
            found = self._in_a_row(
                [wanted[a] - self._width(self.labels[a]) / 2 for a in ordered],
                [self.labels[a] for a in ordered],
            )
            self.inner_x.update(zip(ordered, found, strict=True))
        self.depth: Mapping[IterDomain, int] = depth

    def _width(self, label: str) -> float:
        return max(width_of(label), width_of("cpu_parallel")) + 16

    def _in_a_row(self, wanted: Sequence[float], labels: Iterable[str]) -> list[float]:
        """Return where boxes begin that want to begin there and may not overlap."""
        found: list[float] = []
        end = float(_LEFT)
        for place, label in zip(wanted, labels, strict=True):
            found.append(max(place, end))
            end = found[-1] + self._width(label) + _GAP
        return found

    def _above_its_parts(self, axis: IterDomain) -> float:
        """Return the middle above the axes that are made of one, or its own loop."""
        if axis in self.domain.leaf:
            return self._middle_of_leaf(axis)
        step = self.domain.uses.get(axis)
        parts = [] if step is None else [self.middle(part) for part in step.outputs]
        return sum(parts) / len(parts) if parts else float(_LEFT)

    def _middle_of_leaf(self, axis: IterDomain) -> float:
        place = self.domain.leaf.index(axis)
        return self.leaf_x[place] + self._width(self.loops[place]) / 2

    def middle(self, axis: IterDomain) -> float:
        """Return the middle of the box of an axis, the lower one where it has two."""
        if axis in self.domain.leaf:
            return self._middle_of_leaf(axis)
        return self.inner_x[axis] + self._width(self.labels[axis]) / 2

    def right_of_leaf(self, place: int) -> float:
        """Return where the box of a loop ends."""
        return self.leaf_x[place] + self._width(self.loops[place])

    def draw(self, canvas: Canvas) -> None:
        """Draw the lines, then the boxes over them."""
        canvas.text(12, self.tops[0] + 24, "root", "quiet")
        canvas.text(12, self.tops[self.leaf_row] + 24, "leaf", "quiet")
        for axis in self.inner_x:
            if axis in self.domain.leaf:
                self._link(canvas, axis, self._upper(axis), axis, "")
            step = self.domain.uses.get(axis)
            if step is not None:
                for number, part in enumerate(step.outputs):
                    first = number == 0 and axis is step.inputs[0]
                    self._link(
                        canvas, axis, self._upper(axis), part, step.describe() if first else ""
                    )
        factored = self.domain.is_factored
        for axis, x in self.inner_x.items():
            kind = "box folded" if axis.is_reduction else "box"
            hint = f"{axis.kind.value} axis of extent {axis.size}"
            if factored and axis in self.domain.rfactor:
                hint = f"{hint}, of the rfactor domain"
            width = self._width(self.labels[axis])
            canvas.box(x, self.tops[self.depth[axis]], width, _BOX - 12, kind, hint)
            canvas.text(
                x + width / 2, self.tops[self.depth[axis]] + 18, self.labels[axis], "", "middle"
            )
        for n, axis in enumerate(self.domain.leaf):
            kind = style_of(axis.parallel) + (" folded" if axis.is_reduction else "")
            width, top = self._width(self.loops[n]), self.tops[self.leaf_row]
            hint = f"loop {n}: {axis.kind.value} axis of extent {axis.size}"
            canvas.box(self.leaf_x[n], top, width, _BOX, kind, hint)
            canvas.text(self.leaf_x[n] + width / 2, top + 16, self.loops[n], "", "middle")
            below = "pinned" if axis.pinned else axis.parallel.value
            canvas.text(self.leaf_x[n] + width / 2, top + 32, below, "quiet", "middle")

    def _upper(self, axis: IterDomain) -> float:
        return self.inner_x[axis] + self._width(self.labels[axis]) / 2

    def _link(
        self, canvas: Canvas, axis: IterDomain, x: float, part: IterDomain, text: str
    ) -> None:
        """Draw the line from an axis down to one that is made of it."""
        top = self.tops[self.depth[axis]] + _BOX - 12
        row = self.leaf_row if part in self.domain.leaf else self.depth[part]
        end, bottom = self.middle(part), self.tops[row]
        half = (top + bottom) / 2
        canvas.path(f"M{x:g} {top:g} C{x:g} {half:g} {end:g} {half:g} {end:g} {bottom:g}")
        if text:
            canvas.text(x + 6, top + 16, text, "quiet")


def _label(axis: IterDomain) -> str:
    name = f" {axis.names[0]}" if axis.is_named else ""
    return f"{axis.kind.letter}{name}: {axis.size}"
