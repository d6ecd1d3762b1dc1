"""The picture of a profile: how many operations a byte it does, under the roofs of its GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping

from loopnest.costs.devices import GpuModel
from loopnest.pictures.svg import LINE, Canvas, Svg

_LEFT, _TOP, _WIDTH, _HEIGHT = 84, 48, 460, 260


def draw_roofline(
    title: str, flops: float, rate: float, moved: Mapping[str, int], device: GpuModel
) -> Svg:
    """Draw operations a byte under the roofs of a GPU; see `Profile.picture`.

    Args:
        title: what is drawn.
        flops: its operations.
        rate: how many of them the device can do in a second.
        moved: its bytes, by which bytes they are; the first ones are those that must move.
        device: the GPU.

    Source: Williams, Waterman, Patterson, "Roofline", CACM 2009.
    """
    canvas = Canvas(f"{title} on {device.name}: operations a byte")
    canvas.text(12, 20, f"{title} on {device.name}", "loud")
    points = {text: flops / count for text, count in moved.items() if count and flops}
    ridge = rate / device.bandwidth
    known = [value for value in (*points.values(), ridge) if value > 0]
    scale = _Scale(min(known) / 8, max(known) * 8, rate * 2, device.bandwidth)
    canvas.box(_LEFT, _TOP, _WIDTH, _HEIGHT, "box", round_by=0)
    left = (scale.low, device.bandwidth * scale.low)
    canvas.path(f"M{scale.at(*left)} L{scale.at(ridge, rate)} L{scale.at(scale.high, rate)}")
    x, y = scale.place(ridge, rate)
    canvas.text(x, y - 6, f"{rate / 1e12:.1f} T operations a second", "quiet")
    canvas.text(
        _LEFT + 8,
        _TOP + _HEIGHT - 8,
        f"{device.bandwidth / 1e12:.2f} TB/s along the slope",
        "quiet",
    )
    for power in range(math.ceil(math.log2(scale.low)), math.floor(math.log2(scale.high)) + 1, 2):
        x, _ = scale.place(2.0**power, rate)
        canvas.text(x, _TOP + _HEIGHT + 16, f"{2.0**power:g}", "quiet", "middle")
    canvas.text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 34, "operations a byte", "quiet", "middle")
    for number, (text, value) in enumerate(points.items()):
        x, y = scale.place(value, min(value * device.bandwidth, rate))
        kind = "block" if number == 0 else "shared"
        told = f"{value:.2f} operations a byte {text}"
        canvas.path(f"M{x:g} {y:g} V{_TOP + _HEIGHT}", "link folded")
        canvas.box(x - 5, y - 5, 10, 10, kind, told, round_by=5)
        below = _TOP + _HEIGHT + 58 + LINE * number
        canvas.box(_LEFT, below - 9, 10, 10, kind, round_by=5)
        canvas.text(_LEFT + 18, below, told)
    if not points:
        text = "no operations on floats: memory bounds it"
        canvas.text(_LEFT, _TOP + _HEIGHT + 58, text, "quiet")
    return canvas.svg()


class _Scale:
    """Logarithmic axes: operations a byte to the right, operations a second upwards.

    Args:
        low, high: the ends of the first.
        most: the upper end of the second.
        slope: its operations a second for one a byte.
    """

    def __init__(self, low: float, high: float, most: float, slope: float) -> None:
        self.low, self.high, self.most, self.least = low, high, most, slope * low / 2

    def place(self, intensity: float, rate: float) -> tuple[float, float]:
        """Return where a point lies on the canvas."""
        right = math.log(intensity / self.low) / math.log(self.high / self.low)
        up = math.log(rate / self.least) / math.log(self.most / self.least)
        return _LEFT + right * _WIDTH, _TOP + (1 - up) * _HEIGHT

    def at(self, intensity: float, rate: float) -> str:
        """Return a point as commands of a path take it."""
        x, y = self.place(intensity, rate)
        return f"{x:g} {y:g}"
