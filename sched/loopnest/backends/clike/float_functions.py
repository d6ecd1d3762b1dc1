"""The functions that stand for operations on floats: their names in CUDA, and so in C.

C calls ``ln_OP``, and ``ln_OPf`` of float32, which `loopnest_math.h` defines. CUDA calls its own
precise functions, and helpers where it has none that does what the operation means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from loopnest.scalar.op_table import Column, ops

_APART = (
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "reciprocal",
    "where",
    "cast",
    "ordinal32",
    "ordinal64",
)
"""What is written with C's own operators, or a function of one type."""


def _own(*names: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield functions that CUDA calls as the operation is called, with an "f" for float32."""
    for name in names:
        yield name, (f"{name}f", name)


_CUDA: Mapping[str, tuple[str, str]] = {
    **dict(_own("exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan")),
    **dict(_own("tanh", "erf", "pow", "floor", "ceil", "trunc", "fma")),
    "round": ("rintf", "rint"),
    "abs": ("fabsf", "fabs"),
    "isnan": ("isnan", "isnan"),
    "max": ("ln_maxf", "ln_max_f64"),
    "min": ("ln_minf", "ln_min_f64"),
    "sigmoid": ("ln_sigmoid", "ln_sigmoid"),
    "mod": ("ln_mod_real", "ln_mod_real"),
    "floordiv": ("ln_floordiv_real", "ln_floordiv_real"),
}
CUDA = Column(
    "function in CUDA",
    __name__,
    _CUDA,
    needs=ops(lambda op: "f" in op.kinds and not op.infix, but=_APART) | {"mod", "floordiv"},
)
"""The function of float32 and that of float64."""

C: Mapping[str, tuple[str, str]] = {op: (f"ln_{op}f", f"ln_{op}") for op in CUDA}
"""The same in C."""


def called() -> frozenset[str]:
    """Return the functions of CUDA's own, whose names nothing else in a text may have."""
    names = [name for name in chain.from_iterable(CUDA.values()) if not name.startswith("ln_")]
    return frozenset(names)
