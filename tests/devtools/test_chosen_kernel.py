"""`KernelDef.choose`: what runs at which sizes, what each schedule assumes, what is refused."""

from __future__ import annotations

import copy
import pickle
import time
from functools import partial

import numpy as np
import pytest

import loopnest as ln
from helpers.command_line import output
from kernels.softmax import softmax, softmax_any
from loopnest.proofs.size_cover import Undecided, left_out
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Op, Symbol, integer


def raises(error, text):
    """Expect `error` with exactly this message."""
    return pytest.raises(error, match=f"^{text}$")


@ln.kernel(sizes={"N": 100})
def doubled(f, scale=2.0):
    x = f.input("x", ("N",), ln.float32)
    f.output(x * scale, "y")


@doubled.schedule("split")
def split(f, factor=4):
    f["y"].split(0, factor)


@doubled.schedule("plain")
def plain(f):
    pass


@doubled.schedule("positive")
def positive(f):
    f.assume("N >= 3")


@ln.kernel()
def summed(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.sum(x, axis=1), "y")


@summed.schedule("some")
def some(f):
    f.assume("D > 0")


@ln.kernel()
def counted(f):
    n = f.symbol("K")
    f.output(ln.iota(n), "y")


@counted.schedule("plain")
def count_plain(f):
    pass


@counted.schedule("split")
def count_split(f):
    f["y"].split(0, 8)


def array(count):
    return np.arange(count, dtype=np.float32)


# What runs, and what it assumes


def test_each_schedule_assumes_its_condition_and_that_those_before_it_fail():
    conditions = [[text for text, _ in k.program.conditions] for k in softmax_any.kernels]
    assert conditions == [
        ["D <= 1024", "D > 0", "D <= 1024"],
        ["D > 1024", "D <= 8192"],
        ["D > 1024", "D > 8192"],
    ]
    assert softmax_any.conditions == ("D <= 1024", "D <= 8192", "True")
    assert softmax_any.schedules == ("gpu_warp", "gpu", "gpu_shared")
    assert repr(softmax_any) == (
        "<chosen kernel softmax: D <= 1024: gpu_warp, D <= 8192: gpu, True: gpu_shared>"
    )


def test_tests_fall_away():
    chosen = doubled.choose({"N % 4 == 0": "split", True: "split"})
    tested, other = [str(kernel) for kernel in chosen.kernels]
    assert " if " not in tested
    assert " if " in other
    assert (
        str(chosen) == f"# N % 4 == 0: schedule split\n{tested}\n\n# True: schedule split\n{other}"
    )


def test_every_entry_is_proved():
    chosen = doubled.choose({"2 <= N < 9": "split", "N % 4 == 0": ("split", {"factor": 8}),
                             True: "plain"})  # fmt: skip
    assert [ln.verify(kernel).ok for kernel in chosen.kernels] == [True, True, True]


@pytest.mark.parametrize("target", ["c", "interpret"])
def test_the_sizes_of_each_call_choose(target):
    chosen = doubled.choose({"2 <= N < 9": "split", "N % 4 == 0": ("split", {"factor": 8}),
                             True: "plain"}, scale=3.0)  # fmt: skip
    run = ln.compile(chosen, target=target)
    taken = []
    for number, function in enumerate(run.functions):
        plan = function._planner.plan
        function._planner.plan = partial(
            lambda n, make, *a: (taken.append(n), make(*a))[1], number, plan
        )
    for count in (1, 2, 8, 9, 12, 12, 13):
        np.testing.assert_array_equal(run(array(count)), 3 * array(count))
    assert taken == [2, 0, 0, 2, 1, 2]  # each shape is planned once
    names = [chosen.schedule_at(N=count) for count in (1, 2, 12, 13)]
    assert names == ["plain", "split", "split", "plain"]


def test_what_a_schedule_assumes_holds_wherever_it_runs():
    """`gpu_warp` takes no empty rows: their results are empty, and need no schedule."""
    run = ln.compile(softmax_any, target="c")
    assert run(np.zeros((3, 0), np.float32)).shape == (3, 0)
    assert softmax_any.schedule_at(N=3, D=0) == ""
    for length in (1, 1024, 1025, 8193):
        x = np.random.default_rng(length).standard_normal((2, length), np.float32)
        np.testing.assert_allclose(run(x), softmax.reference(x), rtol=1e-5)


def test_empty_results_need_no_condition():
    chosen = doubled.choose({"N >= 8": "split", "N >= 1": "plain"})
    assert [chosen.schedule_at(N=n) for n in (0, 1, 7, 8)] == ["", "plain", "plain", "split"]
    assert chosen(np.zeros(0, np.float32), target="c").shape == (0,)


def test_a_size_that_a_keyword_gives():
    run = ln.compile(counted.choose({"K <= 8": "plain", True: "split"}), target="c")
    for count in (3, 8, 9, 3, 9):
        assert run(K=count).tolist() == list(range(count))
    with raises(
        ln.LaunchError, r"counted\(\.\.\.\): the size K is the extent of no input; pass K=\.\.\."
    ):
        run()


def test_arguments_that_do_not_fit():
    run = ln.compile(doubled.choose({"N > 8": "split", True: "plain"}), target="c")
    run(array(20))
    with raises(ln.LaunchError, r"doubled\(\.\.\.\): 2 arrays were given; pass 1: x: float32\[N\]"):
        run(array(20), array(20))
    with raises(ln.LaunchError, r"doubled\(\.\.\.\): x has dtype float64; pass float32\[N\]"):
        run(np.zeros(20))
    with raises(ln.LaunchError, r"doubled\(\.\.\.\): x has dtype float64; pass float32\[N\]"):
        run(np.zeros(21))


def test_out_bench_notes():
    run = ln.compile(doubled.choose({"N > 8": "split", True: "plain"}), target="c", threads=2)
    out = np.empty(20, np.float32)
    assert run(array(20), out=out) is out
    assert run.bench(array(20)).times
    idle = [note for note in run.notes if note.asked == "threads=2"]
    assert len(idle) == 2  # one of each kernel
    assert run.target == "c"
    assert repr(run) == "<ChosenFunction doubled on 'c'>"


def test_it_runs_itself():
    chosen = doubled.choose({"N > 8": "split", True: "plain"})
    np.testing.assert_array_equal(chosen(array(9), target="interpret"), 2 * array(9))


def test_copies_and_pickles():
    chosen = doubled.choose({"N > 8": "split", True: "plain"})
    run = ln.compile(chosen, target="c")
    for made in (pickle.loads(pickle.dumps(chosen)), copy.deepcopy(chosen)):
        assert str(made) == str(chosen)
    again = pickle.loads(pickle.dumps(run))
    assert again.target == "c"
    np.testing.assert_array_equal(again(array(9)), run(array(9)))


def test_a_choice_takes_less_than_a_microsecond():
    """Beside the call of the chosen kernel itself; the best of many pairs, in turn."""
    run = ln.compile(softmax_any, target="c")
    x = np.ones((1, 16), np.float32)
    chosen = run.functions[0]

    def seconds(function):
        started = time.perf_counter()
        for _ in range(100):
            function(x)
        return (time.perf_counter() - started) / 100

    pairs = [(seconds(chosen), seconds(run)) for _ in range(500)]
    assert min(p[1] for p in pairs) - min(p[0] for p in pairs) < 1e-6


# What is refused


def test_a_size_that_no_condition_takes():
    text = r"softmax\.choose\(\.\.\.\): no condition takes N = 1, D = {}; {}"
    hint = "add the condition True, or widen one"
    with raises(ln.DefinitionError, text.format(1025, hint)):
        softmax.choose({"D <= 1024": "gpu_warp"})
    with raises(ln.DefinitionError, text.format(1025, hint)):
        softmax.choose({"D <= 1024": "gpu_warp", "D >= 1026": "gpu"})
    with raises(ln.DefinitionError, text.format(1001, hint)):
        softmax.choose({"N * D <= 1000": "gpu", "N * D > 1001": "gpu"})


def test_conditions_that_take_all_sizes_without_true():
    assert softmax.choose({"D <= 10": "gpu", "D > 10": "gpu"}).conditions == ("D <= 10", "D > 10")
    softmax.choose({"N * D <= 10": "gpu", "N * D > 10": "gpu"})
    doubled.choose({"N % 4 == 0": "plain", "N % 4 != 0": "plain"})


def test_a_size_at_which_a_schedule_assumes_more():
    with raises(
        ln.DefinitionError,
        r"softmax\.choose\(\.\.\.\): 'D <= 2048' gives N = 1, D = 1025 to schedule gpu_warp, whose "
        r"assumption 'D <= 1024' does not hold for D = 1025; narrow that condition, or widen what "
        r"the schedule assumes",
    ):
        softmax.choose({"D <= 2048": "gpu_warp", True: "gpu"})
    with raises(
        ln.DefinitionError,
        r"summed\.choose\(\.\.\.\): True gives N = 1, D = 0 to schedule some, whose assumption "
        r"'D > 0' does not hold for D = 0; narrow that condition, or widen what the schedule "
        r"assumes",
    ):
        summed.choose({True: "some"})


def test_a_condition_that_no_sizes_reach():
    with raises(
        ln.DefinitionError,
        r"doubled\.choose\(\.\.\.\): no sizes reach the condition 'N < 5': the assumptions of the "
        r"math and the conditions before it leave none; leave it out, or put it first",
    ):
        doubled.choose({"N < 9": "split", "N < 5": "plain", True: "plain"})
    with raises(
        ln.DefinitionError,
        r"doubled\.choose\(\.\.\.\): no sizes reach the condition True: the assumptions of the "
        r"math and the conditions before it leave none; leave it out, or put it first",
    ):
        doubled.choose({"N < 9": "split", "N >= 9": "plain", True: "plain"})


def test_a_remainder_by_a_size_holds_nowhere_where_that_is_0():
    """Neither does its opposite, so that the two do not take all sizes."""
    with raises(
        ln.DefinitionError,
        r"summed\.choose\(\.\.\.\): no condition takes N = 1, D = 0; add the condition True, or "
        r"widen one",
    ):
        summed.choose({"N % D == 0": "some", "N % D != 0": "some"})


def test_what_cannot_be_read():
    hint = (
        "write comparisons of integers and size symbols with \\+ - \\* // %, joined by 'and', such "
        'as "D % 4 == 0 and D <= 1024"'
    )
    call = r"doubled\.choose\(\.\.\.\): "
    with raises(ln.DefinitionError, f"{call}'E < 3': 'E' is no size symbol of this fusion; {hint}"):
        doubled.choose({"E < 3": "plain"})
    with raises(ln.DefinitionError, f"{call}'N < 3 or N > 4': it is not one comparison; {hint}"):
        doubled.choose({"N < 3 or N > 4": "plain"})
    with raises(
        ln.DefinitionError,
        f"{call}the condition 3 is neither a text nor True; write comparisons of sizes, such as "
        '"D <= 1024", or True',
    ):
        doubled.choose({3: "plain"})
    with raises(
        ln.DefinitionError,
        f'{call}{{}} has no entry; pass a dict, such as {{"D <= 1024": "gpu_warp", True: "gpu"}}',
    ):
        doubled.choose({})
    with raises(
        ln.DefinitionError,
        call
        + r"7 names no schedule; give the name of a schedule, or \(name, \{parameter: value\}\)",
    ):
        doubled.choose({True: 7})


def test_unknown_schedules_and_parameters():
    known = "its schedules are split, plain, positive"
    with raises(ln.ScheduleError, f"doubled@fast: kernel doubled has no schedule 'fast'; {known}"):
        doubled.choose({True: "fast"})
    allowed = "parameters: the math has scale; schedule split has factor"
    with raises(ln.ScheduleError, f"doubled@split: there is no parameter 'lanes'; {allowed}"):
        doubled.choose({True: "split"}, lanes=3)
    with raises(ln.ScheduleError, f"doubled@split: there is no parameter 'lanes'; {allowed}"):
        doubled.choose({True: ("split", {"lanes": 3})})
    with raises(
        ln.DefinitionError,
        r"doubled\.choose\(\.\.\.\): 'scale' is a parameter of the math; pass it to choose itself, "
        "for all schedules",
    ):
        doubled.choose({True: ("split", {"scale": 3.0})})


def test_unknown_sizes():
    with raises(
        ln.LaunchError,
        r"softmax\.schedule_at\(N=3\): the size D is missing; pass N=\.\.\., D=\.\.\.",
    ):
        softmax_any.schedule_at(N=3)


# The proof


def comparison(op, left, right):
    return Op(op, (left, integer(right)), dtypes.bool_)


def test_regions_that_isl_cannot_read_cover_nothing():
    """Sizes that are left out are found, or nothing is said."""
    n, m = Symbol("N"), Symbol("M")
    rest = Op("mod", (n, m), dtypes.index)
    zero, other = comparison("eq", rest, 0), comparison("ne", rest, 0)
    assert left_out([], [[zero], [other]]) == {"N": 0, "M": 0}
    with pytest.raises(Undecided):
        left_out([comparison("ge", m, 1)], [[zero], [other]])
    assert left_out([comparison("ge", n, 1)], [[comparison("ge", n, 1)], [zero]]) is None


# The command line


FILE = """
import loopnest as ln

@ln.kernel(sizes={"N": 100})
def scale(f):
    x = f.input("x", ("N",), ln.float32)
    f.output(x * 2.0, "y")

@scale.schedule("split")
def split(f, factor=4):
    f.assume("N > 0")
    f["y"].split(0, factor)

@scale.schedule("plain")
def plain(f):
    pass

by_size = scale.choose({"N < 50": "split", "N % 8 == 0": ("split", {"factor": 8}), True: "plain"})
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scale.py"
    path.write_text(FILE)
    return str(path)


def test_list_shows_conditions(file):
    lines = output("list", file).splitlines()
    assert [line.split("  ", 1)[0] for line in lines] == [
        "kernel", "scale", "scale", "by_size", "by_size", "by_size",
    ]  # fmt: skip
    found = [" ".join(line.split()) for line in lines[3:]]
    assert found == [
        "by_size split N < 50 N=100",
        "by_size split_2 N % 8 == 0 N=100",
        "by_size plain True N=100",
    ]


def test_dump_takes_the_entry_of_the_sizes(file):
    assert "in 4" not in output("dump", f"{file}:by_size")
    assert "for i1 in 8" in output("dump", f"{file}:by_size", "-D", "N=64")
    assert "for i1 in 4" in output("dump", f"{file}:by_size", "-D", "N=7")
    assert "for i1 in 8" in output("dump", f"{file}:by_size@split_2")


def test_check_checks_each_entry(file):
    text = output("check", f"{file}:by_size", "--strict")
    assert text.count("all sizes") == 3
    assert "3 schedules of 1 kernel: all is well" in text
