"""Layouts of tensors: ``NCHW``, and blocked ones such as ``NCHW16c`` or ``OIHW4i16o``.

A capital names an axis of the math. A small letter with a factor in front names a block of it, as
an axis of its own: ``NCHW16c`` has C // 16 where C stands, and 16 channels innermost. Of several
blocks of one axis the one further left is the outer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from loopnest.graph.dimensions import Dim, Shape, divides, floordiv, mul, shown
from loopnest.graph.graph_error import Refused

_AXIS = re.compile(r"(\d*)([A-Za-z])")


@dataclass(frozen=True, slots=True)
class DataLayout:
    """A parsed layout; `axes` has (capital letter, factor), with factor 0 for the axis itself."""

    text: str
    axes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return self.text

    @property
    def letters(self) -> tuple[str, ...]:
        """The axes of the math, in order."""
        return tuple([letter for letter, factor in self.axes if not factor])

    def block(self, letter: str) -> int:
        """Return the product of the blocks of an axis; 1 if it has none."""
        found = 1
        for own, factor in self.axes:
            found *= factor if own == letter and factor else 1
        return found

    def places(self, letter: str) -> list[int]:
        """Return where an axis and its blocks stand, outermost first."""
        whole = [i for i, axis in enumerate(self.axes) if axis == (letter, 0)]
        return whole + [i for i, (own, factor) in enumerate(self.axes) if own == letter and factor]


@cache
def parse_layout(text: str) -> DataLayout:
    """Return the layout that a text like ``NCHW16c`` names.

    Raises:
        Refused: it is malformed, an axis stands twice, or a block has no axis.
    """
    found = list(_AXIS.finditer(text)) if isinstance(text, str) else []
    axes: list[tuple[str, int]] = []
    for match in found:
        factor, letter = match.groups()
        if letter.isupper() == bool(factor) or factor == "0":
            raise Refused(f"layout {text!r}: {match.group()!r}", "write axes as C, blocks as 16c")
        axes.append((letter.upper(), int(factor or 0)))
    letters = [letter for letter, factor in axes if not factor]
    if not axes or "".join(match.group() for match in found) != text:
        raise Refused(f"{text!r} is no layout", "write for example NCHW or NCHW16c")
    if len(set(letters)) < len(letters) or {letter for letter, _ in axes} != set(letters):
        raise Refused(f"layout {text!r}", "each axis stands once, and each block has an axis")
    return DataLayout(text, tuple(axes))


def math_shape(shape: Sequence[Dim], layout: DataLayout) -> dict[str, Dim]:
    """Return the extent of each axis of the math.

    Raises:
        Refused: the shape is none of this layout.
    """
    layout = getattr(shape, "layout", layout)  # a stand-in of AlterOpLayout fits any layout
    if len(shape) != len(layout.axes):
        raise Refused(f"{shown(shape)} is no {layout}", f"{layout} has {len(layout.axes)} axes")
    extents: dict[str, Dim] = dict.fromkeys(layout.letters, 1)
    for extent, (letter, factor) in zip(shape, layout.axes, strict=True):
        if factor and extent != factor:
            raise Refused(f"{shown(shape)} is no {layout}", f"the block of {letter} is {extent}")
        extents[letter] = mul(extents[letter], extent)
    return extents


def shape_in(extents: Mapping[str, Dim], layout: DataLayout) -> Shape:
    """Return the shape that a tensor of these extents has in a layout.

    Raises:
        Refused: a block does not divide its axis, or the axes differ.
    """
    if set(extents) != set(layout.letters):
        raise Refused(f"{layout} has other axes than {''.join(extents)}", "axes must be the same")
    shape: list[Dim] = []
    for letter, factor in layout.axes:
        if not factor and not divides(layout.block(letter), extents[letter]):
            raise Refused(
                f"extent {extents[letter]} of {letter} in {layout}",
                f"it must be a multiple of {layout.block(letter)}",
            )
        shape.append(factor or floordiv(extents[letter], layout.block(letter)))
    return tuple(shape)


def transformed_shape(shape: Sequence[Dim], src: DataLayout, dst: DataLayout) -> Shape:
    """Return the shape of a tensor after a change of layout.

    Raises:
        Refused: the shape is none of `src`, or `dst` has other axes or blocks that do not divide.
    """
    return shape_in(math_shape(shape, src), dst)


@dataclass(frozen=True, slots=True)
class LayoutRule:
    """Which attributes hold layouts.

    Attributes:
        inputs: for each operand, the attribute that is its layout.
        output: the attribute that is the layout of the result (and of an attribute ``shape``).
        follows: whether the op takes on the layout that its operands come in.
    """

    inputs: tuple[str, ...]
    output: str
    follows: bool = False
