"""The infrastructure of passes: levels, contexts, requirements, graph attributes, errors."""

import re
import threading

import pytest

import loopnest.graph as G
from graph import published
from loopnest.graph.node import Node, TensorType

X = G.var("x", (3,), "float64")


@pytest.fixture(autouse=True)
def clean_catalog():
    """Forget the toy passes that a test registers."""
    before = set(G.pass_names())
    yield
    for name in set(G.pass_names()) - before:
        G.unregister_pass(name)


def graph():
    return G.Graph([X], [G.exp(X) + 1.0])


class Recorder:
    """An instrument by its hooks alone: what ran, in order."""

    def __init__(self):
        self.events = []

    def run_before_pass(self, mod, info):
        self.events.append(f"before {info.name}")

    def run_after_pass(self, mod, info):
        self.events.append(f"after {info.name}")

    def run_failed_pass(self, mod, info):
        self.events.append(f"failed {info.name}")

    @property
    def names(self):
        return [event.split()[1] for event in self.events if event.startswith("before")]


def toy(name, **facts):
    """Return a pass that does nothing."""

    @G.function_pass(name=name, **facts)
    def nothing(func, mod, ctx):
        return func

    return nothing


def ran(passes, **context):
    """Return the names of the passes that a Sequential runs."""
    recorder = Recorder()
    with G.PassContext(instruments=[recorder], **context):
        G.Sequential(passes)(graph())
    return recorder.names


# Decorators


def test_the_seeds_pipeline_class():
    """004: a class with `transform_function` and an ExprMutator; `.info.name` is its name."""

    @G.function_pass(opt_level=1)
    class CustomPipeline:
        """Multiply constants."""

        def __init__(self, multiplier):
            self.multiplier = multiplier

        def transform_function(self, func, mod, ctx):
            obj = self

            class ReplaceConstant(G.ExprMutator):
                def visit_constant(self, c):
                    return G.mul(obj.multiplier, c)

            return ReplaceConstant().visit(func)

    g = published.worked_example_of_tvm(channels=4, size=6)
    custom = CustomPipeline(multiplier=G.const(3, "float32"))
    assert custom.info.name == "CustomPipeline"
    assert (custom.info.opt_level, custom.info.required) == (1, ())
    assert isinstance(custom, CustomPipeline)
    assert isinstance(custom, G.FunctionPass)
    assert CustomPipeline.__doc__ == "Multiply constants."
    assert (
        G.to_text(custom(g), constants=False)
        == """\
# loopnest graph 1
graph main(x: float32[1, 4, 6, 6], weight: float32[4, 4, 3, 3]) {
  %0: float32[1, 4, 4, 4] = conv2d(x, weight)
  %1: float32[] = const 3.0
  %2: float32[1, 4, 4, 4] = const $0
  %3: float32[1, 4, 4, 4] = mul(%1, %2)
  %4: float32[1, 4, 4, 4] = add(%3, %3)
  %5: float32[] = mul(%1, 2.0:float32)
  %6: float32[1, 4, 4, 4] = mul(%4, %5)
  %7: float32[1, 4, 4, 4] = add(%0, %6)
  %8: float32[1, 4, 4, 4] = add(%7, %3)
  %9: float32[1, 4, 4, 4] = add(%7, %3)
  %10: float32[1, 4, 4, 4] = add(%8, %9)
  return %10
}"""
    )


def test_functions_as_passes():
    @G.function_pass
    def plain(func, mod, ctx):
        return func

    @G.function_pass(opt_level=3, name="Named", required=["FoldConstant"])
    def negate(func, mod, ctx):
        return func.with_outputs([G.neg(x) for x in func.outputs])

    assert plain.info == G.PassInfo("plain", 0)
    assert str(negate.info) == "Named (opt_level 3; requires FoldConstant)"
    assert repr(negate) == "<pass Named (opt_level 3; requires FoldConstant)>"
    assert negate(graph()).outputs[0].op == "neg"
    assert plain(g := graph()) is g


def test_a_module_pass_sees_what_it_was_called_on():
    seen = []

    @G.module_pass(opt_level=1)
    class Look:
        def transform_module(self, mod, ctx):
            seen.append(mod)
            return mod

    g = graph()
    module = G.Module([g])
    assert Look()(g) is g
    assert Look()(module) is module
    assert seen == [g, module]


def test_a_function_pass_maps_over_a_module():
    forward = G.Graph([X], [X + 0.0], "forward")
    backward = G.Graph([X], [G.exp(X)], "backward")
    module = G.Module([forward, backward])
    seen = []

    @G.function_pass
    def look(func, mod, ctx):
        seen.append((func.name, mod is module))
        return func

    assert look(module) is module
    assert seen == [("forward", True), ("backward", True)]
    simpler = G.SimplifyExpr()(module)
    assert simpler["forward"].outputs == (X,)
    assert simpler["backward"] is backward
    assert len(simpler) == 2
    assert str(module).count("graph ") == 4  # two headers, two graphs


def test_modules_that_are_none():
    message = "Module(…): two graphs are called main"
    with pytest.raises(G.GraphError, match=f"^{re.escape(message)}$"):
        G.Module([graph(), graph()])
    with pytest.raises(G.GraphError, match=re.escape("it was given a Node")):
        G.Module([X])
    message = "Module['other']: there is no such graph; it has: main"
    with pytest.raises(G.GraphError, match=re.escape(message)):
        G.Module([graph()])["other"]


def test_decorators_refuse_what_is_no_pass():
    with pytest.raises(G.GraphError, match="pass Empty: the class has no transform_function"):

        @G.function_pass(opt_level=1)
        class Empty:
            pass

    with pytest.raises(G.GraphError, match="there is no fact 'optlevel'; it has name, opt_level"):
        G.function_pass(optlevel=1)(lambda func, mod, ctx: func)
    with pytest.raises(G.GraphError, match=r"required='A' is no list; write \['A'\]"):
        G.function_pass(required="A")(lambda func, mod, ctx: func)


# Levels and contexts


def test_a_sequential_minds_levels_a_direct_call_does_not():
    passes = [toy(f"P{level}", opt_level=level) for level in range(4)]
    assert ran(passes) == ["P0", "P1", "P2"]
    assert ran(passes, opt_level=0) == ["P0"]
    assert ran(passes, opt_level=3) == ["P0", "P1", "P2", "P3"]
    assert ran(passes, required_pass=["P3"], opt_level=1) == ["P0", "P1", "P3"]
    assert ran(passes, opt_level=3, disabled_pass=["P1", "P2"]) == ["P0", "P3"]
    recorder = Recorder()
    with G.PassContext(opt_level=0, disabled_pass=["P3"], instruments=[recorder]):
        passes[3](graph())
    assert recorder.names == ["P3"]


def test_sequentials_nest_and_take_names():
    inner = G.Sequential([toy("A"), toy("B", opt_level=3)], opt_level=2, name="inner")
    assert ran([inner, "FoldConstant"]) == ["A", "FoldConstant"]
    assert ran([inner, "FoldConstant"], opt_level=1) == []
    assert ran([inner], opt_level=3) == ["A", "B"]
    assert ran([inner], opt_level=3, disabled_pass=["inner"]) == []
    assert ran([]) == []


def test_contexts_nest_and_are_left_by_errors():
    assert G.PassContext.current().opt_level == 2
    outer = G.PassContext(opt_level=1)
    with outer, G.PassContext(opt_level=3), outer:
        assert G.PassContext.current() is outer
    with pytest.raises(ZeroDivisionError), outer:
        _ = 1 / 0
    assert G.PassContext.current().opt_level == 2
    assert repr(G.PassContext(3, disabled_pass=["FoldConstant"])) == (
        "PassContext(opt_level=3, disabled_pass=['FoldConstant'])"
    )


def test_contexts_belong_to_their_thread():
    seen = []
    with G.PassContext(opt_level=3), G.Target("c"):
        thread = threading.Thread(
            target=lambda: seen.append((G.PassContext.current().opt_level, G.Target.current()))
        )
        thread.start()
        thread.join()
    assert seen == [(2, None)]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"disabled_pass": ["FoldConstants"]},
            "PassContext(disabled_pass=…): there is no pass FoldConstants; "
            "did you mean FoldConstant?",
        ),
        (
            {"required_pass": "FoldConstant"},
            "PassContext(required_pass=…): 'FoldConstant' is a string; write ['FoldConstant']",
        ),
        (
            {"required_pass": ["PrintIR"], "disabled_pass": ["PrintIR"]},
            "PassContext(…): PrintIR is both required and disabled",
        ),
        ({"opt_level": "3"}, "PassContext(opt_level='3'): it is no integer"),
        (
            {"config": {"SimplifyExpr.reasociate": True}},
            "PassContext(config={'SimplifyExpr.reasociate': True}): there is no such option; "
            "there are: SimplifyExpr.reassociate",
        ),
        (
            {"config": {"FoldConstant.max_bytes": True}},
            "PassContext(config={'FoldConstant.max_bytes': True}): the value is a bool; "
            "bytes that a folded constant may have where its operands have less",
        ),
    ],
)
def test_contexts_refuse(keywords, message):
    with pytest.raises(G.GraphError, match=f"^{re.escape(message)}$"):
        G.PassContext(**keywords)


def test_options():
    seen = []
    G.register_option("toy.depth", 4, doc="how deep")

    @G.function_pass
    def look(func, mod, ctx):
        seen.append(ctx.option("toy.depth"))
        seen.append(ctx.config.get("mine.anything"))
        return func

    look(graph())
    with G.PassContext(config={"toy.depth": 7, "mine.anything": "x"}):
        look(graph())
    assert seen == [4, None, 7, "x"]
    with pytest.raises(G.GraphError, match=re.escape("option('toy.width'): there is no such")):
        G.PassContext().option("toy.width")


def test_targets():
    assert G.Target.current() is None
    with G.Target("cuda -arch=sm_90 -x=y") as target:
        assert G.Target.current() is target
        assert (target.kind, target.device, dict(target.options)) == (
            "cuda",
            "gpu",
            {"arch": "sm_90", "x": "y"},
        )
        with G.Target("llvm"):
            assert G.Target.current().device == "cpu"
        assert G.Target.current() is target
    for bad in ("tpu", "", "cuda arch", 3):
        with pytest.raises(G.GraphError, match="there is no such target; write one of llvm, c, in"):
            G.Target(bad)


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


# What passes return


def returning(result):
    @G.function_pass
    def bad(func, mod, ctx):
        return result(func)

    return bad


def test_an_ill_formed_result_names_the_pass_and_the_node():
    wrong = Node("exp", (X,), {}, TensorType((4,), X.dtype), "wrong")
    g = graph()
    with pytest.raises(G.GraphError) as caught:
        returning(lambda func: G.Graph([X], [wrong]))(g)
    assert str(caught.value) == (
        "pass bad returned an ill-formed graph: graph main, node wrong: its type is float64[4], "
        "inference gives float64[3]; use G.call"
    )
    assert caught.value.__notes__ == ["in pass bad on graph main"]
    assert str(g) == str(graph())


def test_a_var_that_is_no_input():
    y = G.var("y", (3,), "float64")
    with pytest.raises(G.GraphError) as caught:
        returning(lambda func: func.with_outputs([y + func.outputs[0]]))(graph())
    assert "the var y is reached but is no input" in str(caught.value)
    assert caught.value.__notes__ == ["in pass bad on graph main"]


@pytest.mark.parametrize(("result", "kind"), [(None, "a NoneType"), (X, "a Node"), (3, "an int")])
def test_a_result_that_is_no_graph(result, kind):
    message = f"pass bad on graph main: the pass returned {kind}; it must return"
    with pytest.raises(G.GraphError, match=re.escape(message)):
        returning(lambda func: result)(graph())


def test_what_is_called_must_be_a_pass_on_a_graph():
    with pytest.raises(G.GraphError, match=re.escape("FoldConstant(…): it was given a Node; pass")):
        G.FoldConstant()(X)
    with pytest.raises(G.GraphError, match=r"sequential: FoldConstant is a class; write FoldConst"):
        G.Sequential([G.FoldConstant])
    with pytest.raises(G.GraphError, match=r"sequential: an int is no pass; use G.function_pass"):
        G.Sequential([3])
    with pytest.raises(G.GraphError, match="pass Nope: no such pass is registered"):
        G.Sequential(["Nope"])


def test_a_failing_pass_leaves_the_graph_and_the_context():
    g = graph()
    text, outputs = str(g), g.outputs
    recorder = Recorder()

    @G.function_pass
    def fail(func, mod, ctx):
        raise ValueError("no")

    with (
        G.PassContext(instruments=[recorder]),
        pytest.raises(ValueError, match="no") as caught,
    ):
        G.Sequential([G.FoldConstant(), fail])(g)
    assert caught.value.__notes__ == ["in pass fail on graph main"]
    assert recorder.events[-2:] == ["before fail", "failed fail"]
    assert (str(g), g.outputs) == (text, outputs)
