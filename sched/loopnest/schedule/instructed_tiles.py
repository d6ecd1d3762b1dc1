"""Tiles: axes spread over the lanes of a warp, and reductions that an instruction computes.

A fragment's digits are split off, put in order and merged, by the same steps as a user's calls;
what an instruction computes is matched with the definition, so that no schedule changes the math.

By move_by a copy to shared memory is made by an instruction, and lands later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from loopnest.base.errors import NotSupported
from loopnest.kir.instruction_rows import Instruction, instructions
from loopnest.kir.instruction_table import LATER
from loopnest.scalar.enums import WARP, Memory, ParallelType
from loopnest.scalar.expr import Arg, Const, Coordinate, Expr, Load, Local, Op, cast, rewrite
from loopnest.scalar.fragments import Fragment
from loopnest.scalar.templates import at
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    leaf_position,
    primitive,
    require_computed,
    require_not_instructed,
)
from loopnest.schedule.transforms import merge, parallelize, reorder, split
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import Read, TensorView, padded_copy

_LANE = ParallelType.block_x
_COMMUTES = ("add", "mul")


@primitive
def distribute(tensor: TensorView, fragment: Fragment, axes: Sequence[Axis]) -> TensorView:
    """Spread leaf axes over lanes and registers; see `TensorView.distribute`."""
    require_computed(tensor)
    if not isinstance(fragment, Fragment):
        raise PrimitiveRefused(f"{fragment!r} is no ln.Fragment", "give the fragment of an operand")
    places = _positions(tensor, axes, fragment.shape, "the fragment")
    if fragment.places[0]:
        _require_lanes_free(tensor)
    _spread(tensor, fragment, places)
    return tensor


def _positions(
    tensor: TensorView, axes: object, shape: Sequence[int], whose: str
) -> tuple[int, ...]:
    """Return the positions of leaf axes that have the extents of a matrix."""
    if isinstance(axes, (str, Mapping)) or not isinstance(axes, Sequence):
        raise PrimitiveRefused(f"axes={axes!r} is no list of axes", "give one position an axis")
    places = tuple([leaf_position(tensor, axis) for axis in axes])
    if len(places) != len(shape) or len(set(places)) != len(places):
        reason = f"axes={tuple(axes)!r} are not {len(shape)} axes"
        raise PrimitiveRefused(reason, f"{whose} has the extents {_listed(shape)}")
    for place, extent in zip(places, shape, strict=True):
        axis = tensor.domain.leaf[place]
        if not isinstance(axis.size, Const) or axis.size.value != extent:
            raise PrimitiveRefused(
                f"axis {place} of {tensor.name} has the extent {axis.size}",
                f"{whose} has the extents {_listed(shape)}: split the axes by these",
            )
        if axis.parallel is not ParallelType.serial:
            raise PrimitiveRefused(
                f"axis {place} of {tensor.name} is {axis.parallel.value}",
                "axes are spread over lanes before parallelize",
            )
    return places


def _listed(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _require_lanes_free(tensor: TensorView) -> None:
    taken = [n for n, axis in enumerate(tensor.domain.leaf) if axis.parallel is _LANE]
    if taken:
        raise PrimitiveRefused(
            f"axis {taken[0]} of {tensor.name} is bound to {_LANE.cuda_name} already",
            "the lanes of a warp are threads along block_x",
        )


def _spread(tensor: TensorView, fragment: Fragment, places: Sequence[int]) -> int:
    """Make lane and register of axes at `places`; return the position of the register.

    There is no lane where a thread alone has all elements.
    """
    handles = [tensor.domain.leaf[place] for place in places]
    digits: dict[str, IterDomain] = {}
    for axis, group in zip(handles, fragment.axes, strict=True):
        for name in reversed(group[1:]):
            place = tensor.domain.leaf.index(axis)
            split(tensor, place, fragment.sizes[name])
            axis, digits[name] = tensor.domain.leaf[place : place + 2]
        if group:
            digits[group[0]] = axis
    start = min(places)
    order = [digits[name] for group in fragment.places for name in group]
    leaf = tensor.domain.leaf
    rest = [axis for axis in leaf if axis not in order]
    wanted = [*rest[:start], *order, *rest[start:]]
    reorder(tensor, [leaf.index(axis) for axis in wanted])
    for place, group in enumerate([g for g in fragment.places if g], start):
        for _ in group[1:]:
            merge(tensor, place)
    if not fragment.places[0]:
        return start
    parallelize(tensor, {start: _LANE})
    return start + 1


@primitive
def instruct(tensor: TensorView, name: str, axes: Sequence[Axis]) -> TensorView:
    """Compute a reduction by an instruction; see `TensorView.instruct`."""
    row = _row(name)
    require_computed(tensor)
    require_not_instructed(tensor, "another one")
    in_lanes = row.holder is Memory.WARP
    if in_lanes:
        _require_lanes_free(tensor)
    names = tuple(row.extents)
    places = _positions(tensor, axes, tuple(row.extents.values()), row.name)
    matched = operands_of(tensor, row)
    leaf = dict(zip(names, [tensor.domain.leaf[place] for place in places], strict=True))
    result = row.operands[row.result]
    for axis, place in zip(names, places, strict=True):
        folded = axis not in result.axes
        if leaf[axis].is_reduction is not folded:
            kind = "a reduction" if leaf[axis].is_reduction else "an iteration"
            raise PrimitiveRefused(
                f"axis {place} of {tensor.name} is {kind} axis",
                f"{row.name} takes axes in the order {', '.join(names)}, of which "
                f"{', '.join([a for a in names if a not in result.axes])} are reduced",
            )
    found = [
        (operand, role, _operand_places(tensor, operand, indices, row, role, leaf))
        for role, (operand, indices) in matched.items()
    ]
    for operand, role, positions in found:
        fragment = row.operands[role].fragment
        assert fragment is not None
        if in_lanes:
            _require_lanes_free(operand)
        _spread(operand, fragment, positions)
    assert result.fragment is not None
    register = _spread(
        tensor, result.fragment, [tensor.domain.leaf.index(leaf[axis]) for axis in result.axes]
    )
    inside = [register, *[n for n, axis in enumerate(tensor.domain.leaf) if axis in leaf.values()]]
    for place in inside:
        tensor.fusion.change(tensor.domain.leaf[place], "parallel", ParallelType.mma)
    tensor.fusion.change(tensor, "instruction", row.name)
    return tensor


def _row(name: object) -> Instruction:
    if isinstance(name, str) and name.startswith(LATER):
        raise NotSupported(
            f"instruct({name!r})", "instructions of this kind need statements that do not exist yet"
        )
    row = instructions.get(name) if isinstance(name, str) else None
    products = ", ".join([n for n, r in instructions.items() if not r.is_move])
    if row is None:
        raise PrimitiveRefused(f"there is no instruction {name!r}", f"there are {products}")
    if row.is_move:
        raise PrimitiveRefused(f"{name} moves values and computes none", f"use one of {products}")
    return row


# The definition and the behaviour


@dataclass(frozen=True)
class _Leaf:
    """A tensor that a definition reads, through all that is computed where it stands."""

    tensor: TensorView
    indices: tuple[Expr, ...]


def operands_of(
    tensor: TensorView, row: Instruction
) -> dict[str, tuple[TensorView, tuple[Expr, ...]]]:
    """Return by role the tensors that a reduction multiplies, and where it reads them.

    They are in WARP memory; a row of one thread multiplies LOCAL copies of what lies elsewhere.

    Indices are those along the logical axes of the tensor read, in coordinates of the reduction.

    Raises:
        Refusal: the definition is not what the row computes.
    """
    definition = tensor.definition
    assert definition is not None
    reducer = definition.reducer
    if reducer is None or reducer.name != "sum" or definition.scan is not None:
        is_fold = reducer is not None and definition.scan is None
        what = f"a reduction by {reducer.name}" if is_fold and reducer else "no reduction"
        raise PrimitiveRefused(f"{tensor.name} is {what}", f"{row.name} computes a sum of products")
    if definition.start is not None:
        raise PrimitiveRefused(
            f"{tensor.name} is atomic", f"{row.name} adds to what its lanes hold: leave atomic out"
        )
    result = row.operands[row.result].dtype
    if tensor.dtype.compute is not result:
        raise PrimitiveRefused(
            f"{tensor.name} adds in {tensor.dtype.compute}", f"{row.name} adds in {result}"
        )
    found: list[_Leaf] = []
    root = [Coordinate(n) for n in range(len(tensor.domain.root))]
    value = _expanded(definition.values[0], definition.reads, root, found, row.holder)
    used: dict[str, int] = {}
    if not _alike(row.added, value, used):
        texts = rewrite(value, lambda node: _named(node, found))
        raise PrimitiveRefused(
            f"{tensor.name} adds up {texts}", f"{row.name} computes {row.behaviour}"
        )
    operands = {role: found[number] for role, number in used.items()}
    for role, leaf in operands.items():
        _check_operand(tensor, row, role, leaf.tensor)
    return {role: (leaf.tensor, leaf.indices) for role, leaf in operands.items()}


def _named(node: Expr, found: Sequence[_Leaf]) -> Expr | None:
    """Return what stands for a tensor in a text."""
    return Local(found[node.number].tensor.name, node.dtype) if isinstance(node, Arg) else None


def _check_operand(tensor: TensorView, row: Instruction, role: str, operand: TensorView) -> None:
    wanted = row.operands[role]
    if operand.memory is not row.holder:
        then = "" if row.holder is Memory.LOCAL else f", then memory = ln.{row.holder.name}"
        raise PrimitiveRefused(
            f"operand {role} of {row.name} would be {operand.name}, in {operand.memory.value} "
            "memory",
            f"{tensor.name} must read a copy in ln.{row.holder.name}: cache_after{then}",
        )
    if operand.dtype is not wanted.dtype:
        raise PrimitiveRefused(
            f"operand {role} would be {operand.name}, of {operand.dtype}",
            f"{row.name} takes {wanted.dtype}",
        )


def _expanded(
    template: Expr,
    reads: Sequence[Read],
    at_element: Sequence[Expr],
    found: list[_Leaf],
    holder: Memory,
) -> Expr:
    """Return a template with definitions in the place of what LOCAL tensors hold.

    What it reads otherwise is an `Arg`, whose number is that of its place in `found`. Where the
    `holder` of operands is LOCAL memory, so is a copy of what lies in another memory.
    """

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Coordinate):
            return at_element[node.number]
        if not isinstance(node, Arg):
            return None
        read = reads[node.number]
        producer, definition = read.producer, read.producer.definition
        place = [at(index, at_element) for index in read.indices]
        pointwise = definition is not None and definition.reducer is None
        held = holder is Memory.LOCAL and _enters_registers(producer)
        if producer.memory is Memory.LOCAL and pointwise and not producer.is_input and not held:
            assert definition is not None
            component = definition.outputs.index(producer)
            value = _expanded(definition.values[component], definition.reads, place, found, holder)
            return cast(value, producer.dtype)
        found.append(_Leaf(producer, tuple(place)))
        return Arg(len(found) - 1, producer.dtype)

    return rewrite(template, rule)


def _enters_registers(tensor: TensorView) -> bool:
    """Whether a tensor is a copy of one that lies in another memory."""
    definition = tensor.definition
    return (
        definition is not None
        and definition.is_copy
        and all(source.memory is not Memory.LOCAL for source in definition.producers)
    )


def _alike(theirs: Expr, ours: Expr, used: dict[str, int]) -> bool:
    """Whether a value is that of a behaviour; the numbers of its operands are then in `used`."""
    if isinstance(theirs, Load):
        role = theirs.buffer.name
        return isinstance(ours, Arg) and used.setdefault(role, ours.number) == ours.number
    if not isinstance(theirs, Op) or not isinstance(ours, Op):
        return theirs is ours
    if theirs.op != ours.op or theirs.dtype is not ours.dtype or len(theirs.args) != len(ours.args):
        return False
    # In the order that is written first: so a stays what stands on the left.
    orders = [ours.args, ours.args[::-1]] if theirs.op in _COMMUTES else [ours.args]
    for order in orders:
        trial = dict(used)
        if all(_alike(a, b, trial) for a, b in zip(theirs.args, order, strict=True)):
            used.update(trial)
            return True
    return False


# The axes of operands


def _operand_places(
    tensor: TensorView,
    operand: TensorView,
    indices: Sequence[Expr],
    row: Instruction,
    role: str,
    leaf: Mapping[str, IterDomain],
) -> list[int]:
    """Return the positions of an operand's leaf axes that are axes of the reduction's tile."""
    mine = {axis: ("root", n) for n, axis in enumerate(tensor.domain.root)}
    theirs = {
        axis: ("root", index.number)
        for axis, index in zip(operand.domain.logical, indices, strict=True)
        if isinstance(index, Coordinate)
    }
    made = {_way(axis, theirs): n for n, axis in enumerate(operand.domain.leaf)}
    places: list[int] = []
    for name in row.operands[role].axes:
        place = made.get(_way(leaf[name], mine))
        if place is None:
            where = tensor.domain.leaf.index(leaf[name])
            raise PrimitiveRefused(
                f"no leaf axis of {operand.name} is axis {where} of {tensor.name}, the {name} of "
                f"{row.name}",
                f"compute {operand.name} inside of the loops of {tensor.name} over tiles, or split "
                f"its axes as those of {tensor.name}",
            )
        places.append(place)
    for place, axis in enumerate(operand.domain.leaf):
        if place in places and place < operand.frozen:
            raise PrimitiveRefused(
                f"axis {place} of {operand.name}, of extent {axis.size}, is shared with "
                f"{tensor.name}",
                f"compute {operand.name} outside of the tile's axes",
            )
    return places


def _way(axis: IterDomain, known: Mapping[IterDomain, object]) -> object:
    """Return how an axis was made of root axes, as what two tensors have in common."""
    if axis in known:
        return known[axis]
    step = axis.definition
    if step is None:
        return axis
    parts = tuple([_way(source, known) for source in step.inputs])
    return (step.key, step.outputs.index(axis), parts)


def lane_axis(tensor: TensorView) -> int:
    """Return the position of the axis over the lanes of a warp."""
    return next(n for n, axis in enumerate(tensor.domain.leaf) if axis.parallel is _LANE)


def tile_axis(tensor: TensorView) -> int:
    """Return the position of the outermost axis of a tile, which that of its lanes is."""
    if tensor.instruction and instructions[tensor.instruction].holder is Memory.LOCAL:
        leaf = tensor.domain.leaf
        return next(n for n, axis in enumerate(leaf) if axis.parallel is ParallelType.mma)
    return lane_axis(tensor)


def has_lanes(tensor: TensorView) -> bool:
    """Whether an axis of a tensor, followed by that of the registers, is over 32 lanes."""
    found = [n for n, axis in enumerate(tensor.domain.leaf) if axis.parallel is _LANE]
    leaf = tensor.domain.leaf
    if not found or found[0] + 1 >= len(leaf):
        return False
    size = leaf[found[0]].size
    return isinstance(size, Const) and size.value == WARP and leaf[found[0] + 1].is_iteration


def tile_tensors(tensor: TensorView) -> Iterator[tuple[str, TensorView]]:
    """Yield by role the tensors that an instructed reduction computes with, or a move copies."""
    row = instructions[tensor.instruction or tensor.layout.move]
    yield row.result, tensor
    if row.is_move:
        assert tensor.definition is not None
        (source,) = tensor.definition.producers
        yield next(role for role in row.operands if role != row.result), source
        return
    for role, (operand, _) in operands_of(tensor, row).items():
        yield role, operand


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
    in_lanes = row.operands[row.result].fragment is not None
    if not definition.is_copy and (in_lanes or padded_copy(definition.values[0]) is None):
        raise PrimitiveRefused(
            f"{tensor.name} is {definition.op} of what it reads, and {row.name} copies",
            "move a copy (cache_after), and compute from it",
        )
    (source,) = definition.producers
    return source
