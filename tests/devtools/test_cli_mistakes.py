"""What a user of the command line is told: wrong arguments, and files that cannot be loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import loopnest
from helpers.command_line import SOFTMAX, call, output, refusal
from loopnest.backends.cuda.driver import gpu_driver
from loopnest.devtools.cli import command_line

# What goes wrong


def test_no_command_is_shown_that_does_not_exist():
    assert list(command_line(False, "loopnest").commands) == [
        "list",
        "dump",
        "run",
        "bench",
        "profile",
        "report",
        "explain",
        "fuzz",
        "tune",
        "check",
        "machine",
        "judge",
    ]


def test_mistakes_on_the_command_line(file, tmp_path):
    empty = tmp_path / "empty.py"
    empty.write_text("")
    missing = tmp_path / "missing.py"
    plain = tmp_path / "plain"
    plain.write_text("")
    cases = {
        ("run", str(missing)):
            f"{missing}: there is no such file; use FILE[:KERNEL[@SCHEDULE]]",
        ("run", str(empty)):
            "empty.py: it defines no kernel; decorate its math with @ln.kernel(...)",
        ("run", f"{file}:nope"):
            "scale.py: there is no kernel 'nope'; it has scale, wrong, lonely",
        ("run", f"{file}:scale@cpu"):
            "scale@cpu: kernel scale has no schedule 'cpu'; its schedules are gpu, bad, broken",
        ("run", file, "-P", "thread=1"):
            "scale@gpu: there is no parameter 'thread'; parameters: the math has dtype; "
            "schedule gpu has threads, fancy, speed, name",
        ("dump", file, "-P", "threads=many"): "-P threads=many: 'many' is no int",
        ("dump", file, "-P", "threads"): "-P threads: use -P NAME=VALUE",
        ("dump", file, "-P", "dtype=half"):
            "-P dtype=half: use one of bool, int8, uint8, int16, uint16, int32, uint32, int64, "
            "float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64",
        ("dump", file, "-D", "M=3"): "-D M: scale has no size or scalar 'M'; it has N, factor",
        ("run", file, "--target", "interpret", "-D", "N=-1"): "-D N=-1: sizes are ints >= 0",
        ("run", file, "-D", "N=a"): "-D N=a: 'a' is no number",
        ("run", file, "-D", "N=True"): "-D N=True: sizes are ints >= 0",
        ("dump", file, "-D", "N=-1"): "-D N=-1: sizes are ints >= 0",
        ("run", file, "-D", "N=1", "-D", "N=2"): "-D N: it is given twice, 1 and 2",
        ("run", file, "-P", "threads=1", "-P", "threads=2"):
            "-P threads: it is given twice, 1 and 2",
        ("run", file, "-D", "N=" + "(" * 300): f"-D N={'(' * 300}: '{'(' * 300}' is no number",
        ("list", ""): "no file is named; use FILE[:KERNEL[@SCHEDULE]]",
        ("dump", ""): "no file is named; use FILE[:KERNEL[@SCHEDULE]]",
        ("dump", ":"): "no file is named; use FILE[:KERNEL[@SCHEDULE]]",
        ("check", ""): "no file is named; use FILE|FOLDER[:KERNEL[@SCHEDULE]]",
        ("list", str(tmp_path)): f"{tmp_path}: it is a folder; only 'check' takes folders",
        ("list", "/dev/null"): "/dev/null: it is no regular file",
        ("check", "/dev/null"): "/dev/null: it is no regular file",
        ("list", str(plain)): f"{plain}: it is no Python file; its name does not end in .py",
        ("list", "a" * 5000):
            f"{'a' * 5000}: there is no such file; use FILE[:KERNEL[@SCHEDULE]]",
        ("list", f"{file}:nope"):
            "scale.py: there is no kernel 'nope'; it has scale, wrong, lonely",
        ("list", f"{file}:scale@cpu"):
            "scale@cpu: kernel scale has no schedule 'cpu'; its schedules are gpu, bad, broken",
        ("list", f"{file}:lonely@cpu"):
            "lonely@cpu: kernel lonely has no schedule 'cpu'; it has none",
        ("list", f"{file}:scale@"): f"{file}:scale@: no schedule is named behind the '@'",
        ("check", f"{file}:@"): f"{file}:@: no schedule is named behind the '@'",
    }  # fmt: skip
    if (missing := gpu_driver.obstacle()) is not None:
        cases["run", file, "--target", "cuda"] = (
            f"compile(scale, target='cuda'): {missing}; "
            'use target "c" or "interpret"; kernel.cubin(arch) compiles without a GPU'
        )
    for arguments, sentence in cases.items():
        assert refusal(*arguments) == f"error: {sentence}\n"


def test_a_mistake_in_a_schedule_names_its_line(file):
    assert refusal("dump", f"{file}:scale@bad") == (
        "error: scale.py:22: y.split(axis=3, factor=2): axis 3 is out of range; y has 1 leaf axis "
        "[i0], so use -1..0\n"
    )


def test_an_exception_shows_the_users_part_of_the_traceback(file):
    text = refusal("dump", f"{file}:scale@broken")
    assert text.startswith("Traceback (most recent call last):\n  File ")
    assert f'"{file}", line 27, in broken\n' in text
    assert text.endswith("AttributeError: 'Fusion' object has no attribute 'nothing'\n")
    assert text.count("File ") == 1


def test_a_file_that_is_no_python(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("x = (\n")
    text = refusal("list", str(path))
    assert text.startswith(f'  File "{path}", line 1\n')
    assert text.endswith("SyntaxError: '(' was never closed\n")


def test_unknown_commands_and_stages():
    assert call("foo").exit_code == 2
    assert "No such command 'foo'" in call("foo").stderr
    assert call("dump", SOFTMAX, "--stage", "foo").exit_code == 2


@pytest.mark.parametrize(
    "command", [c for c in command_line(False, "loopnest").commands if c != "machine"]
)
def test_a_file_is_missing(command):
    result = call(command)
    assert result.exit_code == 2
    names = "FILE|FOLDER" if command == "check" else "FILE"
    argument = "REFERENCE.py" if command == "judge" else f"{names}[:KERNEL[@SCHEDULE]]"
    assert result.stderr.endswith(f"\nError: Missing argument '{argument}'.\n")


def test_help_teaches():
    text = output("--help")
    assert "loopnest run kernels/softmax.py -D N=1000 --target interpret" in text
    assert "loopnest dump kernels/softmax.py:softmax@gpu --stage cuda" in text
    for name in ("list", "dump", "run", "bench", "check"):
        assert f"  {name} " in text
    assert "-P threads=128" in output("dump", "--help")


def test_a_seed_below_zero(file):
    result = call("run", file, "--seed", "-1")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "Error: Invalid value for '--seed': -1 is not in the range x>=0.\n"
    )


@pytest.mark.parametrize("size", [10**13, 10**26])
def test_sizes_that_no_machine_has_memory_for(file, size):
    text = refusal("run", f"{file}:lonely", "-D", f"N={size}", "--target", "interpret")
    assert re.fullmatch(
        rf"error: arguments of lonely: the inputs at N={size} take [\d.e+]+ GiB; this machine has "
        r"[\d.]+ GiB of memory; take smaller sizes\n",
        text,
    )


UNREADABLE = {
    "nul.py": (b"import loopnest\nx = 1\0\n",
        "nul.py: it is no Python text: source code string cannot contain null bytes"),
    "exits.py": (b"import loopnest\nraise SystemExit(0)\n",
        "exits.py: it ends the process when it is loaded"),
    "syntax.py": (b"import loopnest\nx = (\n", "syntax.py:2: SyntaxError: '(' was never closed"),
    "raises.py": (b"import loopnest\nraise BaseException('boom')\n",
        "raises.py:2: BaseException: boom"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_files_that_cannot_be_loaded(tmp_path, name):
    text, sentence = UNREADABLE[name]
    path = tmp_path / name
    path.write_bytes(text)
    assert refusal("check", str(path)) == f"error: {sentence}\n"
    listed = call("list", str(path))
    assert listed.exit_code == 1
    if ".py:2" in sentence:
        assert f'File "{path}", line 2' in listed.stderr
        assert str(Path(loopnest.__file__).parent) not in listed.stderr
    else:
        assert listed.stderr == f"error: {sentence}\n"


def test_check_of_a_folder_tells_what_it_cannot_load(tmp_path):
    for name, (text, _) in UNREADABLE.items():
        (tmp_path / name).write_bytes(text)
    (tmp_path / "dangling.py").symlink_to("/nowhere/at/all.py")
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    result = call("check", str(tmp_path))
    assert result.exit_code == 1
    sentences = {name: sentence for name, (_, sentence) in UNREADABLE.items()}
    sentences["dangling.py"] = "there is no such file, it is a link to /nowhere/at/all.py"
    sentences["pipe.py"] = "it is no regular file"
    said = "; ".join([sentences[name] for name in sorted(sentences)])
    assert result.stderr == f"error: {said}\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(file):
    Path(file).chmod(0)
    assert refusal("list", file) == "error: scale.py: it cannot be read: Permission denied\n"


QUITS = """\
import loopnest as ln


@ln.kernel(sizes={"N": 4})
def quits(f):
    raise SystemExit(0)


@ln.kernel(sizes={"N": 4})
def fine(f):
    f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
"""


def test_math_that_ends_the_process(tmp_path):
    path = tmp_path / "quits.py"
    path.write_text(QUITS)
    assert refusal("dump", str(path)) == "error: quits.py:6: it ends the process\n"
    result = call("check", str(path))
    assert "quits.py:6: it ends the process\n" in result.stdout
    assert result.stderr == "error: 1 of 2 schedules failed\n"
