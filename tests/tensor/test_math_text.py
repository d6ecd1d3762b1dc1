"""What print_math prints."""

from __future__ import annotations

import pytest

import loopnest as ln


def test_print_math(capsys: pytest.CaptureFixture[str]) -> None:
    with ln.Fusion("layernorm") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        w = f.input("w", ("D",), ln.float32)
        eps = f.scalar("eps", ln.float32)
        mean, var, _ = ln.welford(x, axis=1, keepdims=True)
        y = (x - mean) * ln.rsqrt(var + eps * 2) * w
        f.output(ln.cast(y, ln.float16), "y", inplace=x)
        f.output(ln.mean(ln.gelu(x, "tanh"), axis=(0, 1)), "m")
        f.assume("D % 8 == 0")
    text = f.print_math()
    assert (
        text
        == """\
layernorm(x: float16[N, D], w: float32[D], eps: float32) -> (y: float16[N, D] in x, m: float16[])
  assume D % 8 == 0
  T2: float16[N] = welford(x, axis=1)[0]
  T3: float16[N] = welford(x, axis=1)[1]
  T4: int64[N] = welford(x, axis=1)[2]
  T5: float16[N, 1] = broadcast(T2, mask=(False, True))
  T6: float16[N, 1] = broadcast(T3, mask=(False, True))
  T7: int64[N, 1] = broadcast(T4, mask=(False, True))
  T8: float16[N, D] = x - T5
  T9: float32[N, 1] = T6 + eps * 2.0
  T10: float32[N, 1] = rsqrt(T9)
  T11: float32[N, D] = T8 * T10
  T12: float32[1, D] = broadcast(w, mask=(True, False))
  T13: float32[N, D] = T11 * T12
  y: float16[N, D] = cast(T13)
  T15: float16[N, D] = gelu(x, approximate='tanh')
  T16: float32[] = sum(T15, axis=(0, 1))
  m: float16[] = T16 / float32(N * D)"""
    )
    assert capsys.readouterr().out == text + "\n"


def test_values_of_a_reducer_of_ones_own_are_named() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        w = f.input("w", ("D",), ln.float16)
        add = ln.Reducer((0.0, 0.0, 0.0), lambda a, b: tuple(map(ln.add, a, b)), "three_sums")
        f.output(ln.reduce(add, (x, 1.0, w), axis=1)[0], "y")
    lines = f.print_math().splitlines()
    assert lines[2] == "  y: float32[N] = three_sums(x, 1.0, T2, axis=1)[0]"
