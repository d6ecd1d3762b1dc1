"""SVG text: shapes on a canvas that grows with them, in styles for light and dark pages."""

from __future__ import annotations

from html import escape
from pathlib import Path

CHARACTER, LINE = 7.3, 18
"""The width of a character and the height of a line of text, in pixels."""

_STYLE = """
.ln-picture { color-scheme: light dark; font: 12px ui-monospace, Menlo, Consolas, monospace; }
.ln-picture text { fill: #1f2328; }
.ln-picture .quiet { fill: #656d76; }
.ln-picture .loud { font-weight: bold; }
.ln-picture .page { fill: #ffffff; }
.ln-picture .box { fill: #f6f8fa; stroke: #8c959f; }
.ln-picture .cell { stroke: #8c959f; stroke-width: 0.5; }
.ln-picture .hot { stroke: #cf222e; stroke-width: 2; }
.ln-picture .link { fill: none; stroke: #8c959f; stroke-width: 1.2; }
.ln-picture .mark { fill: none; stroke: #cf222e; stroke-width: 2; }
.ln-picture .grid { fill: #ddf4ff; stroke: #0969da; }
.ln-picture .block { fill: #dafbe1; stroke: #1a7f37; }
.ln-picture .vector { fill: #fbefff; stroke: #8250df; }
.ln-picture .unroll { fill: #fff8c5; stroke: #9a6700; }
.ln-picture .folded { stroke-dasharray: 4 2; }
.ln-picture .shared { fill: #fff1e5; stroke: #bc4c00; }
.ln-picture .global { fill: #eaeef2; stroke: #57606a; }
.ln-picture .local { fill: #fff8c5; stroke: #9a6700; }
.ln-picture .warp { fill: #fbefff; stroke: #8250df; }
@media (prefers-color-scheme: dark) {
.ln-picture text { fill: #e6edf3; }
.ln-picture text.ink { fill: #1f2328; }
.ln-picture .quiet { fill: #8d96a0; }
.ln-picture .page { fill: #0d1117; }
.ln-picture .box { fill: #161b22; stroke: #6e7681; }
.ln-picture .cell { stroke: #8c959f; stroke-width: 0.5; }
.ln-picture .hot { stroke: #cf222e; stroke-width: 2; }
.ln-picture .cell { stroke: #6e7681; }
.ln-picture .hot { stroke: #ff7b72; }
.ln-picture .link { stroke: #6e7681; }
.ln-picture .mark { stroke: #ff7b72; }
.ln-picture .grid { fill: #0c2d6b; stroke: #58a6ff; }
.ln-picture .block { fill: #04260f; stroke: #3fb950; }
.ln-picture .vector { fill: #271052; stroke: #bc8cff; }
.ln-picture .unroll { fill: #341a00; stroke: #d29922; }
.ln-picture .shared { fill: #3d1300; stroke: #f0883e; }
.ln-picture .global { fill: #21262d; stroke: #8b949e; }
.ln-picture .local { fill: #341a00; stroke: #d29922; }
.ln-picture .warp { fill: #271052; stroke: #bc8cff; }
}
"""


class Svg(str):
    """The text of an SVG picture; notebooks show the picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file; return its path."""
        target = Path(path)
        target.write_text(self, encoding="utf-8")
        return target


def width_of(text: str) -> float:
    """Return how many pixels a line of text takes."""
    return len(text) * CHARACTER


class Canvas:
    """Shapes in pixels from the upper left corner; it is as large as they are.

    Args:
        title: what screen readers say of the picture.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.width = self.height = 0.0
        self._parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, kind: str = "box",
        hint: str = "", color: str = "", round_by: int = 3,
    ) -> None:  # fmt: skip
        """Draw a rectangle; `hint` shows where the pointer rests on it.

        Args:
            x: where its left side is.
            y: where its upper side is.
            width: of the rectangle.
            height: of the rectangle.
            kind: the classes of its style.
            hint: what is said of it.
            color: what fills it, where the style says nothing.
            round_by: the radius of its corners.
        """
        told = f"<title>{escape(hint)}</title>" if hint else ""
        look = "".join(
            [
                f' rx="{round_by}"' if round_by else "",
                f' class="{kind}"' if kind else "",
                f' fill="{color}"' if color else "",
            ]
        )
        shape = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{look}'
        self._parts.append(f"<rect {shape}>{told}</rect>" if told else f"<rect {shape}/>")
        self._reach(x + width, y + height)

    def text(
        self, x: float, y: float, text: str, kind: str = "", anchor: str = "start",
        turned: bool = False,
    ) -> None:  # fmt: skip
        """Write a line of text whose base line is at `y`.

        Args:
            x: where it starts, is centred ("middle") or ends ("end").
            y: its base line.
            text: the line.
            kind: the classes of its style.
            anchor: "start", "middle" or "end".
            turned: whether it goes down instead of to the right.
        """
        way = f' transform="rotate(90 {x:g} {y:g})"' if turned else ""
        named = f' class="{kind}"' if kind else ""
        placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}"{named}{placed}{way} xml:space="preserve">'
            f"{escape(text)}</text>"
        )
        share = {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor]
        length = width_of(text) * share
        self._reach(*((x + 4, y + length) if turned else (x + length, y + 4)))

    def path(self, path: str, kind: str = "link", color: str = "") -> None:
        """Draw lines by the commands of an SVG path, within what other shapes take."""
        look = (f' class="{kind}"' if kind else "") + (f' fill="{color}"' if color else "")
        self._parts.append(f'<path d="{path}"{look}/>')

    def _reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def svg(self) -> Svg:
        """Return the picture."""
        width, height = round(self.width + 12), round(self.height + 12)
        return Svg(
            f'<svg xmlns="http://www.w3.org/2000/svg" class="ln-picture" role="img" '
            f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style>"
            f'<rect width="{width}" height="{height}" class="page"/>'
            + "\n".join(self._parts)
            + "</svg>"
        )
