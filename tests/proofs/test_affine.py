"""Sets and maps made from conditions are those that isl reads from the conditions' texts."""

from __future__ import annotations

import islpy as isl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopnest.proofs import affine

SIZES = ("p_N", "p_M")
NAMES = ("i", "j", *SIZES)
TESTS = {"<": affine.below, "<=": affine.at_most, "=": affine.equal, "!=": affine.unequal}

numbers = st.integers(-4, 9)


@st.composite
def sums(draw: st.DrawFn, depth: int = 1, *, extreme: bool = False) -> tuple[str, affine.Sum]:
    number = draw(numbers)
    texts, parts = [str(number)], list[tuple[affine.Value, int]]([(number, 1)])
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        number = draw(numbers)
        texts.append(f"{number}*{name}")
        parts.append((name, number))
    if depth and draw(st.booleans()):
        number, by = draw(numbers), draw(st.integers(1, 5))
        text, inner = draw(sums(depth - 1, extreme=extreme))
        texts.append(f"{number}*floor({text}/{by})")
        parts.append((affine.floor_of(inner, by), number))
    if extreme:
        op, number = draw(st.sampled_from(["min", "max"])), draw(numbers)
        found = [draw(sums(0)), draw(sums(0))]
        texts.append(f"{number}*{op}({', '.join([text for text, _ in found])})")
        parts.append((affine.extreme_of(op, [value for _, value in found]), number))
    return f"({' + '.join(texts)})", affine.sum_of(parts)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> tuple[str, affine.Condition]:
    kind = draw(st.sampled_from(["test", "range", "and", "or", "not"])) if depth else "test"
    if kind == "not":
        text, inner = draw(conditions(depth - 1))
        return f"not ({text})", ~inner
    if kind in ("and", "or"):
        parts = draw(st.lists(conditions(depth - 1), min_size=2, max_size=3))
        joined = (affine.all_of if kind == "and" else affine.any_of)([part for _, part in parts])
        return "(" + f" {kind} ".join([f"({text})" for text, _ in parts]) + ")", joined
    (one, a), (other, b) = draw(sums(extreme=draw(st.booleans()))), draw(sums())
    if kind == "range":
        return f"0 <= {one} < {other}", affine.within(a, b)
    op = draw(st.sampled_from([*TESTS]))
    return f"{one} {op} {other}", TESTS[op](a, b)


@given(st.lists(conditions(), max_size=3))
def test_a_set_is_that_of_its_text(drawn: list[tuple[str, affine.Condition]]) -> None:
    ctx = isl.Context()
    where = " and ".join([f"({text})" for text, _ in drawn]) or "1 = 1"
    wanted = isl.Set.read_from_str(ctx, f"[{', '.join(SIZES)}] -> {{ [i, j] : {where} }}")
    found = affine.Relations(isl, ctx).make(SIZES, ("i", "j"), None, [c for _, c in drawn])
    assert found.is_equal(wanted), where


@given(
    st.lists(conditions(depth=1), max_size=2),
    sums(extreme=True),
    st.sampled_from(["i", "k", "p_N", "3"]),
)
def test_a_map_is_that_of_its_text(
    drawn: list[tuple[str, affine.Condition]], value: tuple[str, affine.Sum], other: str
) -> None:
    ctx = isl.Context()
    where = " and ".join([f"({text})" for text, _ in drawn]) or "1 = 1"
    text = f"[{', '.join(SIZES)}] -> {{ [i, j] -> [{value[0]}, {other}] : {where} }}"
    wanted = isl.Map.read_from_str(ctx, text)
    target: tuple[affine.Value, ...] = (value[1], 3 if other == "3" else other)
    found = affine.Relations(isl, ctx).make(SIZES, ("i", "j"), target, [c for _, c in drawn])
    assert found.is_equal(wanted), text


def test_what_is_known_without_variables_is_true_or_false() -> None:
    assert (
        affine.all_of([affine.equal(3, 3), affine.below("i", affine.sum_of([("i", 1), (1, 1)]))])
        == affine.TRUE
    )
    assert affine.any_of([affine.below(1, 1), affine.unequal("i", "i")]) == affine.FALSE
    assert affine.all_of([affine.at_most(0, "i"), affine.below(2, 1)]) == affine.FALSE


def test_a_name_without_a_column_is_refused() -> None:
    with pytest.raises(affine.NotAffine, match=r"^k has no value here$"):
        affine.Relations(isl, isl.Context()).make((), ("i",), None, [affine.below("i", "k")])


@pytest.mark.parametrize("count", [affine.MOST_CASES, affine.MOST_CASES + 1])
def test_a_condition_of_many_cases_is_a_union(count: int) -> None:
    ctx = isl.Context()
    where = affine.all_of(
        [affine.any_of([affine.equal("i", n) for n in range(count)]), affine.at_most(3, "i")]
    )
    found = affine.Relations(isl, ctx).make((), ("i",), None, [~~where])
    assert found.is_equal(isl.Set.read_from_str(ctx, f"{{ [i] : 3 <= i < {count} }}"))


def test_values_take_the_place_of_variables() -> None:
    where = affine.below(affine.floor_of("i", 4), "j")
    found = affine.replaced(where, {"i": "k", "j": affine.sum_of([("k", 2)])})
    assert found == affine.below(affine.floor_of("k", 4), affine.sum_of([("k", 2)]))
    assert affine.names_in([where]) == {"i", "j"}
