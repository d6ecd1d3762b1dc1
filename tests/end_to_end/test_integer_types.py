"""Every operation on every element type, over edge values: as NumPy and ml_dtypes have it.

On all targets: the oracle, the interpreter, C, and CUDA text, which runs on the CPU and which NVRTC
compiles.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType

INTEGRAL = (dtypes.bool_, *dtypes.INTEGERS)
FLOAT8 = (ln.float8_e4m3fn, ln.float8_e5m2)
TARGETS = ("evaluate", "interpret", "c", "cuda")


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    plug_in(monkeypatch, CpuGpu(tmp_path))
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # many outputs, all alike


def edges(dtype: DType) -> np.ndarray:
    """Return the values of an integer type where something may go wrong."""
    if dtype.is_bool:
        return np.array([False, True])
    near = [dtype.least, dtype.least + 1, dtype.greatest // 3, dtype.greatest - 1, dtype.greatest]
    counts = [n + d for n in (8, 16, 32, 64) for d in (-1, 0, 1)]
    found = {*near, *counts, 0, 1, 2, 3, 5, 100, -1, -2, -3, -7, -100}
    kept = sorted(n for n in found if dtype.least <= n <= dtype.greatest)
    return np.array(kept, dtype.numpy)


def floats(dtype: DType) -> np.ndarray:
    """Return values of a float type: every one of 8 bits, of others those next to edges."""
    if dtype.size == 1:
        return np.arange(256, dtype=np.uint8).view(dtype.numpy)
    grids = [np.arange(256, dtype=np.uint8).view(d.numpy).astype(np.float64) for d in FLOAT8]
    grid = np.unique(np.concatenate([g[np.isfinite(g)] for g in grids]))
    between = (grid[1:] + grid[:-1]) / 2
    near = [between * (1 + sign * 2.0**-n) for n in (12, 22, 40) for sign in (1, -1)]
    more = [480.0, 464.0, 465.0, 61440.0, 61439.0, 65504.0, 65520.0, 3e38, 1e300, 0.5, 1.5, 2.5]
    special = [np.nan, np.inf, -np.inf, -0.0, 1e-7, *more, *[-x for x in more]]
    with np.errstate(all="ignore"):
        return np.concatenate([grid, between, *near, special]).astype(dtype.numpy)


def values(dtype: DType) -> np.ndarray:
    return floats(dtype) if dtype.is_float else edges(dtype)


def results(fusion: ln.Fusion, arrays: Sequence[np.ndarray]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what each target gives."""
    kernel = ln.lower(fusion)
    for target in TARGETS:
        if target == "evaluate":
            found = ln.evaluate(fusion, *arrays)
        else:
            options = {"optimize": 1} if target == "c" else {}
            found = ln.compile(kernel, target=target, **options)(*arrays)
        yield target, list(found) if isinstance(found, tuple) else [found]
    for arch in ("sm_80", "sm_90"):
        assert kernel.ptx(arch)


def bits(array: np.ndarray) -> np.ndarray:
    """Return the bits of an array; those of NaN are all the same."""
    with np.errstate(invalid="ignore"):
        plain = np.where(np.isnan(array), np.zeros(1, array.dtype), array)
        nan = np.isnan(array)
    return np.stack(
        [plain.view(f"u{array.dtype.itemsize}").astype(np.uint64), nan.astype(np.uint64)]
    )


def same(found: np.ndarray, expected: np.ndarray, where: object) -> None:
    assert found.dtype == expected.dtype, where
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected, str(where))
    else:
        np.testing.assert_array_equal(bits(found), bits(expected), str(where))


def promoted(a: DType, b: DType) -> np.dtype[Any]:
    """Return NumPy's type of an arithmetic result; of two bools ours is int32."""
    if a.is_bool and b.is_bool:
        return np.dtype(np.int32)
    return np.result_type(a.numpy, b.numpy)


def _floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, 0, np.floor_divide(a, b)).astype(a.dtype)


def _mod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, 0, np.mod(a, b)).astype(a.dtype)


def _shift(a: np.ndarray, b: np.ndarray, left: bool) -> np.ndarray:
    """Shift in Python's integers."""
    info, width = np.iinfo(a.dtype), 8 * a.dtype.itemsize
    result = []
    for x, n in zip(a.tolist(), b.tolist(), strict=True):
        inside = 0 <= n < width
        shifted = (x << n if left else x >> n) if inside else (-1 if x < 0 and not left else 0)
        result.append((shifted - int(info.min)) % (1 << width) + int(info.min))
    return np.array(result, a.dtype)


def _power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    whole = [
        pow(x, n, 1 << 64) if n >= 0 else {1: 1, -1: -1 if n % 2 else 1}.get(x, 0)
        for x, n in zip(a.tolist(), b.tolist(), strict=True)
    ]
    return np.array([n % (1 << 64) for n in whole], np.uint64).astype(a.dtype)


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "mod": _mod,
    "floordiv": _floor_divide,
    "lshift": lambda a, b: _shift(a, b, True),
    "rshift": lambda a, b: _shift(a, b, False),
    "pow": _power,
}
KEEPING: dict[str, Callable[[Any, Any], Any]] = {
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
}
PAIRS = list(product(INTEGRAL, repeat=2))


def grids(a: DType, b: DType) -> tuple[np.ndarray, np.ndarray]:
    """Return every pair of edge values of two types."""
    x, y = np.meshgrid(edges(a), edges(b))
    return x.ravel(), y.ravel()


@pytest.mark.parametrize("name", [*ARITHMETIC, *KEEPING, *COMPARISONS])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_two_integers(name: str) -> None:
    arrays, wanted = [], []
    with ln.Fusion(f"pairs_{name}") as f:
        for number, (a, b) in enumerate(PAIRS):
            x, y = grids(a, b)
            operands = [
                f.input(f"{side}{number}", (len(x),), dtype) for side, dtype in (("a", a), ("b", b))
            ]
            f.output(getattr(ln, name)(*operands), f"y{number}")
            met = promoted(a, b) if name in ARITHMETIC else np.result_type(a.numpy, b.numpy)
            function = {**ARITHMETIC, **KEEPING, **COMPARISONS}[name]
            wanted.append(function(x.astype(met), y.astype(met)))
            arrays += [x, y]
    for target, found in results(f, arrays):
        for pair, one, expected in zip(PAIRS, found, wanted, strict=True):
            same(one, expected, (name, target, *map(str, pair)))


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: np.negative(x.astype(np.int32) if x.dtype == bool else x),
    "abs": np.abs,
    "invert": np.invert,
    "relu": lambda x: np.maximum(x, np.zeros(1, x.dtype)),
    "floor": lambda x: x,
    "logical_not": np.logical_not,
}


@pytest.mark.parametrize("name", UNARY)
def test_one_integer(name: str) -> None:
    arrays = [edges(dtype) for dtype in INTEGRAL]
    with ln.Fusion(f"each_{name}") as f:
        for number, array in enumerate(arrays):
            x = f.input(f"x{number}", array.shape, INTEGRAL[number])
            f.output(getattr(ln, name)(x), f"y{number}")
    for target, found in results(f, arrays):
        for array, one in zip(arrays, found, strict=True):
            same(one, UNARY[name](array), (name, target, array.dtype))


def nearest(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Return numbers rounded once to a type of ml_dtypes: by way of Python's exact integers."""
    count = 8 * dtype.size
    every = np.arange(1 << (count - 1), dtype=f"u{dtype.size}").view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        grid = every.astype(np.float64)
    finite = int(np.isfinite(grid).sum())
    ends = grid[:finite]
    step = ends[-1] - ends[-2]
    beyond = np.append(ends, ends[-1] + step)  # what is rounded here has no number
    scale = 1 << 140
    table = [int(x * 2.0**100) << 40 for x in beyond]
    result = np.zeros(values.shape, f"u{dtype.size}")
    for place, value in enumerate(values.tolist()):
        sign = (1 << (count - 1)) if math.copysign(1, value) < 0 else 0
        if isinstance(value, float) and not math.isfinite(value):
            own = np.array(value).astype(dtype.numpy).view(result.dtype)
            result[place] = int(own) & ~(1 << (count - 1)) | (0 if value != value else sign)
            continue
        top, bottom = abs(value).as_integer_ratio()
        exact = top * scale // bottom if (top * scale) % bottom == 0 else None
        assert exact is not None, value
        above = bisect.bisect_left(table, exact)
        above = min(above, finite)
        below = max(above - 1, 0)
        first, second = exact - table[below], table[above] - exact
        chosen = above if second < first or (first == second and above % 2 == 0) else below
        if exact >= table[finite]:
            chosen = finite
        if chosen == finite:
            lost = np.array(np.inf).astype(dtype.numpy).view(result.dtype)
            result[place] = int(lost) | sign
        else:
            result[place] = chosen | sign
    return result.view(dtype.numpy)


def converted(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """Return what a cast gives."""
    if target.is_bool:
        return np.not_equal(values, 0)
    if target.is_narrow and target is not ln.float16:
        wide = values.astype(np.float64) if source.is_float else values.astype(object)
        return nearest(np.asarray(wide), target)
    if source.is_narrow:
        values = values.astype(np.float32)
    return values.astype(target.numpy)


def defined_casts(source: DType, target: DType) -> np.ndarray:
    """Return edge values of `source` whose conversion to `target` is defined."""
    found = values(source)
    if source.is_float and target.is_integer:
        with np.errstate(invalid="ignore"):
            wide = np.trunc(found.astype(np.float64))
            below, above = float(target.least), float(target.greatest + 1)
            return found[(wide >= below) & (wide < above)]
    if source.size == 8 and source.is_float:  # what Python's fractions above can hold
        wide = found.astype(np.float64)
        found = found[~(np.abs(wide) < 2.0**-60) | (wide == 0)]
    if source is ln.int64:
        steps = [1 << 52, 1 << 53, 1 << 60, 3 << 59]
        more = [
            n + s * m
            for n in steps
            for m in (1, n >> 8, (n >> 8) + 1, (n >> 8) - 1)
            for s in (1, -1)
        ]
        found = np.append(found, np.array(more, np.int64))
    return found


@pytest.mark.parametrize("target_type", dtypes.ALL, ids=str)
def test_casts(target_type: DType) -> None:
    sources = [d for d in dtypes.ALL if d is not target_type]
    arrays = [defined_casts(source, target_type) for source in sources]
    with ln.Fusion(f"casts_{target_type}") as f:
        for number, (source, array) in enumerate(zip(sources, arrays, strict=True)):
            x = f.input(f"x{number}", array.shape, source)
            f.output(ln.cast(x, target_type), f"y{number}")
    with np.errstate(all="ignore"):
        wanted = [
            converted(array, source, target_type)
            for source, array in zip(sources, arrays, strict=True)
        ]
    for target, found in results(f, arrays):
        for source, one, expected in zip(sources, found, wanted, strict=True):
            same(one, expected, (target, f"{source} to {target_type}"))


def in_range(values: np.ndarray, target: DType, rounding: str) -> np.ndarray:
    """Return a saturating cast, by Python's numbers."""
    if target.is_float:
        with np.errstate(all="ignore"):
            wide = values.astype(np.float64)
        return converted(np.clip(wide, -target.largest, target.largest), ln.float64, target)
    rounded = {"trunc": math.trunc, "nearest": round, "floor": math.floor, "ceil": math.ceil}
    result = []
    for value in values.astype(object).tolist():
        number = float(value) if values.dtype.kind in "fV" else value
        if number != number:
            number = 0
        elif abs(number) == math.inf:
            number = target.greatest + 1 if number > 0 else target.least - 1
        else:
            number = rounded[rounding](number)
        result.append(min(max(number, target.least), target.greatest))
    return np.array(result, target.numpy)


@pytest.mark.parametrize("target_type", [d for d in dtypes.ALL if not d.is_bool], ids=str)
def test_saturating_casts(target_type: DType) -> None:
    sources = [d for d in dtypes.ALL if not d.is_bool]
    arrays = [values(source) for source in sources]
    roundings = ["trunc", "nearest", "floor", "ceil"] if target_type.is_integer else ["nearest"]
    wanted: list[tuple[DType, str, np.ndarray]] = []
    with ln.Fusion(f"saturate_{target_type}") as f:
        for number, (source, array) in enumerate(zip(sources, arrays, strict=True)):
            x = f.input(f"x{number}", array.shape, source)
            for rounding in roundings:
                y = ln.cast(x, target_type, saturate=True, rounding=rounding)
                f.output(y, f"y{number}_{rounding}")
                with np.errstate(all="ignore"):
                    expected = in_range(array, target_type, rounding)
                wanted.append((source, rounding, expected))
    for target, found in results(f, arrays):
        for (source, rounding, expected), one in zip(wanted, found, strict=True):
            same(one, expected, (target, f"{source} to {target_type}", rounding))


REAL: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "maximum": np.maximum, "minimum": np.minimum, "lt": np.less,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_floats_of_8_bits_are_computed_in_float32_and_rounded_once(dtype: DType) -> None:
    every = floats(dtype)
    x, y = (side.ravel() for side in np.meshgrid(every, every[::5]))
    with ln.Fusion(f"real_{dtype}") as f:
        a, b = f.input("a", x.shape, dtype), f.input("b", x.shape, dtype)
        for name in REAL:
            f.output(getattr(ln, name)(a, b), f"out_{name}")
    with np.errstate(all="ignore"):
        exact = {n: g(x.astype(np.float32), y.astype(np.float32)) for n, g in REAL.items()}
        wanted = [v if v.dtype == bool else v.astype(dtype.numpy) for v in exact.values()]
    for target, found in results(f, [x, y]):
        for name, one, expected in zip(REAL, found, wanted, strict=True):
            same(one, expected, (target, name))
