"""What CUDA text stands on: the dialect of its expressions, and device functions.

Device functions are the precise ones; maximum and minimum propagate NaN, and integers divide
towards minus infinity. A function is printed only where it is called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache

from loopnest.backends.clike.c_expressions import Dialect
from loopnest.backends.clike.float_functions import CUDA
from loopnest.backends.cuda.printing.cuda_sync import FUNCTIONS
from loopnest.backends.cuda.printing.cuda_vectors import WIDE


def device_functions(called: Collection[str]) -> Iterator[str]:
    """Yield the definitions of those of our own functions that are called, in a fixed order."""
    wanted = {name.partition("<")[0] for name in called}
    if "ln_wide" in wanted:
        yield WIDE
    for name, (before, definition) in (*_HELPERS.items(), *FUNCTIONS.items()):
        if name in wanted:
            yield f"{before}static __device__ __forceinline__ {definition}"


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
    # An index of the launch or a size: as its sign is known, a division by 2^n is one shift.
    "ln_index": ("", "idx_t ln_index(idx_t i) { __builtin_assume(i >= 0); return i; }"),
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
        ("floordiv", "index"): "ln_index_div<idx_t>",
        ("mod", "index"): "ln_index_mod<idx_t>",
    }
    for op, (single, double) in CUDA.items():
        functions |= {(op, "float32"): single, (op, "float64"): double}
    for dtype, type_ in (("int32", "int"), ("int64", "long long"), ("index", "idx_t")):
        for op in ("min", "max", "abs", "floordiv", "mod", "pow"):
            functions.setdefault((op, dtype), f"ln_{op}<{type_}>")
    return functions


@cache
def cuda_dialect() -> Dialect:
    """Return how expressions are written in CUDA C++."""
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
