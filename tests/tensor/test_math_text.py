"""What print_math prints."""

from __future__ import annotations

import numpy as np
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


@pytest.mark.parametrize("name", ["conv", "transposed", "pool"])
def test_windows_are_printed_as_calls_that_make_them(name: str) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (2, 3, 7, 6), ln.float32)
        w = f.input("w", (3, 4, 3, 2) if name == "transposed" else (4, 3, 3, 2), ln.float32)
        if name == "pool":
            made = ln.max_pool(x, (3, 2), (2, 1))
        else:
            made = ln.conv(x, w, stride=(1, 2), dilation=(2, 1), transposed=name == "transposed")
        f.output(made, "y")
        tensors = {t.name: t for t in f.tensors}
        lines = [line.split(" = ", 1) for line in f.print_math().splitlines()[1:]]
        texts = [(head, text) for head, text in lines if "unfold" in text or "flip" in text]
        assert len(texts) == (2 if name == "transposed" else 1)
        for number, (head, text) in enumerate(texts):
            typed = eval(text, {**{name: getattr(ln, name) for name in ln.__all__}, **tensors})
            f.output(typed, f"typed{number}")
            f.output(tensors[head.split(":")[0].strip()], f"made{number}")
    rng = np.random.default_rng(0)
    found = ln.evaluate(f, *[rng.normal(size=t.shape).astype(np.float32) for t in (x, w)])
    for typed, made in zip(found[1::2], found[2::2], strict=True):
        assert np.array_equal(typed, made)
