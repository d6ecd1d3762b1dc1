"""Fixtures of tests of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture
def no_warnings() -> Iterator[None]:
    """Values that are not finite are part of the game; the oracle silences them as a whole."""
    with np.errstate(all="ignore"):
        yield
