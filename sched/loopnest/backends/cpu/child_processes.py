"""Programs that a compilation runs: each in a private folder, and ended with all that it starts."""

from __future__ import annotations

import math
import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from loopnest.errors import CompileError

LIMIT_VARIABLE = "LOOPNEST_COMPILE_SECONDS"

_SECONDS = 600
# How Linux shows owners whom a container does not know, its host's root among them.
_UNMAPPED = 65534
_SET_TMPDIR = "set TMPDIR to another"


@contextmanager
def workplace() -> Iterator[Path]:
    """Yield a folder for temporary files that nobody else can change; it is deleted afterwards.

    Raises:
        CompileError: there is no place for it, or no space.
    """
    place = "the temporary folder"
    try:
        place = f"the temporary folder {tempfile.gettempdir()}"
        if reason := _open_to_others(os.stat(tempfile.gettempdir())):
            raise CompileError(place, reason, _SET_TMPDIR)
        with tempfile.TemporaryDirectory(prefix="loopnest-") as name:
            yield Path(name)
    except OSError as error:
        reason = f"cannot be used ({error.strerror or error})"
        raise CompileError(place, reason, _SET_TMPDIR) from error


def _open_to_others(status: os.stat_result) -> str | None:
    """Return why others could exchange a folder in a temporary folder that has this status."""
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return f"lets every user replace its files (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_uid not in (os.geteuid(), 0, _UNMAPPED):
        return f"belongs to user {status.st_uid}"
    return None


def run(command: tuple[str, ...], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Where it is not waited for any more, by an interrupt or the time limit, it ends with all the
    programs that it has started.

    Raises:
        OSError: it does not start.
        CompileError: it did not end in time.
    """
    # LC_ALL: messages in English and in ASCII, so that they can be searched.
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    )
    with process:
        try:
            out, err = process.communicate(timeout=time_limit())
        except BaseException:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def time_limit() -> float | None:
    """Return how many seconds a compilation may take; None for no limit.

    Raises:
        CompileError: the environment has no number.
    """
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    try:
        seconds = float(text or _SECONDS)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        reason = "the time limit of the C compiler is no number of seconds"
        raise CompileError(
            f"{LIMIT_VARIABLE}={text}", reason, "set it to one, or to 0 for no limit"
        )
    return seconds or None
