"""tools/gpu_check.py, without a GPU: what it says then, and with one that is none, its report."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from fake_gpu import H100, FakeGpu, plug_in
from loopnest.runtime import driver

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for name in ("gpu_check", "gpu_tools", "gpu_peers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import gpu_check

    return gpu_check


KERNELS = """
import loopnest as ln


@ln.kernel(sizes={"N": 64, "D": 32})
def doubled(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(x + x, "y")


@doubled.schedule("gpu")
def gpu(f):
    f["y"].parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})


@doubled.schedule("cpu")
def cpu(f):
    t = f["y"].cache_before()
    t.compute_at(f["y"], 1)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "doubled.py").write_text(KERNELS)
    return tmp_path


def test_without_a_gpu_it_says_so(tool, monkeypatch):
    monkeypatch.setattr(driver, "_found", [])
    monkeypatch.setattr(driver, "_obstacle", ["no GPU was found"])
    found = CliRunner().invoke(tool.main, [])
    assert found.exit_code == 2
    assert " ".join(found.output.split()) == (
        "gpu_check: no GPU was found. It checks kernels on a GPU; run it where there is one. "
        "Everything else is checked by tools/run pytest."
    )


def test_the_help_teaches(tool):
    text = CliRunner().invoke(tool.main, ["--help"]).output
    for word in ("compute-sanitizer", "Nsight Compute", "torch.compile", "--only softmax"):
        assert word in text
    assert "--once" not in text


def test_the_report(tool, folder, monkeypatch):
    gpu = plug_in(monkeypatch, FakeGpu())
    monkeypatch.setattr("loopnest.runtime.bench.SECONDS", 0.0)
    monkeypatch.setattr("loopnest.runtime.bench.BATCH_SECONDS", 0.0)
    monkeypatch.setattr(tool, "LARGE_BYTES", 1 << 16)
    monkeypatch.setattr(tool, "copy_bandwidth", lambda torch: 1e9)
    monkeypatch.setattr(tool, "find", lambda name: None)
    console = Console(file=io.StringIO())
    skip = ("checks", "counts")
    assert tool.report(folder, (), skip, folder / "results", console)
    (written,) = (folder / "results").glob("gpu_Fake_H100_*.md")
    lines = written.read_text().splitlines()
    assert lines[0] == "# Kernels on Fake H100"
    assert "sm_90, 132 multiprocessors; copy bandwidth (read and written): 1 GB/s" in lines[2]
    assert lines[-1].startswith("| doubled@gpu | right |  | N=256, D=32 | ")
    assert "doubled@cpu is left out: " in console.file.getvalue()
    assert gpu.calls("launch")


def test_what_is_wrong_is_reported(tool, folder, monkeypatch):
    gpu = plug_in(monkeypatch, FakeGpu())
    honest = gpu.download

    def wrong(target, address, stream):
        honest(target, address, stream)
        target.flat[:1] += 1

    monkeypatch.setattr(gpu, "download", wrong)
    console = Console(file=io.StringIO())
    skip = ("checks", "counts", "times")
    assert not tool.report(folder, ("doubled",), skip, folder / "results", console)
    assert "doubled@gpu: wrong at N=" in console.file.getvalue()


def test_rows(tool):
    from gpu_peers import PeerTimes
    from gpu_tools import Counters

    whole = tool.Row(
        "softmax@gpu", "right", dict.fromkeys(tool.CHECKS, "clean"), {"N": 4, "D": 8}, 1000, 2e-6,
        PeerTimes(1e-6, 4e-6), Counters(1500, 0, 2e-6),
    )  # fmt: skip
    raced = tool.Row("a@b", "right", {"memcheck": "clean", "racecheck": "1 hazard | x"})
    failed = tool.Row("c@d", "failed: too large")
    text = tool.markdown([whole, raced, failed], H100, 1e9, "2026-01-02")
    assert text.splitlines()[-3:] == [
        "| softmax@gpu | right | clean | N=4, D=8 | 2.0 µs | 0 | 50% | 2.00 | 0.50 | 1.50 | 0 |",
        "| a@b | right | racecheck: 1 hazard / x |  |  |  |  |  |  |  |  |",
        "| c@d | failed: too large |  |  |  |  |  |  |  |  |  |",
    ]
    assert [row.ok for row in (whole, raced, failed)] == [True, False, False]
    assert "copy bandwidth (read and written): not measured" in (
        tool.markdown([], H100, None, "2026-01-02")
    )


# The tools around


def test_commands_of_child_processes(tool):
    import gpu_tools

    command = gpu_tools.child(Path("kernels/softmax.py"), "softmax@gpu", {"N": 5, "D": 7})
    assert command[0] == sys.executable
    assert command[1].endswith("tools/gpu_check.py")
    assert command[2:] == ["--once", "kernels/softmax.py:softmax@gpu", "--size=N=5", "--size=D=7"]


def test_a_child_runs_its_kernel(tool, folder, monkeypatch):
    gpu = plug_in(monkeypatch, FakeGpu())
    place = f"{folder / 'doubled.py'}:doubled@gpu"
    found = CliRunner().invoke(tool.main, ["--once", place, "--size=N=5", "--size=D=3"])
    assert found.exit_code == 0, found.output
    assert [(c[0], c[1].grid) for c in gpu.calls("launch")] == [("doubled", (5, 1, 1))]


def test_what_compute_sanitizer_says(tool, tmp_path, monkeypatch):
    import gpu_tools

    output = "========= Invalid __global__ write\n========= ERROR SUMMARY: 3 errors\n"
    assert gpu_tools.verdict(output) == "3 errors"
    assert gpu_tools.verdict("x\nRACECHECK SUMMARY: 1 hazard displayed\n\n") == "1 hazard displayed"
    assert gpu_tools.verdict("Error: no device\n") == "Error: no device"
    assert gpu_tools.verdict("") == "failed without a word"
    fake = tmp_path / "compute-sanitizer"
    fake.write_text('#!/bin/sh\necho "ERROR SUMMARY: $2 $5"\nexit $4\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpu_tools.sanitize("memcheck", ["child"]) == "memcheck child"
    fake.write_text("#!/bin/sh\nexit 0\n")
    assert gpu_tools.sanitize("racecheck", ["child"]) == "clean"
    fake.write_text("#!/bin/sh\nexec sleep 5\n")
    assert gpu_tools.sanitize("racecheck", ["child"], seconds=0.1) == "timed out"


NCU = """\
==PROF== Connected to process 1
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum",\
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","gpu__time_duration.sum"
"","","","byte","byte","","nsecond"
"0","1","softmax","16,777,216","16,000,000","32","12,000"
"""


def test_what_nsight_compute_counts(tool):
    import gpu_tools

    assert gpu_tools.parse(NCU) == gpu_tools.Counters(32777216.0, 32.0, 1.2e-05)
    assert gpu_tools.parse("==ERROR== no permission") is None
    assert gpu_tools.parse("\n".join(NCU.splitlines()[:3])) is None
