"""Fixtures of tests of the disk cache."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from loopnest.backends.cpu import c_compiler


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is not there yet."""
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(c_compiler, "_LIBRARIES", c_compiler._Once())
    return tmp_path / "cache"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "loopnest")
    return caplog
