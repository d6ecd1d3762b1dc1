"""Work over executors: workers that die, kernel files as values, check and fuzz by workers."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path

import pytest

import loopnest as ln
from helpers import network_farm
from helpers.command_line import SCALE, call, output, refusal
from loopnest.devtools import work_farm
from loopnest.devtools.schedule_check import CheckJob, checked_job
from loopnest.devtools.work_farm import KernelFile, Lost, cluster, finished, given, processes
from loopnest.launch.disk_cache import objection


def squared(number):
    return number * number


def dies(folder, number):
    """End the worker at 3, and leave a mark at each number."""
    (Path(folder) / f"{number}.{os.getpid()}").touch()
    if number == 3:
        os._exit(1)
    return number


def fails(number):
    raise ValueError(f"no {number}")


@pytest.mark.parametrize("most", [1, 3, 100])
def test_each_item_has_one_result(most):
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        found = list(finished(given(executor), squared, iter(range(20)), most))
    assert sorted(found) == [(n, n * n) for n in range(20)]


def test_a_worker_that_dies_loses_nothing_but_what_kills_it(tmp_path):
    found = dict(finished(processes(2), partial(dies, str(tmp_path)), range(8), 4))
    assert found == {
        **{n: n for n in range(8)}, 3: Lost("its worker died (BrokenProcessPool)")
    }  # fmt: skip
    assert len(list(tmp_path.glob("3.*"))) == 2  # among others, and alone


def test_an_executor_that_is_gone():
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.shutdown()
    opened = given(executor)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        list(finished(opened, squared, [1, 2]))


def test_what_work_raises_is_raised():
    with (
        concurrent.futures.ThreadPoolExecutor(1) as executor,
        pytest.raises(ValueError, match=r"^no 1$"),
    ):
        list(finished(given(executor), fails, [1]))


def test_items_are_taken_when_there_is_room():
    taken = []

    def items():
        for n in range(9):
            taken.append(n)
            yield n

    class Slow(concurrent.futures.Executor):
        def submit(self, fn, *args):
            assert len(taken) <= 10
            future = concurrent.futures.Future()
            future.set_result(fn(*args))
            return future

    seen = []
    for item, _ in finished(lambda: nullcontext(Slow()), squared, items(), 2):
        seen.append(item)
        assert len(taken) <= len(seen) + 3
    assert sorted(seen) == list(range(9))


# Kernel files


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    return path


def test_a_file_travels_as_its_text(file):
    value = KernelFile.of(str(file))
    assert value.local() == str(file)
    file.write_text("changed = 1\n")
    elsewhere = value.local()
    assert elsewhere != str(file)
    assert Path(elsewhere).read_text() == SCALE
    assert Path(elsewhere).name == "scale.py"
    assert value.local() == elsewhere


def test_nobody_else_can_change_a_file_that_travelled(file, tmp_path, monkeypatch):
    """What is run lies in no folder that another user may have made before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    value = KernelFile.of(str(file))
    file.unlink()
    planted = tmp_path / f"loopnest-files-{os.getuid()}" / value.digest
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    own = cache(work_farm._own_folder.__wrapped__)
    monkeypatch.setattr(work_farm, "_own_folder", own)
    place = Path(value.local())
    assert place.read_text() == SCALE
    folders = place.parents[: len(place.relative_to(tmp_path).parents) - 1]
    assert [objection(folder.stat()) for folder in folders] == [None] * len(folders)
    own().cleanup()


def test_a_worker_loads_a_file_once(file, tmp_path):
    log = tmp_path / "log"
    count = f"with open({str(log)!r}, 'a') as log:\n    log.write('.')\n"
    file.write_text(count + SCALE)
    value, asked = KernelFile.of(str(file)), {"schedule": "gpu"}
    for place in range(3):
        assert checked_job(CheckJob(value, "scale", asked, place)).error is None
    assert log.read_text() == "."
    file.write_text(file.read_text().replace("scale", "other"))
    other = KernelFile.of(str(file))
    assert checked_job(CheckJob(other, "other", asked, 0)).error is None
    assert checked_job(CheckJob(value, "scale", asked, 0)).error is None  # its own content again
    assert log.read_text() == "..."


# Commands


def without_seconds(text):
    found = json.loads(text)
    for row in found["checked"]:
        del row["seconds"]
    return found


def test_check_by_processes_says_the_same(file):
    spec = [f"{file}:scale@gpu", "--json"]
    alone = without_seconds(output("check", *spec))
    assert without_seconds(output("check", *spec, "--jobs", "2")) == alone


def test_check_by_processes_shows_failures(file):
    alone, shared = [call("check", str(file), *more) for more in ((), ("--jobs", "2"))]
    assert alone.exit_code == shared.exit_code == 1
    sentence = (
        "scale.py:25: T2.split" if "T2.split" in alone.stdout else "y.split(axis=3, factor=2)"
    )
    assert sentence in alone.stdout
    assert sentence in shared.stdout
    assert "3 of 5 schedules failed" in alone.stderr
    assert "3 of 5 schedules failed" in shared.stderr


def test_pieces_of_random_schedules_are_smaller_towards_the_end(file, monkeypatch):
    """So that workers end together; each schedule is in one of them."""
    from loopnest.devtools.cli import fuzz_command

    pieces = []

    def noted(opened, work, items, most):
        assert most == 4
        for job in items:
            pieces.append(job)
            yield job, work(job)

    monkeypatch.setattr(fuzz_command, "finished", noted)
    output("fuzz", f"{file}:scale", "--count", "60", "--jobs", "2")
    assert [job.count for job in pieces] == [7, 6, 5, 5, 4, 4, 3, 3, 2, 2, 2, 2, *[1] * 15]
    assert [job.first for job in pieces] == [
        sum(p.count for p in pieces[:n]) for n in range(len(pieces))
    ]


def test_fuzz_by_processes(file):
    spec = [f"{file}:scale", "--count", "25", "--json"]
    alone = json.loads(output("fuzz", *spec))
    assert json.loads(output("fuzz", *spec, "--jobs", "2")) == alone


# Dask


def test_no_scheduler(file):
    pytest.importorskip("distributed")
    said = refusal("check", f"{file}:scale@gpu", "--scheduler", "tcp://127.0.0.1:1")
    assert said.startswith("error: scheduler 'tcp://127.0.0.1:1': there is no scheduler to reach (")
    assert said.endswith("); start one by 'dask scheduler'\n")


def test_dask_is_missing(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    said = refusal("check", f"{file}:scale@gpu", "--scheduler", "local")
    assert said == (
        "error: scheduler 'local': dask.distributed is not installed; "
        "pip install 'loopnest[farm]'\n"
    )


def test_a_local_cluster(tmp_path):
    pytest.importorskip("distributed")
    found = dict(finished(cluster("local", 2), squared, range(12)))
    assert found == {n: n * n for n in range(12)}
    assert ln.LOCAL  # the package is loaded on the workers as here


def may_make_networks():
    trial = ["unshare", "--net", "ip", "link", "add", "a0", "type", "veth", "peer", "name", "b0"]
    try:
        return subprocess.run(trial, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize(("event", "workers"), [("cable", 2), ("scheduler", 4)])
def test_a_farm_that_loses(event, workers, tmp_path):
    """The cable of one host is pulled, or scheduler and hosts begin anew: no result is lost."""
    pytest.importorskip("distributed")
    if not may_make_networks():
        pytest.skip("nobody may make networks here")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "helpers.network_farm", str(tmp_path), event],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5s",
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(found) == [[n, n * n] for n in range(network_farm.ITEMS)]
    marks = [mark for mark in tmp_path.glob("*.*") if mark.stem.isdigit()]
    assert len({mark.suffix for mark in marks}) == workers
    again = {n for n, _ in found if len(list(tmp_path.glob(f"{n}.*"))) > 1}
    assert again, "nobody was at anything when it ended"
    assert not {n for n, _ in found[: network_farm.BEFORE]} & again


class Counted:
    """Items, and how many of them were taken when the first result came."""

    def __init__(self, count):
        self.items, self.taken = range(count), 0

    def __iter__(self):
        for item in self.items:
            self.taken += 1
            yield item


def test_as_many_are_begun_as_a_cluster_has_workers():
    """Two a worker, whatever the number of jobs on this machine."""
    pytest.importorskip("distributed")
    items = Counted(40)
    found = finished(cluster("local", 3), squared, items, None)
    next(found)
    assert 6 <= items.taken < 40
    assert len([*found]) == 39


# A slow host


@contextmanager
def a_tenth(process):
    """Let a process have a tenth of the time: it is stopped for 90 of 100 ms."""
    over = threading.Event()

    def hold():
        while not over.wait(0.01):
            process.send_signal(signal.SIGSTOP)
            over.wait(0.09)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_slow_host_keeps_nothing_back(tmp_path):
    """Of two workers one is ten times slower: each item is run once, most by the other."""
    distributed = pytest.importorskip("distributed")
    items = 60
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as scheduler, ExitStack() as stack:  # fmt: skip
        command = [sys.executable, "-m", "dask", "worker", scheduler.scheduler_address]
        command += ["--no-nanny", "--no-dashboard", "--nthreads", "1"]
        workers = [
            subprocess.Popen(
                command, cwd=tmp_path, stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )
            for _ in range(2)
        ]  # fmt: skip
        for worker in workers:
            stack.callback(worker.wait)
            stack.callback(worker.kill)
        with distributed.Client(scheduler.scheduler_address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        slow, fast = workers
        with a_tenth(slow):
            opened = cluster(scheduler.scheduler_address, 1)
            found = list(
                finished(opened, partial(network_farm.steadily, str(tmp_path)), range(items))
            )
    assert sorted(found) == [(n, n * n) for n in range(items)]
    done = {worker: list(tmp_path.glob(f"*.{worker.pid}")) for worker in workers}
    assert len(done[slow]) + len(done[fast]) == items  # nothing is run twice
    assert 1 <= len(done[slow]) <= items // 3
