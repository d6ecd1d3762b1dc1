"""The arithmetic of indices: simplified expressions keep their value, proofs hold."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Op,
    Symbol,
    integer,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier

N, M = Symbol("N"), Symbol("M")


def op(name: str, *args: Expr | int) -> Op:
    """Return an operation as it is written, not simplified."""
    given = tuple([integer(a) if isinstance(a, int) else a for a in args])
    return Op(name, given, dtypes.bool_ if name in ("lt", "le", "and") else dtypes.index)


I = Index("i", N)  # noqa: E741
J = Index("j", integer(4))
K = Index("k", op("ceildiv", N, 4))
L = Index("l", op("mul", N, M))
INDICES = (I, J, K, L)

MEANING = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "ceildiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "lt": lambda a, b: a < b,
    "and": lambda a, b: a and b,
}


def value(node: Expr, env: Mapping[Expr, int]) -> int:
    """Evaluate an index expression by Python's integers."""
    if isinstance(node, Const):
        return int(node.value)
    if isinstance(node, Op):
        return int(MEANING[node.op](*[value(a, env) for a in node.args]))
    return env[node]


@st.composite
def environments(draw: st.DrawFn) -> dict[Expr, int]:
    """Draw sizes >= 1, and an index within each loop's extent."""
    env: dict[Expr, int] = {N: draw(st.integers(1, 40)), M: draw(st.integers(1, 9))}
    for index in INDICES:
        env[index] = draw(st.integers(0, value(index.extent, env) - 1))
    return env


DIVISORS = [*map(integer, (1, 2, 3, 4, 6, 8)), N, M, op("mul", N, M), op("mul", N, 2)]
ATOMS = [*INDICES, N, M, *map(integer, (0, 1, 2, 3, 4, 5, 8, 12))]


def expressions() -> st.SearchStrategy[Expr]:
    """Draw index expressions, divided by sizes only."""
    binary = ["add", "mul", "min", "max", "sub", "sub"]

    def extend(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(op, st.sampled_from(binary), inner, inner),
            st.builds(op, st.sampled_from(["floordiv", "mod", "ceildiv"]), inner,
                      st.sampled_from(DIVISORS)),
            st.builds(lambda a, c: op("mul", a, c), inner, st.sampled_from(DIVISORS)),
        )  # fmt: skip

    return st.recursive(st.sampled_from(ATOMS), extend, max_leaves=8)


PROPERTY = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


# Properties


@given(expressions(), environments())
@PROPERTY
def test_simplified_expressions_have_the_same_value(node: Expr, env: dict[Expr, int]) -> None:
    found = Simplifier().simplify(node)
    assert value(found, env) == value(node, env), f"{node} -> {found}"


@given(expressions(), environments())
@PROPERTY
def test_simplifying_again_changes_no_value(node: Expr, env: dict[Expr, int]) -> None:
    algebra = Simplifier()
    found = algebra.simplify(algebra.simplify(node))
    assert value(found, env) == value(node, env), f"{node} -> {found}"


@given(expressions(), expressions(), environments())
@PROPERTY
def test_proofs_of_comparisons_are_true(a: Expr, b: Expr, env: dict[Expr, int]) -> None:
    algebra = Simplifier()
    x, y = algebra.simplify(a), algebra.simplify(b)
    left, right = value(a, env), value(b, env)
    if algebra.proves_lt(x, y):
        assert left < right, f"{a} < {b}"
    if algebra.proves_le(x, y):
        assert left <= right, f"{a} <= {b}"
    if algebra.equal(x, y):
        assert left == right, f"{a} == {b}"
    decided = algebra.lt(x, y)
    if decided in (TRUE, FALSE):
        assert (left < right) is (decided is TRUE), f"{a} < {b}"


@given(expressions(), st.sampled_from([*DIVISORS, J, K]), environments())
@PROPERTY
def test_proofs_of_divisibility_are_true(node: Expr, divisor: Expr, env: dict[Expr, int]) -> None:
    algebra = Simplifier()
    assume(value(divisor, env) > 0)
    if algebra.divides(algebra.simplify(divisor), algebra.simplify(node)):
        assert value(node, env) % value(divisor, env) == 0, f"{divisor} | {node}"


@given(expressions(), environments())
@PROPERTY
def test_positive_means_positive(node: Expr, env: dict[Expr, int]) -> None:
    algebra = Simplifier()
    if algebra.proves_positive(algebra.simplify(node)):
        assert value(node, env) >= 1, str(node)


FACTS = {
    "N % 4 == 0": lambda n, m: n % 4 == 0,
    "N % 12 == 0": lambda n, m: n % 12 == 0,
    "N % M == 0": lambda n, m: n % m == 0,
    "N >= 5": lambda n, m: n >= 5,
    "N > 7": lambda n, m: n > 7,
    "4 <= M": lambda n, m: m >= 4,
    "N <= 16": lambda n, m: n <= 16,
    "N == 8": lambda n, m: n == 8,
    "N == M": lambda n, m: n == m,
    "N == 3 * M": lambda n, m: n == 3 * m,
    "M % 2 == 1": lambda n, m: m % 2 == 1,
    "N // 4 >= 2": lambda n, m: n // 4 >= 2,
    "N * M % 4 == 0": lambda n, m: n * m % 4 == 0,
    "N % 4 >= 1": lambda n, m: n % 4 >= 1,
    "N != 3": lambda n, m: n != 3,
}


@given(
    expressions(), expressions(), environments(), st.sets(st.sampled_from(list(FACTS)), max_size=3)
)
@settings(PROPERTY, max_examples=250)
def test_what_is_proved_under_assumptions_is_true(
    a: Expr, b: Expr, env: dict[Expr, int], chosen: set[str]
) -> None:
    facts = Facts()
    for text in chosen:
        facts.add(text, lambda name: name in "NM")
        assume(FACTS[text](env[N], env[M]))
    algebra = Simplifier(facts)
    x, y = algebra.simplify(a), algebra.simplify(b)
    left, right = value(a, env), value(b, env)
    assert value(x, env) == left, f"{a} -> {x}"
    assert not algebra.proves_lt(x, y) or left < right, f"{a} < {b}"
    assert not algebra.proves_le(x, y) or left <= right, f"{a} <= {b}"
    assert not algebra.equal(x, y) or left == right, f"{a} == {b}"
    assert not algebra.proves_positive(x) or left >= 1, f"{a} >= 1"
    for divisor in (2, 4, 6):
        if algebra.divides(integer(divisor), x):
            assert left % divisor == 0, f"{divisor} | {a}"


# Rules


def test_a_quotient_of_a_thread_is_bounded_by_the_launch() -> None:
    algebra = Simplifier()
    thread = LaunchIndex(ParallelType.block_x)
    assert not algebra.proves_lt(op("floordiv", thread, 32), integer(4))
    algebra = Simplifier()
    algebra.launch = {ParallelType.block_x: integer(128)}
    assert algebra.proves_lt(op("floordiv", thread, 32), integer(4))
    assert not algebra.proves_lt(op("floordiv", thread, 32), integer(3))


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (op("add", op("mul", I, 4), 0), "i * 4"),
        (op("sub", I, I), "0"),
        (op("add", I, op("add", I, I)), "i * 3"),
        (op("sub", op("mul", I, 4), op("add", op("mul", I, 3), 1)), "i - 1"),
        (op("mul", op("add", I, 2), op("add", J, 3)), "i * j + i * 3 + j * 2 + 6"),
        (op("floordiv", op("add", op("mul", I, 4), J), 4), "i"),
        (op("mod", op("add", op("mul", I, 4), J), 4), "j"),
        (op("floordiv", op("add", op("mul", I, 8), J), 4), "i * 2"),
        (op("mod", op("add", op("mul", I, 8), J), 4), "j"),
        (op("floordiv", op("add", op("mul", I, 6), 5), 4), "i * 3 // 2 + 1"),
        (op("floordiv", op("add", op("mul", I, 4), J), 64), "i // 16"),
        (op("mod", op("add", op("mul", I, 4), J), 64), "i % 16 * 4 + j"),
        (op("mod", op("add", op("mul", I, 4), J), 6), "(i * 4 + j) % 6"),
        (op("floordiv", J, 4), "0"),
        (op("mod", I, N), "i"),
        (op("floordiv", I, N), "0"),
        (op("floordiv", L, op("mul", N, M)), "0"),
        (op("floordiv", op("floordiv", I, 3), 4), "i // 12"),
        (op("mod", op("mod", I, 12), 4), "i % 4"),
        (op("mod", op("mod", I, 12), 5), "i % 12 % 5"),
        (op("mod", op("mul", I, 6), 4), "i * 3 % 2 * 2"),
        (op("floordiv", op("mul", I, 6), 4), "i * 3 // 2"),
        (op("add", op("mul", op("floordiv", I, 3), 3), op("mod", I, 3)), "i"),
        (op("add", op("mul", op("floordiv", L, M), M), op("mod", L, M)), "l"),
        (op("floordiv", op("add", op("mul", I, N), op("mod", L, N)), N), "i"),
        (op("sub", op("floordiv", op("sub", J, 4), 4), 0), "-1"),
        (op("ceildiv", 10, 4), "3"),
        (op("ceildiv", N, 4), "ceildiv(N, 4)"),
        (op("ceildiv", op("mul", N, 8), 4), "N * 2"),
        (op("ceildiv", N, N), "1"),
        (op("mod", op("mul", N, 4), 2), "0"),
        (op("min", J, 4), "j"),
        (op("min", J, 2), "min(j, 2)"),
        (op("max", N, 1), "max(N, 1)"),
        (op("max", 3, 7), "7"),
        (op("max", N, N), "N"),
    ],
    ids=lambda case: str(case) if isinstance(case, Expr) else "",
)
def test_rules(node: Expr, text: str) -> None:
    assert str(Simplifier().simplify(node)) == text


@pytest.mark.parametrize(
    ("facts", "node", "text"),
    [
        (["N % 4 == 0"], op("ceildiv", N, 4), "N // 4"),
        (["N % 8 == 0"], op("mod", N, 4), "0"),
        (["N % 4 == 0"], op("mul", op("floordiv", N, 4), 4), "N"),
        (["N % 8 == 0"], op("ceildiv", op("floordiv", N, 2), 4), "N // 8"),
        (["N % M == 0"], op("ceildiv", N, M), "N // M"),
        (["N == 4 * M"], op("ceildiv", N, 4), "N // 4"),
    ],
)
def test_rules_under_assumptions(facts: list[str], node: Expr, text: str) -> None:
    known = Facts()
    for fact in facts:
        known.add(fact, lambda name: name in "NM")
    assert str(Simplifier(known).simplify(node)) == text


def test_comparisons_that_are_decided() -> None:
    algebra = Simplifier()
    assert algebra.lt(I, N) is TRUE
    assert algebra.lt(N, I) is FALSE
    assert algebra.lt(algebra.add(algebra.mul(K, integer(4)), J), N).args
    assert algebra.lt(J, integer(4)) is TRUE
    assert algebra.lt(J, integer(3)) not in (TRUE, FALSE)
    assert algebra.proves_lt(L, algebra.mul(M, N))
    assert algebra.proves_le(ONE, N)
    assert not algebra.proves_le(integer(2), N)
    assert algebra.equal(algebra.mul(N, M), algebra.mul(M, N))
    assert not algebra.equal(N, M)


def test_quotients_of_one_size_are_compared() -> None:
    """N // 4 >= N // 128 * 32, and not more: N may be 127."""
    algebra = Simplifier()
    fine, coarse = op("floordiv", N, 4), op("floordiv", N, 128)
    assert algebra.holds_le(op("mul", coarse, 32), fine)
    assert not algebra.holds_le(op("add", op("mul", coarse, 32), 1), fine)
    assert not algebra.holds_le(op("mul", coarse, 33), fine)
    assert not algebra.holds_le(fine, op("mul", coarse, 32))


def test_a_size_may_be_0_where_positivity_counts() -> None:
    """Inside a loop over N, N >= 1 is taken for granted; at a launch it is not."""
    algebra = Simplifier()
    assert not algebra.proves_positive(N)
    assert algebra.proves_positive(algebra.max(N, ONE))
    assert algebra.proves_positive(integer(3))
    assert not algebra.proves_positive(ZERO)
    facts = Facts()
    facts.add("N > 0", lambda name: name == "N")
    assert Simplifier(facts).proves_positive(op("mul", N, 4))
    assert not Simplifier(facts).proves_positive(op("mul", N, M))


def test_sums_and_products_of_many() -> None:
    algebra = Simplifier()
    assert algebra.sum([]) is ZERO
    assert algebra.product([]) is ONE
    assert str(algebra.sum([I, J, I])) == "i * 2 + j"
    assert str(algebra.product([N, integer(4), M])) == "N * M * 4"
    assert algebra.product([N, ZERO]) is ZERO


def test_results_are_shared() -> None:
    """Equal expressions are one node, and a simplified expression is a fixed point."""
    algebra = Simplifier()
    a = algebra.add(algebra.mul(I, integer(4)), J)
    assert algebra.add(algebra.mul(integer(4), I), J) is a
    assert algebra.equal(algebra.add(J, algebra.mul(integer(4), I)), a)
    assert algebra.simplify(a) is a


def test_predicates_keep_their_shape() -> None:
    """simplify works inside comparisons and conjunctions."""
    node = op("and", op("lt", op("add", I, ZERO), N), op("lt", op("mul", J, ONE), 3))
    assert str(Simplifier().simplify(node)) == "i < N and j < 3"


def test_deep_expressions_are_no_problem() -> None:
    """A shared graph of 2 ** 200 paths is simplified once a node."""
    algebra = Simplifier()
    node: Expr = I
    for _ in range(200):
        node = algebra.mod(algebra.add(node, node), integer(1 << 20))
    assert math.isfinite(value(node, {N: 5, I: 3}))


@pytest.mark.parametrize(
    ("assumed", "node", "expected"),
    [
        (("N > 0", "N <= 1024"), op("ceildiv", N, 1024), "1"),
        (("N > 0", "N <= 1024"), op("ceildiv", op("ceildiv", op("ceildiv", N, 4), 32), 8), "1"),
        (("N > 0", "N <= 1024", "N % 4 == 0"), op("ceildiv", op("floordiv", N, 4), 256), "1"),
        (("N <= 1024",), op("ceildiv", N, 1024), "ceildiv(N, 1024)"),  # N may be 0
        (("N > 0",), op("ceildiv", N, 1024), "ceildiv(N, 1024)"),
        (("N > 0", "N <= 1025"), op("ceildiv", N, 1024), "ceildiv(N, 1024)"),
        (("N < 1024",), op("floordiv", N, 1024), "0"),
        (("N >= 5", "N <= 7", "M == 2"), op("floordiv", op("mul", N, M), 16), "0"),
        (("N >= 5", "N <= 7"), op("floordiv", op("mul", N, M), 16), "N * M // 16"),
        (("N >= 5", "N <= 7"), op("ceildiv", op("add", N, -4), 3), "1"),
        (("N >= 1", "N <= 8"), op("ceildiv", op("add", op("mod", N, 3), 1), 3), "1"),
    ],
)
def test_a_quotient_that_bounds_leave_one_value_is_that_number(
    assumed: tuple[str, ...], node: Expr, expected: str
) -> None:
    """Upper bounds count, and sizes may be 0 where it is not assumed that they are not."""
    facts = Facts()
    for text in assumed:
        facts.add(text, lambda name: name in "NM")
    assert str(Simplifier(facts).simplify(node)) == expected


F = Index("f", integer(50))


def digits(*extents: Expr | int) -> Expr:
    """Return `F` taken apart by extents, the fastest last, and put together again."""
    node: Expr = F
    total: Expr = ZERO
    step: Expr = ONE
    for extent in reversed(extents):
        total = op("add", op("mul", op("mod", node, extent), step), total)
        node, step = op("floordiv", F, op("mul", extent, step)), op("mul", extent, step)
    return op("add", op("mul", node, step), total)


@pytest.mark.parametrize("extents", [(N,), (N, M), (N, M, N), (N, 6, M), (5, N, 8), (M, N, M, 2)])
def test_an_index_taken_apart_by_sizes_is_put_together(extents: tuple[Expr | int, ...]) -> None:
    found = Simplifier().simplify(digits(*extents))
    assert found is F
    for n, m in ((1, 1), (3, 5), (7, 2)):
        for f in (0, 1, 13, 49):
            assert value(digits(*extents), {N: n, M: m, F: f}) == f


@pytest.mark.parametrize(
    ("assumed", "node", "expected"),
    [
        ("N % 4 == 0", op("mod", op("add", op("mul", I, 4), J), N), "i * 4 % N + j"),
        ("N % 4 == 0", op("floordiv", op("add", op("mul", I, 4), J), N), "i * 4 // N"),
        ("N * M % 8 == 0", op("mod", op("add", op("mul", I, 4), J), op("mul", N, M)),
         "i * 4 % (N * M) + j"),
        ("N % 2 == 0", op("mod", op("add", op("mul", I, 4), J), N), "(i * 4 + j) % N"),
        ("N % 4 == 0", op("mod", op("add", op("mul", I, 2), J), N), "(i * 2 + j) % N"),
    ],
)  # fmt: skip
def test_division_leaves_lanes_where_they_divide_a_size(
    assumed: str, node: Expr, expected: str
) -> None:
    facts = Facts()
    facts.add(assumed, lambda name: name in "NM")
    assert str(Simplifier(facts).simplify(node)) == expected


def test_what_divides_a_product_of_sizes_divides_what_it_is_in() -> None:
    facts = Facts()
    facts.add("N * M % 4 == 0", lambda name: name in "NM")
    algebra = Simplifier(facts)
    row = algebra.simplify(op("mul", op("mul", I, N), M))
    assert algebra.divides(integer(4), row)
    assert algebra.divides(integer(8), algebra.simplify(op("mul", row, 2)))
    assert not algebra.divides(integer(4), algebra.simplify(op("mul", I, N)))
