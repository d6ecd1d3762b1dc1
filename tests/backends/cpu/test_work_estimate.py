"""How many values a parallel loop stores, and how many threads that is worth."""

import ctypes

import pytest

from loopnest.backends.cpu.c_compiler import compile_c
from loopnest.backends.cpu.c_printer import c_prelude, stores_of
from loopnest.kir import parse as parse_nest


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y[i0] = 1.0", "N"),
        (
            """
            for i1 in M:
              y[i0] = 1.0
              y[i0] = 2.0
            """,
            "N * (M * 2)",
        ),
        (
            """
            if i0 < 4:
              y[i0] = 1.0
            else:
              y[i0] = 2.0
            """,
            "N",
        ),
        (
            """
            y[i0] = 0.0
            for i1 in i0:
              y[i0] = 1.0
            """,
            "None",  # as many as i0 says
        ),
    ],
)
def test_stores(body, wanted):
    lines = "\n".join([f"  {line}" for line in body.strip("\n").splitlines()])
    indent = min(len(line) - len(line.lstrip()) for line in lines.splitlines())
    lines = "\n".join(["  " + line[indent:] for line in lines.splitlines()])
    program = parse_nest(f"kernel k(x: float32[M]) -> (y: float32[N])\nfor i0 in N:\n{lines}")
    (loop,) = program.body
    found = stores_of([loop], loop.body)
    assert str(found) in (wanted, wanted.replace("M * 2", "M * (1 + 1)"))


def test_a_second_thread_starts_where_it_pays():
    source = (
        "#define LN_STORES_A_THREAD 100\n"
        + c_prelude()
        + "int team(int threads, int64_t count, int64_t stores) {\n"
        "  return ln_team(threads, count, stores);\n}\n"
    )
    kinds = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    team = compile_c(source, optimize=0).function("team", kinds, ctypes.c_int)
    few = [team(8, 50, stores) for stores in (0, 99, 100, 250, 10_000, 2**63 - 1)]
    assert few == [1, 1, 2, 3, 8, 8]
    assert [team(8, count, 10_000) for count in (0, 1, 3, 20)] == [1, 1, 3, 8]
