"""`ln.tune`: what falls without running, what is timed, what is kept and who uses it."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import sys
import time

import numpy as np
import pytest

import loopnest as ln
from helpers.command_line import call, output
from loopnest.devtools import tuned_rows, tuning
from loopnest.devtools.tuning import Examined, tune


def raises(error, text):
    """Expect `error` with exactly this message."""
    return pytest.raises(error, match=f"^{text}$")


@pytest.fixture
def database(tmp_path, monkeypatch):
    """Return the folder of a database of its own."""
    monkeypatch.setenv("LOOPNEST_TUNED", str(tmp_path / "tuned"))
    tuned_rows._row.cache_clear()
    return tmp_path / "tuned"


def make_kernel():
    @ln.kernel(sizes={"N": 1 << 14})
    def waste(f):
        x = f.input("x", ("N",), ln.float32)
        e = ln.exp(x).named("e")
        total = ln.sum(e, axis=0, keepdims=True)
        f.output(x / total, "y")

    @waste.schedule("cpu", where=["lanes * times <= 64"])
    def cpu(f, lanes=ln.choice(16, 7, 0), times=ln.choice(1, 8)):
        f["y"].split(0, lanes)  # 0 is refused
        f["y"].split(0, times)
        ln.inline_most()

    return waste


waste = make_kernel()


# Choices


def test_the_first_choice_is_the_default():
    assert waste.parameters("cpu") == {"lanes": 16, "times": 1}
    assert str(waste.lower("cpu")) == str(waste.lower("cpu", lanes=16, times=1))
    with waste.fusion(None) as fusion:
        waste.schedules["cpu"](fusion, times=8)  # called as it is, it has plain defaults
    assert waste.spaces["cpu"].count == 6


def test_choices_that_are_none():
    with raises(
        ln.DefinitionError, r"choice\(\): there is no value to choose; give the default and others"
    ):
        ln.choice()
    with raises(ln.DefinitionError, r"choice\(4, 8, 4\): 4 stands twice; give each value once"):
        ln.choice(4, 8, 4)
    assert ln.choice(1, True, 1.0).values == (1, True, 1.0)


def test_the_math_has_no_choices():
    with raises(
        ln.ScheduleError,
        r"kernel scaled: 'a' of the math is a choice; schedules have choices: "
        r"@kernel\.schedule\(\.\.\.\)",
    ):

        @ln.kernel()
        def scaled(f, a=ln.choice(1, 2)):
            f.output(f.input("x", ("N",), ln.float32) * a, "y")


# The tuning


def test_candidates_fall_without_running(database, capsys):
    found = tune(waste, target="c", budget="300s")
    assert found.fell == {"constraints": 1, "schedule calls": 2}
    assert len(found.timed) == 3
    assert found.examples["schedule calls"].startswith("y.split(")
    assert found.parameters in [candidate for candidate, _ in found.timed]
    assert found.seconds > 0
    said = capsys.readouterr().out
    assert said.startswith("waste@cpu on c at N=16384\n6 candidates, 3 of them timed\n")
    assert "  1 fell to constraints\n" in said
    (row,) = tuned_rows.rows()
    assert (row.kernel, row.schedule, row.target, row.sizes) == (
        "waste",
        "cpu",
        "c",
        {"N": 1 << 14},
    )
    assert row.values() == found.parameters
    assert row.seconds == found.seconds


def tuned_to(lanes, times, sizes=None):
    """Write a row that says that these are the best."""
    row = tuned_rows.TunedRow(
        "waste", "cpu", "c", waste.digest(), tuned_rows.machine_name("c"), sizes or {"N": 1 << 14},
        {"lanes": lanes, "times": times}, 1e-3, 1e-5, 2e-3,
    )  # fmt: skip
    return tuned_rows.put(row)


def test_a_row_is_used_without_being_asked(database):
    x = np.ones(100, np.float32)
    declared = str(waste.lower("cpu"))
    tuned_to(7, 8)
    tuned = str(waste.lower("cpu", lanes=7, times=8))
    assert str(waste.lower("cpu")) == declared  # nests stay what the file says
    assert str(ln.compile(waste, target="c").kernel) == tuned
    fresh = make_kernel()
    fresh(x, target="c")
    assert [str(f.kernel) for f in fresh._compiled.values()] == [tuned]
    fresh(x, target="c", lanes=16)
    assert [str(f.kernel) for f in fresh._compiled.values()] == [tuned, declared]


def test_the_nearest_sizes_count(database):
    tuned_to(16, 8, {"N": 100})
    tuned_to(7, 8, {"N": 1 << 20})
    assert waste.tuned("cpu", "c", {"N": 200})["lanes"] == 16
    assert waste.tuned("cpu", "c", {"N": 1 << 18})["lanes"] == 7
    tuned_to(7, 1, {"N": 100})  # in place of the older one
    assert waste.tuned("cpu", "c", {"N": 100})["lanes"] == 7
    assert len(list(database.iterdir())) == 2


def test_rows_of_others_are_not_used(database, caplog):
    path = tuned_to(7, 8)
    assert waste.tuned("cpu", "interpret") == {}
    changed = make_kernel()
    changed.math = lambda f: f.output(f.input("x", ("N",), ln.float32) + 1.0, "y")
    assert changed.tuned("cpu", "c") == {}  # another math of that name
    text = path.read_text()
    path.write_text(text.replace('"times": 8', '"times": 1'))
    tuned_rows._row.cache_clear()
    assert waste.tuned("cpu", "c") == {}
    assert caplog.messages == [
        f"{path} is left out of the tuned schedules: its content is not what its name says"
    ]


def written(database, text):
    database.mkdir(exist_ok=True)
    path = database / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
    path.write_text(text)
    return path


def test_rows_of_another_machine_are_not_used(database):
    path = tuned_to(7, 8)
    row = json.loads(path.read_text())
    path.unlink()
    written(database, json.dumps({**row, "machine": "another"}))
    assert waste.tuned("cpu", "c") == {}
    written(database, json.dumps(row))
    assert waste.tuned("cpu", "c")["lanes"] == 7


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sizes": None}, "'NoneType' object has no attribute 'values'"),
        ({"sizes": {"N": "64"}}, "its sizes are not all ints >= 0"),
        ({"sizes": {"N": -5}}, "its sizes are not all ints >= 0"),
        ({"parameters": {"lanes": {"dtype": "none"}, "times": 1}}, "'none'"),
        ({"parameters": 5}, "'int' object has no attribute 'items'"),
    ],
)
def test_a_row_of_other_kinds_of_values_is_left_out(database, caplog, changed, why):
    path = tuned_to(7, 8)
    row = json.loads(path.read_text())
    path.unlink()
    path = written(database, json.dumps({**row, **changed}))
    assert waste.tuned("cpu", "c") == {}
    assert caplog.messages == [f"{path} is left out of the tuned schedules: {why}"]


def test_a_file_of_brackets_is_no_row(database, caplog):
    path = written(database, "[" * 100_000)
    assert waste.tuned("cpu", "c") == {}
    (message,) = caplog.messages
    assert message.startswith(f"{path} is left out of the tuned schedules: maximum recursion depth")


def test_a_folder_of_an_unknown_user(monkeypatch):
    """It is a folder of that name, as a shell takes it."""
    monkeypatch.setenv("LOOPNEST_TUNED", "~nobody-of-that-name/tuned")
    assert str(tuned_rows.folder()) == "~nobody-of-that-name/tuned"
    assert waste.tuned("cpu", "c") == {}


def test_rows_of_another_version_are_left_out(database, caplog):
    row = json.loads(tuned_to(7, 8).read_text())
    path = written(database, json.dumps({**row, "version": 99}))
    assert waste.tuned("cpu", "c")["lanes"] == 7
    assert caplog.messages == [f"{path}: a row of version 99 is left out"]


def test_a_row_that_is_no_choice_any_more(database):
    tuned_to(32, 8)
    assert waste.tuned("cpu", "c") == {}


def test_no_database(monkeypatch):
    monkeypatch.setenv("LOOPNEST_TUNED", "")
    assert tuned_to(7, 8) is None
    assert waste.tuned("cpu", "c") == {}


def test_a_budget_too_short_keeps_the_defaults(database):
    found = tune(waste, target="c", budget=1e-6)
    assert found.parameters == {"lanes": 16, "times": 1}
    assert found.timed == []
    assert found.fell["the budget"] == 3
    assert str(found).endswith(
        "kept: lanes=16, times=1; no candidate was timed: the budget is too short, or all fell"
    )
    assert not list(tuned_rows.rows())


class Crashing:
    """A kernel that ends the process that takes it."""

    def __reduce__(self):
        return os._exit, (3,)


class Hanging:
    """A kernel that its process never has."""

    def __reduce__(self):
        return time.sleep, (1000,)


def test_candidates_that_crash_or_hang_die_alone(database, monkeypatch):
    examine = tuning.examine
    odd = iter([Crashing(), Hanging()])

    def examined(fusion, sizes, target):
        found = examine(fusion, sizes, target)
        if "in 7" in str(found.kernel):
            kernel = next(odd, None)
            return Examined("", "", kernel, 0.0) if kernel else found
        return found

    monkeypatch.setattr(tuning, "examine", examined)
    monkeypatch.setattr(tuning, "START_SECONDS", 30.0)
    monkeypatch.setattr(tuning, "HOPELESS", float("inf"))
    real = tuning._Racer.start

    def start(racer, seconds):
        hangs = b"time" in racer._message[:200] and b"sleep" in racer._message[:200]
        return real(racer, 2.0 if hangs else seconds)

    monkeypatch.setattr(tuning._Racer, "start", start)
    found = tune(waste, target="c", budget="300s")
    assert found.fell["their own runs"] == 2
    assert "crashed (status 3)" in found.examples["their own runs"]
    assert found.timed


def test_proofs_and_counts(database, monkeypatch):
    """A candidate that is refuted falls to the proof, one of much more work to its counts."""
    examine = tuning.examine

    def examined(fusion, sizes, target):
        found = examine(fusion, sizes, target)
        text = str(found.kernel)
        if "in 7" in text:
            odd = "in 8" in text
            why = Examined("verify", "y[0] is never stored")
            return why if odd else Examined("", "", found.kernel, 100 * found.work)
        return found

    monkeypatch.setattr(tuning, "examine", examined)
    found = tune(waste, target="c", budget="300s")
    assert found.fell["verify"] == 1
    assert found.fell["counts and resources"] == 1
    assert "times the work of another" in found.examples["counts and resources"]


def test_launches_that_are_refused_fall_to_counts():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
    y.split(0, 4, inner=False)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    found = tuning.examine(f, {"N": 10000}, "c")
    assert found.cause == "counts and resources"
    assert found.why.endswith("block_x (y.i1) has extent 2500; use at most 1024")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_executors(database, kind):
    context = multiprocessing.get_context("spawn")
    made = (
        concurrent.futures.ThreadPoolExecutor(2)
        if kind == "threads"
        else concurrent.futures.ProcessPoolExecutor(1, mp_context=context)
    )
    with made as executor:
        found = tune(waste, target="c", budget="300s", executor=executor)
    assert len(found.timed) == 3


def test_an_executor_that_takes_no_work(database):
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.shutdown()
    with raises(
        ln.CompileError,
        r"tune\(waste@cpu\): the executor takes no work: "
        r"cannot schedule new futures after shutdown",
    ):
        tune(waste, target="c", budget="300s", executor=executor)


def test_a_large_space_is_searched_by_optuna(database, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(tuning, "MOST_TIMED", 4)
    monkeypatch.setattr(tuning, "BATCH", 3)
    found = tune(waste, target="c", budget="40s")
    assert found.parameters["lanes"] in (16, 7)
    assert len(found.timed) >= 2


def test_optuna_is_missing(database, monkeypatch):
    monkeypatch.setattr(tuning, "MOST_TIMED", 4)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with raises(
        ln.CompileError,
        r"tune\(waste@cpu\): its 6 candidates are searched by optuna, which is missing; "
        r"pip install 'loopnest\[tune\]'",
    ):
        tune(waste, target="c")


# What is refused


def test_what_cannot_be_tuned():
    with raises(ln.DefinitionError, r"tune\(3\): it is no kernel; decorate one by @ln\.kernel"):
        tune(3)
    with raises(
        ln.DefinitionError,
        r"tune\(waste@cpu\): budget='soon' is no time; write \"60s\", \"5m\" or seconds",
    ):
        tune(waste, target="c", budget="soon")
    with raises(
        ln.DefinitionError, r"tune\(waste@cpu\): there is no size K; its sizes are \['N'\]"
    ):
        tune(waste, target="c", sizes={"K": 3})
    with raises(
        ln.ScheduleError, "waste@fast: kernel waste has no schedule 'fast'; its schedules are cpu"
    ):
        tune(waste, "fast")


def constrained(*where):
    @ln.kernel(sizes={"N": 16})
    def k(f):
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")

    @k.schedule("cpu", where=where)
    def cpu(f, lanes=ln.choice(8, 4), wide=ln.choice(None, True)):
        f["y"].split(0, lanes)

    return k


def test_constraints():
    with raises(
        ln.DefinitionError,
        r"tune\(k@cpu\): no candidate meets the constraints 'lanes > N'; widen the choices",
    ):
        tune(constrained("lanes > N"), target="c")
    hint = "write a comparison of parameters and sizes, such as 'lanes \\* parts <= D'"
    with raises(
        ln.DefinitionError,
        rf"tune\(k@cpu\): the constraint 'rows < 3': 'rows' is no parameter and no size; {hint}",
    ):
        tune(constrained("rows < 3"), target="c")
    with raises(ln.DefinitionError, rf"tune\(k@cpu\): the constraint 3 is no text; {hint}"):
        tune(constrained(3), target="c")
    with raises(
        ln.DefinitionError,
        r"tune\(k@cpu\): a constraint names wide, which is None there; "
        r"constraints compare integers",
    ):
        tune(constrained("wide < 3"), target="c")


# The command line


FILE = """
import loopnest as ln

@ln.kernel(sizes={"N": 4096})
def scale(f):
    x = f.input("x", ("N",), ln.float32)
    f.output(x * 2.0, "y")

@scale.schedule("cpu")
def cpu(f, lanes=ln.choice(1, 16), *, name=ln.choice("ä", "b")):
    f["y"].split(0, lanes)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scale.py"
    path.write_text(FILE)
    return path


def test_the_command(database, file):
    found = json.loads(
        output("tune", f"{file}:scale@cpu", "--target", "c", "-D", "N=100", "--json")
    )
    assert found["sizes"] == {"N": 100}
    assert len(found["timed"]) == 4
    assert os.path.exists(found["row"])
    said = call("run", f"{file}:scale@cpu", "--target", "c", "-D", "N=100")
    assert said.exit_code == 0
    listed = ", ".join([f"{n}={v}" for n, v in found["parameters"].items()])
    assert f"note: tuned on this machine: {listed}; -P sets others" in said.stderr
    said = call("run", f"{file}:scale@cpu", "--target", "c", "-P", "lanes=1")
    assert "tuned" not in said.stderr


def test_the_diff_makes_a_result_the_default(file):
    from loopnest.devtools.cli_spec import Source
    from loopnest.devtools.tuning import defaults_diff

    source = Source(False)
    source.load(str(file))
    (kernel,) = source.kernels()
    text = defaults_diff(kernel, "cpu", {"lanes": 16, "name": "b"})
    assert [line for line in text.splitlines() if line[:1] in "+-"] == [
        "--- a/scale.py",
        "+++ b/scale.py",
        '-def cpu(f, lanes=ln.choice(1, 16), *, name=ln.choice("ä", "b")):',
        '+def cpu(f, lanes=ln.choice(16, 1), *, name=ln.choice("b", "ä")):',
    ]


# Several extents of one size


def found_at(extent, lanes):
    return tuning.Tuned("waste", "cpu", "c", {"N": extent}, {"lanes": lanes, "times": 1})


def test_extents_of_alike_parameters_share_a_condition():
    found = [found_at(16, 16), found_at(100, 16), found_at(10_000, 7), found_at(40_000, 16)]
    chosen = tuning.TunedRange.of("N", found)
    wide, narrow = [("cpu", {"lanes": lanes, "times": 1}) for lanes in (16, 7)]
    assert chosen.entries == {"N <= 1000": wide, "N <= 20000": narrow, True: wide}
    assert str(chosen) == (
        "waste.choose({\n"
        "    'N <= 1000': ('cpu', {'lanes': 16, 'times': 1}),\n"
        "    'N <= 20000': ('cpu', {'lanes': 7, 'times': 1}),\n"
        "    True: ('cpu', {'lanes': 16, 'times': 1}),\n"
        "})"
    )
    assert tuning.TunedRange.of("N", found[:2]).entries == {True: wide}
    kernel = waste.choose(chosen.entries)
    assert kernel.schedule_at(N=500) == kernel.schedule_at(N=30_000) == "cpu"
    x = np.ones(70, np.float32)
    np.testing.assert_allclose(kernel(x), x / (70 * np.e), rtol=1e-5)


def test_a_tuning_at_several_extents(database):
    found = tune(waste, target="c", sizes={"N": [64, 4096]}, budget="240s")
    assert [one.sizes for one in found.found] == [{"N": 64}, {"N": 4096}]
    assert list(found.entries)[-1] is True
    assert sorted(row.sizes["N"] for row in tuned_rows.rows()) == [64, 4096]
    assert waste.choose(found.entries)


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"N": []}, r"the extents N=\[\] are no ints >= 1; write {'N': \[256, 4096\]}"),
        ({"N": [0, 4]}, r"the extents N=\[0, 4\] are no ints >= 1; write {'N': \[256, 4096\]}"),
        ({"N": "64"}, r"the extents N='64' are no ints >= 1; write {'N': \[256, 4096\]}"),
        (
            {"N": [4], "M": [4]},
            r"N and M have several extents; tune over those of one size at a time",
        ),
    ],
)
def test_extents_that_are_none(sizes, text):
    with raises(ln.DefinitionError, rf"tune\(waste@cpu\): {text}"):
        tune(waste, target="c", sizes=sizes)
