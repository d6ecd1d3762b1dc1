"""A file of kernels, and calls of commands on files, for tests of the command line."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from loopnest.devtools.cli import Source, command_line

ROOT = Path(__file__).parents[2]
SOFTMAX = str(ROOT / "kernels" / "softmax.py")
PLAIN = str(ROOT / "tests" / "mutation" / "kernels" / "plain.py")

SCALED = """\
import loopnest as ln


def scale_numpy(x, factor):
    return x * factor


@ln.kernel(sizes={"N": 1000}, reference=scale_numpy)
def scale(f, dtype=ln.float32):
    x = f.input("x", ("N",), dtype)
    f.output(x * f.scalar("factor", ln.float32), "y")


"""
"""A kernel of a file, without schedules."""

SCALE = (
    SCALED
    + """\
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
)


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
