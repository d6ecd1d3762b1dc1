"""Nodes, leaves, graphs and the registry: what they promise, and what they refuse."""

import pickle
import weakref

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from loopnest.graph.node_origins import place_of
from loopnest.graph.registry import REQUIRED, get_op, rebuild, unregister_op, with_attrs

TYPES = (
    "bool, int8, uint8, int16, uint16, int32, uint32, int64, float8_e4m3fn, float8_e5m2, float16, "
    "bfloat16, float32, float64"
)
X, W = G.var("x", (4, 3)), G.var("w", (3, 2))


def message(build):
    with pytest.raises(G.GraphError) as found:
        build()
    return str(found.value)


def test_a_small_graph_has_what_the_reference_says():
    x = G.var("x", (64, 32), "float32")
    y = G.exp(x)
    assert (y.op, y.inputs, dict(y.attrs), y.shape) == ("exp", (x,), {}, (64, 32))
    assert y.dtype is ln.float32
    g = G.Graph(inputs=[x], outputs=[G.sum(y, 1, keepdims=True)], name="main")
    assert [node.op for node in g.nodes] == ["var", "exp", "sum"]
    assert g.functions == ()
    (value,) = G.evaluate(g, {"x": np.zeros((64, 32), np.float32)})
    assert value.tolist() == [[32.0]] * 64
    assert G.count_ops(g) == {"exp": 1, "sum": 1}
    assert issubclass(G.GraphError, ln.LoopnestError)


def test_nodes_are_immutable_and_equal_by_identity():
    y = X + 1.0
    for change in (
        lambda: setattr(y, "op", "sub"),
        lambda: y.attrs.update(a=1),
        lambda: setattr(y, "extra", 1),
    ):
        with pytest.raises((AttributeError, TypeError)):
            change()
    assert y == y
    assert y != X + 1.0
    assert len({y, X + 1.0}) == 2


def test_a_constant_is_a_copy_that_nobody_writes_to():
    array = np.zeros(3)
    c = G.const(array)
    array[0] = 1
    assert c.value.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        c.value[0] = 1


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (True, None, "bool"),
        (1, None, "int32"),
        (1.5, None, "float32"),
        ([1, 2], None, "int32"),
        (np.float64(1), None, "float64"),
        (np.zeros(2), "bfloat16", "bfloat16"),
        (1, ln.float64, "float64"),
        (2, np.float16, "float16"),
        (2, bool, "bool"),
    ],
)
def test_types_of_constants(value, dtype, expected):
    assert str(G.const(value, dtype).dtype) == expected


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: G.var("a b", (2,)), "var('a b'): the name is not an identifier"),
        (
            lambda: G.var("a", (2, -1)),
            "var('a'): the shape is (2, -1); a shape is a tuple of integers >= 0 and names of "
            "sizes",
        ),
        (
            lambda: G.var("a", ("N N",)),
            "var('a'): 'N N' is no size; a size is a name, or + - * // % of names and ints",
        ),
        (
            lambda: G.var("a", ("float32", 2)),
            "var('a'): 'float32' cannot name a size; a size is a name, or + - * // % of names and "
            "ints",
        ),
        (
            lambda: G.var("a", (2,), "float8"),
            f"var('a'): there is no dtype 'float8'; use one of {TYPES}",
        ),
        (
            lambda: G.const("text"),
            f"const('text'): its dtype is <U4; use one of {TYPES}",
        ),
        (lambda: G.const(X), f"const({X!r}): the value is a node; pass an array or a number"),
        (
            lambda: G.const(1 << 40, "int32"),
            "const(1099511627776): it is no array: Python int too large to convert to C long",
        ),
        (lambda: X.value, "x: only a const and a variable hold a value"),
        (lambda: bool(X), "x: a node has no truth value; compare with `is`, or use G.where"),
        (lambda: list(X), "x: a tensor cannot be iterated over; slice it: x[0:1]"),
        (
            lambda: G.make_tuple(X).shape,
            "tuple(x): (float32[4, 3],) has no shape and no dtype; take a field: node[0]",
        ),
        (
            lambda: G.make_tuple(X)[1],
            "get_item(tuple(x): (float32[4, 3],), index=1): there is no field 1; the tuple has 1 "
            "fields",
        ),
        (
            lambda: G.get_item(X, 0),
            "get_item(x: float32[4, 3], index=0): float32[4, 3] is no tuple; slice a tensor by "
            "x[0:1]",
        ),
        (
            lambda: G.assign(X, X),
            "assign(x: float32[4, 3], x: float32[4, 3]): the first operand is no variable; make "
            "one by G.Variable",
        ),
        (
            lambda: G.assign(G.Variable(np.zeros(2), "s"), X),
            "assign(s: float64[2], x: float32[4, 3], variable='s'): the variable is float64[2], "
            "the value float32[4, 3]; they must agree",
        ),
        (
            lambda: G.Variable(G.exp(X), "s"),
            "graph closed: the var x is reached but is no input; its inputs are: none",
        ),
        (
            lambda: G.call("nothing", [X]),
            "nothing: there is no such op; G.op_names() lists all",
        ),
        (
            lambda: G.call("exp", [X, X]),
            "exp(x: float32[4, 3], x: float32[4, 3]): it takes 1 operands, here are 2",
        ),
        (
            lambda: G.call("exp", [X], {"fast": True}),
            "exp(x: float32[4, 3], fast=True): there is no attribute 'fast'; it takes no "
            "attributes",
        ),
        (
            lambda: G.call("transpose", [X]),
            "transpose(x: float32[4, 3]): the attribute 'axes' is missing",
        ),
        (
            lambda: G.call("exp", [3]),
            "exp(3): operand 0 is an int; use G.const",
        ),
    ],
)
def test_errors(build, expected):
    found = message(build)
    if "C long" in expected:  # NumPy's own words differ
        expected, found = expected[:30], found[:30]
    assert found == expected


def test_how_errors_call_a_node():
    assert str(X) == "x"
    assert str(G.exp(X + 1.0)) == "exp(add(…))"
    assert str(G.const(2.0)) == "2.0"
    assert str(G.const([1.0, 2.0])) == "const float32[2]"
    assert str(G.concatenate([X] * 5)) == "concatenate(x, x, x, x, …)"
    assert repr(G.make_tuple(X)) == "<tuple(x): (float32[4, 3],)>"


def test_a_variable_starts_with_a_closed_node():
    assert G.Variable(G.zeros((2,)) + 1.0, "s").value.tolist() == [1, 1]


def test_tuples_unpack():
    a, b = G.make_tuple(X, W)
    assert (a.op, a.attrs["index"], b.shape) == ("get_item", 0, (3, 2))
    assert G.make_tuple(X, W)[-1].attrs["index"] == 1


def test_operators():
    pairs = {
        "add": X + 1, "sub": 1 - X, "mul": X * X, "div": 2 / X, "mod": X % 2, "pow": 2**X,
        "matmul": X @ W, "neg": -X, "abs": abs(X), "lt": X < 1, "le": X <= 1, "gt": X > 1,
        "ge": X >= 1, "bitand": (X > 1) & True, "bitor": True | (X > 1), "invert": ~(X > 1),
    }  # fmt: skip
    assert {name: node.op for name, node in pairs.items()} == {name: name for name in pairs}
    assert (1 - X).inputs[1] is X


# The registry


@pytest.fixture
def toy():
    G.register_op(
        "toy",
        infer=lambda types, attrs: types[0],
        evaluate=lambda node, x: x * node.attrs["scale"] + node.attrs["shift"],
        arity=1,
        params={"scale": REQUIRED, "shift": 0},
        pattern=G.Pattern.ELEMWISE,
    )
    yield "toy"
    unregister_op("toy")


def test_a_registered_op_works_everywhere(toy):
    node = G.call(toy, [X], {"scale": 2.0})
    assert dict(node.attrs) == {"scale": 2.0, "shift": 0}
    graph = G.Graph([X], [node])
    assert G.structural_equal(G.parse(str(graph)), graph)
    assert "toy(x, scale=2.0)" in str(graph)
    (value,) = G.evaluate(graph, {"x": np.ones((4, 3))})
    assert value.tolist() == [[2.0] * 3] * 4
    assert with_attrs(node, shift=3).attrs["shift"] == 3
    assert rebuild(node, [X]) is node
    assert rebuild(node, [W]).shape == (3, 2)


def test_attributes_come_from_several_places(toy):
    G.register_attr(toy, "cost", 3)

    @G.register_attr((toy,), "lower")
    def lower(node):
        return node

    assert (G.get_attr(toy, "cost"), G.get_attr(toy, "lower")) == (3, lower)
    assert G.pattern_of(G.call(toy, [X], {"scale": 1.0})) is G.Pattern.ELEMWISE
    assert G.pattern_of(X) is G.Pattern.OPAQUE
    assert G.get_attr(toy, "layout", None) is None
    G.register_attr(toy, "cost", 4, override=True)
    assert G.get_attr(toy, "cost") == 4


def test_registry_errors(toy):
    assert message(lambda: G.get_attr(toy, "gradient")) == (
        "toy: op toy has no attribute 'gradient' (it has: pattern); register_attr('toy', "
        "'gradient', …) registers one"
    )
    node = G.call(toy, [X], {"scale": 1.0})
    assert message(lambda: G.get_attr(node, "layout")).startswith("toy(x): op toy has no attr")
    assert message(lambda: G.register_attr(toy, "pattern", 1)) == (
        "register_attr('toy', 'pattern'): it is registered already; pass override=True to replace "
        "it"
    )
    assert message(lambda: G.register_attr("nothing", "a", 1)) == (
        "nothing: there is no such op; G.op_names() lists all"
    )
    assert message(lambda: G.register_op(toy, infer=None, evaluate=None)) == (
        "register_op('toy'): there is such an op already; choose a name"
    )
    assert message(lambda: G.register_op("a b", infer=None, evaluate=None)) == (
        "register_op('a b'): the name is not an identifier"
    )


def test_patterns():
    assert [p.value for p in G.Pattern] == [0, 1, 2, 3, 4, 7, 8]
    assert G.Pattern.COMM_REDUCE is G.Pattern.REDUCTION
    for op, pattern in {
        "exp": "ELEMWISE", "add": "BROADCAST", "transpose": "INJECTIVE", "sum": "REDUCTION",
        "conv2d": "OUT_ELEMWISE_FUSABLE", "tuple": "TUPLE", "softmax": "OPAQUE",
    }.items():  # fmt: skip
        assert G.get_attr(op, "pattern") is G.Pattern[pattern]
    assert get_op("exp").arity == 1


# Graphs


def test_graph_errors():
    y = X @ W
    assert message(lambda: G.Graph([X], [y])) == (
        "graph main: the var w is reached but is no input; its inputs are: x"
    )
    assert message(lambda: G.Graph([X, X], [y])) == (
        "graph main: two inputs are called x; names are unique"
    )
    assert message(lambda: G.Graph([X, y], [y])) == (
        "graph main: the input matmul(x, w) is no var; make inputs by G.var"
    )
    assert (
        message(lambda: G.Graph([X], [1])) == "graph main: an output is an int; outputs are nodes"
    )
    assert message(lambda: G.Graph([X], [X], "a b")) == (
        "Graph(name='a b'): the name is not an identifier"
    )


def test_nodes_are_in_topological_order():
    a = X + 1.0
    g = G.Graph([W, X], [G.exp(a) * a, a])
    assert [str(n) for n in g.nodes] == ["w", "x", "1.0", "add(x, 1.0)", "exp(add(…))",
                                         "mul(exp(…), add(…))"]  # fmt: skip
    assert g.users[a] == (g.nodes[4], g.nodes[5])
    assert g.index[a] == 3
    assert repr(g) == "<graph main: 6 nodes -> float32[4, 3], float32[4, 3]>"


def test_graphs_are_immutable():
    g = G.Graph([X], [G.exp(X)])
    with pytest.raises(AttributeError, match="a graph does not change: name cannot be set"):
        g.name = "other"


def test_attributes_of_a_graph_are_dropped_by_a_change():
    g = G.Graph([X], [G.exp(X)])
    known = g.with_attrs(groups=3).with_attrs(more=4)
    assert dict(known.attrs) == {"groups": 3, "more": 4}
    assert known.nodes == g.nodes
    assert known.with_outputs(known.outputs) is known
    assert dict(known.with_outputs([X]).attrs) == {}


def test_a_fused_group():
    p = G.var("p", (4, 3))
    body = G.Graph([p], [G.exp(p), p + 1.0], "group")
    pair = G.call_graph(body, [X])
    g = G.Graph([X], [pair[0] * pair[1]])
    assert g.functions == (body,)
    assert g.calls == (pair,)
    assert G.body_of(pair) is body
    assert G.count_ops(g) == {"add": 1, "exp": 1, "get_item": 2, "mul": 1}
    assert message(lambda: G.body_of(X)) == "x: op var has no body"
    assert message(lambda: G.call_graph(body, [W])).endswith(
        ": operand 0 is float32[3, 2], p is float32[4, 3]"
    )
    assert message(lambda: G.call_graph(body, [])).endswith("group takes 1 operands, here are 0")
    assert message(lambda: G.call("fused", [X], {"body": 1})).endswith(
        "the body is an int; it must be a Graph"
    )


def test_errors_pickle():
    error = G.GraphError("a", "b", "c", 1, 2)
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.line, back.column) == ("a: b; c", 1, 2)


def test_the_core_does_not_load_the_graph_layer():
    import subprocess
    import sys

    code = "import loopnest, sys; print(any(m.startswith('loopnest.graph') for m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_constants_without_elements_have_a_name():
    empty = G.const(np.zeros((0, 3), np.float32))
    assert repr(empty + 1.0) == "<add(const float32[0, 3], 1.0): float32[0, 3]>"
    with pytest.raises(G.GraphError) as found:
        G.add(empty, G.var("y", (5,)))
    assert str(found.value) == (
        "add(const float32[0, 3]: float32[0, 3], y: float32[5]): the shapes [0, 3] and [5] do not "
        "broadcast together; equal extents or 1 fit"
    )


def test_ops_of_users_refuse_as_the_built_in_ones_do():
    def infer(types, attrs):
        raise G.Refused("it takes nothing", "leave it out")

    G.register_op("picky", infer=infer, evaluate=lambda node, x: x, arity=1)
    try:
        with pytest.raises(G.GraphError) as found:
            G.call("picky", [G.var("y", (5,))])
        assert str(found.value) == "picky(y: float32[5]): it takes nothing; leave it out"
    finally:
        unregister_op("picky")


def line_of(function):
    """Return the place of a function's second line."""
    return f" made at {__file__}:{function.__code__.co_firstlineno + 1}"


def test_errors_name_the_line_that_made_a_node():
    """Also where it was rewritten, derived or put at sizes since."""

    def model(x):
        return G.floor(x * 2.0)

    x = G.var("x", ("N",))
    y = model(x)
    with pytest.raises(G.GraphError) as found:
        G.gradient(G.sum(y), [x])
    assert str(found.value).startswith(f"gradient of floor(mul(…)){line_of(model)}: op floor is")
    at_sizes = G.bind(G.Graph([x], [y]), {"N": 3}).outputs[0]
    other = G.rewrite(G.Graph([x], [y]), lambda n: G.ceil(n.inputs[0]) if n.op == "floor" else n)
    for node in (y, at_sizes, other.outputs[0]):
        assert place_of(node) == line_of(model)

    def square(x):
        return G.exp(x)

    (slope,) = G.gradient(square(x), [x])
    assert place_of(slope) == line_of(square)


def test_weak_references_do_not_rest_on_the_dataclass():
    """Some versions of Python forget its `weakref_slot` under a generic class."""
    assert "__weakref__" not in vars(G.Node)
    assert weakref.ref(G.var("x", (3,)))
