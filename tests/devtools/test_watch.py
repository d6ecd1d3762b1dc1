"""``--watch``: a command runs again when a file that it used changes, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.interrupts import heed_interrupts

KERNEL = """\
import loopnest as ln
from {helper} import factor

@ln.kernel(sizes={{"N": 8}})
def scaled(f):
    f.output(f.input("x", ("N",), ln.float32) * factor, "y")

if __name__ == "__main__":
    ln.main()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    helper = "factor_of_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{helper}.py").write_text("factor = 2.0\n")
    (tmp_path / "scaled.py").write_text(KERNEL.format(helper=helper))
    return tmp_path / "scaled.py"


def helper_of(file: Path) -> Path:
    return next(path for path in file.parent.glob("factor_of_*.py"))


def rewrite(file: Path, text: str) -> None:
    """Write a file as editors do, at another time than before."""
    new = file.with_suffix(".new")
    new.write_text(text)
    if file.exists():
        os.utime(new, ns=(0, file.stat().st_mtime_ns + 2_000_000_000))
    new.replace(file)


@contextmanager
def watching(*command: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *command], stdout=pipe, stderr=subprocess.STDOUT, text=True,
        preexec_fn=heed_interrupts, cwd=folder,
    ) as started:  # fmt: skip
        try:
            yield started
        finally:
            started.kill()


def until(started: subprocess.Popen[str], word: str) -> list[str]:
    """Return the lines up to the first that begins with a word."""
    lines: list[str] = []
    for line in started.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(word):
            return lines
    raise AssertionError(lines)


def test_what_a_file_imports_is_watched_too(file: Path) -> None:
    with watching("-m", "loopnest", "dump", file.name, "--watch", folder=file.parent) as started:
        assert "  y[i0] = x[i0] * 2.0" in until(started, "-- until")
        rewrite(helper_of(file), "factor = 3.0\n")
        lines = until(started, "-- until")
        assert lines[0] == f"-- again: {helper_of(file).name} has changed"
        assert "  y[i0] = x[i0] * 3.0" in lines
        assert lines[-1] == f"-- until scaled.py, {helper_of(file).name} changes; Ctrl-C ends"
        started.send_signal(signal.SIGINT)
        assert started.communicate(timeout=60)[0] == ""
    assert started.returncode == 0


def test_a_mistake_is_told_and_waited_for(file: Path) -> None:
    right = file.read_text()
    file.unlink()
    with watching("-m", "loopnest", "dump", file.name, "--watch", folder=file.parent) as started:
        assert until(started, "-- until") == [
            "error: scaled.py: there is no such file; use FILE[:KERNEL[@SCHEDULE]]",
            "-- until scaled.py changes; Ctrl-C ends",
        ]
        rewrite(file, "def (:\n")
        assert "SyntaxError: invalid syntax" in until(started, "-- until")
        rewrite(file, right)
        assert "  y[i0] = x[i0] * 2.0" in until(started, "-- until")
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 0


def test_a_file_that_runs_itself(file: Path) -> None:
    with watching(file.name, "dump", "scaled", "--watch", folder=file.parent) as started:
        assert "  y[i0] = x[i0] * 2.0" in until(started, "-- until")
        rewrite(helper_of(file), "factor = 5.0\n")
        assert "  y[i0] = x[i0] * 5.0" in until(started, "-- until")
        rewrite(file, file.read_text().replace("ln.float32", "ln.float64"))
        assert "kernel scaled(x: float64[N]) -> (y: float64[N])" in until(started, "-- until")


@pytest.mark.parametrize(
    "arguments",
    [("run", "--target", "interpret"), ("check",), ("profile", "-D", "N=64")],
    ids=lambda arguments: arguments[0],
)
def test_other_commands(file: Path, arguments: tuple[str, ...]) -> None:
    command = ("-m", "loopnest", arguments[0], file.name, *arguments[1:], "--watch")
    with watching(*command, folder=file.parent) as started:
        first = until(started, "-- until")
        rewrite(helper_of(file), "factor = 7.0\n")
        again = until(started, "-- until")
    assert any("scaled" in line for line in first)
    assert again[0] == f"-- again: {helper_of(file).name} has changed"
    assert any("scaled" in line for line in again[1:-1])


def test_an_interrupt_of_what_runs(file: Path) -> None:
    file.write_text("import time\nprint('now', flush=True)\ntime.sleep(60)\n")
    with watching("-m", "loopnest", "dump", file.name, "--watch", folder=file.parent) as started:
        assert until(started, "now") == ["now"]
        # As a terminal does: to all processes of the group.
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        for pid in (*map(int, children), started.pid):
            os.kill(pid, signal.SIGINT)
        assert started.communicate(timeout=60)[0] == "interrupted\n"
    assert started.returncode == 0
