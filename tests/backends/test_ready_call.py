"""Calls that are like an earlier one: they compute and refuse what the first call would."""

import pickle
import random
import threading
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

import loopnest as ln
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cpu.host_call import HostCall
from loopnest.launch.target_interface import MISFIT

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

PT = ln.ParallelType
F = np.float32


@pytest.fixture
def statuses(monkeypatch):
    """The status of each prepared call."""
    found = []
    run = HostCall.run

    def noted(self, *arguments):
        found.append(run(self, *arguments))
        return found[-1]

    monkeypatch.setattr(HostCall, "run", noted)
    return found


def scaled():
    """Two inputs of one size symbol, two outputs, workspace, scalars."""
    with ln.Fusion("scaled") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        b = f.input("b", ("M",), ln.float32)
        a, n = f.scalar("a", ln.float32), f.scalar("n", ln.int16)
        f.assume("N <= 64")
        t = (x * a + b).named("t")
        t.memory = ln.GLOBAL
        f.output(t * 2.0, "y")
        f.output(ln.sum(t, axis=1) + ln.cast(n, ln.float32), "z")
    return f


def stepped():
    """One output in place, one that is not."""
    with ln.Fusion("stepped") as f:
        p = f.input("p", ("N",), ln.float32)
        g = f.input("g", ("N",), ln.float32)
        q = f.output(p - 0.5 * g, "q", inplace=p)
        f.output(g * g, "gg")
    ln.propagate(q)
    return f


def taken():
    """Indices with a declared range, and a size that no shape gives."""
    with ln.Fusion("taken") as f:
        x = f.input("x", ("N",), ln.float64)
        i = f.input("i", ("M",), ln.int32)
        f.assume_range(i, 0, "N")
        f.output(ln.take(x, i, 0), "y")
        f.output(ln.full(("K",), 1.5, ln.float64), "one")
    return f


def strided():
    """An input of declared strides."""
    with ln.Fusion("strided") as f:
        x = f.input("x", ("N", "M"), ln.float32, strides=("R", 1))
        f.output(x + 1.0, "y")
    return f


X, B = np.arange(12, dtype=F).reshape(3, 4), np.arange(4, dtype=F)
RIGHT = {
    scaled: ((X, B), {"a": 1.5, "n": 7}),
    stepped: ((B, B + 1), {}),
    taken: ((np.arange(5.0), np.array([4, 0, 2], np.int32)), {"K": 3}),
    strided: ((np.arange(24, dtype=F).reshape(3, 8)[:, :4],), {}),
}


@contextmanager
def kept(*arguments):
    """Let arrays have the elements of before behind the block."""
    arrays = [a for a in arguments if isinstance(a, np.ndarray) and a.flags.writeable]
    before = [a.copy() for a in arrays]
    yield
    for array, elements in zip(arrays, before, strict=True):
        array[...] = elements


def outcome(fn, arrays, out, keywords):
    """Return what a call gives or says, which results are arguments, and what arguments become."""
    given = [*arrays, *(out if isinstance(out, (tuple, list)) else (out,))]
    with kept(*given):
        try:
            found = fn(*arrays, out=out, **keywords)
        except ln.LaunchError as error:
            return str(error)
        results = found if isinstance(found, tuple) else (found,)
        same = [[n for n, a in enumerate(given) if a is result] for result in results]
        return repr([r.tolist() for r in results]), same, [np.array(a).tolist() for a in arrays]


def read_only(array):
    found = array.copy()
    found.flags.writeable = False
    return found


def other_arrays(array):
    """Return arrays and objects, most of which differ from `array` in one way."""
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    yield from (array, array.copy(), read_only(array), array[:-1], array[:0], array[None])
    yield from (array[::-1], np.repeat(array, 2, -1)[..., ::2], np.asfortranarray(array))
    yield from (
        raw.view(array.dtype).reshape(array.shape),
        array.astype(array.dtype.newbyteorder()),
    )
    yield from (
        array.astype(np.int8),
        array.astype(np.float64),
        array.view(type("Own", (np.ndarray,), {})),
    )
    yield from (array.tolist(), None, array.dtype, pickle.loads(pickle.dumps(array)))
    yield array + array.dtype.type(100)
    yield array - array.dtype.type(100)


def other_values(value):
    yield from (value, value + 1, -value, True, None, str(value), np.float64(value), 1e300, 1 << 40)
    yield from (
        np.int64(value) if isinstance(value, int) else np.float32(value),
        np.ones(1) * value,
    )


def outs(fn, arrays, keywords):
    """Return what may be given for outputs: right ones, and others."""
    yield None
    with kept(*arrays):
        results = fn(*arrays, **keywords)
    results = results if isinstance(results, tuple) else (results,)
    pairs = zip(fn._outputs.sources, results, strict=True)
    right = [None if source is not None else np.zeros_like(found) for source, found in pairs]
    yield from (tuple(right), list(right), tuple(right[:-1]), (*right, right[0]), right[0])
    for number, array in enumerate(right):
        if array is None:
            continue
        for other in (None, read_only(array), array[::-1], array.astype(np.int8), array[:-1]):
            yield (*right[:number], other, *right[number + 1 :])
        yield (*right[:number], arrays[0], *right[number + 1 :])
        yield (*right[:number], right[-1], *right[number + 1 :])
    shared = np.zeros(64, array.dtype)
    yield tuple([shared[: r.size].reshape(r.shape) for r in results])


@pytest.mark.filterwarnings("ignore:.*not C-contiguous:RuntimeWarning")
@pytest.mark.parametrize("math", RIGHT)
def test_later_calls_give_and_refuse_what_first_ones_do(math, monkeypatch):
    """Arguments that differ in one way: given to a function that has run, and to one without."""
    fn, fresh = ln.compile(math(), "c", optimize=1), ln.compile(math(), "c", optimize=1)
    monkeypatch.setattr(fresh, "_ready_call", lambda *_: None)
    arrays, keywords = RIGHT[math]
    cases = [(arrays, out, keywords) for out in outs(fresh, arrays, keywords)]
    cases += [(arrays[:-1], None, keywords), ((*arrays, arrays[0]), None, keywords)]
    cases += [(arrays[:1] * len(arrays), None, keywords), (arrays[::-1], None, keywords)]
    for number, array in enumerate(arrays):
        for other in other_arrays(array):
            cases.append(((*arrays[:number], other, *arrays[number + 1 :]), None, keywords))
    for name, value in keywords.items():
        cases += [(arrays, None, {**keywords, name: v}) for v in other_values(value)]
        cases.append((arrays, None, {n: v for n, v in keywords.items() if n != name}))
    cases += [(arrays, None, {**keywords, "other": 1}), (arrays, None, {**keywords, "N": 3})]
    random.Random(1).shuffle(cases)
    for given, out, named in cases:
        expected = outcome(fresh, given, out, named)
        outcome(fn, arrays, None, keywords)
        assert outcome(fn, given, out, named) == expected


@pytest.mark.parametrize("math", RIGHT)
def test_like_calls_are_one_call_of_c(math, statuses):
    fn = ln.compile(math(), "c", optimize=1)
    arrays, keywords = RIGHT[math]
    for _ in range(3):
        with kept(*arrays):
            results = fn(*arrays, **keywords)
    results = results if isinstance(results, tuple) else (results,)
    fn(*arrays, out=tuple([None for _ in results]), **keywords)
    assert statuses == [0, 0, 0]


def test_arrays_that_share_memory(statuses):
    """An output that is written may not be an input, nor overlap one by an element."""
    fn = ln.compile(stepped(), "c", optimize=1)
    room = np.arange(20, dtype=F)
    fn(room[:5].copy(), room[5:10])
    for start in range(1, 9):
        p, g = room[4:8], room[start : start + 4]
        before = room.copy()
        if abs(start - 4) < 4:
            with pytest.raises(ln.LaunchError, match="p shares memory with g"):
                fn(p, g)
            np.testing.assert_array_equal(room, before)
        else:
            fn(p, g)
            np.testing.assert_array_equal(p, before[4:8] - 0.5 * before[start : start + 4])
    statuses.clear()
    with pytest.raises(ln.LaunchError, match=r"out \(gg\) shares memory with g"):
        fn(room[:4], room[8:12], out=(None, room[9:13]))
    assert set(statuses) == {MISFIT}


def test_a_declared_range_is_checked_each_time(statuses):
    fn = ln.compile(taken(), "c", optimize=1)
    x, i = np.arange(5.0), np.array([4, 0, 2], np.int32)
    fn(x, i, K=1)
    for value in (-1, 5, -(2**31), 2**31 - 1):
        i[1] = value
        with pytest.raises(ln.LaunchError) as raised:
            fn(x, i, K=1)
        assert str(raised.value) == (
            f"taken(...): i[1] is {value}, but it was declared that 0 <= i < N, here 0 <= i < 5; "
            "pass elements in 0..4"
        )
    i[1] = 3
    np.testing.assert_array_equal(fn(x, i, K=1)[0], x[i])
    assert statuses == [2] * 4 + [0]


@pytest.mark.parametrize(
    "dtype", [ln.int8, ln.uint8, ln.int16, ln.uint16, ln.int32, ln.uint32, ln.int64]
)
def test_ranges_of_each_type(dtype, statuses):
    """Bounds on both sides of 0, or of the half of an unsigned type."""
    least, most = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    low = -3 if least else most // 2 - 3
    with ln.Fusion("ranged") as f:
        i = f.input("i", ("N",), dtype)
        f.assume_range(i, low, low + 6)
        f.output(ln.cast(i, ln.int64), "y")
    fn = ln.compile(f, "c", optimize=1)
    i = np.full(1000, low, dtype.numpy)
    fn(i)
    for place in (0, 511, 999):
        for value in (low - 1, low, low + 5, low + 6, least, most):
            i[place] = value
            if low <= value < low + 6:
                np.testing.assert_array_equal(fn(i), i)
            else:
                with pytest.raises(ln.LaunchError, match=rf"i\[{place}\] is {value}, but"):
                    fn(i)
            assert statuses[-1] == (0 if low <= value < low + 6 else 2)
        i[place] = low + 1


def test_an_array_may_be_two_inputs(statuses):
    with ln.Fusion("twice") as f:
        x, y = f.input("x", ("N",), ln.float32), f.input("y", ("N",), ln.float32)
        f.output(x * y, "z")
    fn = ln.compile(f, "c", optimize=1)
    for _ in range(2):
        np.testing.assert_array_equal(fn(B, B), B * B)
    np.testing.assert_array_equal(fn(B, B, out=np.empty_like(B)), B * B)
    assert statuses == [0, 0]


def test_sizes_change_from_call_to_call(statuses):
    fn = ln.compile(scaled(), "c", optimize=1)
    for extent in (3, 5, 3, 5, 3, 3):
        x = np.ones((extent, 4), F)
        y, z = fn(x, B, a=2.0, n=1)
        np.testing.assert_array_equal(y, (x * 2 + B) * 2)
        np.testing.assert_array_equal(z, (x * 2 + B).sum(1) + 1)
    assert statuses.count(0) == 4
    with pytest.raises(ln.LaunchError, match="the assumption 'N <= 64' does not hold for N = 65"):
        fn(np.ones((65, 4), F), B, a=2.0, n=1)


def test_scalars_are_rounded_and_kept_apart():
    with ln.Fusion("scalars") as f:
        x = f.input("x", (1,), ln.float64)
        for dtype in (
            ln.bool,
            ln.int8,
            ln.uint32,
            ln.int64,
            ln.float16,
            ln.bfloat16,
            ln.float32,
            ln.float64,
        ):
            f.output(
                x * 0.0 + ln.cast(f.scalar(f"s_{dtype.name}", dtype), ln.float64), f"y_{dtype.name}"
            )
    fn = ln.compile(f, "c", optimize=1)
    values = [True, -128, 2**32 - 1, 2**52 + 1, 1 / 3, 1 / 3, 1 / 3, 1 / 3]
    expected = [1, -128, 2**32 - 1, 2**52 + 1]
    expected += [
        float(np.array(1 / 3).astype(d.numpy)) for d in (ln.float16, ln.bfloat16, ln.float32)
    ]
    for _ in range(3):
        found = fn(np.ones(1), **dict(zip([s.name for s in fn._scalars], values, strict=True)))
        assert [float(y[0]) for y in found] == [*expected, 1 / 3]


NUMBERS = [
    True, False, 0, -1, 127, 128, 255, 256, 2**31, 2**53 + 1, 2**64, 10**400, 0.1, -0.0, 1e-46,
    3.4028235677973366e38, 3.5e38, 1e300, float("inf"), float("nan"), "1", None, 1j,
    np.bool_(True), np.int8(-3), np.uint8(200), np.int64(-(2**40)), np.uint64(2**63),
    np.float16(0.1), np.float32(0.1), np.float64(0.1), np.float64(1e39), np.longdouble("0.1"),
    np.array(3), np.array(0.3), np.ones(1),
]  # fmt: skip
OF_SCALARS = (ln.bool, ln.int8, ln.uint8, ln.int32, ln.int64,
              ln.float16, ln.float32, ln.float64)  # fmt: skip


@pytest.mark.parametrize("dtype", OF_SCALARS, ids=str)
def test_later_calls_take_the_scalars_that_first_ones_do(dtype):
    with ln.Fusion("scalars") as f:
        x = f.input("x", (1,), ln.float32)
        f.output(ln.cast(x, dtype), "unused")
        f.output(ln.where(x > 0.0, f.scalar("s", dtype), f.scalar("s2", dtype)), "y")
    k = ln.lower(f)
    later = ln.compile(k, "c", optimize=1)
    x = np.ones(1, F)
    later(x, s=dtype.numpy.type(1), s2=dtype.numpy.type(0))

    def outcome(fn, s):
        try:
            return fn(x, s=s, s2=dtype.numpy.type(0))[1].tobytes()
        except ln.LaunchError as error:
            return str(error)

    for number in NUMBERS:
        first = ln.compile(k, "c", optimize=1)
        assert outcome(later, number) == outcome(first, number), number
        assert outcome(later, number) == outcome(first, number), number


def test_numbers_of_numpy_are_one_call_of_c_too(statuses):
    with ln.Fusion("scaled") as f:
        x = f.input("x", (2,), ln.float32)
        f.output(x * f.scalar("a", ln.float32) + ln.cast(f.scalar("n", ln.int32), ln.float32), "y")
    fn = ln.compile(f, "c", optimize=1)
    for a, n in ((2.0, 1), (2, 1), (F(2), np.int64(1)), (np.float64(2), 1)):
        np.testing.assert_array_equal(fn(np.ones(2, F), a=a, n=n), [3, 3])
    assert statuses == [0, 0, 0]
    np.testing.assert_array_equal(fn(np.ones(2, F), a=1e39, n=1), [np.inf, np.inf])
    assert statuses == [0, 0, 0, MISFIT]


def test_an_array_whose_type_is_an_object_of_its_own(statuses):
    """An array that was unpickled has one: the call learns it."""
    fn = ln.compile(stepped(), "c", optimize=1)
    fn(B.copy(), B)
    other = pickle.loads(pickle.dumps(B))
    if other.dtype is B.dtype:
        pytest.skip("this version of NumPy gives it the same object")
    results = [fn(B.copy(), other)[1] for _ in range(3)]
    assert all(np.array_equal(found, B * B) for found in results)
    assert statuses[-1] == 0


def test_an_array_that_is_changed_in_place(statuses):
    fn = ln.compile(stepped(), "c", optimize=1)
    p, g = np.arange(6, dtype=F), np.ones(6, F)
    fn(p, g)
    p.flags.writeable = False
    with pytest.raises(ln.LaunchError, match="p is read-only"):
        fn(p, g)
    p.flags.writeable = True
    g.shape = (2, 3)
    with pytest.raises(ln.LaunchError, match=r"g has shape \(2, 3\)"):
        fn(p, g)
    g.shape = (6,)
    fn(p, g)
    assert statuses == [MISFIT, MISFIT, 0]


def test_threads_that_call_at_once():
    """Words of a call, workspace and results are its own."""
    f = scaled()
    fn = ln.compile(f, "c", threads=1)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(200):
            x = rng.integers(-8, 9, (3 + seed % 2, 4)).astype(F)
            y, z = fn(x, B, a=float(seed), n=seed)
            t = x * seed + B
            if not (np.array_equal(y, t * 2) and np.array_equal(z, t.sum(1) + seed)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_counters_of_a_grid_reduction_begin_at_zero(statuses):
    with ln.Fusion("total") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.split(0, 8)
    y.parallelize({0: PT.grid_x})
    fn = ln.compile(f, "c", optimize=1)
    x = np.arange(100, dtype=F)
    assert [float(fn(x)) for _ in range(4)] == [4950.0] * 4
    assert statuses == [0, 0, 0]


def test_large_results_and_no_leak():
    fn = ln.compile(stepped(), "c", optimize=1)
    p, g = np.zeros(100_000, F), np.ones(100_000, F)
    fn(p, g)
    tracemalloc.start()
    for _ in range(50):
        gg = fn(p, g)[1]
        assert gg.flags.c_contiguous
        assert gg.ctypes.data % 64 == 0
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 2_000_000


def test_a_call_that_finds_no_memory():
    with ln.Fusion("held") as f:
        x = f.input("x", ("N",), ln.float32)
        s = ln.sum(x, axis=0, keepdims=True)
        f.output(ln.full(("K",), 1.0, ln.float32), "one")
        f.output(s + 0.0, "y")
    fn = ln.compile(f, "c", optimize=1)
    fn(B, K=2)
    for _ in range(2):
        with pytest.raises(ln.LaunchError, match="does not fit into memory"):
            fn(B, K=1 << 60)
    np.testing.assert_array_equal(fn(B, K=2)[0], [1, 1])


def test_without_fields_of_arrays_calls_go_the_long_way(statuses, monkeypatch):
    monkeypatch.setattr("loopnest.backends.cpu.c_target.reads_arrays", lambda: False)
    fn = ln.compile(stepped(), "c", optimize=1)
    for _ in range(3):
        np.testing.assert_array_equal(fn(B.copy(), B)[0], B * 0.5)
    assert not statuses
