"""Axes without elements: what is split or merged with them, on every target."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import loopnest as ln
from fuzzing.fusions import FusionWriter
from loopnest.backends.cuda.toolchain.cuda_toolkit import load_nvrtc
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import (
    TARGETS,
    check_oracle,
    choose_sizes,
    compiled,
    expect,
    lowered_or_serial,
    require_proof,
    run,
)
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Index, Op, integer
from loopnest.scalar.simplify import Simplifier

P = ln.ParallelType


def across_blocks(size: int | str) -> ln.Fusion:
    """Return a sum over an axis, split by its outer extent, over blocks and threads."""
    with ln.Fusion("across") as f:
        x = f.input("x", (size, 32), ln.float32)
        w = f.input("w", (4,), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
        f.output(w + 1.0, "z")
    y.split(0, 8, inner=False)
    y.parallelize({0: P.grid_x, 1: P.block_x})
    return f


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [0, "N"])
def test_no_thread_of_any_block(target: str, size: int | str) -> None:
    x, w = np.zeros((0, 32), np.float32), np.ones(4, np.float32)
    y, z = ln.compile(across_blocks(size), target=target)(x, w)
    assert y.tolist() == [0] * 32
    assert z.tolist() == [2] * 4  # what needs no thread of that axis is computed


@pytest.mark.parametrize("target", TARGETS)
def test_as_many_threads_as_elements(target: str) -> None:
    """The last block folds ceildiv(G, N) parts a thread, but N splits nothing."""
    with ln.Fusion("both") as f:
        x = f.input("x", ("G", "N"), ln.float32)
        y = f.output(ln.sum(x), "y")
    y.parallelize({0: P.grid_x, 1: P.block_x})
    fn = ln.compile(f, target=target)
    for shape in ((5, 3), (5, 0), (0, 5), (0, 0)):
        assert fn(np.ones(shape, np.float32)) == shape[0] * shape[1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [0, "M"])
def test_merged_and_split_again(target: str, size: int | str) -> None:
    with ln.Fusion("merged") as f:
        x = f.input("x", ("N", size), ln.float32)
        t = ln.exp(x)
        y = f.output(t + 1, "y")
    y.merge(0)
    y.split(0, 3)
    y.split(1, 2)
    y.split(0, 4)
    t.compute_at(y, 1)
    fn = ln.compile(f, target=target)
    for shape in ((5, 0), (0, 0)):
        assert fn(np.zeros(shape, np.float32)).shape == shape


def test_proofs_and_machine_code() -> None:
    k = ln.lower(across_blocks(0))
    assert str(ln.verify(k)) == "proved for all sizes"
    try:
        load_nvrtc()
    except ln.CompileError:
        pytest.skip("no NVRTC: pip install 'loopnest[nvrtc]'")
    assert ".entry across" in k.ptx("sm_90")


def test_a_quotient_by_a_static_zero_is_zero() -> None:
    """Whatever it is made of: it stands in a loop that does not run."""
    algebra = Simplifier()
    i, zero = Index("i", integer(4)), integer(0)
    for divided in (algebra.floordiv, algebra.mod, algebra.ceildiv):
        assert divided(i, zero) is zero
        assert divided(integer(8), zero) is zero
    for op in ("floordiv", "mod", "ceildiv"):
        assert algebra.simplify(Op(op, (i, zero), dtypes.index)) is zero
        assert algebra.add(Op(op, (i, zero), dtypes.index), i) is i


def drawn() -> Any:
    """Return the settings of a test whose every choice is drawn."""
    return settings(
        max_examples=20, deadline=None, derandomize=True, database=None,
        report_multiple_bugs=False, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip


@given(st.data())
@drawn()
def test_random_loops_over_static_zeros_and_ones(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.lists(st.sampled_from([0, 0, 1, 3, "N"]), min_size=1, max_size=3)))
    with ln.Fusion() as f:
        x = f.input("x", shape, ln.float32)
        t = ln.exp(x)
        y = ln.sum(t, axis=draw(st.integers(0, len(shape) - 1))) if draw(st.booleans()) else t + 1
        f.output(y, "y")
    places = st.integers(0, 11)
    for _ in range(draw(st.integers(2, 5))):
        with suppress(ln.ScheduleError):
            axis, factor = draw(places) % max(y.ndim, 1), draw(st.integers(0, 5))
            if factor < 2:
                y.merge(axis)
            else:
                y.split(axis, factor, inner=draw(st.booleans()))
    for kind in draw(st.permutations([P.grid_x, P.block_x]))[: draw(st.integers(0, 2))]:
        with suppress(ln.ScheduleError):
            y.axis(draw(places) % max(y.ndim, 1)).parallelize(kind)
    with suppress(ln.ScheduleError):
        t.compute_at(y, draw(places) % (y.ndim + 1))
    sizes = [{"N": n} for n in (0, 1, 7)] if "N" in shape else [{}]
    expected = [expect(f, s, 3) for s in sizes]
    kernel = ln.lower(f)
    require_proof(kernel)
    function = compiled(kernel, "interpret")
    for one in expected:
        run(function, one, "interpret")


@given(st.randoms(use_true_random=False))
@drawn()
def test_random_schedules_of_static_zeros_and_ones(rng: Random) -> None:
    session = Session("case")
    dims = rng.choice([(0, 1, 3), (0, 1, "N", 5), (0, 0, 1, 4, "N"), (1, "N", 7)])
    FusionWriter(session, rng, dims).write()
    sizes = choose_sizes(session.fusion, rng)
    expected = [expect(session.fusion, s, rng.randrange(16)) for s in sizes]
    ScheduleWriter(session, rng).write()
    check_oracle(session.fusion, expected)
    kernel, _ = lowered_or_serial(session)
    if isinstance(kernel, str):
        return
    require_proof(kernel)
    function = compiled(kernel, "interpret")
    for one in expected:
        run(function, one, "interpret")


@pytest.mark.parametrize("target", TARGETS)
def test_a_sum_in_a_loop_over_a_merge_tests_its_own_axis(target: str) -> None:
    """The loop over M and 5 goes on where M is 0, since z needs it; s and t read x by M alone."""
    with ln.Fusion("columns") as f:
        x = f.input("x", (5, "M"), ln.float32)
        b = f.input("b", (5, 1), ln.float32)
        t = x + 1.0
        c = b * 2.0
        f.output(ln.sum(t, 0) * c + x, "y")
        z = f.output(ln.broadcast(c, (False, True, False)), "z")
    z.merge(0)
    z.merge(0)
    z.split(0, 1)
    ln.propagate(z)
    f.inline_most()
    kernel = ln.lower(f)
    assert "if i0 % max(M, 1) < M:" in str(kernel).partition("T2[0] =")[0]
    assert ln.verify(kernel).ok
    for columns in (3, 1, 0):
        data = np.arange(5 * columns, dtype=np.float32).reshape(5, columns)
        edge = np.arange(5, dtype=np.float32).reshape(5, 1)
        found, wide = ln.compile(kernel, target=target)(data, edge)
        np.testing.assert_array_equal(found, (data + 1).sum(0) * (2 * edge) + data)
        np.testing.assert_array_equal(wide, (2 * edge)[:, :, None])


@pytest.mark.parametrize("shape", [(4, 8), (4, 0), (0, 8), (1, 0)], ids=str)
@pytest.mark.parametrize("other", [(0, 8), (3, 0)], ids=str)
@pytest.mark.parametrize("reduced", [P.grid_x, P.block_x], ids=["grid", "block"])
def test_a_launch_dimension_of_one_tensor_that_is_empty_leaves_the_rest_a_thread(
    reduced: ln.ParallelType, other: tuple[int, int], shape: tuple[int, int]
) -> None:
    """What blocks leave for each other has room, whoever lacks threads along a dimension."""
    with ln.Fusion("beside") as f:
        x = f.input("x", shape, ln.float32)
        e = f.input("e", other, ln.float32)
        y = f.output(ln.sum(x, 1), "y")
        z = f.output(e + 1.0, "z")
    y.axis(1).parallelize(reduced)
    y.axis(0).parallelize(P.block_y)
    z.axis(0).parallelize(P.grid_y)
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    arrays = [np.ones(s, np.float32) for s in (shape, other)]
    found = ln.compile(kernel, target="interpret")(*arrays)
    for result, want in zip(found, ln.evaluate(f, *arrays), strict=True):
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("memory", [ln.SHARED, ln.GLOBAL, ln.LOCAL], ids=lambda m: m.name)
@pytest.mark.parametrize("target", TARGETS)
def test_a_padded_buffer_keeps_its_gaps_where_another_tensor_leaves_no_thread(
    target: str, memory: ln.Memory
) -> None:
    """It is stored through a merged axis, as a flat array: its strides stand in the index."""
    with ln.Fusion("padded") as f:
        x, e = f.input("x", (4, 5, "M"), ln.float32), f.input("e", ("N",), ln.float32)
        t = ln.exp(x)
        f.output(t * 2.0, "y").merge(1)
        f.output(e + 1.0, "z").axis(0).parallelize(P.grid_y)
    expected = [expect(f, {"M": 6, "N": count}) for count in (0, 2)]
    t.memory = memory
    t.allocation_domain.pad(1, 1)
    t.merge(1)
    function = compiled(ln.lower(f), target)
    for case in expected:
        run(function, case, target)
