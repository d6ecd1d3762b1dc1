"""Relations made from matrices of constraints are those that isl reads from their texts."""

from __future__ import annotations

import islpy as isl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopnest.proofs.affine_conditions import NotLinear, linear, parsed
from loopnest.proofs.constraint_matrices import Matrices

HEAD = "p_N, p_M"
NAMES = ("i", "j", "p_N", "p_M")

numbers = st.integers(-4, 9)


@st.composite
def terms(draw: st.DrawFn, depth: int = 1) -> str:
    parts = [str(draw(numbers))]
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        parts.append(f"{draw(numbers)}*{name}")
    if depth and draw(st.booleans()):
        inner = draw(terms(depth=depth - 1))
        parts.append(f"{draw(numbers)}*floor({inner}/{draw(st.integers(1, 5))})")
    return f"({' + '.join(parts)})"


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["test", "range", "and", "or", "not"])) if depth else "test"
    if kind == "range":
        return f"0 <= {draw(terms())} < {draw(terms())}"
    if kind == "not":
        return f"not ({draw(conditions(depth=depth - 1))})"
    if kind in ("and", "or"):
        parts = draw(st.lists(conditions(depth=depth - 1), min_size=2, max_size=3))
        return "(" + f" {kind} ".join([f"({part})" for part in parts]) + ")"
    op = draw(st.sampled_from(["<", "<=", "=", "!=", ">", ">="]))
    return f"{draw(terms())} {op} {draw(terms())}"


@given(st.lists(conditions(), max_size=3))
def test_a_set_is_that_of_its_text(texts: list[str]) -> None:
    ctx = isl.Context()
    where = " and ".join([f"({text})" for text in texts]) or "1 = 1"
    wanted = isl.Set.read_from_str(ctx, f"[{HEAD}] -> {{ [i, j] : {where} }}")
    assert Matrices(isl, ctx).read(HEAD, "i, j]", None, texts).is_equal(wanted), texts


@given(st.lists(conditions(depth=1), max_size=2), terms(), st.sampled_from(["i", "k", "p_N", "3"]))
def test_a_map_is_that_of_its_text(texts: list[str], value: str, other: str) -> None:
    ctx = isl.Context()
    where = " and ".join([f"({text})" for text in texts]) or "1 = 1"
    text = f"[{HEAD}] -> {{ [i, j] -> [{value}, {other}] : {where} }}"
    wanted = isl.Map.read_from_str(ctx, text)
    found = Matrices(isl, ctx).read(HEAD, "i, j]", f"{value}, {other}]", texts)
    assert found.is_equal(wanted), text


def test_a_choice_of_conditions_is_not_taken_apart_from_the_others() -> None:
    found = parsed("i >= 0 and (i < 4 or j < 4) and 2 > 1 and 3 != 3 + 0*i + 1")
    assert len(found.sure) == 1
    assert [len(cases) for cases in found.choices] == [2]


def test_a_condition_that_never_holds_has_no_cases() -> None:
    assert parsed("i >= 0 and 1 = 0").choices == ((),)
    found = Matrices(isl, isl.Context()).read("", "i]", None, ["i >= 0", "1 = 0"])
    assert found.is_empty()


@pytest.mark.parametrize(
    "text",
    ["min(i, j) < 4", "i*j = 0", "floor(i/p_N) = 0", "i", "i < ", "i % 2 = 0", "(i < 4) + 1 = 0"],
)
def test_what_is_not_linear_is_left_to_isl(text: str) -> None:
    with pytest.raises(NotLinear):
        parsed(text)


def test_a_name_without_a_column_is_left_to_isl() -> None:
    matrices = Matrices(isl, isl.Context())
    with pytest.raises(isl.Error):
        matrices.read("", "i]", None, ["i < k"])
    extremes = matrices.read("", "i, j]", None, ["min(i, j) < 4"])
    assert extremes.is_equal(isl.Set.read_from_str(matrices.ctx, "{ [i, j] : i < 4 or j < 4 }"))


def test_a_condition_of_many_cases_is_left_to_isl() -> None:
    with pytest.raises(NotLinear):
        parsed(" or ".join([f"i = {number}" for number in range(100)]))


def test_terms_that_cancel_are_gone() -> None:
    assert dict(linear("2*(i + 3) - 2*i")) == {"": 6}
