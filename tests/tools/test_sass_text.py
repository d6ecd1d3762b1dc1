"""tools/sass_text.py: blocks, loops and counts of disassembled machine code; compare_sass.py."""

import importlib
import sys
from pathlib import Path

import pytest

import loopnest as ln

TOOLS = Path(__file__).resolve().parents[2] / "tools"

TEXT = """
	.target	sm_90
//--------------------- .text.k  --------------------------
	.section	.text.k,"ax",@progbits
        .global         k
k:
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   HFMA2.MMA R9, -RZ, RZ, 0, 0 ;
        /*0020*/                   LDG.E.128.CONSTANT R4, desc[UR8][R2.64] ;
.L_x_1:
        /*0030*/                   FADD R4, R4, R5 ;
.L_x_2:
        /*0040*/                   LDS.128 R8, [R10] ;
        /*0050*/                   LDS R8, [R10] ;
        /*0060*/                   FFMA R4, R8, R9, R4 ;
        /*0070*/              @!P1 BRA `(.L_x_5) ;
        /*0080*/                   CALL.REL.NOINC `($__internal_0_$__cuda_div_slowpath) ;
.L_x_5:
        /*0090*/               @P0 BRA `(.L_x_2) ;
        /*00a0*/                   BRA.DIV UR4, `(.L_x_4) ;
        /*00b0*/                   SHFL.BFLY PT, R4, R4, 0x10, 0x1f ;
.L_x_6:
        /*00c0*/              @!P2 BRA `(.L_x_1) ;
        /*00d0*/              @!P3 STG.E desc[UR8][R2.64], R4 ;
        /*00e0*/                   EXIT ;
.L_x_4:
        /*00f0*/                   WARPSYNC.COLLECTIVE R15, `(.L_x_7) ;
.L_x_7:
        /*0100*/                   SHFL.BFLY PT, R4, R4, R5, R6 ;
        /*0110*/                   BRA `(.L_x_6) ;
        .type           $__internal_0_$__cuda_div_slowpath,@function
$__internal_0_$__cuda_div_slowpath:
        /*0120*/                   FADD.FTZ R8, R8, R19 ;
        /*0130*/                   RET.REL.NODEC R20 `(k) ;
.L_x_3:
        /*0140*/                   BRA `(.L_x_3);
        /*0150*/                   NOP;
.L_x_8:
"""


@pytest.fixture
def sass(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delitem(sys.modules, "sass_text", raising=False)
    return importlib.import_module("sass_text")


@pytest.fixture
def kernel(sass):
    (function,) = sass.functions(TEXT).values()
    return function


def test_names_guards_and_operands(sass):
    (function,) = sass.functions(TEXT).values()
    assert function.name == "k"
    store = next(i for i in function.code().instructions if i.name == "STG")
    assert (store.address, store.guard, store.opcode) == (0xD0, "!P3", "STG.E")
    assert store.operands == "desc[UR8][R2.64], R4"


def test_slow_paths_stand_apart(kernel):
    names = [i.name for i in kernel.code().instructions]
    assert "CALL" not in names
    assert "WARPSYNC" not in names
    assert len(names) == 14
    assert kernel.unusual == 1 + 3 + 2  # the call, the parted warp, the function called


def test_loops_are_found_and_the_innermost_is_hot(kernel):
    lengths = sorted([len(kernel.code(loop)) for loop in kernel.loops])
    assert lengths == [5, 9]
    assert [i.opcode for i in kernel.hot_loop.instructions] == [
        "LDS.128", "LDS", "FFMA", "BRA", "BRA"
    ]  # fmt: skip


def test_counts(kernel):
    code = kernel.code()
    assert code.accesses("LDS") == (1, 2)
    assert code.accesses("LDG") == (1, 1)
    assert code.accesses("STG") == (0, 1)
    assert code.names["SHFL"] == 1
    assert code.floats == 2  # HFMA2.MMA of zeros loads a constant


def test_code_without_loops(sass):
    text = TEXT.replace("@P0 BRA `(.L_x_2)", "NOP").replace("@!P2 BRA `(.L_x_1)", "NOP")
    (function,) = sass.functions(text).values()
    assert function.loops == ()
    assert function.hot_loop is None


def test_targets_by_address(sass):
    text = """
    Function : k
        /*0000*/                   MOV R1, c[0x0][0x28] ;  /* 0x00000a00ff017b82 */
                                                           /* 0x000fe20000000800 */
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0020*/              @!P0 BRA 0x10 ;
        /*0030*/                   EXIT ;
        /*0040*/                   BRA 0x40;
"""
    (function,) = sass.functions(text).values()
    assert [i.name for i in function.hot_loop.instructions] == ["IADD3", "BRA"]
    assert function.unusual == 0


def test_a_call_of_a_label_of_the_kernel_is_a_jump(sass):
    """As ptxas leaves a loop for sm_80: what follows the label belongs to the kernel."""
    text = """
	.section	.text.k,"ax",@progbits
.text.k:
.L_x_4:
        /*0000*/                   FFMA R12, R87, R12, R96 ;
        /*0010*/               @P0 CALL.REL.NOINC `(.L_x_1) ;
        /*0020*/                   BRA `(.L_x_4) ;
.L_x_1:
        /*0030*/                   STG.E.128 [R2.64], R28 ;
        /*0040*/                   EXIT ;
.L_x_5:
        /*0050*/                   BRA `(.L_x_5);
"""
    (function,) = sass.functions(text).values()
    assert [i.name for i in function.code().instructions] == ["FFMA", "CALL", "BRA", "STG", "EXIT"]
    assert [i.name for i in function.hot_loop.instructions] == ["FFMA", "CALL", "BRA"]
    assert function.unusual == 0


def test_a_compiled_kernel(sass):
    pytest.importorskip("cuda.bindings.nvrtc")
    from kernels.gemm import gemm

    (function,) = sass.functions(gemm.lower("gpu", whole=True).sass("sm_90")).values()
    loop = function.hot_loop
    assert loop.names["FFMA"] == 256  # 8 x 8 sums, 4 steps
    assert len(loop) < 1.2 * 256
    assert loop.accesses("LDS") == (16, 16)  # 8 of a and 8 of b a step
    wide, all_of_them = function.code().accesses("LDG")
    assert wide == all_of_them == 4


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    for name in ("compare_sass", "sass_text", "codegen_figures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("compare_sass")


def test_the_table_without_peers(tool, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    from click.testing import CliRunner

    file = tmp_path / "table.md"
    result = CliRunner().invoke(tool.main, ["-k", "bias_gelu", "--markdown", str(file)])
    assert result.exit_code == 0, result.output
    assert "loopnest alone, since no --peers was given" in result.output
    head, rule, row = [line for line in file.read_text().splitlines() if line.startswith("|")]
    assert head.startswith("| kernel | by | block | out | loop |")
    assert rule.count("|") == head.count("|") == row.count("|")
    assert row.startswith("| bias_gelu 4096x1024 | loopnest gpu | 128 | 4 | - |")


def test_what_is_worse_is_said(tool):
    from sass_text import Instruction

    def row(instructions, registers):
        made = tuple([Instruction(16 * n, "", "FADD", "") for n in range(instructions)])
        return tool.Row("x", tool.Code(made), None, 0, registers, 0, 128, 4)

    assert list(row(20, 32).worse_than(row(20, 32))) == []
    assert list(row(24, 40).worse_than(row(20, 32))) == [
        "instructions an element 6 against 5",
        "registers 40 against 32",
    ]


def test_help_says_how_to_make_the_peers(tool):
    from click.testing import CliRunner

    text = CliRunner().invoke(tool.main, ["--help"]).output
    for word in ("triton==3.9.0", "--peers", "nvcc", "slow paths"):
        assert word in text


def test_gpu_kernels_access_global_memory_by_vectors(sass):
    pytest.importorskip("cuda.bindings.nvrtc")
    from kernels.bias_gelu import bias_gelu
    from kernels.layernorm import layernorm
    from kernels.softmax import softmax

    # Rows that arrive while others are computed are loaded by LDGSTS alone.
    (function,) = sass.functions(softmax.lower("gpu_async", dtype=ln.float32).sass(90)).values()
    assert function.code().accesses("LDG") == (0, 0)
    for kernel in (bias_gelu, softmax, layernorm):
        for schedule in [s for s in kernel.schedules if s.startswith("gpu")]:
            (function,) = sass.functions(kernel.lower(schedule, dtype=ln.float32).sass(90)).values()
            arrives_in_flight = (kernel, schedule) == (softmax, "gpu_async")
            for name in ("STG",) if arrives_in_flight else ("LDG", "STG"):
                wide, count = function.code().accesses(name)
                assert wide == count > 0, (kernel.label(schedule), name)
