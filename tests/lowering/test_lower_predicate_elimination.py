"""Fills: constants outside of copied tensors, and the tests of sums over them that go (rule 37)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from kernels.gemm import gemm
from loopnest.kir import If, Loop, Stmt, Store, map_body, walk
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Const

PT = ln.ParallelType


def product(dtype: DType = ln.float32, *, shared: bool = True) -> ln.Fusion:
    """Return a matrix product in tiles of 4 x 8 x 4, over copies of its operands."""
    with ln.Fusion("gemm") as f:
        a = f.input("a", ("M", "K"), dtype)
        b = f.input("b", ("K", "N"), dtype)
        c = f.output(ln.matmul(a, b), "c")
    (terms,) = c.producers
    total = c.cache_before()
    copies = [a.cache_after(), b.cache_after()]
    c.split(1, 8)
    c.split(0, 4)
    c.reorder({2: 1})
    total.compute_at(c, 2)
    total.split(-1, 4)
    total.reorder({-2: 2})  # [M / 4, N / 8, K / 4, 4, 8, 4]
    for copy in copies:
        copy.memory = ln.SHARED if shared else ln.LOCAL
        copy.compute_at(total, 3)
    terms.compute_at(total, -1)
    for tensor in terms.producers:
        tensor.compute_at(terms, -1)
    return f


def reduced(
    fold: Callable[..., ln.TensorView],
    change: Callable[[ln.TensorView], ln.TensorView],
    dtype: DType = ln.float32,
) -> ln.Fusion:
    """Return a reduction, in tiles of 4, of what `change` makes of a copy of each tile."""
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), dtype)
        y = f.output(fold(change(x), axis=1), "y")
    copy = x.cache_after()
    total = y.cache_before()
    total.split(1, 4)
    total.compute_at(y, 1)
    copy.compute_at(total, 2)
    for tensor in total.producers:
        if tensor is not copy:
            tensor.compute_at(total, -1)
    return f


def roles(f: ln.Fusion, role: str) -> list[tuple[Store, list[str]]]:
    """Return the stores of a role, each with the tests around it."""
    return [
        (node, [str(a.condition) for a in around if isinstance(a, If)])
        for node, around in ln.lower(f).walk()
        if isinstance(node, Store) and node.role == role
    ]


def filled(f: ln.Fusion) -> dict[str, float]:
    return {
        s.tensor: float(s.value.value) for s, _ in roles(f, "fill") if isinstance(s.value, Const)
    }


def run(f: ln.Fusion, target: str, *arrays: Any) -> Any:
    return ln.compile(f, target=target)(*arrays)


@pytest.mark.parametrize("shared", [True, False])
def test_rule_37_a_sum_of_products_of_filled_copies_has_no_test(shared: bool) -> None:
    """The copies and the output keep theirs; the init has none."""
    f = product(shared=shared)
    assert set(filled(f).values()) == {0.0}
    assert len(filled(f)) == 2
    ((_, tests),) = roles(f, "update")
    assert tests == []
    assert [tests for _, tests in roles(f, "init")] == [[]]
    ((_, tests),) = [s for s in roles(f, "define") if s[0].tensor == "c"]
    assert tests != []
    assert ln.verify(ln.lower(f)).ok
    rng = np.random.default_rng(0)
    for m, n, k in ((5, 9, 6), (4, 8, 4), (1, 1, 1), (3, 17, 0)):
        a = rng.integers(-4, 5, (m, k)).astype(np.float32)
        b = rng.integers(-4, 5, (k, n)).astype(np.float32)
        for target in ("interpret", "c"):
            np.testing.assert_array_equal(run(f, target, a, b), a @ b)


def test_rule_37_what_is_not_a_number_stays_where_it_is() -> None:
    """0 is only where both operands lie outside: no product of 0 and infinity is made."""
    f = product()
    a, b = np.ones((5, 6), np.float32), np.ones((6, 9), np.float32)
    a[4], b[:, 8] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = a @ b
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(run(f, target, a, b), expected)


@pytest.mark.parametrize("dtype", [ln.float16, ln.float64, ln.int32, ln.int64])
def test_other_types_are_filled_too(dtype: DType) -> None:
    f = product(dtype)
    ((_, tests),) = roles(f, "update")
    assert tests == []
    a, b = np.ones((5, 6), dtype.numpy), np.full((6, 9), 2, dtype.numpy)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(run(f, target, a, b), a @ b)


@pytest.mark.parametrize(
    ("fold", "change", "fill"),
    [
        (ln.sum, lambda x: x, 0.0),
        (ln.sum, lambda x: x * 2.0, 0.0),
        (ln.sum, lambda x: x * x, 0.0),
        (ln.sum, ln.tanh, 0.0),
        (ln.max, lambda x: x, -np.inf),
        (ln.max, lambda x: x * 2.0, -np.inf),
        (ln.min, lambda x: x, np.inf),
        (ln.prod, lambda x: x, 1.0),
        (ln.sum, lambda x: x + 1.0, None),
        (ln.sum, ln.exp, None),
        (ln.max, lambda x: x * x, None),
        (ln.max, lambda x: -x, None),
    ],
)
def test_rule_37_the_constant_becomes_the_identity_or_the_test_stays(
    fold: Any, change: Any, fill: float | None
) -> None:
    """A maximum is not served by zeros, nor a sum by what is added to them."""
    f = reduced(fold, change)
    ((_, tests),) = roles(f, "update")
    if fill is None:
        assert filled(f) == {}
        assert len(tests) == 1
    else:
        assert list(filled(f).values()) == [fill]
        assert tests == []
        assert ln.verify(ln.lower(f)).ok
    x = np.linspace(-3, -1, 18, dtype=np.float32).reshape(2, 9)
    expected = ln.evaluate(f, x)
    for target in ("interpret", "c"):
        np.testing.assert_allclose(run(f, target, x), expected, rtol=1e-5)


def test_rule_37_sum_to_max_keeps_its_test() -> None:
    """Both read one copy: the sum takes zeros, which are no identity of the maximum."""
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        total = f.output(ln.sum(x, axis=1), "total")
        top = f.output(ln.max(x, axis=1), "top")
    copy = x.cache_after()
    folds = [total.cache_before(), top.cache_before()]
    for tensor in (copy, *folds):
        tensor.split(1, 4)
    tests = {s.tensor: t for s, t in roles(f, "update")}
    assert filled(f) == {copy.name: 0.0}
    assert tests[folds[0].name] == []
    assert len(tests[folds[1].name]) == 1
    rows = -np.ones((2, 9), np.float32)
    for target in ("interpret", "c"):
        found = run(f, target, rows)
        np.testing.assert_array_equal(found[0], [-9, -9])
        np.testing.assert_array_equal(found[1], [-1, -1])


def test_an_operand_that_lacks_the_axis_keeps_the_test() -> None:
    """0 times what is not finite is not 0."""
    with ln.Fusion("scaled") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        s = f.input("s", ("N",), ln.float32)
        y = f.output(ln.sum(x * ln.broadcast(s, (False, True)), axis=1), "y")
    copies = [x.cache_after(), s.cache_after()]
    total = y.cache_before()
    total.split(1, 4)
    total.compute_at(y, 1)
    copies[0].compute_at(total, 2)
    copies[1].compute_at(total, 1)
    (terms,) = total.producers
    terms.compute_at(total, -1)
    for tensor in terms.producers:
        if tensor not in copies:
            tensor.compute_at(terms, -1)
    assert filled(f) == {}
    x_, s_ = np.ones((2, 9), np.float32), np.array([2, np.inf], np.float32)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(run(f, target, x_, s_), [18, np.inf])


def test_a_hole_inside_of_a_tile_keeps_its_test() -> None:
    """Beyond a tile of 6 lie elements of the next one: none may be added twice."""
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    copy = x.cache_after()
    total = y.cache_before()
    total.split(1, 6)
    total.compute_at(y, 1)
    copy.compute_at(total, 2)
    total.split(2, 4)
    ((_, tests),) = roles(f, "update")
    assert any("6" in t for t in tests)
    x_ = np.arange(26, dtype=np.float32).reshape(2, 13)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(run(f, target, x_), x_.sum(1))


def test_a_copy_beside_its_only_use_is_not_filled() -> None:
    """One test serves both; nothing is gained."""
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    copy = x.cache_after()
    total = y.cache_before()
    total.split(1, 4)
    total.compute_at(y, 1)
    copy.compute_at(total, -1)
    assert filled(f) == {}
    ((_, tests),) = roles(f, "update")
    assert len(tests) == 1


def test_a_test_of_the_thread_alone_stays() -> None:
    """It costs one comparison; without it threads beyond the tensor would work in vain."""
    with ln.Fusion("columns") as g:
        x = g.input("x", ("K", "N"), ln.float32)
        y = g.output(ln.sum(x, axis=0), "y")
    copy, total = x.cache_after(), y.cache_before()
    y.split(0, 32)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    total.compute_at(y, 2)
    total.split(-1, 4)
    copy.compute_at(total, 3)
    ((_, tests),) = roles(g, "update")
    assert list(filled(g).values()) == [0.0]
    assert len(tests) == 1
    assert "K" not in tests[0]


def test_unswitch_leaves_filled_copies_no_test() -> None:
    f = product(shared=False)
    (total,) = f["c"].producers
    total.axis(2).parallelize(PT.unswitch)
    kernel = ln.lower(f)
    (outer,) = [
        n
        for n, _ in kernel.walk()
        if isinstance(n, If) and isinstance(n.body[0], Loop) and n.body[0].parallel is PT.unswitch
    ]
    fast = [n for n, _ in walk(outer.body)]
    assert not any(isinstance(n, If) for n in fast)
    assert not any(isinstance(n, Store) and n.role == "fill" for n in fast)
    assert any(isinstance(n, Store) and n.role == "fill" for n, _ in walk(outer.orelse))
    a, b = np.ones((5, 6), np.float32), np.ones((6, 9), np.float32)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(run(f, target, a, b), a @ b)


# What verify says of wrong fills


def changed(f: ln.Fusion, rule: Callable[[Stmt], Stmt | None]) -> Any:
    kernel = ln.lower(f)
    program = kernel.program.with_body(map_body(kernel.program.body, rule))
    return type(kernel)(replace(kernel._lowered, program=program, scalar=None))


def is_fill(node: Stmt) -> bool:
    return isinstance(node, Store) and node.role == "fill"


def test_verify_refutes_a_constant_that_is_no_identity() -> None:
    def one(node: Stmt) -> Stmt:
        if is_fill(node) and isinstance(node, Store):
            return replace(node, value=Const(1.0, node.storage.dtype))
        return node

    report = ln.verify(changed(product(), one))
    assert not report.ok
    assert report.findings


def test_verify_refutes_a_fill_that_is_missing() -> None:
    report = ln.verify(changed(product(), lambda node: None if is_fill(node) else node))
    assert not report.ok
    assert report.findings


def test_verify_refutes_a_fill_inside_of_the_tensor() -> None:
    def everywhere(node: Stmt) -> Stmt:
        if isinstance(node, If) and node.orelse and is_fill(node.orelse[0]):
            return node.orelse[0]
        return node

    report = ln.verify(changed(product(), everywhere))
    assert not report.ok
    assert any("constant" in str(finding) for finding in report.findings)


def test_what_is_kept_for_no_element_may_be_anything() -> None:
    """Beyond the 5 columns a row of the copy begins again; these sums are of no tensor."""
    with ln.Fusion("columns") as f:
        x = f.input("x", ("K", "N"), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    copy, total = x.cache_after(), y.cache_before()
    total.split(1, 16)
    copy.compute_at(total, 1)
    copy.split(1, "N")
    ((update, tests),) = roles(f, "update")
    assert tests == []
    assert "% N" in str(update.value)
    assert ln.verify(ln.lower(f)).ok
    rows = np.arange(15, dtype=np.float32).reshape(3, 5)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(run(f, target, rows), rows.sum(0))


def test_a_copy_that_is_laid_out_by_other_axes_than_its_loops() -> None:
    """Each element is stored at one point of the loops, whose quotients index the buffer."""
    f = product()
    copy = f["a"].consumers[0]
    copy.allocation_domain.reorder([0, 1, 3, 2])
    copy.merge(-2)
    copy.split(-1, 2)
    copy.reorder({-1: -2})
    assert sorted(filled(f).values()) == [0.0, 0.0]
    assert all("K" not in t for _, tests in roles(f, "update") for t in tests)
    rng = np.random.default_rng(3)
    a, b = [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((6, 9), (9, 11))]
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(run(f, target, a, b), a @ b)
    assert ln.verify(ln.lower(f)).ok


def test_threads_that_reduce_together() -> None:
    """Each folds a part of its own, which starts from the identity like any other."""
    with ln.Fusion("columns") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    copy, total = x.cache_after(), y.cache_before()
    total.compute_at(y, 1)
    for factor in (4, 2, 3):
        total.split(1, factor)  # [D, N / 24, 3, 2, 4]
    copy.compute_at(total, 4)
    total.parallelize({2: PT.block_y, 3: PT.block_x})
    ((_, tests),) = roles(f, "update")
    assert tests == []
    assert list(filled(f).values()) == [0.0]
    value = np.arange(29 * 2, dtype=np.float32).reshape(29, 2)
    np.testing.assert_array_equal(run(f, "interpret", value), value.sum(0))


def test_tests_of_several_operands_go_with_the_one_in_the_loops() -> None:
    """Each operand has one of them, so that none could be lifted around the loops over k."""
    f = product(shared=False)
    c = f["c"]
    c.parallelize({2: PT.block_y, 3: PT.block_x})
    assert [t for _, tests in roles(f, "update") for t in tests] == []


def test_a_loop_around_a_tile_is_no_axis_to_lie_beyond() -> None:
    """Beyond the two reads of a window, the elements of t are its own: the windows are filled."""
    with ln.Fusion("k") as f:
        t = -f.input("x", ("N",), ln.float32)
        windows = ln.unfold(t, 0, 2)
        y = f.output(ln.max(windows, -1), "y")
    total = y.cache_before()
    total.split(1, 16)
    ln.propagate(total)
    ln.inline_most([t])
    assert filled(f) == {windows.name: -np.inf}
    assert ln.verify(ln.lower(f)).ok


def bordered(value: float) -> ln.Fusion:
    """Return sums of windows of a padded row, in tiles, the border made with each tile."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        border = ln.pad(x, [(1, 1)], value)
        y = f.output(ln.sum(ln.unfold(border, 0, 3) * 2.0, axis=1), "y")
    total = y.cache_before()
    y.split(0, 8)
    total.compute_at(y, 1)
    border.compute_at(total, 1)
    for tensor in total.producers:
        tensor.compute_at(total, -1)
    f.inline_most()
    return f


@pytest.mark.parametrize(("value", "tested"), [(0.0, False), (1.0, True)])
def test_the_test_of_a_border_that_its_own_tests_imply_goes(value: float, tested: bool) -> None:
    k = ln.lower(bordered(value))
    (around,) = [
        [a for a in above if isinstance(a, If)]
        for node, above in k.walk()
        if isinstance(node, Store) and "where" in str(node.value)
    ]
    assert bool(around) == tested, str(k)
    assert ln.verify(k).scope == "all sizes"
    run = ln.compile(bordered(value), target="interpret")
    for size in (1, 2, 7, 8, 9, 17):
        data = np.arange(1.0, size + 1, dtype=np.float32)
        held = np.pad(data, 1, constant_values=value)
        expected = 2 * (held[:-2] + held[1:-1] + held[2:])
        assert np.array_equal(run(data), expected)


@pytest.mark.parametrize("dtype", [ln.float16, ln.bfloat16, ln.float32], ids=str)
@pytest.mark.parametrize("stages", [2, 3])
def test_the_test_of_a_thread_goes_where_an_operand_does_not_need_it(
    dtype: DType, stages: int
) -> None:
    """Rows of a need no test of a thread's columns: it would stand around each product."""
    kernel = gemm.lower("gpu", dtype=dtype, stages=stages)
    for variant in (kernel, kernel.scalar):
        assert variant is not None
        for node, above in variant.walk():
            if isinstance(node, Store) and node.role == "update":
                assert not any(isinstance(a, If) for a in above), str(variant)
    assert ln.verify(kernel).all_sizes
