"""Device functions in CUDA text that execute one instruction of the table by inline PTX."""

from __future__ import annotations

import string
from collections.abc import Mapping

from loopnest.kir.instruction_table import Instruction, Operand
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.fragments import Fragment

WORD = 4
"""Bytes of a register, in which the elements of an operand lie together."""


def function_name(row: Instruction) -> str:
    """Return how the device function of a row is called in CUDA text."""
    return "ln_" + "".join([c if c.isalnum() else "_" for c in row.name])


def device_function(row: Instruction) -> str:
    """Return the definition of the device function that executes a row of scope "warp".

    Its parameters are the operands in the order of the row: the registers of the calling lane, as
    one piece of memory aligned to 4 bytes, or the address of the row of shared memory that the lane
    names. Registers are handed to PTX by words of 32 bits, float32 results as floats.
    """
    written = row.result
    parameters, lines, numbers = [], [], dict[str, str]()
    constraints: dict[bool, list[str]] = {True: [], False: []}
    order = [written, *[role for role in row.operands if role != written]]
    count = 0
    for role in order:
        operand = row.operands[role]
        is_result = role == written
        if operand.fragment is None:
            lines.append(f"  const unsigned {role} = (unsigned)__cvta_generic_to_shared({role}_);")
            constraints[False].append(f'"r"({role})')
            numbers[role] = f"%{count}"
            count += 1
            continue
        words = word_count(operand, operand.fragment)
        kind = "float" if is_result and operand.dtype is dtypes.float32 else "unsigned"
        const = "" if is_result else "const "
        lines.append(f"  {const}{kind}* {role} = ({const}{kind}*){role}_;")
        letter = ("+" if is_result and not row.is_move else "=" if is_result else "") + kind[0]
        letter = letter.replace("u", "r")
        constraints[is_result] += [f'"{letter}"({role}[{n}])' for n in range(words)]
        numbers[role] = "{" + ", ".join([f"%{count + n}" for n in range(words)]) + "}"
        count += words
    for role in row.operands:
        parameters.append(f"{'' if role == written else 'const '}void* {role}_")
    reads_memory = any(o.memory is not Memory.WARP for o in row.operands.values())
    effects = ' : "memory"' if reads_memory else ""
    text = with_operands(row.ptx, numbers)
    return "\n".join([
        f"static __device__ __forceinline__ void {function_name(row)}({', '.join(parameters)}) {{",
        *lines,
        f'  asm {"volatile" if reads_memory else ""}("{text}"'.replace("asm (", "asm("),
        f"      : {', '.join(constraints[True])}",
        f"      : {', '.join(constraints[False])}{effects});",
        "}",
    ])  # fmt: skip


def word_count(operand: Operand, fragment: Fragment) -> int:
    """Return how many registers of 32 bits a lane has of an operand."""
    return fragment.registers * operand.dtype.size // WORD


def with_operands(ptx: str, numbers: Mapping[str, str]) -> str:
    """Return the PTX of a row with what stands for its operands."""
    return string.Formatter().vformat(ptx, (), numbers)
