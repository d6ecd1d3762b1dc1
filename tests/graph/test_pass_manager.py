"""The infrastructure of passes: levels, contexts, decorators, what passes return."""

import re
import threading

import pytest

import loopnest.graph as G
from graph import published
from graph.toy_passes import Recorder, X, graph, ran, toy
from loopnest.graph.node import Node, TensorType

pytestmark = pytest.mark.usefixtures("clean_catalog")

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
