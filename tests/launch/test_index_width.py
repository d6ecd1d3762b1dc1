"""The bounds that choose the width of indices, against every value that the loops give."""

from __future__ import annotations

import itertools
import random

import pytest

from loopnest import kir
from loopnest.kir import parse as parse_nest
from loopnest.launch.index_width import INT32, IndexWidth


def random_index(rng: random.Random, depth: int = 3) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["i0", "i1", "i2", "N", "3", "7"])
    a, b = random_index(rng, depth - 1), random_index(rng, depth - 1)
    positive = rng.choice(["N", "2", "5"])
    return rng.choice([
        f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} // {positive})",
        f"({a} % {positive})", f"min({a}, {b})", f"max({a}, {b})", f"ceildiv({a}, {positive})",
        f"(-{a})",
    ])  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_every_value_lies_within_its_interval(seed):
    rng = random.Random(seed)
    text = random_index(rng)
    n = rng.randint(1, 5)
    program = parse_nest(f"""
    kernel k(x: float32[N]) -> (y: float32[N])
    for i0 in N:
      for i1 in ceildiv(N, 2):  # grid_x
        for i2 in 4:  # block_x
          y[{text}] = x[i0]
    """)
    (store,) = [node for node, _ in kir.walk(program.body) if isinstance(node, kir.Store)]
    low, high = IndexWidth(program).intervals({"N": n})[store.index[0]]
    ranges = [range(n), range(-(-n // 2)), range(4)]
    for i0, i1, i2 in itertools.product(*ranges):
        env = {"i0": i0, "i1": i1, "i2": i2, "N": n, "ceildiv": lambda a, b: -(-a // b)}
        assert low <= eval(text, env) <= high, text


@pytest.mark.parametrize(
    ("text", "size", "fits"),
    [
        ("x[i0]", INT32, True),
        ("x[i0]", INT32 + 1, False),
        ("x[i0 * 2 // 2]", INT32 // 2 + 2, False),
        ("x[i0 - i0]", 4, True),
    ],
)
def test_intermediate_values_count(text, size, fits):
    program = parse_nest(f"""
    kernel k(x: float32[N]) -> (y: float32[N])
    for i0 in N:
      y[i0] = {text}
    """)
    assert IndexWidth(program).fits({"N": size}, INT32) is fits


def test_rounding_up_counts():
    program = parse_nest("""
    kernel k(x: float32[N]) -> (y: float32[N])
    for i0 in ceildiv(N, 1024):
      y[0] = x[0]
    """)
    bounds = IndexWidth(program)
    assert bounds.fits({"N": INT32 - 1024}, INT32)
    assert not bounds.fits({"N": INT32 - 1023}, INT32)


def test_a_division_by_a_size_that_may_be_zero():
    program = parse_nest("""
    kernel k(x: float32[N, D]) -> (y: float32[N, D])
    for i0 in N * D:
      y[i0 // D, i0 % D] = x[i0 // D, i0 % D]
    """)
    assert IndexWidth(program).fits({"N": 3, "D": 0}, INT32)


def test_an_index_read_from_memory_lies_inside_unless_it_is_clamped():
    text = """
    kernel k(x: {dtype}[N]) -> (y: float32[N])
    for i0 in N:
      y[{index}] = 1.0
    """
    plain = parse_nest(text.format(dtype="int64", index="index(x[i0])"))
    assert IndexWidth(plain).fits({"N": 3}, INT32)
    clamped = "max(min(index(x[i0]), 2), 0)"
    narrow, wide = (parse_nest(text.format(dtype=d, index=clamped)) for d in ("int32", "int64"))
    assert IndexWidth(narrow).fits({"N": 3}, INT32)
    assert not IndexWidth(wide).fits({"N": 3}, INT32)


@pytest.mark.parametrize(("dtype", "bits"), [("int32", 64), ("uint32", 64), ("int64", None)])
def test_what_is_compared_and_in_no_place_may_lie_anywhere(dtype, bits):
    program = parse_nest(f"""
    kernel k(x: {dtype}[4]) -> (y: float32[4])
    for i0 in 4:
      if i0 + index(x[i0]) < 3:
        y[i0] = 1.0
    """)
    assert IndexWidth(program).static_bits() == bits


@pytest.mark.parametrize(
    ("index", "fits"),
    [
        ("index(x[i0]) // 4 * 4 + index(x[i0]) % 4", True),  # digits of an index that lies inside
        ("index(x[i0]) % 4 * 3", False),  # a remainder alone is one of any index
        ("index(x[i0]) // 4 % 8 * 4 + index(x[i0]) % 4", False),  # of a remainder: it may be wide
        ("max(min(index(x[i0]), 2), 0) // 4 * 4 + index(x[i0]) % 4", False),
    ],
)
def test_both_digits_of_an_index_read_from_memory(index, fits):
    program = parse_nest(f"""
    kernel k(x: int64[N]) -> (y: float32[N])
    for i0 in N:
      y[{index}] = 1.0
    """)
    assert IndexWidth(program).fits({"N": 3}, INT32) is fits


def test_what_is_too_large_is_named():
    program = parse_nest("""
    kernel k(x: float32[N, D]) -> (y: float32[N])
    for i0 in N:
      y[i0] = x[i0 * 4611686018427387904, 0]
    """)
    bounds = IndexWidth(program)
    assert bounds.too_large({"N": 1 << 33, "D": 1 << 33}).endswith(": x has D * N elements")
    assert bounds.too_large({"N": 5, "D": 1}).endswith(": 'i0 * 4611686018427387904'")


@pytest.mark.parametrize("seed", range(20))
def test_what_is_known_of_sizes_of_as_many_bits_holds_at_each(seed):
    rng = random.Random(seed)
    program = parse_nest(f"""
    kernel k(x: float32[N]) -> (y: float32[N])
    for i0 in N:
      for i1 in ceildiv(N, 2):  # grid_x
        for i2 in 4:  # block_x
          y[{random_index(rng)}] = x[i0]
    """)
    kept = IndexWidth(program)
    for bits in range(12):
        for n in sorted({rng.randint(0, (1 << bits) - 1) for _ in range(4)}):
            for largest in (15, 1000, INT32):
                fresh = kept._beyond({"N": (n, n)}, largest) is None
                assert kept.fits({"N": n}, largest) == fresh, (n, largest)
