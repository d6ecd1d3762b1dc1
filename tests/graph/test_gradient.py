"""Gradients of every op, of gradients, and of whole programs, against finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings

import loopnest.graph as G
from graph import published
from graph.case_makers import Case
from graph.op_cases import CASES, COMPOSITES, OPS
from graph.random_graphs import samples
from helpers.made_at import without_lines
from loopnest.graph.gradients import NotDifferentiable


def differentiable(op):
    return not isinstance(G.get_attr(op, "gradient"), NotDifferentiable)


SMOOTH = [case for case in CASES if differentiable(case.op)]


def flat(node):
    """The float tensors of a node."""
    if node.is_tuple:
        return [part for field in node for part in flat(field)]
    return [node] if node.dtype.is_float else []


def weighted(node, seed):
    """A scalar that depends on every element of a node in its own way."""
    random = np.random.default_rng(seed)
    parts = [G.sum(G.cast(n, "float64") * G.const(random.normal(size=n.shape))) for n in flat(node)]
    return sum(parts[1:], parts[0]) if parts else None


def check_gradients(loss, inputs, feeds, gradients=None, tolerance=2e-7, step=1e-5):
    """Compare gradients of a scalar with central differences, along each coordinate."""
    wanted = [x for x in inputs if x.dtype.is_float]
    if not wanted:
        return
    gradients = G.gradient(loss, wanted) if gradients is None else gradients
    values = G.evaluate(G.check(G.Graph(inputs, gradients)), feeds)
    graph = G.Graph(inputs, [loss])
    for x, found in zip(wanted, values, strict=True):
        assert found.shape == x.shape
        expected = np.zeros(x.shape)
        for at in np.ndindex(*x.shape):
            ends = []
            for sign in (1, -1):
                moved = feeds[x.name].copy()
                moved[at] += sign * step
                ends.append(G.evaluate(graph, {**feeds, x.name: moved})[0])
            expected[at] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(found, expected, rtol=tolerance * 10, atol=tolerance * 10)


def case_parts(case):
    arrays = case.operands(1)
    graph = case.graph(arrays)
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    step = 0.25 if any("float32" in str(n.type) for n in graph.nodes) else 1e-5
    return graph, feeds, step


@pytest.mark.parametrize("case", [*SMOOTH, *COMPOSITES], ids=repr)
def test_first_order(case: Case):
    graph, feeds, step = case_parts(case)
    loss = weighted(graph.outputs[0], 2)
    if loss is not None:
        check_gradients(loss, graph.inputs, feeds, step=step)


@pytest.mark.parametrize("case", [*SMOOTH, *COMPOSITES], ids=repr)
def test_second_order(case: Case):
    graph, feeds, step = case_parts(case)
    loss = weighted(graph.outputs[0], 2)
    wanted = [x for x in graph.inputs if x.dtype.is_float]
    if loss is None or not wanted:
        return
    first = G.gradient(loss, wanted)
    second = [weighted(g, 3 + i) for i, g in enumerate(first)]
    check_gradients(sum(second[1:], second[0]), graph.inputs, feeds, tolerance=2e-6, step=step)


def test_factors_of_a_product_by_places_of_which_two_are_zero():
    """Both have nothing of the product, and so have all others; elsewhere one zero has the rest."""
    arrays = np.array([2.0, 3.0]), np.array([0, 0, 1, 1, 0]), np.array([0.0, 0.0, 0.0, 5.0, 7.0])
    x, i, u = [G.var(f"x{n}", a.shape, a.dtype.name) for n, a in enumerate(arrays)]
    dx, du = G.gradient(G.sum(G.put(x, i, u, "prod")), [x, u])
    feeds = {f"x{n}": array for n, array in enumerate(arrays)}
    dx, du = G.evaluate(G.Graph([x, i, u], [dx, du]), feeds)
    np.testing.assert_array_equal(dx, [0, 0])
    np.testing.assert_array_equal(du, [0, 0, 15, 0, 0])


def test_every_op_has_a_gradient_or_says_that_it_has_none():
    for op in OPS:
        rule = G.get_attr(op, "gradient")
        assert callable(rule) or isinstance(rule, NotDifferentiable), op


def test_the_table_has_every_differentiable_op():
    assert {case.op for case in SMOOTH} == {op for op in OPS if differentiable(op)}


@pytest.mark.parametrize("op", [op for op in OPS if not differentiable(op)])
def test_no_gradient(op):
    """A path that stays in floats to the end meets the op; it is named."""
    case = next(case for case in CASES if case.op == op)
    node = case.graph(case.operands()).outputs[0]
    if not node.dtype.is_float:
        with pytest.raises(G.GraphError, match=r"^gradient\(y=.*use a float tensor$"):
            G.gradient(node, [])
        return
    with pytest.raises(G.GraphError) as found:
        G.gradient(node, [x for x in node.inputs if x.dtype.is_float])
    assert without_lines(found.value) == (
        f"gradient of {op}(x0): op {op} is not differentiable: it is piecewise constant; "
        f"register_attr('{op}', 'gradient', …) gives it a rule"
    )


def test_an_op_without_a_rule():
    G.register_op("toy", infer=lambda types, attrs: types[0], evaluate=lambda node, x: x, arity=1)
    try:
        x = G.var("x", (2,))
        toy = G.call("toy", [x])
        with pytest.raises(G.GraphError) as found:
            G.gradient(toy * 2.0, [x])
        assert without_lines(found.value) == (
            "gradient of toy(x): op toy is not differentiable: no gradient is registered for it; "
            "register_attr('toy', 'gradient', …) gives it a rule"
        )
        G.register_attr("toy", "gradient", lambda node, dy: (G.sum(dy),))
        with pytest.raises(G.GraphError) as found:
            G.gradient(toy * 2.0, [x])
        assert without_lines(found.value) == (
            "gradient of toy(x): its rule gives float32[] for x; that is float32[2]"
        )
        G.register_attr("toy", "gradient", lambda node, dy: (dy,), override=True)
        (found,) = G.gradient(toy, [x])
        assert found.op == "full"
    finally:
        from loopnest.graph.registry import unregister_op

        unregister_op("toy")


X, DY = G.var("x", (3,)), G.var("dy", (3,))
WHOLE = G.var("i", (3,), "int32")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: G.gradient(WHOLE, [X]), "gradient(y=i): it is int32[3]; use a float tensor"),
        (lambda: G.gradient(X, [WHOLE]), "gradient(x=i): it is int32[3]; use a float tensor"),
        (
            lambda: G.gradient(G.make_tuple(X), [X]),
            "gradient(y=tuple(x)): it is (float32[3],); use a float tensor",
        ),
        (lambda: G.gradient(2.0, [X]), "gradient(y=2.0): it is a float; use a node"),
        (
            lambda: G.gradient(X, [X], G.sum(DY)),
            "gradient(dy=sum(dy)): it is float32[], y is float32[3]; they must agree",
        ),
    ],
)
def test_errors(build, message):
    with pytest.raises(G.GraphError) as found:
        build()
    assert str(found.value) == message


def test_an_independent_input_has_zeros():
    other = G.var("other", (2, 2), "float64")
    (found,) = G.gradient(G.exp(X), [other])
    assert (found.op, found.attrs["value"], found.type) == ("full", 0.0, other.type)


def test_a_comparison_ends_a_path():
    y = G.cast(X > 0, "float32") * X
    (dx,) = G.gradient(y, [X], DY)
    (value,) = G.evaluate(G.Graph([X, DY], [dx]), {"x": [-1.0, 2.0, 3.0], "dy": [1.0, 1.0, 5.0]})
    assert value.tolist() == [0, 1, 5]


def test_the_gradient_of_itself_is_dy():
    assert G.gradient(X, [X], DY) == [DY]


def test_tanh_as_the_rfc_writes_it():
    graph = published.tanh_of_cse_rfc().backward
    assert (
        str(graph)
        == """\
# loopnest graph 1
graph tanh_backward(x: float64[4, 8], dy: float64[4, 8]) {
  %0: float64[4, 8] = tanh(x)
  %1: float64[4, 8] = mul(%0, %0)
  %2: float64[4, 8] = sub(1.0:float64, %1)
  %3: float64[4, 8] = mul(%2, dy)
  return %3
}"""
    )


def test_gamma_gradient_reads_the_normalised_x():
    """000: the gradient of gamma is a reduction of dY times x-hat, the forward's own node."""
    two = published.batch_norm_of_cse_rfc()
    xhat = next(node for node in two.forward.nodes if node.op == "div")
    dgamma = two.backward.outputs[1]
    product = dgamma.inputs[0].inputs[0]
    assert (product.op, product.inputs[1]) == ("mul", xhat)


def test_an_input_that_another_depends_on_counts_once():
    """The body of a fused group is differentiated alone, whatever its operands depend on."""
    a = G.var("a", (2,), "float64")
    b = G.exp(a)
    p, q = G.var("p", (2,), "float64"), G.var("q", (2,), "float64")
    y = G.call_graph(G.Graph([p, q], [p * q], "product"), [a, b])
    check_gradients(G.sum(y), [a], {"a": np.array([0.3, 1.2])})


def test_adam_moves_as_numpy_does():
    graph = published.adam_of_nnvm()
    feeds = published.feeds(graph)
    state: dict[str, np.ndarray] = {}
    w, b = np.linspace(-1, 1, 12).reshape(4, 3), np.linspace(-1, 1, 3)
    moments = {name: [np.zeros(p.shape), np.zeros(p.shape)] for name, p in (("w", w), ("b", b))}
    parameters = {"w": w, "b": b}
    for step in range(1, 6):
        loss, updated = G.evaluate(graph, feeds, state)
        y = np.tanh(feeds["x"] @ parameters["w"] + parameters["b"])
        error = y - feeds["target"]
        assert loss == pytest.approx(np.mean(error**2), rel=1e-12)
        slope = 2 * error / error.size * (1 - y * y)
        rate = 0.001 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        for name, g in (("w", feeds["x"].T @ slope), ("b", slope.sum(0))):
            m, v = moments[name]
            m[:] = 0.9 * m + 0.1 * g
            v[:] = 0.999 * v + 0.001 * g * g
            parameters[name] = parameters[name] - rate * m / (np.sqrt(v) + 1e-4)
            np.testing.assert_allclose(state[name], parameters[name], rtol=1e-9)
        np.testing.assert_array_equal(updated[0], state["w"])
        assert state["adam_t"].tolist() == [step]


def test_a_residual_network_learns_by_its_gradients():
    graph = published.residual_network(blocks=3, dtype="float64")
    feeds = published.feeds(graph)
    loss, *slopes = G.evaluate(graph, feeds)
    names = [x.name for x in graph.inputs[2:]]
    length = sum(float(np.sum(s * s)) for s in slopes)
    step = 1e-6
    moved = {n: feeds[n] - step * s for n, s in zip(names, slopes, strict=True)}
    after = G.evaluate(graph, {**feeds, **moved})[0]
    assert (loss - after) / step == pytest.approx(length, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(samples(max_ops=8, differentiable=True))
def test_random_graphs(sample):
    graph, feeds = sample.graph, sample.feeds()
    loss = weighted(graph.outputs[0], 5)
    direction = {n: np.random.default_rng(6).normal(size=v.shape) for n, v in feeds.items()}
    wanted = [x for x in graph.inputs if x.dtype.is_float]
    slopes = G.evaluate(G.check(G.Graph(graph.inputs, G.gradient(loss, wanted))), feeds)
    found = sum(float(np.sum(s * direction[x.name])) for s, x in zip(slopes, wanted, strict=True))
    alone = G.Graph(graph.inputs, [loss])

    def at(step):
        moved = {x.name: feeds[x.name] + step * direction[x.name] for x in wanted}
        return float(G.evaluate(alone, {**feeds, **moved})[0])

    step = 1e-6
    halves = [(at(step) - at(0)) / step, (at(0) - at(-step)) / step]
    kink = abs(halves[0] - halves[1]) > 1e-3 * (1 + abs(found))
    low, high = sorted(halves)
    assert kink or low - 1e-3 * (1 + abs(found)) <= found <= high + 1e-3 * (1 + abs(found))


@pytest.mark.parametrize("shape", [(5,), (1,), (3, 1), (1, 1), (1, 3, 1), (2, 1, 5), (2, 3, 5)])
def test_what_is_repeated_has_one_sum(shape):
    """Axes in front and axes of extent 1 are summed together, in one kernel."""
    x, b = G.var("x", (2, 3, 5)), G.var("b", shape)
    dy = G.var("dy", (2, 3, 5))
    (db,) = G.gradient(x + b, [b], dy)
    graph = G.Graph([dy], [db])
    assert sum(node.op == "sum" for node in graph.nodes) == (shape != (2, 3, 5))
    array = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    lead = 3 - len(shape)
    axes = tuple(n for n in range(3) if n < lead or shape[n - lead] != array.shape[n])
    (found,) = G.evaluate(graph, {"dy": array})
    np.testing.assert_allclose(found, array.sum(axes).reshape(shape), rtol=1e-5, atol=1e-6)
