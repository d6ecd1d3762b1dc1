"""Folders and files that no other user can change, for what is executed after it was read.

A folder is held open while it is used. Names in it are looked up in the folder that was opened and
checked, whatever becomes of its path meanwhile. Who can write a folder can replace what is in it,
so a file is safe only in a safe folder.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
    import pwd

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
        if _is_link(folder, name):
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


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
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
        if _is_folder(folder, name):
            shutil.rmtree(name, dir_fd=folder)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


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
