"""The CUDA C++ text: its form, and that NVRTC compiles it."""

import re
from math import prod

import pytest

import loopnest as ln
from helpers.printer_cases import CASTS, FORMS, GROUPING, row_sum
from helpers.work import calls
from loopnest.backends.cuda.printing.cuda_printer import print_cuda
from loopnest.base.errors import LoweringError
from loopnest.kir import Loop, Store
from loopnest.kir import parse as parse_nest
from loopnest.kir.shared_memory import shared_layout
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Op, Symbol, integer
from loopnest.scalar.op_table import OPS
from loopnest.scalar.record_text import natural_type


def compile_text(text, arch="sm_90"):
    """Compile to machine code, and return the result."""
    pytest.importorskip("cuda.bindings")
    from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

    compiled = compile_cuda(text, arch)
    assert compiled.cubin
    return compiled


def test_text_of_row_sum():
    assert (
        print_cuda(row_sum())
        == """\
// kernel row_sum
// grid (ceildiv(N, 4), 1, 1), block (1, 4, 1)
typedef int idx_t;
static __device__ __forceinline__ idx_t ln_index(idx_t i) { __builtin_assume(i >= 0); return i; }

extern "C" __global__ void __launch_bounds__(4, 1) row_sum(
    const float *__restrict__ x,
    float *__restrict__ y,
    const long long size_N,
    const long long size_D)
{
  const idx_t N = ln_index(size_N);
  const idx_t D = ln_index(size_D);
  const idx_t grid_x = ln_index(blockIdx.x);
  const idx_t block_y = ln_index(threadIdx.y);
  float T2 = 0.0f;  // T2 init
  if (grid_x * 4 + block_y < N) {
    for (idx_t i2 = 0; i2 < D; ++i2) {
      T2 = T2 + x[(grid_x * 4 + block_y) * D + i2];  // T2 update
    }
    y[grid_x * 4 + block_y] = T2;  // y
  }
}
"""
    )


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_row_sum_compiles(bits, arch):
    compile_text(print_cuda(row_sum(), bits), arch)


@pytest.mark.parametrize("text", FORMS, ids=lambda text: text.split("(")[0].split()[-1])
def test_all_forms_compile(text):
    compile_text(print_cuda(parse_nest(text)))


@pytest.mark.parametrize("bits", [32, 64])
def test_the_sign_of_indices_and_sizes_is_known(bits):
    """A division by a power of two is then one shift; a signed one has to round towards 0."""
    text = print_cuda(
        parse_nest("""
        kernel k(x: float32[N, D]) -> (y: float32[N, D])
        for i0 in N:  # grid_x
          for i1 in D:  # block_x
            if i0 // 8 + i1 // 32 < D // 4:
              y[i0, i1] = x[i0, i1]
        """),
        bits,
    )
    assert text.count("__builtin_assume(i >= 0)") == 1
    sass = compile_text(text).sass
    assert "SHF.R.U" in sass
    assert not re.search(r"\.S32\.HI|\.HI\.SX32", sass)


def test_a_place_that_is_known_is_one_number():
    program = parse_nest("""
        kernel k(x: float32[4, 5]) -> (y: float32[4, 5])
        for i0 in 4:
          y[i0, 2] = x[3, i0] + x[1, 0]
        """)
    line = "    y[i0 * 5 + 2] = x[15 + i0] + x[5];  // y\n"
    assert line in print_cuda(program)


def test_guards_of_launch_dimensions():
    blocks = Op("ceildiv", (Symbol("N"), integer(8)), dtypes.index)
    launch = {ParallelType.grid_x: blocks, ParallelType.block_x: integer(8)}
    nest = """
        kernel k(x: float32[N]) -> (y: float32[N], w: float32[3])
        for i0 in ceildiv(N, 8):  # grid_x
          for i1 in 8:  # block_x
            if i0 * 8 + i1 < N:
              y[i0 * 8 + i1] = x[i0 * 8 + i1] * 2.0
        for i2 in 1:  # grid_x
          for i3 in 3:  # block_x
            w[i3] = 1.0
        """
    text = print_cuda(parse_nest(nest, launch=launch))
    assert "__launch_bounds__(8, 1)" in text
    assert text.endswith("""\
  const idx_t grid_x = ln_index(blockIdx.x);  // i0, i2
  const idx_t block_x = ln_index(threadIdx.x);  // i1, i3
  if (grid_x * 8 + block_x < N) {
    y[grid_x * 8 + block_x] = x[grid_x * 8 + block_x] * 2.0f;  // y
  }
  if (grid_x < 1) {  // i2 grid_x
    if (block_x < 3) {  // i3 block_x
      w[block_x] = 1.0f;  // w
    }
  }
}
""")
    compile_text(text)


def test_launch_bounds():
    head = "kernel k() -> (y: float32[N])\n"
    symbolic = parse_nest(head + "for i0 in N:  # block_x\n  y[i0] = 1.0")
    assert "__launch_bounds__(1024, 1) k(" in print_cuda(symbolic)
    large = parse_nest(head + "for i0 in 4096:  # block_x\n  y[i0] = 1.0")
    assert "__global__ void k(" in print_cuda(large)
    none = parse_nest(head + "for i0 in N:  # grid_x\n  y[i0] = 1.0")
    assert "__launch_bounds__(1, 1) k(" in print_cuda(none)


def test_unrolled_and_vectorized_loops():
    program = parse_nest("""
        kernel k(x: float32[N, 4]) -> (y: float32[N, 4])
        for i0 in N:  # block_x
          T2: float32[4] local
          for i1 in 4:  # vectorize
            T2[i1] = x[i0, i1]
          for i2 in 4:  # unroll
            y[i0, i2] = T2[3 - i2]
          for i3 in N:  # unroll
            for i4 in N:  # cpu_parallel
              y[i3, 0] = 1.0
        """)
    text = print_cuda(program)
    assert text.count("#pragma unroll\n") == 1
    assert (
        "  __align__(16) float T2[4];\n  ln_wide<4>(&T2[0]) = ln_wide<4>(&x[block_x * 4]);" in text
    )
    compile_text(text)


def registers(extent):
    return parse_nest(f"""
        kernel k(x: float32[N, {extent}]) -> (y: float32[N, {extent}])
        for i0 in N:  # block_x
          T2: float32[{extent}] local
          for i1 in {extent}:
            T2[i1] = x[i0, i1]
          for i2 in {extent}:
            y[i0, i2] = T2[{extent - 1} - i2]
          for i3 in {extent}:
            y[i0, i3] = 1.0
        """)


def test_loops_that_index_registers_are_unrolled():
    """Else the array would lie in memory; loops that index none are left to the compiler."""
    text = print_cuda(registers(24))
    assert text.count("#pragma unroll\n") == 2
    (found,) = compile_text(text).resources.values()
    assert found.stack_bytes == 0
    assert "#pragma unroll" not in print_cuda(registers(1000))


def test_16_bit_types_bring_their_headers():
    for name, header in (("float16", "cuda_fp16.h"), ("bfloat16", "cuda_bf16.h")):
        text = print_cuda(
            parse_nest(f"""
            kernel k(x: {name}[N], s: float32) -> (y: {name}[N], z: {name}[N], v: bool[N])
            for i0 in N:  # block_x
              y[i0] = float32(x[i0]) * s + exp(float32(x[i0]))
              z[i0] = where(x[i0] < 1.5, {name}(float64(x[i0]) + float64(1.0)), x[i0])
              v[i0] = bool(x[i0])
            """)
        )
        assert re.findall(r"#include <(.*)>", text) == [header]
        compile_text(text, "sm_80")
    assert "#include" not in print_cuda(row_sum())


def test_helpers_are_printed_where_they_are_called():
    program = parse_nest("""
        kernel k(x: float32[N], i: int32[N]) -> (y: float32[N], z: int32[N])
        for i0 in N:  # block_x
          y[i0] = max(x[i0], -inf) + x[(i0 - 5) % N]
          z[i0] = i[i0] % 3
        """)
    text = print_cuda(program)
    for name in ("ln_maxf", "ln_index_mod", "ln_mod"):
        assert re.search(rf" {name}\(\w+ a", text), name
    for name in ("ln_minf", "ln_index_div", "ln_floordiv", "ln_sigmoid"):
        assert name not in text
    compile_text(text)
    assert set(re.findall(r"ln_\w+", print_cuda(row_sum()))) == {"ln_index"}


@pytest.mark.parametrize("name", [dtype.name for dtype in dtypes.ALL if not dtype.is_bool])
def test_every_operation_compiles(name):
    base = parse_nest(
        f"kernel k(a: {name}[N], b: {name}[N], d: bool[N]) -> (y: {name}[N], z: bool[N])\n"
        "for i0 in N:  # block_x\n  y[i0] = a[i0]\n  y[i0] = b[i0]\n  z[i0] = d[i0]"
    )
    (loop,) = base.body
    first, second, third = loop.body
    a, b, d = first.value, second.value, third.value
    dtype = dtypes.of(name)
    stores = []
    for info in OPS.values():
        if not dtype.is_float and (info.result == "float" or info.name == "div"):
            continue
        if dtype.is_float and not {"f", "b"} & set(info.kinds):
            continue
        if not dtype.signed and info.name == "ceildiv":
            continue
        if info.name.startswith("ordinal") and name != info.name.replace("ordinal", "float"):
            continue
        if info.name in ("and", "or", "not"):
            args = (d, d)[: info.arity]
        elif info.name == "where":
            args = (d, a, b)
        else:
            args = (a, b, a, b)[: info.arity]
        if info.result == "uint32" and dtype is not dtypes.int64:
            continue
        kind = natural_type(info.name, args)
        target = third if kind is dtypes.bool_ else first
        stores.append(Store(target.storage, target.index, Op(info.name, args, kind), "y"))
    stores.append(Store(third.storage, third.index, Op("max", (d, d), dtypes.bool_), "z"))
    body = (Loop(loop.var, loop.parallel, "", tuple(stores)),)
    compile_text(print_cuda(base.with_body(body)))


def test_casts_compile():
    lines = "\n".join([f"  y_{a}_{b}[i0] = {b}({a}_x[i0])" for a, b in CASTS])
    inputs = ", ".join([f"{a}_x: {a}[N]" for a in dict(CASTS)])
    outputs = ", ".join([f"y_{a}_{b}: {b}[N]" for a, b in CASTS])
    head = f"kernel k({inputs}) -> ({outputs})\nfor i0 in N:  # block_x\n"
    compile_text(print_cuda(parse_nest(head + lines)))


def test_grouping_compiles():
    lines = "\n".join([f"  y[{n}, i0] = {text}" for n, text in enumerate(GROUPING)])
    for old, new in (("a", "x[0, i0]"), ("b", "x[1, i0]"), ("c", "x[2, i0]")):
        lines = re.sub(rf"\b{old}\b", new, lines)
    head = f"kernel k(x: float32[3, N]) -> (y: float32[{len(GROUPING)}, N])\n"
    compile_text(print_cuda(parse_nest(head + "for i0 in N:  # block_x\n" + lines)))


def test_local_buffers_of_symbolic_size_are_refused():
    program = parse_nest("""
        kernel k(x: float32[N, D]) -> (y: float32[N])
        for i0 in N:  # grid_x
          T2: float32[D] local
          T2[0] = x[i0, 0]
          y[i0] = T2[0]
        """)
    with pytest.raises(LoweringError) as raised:
        print_cuda(program)
    assert str(raised.value) == (
        "T2: its LOCAL buffer has the symbolic size D, while registers on target 'cuda' need a "
        "static one; inline it deeper (compute_at a consumer, or ln.propagate from one and then "
        "inline_most), compute it again (recompute=True), split its axis by a constant, or set "
        "its memory to SHARED or GLOBAL"
    )


def test_shared_memory_and_barriers():
    program = parse_nest("""
        kernel k(x: float32[N, D]) -> (y: float32[N, D])
        for i0 in N:  # grid_x
          for i1 in 64:  # block_x
            T2: float32[3] shared
            T3: float16[D] shared
            T4: float32[3] shared = T2
            T3[0] = x[i0, i1]
            T2[0] = x[i0, i1]
            barrier block
            T4[0] = T2[0]
            barrier warp
            y[i0, i1] = T4[0] + float32(T3[i1])
        """)
    offsets, size = shared_layout(program)
    assert {b.name: str(e) for b, e in offsets.items()} == {"T2": "0", "T3": "16", "T4": "0"}
    assert str(size) == "16 + ceildiv(D * 2, 16) * 16"
    text = print_cuda(program)
    assert "// dynamic shared memory: 16 + ceildiv(D * 2, 16) * 16 bytes\n" in text
    assert "__half *const T3 = (__half *)(ln_shared + 16);" in text
    assert text.count("__syncthreads();") == text.count("__syncwarp();") == 1
    compile_text(text)


def test_inplace_output():
    text = print_cuda(parse_nest(FORMS[1]))
    assert "    float *__restrict__ p,\n    const float *__restrict__ g,\n" in text


def test_hostile_names():
    program = parse_nest("""
        kernel exp(int: float32[N, I], expf: float32[N], i0: float32[N], blockIdx: float32, idx_t: float32, size_N: float32) -> (double: float32[N, I], grid_x: float32[N])
        for i1 in N:  # grid_x
          for threadIdx in I:  # block_x
            double[i1, threadIdx] = exp(int[i1, threadIdx]) * blockIdx + expf[i1] + idx_t
            let auto = i0[i1] * size_N
            grid_x[i1] = auto
        """)  # noqa: E501
    text = print_cuda(program)
    assert "void __launch_bounds__(1024, 1) exp_(" in text
    compile_text(text)


def chain_of(count):
    """Return the nest of a row of tensors, each computed from the one before."""
    lines = []
    for n in range(2, count + 2):
        source = "x[i0 * 4 + i1, i2]" if n == 2 else f"T{n - 1}[0]"
        lines += [
            f"T{n}: float32[1] local",
            f"T{n}[0] = exp({source}) * {n}.5 + max({source}, b[i2])",
        ]
    lines.append(f"y[i0 * 4 + i1, i2] = T{count + 1}[0]")
    body = "\n".join([" " * 8 + line for line in lines])
    text = (
        "kernel k(x: float32[N, D], b: float32[D]) -> (y: float32[N, D])\n"
        "for i0 in ceildiv(N, 4):  # grid_x\n"
        "  for i1 in 4:  # block_y\n"
        "    if i0 * 4 + i1 < N:\n"
        "      for i2 in D:\n"
    )
    return parse_nest(text + body)


def test_twice_the_tensors_print_in_twice_the_work():
    half, whole = chain_of(15), chain_of(30)
    print_cuda(half)  # what a first call computes for good
    assert calls(lambda: print_cuda(whole)) < 2.5 * calls(lambda: print_cuda(half))


@pytest.mark.parametrize(
    ("facts", "threads"),
    [
        ((), 1024),
        (("D <= 2048",), 64),
        (("2048 >= D",), 64),
        (("D < 100",), 4),
        (("D == 4096",), 128),
        (("D % 256 == 0", "D <= 2047"), 56),
        (("D >= 5",), 1024),
        (("D != 5",), 1024),
    ],
    ids=str,
)
def test_launch_bounds_follow_from_assumptions(facts, threads):
    """Eight parts of vectors of four a thread; no size that a launch accepts has more threads."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(x * 2.0, "y")
        for fact in facts:
            f.assume(fact)
    y.split(1, 4)
    y.split(1, 8, inner=False)
    y.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    k = ln.lower(f)
    assert f"__launch_bounds__({threads}, 1) k(" in k.cuda()
    for size in range(1, 5000):
        if all(eval(fact, {"D": size}) for fact in facts):
            assert prod(k.launch(N=1, D=size).block) <= threads
