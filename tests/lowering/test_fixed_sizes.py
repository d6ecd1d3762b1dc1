"""A size to which assumptions leave one value is that number: in loops, masks and constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln

PT = ln.ParallelType


def layernorm(width: int | str, texts: tuple[str, ...] = ()) -> ln.Fusion:
    """Return a mean that is subtracted, rows to blocks, vectors of threads."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", width), ln.float32)
        mean = ln.mean(x, axis=1, keepdims=True)
        y = f.output(x - mean, "y")
        for text in texts:
            f.assume(text)
    copy = x.cache_after()
    y.split(1, 4)
    y.split(1, 64)
    ln.propagate(y)
    y.axis(0).parallelize(PT.grid_x)
    y.axis(2).parallelize(PT.block_x)
    ln.parallelize_like(y)
    copy.compute_at(y, 1)
    for tensor in (copy, y):
        tensor.axis(-1).parallelize(PT.vectorize)
    f.inline_most()
    return f


def joined(width: int | str, texts: tuple[str, ...] = ()) -> ln.Fusion:
    """Return two matrices side by side, whose border is a size."""
    with ln.Fusion("k") as f:
        a, b = [f.input(name, ("N", width), ln.float32) for name in "ab"]
        f.output(ln.concatenate([a, b], axis=1), "y")
        for text in texts:
            f.assume(text)
    return f


def body(text: str) -> list[str]:
    return text.splitlines()[2:]


@pytest.mark.parametrize("build", [layernorm, joined])
@pytest.mark.parametrize("texts", [("D == 512",), ("D % 512 == 0", "D <= 1000", "D >= 1")])
def test_the_nest_is_that_of_the_number(
    build: Callable[..., ln.Fusion], texts: tuple[str, ...]
) -> None:
    kernel, plain = ln.lower(build("D", texts)), ln.lower(build(512))
    assert body(str(kernel).replace("float32(D)", "512.0")) == body(str(plain))
    assert kernel.notes == plain.notes
    assert str(ln.verify(kernel)) == "proved for all sizes"
    with pytest.raises(ln.LaunchError, match=r"does not hold for D = 2048"):
        kernel.launch(N=4, D=2048)


def test_the_text_has_the_number() -> None:
    kernel = ln.lower(layernorm("D", ("D == 512",)))
    cuda = kernel.cuda()
    assert "/ 512.0f" in cuda
    assert [line for line in cuda.splitlines() if "size_D" in line] == [
        "    const long long size_D)"
    ]
    assert "/ 512.0f" in kernel.c()


def test_a_register_buffer_of_a_fixed_size() -> None:
    """Registers need a static size; a symbol that is a number is one."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(x - ln.max(x, axis=1, keepdims=True), "y")
        f.assume("D == 8")
    row = x.cache_after()
    y.axis(0).parallelize(PT.block_x)
    ln.parallelize_like(y)
    row.compute_at(y, 1)
    assert "float T4[8];" in ln.lower(f).cuda()
    value = np.random.default_rng(0).random((5, 8), np.float32)
    assert np.array_equal(
        ln.compile(f, target="interpret")(value), value - value.max(1, keepdims=True)
    )
