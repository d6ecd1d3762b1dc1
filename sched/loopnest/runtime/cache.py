"""A cache of compiled code on disk, shared by the processes of a user.

Nothing in it is precious: an entry that is missing, damaged or pruned is built again.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from loopnest.errors import CompileError

FOLDER_VARIABLE = "LOOPNEST_CACHE_DIR"
MAX_BYTES = 1 << 30
MAX_AGE = 90 * 24 * 3600.0
"""Seconds after its last use at which an entry is dropped."""

_HOUR = 3600.0
_SUM = ".sha256"
_log = logging.getLogger("loopnest")


def digest(*parts: str | bytes) -> str:
    """Return a key for `parts`: lengths count, so ("ab", "c") and ("a", "bc") differ.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


class DiskCache:
    """The entries of one kind, each a file named by its key with a SHA-256 sum beside it.

    Both files are replaced atomically. A reader that comes between the two, or after a crash, finds
    a sum that does not fit and takes the entry for missing. So reading needs no lock; `lock`
    keeps several processes from building the same entry at once.

    Args:
        kind: the folder: entries of different kinds never meet.
        suffix: how the entries' file names end.
    """

    def __init__(self, kind: str, suffix: str = ".bin") -> None:
        self.suffix = suffix
        self.folder = _usable_root(os.environ.get(FOLDER_VARIABLE, "")) / kind

    def get(self, key: str) -> bytes | None:
        """Return the entry's content, or None where it is missing or damaged."""
        path = self._entry(key)
        try:
            data = path.read_bytes()
            wanted = _sum_of(path).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest().encode() != wanted:
            _log.info("cache entry %s is damaged and counts as missing", path)
            return None
        _touch(path)
        return data

    def path(self, key: str) -> Path | None:
        """Return the entry's file, its content checked, or None."""
        return None if self.get(key) is None else self._entry(key)

    def put(self, key: str, data: bytes) -> Path:
        """Store an entry and return its file.

        Raises:
            CompileError: the folder cannot be written.
        """
        path = self._entry(key)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _replace(path, data)
            _replace(_sum_of(path), hashlib.sha256(data).hexdigest().encode())
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        self._prune_daily()
        return path

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the lock of an entry against other threads and processes.

        Raises:
            CompileError: the folder cannot be written.
        """
        from filelock import FileLock

        # Keys share 256 lock files: one for each entry could never be deleted without a race.
        name = hashlib.sha256(key.encode()).hexdigest()[:2]
        locks = self.folder / "locks"
        try:
            locks.mkdir(parents=True, exist_ok=True)
            held = FileLock(locks / f"{name}.lock")
            held.acquire()
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        try:
            yield
        finally:
            held.release()

    def prune(self, max_bytes: int = MAX_BYTES, max_age: float = MAX_AGE) -> None:
        """Drop entries unused for `max_age` seconds, then the longest unused above `max_bytes`.

        What was used within the hour stays: another process may be about to load it.
        """
        now = time.time()
        total = 0
        for age, size, path in sorted(self._ages(now), key=lambda entry: entry[0]):
            total += size
            if age > _HOUR and (age > max_age or total > max_bytes):
                with suppress(OSError):
                    path.unlink()

    def _ages(self, now: float) -> Iterator[tuple[float, int, Path]]:
        """Yield (seconds since the last use, bytes, path) of each file; sums age on their own."""
        for path in self.folder.iterdir():
            with suppress(OSError):
                state = path.stat()
                if path.is_file():
                    yield now - state.st_mtime, state.st_size, path

    def _prune_daily(self) -> None:
        stamp = self.folder / "locks" / "pruned"
        with suppress(OSError):
            if stamp.exists() and time.time() - stamp.stat().st_mtime < 24 * _HOUR:
                return
            stamp.parent.mkdir(exist_ok=True)
            stamp.touch()
            self.prune()

    def _entry(self, key: str) -> Path:
        return self.folder / f"{key}{self.suffix}"


def _sum_of(path: Path) -> Path:
    return path.with_name(path.name + _SUM)


def _touch(path: Path) -> None:
    """Note a use; once an hour is often enough for pruning."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _HOUR / 2:
            os.utime(path)
            os.utime(_sum_of(path))


def _replace(path: Path, data: bytes) -> None:
    """Write `path` so that readers see the old content or the new, nothing between."""
    handle, name = tempfile.mkstemp(prefix="tmp-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _unwritable(folder: Path, error: OSError) -> CompileError:
    reason = f"cannot be written ({error.strerror or error})"
    return CompileError(f"cache folder {folder}", reason, f"set {FOLDER_VARIABLE} to another")


@lru_cache(maxsize=8)
def _usable_root(override: str) -> Path:
    """Return the root that the user names, else the platform's, else a temporary one."""
    import platformdirs

    if override:
        return Path(override).expanduser().absolute()
    root = platformdirs.user_cache_path("loopnest", appauthor=False)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK | os.X_OK):
            return root
        reason = "not writable"
    except OSError as error:
        reason = str(error.strerror or error)
    _log.warning("compiled code is not kept: cache folder %s: %s", root, reason)
    temporary = Path(tempfile.mkdtemp(prefix="loopnest-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary
