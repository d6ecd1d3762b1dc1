"""Tiles with halo: what a producer becomes in the loops of consumers that read it in windows."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.schedule_run import leaf, positions
from loopnest.scalar.expr import ONE, Coordinate, Index, integer
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.replay import shared_positions
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.overlapping_tiles import Overlap, overlaps


def chain(make, sizes=("N",)):  # type: ignore[no-untyped-def]
    """Return a fusion of ``y = make(exp(x)) + 1``, its ``exp(x)``, and y."""
    with ln.Fusion("k") as f:
        t = ln.exp(f.input("x", sizes, ln.float32))
        y = f.output(make(t) + 1.0, "y")
    return f, t, y


def tile(t: ln.TensorView) -> tuple[list[str], list[str], list[int]]:
    """Return the bases, extents and steps of the tiles of a tensor; $j is loop j."""
    (step,) = overlaps(t.domain.history)
    bases = [str(base).replace("#", "$") for base in step.bases]
    return bases, [str(e) for e in step.extents], list(step.steps)


def test_the_indices_of_a_tile_cross_both_ways() -> None:
    algebra = Simplifier()
    outer, inner = Index("o", integer(9)), Index("i", integer(19))
    base = algebra.sub(algebra.mul(Coordinate(0), integer(16)), integer(1))
    step = Overlap([IterDomain(integer(100))], [integer(9)], [base], [3], [integer(19)])
    (element,) = step.backward([outer, inner], algebra)
    assert algebra.equal(element, algebra.sum([
        algebra.mul(outer, integer(16)), algebra.mul(inner, integer(3)), integer(-1),
    ]))  # fmt: skip
    assert step.forward([element, outer], algebra) == (outer, inner)
    assert [step.sources(axis) for axis in step.outputs] == [(), step.inputs]
    again = step.replay([IterDomain(integer(100))], algebra)
    assert again.key == step.key
    assert again.outer[0] is not step.outer[0]
    assert step.overshoots(algebra) == step.undershoots(algebra) == step.inputs


READS = {
    "neighbours": (lambda t: t[2:] - t[:-2], ["$0 * 8"], ["10"], [1]),
    "border": (lambda t: ln.pad(t, ((1, 1),)), ["$0 * 8 - 1"], ["8"], [1]),
    "every second": (lambda t: t[3::2], ["$0 * 16 + 3"], ["8"], [2]),
    "backwards": (lambda t: t[::-1], ["$0 * -8 + N - 8"], ["8"], [1]),
    "dilated": (lambda t: ln.sum(ln.unfold(t, 0, 3, stride=2, dilation=5), 1),
                ["$0 * 16"], ["25"], [1]),
    "spread": (lambda t: ln.pad(t, ((0, 0),), interior=1), ["$0 * 4"], ["4"], [1]),
    "read twice": (lambda t: t * 2 + ln.pad(t[1:], ((0, 1),)), ["$0 * 8"], ["9"], [1]),
    "joined": (lambda t: ln.concatenate([t * 1, t]), ["$0 * 8 - N"], ["N + 8"], [1]),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_a_tile_is_the_hull_of_what_is_read(name: str) -> None:
    make, bases, extents, steps = READS[name]
    _, t, y = chain(make)
    y.split(0, 8)
    if name == "joined":
        t = next(c for c in t.consumers if c.definition.op == "concatenate").producers[1]
    t.compute_at(y, 1)
    if name != "joined":
        assert tile(t) == (bases, extents, steps)
    assert t.compute_at_pos == 1


def test_three_stencils_in_a_row_have_three_tiles() -> None:
    def stencil(t: ln.TensorView) -> ln.TensorView:
        return t[:-2] + t[1:-1] + t[2:]

    with ln.Fusion("k") as f:
        t1 = ln.exp(f.input("x", ("N", "M"), ln.float32))
        t2 = stencil(t1)
        t3 = stencil(t2)
        y = f.output(stencil(t3), "y")
    y.split(0, 8)
    t1.compute_at(y, 1)
    tiles = "i:ceildiv(N - 6, 8) i:{} i:M"
    assert [leaf(t) for t in (t1, t2, t3, y)] == [tiles.format(n) for n in (14, 12, 10, 8)]
    assert positions(t1, t2, t3, y) == (1, 1, 1, 0)


def test_an_axis_that_is_read_as_it_is_stays_what_it_was() -> None:
    """Unless it has a loop in common with one that is not."""
    _, t, y = chain(lambda t: t[:, 1:] * t[:, :-1], ("N", "M"))
    y.split(0, 2).split(2, 4)
    t.compute_at(y, 3)
    assert leaf(t) == "i:ceildiv(N, 2) i:2 i:ceildiv(M - 1, 4) i:5"
    _, t, y = chain(lambda t: t[:, 1:] * t[:, :-1], ("N", "M"))
    y.split(1, 4).merge(0)
    t.compute_at(y, 1)
    assert leaf(t) == "i:N * ceildiv(M - 1, 4) i:1 i:5"
    rows = "$0 // ceildiv(M - 1, 4)"
    assert tile(t)[0] == [rows, "$0 % ceildiv(M - 1, 4) * 4"]


def test_a_deeper_position_makes_smaller_tiles() -> None:
    """A position in front of the present one changes nothing."""
    _, t, y = chain(lambda t: t[2:] - t[:-2])
    y.split(0, 8)
    t.compute_at(y, 1)
    assert leaf(t) == "i:ceildiv(N - 2, 8) i:10"
    t.compute_at(y, 2)
    assert leaf(t) == "i:ceildiv(N - 2, 8) i:8 i:2"
    domain = t.domain
    t.compute_at(y, 1)
    assert t.domain is domain
    assert shared_positions(t, y.producers[0].producers[0]) == (0, 1)


def test_a_replay_of_a_producer_crosses_windows() -> None:
    """That of a consumer does not: a tile follows from what reads it."""
    _, t, y = chain(lambda t: t[2:])
    part = y.producers[0]
    part.split(0, 8)
    domain, pos = ln.replay_pasc(t, part, 1)
    assert ([str(axis.size) for axis in domain.leaf], pos) == (["ceildiv(N - 2, 8)", "8"], 1)
    assert leaf(t) == "i:N"
    t.compute_at(part, 1)
    assert ln.replay_casp(part, t, 1)[0] is part.domain


def test_inline_at_computes_an_element_a_read() -> None:
    with ln.Fusion("k") as f:
        t = ln.exp(f.input("x", ("N",), ln.float32))
        border = ln.pad(t, ((1, 1),))
        windows = ln.unfold(border, 0, 3)
        f.output(ln.sum(windows, 1), "y")
    border.inline_at(-1)
    assert (leaf(border), border.compute_at_pos) == ("i:N i:3 i:1", 2)
    t.inline_at(1)
    assert (leaf(t), t.compute_at_pos) == ("i:N i:3 i:1 i:1", 3)


def test_inline_most_computes_elements_again_but_no_tiles() -> None:
    """What a consumer reads once in an iteration is inlined; reductions are not."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        t = ln.exp(x)
        total = ln.sum(x, 1)
        y = f.output(t[1:, 0] + total[1:], "y")
        z = f.output(x * 2 + ln.pad((x * 3)[1:] - (x * 3)[:-1], ((0, 1), (0, 0))), "z")
        f.inline_most()
    assert t.compute_at_pos == 1
    assert total.compute_at_pos == 0
    assert y.ndim == 1
    assert z.ndim == 2


def test_what_is_needed_as_a_whole_is_cloned() -> None:
    """z reads all of t: it cannot stand in the loops of y's tiles, a clone can."""
    with ln.Fusion("k") as f:
        t = ln.exp(f.input("x", ("N",), ln.float32))
        y = f.output(t[1:] + 1.0, "y")
        f.output(t * 2.0, "z")
    y.split(0, 8)
    before = leaf(t)
    with pytest.raises(ln.ScheduleError) as caught:
        t.compute_at(y, 1)
    assert str(caught.value) == (
        "T1.compute_at(y, 1): T1 would share 1 loops with z, but only 0 of their leading axes "
        "correspond ([i0, i1] and [i0]), so T1 would have to be recomputed; pass recompute=True "
        "to clone it for the consumers that cannot share"
    )
    assert leaf(t) == before
    t.compute_at(y, 1, recompute=True)
    assert leaf(t) == "i:ceildiv(N - 1, 8) i:8"
    assert [leaf(clone) for clone in t.clones] == ["i:N"]


@pytest.mark.parametrize("call", ["s.compute_at(y, 1)", "u.compute_at(y, 1); s.inline_at(1)"])
def test_an_output_has_not_the_tiles_of_what_reads_it(call: str) -> None:
    with ln.Fusion("k") as f:
        s = f.output(ln.exp(f.input("x", ("N", "M"), ln.float32)), "s")
        u = s * 2.0
        y = f.output(u[1:] + 1.0, "y")
    with pytest.raises(ln.ScheduleError, match="s is an output, each element of which is"):
        exec(call, {"s": s, "u": u, "y": y})
    assert leaf(s) == "i:N i:M"
    assert ln.verify(ln.lower(f)).all_sizes


def test_an_output_and_a_scan_have_no_tiles() -> None:
    with ln.Fusion("k") as f:
        t = f.output(ln.exp(f.input("x", ("N",), ln.float32)), "t")
        y = f.output(t[1:] + 1.0, "y")
    with pytest.raises(ln.ScheduleError) as caught:
        t.compute_at(y, 1)
    assert str(caught.value) == (
        "t.compute_at(y, 1): t is an output, each element of which is stored once, and its "
        "consumers read it in windows: the tiles that their loops need overlap, and may leave "
        "some out; let t.cache_fork() make the output a copy, or use a position in front of "
        "the windows"
    )
    with ln.Fusion("k") as g:
        s = ln.cumsum(g.input("x", ("N", "M"), ln.float32), 0)
        y = g.output(s[2:, 1:] - s[:-2, :-1], "y")
    with pytest.raises(ln.ScheduleError) as caught:
        s.compute_at(y, 1)
    assert str(caught.value) == (
        "T1.compute_at(y, 1): T1 is a scan along an axis that its consumers read in windows, and "
        "a tile of it needs all elements before; use a position in front of the windows"
    )
    assert s.ndim == 2
    y.reorder([1, 0])
    s.compute_at(y, 1)
    assert leaf(s) == "i:M - 1 i:N i:2"


def test_a_loop_over_more_than_its_axis_tells_no_tile() -> None:
    """A row that is repeated: the merged loop says which row, not where in it."""
    with ln.Fusion("k") as f:
        t = ln.exp(f.input("x", ("M",), ln.float32))
        part = t[1:] * 2.0
        y = f.output(
            ln.broadcast(part, (True, False)) + f.input("z", ("N", "M"), ln.float32)[:, 1:]
        )
    y.merge(0).split(0, 4)
    t.compute_at(y, 1)
    for step in overlaps(t.domain.history):
        assert not step.used()
    assert ONE is integer(1)


def test_what_is_placed_inside_of_a_tile_keeps_its_loops() -> None:
    """A tensor computed in loops that would become others is named."""
    with ln.Fusion("k") as f:
        t1 = f.input("x", ("N",), ln.float32) * 2.0
        t2 = ln.exp(t1)
        y = f.output(t2[1:] - t2[:-1], "y")
    y.split(0, 8)
    t2.compute_at(y, 1)
    t1.inline_at(0)
    t1.compute_at(t2, 2)
    with pytest.raises(ln.ScheduleError) as caught:
        t2.compute_at(y, 2)
    assert "is computed in the loops of T2 already, which the call would replace" in str(
        caught.value
    ) or "it would change the leading 2 loops of T2" in str(caught.value)
    assert leaf(t2) == "i:ceildiv(N - 1, 8) i:9"


@pytest.mark.parametrize("windows", ["pooled", "shifted"])
def test_a_merge_with_an_axis_of_one_element_crosses_windows(windows: str) -> None:
    with ln.Fusion("k") as f:
        t = ln.exp(f.input("x", ("H", "W"), ln.float32))
        b = t[None, :, :]
        pooled = ln.max(ln.unfold(ln.unfold(b, 1, 2, stride=2), 2, 2, stride=2), axis=(3, 4))
        y = f.output(pooled if windows == "pooled" else b[:, 1:, 1:] + b[:, :-1, :-1], "y")
    y.merge(0)
    y.split(1, 4)
    t.compute_at(y, 2)
    assert t.compute_at_pos == 2
    assert leaf(t).endswith(" i:2 i:8" if windows == "pooled" else " i:2 i:5")
    assert ln.verify(ln.lower(f)).all_sizes


def test_tiles_under_a_loop_that_repeats_them_are_those_of_the_whole_chain() -> None:
    with ln.Fusion("k") as f:
        t = ln.exp(f.input("x", (9, 11), ln.float32))
        u = t * 2.0
        p = u[1:, 1:] + u[:-1, :-1]
        y = f.output(p[None] * f.input("w", ("J", 8, 10), ln.float32), "y")
    y.merge(0)  # of J and the rows of p: a loop tells no row
    y.split(1, 4)
    t.compute_at(y, 2)
    assert leaf(t) == leaf(u) == "i:8 i:3 i:9 i:5"
    assert positions(t, u) == (2, 2)
    assert ln.verify(ln.lower(f)).ok


def test_what_a_tile_is_read_from_has_all_tiles_of_its_loops() -> None:
    """Where a copy shares fewer loops than its reader, one tile of it is 8 of its reader's."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.max(ln.unfold(x, 0, 2, dilation=2), -1), "y")
    inner = x.cache_after()
    outer = inner.cache_before()
    y.split(0, 8)
    inner.compute_at(y, 2)
    outer.compute_at(y, 1)
    assert leaf(inner) == "i:ceildiv(N - 2, 8) i:8 i:2"
    assert leaf(outer) == "i:ceildiv(N - 2, 8) i:10"
    f.inline_most()
    assert ln.verify(ln.lower(f)).all_sizes


def test_a_part_is_kept_of_what_no_other_consumer_reads_whole() -> None:
    """The copy is read in a part by y, whose loops reach it first, and whole by z."""
    with ln.Fusion("k") as f:
        x = f.input("x", (3, "N"), ln.float32)
        y = f.output(x[:, -3:-1] + 1.0, "y")
        z = f.output(x * 2.0, "z")
    copy = x.cache_after()
    copy.compute_at(y, 1)
    assert leaf(copy) == "i:3 i:N"
    assert positions(copy) == (1,)
    assert z.produced_at_pos == 1
    assert ln.verify(ln.lower(f)).all_sizes


def test_windows_of_two_tensors_that_were_split_differently_are_refused():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.int16)
        t = ln.pad(x, [(1, 1)])
        u = ln.unfold(t, 0, 2, stride=3, dilation=2)
        y = f.output(ln.max(u, -1), "y")
    u.cache_after()
    y.split(1, 3)
    y.rfactor(2)
    with pytest.raises(ln.ScheduleError) as caught:
        t.compute_at(y, -1)
    assert str(caught.value) == (
        "T1.compute_at(y, -1): y and T5 read windows along a loop that they would share, but "
        "each splits it in another way, so a tensor would have to be recomputed; pass "
        "recompute=True to clone it for the consumers that cannot share"
    )
    f.inline_most()
