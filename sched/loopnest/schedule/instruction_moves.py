"""Primitive move_by: a copy to shared memory is made by an instruction, and lands later."""

from __future__ import annotations

from dataclasses import replace

from loopnest.errors import NotSupported
from loopnest.kir.instruction_rows import Instruction, instructions
from loopnest.kir.instruction_table import LATER
from loopnest.scalar.enums import Memory
from loopnest.schedule.transaction import PrimitiveRefused, primitive, require_computed
from loopnest.tensor.tensor_view import TensorView


@primitive
def move_by(tensor: TensorView, name: str) -> TensorView:
    """Let an instruction copy the elements of a tensor; see `TensorView.move_by`."""
    require_computed(tensor)
    row = _move(tensor, name)
    source = _source(tensor, row)
    for moved, role in ((tensor, row.result), (source, _source_role(row))):
        wanted = row.operands[role].memory
        if moved.memory is not wanted:
            raise PrimitiveRefused(
                f"{moved.name} is in {moved.memory.value} memory, and {row.name} copies from "
                f"{row.operands[_source_role(row)].memory.value} to "
                f"{row.operands[row.result].memory.value} memory",
                f"set {tensor.name}.memory = ln.{wanted.name} first"
                if moved is tensor
                else "move a copy of an input, or of a tensor in GLOBAL memory (cache_after)",
            )
    tensor.fusion.change(tensor, "layout", replace(tensor.layout, move=row.name))
    return tensor


def _move(tensor: TensorView, name: object) -> Instruction:
    """Return the row of a move by its name.

    Raises:
        PrimitiveRefused: there is none of that name, or it is no move.
        NotSupported: it needs statements that do not exist yet.
    """
    moves = [row.name for row in instructions.values() if row.is_move]
    allowed = f"the moves are {', '.join(moves)}"
    if isinstance(name, str) and name.startswith(LATER):
        reason = "instructions of this kind need statements that do not exist yet"
        raise NotSupported(f"{tensor.name}.move_by({name!r})", reason, allowed)
    row = instructions.get(name) if isinstance(name, str) else None
    if row is None:
        raise PrimitiveRefused(f"there is no instruction {name!r}", allowed)
    if not row.is_move:
        raise PrimitiveRefused(f"{row.name} computes {row.behaviour}, and moves nothing", allowed)
    if any(operand.memory is Memory.WARP for operand in row.operands.values()):
        raise NotSupported(
            f"{tensor.name}.move_by({name!r})", "moves to the lanes of a warp are not made yet"
        )
    return row


def _source_role(row: Instruction) -> str:
    (role,) = [role for role in row.operands if role != row.result]
    return role


def _source(tensor: TensorView, row: Instruction) -> TensorView:
    """Return the tensor whose elements a tensor copies.

    Raises:
        PrimitiveRefused: it is a reduction, converts or computes.
    """
    definition = tensor.definition
    assert definition is not None
    if definition.reducer is not None:
        kind = "scan" if definition.scan else "reduction"
        raise PrimitiveRefused(
            f"{tensor.name} is a {kind}, and {row.name} copies", "move a copy (cache_after)"
        )
    if not definition.is_copy:
        raise PrimitiveRefused(
            f"{tensor.name} is {definition.op} of what it reads, and {row.name} copies",
            "move a copy (cache_after), and compute from it",
        )
    (source,) = definition.producers
    return source
