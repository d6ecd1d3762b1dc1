"""Libraries of exported kernels, called by apache-tvm-ffi (Python, torch, JAX, C++) and without."""

from __future__ import annotations

import json
import shutil
import subprocess

import numpy as np
import pytest

import loopnest as ln
from helpers.exported_programs import EXPORTED, build, called


def exported(kernel, folder):
    """Export a kernel; return the path of its library."""
    kernel.export(folder, target="c", prove=False)
    return str(folder / json.loads((folder / "manifest.json").read_text())["built"]["library"])


def function_of(kernel, folder):
    """Export a kernel; return it as a function of apache-tvm-ffi."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    return tvm_ffi.load_module(exported(kernel, folder))[kernel.name]


@pytest.mark.parametrize(("kernel", "schedule", "sizes"), EXPORTED)
def test_it_computes_what_python_computes(kernel, schedule, sizes, tmp_path):
    """Bit by bit."""
    own = called(kernel, schedule, sizes)
    fusion, lowered, sizes, made, wanted = own.fusion, own.lowered, own.sizes, own.made, own.wanted
    inputs = made.fresh()
    by_name = dict(zip([x.name for x in fusion.inputs], inputs, strict=True))
    outputs = []
    for output, value in zip(lowered.program.outputs, wanted, strict=True):
        found = by_name[output.inplace] if output.inplace else np.full_like(value, 7)
        outputs.append(found)
    given = [a for a, o in zip(outputs, lowered.program.outputs, strict=True) if not o.inplace]
    scalars = [made.scalars[s.name] for s in fusion.scalars]
    assert function_of(lowered, tmp_path / "k")(*inputs, *given, *scalars) is None
    for array, other in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(array, other)


def plain(name, dtype=ln.float32):
    with ln.Fusion(name) as f:
        x = f.input("x", ("N", "D"), dtype)
        f.output(ln.sum(x, axis=1, dtype=dtype), "y")
    return ln.lower(f)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return sums of rows as a function of apache-tvm-ffi."""
    return function_of(plain("rows"), tmp_path_factory.mktemp("rows") / "k")


X, Y = np.ones((3, 4), np.float32), np.zeros(3, np.float32)
MISTAKES = [
    ((X,), TypeError, r"rows takes 2 arguments \(x, y\), and 1 were given"),
    ((3, Y), TypeError, r"rows: x is no array; pass float32\[N, D\]"),
    (
        (X.astype(np.float64), Y),
        TypeError,
        r"rows: the elements of x have another type; pass float32\[N, D\]",
    ),
    ((X, X), ValueError, r"rows: y has 2 axes; pass float32\[N\]"),
    ((X.T, Y), ValueError, r"rows: x is not C-contiguous; pass a copy that is"),
    ((X, Y[:2]), ValueError, r"rows: axis 0 of y has the extent 2; N is 3"),
    (
        (X, X[0, :3]),
        ValueError,
        r"rows: an array that is written has memory in common with another",
    ),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes(rows, arguments, kind, text):
    with pytest.raises(kind, match=f"^{text}$"):
        rows(*arguments)


def test_no_element_and_one_row(rows):
    for shape in ((0, 4), (1, 4), (3, 0)):
        y = np.full(shape[0], 7, np.float32)
        rows(np.ones(shape, np.float32), y)
        np.testing.assert_array_equal(y, np.full(shape[0], shape[1], np.float32))
    across = np.ones((4, 1), np.float32).T  # strides of axes of one element say nothing
    rows(across, y := np.zeros(1, np.float32))
    assert y.tolist() == [4]


def test_strides_scalars_and_sizes(tmp_path):
    """Strides that are sizes come from the array; a size that no array tells is an argument."""
    with ln.Fusion("scaled") as f:
        x = f.input("x", ("N",), ln.float32, strides=("S",))
        a = f.scalar("a", ln.float64)
        k = f.scalar("k", ln.int32)
        wide = ln.cast(x, ln.float64) * a + ln.cast(k, ln.float64)
        f.output(wide, "y")
    scaled = function_of(ln.lower(f), tmp_path / "k")
    x, y = np.arange(8, dtype=np.float32)[::2], np.zeros(4)
    scaled(x, y, 0.5, 3)
    np.testing.assert_array_equal(y, x * 0.5 + 3)
    with pytest.raises(TypeError, match=r"^scaled: a is no number$"):
        scaled(x, y, "0.5", 3)
    with pytest.raises(TypeError, match=r"^scaled: k is no integer$"):
        scaled(x, y, 0.5, 3.5)

    with ln.Fusion("counted") as f:
        i = f.input("i", ("N",), ln.int32)
        f.output(ln.sum(i, axis=0) + ln.sum(ln.iota("M"), axis=0), "y")
    counted = function_of(ln.lower(f), tmp_path / "m")
    counted(np.arange(4, dtype=np.int32), y := np.zeros((), np.int64), 5)
    assert y == 6 + 10


def test_assumptions(tmp_path):
    with ln.Fusion("fours") as f:
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
        f.assume("N % 4 == 0")
    fours = function_of(ln.lower(f), tmp_path / "k")
    x = np.ones(6, np.float32)
    with pytest.raises(ValueError, match=r"^fours: the assumption 'N % 4 == 0' does not hold$"):
        fours(x, np.zeros_like(x))


@pytest.mark.parametrize("dtype", [ln.bool, ln.int8, ln.uint16, ln.int64, ln.float16, ln.float64])
def test_types(dtype, tmp_path):
    with ln.Fusion("turned") as f:
        f.output(ln.flip(f.input("x", ("N",), dtype), 0), "y")
    turned = function_of(ln.lower(f), tmp_path / "k")
    x = np.array([1, 0, 1, 1, 0]).astype(dtype.numpy)
    turned(x, y := np.zeros_like(x))
    np.testing.assert_array_equal(y, x[::-1])


def test_torch_calls_it(rows, tmp_path):
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    rows(x, y := torch.zeros(3))
    assert y.tolist() == x.sum(1).tolist()
    wide = function_of(plain("wide", ln.bfloat16), tmp_path / "k")
    wide(x.to(torch.bfloat16), z := torch.zeros(3, dtype=torch.bfloat16))
    assert z.tolist() == x.sum(1).tolist()
    with pytest.raises(ValueError, match=r"^rows: x is not C-contiguous; pass a copy that is$"):
        rows(torch.ones(4, 3).T, y)


def test_jax_calls_it(rows):
    jax = pytest.importorskip("jax")
    jax_tvm_ffi = pytest.importorskip("jax_tvm_ffi")
    jax_tvm_ffi.register_ffi_target("loopnest.test.rows", rows, ["args", "rets"], platform="cpu")
    call = jax.ffi.ffi_call("loopnest.test.rows", jax.ShapeDtypeStruct((3,), np.float32))
    np.testing.assert_array_equal(jax.jit(call)(X), X.sum(1))


CPP = r"""
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <cstdio>

int main(int, char **argv) {
  float x[2][3] = {{1, 2, 3}, {4, 5, 6}}, y[2];
  int64_t shape[] = {2, 3};
  DLTensor left{}, right{};
  left.data = x, left.device = {kDLCPU, 0}, left.ndim = 2, left.dtype = {kDLFloat, 32, 1};
  right = left;
  left.shape = shape, right.shape = shape, right.data = y, right.ndim = 1;
  auto module = tvm::ffi::Module::LoadFromFile(argv[1]);
  auto rows = module->GetFunction("rows").value();
  rows(&left, &right);
  std::printf("%g %g\n", y[0], y[1]);
  try {
    rows(&left);
  } catch (const tvm::ffi::Error &error) {
    std::printf("%s\n", error.message().c_str());
  }
}
"""


def test_cpp_calls_it(tmp_path):
    libinfo = pytest.importorskip("tvm_ffi.libinfo")
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    library = exported(plain("rows"), tmp_path / "k")
    (tmp_path / "main.cpp").write_text(CPP)
    runtime = libinfo.find_libtvm_ffi()
    folders = {libinfo.find_include_path(), libinfo.find_dlpack_include_path()}
    subprocess.run(
        ["c++", "-std=c++17", *[f"-I{folder}" for folder in folders], "main.cpp", runtime,
         f"-Wl,-rpath,{runtime.rpartition('/')[0]}", "-o", "main"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "main", library], check=True, capture_output=True, text=True)
    assert done.stdout == "6 15\nrows takes 2 arguments (x, y), and 1 were given\n"


C = r"""
#include <stdint.h>
#include <stdio.h>

typedef struct { int32_t kind; uint32_t rest; union { int64_t i; double d; void *p; } value; } any;
typedef struct {
  void *data;
  int32_t device, number, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t offset;
} array;

int __tvm_ffi_rows(void *, const any *, int32_t, any *);

int main(void) {
  float x[7] = {0, 1, 2, 3, 4, 5, 6}, y[2];
  const int64_t shape[] = {2, 3};
  array left = {x, 1, 0, 2, 2, 32, 1, shape, NULL, sizeof(float)};
  array right = {y, 1, 0, 1, 2, 32, 1, shape, NULL, 0};
  const any given[] = {{7, 0, {.p = &left}}, {7, 0, {.p = &right}}};
  any result;
  const int status = __tvm_ffi_rows(NULL, given, 2, &result);
  printf("%d %g %g\n", status, y[0], y[1]);
  printf("%d\n", __tvm_ffi_rows(NULL, given, 1, &result));
  return 0;
}
"""


def test_it_needs_no_library_of_tvm(tmp_path):
    """Errors have no message then, and the status alone."""
    exported(plain("rows"), tmp_path / "k")
    program = build(tmp_path / "k", C)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout == "0 6 15\n-1\n"
