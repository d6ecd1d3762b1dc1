"""Peers of `bench_run.py` for stencils, convolutions, scans, gathers and attention.

What torch computes by functions that its compiler takes too, what it has `out=` for, and Halide.
NumPy's side is the reference of each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], object]

SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "blur": ((4098, 4098),),
    "jacobi3d": ((130, 258, 258),),
    "max_pool": ((16, 64, 112, 112),),
    "conv1d": ((16, 256, 4096), (256, 4)),
    "cumsum": ((4096, 4096),),
    "cumsum_long": ((1 << 24,),),
    "embedding": ((32000, 768), (4096,)),
    "embedding_grad": ((4096, 768), (4096,)),
    "spmv": ((16, 1 << 20), (16, 1 << 20), (1 << 20,)),
    "bilinear": ((64, 256, 256),),
    "concatenate": ((4096, 1024), (4096, 256), (4096, 512)),
    "conv2d": ((4, 64, 56, 56), (64, 64, 3, 3)),
    "attention": ((8, 1024, 64),) * 3,
    "attention_causal": ((8, 1024, 64),) * 3,
}
"""Each kernel and the shapes of its inputs."""

TARGETS = {**dict.fromkeys(SHAPES, 1.0), **dict.fromkeys(("conv2d", "attention"), 2.0)}
TARGETS["attention_causal"] = 2.0
"""At most: our time / that of the best."""

INDICES: Mapping[tuple[str, int], int] = {
    ("embedding", 1): 32000,
    ("embedding_grad", 1): 2048,
    ("spmv", 1): 1 << 20,
}
"""Inputs that are int32 indices, and what they are below."""

SIZES: Mapping[str, Mapping[str, int]] = {
    "bilinear": {"P": 512, "Q": 512},
    "embedding_grad": {"V": 2048},
}
"""Sizes that no input has."""

MODULES = {
    "cumsum_long": "cumsum",
    "embedding_grad": "embedding",
    "attention_causal": "attention",
}
"""The file of each kernel that is called otherwise."""

OPERATIONS: Mapping[str, int] = {
    "conv2d": 2 * 4 * 64 * 56 * 56 * 64 * 9,
    "attention": 4 * 8 * 1024 * 1024 * 64,
    "attention_causal": 2 * 8 * 1024 * 1024 * 64,
}
"""Operations of kernels that may be limited by them, FMAs as two."""


def torch_math(torch: Any) -> dict[str, Callable[..., Any]]:
    """Return each kernel as a function of tensors."""
    functional = torch.nn.functional

    def sweep(x: Any) -> Any:
        inner, after, before = slice(1, -1), slice(2, None), slice(None, -2)
        z = x[after, inner, inner] + x[before, inner, inner]
        y = x[inner, after, inner] + x[inner, before, inner]
        return (z + y + x[inner, inner, after] + x[inner, inner, before]) * (1 / 6)

    def attend(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[
            0
        ]

    return {
        "blur": lambda x: functional.avg_pool2d(x[None, None], 3, 1)[0, 0],
        "jacobi3d": lambda x: sweep(sweep(x)),
        "max_pool": lambda x: functional.max_pool2d(x, 3, 2, 1),
        "conv1d": lambda x, w: functional.conv1d(
            functional.pad(x, (3, 0)), w[:, None], groups=len(w)
        ),
        "cumsum": lambda x: torch.cumsum(x, 1),
        "cumsum_long": lambda x: torch.cumsum(x, 0),
        "embedding": lambda table, token: torch.index_select(table, 0, token),
        "embedding_grad": lambda g, token: torch.zeros(2048, g.shape[1]).index_add_(0, token, g),
        "spmv": lambda value, column, x: (value * x[column]).sum(0),
        "bilinear": lambda x: functional.interpolate(
            x[None], scale_factor=2, mode="bilinear", align_corners=False
        )[0],
        "concatenate": lambda a, b, c: torch.cat([a, b, c], 1),
        "conv2d": lambda x, w: functional.conv2d(x, w, padding=1),
        "attention": lambda q, k, v: attend(q, k, v, False),
        "attention_causal": lambda q, k, v: attend(q, k, v, True),
    }


def torch_call(torch: Any, kernel: str, tensors: list[Any]) -> tuple[Any, Call]:
    """Return a result of torch's operators, and a call; into that result where they take one."""
    function = torch_math(torch)[kernel]
    result = function(*tensors)
    into: dict[str, Callable[..., object]] = {
        "cumsum": lambda x: torch.cumsum(x, 1, out=result),
        "cumsum_long": lambda x: torch.cumsum(x, 0, out=result),
        "embedding": lambda table, token: torch.index_select(table, 0, token, out=result),
        "concatenate": lambda a, b, c: torch.cat([a, b, c], 1, out=result),
    }
    call = into.get(kernel, function)
    return result, lambda: call(*tensors)


class HalideDomains:
    """Halide's functions: rows in vectors of 16, tiles with halo where stages follow each other."""

    hl: Any

    def blur(self, size: Any, x: Any) -> Any:
        hl, (j, i, io) = self.hl, self.hl.vars("j i io")
        rows, y = hl.Func("rows"), hl.Func("y")
        rows[j, i] = (x[j, i] + x[j + 1, i] + x[j + 2, i]) * hl.f32(1 / 3)
        y[j, i] = (rows[j, i] + rows[j, i + 1] + rows[j, i + 2]) * hl.f32(1 / 3)
        y.split(i, io, i, 64, hl.TailStrategy.GuardWithIf).parallel(io).vectorize(j, 16)
        rows.store_at(y, io).compute_at(y, i).vectorize(j, 16)
        return y, (size[0] - 2, size[1] - 2)

    def jacobi3d(self, size: Any, x: Any) -> Any:
        hl, (k, j, i, jo, io) = self.hl, self.hl.vars("k j i jo io")
        first, y = hl.Func("first"), hl.Func("y")

        def mean(f: Any, k: Any, j: Any, i: Any) -> Any:
            ends = f[k, j, i - 1] + f[k, j, i + 1] + f[k, j - 1, i] + f[k, j + 1, i]
            return (ends + f[k - 1, j, i] + f[k + 1, j, i]) * hl.f32(1 / 6)

        first[k, j, i] = mean(x, k, j, i)
        y[k, j, i] = mean(first, k + 2, j + 2, i + 2)
        guard = hl.TailStrategy.GuardWithIf
        y.split(j, jo, j, 16, guard).split(i, io, i, 8, guard).reorder(k, j, i, jo, io)
        y.parallel(io).vectorize(k, 16)
        first.compute_at(y, jo).vectorize(k, 16)
        return y, tuple([n - 4 for n in size])

    def max_pool(self, size: Any, x: Any) -> Any:
        hl, (k, j, c, n) = self.hl, self.hl.vars("k j c n")
        wide, y = hl.Func("wide"), hl.Func("y")
        height, width = size[2:]
        inside = (k >= 0) & (k < width) & (j >= 0) & (j < height)
        at = hl.clamp(k, 0, width - 1), hl.clamp(j, 0, height - 1)
        wide[k, j, c, n] = hl.select(inside, x[(*at, c, n)], hl.f32(-3.4e38))
        found = wide[2 * k - 1, 2 * j - 1, c, n]
        for a in range(3):
            for b in range(3):
                found = hl.max(found, wide[2 * k + a - 1, 2 * j + b - 1, c, n])
        y[k, j, c, n] = found
        y.vectorize(k, 8).parallel(c).parallel(n)
        wide.compute_at(y, j).vectorize(k, 16)
        return y, (*size[:2], (height + 1) // 2, (width + 1) // 2)

    def conv1d(self, size: Any, w_size: Any, x: Any, w: Any) -> Any:
        hl, (t, c, b) = self.hl, self.hl.vars("t c b")
        wide, y = hl.Func("wide"), hl.Func("y")
        wide[t, c, b] = hl.select(t < 0, hl.f32(0), x[hl.max(t, 0), c, b])
        terms = [wide[t + k - 3, c, b] * w[k, c] for k in range(4)]
        y[t, c, b] = terms[0] + terms[1] + terms[2] + terms[3]
        y.vectorize(t, 16).parallel(c).parallel(b)
        wide.compute_at(y, c).vectorize(t, 16)
        return y, size

    def conv2d(self, size: Any, w_size: Any, x: Any, w: Any) -> Any:
        hl, (k, j, o, n, oo) = self.hl, self.hl.vars("k j o n oo")
        wide, total, y = hl.Func("wide"), hl.Func("total"), hl.Func("y")
        images, channels, height, width = size
        inside = (k >= 0) & (k < width) & (j >= 0) & (j < height)
        at = hl.clamp(k, 0, width - 1), hl.clamp(j, 0, height - 1)
        wide[k, j, o, n] = hl.select(inside, x[(*at, o, n)], hl.f32(0))
        r = hl.RDom([(0, 3), (0, 3), (0, channels)])
        total[k, j, o, n] = hl.f32(0)
        total[k, j, o, n] += w[r.x, r.y, r.z, o] * wide[k + r.x - 1, j + r.y - 1, r.z, n]
        y[k, j, o, n] = total[k, j, o, n]
        y.split(o, oo, o, 4).reorder(k, o, j, oo, n).vectorize(k, 8).unroll(o)
        y.parallel(oo).parallel(n)
        total.compute_at(y, j).vectorize(k, 8).unroll(o)
        total.update().reorder(k, o, r.x, r.y, r.z).vectorize(k, 8).unroll(o)
        wide.compute_at(y, n).vectorize(k, 8).parallel(o)
        return y, (images, w_size[0], height, width)

    def embedding(self, size: Any, count: Any, table: Any, token: Any) -> Any:
        hl, (j, i) = self.hl, self.hl.vars("j i")
        y = hl.Func("y")
        y[j, i] = table[j, hl.clamp(token[i], 0, size[0] - 1)]
        y.vectorize(j, 16).parallel(i, 64)
        return y, (count[0], size[1])

    def concatenate(self, *given: Any) -> Any:
        hl, (j, i) = self.hl, self.hl.vars("j i")
        (a_size, b_size, c_size), (a, b, c) = given[:3], given[3:]
        y, first, second = hl.Func("y"), a_size[1], a_size[1] + b_size[1]
        y[j, i] = hl.undef(hl.Float(32))
        r, s, t = [hl.RDom([(0, size[1])]) for size in (a_size, b_size, c_size)]
        y[r, i] = a[r, i]
        y[s + first, i] = b[s, i]
        y[t + second, i] = c[t, i]
        for number, step in enumerate((r, s, t)):
            y.update(number).allow_race_conditions().vectorize(step.x, 16).parallel(i, 16)
        return y, (a_size[0], second + c_size[1])
