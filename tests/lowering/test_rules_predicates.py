"""The rules of predicates, of threads, and of where a buffer lives and how large it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT, assert_computes, body, loops, nest, program, random
from loopnest import kir
from loopnest.lowering.pipeline import lower


def doubled(*shape: int | str, fact: str = "") -> tuple[ln.Fusion, ln.TensorView]:
    """Return y = 2 x."""
    with ln.Fusion("k") as f:
        x = f.input("x", shape, ln.float32)
        y = f.output(x * 2.0, "y")
        if fact:
            f.assume(fact)
    return f, y


def visits(f: ln.Fusion, **sizes: int) -> list[tuple[int, ...]]:
    """Return the index of each store that the nest performs, by Python's own arithmetic."""
    scope = {"ceildiv": lambda a, b: -(-a // b), "max": max, "min": min, **sizes}
    return list(_stores(program(f).body, scope))


def _stores(nodes: tuple[kir.Stmt, ...], scope: dict[str, object]) -> Iterator[tuple[int, ...]]:
    for node in nodes:
        match node:
            case kir.Loop():
                for index in range(eval(str(node.var.extent), {}, scope)):
                    yield from _stores(node.body, {**scope, node.index: index})
            case kir.If():
                taken = eval(str(node.condition), {}, scope)
                yield from _stores(node.body if taken else node.orelse, scope)
            case kir.Store():
                yield tuple(eval(str(i), {}, scope) for i in node.index)


# 36: holes


def test_rule_36_every_hole_needs_a_predicate() -> None:
    """I{15} split by 6, then (3 -> 2, 2) and (6 -> 2, 4): ``i < 15`` alone visits 19 points.

    Four of them twice; with ``i2 * 4 + i3 < 6`` it visits exactly the 15.
    """
    f, y = doubled(15)
    y.split(0, 6).split(0, 2).split(2, 4)
    assert nest(f) == body("""
        for i0 in 2:
          for i1 in 2:
            for i2 in 2:
              for i3 in 4:
                if i0 * 12 + i1 * 6 + i2 * 4 + i3 < 15 and i2 * 4 + i3 < 6:
                  y[i0 * 12 + i1 * 6 + i2 * 4 + i3] = x[i0 * 12 + i1 * 6 + i2 * 4 + i3] * 2.0
    """)
    assert sorted(visits(f)) == [(i,) for i in range(15)]
    only = [
        a * 12 + b * 6 + c * 4 + d
        for a, b, c, d in itertools.product(range(2), range(2), range(2), range(4))
        if a * 12 + b * 6 + c * 4 + d < 15
    ]
    assert (len(only), len(only) - len(set(only))) == (19, 4)


def test_rule_36_a_point_visited_twice_would_be_summed_twice() -> None:
    """The same splits of a reduction: each element is added once."""
    with ln.Fusion("k") as f:
        x = f.input("x", (15,), ln.float32)
        y = f.output(ln.sum(x), "y")
    y.split(0, 6).split(0, 2).split(2, 4)
    assert_computes(f, random(15))


def test_rule_36_a_hole_that_another_test_covers_needs_none() -> None:
    """Splits of the outer axis: where the first index is tested, so are the later ones."""
    f, y = doubled("N")
    y.split(0, 4).split(0, 8).split(0, 3)
    assert nest(f).count("if") == 1
    assert "if i0 * 96 + i1 * 32 + i2 * 4 + i3 < N:" in nest(f)
    assert sorted(visits(f, N=37)) == [(i,) for i in range(37)]


def test_rule_36_a_hole_behind_a_split_that_divides_is_tested() -> None:
    """N is divisible by 4, N // 4 need not be by 3."""
    f, y = doubled("N", fact="N % 4 == 0")
    y.split(0, 4).split(0, 3)
    assert "if i0 * 3 + i1 < N // 4:" in nest(f)
    assert sorted(visits(f, N=16)) == [(i,) for i in range(16)]


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("first", [1, 4, 5, 7])
@pytest.mark.parametrize("second", [2, 3])
@pytest.mark.parametrize("extent", [1, 6, 13])
def test_rule_36_each_point_is_visited_once(
    extent: int, second: int, first: int, inner: bool
) -> None:
    """Splits of splits, inner and outer, static and symbolic: every point once."""
    for shape, sizes in (((extent,), {}), (("N",), {"N": extent})):
        f, y = doubled(*shape)
        y.split(0, first, inner=inner).split(0, second).split(2, second, inner=not inner)
        assert sorted(visits(f, **sizes)) == [(i,) for i in range(extent)]


def test_rule_36_holes_of_a_merge_of_splits() -> None:
    """A merged axis that is split again: the holes of both splits are tested."""
    f, y = doubled("N", "M")
    y.split(0, 4).split(2, 3).merge(1, 2).split(1, 5)
    found = visits(f, N=6, M=4)
    assert sorted(found) == list(itertools.product(range(6), range(4)))


def test_rule_36_a_vectorized_axis_must_divide() -> None:
    """Where static sizes show that it never does, lowering raises."""
    f, y = doubled(10)
    y.split(0, 4).axis(1).parallelize(PT.vectorize)
    with pytest.raises(
        ln.LoweringError,
        match=r"^y: its vectorized axis of extent 4 runs over 10 elements, which 4 does not "
        r"divide; a vectorized axis must divide: choose another factor$",
    ):
        program(f)


def test_rule_36_a_vectorized_axis_of_a_symbolic_size_lowers() -> None:
    """Where sizes are symbolic, the variant is chosen at run time; both compute the math."""
    f, y = doubled("N", "M")
    y.split(1, 4).axis(2).parallelize(PT.vectorize)
    kernel = ln.lower(f)
    for columns, variant in ((8, "vector"), (10, "scalar")):
        assert kernel.launch(N=3, M=columns).variant == variant
        assert_computes(f, random(3, columns))


# 37: elimination, and unswitch


def test_rule_37_stores_to_outputs_keep_their_predicate_unless_it_is_proved() -> None:
    """A split that need not divide is tested; one that divides statically or by assumption not."""
    f, y = doubled("N")
    y.split(0, 4)
    assert "if i0 * 4 + i1 < N:" in nest(f)
    f, y = doubled("N", fact="N % 8 == 0")
    y.split(0, 4)
    assert "if" not in nest(f)
    f, y = doubled(12)
    y.split(0, 4)
    assert "if" not in nest(f)
    f, y = doubled(12)
    y.split(0, 5)
    assert "if i0 * 5 + i1 < 12:" in nest(f)


def test_rule_37_the_init_of_a_local_reduction_needs_no_predicate() -> None:
    """The identity is stored without a test; what reads x, and the output, are tested."""
    with ln.Fusion("row_sum") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = ln.sum(x, axis=1)
        f.output(y, "y")
    t = y.cache_before()
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    t.compute_at(y, 2)
    name = t.name
    assert nest(f) == body(f"""
        for i0 in ceildiv(N, 4):  # grid_x
          for i1 in 4:  # block_y
            {name}: float32[1] local
            {name}[0] = 0.0
            if i0 * 4 + i1 < N:
              for i2 in D:
                {name}[0] = {name}[0] + x[i0 * 4 + i1, i2]
              y[i0 * 4 + i1] = {name}[0]
    """)
    assert_computes(f, random(6, 5))


def test_rule_37_the_init_of_an_output_is_tested() -> None:
    """A reduction that folds in the output's own memory must not store outside of it."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(0, 4)
    assert loops(f)[:4] == ["for ceildiv(N, 4)", "  for 4", "    if i0 * 4 + i1 < N", "      y"]
    assert_computes(f, random(6, 5))


def test_rule_37_a_sum_before_a_max_keeps_its_predicate() -> None:
    """Padded partial sums hold 0: the maximum of negative sums must not see them."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D", "K"), ln.float32)
        partial = ln.sum(x, axis=2)
        y = f.output(ln.max(partial, axis=1), "y")
    y.split(1, 4)
    partial.compute_at(y, 2)
    assert_computes(f, -1.0 - np.abs(random(2, 5, 3)))


def test_rule_37_a_factored_reduction_over_padding_holds_the_identity() -> None:
    """rfactor over a split that does not divide: a lane without elements gives the identity."""
    for fold in (ln.sum, ln.max, ln.min, ln.prod):
        with ln.Fusion("k") as f:
            x = f.input("x", ("N", "D"), ln.float32)
            y = f.output(fold(x, axis=1), "y")
        y.split(1, 4)
        partial = y.rfactor(1)
        partial.compute_at(y, 1)
        assert_computes(f, -1.0 - np.abs(random(3, 6)))
        assert_computes(f, -1.0 - np.abs(random(3, 2)))


def test_rule_37_unswitch_tests_the_largest_index_once() -> None:
    """One test of the largest index picks a body without tests."""
    f, y = doubled("N", "M")
    y.split(1, 4).axis(2).parallelize(PT.unswitch)
    assert nest(f) == body("""
        for i0 in N:
          for i1 in ceildiv(M, 4):
            if i1 * 4 + 3 < M:
              for i2 in 4:  # unswitch
                y[i0, i1 * 4 + i2] = x[i0, i1 * 4 + i2] * 2.0
            else:
              for i2 in 4:  # unswitch
                if i1 * 4 + i2 < M:
                  y[i0, i1 * 4 + i2] = x[i0, i1 * 4 + i2] * 2.0
    """)
    assert_computes(f, random(3, 6))


def test_rule_37_unswitch_covers_the_loops_inside() -> None:
    """The largest index of every loop inside is taken."""
    f, y = doubled("N")
    y.split(0, 4).split(0, 8).axis(1).parallelize(PT.unswitch)
    assert "  if i0 * 32 + 31 < N" in nest(f)
    assert_computes(f, random(70))


@pytest.mark.parametrize("place", [1, 2])
def test_rule_37_unswitch_covers_loops_of_unknown_extents(place: int) -> None:
    """An index grows by a quotient of sizes, around the region or in it."""
    f, y = doubled("N")
    y.split(0, 4)
    y.split(0, 3, inner=False)  # index (i0 * ceildiv(ceildiv(N, 4), 3) + i1) * 4 + i2
    y.axis(place).parallelize(PT.unswitch)
    size = "ceildiv(ceildiv(N, 4), 3)"
    largest = {1: f"i0 * {size} * 4 + {size} * 4 - 1", 2: f"i0 * {size} * 4 + i1 * 4 + 3"}
    assert f"if {largest[place]} < N:" in nest(f)
    for n in (0, 1, 11, 12, 13, 40):
        assert_computes(f, random(n))


def test_rule_37_unswitch_has_no_else_where_the_guard_is_trivially_true() -> None:
    """Without tests inside there is one body."""
    f, y = doubled(16)
    y.split(0, 4).axis(1).parallelize(PT.unswitch)
    assert loops(f) == ["for 4", "  for 4", "    y"]
    assert "else" not in nest(f)


def test_rule_37_unswitch_keeps_one_body_where_the_guard_never_holds() -> None:
    """A hole that every block has (6 split by 4) leaves nothing to unswitch."""
    f, y = doubled(12)
    y.split(0, 6).split(1, 4).axis(1).parallelize(PT.unswitch)
    assert nest(f).count("y[") == 1
    assert sorted(visits(f)) == [(i,) for i in range(12)]


@pytest.mark.parametrize("inside", [True, False], ids=["thread loop inside", "outside"])
def test_rule_37_unswitch_tests_thread_indices_not_their_maximum(inside: bool) -> None:
    """Each thread tests its own number, be the thread's loop inside or outside of the test."""
    f, y = doubled("N")
    y.split(0, 128).split(1, 32)
    if not inside:
        y.reorder({1: 2})
    y.parallelize({0: PT.grid_x, 2 - inside: PT.unswitch, 1 + inside: PT.block_x})
    thread = "block_x" if inside else "i1"
    assert f"if i0 * 128 + {thread} + 96 < N:" in nest(f)
    assert_computes(f, random(300))
    assert_computes(f, random(97))


# 38, 39: threads


def test_rule_38_a_global_tensor_without_a_launch_dimension_is_written_by_one_thread() -> None:
    """z does not use block_x: thread 0 of each block writes it."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        u = f.input("u", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
        z = f.output(u * 2.0, "z")
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    z.parallelize({0: PT.grid_x})
    assert nest(f).splitlines()[3:] == [
        "if block_x == 0:",
        "  for i2 in N:  # grid_x",
        "    z[i2] = u[i2] * 2.0",
    ]
    assert_computes(f, random(3, 4), random(3))


def test_rule_38_threads_reduce_together_and_one_stores() -> None:
    """Every thread has the sum after the exchange; thread 0 writes it to GLOBAL memory."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 32), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    lines = nest(f).splitlines()
    assert lines[-2:] == ["  if block_x == 0:", "    y[i0] = v10"]
    assert "  v10 = sum(y_acc[0]) over block_x:" in lines
    assert_computes(f, random(5, 32))


def producer_and_consumer(
    produced: dict[int, ln.ParallelType], consumed: dict[int, ln.ParallelType]
) -> tuple[ln.Fusion, ln.TensorView]:
    """Return T1 and y = T1 + 2 over (4, 8), each in its own nest with its own threads."""
    with ln.Fusion("k") as f:
        x = f.input("x", (4, 8), ln.float32)
        t1 = x + 1.0
        y = f.output(t1 + 2.0, "y")
    t1.parallelize(produced)
    y.parallelize(consumed)
    return f, t1


def test_rule_39_the_same_thread_reads_its_own_value() -> None:
    """Threads bound to the same axis of both: each keeps its own elements, in a local buffer."""
    f, t1 = producer_and_consumer({1: PT.block_x}, {1: PT.block_x})
    assert t1.memory is ln.LOCAL
    assert "T1: float32[4] local" in nest(f)
    assert_computes(f, random(4, 8))


@pytest.mark.parametrize(
    ("produced", "consumed"),
    [
        ({1: PT.block_x}, {1: PT.block_y}),
        ({1: PT.block_x}, {0: PT.block_x}),
        ({1: PT.block_x}, {}),
        ({0: PT.grid_x}, {1: PT.grid_x}),
    ],
)
def test_rule_39_reading_another_threads_local_value_raises(
    produced: dict[int, ln.ParallelType], consumed: dict[int, ln.ParallelType]
) -> None:
    """Where producer and consumer are bound to different axes, the value would cross threads."""
    f, _ = producer_and_consumer(produced, consumed)
    with pytest.raises(
        ln.LoweringError,
        match=r"^y reads T1 \(local\): along (block|grid)_. \(T1.i\d(, y.i\d)?\) the reading "
        r"thread is not the writing one; compute T1 at a position in y that holds the (block|grid)"
        r"_. loop, bind the same axis of both to it, or set its memory to (SHARED or )?GLOBAL$",
    ):
        program(f)


def test_rule_39_a_value_that_every_thread_computes_crosses_nothing() -> None:
    """A local producer that uses no thread is computed by each."""
    f, _ = producer_and_consumer({}, {1: PT.block_x})
    assert "T1: float32[4, 8] local" in nest(f)
    assert_computes(f, random(4, 8))


def test_rule_39_the_inner_split_bound_to_threads() -> None:
    """Splits by another factor give other threads; by the same factor the same."""
    for factor, legal in ((4, True), (2, False)):
        f, t1 = producer_and_consumer({}, {})
        y = f["y"]
        y.split(1, 4).axis(2).parallelize(PT.block_x)
        t1.split(1, factor).axis(2).parallelize(PT.block_x)
        if legal:
            assert_computes(f, random(4, 8))
        else:
            with pytest.raises(ln.LoweringError, match="the reading thread is not the writing one"):
                program(f)


# 40: local buffers


def buffers(f: ln.Fusion) -> dict[str, str]:
    """Return the local buffers: name -> shape."""
    return {
        b.name: ", ".join(str(s) for s in b.shape) for b in lower(f).buffers if b.memory is ln.LOCAL
    }


def test_rule_40_a_local_buffer_holds_the_axes_right_of_the_position() -> None:
    """Position 1 of [I, 2, 4]: the buffer is [2, 4]; fully inlined it is one element."""
    f, y = doubled("I", 8)
    t = y.cache_before()
    y.split(1, 4)
    t.split(1, 4)
    for pos, shape in enumerate(("2, 4", "4", "1"), 1):
        t.compute_at(y, pos)
        assert buffers(f) == {t.name: shape}


def test_rule_40_a_local_buffer_has_no_thread_axes() -> None:
    """Each thread has its own: axes bound to launch dimensions take no room."""
    f, y = doubled("I", 8)
    t = y.cache_before()
    y.split(1, 4)
    t.split(1, 4).axis(2).parallelize(PT.block_x)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    t.compute_at(y, 1)
    assert buffers(f) == {t.name: "2"}
    assert_computes(f, random(3, 8))


def test_rule_40_a_local_buffer_has_no_broadcast_and_no_reduction_axes() -> None:
    """[I, R, K] reduced over R at 1 holds K; its broadcast [I, b, K] holds K too."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", 3, 4), ln.float32)
        total = ln.sum(x, axis=1)
        kept = ln.broadcast(total, (False, True, False))
        y = f.output(x - kept, "y")
    y.reorder([0, 1, 2])
    total.compute_at(y, 1)
    assert buffers(f) == {"T1": "4", "T2": "4"}
    assert_computes(f, random(2, 3, 4))


def test_rule_40_a_16_bit_reduction_folds_in_float32() -> None:
    """The accumulator is a local float32 buffer of its own; the result is rounded once."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float16)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(0, 4)
    assert buffers(f) == {"y_acc": "1"}
    assert_computes(f, random(5, 300, dtype=np.float16))


def test_rule_40_a_local_buffer_of_symbolic_size_lowers() -> None:
    """It is allocated in each thread by targets that can."""
    f, y = doubled("I", "J")
    t = y.cache_before()
    t.compute_at(y, 1)
    assert buffers(f) == {t.name: "J"}
    assert_computes(f, random(2, 3))


def test_unswitch_of_extent_one_opens_the_region() -> None:
    with ln.Fusion("scaled") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
    y.split(0, 4).split(0, 1)
    y.axis(1).parallelize(ln.ParallelType.unswitch)
    assert str(ln.lower(f)).split("\n", 2)[2] == (
        "for i0 in ceildiv(N, 4):\n"
        "  if i0 * 4 + 3 < N:\n"
        "    for i1 in 1:  # unswitch\n"
        "      for i2 in 4:\n"
        "        y[i0 * 4 + i2] = x[i0 * 4 + i2] * 2.0\n"
        "  else:\n"
        "    for i1 in 1:  # unswitch\n"
        "      for i2 in 4:\n"
        "        if i0 * 4 + i2 < N:\n"
        "          y[i0 * 4 + i2] = x[i0 * 4 + i2] * 2.0"
    )
    assert ln.verify(ln.lower(f)).ok


@pytest.mark.parametrize("length", [1, 2, 3, 13])
def test_the_test_in_front_of_an_empty_loop_divides_by_none_of_its_parts(length: int) -> None:
    """Where a merged loop has no iteration, the test that unswitch puts before it is made."""
    with ln.Fusion("thirds") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        y = f.output((x * 2.0)[::2, 1::3], "y")
    y.split(0, 4)
    y.merge(1, 2)
    y.axis(1).parallelize(PT.unswitch)
    f.inline_most()
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    assert ln.verify(kernel, N=length).ok
    data = random(length, length)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(kernel, target=target)(data), 2 * data[::2, 1::3])
