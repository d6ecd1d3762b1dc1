"""Equations of sizes: what is solved, what is equal by them, and that it is true."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopnest.scalar import dtypes
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Index, Op, integer
from loopnest.scalar.facts import Facts, size_expression
from loopnest.scalar.simplify import Simplifier

NAMES = ("N", "T", "K", "M")


def algebra(*texts: str) -> Simplifier:
    found = Facts()
    for text in texts:
        found.add(text, NAMES.__contains__)
    return Simplifier(found)


def size(text: str):
    return size_expression(text, NAMES.__contains__, "test")


EQUAL = [
    (("N == T * 16",), "N // 16", "T"),
    (("T * 16 == N",), "N // 16", "T"),
    (("N == T * 16", "T == K + 1"), "N // 16", "K + 1"),
    (("T == K + 1", "N == T * 16"), "N // 16", "K + 1"),
    (("N == T * 16", "M == N + 1"), "(M - 1) // 4", "T * 4"),
    (("N == (T - 1) * 4",), "N // 4 + 1", "T"),
    (("N == M",), "ceildiv(N, 8)", "ceildiv(M, 8)"),
    (("M * 2 == N - 1",), "(N - 1) // 2", "M"),
    (("N == N // 4 * 4",), "ceildiv(N, 4)", "N // 4"),
    (("N == N // T * T",), "ceildiv(N, T)", "N // T"),
]


@pytest.mark.parametrize(("texts", "one", "other"), EQUAL)
def test_what_equations_make_equal(texts, one, other):
    found = algebra(*texts)
    assert found.equal(found.simplify(size(one)), found.simplify(size(other)))
    without = Simplifier()
    assert not without.equal(without.simplify(size(one)), without.simplify(size(other)))


def test_what_decided_counts_as_used():
    found = algebra("N == T * 16", "T == K + 1", "M == K * 2")
    assert found.equal(found.simplify(size("N // 16")), found.simplify(size("K + 1")))
    used = [t for t in ("N == T * 16", "T == K + 1", "M == K * 2") if found.facts.uses(t)]
    assert used == ["N == T * 16", "T == K + 1"]


def test_equations_that_cannot_be_solved_say_nothing():
    found = algebra("N * T == K * M", "K * 2 == T * 3", "M == M * M")
    assert not found.solved
    assert found.solved.apply(size("N * T")) is size("N * T")


def test_an_index_is_bounded_by_an_equation():
    found = algebra("N == T * 16")
    block, thread = Index("i", size("T")), Index("j", integer(16))
    place = found.add(found.mul(block, integer(16)), thread)
    assert found.proves_lt(place, size("N"))
    assert not Simplifier().proves_lt(place, size("N"))


def test_a_part_of_a_sum_may_be_0():
    """Inside of a loop over N at least one of T and K is not 0, not both."""
    found = algebra("N == T + K")
    assert not found.proves_le(integer(2), size("N"))
    assert not found.proves_le(integer(1), size("N - K"))
    assert algebra("N == T * 16").proves_le(integer(16), size("N"))


SIDES = ("N", "T", "K * 2", "T * K", "N // 2", "T + 1", "N - K", "T * 3", "K // 2 * 2", "M")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(SIDES), st.sampled_from(SIDES)), min_size=1, max_size=3),
    st.sampled_from(SIDES),
    st.sampled_from(SIDES),
    st.sampled_from((1, 2, 3)),
)
def test_what_is_said_to_be_equal_is(equations, one, other, divisor):
    found = algebra(*[f"{a} == {b}" for a, b in equations])
    left, right = [found.floordiv(found.simplify(size(s)), integer(divisor)) for s in (one, other)]
    if not found.equal(left, right):
        return
    conditions = [Op("eq", (size(a), size(b)), dtypes.bool_) for a, b in equations]
    for values in product(range(1, 6), repeat=len(NAMES)):
        sizes = dict(zip(NAMES, values, strict=True))
        if all(size_value(c, sizes) for c in conditions):
            assert size_value(left, sizes) == size_value(right, sizes), sizes


def test_sizes_assumed_equal_are_one():
    found = algebra("M % 4 == 0", "N == M", "M <= 64", "K == N")
    assert found.simplify(size("M * 2 + K")) is found.simplify(size("K * 3"))
    assert found.divides(integer(4), size("N"))
    assert found.facts.upper(size("K")) == 64
    assert [t for t in ("N == M", "K == N") if found.facts.uses(t)] == ["N == M", "K == N"]
    assert Simplifier().simplify(size("M * 2 + K")) is not Simplifier().simplify(size("K * 3"))


def test_a_size_of_equal_ones_is_a_number():
    found = algebra("M == 8", "N == M", "K == N")
    assert found.simplify(size("K + N")) is integer(16)


def test_tests_against_equal_sizes_are_one():
    found = algebra("N == T * K")
    place = Index("i", integer(128))
    assert found.lt(place, size("T * K")) is found.lt(place, size("N"))
    assert Simplifier().lt(place, size("T * K")) is not Simplifier().lt(place, size("N"))
