"""Settings of the whole test run."""

import gc
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parent.parent / "build"

# What the tests compile is kept beside the tests, not in the user's cache.
os.environ.setdefault("LOOPNEST_CACHE_DIR", str(BUILD / "cache"))

# PYTHONDONTWRITEBYTECODE keeps bytecode from lying beside the sources. It goes to the build folder
# then: without any, each of the many processes that tests start would compile all modules again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BUILD / "bytecode"))

# A random example may take long on a busy machine: no test has a deadline.
with suppress(ImportError):  # programs of torch are tested without it, too
    from hypothesis import settings

    settings.register_profile("loopnest", settings(), deadline=None)
    settings.load_profile("loopnest")

# Every kernel that a test compiles is proved first.
os.environ["LOOPNEST_TUNED"] = ""  # what somebody tuned here is no part of a test
os.environ.setdefault("LOOPNEST_VERIFY", "1")

# Nothing that a test compares may depend on the machine that it runs on.
os.environ.setdefault("LOOPNEST_MACHINE", "any")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose name holds an address: the processes of one run would disagree on it."""
    for item in items:
        if re.search(r"\bat 0x[0-9a-f]{6,}", item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: its name holds an address; give it an id")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting the collected tests, and let it run less often.

    Tens of thousands of tests take a sixth of the time of the run, visited again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
