"""The fixture `schedule_regression`, in pytest runs of its own."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import loopnest as ln
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.devtools.pytest_plugin import Claims, ScheduleRegression, golden_name

pytest_plugins = ["pytester"]

KERNEL = """\
import loopnest as ln


@ln.kernel(sizes={"N": 4096}, reference=lambda x: x * 2)
def double(f, dtype=ln.float32):
    x = f.input("x", ("N",), dtype)
    f.output(x * 2.0, "y")


@double.schedule("gpu")
def gpu(f, threads=32):
    f["y"].split(0, threads)
    f["y"].parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})


def test_double(schedule_regression):
    kernel = schedule_regression(double, "gpu")
    assert kernel.name == "double"
"""

GOLDEN = """\
# loopnest nest 1
kernel double(x: float32[N]) -> (y: float32[N])
for i0 in ceildiv(N, 32):  # grid_x
  for i1 in 32:  # block_x
    if i0 * 32 + i1 < N:
      y[i0 * 32 + i1] = x[i0 * 32 + i1] * 2.0
"""


@pytest.fixture(scope="module", autouse=True)
def _everything_is_loaded(tmp_path_factory):
    """pytester forgets what a run within this process loads, and NumPy cannot be loaded twice."""

    @ln.kernel(reference=lambda x: np.asarray(x))
    def same(f):
        f.output(f.input("x", ("N",), ln.float32), "y")

    folder = tmp_path_factory.mktemp("goldens")
    ScheduleRegression(folder, True, Claims(folder / "claims"), "a test")(same)


@pytest.fixture
def project(pytester):
    pytester.makepyfile(test_double=KERNEL)
    return pytester


def run(project, *arguments):
    return project.runpytest_inprocess("-p", "no:xdist", *arguments)


def failure(project, *arguments):
    result = run(project, *arguments)
    result.assert_outcomes(failed=1)
    return result.stdout.str()


def test_update_writes_the_golden_and_the_next_run_compares(project):
    run(project, "--update-goldens").assert_outcomes(passed=1)
    golden = project.path / "goldens" / "double@gpu.nest"
    assert golden.read_text() == GOLDEN
    run(project).assert_outcomes(passed=1)


def test_a_missing_golden(project):
    text = failure(project)
    assert f"there is no golden {project.path}/goldens/double@gpu.nest" in text
    assert "write it with pytest --update-goldens" in text
    assert not (project.path / "goldens").exists()


def test_a_failure_tells_the_notes(project):
    project.makepyfile(test_double=KERNEL.replace("1: ln.ParallelType.block_x", ""))
    run(project, "--update-goldens")
    golden = project.path / "goldens" / "double@gpu.nest"
    golden.write_text(golden.read_text().replace("32", "64"))
    assert (
        "note: y.i1: a loop over y.i1: i0 * 32 + i1 < N is tested in each iteration, because "
        'y: split by 32 need not divide N; f.assume("N % 32 == 0"), or '
        "parallelize this axis, or one around it, as unswitch "
        f"({project.path}/test_double.py:12)"
    ) in failure(project)


LIMITED = KERNEL.replace('.schedule("gpu")', '.schedule("gpu", cost={"barriers": "<=2"})')


def test_costs_are_held(project):
    assert LIMITED != KERNEL
    project.makepyfile(test_double=LIMITED)
    run(project, "--update-goldens").assert_outcomes(passed=1)
    project.makepyfile(test_double=LIMITED.replace('"barriers": "<=2"', '"bytes_moved": 0'))
    text = failure(project)
    assert "bytes_moved is 32768, not == 0" in text
    project.makepyfile(test_double=LIMITED.replace('"barriers": "<=2"', '"barrier": 2'))
    assert "there is no cost 'barrier'; the costs are gmem_ratio, bytes_moved" in failure(project)


def test_costs_of_the_fixture(project):
    call = 'schedule_regression(double, "gpu"'
    assert call in KERNEL
    project.makepyfile(test_double=KERNEL.replace(call, f"{call}, cost={{'wide_accesses': 1}}"))
    run(project, "--update-goldens")
    assert "wide_accesses is 0, not == 1 (most by the" in failure(project)


def test_another_nest_tells_the_costs_that_moved(project):
    run(project, "--update-goldens")
    golden = project.path / "goldens" / "double@gpu.nest"
    golden.write_text(GOLDEN.replace("* 2.0", "* 2.0 + 1.0"))
    assert "cost: flops was 8192 and is 4096" in failure(project)


def test_another_nest_shows_a_diff(project):
    run(project, "--update-goldens")
    golden = project.path / "goldens" / "double@gpu.nest"
    golden.write_text(GOLDEN.replace("32:  # block_x", "64:  # block_x"))
    text = failure(project)
    assert "the loop nest of double@gpu differs from its golden" in text
    assert "--- goldens/double@gpu.nest" in text
    assert "-  for i1 in 64:  # block_x" in text
    assert "+  for i1 in 32:  # block_x" in text
    assert "if the new one is right, write it with pytest --update-goldens" in text
    run(project, "--update-goldens").assert_outcomes(passed=1)
    assert golden.read_text() == GOLDEN


def test_a_wrong_reference(project):
    project.makepyfile(test_double=KERNEL.replace("x * 2)", "x * 2.01)"))
    text = failure(project, "--update-goldens")
    assert "on target interpret, against the reference: y: largest error " in text
    assert "against the oracle" not in text
    assert ("on target c, against the reference: " in text) == (find_compiler() is not None)


def test_sizes_and_parameters(project):
    calls = 'schedule_regression(double, "gpu", threads=8, dtype=ln.float16, N=100)'
    project.makepyfile(test_double=KERNEL.replace('schedule_regression(double, "gpu")', calls))
    run(project, "--update-goldens").assert_outcomes(passed=1)
    (golden,) = (project.path / "goldens").iterdir()
    assert golden.name == "double@gpu,threads=8,dtype=float16.nest"
    assert "for i1 in 8:" in golden.read_text()


def test_an_unknown_size(project):
    calls = "schedule_regression(double, M=3)"
    project.makepyfile(test_double=KERNEL.replace('schedule_regression(double, "gpu")', calls))
    text = failure(project, "--update-goldens")
    assert "double has no size or parameter 'M'; its sizes are N" in text


def test_default_sizes_meet_assumptions(project):
    math = KERNEL.replace("    f.output", '    f.assume("N % 128 == 0")\n    f.output')
    project.makepyfile(test_double=math)
    run(project, "--update-goldens").assert_outcomes(passed=1)


def test_the_plugin_loads_nothing_heavy():
    code = (
        "import sys, loopnest.devtools.pytest_plugin; "
        "print([m for m in ('numpy', 'islpy', 'rich', 'click') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


TWICE = (
    KERNEL
    + """

@ln.kernel(sizes={"N": 4096})
def triple(f):
    x = f.input("x", ("N",), ln.float32)
    f.output(x * 3.0, "y")


triple.name = "double"
triple.schedule("gpu")(gpu)


def test_triple(schedule_regression):
    schedule_regression(triple, "gpu")


def test_double_at_another_size(schedule_regression):
    schedule_regression(double, "gpu", N=5)
"""
)


@pytest.mark.parametrize("arguments", [("-p", "no:xdist"), ("-n", "2")])
def test_two_tests_of_one_golden_are_told_so(project, arguments):
    project.makepyfile(test_double=TWICE)
    result = project.runpytest_subprocess("--update-goldens", *arguments)
    failed = result.parseoutcomes()["failed"]  # all of the nest that did not come first
    assert failed == 1 or (failed == 2 and "-n" in arguments)
    golden = project.path / "goldens" / "double@gpu.nest"
    text = result.stdout.str()
    assert re.search(
        re.escape(f"the golden {golden} belongs to another nest of this run, that of ")
        + r"test_double\.py::test_\w+; two kernels of one name, schedule and parameters cannot "
        "share it: rename one",
        text,
    )


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({}, "k@gpu"),
        ({"dtype": ln.float16, "lanes": 8}, "k@gpu,dtype=float16,lanes=8"),
        ({"mode": "a/b"}, "k@gpu,mode=a%2Fb"),
        ({"mode": "a%2Fb"}, "k@gpu,mode=a%252Fb"),
        ({"mode": "a,b=c"}, "k@gpu,mode=a%2Cb%3Dc"),
        ({"mode": "ü"}, "k@gpu,mode=%C3%BC"),
        ({"mode": ""}, "k@gpu,mode="),
        ({"mode": "1"}, "k@gpu,mode=%271%27"),
        ({"mode": 1}, "k@gpu,mode=1"),
        ({"mode": "'1'"}, "k@gpu,mode=%22%271%27%22"),
        ({"mode": "float16"}, "k@gpu,mode=%27float16%27"),
        ({"mode": None}, "k@gpu,mode=None"),
        ({"mode": "None"}, "k@gpu,mode=%27None%27"),
        ({"mode": "\0"}, "k@gpu,mode=%00"),
        ({"speed": -0.5}, "k@gpu,speed=-0.5"),
    ],
)
def test_the_name_of_a_golden(params, name):
    assert golden_name("k", "gpu", params) == name


def test_a_parameter_with_a_slash(project):
    project.makepyfile(
        test_double=KERNEL.replace("threads=32", 'threads=32, mode="plain"').replace(
            '(double, "gpu")', '(double, "gpu", mode="a/b")'
        )
    )
    run(project, "--update-goldens").assert_outcomes(passed=1)
    (golden,) = (project.path / "goldens").iterdir()
    assert golden.name == "double@gpu,mode=a%2Fb.nest"
    run(project).assert_outcomes(passed=1)


def test_a_golden_whose_name_is_too_long(project):
    project.makepyfile(
        test_double=KERNEL.replace("threads=32", 'threads=32, mode="plain"').replace(
            '(double, "gpu")', '(double, "gpu", mode="a" * 300)'
        )
    )
    text = failure(project, "--update-goldens")
    assert "the golden's name is too long for a file: double@gpu,mode=aaa" in text
