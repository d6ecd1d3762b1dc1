"""Names of targets: "cpu" and "gpu", as schedules are called, stand for the targets of these."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

T = TypeVar("T")

OF_DEVICE = {"cpu": "c", "gpu": "cuda"}
"""The target that a device's name stands for."""
_DEVICES = {target: device for device, target in OF_DEVICE.items()}


def target_name(given: T) -> T | str:
    """Return the target that a name stands for; anything else as it is."""
    return OF_DEVICE.get(given, given) if isinstance(given, str) else given


def among(name: str, known: Collection[str]) -> str:
    """Return a name that is known: itself, or the other of a target and its device."""
    other = OF_DEVICE.get(name) or _DEVICES.get(name, name)
    return other if name not in known and other in known else name
