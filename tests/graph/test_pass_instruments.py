"""Instruments: PrintIR, timing, well-formedness, equality of values, and users' own."""

import io
import re

import numpy as np
import pytest

import loopnest.graph as G
from graph import published
from loopnest.graph.node import Node, TensorType

X = G.var("x", (3,), "float64")


def graph():
    return G.Graph([X], [G.exp(X) + (G.const(1.0, "float64") + 1.0)])


def changing(make):
    """Return a pass of what it makes of the outputs."""

    @G.function_pass(name="change")
    def change(func, mod, ctx):
        return func.with_outputs([make(x) for x in func.outputs])

    return change


def test_print_ir_in_the_middle_of_a_sequential(capsys):
    """004: the graph as FoldConstant leaves it is printed, then deduplicated."""
    g = published.worked_example_of_tvm(channels=2, size=4)
    with G.PassContext(opt_level=3):
        done = G.Sequential([G.FoldConstant(), G.PrintIR(), G.EliminateCommonSubexpr()])(g)
    folded = G.to_text(G.FoldConstant()(g), constants=False)
    assert capsys.readouterr().out == folded + "\n"
    assert G.count_ops(done) == {"add": 3, "conv2d": 1}


def test_print_ir_as_an_instrument():
    file = io.StringIO()
    with G.PassContext(opt_level=3, instruments=[G.PrintIR(file=file, after=True)]):
        G.Sequential([G.FoldConstant(), G.PrintIR("here:", file)])(graph())
    assert (
        file.getvalue()
        == """\
Running pass: FoldConstant (opt_level 2)
# loopnest graph 1
graph main(x: float64[3]) {
  %0: float64[3] = exp(x)
  %1: float64[] = add(1.0:float64, 1.0:float64)
  %2: float64[3] = add(%0, %1)
  return %2
}
After pass: FoldConstant (opt_level 2)
# loopnest graph 1
graph main(x: float64[3]) {
  %0: float64[3] = exp(x)
  %1: float64[3] = add(%0, 2.0:float64)
  return %1
}
here:
# loopnest graph 1
graph main(x: float64[3]) {
  %0: float64[3] = exp(x)
  %1: float64[3] = add(%0, 2.0:float64)
  return %1
}
"""
    )


def test_the_seeds_instrument(capsys):
    """004: a decorated class that prints the name of the pass and the graph before it."""

    @G.pass_instrument
    class PrintIR:
        def run_before_pass(self, mod, info):
            print(f"Running pass: {info}")
            print(mod)

    with G.PassContext(opt_level=3, instruments=[PrintIR()]), G.Target("llvm"):
        G.Sequential([G.FoldConstant(), G.EliminateCommonSubexpr()])(graph())
    out = capsys.readouterr().out
    assert re.findall("Running pass: (.*)", out) == [
        "FoldConstant (opt_level 2)",
        "EliminateCommonSubexpr (opt_level 3)",
    ]
    assert out.count("graph main(") == 2


def test_a_tracing_function():
    """004: a function of the graph, the facts of the pass, and whether it is before."""
    calls = []
    with G.PassContext(instruments=[lambda mod, info, before: calls.append((info.name, before))]):
        G.Sequential([G.FoldConstant(), G.SimplifyExpr()])(graph())
    assert calls == [
        ("FoldConstant", True),
        ("FoldConstant", False),
        ("SimplifyExpr", True),
        ("SimplifyExpr", False),
    ]


def test_instruments_know_the_context_and_may_skip_passes():
    class Life:
        def __init__(self):
            self.events = []

        def enter_pass_ctx(self):
            self.events.append("enter")

        def exit_pass_ctx(self):
            self.events.append("exit")

        def should_run(self, mod, info):
            return info.name != "FoldConstant"

        def run_before_pass(self, mod, info):
            self.events.append(info.name)

    life = Life()
    g = graph()
    with pytest.raises(KeyError), G.PassContext(instruments=[life]):  # noqa: PT012
        assert G.Sequential([G.FoldConstant(), G.SimplifyExpr()])(g) is g
        raise KeyError
    assert life.events == ["enter", "SimplifyExpr", "exit"]


def test_an_instrument_that_fails_to_enter_closes_the_others():
    events = []

    class Good:
        def enter_pass_ctx(self):
            events.append("enter")

        def exit_pass_ctx(self):
            events.append("exit")

    class Bad:
        def enter_pass_ctx(self):
            raise ValueError("closed")

    context = G.PassContext(opt_level=3, instruments=[Good(), Bad()])
    with pytest.raises(ValueError, match="closed"), context:
        raise AssertionError
    assert events == ["enter", "exit"]
    assert G.PassContext.current().opt_level == 2


def test_what_is_no_instrument():
    with pytest.raises(G.GraphError, match="it is no instrument; give an object with run_before_p"):
        G.PassContext(instruments=[3])
    with pytest.raises(G.GraphError, match=re.escape("pass_instrument(Empty): it has no hook")):

        @G.pass_instrument
        class Empty:
            pass


def test_timing():
    timing = G.PassTiming()
    with G.PassContext(instruments=[timing]):
        G.Sequential([G.FoldConstant(), G.SimplifyExpr()])(graph())
        with pytest.raises(ZeroDivisionError):
            changing(lambda x: 1 // 0)(graph())
    assert [(run.name, run.before, run.after) for run in timing.profiles] == [
        ("FoldConstant", 6, 4),
        ("SimplifyExpr", 4, 4),
    ]
    assert all(run.seconds >= 0 for run in timing.profiles)
    lines = timing.render().splitlines()
    assert re.fullmatch(r"FoldConstant +\d+\.\d{3} ms  6 -> 4 nodes", lines[0])
    assert re.fullmatch(r"total +\d+\.\d{3} ms", lines[-1])


def test_well_formed_looks_before_passes_too():
    wrong = Node("exp", (X,), {}, TensorType((4,), X.dtype), "wrong")
    with (
        G.PassContext(instruments=[G.WellFormed()]),
        pytest.raises(
            G.GraphError, match=r"^before pass FoldConstant, graph main, node wrong: its"
        ),
    ):
        G.FoldConstant()(G.Graph([X], [wrong]))
    with G.PassContext(instruments=[G.WellFormed()]):
        G.FoldConstant()(graph())


def test_same_values_accepts_rounding():
    with G.PassContext(instruments=[G.SameValues()]):
        changing(lambda x: x * 3.0 / 3.0)(graph())
    with (
        G.PassContext(instruments=[G.SameValues(tolerance=0)]),
        pytest.raises(G.GraphError, match="has other values than before: "),
    ):
        changing(lambda x: x + 1e-12)(graph())


def test_same_values_names_the_output_and_the_difference():
    with (
        G.PassContext(instruments=[G.SameValues(seed=5)]),
        pytest.raises(G.GraphError) as caught,
    ):
        changing(lambda x: x * 1.5)(graph())
    found = re.fullmatch(
        r"pass change on graph main: output 0 \(mul\(add\(…\), 1.5\)\) has other values than "
        r"before: 3 of 3; at \[0\] (.*) became (.*); SameValues\(seed=5\) shows it again",
        str(caught.value),
    )
    assert found is not None
    assert float(found[2]) == pytest.approx(1.5 * float(found[1]))


def test_same_values_names_the_difference_of_an_output_without_axes():
    message = (
        "pass change on graph main: output 0 (add(mul(…), 1.0)) has other values than before: "
        "1 of 1; at [] 4.0 became 5.0; SameValues(seed=0) shows it again"
    )
    x = G.var("x", (), "float64")
    feeds = {"x": np.array(2.0)}
    with (
        G.PassContext(instruments=[G.SameValues(feeds=lambda graph, random: feeds)]),
        pytest.raises(G.GraphError, match=f"^{re.escape(message)}$"),
    ):
        changing(lambda x: x + 1.0)(G.Graph([x], [x * x]))


def test_same_values_sees_another_signature():
    with (
        G.PassContext(instruments=[G.SameValues()]),
        pytest.raises(G.GraphError, match=re.escape("the outputs were (float64[3]), they are (fl")),
    ):
        changing(G.sum)(graph())


def test_same_values_sees_state():
    state = G.Variable(np.zeros(3), "state")
    g = G.Graph([X], [G.assign(state, X)])

    @G.function_pass(name="drop")
    def drop(func, mod, ctx):
        return func.with_outputs([func.outputs[0].inputs[1]])

    message = "pass drop on graph main: another set of variables is assigned: ['state']"
    with (
        G.PassContext(instruments=[G.SameValues()]),
        pytest.raises(G.GraphError, match=re.escape(message)),
    ):
        drop(g)


def test_same_values_takes_inputs_and_nan_for_nan():
    instrument = G.SameValues(feeds=lambda graph, random: {"x": -np.ones(3)})
    g = G.Graph([X], [G.log(X)])
    with G.PassContext(instruments=[instrument]):
        changing(lambda x: x + 0.0)(g)
    with (
        G.PassContext(instruments=[instrument]),
        pytest.raises(G.GraphError, match="nan became"),
    ):
        changing(lambda x: G.where(G.isnan(x), 0.0, x))(g)


def test_same_values_gives_each_pass_fresh_inputs_but_every_run_the_same():
    seen = []

    def feeds(graph, random):
        seen.append(random.uniform())
        return {"x": np.zeros(3)}

    with G.PassContext(instruments=[G.SameValues(feeds=feeds)]) as context:
        changing(lambda x: x + 0.0)(graph())
        changing(lambda x: x + 0.0)(graph())
    with context:
        changing(lambda x: x + 0.0)(graph())
    assert seen[0] != seen[1]
    assert seen[2] == seen[0]
