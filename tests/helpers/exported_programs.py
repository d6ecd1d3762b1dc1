"""C programs without Python that call an exported kernel: a `main` for any, by its manifest."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

import loopnest as ln
from kernels.adam import adam
from kernels.column_sum import column_sum
from kernels.cumsum import cumsum_long
from kernels.embedding import embedding
from kernels.gemm import gemm
from kernels.row_sum import row_sum
from kernels.softmax import softmax
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.devtools.harness import Arguments, make_arguments

CASES = [
    (row_sum, "gpu", {"N": 5, "D": 64}),  # a reduction over threads
    (row_sum, "gpu", {"N": 5, "D": 67}),  # its scalar variant
    (row_sum, "gpu", {"N": 5, "D": 0}),
    (softmax, "cpu", {"N": 7, "D": 100}),
    (cumsum_long, "gpu", {"N": 5000}),  # a scan of several blocks, with workspace
    (column_sum, "gpu", {"N": 300, "D": 70}),  # counters in the workspace
    (column_sum, "gpu_launches", {"N": 300, "D": 70}),  # two launches
    (gemm, "cpu", {"M": 33, "N": 17, "K": 9}),
    (adam, "cpu", {"N": 100}),  # in place, with scalars
    (embedding, "cpu", {"K": 9, "D": 8, "V": 11}),
]
EXPORTED = [
    pytest.param(*c, id=f"{c[0].label(c[1])}-{'-'.join(map(str, c[2].values()))}") for c in CASES
]
"""Kernels, a schedule of each, and sizes, that are called from outside as Python calls them."""


@dataclass(frozen=True)
class Called:
    """A kernel as Python calls it: what it is given, and what it gives."""

    fusion: ln.Fusion
    lowered: ln.Kernel
    sizes: dict[str, int]
    made: Arguments
    wanted: tuple[np.ndarray, ...]


def called(kernel, schedule, sizes):
    fusion = kernel.fusion(schedule)
    lowered = ln.lower(fusion)
    names = [symbol.name for symbol in fusion.symbols]
    sizes = {name: sizes.get(name, kernel.sizes[name]) for name in names}
    made = make_arguments(fusion, sizes, kernel.ranges)
    wanted = ln.compile(lowered, target="c")(*made.fresh(), **made.keywords(fusion))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    return Called(fusion, lowered, sizes, made, wanted)


MAIN = """\
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "{name}.h"

/* Arguments: bytes of each array, then scalars, then sizes. Arrays lie in files N.bin. */
static void *array(const char *bytes, int number) {{
  char path[32];
  size_t count = (size_t)atoll(bytes);
  char *data = malloc(count + 1);
  sprintf(path, "%d.bin", number);
  FILE *file = fopen(path, "rb");
  if (file == NULL || fread(data, 1, count, file) != count) exit(90);
  fclose(file);
  return data;
}}

int main(int argc, char **argv) {{
  if (argc != 1 + {count}) return 91;
{arrays}
  const int64_t bytes = {name}_workspace({sizes});
  if (bytes < 0) {{
    printf("%s", {name}_sentence((int)-bytes));
    return 1;
  }}
  void *workspace = bytes > 0 ? malloc((size_t)bytes) : NULL;
  if (workspace != NULL) memset(workspace, 0xA5, (size_t)bytes);
  const int status = {name}_run({arguments}, workspace, bytes);
  printf("%s", {name}_sentence(status));
{written}
  return status != 0;
}}
"""


def main_of(manifest):
    """Return the text of a program that runs the kernel of a manifest once."""
    name = manifest["entry"]["run"].removesuffix("_run")
    params = [p for p in manifest["parameters"] if p["kind"] != "workspace"]
    order = {"input": 0, "output": 0, "scalar": 1, "size": 2}
    params.sort(key=lambda p: order[p["kind"]])
    arrays, arguments, written = [], [], []
    for number, param in enumerate(params):
        given = f"argv[{number + 1}]"
        if order[param["kind"]] == 0:
            arrays.append(f"  void *const a{number} = array({given}, {number});")
            arguments.append(f"a{number}")
            written.append(f"""\
  {{
    char path[32];
    sprintf(path, "%d.out", {number});
    FILE *file = fopen(path, "wb");
    fwrite(a{number}, 1, (size_t)atoll({given}), file);
    fclose(file);
  }}""")
        elif param["kind"] == "scalar":
            arguments.append(f"({param['c_type']})atof({given})")
        else:
            arguments.append(f"(int64_t)atoll({given})")
    sizes = [a for a, p in zip(arguments, params, strict=True) if p["kind"] == "size"]
    return MAIN.format(
        name=name, count=len(params), arrays="\n".join(arrays), sizes=", ".join(sizes),
        arguments=", ".join(arguments), written="\n".join(written),
    )  # fmt: skip


def build(folder, text, language="c"):
    """Compile a program against the library of an export in `folder`; return its path."""
    name = json.loads((folder / "manifest.json").read_text())["entry"]["run"].removesuffix("_run")
    source = folder.parent / f"{name}_main.{language}"
    source.write_text(text)
    command = [*find_compiler().command] if language == "c" else ["c++"]
    made = folder.parent / f"{name}_main_{language}"
    strict = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-result"]
    subprocess.run(
        [*command, *strict, "-I", str(folder), str(source), "-L", str(folder), f"-l{name}",
         f"-Wl,-rpath,{folder}", "-o", str(made)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return made


def run(folder, program, manifest, inputs, shapes, sizes, scalars=None):
    """Run a program of `main_of` on arrays; return what it says, and all arrays afterwards.

    Args:
        folder: to run in.
        program: its path.
        manifest: of the export.
        inputs: the arrays of the inputs.
        shapes: of the outputs that are parameters, with types.
        sizes, scalars: by name.
    """
    arrays = [*[a.copy() for a in inputs], *[np.full(s, 7).astype(t) for s, t in shapes]]
    for number, array in enumerate(arrays):
        (folder / f"{number}.bin").write_bytes(array.tobytes())
    values = {**(scalars or {}), **sizes}
    kinds = ("scalar", "size")
    names = [p["name"] for k in kinds for p in manifest["parameters"] if p["kind"] == k]
    given = [str(a.nbytes) for a in arrays] + [repr(values[name]) for name in names]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [str(program), *given], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode in (0, 1), done
    if done.returncode == 0:
        for number, array in enumerate(arrays):
            data = np.frombuffer((folder / f"{number}.out").read_bytes(), array.dtype)
            arrays[number] = data.reshape(array.shape)
    return done.stdout, arrays
