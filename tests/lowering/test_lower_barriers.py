"""No barrier is superfluous: each mechanism by which lowering sees that one is not needed."""

from __future__ import annotations

import loopnest as ln
from loopnest import Fusion, ParallelType, kir
from loopnest.proofs import superfluous_barriers, verify, wide_barriers
from loopnest.scalar.enums import ParallelType as PT
from loopnest.scalar.facts import Facts
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.scalar.simplify import Simplifier


def barriers(f: Fusion) -> list[str]:
    """Return the scopes of the barriers, none of them superfluous, of a kernel that is proved."""
    k = ln.lower(f)
    assert superfluous_barriers(k) == []
    assert wide_barriers(k) == []
    report = verify(k)
    assert report.ok, f"{k}\n{report}"
    return [node.scope for node, _ in k.walk() if isinstance(node, kir.Barrier)]


def test_the_first_thread_alone_may_use_a_space_for_two_buffers() -> None:
    """One buffer lies in the space of another: both are stored and read by thread 0."""
    with ln.Fusion("k") as f:
        x = f.input("x", (5, "N"), ln.float32)
        a = x * 2.0
        f.output(a + 1.0, "y")
        b = ln.abs(x)
        f.output(b + 1.0, "z")
        w = f.output(x * x, "w")
    a.memory = b.memory = ln.SHARED
    w.axis(0).parallelize(PT.block_x)
    assert [b.alias_of for b in ln.lower(f).buffers if b.memory is ln.SHARED] == [None, "T1"]
    assert barriers(f) == []


def test_the_last_block_reads_what_it_has_stored() -> None:
    """One block goes on alone: no barrier of the grid before it reads its own result."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.max(x, axis=0), "y")
        f.output(y + 1.0, "z")
    y.axis(0).parallelize(PT.grid_x)
    assert barriers(f) == []
    assert not ln.lower(f).program.is_cooperative


def test_a_dimension_of_at_most_one_needs_no_barrier() -> None:
    """N elements in rows of 2 * N: one block has them all."""
    with ln.Fusion("k") as f:
        x = f.input("x", (8, "N"), ln.float32)
        t = ln.silu(ln.sum(x, axis=0))
        y = f.output(t - ln.max(t, axis=0, keepdims=True), "y")
    y.split(-1, 2)
    y.split(0, "N")
    ln.propagate(y)
    f.inline_most()
    y.axis(0).parallelize(PT.grid_x)
    ln.parallelize_like(y)
    assert "_blocks" in str(ln.lower(f))  # the blocks still leave their parts there
    assert barriers(f) == []


def test_a_remainder_under_its_test_is_no_remainder() -> None:
    """Stored at ``i % M`` and read at ``i``, both where ``i < M``: one thread."""
    with ln.Fusion("k") as f:
        x = f.input("x", (1, "M"), ln.float32)
        t = f.output(ln.exp(x), "t")
        y = f.output(t / ln.sum(t, axis=0, keepdims=True), "y")
    y.merge(0)
    y.split(0, 4)
    ln.propagate(y)
    f.inline_most()
    y.axis(0).parallelize(PT.block_y)
    y.axis(1).parallelize(PT.block_x)
    assert barriers(f) == []


def test_a_loop_that_the_accesses_need_is_known_to_run() -> None:
    """A loop over ``max(M, 1)`` that runs twice: one over M in it, with barriers, runs too."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        w = f.input("w", ("N", "M"), ln.float32)
        t = ln.sum(x, axis=0, keepdims=True)
        f.output(ln.matmul(t, w), "z")
        y = f.output(ln.matmul(t, w), "y")
    y.split(2, 1)
    ln.propagate(y)
    f.inline_most()
    y.axis(2).parallelize(PT.block_z)
    ln.parallelize_like(y)
    loops = [n for n, _ in ln.lower(f).walk() if isinstance(n, kir.Loop)]
    assert str(loops[0].var.extent) == "max(M, 1)"
    assert barriers(f) == ["block"] * 3


def test_an_offset_and_its_remainder_are_compared() -> None:
    """Stored at ``x`` and read at ``x % (K * K)``, both where ``x < K * K``."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("K", "K"), ln.float64)
        w = f.input("w", ("M",), ln.float64)
        f.output(-w, "z")
        t = f.output(x - x, "t")
        y = f.output(ln.broadcast(t, (True, False, False, True)), "y")
    y.merge(0)
    y.merge(1)
    y.merge(0)
    y.split(0, "M")
    ln.propagate(y)
    y.axis(0).parallelize(PT.grid_x)
    y.axis(1).parallelize(PT.grid_y)
    ln.parallelize_like(y)
    assert "y.flat[(i3 * M + i4) % (K * K)]" in str(ln.lower(f))
    assert barriers(f) == []


def test_a_test_of_a_split_axis_bounds_its_threads() -> None:
    """``i * 2 + j < 1`` leaves the first thread, which has stored what it reads."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        t = f.output(ln.exp(x), "t")
        y = f.output(ln.neg(t), "y")
    y.split(0, 1)
    y.split(1, 4)
    y.split(2, 2)
    y.axis(2).parallelize(PT.block_x)
    assert barriers(f) == []


def test_an_output_in_place_is_ordered_before_it_is_read() -> None:
    """It lies in the buffer of an input, which another thread has stored to."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 8), ln.float32)
        t = f.output(ln.sin(x), "t", inplace=x)
        y = f.output(t + 1.0, "y")
    y.axis(1).parallelize(PT.block_x)
    assert barriers(f) == ["warp"]


def test_the_result_of_a_reduction_is_stored_once_in_loops_that_it_lacks() -> None:
    """The blocks along x are of the broadcast axis, which no element of z has."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("M", "N"), ln.float16)
        t = ln.broadcast(x, (False, True, False))
        y = f.output(ln.expand(t, ("M", "N", "N")), "y")
        f.output(ln.any(t, -3), "z")
    y.split(2, 1)
    y.split(0, 8)
    ln.propagate(y)
    f.inline_most()
    y.axis(0).parallelize(PT.block_z)
    y.axis(2).parallelize(PT.grid_x)
    y.axis(3).parallelize(PT.grid_y)
    ln.parallelize_like(y)
    assert barriers(f) == ["block"]


def test_sizes_at_which_a_loop_runs_twice_bound_the_launch() -> None:
    """A loop over ceildiv(3, N) runs twice where N is 1 or 2: a block then has one row."""
    with ln.Fusion("k") as f:
        x = f.input("x", (3, "N"), ln.float64)
        t = f.output(ln.sum(x, axis=1), "t")
    t.split(1, 2)
    t.split(0, "N", inner=False)
    t.axis(0).parallelize(PT.block_x)
    t.axis(2).parallelize(PT.block_y)
    assert barriers(f) == ["block"] * 5


def test_a_loop_in_which_one_iteration_alone_works_ends_without_a_barrier() -> None:
    """An axis of one element split by 16: no later iteration stores again."""
    for rows, expected in ((1, ["block"]), (2, ["block", "block"])):
        with ln.Fusion("k") as f:
            x = f.input("x", (rows, 64), ln.float32)
            t = x * 2.0
            y = f.output(t + 1.0, "y")
        t.memory = ln.SHARED
        y.split(0, 16)
        t.compute_at(y, 2)
        y.axis(2).parallelize(PT.block_x)
        assert barriers(f) == expected


def test_a_test_that_only_the_first_thread_passes_makes_it_the_only_one() -> None:
    """Where t * N + i < N, t is 0: what the first thread stores, it reads itself."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        t = x * 2.0
        y = f.output(t + 1.0, "y")
    t.memory = ln.SHARED
    y.split(0, 5)
    y.split(1, "N")
    y.axis(1).parallelize(PT.block_x)
    assert "i1 * 5 + i2 * N + i3 < N" in str(ln.lower(f))
    assert barriers(f) == []


def limits(**extents: str) -> LaunchBounds:
    """Return the limits of a launch of these extents: N, ceil(N / 2), max(N, M)..."""
    with ln.Fusion("k") as f:
        f.input("x", ("N", "M"), ln.float32)
    n, m = f.symbols
    algebra = Simplifier(Facts())
    names = {"N": n, "M": m, "N/2": algebra.ceildiv(n, ln.scalar.expr.integer(2)),
             "8/N": algebra.ceildiv(ln.scalar.expr.integer(8), n),
             "N/M|N": algebra.max(algebra.ceildiv(n, m), n)}  # fmt: skip
    return LaunchBounds({ParallelType(d): names[e] for d, e in extents.items()}, algebra)


def test_limits_of_a_launch() -> None:
    """Extents of one size bound each other; one that falls with it does not."""
    assert limits(block_x="N").most(PT.block_x) == 1024
    assert limits(block_z="N").most(PT.block_z) == 64
    both = limits(block_x="N/2", block_y="N")
    assert (both.most(PT.block_x), both.most(PT.block_y)) == (22, 44)
    assert limits(block_x="N", block_y="M").most(PT.block_y) == 1024
    assert limits(block_x="N", block_y="8/N").most(PT.block_x) == 1024
    assert limits(block_x="N", block_y="N/M|N").most(PT.block_y) == 32


def test_an_assumption_is_used_where_it_bounds_what_a_launch_does_not() -> None:
    with ln.Fusion("k") as f:
        f.input("x", ("N", "M"), ln.float32)
    for text in ("N <= 100000", "M <= 4096"):
        f.assume(text)
    algebra = f.algebra
    n, m = f.symbols
    found = LaunchBounds({PT.grid_x: n, PT.block_x: m}, algebra)
    assert not found.has_one(PT.grid_x)
    assert (found.most(PT.block_x), found.threads()) == (1024, 1024)
    assert not algebra.facts.uses("N <= 100000")
    assert not algebra.facts.uses("M <= 4096")
    assert found.most(PT.grid_x) == 100000
    assert algebra.facts.uses("N <= 100000")


def test_two_pending_writes_share_the_barrier_in_the_loop_common_to_them() -> None:
    """One is stored in front of a loop, one in it; both are read in it: one barrier serves both.

    The other one, at the loop's end, keeps the next iteration's store from this one's reads.
    """
    with ln.Fusion("k") as f:
        x = f.input("x", (16, 128), ln.float32)
        w = f.input("w", (16, 128), ln.float32)
        before, inside = x + 1.0, w + 1.0
        p, q = before * 2.0, inside * 2.0
        y = f.output(p + q, "y")
    before.memory = inside.memory = ln.SHARED
    inside.compute_at(y, 1)
    p.compute_at(y, 1)
    for tensor in (before, inside):
        tensor.axis(1).parallelize(PT.block_x)
    for tensor in (p, q, y):
        tensor.split(1, 64)
        tensor.axis(2).parallelize(PT.block_x)
    text = str(ln.lower(f))
    first, second = [n for n, line in enumerate(text.splitlines()) if "barrier" in line]
    lines = text.splitlines()
    assert lines[first].startswith("  barrier")
    assert lines[first - 1].endswith("T3[i3] = w[i2, i3] + 1.0")
    assert lines[second - 1].lstrip().startswith("y[")
    assert ln.verify(ln.lower(f)).ok


def test_nvfusers_barrier_after_two_writes_of_other_threads() -> None:
    """RAWSyncInsertionPlace4: tv2 at the root, tv3 in the loop, read by threads along block_x."""
    with ln.Fusion("k") as f:
        tv0 = f.input("tv0", (16, 128), ln.float32)
        tv1 = f.input("tv1", (16, 128), ln.float32)
        tv6 = f.output(tv0 + tv1, "tv6")
    tv2, tv3 = tv0.cache_after(), tv1.cache_after()
    tv4, tv5 = tv2.cache_after(), tv3.cache_after()
    tv2.memory = tv3.memory = ln.SHARED
    tv6.split(-1, 32)
    tv3.compute_at(tv6, 1)
    tv4.compute_at(tv6, 1)
    tv5.compute_at(tv6, -1)
    for tensor in (tv2, tv3, tv4):
        if tensor.ndim == 2:
            tensor.split(-1, 32)
    for tensor in (tv2, tv4, tv5, tv6):
        tensor.axis(-1).parallelize(PT.block_x)
    tv3.axis(-1).parallelize(PT.block_y)
    lines = [line.strip() for line in str(ln.lower(f)).splitlines()]
    first = next(n for n, line in enumerate(lines) if line.startswith("barrier"))
    stored = [line.split("[")[0] for line in lines[:first] if "] = " in line]
    assert stored == [tv2.name, tv3.name]
    reads = "\n".join(lines[first + 1 :])
    assert f"= {tv2.name}[" in reads
    assert f"= {tv3.name}[" in reads
    before_next = [n for n, line in enumerate(lines) if line.startswith("barrier")][1:]
    assert all("] = " not in line for n in before_next for line in lines[n + 1 :])
    assert ln.verify(ln.lower(f)).ok
