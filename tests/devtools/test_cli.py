"""The command line: what is listed and dumped, by click's runner."""

from __future__ import annotations

import pytest

from helpers.command_line import SOFTMAX, call, output, refusal
from loopnest.devtools.cli import stages

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
        "y: y.parallelize({0: unroll}): the loop over y.i0 is not unrolled, because its extent N "
        "is known at run time only; split the axis by a constant, and unroll the inner one "
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


def test_list_of_what_is_named(file):
    lines = output("list", f"{file}:scale@bad").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["scale", "bad"]]
    assert len(output("list", f"{file}:scale").splitlines()) == 4
