"""Fragments: bijections by their spelling."""

from __future__ import annotations

import pickle
import re
from itertools import product

import pytest

import loopnest as ln

A = ln.Fragment("(mh g) (kh t p) -> (g t) (kh mh p)", mh=2, g=8, kh=2, t=4, p=2)


def test_extents() -> None:
    assert (A.shape, A.lanes, A.registers) == ((16, 16), 32, 8)


def published(lane: int, register: int) -> tuple[int, int]:
    """Return row and column of A's registers for m16n8k16 in float16, as PTX ISA writes them."""
    group, in_group = lane >> 2, lane % 4
    row = group if register in (0, 1, 4, 5) else group + 8
    return row, in_group * 2 + (register & 1) + (8 if register >= 4 else 0)


def test_the_published_layout_of_a() -> None:
    for lane, register in product(range(32), range(8)):
        element = published(lane, register)
        assert A.element(lane, register) == element
        assert A.place(*element) == (lane, register)


@pytest.mark.parametrize("name", ln.instructions)
def test_every_fragment_is_a_bijection(name: str) -> None:
    for operand in ln.instructions[name].operands.values():
        fragment = operand.fragment
        if fragment is not None:
            places = [fragment.place(*e) for e in product(*map(range, fragment.shape))]
            assert sorted(places) == [*product(range(fragment.lanes), range(fragment.registers))]


def test_a_digit_alone_is_a_group_and_a_group_may_be_empty() -> None:
    row = ln.Fragment("m (t p) -> t (m p)", m=2, t=4, p=2)
    assert (row.shape, row.lanes, row.registers) == ((2, 8), 4, 4)
    alone = ln.Fragment("(m) -> () (m)", m=16)
    assert (alone.shape, alone.lanes, alone.registers) == ((16,), 1, 16)


def test_names_do_not_count() -> None:
    other = ln.Fragment("(a b) (c d e) -> (b d) (c a e)", a=2, b=8, c=2, d=4, e=2)
    assert other == A
    assert hash(other) == hash(A)
    assert other != ln.Fragment("(a b) (c d e) -> (b d) (a c e)", a=2, b=8, c=2, d=4, e=2)
    assert A != "A"


def test_pickled() -> None:
    assert pickle.loads(pickle.dumps(A)) == A


FORM = 'write "(mh g) (kh p) -> (g) (kh mh p)": axes, an arrow, lane and register'


@pytest.mark.parametrize(
    ("pattern", "sizes", "message"),
    [
        ("(m) (n)", {}, f"Fragment('(m) (n)'): it has no two sides; {FORM}"),
        (
            "(m n) -> (m) (n) ()",
            {},
            "Fragment('(m n) -> (m) (n) ()'): 3 groups are on the right of the arrow; lane and "
            "register are two",
        ),
        (
            "(m (n) -> m n",
            {},
            f"Fragment('(m (n) -> m n'): '(m (n)' is not a row of groups; {FORM}",
        ),
        ("(m 2) -> m 2", {}, f"Fragment('(m 2) -> m 2'): '2' is no name of a digit; {FORM}"),
        (
            "(m m) -> m n",
            {},
            "Fragment('(m m) -> m n'): 'm' is twice on one side; each digit is once on each side",
        ),
        (
            "(m k) -> m n",
            {},
            "Fragment('(m k) -> m n'): 'k' is on one side alone; each digit is once on each side",
        ),
        ("m n -> n m", {"m": 2}, "Fragment('m n -> n m'): the digit 'n' has no size; give n=…"),
        (
            "m n -> n m",
            {"m": 2, "n": 4, "k": 2},
            "Fragment('m n -> n m'): 'k' is no digit of it; the digits are m, n",
        ),
        (
            "m n -> n m",
            {"m": 2, "n": 0},
            "Fragment('m n -> n m'): n=0; a digit has an int >= 1 of values",
        ),
        (
            "m n -> n m",
            {"m": 2, "n": True},
            "Fragment('m n -> n m'): n=True; a digit has an int >= 1 of values",
        ),
    ],
)
def test_refused(pattern: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ln.DefinitionError, match=f"^{re.escape(message)}$"):
        ln.Fragment(pattern, **sizes)


def test_a_place_that_is_not_there() -> None:
    message = f"{A!r}: there is no element (16, 0); the extents are [16, 16]"
    with pytest.raises(ln.DefinitionError, match=f"^{re.escape(message)}$"):
        A.place(16, 0)
    message = f"{A!r}: there is no place (0, -1); the extents are [32, 8]"
    with pytest.raises(ln.DefinitionError, match=f"^{re.escape(message)}$"):
        A.element(0, -1)
