"""The examples that users copy, as written."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln

ROW_SUM = """\
# loopnest nest 1
kernel row_sum(x: float32[N, D]) -> (y: float32[N])
for i0 in ceildiv(N, 4):  # grid_x
  for i1 in 4:  # block_y
    T2: float32[1] local
    T2[0] = 0.0
    if i0 * 4 + i1 < N:
      for i2 in D:
        T2[0] = T2[0] + x[i0 * 4 + i1, i2]
      y[i0 * 4 + i1] = T2[0]
"""


def row_sum() -> ln.Fusion:
    with ln.Fusion("row_sum") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = ln.sum(x, axis=1)
        f.output(y, "y")
    t = y.cache_before()
    y.split(0, 4)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_y})
    t.compute_at(y, 2)
    return f


def softmax() -> ln.Fusion:
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        a = f.scalar("alpha", ln.float32)
        m = ln.max(x, axis=1, keepdims=True)
        e = ln.exp(a * (x - m))
        y = e / ln.sum(e, axis=1, keepdims=True)
        f.output(y, "y")
    return f


def test_the_nest_of_row_sum_is_printed_byte_for_byte() -> None:
    assert str(ln.lower(row_sum())) == ROW_SUM.rstrip("\n")


@pytest.mark.parametrize("target", ["interpret", "c"])
@pytest.mark.parametrize("shape", [(8, 5), (7, 5), (1, 1), (0, 5), (5, 0)])
def test_row_sum_runs(target: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = ln.compile(row_sum(), target=target)(x)
    np.testing.assert_allclose(found, ln.evaluate(row_sum(), x), atol=1e-5)


def test_the_softmax_of_the_documentation_is_defined_and_evaluated() -> None:
    f = softmax()
    assert [t.name for t in f.inputs] == ["x"]
    assert f["y"] is f.outputs[0]
    assert isinstance(f.tensors, tuple)
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    e = np.exp(2.0 * (x - x.max(axis=1, keepdims=True)))
    np.testing.assert_allclose(
        ln.evaluate(f, x, alpha=2.0), e / e.sum(axis=1, keepdims=True), rtol=1e-6
    )


@pytest.mark.parametrize("target", ["interpret", "c"])
def test_an_unscheduled_fusion_runs(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    fn = ln.compile(softmax(), target=target)
    assert fn.target == target
    expected = ln.evaluate(softmax(), x, alpha=2.0)
    np.testing.assert_allclose(fn(x, alpha=2.0), expected, rtol=1e-5)


def test_a_kernel_is_a_snapshot() -> None:
    f = row_sum()
    kernel = ln.lower(f)
    before = str(kernel)
    with f:
        f["x"].cache_after()
    assert str(kernel) == before
    assert str(ln.lower(f)) != before


def test_a_kernel_tells_its_parameters_and_launch() -> None:
    kernel = ln.lower(row_sum())
    assert [p.name for p in kernel.params] == ["x", "y", "N", "D"]
    launch = kernel.launch(N=10, D=3)
    assert launch.grid == (3, 1, 1)
    assert launch.block == (1, 4, 1)
    assert launch.shared_bytes == 0


def test_walk_yields_statements_with_their_ancestors() -> None:
    kernel = ln.lower(row_sum())
    nodes = list(kernel.walk())
    loops = [node for node, _ in nodes if isinstance(node, ln.kir.Loop)]
    assert [loop.index for loop in loops] == ["i0", "i1", "i2"]
    assert loops[1].extent == 4
    assert loops[1].parallel is ln.ParallelType.block_y
    stores = [(n.buffer, n.tensor, len(a)) for n, a in nodes if isinstance(n, ln.kir.Store)]
    assert stores == [("T2", "T2", 2), ("T2", "T2", 4), ("y", "y", 3)]
    assert [a for _, a in kernel.walk()] == [a for _, a in nodes]


def test_the_toolchain_texts_exist() -> None:
    kernel = ln.lower(row_sum())
    cuda = kernel.cuda()
    assert 'extern "C" __global__' in cuda
    assert "__launch_bounds__" in cuda
    assert "__restrict__" in cuda
    assert kernel.c()
    assert list(kernel.stages) == [
        "groups", "nest", "allocation", "checks", "grid_reductions", "indexing", "ownership",
        "predicate_elimination", "circular_buffers", "aliases", "barriers", "addresses",
        "predicates", "inplace", "tighten", "unswitch", "early_exit", "renumber",
    ]  # fmt: skip
