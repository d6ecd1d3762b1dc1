"""Child processes that an interrupt reaches, however the tests themselves were started.

A shell without job control starts what runs in the background with SIGINT ignored, and children
inherit that.
"""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """Undo an inherited SIG_IGN; for ``preexec_fn`` of a child process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
