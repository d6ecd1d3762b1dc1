"""Copies and pickles of fusions, kernels and compiled functions."""

from __future__ import annotations

import copy
import multiprocessing
import operator
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from random import Random
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from fuzzing.fusions import FusionWriter
from helpers.statistics_kernel import statistics
from loopnest import kir
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.base import pickling
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import lowered_or_serial
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.facade.kernel_class import Kernel
from loopnest.kir import lowered
from loopnest.scalar import expr
from loopnest.scalar.expr import Arg, Const, Expr, Index, Op
from loopnest.tensor import (
    domain,
    intents,
    layout_transforms,
    math_snapshot,
    tensor_view,
)
from loopnest.tensor.ops import reducers

NEEDS_C = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
DUPLICATES: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda thing: pickle.loads(pickle.dumps(thing)),
    "by Python": lambda thing: pickle._loads(pickle._dumps(thing, 2)),  # type: ignore[attr-defined]
    "deepcopied": copy.deepcopy,
}
duplicated = pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)


def texts(kernel: Kernel) -> dict[str, str]:
    """Return all that a kernel says."""
    found = {"nest": str(kernel), "c": kernel.c(), **kernel.stages, "buffers": str(kernel.buffers)}
    found |= {"params": str(kernel.params), "tensors": str(kernel.tensors)}
    try:
        found["cuda"] = kernel.cuda()
    except ln.LoweringError as error:
        found["cuda"] = str(error)
    if kernel.scalar is not None:
        found |= {f"scalar {name}": text for name, text in texts(kernel.scalar).items()}
    return found


def described(fusion: ln.Fusion) -> list[object]:
    """Return all that a fusion says, and who reads whom."""
    return [
        *map(str, fusion.tensors), *fusion.trace, fusion.facts.conditions, fusion.scalars,
        fusion.symbols, [t.name for t in (*fusion.inputs, *fusion.outputs)],
        [(t.name, [c.name for c in t.consumers], [p.name for p in t.producers], t.origin, t.placed)
         for t in fusion.tensors],
    ]  # fmt: skip


@duplicated
def test_a_kernel_says_the_same(duplicate: Callable[[Any], Any]) -> None:
    f, _ = statistics(factored=False)
    kernel = ln.lower(f)
    again = duplicate(kernel)
    assert texts(again) == texts(kernel)
    assert kernel.has_scalar
    assert str(ln.verify(again)) == str(ln.verify(kernel))
    x = np.random.default_rng(0).normal(size=(5, 70)).astype(np.float32)
    results = [ln.compile(k, target="interpret")(x, scale=2.0) for k in (kernel, again)]
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert again.launch(N=5, D=70) == kernel.launch(N=5, D=70)


@duplicated
def test_a_fusion_is_scheduled_on_by_itself(duplicate: Callable[[Any], Any]) -> None:
    f, mean = statistics(factored=False)
    before = described(f)
    again = duplicate(f)
    assert described(again) == before
    assert set(again.tensors).isdisjoint(f.tensors)
    assert texts(ln.lower(again)) == texts(ln.lower(f))
    again["mean"].rfactor([2])
    assert described(f) == before
    assert [str(origin.call) for origin in again.trace[len(f.trace) :]] == ["mean.rfactor([2])"]
    mean.rfactor([2])
    assert str(ln.lower(again)) == str(ln.lower(f))


def test_what_is_pickled_together_stays_related() -> None:
    f, mean = statistics(factored=False)
    kernel = ln.lower(f)
    function = ln.compile(kernel, target="interpret", thread_order=3)
    scale = ln.Fusion("other").scalar("a", ln.float32) * 2.0
    things = (mean.axis(0), mean, mean.domain, mean.definition, f, kernel, function, f.scalars[0],
              kernel.program, scale)  # fmt: skip
    axis, tensor, own, formula, fusion, nest, run, param, program, factor = pickle.loads(
        pickle.dumps(things)
    )
    assert fusion["mean"] is tensor
    assert tensor.fusion is fusion
    assert tensor.axis(0) is axis
    assert own.leaf == tensor.leaf_domain
    assert formula.outputs == tensor.siblings
    assert formula.reducer == mean.definition.reducer
    assert (run.kernel, nest.program) == (nest, program)
    assert (run.target, run.options) == ("interpret", {"thread_order": 3})
    assert param is f.scalars[0]  # interned
    assert (str(factor), factor.fusion.name) == ("a * 2.0", "other")
    axis.parallelize(ln.ParallelType.grid_y)
    assert tensor.axis(0).parallel is ln.ParallelType.grid_y


def test_an_axis_that_is_no_more() -> None:
    f, mean = statistics(factored=False)
    inner = mean.axis(2)
    mean.split(2, 4)
    before = str(f["mean"])
    old, tensor = copy.deepcopy((inner, mean))
    assert repr(old) == repr(inner)
    with pytest.raises(ln.ScheduleError, match="it is not a leaf axis of a tensor"):
        old.pin()
    assert str(tensor) == before


def test_copies() -> None:
    """What never changes is its own copy; a fusion owns its tensors, so that all are copied."""
    f, mean = statistics(factored=False)
    kernel = ln.lower(f)
    for thing in (kernel, kernel.program, mean.definition and mean.definition.values[0]):
        assert copy.copy(thing) is thing
        assert copy.deepcopy(thing) is thing
    assert copy.copy(mean) is mean
    again = copy.copy(f)
    assert again["mean"].fusion is again
    assert copy.deepcopy(mean).fusion is not f
    with f:
        assert copy.deepcopy(f)["mean"].name == "mean"


def test_a_program_whose_statements_are_copied_runs() -> None:
    f, _ = statistics(factored=False)
    program = ln.lower(f).program
    body = copy.deepcopy(program.body)
    assert body[0] is not program.body[0]
    from loopnest.kir.nest_text import print_nest

    assert print_nest(program.with_body(body)) == print_nest(program)


@NEEDS_C
@duplicated
def test_compiled_functions(duplicate: Callable[[Any], Any]) -> None:
    f, _ = statistics(factored=False)
    x = np.random.default_rng(0).normal(size=(7, 64)).astype(np.float32)
    functions = [ln.compile(f, target="c", threads=1), *ln.compile_many([f])]
    for function in functions:
        again = duplicate(function)
        assert (again.target, again.options) == (function.target, function.options)
        for mine, theirs in zip(again(x, scale=2.0), function(x, scale=2.0), strict=True):
            np.testing.assert_array_equal(mine, theirs)


# Expressions


def test_expressions_are_interned_again() -> None:
    n = expr.Symbol("N")
    i = Index("i", n)
    total = Op("add", (Op("mul", (i, n), i.dtype), i), i.dtype)
    again, index = pickle.loads(pickle.dumps((total, i)))
    assert index is not i  # unique by birth
    assert index.extent is n
    assert again is Op("add", (Op("mul", (index, n), i.dtype), index), i.dtype)
    for value in (float("nan"), float("inf"), -0.0, 1e-310):
        constant = Const(value, ln.float64)
        assert pickle.loads(pickle.dumps(constant)) is constant


def test_deep_expressions() -> None:
    x: Expr = Arg(0, ln.float32)
    for _ in range(20_000):
        x = Op("add", (x, x), ln.float32)
    assert pickle.loads(pickle.dumps(x)) is x


# Depth


def chain(length: int) -> ln.Fusion:
    with ln.Fusion("chain") as f:
        t = f.input("x", ("N",), ln.float32)
        for _ in range(length):
            t = t + 1.0
        f.output(t, "y")
    return f


@duplicated
def test_a_chain_of_5000_tensors(duplicate: Callable[[Any], Any]) -> None:
    f = chain(5000)
    again = duplicate(f)
    assert len(again.tensors) == 5001
    assert [*map(str, again.tensors)] == [*map(str, f.tensors)]


def test_the_kernel_of_a_long_chain() -> None:
    f = chain(2000)
    f.inline_most()
    kernel = ln.lower(f)
    assert pickle.loads(pickle.dumps(kernel)).c() == kernel.c()


def test_many_splits() -> None:
    with ln.Fusion("splits") as f:
        y = ln.sum(f.input("x", ("N",), ln.float32), axis=0)
        f.output(y, "y")
    for _ in range(30):
        y.split(0, 2)
    y.rfactor([0])
    kernel = ln.lower(f)
    again, nest = pickle.loads(pickle.dumps((f, kernel)))
    assert str(nest) == str(kernel) == str(ln.lower(again))


# Other processes

LOAD = """
import pickle, sys
fusion, kernel = pickle.load(sys.stdin.buffer)
import loopnest as ln
print(kernel, kernel.c(), *kernel.stages.values(), ln.verify(kernel), ln.lower(fusion), sep="\\n")
"""


def test_another_process_with_other_hashes() -> None:
    f, _ = statistics(factored=False)
    kernel = ln.lower(f)
    said = [kernel, kernel.c(), *kernel.stages.values(), ln.verify(kernel), kernel]
    for seed in ("1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", LOAD],
            input=pickle.dumps((f, kernel)),
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout.decode() == "\n".join(map(str, said)) + "\n"


@NEEDS_C
def test_a_pool_of_processes() -> None:
    f, _ = statistics(factored=False)
    kernel = ln.lower(f)
    function = ln.compile(kernel, target="c")
    x = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(operator.methodcaller("c"), (kernel,)) == kernel.c()
        assert pool.apply(ln.verify, (kernel,)) == ln.verify(kernel)
        results = pool.apply(function, (x,), {"scale": 2.0})
        assert str(pool.apply(ln.lower, (f,))) == str(kernel)
    for mine, theirs in zip(results, function(x, scale=2.0), strict=True):
        np.testing.assert_array_equal(mine, theirs)


# The schema


def test_a_pickle_of_another_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    f, mean = statistics(factored=False)
    kernel = ln.lower(f)
    function = ln.compile(kernel, target="interpret")
    with monkeypatch.context() as patched:
        patched.setattr(pickling, "SCHEMA", 99)
        stored = [pickle.dumps(thing) for thing in (f, mean, kernel, function, kernel.program)]
    for data in stored:
        with pytest.raises(ln.LoopnestError) as caught:
            pickle.loads(data)
        assert str(caught.value) == (
            "unpickling: the pickle has schema 99, but this version of loopnest reads schema "
            f"{pickling.SCHEMA}; make it again with this version"
        )


def test_the_schema_comes_first() -> None:
    """Nothing of what changed is touched before the sentence is said."""
    f, _ = statistics(factored=False)
    for thing in (f, ln.lower(f)):
        data = pickle.dumps(thing)
        stamp = data.index(b"checked")
        assert b"kir.nodes" not in data[:stamp]
        assert b"statistics" not in data[:stamp]


FIELDS = {
    expr.Buffer: "name tensor memory dtype shape strides size kind alias_of stages swizzles",
    domain.TensorDomain: "root rfactor leaf allocation",
    tensor_view.Definition: "op operands reads outputs values reducer note scan "
    "start deterministic distinct carried producers",
    tensor_view.Distinct: "axis extent",
    tensor_view.Read: "producer indices",
    tensor_view.Scan: "axis exclusive segment",
    tensor_view.TracedReducer: "name identity combination literals special ordered",
    layout_transforms.BufferLayout: "stages prefetch move",
    kir.Loop: "var parallel axis body origin",
    kir.If: "condition body orelse reason origin",
    kir.Allocate: "storage origin",
    kir.Store: "storage index value tensor role flat coordinate origin atomic",
    kir.Let: "var value origin",
    kir.Barrier: "scope reason origin",
    kir.Shuffle: "var value mode offset origin",
    kir.Arrive: "var counter index count origin",
    kir.Collective: "name results args dims identity combine body origin scan ordered",
    kir.Launch: "extents body origin",
    kir.Param: "name kind dtype buffer shape strides",
    kir.Output: "name buffer shape inplace",
    kir.Program: "name params body launch outputs conditions requires about ranges counts "
    "index_checks",
    kir.IndexCheck: "source dtype shape table axis extent reader always program distinct",
    lowered.TensorInfo: "name dtype shape memory buffer compute_at_pos leaf",
    lowered.KernelRecord: "program tensors buffers math scalar",
    lowered.Note: "subject asked became why remedy origin",
    lowered.Lowered: "program stages tensors buffers math scalar notes explained",
    intents.Intent: "origin kind tensor axis value of",
    math_snapshot.MathAxis: "extent kind",
    math_snapshot.MathRead: "producer indices",
    math_snapshot.MathDefinition: "op reads outputs component values reducer updates scan start "
    "distinct carried",
    math_snapshot.MathTensor: "name dtype root logical places definition role inplace strides "
    "instruction steps domain",
    math_snapshot.MathSnapshot: "name tensors scalars symbols conditions outputs ranges",
}


def test_other_fields_are_another_schema() -> None:
    """Where this fails: let `pickling.SCHEMA` grow by one, and write down here what is stored."""
    assert pickling.SCHEMA == 25
    assert {kind: " ".join(f.name for f in fields(kind)) for kind in FIELDS} == FIELDS
    assert ln.IterDomain.__slots__ == (
        "definition", "is_named", "kind", "names", "origin", "owner", "parallel", "pinned", "size",
    )  # fmt: skip
    assert (domain.Split.__slots__, domain.Merge.__slots__) == (
        ("factor", "inner", "rest", "whole"),
        ("product", "whole"),
    )
    layouts = (layout_transforms.Padding.__slots__, layout_transforms.XorSwizzle.__slots__)
    assert layouts == (("count",), ())
    assert set(ln.TensorView.__slots__) == {
        "__weakref__", "_compute_at_pos", "_consumers", "_memory", "_name", "_produced_at_pos",
        "_starts_launch", "clones", "definition", "domain", "dtype", "fusion",
        "instruction", "layout", "number", "origin", "placed", "reduction", "strides",
    }  # fmt: skip
    assert set(vars(ln.Fusion("f"))) == {
        "_depth", "_inplace", "_inputs", "_journal", "_names", "_numbers", "_order", "_outputs",
        "_scalars", "_states", "_symbols", "_tensors", "_tokens", "algebra", "calling", "facts",
        "intents", "matches", "name", "ranges", "trace", "version",
    }  # fmt: skip


# Reducers


def test_reducers_are_traced() -> None:
    """A function of two partial results is called once, and what it returned is the reducer."""
    calls = []

    def combine(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        calls.append((a, b))
        (x, at_x), (y, at_y) = a, b
        less = Op("lt", (y, x), ln.bool)
        return Op("where", (less, y, x), x.dtype), Op("where", (less, at_y, at_x), at_x.dtype)

    identity = Const(float("inf"), ln.float32), Const(-1, ln.int64)
    least = reducers.trace("argmin", identity, combine)
    one, other = expr.two_sides(least.types)
    assert least.combination == least.combine(one, other)
    values = (Const(2.0, ln.float32), Const(7, ln.int64))
    assert least.combine(one, values) == combine(one, values)
    assert len(calls) == 2
    assert pickle.loads(pickle.dumps(least)) == least


def test_welford_keeps_its_form_of_a_single_element() -> None:
    found = reducers.WELFORD.of(ln.float32, ln.float32, ln.int64)
    assert found is reducers.WELFORD.of(ln.float32, ln.float32, ln.int64)
    one, other = expr.two_sides(found.types)
    single = (*other[:2], Const(1, ln.int64))
    assert found.combine(one, single) == found.special != found.combination
    assert pickle.loads(pickle.dumps(found)) == found


# Random schedules


@pytest.mark.parametrize("batch", range(4))
def test_random_schedules(batch: int) -> None:
    """A copy is taken of the math, and scheduled by the same calls; then all is pickled."""
    lowered_kernels = 0
    for seed in range(8 * batch, 8 * batch + 8):
        rng = Random(seed)
        session = Session("case")
        FusionWriter(session, rng).write()
        session.fusion, original = copy.deepcopy(session.fusion), session.fusion
        twin = Session("case")
        twin.fusion, twin.names = original, dict(session.names)
        session.names = {
            name: session.fusion.tensors[value.number]
            if isinstance(value, ln.TensorView)
            else value
            for name, value in session.names.items()
        }
        session.names["f"] = session.fusion
        untouched = described(original)
        ScheduleWriter(session, rng).write()
        assert described(original) == untouched
        for line in session.schedule:
            twin.attempt(line)
        assert [o.call for o in twin.fusion.trace] == [o.call for o in session.fusion.trace]
        fusion = pickle.loads(pickle.dumps(session.fusion))
        assert described(fusion) == described(session.fusion)
        kernel, _ = lowered_or_serial(session)
        if isinstance(kernel, str):
            continue
        fusion = pickle.loads(pickle.dumps(session.fusion))
        again = pickle.loads(pickle.dumps(kernel))
        assert texts(again) == texts(kernel) == texts(ln.lower(fusion))
        lowered_kernels += 1
        if seed % 4 == 0:
            assert str(ln.verify(again)) == str(ln.verify(kernel))
    assert lowered_kernels > 3
