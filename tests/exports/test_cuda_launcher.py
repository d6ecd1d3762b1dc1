"""Kernels exported for a GPU: the launcher in C, run with a driver that records its calls."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

import loopnest as ln
from helpers.fake_gpu import FakeGpu, plug_in
from kernels.column_sum import column_sum
from kernels.cumsum import cumsum_long
from kernels.row_sum import row_sum
from kernels.softmax import softmax
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.launch.launch_plan import Planner

# What <cuda.h> declares of these functions, and functions that write down how they are called.
CUDA_H = """
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H
#include <stddef.h>
typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
#define CUDA_SUCCESS 0
#define CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES 8
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleUnload(CUmodule);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuFuncSetAttribute(CUfunction, int, int);
CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t, CUstream);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void **, void **);
CUresult cuLaunchCooperativeKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream, void **);
#endif
"""

FAKE = """
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "{name}.h"

static int no_machine_code;

CUresult cuModuleLoadData(CUmodule *module, const void *code) {{
  int elf = memcmp(code, "\\177ELF", 4) == 0;
  if (elf && no_machine_code) return 209;
  printf("load %s\\n", elf ? "cubin" : "ptx");
  *module = (CUmodule)malloc(1);
  return 0;
}}
CUresult cuModuleUnload(CUmodule module) {{ free(module); return 0; }}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {{
  (void)module;
  *function = (CUfunction)strdup(name);
  return 0;
}}
CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {{
  printf("attribute %s %d %d\\n", (char *)function, attribute, value);
  return 0;
}}
CUresult cuMemsetD8Async(CUdeviceptr place, unsigned char value, size_t bytes, CUstream stream) {{
  (void)stream;
  printf("memset %llu %d %zu\\n", place, value, bytes);
  return 0;
}}
CUresult cuLaunchKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned x, unsigned y,
                        unsigned z, unsigned shared, CUstream stream, void **arguments,
                        void **extra) {{
  (void)stream; (void)extra;
  printf("launch %s %u %u %u %u %u %u %u:", (char *)f, a, b, c, x, y, z, shared);
  for (int n = 0; n < {count}; ++n) printf(" %llu", *(unsigned long long *)arguments[n]);
  printf("\\n");
  return {result};
}}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned a, unsigned b, unsigned c, unsigned x,
                                   unsigned y, unsigned z, unsigned shared, CUstream stream,
                                   void **arguments) {{
  return cuLaunchKernel(f, a, b, c, x, y, z, shared, stream, arguments, NULL);
}}

int main(int argc, char **argv) {{
  {name}_kernel *kernel;
  no_machine_code = argc > 1 && argv[1][0] == 'p';
  int status = {name}_open(argc > 2 ? argv[2] : ".", &kernel);
  if (status == 0) {{
    status = {name}_run(kernel, {arguments}, 1 << 20, {workspace}, NULL);
    {name}_close(kernel);
  }}
  printf("%s", {name}_sentence(status));
  return 0;
}}
"""


def launched(kernel, folder, sizes, places, workspace=1 << 20, result=0, arguments=()):
    """Export a kernel, call it once through its launcher, and return the lines of the driver."""
    kernel.export(folder, target="cuda", prove=False)
    name = kernel.name
    params = [p for p in kernel.params if p.kind != "workspace"]
    values = iter(places)
    given = [str(next(values)) if p.kind != "size" else str(sizes[p.name]) for p in params]
    cuda = folder.parent / "include"
    cuda.mkdir(exist_ok=True)
    (cuda / "cuda.h").write_text(CUDA_H)
    text = FAKE.format(
        name=name, arguments=", ".join(given), workspace=workspace, result=result,
        count=len(kernel.params),
    )  # fmt: skip
    (folder.parent / "main.c").write_text(text)
    program = folder.parent / "main"
    subprocess.run(
        [*find_compiler().command, "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{cuda}",
         f"-I{folder}", str(folder / f"{name}.c"), str(folder.parent / "main.c"), "-o",
         str(program)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    done = subprocess.run(
        [str(program), *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


CASES = [
    (row_sum, "gpu", {"N": 5, "D": 64}),
    (row_sum, "gpu", {"N": 5, "D": 67}),
    (softmax, "gpu_shared", {"N": 3, "D": 9000}),
    (cumsum_long, "gpu", {"N": 5000}),
    (cumsum_long, "gpu_launches", {"N": 5000}),
    (column_sum, "gpu", {"N": 300, "D": 70}),
]


@pytest.mark.parametrize(
    ("kernel", "schedule", "sizes"),
    [pytest.param(*c, id=f"{c[0].label(c[1])}-{'-'.join(map(str, c[2].values()))}") for c in CASES],
)
def test_launches_are_those_of_python(kernel, schedule, sizes, tmp_path):
    lowered = kernel.lower(schedule)
    arrays = [p for p in lowered.params if p.kind in ("input", "output")]
    places = [1 << (24 + n) for n in range(len(arrays))]
    lines = launched(lowered, tmp_path / "export", sizes, places)
    assert lines[-1] == "it ran"
    launches = [line.split(":") for line in lines if line.startswith("launch")]
    scalar = lowered.scalar
    planner = Planner(lowered.program, None if scalar is None else lambda: scalar.program)
    plan = planner.plan(sizes, "k")
    assert len(launches) == len(plan.config.launches)
    for (head, given), config, part in zip(
        launches, plan.config.launches, plan.program.launches, strict=True
    ):
        numbers = [int(word) for word in head.split()[2:]]
        own = Planner(part)
        dynamic = config.shared_bytes if own.shared[0].is_dynamic else 0
        assert numbers == [*config.grid, *config.block, dynamic]
        values = [int(word) for word in given.split()]
        wanted = [*places, *[sizes[p.name] for p in lowered.params if p.kind == "size"]]
        assert values[: len(wanted)] == wanted
        assert all(value >= 1 << 20 for value in values[len(wanted) :])  # in the workspace
    counters = [p for p in plan.program.params if p.buffer and p.buffer.kind == "counter"]
    waits = any(part.is_cooperative for part in plan.program.launches)
    assert len([line for line in lines if line.startswith("memset")]) == len(counters) + waits


def test_addresses_choose_the_variant(tmp_path):
    """Vectors of 16 bytes read no array that lies elsewhere."""
    kernel = row_sum.lower("gpu")
    for place, blocks in ((1 << 24, "128"), ((1 << 24) + 4, "128")):
        lines = launched(kernel, tmp_path / "export", {"N": 5, "D": 64}, [place, 1 << 25])
        assert lines[-2].split()[5] == blocks
    loads = [line for line in lines if line.startswith("load")]
    assert loads == ["load cubin"] * 4  # two variants, in two widths


def test_ptx_where_the_gpu_has_no_machine_code(tmp_path):
    lines = launched(
        row_sum.lower("cpu"), tmp_path / "export", {"N": 5, "D": 64}, [1 << 24, 1 << 25],
        arguments=("p",),
    )  # fmt: skip
    assert {line for line in lines if line.startswith("load")} == {"load ptx"}


def test_statuses(tmp_path):
    kernel, sizes, places = cumsum_long.lower("gpu"), {"N": 5000}, [1 << 24, 1 << 25]
    folder = tmp_path / "export"
    short = "the workspace has fewer bytes than cumsum_long_workspace says, or is NULL"
    assert launched(kernel, folder, sizes, places, workspace=16)[-1] == short
    said = launched(kernel, folder, sizes, places, result=700)[-1]
    assert said == "the driver refused a call"
    said = launched(kernel, folder, sizes, places, arguments=("c", "/nowhere"))[-1]
    assert said == "a file of the export is missing or cannot be read"
    overlap = "an array that is written has memory in common with another"
    assert launched(kernel, folder, sizes, [1 << 24, (1 << 24) + 8])[-1] == overlap


def test_load_runs_the_machine_code_of_the_folder(tmp_path, monkeypatch):
    """On a GPU of another major version the PTX."""
    kernel = row_sum.lower("gpu")
    gpu = plug_in(monkeypatch, FakeGpu())
    digest = kernel.export(tmp_path, target="cuda", arch="sm_90", prove=False)
    before = len(gpu.calls("compile"))
    run = ln.load(tmp_path, digest=digest)
    x = np.ones((3, 64), np.float32)
    np.testing.assert_array_equal(run(x), [64] * 3)
    assert run.target == "cuda"
    assert len(gpu.calls("compile")) == before
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["built"]["code"]["0_32"] == "row_sum_variant0_32.cubin"
