"""Settings of the whole test run."""

import os
import re
from pathlib import Path

import pytest

# What the tests compile is kept beside the tests, not in the user's cache.
os.environ.setdefault(
    "LOOPNEST_CACHE_DIR", str(Path(__file__).resolve().parent.parent / "build" / "cache")
)

# Every kernel that a test compiles is proved first.
os.environ.setdefault("LOOPNEST_VERIFY", "1")

# Nothing that a test compares may depend on the machine that it runs on.
os.environ.setdefault("LOOPNEST_MACHINE", "any")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose name holds an address: the processes of one run would disagree on it."""
    for item in items:
        if re.search(r"\bat 0x[0-9a-f]{6,}", item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: its name holds an address; give it an id")
