"""What an expression depends on, which each node keeps, and substitution, which asks for it."""

import gc

from loopnest.scalar import dtypes
from loopnest.scalar.access_bounds import is_fixed
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Index,
    Load,
    Symbol,
    free_indices,
    integer,
    rewrite,
    substitute,
    variables,
)
from loopnest.scalar.polynomials import index_op

N = Symbol("N")


def load(at):
    shape = (integer(8),)
    return Load(
        Buffer("x", "x", Memory.GLOBAL, dtypes.index, shape, (ONE,), shape[0], "input"), (at,)
    )


def test_literals_and_extents_are_no_variables():
    i = Index("i", N)
    assert variables(index_op("mul", i, integer(4))) == {i}
    assert variables(integer(4)) == frozenset()


def test_an_index_that_is_data_depends_on_what_it_is_loaded_with():
    i = Index("i", integer(8))
    data = load(i)
    assert variables(index_op("add", data, N)) == {i, N}
    assert free_indices(data) == {i}
    assert not is_fixed(data, frozenset({i}))
    assert is_fixed(index_op("add", i, N), frozenset({i}))
    assert not is_fixed(index_op("add", i, N), frozenset())


def test_users_share_the_set_of_their_operands():
    i = Index("i", N)
    node = index_op("floordiv", i, integer(2))
    for count in range(3, 5000):  # deeper than Python's stack
        node = index_op("add", index_op("mul", node, i), integer(count))
    assert variables(node) is variables(i)


def test_operations_and_literals_are_replaced_too():
    i = Index("i", N)
    half = index_op("floordiv", i, integer(2))
    value = index_op("add", index_op("mul", half, integer(3)), N)
    tripled = index_op("add", index_op("mul", N, integer(3)), N)
    assert substitute(value, {half: N}) is tripled
    quarter = index_op("floordiv", i, integer(4))
    assert substitute(half, {integer(2): integer(4)}) is quarter
    assert substitute(value, {half: half, i: ZERO}) is value


def test_what_holds_no_replaced_variable_stays():
    i, j = Index("i", N), Index("j", N)
    left, right = index_op("mod", i, integer(4)), index_op("mod", j, integer(4))
    assert substitute(index_op("add", left, right), {j: i}) is index_op("add", left, left)
    assert substitute(left, {j: i}) is left


def test_rewriting_leaves_nothing_to_the_collector():
    i = Index("i", N)
    value = index_op("add", index_op("mod", i, integer(4)), N)
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        substitute(value, {i: ZERO})
        rewrite(value, lambda node: ZERO if node is i else None)
        assert gc.collect() == 0
    finally:
        if enabled:
            gc.enable()
