"""The rules of inlining, of the order of expressions, and of what a shared loop runs over."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.schedule_run import (
    PT,
    assert_computes,
    body,
    chain,
    leaf,
    loops,
    nest,
    positions,
    program,
    random,
    refused,
    state,
)
from loopnest import kir

# 30, 31: inline_most and inline_at


def test_rule_30_inline_most_stops_at_a_permutation() -> None:
    """sin, cos, permute(1, 2), exp, tanh on [2, 3, 4]: 3, 1, 3, 3, and 0 for the last."""
    with ln.Fusion("k") as f:
        x = f.input("x", (2, 3, 4), ln.float32)
        y = ln.tanh(ln.exp(ln.permute(ln.cos(ln.sin(x)), (0, 2, 1))))
        f.output(y, "y")
    f.inline_most()
    assert positions(*f.tensors[1:]) == (3, 1, 3, 3, 0)
    assert_computes(f, random(2, 3, 4))


def test_rule_30_inline_most_stops_at_a_merge() -> None:
    """A straight chain of five with T3.merge(1): 3, 1, 1, 3, 0."""
    f, tensors = chain(2, 3, 4, length=5)
    tensors[2].merge(1)
    f.inline_most()
    assert positions(*tensors) == (3, 1, 1, 3, 0)
    assert_computes(f, random(2, 3, 4))


def test_rule_30_inline_most_of_some_tensors() -> None:
    """Only the tensors that are given get positions."""
    f, (t1, t2, t3, y) = chain("I", "J", length=4)
    ln.inline_most([t1, t3])
    assert positions(t1, t2, t3, y) == (2, 0, 2, 0)
    with f:
        ln.inline_most()
    assert positions(t1, t2, t3, y) == (2, 2, 2, 0)


def test_rule_30_inline_most_needs_a_fusion() -> None:
    """Without tensors it takes those of the current fusion."""
    with refused("inline_most(): no fusion is current; call it inside `with`, or give tensors"):
        ln.inline_most()


@pytest.mark.parametrize("on_producer", [True, False], ids=["producer", "consumer"])
@pytest.mark.parametrize("how", ["vectorize", "unroll", "pinned"])
def test_rule_31_inline_most_never_passes_these_axes(how: str, on_producer: bool) -> None:
    """A vectorized, unrolled or pinned axis is never shared, be it of producer or consumer."""
    f, (t1, y) = chain(4, 8, 4, length=2)
    holder = t1 if on_producer else y
    if how == "pinned":
        holder.axis(1).pin()
    else:
        holder.axis(2).parallelize(PT[how])
    f.inline_most()
    assert positions(t1) == ((1,) if how == "pinned" else (2,))


@pytest.mark.parametrize("on_producer", [True, False], ids=["producer", "consumer"])
@pytest.mark.parametrize(("how", "limit"), [("vectorize", 2), ("unroll", 3), ("pinned", 1)])
def test_rule_31_strict_inlining_raises_where_best_effort_clamps(
    how: str, limit: int, on_producer: bool
) -> None:
    """inline_at beyond the largest legal position raises; it may pass an unrolled axis."""
    f, (t1, y) = chain(4, 8, 4, length=2)
    holder = t1 if on_producer else y
    if how == "pinned":
        holder.axis(1).pin()
    else:
        holder.axis(2).parallelize(PT[how])
    before = state(f)
    if limit < 3:
        number, done = (1, "pinned") if how == "pinned" else (2, "vectorized")
        with refused(
            f"T1.inline_at(-1): position 3 lies past axis {number} of {holder.name}, "
            f"which is {done}; the largest legal position is {limit}"
        ):
            t1.inline_at(-1)
        assert state(f) == before
    t1.inline_at(limit)
    assert positions(t1) == (limit,)


def test_rule_31_compute_at_past_a_pinned_or_vectorized_axis_raises() -> None:
    """A position past such an axis, of the target or of a tensor on the way, raises."""
    f, (t1, t2, y) = chain("I", "J", 4, length=3)
    y.axis(2).parallelize(PT.vectorize)
    before = state(f)
    with refused(
        "T1.compute_at(y, 3): position 3 lies past axis 2 of y, which is vectorized; "
        "use a position up to 2"
    ):
        t1.compute_at(y, 3)
    assert state(f) == before
    t2.axis(1).pin()
    before = state(f)
    with refused(
        "T1.compute_at(y, 2): T2 would be inlined past axis 1 of T2, which is pinned; "
        "use a smaller position"
    ):
        t1.compute_at(y, 2)
    assert state(f) == before
    t1.compute_at(y, 1)
    assert positions(t1, t2) == (1, 1)


# 33, 34: the order of expressions


def test_rule_33_the_deeper_sharer_stands_next_to_its_consumer() -> None:
    """T4 = T3 + T2, T3 sharing i, j, k and T2 only i, j: the only legal order is T2, T3, T4."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J", "K"), ln.float32)
        t3 = (x * 3.0).named("t3")
        t2 = (x * 2.0).named("t2")
        y = f.output(t3 + t2, "y")
    t3.compute_at(y, 3)
    t2.compute_at(y, 2)
    assert positions(t3, t2) == (3, 2)
    assert loops(f) == [
        "for I", "  for J", "    for K", "      t2", "    for K", "      t3", "      y"
    ]  # fmt: skip
    assert_computes(f, random(2, 3, 4))


def test_rule_33_groups_that_need_each_other_raise_with_names_and_positions() -> None:
    """T1 -> T2 -> T3 and T1 -> T3, T2 at 0: T1 inside T3's loop would hold T2's loop open."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = ln.exp(x)
        t2 = ln.sin(t1)
        t3 = f.output(t1 * t2, "y")
    before = state(f)
    conflict = "y reads T2 (compute_at_pos 0) inside a loop that still computes T2"
    with refused(f"T1.inline_at(1): {conflict}; the largest legal position is 0"):
        t1.inline_at(1)
    assert state(f) == before
    f.inline_most()
    assert positions(t1, t2, t3) == (2, 2, 0)
    assert_computes(f, random(2, 3))


def test_rule_33_inline_most_always_leaves_an_order() -> None:
    """A reduction between two uses: the producer's largest position depends on the others."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = ln.exp(x)
        total = ln.sum(t1, axis=0, keepdims=True)
        y = f.output(t1 / total, "y")
    f.inline_most()
    assert positions(t1, f["T2"], total, y) == (0, 0, 2, 0)
    assert_computes(f, random(3, 4))


def test_rule_33_the_order_does_not_depend_on_creation() -> None:
    """Consumers may be older than producers: the caches make such graphs."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        y = f.output(ln.exp(x), "y")
    t = y.cache_before().cache_before()
    assert [u.name for u in f.topological()] == ["x", t.name, "T2", "y"]
    f.inline_most()
    assert loops(f) == ["for I", "  for J", f"    {t.name}", "    T2", "    y"]
    assert_computes(f, random(3, 4))


def test_rule_34_zero_dimensional_tensors_live_in_kernel_scope_in_order() -> None:
    """Sum, mean and their use: the scalars stand between the loops that make and read them."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        s = f.input("s", (), ln.float32)
        total = ln.sum(x)
        scaled = ln.exp(total * s)
        y = f.output(x - scaled, "y")
    assert total.ndim == 2
    assert scaled.ndim == 0
    f.inline_most()
    assert positions(total, scaled) == (0, 0)
    assert nest(f) == body("""
        T2: float32[1] local
        T3: float32[1] local
        T4: float32[1] local
        T2[0] = 0.0
        for i0 in I:
          for i1 in J:
            T2[0] = T2[0] + x[i0, i1]
        T3[0] = T2[0] * s[0]
        T4[0] = exp(T3[0])
        for i2 in I:
          for i3 in J:
            T5: float32[1] local
            T5[0] = T4[0]
            y[i2, i3] = x[i2, i3] - T5[0]
    """)
    assert positions(y, f["T5"]) == (0, 2)
    assert_computes(f, random(2, 3), random())


def test_rule_34_a_zero_dimensional_output() -> None:
    """An output of shape () is one element."""
    with ln.Fusion("k") as f:
        x = f.input("x", (), ln.float32)
        f.output(ln.exp(x) + 1.0, "y")
    f.inline_most()
    assert loops(f) == ["T1", "y"]
    assert_computes(f, random())


# 35: what a shared loop runs over, and how


def launched(f: ln.Fusion) -> list[tuple[str, str]]:
    """Return the parallel type of each loop, and its extent, in order."""
    return [
        (node.parallel.value, str(node.extent))
        for node, _ in kir.walk(program(f).body)
        if isinstance(node, kir.Loop)
    ]


def test_rule_35_a_parallel_type_spreads_to_serial_mates() -> None:
    """Axes that share a loop share one parallel type, wherever it was set."""
    f, (t1, t2, y) = chain("I", 4, length=3)
    t1.compute_at(y, -1)
    t2.axis(0).parallelize(PT.grid_x)
    t1.axis(1).parallelize(PT.unroll)
    assert launched(f) == [("grid_x", "I"), ("unroll", "4")]
    assert y.axis(0).parallel is PT.serial
    assert_computes(f, random(3, 4))


def test_rule_35_two_types_in_one_loop_raise() -> None:
    """A shared loop cannot be two things."""
    f, (t1, y) = chain("I", 4, length=2)
    t1.compute_at(y, -1)
    t1.axis(0).parallelize(PT.grid_x)
    y.axis(0).parallelize(PT.grid_y)
    with pytest.raises(ln.LoweringError) as caught:
        program(f)
    assert str(caught.value) in {
        f"the loop of {a}.i0 and {b}.i0: it is {one} for the one and {two} for the other; "
        "axes that share a loop share one parallel type"
        for a, one, b, two in (("T1", "grid_x", "y", "grid_y"), ("y", "grid_y", "T1", "grid_x"))
    }


def test_rule_35_outside_the_prefix_the_types_may_differ_but_values_cross_threads() -> None:
    """c[i0, block_x] = p[i0, block_y] at 1: no loop has two types, yet p's values cross threads."""
    f, (t1, y) = chain("I", 4, length=2)
    t1.compute_at(y, 1)
    t1.axis(1).parallelize(PT.block_y)
    y.axis(1).parallelize(PT.block_x)
    with pytest.raises(ln.LoweringError, match=r"^y reads T1 \(local\): along block_"):
        program(f)


def test_rule_35_at_2_the_types_clash() -> None:
    """The same axes at position 2 share a loop."""
    f, (t1, y) = chain("I", 4, length=2)
    t1.compute_at(y, 2)
    t1.axis(1).parallelize(PT.block_y)
    y.axis(1).parallelize(PT.block_x)
    with pytest.raises(ln.LoweringError, match=r"axes that share a loop share one parallel type$"):
        program(f)


@pytest.mark.parametrize("factor", [None, 4])
@pytest.mark.parametrize("pos", [1, 2])
@pytest.mark.parametrize("inner", [True, False], ids=["y[I, J]", "y[J, I]"])
def test_rule_35_a_cached_copy_inlined_into_flattened_loops(
    inner: bool, pos: int, factor: int | None
) -> None:
    """x[I] and y[I, J] flattened and split by 4, with bc(x) and a cached copy of x inlined.

    No axis of the copy runs over I J: the loop group owns that domain, and every index follows
    from it. The broadcast may stand second or first in the merge.
    """
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        y = f.input("y", ("I", "J") if inner else ("J", "I"), ln.float32)
        z = f.output((ln.broadcast(x, (False, True)) if inner else x) + y, "z")
    copy = x.cache_after()
    z.merge(0)
    if factor:
        z.split(0, factor)
    copy.compute_at(z, min(pos, z.ndim))
    flat = "I * J" if inner else "J * I"
    assert leaf(z) == (f"i:ceildiv({flat}, 4) i:4" if factor else f"i:{flat}")
    assert leaf(copy) == ("i:ceildiv(I, 4) i:4" if factor else "i:I")
    assert positions(copy, f["T2"]) == (min(pos, z.ndim),) * 2
    assert loops(f)[0] == (f"for ceildiv({flat}, 4)" if factor else f"for {flat}")
    for rows, columns in ((3, 5), (4, 4), (1, 7), (6, 1)):
        assert_computes(f, random(rows), random(*((rows, columns) if inner else (columns, rows))))


@pytest.mark.parametrize("outer", [0, 1])
def test_rule_35_merges_in_either_order(outer: int) -> None:
    """Merged with the broadcast axis as the outer or the inner one."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        y = f.input("y", ("I", "J"), ln.float32)
        t = x * 2.0
        z = f.output(ln.broadcast(t, (False, True)) + y, "z")
    z.merge(outer, 1 - outer)
    t.compute_at(z, 1)
    assert leaf(z) == ("i:I * J" if outer == 0 else "i:J * I")
    assert leaf(t) == "i:I"
    assert_computes(f, random(3), random(3, 5))


def sibling_consumers(factor: int | None) -> tuple[ln.Fusion, ln.TensorView]:
    """Return t[I] read by z[I, J] and w[I, K] through broadcasts of their own, all flattened."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        u = f.input("u", ("I", "J"), ln.float32)
        v = f.input("v", ("I", "K"), ln.float32)
        t = (x * 2.0).named("t")
        b = ln.broadcast(t, (False, True)).named("b")
        c = ln.broadcast(t, (False, True)).named("c")
        f.output(b + u, "z")
        f.output(c + v, "w")
    for output in f.outputs:
        output.merge(0)
        if factor:
            output.split(0, factor)
    if factor:
        t.split(0, factor)
    b.compute_at(f["z"], -1)
    c.compute_at(f["w"], -1)
    return f, t


def test_rule_35_sibling_consumers_share_a_loop_that_no_tensor_has() -> None:
    """t[I] at 1 of z[I J] and of w[I K]: the shared loop runs over I, J and K."""
    f, t = sibling_consumers(None)
    t.inline_at(1)
    (extent,) = [line for line in loops(f) if line.lstrip().startswith("for")]
    assert all(name in extent for name in "IJK")
    assert_computes(f, random(3), random(3, 4), random(3, 2))
    assert_computes(f, random(2), random(2, 1), random(2, 5))


def test_rule_35_sibling_consumers_that_split_what_they_merged_raise() -> None:
    """Split blocks of I J and of I K hold different rows: there is no common domain."""
    f, t = sibling_consumers(4)
    t.inline_at(1)
    with pytest.raises(ln.LoweringError) as caught:
        program(f)
    assert str(caught.value) in {
        f"{a} and {b}: a loop that they share has no common domain: {a} splits an axis merged with "
        f"axes that {b} does not have; compute {a} and {b} in separate loops"
        for a, b in (("z", "w"), ("w", "z"))
    }


def test_rule_35_a_broadcast_right_of_the_position_is_one_element() -> None:
    """A broadcast axis that is in no shared loop does not run over the consumer's extent."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        z = f.input("z", ("I", "J"), ln.float32)
        t = (x * 2.0).named("t")
        b = ln.broadcast(t, (False, True)).named("b")
        y = f.output(b + z, "y")
    y.split(1, 4)
    b.compute_at(y, 2)
    assert leaf(b) == "i:I b:1 b:1"
    assert "b: float32[1] local" in nest(f)
    assert_computes(f, random(3), random(3, 6))
