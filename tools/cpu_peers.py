"""What `bench_run.py` compares with: other implementations of the same kernels, for this CPU.

Those that compile get the loops of our "cpu" schedules, or better ones where their own are known.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

# Stencils, convolutions, scans, gathers and attention
#
# What torch computes by functions that its compiler takes too, what it has `out=` for, and Halide.
# NumPy's side is the reference of each kernel.


Call = Callable[[], object]

DOMAIN_SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
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

DOMAIN_TARGETS = {
    **dict.fromkeys(DOMAIN_SHAPES, 1.0),
    **dict.fromkeys(("conv2d", "attention"), 2.0),
}
DOMAIN_TARGETS["attention_causal"] = 2.0
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


def reference_of(name: str) -> Callable[..., Any]:
    """Return a kernel's reference in NumPy."""
    reference: Callable[..., Any] = kernel_of(name).reference
    return reference


def kernel_of(name: str) -> Any:
    """Return a kernel of the gallery."""
    root = str(Path(__file__).resolve().parent.parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    return getattr(importlib.import_module(f"kernels.{MODULES.get(name, name)}"), name)


class Peer(Protocol):
    """Another implementation.

    `prepare` returns a call that computes a kernel on the arrays into memory of its own, and one
    that returns the result as a NumPy array.
    """

    label: str
    package: str

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]: ...


class NumPy:
    """NumPy as one writes it, one operation after the other."""

    label = "NumPy"
    package = "numpy"

    def __init__(self, threads: int) -> None:
        import numpy as np

        self.np = np

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        own = getattr(self, kernel, None)
        function = own or reference_of(kernel)
        sizes = {} if own else SIZES.get(kernel, {})

        def call() -> Any:
            return function(*arrays, **sizes)

        return call, call

    def bias_gelu(self, x: Any, bias: Any) -> Any:
        h = x + bias  # NumPy has no erf: the approximation of GELU by tanh
        return 0.5 * h * (1 + self.np.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))

    def softmax(self, x: Any) -> Any:
        e = self.np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def layernorm(self, x: Any, gamma: Any, beta: Any) -> Any:
        centered = x - x.mean(axis=1, keepdims=True)
        variance = (centered * centered).mean(axis=1, keepdims=True)
        return centered / self.np.sqrt(variance + 1e-5) * gamma + beta

    def transpose(self, x: Any) -> Any:
        return x.T.copy()

    def gemm(self, a: Any, b: Any) -> Any:
        return a @ b


class Torch:
    """torch's operators, eager; results go where the first call put them, as ours do."""

    label = "torch"
    package = "torch"

    def __init__(self, threads: int) -> None:
        import torch

        self.torch = torch
        self.ops = torch.ops.aten
        torch.set_num_threads(threads)

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        tensors = [self.torch.from_numpy(a) for a in arrays]
        if hasattr(self, kernel):
            result, call = getattr(self, kernel)(*tensors)
        else:
            result, call = torch_call(self.torch, kernel, tensors)
        return call, lambda: result.numpy()

    def bias_gelu(self, x: Any, bias: Any) -> tuple[Any, Call]:
        h, y = self.torch.empty_like(x), self.torch.empty_like(x)

        def call() -> None:
            self.torch.add(x, bias, out=h)
            self.ops.gelu.out(h, out=y)

        return y, call

    def softmax(self, x: Any) -> tuple[Any, Call]:
        y = self.torch.empty_like(x)
        return y, lambda: self.ops._softmax.out(x, 1, False, out=y)

    def layernorm(self, x: Any, gamma: Any, beta: Any) -> tuple[Any, Call]:
        y = self.torch.empty_like(x)
        mean, rstd = self.torch.empty(len(x), 1), self.torch.empty(len(x), 1)
        shape = [x.shape[1]]

        def call() -> None:
            self.ops.native_layer_norm.out(
                x, shape, gamma, beta, 1e-5, out0=y, out1=mean, out2=rstd
            )

        return y, call

    def transpose(self, x: Any) -> tuple[Any, Call]:
        y = self.torch.empty(x.shape[::-1])
        return y, lambda: y.copy_(x.t())

    def gemm(self, a: Any, b: Any) -> tuple[Any, Call]:
        c = self.torch.empty(a.shape[0], b.shape[1])
        return c, lambda: self.torch.mm(a, b, out=c)


class Inductor(Torch):
    """torch.compile's default backend, C++ for this CPU; results are allocated by each call."""

    label = "inductor"

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        functional = self.torch.nn.functional
        math: Mapping[str, Callable[..., Any]] = {
            "bias_gelu": lambda x, bias: functional.gelu(x + bias),
            "softmax": lambda x: functional.softmax(x, 1),
            "layernorm": lambda x, gamma, beta: functional.layer_norm(
                x, x.shape[1:], gamma, beta, 1e-5
            ),
            "transpose": lambda x: x.t().contiguous(),
            "gemm": lambda a, b: a @ b,
            **torch_math(self.torch),
        }
        compiled = self.torch.compile(math[kernel])
        tensors = [self.torch.from_numpy(a) for a in arrays]
        return lambda: compiled(*tensors), lambda: compiled(*tensors).numpy()


class Tvm:
    """Apache TVM: tensor expressions, the loops of our "cpu" schedules, LLVM for this CPU.

    exp and erf are `topi.fast_exp` and `topi.fast_erf`, which become vector code; sizes are static.
    """

    label = "TVM"
    package = "apache-tvm"

    def __init__(self, threads: int) -> None:
        import tvm
        from tvm import te, topi
        from tvm.s_tir import Schedule
        from tvm.target.codegen import llvm_get_system_cpu

        self.tvm, self.te, self.topi, self.Schedule = tvm, te, topi, Schedule
        self.target = tvm.target.Target(
            {"kind": "llvm", "mcpu": llvm_get_system_cpu(), "num-cores": threads}
        )

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        schedule, shape = getattr(self, kernel)(*[a.shape for a in arrays])
        function = self.tvm.compile(schedule.mod, target=self.target)["main"]
        tensors = [self.tvm.runtime.tensor(a) for a in arrays]
        result = self.tvm.runtime.empty(shape, "float32")
        return (lambda: function(*tensors, result)), result.numpy

    def _placeholders(self, **shapes: tuple[int, ...]) -> list[Any]:
        return [self.te.placeholder(shape, name=name) for name, shape in shapes.items()]

    def _vectorize(self, s: Any, *blocks: str) -> None:
        for block in blocks:
            _, lanes = s.split(s.get_loops(s.get_sblock(block))[-1], [None, 16])
            s.vectorize(lanes)

    def _rows(self, s: Any, reductions: Sequence[str], blocks: Sequence[str]) -> Any:
        """Give rows to threads, 16 partial results to each reduction, and vectorize."""
        for block in reductions:
            _, lanes = s.split(s.get_loops(s.get_sblock(block))[-1], [None, 16])
            s.rfactor(lanes, 1)
        row = s.get_loops(s.get_sblock("y"))[0]
        s.parallel(row)
        for block in blocks:
            s.compute_at(s.get_sblock(block), row)
        for block in reductions:
            partial = s.get_sblock(f"{block}_rf")
            _, lanes, steps = s.get_loops(partial)
            s.reorder(steps, lanes)
            s.vectorize(lanes)
            s.decompose_reduction(partial, steps)
        return s

    def bias_gelu(self, size: tuple[int, ...], bias_size: tuple[int, ...]) -> Any:
        te = self.te
        x, bias = self._placeholders(x=size, bias=bias_size)
        t = te.compute(size, lambda i, j: x[i, j] + bias[j], name="t")
        u = te.compute(size, lambda i, j: t[i, j] * te.const(2**-0.5, "float32"), name="u")
        e = self.topi.fast_erf(u)
        y = te.compute(size, lambda i, j: t[i, j] * 0.5 * (1.0 + e[i, j]), name="y")
        s = self.Schedule(te.create_prim_func([x, bias, y]))
        i, j = s.get_loops(s.get_sblock("y"))
        s.parallel(i)
        outer, _ = s.split(j, [None, 64])
        for block in ("T_fast_erf", "u", "t"):
            s.compute_at(s.get_sblock(block), outer)
        self._vectorize(s, "t", "u", "T_fast_erf", "y")
        return s, size

    def softmax(self, size: tuple[int, ...]) -> Any:
        te, (n, d) = self.te, size
        (x,) = self._placeholders(x=size)
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        m = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="m")
        u = te.compute(size, lambda i, j: x[i, j] - m[i], name="u")
        e = self.topi.fast_exp(u)
        z = te.compute((n,), lambda i: te.sum(e[i, q], axis=q), name="z")
        y = te.compute(size, lambda i, j: e[i, j] / z[i], name="y")
        s = self.Schedule(te.create_prim_func([x, y]))
        s.compute_inline(s.get_sblock("u"))
        self._rows(s, "mz", ("z", "z_rf", "T_fast_exp", "m", "m_rf"))
        self._vectorize(s, "T_fast_exp", "y")
        return s, size

    def layernorm(
        self, size: tuple[int, ...], gamma_size: tuple[int, ...], beta_size: tuple[int, ...]
    ) -> Any:
        te, (n, d) = self.te, size
        x, gamma, beta = self._placeholders(x=size, gamma=gamma_size, beta=beta_size)
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        a = te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name="a")
        c = te.compute(size, lambda i, j: x[i, j] - a[i] / d, name="c")
        v = te.compute((n,), lambda i: te.sum(c[i, q] * c[i, q], axis=q), name="v")
        r = te.compute((n,), lambda i: te.rsqrt(v[i] / d + 1e-5), name="r")
        y = te.compute(size, lambda i, j: c[i, j] * r[i] * gamma[j] + beta[j], name="y")
        s = self.Schedule(te.create_prim_func([x, gamma, beta, y]))
        self._rows(s, "av", ("r", "v", "v_rf", "c", "a", "a_rf"))
        self._vectorize(s, "c", "y")
        return s, size

    def transpose(self, size: tuple[int, ...]) -> Any:
        te, (n, d) = self.te, size
        (x,) = self._placeholders(x=size)
        y = te.compute((d, n), lambda i, j: x[j, i], name="y")
        s = self.Schedule(te.create_prim_func([x, y]))
        i, j = s.get_loops(s.get_sblock("y"))
        outer_i, inner_i = s.split(i, [None, 128])
        outer_j, inner_j = s.split(j, [None, 16])
        s.reorder(outer_i, outer_j, inner_i, inner_j)
        s.parallel(outer_i)
        s.vectorize(inner_j)
        return s, (d, n)

    def gemm(self, left: tuple[int, ...], right: tuple[int, ...]) -> Any:
        te, (m, depth), (_, n) = self.te, left, right
        a, b = self._placeholders(a=left, b=right)
        k = te.reduce_axis((0, depth), name="k")
        c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        s = self.Schedule(te.create_prim_func([a, b, c]))
        block = s.get_sblock("c")
        panel, copy = s.cache_read(block, 1, "global"), s.cache_write(block, 0, "global")
        i, j, steps = s.get_loops(block)
        outer_i, inner_i = s.split(i, [None, 4])  # 6, as ours, does not divide, and costs it more
        outer_j, inner_j = s.split(j, [None, 64])
        s.reorder(outer_j, outer_i, steps, inner_i, inner_j)
        s.parallel(outer_j)
        s.compute_at(panel, outer_j)
        s.reverse_compute_at(copy, outer_i)
        s.vectorize(inner_j)
        s.unroll(inner_i)
        s.decompose_reduction(block, steps)
        s.vectorize(s.get_loops(s.get_sblock("c_init"))[-1])
        self._vectorize(s, "b_global", "c_global")
        return s, (m, n)


class Halide(HalideDomains):
    """Halide: one function each, for the processor at hand; all sizes are static.

    Vectors of 16 go over rows, rows go to the threads; partial results lie side by side in vectors.
    """

    label = "Halide"
    package = "halide"

    def __init__(self, threads: int) -> None:
        import halide as hl

        self.hl = hl
        self.threads = threads
        host = hl.get_host_target()
        self.target = host.with_feature(hl.TargetFeature.NoAsserts).with_feature(
            hl.TargetFeature.NoBoundsQuery
        )

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        import numpy as np

        hl = self.hl
        types = [hl.Int(32) if a.dtype == np.int32 else hl.Float(32) for a in arrays]
        inputs = [
            hl.ImageParam(dtype, a.ndim, f"in{n}")
            for n, (a, dtype) in enumerate(zip(arrays, types, strict=True))
        ]
        for image, array in zip(inputs, arrays, strict=True):
            for n, size in enumerate(array.shape[::-1]):
                image.dim(n).set_bounds(0, size)
                image.dim(n).set_stride(int(np.prod(array.shape[::-1][:n])))
        result, shape = getattr(self, kernel)(*[a.shape for a in arrays], *inputs)
        out = result.output_buffer()
        for n, size in enumerate(shape[::-1]):
            out.dim(n).set_bounds(0, size)
            out.dim(n).set_stride(int(np.prod(shape[::-1][:n])))
        made = np.zeros(shape, np.float32)
        call = result.compile_to_callable(inputs, self.target)
        buffers = [hl.Buffer(a) for a in (*arrays, made)]
        return (lambda: call(*buffers)), lambda: made

    def bias_gelu(self, size: Any, bias_size: Any, x: Any, bias: Any) -> Any:
        hl, (j, i) = self.hl, self.hl.vars("j i")
        y, h = hl.Func("y"), hl.Func("h")
        h[j, i] = x[j, i] + bias[j]
        y[j, i] = 0.5 * h[j, i] * (1.0 + hl.erf(h[j, i] * hl.f32(2**-0.5)))
        y.vectorize(j, 16).parallel(i, 16)
        return y, size

    def _folded(self, total: Any, r: Any, i: Any, at: Any) -> None:
        """Fold a row in 64 partial results, side by side in vectors."""
        outer, inner, lane = self.hl.RVar("outer"), self.hl.RVar("inner"), self.hl.Var("lane")
        partial = total.update().split(r, outer, inner, 64).rfactor(inner, lane)
        partial.compute_at(at, i).vectorize(lane, 16).unroll(lane)
        partial.update().reorder(lane, outer).vectorize(lane, 16).unroll(lane)
        total.compute_at(at, i)

    def softmax(self, size: Any, x: Any) -> Any:
        hl, (j, i) = self.hl, self.hl.vars("j i")
        m, e, z, y = [hl.Func(name) for name in "mezy"]
        r, q = [hl.RDom([(0, size[1])]) for _ in range(2)]
        m[i] = hl.f32(-3e38)
        m[i] = hl.max(m[i], x[r, i])
        e[j, i] = hl.exp(x[j, i] - m[i])
        z[i] = hl.f32(0)
        z[i] += e[q, i]
        inverse = hl.Func("inverse")
        inverse[i] = 1.0 / z[i]
        y[j, i] = e[j, i] * inverse[i]
        y.vectorize(j, 16).parallel(i, 16)
        inverse.compute_at(y, i)
        self._folded(m, r.x, i, y)
        self._folded(z, q.x, i, y)
        e.compute_at(y, i).vectorize(j, 16)
        return y, size

    def layernorm(self, size: Any, g_size: Any, b_size: Any, x: Any, gamma: Any, beta: Any) -> Any:
        hl, (j, i) = self.hl, self.hl.vars("j i")
        a, c, v, y = [hl.Func(name) for name in "acvy"]
        r, q = [hl.RDom([(0, size[1])]) for _ in range(2)]
        a[i] = hl.f32(0)
        a[i] += x[r, i]
        mean, scale = hl.Func("mean"), hl.Func("scale")
        mean[i] = a[i] * hl.f32(1 / size[1])
        c[j, i] = x[j, i] - mean[i]
        v[i] = hl.f32(0)
        v[i] += c[q, i] * c[q, i]
        scale[i] = 1.0 / hl.sqrt(v[i] * hl.f32(1 / size[1]) + hl.f32(1e-5))
        y[j, i] = c[j, i] * scale[i] * gamma[j] + beta[j]
        y.vectorize(j, 16).parallel(i, 16)
        for tensor in (mean, scale):
            tensor.compute_at(y, i)
        self._folded(a, r.x, i, y)
        self._folded(v, q.x, i, y)
        return y, size

    def transpose(self, size: Any, x: Any) -> Any:
        hl, (j, i) = self.hl, self.hl.vars("j i")
        jo, io, ji, ii = hl.vars("jo io ji ii")
        jt, it = hl.vars("jt it")
        y, copy = hl.Func("y"), hl.Func("copy")
        copy[j, i] = x[j, i]
        y[j, i] = copy[i, j]
        y.tile(j, i, jo, io, j, i, 128, 128).tile(j, i, jt, it, ji, ii, 16, 16)
        y.vectorize(ji).unroll(ii).parallel(io)
        copy.compute_at(y, jt).vectorize(j).unroll(i)
        return y, size[::-1]

    def gemm(self, left: Any, right: Any, a: Any, b: Any) -> Any:
        hl, (j, i) = self.hl, self.hl.vars("j i")
        jo, io, ji, ii = hl.vars("jo io ji ii")
        k = hl.RDom([(0, left[1])])
        c, total, panel = hl.Func("c"), hl.Func("total"), hl.Func("panel")
        panel[j, i] = b[j, i]
        total[j, i] = hl.f32(0)
        total[j, i] += a[k, i] * panel[j, k]
        c[j, i] = total[j, i]
        c.tile(j, i, jo, io, ji, ii, 32, 8).reorder(ji, ii, io, jo).vectorize(ji, 16).unroll(ji)
        c.unroll(ii).parallel(jo)
        total.compute_at(c, io).vectorize(j, 16).unroll(j).unroll(i)
        total.update().reorder(j, i, k).vectorize(j, 16).unroll(j).unroll(i)
        panel.compute_at(c, jo).vectorize(j, 16).unroll(j)
        return c, (left[0], right[1])


PEERS: Sequence[type[Any]] = (Tvm, Halide, Torch, Inductor, NumPy)
"""The implementations; each is made for a number of threads."""
