"""Arguments of every kind, for every public function: a result, or a GraphError that names them."""

import contextlib
import inspect

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loopnest as ln
import loopnest.graph as G
from loopnest.graph.registry import unregister_op

X, INDEX = G.var("x", (4, 3)), G.var("i", (3,), "int32")
IMAGE, KERNEL = G.var("image", (1, 2, 4, 4)), G.var("kernel", (2, 2, 3, 3))
INPUTS = [X, INDEX, IMAGE, KERNEL]
FEEDS = {x.name: np.ones(x.shape, x.dtype.numpy) for x in INPUTS}
EMPTY, PAIR = G.const(np.zeros((0, 3), np.float32)), G.make_tuple(X, INDEX)
STATE, GRAPH = G.Variable(np.zeros(3), "s"), G.Graph([X], [G.exp(X)])
GOOD = [*INPUTS, EMPTY, PAIR, STATE, GRAPH]
NUMBERS = [
    True,
    0,
    1,
    -1,
    2,
    10**30,
    0.5,
    float("nan"),
    float("inf"),
    1j,
    np.float32(1),
    np.int64(1),
]
TEXTS = ["x", "NCHW", "OIHW", "float32", "", "none", "FuseOps", b"x"]
LISTS = [
    (), (0,), (1, -1), [0, 1], (0.5,), ("a",), (None,), ((1, 1), (0, 2)), ((1,),), [[1, 2], [3]],
    [X, INDEX], (X,), [X, None], ["FuseOps"], {}, {"x": 1}, {1: 2}, set(), range(3),
]  # fmt: skip
ARRAYS = [np.zeros(3), np.array(["a"]), np.zeros((2, 2), object), np.array(1j)]
OTHERS = [None, Ellipsis, slice(None), object(), int, np.float16, ln.float16, len, G.FuseOps()]
JUNK = [*GOOD, *NUMBERS, *TEXTS, *LISTS, *ARRAYS, *OTHERS]

NOT_CALLED = {"rewrite"}  # calls what it is given
REGISTRIES = [name for name in G.__all__ if "register" in name]
FUNCTIONS = [
    name
    for name in G.__all__
    if name[0].islower() and name not in NOT_CALLED and name not in REGISTRIES and name != "show"
]


@st.composite
def calls(draw):
    """A function, and arguments as many as it takes."""
    name = draw(st.sampled_from(FUNCTIONS))
    arguments = []
    for parameter in inspect.signature(getattr(G, name)).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments += draw(st.lists(st.sampled_from(JUNK), max_size=3))
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            if parameter.default is not parameter.empty and draw(st.booleans()):
                break
            likely = GOOD if not arguments and draw(st.booleans()) else JUNK
            arguments.append(draw(st.sampled_from(likely)))
    return name, arguments


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls())
def test_every_public_function(call):
    name, arguments = call
    refusal: ln.LoopnestError | None = None
    try:
        made = getattr(G, name)(*arguments)
        if isinstance(made, G.Node):
            assert repr(made)
            graph = G.Graph(INPUTS, [made])
            assert str(graph)
            G.evaluate(graph, FEEDS)
    except ln.LoopnestError as error:
        refusal = error
    except MemoryError:
        pass
    # An unknown target is what it is for a kernel.
    expected = (G.GraphError, ln.CompileError) if name == "compile" else G.GraphError
    assert refusal is None or isinstance(refusal, expected)


MATRIX = np.ones((4, 3), np.float32)
NAMED = [
    (lambda: G.evaluate(GRAPH, MATRIX, MATRIX),
     "evaluate(main): the feeds are a ndarray; pass a mapping: {'x': …}"),
    (lambda: G.evaluate(GRAPH, {"x": MATRIX}, [1]),
     "evaluate(main): the state is a list; pass a dict of arrays by name"),
    (lambda: G.evaluate(X, {"x": MATRIX}), "evaluate(…): it was given a Node; pass a G.Graph"),
    (lambda: G.evaluate(GRAPH, {"x": [[1], [2, 3]]}), None),
    (lambda: X[np.array([0, 1])],
     "x[<array int64[2]>]: <array int64[2]> is no place; use integers, forward slices, None, ..."),
    (lambda: X[np.array([0, 1]), 0], None),
    (lambda: X[0.5:1],
     "x[slice(0.5, 1, None)]: slice(0.5, 1, None) is no place; use integers, forward slices, None, "
     "..."),
    (lambda: G.sum(X, 0.5),
     "sum(x: float32[4, 3], axis=0.5): the axis is a float; use integers, or None"),
    (lambda: G.pad(X, 3),
     "pad(x: float32[4, 3], 3): an argument is not what it takes: 'int' object is not iterable; "
     "write pad(x, widths, value=0)"),
    (lambda: G.function_pass(opt_level=1)(lambda: None),
     "pass <lambda>: <lambda>() does not take its arguments: too many positional arguments; it is "
     "called with (func, mod, ctx)"),
    (lambda: G.Sequential("FuseOps"), "sequential: the passes are a str; pass a list"),
    (lambda: G.Graph(None, [X]), "Graph(inputs=…): inputs is a NoneType; pass a list of nodes"),
    (lambda: G.Graph([X], X), "Graph(outputs=…): outputs is x; pass a list of nodes"),
    (lambda: G.gradient(X, X),
     "gradient(xs=<x: float32[4, 3]>): xs is a node; pass a list of nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), NAMED)
def test_what_was_wrong_is_named(call, message):
    with pytest.raises(G.GraphError) as found:
        call()
    if message is not None:
        assert str(found.value) == message


def test_integers_of_numpy_are_places():
    assert X[np.int64(1)].shape == (3,)
    assert X[np.int64(0) : np.int64(2)].shape == (2, 3)


def test_an_op_that_fails_is_named():
    def broken(node, x):
        raise ValueError("no luck")

    G.register_op("broken", infer=lambda types, attrs: types[0], evaluate=broken, arity=1)
    try:
        graph = G.Graph([X], [G.call("broken", [X])])
        with pytest.raises(G.GraphError) as found:
            G.evaluate(graph, {"x": MATRIX})
        assert str(found.value) == (
            "broken(x): its op could not compute it: no luck; it is float32[4, 3]"
        )
    finally:
        unregister_op("broken")


def test_a_pass_of_a_wrong_signature_is_named_when_it_runs():
    class Lazy(G.FunctionPass):
        info = G.PassInfo("Lazy")

        def transform_function(self, func):
            return func

    with pytest.raises(G.GraphError) as found:
        Lazy()(GRAPH)
    assert str(found.value) == (
        "pass Lazy: transform_function(func) does not take its arguments: too many positional "
        "arguments; it is called with (func, mod, ctx)"
    )


MADE = {
    "register_op": lambda j: G.register_op(j, infer=len, evaluate=len),
    "register_op, infer": lambda j: G.register_op("junk", infer=j, evaluate=j),
    "register_attr": lambda j: G.register_attr(j, "junk", 1),
    "register_attr, key": lambda j: G.register_attr("nothing", j, 1),
    "register_pass": lambda j: G.register_pass(j, len, override=True),
    "register_option": lambda j: G.register_option(j, None),
    "unregister_pass": G.unregister_pass,
    "function_pass, name": lambda j: G.function_pass(name=j)(lambda func, mod, ctx: func),
    "function_pass, required": lambda j: G.function_pass(required=j)(lambda func, mod, ctx: func),
    **{
        f"PassContext, {key}": lambda j, key=key: G.PassContext(**{key: j})
        for key in ("opt_level", "required_pass", "disabled_pass", "config", "instruments")
    },
    "Target": G.Target,
    "Sequential": G.Sequential,
    "FuseOps": G.FuseOps,
    "Distribute": lambda j: G.Distribute(identity=j),
    "SameValues": G.SameValues,
    "Module": lambda j: G.Module([GRAPH])[j],
    "with_outputs": GRAPH.with_outputs,
    "find": GRAPH.find,
    "a pass": lambda j: G.FoldConstant()(j),
    "a sum": lambda j: X + j,
    "a reflected sum": lambda j: j + X,
}
_HARMLESS = [j for j in JUNK if not isinstance(j, str)]


@pytest.mark.parametrize("name", MADE)
def test_passes_contexts_and_registries(name):
    before = set(G.op_names()), set(G.pass_names())
    for junk in _HARMLESS:
        with contextlib.suppress(G.GraphError):
            MADE[name](junk)
    for op in set(G.op_names()) - before[0]:
        unregister_op(op)
    assert set(G.pass_names()) == before[1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((True, 2), "axis=True is no axis; it has 2 axes"),
        ((2, 2), "axis=2 is no axis; it has 2 axes"),
        ((1, X), "size=<x: float32[4, 3]>; an integer >= 1"),
        ((1, 2.0), "size=2.0; an integer >= 1"),
        ((1, 2, 0), "stride=0; an integer >= 1"),
        ((1, 2, 1, "a"), "dilation='a'; an integer >= 1"),
    ],
)
def test_windows_of_no_number(arguments, reason):
    with pytest.raises(G.GraphError) as raised:
        G.unfold(X, *arguments)
    assert str(raised.value).endswith(reason)
