"""Assumptions on sizes: which texts are read, what is learnt, and that it is true."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopnest as ln
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Const, Expr, Op, Symbol, integer
from loopnest.scalar.facts import Facts

N, M = Symbol("N"), Symbol("M")
HINT = (
    "write one comparison of integers and size symbols with + - * // %, "
    "such as 'N % 128 == 0' or 'N <= 65536'"
)


def facts(*texts: str) -> Facts:
    found = Facts()
    for text in texts:
        found.add(text, lambda name: name in ("N", "M"))
    return found


def op(name: str, *args: Expr) -> Op:
    return Op(name, args, dtypes.index)


# What is read


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("N % 128 == 0", "N % 128 == 0"),
        ("N<=65536", "N <= 65536"),
        (" N == 4 ", "N == 4"),
        ("4 * (N + 1) // 3 > M - 2", "4 * (N + 1) // 3 > M - 2"),
        ("-N >= -5", "-N >= -5"),
        ("-4 < N", "-4 < N"),
        ("N != M", "N != M"),
        ("N - (M - 1) >= 0", "N - (M - 1) >= 0"),
        ("((N)) == (2 * M)", "N == 2 * M"),
    ],
)
def test_comparisons_are_kept_as_expressions(text: str, shown: str) -> None:
    ((kept, condition),) = facts(text).conditions
    assert kept == text
    assert str(condition) == shown
    assert condition.dtype is dtypes.bool_


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it cannot be read"),
        ("N ==", "it cannot be read"),
        ("N = 4", "it cannot be read"),
        ("N == 4; M == 4", "it cannot be read"),
        ("N", "it is not one comparison"),
        ("N + 4", "it is not one comparison"),
        ("1 < N < 5", "it is not one comparison"),
        ("N == 4 and M == 4", "it is not one comparison"),
        ("not N == 4", "it is not one comparison"),
        ("N in M", "it is not one comparison"),
        ("N is M", "it is not one comparison"),
        ("K == 4", "'K' is no size symbol of this fusion"),
        ("N / 2 == 4", "'N / 2' is not allowed"),
        ("N ** 2 == 4", "'N ** 2' is not allowed"),
        ("N & 3 == 0", "'N & 3' is not allowed"),
        ("N == 4.0", "'4.0' is not allowed"),
        ("N == True", "'True' is not allowed"),
        ("N == None", "'None' is not allowed"),
        ("len(N) == 4", "'len(N)' is not allowed"),
        ("N[0] == 4", "'N[0]' is not allowed"),
        ("N.real == 4", "'N.real' is not allowed"),
        ("(N if M else 1) == 4", "'N if M else 1' is not allowed"),
        ("~N == 4", "'~N' is not allowed"),
    ],
)
def test_everything_else_is_refused_by_name(text: str, reason: str) -> None:
    with ln.Fusion("k") as f:
        f.input("x", ("N", "M"), ln.float32)
    with pytest.raises(
        ln.DefinitionError, match=f"^{re.escape(f'assume({text!r}): {reason}; {HINT}')}$"
    ):
        f.assume(text)
    assert f.facts.conditions == []


SOME = "assume what some sizes fulfil, or leave one out"
CONTRADICTIONS = [
    (("N == 4", "N == 5"), "N would be at least 5, at most 4, by 'N == 4' and 'N == 5'"),
    (("N > 8", "N < 4"), "N would be at least 9, at most 3, by 'N > 8' and 'N < 4'"),
    (
        ("N % 4 == 0", "N == 6"),
        "N would be at least 6, at most 6 and a multiple of 4, by 'N % 4 == 0' and 'N == 6'",
    ),
    (
        ("N == M", "M == 3", "N == 4"),
        "N would be at least 4, at most 3, by 'N == M' and 'M == 3' and 'N == 4'",
    ),
    (("N < 0",), "N would be at least 0, at most -1, by 'N < 0'"),
    (("N < M", "M < N"), "'N < M' and 'M < N' hold together for no sizes"),
    (("N == M", "N != M"), "with what was assumed before, 'N != M' holds for no sizes"),
    (("N == M + 1", "M > N"), "with what was assumed before, 'M > N' holds for no sizes"),
    (("N * 2 == 7",), "with what was assumed before, 'N * 2 == 7' holds for no sizes"),
    (("N >= 4", "M >= 3", "N * M <= 10"),
     "with what was assumed before, 'N * M <= 10' holds for no sizes"),
    (("N // 2 == 3", "N == 8"),
     "with what was assumed before, 'N // 2 == 3' holds for no sizes"),
    (("N < M", "M < K", "K < N"),
     "'N < M' and 'M < K' and 'K < N' hold together for no sizes"),
    (("N < M", "N % 3 == 0", "M < K", "K < L", "L <= N"),
     "'N < M' and 'M < K' and 'K < L' and 'L <= N' hold together for no sizes"),
    (("2 * N <= M", "M <= K", "N >= 1", "K < N + 1"),
     "'2 * N <= M' and 'M <= K' and 'K < N + 1' hold together for no sizes"),
    (("N * M <= K", "K <= L", "L < N * M"),
     "'N * M <= K' and 'K <= L' and 'L < N * M' hold together for no sizes"),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "reason"), CONTRADICTIONS)
def test_assumptions_that_contradict_each_other(texts: tuple[str, ...], reason: str) -> None:
    with ln.Fusion("k") as f:
        f.input("x", ("N", "M", "K", "L"), ln.float32)
    for text in texts[:-1]:
        f.assume(text)
    known = list(f.facts.conditions)
    with pytest.raises(ln.DefinitionError) as caught:
        f.assume(texts[-1])
    assert str(caught.value) == f"assume({texts[-1]!r}): {reason}; {SOME}"
    assert f.facts.conditions == known
    assert not f.facts.used


@pytest.mark.parametrize(
    "texts",
    [
        ("N == 0",),
        ("N // N == 0",),
        ("min(N, 1) == 0",),
        ("N >= M", "M >= N"),
        ("N >= M", "M >= K", "K >= N"),
        ("N < M", "K < M", "N < K"),
        ("2 * N <= M", "M <= K", "K <= 2 * N"),
        ("N == M - 2", "M == N + 2"),
        ("N % 4 == 0", "N <= 7", "N >= 3"),
        ("N % 4 == 0", "N <= 3"),
        ("N // 2 == 3", "N == 6"),
        ("N - M >= -3", "N - M <= -3"),
        ("N % 2 == N % 2 % 2",),
        ("N == M % 3 % 3", "N == 1"),
    ],
)
def test_assumptions_that_some_sizes_fulfil(texts: tuple[str, ...]) -> None:
    with ln.Fusion("k") as f:
        f.input("x", ("N", "M", "K"), ln.float32)
    for text in texts:
        f.assume(text)
    assert not f.facts.used


def test_an_assumption_is_a_string() -> None:
    with ln.Fusion("k") as f, pytest.raises(ln.DefinitionError, match=r"^assume\(4\): it is not a"):
        f.assume(4)  # type: ignore[arg-type]


# What is learnt


@pytest.mark.parametrize(
    ("texts", "divisor"),
    [
        ((), 1),
        (("N % 4 == 0",), 4),
        (("0 == N % 4",), 4),
        (("N % 4 == 0", "N % 6 == 0"), 12),
        (("N == 8 * M",), 8),
        (("M * 8 == N",), 8),
        (("N % 4 == 2",), 1),
        (("N % 4 >= 0",), 1),
        (("M % 4 == 0",), 1),
        (("N != 4",), 1),
    ],
)
def test_divisors(texts: tuple[str, ...], divisor: int) -> None:
    assert facts(*texts).divisor(N) == divisor


def test_divisors_of_quotients() -> None:
    known = facts("N % 24 == 0")
    assert known.divisor(op("floordiv", N, integer(4))) == 6
    assert known.divisor(op("floordiv", N, integer(5))) == 1
    assert known.divisor(op("floordiv", op("floordiv", N, integer(2)), integer(3))) == 4
    assert known.divisor(op("mod", N, integer(4))) == 1


def test_divisibility_by_a_symbol_is_taken_literally() -> None:
    known = facts("N % M == 0", "N == M * 3")
    assert known.states_divisible(N, M)
    assert known.states_divisible(N, integer(3))
    assert not known.states_divisible(M, N)
    assert not facts("N % M == 1").states_divisible(N, M)


@pytest.mark.parametrize(
    ("texts", "low", "high"),
    [
        ((), 1, None),
        (("N >= 5",), 5, None),
        (("N > 5",), 6, None),
        (("5 <= N",), 5, None),
        (("5 < N", "N > 9"), 10, None),
        (("N <= 16",), 1, 16),
        (("N < 16", "N <= 20"), 1, 15),
        (("16 >= N",), 1, 16),
        (("N == 7",), 7, 7),
        (("7 == N",), 7, 7),
        (("N >= 0",), 1, None),
        (("N != 7",), 1, None),
        (("N >= M",), 1, None),
        (("N - 1 >= 8",), 1, None),
    ],
)
def test_bounds(texts: tuple[str, ...], low: int, high: int | None) -> None:
    """Inside a loop over a size it is at least 1, or what was assumed."""
    known = facts(*texts)
    assert (known.lower(N), known.upper(N)) == (low, high)


def test_a_quotient_may_be_0() -> None:
    assert facts().lower(op("floordiv", N, integer(4))) == 0
    assert facts("N // 4 >= 2").lower(op("floordiv", N, integer(4))) == 2


def test_positive_at_every_launch() -> None:
    """A size may be 0 unless it is assumed not to be."""
    assert not facts().states_positive(N)
    assert not facts("N >= 0").states_positive(N)
    assert facts("N >= 1").states_positive(N)
    assert facts("0 < N").states_positive(N)
    assert facts("N == 3").states_positive(N)
    assert facts().states_positive(op("max", N, integer(1)))
    assert not facts().states_positive(op("max", N, integer(0)))
    assert facts("N > 0").states_positive(op("ceildiv", N, integer(4)))


def test_equality_is_taken_literally() -> None:
    known = facts("N == M")
    assert known.states_equal(N, M)
    assert known.states_equal(M, N)
    assert not facts("N <= M", "M <= N").states_equal(N, M)


def test_a_copy_is_independent() -> None:
    known = facts("N % 4 == 0")
    copy = known.copy()
    copy.add("N % 3 == 0", lambda name: True)
    copy.add("N >= 9", lambda name: True)
    copy.add("N == M", lambda name: True)
    assert (known.divisor(N), known.lower(N), known.states_equal(N, M)) == (4, 1, False)
    assert (copy.divisor(N), copy.lower(N), copy.states_equal(N, M)) == (12, 9, True)
    assert [text for text, _ in known.conditions] == ["N % 4 == 0"]


def test_a_refused_assumption_changes_nothing() -> None:
    with ln.Fusion("k") as f:
        f.input("x", ("N",), ln.float32)
        f.assume("N % 4 == 0")
    known = f.facts
    with pytest.raises(ln.DefinitionError):
        f.assume("N % 3")
    assert f.facts is known


# It is true


def holds(condition: Expr, n: int, m: int) -> bool:
    return bool(eval(str(condition), {}, {"N": n, "M": m}))


TERMS = st.sampled_from(
    ["N", "M", "N % 4", "N % M", "N // 3", "2 * M", "M * N", "N - 2", "0", "4", "-1"]
)


@given(
    left=TERMS,
    right=TERMS,
    sign=st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    n=st.integers(1, 24),
    m=st.integers(1, 6),
)
@settings(max_examples=250, deadline=None, derandomize=True)
def test_what_is_learnt_follows_from_the_assumption(
    left: str, right: str, sign: str, n: int, m: int
) -> None:
    """Wherever the assumption holds, so do the divisors, bounds and equalities."""
    known = facts(f"{left} {sign} {right}")
    ((_, condition),) = known.conditions
    if not holds(condition, n, m):
        return
    for symbol, value in ((N, n), (M, m)):
        divisor, top = known.divisor(symbol), known.upper(symbol)
        assert value % divisor == 0 if divisor else value == 0
        assert known.lower(symbol) <= value
        assert top is None or value <= top
        assert not known.states_positive(symbol) or value >= 1
    assert not known.states_equal(N, M) or n == m
    assert not known.states_divisible(N, M) or n % m == 0
    assert not known.states_divisible(M, N) or m % n == 0
    for factor in (2, 3, 4):
        assert not known.states_divisible(N, integer(factor)) or n % factor == 0


def test_constants_are_read_as_written() -> None:
    ((_, condition),) = facts("N >= -3").conditions
    assert isinstance(condition, Op)
    assert isinstance(condition.args[1], Const)
    assert condition.args[1].value == -3


def test_facts_of_conditions() -> None:
    """As if each had been assumed; a conjunction is all of its terms, other tests say nothing."""
    made = facts("N <= 100", "N % 8 == 0", "M > 2")
    first, second, third = [condition for _, condition in made.conditions]
    both = Op("and", (second, third), dtypes.bool_)
    found = Facts.of([first, both, Op("or", (first, third), dtypes.bool_)])
    assert (found.range_of(N), found.range_of(M)) == ((0, 96), (3, None))
    assert (found.range_of(N), found.range_of(M)) == (made.range_of(N), made.range_of(M))


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        (("N == 4096",), 4096),
        (("4096 == N",), 4096),
        (("N >= 5", "N < 6"), 5),
        (("N % 8 == 0", "N <= 15", "N >= 3"), 8),
        (("N % 8 == 0", "N <= 16", "N >= 3"), None),
        (("N <= 1",), None),
        (("N == 0",), None),
        (("N >= 9", "N <= 7"), None),
        (("N == M",), None),
    ],
)
def test_sizes_of_one_value(texts: tuple[str, ...], value: int | None) -> None:
    """Found by all that is stated together; 0 is no value to fold, a loop over it has no body."""
    known = facts(*texts)
    assert known.fixed(N) == value
    assert known.uses(texts[0]) == (value is not None)
