"""tools/gpu_check.py, without a GPU: what it says then, and with one that is none, its report."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import loopnest as ln
from helpers.fake_gpu import H100, FakeGpu, plug_in
from loopnest.backends.cuda.driver import gpu_driver

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    for name in [n for n in sys.modules if n.startswith(("gpu_", "gpu_check_"))]:
        monkeypatch.delitem(sys.modules, name)
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
    monkeypatch.setattr(gpu_driver, "_found", [])
    monkeypatch.setattr(gpu_driver, "_obstacle", ["no GPU was found"])
    found = CliRunner().invoke(tool.main, [])
    assert found.exit_code == 2
    assert " ".join(found.output.split()) == (
        "gpu_check: no GPU was found. It checks kernels on a GPU; run it where there is one. "
        "Everything else is checked by tools/run pytest."
    )


def test_the_help_teaches(tool):
    text = CliRunner().invoke(tool.main, ["--help"]).output
    for word in (
        "compute-sanitizer",
        "Nsight Compute",
        "torch.compile",
        "--only softmax",
        "--minutes",
    ):
        assert word in text
    assert "--once" not in text


@pytest.fixture
def quick(monkeypatch, tool):
    """Measure for no longer than it takes, on little memory."""
    import gpu_steps
    import gpu_subjects

    monkeypatch.setattr("loopnest.launch.timing.SECONDS", 0.0)
    monkeypatch.setattr("loopnest.launch.timing.BATCH_SECONDS", 0.0)
    monkeypatch.setattr(gpu_subjects, "LARGE_BYTES", 1 << 16)
    monkeypatch.setattr(gpu_subjects, "PROBES", Path("/nowhere/none.py"))
    monkeypatch.setattr(gpu_subjects, "MOST_POINTS", 1 << 12)
    monkeypatch.setattr(gpu_steps, "copy_bandwidth", lambda torch: 1e9)
    monkeypatch.setattr(tool, "find_tool", lambda name: None)
    monkeypatch.setattr(tool, "torch_here", lambda tell: None)
    loaded = gpu_subjects.load
    monkeypatch.setattr(gpu_subjects, "load", lambda f: loaded(f) if f.exists() else ())


def call(tool, folder, *options):
    given = ["--folder", str(folder), "--out", str(folder / "results"), *options]
    return CliRunner().invoke(tool.main, given)


def table(folder):
    (written,) = (folder / "results").glob("gpu_Fake_H100_*.md")
    return written.read_text().splitlines()


def test_the_report(tool, folder, monkeypatch, quick):
    gpu = plug_in(monkeypatch, FakeGpu())
    found = call(tool, folder)
    assert found.exit_code == 0, found.output
    lines = table(folder)
    assert lines[0] == "# Kernels on Fake H100"
    assert (
        "sm_90, 132 multiprocessors, driver of CUDA 13.9; copy bandwidth (read and written): "
        "1 GB/s; commit " in lines[2]
    )
    assert re.match(r"\| doubled@gpu \| right \(\d+ runs\) \|  \| N=256, D=32 \| ", lines[-1])
    assert "doubled@cpu" not in "\n".join(lines)
    starts = [entry[0] for entry in gpu.log]
    assert starts.count("launch") > 10


def test_it_goes_on_where_it_stopped(tool, folder, monkeypatch, quick):
    gpu = plug_in(monkeypatch, FakeGpu())
    stopped = call(tool, folder, "--minutes", "0")
    assert stopped.exit_code == 3
    assert "the time is up; 2 tasks are left: call it again to go on" in stopped.output
    first = call(tool, folder, "--skip", "times")
    assert first.exit_code == 0
    assert table(folder)[-1].endswith("|  |  |  |  |  |  |  |  |  |  |  |")
    launches = len(gpu.calls("launch"))
    (lines,) = (folder / "results").glob("*.jsonl")
    lines.write_text(lines.read_text() + '{"commit": "cut o')
    again = call(tool, folder, "--skip", "times")
    assert (again.exit_code, len(gpu.calls("launch"))) == (0, launches)
    assert call(tool, folder).exit_code == 0
    assert "N=256, D=32" in table(folder)[-1]
    fresh = call(tool, folder, "--fresh", "--skip", "times")
    assert fresh.exit_code == 0
    assert "N=256" not in table(folder)[-1]


def zeros(gpu, monkeypatch):
    honest = gpu.download
    monkeypatch.setattr(gpu, "download", lambda t, *rest: (honest(t, *rest), t.fill(0)))


def stale(gpu, monkeypatch):
    """Launches do nothing, and memory holds what the first one that did left there."""
    monkeypatch.setattr(gpu, "allocate", reuse(gpu, gpu.allocate))
    monkeypatch.setattr(gpu, "free", lambda address, stream: None)
    honest, count = gpu.launch, []

    def launch(*arguments):
        count.append(1)
        if len(count) == 1:
            honest(*arguments)

    monkeypatch.setattr(gpu, "launch", launch)


def reuse(gpu, honest):
    kept = {}

    def allocate(count, stream):
        turn = kept.setdefault(count, [])
        if len(turn) < 2:
            turn.append(honest(count, stream))
            return turn[-1]
        turn.append(turn.pop(0))
        return turn[-1]

    return allocate


def dropped_block(gpu, monkeypatch):
    """The last row of a result is that of the memory before the launch."""
    honest = gpu.download

    def download(target, *rest):
        honest(target, *rest)
        if target.ndim == 2 and target.shape[0] > 1:
            target[-1] = np.frombuffer(b"\xab" * target[-1].nbytes, target.dtype)

    monkeypatch.setattr(gpu, "download", download)


def test_side_by_side(tool, folder, monkeypatch, quick):
    """Each finding comes from a process of its own."""
    plug_in(monkeypatch, FakeGpu())
    commands = []

    def finding(command, seconds):
        commands.append(command)
        if "--step=results" in command:
            return {"results": "right (3 runs)"}
        return {"sizes": {"N": 256, "D": 32}, "moved": 65536, "seconds": 1e-6}

    monkeypatch.setattr(tool, "finding", finding)
    found = call(tool, folder, "--jobs", "2")
    assert found.exit_code == 0, found.output
    assert [c[2:] for c in commands] == [
        ["--once", f"{folder / 'doubled.py'}:doubled@gpu", f"--step={step}", "--sizes=[]"]
        for step in ("results", "times")
    ]
    assert re.match(r"\| doubled@gpu \| right \(3 runs\) \|  \| N=256, D=32 \| ", table(folder)[-1])


def test_what_a_process_finds(tool, folder, monkeypatch, quick):
    plug_in(monkeypatch, FakeGpu())
    place = f"{folder / 'doubled.py'}:doubled@gpu"
    found = CliRunner().invoke(tool.main, ["--once", place, "--step", "results"])
    assert re.fullmatch(r'\{"results": "right \(\d+ runs\)"\}\n', found.output)
    found = CliRunner().invoke(tool.main, ["--once", place, "--step", "times"])
    assert '"sizes": {"N": 256, "D": 32}' in found.output
    from gpu_tools import finding

    def of(code, seconds=60.0):
        return finding([sys.executable, "-c", code], seconds)

    assert of("print('x'); print('{\"results\": \"right\"}')") == {"results": "right"}
    assert of("raise ValueError('no')") == {"error": "ValueError: no"}
    assert of("import os; os._exit(3)") == {"error": "it ended with exit status 3"}
    assert of("while True: pass", 0.5) == {"error": "no end after 0 seconds"}


def test_what_is_wrong_is_not_measured(tool, folder, monkeypatch, quick):
    gpu = plug_in(monkeypatch, FakeGpu())
    zeros(gpu, monkeypatch)
    found = call(tool, folder)
    assert found.exit_code == 1
    assert "N=256" not in table(folder)[-1]


@pytest.mark.parametrize("fault", [zeros, stale, dropped_block])
def test_what_is_wrong_is_reported(tool, folder, monkeypatch, quick, fault):
    gpu = plug_in(monkeypatch, FakeGpu())
    fault(gpu, monkeypatch)
    found = call(tool, folder, "--skip", "times")
    assert found.exit_code == 1
    assert "doubled@gpu: results" in found.output
    assert re.search(r"wrong at N=\d+, D=\d+ \((host|GPU)\): ", table(folder)[-1])


def test_nothing_that_fits(tool, folder, monkeypatch, quick):
    plug_in(monkeypatch, FakeGpu())
    found = call(tool, folder, "--only", "tripled")
    assert found.exit_code == 2
    assert " ".join(found.output.split()).endswith("fits --only tripled")


def test_the_order_of_tasks(tool, folder, monkeypatch, quick):
    from gpu_subjects import subjects

    (folder / "typed.py").write_text(
        KERNELS.replace("(f):\n    x =", "(f, dtype=ln.float32):\n    x =").replace(
            "doubled", "typed"
        )
    )
    chosen = list(subjects(folder, (), Console()))
    assert [t.title for t in tool.tasks(chosen, tool.STEPS)] == [
        "doubled@gpu: results", "typed@gpu: results", "typed@gpu float16: results",
        "typed@gpu bfloat16: results", "doubled@gpu: times", "typed@gpu: times",
        "doubled@gpu: checks", "typed@gpu: checks", "doubled@gpu: counts", "typed@gpu: counts",
    ]  # fmt: skip


def test_sizes_reach_every_kind_of_launch(tool):
    from gpu_subjects import subjects

    chosen = list(subjects(ROOT / "kernels", ("softmax@gpu", "gemm@gpu"), Console()))
    for subject in [s for s in chosen if s.is_main]:
        small = subject.small()
        assert {subject.kernel.launch(**sizes).variant for sizes in small} == {"vector", "scalar"}
        assert any(0 in sizes.values() for sizes in small)
        assert any(set(sizes.values()) == {1} for sizes in small)
        warps = [math.prod(subject.kernel.launch(**sizes).block) % 32 for sizes in small]
        assert subject.name == "gemm@gpu" or any(warps)


def test_the_probes_are_right_and_what_they_are_for(tool):
    from gpu_subjects import PROBES, find

    centred = find(f"{PROBES}:centred@gpu", "float16")
    assert centred.kernel.program.is_cooperative
    assert find(f"{PROBES}:doubled@gpu", "float32").kernel.has_scalar
    for name in ("centred@gpu", "doubled@gpu"):
        subject = find(f"{PROBES}:{name}", "float32")
        x = np.random.default_rng(0).random(777, np.float32)
        wanted = subject.definition.reference(x)
        got = ln.compile(subject.kernel, target="interpret")(x)
        np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_rows(tool):
    from gpu_table import is_bad, markdown
    from gpu_tools import CHECKS

    clean = dict.fromkeys(CHECKS, "clean")
    found = {
        "GPU": {"copy": {"bandwidth": 1e9}},
        "softmax@gpu": {
            "results": {"results": "right (9 runs)"},
            "times": {"sizes": {"N": 4, "D": 8}, "moved": 1000, "seconds": 2e-6,
                      "eager": 1e-6, "compiled": 4e-6},
            "checks": {"checks": clean},
            "counts": {"bytes": 1500, "moved": 1000, "conflicts": 0, "sectors": [4.0, 4],
                       "wavefronts": [0.0, 0]},
        },
        "a@b": {"checks": {"checks": {"memcheck": "clean", "racecheck": "1 hazard | x"}}},
        "c@d": {"results": {"error": "too large"}},
    }  # fmt: skip
    text = markdown(found, H100, "2026-01-02", "abc")
    assert text.splitlines()[-3:] == [
        "| a@b |  | racecheck: 1 hazard / x |  |  |  |  |  |  |  |  |  |  |",
        "| c@d | results failed: too large |  |  |  |  |  |  |  |  |  |  |  |",
        "| softmax@gpu | right (9 runs) | clean | N=4, D=8 | 2.0 µs | 0 | 50% | 2.00 | 0.50 | 1.50 "
        "| 0 | 1.000 |  |",
    ]
    assert not is_bad("results", found["softmax@gpu"]["results"])
    assert not is_bad("checks", {"checks": clean})
    assert is_bad("checks", found["a@b"]["checks"])
    assert is_bad("results", found["c@d"]["results"])
    assert "copy bandwidth (read and written): not measured" in markdown({}, H100, "x", "y")


# The tools around


def test_commands_of_child_processes(tool):
    from gpu_subjects import find
    from gpu_tools import child

    subject = find("kernels/softmax.py:softmax@gpu", "float16")
    command = child(subject, [{"N": 5, "D": 7}])
    assert command[0] == sys.executable
    assert command[1].endswith("tools/gpu_check.py")
    assert command[2:] == [
        "--once",
        "kernels/softmax.py:softmax@gpu",
        "--dtype=float16",
        '--sizes=[{"N": 5, "D": 7}]',
    ]


def test_a_child_runs_its_kernel(tool, folder, monkeypatch):
    gpu = plug_in(monkeypatch, FakeGpu())
    place = f"{folder / 'doubled.py'}:doubled@gpu"
    sizes = '[{"N": 5, "D": 3}, {"N": 2, "D": 1}]'
    found = CliRunner().invoke(tool.main, ["--once", place, "--sizes", sizes])
    assert found.exit_code == 0, found.output
    assert [c[1].grid for c in gpu.calls("launch")] == [(5, 1, 1), (2, 1, 1)]


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
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","gpu__time_duration.sum",\
"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",\
"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
"","","","byte","byte","","nsecond","sector","sector",""
"0","1","softmax","16,777,216","16,000,000","32","12,000","32","16","7"
"""


def test_what_nsight_compute_counts(tool):
    import gpu_tools

    assert gpu_tools.parse(NCU) == gpu_tools.Counters(32777216.0, 32.0, 1.2e-05, 48.0, 7.0)
    assert gpu_tools.parse("==ERROR== no permission") is None
    assert gpu_tools.parse("\n".join(NCU.splitlines()[:3])) is None
