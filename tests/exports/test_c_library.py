"""Kernels exported as C: called by C and C++ programs without Python, and by `ln.load`."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess

import numpy as np
import pytest

import loopnest as ln
from helpers.exported_programs import EXPORTED, build, called, main_of, run
from kernels.cumsum import cumsum_long
from kernels.embedding import embedding
from kernels.row_sum import row_sum
from kernels.softmax import softmax


def exported(kernel, folder, **options):
    """Export a kernel without a proof; return the manifest."""
    kernel.export(folder, target="c", prove=False, **options)
    return json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize(("kernel", "schedule", "sizes"), EXPORTED)
def test_a_c_program_and_a_loaded_kernel_compute_the_same(kernel, schedule, sizes, tmp_path):
    """Bit by bit what the kernel computes in Python."""
    own = called(kernel, schedule, sizes)
    fusion, lowered, sizes, made, wanted = own.fusion, own.lowered, own.sizes, own.made, own.wanted
    folder = tmp_path / "export"
    manifest = exported(lowered, folder)
    program = build(folder, main_of(manifest))

    params = [p for p in lowered.params if p.kind in ("input", "output")]
    inplace = [o.inplace for o in lowered.program.outputs]
    shapes = [(w.shape, w.dtype) for w, source in zip(wanted, inplace, strict=True) if not source]
    said, arrays = run(tmp_path, program, manifest, made.arrays, shapes, sizes, made.scalars)
    assert said == "it ran"
    by_name = dict(zip([p.name for p in params], arrays, strict=True))
    for output, array in zip(lowered.program.outputs, wanted, strict=True):
        np.testing.assert_array_equal(by_name[output.inplace or output.name], array)

    again = ln.load(folder)(*made.fresh(), **made.keywords(fusion))
    again = again if isinstance(again, tuple) else (again,)
    for array, other in zip(wanted, again, strict=True):
        np.testing.assert_array_equal(array, other)


def test_cpp_calls_it(tmp_path):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path / "export"
    exported(row_sum.lower("cpu"), folder)
    text = """
#include <cstdio>
#include <vector>
#include "row_sum.h"
int main() {
  std::vector<float> x(6, 2.0f), y(2);
  const int status = row_sum_run(x.data(), y.data(), 2, 3, nullptr, 0);
  std::printf("%s %g %g", row_sum_sentence(status), y[0], y[1]);
}
"""
    program = build(folder, text, "cpp")
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "it ran 6 6"


def library(folder, name):
    """Return the functions of a library, as ctypes has them."""
    found = ctypes.CDLL(str(folder / f"lib{name}.so"))
    getattr(found, f"{name}_sentence").restype = ctypes.c_char_p
    getattr(found, f"{name}_workspace").restype = ctypes.c_int64
    return found


def pointer(array):
    return ctypes.c_void_p(0 if array is None else array.ctypes.data)


def sizes_of(*values):
    return [ctypes.c_int64(value) for value in values]


def test_statuses_say_what_is_wrong(tmp_path):
    exported(row_sum.lower("gpu"), tmp_path)
    found = library(tmp_path, "row_sum")
    x, y = np.ones((4, 8), np.float32), np.full(4, -1, np.float32)

    def status(x, y, n=4, d=8):
        number = found.row_sum_run(pointer(x), pointer(y), *sizes_of(n, d), None, *sizes_of(0))
        return found.row_sum_sentence(number).decode()

    assert status(x, y) == "it ran"
    assert y.tolist() == [8] * 4
    y[:] = -1
    assert status(None, y) == "an array that has elements is NULL"
    assert status(x, None) == "an array that has elements is NULL"
    assert status(x, y, n=-1) == "a size is negative"
    assert status(x, x) == "an array that is written has memory in common with another"
    assert status(x, x.reshape(-1)[31:]) == (
        "an array that is written has memory in common with another"
    )
    assert status(x, y, n=1 << 20, d=1 << 50) == "an index exceeds 64 bits"
    assert status(x, y, n=1 << 31) == "a block has too many threads, or the grid too many blocks"
    assert status(None, None, n=0) == "it ran"
    assert y.tolist() == [-1] * 4
    assert found.row_sum_sentence(77) == b"no status of row_sum"


def test_assumptions_are_checked(tmp_path):
    exported(softmax.lower("gpu_warp"), tmp_path)
    found = library(tmp_path, "softmax")
    statuses = [found.softmax_check(*sizes_of(3, d)) for d in (1, 1024, 1025, 0)]
    assert statuses[:2] == [0, 0]
    assert [found.softmax_sentence(status).decode() for status in statuses[2:]] == [
        "the assumption 'D <= 1024' does not hold",
        "the assumption 'D > 0' does not hold",
    ]
    assert found.softmax_workspace(*sizes_of(3, 0)) == -statuses[3]


def test_a_remainder_by_a_size_of_0_holds_nowhere(tmp_path):
    with ln.Fusion("even") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        f.output(x * 2.0, "y")
        f.assume("N % M == 0")
    exported(ln.lower(f), tmp_path)
    found = library(tmp_path, "even")
    assert [found.even_check(*sizes_of(6, m)) for m in (3, 4, 0)] == [0, 100, 100]
    assert found.even_sentence(100) == b"the assumption 'N % M == 0' does not hold"


def test_the_workspace_is_asked_for(tmp_path):
    exported(cumsum_long.lower("gpu"), tmp_path)
    found = library(tmp_path, "cumsum_long")
    x, y = np.ones(5000, np.float32), np.zeros(5000, np.float32)
    bytes_ = found.cumsum_long_workspace(*sizes_of(5000))
    assert bytes_ > 0
    space = np.zeros(bytes_, np.uint8)

    def status(space, size):
        number = found.cumsum_long_run(
            pointer(x), pointer(y), *sizes_of(5000), pointer(space), *sizes_of(size)
        )
        return found.cumsum_long_sentence(number).decode()

    short = "the workspace has fewer bytes than cumsum_long_workspace says, or is NULL"
    assert status(None, bytes_) == short
    assert status(space, bytes_ - 1) == short
    assert not y.any()
    assert status(space, bytes_) == "it ran"
    assert y[-1] == 5000


def test_data_are_checked(tmp_path):
    lowered = embedding.lower("cpu")
    exported(lowered, tmp_path)
    found = library(tmp_path, "embedding")
    sizes = {"K": 3, "V": 4, "D": 2}
    order = [p.name for p in lowered.params if p.kind == "size"]
    arrays = {
        p.name: np.zeros([sizes[str(s)] for s in p.shape], p.dtype.numpy)
        for p in lowered.params
        if p.kind in ("input", "output")
    }
    arrays["token"][1] = 4
    number = found.embedding_run(
        *[pointer(a) for a in arrays.values()], *sizes_of(*[sizes[n] for n in order]), None,
        *sizes_of(0),
    )  # fmt: skip
    assert number == 1000
    assert found.embedding_sentence(number).decode() == (
        "an element is out of range: 0 <= token < V was declared"
    )


def test_launches_without_threads(tmp_path):
    """The outputs hold what the reduction starts from, and what the host adds."""
    with ln.Fusion("shifted") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1) + 3.0, "y")
    total = y.producers[0]
    total.split(1, 32)
    total.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    y.parallelize({0: ln.ParallelType.grid_x})
    lowered = ln.lower(f)
    exported(lowered, tmp_path)
    run_it, same = ln.load(tmp_path), ln.compile(lowered, target="c")
    found = library(tmp_path, "shifted")
    for shape in ((4, 0), (4, 5), (0, 5)):
        x = np.ones(shape, np.float32)
        np.testing.assert_array_equal(run_it(x), same(x))
        out = np.full(shape[0], np.nan, np.float32)
        space = np.zeros(max(found.shifted_workspace(*sizes_of(*shape)), 1), np.uint8)
        status = found.shifted_run(
            pointer(x), pointer(out), *sizes_of(*shape), pointer(space), *sizes_of(space.size)
        )
        assert found.shifted_sentence(status) == b"it ran"
        np.testing.assert_array_equal(out, same(x))


def test_names_that_c_has_already(tmp_path):
    with ln.Fusion("step") as f:
        x = f.input("workspace", ("int",), ln.float16)
        a = f.scalar("double", ln.float16)
        f.output(x * a, "plan")
    exported(ln.lower(f), tmp_path)
    x = np.array([1, 2], np.float16)
    assert ln.load(tmp_path)(x, double=2.0).tolist() == [2, 4]


@pytest.mark.parametrize("names", [("refused", "r0"), ("bytes", "count")])
def test_sizes_named_as_the_text_might_name_its_own(names, tmp_path):
    """With a workspace, and another variant for sizes that vectors do not divide."""
    with ln.Fusion("sums") as f:
        x = f.input("x", names, ln.float32)
        y = f.output(ln.sum(x, axis=1) + 3.0, "y")
    total = y.producers[0]
    total.split(1, 4)
    total.parallelize({2: ln.ParallelType.unroll})
    total.memory = ln.GLOBAL
    row = x.cache_after()
    row.compute_at(total, 2)
    row.axis(2).parallelize(ln.ParallelType.vectorize)
    lowered = ln.lower(f)
    exported(lowered, tmp_path)
    assert [p.kind for p in lowered.params].count("workspace") == 1
    for shape in ((5, 8), (5, 7), (0, 3)):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        found = library(tmp_path, "sums")
        space = np.zeros(found.sums_workspace(*sizes_of(*shape)) + 1, np.uint8)
        y = np.zeros(shape[0], np.float32)
        status = found.sums_run(
            pointer(x), pointer(y), *sizes_of(*shape), pointer(space), *sizes_of(space.size)
        )
        assert found.sums_sentence(status) == b"it ran"
        np.testing.assert_array_equal(y, x.sum(axis=1) + 3)
