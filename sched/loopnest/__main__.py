"""``python -m loopnest``: the command line ``loopnest``."""

from __future__ import annotations

from loopnest.devtools.cli import main

if __name__ == "__main__":
    main()
