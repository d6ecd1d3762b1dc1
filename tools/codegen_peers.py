"""What `codegen_figures.py` compares with: other generators, each with the same math and loops.

The math has static sizes (or the peer's own variables), the loops are those of the "gpu" schedules
of `kernels/`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol


class Peer(Protocol):
    """Another generator."""

    label: str
    package: str

    def text(self, kernel: str, sizes: Sequence[Any]) -> str:
        """Make the text of a kernel from nothing; sizes in the order of our size symbols."""

    def variables(self, count: int) -> tuple[Any, ...]:
        """Return variables to stand for sizes; none where there is no such build here."""


class Tvm:
    """Apache TVM: tensor expressions, a schedule, its default pipeline, CUDA source.

    Each schedule is the cheapest that gives these loops: reductions keep their initial value inside
    the loop where that costs TVM less.
    """

    label = "TVM"
    package = "apache-tvm"

    def __init__(self) -> None:
        import tvm
        import tvm_ffi
        from tvm import te, tirx
        from tvm.s_tir import Schedule
        from tvm.tirx.build import split_host_device_mods

        self.te, self.tirx = te, tirx
        self.Schedule, self._split_host = Schedule, split_host_device_mods
        # Where there is a CUDA compiler, TVM would run it: only the text is wanted.
        tvm_ffi.register_global_func(
            "tvm_callback_cuda_compile", lambda code, *_: b"", override=True
        )
        self.target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="c")
        self.codegen = tvm.get_global_func("target.build.cuda")

    def variables(self, count: int) -> tuple[Any, ...]:
        return tuple(self.te.var(f"n{number}") for number in range(count))

    def text(self, kernel: str, sizes: Sequence[Any]) -> str:
        module = self.tirx.transform.BindTarget(self.target)(getattr(self, kernel)(*sizes).mod)
        passes, _, finalize_device = self.tirx.get_tir_pipeline("s_tir")
        _, devices = self._split_host(passes(module))
        ((target, device),) = devices.items()
        text: str = self.codegen(finalize_device()(device), target).inspect_source()
        return text

    def _bind(self, schedule: Any, **loops: Any) -> None:
        for name, loop in loops.items():
            schedule.bind(loop, name.replace("_", "."))

    def bias_gelu(self, n: Any, d: Any) -> Any:
        te = self.te
        x, bias = te.placeholder((n, d), name="x"), te.placeholder((d,), name="bias")
        t = te.compute((n, d), lambda i, j: x[i, j] + bias[j], name="t")
        y = te.compute((n, d), lambda i, j: t[i, j] * 0.5 * (1.0 + te.erf(t[i, j] * 2**-0.5)), "y")
        s = self.Schedule(te.create_prim_func([x, bias, y]))
        s.compute_inline(s.get_sblock("t"))
        i, j = s.get_loops(s.get_sblock("y"))
        outer, threads, lanes = s.split(j, [None, 128, 4])
        self._bind(s, blockIdx_x=i, blockIdx_y=outer, threadIdx_x=threads)
        s.vectorize(lanes)
        return s

    def _row_of_a_thread(self, schedule: Any, rows: Sequence[str]) -> Any:
        """Let a thread own a row of y, and compute what it needs of the row in registers."""
        i, _ = schedule.get_loops(schedule.get_sblock("y"))
        block, thread = schedule.split(i, [None, 128])
        self._bind(schedule, blockIdx_x=block, threadIdx_x=thread)
        for name in rows:
            schedule.compute_at(schedule.get_sblock(name), thread)
            schedule.set_scope(schedule.get_sblock(name), 0, "local")
        return schedule

    def softmax(self, n: Any, d: Any) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        m = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="m")
        e = te.compute((n, d), lambda i, j: te.exp(x[i, j] - m[i]), name="e")
        z = te.compute((n,), lambda i: te.sum(e[i, q], axis=q), name="z")
        y = te.compute((n, d), lambda i, j: e[i, j] / z[i], name="y")
        s = self.Schedule(te.create_prim_func([x, y]))
        s.compute_inline(s.get_sblock("e"))
        return self._row_of_a_thread(s, "zm")

    def layernorm(self, n: Any, d: Any) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        gamma, beta = te.placeholder((d,), name="gamma"), te.placeholder((d,), name="beta")
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        a = te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name="a")
        m = te.compute((n,), lambda i: a[i] / d, name="m")
        c = te.compute((n, d), lambda i, j: x[i, j] - m[i], name="c")
        v = te.compute((n,), lambda i: te.sum(c[i, q] * c[i, q], axis=q), name="v")
        r = te.compute((n,), lambda i: te.rsqrt(v[i] / d + 1e-5), name="r")
        y = te.compute((n, d), lambda i, j: c[i, j] * r[i] * gamma[j] + beta[j], name="y")
        s = self.Schedule(te.create_prim_func([x, gamma, beta, y]))
        s.compute_inline(s.get_sblock("c"))
        return self._row_of_a_thread(s, "rvma")

    def _tile(self, schedule: Any, block: str, split: Sequence[Sequence[int]]) -> Any:
        """Split the two outer loops to blocks, threads (and registers), and bind them."""
        loops = schedule.get_loops(schedule.get_sblock(block))
        by, ty, *vy = schedule.split(loops[0], [None, *split[0]])
        bx, tx, *vx = schedule.split(loops[1], [None, *split[1]])
        schedule.reorder(by, bx, ty, tx, *loops[2:], *vy, *vx)
        self._bind(schedule, blockIdx_y=by, blockIdx_x=bx, threadIdx_y=ty, threadIdx_x=tx)
        return tx, *loops[2:], *vy, *vx

    def transpose(self, n: Any, d: Any) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        y = te.compute((d, n), lambda i, j: x[j, i], name="y")
        s = self.Schedule(te.create_prim_func([x, y]))
        self._tile(s, "y", ([8], [32]))
        return s

    def gemm(self, m: Any, depth: Any, n: Any) -> Any:
        te = self.te
        a, b = te.placeholder((m, depth), name="a"), te.placeholder((depth, n), name="b")
        k = te.reduce_axis((0, depth), name="k")
        c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        s = self.Schedule(te.create_prim_func([a, b, c]))
        block = s.get_sblock("c")
        copy = s.cache_write(block, 0, "local")
        left, right = (s.cache_read(block, operand, "local") for operand in (0, 1))
        thread, inner, *registers = self._tile(s, "c", ([16, 4], [16, 4]))
        s.reverse_compute_at(copy, thread)
        s.compute_at(right, inner)
        s.compute_at(left, registers[0])
        s.decompose_reduction(block, inner)
        for loop in registers:  # as `#pragma unroll`, which is cheaper than TVM's own unrolling
            s.annotate(loop, "pragma_auto_unroll_max_step", 16)
            s.annotate(loop, "pragma_unroll_explicit", 0)
        return s


class Loopy:
    """loopy: its kernel language, its transforms, and OpenCL text, its caches off.

    OpenCL because its CUDA text knows no identity of a maximum.
    """

    label = "loopy"
    package = "loopy"

    def __init__(self) -> None:
        import loopy
        import numpy

        loopy.set_caching_enabled(False)
        self.lp, self.float32 = loopy, numpy.float32
        self.target = loopy.OpenCLTarget()

    def variables(self, count: int) -> tuple[Any, ...]:
        return ()

    def text(self, kernel: str, sizes: Sequence[Any]) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as the choice of its slower scheduler for gemm
            text: str = self.lp.generate_code_v2(getattr(self, kernel)(*sizes)).device_code()
        return text

    def _kernel(self, domain: str, code: str, y: tuple[int, ...], **inputs: tuple[int, ...]) -> Any:
        arg = partial(self.lp.GlobalArg, dtype=self.float32)
        args = [arg(name, shape=shape) for name, shape in inputs.items()]
        args.append(arg("y", shape=y, is_output=True))
        version = (2018, 2)
        return self.lp.make_kernel(
            domain, code, [*args, "..."], target=self.target, lang_version=version
        )

    def _split(self, kernel: Any, axis: str, factor: int, **tags: str) -> Any:
        names = {f"{place}_tag": tag.replace("_", ".") for place, tag in tags.items()}
        return self.lp.split_iname(kernel, axis, factor, **names)

    def bias_gelu(self, n: int, d: int) -> Any:
        code = """
            t := x[i, j] + bias[j]
            y[i, j] = t * 0.5f * (1.0f + erf(t * 0.70710678f))
        """
        domain = f"{{[i, j]: 0 <= i < {n} and 0 <= j < {d}}}"
        k = self._kernel(domain, code, (n, d), x=(n, d), bias=(d,))
        k = self._split(k, "j", 4, inner="unr")
        k = self._split(k, "j_outer", 128, outer="g_1", inner="l_0")
        return self.lp.tag_inames(k, "i:g.0")

    def _rows(self, code: str, n: int, d: int, **inputs: tuple[int, ...]) -> Any:
        domain = f"{{[i, k, q, j]: 0 <= i < {n} and 0 <= k, q, j < {d}}}"
        k = self._kernel(domain, code, (n, d), x=(n, d), **inputs)
        return self._split(k, "i", 128, outer="g_0", inner="l_0")

    def softmax(self, n: int, d: int) -> Any:
        code = """
            <> m = max(k, x[i, k])
            <> z = sum(q, exp(x[i, q] - m))
            y[i, j] = exp(x[i, j] - m) / z
        """
        return self._rows(code, n, d)

    def layernorm(self, n: int, d: int) -> Any:
        code = f"""
            <> m = sum(k, x[i, k]) / {d}
            <> v = sum(q, (x[i, q] - m) * (x[i, q] - m)) / {d}
            <> r = rsqrt(v + 1e-5f)  {{inames=i}}
            y[i, j] = (x[i, j] - m) * r * gamma[j] + beta[j]
        """
        return self._rows(code, n, d, gamma=(d,), beta=(d,))

    def transpose(self, n: int, d: int) -> Any:
        domain = f"{{[i, j]: 0 <= i < {d} and 0 <= j < {n}}}"
        k = self._kernel(domain, "y[i, j] = x[j, i]", (d, n), x=(n, d))
        k = self._split(k, "i", 8, outer="g_1", inner="l_1")
        return self._split(k, "j", 32, outer="g_0", inner="l_0")

    def gemm(self, m: int, depth: int, n: int) -> Any:
        domain = f"{{[i, j, k]: 0 <= i < {m} and 0 <= j < {n} and 0 <= k < {depth}}}"
        code = "y[i, j] = sum(k, a[i, k] * b[k, j])"
        k = self._kernel(domain, code, (m, n), a=(m, depth), b=(depth, n))
        for axis, place in (("i", 1), ("j", 0)):
            k = self._split(k, axis, 64, outer=f"g_{place}")
            k = self._split(k, f"{axis}_inner", 4, outer=f"l_{place}", inner="ilp_unr")
        return k
