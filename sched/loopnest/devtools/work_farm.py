"""Work spread over any executor: processes of this machine, or a cluster of Dask's.

Work and items travel as pickles. A worker that dies takes down what it was at; those items are run
again, each alone, and what dies again is lost, and said so. Nothing is counted twice: an item has
one result, or is lost.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeAlias, TypeVar

from loopnest.base.errors import CompileError

Item = TypeVar("Item")
Result = TypeVar("Result")
Opener: TypeAlias = "Callable[[], AbstractContextManager[Executor]]"

_DEATHS = ("KilledWorker", "CommClosedError", "FutureCancelledError")
"""What Dask raises where a worker, or its scheduler, is gone: by name, since it may be missing."""


@dataclass(frozen=True, slots=True)
class Lost:
    """What became of an item whose worker died, also when it ran alone.

    Args:
        why: a sentence.
    """

    why: str


def processes(jobs: int) -> Opener:
    """Return what opens processes of this machine, one a job."""
    return lambda: ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def given(executor: Executor) -> Opener:
    """Return what opens an executor that a caller has, and closes."""
    return lambda: nullcontext(executor)


def cluster(address: str, jobs: int) -> Opener:
    """Return what opens a cluster of Dask's.

    Args:
        address: of its scheduler, ``tcp://host:8786``; "local" for one on this machine.
        jobs: the workers of a local one.
    """

    @contextmanager
    def opened() -> Iterator[Executor]:
        subject = f"scheduler {address!r}"
        try:
            distributed: Any = import_module("distributed")
        except ImportError:
            hint = "pip install 'loopnest[farm]'"
            raise CompileError(subject, "dask.distributed is not installed", hint) from None
        where: dict[str, Any] = {"address": address, "timeout": "10s"}
        if address == "local":
            where = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        try:
            client = distributed.Client(**where, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            reason = f"there is no scheduler to reach ({error})"
            raise CompileError(subject, reason, "start one by 'dask scheduler'") from None
        with client:
            yield client.get_executor(pure=False)

    return opened


def opener(jobs: int, scheduler: str | None) -> Opener | None:
    """Return what opens the workers that options ask for; None where this process does the work."""
    if scheduler:
        return cluster(scheduler, jobs)
    return processes(jobs) if jobs > 1 else None


def finished(
    opened: Opener,
    work: Callable[[Item], Result],
    items: Iterable[Item],
    most: int | None = 1000,
) -> Iterator[tuple[Item, Result | Lost]]:
    """Yield each item with its result, as they end.

    Args:
        opened: opens the executor; again where it broke.
        work: a function of a module, which workers import.
        items: what it is called with, once each.
        most: how many are submitted at a time; None for two a worker that a cluster has.

    Raises:
        Exception: what `work` raises.
    """
    queue, suspects = _Queue(items), list[Item]()
    while queue:
        with opened() as executor:
            room = 2 * _workers(executor) if most is None else most
            begun = yield from _round(executor, work, queue, suspects, room)
        if not begun:  # it is broken for good
            suspects += queue.rest()
    for item in suspects:
        with opened() as executor:
            try:
                found: Result | Lost = executor.submit(work, item).result()
            except Exception as error:
                if not _is_death(error):
                    raise
                found = Lost(f"its worker died ({type(error).__name__})")
        yield item, found


def _workers(executor: Any) -> int:
    """Return how many threads the workers of a cluster have, at least 1."""
    found: int = sum(executor._client.nthreads().values())
    return max(1, found)


class _Queue(Generic[Item]):
    """Items that are taken one by one, and may be put back."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._source, self._back = iter(items), deque[Item]()

    def __bool__(self) -> bool:
        if not self._back:
            self._back.extend(islice(self._source, 1))
        return bool(self._back)

    def take(self) -> Item:
        """Take the next one; there must be one."""
        return self._back.popleft()

    def put_back(self, item: Item) -> None:
        """Let it be the next one again."""
        self._back.appendleft(item)

    def rest(self) -> list[Item]:
        """Take all."""
        return [self.take() for _ in iter(self.__bool__, False)]


def _round(
    executor: Executor,
    work: Callable[[Item], Result],
    queue: _Queue[Item],
    suspects: list[Item],
    most: int,
) -> Generator[tuple[Item, Result], None, bool]:
    """Yield what ends until the queue is empty or the executor breaks; return if any was begun."""
    running: dict[Future[Result], Item] = {}
    broken = begun = False
    while running or (not broken and queue):
        while len(running) < most and not broken and queue:
            item = queue.take()
            try:
                running[executor.submit(work, item)] = item
                begun = True
            except (BrokenExecutor, RuntimeError):
                queue.put_back(item)
                broken = True
        done, _ = wait(running, return_when=FIRST_COMPLETED) if running else (set(), set())
        for future in done:
            item = running.pop(future)
            try:
                result = future.result()
            except Exception as error:
                if not _is_death(error):
                    raise
                broken = broken or isinstance(error, BrokenExecutor)
                suspects.append(item)
            else:
                yield item, result
    return begun


def _is_death(error: Exception) -> bool:
    return isinstance(error, (BrokenExecutor, CancelledError)) or type(error).__name__ in _DEATHS


# Kernel files, which travel as their text


@dataclass(frozen=True, slots=True)
class KernelFile:
    """A kernel file as a value: a worker runs its own copy where it has none of this content.

    Args:
        path: where it lies for the caller.
        text: its content.
        digest: the SHA-256 of that.
    """

    path: str
    text: bytes
    digest: str

    @classmethod
    def of(cls, path: str) -> KernelFile:
        """Return the file at a path."""
        text = Path(path).read_bytes()
        return cls(path, text, hashlib.sha256(text).hexdigest())

    def local(self) -> str:
        """Return the path of a file of this content on this machine."""
        own = Path(self.path)
        if own.is_file() and hashlib.sha256(own.read_bytes()).hexdigest() == self.digest:
            return self.path
        place = Path(_own_folder().name) / self.digest / own.name
        if not place.is_file():
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(self.text)
        return str(place)


@cache
def _own_folder() -> TemporaryDirectory[str]:
    """Return a folder of this process alone: what is in it is run, so nobody else may write."""
    return TemporaryDirectory(prefix="loopnest-files-")
