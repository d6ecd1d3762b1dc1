"""A target that the package does not know, defined here alone: it runs by the interpreter.

A row of `TARGETS` must be all that `compile`, the command line and their messages ask for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import loopnest as ln
from loopnest import kir
from loopnest.backends import targets
from loopnest.backends.interpret.interpret_target import Interpreted
from loopnest.devtools.cli import Source, command_line
from loopnest.launch.target_interface import SWITCH, TargetRow, TargetText

SCALE = """
import loopnest as ln

@ln.kernel(sizes={"N": 8})
def scale(f):
    x = f.input("x", ("N",), ln.float32)
    f.output(x * 2.0, "y")

@scale.schedule("cpu")
def cpu(f):
    pass

@scale.schedule("gpu")
def gpu(f):
    f["y"].split(0, 4)
"""


class Traced(Interpreted):
    """What the interpreter runs, with an option of its own."""

    def __init__(self, program: kir.Program, loud: bool = False) -> None:
        super().__init__(program)
        self.loud = loud


def trace(program: kir.Program, index_bits: int) -> str:
    """Return the buffers that a program stores to, in order."""
    stores = [n.buffer for n, _ in kir.walk(program.body) if isinstance(n, kir.Store)]
    return f"{program.name} {index_bits}: {' '.join(stores)}\n"


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> TargetRow:
    made = TargetRow(
        "trace", {"loud": SWITCH}, Traced, device="gpu", text=TargetText("stores", "text", trace)
    )
    monkeypatch.setattr(targets, "TARGETS", {**targets.TARGETS, "trace": made})
    return made


def small() -> ln.Fusion:
    with ln.Fusion("small") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x + 1.0, "y")
    return f


def test_it_compiles_and_runs() -> None:
    fn = ln.compile(small(), target="trace", loud=True)
    assert fn.target == "trace"
    np.testing.assert_array_equal(fn(np.float32([1, 2])), np.float32([2, 3]))
    assert ln.lower(small()).printed("trace", 64) == "small 64: y\n"


def test_messages_name_it() -> None:
    with pytest.raises(ln.CompileError) as caught:
        ln.compile(small(), target="opencl")
    assert str(caught.value) == (
        "compile(small, target='opencl'): there is no target 'opencl'; use one of "
        '"cuda", "c", "interpret", "trace", "auto"'
    )
    with pytest.raises(ln.CompileError) as caught:
        ln.compile(small(), target="trace", threads=2)
    assert str(caught.value) == (
        "compile(small, target='trace', threads=2): target 'trace' has no option 'threads'; "
        "its options are loud"
    )


def test_what_a_kernel_prints() -> None:
    k = ln.lower(small())
    assert k.printed("c") == k.c()
    assert k.printed("cuda", 64) == k.cuda(64)
    for target, found in (
        ("opencl", "there is no target 'opencl'"),
        ("interpret", "this target has no text"),
    ):
        with pytest.raises(ln.CompileError) as caught:
            k.printed(target)
        assert str(caught.value) == (
            f'small.printed(\'{target}\'): {found}; use one of "cuda", "c", "trace"'
        )


def test_an_obstacle_is_told(monkeypatch: pytest.MonkeyPatch, row: TargetRow) -> None:
    absent = TargetRow("trace", {}, Traced, obstacle=lambda: "no paper", instead="use another")
    monkeypatch.setattr(targets, "TARGETS", {"trace": absent})
    with pytest.raises(ln.CompileError) as caught:
        ln.compile(small(), target="trace")
    assert str(caught.value) == "compile(small, target='trace'): no paper; use another"
    with pytest.raises(ln.CompileError) as caught:
        ln.compile(small())
    assert str(caught.value) == "compile(small, target='auto'): no target can do it: no paper"


def test_the_command_line_follows(tmp_path: Path) -> None:
    file = tmp_path / "scale.py"
    file.write_text(SCALE)

    def output(*arguments: str) -> str:
        result = CliRunner().invoke(
            command_line(False, "loopnest"), list(arguments), obj=Source(False)
        )
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "[auto|cuda|c|interpret|trace]" in output("run", "--help")
    assert "trace" in output("dump", str(file), "--stage", "list")
    assert output("dump", str(file), "--stage", "trace") == "scale 32: y\n"
    assert output("dump", str(file), "--target", "trace") == "scale 32: y\n"
    assert "scale@gpu on target trace: N=8" in output("run", str(file), "--target", "trace")


def fusion() -> ln.Fusion:
    with ln.Fusion("scale") as f:
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
    return f


@pytest.mark.parametrize("target", ["auto", "c", "cuda", "trace", "interpret"])
def test_the_environment_has_all_kernels_interpreted(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a target that this machine lacks, and where many are built in one run."""
    monkeypatch.setenv("LOOPNEST_INTERPRET", "1")
    fns = [ln.compile(fusion(), target=target), *ln.compile_many([fusion()], target=target)]
    for fn in fns:
        assert fn.target == "interpret"
        assert fn(np.ones(2, np.float32)).tolist() == [2.0, 2.0]
    monkeypatch.setenv("LOOPNEST_INTERPRET", "0")
    assert ln.compile(fusion(), target="trace").target == "trace"


def test_options_are_those_of_the_target_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_INTERPRET", "1")
    assert ln.compile(fusion(), target="c", optimize=3).target == "interpret"
    with pytest.raises(ln.CompileError, match="has no option 'min_blocks'"):
        ln.compile(fusion(), target="c", min_blocks=2)


@pytest.mark.parametrize("variable", ["LOOPNEST_INTERPRET", "LOOPNEST_VERIFY"])
def test_a_switch_is_0_or_1(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "yes")
    with pytest.raises(ln.CompileError) as error:
        ln.compile(fusion(), target="interpret")
    assert str(error.value) == f"{variable}=yes: 'yes' is neither 0 nor 1; use one of them"


def test_the_environment_shows_what_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    f = fusion()
    monkeypatch.setenv("LOOPNEST_PRINT", "nest, trace,nest")
    ln.compile(f, target="interpret")
    shown = capsys.readouterr()
    assert shown.err == f"{ln.lower(f)}\nscale 32: y\n\n"
    assert shown.out == ""
    ln.compile_many([f], target="c")
    assert capsys.readouterr().err == shown.err


def test_what_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ln.Fusion("rows") as f:
        total = ln.sum(f.input("x", ("N", 4), ln.float32), 1)
        f.output(total * 2.0, "y")
    monkeypatch.setenv("LOOPNEST_PRINT", "cuda")
    ln.compile(f, target="interpret")
    told = "rows has no cuda: T1: its LOCAL buffer has the symbolic size N, while registers "
    assert capsys.readouterr().err.startswith(told)
    monkeypatch.setenv("LOOPNEST_PRINT", "nest,sass")
    with pytest.raises(ln.CompileError) as error:
        ln.compile(f, target="interpret")
    assert str(error.value) == (
        "LOOPNEST_PRINT=nest,sass: 'sass' is no text of a kernel; use nest, cuda, c, trace, ptx, "
        "or several with commas between them"
    )
