"""Settings of the whole test run."""

import os
from pathlib import Path

# What the tests compile is kept beside the tests, not in the user's cache.
os.environ.setdefault(
    "LOOPNEST_CACHE_DIR", str(Path(__file__).resolve().parent.parent / "build" / "cache")
)

# Every kernel that a test compiles is proved first.
os.environ.setdefault("LOOPNEST_VERIFY", "1")
