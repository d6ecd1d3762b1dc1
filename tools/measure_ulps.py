"""Measure the errors of the functions that C kernels call, in units of the last place.

Run it as `tools/run python tools/measure_ulps.py --help`.
"""

from __future__ import annotations

import ctypes

import click

from loopnest.backends.cpu.c_compiler import compile_c
from loopnest.backends.cpu.c_printer import c_prelude
from loopnest.backends.cpu.machine_probe import machine, vector_flags

EXACT = {
    "exp": "exp",
    "exp2": "exp2",
    "sigmoid": "own_sigmoid",
    "tanh": "tanh",
    "erf": "erf",
    "log": "log",
    "log2": "log2",
    "log1p": "log1p",
    "rsqrt": "own_rsqrt",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
}
SCALAR_ONLY = ("sin", "cos", "tan")

HELPERS = """
#include <math.h>
LN_FUNCTIONS_f32x16
LN_FUNCTIONS_f64x8
static double own_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double own_rsqrt(double x) { return 1 / sqrt(x); }
static long double own_sigmoidl(long double x) { return 1 / (1 + expl(-x)); }
static long double own_rsqrtl(long double x) { return 1 / sqrtl(x); }
typedef struct { double ulps, at, share; } worst_t;

/* The error in units of the last place of the exact result; what has another kind is far off. */
static double ulps_f32(float got, double exact) {
  const float near = (float)exact;
  if (near != near || got != got) return (near != near) == (got != got) ? 0 : 1e9;
  if (isinf(near) && got == near) return 0;
  const float size = fminf(fabsf(near), 0x1.fffffcp127f);
  const double unit = nextafterf(size, INFINITY) - size;
  return fabs((isinf(got) ? copysign(0x1p128, got) : (double)got) - exact) / unit;
}

static double ulps_f64(double got, long double exact) {
  const double near = (double)exact;
  if (near != near || got != got) return (near != near) == (got != got) ? 0 : 1e9;
  if (isinf(near) && got == near) return 0;
  const double size = fmin(fabs(near), 0x1.ffffffffffffep1023);
  const double unit = nextafter(size, INFINITY) - size;
  return fabsl((isinf(got) ? copysignl(0x1p1024l, got) : (long double)got) - exact) / unit;
}

static uint64_t draw(uint64_t *s) {
  uint64_t z = *s += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

#define LOOP(name, T, bits, next, error, exact)                                        \\
  worst_t name(int64_t from, int64_t to, int64_t step) {                               \\
    worst_t w = {0, 0, 0};                                                             \\
    T x[64], y[64];                                                                    \\
    int64_t count = 0, correct = 0;                                                    \\
    uint64_t seed = (uint64_t)from;                                                    \\
    for (int64_t i = from; i < to;) {                                                  \\
      for (int e = 0; e < 64; ++e, i += step) x[e] = bits(next);                       \\
      CALL                                                                             \\
      for (int e = 0; e < 64; ++e) {                                                   \\
        const double off = error(y[e], exact(x[e]));                                   \\
        count += 1;                                                                    \\
        correct += off <= 0.5;                                                         \\
        if (off > w.ulps) w.ulps = off, w.at = x[e];                                   \\
      }                                                                                \\
    }                                                                                  \\
    w.share = (double)correct / (double)count;                                         \\
    return w;                                                                          \\
  }
"""


class Worst(ctypes.Structure):
    """The largest error, where it is, and the share of results that are rounded correctly."""

    _fields_ = (("ulps", ctypes.c_double), ("at", ctypes.c_double), ("share", ctypes.c_double))


def source(name: str, dtype: str, vector: bool) -> str:
    """Return C that defines ``measure``: the worst of one function."""
    single = dtype == "float32"
    kind = "ln_f32x16" if single else "ln_f64x8"
    if vector:
        inner = f"for (int e = 0; e < 64; e += LN_LANES({kind})) "
        inner += f"LN_VEC({kind}, y[e]) = {kind}_{name}(LN_VEC({kind}, x[e]));"
    else:
        inner = f"for (int e = 0; e < 64; ++e) y[e] = ln_{name}{'f' if single else ''}(x[e]);"
    call = f"\n#define CALL {inner}\n"
    exact = EXACT[name] + ("" if single else "l")
    bits, following = (
        ("ln_from_bits_f32", "(uint32_t)i") if single else ("ln_from_bits_f64", "draw(&seed)")
    )
    element, error = ("float", "ulps_f32") if single else ("double", "ulps_f64")
    loop = f"LOOP(measure, {element}, {bits}, {following}, {error}, {exact})\n"
    return c_prelude() + HELPERS + call + loop


def measure(name: str, dtype: str, vector: bool, step: int) -> Worst:
    """Return the worst of one function."""
    library = compile_c(source(name, dtype, vector), flags=vector_flags(machine()))
    function = library.function("measure", [ctypes.c_int64] * 3, Worst)
    found: Worst = function(0, 1 << 32, step)
    return found


HELP = """Print the largest error of each function that C kernels call, in units of the last place.

Each is measured as the function of one value and as that of vectors. float32: every n-th float
there is, of both signs, against the double precision functions of the C library; float64: as many
floats drawn over all exponents, against its long double ones.

\b
    tools/run python tools/measure_ulps.py
    tools/run python tools/measure_ulps.py -f erf --step 1          # every float: minutes
"""


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--step", default=257, show_default=True, help="Every so many-th float; 1: all.")
@click.option(
    "--function",
    "-f",
    "names",
    multiple=True,
    type=click.Choice(list(EXACT)),
    help="Only this one; may be given several times.",
)
@click.option(
    "--dtype", default="float32", show_default=True, type=click.Choice(["float32", "float64"])
)
def main(step: int, names: tuple[str, ...], dtype: str) -> None:
    click.echo("| function | form | worst, ulp | at | correctly rounded |")
    click.echo("| --- | --- | ---: | ---: | ---: |")
    for name in names or EXACT:
        for vector in (False, True):
            if vector and name in SCALAR_ONLY:
                continue
            found = measure(name, dtype, vector, step)
            form = "vector" if vector else "scalar"
            cells = f"{found.ulps:.3f} | {float(found.at):.9g} | {found.share:.1%}"
            click.echo(f"| {name} | {form} | {cells} |")


if __name__ == "__main__":
    main()
