"""A test of data stands behind what stores the data, wherever these lie."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.base.errors import InternalError
from loopnest.kir.legal_program import program_faults
from loopnest.lowering import pipeline, watchers
from loopnest.lowering.loops import tightening
from loopnest.lowering.loops.guarded_tree import Guarded, Tree, TreeItem
from loopnest.proofs.verifier import verify_program
from loopnest.scalar.expr import ZERO, Const, Expr, Load, loads, rewrite, substitute
from loopnest.schedulers import auto_schedule

PT = ln.ParallelType
MEMORIES = [ln.LOCAL, ln.SHARED, ln.GLOBAL]


def histogram(memory: ln.Memory = ln.LOCAL) -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return sums of `u` by the lowest bits of `x`, the tensor of the bits, and the sums."""
    with ln.Fusion("histogram") as f:
        x, u = f.input("x", ("N",), ln.int32), f.input("u", ("N",), ln.float32)
        key = (x & 15).named("key")
        h = f.output(ln.index_add(ln.full((16,), 0.0), 0, key, u), "h")
    key.memory = memory
    return f, key, h


def judge(f: ln.Fusion) -> None:
    kernel, rng = ln.lower(f), np.random.default_rng(0)
    for n in (0, 1, 37):
        x = rng.integers(-1000, 1000, n).astype(np.int32)
        u = rng.integers(0, 9, n).astype(np.float32)
        for target in ("interpret", "c"):
            found = ln.compile(kernel, target=target)(x, u)
            np.testing.assert_array_equal(found, ln.evaluate(f, x, u))


@pytest.fixture(autouse=True)
def _each_pass_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(watchers.VARIABLE, "verify")


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_loop_that_computes_a_key_is_not_under_a_test_of_it(memory: ln.Memory) -> None:
    f, _, h = histogram(memory)
    h.reorder({1: 0})
    f.inline_most()
    text = str(ln.lower(f))
    assert "if " not in text
    assert " in max(0, index(key[" in text
    judge(f)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("tile", [4, 7])
def test_keys_of_a_tile(memory: ln.Memory, tile: int) -> None:
    f, key, h = histogram(memory)
    h.split(1, tile)
    h.reorder({1: 0, 2: 1})
    key.compute_at(h, 1)
    judge(f)


@pytest.mark.parametrize("memory", MEMORIES)
def test_keys_of_atomic_updates(memory: ln.Memory) -> None:
    f, key, h = histogram(memory)
    h.atomic()
    h.split(1, 8)
    h.reorder({1: 0, 2: 1})
    h.parallelize({0: PT.grid_x, 1: PT.block_x})
    key.compute_at(h, 2 if memory is ln.LOCAL else 1)
    judge(f)


def test_the_key_of_one_element() -> None:
    """The test names no index of a loop, so that it would go out of each."""
    with ln.Fusion("counted") as f:
        x, u = f.input("x", ("N",), ln.int32), f.input("u", ("N",), ln.float32)
        start = f.input("start", ("K",), ln.float32)
        f.assume("K == 1")
        f.output(ln.index_add(start, 0, x & 1, u), "h")
    added = next(t for t in f.tensors if any(axis.is_reduction for axis in t.leaf_domain))
    added.reorder({1: 0})
    f.inline_most()
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 9, n).astype(t) for n, t in ((9, "i4"), (9, "f4"), (1, "f4"))]
    for target in ("interpret", "c"):
        found = ln.compile(f, target=target)(*arrays)
        np.testing.assert_array_equal(found, ln.evaluate(f, *arrays))


@pytest.mark.parametrize("scatter", [ln.scatter, ln.scatter_add])
@pytest.mark.parametrize("unsigned", [False, True])
def test_automatic_schedules_of_computed_keys(scatter: Any, unsigned: bool) -> None:
    with ln.Fusion("histogram") as f:
        x = f.input("x", ("N",), ln.uint8 if unsigned else ln.int32)
        key = ln.cast(x, ln.int32) if unsigned else x & 255
        f.output(scatter(ln.full((256,), 0.0), key, ln.cast(x, ln.float32), 0), "h")
    auto_schedule(f, "c")
    x = np.random.default_rng(0).integers(0, 255, 300).astype(np.uint8 if unsigned else np.int32)
    for target in ("interpret", "c"):
        found = ln.compile(f, target=target)(x)
        np.testing.assert_array_equal(found, ln.evaluate(f, x))


# What is refused


def lifted(memory: ln.Memory, monkeypatch: pytest.MonkeyPatch) -> ln.Fusion:
    """Return a histogram, with passes that test its key before it is stored.

    Where it is LOCAL or SHARED they lift the test over the loop that stores it; in GLOBAL memory it
    is stored at the end of the loop's body.
    """
    f, _, h = histogram(memory)
    h.reorder({1: 0})
    f.inline_most()
    monkeypatch.setattr(tightening, "before", lambda terms, _: list(terms))

    def last(node: kir.Stmt) -> kir.Stmt:
        if not isinstance(node, kir.Loop):
            return node
        keys = [n for n in node.body if isinstance(n, kir.Store) and n.buffer == "key"]
        return replace(node, body=(*[n for n in node.body if n not in keys], *keys))

    def late(state: Any) -> None:
        state.program = state.program.with_body(kir.map_body(state.program.body, last))

    if memory is ln.GLOBAL:
        steps = [replace(p, run=late) if p.name == "unswitch" else p for p in pipeline.PASSES]
        monkeypatch.setattr(pipeline, "PASSES", tuple(steps))
    return f


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_check_after_a_pass_refuses_a_test_of_what_is_not_stored(
    memory: ln.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = lifted(memory, monkeypatch)
    with pytest.raises(InternalError) as caught:
        ln.lower(f)
    step = "unswitch: " if memory is ln.GLOBAL else "tighten: key is used where it is not made; "
    assert str(caught.value) == (
        f"lower(histogram): after the pass {step}a condition tests key before it is stored"
    )


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_proof_refutes_a_test_of_what_is_not_stored(
    memory: ln.Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = lifted(memory, monkeypatch)
    monkeypatch.delenv(watchers.VARIABLE)
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.status == "refuted"
    assert [f.message for f in report.findings] == ["a condition tests key before it is stored"]
    with pytest.raises(ln.LoopnestError) as caught:
        ln.Kernel.parse(kernel.text(full=True))
    assert str(caught.value).startswith("parse(...): the text has no legal nest: ")


def test_a_key_of_another_element_or_moment_is_not_proved() -> None:
    """What a test finds must be the key of the element that it stands for."""
    f, key, h = histogram(ln.SHARED)
    h.reorder({1: 0})
    h.split(0, 8)
    key.compute_at(h, 1)
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None

    def first_key(node: kir.Stmt) -> kir.Stmt:
        """Test the first key of a tile in place of each."""
        if not isinstance(node, kir.If) or node.reason != kir.BOUND:
            return node
        (load,) = loads(node.condition)
        other = Load(load.buffer, (ZERO,), load.flat)
        return replace(node, condition=substitute(node.condition, {load: other}))

    def late(node: kir.Stmt) -> kir.Stmt:
        """Compute the keys of a tile behind the loops that use them."""
        if not isinstance(node, kir.Loop) or not isinstance(node.body[0], kir.Allocate):
            return node
        made, keys, *rest = node.body
        return replace(node, body=(made, *rest, keys))

    for rule in (first_key, late):
        program = lowered.program
        changed = program.with_body(kir.map_body(program.body, rule))
        assert changed.body is not program.body
        assert verify_program(program, lowered.math()).all_sizes
        assert not verify_program(changed, lowered.math()).ok


def test_what_bounds_a_loop_is_not_stored_in_it() -> None:
    program = kir.parse("""
        kernel k(x: int32[N]) -> (y: float32[8])
        T1: int32[1] local
        T1[0] = x[0]
        for i0 in 0..index(T1[0]) + 1 of 8:
          T1[0] = 3
          y[i0] = 1.0
    """)
    assert program_faults(program) == ["the loop over i0 stores T1, which bounds it"]


# Buffers in each other's space


def shifted(f: ln.Fusion) -> ln.TensorView:
    """Return a SHARED tensor that an output reads, and nothing else."""
    z = f.input("z", ("K",), ln.float32)
    other = (z + 1.0).named("other")
    f.output(other * 2.0, "y")
    other.memory = ln.SHARED
    return other


@pytest.mark.parametrize("inside", [False, True])
def test_a_key_in_the_space_of_another_buffer(inside: bool) -> None:
    """A test names its buffer as statements do: it is not lifted over the loop that stores it."""
    with ln.Fusion("histogram") as f:
        shifted(f)
        x, u = f.input("x", ("N",), ln.int32), f.input("u", ("N",), ln.int32)
        key = (x & 15).named("key")
        h = f.output(ln.index_add(ln.full((16,), 0), 0, key, u), "h")
    key.memory = ln.SHARED
    h.reorder({1: 0})
    key.compute_at(h, int(inside))
    kernel = ln.lower(f)
    text = str(kernel)
    assert f"key: int32[{1 if inside else 'N'}] shared = other" in text
    assert " in max(0, index(key[" in text
    assert ln.verify(kernel).all_sizes
    z = np.arange(5, dtype=np.float32)
    x = np.random.default_rng(0).integers(-1000, 1000, 37).astype(np.int32)
    u = np.arange(37, dtype=np.int32)
    for target in ("interpret", "c"):
        found = ln.compile(kernel, target=target)(z, x, u)
        for one, other in zip(found, ln.evaluate(f, z, x, u), strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_index_and_what_it_finds_in_the_spaces_of_others() -> None:
    with ln.Fusion("taken") as f:
        k, w = f.input("k", ("M",), ln.int64), f.input("w", (8,), ln.float32)
        bits = k & 3
        even = bits * 2
        place = (even + 1).named("place")
        f.output(ln.take(w, place, 0), "y")
    found = w.cache_after().named("found")
    for tensor in (bits, even, place, found):
        tensor.memory = ln.SHARED
    kernel = ln.lower(f)
    text = str(kernel)
    assert re.search(r"place: .* shared = ", text)
    assert re.search(r"found: .* shared = ", text)
    assert ln.verify(kernel).ok
    arrays = np.arange(9), np.arange(8, dtype=np.float32)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(
            ln.compile(kernel, target=target)(*arrays), ln.evaluate(f, *arrays)
        )


# Threads that have no data


@pytest.mark.parametrize("launched", [4, 7])
@pytest.mark.parametrize("parallel", [PT.grid_y, PT.block_x])
def test_threads_without_a_key_test_none(parallel: PT, launched: int) -> None:
    """The launch is as wide as the bins; a thread beyond the keys has none to test."""
    with ln.Fusion("histogram") as f:
        k = f.input("k", (4,), ln.int32)
        z = f.input("z", (7,), ln.float32)
        y = f.output(z * 2.0, "y")
        h = f.output(ln.scatter_add(ln.full((5,), 0.0), k % 5, ln.full((4,), 1.0), 0), "h")
    if launched == 7:
        y.axis(0).parallelize(parallel)
    h.split(0, 2)
    h.axis(2).parallelize(parallel)
    ln.propagate(h)
    ln.parallelize_like(h)
    kernel = ln.lower(f)
    assert ln.verify(kernel).status != "refuted"
    arrays = np.array([3, 1, 4, 1], np.int32), np.arange(7, dtype=np.float32)
    for target in ("interpret", "c"):
        found = ln.compile(kernel, target=target)(*arrays)
        for one, other in zip(found, ln.evaluate(f, *arrays), strict=True):
            np.testing.assert_array_equal(one, other)


def test_where_no_thread_starts_no_key_is_tested() -> None:
    """At N = 0 the host does once what stands outside of the loops over threads."""
    f, key, h = histogram()
    h.axis(1).parallelize(PT.grid_y)
    key.axis(0).parallelize(PT.grid_y)
    assert ln.verify(ln.lower(f)).all_sizes
    judge(f)


def test_a_test_that_stays_behind_shields_the_data_of_its_threads() -> None:
    with ln.Fusion("histogram") as f:
        k = f.input("k", (4,), ln.int32)
        h = f.output(ln.scatter_add(ln.full((5,), 0.0), k % 5, ln.full((4,), 1.0), 0), "h")
    h.split(-1, 7)
    h.split(0, 2)
    ln.propagate(h)
    h.axis(3).parallelize(PT.grid_y)
    ln.parallelize_like(h)
    k = np.array([3, 1, 4, 1], np.int32)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(f, target=target)(k), ln.evaluate(f, k))


def test_a_key_that_all_threads_have_still_bounds_the_bins() -> None:
    with ln.Fusion("rows") as f:
        x, g = f.input("x", ("N",), ln.int32), f.input("g", ("N", 7), ln.float32)
        key = (x & 15).named("key")
        h = f.output(ln.index_add(ln.full((16, 7), 0.0), 0, key, g), "h")
    h.split(1, 4)
    h.reorder({3: 0, 1: -2, 2: -1})
    h.axis(-1).parallelize(PT.block_x)
    key.compute_at(h, 1)
    assert " in max(0, index(key[0]))..min(index(key[0]), 15) + 1 of 16:" in str(ln.lower(f))


def test_a_barrier_orders_what_a_test_alone_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statements under the test need not load the data themselves."""
    f, key, h = histogram(ln.SHARED)
    h.reorder({1: 0})
    key.axis(0).parallelize(PT.block_x)

    def without(value: Expr) -> Expr | None:
        loaded = isinstance(value, Load) and value.buffer.name == "key"
        return Const(0, value.dtype) if loaded else None

    def bare(tree: Tree) -> Tree:
        body = [bare(i) if isinstance(i, Tree) else bare_item(i) for i in tree.body]
        return replace(tree, body=tuple(body))

    def bare_item(item: TreeItem) -> TreeItem:
        if not isinstance(item, Guarded):
            return item
        made = [kir.map_expressions(s, lambda v: rewrite(v, without)) for s in item.statements]
        return replace(item, statements=tuple(made))

    monkeypatch.delenv(watchers.VARIABLE)  # the statements are no longer those of the math
    real = pipeline.insert_barriers
    monkeypatch.setattr(pipeline, "insert_barriers", lambda tree, *more: real(bare(tree), *more))
    text = str(ln.lower(f))
    assert "barrier block  # h reads key after key stores it in other threads" in text
