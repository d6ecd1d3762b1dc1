"""Passes that other passes need, and the attributes of graphs that they provide."""

import re

import pytest

import loopnest.graph as G
from graph import published
from graph.toy_passes import Recorder, graph, ran, toy

pytestmark = pytest.mark.usefixtures("clean_catalog")

# Requirements


def test_required_passes_run_first():
    G.register_pass("A", lambda graph: graph)
    G.register_pass("B", lambda graph: graph, required=["A"], opt_level=3)
    last = toy("C", required=["B", "A"])
    assert ran([last], opt_level=0) == ["A", "B", "A", "C"]
    recorder = Recorder()
    with G.PassContext(instruments=[recorder]):
        last(graph())
    assert recorder.names == ["A", "B", "A", "C"]


def test_a_required_pass_that_is_disabled_or_unknown():
    needs = toy("Needs", required=["FoldConstant"])
    message = (
        "pass Needs requires FoldConstant: FoldConstant is disabled; take it out of disabled_pass"
    )
    for call in (needs, G.Sequential([needs])):
        with (
            G.PassContext(disabled_pass=["FoldConstant"]),
            pytest.raises(G.GraphError, match=f"^{re.escape(message)}$"),
        ):
            call(graph())
    message = "pass Needs requires Foldconstant: no such pass is registered; did you mean FoldCons"
    with pytest.raises(G.GraphError, match=re.escape(message)):
        toy("Needs", required=["Foldconstant"])(graph())


def test_a_circle_of_requirements():
    G.register_pass("A", lambda graph: graph, required=["B"])
    G.register_pass("B", lambda graph: graph, required=["A"])
    message = "pass A: passes need each other in a circle: A -> B -> A"
    with pytest.raises(G.GraphError, match=f"^{re.escape(message)}$"):
        G.make_pass("A")(graph())


# Attributes of graphs: 002


@pytest.fixture
def nnvm_passes():
    """Register the three passes of 002; return the list of those that ran."""
    ran = []

    @G.register_pass("ToyFusion", provides=["groups"])
    def fusion(src):
        ran.append("ToyFusion")
        return src.with_attrs(groups={node: node.op for node in src.nodes})

    @G.register_pass("ToyCodeGen", depends=["groups"], provides=["toy_kernel"])
    def code_gen(src):
        ran.append("ToyCodeGen")
        return src.with_attrs(toy_kernel=sorted(src.attrs["groups"].values()))

    @G.register_pass("ToyRTCGen", depends=["toy_kernel"], provides=["toy_rtc"], changes_graph=False)
    def rtc_gen(src):
        ran.append("ToyRTCGen")
        return src.with_attrs(toy_rtc=" ".join(src.attrs["toy_kernel"]))

    return ran


def test_the_three_passes_of_nnvm(nnvm_passes):
    done = G.apply_passes(graph(), ["ToyFusion", "ToyCodeGen", "ToyRTCGen"])
    assert nnvm_passes == ["ToyFusion", "ToyCodeGen", "ToyRTCGen"]
    assert done.attrs["toy_rtc"] == "add const exp var"
    assert set(done.attrs) == {"groups", "toy_kernel", "toy_rtc"}


def test_a_pass_pulls_in_what_it_depends_on(nnvm_passes):
    done = G.apply_passes(graph(), "ToyRTCGen")
    assert nnvm_passes == ["ToyFusion", "ToyCodeGen", "ToyRTCGen"]
    G.apply_passes(done, ["ToyCodeGen"])  # what is there is not made again
    assert nnvm_passes[3:] == ["ToyCodeGen"]


def test_a_changed_graph_forgets_its_attributes(nnvm_passes):
    done = G.apply_passes(graph(), ["ToyCodeGen"])
    assert G.FoldConstant()(done) is done
    changed = done.with_outputs([G.neg(done.outputs[0])])
    assert not changed.attrs
    G.apply_passes(changed, ["ToyCodeGen"])
    assert nnvm_passes == ["ToyFusion", "ToyCodeGen", "ToyFusion", "ToyCodeGen"]


def test_dependencies_that_nobody_provides(nnvm_passes):
    with pytest.raises(G.GraphError) as caught:
        toy("Last", depends=["plan"])(graph())
    assert str(caught.value) == (
        "pass Last depends on the graph attribute 'plan': no registered pass provides it; "
        "register_pass(…, provides=['plan']) or graph.with_attrs(plan=…)"
    )
    message = "depends on the graph attribute 'groups': ToyFusion is disabled; take it out of di"
    with (
        G.PassContext(disabled_pass=["ToyFusion"]),
        pytest.raises(G.GraphError, match=re.escape(message)),
    ):
        G.apply_passes(graph(), ["ToyCodeGen"])


def test_a_second_provider_steps_in(nnvm_passes):
    G.register_pass("Other", lambda src: src.with_attrs(groups={}), provides=["groups"])
    with G.PassContext(disabled_pass=["ToyFusion"]):
        assert G.apply_passes(graph(), ["ToyCodeGen"]).attrs["toy_kernel"] == []


def test_apply_passes_minds_what_is_disabled_but_no_levels():
    g = published.worked_example_of_tvm(channels=2, size=4)
    with G.PassContext(opt_level=0):
        assert G.count_ops(G.apply_passes(g, ["EliminateCommonSubexpr"]))["add"] == 4
    with G.PassContext(opt_level=3, disabled_pass=["EliminateCommonSubexpr"]):
        assert G.apply_passes(g, ["EliminateCommonSubexpr"]) is g
    assert G.apply_passes(g, [G.FoldConstant()]) is not g
    with pytest.raises(G.GraphError, match=r"^pass Nope: no such pass is registered; there are: "):
        G.apply_passes(g, ["Nope"])


def test_promises_are_checked():
    with pytest.raises(G.GraphError) as caught:
        toy("Idle", provides=["plan"])(graph())
    assert str(caught.value) == (
        "pass Idle on graph main: it says that it provides 'plan', the graph that it returned has "
        "none; return graph.with_attrs(plan=…)"
    )

    @G.function_pass(changes_graph=False)
    def sneaky(func, mod, ctx):
        return func.with_outputs([G.neg(x) for x in func.outputs])

    message = "pass sneaky on graph main: it says that it does not change the graph, but it did"
    with pytest.raises(G.GraphError, match=re.escape(message)):
        sneaky(graph())


def test_registering():
    G.register_pass("Mine", lambda graph: graph)
    message = "register_pass('Mine'): there is such a pass already; pass override=True to replace"
    with pytest.raises(G.GraphError, match=re.escape(message)):
        G.register_pass("Mine", lambda graph: graph)
    G.register_pass("Mine", G.FoldConstant, override=True)
    assert isinstance(G.make_pass("Mine"), G.FoldConstant)
    with pytest.raises(G.GraphError, match=r"register_pass\('Bad'\): an int is no pass"):
        G.register_pass("Bad", 3)
    assert {"FoldConstant", "PrintIR", "AutoInline"} <= set(G.pass_names())
