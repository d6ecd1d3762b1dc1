"""Loops that carry state: right on every target, proved for all sizes and numbers of steps."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest.proofs.verifier import verify_program
from mutation.mutants import mutants

PT = ln.ParallelType
F32 = ln.float32


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def rnn(**options: Any) -> ln.Fusion:
    """Return the states ``h = h @ w + x``, modulo 7 so that they stay small."""
    with ln.Fusion("rnn") as f:
        x, w = f.input("x", ("T", "B", "H"), F32), f.input("w", ("H", "H"), F32)
        h0 = f.input("h0", ("B", "H"), F32)

        def step(h: ln.TensorView, x: ln.TensorView) -> ln.TensorView:
            return ((ln.matmul(h, w).named("product") + x) % 7.0).named("next")

        f.output(ln.recur(step, h0, over=x, **options), "h")
    return f


def rnn_numpy(x: np.ndarray, w: np.ndarray, h: np.ndarray) -> np.ndarray:
    found = [h]
    for row in x:
        found.append((found[-1] @ w + row) % 7)
    return np.array(found[1:]).reshape(len(x), *h.shape)


def judge(f: ln.Fusion, arrays: tuple[np.ndarray, ...], wanted: Any, **sizes: int) -> Any:
    """Prove a kernel for all sizes, and hold the oracle and the targets to what is wanted."""
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.all_sizes, report
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    calls: list[Callable[..., Any]] = [lambda *a, **s: ln.evaluate(f, *a, **s)]
    calls += [ln.compile(kernel, target=target) for target in ("interpret", "c")]
    for call in calls:
        found = call(*arrays, **sizes)
        found = found if isinstance(found, tuple) else (found,)
        for mine, theirs in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    return kernel


@pytest.mark.parametrize("t", [0, 1, 5])
@pytest.mark.parametrize("inlined", [False, True])
def test_every_state(t: int, inlined: bool) -> None:
    f = rnn()
    if inlined:
        f.inline_most(replay=True)
    x, w, h = floats(t, 3, 4), floats(4, 4, seed=1), floats(3, 4, seed=2)
    judge(f, (x, w, h), rnn_numpy(x, w, h))


@pytest.mark.parametrize("t", [0, 1, 5])
def test_the_last_state(t: int) -> None:
    f = rnn(keep="last")
    f.inline_most(replay=True)
    x, w, h = floats(t, 3, 4), floats(4, 4, seed=1), floats(3, 4, seed=2)
    judge(f, (x, w, h), rnn_numpy(x, w, h)[-1] if t else h)


def test_from_the_end() -> None:
    f = rnn(reverse=True)
    f.inline_most(replay=True)
    x, w, h = floats(5, 3, 4), floats(4, 4, seed=1), floats(3, 4, seed=2)
    judge(f, (x, w, h), rnn_numpy(x[::-1], w, h)[::-1])


def test_another_axis_is_sliced() -> None:
    with ln.Fusion("sums") as f:
        x, y = f.input("x", ("B", "T"), F32), f.input("y", (3, "T"), F32)
        h = ln.recur(
            lambda h, x, y: h * 2.0 % 5.0 + x + ln.sum(y),
            ln.full(("B",), 0.0),
            over=(x, y),
            axis=-1,
        )
        f.output(h, "h")
    f.inline_most(replay=True)
    x_, y_ = floats(4, 6), floats(3, 6, seed=1)
    wanted, state = [], np.zeros(4, np.float32)
    for column in range(6):
        state = state * 2 % 5 + x_[:, column] + y_[:, column].sum()
        wanted.append(state)
    judge(f, (x_, y_), np.array(wanted))


def test_states_of_different_shapes() -> None:
    with ln.Fusion("power") as f:
        a = f.input("a", ("N", "N"), F32)

        def step(state: Any, number: ln.TensorView) -> Any:
            v, total, n = state
            w = ln.sum(a * v, axis=1) % 11.0
            return w, total + ln.sum(v), number + n * 0

        start = ln.full(("N",), 1.0), ln.full((), 0.0), ln.full((), 0, dtype=ln.int64)
        v, total, n = ln.recur(step, start, steps="T", keep="last")
        for tensor, name in ((v, "v"), (total, "total"), (n, "n")):
            f.output(tensor, name)
    a_ = floats(4, 4)
    v_, total_ = np.ones(4, np.float32), np.float32(0)
    for _ in range(6):
        v_, total_ = a_ @ v_ % 11, total_ + v_.sum()
    judge(f, (a_,), (v_, total_, np.int64(5)), T=6)


def test_states_that_cross() -> None:
    """A state that is another one of the step before is complete when the next step begins."""
    with ln.Fusion("fibonacci") as f:
        x = f.input("x", ("T",), ln.int64)
        one = ln.full((), 1, dtype=ln.int64)
        a, b = ln.recur(lambda s, x: (s[1], s[0] + x), (one, one), over=x)
        f.output(a, "a")
        f.output(b, "b")
    x_ = np.arange(7)
    a_, b_, pairs = 1, 1, []
    for n in x_:
        a_, b_ = b_, a_ + n
        pairs.append((a_, b_))
    judge(f, (x_,), tuple(np.array(pairs).T))


@pytest.mark.parametrize("t", [0, 1, 2, 6])
def test_states_of_the_last_two_steps(t: int) -> None:
    with ln.Fusion("wave") as f:
        u, v = f.input("u", ("N",), F32), f.input("v", ("N",), F32)

        def step(past: tuple[ln.TensorView, ...], number: ln.TensorView) -> ln.TensorView:
            old, new = past
            spread = ln.roll(new, 1, 0) + ln.roll(new, -1, 0)
            return (spread - old + ln.cast(number, F32)) % 13.0

        f.output(ln.recur(step, (u, v), steps="T", depth=2), "w")
    f.inline_most(replay=True)
    u_, v_ = floats(5), floats(5, seed=1)
    past = [u_, v_]
    for n in range(t):
        past.append((np.roll(past[-1], 1) + np.roll(past[-1], -1) - past[-2] + n) % 13)
    kernel, wanted = ln.lower(f), np.array(past[2:], np.float32).reshape(t, 5)
    assert ln.verify(kernel).ok
    for call in (
        ln.evaluate.__get__(f),
        *[ln.compile(kernel, target=n) for n in ("interpret", "c")],
    ):
        np.testing.assert_array_equal(call(u_, v_, T=t), wanted)


def test_reductions_scans_and_gathers_in_a_step() -> None:
    with ln.Fusion("mixed") as f:
        x = f.input("x", ("T", "N"), F32)
        i = f.input("i", ("N",), ln.int32)
        f.assume_range(i, 0, "N")

        def step(h: ln.TensorView, x: ln.TensorView) -> ln.TensorView:
            mean, _, _ = ln.welford(h + x, 0)
            shuffled = ln.take(h, i, 0)
            pairs = ln.flatten(ln.reshape(ln.cumsum(shuffled, 0), ("N", 1)))
            return ln.round(pairs + mean) % 9.0

        f.output(ln.recur(step, x[0], over=x), "h")
    x_, i_ = floats(4, 6), np.random.default_rng(1).integers(0, 6, 6).astype(np.int32)
    h, wanted = x_[0], []
    for row in x_:
        h = (np.round(np.cumsum(h[i_]) + (h + row).mean()) % 9).astype(np.float32)
        wanted.append(h)
    judge(f, (x_, i_), np.array(wanted))


def test_loops_one_after_the_other() -> None:
    with ln.Fusion("layers") as f:
        x, h0 = f.input("x", ("T", "H"), F32), f.input("h0", ("H",), F32)
        one = ln.recur(lambda h, x: (h + x) % 5.0, h0, over=x)
        two = ln.recur(lambda h, x: (h * 2.0 + x) % 7.0, h0, over=one * 3.0, reverse=True)
        f.output(two, "y")
    f.inline_most(replay=True)
    x_, h_ = floats(6, 3), floats(3, seed=1)
    states, h = [], h_
    for row in x_:
        h = (h + row) % 5
        states.append(h)
    h, wanted = h_, []
    for row in states[::-1]:
        h = (h * 2 + row * 3) % 7
        wanted.append(h)
    judge(f, (x_, h_), np.array(wanted[::-1]))


@pytest.mark.parametrize(
    ("dims", "barrier"),
    [
        ({1: PT.cpu_parallel}, None),
        ({2: PT.block_x}, "barrier block"),
        ({1: PT.grid_x, 2: PT.block_x}, "barrier block"),
        ({2: PT.grid_x}, "barrier grid"),
        ({0: PT.unroll}, None),
    ],
)
def test_threads_wait_for_each_other(dims: dict[int, Any], barrier: str | None) -> None:
    f = rnn()
    f.inline_most(replay=True)
    f["h"].parallelize(dims)
    x, w, h = floats(3, 2, 4), floats(4, 4, seed=1), floats(2, 4, seed=2)
    kernel = judge(f, (x, w, h), rnn_numpy(x, w, h))
    assert barrier is None or f"{barrier}  # " in str(kernel)
    assert kernel.cuda()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("t", [0, 1, 5, 8])
def test_blocks_of_steps(t: int, inner: bool, late: bool) -> None:
    """Steps of a block are unrolled; the number of steps need not be a multiple of theirs."""
    f = rnn()
    h = f["h"]
    if late:
        f.inline_most(replay=True)
    h.split(0, 4, inner=inner)
    if not late:
        f.inline_most(replay=True)
    h.parallelize({1 if inner else 0: PT.unroll, 2: PT.grid_x, 3: PT.block_x})
    assert [axis.kind for axis in h.leaf_domain[:2]] == [ln.IterKind.STEP] * 2
    x, w, h0 = floats(t, 3, 4), floats(4, 4, seed=1), floats(3, 4, seed=2)
    kernel = judge(f, (x, w, h0), rnn_numpy(x, w, h0))
    assert "barrier block  # " in str(kernel)


def gated() -> ln.Fusion:
    """Return an rnn whose inputs are multiplied by weights first, for all steps."""
    with ln.Fusion("gated") as f:
        x, u = f.input("x", ("T", "B", "K"), F32), f.input("u", ("K", "H"), F32)
        w, h0 = f.input("w", ("H", "H"), F32), f.input("h0", ("B", "H"), F32)
        inner = ln.matmul(x, u).named("inner")
        f.output(ln.recur(lambda h, x: (ln.matmul(h, w) + x) % 7.0, h0, over=inner), "h")
    return f


@pytest.mark.parametrize("memory", [ln.SHARED, ln.GLOBAL])
@pytest.mark.parametrize("place", [1, 2])
def test_what_reads_no_state_is_computed_for_a_block_of_steps(place: int, memory: Any) -> None:
    f = gated()
    h, inner = f["h"], f["inner"]
    h.split(0, 4)
    inner.compute_at(h, place)
    f.inline_most([t for t in f.tensors if t is not inner], replay=True)
    inner.memory = memory
    for tensor in (h, inner):
        tensor.parallelize({2: PT.grid_x, 3: PT.block_x})
    x, u, w, h0 = floats(6, 3, 2), floats(2, 4, seed=3), floats(4, 4, seed=1), floats(3, 4, seed=2)
    kernel = judge(f, (x, u, w, h0), rnn_numpy(x @ u, w, h0))
    if memory is ln.SHARED:
        buffer = "inner: float32[4, H] shared" if place == 1 else "inner: float32[H] shared"
        assert buffer in str(kernel)


def test_a_split_of_steps_that_is_refused_changes_nothing() -> None:
    f = rnn()
    h = f["h"]
    before = [str(t) for t in f.tensors]
    assert refused(lambda: h.split(0, 4, names=("block", "block")), ln.ScheduleError) == (
        "h.split(axis=0, factor=4, names=('block', 'block')): two axes would be named 'block'; the "
        "names of a tensor's axes differ"
    )
    assert before == [str(t) for t in f.tensors]
    h.split(0, 4, names=("block", "step"))
    assert h.domain.leaf[1].name == "step"
    assert "h.split(0, 4, names=('block', 'step'))" in str(f.trace)


def test_a_kernel_is_kept() -> None:
    f = rnn()
    f.inline_most(replay=True)
    x, w, h = floats(3, 2, 4), floats(4, 4, seed=1), floats(2, 4, seed=2)
    for kernel in (
        pickle.loads(pickle.dumps(ln.lower(f))),
        ln.Kernel.parse(ln.lower(f).text(full=True)),
    ):
        np.testing.assert_array_equal(ln.evaluate(kernel, x, w, h), rnn_numpy(x, w, h))
        assert ln.verify(kernel).all_sizes


def test_the_axis_of_steps() -> None:
    f = rnn()
    h = f["h"]
    assert h.root_domain[0].kind is ln.IterKind.STEP
    assert f["next"].root_domain[0].kind is ln.IterKind.STEP
    with f:
        after = h * 2.0
    assert after.root_domain[0].kind is ln.IterKind.ITERATION


def test_the_bound_of_the_error_grows() -> None:
    with ln.Fusion("decay") as f:
        x = f.input("x", ("T",), F32)
        f.output(ln.recur(lambda h, x: h * 0.7 + x, ln.full((), 0.1), over=x), "h")
    x_ = np.linspace(0, 1, 9, dtype=np.float32)
    bound = ln.error_bound(f, x_)
    found = ln.compile(f, target="c")(x_).astype(np.float64)
    exact = ln.evaluate(f, x_, exact=True)
    assert (np.abs(found - exact) <= bound).all()
    assert bound[0] < bound[-1]


def test_mutants_are_not_proved() -> None:
    f = rnn()
    f.inline_most(replay=True)
    f["h"].parallelize({1: PT.block_x})
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    math = lowered.math()
    made = list(mutants(lowered.program))
    wrong = [m for m in made if m.kind in ("barrier", "store", "index", "init")]
    found = {m.text: verify_program(m.program, math).status for m in wrong}
    assert len(found) > 15
    assert "refuted" in found.values()
    proved = [text for text, status in found.items() if status == "proved"]
    assert not [text for text in proved if "drop" in text], proved


# What is refused


def refused(call: Callable[[], object], error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def test_steps_are_run_in_order() -> None:
    for parallel in (PT.grid_x, PT.block_x, PT.cpu_parallel, PT.vectorize):
        h = rnn()["h"]
        assert refused(lambda h=h, p=parallel: h.parallelize({0: p}), ln.ScheduleError) == (
            f"h.parallelize({{0: {parallel.value}}}): axis 0 of h is one of steps, each of which "
            f"reads the state of the one before; it cannot be {parallel.value}; leave it serial, "
            "or unroll it, and share out the axes of the state"
        )
    assert "frozen" in refused(lambda: rnn()["h"].reorder({0: 1}), ln.ScheduleError)


def test_threads_of_a_reader_do_not_share_out_steps() -> None:
    f = rnn()
    with f:
        y = f.output(f["h"] * 2.0, "y")
    f["h"].compute_at(y, 1)
    y.parallelize({0: PT.grid_x})
    assert refused(lambda: ln.lower(f), ln.LoweringError) == (
        "T3: its axis 0 is one of steps, whose loop is grid_x, but each step reads the state of "
        "the one before; compute what shares that loop in one of its own, or leave the loop serial"
    )


CASES: list[tuple[Callable[..., object], str]] = [
    (lambda x, h: ln.recur(lambda h, x: (h, h), h, over=x),
     "the step returns 2 values, and there are 1 states; return the next state, a tensor for each"),
    (lambda x, h: ln.recur(lambda s, x: s[0], (h, h), over=x),
     "the step returns T2, and there are 2 states; return the next state, a tensor for each"),
    (lambda x, h: ln.recur(lambda h, x: ln.cast(h, ln.float16), h, over=x),
     "what the step makes of state 0 is float16[H], and the state float32[H]; a state keeps its "
     "shape and type: broadcast, reshape or cast it"),
    (lambda x, h: ln.recur(lambda h, x: ln.sum(h), h, over=x),
     "what the step makes of state 0 is float32[], and the state float32[H]; a state keeps its "
     "shape and type: broadcast, reshape or cast it"),
    (lambda x, h: ln.recur(lambda s, x: (s[0] + x, s[0]), (h, h), over=x),
     "no step reads state 1, h; leave it out, and compute it for all steps"),
    (lambda x, h: ln.recur(lambda h, x, y: h, h, over=(x, x[1:])),
     "T2 has T - 1 steps, and there are T; slices have one length"),
    (lambda x, h: ln.recur(lambda h: h, h),
     "nothing says how many steps there are; give over= or steps="),
    (lambda x, h: ln.recur(lambda h, x: h + x, h, over=x, keep="some"),
     "keep='some' is neither; use \"all\" or \"last\""),
    (lambda x, h: ln.recur(lambda h, x: h + x, h, over=x, reverse=1),
     "reverse=1 is no bool; use True or False"),
    (lambda x, h: ln.recur(lambda h, x: h + x, h, over=x, depth=0),
     "depth=0 is no depth; use an int of 1 or more"),
    (lambda x, h: ln.recur(lambda h, x: h[0] + x, (h, h), over=x, depth=2, reverse=True),
     "reverse goes with a depth of 1; flip what is sliced"),
    (lambda x, h: ln.recur(lambda h, n: h, h, steps=3, reverse=True),
     "nothing is sliced that could be reversed; leave it out"),
    (lambda x, h: ln.recur(lambda h, x: h[0] + x, (h, h), over=x, depth=3),
     "a state is given in 2 steps, and depth=3; give as many, oldest first"),
    (lambda x, h: ln.recur(lambda h, x: h[0] + x, (h, ln.sum(h)), over=x, depth=2),
     "T2, a state of an earlier step, is float32[], and the state float32[H]; a state keeps its "
     "shape and type: broadcast, reshape or cast it"),
    (lambda x, h: ln.recur(lambda h, x: h, (), over=x),
     "there is no state; give a tensor, or a tuple of them"),
    (lambda x, h: ln.recur(lambda h, x: ln.recur(lambda g, _: g + x, h, steps=2)[0], h, over=x),
     "a step holds a loop over steps; build it outside of the step"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), CASES)
def test_bad_input(call: Callable[..., object], said: str) -> None:
    with ln.Fusion("k") as f:
        x, h = f.input("x", ("T", "H"), F32), f.input("h", ("H",), F32)
        with pytest.raises(ln.DefinitionError) as caught:
            call(x, h)
    assert str(caught.value).partition("): ")[2] == said


def test_a_step_that_fails_changes_nothing() -> None:
    f = rnn()
    before = f.print_math()

    def step(h: ln.TensorView, x: ln.TensorView) -> ln.TensorView:
        return (h + x).named("sum") + f["w"][0, 0, 0]

    with f, pytest.raises(ln.DefinitionError):
        ln.recur(step, f["h0"], over=f["x"])
    assert f.print_math() == before
    with f:
        (f["h"] * 1.0).named("sum")


# Waves


def shift(depth: int = 1) -> ln.Fusion:
    """Return states each element of which is computed of itself and of its left neighbour."""
    with ln.Fusion("shift") as f:
        u, x = f.input("u", ("N",), F32), f.input("x", ("T",), F32)

        def step(past: Any, x: ln.TensorView) -> ln.TensorView:
            old, new = (past, past) if depth == 1 else past
            return ((ln.pad(old, [(1, -1)]) + new * 2.0 + x) % 7.0).named("next")

        f.output(ln.recur(step, u if depth == 1 else (u, u), over=x, depth=depth), "h")
    return f


def shift_numpy(u: np.ndarray, x: np.ndarray, depth: int = 1) -> np.ndarray:
    past = [u] * depth
    for value in x:
        left = np.pad(past[-depth], (1, 0))[:-1]
        past.append((left + past[-1] * 2 + value) % 7)
    return np.array(past[depth:]).reshape(len(x), len(u))


@pytest.mark.parametrize("dims", [{}, {1: PT.block_x}, {1: PT.grid_x}, {1: PT.cpu_parallel}])
@pytest.mark.parametrize(("factor", "depth"), [(1, 1), (3, 1), (1, 2), (-1, 2)])
def test_waves(factor: int, depth: int, dims: dict[int, Any]) -> None:
    f = shift(depth)
    h = f["h"]
    if (factor, depth) == (-1, 2):
        assert h.skew("T", 1, factor) is h
    else:
        h.skew(0, 1, factor)
    assert [axis.kind for axis in h.leaf_domain] == [ln.IterKind.STEP, ln.IterKind.ITERATION]
    f.inline_most(replay=True)
    h.parallelize(dims)
    for t, n in ((0, 3), (3, 0), (1, 1), (5, 4), (4, 7)):
        u, x = floats(n), floats(t, seed=1)
        kernel = judge(f, (u, x), shift_numpy(u, x, depth))
    if dims.get(1) is PT.block_x:
        assert "barrier block  # " in str(kernel)
    assert kernel.cuda() if PT.cpu_parallel not in dims.values() else True


def test_waves_of_tables() -> None:
    """One axis of two goes in waves; blocks of waves, threads along both."""
    with ln.Fusion("table") as f:
        u, g = f.input("u", ("N", "M"), F32), f.input("g", ("T", "N", "M"), F32)

        def step(h: ln.TensorView, g: ln.TensorView) -> ln.TensorView:
            up = ln.pad(h, [(1, -1), (0, 0)])
            return (up + ln.pad(h, [(0, 0), (-1, 1)]) + ln.pad(h, [(1, -1), (1, -1)]) + g) % 5.0

        h = f.output(ln.recur(step, u, over=g), "h")
    h.skew(0, 1)
    f.inline_most(replay=True)
    h.split(0, 4, names=("block", "wave"))
    h.parallelize({"wave": PT.unroll, 2: PT.block_y, 3: PT.block_x})
    u_, g_ = floats(3, 4), floats(5, 3, 4, seed=1)
    state, wanted = u_, []
    for own in g_:
        full = np.pad(state, 1)
        state = (full[:-2, 1:-1] + full[1:-1, 2:] + full[:-2, :-2] + own) % 5
        wanted.append(state)
    judge(f, (u_, g_), np.array(wanted))


def test_waves_are_kept() -> None:
    f = shift()
    f["h"].skew(0, 1)
    u, x = floats(4), floats(5, seed=1)
    for kernel in (
        pickle.loads(pickle.dumps(ln.lower(f))),
        ln.Kernel.parse(ln.lower(f).text(full=True)),
    ):
        np.testing.assert_array_equal(ln.evaluate(kernel, u, x), shift_numpy(u, x))
        assert ln.verify(kernel).all_sizes
    g = shift()
    exec(str(f.trace), {"f": g})
    assert str(ln.lower(g)) == str(ln.lower(f))


def test_what_is_computed_outside_shares_waves() -> None:
    with ln.Fusion("gated") as f:
        x, u = f.input("x", ("T", "N"), F32), f.input("u", ("N",), F32)
        twice = (x * 2.0).named("twice")
        f.output(ln.recur(lambda h, x: (ln.pad(h, [(1, -1)]) + x) % 5.0, u, over=twice), "h")
    f["h"].skew(0, 1)
    f["twice"].compute_at(f["h"], 1)
    f.inline_most(replay=True)
    x_, u_ = floats(5, 4), floats(4, seed=1)
    state, wanted = u_, []
    for row in x_:
        state = (np.pad(state, (1, 0))[:-1] + row * 2) % 5
        wanted.append(state)
    judge(f, (x_, u_), np.array(wanted))


def test_mutants_of_waves_are_refuted() -> None:
    f = shift()
    f["h"].skew(0, 1)
    f.inline_most(replay=True)
    f["h"].parallelize({1: PT.block_x})
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    math = lowered.math()
    made = [m for m in mutants(lowered.program) if m.kind in ("barrier", "store", "index", "guard")]
    found = {m.text: verify_program(m.program, math).status for m in made}
    assert len(found) > 20
    assert [text for text, status in found.items() if status != "refuted"] == []


def of_steps(step: Callable[[ln.TensorView], ln.TensorView]) -> ln.TensorView:
    with ln.Fusion("k") as f:
        u = f.input("u", ("N",), F32)
        return f.output(ln.recur(lambda h, _: step(h), u, steps="T"), "h")


LATER = (
    "; these must be 1 or more at all sizes: skew by another factor or along another axis, or "
    "leave the loop over steps as it is"
)
LACKS = (
    "is computed of states of the step before, and has no elements along the axis: what reads it "
    "would need all waves of that step; skew along an axis that all has which is computed of the "
    "state"
)
SKEWS: list[tuple[Callable[[], object], str]] = [
    (lambda: shift()["h"].skew(0, 1, -1),
     "h.skew(0, 1, -1): T4 of step s0, element i1 reads h of step s0 - 1, element i1 - 1, which "
     f"would be computed 0 waves before it{LATER}"),
    (lambda: rnn()["h"].skew(0, 2),
     "h.skew(0, 2): T7 of step s0, element i2 reads h of step s0 - 1, element i3, which would be "
     f"computed i2 - i3 + 1 waves before it{LATER}"),
    (lambda: of_steps(lambda h: ln.roll(h, 1, 0) + h).skew(0, 1),
     "h.skew(0, 1): T3 of step s0, element i1 reads h of step s0 - 1, element (i1 - 1) % N, which "
     f"would be computed i1 - (i1 - 1) % N + 1 waves before it{LATER}"),
    (lambda: of_steps(lambda h: ln.pad(h * 2.0, [(1, -1)]) + h).skew(0, 1),
     "h.skew(0, 1): T4 of step s0, element i1 reads T3 of step s0, element i1 - 1, which would be "
     f"computed 1 waves before it{LATER}"),
    (lambda: of_steps(lambda h: ln.cumsum(h, 0)).skew(0, 1),
     "h.skew(0, 1): T3 is a scan along the axis, whose elements are of one step; skew along "
     "another axis"),
    (lambda: of_steps(lambda h: h + ln.sum(h)).skew(0, 1),
     f"h.skew(0, 1): T3 {LACKS}"),
    (lambda: shift()["h"].skew(1, 0),
     "h.skew(1, 0): axis 1 of h is none of steps; name the axis that ln.recur made, and one of the "
     "state"),
    (lambda: shift()["h"].skew(0, 0),
     "h.skew(0, 0): axis 0 of h is none of the state; name the axis of steps, and one of the "
     "state"),
    (lambda: shift()["h"].skew(0, 1, 0),
     "h.skew(0, 1, 0): the factor 0 makes no waves; use an int, as 1 or -1"),
    (lambda: shift()["h"].skew(0, 1).skew(0, 1),
     "h.skew(0, 1): axis 0 of h was split, merged, skewed or made parallel; skew first"),
    (lambda: shift()["h"].split(1, 4).skew(0, 1),
     "h.skew(0, 1): axis 1 of h was split, merged, skewed or made parallel; skew first"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), SKEWS)
def test_skews_that_are_refused(call: Callable[[], object], said: str) -> None:
    assert refused(call, ln.ScheduleError) == said


def test_a_skew_that_is_refused_changes_nothing() -> None:
    f = shift()
    before, math = [str(t) for t in f.tensors], f.print_math()
    refused(lambda: f["h"].skew(0, 1, -1), ln.ScheduleError)
    assert ([str(t) for t in f.tensors], f.print_math()) == (before, math)
    assert not f["T2"].definition.reads[0].data


def test_an_element_that_all_read() -> None:
    """The first element of the step before was computed in an earlier wave, at all sizes."""
    h = of_steps(lambda h: (h - h[0] + 1.0) % 5.0)
    h.skew(0, 1)
    h.fusion.inline_most(replay=True)
    u, wanted = floats(4), []
    state = u
    for _ in range(5):
        state = (state - state[0] + 1) % 5
        wanted.append(state)
    judge(h.fusion, (u,), np.array(wanted), T=5)


# States on chip


def state_of(f: ln.Fusion) -> ln.TensorView:
    """Return the state of an rnn, of which its result is a copy or the last one."""
    h = f["h"]
    return h.cache_before() if h.root_domain[0].kind is ln.IterKind.STEP else h.producers[-1]


def on_chip(memory: Any, dims: dict[int, Any], split: int = 0, **options: Any) -> ln.Fusion:
    """Return an rnn with its state in LOCAL or SHARED memory, blocks of steps where asked."""
    f = rnn(**options)
    state = state_of(f)
    if split:
        state.split(0, split)
    f.inline_most(replay=True)
    state.memory = memory
    h = f["h"]
    for tensor in (state, h):
        back = state.ndim - 3 - (tensor.ndim < state.ndim) * (1 + bool(split))
        tensor.parallelize({place + back: parallel for place, parallel in dims.items()})
    return f


@pytest.mark.parametrize("keep", ["all", "last"])
@pytest.mark.parametrize("split", [0, 4])
@pytest.mark.parametrize(
    ("memory", "dims", "shape"),
    [
        (ln.SHARED, {2: PT.block_x}, "2, B, H"),
        (ln.SHARED, {1: PT.grid_x, 2: PT.block_x}, "2, H"),
        (ln.SHARED, {1: PT.block_y, 2: PT.block_x}, "2, B, H"),
        (ln.LOCAL, {}, "2, B, H"),
        (ln.LOCAL, {1: PT.block_x}, "2, H"),
        (ln.LOCAL, {1: PT.cpu_parallel}, "2, B, H"),
    ],
)
def test_states_on_chip_have_two_rooms(
    memory: Any, dims: dict[int, Any], shape: str, split: int, keep: str
) -> None:
    """One barrier a step is enough: a step stores to the room that it does not read."""
    f = on_chip(memory, dims, split, keep=keep)
    for t in (0, 1, 5):
        x, w, h = floats(t, 3, 4), floats(4, 4, seed=1), floats(3, 4, seed=2)
        states = rnn_numpy(x, w, h)
        kernel = judge(f, (x, w, h), states if keep == "all" else states[-1] if t else h)
    text = str(kernel)
    assert f"float32[{shape}] {memory.value}" in text
    assert text.count("barrier") == (memory is ln.SHARED)


def wave(memory: Any) -> ln.Fusion:
    with ln.Fusion("wave") as f:
        u, v = f.input("u", ("N",), F32), f.input("v", ("N",), F32)

        def step(past: Any, _: ln.TensorView) -> ln.TensorView:
            old, new = past
            return (ln.roll(new, 1, 0) + ln.roll(new, -1, 0) - old) % 13.0

        f.output(ln.recur(step, (u, v), steps="T", depth=2, keep="last"), "w")
    state = f["w"].producers[-1]
    f.inline_most(replay=True)
    state.memory = memory
    return f


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED])
@pytest.mark.parametrize("t", [0, 1, 2, 3, 7])
def test_states_of_two_steps_back_have_three_rooms(memory: Any, t: int) -> None:
    f, u, v = wave(memory), floats(5), floats(5, seed=1)
    past = [u, v]
    for _ in range(t):
        past.append((np.roll(past[-1], 1) + np.roll(past[-1], -1) - past[-2]) % 13)
    kernel = judge(f, (u, v), past[-1], T=t)
    assert f"float32[3, N] {memory.value}" in str(kernel)


ROOMS = {
    "one room too few": [("[2, B, H]", "[1, B, H]"), ("% 2", "% 1")],
    "the new state instead of the old": [("(i0 + 1) % 2", "i0 % 2")],
    "the last state but one": [("(T + 1) % 2", "T % 2")],
    "no barrier of a step": [
        (
            '        Barrier scope="block" '
            'reason="T3 reads T11 after T11 stores it in other threads"\n',
            "",
        )
    ],
}


@pytest.mark.parametrize("name", ROOMS)
def test_wrong_rooms_are_refuted(name: str) -> None:
    text = ln.lower(on_chip(ln.SHARED, {2: PT.block_x}, keep="last")).text(full=True)
    for old, new in ROOMS[name]:
        assert old in text
        text = text.replace(old, new)
    assert ln.verify(ln.Kernel.parse(text)).status == "refuted"


def test_mutants_of_rooms_are_refuted() -> None:
    """Stores that are left out, steps more or less, wrong indices."""
    lowered = ln.lower(on_chip(ln.SHARED, {2: PT.block_x}, keep="last"))._lowered
    assert lowered.math is not None
    math = lowered.math()
    # A loop over threads has as many iterations as the launch, whatever it says; a test of T is
    # true at all sizes but one, which not every proof looks at.
    threads = ("loop i2 ", "loop i5 ")
    made = [m for m in mutants(lowered.program) if not m.text.startswith(threads)]
    found = {m.text: verify_program(m.program, math).status for m in made}
    assert {"loop i0 +1", "loop i0 -1"} <= found.keys()
    assert len(found) > 100
    assert "proved" not in found.values()
    assert [t for t, status in found.items() if status == "unknown" and "0 < T" not in t] == []


def read_of(index: int, **options: Any) -> ln.Fusion:
    with ln.Fusion("k") as f:
        u = f.input("u", ("N",), F32)
        states = ln.recur(lambda h, _: (h * 2.0).named("next"), u, steps=9)
        f.output(states[index] * 1.0, "y")
    (state,) = f["next"].consumers
    state.memory = ln.SHARED
    return f


def test_states_that_are_gone_are_not_read() -> None:
    f = read_of(7)
    assert "float32[2, N] shared" in str(ln.lower(f))
    judge(f, (floats(4),), floats(4) * 2**8)
    assert refused(lambda: ln.lower(read_of(6)), ln.LoweringError) == (
        "T5 reads T4 (shared): behind the loop over steps there are the states of the last 2 of "
        "them; read these alone, compute T4 at a position in T5 that holds the loop, or set the "
        "memory of T4 to GLOBAL"
    )


def test_states_on_chip_that_are_refused() -> None:
    f = shift()
    state = f["h"].cache_before()
    f["h"].skew(0, 1)
    state.memory = ln.SHARED
    assert refused(lambda: ln.lower(f), ln.LoweringError) == (
        f"{state.name}: it is a state in shared memory, of which there are those of 2 steps, and "
        "its loop over steps runs in waves, each of several steps; set its memory to GLOBAL"
    )
    f = rnn()
    state = f["h"].cache_before()
    state.memory = ln.SHARED
    state.set_allocation(pad={-1: 1})
    assert refused(lambda: ln.lower(f), ln.LoweringError) == (
        f"{state.name}: it is a state in shared memory, of which there are those of 2 steps, and "
        "its buffer was laid out or given stages; leave its buffer as it is, or set its memory to "
        "GLOBAL"
    )
    assert refused(lambda: setattr(state, "memory", ln.WARP), ln.ScheduleError) == (
        f"{state.name}.set_memory(warp): {state.name} is a state, which the next steps read; use "
        "ln.LOCAL, ln.SHARED or ln.GLOBAL"
    )
    f = on_chip(ln.LOCAL, {2: PT.block_x})
    assert refused(lambda: ln.lower(f), ln.LoweringError) == (
        "T3 reads T12 (local): along block_x (h.i2) the reading thread is not the writing one; "
        "compute T12 at a position in T3 that holds the block_x loop, bind the same axis of both "
        "to it, or set its memory to SHARED or GLOBAL"
    )


@pytest.mark.parametrize("memory", [ln.GLOBAL, ln.SHARED, ln.LOCAL])
def test_a_state_is_computed_whole_for_what_reads_a_part(memory: Any) -> None:
    """Steps read all of it, whatever is read behind them."""
    with ln.Fusion("k") as f:
        u = f.input("u", ("M", "N"), F32)
        states = ln.recur(lambda h, _: (ln.roll(h, 1, 0) * 2.0).named("next"), u, steps="T")
        row = f.output(states[:, -1], "row")
    (state,) = f["next"].consumers
    state.compute_at(row, 1)
    state.memory = memory
    f.inline_most(replay=True)
    u_ = floats(3, 4)
    state_, wanted = u_, []
    for _ in range(5):
        state_ = np.roll(state_, 1, 0) * 2
        wanted.append(state_[-1])
    judge(f, (u_,), np.array(wanted), T=5)


def test_a_state_is_not_computed_in_tiles() -> None:
    with ln.Fusion("k") as f:
        u = f.input("u", ("N",), F32)
        states = ln.recur(lambda h, _: (h * 2.0).named("next"), u, steps="T")
        y = f.output(states[:, 1:], "y")
    (state,) = f["next"].consumers
    assert refused(lambda: state.compute_at(y, 2), ln.ScheduleError) == (
        "T4.compute_at(y, 2): T4 is a state, all of whose elements the next steps read, and its "
        "consumers read it in windows: the tiles that their loops need may leave some out; use a "
        "position in front of the windows"
    )


def test_a_depth_that_is_an_array() -> None:
    f = rnn()
    message = "depth=<ndarray> is no depth; use an int of 1 or more"
    with f:
        found = refused(
            lambda: ln.recur(lambda h: h, f["h0"], depth=np.array([0, 1, 2])), ln.DefinitionError
        )
    assert found.endswith(message)
