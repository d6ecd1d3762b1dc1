"""Calls whose arguments C looks at: what it takes, and what it leaves to Python."""

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from loopnest.backends.cpu import host_call
from loopnest.launch.target_interface import MISFIT


def doubled(*shape):
    x = G.var("x", shape)
    return G.compile(G.Graph([x], [x * 2.0]), target="c", optimize=0)


@pytest.fixture
def statuses(monkeypatch):
    """The status of each call of C."""
    found = []
    run = host_call.HostCall.run

    def noted(self, arrays, made):
        found.append(run(self, arrays, made))
        return found[-1]

    monkeypatch.setattr(host_call.HostCall, "run", noted)
    return found


def test_fields_of_arrays_are_where_numpy_says():
    assert host_call.reads_arrays()
    assert host_call._as_told(np.zeros((2, 0, 3), np.int8))
    assert host_call._as_told(np.zeros((5, 4), np.float64).T)


def test_arrays_that_fit_are_taken_by_c(statuses):
    fn, x = doubled(3, 40), np.arange(120, dtype=np.float32).reshape(3, 40)
    results = [fn(x + step) for step in range(3)]
    assert statuses == [0, 0]  # the first call plans
    for step, found in enumerate(results):  # each call has results of its own
        np.testing.assert_array_equal(found, (x + step) * 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape),
        lambda x: x.view(type("Own", (np.ndarray,), {})),
    ],
    ids=["columns first", "every second", "not aligned", "a class of its own"],
)
def test_others_are_looked_at_by_python(statuses, change):
    fn, x = doubled(3, 4), np.arange(12, dtype=np.float32).reshape(3, 4)
    fn(x)
    np.testing.assert_array_equal(fn(change(x)), x * 2)
    assert statuses == [MISFIT]


def test_an_array_that_is_not_aligned_is_copied():
    """C compilers count on it; vectors of some widths fault where it is not."""
    fn, x = doubled(3, 4), np.arange(12, dtype=np.float32).reshape(3, 4)
    shifted = np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    (given,), (place,) = fn._checked((shifted,))
    assert (given.flags.aligned, place % 4) == (True, 0)
    np.testing.assert_array_equal(given, x)
    assert fn._checked((x,))[0][0] is x


@pytest.mark.parametrize(
    "arrays",
    [
        (),
        (np.zeros((3, 4), np.float32),) * 2,
        (np.zeros((3, 4), np.float64),),
        (np.zeros((3, 5), np.float32),),
        (np.zeros((3, 4, 1), np.float32),),
        (None,),
    ],
    ids=["none", "two", "type", "extent", "rank", "no array"],
)
def test_a_later_call_is_refused_as_the_first_is(statuses, arrays):
    with pytest.raises(ln.LaunchError) as first:
        doubled(3, 4)(*arrays)
    fn = doubled(3, 4)
    fn(np.zeros((3, 4), np.float32))
    with pytest.raises(ln.LaunchError) as later:
        fn(*arrays)
    assert str(later.value) == str(first.value)
    assert statuses == [MISFIT]


def test_a_variable_that_is_an_argument_is_copied(statuses):
    x, w = G.var("x", (4,)), G.Variable(np.arange(4, dtype=np.float32), "w")
    fn = G.compile(G.Graph([x], [x * 2.0, G.group(G.assign(w, x + w))]), target="c", optimize=0)
    fn(np.ones(4, np.float32))
    np.testing.assert_array_equal(fn(fn.state["w"])[0], [2, 4, 6, 8])
    np.testing.assert_array_equal(fn.state["w"], [2, 4, 6, 8])
    assert statuses == [MISFIT]


def test_other_sizes_and_sizes_by_name(statuses):
    x = G.var("x", ("N", 3))
    fn = G.compile(G.Graph([x], [x * 2.0]), target="c", optimize=0)
    for extent in (2, 2, 5, 5, 0, 2):
        assert fn(np.ones((extent, 3), np.float32)).shape == (extent, 3)
    assert statuses.count(0) == 2
    y = G.Graph([], [G.full(("N",), 1.5)])
    fn = G.compile(y, target="c", optimize=0)
    assert fn(N=3).shape == (3,)
    with pytest.raises(ln.LaunchError):
        fn()


def test_where_fields_are_elsewhere_python_looks_at_all(statuses, monkeypatch):
    monkeypatch.setattr("loopnest.graph_kernels.runs_by_size.reads_arrays", lambda: False)
    fn, x = doubled(3, 4), np.ones((3, 4), np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(fn(x), x * 2)
    assert not statuses
