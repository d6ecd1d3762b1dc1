"""Updates of variables in the results of a step: no copies, and no values of another step."""

import pickle

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from graph_kernels.random_programs import assert_alike
from helpers.fake_gpu import FakeGpu, plug_in
from helpers.graph_arrays import counter


def training(rows=4):
    """A step of a layer, and the graph of its scores; both have the variables w and b."""
    x, t = G.var("x", (rows, 6)), G.var("t", (rows, 5))
    w = G.Variable(np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32), "w")
    scores = G.tanh(x @ w + G.Variable(np.zeros(5, np.float32), "b"))
    loss = G.mean((scores - t) * (scores - t))
    step = G.Graph([x, t], [loss, G.optim.SGD(0.1, 0.9).minimize(loss)], "step")
    return step, G.Graph([x], [scores], "scores")


def arrays(seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(np.float32) for shape in ((4, 6), (4, 5))]


@pytest.fixture(params=["c", "interpret", "cuda"])
def target(request, monkeypatch):
    if request.param == "cuda":
        plug_in(monkeypatch, FakeGpu())
    return request.param


def test_updates_are_the_new_values_and_are_read_by_every_way_of_a_tuple(target):
    graph, _ = training()
    fn, state = G.compile(graph, target=target, library=False), {}
    for seed in range(2):
        loss, updates = fn(*arrays(seed))
        expected = G.evaluate(graph, dict(zip("xt", arrays(seed), strict=True)), state)
        assert isinstance(updates, tuple)
        assert len(updates) == len(expected[1]) == 4
        assert_alike((loss, updates), expected)
        assert_alike((updates[-1], *updates[1:3]), (expected[1][-1], *expected[1][1:3]))
        first, *_ = updates
        assert_alike((updates + (loss,))[0], first)  # noqa: RUF005
        assert_alike(((loss,) + updates)[1:], expected[1])  # noqa: RUF005
        assert_alike(sum([updates], ()), expected[1])
        assert_alike(updates * 2, expected[1] * 2)
        assert_alike(2 * updates, expected[1] * 2)
        assert_alike(pickle.loads(pickle.dumps(updates)), expected[1])
        for name, value in zip(updates.names, expected[1], strict=True):
            assert_alike(fn.state[name], value)
    assert repr(updates) == "<updates of SGD_v0, w, SGD_v1, b>"


def test_a_call_copies_no_variable(monkeypatch):
    fn = G.compile(training()[0], target="c", library=False)
    copies = []
    copied = type(fn.variable_memory.arrays).kept
    monkeypatch.setattr(
        type(fn.variable_memory.arrays), "kept", lambda self, x: copies.append(x) or copied(self, x)
    )
    assert not fn.plan().commits
    _, updates = fn(*arrays())
    assert not copies
    own = updates[1]
    assert len(copies) == 1
    assert not np.shares_memory(own, fn.state[updates.names[1]])
    own[...] = 7  # it is the caller's
    assert not (updates[1] == 7).any()


def test_values_of_an_earlier_step_are_refused(target):
    fn = G.compile(training()[0], target=target, library=False)
    _, first = fn(*arrays(0))
    kept = first[1]
    _, second = fn(*arrays(1))
    with pytest.raises(ln.LaunchError) as caught:
        first[1]
    assert str(caught.value) == (
        "step(...): the new value of w is read after a later call has overwritten it; "
        "read it before the next call, or read the variable as it is now: fn.state"
    )
    assert not np.array_equal(kept, second[1])
    with pytest.raises(ln.LaunchError):
        list(first)
    fn.load_state_dict(fn.state_dict())
    with pytest.raises(ln.LaunchError):
        second[1]


def test_what_is_no_variable_in_a_group_is_a_value():
    s, x = counter(), G.var("x", (3,))
    graph = G.Graph([x], [G.group(G.assign(s, s + x), G.group(x * 2.0), x - 1.0)])
    fn = G.compile(graph, target="c")
    updates = fn(np.ones(3, np.float32))
    fn(np.ones(3, np.float32))
    assert (updates[1][0][0], updates[2][0]) == (2, 0)
    with pytest.raises(ln.LaunchError):
        updates[0]
    plain = G.compile(G.Graph([x], [G.group(x * 2.0, x - 1.0)]), target="c")
    assert type(plain(np.ones(3, np.float32))) is tuple


def test_an_assignment_that_is_an_output_itself_is_a_value():
    s = counter()
    update = G.assign(s, s + 1.0)
    graph = G.Graph([], [update, G.group(update)])
    fn = G.compile(graph, target="c")
    results = [fn() for _ in range(3)]
    assert [value[0] for value, _ in results] == [1, 2, 3]
    assert results[-1][1][0][0] == 3


def test_an_old_value_that_a_step_returns_beside_its_update():
    """The anti-dependence: the update waits for who reads the old value, or is kept apart."""
    s, x = counter(1.0), G.var("x", (3,))
    graph = G.Graph([x], [s, G.reshape(s, (3, 1)), G.group(G.assign(s, s * 2.0 + x)), G.sum(s)])
    fn = G.compile(graph, target="c")
    for expected in (1, 3, 7):
        old, shown, updates, total = fn(np.ones(3, np.float32))
        assert (old[0], shown[0, 0], total) == (expected, expected, 3 * expected)
        assert updates[0][0] == fn.state["s"][0] == 2 * expected + 1


def test_updates_that_read_each_other():
    """Both read old values, in whatever order the group names them."""
    for order in (1, -1):
        a, b = [G.Variable(np.float32([k, k]), n) for k, n in ((1, "a"), (2, "b"))]
        fn = G.compile(
            G.Graph([], [G.group(*[G.assign(a, a + b), G.assign(b, a * b)][::order])]), target="c"
        )
        a_, b_ = 1.0, 2.0
        for _ in range(3):
            a_, b_ = a_ + b_, a_ * b_
            assert [value[0] for value in fn()] == [a_, b_][::order]


# Checkpoints


def test_a_checkpoint_goes_back(target):
    fn = G.compile(training()[0], target=target, library=False)
    fn(*arrays())
    seen = fn.state["w"]
    kept = fn.state_dict()
    assert sorted(kept) == sorted(fn.state)
    assert not any(np.shares_memory(kept[name], fn.state[name]) for name in kept)
    first = fn(*arrays())[0]
    assert not np.array_equal(seen, kept["w"])
    fn.load_state_dict(kept)
    assert fn.state["w"] is seen or target != "cuda"
    assert np.array_equal(fn.state["w"], kept["w"])
    assert fn(*arrays())[0] == first
    other = G.compile(training()[0], target=target, library=False)
    other.load_state_dict(kept)
    assert other(*arrays())[0] == first


WRONG = {
    "missing": (lambda d: d.pop("b"), "there is no value for the variable b"),
    "shape": (
        lambda d: d.update(b=np.zeros(4, np.float32)),
        "the variable b is float32[5], the value float32[4]; pass what state_dict returned",
    ),
    "type": (
        lambda d: d.update(b=np.zeros(5)),
        "the variable b is float32[5], the value float64[5]; pass what state_dict returned",
    ),
    "ragged": (
        lambda d: d.update(b=[[1.0, 2.0], [3.0]]),
        "the value of the variable b is no array; pass what state_dict returned",
    ),
    "unknown": (
        lambda d: d.update(c=d["b"]),
        "there is no variable 'c'; the graph has w, b, SGD_v0, SGD_v1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_checkpoint_that_does_not_fit_changes_nothing(case):
    fn = G.compile(training()[0], target="c", library=False)
    change, sentence = WRONG[case]
    given = {name: value + 1 for name, value in fn.state_dict().items()}
    change(given)
    before = fn.state_dict()
    with pytest.raises(ln.LaunchError) as caught:
        fn.load_state_dict(given)
    assert str(caught.value) == f"step.load_state_dict(…): {sentence}"
    for name, value in before.items():
        assert np.array_equal(fn.state[name], value)


@pytest.mark.parametrize(("given", "kind"), [(["w"], "a list"), (3, "an int")])
def test_a_checkpoint_is_a_mapping(given, kind):
    fn = G.compile(training()[0], target="c", library=False)
    with pytest.raises(ln.LaunchError) as caught:
        fn.load_state_dict(given)
    assert str(caught.value) == (
        f"step.load_state_dict(…): the values are {kind}, not a mapping of names; "
        "pass what state_dict returned"
    )


# Graphs that share variables


def test_scores_see_what_the_step_has_learnt(target):
    step_graph, scores_graph = training()
    step = G.compile(step_graph, target=target, library=False)
    scores = G.compile(scores_graph, target=target, library=False, state=step)
    assert scores.state is step.state
    x, t = arrays()
    before = scores(x)
    _, updates = step(x, t)
    after = scores(x)
    updates[1]  # scores assign nothing: still there
    weights = {name: step.state[name] for name in ("w", "b")}
    assert_alike((after,), G.evaluate(scores_graph, {"x": x}, dict(weights)))
    assert not np.array_equal(before, after)


def test_graphs_that_cannot_share():
    step_graph, scores_graph = training()
    scores = G.compile(scores_graph, target="c", library=False)
    with pytest.raises(G.GraphError) as caught:
        G.compile(step_graph, target="c", state=scores)
    assert str(caught.value) == (
        "compile(step, state=…): scores has no variable SGD_v0; it has w, b; "
        "let both graphs have the same variables"
    )
    b = G.Variable(np.zeros(4, np.float32), "b")
    with pytest.raises(G.GraphError) as caught:
        G.compile(G.Graph([], [b * 2.0], "doubled"), target="c", state=scores)
    assert str(caught.value) == (
        "compile(doubled, state=…): the variable b is float32[4], in scores it is float32[5]; "
        "let both graphs have the same variables"
    )
    with pytest.raises(G.GraphError, match="state is a dict; pass what"):
        G.compile(scores_graph, target="c", state={})


def test_graphs_on_two_targets_share_nothing(monkeypatch):
    plug_in(monkeypatch, FakeGpu())
    step_graph, scores_graph = training()
    step = G.compile(step_graph, target="cuda", library=False)
    with pytest.raises(G.GraphError, match="the variables lie where 'cuda' runs, the graph is for"):
        G.compile(scores_graph, target="c", state=step)


# Times


def test_a_profile_names_every_launch_and_leaves_variables_alone(target):
    fn = G.compile(training()[0], target=target, library=False)
    before = fn.state_dict()
    found = fn.profile(*arrays(), calls=3)
    assert found.launches == fn.kernels
    assert len(found.seconds) == len(found.bytes) == len(fn.kernels)
    assert min(found.seconds) >= 0 <= found.overhead
    assert found.total == pytest.approx(sum(found.seconds) + found.overhead)
    lines = str(found).splitlines()
    assert len(lines) == len(fn.kernels) + 2
    assert lines[-2].endswith(f"{len(fn.kernels)} launches")
    for name, value in before.items():
        assert np.array_equal(fn.state[name], value)
    with pytest.raises(ln.LaunchError, match="calls is 0"):
        fn.profile(*arrays(), calls=0)


def test_a_profile_of_sizes_and_of_what_python_calls():
    x = G.var("x", ("N", 6))
    w = G.const(np.ones((6, 5), np.float32))
    fn = G.compile(G.Graph([x], [G.tanh(x @ w), G.sum(x)]), target="c", library=True)
    found = fn.profile(np.ones((7, 6), np.float32))
    assert [launch.library for launch in found.launches].count(True) == 1
    assert all(isinstance(moved, int) for moved in found.bytes)
