"""The command line as a process of its own: how it ends, and what becomes of its output."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest

from helpers.command_line import SCALE, SOFTMAX, output, refusal
from helpers.interrupts import heed_interrupts
from loopnest.backends.cpu.c_compiler import find_compiler

# As a process


def test_a_kernel_file_is_a_command_line(file):
    def python(*arguments):
        command = [sys.executable, file, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    dumped = python("dump", "--stage", "cuda")
    assert dumped.returncode == 0, dumped.stderr
    assert 'extern "C" __global__' in dumped.stdout
    bad = python("dump", "wrong@gpu")
    assert bad.returncode == 1
    assert bad.stderr == "error: wrong@gpu: kernel wrong has no schedule 'gpu'; it has none\n"
    assert "Traceback" not in python("dump", "scale@bad").stderr
    assert "scale.py dump scale@gpu" not in python("--help").stderr
    assert python("--help").stdout.startswith("Usage: scale.py ")


def test_a_kernel_file_alone_runs():
    if find_compiler() is None:
        pytest.skip("without a C compiler it is slow")
    command = [sys.executable, SOFTMAX]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# loopnest nest 1\nkernel softmax(x: float32[N, D])")
    assert "softmax@cpu on target c: N=4096, D=1024" in done.stdout
    assert ": right\n" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


# What becomes of the output


def process(*arguments, **keywords):
    command = [sys.executable, "-m", "loopnest", *arguments]
    keywords = {"stderr": subprocess.PIPE, "encoding": "utf-8", "timeout": 120} | keywords
    return subprocess.run(command, **keywords)


def test_the_package_is_the_command_line(file):
    result = process("list", file, stdout=subprocess.PIPE)
    assert result.returncode == 0
    assert result.stdout == output("list", file)
    assert process("--help", stdout=subprocess.PIPE).stdout.startswith("Usage: loopnest [OPTIONS]")


@pytest.mark.parametrize("arguments", [("dump",), ("list",), ("--help",), ("check", "--json")])
def test_a_full_disk(file, arguments):
    with open("/dev/full", "w") as full:
        result = process(*arguments, f"{file}:lonely", stdout=full)
    assert result.returncode == 1
    assert re.fullmatch(r"error: (standard output: )?No space left on device\n", result.stderr)


def test_nobody_reads_the_output(file):
    read, write = os.pipe()
    os.close(read)
    result = process("dump", file, stdout=write)
    os.close(write)
    assert (result.returncode, result.stderr) == (1, "")


def test_standard_output_is_closed(file):
    command = f"exec {shlex.quote(sys.executable)} -m loopnest list {file} >&-"
    result = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (1, "error: standard output is closed\n")


def test_an_interrupt(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text("import time\nprint('now', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "loopnest", "list", str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_interrupts
    ) as started:
        assert started.stdout.readline() == "now\n"
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=60)
    assert (started.returncode, said) == (130, "interrupted\n")


FOREIGN = SCALE.replace("scale", "größe").replace('name="a"', 'mode="ü"')


def in_utf8(text):
    """Return text whose bytes are UTF-8 as this process passes it on, whatever its own locale."""
    return os.fsdecode(text.encode())


def test_names_that_the_locale_lacks(tmp_path):
    path = tmp_path / in_utf8("größe.py")
    path.write_text(FOREIGN, encoding="utf-8")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    keywords = {"env": os.environ | locale, "stdout": subprocess.PIPE}
    spec = f"{path}:{in_utf8('größe@gpu')}"
    assert process("list", spec, **keywords).returncode == 0
    assert process("dump", spec, "-P", in_utf8("mode=ö"), **keywords).returncode == 0
    assert process("run", spec, "--target", "interpret", "-D", "N=9", **keywords).returncode == 0
    result = process("dump", f"{path}:{in_utf8('ä')}", **keywords)
    assert result.returncode == 1
    assert result.stderr.endswith(
        "there is no kernel '\\xe4'; it has gr\\xf6\\xdfe, wrong, lonely\n"
    )


def test_a_bug_is_one_sentence(file, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("loopnest.devtools.cli.kernel_commands._stage_text", fail)
    sentence = (
        r"error: ZeroDivisionError: oh \(at test_cli_process.py:\d+\); this is a bug of loopnest, "
        r"please report it with the traceback that LOOPNEST_TRACEBACK=1 shows\n"
    )
    assert re.fullmatch(sentence, refusal("dump", file))
    monkeypatch.setenv("LOOPNEST_TRACEBACK", "1")
    assert re.fullmatch(
        r"Traceback \(most recent call last\):\n(?s:.*)" + sentence, refusal("dump", file)
    )
