"""A cache of compiled code on disk, shared by the processes of a user.

Nothing in it is precious: an entry that is missing, damaged or pruned is built again. Nothing in it
comes from anybody else, since it is executed: see `open_folder`. Where there is no folder that
can be used, everything is built again by each process, and that is said once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import logging
import os
import pwd
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

FOLDER_VARIABLE = "LOOPNEST_CACHE_DIR"
MAX_BYTES = 1 << 30
MAX_AGE = 90 * 24 * 3600.0
"""Seconds after its last use at which an entry is dropped."""

_HOUR = 3600.0
_SUM = ".sha256"
_LOCKS = "locks"
_log = logging.getLogger("loopnest")
_number = itertools.count(1)


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
        self.kind = kind
        self.suffix = suffix
        self.root = _root()

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return self.root / self.kind

    def get(self, key: str) -> bytes | None:
        """Return the entry's content, or None where it is missing, damaged or not trusted."""
        with self.entry(key) as found:
            return None if found is None else found[0]

    @contextmanager
    def entry(self, key: str) -> Iterator[tuple[bytes, str] | None]:
        """Yield the entry's content, and a path that leads to it until the context ends, or None.

        The path leads through the folder that was opened, which its own path need not do any more.
        It is spelled as no other before: a loader takes a path that it knows for what it loaded
        from there, without a look, and descriptors are numbered anew.
        """
        name = self._name(key)
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(self._open())
                data = self._checked(folder, name)
            except (OSError, DistrustError) as error:
                self._tell(error, reading=True)
                data = None
            if data is None:
                yield None
                return
            _touch(folder, name)
            yield data, f"/proc/self/fd/{folder}/{_detour(next(_number))}{name}"

    def put(self, key: str, data: bytes) -> None:
        """Store an entry where the folder can be written; that it cannot is said once."""
        name = self._name(key)
        try:
            with self._open(make=True) as folder:
                replace_file(folder, name, data)
                replace_file(folder, name + _SUM, hashlib.sha256(data).hexdigest().encode())
                self._prune_daily(folder)
        except (OSError, DistrustError) as error:
            self._tell(error)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the lock of an entry against other threads and processes, where it can be had."""
        # Keys share 256 lock files: one for each entry could never be deleted without a race.
        name = hashlib.sha256(key.encode()).hexdigest()[:2]
        with ExitStack() as stack:
            # Without it the entry is built by each of them, and still is what it should be.
            with suppress(OSError, DistrustError):
                folder = stack.enter_context(self._open(make=True))
                locks = stack.enter_context(open_folder(_LOCKS, folder, make=True))
                stack.enter_context(lock_file(locks, f"{name}.lock"))
            yield

    def prune(self, max_bytes: int = MAX_BYTES, max_age: float = MAX_AGE) -> None:
        """Drop entries unused for `max_age` seconds, then the longest unused above `max_bytes`.

        What was used within the hour stays: another process may be about to load it.
        """
        with suppress(OSError, DistrustError), self._open() as folder:
            _prune(folder, max_bytes, max_age)

    @contextmanager
    def _open(self, make: bool = False) -> Iterator[int]:
        """Yield the descriptor of the folder; it and the root are the user's alone."""
        if not self.root.is_absolute():
            raise OSError(errno.ENOENT, "no home folder is known")
        with (
            open_folder(self.root, make=make) as root,
            open_folder(self.kind, root, make=make) as folder,
        ):
            yield folder

    def _checked(self, folder: int, name: str) -> bytes | None:
        """Return the content of an entry whose sum fits; else None, or an error of `read_file`."""
        try:
            wanted = read_file(folder, name + _SUM)
            data = read_file(folder, name)
        except FileNotFoundError:
            return None
        except (OSError, DistrustError) as error:
            reason = (
                error.reason
                if isinstance(error, DistrustError)
                else f"cannot be read ({error.strerror})"
            )
            _warn(f"cache entry {self.folder / name} is built again: it {reason}")
            return None
        if hashlib.sha256(data).hexdigest().encode() != wanted:
            _log.info("cache entry %s is damaged and counts as missing", self.folder / name)
            return None
        return data

    def _prune_daily(self, folder: int) -> None:
        with suppress(OSError, DistrustError), open_folder(_LOCKS, folder, make=True) as locks:
            stamp = os.open("pruned", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=locks)
            try:
                status = os.fstat(stamp)
                # A size tells a stamp that was set from one that was made just now.
                if status.st_size and time.time() - status.st_mtime < 24 * _HOUR:
                    return
                os.pwrite(stamp, b"\n", 0)
            finally:
                os.close(stamp)
            _prune(folder, MAX_BYTES, MAX_AGE)

    def _tell(self, error: OSError | DistrustError, reading: bool = False) -> None:
        """Say once that the folder cannot be used."""
        if isinstance(error, DistrustError):
            _warn(
                f"compiled code is not kept: cache folder {self.root / error.name} {error.reason}; "
                f"delete it, or set {FOLDER_VARIABLE} to a folder of your own"
            )
        elif not (reading and isinstance(error, FileNotFoundError)):
            reason = f"cannot be used ({error.strerror or error})"
            _warn(
                f"compiled code is not kept: cache folder {self.root} {reason}; "
                f"set {FOLDER_VARIABLE} to another"
            )

    def _name(self, key: str) -> str:
        return f"{key}{self.suffix}"


def _prune(folder: int, max_bytes: int, max_age: float) -> None:
    now = time.time()
    total = 0
    for age, size, name in sorted(_ages(folder, now)):
        total += size
        if age > _HOUR and (age > max_age or total > max_bytes):
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)


def _ages(folder: int, now: float) -> Iterator[tuple[float, int, str]]:
    """Yield (seconds since the last use, bytes, name) of each file; sums age on their own."""
    for name in os.listdir(folder):
        with suppress(OSError):
            state = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(state.st_mode):
                yield now - state.st_mtime, state.st_size, name


def _detour(number: int) -> str:
    """Return a path to where one is, another one for each number from 1 on.

    >>> _detour(5)
    './/./'
    """
    return "".join(["./" if digit == "1" else "/" for digit in f"{number:b}"])


def _touch(folder: int, name: str) -> None:
    """Note a use; once an hour is often enough for pruning."""
    with suppress(OSError):
        if time.time() - os.stat(name, dir_fd=folder).st_mtime > _HOUR / 2:
            os.utime(name, dir_fd=folder)
            os.utime(name + _SUM, dir_fd=folder)


@cache
def _warn(message: str) -> None:
    _log.warning("%s", message)


def _root() -> Path:
    """Return the folder that the user names, else the platform's."""
    import platformdirs

    override = os.environ.get(FOLDER_VARIABLE, "")
    root = Path(override) if override else platformdirs.user_cache_path("loopnest", appauthor=False)
    home = Path(os.path.expanduser(root))
    return home if home.parts[:1] and home.parts[0].startswith("~") else home.absolute()


# Folders and files that no other user can change, for what is executed after it was read.
#
# A folder is held open while it is used. Names in it are looked up in the folder that was opened
# and checked, whatever becomes of its path meanwhile. Who can write a folder can replace what is in
# it, so a file is safe only in a safe folder.


_READ = os.O_RDONLY | os.O_CLOEXEC


class DistrustError(Exception):
    """A folder or a file that another user owns or can change.

    Args:
        name: its path, or its name in the folder in which it was looked up.
        reason: what is wrong with it.
    """

    def __init__(self, name: str | Path, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name} {reason}")


def objection(status: os.stat_result) -> str | None:
    """Return why what has this status is not the user's alone, or None where it is.

    Root's rights do not count: who must not trust root has no user of his own.
    """
    if status.st_uid != os.geteuid():
        return f"belongs to {_user(status.st_uid)}, not to {_user(os.geteuid())}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


@contextmanager
def open_folder(name: str | Path, parent: int | None = None, make: bool = False) -> Iterator[int]:
    """Open a folder and yield its descriptor.

    A symbolic link is followed where the user or root made it: the folder that it leads to counts.

    Args:
        name: its path, or its name in `parent`.
        parent: the descriptor of an open folder.
        make: make the folder, and missing ones above it, for the user alone.

    Raises:
        DistrustError: others own it or can write it.
        OSError: it is missing, no folder, or cannot be made.
    """
    if make:
        _make_folder(Path(name), parent)
    link = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):
        raise DistrustError(name, f"is a symbolic link of {_user(link.st_uid)}")
    folder = os.open(name, _READ | os.O_DIRECTORY, dir_fd=parent)
    try:
        if reason := objection(os.fstat(folder)):
            raise DistrustError(name, reason)
        yield folder
    finally:
        os.close(folder)


def _make_folder(path: Path, parent: int | None) -> None:
    # With its mode from the first moment on: a chmod would come too late.
    try:
        os.mkdir(path, 0o700, dir_fd=parent)
    except FileExistsError:
        return
    except FileNotFoundError:
        if path.parent == path:
            raise
        _make_folder(path.parent, parent)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=parent)


def read_file(folder: int, name: str) -> bytes:
    """Return the content of a file in an open folder.

    Raises:
        DistrustError: others own it or can write it, or it is a symbolic link.
        OSError: it is missing or cannot be read; what is no file counts as missing.
    """
    try:
        # Without O_NONBLOCK a pipe would be waited for.
        handle = os.open(name, _READ | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if _is(stat.S_ISLNK, folder, name):
            raise DistrustError(name, "is a symbolic link") from error
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{name} is no file")
        if reason := objection(status):
            raise DistrustError(name, reason)
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def _is(kind: Callable[[int], bool], folder: int, name: str) -> bool:
    """Whether what has this name in an open folder is of a kind, as `stat` tells it."""
    try:
        return kind(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def replace_file(folder: int, name: str, data: bytes) -> None:
    """Write a file so that readers see the old content or the new, nothing between.

    What else has that name, a folder or a link, gives way.

    Raises:
        OSError: it cannot be written; the old file is as it was.
    """
    temporary = f"tmp-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if _is(stat.S_ISDIR, folder, name):
            shutil.rmtree(name, dir_fd=folder)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


@contextmanager
def lock_file(folder: int, name: str) -> Iterator[None]:
    """Hold a file of an open folder locked against other threads and processes.

    Raises:
        OSError: the file cannot be made, or its file system has no locks.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        # A child that was forked meanwhile shares the lock: closing alone would not release it.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)
