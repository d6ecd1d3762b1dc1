"""Axes, the transforms between them, and the domain of a tensor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopnest as ln
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, ZERO, Const, Expr, Index, Symbol, integer
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.domain import (
    IterDomain,
    Merge,
    Split,
    TensorDomain,
    Transform,
    ancestors,
    indices_backward,
    transforms_between,
)

N, M = Symbol("N"), Symbol("M")
ITERATION, REDUCTION, BROADCAST = IterKind.ITERATION, IterKind.REDUCTION, IterKind.BROADCAST


def axis(size: Expr | int, kind: IterKind = ITERATION) -> IterDomain:
    return IterDomain(integer(size) if isinstance(size, int) else size, kind)


def sizes(axes: Sequence[IterDomain]) -> list[str]:
    return [str(a.size) for a in axes]


# Axes


def test_axes_are_compared_by_identity() -> None:
    a, b = axis(128), axis(128)
    assert a != b
    assert len({a, b, a}) == 2


def test_extent_is_an_int_where_static() -> None:
    assert axis(4).extent == 4
    assert axis(N).extent is N
    assert repr(axis(N, REDUCTION)) == "<r N>"


@pytest.mark.parametrize(
    ("kind", "flags", "letter"),
    [
        (ITERATION, (True, False, False), "i"),
        (REDUCTION, (False, True, False), "r"),
        (BROADCAST, (False, False, True), "b"),
    ],
)
def test_kinds(kind: IterKind, flags: tuple[bool, ...], letter: str) -> None:
    one = axis(1, kind)
    assert (one.is_iteration, one.is_reduction, one.is_broadcast) == flags
    assert one.kind.letter == letter


# Split


@pytest.mark.parametrize(
    ("size", "factor", "inner", "made"),
    [
        (12, 4, True, ["3", "4"]),
        (13, 4, True, ["4", "4"]),
        (13, 4, False, ["4", "4"]),
        (12, 5, False, ["5", "3"]),
        (3, 8, True, ["1", "8"]),
        (N, 4, True, ["ceildiv(N, 4)", "4"]),
        (N, 4, False, ["4", "ceildiv(N, 4)"]),
        (N, M, True, ["ceildiv(N, M)", "M"]),
        (N, N, True, ["1", "N"]),
        (N, 1, True, ["N", "1"]),
    ],
)
def test_split_extents(size: Expr | int, factor: Expr | int, inner: bool, made: list[str]) -> None:
    by = integer(factor) if isinstance(factor, int) else factor
    source = axis(size, REDUCTION)
    step = Split(source, by, Simplifier(), inner=inner)
    assert sizes(step.outputs) == made
    assert step.inputs == (source,)
    assert [out.definition for out in step.outputs] == [step, step]
    assert {out.kind for out in step.outputs} == {REDUCTION}
    assert source.definition is None


def test_split_of_a_broadcast_gives_broadcasts_of_extent_1() -> None:
    for inner in (True, False):
        step = Split(axis(1, BROADCAST), integer(4), Simplifier(), inner=inner)
        assert sizes(step.outputs) == ["1", "1"]
        assert all(out.is_broadcast for out in step.outputs)
        assert step.overshoots(Simplifier()) == ()


def test_steps_are_the_same_by_operation_factor_and_side() -> None:
    algebra = Simplifier()
    keys = [
        Split(axis(N), integer(4), algebra).key,
        Split(axis(M), integer(4), algebra).key,
        Split(axis(N), integer(8), algebra).key,
        Split(axis(N), integer(4), algebra, inner=False).key,
        Merge(axis(N), axis(M), algebra).key,
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_overshoot_and_what_follows_from_bounds() -> None:
    """A split that need not divide needs a test; within bounds the outer axis is, too."""
    algebra = Simplifier()
    step = Split(axis(N), integer(4), algebra)
    assert step.overshoots(algebra) == step.inputs
    assert step.follows() == step.outputs[:1]
    even = Split(axis(12), integer(4), algebra)
    assert even.overshoots(algebra) == ()
    assert even.follows() == even.outputs[:1]
    facts = Facts()
    facts.add("N % 8 == 0", lambda name: True)
    assert step.overshoots(Simplifier(facts)) == ()
    assert Merge(axis(N), axis(M), algebra).overshoots(algebra) == ()


@given(size=st.integers(1, 30), factor=st.integers(1, 12), inner=st.booleans())
@settings(deadline=None, derandomize=True)
def test_split_visits_every_point_once(size: int, factor: int, inner: bool) -> None:
    algebra = Simplifier()
    step = Split(axis(size), integer(factor), algebra, inner=inner)
    ranges = [range(int(out.extent)) for out in step.outputs]  # type: ignore[arg-type]
    found = []
    for point in itertools.product(*ranges):
        (index,) = step.backward([integer(p) for p in point], algebra)
        found.append(constant(index))
        if constant(index) < size:
            assert [constant(e) for e in step.forward([index], algebra)] == list(point)
    inside = [index for index in found if index < size]
    assert sorted(inside) == list(range(size))
    if not step.overshoots(algebra):
        assert found == inside


def constant(value: Expr) -> int:
    assert isinstance(value, Const)
    return int(value.value)


# Merge


def test_merge_extents_and_kinds() -> None:
    algebra = Simplifier()
    for a, b, kind in (
        (ITERATION, ITERATION, ITERATION),
        (REDUCTION, REDUCTION, REDUCTION),
        (BROADCAST, ITERATION, ITERATION),
        (ITERATION, BROADCAST, ITERATION),
        (BROADCAST, REDUCTION, REDUCTION),
        (BROADCAST, BROADCAST, BROADCAST),
    ):
        outer, inner = axis(N if a is not BROADCAST else 1, a), axis(1 if b is BROADCAST else M, b)
        step = Merge(outer, inner, algebra)
        assert step.outputs[0].kind is kind
        assert step.accepts([outer, inner])
    assert not Merge(axis(N), axis(M), algebra).accepts([axis(N), axis(M, REDUCTION)])


def test_merge_runs_the_inner_axis_fastest() -> None:
    algebra = Simplifier()
    step = Merge(axis(3), axis(4), algebra)
    order = [step.backward([integer(i)], algebra) for i in range(12)]
    assert [tuple(map(constant, pair)) for pair in order] == list(
        itertools.product(range(3), range(4))
    )
    for number, pair in enumerate(order):
        assert constant(step.forward(pair, algebra)[0]) == number


def test_symbolic_indices_cross_a_merge_without_loss() -> None:
    algebra = Simplifier()
    outer, inner = axis(N), axis(M)
    step = Merge(outer, inner, algebra)
    i, j = Index("i", N), Index("j", M)
    (merged,) = step.forward([i, j], algebra)
    assert step.backward([merged], algebra) == (i, j)


def test_a_merge_carries_the_axis_that_is_there() -> None:
    step = Merge(axis(N), axis(M), Simplifier())
    assert step.carries([True, False]) == {0: 0}
    assert step.carries([False, True]) == {1: 0}
    assert step.carries([False, False]) == {}
    assert Split(axis(N), integer(4), Simplifier()).carries([False]) == {}


def test_replay_makes_the_same_step_on_other_axes() -> None:
    algebra = Simplifier()
    for step in (
        Split(axis(N), integer(4), algebra, inner=False),
        Merge(axis(N), axis(M), algebra),
    ):
        others = [axis(30 + n) for n in range(len(step.inputs))]
        copy = step.replay(others, algebra)
        assert (copy.key, copy.inputs) == (step.key, tuple(others))
        assert not set(copy.outputs) & set(step.outputs)
    outer = Split(axis(N), integer(4), algebra, inner=False)
    assert sizes(outer.replay([axis(30)], algebra).outputs) == ["4", "8"]


# Domains


def tiled() -> tuple[TensorDomain, list[Transform]]:
    """Return [N, M] split, merged across, split again; and its steps in order."""
    algebra = Simplifier()
    rows, columns = axis(N), axis(M)
    first = Split(rows, integer(4), algebra)
    second = Merge(first.outputs[1], columns, algebra)
    third = Split(second.outputs[0], integer(8), algebra)
    root = TensorDomain.of_root([rows, columns])
    return root.with_leaf([third.outputs[1], first.outputs[0], third.outputs[0]]), [
        first,
        second,
        third,
    ]


def test_an_untransformed_domain() -> None:
    rows, columns = axis(N), axis(M, REDUCTION)
    domain = TensorDomain.of_root([rows, columns])
    assert domain.root == domain.rfactor == domain.leaf == (rows, columns)
    assert domain.logical == (rows,)
    assert domain.history == ()
    assert domain.uses == {}
    assert str(domain) == "[i0: N, r1: M]"


def test_history_has_inputs_before_users() -> None:
    domain, steps = tiled()
    assert list(domain.history) == steps
    assert domain.uses == {source: step for step in steps for source in step.inputs}
    assert str(domain) == "[i0: 8, i1: ceildiv(N, 4), i2: ceildiv(M * 4, 8)]"


def test_with_leaf_makes_another_domain() -> None:
    domain, _ = tiled()
    other = domain.with_leaf(reversed(domain.leaf))
    assert other is not domain
    assert other.leaf == domain.leaf[::-1]
    assert (other.root, other.rfactor) == (domain.root, domain.rfactor)


def test_ancestors_reach_the_root() -> None:
    domain, (first, second, third) = tiled()
    rows, columns = domain.root
    assert ancestors([first.outputs[0]], domain) == {first.outputs[0], rows}
    assert ancestors([third.outputs[0]], domain) == {
        third.outputs[0], second.outputs[0], first.outputs[1], rows, columns
    }  # fmt: skip
    assert ancestors([], domain) == set()


def test_transforms_between_stops_at_the_start() -> None:
    domain, (first, second, third) = tiled()
    found = list(transforms_between(second.inputs, domain.leaf))
    assert found == [second, third, first]
    assert list(transforms_between(domain.leaf, domain.leaf)) == []


def test_indices_backward_completes_what_the_leaves_say() -> None:
    domain, (first, second, _) = tiled()
    algebra = Simplifier()
    a, b, c = (Index(name, leaf.size) for name, leaf in zip("abc", domain.leaf, strict=True))
    known = indices_backward(domain, dict(zip(domain.leaf, (a, b, c), strict=True)), algebra)
    rows, columns = domain.root
    assert str(known[second.outputs[0]]) == "c * 8 + a"
    assert str(known[columns]) == "(c * 8 + a) % M"
    merged = known[second.outputs[0]]
    assert known[first.outputs[1]] is algebra.floordiv(merged, M)
    assert known[rows] is algebra.add(algebra.mul(b, integer(4)), known[first.outputs[1]])
    assert indices_backward(domain, {}, algebra)[rows] is ZERO


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_history_visits_every_point_once(data: st.DataObject) -> None:
    """The points of the leaves, without those that overshoot an input of a step."""
    algebra = Simplifier()
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    root = TensorDomain.of_root([axis(size) for size in shape])
    leaves = list(root.leaf)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(leaves) - 1))
        if data.draw(st.booleans()) or len(leaves) == 1:
            factor = integer(data.draw(st.integers(1, 4)))
            leaves[at : at + 1] = Split(
                leaves[at], factor, algebra, inner=data.draw(st.booleans())
            ).outputs
        else:
            rest = [leaf for leaf in leaves if leaf is not leaves[at]]
            other = data.draw(st.sampled_from(rest))
            merged = Merge(leaves[at], other, algebra).outputs[0]
            leaves = [*(leaf for leaf in rest if leaf is not other), merged]
    domain = root.with_leaf(leaves)
    assert sorted(visited(domain, algebra)) == list(itertools.product(*map(range, shape)))


def implied(axis: IterDomain, algebra: Simplifier) -> bool:
    """Whether an axis lies within bounds where the tests of what it was made from hold."""
    step = axis.definition
    if step is None or axis not in step.follows():
        return False
    tested = step.overshoots(algebra)
    return all(source in tested or implied(source, algebra) for source in step.inputs)


def visited(domain: TensorDomain, algebra: Simplifier) -> list[tuple[int, ...]]:
    """Return the root points of the leaf points that no step overshoots."""
    tested = [source for step in domain.history for source in step.overshoots(algebra)]
    needed = [source for source in tested if not implied(source, algebra)]
    found = []
    for point in itertools.product(*(range(int(leaf.extent)) for leaf in domain.leaf)):  # type: ignore[arg-type]
        known = indices_backward(
            domain, dict(zip(domain.leaf, map(integer, point), strict=True)), algebra
        )
        inside = [constant(known[source]) < int(source.extent) for source in tested]  # type: ignore[arg-type]
        enough = [constant(known[source]) < int(source.extent) for source in needed]  # type: ignore[arg-type]
        assert all(inside) is all(enough)
        if all(inside):
            found.append(tuple(constant(known[source]) for source in domain.root))
    return found


def test_public_names_of_a_domain() -> None:
    """What a user reads of a tensor's domains."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 1, 3), ln.float32)
        y = f.output(ln.sum(x, axis=2), "y")
    found: Mapping[str, tuple[IterDomain, ...]] = {
        "root": y.root_domain,
        "rfactor": y.rfactor_domain,
        "leaf": y.leaf_domain,
    }
    for axes in found.values():
        assert [a.kind for a in axes] == [ITERATION, BROADCAST, REDUCTION]
        assert [a.extent for a in axes] == [x.root_domain[0].extent, 1, 3]
    assert y.shape == (x.shape[0], 1)
    assert x.root_domain[1].size is ONE
    assert isinstance(y.domain, ln.TensorDomain)
    assert isinstance(y.axis(0), ln.IterDomain)
