"""``loopnest check``: what is right passes; each kind of failure is told, with its place."""

from __future__ import annotations

import json
import re
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import loopnest as ln
from helpers.command_line import SCALED, call
from loopnest.backends.cpu import c_compiler
from loopnest.devtools.cli import Source, command_line
from loopnest.devtools.schedule_check import check_schedule, ready
from loopnest.devtools.trial_sizes import trial_sizes

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
PLAIN = ROOT / "tests" / "mutation" / "kernels" / "plain.py"

SCALE = (
    SCALED
    + """\
@scale.schedule("gpu")
def gpu(f, threads=64):
    f["y"].split(0, threads)
    f["y"].parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})


@scale.schedule("plain")
def plain(f):
    pass
"""
)

WRONG = """\
import numpy as np
import loopnest as ln


@ln.kernel(reference=lambda x: x * 2.001)
def off(f):
    f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")


def odd_numpy(x):
    return np.stack([x, missing])


@ln.kernel(reference=odd_numpy)
def odd(f):
    f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")


@ln.kernel()
def bad(f):
    f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")


@bad.schedule("split")
def split(f):
    f["y"].split(3, 2)


@bad.schedule("python")
def python(f):
    f.nothing()


@bad.schedule("huge")
def huge(f):
    f["y"].split(0, 2048)
    f["y"].parallelize({1: ln.ParallelType.block_x})
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scale.py").write_text(SCALE)
    return tmp_path


def passed(*arguments):
    result = call("check", *map(str, arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*arguments):
    result = call("check", *map(str, arguments))
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.stdout, result.stderr


def rows(text):
    """Return the lines of the table, without the seconds."""
    lines = text.splitlines()
    body = lines[1 : lines.index("")] if "" in lines else lines[1:]
    return [re.sub(r" +[\d.]+$", "", line) for line in body]


# What is right


@pytest.mark.skipif(c_compiler.find_compiler() is None, reason="it compiles C")
def test_release_compiles_as_a_user_does(folder, monkeypatch):
    built = []
    compiled = c_compiler.compile_c

    def noted(source, **options):
        built.append((source, options))
        return compiled(source, **options)

    monkeypatch.setattr(c_compiler, "compile_c", noted)
    passed(f"{folder / 'scale.py'}:scale@plain")
    assert [options["optimize"] for _, options in built] == [0]
    built.clear()
    passed(f"{folder / 'scale.py'}:scale@plain", "--release")
    with ln.Fusion("scale") as f:
        factor = f.scalar("factor", ln.float32)
        f.output(f.input("x", ("N",), ln.float32) * factor, "y")
    ln.compile(f, target="c")(np.ones(3, np.float32), factor=2.0)
    checked, used = built
    assert checked == used
    assert used[1]["optimize"] == 3


def test_a_file(folder):
    text = passed(folder / "scale.py")
    where = "right" if c_compiler.find_compiler() else "right, not in C"
    assert text.splitlines()[0].split() == [
        "kernel", "schedule", "proof", "sanitizer", "result", "seconds"
    ]  # fmt: skip
    assert [row.split(maxsplit=6)[:6] for row in rows(text)] == [
        ["scale", "gpu", "all", "sizes", "clean", *where.split(maxsplit=1)[:1]],
        ["scale", "plain", "all", "sizes", "clean", *where.split(maxsplit=1)[:1]],
    ]
    assert (
        text.endswith("\n2 schedules of 1 kernel: all is well\n") or not c_compiler.find_compiler()
    )


@pytest.mark.parametrize("path", [PLAIN, KERNELS / "adam.py"], ids=lambda path: path.stem)
def test_real_kernels(path):
    assert ": all is well" in passed(path, "--strict")


def test_a_folder_names_what_it_skips(folder):
    inner = folder / "deep"
    inner.mkdir()
    (inner / "more.py").write_text(SCALE.replace("scale", "more"))
    (folder / "util.py").write_text("raise RuntimeError('never executed')\n")
    (folder / "empty.py").write_text("import loopnest\n")
    hidden = folder / ".hidden"
    hidden.mkdir()
    (hidden / "no.py").write_text("import loopnest; 1 / 0\n")
    environment = folder / "venv"
    environment.mkdir()
    (environment / "pyvenv.cfg").write_text("")
    (environment / "no.py").write_text("import loopnest; 1 / 0\n")
    text = passed(folder)
    assert text.splitlines()[0].startswith("file ")
    names = [row.split()[:3] for row in rows(text)]
    assert names == [
        ["more.py", "more", "gpu"],
        ["more.py", "more", "plain"],
        ["scale.py", "scale", "gpu"],
        ["scale.py", "scale", "plain"],
    ]
    assert "skipped empty.py: it defines no kernel\n" in text
    assert "skipped util.py: it does not use loopnest\n" in text
    assert "no.py" not in text
    assert len(rows(passed(f"{folder}:more"))) == 2
    assert len(rows(passed(f"{folder}:@plain"))) == 2
    assert len(rows(passed(f"{folder}:more@plain"))) == 1


def test_nothing_is_written_beside_the_files(folder):
    before = sorted(folder.rglob("*"))
    passed(folder)
    assert sorted(folder.rglob("*")) == before


def test_sizes_and_parameters(folder):
    text = passed(folder / "scale.py", "-D", "N=70", "-D", "factor=3.0", "-P", "threads=32")
    assert [row.split()[2] for row in rows(text)] == ["N=70", "N=70"]
    report = json.loads(passed(f"{folder / 'scale.py'}:scale@gpu", "-P", "threads=32", "--json"))
    assert report["checked"][0]["parameters"] == {"threads": "32"}
    assert {run["sizes"]["N"] for run in report["checked"][0]["runs"]} == {33, 5, 32, 1}


def test_json(folder):
    (folder / "noise.py").write_text(SCALE.replace("scale", "noise") + "\nprint('hello')\n")
    report = json.loads(passed(folder, "--json"))
    assert report["ok"] is True
    assert report["skipped"] == report["broken"] == []
    entry = report["checked"][0]
    assert (entry["kernel"], entry["schedule"], entry["ok"]) == ("noise", "gpu", True)
    assert entry["proof"] == {"status": "proved", "scope": "all sizes", "findings": []}
    assert entry["fault"] is entry["error"] is entry["diagnosis"] is None
    run = entry["runs"][0]
    assert (run["target"], run["against"], run["sizes"]) == ("interpret", "the oracle", {"N": 65})
    assert run["outputs"][0]["name"] == "y"
    assert run["outputs"][0]["ok"] is True


def test_help_teaches():
    text = passed("--help")
    assert "loopnest check kernels:@gpu" in text
    assert "loopnest check kernels --strict --json > report.json" in text
    for word in ("proof", "sanitizer", "result", "Exit status: 0 if all is well, 1 if not."):
        assert word in text


def test_a_script_checks_itself(folder):
    source = Source(script=True, file=str(folder / "scale.py"))
    source.load(source.file)
    group = command_line(True, "scale.py")
    result = CliRunner().invoke(group, ["check", "scale@plain"], obj=source)
    assert result.exit_code == 0, result.output
    assert len(rows(result.stdout)) == 1


# What is wrong


def test_a_refuted_kernel_shows_its_witness(broken_lowering):
    broken_lowering("predicate", "drop")
    text, error = failed(f"{PLAIN}:plain_softmax@gpu")
    assert rows(text)[0].split() == ["plain_softmax", "gpu", "REFUTED", "FAULT", "-"]
    assert error == "error: 1 of 1 schedule failed\n"
    lines = text.splitlines()
    start = lines.index("plain_softmax@gpu") + 1
    assert lines[start].startswith("  refuted for N=")
    assert lines[start + 1].startswith("    bounds: largest reads out of bounds: index ")
    assert re.match(
        r"      read of x\[\d+, 0\] at nest line 11 '.*', block \(0, ", lines[start + 2]
    )
    assert lines[start + 4].startswith("      placed by largest.compute_at(y, 2) at ")
    assert "  the sanitizer stopped it at N=129, D=3:" in lines


def test_a_wrong_result_is_diagnosed(broken_lowering):
    broken_lowering("index", "load x: i2 without")
    text, _ = failed(f"{PLAIN}:plain_softmax@cpu")
    assert rows(text)[0].split() == [
        "plain_softmax",
        "cpu",
        "REFUTED",
        "clean",
        "WRONG",
        "on",
        "interpret",
    ]
    assert "  wrong on interpret at N=5, D=3, against the oracle: y: largest error " in text
    assert "  the first tensor that differs:\n    shifted[0, 1] is " in text
    assert "'shifted[0] = x[i0, 0] - T2[0]'\n" in text


def test_a_reference_that_differs(folder):
    (folder / "wrong.py").write_text(WRONG)
    text, error = failed(f"{folder / 'wrong.py'}:off")
    assert "  wrong on interpret at N=5, against the reference: y: largest error " in text
    assert "  every tensor of the nest has the values of the math, run by the interpreter\n" in text
    assert error == "error: 1 of 1 schedule failed\n"


def test_mistakes_of_the_user_are_one_sentence(folder):
    (folder / "wrong.py").write_text(WRONG)
    text, error = failed(folder / "wrong.py")
    assert error == "error: 5 of 5 schedules failed\n"
    assert "odd\n  wrong.py:11: NameError: name 'missing' is not defined\n" in text
    assert (
        "bad@split\n  wrong.py:26: y.split(axis=3, factor=2): axis 3 is out of range; y has 1 leaf "
        "axis [i0], so use -1..0\n"
    ) in text
    assert (
        "bad@python\n  wrong.py:31: AttributeError: 'Fusion' object has no attribute 'nothing'\n"
    ) in text
    assert (
        "bad@huge\n  bad: a block has 2048 threads: block_x (y.i1) = 2048; use at most 1024\n"
    ) in text
    table = {" ".join(row.split()[:2]): row for row in rows(text)}
    assert table["bad split"].split()[2:] == ["no", "kernel", "-", "-"]
    assert table["bad huge"].split()[2:] == ["no", "kernel", "-", "-"]


def test_files_that_cannot_be_loaded(folder):
    broken = folder / "broken.py"
    cases = {
        "import loopnest\nimport nowhere_at_all\n":
            "broken.py:2: ModuleNotFoundError: No module named 'nowhere_at_all'",
        "import loopnest\nx = (\n": "broken.py:2: SyntaxError: '(' was never closed",
        "import loopnest, sys\nsys.exit(3)\n":
            "broken.py: it ends the process when it is loaded",
        "import loopnest as ln\nln.kernel(sizes={'N': -1})\n":
            "broken.py:2: kernel(...): the size N = -1; sizes are ints >= 0",
    }  # fmt: skip
    for code, sentence in cases.items():
        broken.write_text(code)
        text, error = failed(broken)
        assert (text, error) == ("", f"error: {sentence}\n")
        text, error = failed(folder)
        assert f"broken.py\n  it cannot be loaded: {sentence}\n" in text
        assert len(rows(text)) == 2  # the others were checked
        assert error == "error: 1 file could not be loaded\n"
    report = json.loads(call("check", str(folder), "--json").stdout)
    assert report["ok"] is False
    assert report["broken"] == [{"file": "broken.py", "error": sentence}]


def test_mistakes_on_the_command_line(folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    file = folder / "scale.py"
    nothing = folder / "nothing.py"
    nothing.write_text("")
    cases = {
        (folder / "missing.py",): f"{folder / 'missing.py'}: there is no such file or folder",
        (empty,): f"{empty}: there is no Python file in this folder",
        (nothing,): "nothing.py: it defines no kernel; decorate its math with @ln.kernel(...)",
        (f"{file}:scales",): f"{file}:scales: there is no such kernel or schedule; there are "
            "scale@gpu, scale@plain",
        (f"{folder}:@cpu",): f"{folder}:@cpu: there is no such kernel or schedule; there are "
            "scale@gpu, scale@plain",
        (file, "-P", "thread=3"): "-P thread: no kernel here has such a parameter; there are "
            "dtype, threads",
        (file, "-P", "threads=x"): "-P threads=x: 'x' is no int",
        (file, "-D", "M=3"): "-D M: no kernel here has this size or scalar; there are N, factor",
        (file, "-D", "N=-3"): "-D N=-3: sizes are ints >= 0",
        (file, "-D", "N"): "-D N: use -D NAME=VALUE",
    }  # fmt: skip
    for arguments, sentence in cases.items():
        assert failed(*arguments) == ("", f"error: {sentence}\n")


def test_an_unknown_proof_fails_only_where_strict(folder, monkeypatch):
    from loopnest.proofs.report import Finding, Report

    finding = Finding("value", "unknown", "an index depends on data")
    unknown = Report("unknown", (finding,))
    monkeypatch.setattr(
        import_module("loopnest.proofs"), "verify_variant", lambda k, **sizes: unknown
    )
    spec = f"{folder / 'scale.py'}:scale@plain"
    text = passed(spec)
    assert rows(text)[0].split()[2] == "unknown"
    assert "scale@plain: the proof is unknown: an index depends on data\n" in text
    text, error = failed(spec, "--strict")
    assert "  unknown for all sizes:\n    value: an index depends on data\n" in text
    assert error == "error: 1 of 1 schedule failed\n"


def test_a_fault_of_loopnest_itself_is_told_as_such(folder, monkeypatch):
    def fail(*_, **__):
        return [][1]

    monkeypatch.setattr(import_module("loopnest.proofs"), "verify_variant", fail)
    text, _ = failed(f"{folder / 'scale.py'}:scale@plain")
    assert re.search(
        r"\n  IndexError: list index out of range \(at test_schedule_check.py:\d+\); "
        r"this is a bug of loopnest, please report it\n",
        text,
    )


def test_a_tile_beyond_the_usual_limit_is_checked_all_the_same(monkeypatch):
    monkeypatch.setattr("loopnest.devtools.trial_sizes.trial_sizes", partial(trial_sizes, most=0))
    from mutation.kernels.plain import plain_sum

    found = check_schedule(plain_sum, "gpu")
    assert found.error is None
    assert {tuple(run.sizes) for run in found.runs} == {("N", "D")}
    assert found.ok(strict=True)


def test_assumptions_that_no_small_sizes_fulfil():
    import loopnest as ln

    @ln.kernel(sizes={"N": 1009})
    def assumed(f):
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
        f.assume("N * N == 1018081")

    found = check_schedule(assumed, "")
    assert found.error is None
    assert found.runs == ()
    unused, not_run = found.notes
    assert unused.startswith(
        "assumed: assumed.assume('N * N == 1018081'): each launch checks it, and nothing "
    )
    assert not_run == "not run: no small sizes fulfil the assumptions; set sizes by -D"


def test_threads_without_cuda_text_fail_only_where_strict(tmp_path):
    path = tmp_path / "rows.py"
    path.write_text(ROWS)
    text = passed(path)
    assert "right, no CUDA text" in text
    why = "no CUDA text: T1: its LOCAL buffer has the symbolic size D, while registers on target"
    assert why in " ".join(text.split())
    text, error = failed(path, "--strict")
    assert why in " ".join(text.split())
    assert error == "error: 1 of 1 schedule failed\n"


ROWS = """
import loopnest as ln

@ln.kernel(sizes={"N": 5, "D": 7})
def rows(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.exp(x) * 2.0, "y")

@rows.schedule("gpu")
def gpu(f):
    (y,) = f.outputs
    y.parallelize({0: ln.ParallelType.grid_x})
    y.producers[0].compute_at(y, 1)
"""


def test_what_is_too_large_is_not_run(monkeypatch):
    monkeypatch.setattr("loopnest.devtools.schedule_check.MOST_POINTS", 100)
    from mutation.kernels.plain import plain_sum

    found = check_schedule(plain_sum, "gpu", values={"N": 50, "D": 50})
    assert found.runs == ()
    assert found.ok()
    assert not found.ok(strict=True)
    assert found.notes[0].startswith("not run at N=50, D=50: ")
    assert found.notes[0].endswith(" statements are too many; set small sizes by -D")


@pytest.mark.skipif(not c_compiler.find_compiler(), reason="there is no C compiler")
def test_a_kernel_and_its_scalar_variant_are_built_in_one_run(monkeypatch):
    with ln.Fusion("wide") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 3.0, "y")
    y.split(0, 4)
    y.parallelize({1: ln.ParallelType.vectorize})
    k = ln.lower(f)
    assert k.scalar is not None
    sources = []
    compiled = c_compiler.compile_c

    def counted(source, **options):
        sources.append(source)
        return compiled(source, **options)

    monkeypatch.setattr(c_compiler, "compile_c", counted)
    function = ready(k, "c")
    for count in (8, 7):  # vectors divide the first
        values = np.arange(count, dtype=np.float32)
        assert (function(values) == values * 3).all()
    assert len(sources) == 1


LIMITED = SCALE.replace('schedule("gpu")', 'schedule("gpu", cost={"gmem_ratio": "<=1.0"})')


def test_costs_are_held_at_the_sizes_of_the_kernel(tmp_path):
    """And at those that -D sets; a schedule without limits is not counted."""
    assert LIMITED != SCALE
    (tmp_path / "scale.py").write_text(LIMITED)
    result = call("check", str(tmp_path / "scale.py"))
    assert result.exit_code == 0, result.output
    wrong = LIMITED.replace('"gmem_ratio": "<=1.0"', '"barriers": ">=1"')
    (tmp_path / "scale.py").write_text(wrong)
    result = call("check", str(tmp_path / "scale.py"), "-D", "N=128")
    assert result.exit_code == 1
    assert "COSTS TOO MUCH" in result.output
    assert "at N=128: barriers is 0, not >= 1" in result.output
    report = json.loads(call("check", str(tmp_path / "scale.py"), "-D", "N=128", "--json").stdout)
    assert [entry["ok"] for entry in report["checked"]] == [False, True]
    assert report["checked"][1]["cost"] is None
    assert report["checked"][0]["cost"].endswith("barriers is 0, not >= 1")


def test_limits_that_are_none(tmp_path):
    (tmp_path / "scale.py").write_text(LIMITED.replace("gmem_ratio", "ratio"))
    result = call("check", str(tmp_path / "scale.py"))
    assert result.exit_code == 1
    assert "assert_cost(...): there is no cost 'ratio'; the costs are gmem_ratio" in result.output
