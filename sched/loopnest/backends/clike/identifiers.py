"""Identifiers for C and CUDA: users' names kept where they can be, mangled where they cannot.

Users name tensors, sizes and kernels as Python identifiers; some of those are keywords, macros or
functions in C or CUDA, or are not ASCII. Both languages mangle alike, so that texts compare.
"""

from __future__ import annotations

import re

from loopnest.backends.clike.float_functions import called
from loopnest.kir.instruction_table import Instruction

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
constinit continue decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if import inline int long module mutable namespace new noexcept not
not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires
restrict return short signed sizeof static static_assert static_cast struct switch template this
thread_local throw true try typedef typeid typename typeof union unsigned using virtual void
volatile wchar_t while xor xor_eq main
"""

# Types and object-like macros of the headers that printed text includes.
_TYPES = """
float8_e4m3fn_t float8_e5m2_t
idx_t half_t bfloat16_t half half2 bfloat16 nv_half nv_bfloat16 size_t ptrdiff_t wchar_t max_align_t
NULL INFINITY NAN HUGE_VAL errno offsetof assert linux unix i386
"""

# What printed bodies read, and what helpers call beside the functions that stand for operations.
_READ = """
threadIdx blockIdx blockDim gridDim warpSize fmod fmodf
"""

# Functions of <math.h>, <stdlib.h> and CUDA's device library: a kernel is a function too and must
# not redeclare one. Each stands for its float, long double and _FloatN forms as well.
_MATH = """
abs fabs acos asin atan atan2 acosh asinh atanh cos sin tan cosh sinh tanh sincos exp exp2 exp10
expm1 pow pow10 frexp ldexp log log10 log1p log2 logb ilogb llogb modf scalb scalbn scalbln sqrt
cbrt hypot erf erfc lgamma lgamma_r gamma tgamma floor ceil trunc round roundeven rint nearbyint
lrint llrint lround llround fmod remainder remquo drem copysign nextafter nexttoward nextup nextdown
fdim fmax fmin fma fmaxmag fminmag fmaximum fminimum fmaximum_num fminimum_num fmaximum_mag
fminimum_mag fmaximum_mag_num fminimum_mag_num j0 j1 jn y0 y1 yn nan isinf isnan finite isfinite
isnormal signbit significand fpclassify issignaling canonicalize setpayload setpayloadsig getpayload
totalorder totalordermag fromfp fromfpx ufromfp ufromfpx daddl ddivl dfmal dmull dsqrtl dsubl
fadd fdiv ffma fmul fsqrt fsub iseqsig isgreater isgreaterequal isless islessequal islessgreater
isunordered issubnormal iszero iscanonical sinpi cospi tanpi sincospi rsqrt rcbrt rhypot norm
norm3d norm4d rnorm rnorm3d rnorm4d normcdf normcdfinv erfinv erfcinv erfcx cyl_bessel_i0
cyl_bessel_i1 fdivide min max llmin llmax ullmin ullmax umin umax llabs labs mulhi mul64hi
umulhi umul64hi float_as_int int_as_float float_as_uint uint_as_float saturate sad usad
mul24 umul24 float2int int2float uint2float clock clock64 nanosleep all any popc clz brev brkpt
atomicAdd atomicSub atomicExch atomicMin atomicMax atomicInc atomicDec atomicCAS atomicAnd atomicOr
atomicXor printf vprintf trap assertfail
"""

# What compilers call on their own account: a kernel of that name would be called instead.
_LIBRARY = "malloc calloc realloc free memcpy memmove memset memcmp abort printf vprintf puts"

_RESERVED = frozenset((_KEYWORDS + _TYPES + _READ).split()) | called()
_MACRO = re.compile(
    r"u?int(_least|_fast)?(8|16|32|64|max|ptr)_t$|U?INT[0-9A-Z_]*$|[A-Z_]+_(MIN|MAX|WIDTH)$"
    r"|CUDA|CU_|NV_"
)
_FUNCTIONS = frozenset((_MATH + _LIBRARY).split())
_FOREIGN = re.compile(r"omp_|GOMP_|cuda|CU|make_|nv_|(dim3|uint3|std|.*_t)$")
_SUFFIX = re.compile(r"(f|l|f16|f32|f64|f128|f32x|f64x|f128x|[fl]_r|f\d+x?_r)$")


def identifier(name: str) -> str:
    """Return `name` as a C and CUDA identifier: itself unless it is reserved or not ASCII."""
    if not name.isascii():
        parts = [c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in name]
        return "ln_x_" + "".join(parts)
    if name[0] == "_" or name.startswith(("ln_", "LN_", "LOOPNEST_")):
        return "ln_u_" + name
    stem = name.rstrip("_")
    return name + "_" if stem in _RESERVED or _MACRO.match(stem) else name


def symbol(name: str) -> str:
    """Return the name of the function of kernel `name`: no library function's.

    Injective: a name and what it is mangled to belong to one family, in which one `_` is added.
    """
    stem = name.rstrip("_")
    known = stem in _FUNCTIONS or _SUFFIX.sub("", stem) in _FUNCTIONS
    if known or _FOREIGN.match(stem):
        return name + "_"
    return identifier(name)


def function_name(row: Instruction) -> str:
    """Return how the function that executes a row of the table of instructions is called."""
    return "ln_" + "".join([c if c.isalnum() else "_" for c in row.name])


class Names:
    """The identifiers of one text: different things get different names.

    A thing is a kind ("buffer", "index", "size"…) and a name. Asked for in the same order, the
    same things get the same identifiers; who comes first keeps the plain name.
    """

    def __init__(self) -> None:
        self._chosen: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()

    def of(self, kind: str, name: str) -> str:
        """Return the identifier of the thing of this kind and name."""
        key = (kind, name)
        found = self._chosen.get(key)
        if found is None:
            found = identifier(name)
            while found in self._taken:
                found += "_"
            self._taken.add(found)
            self._chosen[key] = found
        return found
