"""Every kernel and schedule: right on every target and at every kind of size; machine code."""

from __future__ import annotations

import logging
import platform
import subprocess
from functools import lru_cache

import numpy as np
import pytest

import loopnest as ln
from end_to_end.test_goldens import CASES, of_type, typed
from kernels.attention import attention
from kernels.bias_gelu import bias_gelu
from kernels.dropout import dropout
from kernels.gemm import gemm
from kernels.int8_gemm import int8_gemm
from kernels.softmax import softmax
from loopnest.backends.cpu import c_compiler
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cpu.c_printer import print_c
from loopnest.devtools.harness import expected, judge, make_arguments, oracle
from loopnest.scalar.arguments import broken_condition

DIVISIBLE = {"N": 256, "D": 512, "M": 192, "K": 16, "B": 12, "H": 128, "C": 64, "S": 32}
DIVISIBLE |= {"I": 2, "O": 8, "P": 4, "T": 128, "X": 32, "Y": 16, "Z": 8}
DIVISIBLE |= {"V": 16, "E": 4, "Q": 64, "W": 16, "G": 3}
ODD = {"N": 37, "D": 41, "M": 67, "K": 19, "B": 7, "H": 35, "C": 21, "S": 45}
ODD |= {"I": 3, "O": 9, "P": 5, "T": 45, "X": 35, "Y": 11, "Z": 9}
ODD |= {"V": 11, "E": 3, "Q": 33, "W": 13, "G": 4}
DTYPES = (ln.float32, ln.float16)
TARGETS = ("interpret", "c") if find_compiler() else ("interpret",)


def size_cases(kernel, names):
    """Divisible, odd, 1 and 0 extents; and each extent 1 or 0 among odd ones.

    An attention has few heads: they are independent of each other, and each takes long. So have a
    batch norm and a rotary embedding few rows, which no schedule of theirs splits by more than 16.
    """
    heads = kernel.name.startswith("attention")
    rows = kernel.name in ("batchnorm", "rope")
    divisible = {**DIVISIBLE, **({"H": 2} if heads else {}), **({"N": 64} if rows else {})}
    odd = {**ODD, "H": 3} if heads else ODD
    if kernel.name in (
        "gated_delta_rule",
        "lstm_sequence",
        "seidel2d",
        "selective_scan",
        "smith_waterman",
    ):  # each step is as the one before
        few = {"T": 3, "M": 32, "N": 8, "H": 32}, {"T": 3, "M": 11, "N": 7, "H": 19}
        few = {**few[0], "S": 2}, {**few[1], "S": 3}
        divisible, odd = {**divisible, **few[0]}, {**odd, **few[1]}
    yield {name: divisible[name] for name in names}
    yield {name: odd[name] for name in names}
    for least in (1, 0):
        yield dict.fromkeys(names, least)
        for name in names:
            yield {**{n: odd[n] for n in names}, name: least}


def reads_nothing_at(kernel, sizes):
    """Whether there are indices, and no element that one of them could name."""
    table, indices = {
        "embedding": ("V", ("K",)),
        "embedding_grad": ("V", ("K",)),
        "spmv": ("M", ("E", "N")),
        "spmv_csr": ("M", ("Z",)),
    }.get(kernel.name, ("", ()))
    return bool(table) and sizes[table] == 0 and all(sizes[name] for name in indices)


@lru_cache(maxsize=32)  # the sizes of a kernel in both types
def asked_and_wanted(kernel, dtype, sizes):
    """Return arguments, and what math and reference give for them, whatever the schedule."""
    params = of_type(kernel, dtype)
    with ln.Fusion(kernel.name) as fusion:
        kernel.math(fusion, **params)
    arguments = make_arguments(fusion, dict(sizes), kernel.ranges)
    math = oracle(fusion, arguments)
    return arguments, (math, expected(kernel, fusion, arguments, params, exact=math))


@pytest.mark.parametrize(("kernel", "schedule", "dtype"), typed(CASES))
def test_kernel_is_right(kernel, schedule, dtype, caplog):
    caplog.set_level(logging.INFO, logger="loopnest")
    params = of_type(kernel, dtype)
    fusion = kernel.fusion(schedule, **params)
    lowered = ln.lower(fusion)
    level = {"optimize": 1 if dtype is ln.float32 else 0}  # gcc's time is half of the test's
    compiled = [
        ln.compile(lowered, target=target, **(level if target == "c" else {})) for target in TARGETS
    ]
    proofs = [m for record in caplog.records if (m := record.getMessage()).startswith("verify(")]
    assert proofs
    assert all(m.endswith("proved for all sizes") for m in proofs), proofs
    for sizes in size_cases(kernel, [symbol.name for symbol in fusion.symbols]):
        if broken_condition(fusion.facts.conditions, sizes):
            continue  # gpu_warp takes rows that are short, but not empty
        if reads_nothing_at(kernel, sizes):
            continue
        arguments, answers = asked_and_wanted(kernel, dtype, tuple(sizes.items()))
        keywords = arguments.keywords(fusion)
        for function in compiled:
            actual = function(*arguments.fresh(), **keywords)
            for wanted in answers:
                for verdict in judge(fusion, sizes, actual, wanted):
                    assert verdict.ok, f"{function.target} at {sizes}: {verdict}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "params",
    [{"lanes": 1}, {"depth": 16, "stages": 3}, {"dtype": ln.float16, "depth": 32}],
    ids=str,
)
def test_gemm_is_right_with_other_parameters(params, target):
    lowered = gemm.lower("gpu", threads=2, **params)
    options = {"optimize": 1} if target == "c" else {}
    function = ln.compile(lowered, target=target, **options)
    fusion = gemm.fusion("gpu", threads=2, **params)
    for sizes in ({"M": 5, "K": 7, "N": 9}, {"M": 8, "K": 8, "N": 8}):
        arguments = make_arguments(fusion, sizes, gemm.ranges)
        actual = function(*arguments.fresh())
        for verdict in judge(fusion, sizes, actual, oracle(fusion, arguments)):
            assert verdict.ok, f"at {sizes}: {verdict}"


def test_inputs_in_place_are_overwritten_and_returned():
    from kernels.adam import adam

    fusion = adam.fusion("cpu")
    arguments = make_arguments(fusion, {"N": 5000}, adam.ranges)
    arrays = arguments.fresh()
    results = adam(*arrays, **arguments.scalars)
    assert [result is arrays[i] for result, i in zip(results, (0, 2, 3), strict=True)] == [True] * 3
    np.testing.assert_array_equal(arrays[1], arguments.arrays[1])


@pytest.mark.parametrize(
    ("kernel", "schedule", "dtype"), typed([c for c in CASES if "@gpu" in c.id])
)
def test_gpu_schedule_compiles_without_spills(kernel, schedule, dtype):
    """Each schedule on both architectures, which have registers alike: with one type on each."""
    pytest.importorskip("cuda.bindings.nvrtc")
    parameters = of_type(kernel, dtype)
    lowered = kernel.lower(schedule, **parameters)
    one = ("sm_90",) if dtype is ln.float32 else ("sm_80",)
    for arch in one if parameters else ("sm_80", "sm_90"):
        sizes = {p.name: kernel.sizes[p.name] for p in lowered.params if p.kind == "size"}
        found = lowered.resources(arch, **sizes)
        assert (found.spill_bytes, found.stack_bytes) == (0, 0), arch
        assert found.shared_bytes == lowered.launch(**sizes).shared_bytes, arch


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_bytes_go_in_accesses_of_16(arch):
    """And four products of int8 and their sum are one instruction."""
    pytest.importorskip("cuda.bindings.nvrtc")
    code = int8_gemm.lower("gpu").sass(arch)
    for opcode in ("LDG.E.128", "STS.128", "LDS.128", "IDP.4A.S8.S8"):
        assert opcode in code
    for opcode in ("LDG.E.S8", "LDG.E.U8", "STS.U8", "LDS.S8"):
        assert opcode not in code


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neighbours_share_a_block_of_the_random_generator(dtype, arch):
    """Its ten rounds have two multiplications each; four elements need them once."""
    pytest.importorskip("cuda.bindings.nvrtc")
    code = dropout.lower("gpu", dtype=dtype).sass(arch)
    assert code.count("LDG.E.128") == code.count("STG.E.128") == 1
    assert code.count("IMAD.WIDE.U32") <= 20 * (16 // dtype.size) // 4 + 4


def assembly(lowered, bits, folder):
    """Return what the compiler of the "c" target makes of a kernel for a CPU with AVX2 and FMA."""
    compiler = find_compiler()
    if compiler is None or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("reads the assembly of a compiler for x86-64")
    (folder / "kernel.c").write_text(print_c(lowered.program, index_bits=bits), encoding="utf-8")
    threads = c_compiler._features(compiler).threads
    flags = [*c_compiler._FLAGS, "-O3", "-march=haswell", *threads, "-S", "-o", "-", "kernel.c"]
    command = [*compiler.command, *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kernel", [bias_gelu, softmax], ids=lambda kernel: kernel.name)
def test_rows_are_read_as_vectors(kernel, bits, tmp_path):
    """With 32-bit indices that might wrap, neighbours would be gathered one by one."""
    code = assembly(kernel.lower("cpu"), bits, tmp_path)
    assert "vfmadd" in code
    assert "gather" not in code
    assert "scatter" not in code


def test_a_kernel_of_a_symbolic_local_row_has_no_cuda_text():
    with pytest.raises(ln.LoweringError) as caught:
        softmax.lower("cpu").cuda()
    assert str(caught.value) == (
        "e: its LOCAL buffer has the symbolic size D, while registers on target 'cuda' need a "
        "static one; e = exp(shifted) has the axes [i0: N, i1: ceildiv(D, 16), i2: 16], of which "
        "it shares the leading 1 with its consumers; inline it deeper (compute_at a consumer, or "
        "ln.propagate from one and then inline_most), compute it again (recompute=True), split "
        "its axis by a constant, or set its memory to SHARED or GLOBAL"
    )


def test_a_tensor_that_is_left_out_has_no_buffer():
    """Where no statement stores it: `loopnest run` looked for its buffer, and broke off."""
    kernel = attention.lower("cpu")
    held = {tensor.buffer for tensor in kernel.tensors}
    assert None in held
    assert held - {None} <= {buffer.name for buffer in kernel.buffers}
