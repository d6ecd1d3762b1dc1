"""The text of a graph, and its parser."""

import gc
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import loopnest.graph as G
from graph import published
from graph.random_graphs import samples
from loopnest.graph.printer import to_text

X, W = G.var("x", (4, 3)), G.var("w", (3, 2))


def everything():
    p = G.var("p", (4, 2))
    body = G.Graph([p], [p + 1.0, p * 2.0], "group")
    other = G.Graph([p], [-p], "group")
    pair = G.call_graph(body, [X @ W], name="pair")
    two = G.const(2.0)
    state = G.Variable(np.zeros(2), "s")
    return G.Graph(
        [X, W],
        [
            G.sum(pair[0], 0) * two + two,
            G.call_graph(other, [pair[1]]),
            G.group(G.assign(state, state + 1.0)),
            G.clamp(X, -1, float("inf")),
            G.const([[1.5, float("nan")]], "float16"),
            G.layout_transform(G.zeros((1, 4, 2, 2)), "NCHW", "NCHW4c"),
        ],
    )


TEXT = """\
# loopnest graph 1
graph main(x: float32[4, 3], w: float32[3, 2]) {
  def @group(p: float32[4, 2]) {
    %0: float32[4, 2] = add(p, 1.0:float32)
    %1: float32[4, 2] = mul(p, 2.0:float32)
    return %0, %1
  }
  def @group_1(p: float32[4, 2]) {
    %0: float32[4, 2] = neg(p)
    return %0
  }
  %0: float32[4, 2] = matmul(x, w)
  %pair: (float32[4, 2], float32[4, 2]) = @group(%0)
  %2: float32[4, 2] = get_item(%pair, index=0)
  %3: float32[2] = sum(%2, axis=(0,))
  %4: float32[] = const 2.0
  %5: float32[2] = mul(%3, %4)
  %6: float32[2] = add(%5, %4)
  %7: float32[4, 2] = get_item(%pair, index=1)
  %8: float32[4, 2] = @group_1(%7)
  %s: float64[2] = variable s [0.0, 0.0]
  %10: float64[2] = add(%s, 1.0:float64)
  %11: float64[2] = assign(%s, %10, variable="s")
  %12: (float64[2],) = group(%11)
  %13: float32[4, 3] = clamp(x, -1.0:float32, inf:float32)
  %14: float16[1, 2] = const [1.5, nan]
  %15: float32[1, 4, 2, 2] = full(shape=(1, 4, 2, 2), value=0.0, dtype=float32)
  %16: float32[1, 1, 2, 2, 4] = layout_transform(%15, src_layout="NCHW", dst_layout="NCHW4c")
  return %6, %8, %12, %13, %14, %16
}"""


def test_golden():
    assert str(everything()) == TEXT


def test_it_reads_back():
    graph = G.parse(TEXT)
    assert G.structural_equal(G.check(graph), everything())
    assert str(graph).replace("group_1", "group_1") == TEXT


def test_large_constants_stand_behind():
    values = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    turned = np.ascontiguousarray(values.T[:3])
    graph = G.Graph([X], [X @ G.const(turned), G.const(values), G.const(values)])
    text = str(graph)
    lines = text.splitlines()
    assert [line[:6] for line in lines[-2:]] == ['$0 = "', '$1 = "']
    assert lines[2] == "  %0: float32[3, 30] = const $0"
    again = G.parse(text)
    np.testing.assert_array_equal(again.nodes[1].value, turned)
    assert G.structural_equal(again, graph)
    assert to_text(graph, constants=False).endswith("}")


@settings(deadline=None)
@given(
    st.sampled_from(["bool", "int32", "int64", "float16", "float32", "float64"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
    )
)
def test_constants_are_exact(array):
    graph = G.Graph([], [G.const(array), G.const(array) if array.ndim else G.exp(G.const(array))])
    again = G.parse(str(graph))
    assert again.nodes[0].value.tobytes() == array.tobytes()
    assert G.structural_equal(again, graph)


def test_bfloat16():
    graph = G.Graph([], [G.const(np.linspace(0, 1, 9), "bfloat16")])
    assert G.structural_equal(G.parse(str(graph)), graph)


@pytest.mark.parametrize(
    "graph",
    [
        published.batch_norm_of_cse_rfc().backward,
        published.gamma_gradient_of_cse_rfc().backward,
        published.adam_of_nnvm(),
        published.worked_example_of_tvm(4, 6),
        published.diamond_of_tvm(),
        published.residual_network(4),
    ],
    ids=lambda graph: graph.name,
)
def test_seeds_read_back(graph):
    text = str(graph)
    again = G.parse(text)
    assert G.structural_equal(again, graph)
    assert str(again) == text
    feeds = published.feeds(graph)
    before, after = (_leaves(G.evaluate(g, feeds)) for g in (graph, again))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def _leaves(value):
    return [x for v in value for x in _leaves(v)] if isinstance(value, tuple) else [value]


@settings(max_examples=100, deadline=None)
@given(samples())
def test_random_graphs_read_back(sample):
    text = str(sample.graph)
    again = G.parse(text)
    assert G.structural_equal(again, sample.graph)
    assert str(again) == text
    for a, b in zip(sample.run(), sample.run(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_any_name_reads_back():
    names = [
        "nan",
        "inf",
        "True",
        "None",
        "const",
        "variable",
        "return",
        "def",
        "graph",
        "größe",
        "e1",
    ]
    inputs = [G.var(name, ()) for name in names]
    total = G.const(float("nan"))
    for x in inputs:
        total = G.maximum(x, total) + float("-inf")
    state = [G.Variable(1.0, name) for name in names]
    graph = G.Graph(inputs, [total, G.make_tuple(*state), G.call("exp", inputs[:1], name="nan")])
    assert G.structural_equal(G.parse(str(graph)), graph)


def test_graphs_pickle():
    graph = everything()
    again = pickle.loads(pickle.dumps(graph))
    assert G.structural_equal(again, graph)


def test_what_is_between_words_does_not_matter():
    text = "graph g(x:float32[2],){%0:float32[2]=exp(x) # e\n\n\treturn %0,}"
    assert str(G.parse(text)).splitlines()[2] == "  %0: float32[2] = exp(x)"
    assert str(G.parse("graph empty() { return }")) == (
        "# loopnest graph 1\ngraph empty() {\n  return\n}"
    )


HEAD = "graph g(x: float32[2]) {\n  "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: here is the end of the text; expected graph"),
        ("grap g", "line 1, column 1: here is 'grap'; expected graph"),
        ("graph g(x: float32[2])\n  return", "line 2, column 3: here is 'return'; expected {"),
        (
            "graph g(x: float33[2])",
            "line 1, column 12: there is no dtype float33; use bool, int8, uint8, int16, uint16, "
            "int32, uint32, int64, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64",
        ),
        (
            "graph g(x: float32[-2])",
            "line 1, column 20: -2 is no extent; extents are integers >= 0",
        ),
        (
            "graph g(x: float32[2], x: float32[2]) { return }",
            "line 1, column 8, graph g: two inputs are called x; names are unique",
        ),
        (HEAD + "return y }", "line 2, column 10: y is not defined; define it above, or as an "
         "input"),
        (
            HEAD + "%0: float32[2] = foo(x)",
            "line 2, column 20, foo: there is no such op; G.op_names() lists all",
        ),
        (
            HEAD + "%0: float32[2] = add(x)",
            "line 2, column 20, add(x: float32[2]): it takes 2 operands, here are 1",
        ),
        (
            HEAD + "%0: float32[3] = exp(x)",
            "line 2, column 20: %0 is declared float32[3], it is float32[2]",
        ),
        (
            HEAD + "%0: float32[2] = exp(x)\n  %0: float32[2] = exp(x)",
            "line 3, column 3: %0 is defined already",
        ),
        (
            HEAD + "@f: float32[2] = exp(x)",
            "line 2, column 3: @f cannot be defined here; nodes begin with %",
        ),
        (
            HEAD + "%0: float32[2] = @f(x)",
            "line 2, column 20: there is no function @f above that takes this",
        ),
        (
            HEAD + "%0: float32[2] = sum(x, axs=1)",
            "line 2, column 20, sum(x: float32[2], axs=1): there is no attribute 'axs'; it takes "
            "axis, keepdims",
        ),
        (
            HEAD + "%0: float32[2] = sum(x, axis=(0,), axis=(0,))",
            "line 2, column 38: the attribute axis stands twice",
        ),
        (
            HEAD + "%0: float32[2] = sum(x, axis=zero)",
            "line 2, column 20, sum(x: float32[2], axis=zero): an attribute is not what the op "
            "takes: 'Symbol' object is not iterable",
        ),
        (
            HEAD + "%0: float32[2] = add(x, 1.0:int32)",
            "line 2, column 27: 1.0 is no int32",
        ),
        (
            HEAD + "%0: float32[2] = add(x, 1.0:real)",
            "line 2, column 27: the literal has no dtype that exists; write 1.0:float32",
        ),
        (
            HEAD + "%0: float32[2] = add(x, 1.0)",
            "line 2, column 27: 1.0 is not defined; define it above, or as an input",
        ),
        (
            HEAD + "%0: float32[2] = const [1.0]",
            "line 2, column 26: 1 elements for float32[2]",
        ),
        (
            HEAD + "%0: float32[2] = const $0\n  return %0 }",
            'line 2, column 26: $0 has no value; write $0 = "…" behind the graph',
        ),
        (
            HEAD + '%0: float32[2] = const $0\n  return %0 }\n$0 = "AAAA"',
            "line 2, column 26: the value of $0 is damaged: Error -3 while decompressing data: "
            "unknown compression method",
        ),
        (HEAD + "%0 = exp(x)", "line 2, column 6: here is '='; expected :"),
        (HEAD + "%0: float32[2] = exp(x", "line 2, column 25: here is the end of the text; "
         "expected , or )"),
        (HEAD + "~", "line 2, column 3: '~' begins nothing"),
        (
            HEAD + "return x }\ngraph h() { return }",
            "line 3, column 1: here is 'graph'; expected <end>",
        ),
    ],
)  # fmt: skip
def test_malformed(text, message):
    with pytest.raises(G.GraphError) as found:
        G.parse(text)
    assert str(found.value) == message
    line, column = found.value.line, found.value.column
    assert message.startswith(f"line {line}, column {column}")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_text_is_an_error_or_a_graph(data):
    """No Python error, whatever is cut out of a text or put in."""
    text = TEXT
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 6)))
        text = text[:at] + data.draw(st.text('()[]{}%@$:=,."0-9aexn ', max_size=3)) + text[end:]
    try:
        G.parse(text)
    except G.GraphError as error:
        message = str(error)
        assert message.startswith("line ")


def test_very_large_constants_are_digests():
    values = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    graph = G.Graph([], [G.const(values), G.exp(G.const(values))])
    short, full = str(graph), graph.text(full=True)
    assert len(short) < 400 < 400_000 < len(full)
    assert short == graph.text()
    assert full == to_text(graph)
    assert re.fullmatch(
        r'\$0 = sha256 "[0-9a-f]{64}"  # float32\[300, 300\], 360000 bytes', short.splitlines()[-1]
    )
    for text in (short, full):  # this process still holds the constant
        assert G.structural_equal(G.parse(text), graph)
    assert G.structural_equal(pickle.loads(pickle.dumps(graph)), graph)


def test_a_digest_of_what_is_gone_says_how_to_get_it():
    text = str(G.Graph([], [G.const(np.arange(2000.0))]))
    gc.collect()
    with pytest.raises(G.GraphError) as found:
        G.parse(text)
    assert str(found.value) == (
        "line 3, column 29: of $0, a float64[2000] of 16000 bytes, the text has only the digest; "
        "graph.text(full=True) writes a text with all constants"
    )
    assert (found.value.line, found.value.column) == (3, 29)


def test_a_digest_of_another_type():
    array = np.arange(2000.0)
    graph = G.Graph([], [G.const(array)])
    with pytest.raises(G.GraphError, match=r"\$0 is float64\[2000\], declared float64\[1000, 2\]"):
        G.parse(str(graph).replace("%0: float64[2000]", "%0: float64[1000, 2]"))


def test_constants_of_4_kib_are_whole():
    text = str(G.Graph([], [G.const(np.arange(512.0)), G.const(np.arange(513.0))]))
    assert [line.split('"')[0] for line in text.splitlines()[-2:]] == ["$0 = ", "$1 = sha256 "]
