"""Whether a kernel or a library computes a product: by made-up times, none is measured here."""

import math

import numpy as np
import pytest

import loopnest.graph as G
from loopnest.base.errors import LoopnestError
from loopnest.graph_kernels import compiled_graph, library_times
from loopnest.graph_kernels.library_times import LibraryTimes, Rivals, is_measured, measured


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """A folder of its own for what is kept, and times that the test says, by the sum of a run."""
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(library_times, "_TIMES", {})
    monkeypatch.setattr(compiled_graph, "is_measured", lambda: True)
    seconds, asked = [1.0, 2.0], []

    def in_turns(runs, finish, clock):
        asked.append([np.sum(run()) for run in runs])
        return seconds

    monkeypatch.setattr(library_times, "in_turns", in_turns)
    return seconds, asked


def program():
    x, w, b = G.var("x", (4, 6)), G.var("w", (5, 6)), G.var("b", (5,))
    return G.Graph([x, w, b], [G.relu(x @ G.transpose(w) + b)])


def test_the_faster_computes_a_product(clock):
    seconds, asked = clock
    arrays = [np.ones((4, 6), np.float32), np.ones((5, 6), np.float32), np.ones(5, np.float32)]
    name = "matmul(float32[4, 6], float32[6, 5] by (1, 0))"
    (launch,) = (fn := G.compile(program(), target="c", optimize=0)).kernels
    assert launch.ops == ("transpose", "matmul", "add", "relu")
    assert launch.times == f"{name}: generated (generated 1e+03 ms, library 2e+03 ms)"
    assert str(launch).endswith(f"contraction; {launch.times}")
    assert np.all(fn(*arrays) == 7)
    assert asked == [[4 * 5 * 6, 4 * 5 * 6]]  # both ways compute the product

    seconds[:] = 2.0, 1.0
    G.compile(program(), target="c", optimize=0)
    assert len(asked) == 1  # it is known
    library_times._TIMES.clear()
    G.compile(program(), target="c", optimize=0)
    assert len(asked) == 1  # from the disk

    product, rest = (fn := G.compile(program(), target="c", optimize=1)).kernels
    assert len(asked) == 2  # other options
    assert (product.library, product.ops) == (True, ("matmul",))
    assert product.times == f"{name}: library (generated 2e+03 ms, library 1e+03 ms)"
    assert (rest.library, rest.times) == (False, "")
    assert np.all(fn(*arrays) == 7)


def test_no_time_is_taken_for_tests():
    assert not is_measured()  # conftest says LOOPNEST_MACHINE=any
    product, _ = G.compile(program(), target="c", optimize=0).kernels
    assert (product.library, product.times) == (True, "")


def rivals(op, work, made):
    def make():
        made.append(op)
        return lambda: 1.0, lambda: 1.0

    return Rivals(op, "", work, make)


def test_ops_with_most_work_are_measured_first_until_the_budget_is_spent(clock, monkeypatch):
    made, now = [], [0.0]

    def tick():
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(library_times.time, "perf_counter", tick)
    ops = [rivals("small", 1.0, made), rivals("large", 9.0, made), rivals("large", 9.0, made)]
    found = measured(ops, seconds=1.5)
    assert made == ["large"]
    assert found["large"] == LibraryTimes("large", 1.0, 2.0)
    assert str(found["small"]) == "small: library, not measured"
    assert measured(ops, seconds=99.0) == found  # these ops together had their time
    assert made == ["large"]
    assert measured(ops[:1], seconds=99.0)["small"].kernel == 1.0


def test_an_op_without_a_kernel_is_the_librarys(clock):
    def make():
        raise LoopnestError("lower(f)", "there is no schedule")

    found = measured([Rivals("op", "", 1.0, make)])["op"]
    assert (found.by_library, found.kernel) == (True, math.inf)


def test_a_kernel_must_win_by_more_than_noise():
    assert not LibraryTimes("op", 0.94, 1.0).by_library
    assert LibraryTimes("op", 0.96, 1.0).by_library


@pytest.mark.parametrize(("slower", "order"), [(8.0, "aabbababab"), (2.0, "aabbababababab")])
def test_functions_take_turns_and_a_hopeless_one_stops_early(slower, order):
    now, calls = [0.0], []

    def run(name, seconds):
        calls.append(name)
        now[0] += seconds

    runs = [lambda: run("a", 1.0), lambda: run("b", slower)]
    assert library_times.in_turns(runs, list, lambda: now[0]) == [1.0, slower]
    assert "".join(calls) == order


def test_a_kernel_computes_a_product_whose_sizes_are_not_known(clock):
    """No time says that a library is faster there, nor what it does to the kernels around it."""
    x, w = G.var("x", ("N", 6)), G.var("w", (6, 5))
    fn = G.compile(G.Graph([x, w], [G.relu(x @ w)]), target="c", optimize=0)
    (launch,) = fn.kernels
    assert (launch.library, launch.ops, launch.times) == (False, ("matmul", "relu"), "")
    assert np.all(fn(np.ones((3, 6), np.float32), np.ones((6, 5), np.float32)) == 6)
    assert clock[1] == []
