"""ln.explain and ln.explain_inline: what they say, and that what they name does what they say."""

from __future__ import annotations

import copy
import json
import pickle
import re
from random import Random

import pytest
from click.testing import CliRunner

import loopnest as ln
from end_to_end.test_goldens import CASES
from fuzzing.fusions import FusionWriter
from loopnest.devtools.cli import command_line
from loopnest.devtools.cli_spec import Source
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.facade.kernel_class import lower
from loopnest.kir import If, walk

FEW = 2
"""So many remedies of each kind are done, of each schedule."""


def reasons(kernel):
    """Return the reasons of all tests of a nest."""
    tests = [node for node, _ in walk(kernel.program.body) if isinstance(node, If)]
    return [part for node in tests for part in node.reason.split("; ")]


def call(f, text):
    """Make the calls of a remedy."""
    exec(text, {"ln": ln, "f": f, **{tensor.name: tensor for tensor in f.tensors}})


def remedies(found):
    """Return the calls that place tensors deeper, and those that remove tests, some of each."""
    places = {
        one.place.remedy: one.name
        for one in found
        if one.place.remedy and not one.place.remedy.startswith("leave out")
    }
    tests = {
        (note.remedy, note.why): note
        for one in found
        for note in one.tests
        if note.remedy.startswith("f.assume(")
    }
    return [*places.items()][:FEW], [*tests][:FEW]


def do_remedies(kernel, made):
    """Do what an explanation names, each on a schedule of its own."""
    found = ln.explain(kernel)
    places, tests = remedies(found)
    for text, name in places:
        f = made()
        before = f[name].compute_at_pos
        call(f, text)
        assert f[name].compute_at_pos > before, text
        lower(f)
    for text, why in tests:
        f = made()
        call(f, text)
        left = reasons(lower(f))
        assert any(left.count(w) < reasons(kernel).count(w) for w in why.split("; ")), (text, why)
    return found


@pytest.mark.parametrize(("kernel", "schedule"), CASES)
def test_what_it_names_does_it(kernel, schedule):
    k = kernel.lower(schedule)
    found = do_remedies(k, lambda: kernel.fusion(schedule))
    computed = [t.name for t in k.tensors if t.buffer and t.name not in inputs_of(k)]
    assert [one.name for one in found] == computed
    assert json.loads(json.dumps(found.to_dict()))["kernel"] == kernel.name


def inputs_of(kernel):
    return {param.name for param in kernel.params if param.kind == "input"}


@pytest.mark.parametrize("number", range(40))
def test_what_it_names_does_it_on_a_random_schedule(number):
    def made():
        session = Session(f"case_{number}")
        FusionWriter(session, Random(f"9/math/{number // 4}")).write()
        ScheduleWriter(session, Random(f"9/schedule/{number}")).write()
        return session.fusion

    f = made()
    before = [*map(str, f.tensors)], len(f.trace), len(f.intents)
    try:
        kernel = lower(f)
    except ln.LoopnestError:
        return  # that is no matter here
    text = str(kernel)
    do_remedies(kernel, made)
    assert ([*map(str, f.tensors)], len(f.trace), len(f.intents)) == before
    assert str(lower(f)) == text


def rows(size="N"):
    with ln.Fusion("rows") as f:
        x = f.input("x", (size, "D"), ln.float32)
        t = ln.exp(x)
        y = f.output(ln.sum(t, axis=1), "y")
    return f, t, y


def test_text():
    f, _, y = rows()
    y.split(0, 4)
    text = re.sub(r"\([^()]*?(\w+\.py:)\d+\)", r"(\1…)", str(ln.explain(ln.lower(f))))
    assert text == (
        "T1\n"
        "place      it is computed in loops of its own, outside of all others\n"
        "  by       no call placed it (test_explanation.py:…)\n"
        "  because  its axis i0 is no loop of y [i0, i1, r2]\n"
        "  change   T1.compute_at(y, -1)\n"
        "memory     its buffer T1 has N x D elements of float32, one a thread\n"
        "  by       no call set its memory\n"
        "  because  it holds what is behind the loops that it shares (0 of 2): i0 (N), i1 (D)\n"
        "  change   T1.compute_at(y, -1)\n"
        "note       each thread has a buffer of N * D elements\n"
        "  by       T1 in local memory (test_explanation.py:…)\n"
        "  because  it shares none of its 2 loops with y, where its i0 is no loop, its i1 is r2\n"
        "  change   call ln.propagate(y), which gives it the loops of y, and then "
        "T1.compute_at(y, -1) or ln.inline_most(), or set T1.memory = ln.GLOBAL\n"
        "\n"
        "y\n"
        "place      it is computed in loops of its own, outside of all others\n"
        "  by       no call placed it (test_explanation.py:…)\n"
        "  because  no tensor reads it, so that its loops are its own\n"
        "memory     the caller's array y has N elements of float32\n"
        "  by       an output is in global memory\n"
        "  because  it is an output, whole\n"
        "test       i2 * 4 + i3 < N is tested in each iteration of the loop over y.i1\n"
        "  by       y.split(axis=0, factor=4) (test_explanation.py:…)\n"
        "  because  y: split by 4 need not divide N\n"
        '  change   f.assume("N % 4 == 0")'
    )


@pytest.mark.parametrize(
    ("name", "schedule", "why", "remedy"),
    [
        ("argmax", "gpu", "T1: one lane of each warp stores",
         "none while warps fold together; at most 32 threads along it are one warp"),
        ("column_sum", "gpu", "y is computed in the last block of T2",
         "a launch of its own for what reads T2 (new_launch), or no grid axis in T2"),
        ("column_sum", "gpu", "y: split by 32 need not divide D // 4", 'f.assume("D % 128 == 0")'),
        ("concatenate", "cpu", "T5: tile with halo need not divide E",
         "none by sizes: a halo reaches past the border; at position 0 there is no halo"),
        ("grid_sum", "gpu", "T2: so many blocks left a part",
         "none: the last block has its own number of threads"),
        ("jacobi3d", "gpu", "T1: split by 32 need not divide 340",
         "none: no factor beside the other splits divides 340"),
    ],
)  # fmt: skip
def test_what_removes_a_test_or_that_nothing_does(name, schedule, why, remedy):
    (kernel,) = {case.values[0] for case in CASES if case.values[0].name == name}
    found = {
        (note.why, note.remedy) for one in ln.explain(kernel.lower(schedule)) for note in one.tests
    }
    assert (why, remedy) in found
    assert [own for own in found if not own[1]] == []


def test_a_static_size_has_a_factor():
    f, t, y = rows(18)
    y.split(0, 4)
    t.compute_at(y, -1)
    found = ln.explain(ln.lower(f))["y"].tensors[0].tests
    assert [note.remedy for note in found] == ["split by 3 in place of 4: 3 divides 18"]
    again, t, y = rows(18)
    y.split(0, 3)
    t.compute_at(y, -1)
    assert reasons(ln.lower(again)) == []


def test_it_is_that_of_the_lowered_schedule():
    """What is done to the fusion later does not reach it, and is there again afterwards."""
    f, t, y = rows()
    y.split(0, 4)
    k = ln.lower(f)
    text = str(ln.explain(k))
    part = t.cache_before()
    part.compute_at(y, -1)
    f.assume("N % 4 == 0")
    state = [*map(str, f.tensors)], str(ln.lower(f)), len(f.trace), f.facts.conditions
    assert str(ln.explain(k)) == text
    assert ([*map(str, f.tensors)], str(ln.lower(f)), len(f.trace), f.facts.conditions) == state
    now = ln.explain(ln.lower(f))[part.name].tensors[0].place
    assert now.why == "it shares all of its loops"
    assert part.name in ln.explain(ln.lower(f)).to_dict()["tensors"]


def test_memory_says_stages_padding_and_space():
    with ln.Fusion("tiles") as f:
        x = f.input("x", (64, 256), ln.float32)
        y = f.output(ln.exp(x) * 2.0, "y")
    tile = x.cache_after()
    tile.memory = ln.SHARED
    y.split(1, 32)
    tile.compute_at(y, 2)
    tile.circular_buffer(2)
    (note,) = ln.explain(ln.lower(f))[tile.name].tensors[0].buffers
    assert note.asked == f"{tile.name}.set_memory(shared)"
    assert note.became == (
        f"its buffer {tile.name} has 2 x 32 elements of float32 (256 bytes), one a block"
    )
    assert note.why == (
        "it holds what is behind the loops that it shares (2 of 3): i2 (32); "
        f"2 stages by {tile.name}.circular_buffer(2) stand in front, so that loads run ahead"
    )


def test_barred_and_pinned_axes():
    with ln.Fusion("lanes") as f:
        x = f.input("x", ("N", 64), ln.float32)
        t = ln.exp(x)
        y = f.output(t * 2.0, "y")
    y.axis(1).parallelize(ln.ParallelType.vectorize)
    t.compute_at(y, 1)
    note = ln.explain_inline(t)
    assert note.why == "axis 1 of y is vectorized, and nothing is inlined past it"
    assert note.remedy == "y.axis(1).parallelize(ln.ParallelType.serial); T1.inline_at(2)"
    y.axis(1).parallelize(ln.ParallelType.serial)
    y.pin(1)
    note = ln.explain_inline(t)
    assert note.why == "axis 1 of y is pinned, and nothing is inlined past it"
    assert note.remedy == "leave out y.pin(1); T1.inline_at(2)"
    assert t.compute_at_pos == 1


def test_a_fold_in_front():
    with ln.Fusion("sums") as f:
        x = f.input("x", ("N", "R", "K"), ln.float32)
        t = ln.sum(x, axis=1)
        f.output(t * 2.0, "y")
    note = ln.explain_inline(t)
    assert (note.why, note.remedy) == ("no call asked for more", "T1.inline_at(1)")
    t.inline_at(1)
    note = ln.explain_inline(t)
    assert note.became == "it shares 1 of its 3 loops with y"
    assert note.why == "its reduction axis r1 stands in front of what it keeps"
    assert note.remedy == "T1.compute_at(y, -1)"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda f: ln.explain(f), "explain(...): a Fusion is no kernel; pass what ln.lower "
         "returned"),
        (lambda f: ln.explain(pickle.loads(pickle.dumps(ln.lower(f)))),
         "explain(rows): it was read from text or a pickle, or is a scalar variant, and has no "
         "schedule to ask; explain the kernel that ln.lower returned"),
        (lambda f: ln.explain(ln.Kernel.parse(ln.lower(f).text(full=True))),
         "explain(rows): it was read from text or a pickle, or is a scalar variant, and has no "
         "schedule to ask; explain the kernel that ln.lower returned"),
        (lambda f: ln.explain(ln.lower(f))["z"],
         "explain(rows)['z']: it computes no tensor of this name; the tensors are T1, y"),
        (lambda f: ln.explain_inline(3),
         "explain_inline(...): an int is no TensorView; pass a tensor of a fusion"),
        (lambda f: ln.explain_inline(f["x"]),
         "explain_inline(x): x is an input, which no loop computes; ask of a copy"),
        (lambda f: ln.explain_inline(dead(f)),
         "explain_inline(T3): no output depends on T3; ask of a tensor that is computed"),
    ],
)  # fmt: skip
def test_refusals(function, message):
    f, *_ = rows()
    with pytest.raises(ln.LoopnestError, match=f"^{re.escape(message)}$"):
        function(f)


def dead(f):
    with f:
        return ln.exp(f["x"])


def test_a_copy_of_a_fusion_explains():
    f, _, y = rows()
    y.split(0, 4)
    f = copy.copy(f)
    f["T1"].compute_at(f["y"], -1)
    assert ln.explain(ln.lower(f))["T1"].tensors[0].place.asked == "T1.compute_at(y, -1)"


def run(*arguments):
    source = Source(script=False)
    return CliRunner().invoke(command_line(False, "loopnest"), arguments, obj=source)


def test_command():
    whole = run("explain", "kernels/softmax.py:softmax@gpu")
    assert whole.exit_code == 0
    assert whole.output.startswith("largest\nplace      it is computed in the loops over y.i0")
    part = run("explain", "kernels/softmax.py:softmax@gpu", "e", "--json")
    assert [*json.loads(part.output)["tensors"]] == ["e"]
    wrong = run("explain", "kernels/row_sum.py:row_sum@cpu", "q")
    assert wrong.exit_code == 1
    assert wrong.output == "error: row_sum@cpu: it computes no tensor 'q'; it has y, T2\n"
    wrong = run("explain", "kernels/row_sum.py:row_sum@cpu", "-D", "M=3")
    assert wrong.output == "error: -D M: row_sum has no size or scalar 'M'; it has N, D\n"


def test_html():
    f, *_ = rows()
    assert "<caption>T1</caption>" in ln.explain(ln.lower(f))._repr_html_()
