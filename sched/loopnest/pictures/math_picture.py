"""The picture of a fusion's math: tensors below those that they are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter

from loopnest.pictures.svg import LINE, Canvas, Svg, width_of

_LEFT, _TOP, _ROW, _BOX, _GAP = 12, 14, 84, 42, 18


def draw_math(
    title: str, producers: Mapping[str, Sequence[str]], labels: Mapping[str, tuple[str, str, str]]
) -> Svg:
    """Draw tensors as boxes, each below the ones that it reads.

    Args:
        title: what is drawn.
        producers: of each tensor.
        labels: two lines for each, and the style of its box.
    """
    canvas = Canvas(title)
    depth: dict[str, int] = {}
    for name in TopologicalSorter(producers).static_order():
        depth[name] = 1 + max([depth[read] for read in producers[name]], default=-1)
    rows: dict[int, list[str]] = {}
    for name, row in depth.items():
        rows.setdefault(row, []).append(name)
    width = {name: max(map(width_of, labels[name][:2])) + 18 for name in producers}
    middle: dict[str, float] = {}
    for row in sorted(rows):  # those above are placed
        wanted = {n: _wanted(producers[n], middle) for n in rows[row]}
        end = float(_LEFT)
        for name in sorted(rows[row], key=wanted.__getitem__):
            left = max(wanted[name] - width[name] / 2, end)
            middle[name] = left + width[name] / 2
            end = left + width[name] + _GAP
    for name, reads in producers.items():
        x, y = middle[name], _TOP + depth[name] * _ROW
        for read in dict.fromkeys(reads):
            start, top = middle[read], _TOP + depth[read] * _ROW + _BOX
            half = (top + y) / 2
            canvas.path(f"M{start:g} {top:g} C{start:g} {half:g} {x:g} {half:g} {x:g} {y:g}")
    for name, (first, second, kind) in labels.items():
        left, y = middle[name] - width[name] / 2, _TOP + depth[name] * _ROW
        canvas.box(left, y, width[name], _BOX, kind, name)
        canvas.text(middle[name], y + 17, first, "loud", "middle")
        canvas.text(middle[name], y + 17 + LINE, second, "quiet", "middle")
    return canvas.svg()


def _wanted(reads: Sequence[str], middle: Mapping[str, float]) -> float:
    """Return the middle below the tensors that one reads."""
    return sum([middle[read] for read in reads]) / len(reads) if reads else 0.0
