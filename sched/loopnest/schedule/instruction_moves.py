"""Primitive move_by: a copy to shared memory is made by an instruction, and lands later."""

from __future__ import annotations

from dataclasses import replace

from loopnest.base.errors import NotSupported
from loopnest.kir.instruction_rows import Instruction, instructions
from loopnest.kir.instruction_table import LATER
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
                else f"move a copy of what lies in {wanted.name} memory (cache_after)",
            )
    _require_whole_elements(tensor, row)
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
    return row


def _require_whole_elements(tensor: TensorView, row: Instruction) -> None:
    """Refuse elements that a move to lanes would tear apart, or transpose by pairs.

    Raises:
        PrimitiveRefused: the elements of the tensor are such.
    """
    fragment = row.operands[row.result].fragment
    if fragment is None:
        return
    *around, bytes_ = fragment.axes
    registers = fragment.places[1]
    together, taken = 1, 0
    while taken < min(len(bytes_), len(registers)) and bytes_[-1 - taken] == registers[-1 - taken]:
        together *= fragment.sizes[bytes_[-1 - taken]]
        taken += 1
    # A register with digits of two rows has bytes of both, each as often as they stay together.
    transposes = len(registers) > taken and registers[-1 - taken] in around[-1]
    size = tensor.dtype.size
    if size > together or (transposes and size < together):
        raise PrimitiveRefused(
            f"{tensor.name} is of {tensor.dtype}, of {size} byte{'s' * (size > 1)}",
            f"{row.name} moves elements of {'' if transposes else 'at most '}{together} bytes",
        )


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
