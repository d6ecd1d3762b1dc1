"""Loops that the interpreter runs side by side give what running them in order gives."""

from __future__ import annotations

import random

import numpy as np
import pytest

from loopnest.backends.interpret import interpret
from loopnest.kir import parse as parse_nest
from loopnest.lane_machine import abstract_machine
from loopnest.lane_machine.concrete_program import ConcreteProgram
from loopnest.lane_machine.loop_dependence import LoopAnalysis

F = np.float32


def in_order(program, sizes, arrays):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(abstract_machine, "LANES", 1)
        interpret(program, arrays, sizes, {})


@pytest.mark.parametrize("lanes", [16384, 64, 10])
@pytest.mark.parametrize(
    "body",
    [
        "T1[0] = T1[0] + x[i0, i1]",
        "T1[0] = max(x[i0, i1], T1[0])",
        "T1[0] = T1[0] * 0.5 + x[i0, i1]",
        "T1[i1 % 2] = T1[i1 % 2] * x[i0, i1]",
    ],
)
def test_accumulation_keeps_the_order_of_the_program(body, lanes, monkeypatch):
    text = f"""
    kernel fold(x: float32[N, D]) -> (y: float32[2])
    T1: float32[2] local
    T1[0] = 1.0
    T1[1] = 1.0
    for i0 in N:
      for i1 in D:
        {body}
    for i2 in 2:
      y[i2] = T1[i2]
    """
    program = parse_nest(text)
    x = np.random.default_rng(1).random((13, 37), F) + F(0.5)
    expected, found = np.zeros(2, F), np.zeros(2, F)
    in_order(program, {"N": 13, "D": 37}, {"x": x, "y": expected})
    monkeypatch.setattr(abstract_machine, "LANES", lanes)
    interpret(program, {"x": x, "y": found}, {"N": 13, "D": 37}, {})
    np.testing.assert_array_equal(found, expected)


def expands(body):
    """Return whether the interpreter runs the loop over i0 side by side."""
    head = "kernel k(x: float32[64]) -> (y: float32[64], z: float32[8, 8])\nfor i0 in 8:\n"
    program = parse_nest(head + body)
    return LoopAnalysis(program.body[0], ConcreteProgram(program, {})).expansion() is not None


@pytest.mark.parametrize(
    ("body", "independent"),
    [
        ("  y[i0] = x[i0]", True),
        ("  y[7 - i0] = x[i0]", True),
        ("  y[0] = x[i0]", False),
        ("  y[i0] = y[i0 + 1]", False),
        ("  y[i0 // 2] = x[i0]", False),
        ("  y[i0 // 2 * 2 + i0 % 2] = x[i0]", True),
        ("  z[i0 // 4, i0 % 4] = x[i0]", True),
        ("  z[i0 // 4, i0 % 2] = x[i0]", False),
        ("  for i1 in 8:\n    y[i0 * 8 + i1] = x[i1]", True),
        ("  for i1 in 8:\n    y[i1 * 8 + i0] = x[i1]", True),
        ("  for i1 in 9:\n    y[i0 * 8 + i1] = x[i1]", False),
        ("  for i1 in 5:\n    z[(i0 * 5 + i1) // 8, (i0 * 5 + i1) % 8] = x[i1]", True),
        ("  for i1 in 8:\n    y[i0 * 8 + i1] = x[i1]\n    y[i0 * 8] = 1.0", True),
        ("  for i1 in 8:\n    y[i0 * 8 + i1] = y[i1]", False),
        ("  T1: float32[1] local\n  T1[0] = x[i0]\n  y[i0] = T1[0]", True),
        ("  y[3] = y[3] + x[i0]", True),  # folds
        ("  y[3] = y[3] + y[4]", False),
        ("  y[3] = y[3] + x[i0]\n  y[4] = x[i0]", False),
        ("  z[i0, 0] = 1.0\n  z.flat[i0 * 8 + 1] = z[i0, 0]", True),
        ("  barrier block\n  y[i0] = x[i0]", False),
    ],
)
def test_which_loops_run_side_by_side(body, independent):
    assert expands(body) == independent


class RandomNest:
    """A nest of random loops and statements on two outputs, stored before."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.loops = 0
        head = [
            "kernel k(x: float32[64]) -> (y: float32[64], z: float32[8, 8])",
            "for q in 64:\n  y[q] = x[q]",
            "for q0 in 8:\n  for q1 in 8:\n    z[q0, q1] = 1.0",
        ]
        self.text = "\n".join([*head, *self.body(0, [], ["x", "y", "z"])])

    def index(self, variables):
        if not variables:
            return str(self.random.randint(0, 7))
        a, b, c = (self.random.choice(variables) for _ in range(3))
        m, d = self.random.choice([2, 3, 4, 8]), self.random.choice([2, 3, 4])
        forms = [
            a, f"{a} * {m} + {b}", f"({a} * {m} + {b}) // {d}", f"({a} * {m} + {b}) % {d}",
            f"{m * 3} - {a}", f"{a} // {d} * {m} + {b} % {d}", f"{a} + {b} * {m} + {c} * {m * d}",
        ]  # fmt: skip
        return self.random.choice(forms)

    def access(self, variables, buffers):
        buffer = self.random.choice(buffers)
        i, j = self.index(variables), self.index(variables)
        if buffer == "z":
            d = self.random.choice([2, 4, 8])
            if self.random.random() < 0.5:
                return f"z[({i}) // {d} % 8, ({i}) % {d}]"
            return f"z[({i}) % 8, ({j}) % 8]"
        return f"{buffer}[({i}) % {4 if buffer == 't' else 64}]"

    def statement(self, variables, buffers):
        written = [b for b in buffers if b != "x"]
        target = self.access(variables, written)
        if self.random.random() < 0.4:
            return f"{target} = {target} {self.random.choice('+*')} {self.access(variables, 'x')}"
        left, right = self.access(variables, buffers), self.access(variables, buffers)
        return f"{target} = {left} + {right} * 0.5"

    def body(self, depth, variables, buffers):
        lines, pad = [], "  " * depth
        for _ in range(self.random.randint(1, 2 if depth else 3)):
            if self.random.random() < 0.15 and "t" not in buffers:
                lines += [f"{pad}t: float32[4] local", *[f"{pad}t[{j}] = {j}.0" for j in range(4)]]
                buffers = [*buffers, "t"]
            kind = self.random.random()
            if kind < 0.45 and len(variables) < 3:
                self.loops += 1
                name = f"i{self.loops}"
                lines.append(f"{pad}for {name} in {self.random.choice([1, 2, 3, 4, 5, 8])}:")
                lines += self.body(depth + 1, [*variables, name], buffers)
            elif kind < 0.55 and variables:
                limit = self.random.choice([1, 3, 5, 8])
                lines.append(f"{pad}if {self.index(variables)} < {limit}:")
                lines += self.body(depth + 1, variables, buffers)
            else:
                lines.append(pad + self.statement(variables, buffers))
        return lines


@pytest.mark.parametrize("start", range(0, 200, 25))
def test_random_nests_give_the_same_side_by_side(start, monkeypatch):
    x = np.random.default_rng(0).random(64, F) * F(1.5)
    for seed in range(start, start + 25):
        nest = RandomNest(seed).text
        program = parse_nest(nest)
        found = []
        for lanes in (1, 16384, 64, 12):
            y, z = np.zeros(64, F), np.zeros((8, 8), F)
            monkeypatch.setattr(abstract_machine, "LANES", lanes)
            interpret(program, {"x": x, "y": y, "z": z}, {}, {})
            found.append((y.tobytes(), z.tobytes()))
        assert found.count(found[0]) == len(found), f"RandomNest({seed}):\n{nest}"


# Found by tests that ran longer


def test_fold_within_a_loop_whose_own_nested_loops_limit_it(monkeypatch):
    text = """
    kernel k(x: float32[64]) -> (y: float32[4], z: float32[8])
    for q in 4:
      y[q] = 1.0
    for q in 8:
      z[q] = 1.0
    for i1 in 8:
      for i2 in 2:
        for i3 in 5:
          z[i1] = z[i1] * x[i3]
        y[i1 % 4] = y[i1 % 4] + x[i2 + i1 * 7]
    """
    program = parse_nest(text)
    x = np.random.default_rng(0).random(64, F)
    found = []
    for lanes in (1, 64):
        y, z = np.zeros(4, F), np.zeros(8, F)
        monkeypatch.setattr(abstract_machine, "LANES", lanes)
        interpret(program, {"x": x, "y": y, "z": z}, {}, {})
        found.append((y.tobytes(), z.tobytes()))
    assert found[0] == found[1]


def test_large_local_buffers_limit_how_many_blocks_run_together():
    text = """
    kernel wide(x: float32[N, D]) -> (y: float32[N])
    for i0 in N:  # grid_x
      T1: float32[D] local
      for i1 in D:
        T1[i1] = x[i0, i1]
      y[i0] = T1[D - 1]
    """
    setting = ConcreteProgram(parse_nest(text), {"N": 10, "D": 4})
    of_three_lanes = 3 * 4 * (4 + 1)  # bytes of the elements, and of their shadow
    launches = setting.launches(setting.constants({}), abstract_machine.LANES, of_three_lanes)
    assert [launch.frame.lanes for launch in launches] == [3, 3, 3, 1]


def test_speed_does_not_depend_on_where_the_parallelism_is():
    """Loops without launch dimensions are run side by side: well beyond 10^6 stores a second."""
    text = """
    kernel gemm(a: float32[M, K], b: float32[K, N]) -> (c: float32[M, N])
    for i0 in M:
      for i1 in N:
        T2: float32[1] local
        T2[0] = 0.0
        for i2 in K:
          T2[0] = T2[0] + a[i0, i2] * b[i2, i1]
        c[i0, i1] = T2[0]
    """
    rng = np.random.default_rng(0)
    a, b, c = rng.random((128, 32), F), rng.random((32, 128), F), np.zeros((128, 128), F)
    interpret(parse_nest(text), {"a": a, "b": b, "c": c}, {"M": 128, "N": 128, "K": 32}, {})
    np.testing.assert_allclose(c, a @ b, rtol=32 * 2**-23)
