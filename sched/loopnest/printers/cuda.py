"""CUDA C++ text: one `extern "C" __global__` function that needs nothing but CUDA's own headers.

NVRTC and nvcc both compile it. Device functions are the precise ones; maximum and minimum
propagate NaN, and integers divide towards minus infinity, by small functions that are printed only
where they are called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from loopnest import dtypes
from loopnest.buffers import Buffer
from loopnest.enums import LAUNCH_DIMENSIONS, Memory
from loopnest.errors import LoweringError, NotSupported
from loopnest.expr import ONE, ZERO, Const, Expr, Op, integer
from loopnest.kir import Allocate, Barrier, Loop, Program, walk
from loopnest.printers.c_base import StatementPrinter, comment, extent_product, static_size
from loopnest.printers.c_expr import SUM, Dialect
from loopnest.printers.c_scopes import settle_allocations
from loopnest.printers.names import symbol

MAX_THREADS = 1024
SHARED_ALIGNMENT = 16


def print_cuda(program: Program, index_bits: int = 32) -> str:
    """Return the CUDA C++ text of `program`; indices are signed integers of `index_bits`.

    Raises:
        LoweringError: a LOCAL buffer has a symbolic size, so it cannot live in registers.
        NotSupported: the program holds an operation that has no CUDA text yet.
    """
    return _CudaPrinter(program, index_bits).text()


def shared_layout(program: Program) -> tuple[dict[Buffer, Expr], Expr]:
    """Return the offset of each SHARED buffer in the block's dynamic shared memory, and its size.

    Both are in bytes, as expressions over the sizes; offsets are multiples of 16.
    """
    offsets: dict[Buffer, Expr] = {}
    by_name: dict[str, Expr] = {}
    end: Expr = ZERO
    for node, _ in walk(program.body):
        if not isinstance(node, Allocate) or node.storage.memory is not Memory.SHARED:
            continue
        buffer = node.storage
        if buffer in offsets:
            continue
        shared = by_name.get(buffer.alias_of or "")
        offsets[buffer] = by_name[buffer.name] = end if shared is None else shared
        if shared is None:
            end = _sum(end, _aligned_bytes(buffer))
    return offsets, end


def _aligned_bytes(buffer: Buffer) -> Expr:
    width = buffer.dtype.size
    if isinstance(buffer.size, Const):
        return integer(-(-int(buffer.size.value) * width // SHARED_ALIGNMENT) * SHARED_ALIGNMENT)
    total = Op("mul", (buffer.size, integer(width)), dtypes.index)
    blocks = Op("ceildiv", (total, integer(SHARED_ALIGNMENT)), dtypes.index)
    return Op("mul", (blocks, integer(SHARED_ALIGNMENT)), dtypes.index)


def _sum(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return integer(int(a.value) + int(b.value))
    return b if a is ZERO else Op("add", (a, b), dtypes.index)


class _CudaPrinter(StatementPrinter):
    target = "cuda"

    def __init__(self, program: Program, index_bits: int) -> None:
        super().__init__(program, _dialect())
        self.index_type = {32: "int", 64: "long long"}[index_bits]
        self.offsets, self.shared = shared_layout(program)
        self.format.launch = {
            d: self.names.of("launch", d.value) for d, size in program.launch if size is not ONE
        }

    def text(self) -> str:
        name = symbol(self.program.name)
        self.pad = "  "
        self.define_sizes()
        for dimension, variable in self.format.launch.items():
            self.emit(f"const idx_t {variable} = (idx_t){dimension.cuda_name};")
        if self.offsets:
            self.emit(f"extern __shared__ __align__({SHARED_ALIGNMENT}) unsigned char ln_shared[];")
        self.statements(settle_allocations(self.program.body))
        declared = self.declarations("__restrict__", "size argument", "long long")
        params = ",\n    ".join([variable.declaration for variable in declared]) or "void"
        bounds = self._launch_bounds()
        head = f'extern "C" __global__ void {bounds}{name}(\n    {params})'
        return "\n".join([*self._preamble(), head, "{", *self.lines, "}", ""])

    def _launch_bounds(self) -> str:
        threads = extent_product([size for d, size in self.program.launch if d.is_block])
        if threads is None:
            threads = MAX_THREADS
        return f"__launch_bounds__({threads}) " if 0 < threads <= MAX_THREADS else ""

    def _preamble(self) -> Iterator[str]:
        launch = dict(self.program.launch)
        sizes = [comment(str(launch.get(d, ONE))) for d in LAUNCH_DIMENSIONS]
        yield f"// kernel {comment(self.program.name)}"
        yield f"// grid ({', '.join(sizes[:3])}), block ({', '.join(sizes[3:])})"
        yield f"// dynamic shared memory: {comment(str(self.shared))} bytes"
        used = {p.dtype for p in self.program.params}
        used |= {n.storage.dtype for n, _ in walk(self.program.body) if isinstance(n, Allocate)}
        called = self.format.called.keys()
        if dtypes.float16 in used or any("half" in name for name in called):
            yield "#include <cuda_fp16.h>"
        if dtypes.bfloat16 in used or any("bfloat16" in name for name in called):
            yield "#include <cuda_bf16.h>"
        yield f"typedef {self.index_type} idx_t;"
        helpers = {name.partition("<")[0] for name in called}
        for name, source in _HELPERS.items():
            if name in helpers:
                yield f"{source[0]}static __device__ __forceinline__ {source[1]}"
        yield ""

    def unrolled_loop(self, node: Loop) -> None:
        self.plain_loop(node, ("#pragma unroll",) if isinstance(node.extent, int) else ())

    def vector_loop(self, node: Loop) -> None:
        self.unrolled_loop(node)

    def parallel_loop(self, node: Loop) -> None:
        self.plain_loop(node)

    def allocate(self, buffer: Buffer) -> None:
        element = self.dialect.types[buffer.dtype.name]
        if buffer.memory is Memory.SHARED:
            name = self.names.of("buffer", buffer.name)
            place = self.format.format(self.offsets[buffer], SUM)
            self.emit(f"{element} *const {name} = ({element} *)(ln_shared + {place});")
            return
        count = static_size(buffer)
        if count is None:
            raise LoweringError(
                buffer.tensor,
                f"its LOCAL buffer has the symbolic size {buffer.size}, "
                "while registers on target 'cuda' need a static one",
                "inline it deeper, compute it again (recompute=True), split its axis by a "
                "constant, or set its memory to SHARED or GLOBAL",
            )
        self.declare_local(buffer, count, "")

    def barrier(self, node: Barrier) -> None:
        match node.scope:
            case "block":
                self.emit("__syncthreads();")
            case "warp":
                self.emit("__syncwarp();")
            case scope:
                raise NotSupported(
                    self.program.name, f"a barrier of the {scope} on target '{self.target}'"
                )


def _extremum(name: str, sign: str) -> str:
    """Return a float32 maximum or minimum that propagates NaN: one instruction from sm_80 on."""
    return f"""float ln_{name}f(float a, float b) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float r;
  asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return a {sign} b || a != a ? a : b;
#endif
}}"""


# Helpers by name: what stands before and after "static __device__ __forceinline__".
_T = "template <class T>\n"
_HELPERS: Mapping[str, tuple[str, str]] = {
    "ln_min": (_T, "T ln_min(T a, T b) { return a < b ? a : b; }"),
    "ln_max": (_T, "T ln_max(T a, T b) { return a > b ? a : b; }"),
    "ln_abs": (_T, "T ln_abs(T a) { return a < 0 ? (T)(0ULL - (unsigned long long)a) : a; }"),
    "ln_index_div": (_T, "T ln_index_div(T a, T b) { return a / b - (a % b < 0); }"),
    "ln_index_mod": (_T, "T ln_index_mod(T a, T b) { return a % b + (a % b < 0 ? b : 0); }"),
    # As NumPy: anything by zero is 0, and the least integer by -1 wraps.
    "ln_floordiv": (
        _T,
        """T ln_floordiv(T a, T b) {
  if (b == 0) return 0;
  if (b == -1) return (T)(0ULL - (unsigned long long)a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}""",
    ),
    "ln_mod": (
        _T,
        """T ln_mod(T a, T b) {
  if (b == 0 || b == -1) return 0;
  const T r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}""",
    ),
    "ln_pow": (
        _T,
        """T ln_pow(T a, T n) {
  if (n < 0) return a == 1 ? 1 : a == -1 ? (n & 1 ? -1 : 1) : 0;
  unsigned long long r = 1, x = (unsigned long long)a;
  for (; n != 0; n >>= 1, x *= x) r *= n & 1 ? x : 1;
  return (T)r;
}""",
    ),
    "ln_maxf": ("", _extremum("max", ">")),
    "ln_minf": ("", _extremum("min", "<")),
    "ln_max_f64": ("", "double ln_max_f64(double a, double b) { return a > b || a != a ? a : b; }"),
    "ln_min_f64": ("", "double ln_min_f64(double a, double b) { return a < b || a != a ? a : b; }"),
    "ln_sigmoid": (_T, "T ln_sigmoid(T x) { return (T)1 / ((T)1 + exp(-x)); }"),
    # The remainder takes the divisor's sign, a zero too.
    "ln_mod_real": (
        _T,
        """T ln_mod_real(T a, T b) {
  const T r = fmod(a, b);
  if (r == 0) return copysign((T)0, b);
  return (b < 0) != (r < 0) ? r + b : r;
}""",
    ),
    "ln_floordiv_real": (
        _T,
        """T ln_floordiv_real(T a, T b) {
  if (b == 0) return a / b;
  T r = fmod(a, b);
  if (r != 0 && (b < 0) != (r < 0)) r += b;
  const T q = (a - r) / b, f = floor(q);
  return q == 0 ? copysign((T)0, a / b) : f + (q - f > (T)0.5 ? 1 : 0);
}""",
    ),
}


def _functions() -> dict[tuple[str, str], str]:
    functions = {
        ("isnan", "float32"): "isnan", ("isnan", "float64"): "isnan",
        ("max", "float32"): "ln_maxf", ("min", "float32"): "ln_minf",
        ("max", "float64"): "ln_max_f64", ("min", "float64"): "ln_min_f64",
        ("floordiv", "index"): "ln_index_div<idx_t>", ("mod", "index"): "ln_index_mod<idx_t>",
    }  # fmt: skip
    plain = "exp exp2 log log2 log1p sqrt rsqrt sin cos tanh erf pow floor ceil trunc fma"
    renamed = {name: name for name in plain.split()} | {"round": "rint", "abs": "fabs"}
    for dtype, end in (("float32", "f"), ("float64", "")):
        functions |= {(op, dtype): name + end for op, name in renamed.items()}
        for op, helper in (("sigmoid", ""), ("mod", "_real"), ("floordiv", "_real")):
            functions[op, dtype] = f"ln_{op}{helper}"
    for dtype, type_ in (("int32", "int"), ("int64", "long long"), ("index", "idx_t")):
        for op in ("min", "max", "abs", "floordiv", "mod", "pow"):
            functions.setdefault((op, dtype), f"ln_{op}<{type_}>")
    return functions


@cache
def _dialect() -> Dialect:
    types = {
        "bool": "bool", "int32": "int", "int64": "long long", "float16": "__half",
        "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double", "index": "idx_t",
    }  # fmt: skip
    special = {
        ("inf", "float32"): "__int_as_float(0x7f800000)",
        ("nan", "float32"): "__int_as_float(0x7fc00000)",
        ("inf", "float64"): "__longlong_as_double(0x7ff0000000000000LL)",
        ("nan", "float64"): "__longlong_as_double(0x7ff8000000000000LL)",
    }
    casts = {
        ("float16", "float32"): "__half2float",
        ("float32", "float16"): "__float2half_rn",
        ("float64", "float16"): "__double2half",
        ("bfloat16", "float32"): "__bfloat162float",
        ("float32", "bfloat16"): "__float2bfloat16_rn",
        ("float64", "bfloat16"): "__double2bfloat16",
    }
    unsigned = {"int32": "unsigned int", "int64": "unsigned long long"}
    return Dialect(types, unsigned, special, _functions(), casts)
