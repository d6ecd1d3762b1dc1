"""Programs and expressions that the tests of several printers use."""

from loopnest.kir import Allocate, If, Loop, Output, Param, Program, Store
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE, ZERO, Buffer, Const, Index, Load, Op, Symbol, integer

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
      y[i0 * 4 + i1] = T2[0]"""


def index_op(name, *args):
    return Op(name, args, dtypes.index)


def row_sum():
    """Build the example of the format by hand, node by node."""
    n, d, f32 = Symbol("N"), Symbol("D"), dtypes.float32
    x = Buffer("x", "x", Memory.GLOBAL, f32, (n, d), (d, ONE), index_op("mul", n, d), "input")
    y = Buffer("y", "y", Memory.GLOBAL, f32, (n,), (ONE,), n, "output")
    t = Buffer("T2", "T2", Memory.LOCAL, f32, (ONE,), (ONE,), ONE, "local")
    blocks = index_op("ceildiv", n, integer(4))
    i0, i1, i2 = Index("i0", blocks), Index("i1", integer(4)), Index("i2", d)
    row = index_op("add", index_op("mul", i0, integer(4)), i1)
    total = Op("add", (Load(t, (ZERO,)), Load(x, (row, i2))), f32)
    body = (
        Allocate(t),
        Store(t, (ZERO,), Const(0.0, f32), "T2", "init"),
        If(
            Op("lt", (row, n), dtypes.bool_),
            (
                Loop(i2, ParallelType.serial, "", (Store(t, (ZERO,), total, "T2", "update"),)),
                Store(y, (row,), Load(t, (ZERO,)), "y"),
            ),
        ),
    )
    inner = Loop(i1, ParallelType.block_y, "", body)
    params = (
        Param("x", "input", f32, x, (n, d)),
        Param("y", "output", f32, y, (n,)),
        Param("N", "size", dtypes.index),
        Param("D", "size", dtypes.index),
    )
    return Program(
        "row_sum",
        params,
        (Loop(i0, ParallelType.grid_x, "", (inner,)),),
        ((ParallelType.grid_x, blocks), (ParallelType.block_y, integer(4))),
        (Output("y", y, (n,)),),
    )


# Every form that the format has, in texts that are read and printed again.
FORMS = [
    ROW_SUM,
    """\
# loopnest nest 1
kernel adam(p: float32[N], g: float32[N], lr: float32) -> (p_new: float32[N] in p)
for i0 in N // 8:  # cpu_parallel
  for i1 in 8:  # vectorize
    let v0 = g[i0 * 8 + i1] * lr
    p[i0 * 8 + i1] = p[i0 * 8 + i1] - v0""",
    """\
# loopnest nest 1
kernel forms(x: float32[N, 4], s: float32[]) -> (y: float32[N], z: bool[N])
T3: float32[N, 4] global
for i0 in N:  # unswitch
  T5: float32[256] shared
  T6: float32[256] shared = T5
  if i0 % 2 == 0 and i0 < min(N, 7):
    for i1 in 4:  # unroll
      T5[i1] = max(x[i0, i1], -inf)
  else:
    T5[0] = where(x[i0, 0] < 0.0, -x[i0, 0], 1e-05)
  barrier block
  barrier warp
  z[i0] = not isnan(T5[0])
  y[i0] = x.flat[i0 * 4 + i0 // 3] + s[0]""",
    """\
# loopnest nest 1
kernel empty() -> (y: float32[4])
for i0 in 4:
  if i0 < 3:
    pass""",
]


CASTS = [
    (a, b)
    for a in [dtype.name for dtype in dtypes.ALL]
    for b in [dtype.name for dtype in dtypes.ALL]
    if a != b
]


# Each in terms of three float32 values a, b and c.
GROUPING = [
    "a - (b - c)", "a - b - c", "a / (b * c)", "a / b * c", "-(-a)", "- a - -b", "-(a + b) * c",
    "a * (b + c)", "where(a < b, where(b < c, a, b), c) + 1.0",
    "where(where(a < b, b < c, a < c), a, b)",
    "max(a, b) - min(b, -c)", "a + (b + c)", "float32((a < b) == (b < c))", "1.0 - a",
    "float32(not (a < b and b < c or c < a))", "float32(not a < b)", "float32(int32(a) - int32(b))",
    "float32(int32(a) & int32(b) | int32(c) ^ 3)", "float32(int32(a) & (int32(b) | int32(c)))",
    "float32(-int32(a) * 3)", "float32(~(int32(a) + 1))", "reciprocal(a + b)", "fma(a, b, c)",
    "float32(a < b) - float32(isnan(a))", "abs(a - b) * -1.0", "float32(max(a < b, b < c))",
    "float32(int32(a) == 1) + float32(int32(b) < int32(c))",
]  # fmt: skip
