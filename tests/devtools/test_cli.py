"""The command line: by click's runner on files made here, and as a process of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

import loopnest
from helpers.interrupts import heed_interrupts
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cuda.driver import driver_interface
from loopnest.devtools.cli import Source, command_line, stages
from mutation.mutants import break_lowering

ROOT = Path(__file__).parents[2]
SOFTMAX = str(ROOT / "kernels" / "softmax.py")
PLAIN = str(ROOT / "tests" / "mutation" / "kernels" / "plain.py")

SCALE = """\
import loopnest as ln


def scale_numpy(x, factor):
    return x * factor


@ln.kernel(sizes={"N": 1000}, reference=scale_numpy)
def scale(f, dtype=ln.float32):
    x = f.input("x", ("N",), dtype)
    f.output(x * f.scalar("factor", ln.float32), "y")


@scale.schedule("gpu")
def gpu(f, threads=64, fancy=False, speed=1.0, name="a"):
    f["y"].split(0, threads)
    f["y"].parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})


@scale.schedule("bad")
def bad(f):
    f["y"].split(3, 2)


@scale.schedule("broken")
def broken(f):
    f.nothing()


@ln.kernel(sizes={"N": 10}, reference=lambda x: x * 2.001)
def wrong(f):
    f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")


@ln.kernel(sizes={"N": 10})
def lonely(f):
    f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")


if __name__ == "__main__":
    ln.main()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    return str(path)


@pytest.fixture
def broken_lowering(monkeypatch):
    """Return a function that makes every kernel the mutant of that kind and text, if it has it."""
    return partial(break_lowering, monkeypatch)


def call(*arguments):
    return CliRunner().invoke(command_line(False, "loopnest"), arguments, obj=Source(False))


def output(*arguments):
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*arguments):
    """Return the sentence that a command ends in."""
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    return result.stderr


# list, dump


def test_list(file):
    lines = output("list", file).splitlines()
    assert lines[0].split() == ["kernel", "schedule", "parameters", "sizes"]
    assert lines[1].split(maxsplit=2)[:2] == ["scale", "gpu"]
    assert "dtype=float32, threads=64, fancy=False, speed=1.0, name=a" in lines[1]
    assert lines[1].endswith("N=1000")
    assert [line.split()[1] for line in lines[1:]] == ["gpu", "bad", "broken", "-", "-"]


NOTED = """\
import loopnest as ln


@ln.kernel(sizes={"N": 10})
def noted(f):
    f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")


@noted.schedule("gpu")
def gpu(f):
    f["y"].parallelize({0: ln.ParallelType.unroll})


if __name__ == "__main__":
    ln.main()
"""


@pytest.mark.parametrize("command", ["dump", "run", "check"])
def test_notes_are_told(tmp_path, command):
    """On standard error, so that the text stays what it is; `check` has them below its table."""
    path = tmp_path / "noted.py"
    path.write_text(NOTED)
    options = ("--target", "interpret") if command == "run" else ()
    result = call(command, f"{path}:noted@gpu" if command != "check" else str(path), *options)
    assert result.exit_code == 0, result.output
    note = (
        "y: y.parallelize({0: unroll}): the loop over y.i0 stays a loop, its extent N is known at "
        "run time only; split the axis by a constant and unroll the inner one "
        f"({path}:11)"
    )
    if command == "check":
        assert f"noted@gpu: {note}" in result.stdout
    else:
        assert result.stderr == f"note: {note}\n"
        assert "note: " not in result.stdout


def test_dump_is_the_loop_nest(file):
    text = output("dump", file)
    assert text.startswith("# loopnest nest 1\nkernel scale(x: float32[N], factor: float32)")
    assert text == output("dump", f"{file}:scale@gpu", "--stage", "nest")
    assert text.endswith("\n")


@pytest.mark.parametrize("stage", [s for s in stages() if s not in ("ptx", "sass")])
def test_dump_of_each_stage(file, stage):
    starts = {
        "math": "scale(x: float32[N], factor: float32) -> (y: float32[N])\n",
        "groups": "# loop groups\n",
        "tree": "# nest\n",
        "allocation": "# allocation\n",
        "checks": "# allocation\n",
        "grid_reductions": "# grid reductions\n",
        "cuda": "",
        "c": "",
    }
    text = output("dump", file, "--stage", stage)
    assert text.startswith(starts.get(stage, "# loopnest nest 1\n"))
    if stage == "cuda":
        assert 'extern "C" __global__' in text
    if stage == "c":
        assert "int scale(" in text


def test_what_a_pass_changed(file):
    text = output("dump", file, "--diff", "indexing")
    assert text.startswith("--- after grid_reductions\n+++ after indexing\n")
    assert output("dump", file, "--diff", "barriers") == "barriers changes nothing\n"
    both = call("dump", file, "--diff", "barriers", "--stage", "barriers")
    assert both.exit_code == 1
    assert (
        "--stage prints a text, --diff what a pass changed in it: name one of them" in both.output
    )
    no_pass = call("dump", file, "--diff", "cuda")
    assert no_pass.exit_code == 1
    assert "--diff cuda: no pass; --diff takes groups, tree, allocation, " in no_pass.output


def test_the_list_of_stages(file):
    lines = output("dump", file, "--stage", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["stage", *stages()]


def test_dump_of_machine_code(file):
    pytest.importorskip("cuda.bindings.nvrtc")
    assert ".target sm_80" in output("dump", file, "--stage", "ptx", "--arch", "sm_80")


LAYERNORM = "kernels/layernorm.py:layernorm@gpu"


def test_dump_of_the_variant_without_vectors():
    """What is printed is one of two variants; a note says where the other is."""
    both = call("dump", LAYERNORM, "--stage", "cuda")
    assert "// requires D % 4 == 0\n" in both.stdout
    note = "note: this is the variant with vectors, for launches where D % 4 == 0; --scalar shows"
    assert note in both.stderr
    scalar = call("dump", LAYERNORM, "--stage", "cuda", "--scalar")
    assert "requires" not in scalar.stdout
    assert note not in scalar.stderr


def test_scalar_is_of_a_whole_kernel(file):
    assert refusal("dump", LAYERNORM, "--scalar", "--stage", "groups").startswith(
        "error: --scalar takes the text of a whole kernel: --stage nest, cuda, c, ptx, sass"
    )
    assert "--scalar: scale@gpu has one variant" in refusal("dump", file, "--scalar")


def test_dump_by_target(file):
    assert output("dump", file, "--target", "cuda") == output("dump", file, "--stage", "cuda")
    assert output("dump", file, "--target", "interpret") == output("dump", file)


def test_dump_with_parameters(file):
    assert "for i1 in 16:" in output("dump", file, "-P", "threads=16")
    assert "x: float16[N]" in output("dump", file, "-P", "dtype=float16")
    for text in ("fancy=true", "speed=2", "name=b"):
        output("dump", file, "-P", text)


def test_dump_takes_the_schedule_of_the_device():
    assert "# cpu_parallel" not in output("dump", SOFTMAX)
    assert "__global__" in output("dump", SOFTMAX, "--stage", "cuda")
    assert "# cpu_parallel" in output("dump", SOFTMAX, "--target", "interpret")
    assert "ln_work_softmax_1" in output("dump", SOFTMAX, "--stage", "c")


# run, bench


def test_run(file):
    sizes = ("-D", "N=30", "-D", "factor=2")
    text = output("run", f"{file}:scale@gpu", "--target", "interpret", *sizes)
    lines = text.splitlines()
    assert lines[0] == "# loopnest nest 1"
    table = lines.index("tensor  dtype    shape  memory  buffer  compute_at")
    assert lines[table + 1] == "x       float32  [N]    global  x[N]    0"
    assert "scale@gpu on target interpret: N=30, factor=2" in lines
    verdict = next(line for line in lines if line.startswith("y: "))
    assert verdict.startswith("y: largest error ")
    assert ", where rounding allows " in verdict
    assert verdict.endswith(": right")
    assert lines[-1].endswith(" GB/s")


def test_run_on_the_interpreter_takes_small_sizes():
    text = output("run", SOFTMAX, "--target", "interpret", "-D", "D=10")
    assert "softmax@cpu on target interpret: N=64, D=10" in text
    assert "(sizes are at most 64 on this target; -D sets others)" in text


def test_run_without_a_reference_asks_the_oracle(file):
    text = output("run", f"{file}:lonely", "--target", "interpret")
    assert "y: largest error 0, where rounding allows 0: right" in text


def test_run_of_a_wrong_kernel(file):
    result = call("run", f"{file}:wrong", "--target", "interpret")
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert result.stderr == "error: wrong on target interpret: the result is wrong\n"


def test_run_blames_the_reference_where_the_nest_is_right(file):
    result = call("run", f"{file}:wrong", "--target", "interpret")
    assert (
        "every tensor of the nest has the values of the math, run by the interpreter: the "
        "reference says something else than the math of wrong\n"
    ) in result.stdout


def test_run_names_the_first_tensor_that_differs(broken_lowering):
    broken_lowering("index", "load x: i2 without")
    result = call(
        "run", f"{PLAIN}:plain_softmax@cpu", "--target", "interpret", "-D", "N=6", "-D", "D=4"
    )
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    first = lines.index("the first tensor that differs:")
    assert lines[first - 1].endswith(": WRONG")
    assert re.fullmatch(
        r"  shifted\[0, 1\] is \S+, the math says \S+ \(allowed difference \S+\)",
        lines[first + 1],
    )
    assert lines[first + 2].startswith("    of shifted ")
    assert lines[first + 2].endswith(" elements differ; before it largest, T2 are right")
    assert lines[first + 3] == "    stored at nest line 14 'shifted[0] = x[i0, 0] - T2[0]'"
    assert lines[first + 4].startswith("    placed by inline_most() at ")
    assert result.stderr == "error: plain_softmax@cpu on target interpret: the result is wrong\n"


def test_run_diagnoses_a_long_run_at_small_sizes(broken_lowering, monkeypatch):
    monkeypatch.setattr("loopnest.devtools.cli.kernel_commands._MOST_DIAGNOSED", 10)
    broken_lowering("index", "load x: i2 without")
    result = call(
        "run", f"{PLAIN}:plain_softmax@cpu", "--target", "interpret", "-D", "N=6", "-D", "D=4"
    )
    assert "the first tensor that differs at N=5, D=3:\n  shifted[0, 1] is " in result.stdout


def test_run_tells_a_broken_rule_without_a_stack(broken_lowering):
    broken_lowering("predicate", "drop")
    spec = f"{PLAIN}:plain_softmax@gpu"
    result = call("run", spec, "--target", "interpret", "-D", "N=6", "-D", "D=4")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[lines.index("it broke a rule:") + 1] == (
        "  largest reads x[6, 0]: index 6 is out of bounds for axis 0 of buffer x (tensor x), "
        "which has extent 6"
    )
    assert "Traceback" not in result.output


def test_bench(file):
    lines = output("bench", file, "--target", "interpret", "-D", "N=8").splitlines()
    assert lines[0].startswith("scale@gpu on target interpret: N=8, factor=0.")
    assert lines[-1].endswith(" GB/s")


# What goes wrong


def test_no_command_is_shown_that_does_not_exist():
    assert list(command_line(False, "loopnest").commands) == [
        "list",
        "dump",
        "run",
        "bench",
        "check",
        "machine",
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
            "-P dtype=half: use one of bool, int8, uint8, int16, int32, uint32, int64, "
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
    if (missing := driver_interface.obstacle()) is not None:
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


def test_help_teaches():
    text = output("--help")
    assert "loopnest run kernels/softmax.py -D N=1000 --target interpret" in text
    assert "loopnest dump kernels/softmax.py:softmax@gpu --stage cuda" in text
    for name in ("list", "dump", "run", "bench", "check"):
        assert f"  {name} " in text
    assert "-P threads=128" in output("dump", "--help")


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


def test_list_of_what_is_named(file):
    lines = output("list", f"{file}:scale@bad").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["scale", "bad"]]
    assert len(output("list", f"{file}:scale").splitlines()) == 4


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
        r"error: ZeroDivisionError: oh \(at test_cli.py:\d+\); this is a bug of loopnest, please "
        r"report it with the traceback that LOOPNEST_TRACEBACK=1 shows\n"
    )
    assert re.fullmatch(sentence, refusal("dump", file))
    monkeypatch.setenv("LOOPNEST_TRACEBACK", "1")
    assert re.fullmatch(
        r"Traceback \(most recent call last\):\n(?s:.*)" + sentence, refusal("dump", file)
    )
