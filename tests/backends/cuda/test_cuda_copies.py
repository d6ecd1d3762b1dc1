"""Copies in flight in CUDA text: calls, source sizes, groups, machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.flying_nests import column_sums
from kernels.gemm import gemm
from kernels.layernorm import layernorm
from kernels.softmax import softmax
from loopnest import kir
from loopnest.backends.cuda.printing.cuda_printer import print_cuda

PT = ln.ParallelType


def calls(text: str) -> list[str]:
    """Return the lines of a kernel that begin copies, close groups or wait."""
    body = text.partition("{\n  const")[2]
    return [line.strip() for line in body.splitlines() if re.search(r"ln_(cp|commit|wait)", line)]


def test_a_copy_and_its_fill_are_one_call() -> None:
    assert calls(ln.lower(column_sums(2)).cuda()) == [
        "ln_cp_async<16>(&tile[block_x * 4], &x[block_x / 32 * D + grid_x * 128 + block_x % 32 * "
        "4], grid_x * 128 + block_x % 32 * 4 < D && block_x / 32 < N ? 16 : 0);  // tile",
        "ln_commit();",
        "ln_wait<0>();",
        "ln_cp_async<16>(&tile[(i4 + 1) % 2 * 512 + block_x * 4], &x[(i4 * 4 + block_x / 32 + 4) * "
        "D + grid_x * 128 + block_x % 32 * 4], grid_x * 128 + block_x % 32 * 4 < D && i4 * 4 + "
        "block_x / 32 + 4 < N ? 16 : 0);  // tile",
        "ln_commit();",
    ]


@pytest.mark.parametrize(
    ("dtype", "lanes", "widths"),
    [(ln.float32, 4, [16]), (ln.float32, 2, [8]), (ln.float16, 2, [4]), (ln.float64, 4, [16, 16])],
)
def test_the_widest_copies_that_fit(dtype: ln.DType, lanes: int, widths: list[int]) -> None:
    text = ln.lower(column_sums(2, dtype=dtype, lanes=lanes)).cuda()
    found = [int(width) for width in re.findall(r"ln_cp_async<(\d+)>", text)]
    assert found == widths * 2


def test_lanes_with_a_test_each_are_copies_of_one_element() -> None:
    kernel = ln.lower(column_sums(2))
    assert kernel.scalar is not None
    found = calls(kernel.scalar.cuda())
    assert all("ln_cp_async<4>" in line and "? 4 : 0" in line for line in found if "cp" in line)
    assert sum("cp" in line for line in found) == 2


def maxima() -> ln.Fusion:
    """Return maxima of columns: what lies beyond is -inf, which no copy makes."""
    with ln.Fusion("maxima") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.max(x, axis=0), "y")
    tile, total = x.cache_after().named("tile"), y.cache_before()
    tile.memory = ln.SHARED
    y.split(0, 128)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    total.compute_at(y, 1)
    total.split(2, 4)
    total.reorder({1: 2, 2: 1})
    total.axis(2).parallelize(PT.block_x)
    tile.compute_at(total, 2)
    tile.merge(-2)
    tile.split(-1, 128)
    tile.axis(-1).parallelize(PT.block_x)
    f.inline_most()
    tile.move_by("cp.async").circular_buffer(2)
    return f


def test_a_fill_that_is_not_zero_is_stored() -> None:
    text = ln.lower(maxima()).cuda()
    assert "? 4 : 0" not in text
    assert text.count("ln_cp_async<4>") == 2
    assert ln.verify(ln.lower(maxima())).all_sizes


@pytest.mark.parametrize("wide", [True, False])
def test_texts_run_on_the_cpu(
    wide: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    plug_in(monkeypatch, CpuGpu(tmp_path))  # type: ignore[arg-type]
    run, most = (ln.compile(f, target="cuda") for f in (column_sums(3, wide=wide), maxima()))
    for rows, columns in ((7, 132), (3, 5), (12, 128)):
        x = np.random.default_rng(0).integers(-9, 9, (rows, columns)).astype(np.float32)
        np.testing.assert_array_equal(run(x), 2 * x.sum(0))
        np.testing.assert_array_equal(most(x), x.max(0))


@pytest.mark.parametrize(
    ("kernel", "barriers"), [(gemm, 1), (softmax, 2), (layernorm, 2)], ids=lambda k: str(k)
)
def test_machine_code(kernel: ln.KernelDef, barriers: int) -> None:
    """Copies of 16 bytes, none of them through registers; one barrier for the products."""
    sass = kernel.lower("gpu_async").sass("sm_90")
    copies = set(re.findall(r"\bLDGSTS\.\S*", sass))
    assert copies == {"LDGSTS.E.128"}
    assert len(re.findall(r"\bBAR\b", sass)) == barriers
    if kernel is not layernorm:  # whose weights are loaded
        assert not re.findall(r"\bLDG\b", sass)


def test_an_old_architecture() -> None:
    with pytest.raises(ln.CompileError) as caught:
        ln.lower(column_sums(2)).ptx("sm_75")
    assert str(caught.value) == (
        "column_sums.ptx(arch='sm_75'): the instruction cp.async needs sm_80; compile for sm_80 or "
        "a newer one"
    )


def test_elements_that_no_copy_fits() -> None:
    message = (
        "tile: cp.async moves 4, 8 or 16 aligned bytes, and its copies are of 2; vectorize the "
        "innermost axis of its copy, and state by f.assume that it divides the size"
    )
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(column_sums(2, dtype=ln.float16, wide=False))
    assert str(caught.value) == message
    program = ln.lower(column_sums(2, dtype=ln.float16)).program
    with pytest.raises(ln.LoweringError) as caught:
        print_cuda(program.with_body(kir.map_body(program.body, serial)))
    assert str(caught.value) == message


def serial(node: kir.Stmt) -> kir.Stmt:
    """Return a vectorized loop as a serial one."""
    if isinstance(node, kir.Loop) and node.parallel is PT.vectorize:
        return replace(node, parallel=PT.serial)
    return node


def test_a_row_without_ptx() -> None:
    program = ln.lower(column_sums(2)).program

    def rule(node: kir.Stmt) -> kir.Stmt:
        return replace(node, instruction="mine") if isinstance(node, kir.Issue) else node

    with pytest.raises(ln.LoweringError) as caught:
        print_cuda(program.with_body(kir.map_body(program.body, rule)))
    assert str(caught.value) == (
        "column_sums: the instruction 'mine' has no ptx, so that no CUDA text can be printed; give "
        "its row one, or run on 'interpret' and 'c'"
    )
