"""Rows of scope "thread": their C text against their behaviour, in kernels and by the compiler."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import loopnest as ln
from helpers.dot_products import dot_product
from loopnest.kir import instruction_table
from loopnest.proofs.verifier import verify_program
from mutation.mutants import mutants

ROWS = [name for name, row in ln.instructions.items() if row.c]
SIZES = [(1, 1, 1), (3, 32, 4), (7, 33, 5), (20, 80, 70)]
FLAGS = {"avx512bf16": "avx512_bf16", "avx512vnni": "avx512_vnni"}
"""What Linux calls an extension, by its name in compilers."""

Array = npt.NDArray[np.generic]


def processor_flags() -> set[str]:
    """Return the extensions of this machine's processor, as Linux names them."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def needs_row(name: str) -> None:
    """Skip a test where the processor lacks what a row needs."""
    flag = FLAGS[ln.instructions[name].arch]
    if flag not in processor_flags():
        pytest.skip(f"the processor has no {flag}")


def operands(name: str, m: int, n: int, k: int, seed: int = 0) -> list[Array]:
    """Return operands, integers of the whole range among them."""
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    for role, shape in (("a", (m, k)), ("b", (k, n))):
        dtype = ln.instructions[name].operands[role].dtype
        if dtype.is_float:
            found.append((rng.standard_normal(shape) * 3).astype(dtype.numpy))
        else:
            info = np.iinfo(dtype.numpy)
            found.append(rng.choice([info.min, info.max, 1, 0], shape).astype(dtype.numpy))
    return found


def assert_right(f: ln.Fusion | ln.Kernel, run: ln.Compiled, arrays: list[Array]) -> None:
    found, wanted = run(*arrays), ln.evaluate(f, *arrays)
    bound = ln.error_bound(f, *arrays, target=run.target)
    difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    assert np.all(difference <= bound)


@pytest.mark.parametrize("name", ROWS)
def test_proofs_of_all_sizes(name: str) -> None:
    kernel = ln.lower(dot_product(name))
    assert str(ln.verify(kernel)) == "proved for all sizes"
    again = ln.Kernel.parse(kernel.text(full=True))
    assert str(again) == str(kernel)
    assert again.c() == kernel.c()


@pytest.mark.parametrize("name", ROWS)
def test_ragged_sizes(name: str) -> None:
    """The instruction, loops in its place, and the interpreter give what the math does."""
    needs_row(name)
    f = dot_product(name)
    runs = [ln.compile(f, target=target) for target in ("c", "interpret")]
    for sizes in SIZES:
        for run in runs:
            assert_right(f, run, operands(name, *sizes))


@pytest.mark.parametrize("name", ROWS)
def test_processors_without_the_instruction(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -march=x86-64")
    f = dot_product(name)
    run = ln.compile(f, target="c")
    for sizes in SIZES:
        assert_right(f, run, operands(name, *sizes))


@pytest.mark.parametrize("name", ROWS)
def test_the_text_compiles_for_a_processor_that_has_it(name: str, tmp_path: Path) -> None:
    """Any compiler for x86-64 has the intrinsics; the instruction stands in what it makes."""
    compiler = shutil.which("cc")
    row = ln.instructions[name]
    assert compiler is not None
    source = tmp_path / "kernel.c"
    source.write_text(ln.lower(dot_product(name)).c())
    flags = ["-O3", "-mavx512f", f"-m{row.arch}", "-S", "-o", "-"]
    made = subprocess.run([compiler, *flags, source], capture_output=True, text=True, check=False)
    if "unrecognized" in made.stderr or "unknown" in made.stderr:
        pytest.skip(f"{compiler} knows no -m{row.arch}")
    assert made.returncode == 0, made.stderr
    wanted = {"bf16": "vdpbf16ps", "s16": "vpdpwssd", "s8": "vpdpbusd"}[name.rpartition(".")[2]]
    assert f"\t{wanted}\t" in made.stdout


def test_subnormal_numbers_are_zeros() -> None:
    """The row says that it flushes, so that results lie within the bound of "c"."""
    name = "dot.n16k2.f32.bf16"
    needs_row(name)
    f = dot_product(name)
    a = np.full((1, 1), 2.0**-130, ln.bfloat16.numpy)
    b = np.full((1, 1), 2.0**100, ln.bfloat16.numpy)
    found = ln.compile(f, target="c")(a, b)
    assert found[0, 0] == 0
    assert ln.error_bound(f, a, b, target="c")[0, 0] >= 2.0**-30
    assert ln.error_bound(f, a, b, target="interpret")[0, 0] < 2.0**-50
    small, one = np.full((1, 2), 2.0**-126, np.float32), np.ones((2, 1), np.float32)
    tiny = [x.astype(ln.bfloat16.numpy) for x in (small * [[1.25, -1]], one)]
    away = abs(ln.compile(f, target="c")(*tiny)[0, 0] - ln.evaluate(f, *tiny)[0, 0])
    assert away <= ln.error_bound(f, *tiny, target="c")[0, 0]


def test_another_target_has_no_text_of_it() -> None:
    row = ln.instructions["dot.n16k4.s32.s8"]
    with ln.Fusion("small") as f:
        a, b = f.input("a", (1, 4), ln.int8), f.input("b", (4, 16), ln.int8)
        c = f.output(ln.matmul(a, b, dtype=ln.int32), "c")
    total = c.cache_before()
    copies = [x.cache_after() for x in (a, b)]
    total.split(-1, 4)
    total.reorder({-2: 1})
    for copy in copies:
        copy.split(-1 if copy is copies[0] else 0, 4)
    total.instruct(row.name, axes=(-2, -1))
    ln.inline_most([t for t in f.tensors if t not in (a, b, *copies, total, c)], replay=True)
    message = (
        "small: the instruction dot.n16k4.s32.s8 has no PTX, which target 'cuda' needs; give its "
        "row a ptx, or run the kernel on another target"
    )
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f).cuda()
    assert str(caught.value) == message


@pytest.fixture
def table() -> Iterator[None]:
    """Give the rows back that a test adds."""
    kept = dict(instruction_table._table)
    yield
    instruction_table._table.clear()
    instruction_table._table.update(kept)


@pytest.mark.usefixtures("table")
def test_a_row_from_outside() -> None:
    """Any C does: a loop that a compiler makes vectors of."""
    eight = ln.Fragment("(n) -> () (n)", n=8)
    vector = ln.Operand(ln.float32, ("n",), eight, ln.LOCAL)
    one = ln.Operand(ln.float32, ("k",), ln.Fragment("(k) -> () (k)", k=1), ln.LOCAL)
    line = replace(vector, axes=("k", "n"), fragment=ln.Fragment("(k) (n) -> () (k n)", k=1, n=8))
    ln.add_instruction(
        ln.Instruction(
            "fma.n8", {"d": vector, "a": one, "b": line}, "d[n] = d[n] + a[k] * b[k, n]",
            arch="avx2", scope="thread", accuracy={"d": 2.0**-24},
            c="  for (int n = 0; n < 8; ++n) {d}[n] += {a}[0] * {b}[n];",
        )
    )  # fmt: skip
    f = dot_product("fma.n8")
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    assert "defined(__AVX2__)" in kernel.c()
    for sizes in SIZES:
        assert_right(f, ln.compile(kernel, target="c"), operands("fma.n8", *sizes))


def test_wrong_tiles_are_refuted() -> None:
    """Another row's name, operands for each other, digits of a fragment swapped."""
    kernel = ln.lower(dot_product("dot.n16k4.s32.s8"))._lowered
    wrong = [m for m in mutants(kernel.program, frozenset({"tile", "claim"})) if "tile" in m.text]
    kinds = {m.text.split(":")[0] for m in wrong}
    assert len(wrong) >= 8, kinds
    for mutant in wrong:
        report = verify_program(mutant.program, kernel.math())
        assert report.status == "refuted", mutant.text
