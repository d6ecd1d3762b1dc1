"""Random bits, uniform numbers and dropout: the generator, equal bits on all targets, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in

PT = ln.ParallelType
TARGETS: dict[str, dict[str, Any]] = {"interpret": {}, "c": {"optimize": 1}, "cuda": {}}
PI = 0x03707344_13198A2E_85A308D3_243F6A88


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    plug_in(monkeypatch, CpuGpu(tmp_path))


def everywhere(fusion: ln.Fusion, *arrays: np.ndarray, **scalars: Any) -> np.ndarray:
    """Return what all targets give, which is the same."""
    (found,) = each(fusion, [(arrays, scalars)])
    return found


def each(fusion: ln.Fusion, calls: list[tuple[Any, dict[str, Any]]]) -> list[np.ndarray]:
    """Return what all targets give for each call."""
    kernel = ln.lower(fusion)
    assert ln.verify(kernel).all_sizes
    wanted = [ln.evaluate(fusion, *arrays, **scalars) for arrays, scalars in calls]
    for target, options in TARGETS.items():
        function = ln.compile(kernel, target=target, **options)
        for (arrays, scalars), expected in zip(calls, wanted, strict=True):
            found = function(*arrays, **scalars)
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes(), target
    return wanted


def drawn(seed: int, offset: int, *shape: int) -> ln.Fusion:
    with ln.Fusion("drawn") as f:
        f.output(ln.random_bits(seed, offset, shape), "y")
    return f


def block(counter: int, key: int) -> list[int]:
    """Return the words of Philox 4x32-10, in Python's integers."""
    word = (1 << 32) - 1
    c = [counter >> (32 * n) & word for n in range(4)]
    k = [key & word, key >> 32 & word]
    for _ in range(10):
        even, odd = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [odd >> 32 ^ c[1] ^ k[0], odd & word, even >> 32 ^ c[3] ^ k[1], even & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return c


@pytest.mark.parametrize(
    ("seed", "offset", "words"),
    [
        (0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (2**64 - 1, 2**128 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (0x299F31D0_A4093822, PI, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ],
)
def test_known_answers(seed: int, offset: int, words: list[int]) -> None:
    """Source: kat_vectors of Random123."""
    assert everywhere(drawn(seed, offset, 4)).tolist() == words
    assert block(offset, seed) == words


@pytest.mark.parametrize("offset", [0, 2**32 - 2, 2**63 - 1, 2**64 - 2, 2**96 - 1, 2**128 - 2, -1])
def test_counters_carry_from_word_to_word(offset: int) -> None:
    found = everywhere(drawn(-3, offset, 3, 7))
    expected = [block(offset + e // 4, -3)[e % 4] for e in range(21)]
    assert found.ravel().tolist() == expected


@pytest.mark.parametrize("dtype", [ln.uint8, ln.int32, ln.uint32, ln.int64], ids=str)
def test_scalars_of_the_fusion(dtype: Any) -> None:
    with ln.Fusion("drawn") as f:
        y = f.output(
            ln.random_bits(f.scalar("seed", dtype), f.scalar("offset", dtype), ("N", 5)), "y"
        )
    y.split(0, 3)
    y.parallelize({0: PT.grid_x, 1: PT.block_x, 2: PT.block_y})
    values = [0, 7, dtype.greatest, *([-1] if dtype.signed else [])]
    pairs = list(zip(values, values[::-1], strict=True))
    results = each(f, [((), {"N": 4, "seed": seed, "offset": start}) for seed, start in pairs])
    for (seed_value, start), found in zip(pairs, results, strict=True):
        expected = [block(start + e // 4, seed_value)[e % 4] for e in range(20)]
        assert found.ravel().tolist() == expected


def test_uniform_numbers_are_the_upper_24_bits() -> None:
    with ln.Fusion("uniform") as f:
        f.output(ln.random_uniform(1, 2, (1000,)), "y")
    found = everywhere(f)
    expected = [(block(2 + e // 4, 1)[e % 4] >> 8) / 2**24 for e in range(1000)]
    assert found.dtype == np.float32
    assert found.tolist() == expected
    assert str(f.print_math()).splitlines()[-1] == "  y: float32[1000] = random_uniform(1, 2)"


@pytest.mark.parametrize(
    ("dtype", "p"),
    [
        *((ln.float32, 0), (ln.float32, 0.25), (ln.float32, 1), (ln.float32, "scalar")),
        *((ln.float8_e5m2, 0.25), (ln.float16, 0.9), (ln.float64, "scalar")),
    ],
)
def test_dropout(dtype: Any, p: Any) -> None:
    chance = 0.4 if p == "scalar" else p
    with ln.Fusion("drop") as f:
        x = f.input("x", ("N", "D"), dtype)
        share = f.scalar("p", ln.float32) if p == "scalar" else p
        y = f.output(ln.dropout(x, share, f.scalar("seed", ln.int64), 11), "y")
    y.split(1, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    ln.propagate(y)
    f.inline_most()
    a = np.random.default_rng(0).integers(-8, 9, (13, 50)).astype(dtype.numpy)
    scalars = {"seed": 5, **({"p": chance} if p == "scalar" else {})}
    expected = ln.evaluate(f, a, **scalars)
    drawn = np.array([(block(11 + e // 4, 5)[e % 4] >> 8) / 2**24 for e in range(650)])
    kept = (drawn >= np.float32(chance)).reshape(13, 50)
    assert not expected[~kept].any()
    kernel = ln.lower(f)
    for target, options in TARGETS.items():
        found = ln.compile(kernel, target=target, **options)(a, **scalars)
        assert ((found != 0) == (kept & (a != 0))).all()
        error = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        assert (error <= ln.error_bound(f, a, **scalars)).all(), target
    if chance < 1:
        scale = np.float32(1 / (1 - np.float64(chance)))
        wide = a.astype(np.float64) * (scale if p != "scalar" else 1 / (1 - np.float32(0.4)))
        np.testing.assert_allclose(
            expected.astype(float),
            np.where(kept, wide, 0),
            {1: 0.13, 2: 1e-3}.get(dtype.size, 1e-6),
        )


def test_dropped_values_are_not_looked_at() -> None:
    with ln.Fusion("drop") as f:
        x = f.input("x", (64,), ln.float32)
        f.output(ln.dropout(x, 0.5, 3, 0), "y")
    found = everywhere(f, np.full(64, np.nan, np.float32))
    assert 0 < (found == 0).sum() < 64


def test_elements_are_numbered_by_the_math_not_by_the_loops() -> None:
    plain = everywhere(drawn(1, 2, 6, 8))
    with ln.Fusion("turned") as f:
        y = f.output(ln.random_bits(1, 2, ("N", "D")), "y")
    y.reorder([1, 0])
    y.split(0, 3)
    y.merge(1)
    assert (everywhere(f, N=6, D=8) == plain).all()


ERRORS = [
    (
        'ln.random_bits(1.5, 0, ("N",))',
        "random_bits(1.5, 0, ('N',)): seed is a float; use an int or an integer scalar",
    ),
    (
        'ln.random_bits(a, 0, ("N",))',
        "random_bits(a, 0, ('N',)): seed is float32; use an int or an integer scalar",
    ),
    (
        "ln.random_bits(x, 0, (4,))",
        "random_bits(x, 0, (4,)): seed is a TensorView; use an int or an integer scalar",
    ),
    (
        "ln.random_bits(2**64, 0, 4)",
        "random_bits(18446744073709551616, 0, 4): seed 18446744073709551616 has more than 64 bits; "
        "use -2**63..2**64 - 1",
    ),
    (
        "ln.random_uniform(1, -2**70, 4)",
        "random_uniform(1, -1180591620717411303424, 4): offset -1180591620717411303424 has more "
        "than 128 bits; use -2**63..2**128 - 1",
    ),
    (
        'ln.random_bits(1, 0, "N M")',
        "random_bits(1, 0, 'N M'): 'N M' is no extent; use an int >= 0 or the name of a "
        "size symbol (an identifier)",
    ),
    (
        "ln.dropout(n, 0.5, 1, 0)",
        "dropout(n, 0.5, 1, 0): n is int32; cast it to a float first",
    ),
    (
        "ln.dropout(x, 1.5, 1, 0)",
        "dropout(x, 1.5, 1, 0): p is no probability; use a number in [0, 1]",
    ),
    (
        "ln.dropout(x, float('nan'), 1, 0)",
        "dropout(x, nan, 1, 0): p is no probability; use a number in [0, 1]",
    ),
    (
        "ln.dropout(x, s, 1, 0)",
        "dropout(x, s, 1, 0): p is int64; use a number in [0, 1] or a float scalar",
    ),
    (
        "ln.dropout(1.0, 0.5, 1, 0)",
        "dropout(1.0, 0.5, 1, 0): operand 1 is of type float; use a TensorView",
    ),
    (
        "ln.dropout(x, ln.cast(other, ln.float32), 1, 0)",
        "dropout(x, float32(other)): float32(other) belongs to fusion second, not to first; "
        "all operands of an expression belong to one fusion",
    ),
    (
        "ln.dropout(x, 0.5, other, 0)",
        "dropout(x, 0.5, other, 0): seed other belongs to fusion second, not to first; "
        "all operands of an expression belong to one fusion",
    ),
]


@pytest.mark.parametrize(("code", "message"), ERRORS, ids=[code for code, _ in ERRORS])
def test_bad_arguments(code: str, message: str) -> None:
    with ln.Fusion("second") as g:
        other = g.scalar("other", ln.int64)
    with ln.Fusion("first") as f:
        names = {
            "ln": ln, "other": other, "x": f.input("x", ("N",), ln.float32),
            "n": f.input("n", ("N",), ln.int32), "a": f.scalar("a", ln.float32),
            "s": f.scalar("s", ln.int64),
        }  # fmt: skip
        before = f.tensors
        with pytest.raises(ln.DefinitionError) as caught:
            eval(code, names)
    assert str(caught.value) == message
    assert f.tensors == before


def test_outside_of_a_fusion() -> None:
    with pytest.raises(ln.DefinitionError) as caught:
        ln.random_bits(1, 2, (4,))
    assert str(caught.value) == (
        "random_bits(1, 2, (4,)): no fusion is open; call it inside 'with ln.Fusion(...):'"
    )


@pytest.mark.parametrize("sizes", [("A", "B"), ("A", "B", "C"), (6, 10)])
def test_the_number_of_an_element_follows_merged_loops(sizes):
    """Merged and split axes leave no division in it; another number is refuted."""
    with ln.Fusion("k") as f:
        y = f.output(ln.random_bits(7, 0, sizes), "y")
    while y.ndim > 1:
        y.merge(0)
    y.split(0, 4)
    k = ln.lower(f)
    assert "philox(7, 0, 0, int64(i0 * 4 + i1))" in str(k)
    assert ln.verify(k).all_sizes
    text = k.text(full=True).replace("int64(i0 * 4 + i1)", "int64(i0 * 4 + i1 + 1)")
    assert ln.verify(ln.Kernel.parse(text)).status == "refuted"
