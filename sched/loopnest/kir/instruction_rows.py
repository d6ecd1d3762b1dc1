"""The rows of the package: tensor-core products and moves of CUDA, sums of products in C."""

from __future__ import annotations

from loopnest.kir.instruction_table import (
    LATER,
    Instruction,
    Operand,
    add_instruction,
    instructions,
)
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.fragments import Fragment

__all__ = ["LATER", "Instruction", "Operand", "add_instruction", "instructions"]

_UNIT = 2.0**-23
"""What a tensor core rounds sums to, relative to the largest magnitude."""

_TF32 = 2.0**-10
"""What a tensor core leaves of float32: the 10 bits of tf32, whatever stood below."""

_MEASURED = "NVIDIA H200, 2026-11-27 (tools/results)"
"""Where each lane map and the sums of products were measured by `tools/instruction_probe.py`."""

_VECTORS = "AMD EPYC with AVX-512, 2026-11-28 (tests/backends/cpu/test_vector_rows.py)"
"""Where the rows for C were compared with their behaviours."""


def _product(
    name: str, factor: DType, total: DType, width: int, ptx: str, accuracy: dict[str, float] | None
) -> None:
    """Add a product of 16 x K by K x 8; `width` neighbours along k share 32 bits."""
    digits = {"kh": 2, "t": 4, "p": width}
    a = Fragment("(mh g) (kh t p) -> (g t) (kh mh p)", mh=2, g=8, **digits)
    b = Fragment("(kh t p) (g) -> (g t) (kh p)", g=8, **digits)
    d = Fragment("(mh g) (t p) -> (g t) (mh p)", mh=2, g=8, t=4, p=2)
    operands = {
        "d": Operand(total, ("m", "n"), d),
        "a": Operand(factor, ("m", "k"), a),
        "b": Operand(factor, ("k", "n"), b),
    }
    left, right = [
        text if factor is total else f"{total}({text})" for text in ("a[m, k]", "b[k, n]")
    ]
    add_instruction(
        Instruction(
            name,
            operands,
            f"d[m, n] = d[m, n] + {left} * {right}",
            ptx=f"mma.sync.aligned.{ptx} {{d}}, {{a}}, {{b}}, {{d}};",
            accuracy=accuracy,
            witness=_MEASURED,
        )
    )


def _load_matrices(count: int) -> None:
    """Add the loads of `count` matrices of 8 rows of 16 bytes, which each lane names one of.

    Elements are bytes: any element whose bytes stay together may be moved. Transposed, two bytes
    stay together, and a lane has elements of one column.
    """
    suffixes = {
        "": ("(j) (r) (t p) -> (r t) (j p)", {"j": count, "r": 8, "t": 4, "p": 4}),
        ".trans": (
            "(j) (t p) (c q) -> (c t) (j p q)",
            {"j": count, "t": 4, "p": 2, "c": 8, "q": 2},
        ),
    }
    for suffix, (pattern, sizes) in suffixes.items():
        axes = ("matrix", "row", "byte")
        operands = {
            "d": Operand(dtypes.uint8, axes, Fragment(pattern, **sizes)),
            "s": Operand(dtypes.uint8, axes, memory=Memory.SHARED),
        }
        add_instruction(
            Instruction(
                f"ldmatrix.x{count}{suffix}",
                operands,
                "d[matrix, row, byte] = s[matrix, row, byte]",
                ptx=f"ldmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 {{d}}, [{{s}}];",
                witness=_MEASURED,
            )
        )


def _copy_in_flight() -> None:
    """Add the copy of 4, 8 or 16 bytes that a thread begins and waits for later."""
    add_instruction(
        Instruction(
            "cp.async",
            {
                "d": Operand(dtypes.uint8, ("byte",), memory=Memory.SHARED),
                "s": Operand(dtypes.uint8, ("byte",), memory=Memory.GLOBAL),
            },
            "d[byte] = s[byte]",
            ptx="cp.async.ca.shared.global [{d}], [{s}], {bytes}, {taken};",
            scope="thread",
            completion="group",
            witness=_MEASURED,
        )
    )


def _dot(name: str, factors: tuple[DType, DType], total: DType, arch: str, c: str) -> None:
    """Add sums of products along k in the 16 lanes of a vector of 64 bytes.

    All lanes have the same terms of a; those of b that a lane multiplies lie side by side.
    """
    left, right = factors
    digits = {"k": 4 // right.size}
    operands = {
        "d": Operand(total, ("n",), Fragment("(n) -> () (n)", n=16), Memory.LOCAL),
        "a": Operand(left, ("k",), Fragment("(k) -> () (k)", **digits), Memory.LOCAL),
        "b": Operand(
            right, ("k", "n"), Fragment("(k) (n) -> () (n k)", n=16, **digits), Memory.LOCAL
        ),
    }
    add_instruction(
        Instruction(
            name,
            operands,
            f"d[n] = d[n] + {total}(a[k]) * {total}(b[k, n])",
            arch=arch,
            scope="thread",
            accuracy={"d": _UNIT} if total.is_float else None,
            witness=_VECTORS,
            c=c,
            flushes=total.is_float,
        )
    )


_product(
    "mma.m16n8k16.f32.f16", dtypes.float16, dtypes.float32, 2,
    "m16n8k16.row.col.f32.f16.f16.f32", {"d": _UNIT},
)  # fmt: skip
_product(
    "mma.m16n8k16.f32.bf16", dtypes.bfloat16, dtypes.float32, 2,
    "m16n8k16.row.col.f32.bf16.bf16.f32", {"d": _UNIT},
)  # fmt: skip
_product(
    "mma.m16n8k8.f32.tf32", dtypes.float32, dtypes.float32, 1,
    "m16n8k8.row.col.f32.tf32.tf32.f32", {"a": _TF32, "b": _TF32, "d": _UNIT},
)  # fmt: skip
_product(
    "mma.m16n8k32.s32.s8", dtypes.int8, dtypes.int32, 4,
    "m16n8k32.row.col.s32.s8.s8.s32", None,
)  # fmt: skip
_copy_in_flight()
_dot(
    "dot.n16k2.f32.bf16",
    (dtypes.bfloat16, dtypes.bfloat16),
    dtypes.float32,
    "avx512bf16",
    """
  int32_t pair;
  __builtin_memcpy(&pair, {a}, 4);
  const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
  const __m512bh right = (__m512bh)_mm512_loadu_si512({b});
  _mm512_storeu_ps({d}, _mm512_dpbf16_ps(_mm512_loadu_ps({d}), left, right));
""",
)
_dot(
    "dot.n16k2.s32.s16",
    (dtypes.int16, dtypes.int16),
    dtypes.int32,
    "avx512vnni",
    """
  int32_t pair;
  __builtin_memcpy(&pair, {a}, 4);
  const __m512i left = _mm512_set1_epi32(pair), right = _mm512_loadu_si512({b});
  _mm512_storeu_si512({d}, _mm512_dpwssd_epi32(_mm512_loadu_si512({d}), left, right));
""",
)
_dot(
    "dot.n16k4.s32.u8.s8",
    (dtypes.uint8, dtypes.int8),
    dtypes.int32,
    "avx512vnni",
    """
  int32_t four;
  __builtin_memcpy(&four, {a}, 4);
  const __m512i left = _mm512_set1_epi32(four), right = _mm512_loadu_si512({b});
  _mm512_storeu_si512({d}, _mm512_dpbusd_epi32(_mm512_loadu_si512({d}), left, right));
""",
)
# The instruction has a left operand without sign: it gets a + 128, and 128 times the sum of b is
# taken out, which is the same for all rows that are multiplied with this part of b.
_dot(
    "dot.n16k4.s32.s8",
    (dtypes.int8, dtypes.int8),
    dtypes.int32,
    "avx512vnni",
    """
  uint32_t four;
  __builtin_memcpy(&four, {a}, 4);
  const __m512i left = _mm512_set1_epi32((int32_t)(four ^ 0x80808080u));
  const __m512i right = _mm512_loadu_si512({b}), high = _mm512_set1_epi8((char)0x80);
  const __m512i more = _mm512_dpbusd_epi32(_mm512_setzero_si512(), high, right);
  const __m512i sum = _mm512_sub_epi32(_mm512_loadu_si512({d}), more);
  _mm512_storeu_si512({d}, _mm512_dpbusd_epi32(sum, left, right));
""",
)
_load_matrices(2)
_load_matrices(4)
