"""`ln.kernel`: parameters, schedules, calls; made arguments, references, tolerances."""

from __future__ import annotations

import re

import numpy as np
import pytest

import loopnest as ln
from helpers.fake_gpu import FakeGpu, plug_in
from loopnest.backends.cuda.driver import gpu_driver as drivers
from loopnest.base.errors import LoopnestError
from loopnest.devtools.harness import expected, judge, make_arguments, oracle
from loopnest.devtools.kernel_def import kernels_of


def raises(error, text):
    """Expect `error` with exactly this message."""
    return pytest.raises(error, match=f"^{text}$")


def scaled_numpy(x, alpha, bias):
    return alpha * x + bias


def make_scaled():
    @ln.kernel(sizes={"N": 100}, reference=scaled_numpy, ranges={"alpha": (2.0, 3.0)})
    def scaled(f, dtype=ln.float32, bias=1.0):
        """Scale."""
        x = f.input("x", ("N",), dtype)
        alpha = f.scalar("alpha", dtype)
        f.output(alpha * x + bias, "y")

    @scaled.schedule("gpu")
    def gpu(f, threads=32):
        f["y"].split(0, threads)
        ln.propagate(f["y"])
        f["y"].parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
        ln.inline_most()

    @scaled.schedule("plain")
    def plain(f, dtype=ln.float32):
        assert f["y"].dtype is dtype
        ln.inline_most()

    return scaled


scaled = make_scaled()


# Kernels and schedules


def test_kernel_knows_its_names():
    assert scaled.name == "scaled"
    assert scaled.__doc__ == "Scale."
    assert list(scaled.schedules) == ["gpu", "plain"]
    assert repr(scaled) == "<kernel scaled: schedules gpu, plain>"
    assert kernels_of(__name__) == (scaled,)
    assert isinstance(scaled, ln.KernelDef)


def test_first_schedule_is_the_default():
    assert str(scaled.lower()) == str(scaled.lower("gpu"))
    assert "block_x" in str(scaled.lower())
    assert "block_x" not in str(scaled.lower("plain"))


def test_each_fusion_is_new():
    first, second = scaled.fusion("gpu"), scaled.fusion("gpu")
    assert first is not second
    assert first.name == "scaled"


def test_parameters_go_where_they_are_named():
    assert scaled.parameters("gpu") == {"dtype": ln.float32, "bias": 1.0, "threads": 32}
    assert scaled.parameters() == scaled.parameters("gpu")
    text = str(scaled.lower("gpu", threads=7, bias=2.5))
    assert "for i1 in 7:" in text
    assert "2.5" in text
    # The math and a schedule may share a parameter: both get it.
    assert scaled.fusion("plain", dtype=ln.float16)["y"].dtype is ln.float16


def test_unknown_parameter():
    text = (
        r"scaled@gpu: there is no parameter 'thread'; parameters: the math has dtype, bias; "
        r"schedule gpu has threads"
    )
    with raises(ln.ScheduleError, text):
        scaled.fusion("gpu", thread=4)
    with raises(ln.ScheduleError, text):
        scaled.lower(thread=4)


def test_unknown_schedule():
    text = r"scaled@cpu: kernel scaled has no schedule 'cpu'; its schedules are gpu, plain"
    with raises(ln.ScheduleError, text):
        scaled.fusion("cpu")


def test_a_function_may_define_and_schedule():
    @ln.kernel(sizes={"N": 8})
    def tiled(f, tile=4):
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y")
        f["y"].split(0, tile)

    assert "for i1 in 2:" in str(tiled.lower(tile=2))
    assert tiled.resolve() == ""
    np.testing.assert_array_equal(tiled(np.ones(5, np.float32)), np.full(5, 2, np.float32))
    with raises(ln.ScheduleError, "tiled@gpu: kernel tiled has no schedule 'gpu'; it has none"):
        tiled.lower("gpu")
    with raises(
        ln.ScheduleError, "tiled: there is no parameter 'n'; parameters: the math has tile"
    ):
        tiled.fusion(n=1)


def test_bad_definitions():
    with raises(ln.DefinitionError, r"kernel\(\.\.\.\): the size N = 1\.5; sizes are ints >= 0"):
        ln.kernel(sizes={"N": 1.5})
    reason = r"kernel\(\.\.\.\): the range x = \(2, 1\); use two numbers, \(least, greatest\)"
    with raises(ln.DefinitionError, reason):
        ln.kernel(ranges={"x": (2, 1)})
    for place in (5, "ab", ("a", "b"), (1,), (0.0, float("nan"))):
        with pytest.raises(ln.DefinitionError):
            ln.kernel(ranges={"x": place})
    with raises(
        ln.DefinitionError, r"kernel\(\.\.\.\): sizes=5 is no mapping of names; use a dict"
    ):
        ln.kernel(sizes=5)
    with raises(
        ln.DefinitionError,
        r"kernel\(\.\.\.\): 3 is no function; write @ln\.kernel\(\.\.\.\) above one",
    ):
        ln.kernel()(3)
    with raises(ln.DefinitionError, r"kernel\(\.\.\.\): reference=3 is no function"):
        ln.kernel(reference=3)
    with raises(
        ln.ScheduleError, r"kernel k: its function takes no fusion; write def name\(f, \.\.\.\)"
    ):

        @ln.kernel()
        def k():
            pass

    with raises(
        ln.ScheduleError,
        r"scaled\.schedule\('x'\): its parameter 'n' has no default; give it one: n=\.\.\.",
    ):

        @make_scaled().schedule("x")
        def schedule(f, n):
            pass

    with raises(
        ln.ScheduleError,
        r"scaled\.schedule\('gpu'\): this kernel has a schedule of that name already",
    ):
        make_scaled().schedule("gpu")
    with raises(ln.ScheduleError, r"scaled\.schedule\('a b'\): a schedule's name is a word"):
        make_scaled().schedule("a b")


def test_a_kernel_without_output():
    @ln.kernel()
    def empty(f):
        f.input("x", ("N",), ln.float32)

    with raises(
        ln.DefinitionError, r"kernel empty: it declares no output; call f\.output\(tensor, name\)"
    ):
        empty.fusion()


# Calls


@pytest.mark.parametrize("target", ["interpret", "auto"])
def test_call(target):
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(scaled(x, alpha=2.0, target=target), 2 * x + 1)
    np.testing.assert_allclose(scaled(x, alpha=2.0, bias=0.5, target=target), 2 * x + 0.5)
    np.testing.assert_allclose(scaled(x, alpha=2.0, schedule="plain", target=target), 2 * x + 1)
    out = np.empty_like(x)
    assert scaled(x, alpha=2.0, out=out, target=target) is out


def test_calls_keep_what_they_compiled():
    kernel = make_scaled()
    x = np.ones(3, np.float32)
    for _ in range(2):
        kernel(x, alpha=2.0, target="interpret")
        kernel(x, alpha=3.0, target="interpret")
    assert len(kernel._compiled) == 1
    kernel(x, alpha=3.0, bias=2.0, target="interpret")
    assert len(kernel._compiled) == 2


def test_call_with_an_unknown_keyword():
    with raises(
        ln.LaunchError,
        r"scaled\(\.\.\.\): there is no parameter, scalar or size 'beta'; parameters: the math has "
        r"dtype, bias; schedule gpu has threads",
    ):
        scaled(np.ones(3, np.float32), alpha=2.0, beta=1.0, target="interpret")


def test_the_schedule_that_suits_a_target():
    @ln.kernel()
    def k(f):
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")

    assert k.suited("c") == ""
    for name in ("first", "gpu", "cpu"):
        k.schedule(name)(lambda f, n=1: None)
    k.schedule("other")(lambda f, m=1: None)
    assert [k.suited(t) for t in ("cuda", "c", "interpret")] == ["gpu", "cpu", "cpu"]
    assert k.resolve() == "first"
    assert k.suited("c", ["m"]) == "other"
    assert k.suited("c", ["n"]) == "cpu"


def test_the_schedule_that_suits_this_machine(monkeypatch):
    kernel = make_scaled()
    kernel.schedule("cpu")(lambda f: None)
    monkeypatch.setattr(drivers, "_found", [])
    monkeypatch.setattr(drivers, "_obstacle", ["no GPU was found"])
    assert kernel.suited("auto") == "cpu"
    gpu = plug_in(monkeypatch, FakeGpu())
    assert kernel.suited("auto") == "gpu"
    assert kernel.suited("auto", ["threads"]) == "gpu"
    x = np.arange(300, dtype=np.float32)
    np.testing.assert_allclose(kernel(x, alpha=2.0), 2 * x + 1)
    ((name, launch, _),) = gpu.calls("launch")
    assert (name, launch.grid, launch.block) == ("scaled", (10, 1, 1), (32, 1, 1))


# Made arguments and references


def test_arguments_are_the_same_each_time():
    fusion = scaled.fusion("gpu")
    one, two = (make_arguments(fusion, {"N": 50}, scaled.ranges) for _ in range(2))
    other = make_arguments(fusion, {"N": 50}, scaled.ranges, seed=1)
    np.testing.assert_array_equal(one.arrays[0], two.arrays[0])
    assert one.scalars == two.scalars
    assert 2.0 <= one.scalars["alpha"] < 3.0
    assert not np.array_equal(one.arrays[0], other.arrays[0])
    assert one.arrays[0].dtype == np.float32


@pytest.mark.parametrize(
    "dtype", [ln.bool, ln.int32, ln.int64, ln.float16, ln.bfloat16, ln.float64]
)
def test_arguments_of_each_type(dtype):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 3), dtype)
        s = f.scalar("s", dtype)
        f.output(ln.where(x > s, x, x), "y")
    arguments = make_arguments(f, {"N": 40})
    (array,) = arguments.arrays
    assert array.dtype == dtype.numpy
    assert array.shape == (40, 3)
    assert len(np.unique(array.astype(np.float64))) > 1
    assert not np.shares_memory(arguments.fresh()[0], array)
    assert ln.evaluate(f, *arguments.arrays, **arguments.keywords(f)).shape == (40, 3)


def test_ranges():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        i = f.input("i", ("N",), ln.int32)
        b = f.input("b", ("N",), ln.bool)
        f.output(x * i, "y")
        f.output(ln.where(b, x, 0.0), "z")
    ranges = {"x": (1.0, 2.0), "i": (5, 6), "b": (0, 1)}
    arguments = make_arguments(f, {"N": 1000}, ranges)
    assert arguments.arrays[0].min() >= 1
    assert arguments.arrays[0].max() <= 2
    assert set(arguments.arrays[1]) == {5, 6}
    assert set(arguments.arrays[2]) == {False, True}
    for value in (False, True):
        fixed = make_arguments(f, {"N": 9}, {"b": (value, value)})
        assert set(fixed.arrays[2]) == {value}
    with raises(
        ln.DefinitionError,
        "kernel k: ranges= names 'z', which is no input or scalar; these are x, i, b",
    ):
        make_arguments(f, {"N": 1}, {"z": (0, 1)})


def test_places_that_differ_are_permutations():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        places = f.input("places", ("K", "D"), ln.int32)
        u = f.input("u", ("K", "D"), ln.float32)
        f.output(ln.scatter(x, places, u, 0, unique=True), "y")
    for sizes in ({"N": 5, "K": 5, "D": 3}, {"N": 9, "K": 4, "D": 3}, {"N": 2, "K": 6, "D": 1}):
        arguments = make_arguments(f, sizes)
        made = arguments.arrays[1]
        assert made.shape == (sizes["K"], sizes["D"])
        for column in made.T:
            assert len({*column}) == sizes["K"]
            assert {*column} <= {*range(max(sizes["N"], sizes["K"]))}
        wanted = ln.evaluate(f, *arguments.arrays)
        assert (ln.compile(f, target="interpret")(*arguments.arrays) == wanted).all()
    assert {*make_arguments(f, {"N": 9, "K": 3, "D": 1}, {"places": (5, 7)}).arrays[1].flat} == {
        5, 6, 7,
    }  # fmt: skip
    assert make_arguments(f, {"N": 9, "K": 0, "D": 1}).arrays[1].shape == (0, 1)
    with raises(
        ln.LaunchError,
        "arguments of k: places: 3 different integers are wanted along axis 0, from 6 to 7; "
        "take other sizes, or widen the range",
    ):
        make_arguments(f, {"N": 9, "K": 3, "D": 1}, {"places": (6, 7)})


def test_a_size_that_is_missing():
    with raises(
        ln.LaunchError,
        r"arguments of scaled: the size N is not given; name it in sizes= of the kernel, or pass "
        r"-D N=\.\.\.",
    ):
        make_arguments(scaled.fusion(), {"M": 1})


def test_sizes_of_no_input_are_keywords():
    with ln.Fusion("k") as f:
        f.output(ln.iota("N", dtype=ln.int32), "y")
    arguments = make_arguments(f, {"N": 4})
    assert arguments.keywords(f) == {"N": 4}


def test_reference_gets_wide_floats_scalars_and_the_parameters_it_names():
    fusion = scaled.fusion("plain", dtype=ln.float16)
    arguments = make_arguments(fusion, {"N": 10}, scaled.ranges)
    (found,) = expected(scaled, fusion, arguments, {"dtype": ln.float16, "bias": 3.0}).arrays
    assert found.dtype == np.float64
    wide = arguments.arrays[0].astype(np.float64)
    np.testing.assert_array_equal(found, arguments.scalars["alpha"] * wide + 3.0)


def test_reference_of_another_number_of_arrays():
    @ln.kernel(reference=lambda x: (x, x))
    def k(f):
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")

    fusion = k.fusion()
    with raises(
        ln.DefinitionError,
        "reference of k: it returns 2 arrays for 1 outputs; return one array an output, in their "
        "order",
    ):
        expected(k, fusion, make_arguments(fusion, {"N": 1}), {})


# Comparison


def test_a_wrong_kernel_is_seen():
    fusion = scaled.fusion("plain")
    arguments = make_arguments(fusion, {"N": 100}, scaled.ranges)
    wanted = expected(scaled, fusion, arguments, {})
    right = ln.compile(fusion, target="interpret")(*arguments.arrays, **arguments.scalars)
    wrong = right.copy()
    wrong[7] *= 1.000001
    for source in (wanted, oracle(fusion, arguments)):
        assert judge(fusion, arguments.sizes, right, source)[0].ok
        (found,) = judge(fusion, arguments.sizes, wrong, source)
        assert (found.ok, found.place, found.wrong) == (False, (7,), 1)


def test_errors_are_loopnest_errors():
    assert issubclass(ln.ScheduleError, LoopnestError)


def test_cost_is_a_mapping_of_names():
    @ln.kernel()
    def limited(f):
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")

    limited.schedule("one", cost={"barriers": 0})(lambda f: None)
    limited.schedule("two")(lambda f: None)
    assert limited.costs == {"one": {"barriers": 0}, "two": {}}
    message = (
        "limited.schedule('three'): cost=['barriers'] is no mapping of names; "
        'use {"bank_conflicts": 0}'
    )
    with pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$"):
        limited.schedule("three", cost=["barriers"])
