"""Compile the benchmark kernels with Triton and TVM; run by `compare_sass.py` in their environment.

    PEERS/bin/python tools/sass_peers.py sm_90 bias_gelu=4096,1024 gemm=1024,1024,1024

prints JSON: a line for each package, and for each peer and kernel machine code (Triton) or CUDA
(TVM), how many threads a launch has, and its bytes of shared memory where the peer says so. No GPU
is needed. Imports nothing of loopnest.

Triton's kernels are those of its tutorials, with sizes as constants and no masks, since the sizes
are multiples of the tiles; `gemm` multiplies in full float32 ("ieee"), on the same units as ours.
TVM's are tensor expressions under the default GPU schedules of DLight.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Found = dict[str, Any]
"""Of one kernel: "cubin" (base64) or "cuda", "blocks", "threads", "shared"; or "missing": why."""


# Triton

try:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as nvcc does; unset, it warns
    import triton
    import triton.language as tl
except ImportError:
    triton = None
else:

    @triton.jit
    def bias_gelu(x, bias, y, D: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        h = tl.load(x + row * D + column) + tl.load(bias + column)
        tl.store(y + row * D + column, 0.5 * h * (1 + tl.erf(h * 0.7071067811865476)))

    @triton.jit
    def softmax(x, y, D: tl.constexpr):
        place = tl.program_id(0) * D + tl.arange(0, D)
        row = tl.load(x + place)
        e = tl.exp(row - tl.max(row, axis=0))
        tl.store(y + place, e / tl.sum(e, axis=0))

    @triton.jit
    def layernorm(x, gamma, beta, y, D: tl.constexpr, EPS: tl.constexpr):
        column = tl.arange(0, D)
        place = tl.program_id(0) * D + column
        row = tl.load(x + place)
        centered = row - tl.sum(row, axis=0) / D
        variance = tl.sum(centered * centered, axis=0) / D
        scaled = centered * tl.rsqrt(variance + EPS)
        tl.store(y + place, scaled * tl.load(gamma + column) + tl.load(beta + column))

    @triton.jit
    def transpose(x, y, N: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr):
        row = tl.program_id(0) * TILE + tl.arange(0, TILE)
        column = tl.program_id(1) * TILE + tl.arange(0, TILE)
        tile = tl.load(x + row[:, None] * D + column[None, :])
        tl.store(y + column[:, None] * N + row[None, :], tl.trans(tile))

    @triton.jit
    def gemm(
        a, b, c, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        depth = tl.arange(0, DEPTH)
        left = a + row[:, None] * K + depth[None, :]
        right = b + depth[:, None] * N + column[None, :]
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for _ in range(0, K, DEPTH):
            total = tl.dot(tl.load(left), tl.load(right), total, input_precision="ieee")
            left += DEPTH
            right += DEPTH * N
        tl.store(c + row[:, None] * N + column[None, :], total)


class Triton:
    """Triton: machine code by its own pipeline and assembler."""

    label = "Triton"
    package = "triton"

    def __init__(self, arch: str) -> None:
        if triton is None:
            raise ImportError("it is not installed here")
        self.arch = int(arch.removeprefix("sm_"))

    def kernel(self, name: str, sizes: Sequence[int]) -> Found:
        arguments, options, blocks = getattr(self, f"_{name}")(*sizes)
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        pointers = [p for p in globals()[name].arg_names if p not in arguments]
        source = ASTSource(
            fn=globals()[name],
            signature=dict.fromkeys(pointers, "*fp32") | dict.fromkeys(arguments, "constexpr"),
            constexprs=arguments,
            attrs={(place,): [["tt.divisibility", 16]] for place in range(len(pointers))},
        )
        made = triton.compile(source, target=GPUTarget("cuda", self.arch, 32), options=options)
        return {
            "cubin": base64.b64encode(made.asm["cubin"]).decode(),
            "blocks": blocks,
            "threads": 32 * options["num_warps"],
            "shared": made.metadata.shared,
        }

    def _bias_gelu(self, n: int, d: int) -> tuple[Mapping[str, Any], Mapping[str, int], int]:
        return {"D": d, "BLOCK": 512}, {"num_warps": 4}, n * d // 512

    def _softmax(self, n: int, d: int) -> tuple[Mapping[str, Any], Mapping[str, int], int]:
        return {"D": d}, {"num_warps": 4}, n

    def _layernorm(self, n: int, d: int) -> tuple[Mapping[str, Any], Mapping[str, int], int]:
        return {"D": d, "EPS": 1e-5}, {"num_warps": 4}, n

    def _transpose(self, n: int, d: int) -> tuple[Mapping[str, Any], Mapping[str, int], int]:
        return {"N": n, "D": d, "TILE": 32}, {"num_warps": 4}, (n // 32) * (d // 32)

    def _gemm(self, m: int, depth: int, n: int) -> tuple[Mapping[str, Any], Mapping[str, int], int]:
        arguments = {"M": m, "K": depth, "N": n, "ROWS": 128, "COLUMNS": 128, "DEPTH": 8}
        return arguments, {"num_warps": 8, "num_stages": 2}, (m // 128) * (n // 128)


# TVM


class Tvm:
    """Apache TVM: tensor expressions, DLight's default GPU schedules, CUDA source."""

    label = "TVM"
    package = "apache-tvm"

    def __init__(self, arch: str) -> None:
        import tvm
        import tvm_ffi
        from tvm import te, tirx
        from tvm.s_tir import dlight
        from tvm.tirx.build import split_host_device_mods

        self.tvm, self.te, self.tirx, self.dlight = tvm, te, tirx, dlight
        self._split_host = split_host_device_mods
        # Where there is a CUDA compiler, TVM would run it: only the text is wanted.
        tvm_ffi.register_global_func(
            "tvm_callback_cuda_compile", lambda code, *_: b"", override=True
        )
        limits = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 48 * 1024}
        self.target = tvm.target.Target({"kind": "cuda", "arch": arch, **limits}, host="c")

    def kernel(self, name: str, sizes: Sequence[int]) -> Found:
        func = getattr(self, f"_{name}")(*sizes).with_attr("global_symbol", name)
        module = self.tvm.IRModule({name: func})
        gpu = self.dlight.gpu
        rules = (gpu.Matmul, gpu.GEMV, gpu.Reduction, gpu.GeneralReduction, gpu.Transpose,
                 gpu.Fallback)  # fmt: skip
        with self.target:
            module = self.dlight.ApplyDefaultSchedule(*[rule() for rule in rules])(module)
        blocks, threads = _launch(str(module))
        module = self.tirx.transform.BindTarget(self.target)(module)
        passes, _, finalize_device = self.tirx.get_tir_pipeline("s_tir")
        _, devices = self._split_host(passes(module))
        ((target, device),) = devices.items()
        build = self.tvm.get_global_func("target.build.cuda")
        text = build(finalize_device()(device), target).inspect_source()
        return {"cuda": text, "blocks": blocks, "threads": threads}

    def _bias_gelu(self, n: int, d: int) -> Any:
        te = self.te
        x, bias = te.placeholder((n, d), name="x"), te.placeholder((d,), name="bias")
        t = te.compute((n, d), lambda i, j: x[i, j] + bias[j], name="t")
        y = te.compute((n, d), lambda i, j: t[i, j] * 0.5 * (1.0 + te.erf(t[i, j] * 2**-0.5)), "y")
        return te.create_prim_func([x, bias, y])

    def _softmax(self, n: int, d: int) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        m = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="m")
        e = te.compute((n, d), lambda i, j: te.exp(x[i, j] - m[i]), name="e")
        z = te.compute((n,), lambda i: te.sum(e[i, q], axis=q), name="z")
        y = te.compute((n, d), lambda i, j: e[i, j] / z[i], name="y")
        return te.create_prim_func([x, y])

    def _layernorm(self, n: int, d: int) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        gamma, beta = te.placeholder((d,), name="gamma"), te.placeholder((d,), name="beta")
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        a = te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name="a")
        c = te.compute((n, d), lambda i, j: x[i, j] - a[i] / d, name="c")
        v = te.compute((n,), lambda i: te.sum(c[i, q] * c[i, q], axis=q), name="v")
        y = te.compute(
            (n, d), lambda i, j: c[i, j] * te.rsqrt(v[i] / d + 1e-5) * gamma[j] + beta[j], name="y"
        )
        return te.create_prim_func([x, gamma, beta, y])

    def _transpose(self, n: int, d: int) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        return te.create_prim_func([x, te.compute((d, n), lambda i, j: x[j, i], name="y")])

    def _gemm(self, m: int, depth: int, n: int) -> Any:
        te = self.te
        a, b = te.placeholder((m, depth), name="a"), te.placeholder((depth, n), name="b")
        k = te.reduce_axis((0, depth), name="k")
        c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        return te.create_prim_func([a, b, c])


def _launch(scheduled: str) -> tuple[int, int]:
    """Return blocks, and threads of a block, from the loops that a schedule binds to them."""
    bound = re.findall(r'thread_binding\((\d+), thread="((?:block|thread)Idx\.\w)"', scheduled)
    counts = {"blockIdx": 1, "threadIdx": 1}
    for tag, extent in {tag: int(extent) for extent, tag in bound}.items():
        counts[tag.partition(".")[0]] *= extent
    return counts["blockIdx"], counts["threadIdx"]


def compile_all(peer: Any, kernels: Mapping[str, Sequence[int]]) -> dict[str, Found]:
    """Return what a peer made of each kernel."""
    found = {}
    for name, sizes in kernels.items():
        try:
            found[name] = peer.kernel(name, sizes)
        except Exception as problem:  # whatever a peer dies of, the others go on
            found[name] = {"missing": f"{type(problem).__name__}: {problem}"}
    return found


def main(arch: str, *wanted: str) -> None:
    kernels = {
        name: tuple(map(int, sizes.split(","))) for name, sizes in (w.split("=") for w in wanted)
    }
    result: dict[str, Any] = {"notes": [], "peers": {}}
    kinds: tuple[type[Triton] | type[Tvm], ...] = (Triton, Tvm)
    for kind in kinds:
        package = kind.package
        try:
            peer = kind(arch)
        except Exception as problem:  # a missing package, or one of another make
            result["notes"].append(f"{package} left out: {problem}")
            continue
        result["notes"].append(f"{package} {importlib.metadata.version(package)}")
        result["peers"][peer.label] = compile_all(peer, kernels)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
