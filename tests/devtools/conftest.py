"""Fixtures of the tests of commands."""

from __future__ import annotations

from functools import partial

import pytest

from helpers.command_line import SCALE
from mutation.mutants import break_lowering


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    return str(path)


@pytest.fixture
def broken_lowering(monkeypatch):
    """Return a function that makes every kernel the mutant of that kind and text, if it has it."""
    return partial(break_lowering, monkeypatch)
