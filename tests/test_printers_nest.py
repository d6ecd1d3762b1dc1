"""The nest text: its exact format, and the line of each statement."""

import os
import subprocess
import sys

import pytest
from nest_text import parse_nest

from loopnest import dtypes
from loopnest.buffers import Buffer
from loopnest.enums import Memory, ParallelType
from loopnest.expr import ONE, ZERO, Const, Index, Load, Op, Symbol, integer
from loopnest.kir import (
    Allocate,
    Collective,
    If,
    Loop,
    Output,
    Param,
    Program,
    Store,
    walk,
)
from loopnest.printers.nest import nest_lines, print_nest

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


def test_example_of_the_format():
    assert print_nest(row_sum()) == ROW_SUM


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


@pytest.mark.parametrize("text", FORMS, ids=lambda text: text.split("(")[0].split()[-1])
def test_text_reads_back(text):
    assert print_nest(parse_nest(text)) == text


def test_a_collective_is_one_line():
    buffer = Buffer("T2", "T2", Memory.SHARED, dtypes.float32, (ONE,), (ONE,), ONE, "shared")
    node = Collective("block_reduce", (), (buffer,), "block", "block", (Load(buffer, (ZERO,)),))
    text = print_nest(Program("k", (), (node,)))
    assert text.splitlines()[2:] == ["block_reduce block(T2[0])"]


@pytest.mark.parametrize("text", FORMS, ids=lambda text: text.split("(")[0].split()[-1])
def test_lines_name_statements(text):
    program = parse_nest(text)
    lines = text.splitlines()
    places = nest_lines(program)
    statements = [node for node, _ in walk(program.body)]
    assert list(places) == statements
    for node, line in places.items():
        shown = lines[line - 1].strip()
        match node:
            case Loop():
                assert shown.startswith(f"for {node.index} in {node.extent}:")
            case If():
                assert shown == f"if {node.condition}:"
            case Store():
                assert shown.endswith(f"] = {node.value}")
            case Allocate():
                assert shown.startswith(f"{node.buffer}: ")


def test_same_bytes_in_any_process():
    source = (
        "import test_printers_nest as t; from nest_text import parse_nest\n"
        "from loopnest.printers.c import print_c\n"
        "from loopnest.printers.cuda import print_cuda\n"
        "print(t.print_nest(parse_nest(t.FORMS[2])))\n"
        "for form in t.FORMS[:2]:\n"
        "    program = parse_nest(form)\n"
        "    print(t.print_nest(program), print_c(program), print_cuda(program))\n"
    )
    texts = set()
    for seed in ("0", "1", "77"):
        path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1
