"""Deep loops and expressions: Python's default limit of recursion is none of the user's."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import loopnest as ln
from loopnest.base.recursion import deep


def split_often(times):
    with ln.Fusion("often") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.exp(x), "y")
    for _ in range(times):
        y.split(0, 2)
    return f


@pytest.mark.parametrize("times", [70, 150])
def test_an_axis_that_is_split_often(times):
    limit = sys.getrecursionlimit()
    k = ln.lower(split_often(times))
    assert str(k).count("for i") == times + 1
    for text in (k.c, k.cuda):
        with pytest.raises(ln.LoweringError, match="an index exceeds 64 bits"):
            text()
    with pytest.raises(ln.LaunchError, match="an index exceeds 64 bits"):
        k.launch(N=1)
    assert sys.getrecursionlimit() == limit


def test_what_is_too_deep_is_a_sentence():
    @deep
    def fall(depth):
        return fall.__wrapped__(depth + 1)

    limit = sys.getrecursionlimit()
    with pytest.raises(ln.LoweringError) as caught:
        fall(0)
    assert str(caught.value) == (
        "fall(...): its loops or expressions are nested too deep to be followed; split less"
    )
    assert sys.getrecursionlimit() == limit


def test_the_limit_stays_while_a_thread_needs_it():
    @deep
    def descend(depth):
        return depth if depth == 3000 else descend.__wrapped__(depth + 1)

    limit = sys.getrecursionlimit()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(descend, [0] * 64)) == [3000] * 64
    assert sys.getrecursionlimit() == limit
