"""Does a plan compute its graph? Its steps are followed over the memory that they name.

For every piece of memory it is known which value of the graph lies there, C-contiguous: at the
beginning inputs, constants and old values of variables, then what steps and copies write. A write
takes from all pieces that it overlaps what they held. A step must find the values of its operands
where it reads, an output of the graph its value where results are taken, and a variable the value
that it is assigned.

The plan is taken as data (`plan_records`), and nothing is asked of what made it (`step_plan`): what
a value of the graph is, which bytes a storage has, and what outlives a step are found anew. Sizes
may be symbols: extents are then compared as polynomials, and a storage without a place in the arena
is memory of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from loopnest.facade.kernel_class import Kernel
from loopnest.graph.dimensions import Dim, at, dim_of, product
from loopnest.graph.node import Node, TensorType, TupleType, Type, describe
from loopnest.graph.program import body_of
from loopnest.graph.registry import get_attr
from loopnest.graph_kernels.plan_records import (
    PlannedStep,
    ResultTree,
    StepPlan,
    UpdatedVariable,
    UpdateGroup,
    ValuePlace,
)
from loopnest.scalar.expr import Expr

_SAME_ELEMENTS = frozenset({"expand_dims", "reshape", "squeeze"})
"""Ops whose value has the elements of their operand, in C order."""
_LINE = 64
"""Bytes: arrays in the arena begin at whole cache lines, as the widest accesses of kernels do."""
_PARAMETER = re.compile(r"_?([po])(\d+)")
"""The name of an array of a kernel: the number of the operand, or of the value."""

Value: TypeAlias = "tuple[Node, int]"
"""A value of the graph: a node that computes it, and which of its fields; of a variable, the old
value."""
ValueTree: TypeAlias = "Value | list[ValueTree]"
Piece: TypeAlias = "tuple[str, int | str, int]"
"""A piece of memory: its kind, what names it there, and where it ends in the arena."""


@dataclass(frozen=True, slots=True)
class PlanFault:
    """A fact about a plan that does not hold.

    Args:
        kind: "order" (a step finds another value than its operand), "inplace", "room" (memory that
            is shared, or not to be written), "size", "interface" (a kernel has other arrays),
            "result" or "variable" (at the end of a call).
        message: one sentence.
        tensor: the node that it concerns; "" for none.
        sizes: of the plan; empty where they are symbols.
    """

    kind: str
    message: str
    tensor: str
    sizes: Mapping[str, int]


def plan_faults(
    plan: StepPlan, kernels: Mapping[Node, Kernel], results: int, sizes: Mapping[str, int]
) -> list[PlanFault]:
    """Return what is wrong with a plan; nothing where it computes its graph.

    Args:
        plan: the plan.
        kernels: the kernel that was made of each call, which a step launches.
        results: the number of outputs that a call returns, from the first one on.
        sizes: of the plan; empty where they are symbols.
    """
    return _PlanProof(plan, kernels, sizes).faults(results)


Rooms: TypeAlias = "Mapping[int, tuple[int, int]]"
"""Where storages of the arena begin, by number, and how many bytes each has."""


class ArenaProof:
    """Holds the places of storages in the arena against when these are needed.

    A plan that computes its graph where each storage is memory of its own does so in places of the
    arena too, where storages that share bytes are not needed at one time: from the first step that
    one of them is written by to what reads it last, which is the same at all sizes.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: StepPlan) -> None:
        uses = [[*step.outputs, *_places(tuple(step.inputs))] for step in plan.steps]
        uses.append([place for tree in plan.results for place in _places(tree)])
        uses[-1] += [place for _, place in plan.commits]
        lives: dict[int, tuple[int, int]] = {}
        for number, places in enumerate(uses):
            for place in places:
                if plan.storages[place.storage].kind == "arena":
                    born, _ = lives.get(place.storage, (number, number))
                    lives[place.storage] = born, number
        self._needed = sorted(lives)
        self._at_once = [
            (one, other)
            for one, other in combinations(self._needed, 2)
            if _at_once(lives[one], lives[other])
        ]

    def faults(self, rooms: Rooms, arena: int, sizes: Mapping[str, int]) -> list[PlanFault]:
        """Return what is wrong with places; nothing where all is well.

        Args:
            rooms: the places at sizes.
            arena: its bytes.
            sizes: these sizes.
        """
        found = [
            f"{_told(n, rooms, arena)}, is in no place for it"
            for n in self._needed
            if (room := rooms.get(n, _NOWHERE))[1]
            and (room[0] < 0 or room[0] % _LINE or room[0] + room[1] > arena)
        ]
        for one, other in self._at_once:
            start, count = rooms.get(one, _NOWHERE)
            low, length = rooms.get(other, _NOWHERE)
            if start < low + length and low < start + count and count and length:
                told = _told(other, rooms, arena)
                found.append(f"{told}, is memory of storage {one} while both are needed")
        return [PlanFault("room", message, "", sizes) for message in found]


_NOWHERE = (-1, 1)


def _told(number: int, rooms: Rooms, arena: int) -> str:
    start, count = rooms.get(number, _NOWHERE)
    return f"storage {number}, bytes {start} to {start + count} of an arena of {arena}"


def _at_once(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]


class _Memory:
    """Which value each piece of memory holds, and who wrote it."""

    def __init__(self) -> None:
        self.held: dict[Piece, tuple[Value, str]] = {}
        self.lost: dict[Piece, str] = {}
        """Who wrote over a piece that held something."""
        self._starts: list[tuple[int, int]] = []
        """The pieces of the arena that hold something, by their starts: no two overlap."""

    def write(self, piece: Piece, value: Value | None, writer: str) -> None:
        """Let a piece hold a value; None where what is written is no value of the graph."""
        for other in [*self.overlapped(piece)]:
            del self.held[other]
            self.lost[other] = writer
            if other[0] == "arena":
                self._starts.remove((int(other[1]), other[2]))
        if value is None:
            self.lost[piece] = writer
            return
        self.held[piece] = value, writer
        if piece[0] == "arena":
            insort(self._starts, (int(piece[1]), piece[2]))

    def overlapped(self, piece: Piece) -> Iterator[Piece]:
        """Yield the pieces that hold something and share bytes with a piece."""
        if piece[0] != "arena" or piece in self.held:
            if piece in self.held:
                yield piece
            return
        start, end = int(piece[1]), piece[2]
        place = bisect_left(self._starts, (start, start))
        if place and self._starts[place - 1][1] > start:
            place -= 1
        while place < len(self._starts) and self._starts[place][0] < end:
            yield "arena", *self._starts[place]
            place += 1


def _overlap(a: Piece, b: Piece) -> bool:
    """Whether two pieces share bytes."""
    if a[0] != "arena" or b[0] != "arena":
        return a == b
    return int(a[1]) < b[2] and int(b[1]) < a[2]


class _PlanProof:
    def __init__(
        self, plan: StepPlan, kernels: Mapping[Node, Kernel], sizes: Mapping[str, int]
    ) -> None:
        self.plan, self.graph, self.kernels, self.sizes = plan, plan.graph, kernels, sizes
        self.symbolic = any(not isinstance(storage.elements, int) for storage in plan.storages)
        """Whether sizes are symbols: then storages have no places in the arena."""
        self.memory = _Memory()
        self.found: list[PlanFault] = []
        self.values: dict[Node, ValueTree] = {}
        for node in plan.graph.nodes:
            self.values[node] = self._value(node)
        self.pieces: list[Piece] = []

    def faults(self, results: int) -> list[PlanFault]:
        if self._storages():
            self._begin()
            for number, step in enumerate(self.plan.steps):
                self._step(_Step(number, step))
            self._ends(results)
        return self.found

    def _fault(self, kind: str, message: str, node: Node | None = None) -> None:
        tensor = "" if node is None else describe(node)
        self.found.append(PlanFault(kind, message, tensor, self.sizes))

    # Values

    def _value(self, node: Node) -> ValueTree:
        """Return which values a node has: operands come before."""
        match node.op:
            case "tuple" | "group":
                return [self.values[x] for x in node.inputs]
            case "get_item":
                whole = self.values[node.inputs[0]]
                assert isinstance(whole, list)
                return whole[node.attrs["index"]]
            case "assign":
                return self.values[node.inputs[1]]
            case "variable":
                name = node.attrs["variable"]
                return self.graph.variables[name], 0
        if node.op in _SAME_ELEMENTS:
            return self.values[node.inputs[0]]
        numbers = iter(range(len(_tensors(node.type))))
        return _tree(node, node.type, numbers)

    # Memory

    def _storages(self) -> bool:
        """Find the memory of each storage; whether all have some."""
        for number, storage in enumerate(self.plan.storages):
            kind, node, over = storage.kind, storage.node, storage.over
            name = f"storage {number}"
            if over is not None:
                node = self.plan.storages[over].node
            needs = {"input": "var", "const": "const", "state": "variable"}.get(kind)
            if needs is not None:
                if node is None or node.op != needs:
                    self._fault("room", f"{name} is to be memory of a {needs}, and names none")
                    return False
                kept = node.attrs["variable"] if needs == "variable" else id(node)
                self.pieces.append((kind, kept, 0))
                if (storage.elements, storage.dtype) != (node.tensor_type.size, node.dtype):
                    self._size(name, number, node.tensor_type, node)
            elif kind == "arena" and not self.symbolic:
                self.pieces.append(self._in_arena(number))
            elif kind in ("arena", "made", "output"):
                self.pieces.append((kind, number, 0))
            else:
                self._fault("room", f"{name} is of no kind of memory: {kind}")
                return False
        return True

    def _in_arena(self, number: int) -> Piece:
        storage = self.plan.storages[number]
        start = storage.offset
        if start < 0:  # a fault where it is used
            return "nowhere", number, 0
        count = at(storage.elements, {}) * storage.dtype.numpy.itemsize
        if start % _LINE:
            self._fault("room", f"storage {number} begins at byte {start}, within a cache line")
        if start + count > self.plan.arena:
            self._fault(
                "room",
                f"storage {number} takes bytes {start} to {start + count} of an arena of "
                f"{self.plan.arena}",
            )
        # What has no bytes shares none.
        return ("arena", start, start + count) if count else ("empty", number, 0)

    def _size(self, what: str, number: int, wanted: TensorType, node: Node) -> None:
        storage = self.plan.storages[number]
        self._fault(
            "size",
            f"{what} is {wanted}, its memory has {storage.elements} elements of {storage.dtype}",
            node,
        )

    def _shown(self, number: int) -> str:
        """Return what a fault calls a storage."""
        kind, name, end = self.pieces[number]
        match kind:
            case "arena" if end:
                return f"bytes {name} to {end} of the arena"
            case "state":
                return f"the variable {name}"
            case "nowhere":
                return f"storage {number}, which has no place in the arena"
        return f"storage {number} ({kind})"

    def _begin(self) -> None:
        """Let memory hold what it does before the first step."""
        inputs = [storage.node for storage in self.plan.storages if storage.kind == "input"]
        if inputs != [*self.graph.inputs]:
            self._fault("order", "the storages of inputs do not follow the inputs of the graph")
        for number, storage in enumerate(self.plan.storages):
            node = storage.node
            if node is not None and storage.over is None:
                if node.op == "variable":
                    node = self.graph.variables[node.attrs["variable"]]
                self.memory.write(self.pieces[number], (node, 0), "the caller")

    # Steps

    def _step(self, step: _Step) -> None:
        node = step.node
        if node not in self.graph.index:
            self._fault("order", f"{step.name} computes a node that is not of the graph", node)
            return
        if len(step.planned.inputs) != len(node.inputs):
            found = f"{step.name} reads {len(step.planned.inputs)} operands"
            self._fault("order", f"{found}, the node has {len(node.inputs)}", node)
            return
        if self._fits(step):
            for source, target in step.planned.copies:
                self._copy(step, source, target)
            self._writes(step, self._reads(step))

    def _copy(self, step: _Step, source: ValuePlace, target: ValuePlace) -> None:
        old, new = self.pieces[source.storage], self.pieces[target.storage]
        a, b = self.plan.storages[source.storage], self.plan.storages[target.storage]
        if (a.elements, a.dtype) != (b.elements, b.dtype):
            what = f"{step.name} copies {self._shown(source.storage)}"
            self._fault("size", f"{what} to memory of another size or type", step.node)
        if _overlap(old, new) and old != new:
            what = f"{step.name} copies {self._shown(source.storage)}"
            self._fault("room", f"{what} over a part of itself", step.node)
        self._may_write(step, target.storage, f"the copy of {self._shown(source.storage)}")
        held = self.memory.held.get(old)
        self.memory.write(new, None if held is None else held[0], f"the copy before {step.name}")

    def _reads(self, step: _Step) -> dict[int, list[int]]:
        """Check what a step finds; return the storages that it reads, by operand."""
        made = step.planned.made
        taken = range(len(step.node.inputs)) if made is None else made.inputs
        reads: dict[int, list[int]] = {}
        for number in taken:
            operand = step.node.inputs[number]
            reads[number] = []
            leaves = [*_places(step.planned.inputs[number])]
            fields = _fields(operand, self.values[operand])
            what = f"operand {number} of {step.name}, {describe(operand)}"
            if len(leaves) != len(fields):
                self._fault("order", f"{what}: {len(leaves)} places for {len(fields)} values")
                continue
            for place, (value, tensor) in zip(leaves, fields, strict=True):
                reads[number].append(place.storage)
                self._read(what, place, value, tensor, operand, made is not None)
        return reads

    def _read(
        self,
        what: str,
        place: ValuePlace,
        value: Value,
        tensor: TensorType,
        node: Node,
        by_kernel: bool = False,
    ) -> None:
        """Check that a place shows a value; a kernel takes elements in C order, of any shape."""
        source, stored = value, tensor
        if place.axes is not None or place.strides is not None:
            if not self._moves(place, node) or by_kernel:
                self._fault("order", f"{what} is read transposed or strided, which it is not", node)
                return
            inner = node.inputs[0]
            found = self.values[inner]
            assert isinstance(found, tuple)
            source, stored = found, inner.tensor_type
        elif not by_kernel and place.shape != tensor.shape:
            self._fault("size", f"{what} has shape {tensor.shape}, it is read as {place.shape}")
        storage = self.plan.storages[place.storage]
        if (storage.elements, storage.dtype) != (stored.size, stored.dtype):
            self._size(what, place.storage, stored, node)
        piece = self.pieces[place.storage]
        held = self.memory.held.get(piece)
        if held is not None and held[0] == source:
            return
        where = f"{what} is read from {self._shown(place.storage)}"
        if held is not None:
            found_there = f"where {held[1]} has put {_called(held[0])}"
        elif piece in self.memory.lost:
            found_there = f"which {self.memory.lost[piece]} has written over"
        else:
            found_there = "where nothing has been written"
        self._fault("order", f"{where}, {found_there}", node)

    def _moves(self, place: ValuePlace, node: Node) -> bool:
        """Whether what a place does to its storage is what a node does to its operand."""
        if place.axes is not None and place.strides is None and node.op == "transpose":
            return (place.axes, place.shape) == (node.attrs["axes"], node.inputs[0].shape)
        if place.strides is not None and place.axes is None and node.op == "strided_view":
            return (place.strides, place.shape) == (node.attrs["strides"], node.shape)
        return False

    def _writes(self, step: _Step, reads: Mapping[int, Sequence[int]]) -> None:
        """Check where a step writes, and let memory hold it."""
        node, made = step.node, step.planned.made
        tensors = _tensors(node.type)
        if len(step.planned.outputs) != len(tensors):
            what = f"{step.name} has {len(step.planned.outputs)} places"
            self._fault("order", f"{what} for {len(tensors)} values", node)
            return
        pairs = set(() if made is None else made.inplace)
        targets = [self.pieces[place.storage] for place in step.planned.outputs]
        for number, (place, tensor) in enumerate(zip(step.planned.outputs, tensors, strict=True)):
            what = f"value {number} of {step.name}"
            storage = self.plan.storages[place.storage]
            if (storage.elements, storage.dtype) != (tensor.size, tensor.dtype):
                self._size(what, place.storage, tensor, node)
            elif not place.is_plain or (made is None and place.shape != tensor.shape):
                self._fault("size", f"{what} has shape {tensor.shape}, written as {place.shape}")
            self._may_write(step, place.storage, what)
            if any(_overlap(targets[number], other) for other in targets[:number]):
                self._fault("room", f"{what} shares memory with another value of the step", node)
            for operand, storages in reads.items():
                self._beside(step, number, operand, storages, pairs)
        for number, operand in pairs:
            if operand not in reads or number >= len(targets):
                self._fault("inplace", f"{step.name} is to overwrite what it does not read", node)
            elif targets[number] != self.pieces[reads[operand][0]]:
                self._fault(
                    "inplace",
                    f"{step.name} overwrites operand {operand} with value {number}, which is "
                    f"expected in {self._shown(step.planned.outputs[number].storage)}",
                    node,
                )
        for number, piece in enumerate(targets):
            self.memory.write(piece, (node, number), step.name)

    def _beside(
        self,
        step: _Step,
        number: int,
        operand: int,
        storages: Sequence[int],
        pairs: set[tuple[int, int]],
    ) -> None:
        """Check that a value does not lie over an operand, but where the kernel is made so."""
        target = self.pieces[step.planned.outputs[number].storage]
        for storage in storages:
            piece = self.pieces[storage]
            if _overlap(target, piece) and not ((number, operand) in pairs and target == piece):
                self._fault(
                    "inplace",
                    f"value {number} of {step.name} is written to {self._shown(storage)} while "
                    f"operand {operand} is read from there",
                    step.node,
                )

    def _may_write(self, step: _Step, storage: int, what: str) -> None:
        kind = self.plan.storages[storage].kind
        own = kind == "made"
        if kind in ("input", "const") or self.pieces[storage][0] == "nowhere":
            self._fault("room", f"{what} is written to {self._shown(storage)}", step.node)
        elif own != bool(get_attr(step.node, "makes_memory", False)):
            told = "has no memory of its own" if own else "makes its own memory"
            self._fault("room", f"{what} is written to {self._shown(storage)}: the op {told}")

    # Kernels

    def _fits(self, step: _Step) -> bool:
        """Check that a kernel takes what the plan gives it: which arrays, of which sizes.

        False where its arrays are not as many as the plan's.
        """
        made, node = step.planned.made, step.node
        if made is None:
            by_torch = bool(get_attr(node, "makes_memory", False))
            if step.planned.kind == "library" and not by_torch and node.op != "matmul":
                self._fault("interface", f"{step.name}: no library computes {node.op}", node)
            return True
        if made.kernel is not self.kernels.get(node):
            self._fault("interface", f"{step.name}: the kernel is not that of its call", node)
        params = [p for p in made.kernel.program.params if p.kind == "input"]
        outputs = made.kernel.program.outputs
        body = body_of(node)
        tensors = [tensor for x in body.outputs for tensor in _tensors(x.type)]
        known = set(made.inputs) <= set(range(len(body.inputs)))
        if not known or len(params) != len(made.inputs) or len(outputs) != len(tensors):
            what = f"{step.name}: the kernel has other arrays than its call"
            self._fault("interface", what, node)
            return False
        for param, number in zip(params, made.inputs, strict=True):
            operand = body.inputs[number]
            count = None if param.strides is not None else self._count(param.shape)
            fits = count is None or count == operand.tensor_type.size
            if _numbered(param.name, "p") != number or param.dtype is not operand.dtype or not fits:
                self._misfit(step, f"reads {param.name}", number, operand.tensor_type)
        inplace = dict(made.inplace)
        for number, (output, tensor) in enumerate(zip(outputs, tensors, strict=True)):
            fits = output.buffer.dtype is tensor.dtype and self._count(output.shape) == tensor.size
            if _numbered(output.name, "o") != number or not fits:
                self._misfit(step, f"writes {output.name}", number, tensor)
            over = inplace.get(number)
            if (_numbered(output.inplace, "p") if output.inplace else None) != over:
                own = output.inplace or "memory of its own"
                what = f"{step.name}: the kernel writes value {number} to {own}"
                self._fault("inplace", f"{what}, the plan has operand {over} there", node)
        return True

    def _count(self, shape: Sequence[Dim]) -> Dim:
        """Return the elements of an array of a kernel, whose sizes are symbols."""
        if self.symbolic or not any(isinstance(extent, Expr) for extent in shape):
            return product([dim_of(extent, "kernel") for extent in shape])  # in the graph's form
        return product([at(extent, self.sizes) for extent in shape])

    def _misfit(self, step: _Step, does: str, number: int, wanted: TensorType) -> None:
        what = f"{step.name}: the kernel {does}"
        self._fault("interface", f"{what}, the plan gives it array {number}, {wanted}", step.node)

    # The end of a call

    def _ends(self, results: int) -> None:
        if len(self.plan.results) != results:
            self._fault("result", f"the plan has {len(self.plan.results)} results for {results}")
            return
        outputs = self.graph.outputs[:results]
        for number, (tree, node) in enumerate(zip(self.plan.results, outputs, strict=True)):
            self._result(f"output {number}, {describe(node)},", tree, node)
        new: list[tuple[int, Value | None]] = []
        for state, place in self.plan.commits:
            a, b = self.plan.storages[state], self.plan.storages[place.storage]
            kept = self.memory.held.get(self.pieces[place.storage])
            new.append((state, None if kept is None else kept[0]))
            if (a.elements, a.dtype) != (b.elements, b.dtype) or a.kind != "state":
                what = f"what is copied to {self._shown(state)}"
                self._fault("size", f"{what} at the end has another size or type, or no variable")
        for state, value in new:
            self.memory.write(self.pieces[state], value, "the copy at the end")
        self._variables()

    def _result(self, what: str, tree: ResultTree, node: Node) -> None:
        """Check a result of a call."""
        if isinstance(tree, UpdatedVariable):
            named = node.op == "assign" and node.attrs["variable"] == tree.name
            if not named or tree.shape != node.shape:
                self._fault("result", f"{what} is read from the variable {tree.name}", node)
        elif isinstance(tree, UpdateGroup):
            if node.op != "group" or len(tree.items) != len(node.inputs):
                self._fault("result", f"{what} is no group of {len(tree.items)} values", node)
                return
            for item, x in zip(tree.items, node.inputs, strict=True):
                self._result(what, item, x)
        else:
            leaves, fields = [*_places(tree)], _fields(node, self.values[node])
            if len(leaves) != len(fields):
                self._fault("result", f"{what} has {len(fields)} values, not {len(leaves)}", node)
                return
            for place, (value, tensor) in zip(leaves, fields, strict=True):
                self._read(what, place, value, tensor, node)

    def _variables(self) -> None:
        """Check that variables hold what they are assigned, and others what they held."""
        wanted: dict[str, Value] = {}
        for name, node in self.graph.variables.items():
            wanted[name] = node, 0
        for node in self.graph.nodes:
            if node.op == "assign":
                value = self.values[node]
                assert isinstance(value, tuple)
                wanted[node.attrs["variable"]] = value
        for name, value in wanted.items():
            held = self.memory.held.get(("state", name, 0))
            if held is None or held[0] != value:
                found = "no value of the graph" if held is None else _called(held[0])
                message = f"the variable {name} holds {found} at the end, not {_called(value)}"
                self._fault("variable", message, value[0])


class _Step:
    """A step of a plan with its number, as faults name it."""

    def __init__(self, number: int, planned: PlannedStep) -> None:
        self.planned, self.node = planned, planned.node
        self.name = f"step {number}, {describe(planned.node)}"


def _tensors(kind: Type) -> list[TensorType]:
    """Return the types of a value's tensors, left to right."""
    if isinstance(kind, TensorType):
        return [kind]
    return [tensor for part in kind.fields for tensor in _tensors(part)]


def _tree(node: Node, kind: Type, numbers: Iterator[int]) -> ValueTree:
    """Return the values of a node in the shape of its type."""
    if isinstance(kind, TupleType):
        return [_tree(node, part, numbers) for part in kind.fields]
    return node, next(numbers)


def _fields(node: Node, tree: ValueTree) -> list[tuple[Value, TensorType]]:
    """Return the values of a node with their types, left to right."""
    return [*zip(_leaves(tree), _tensors(node.type), strict=True)]


def _leaves(tree: ValueTree) -> Iterator[Value]:
    if isinstance(tree, tuple):
        yield tree
    else:
        for item in tree:
            yield from _leaves(item)


def _places(tree: ResultTree) -> Iterator[ValuePlace]:
    """Yield the places of a tree of places, left to right; nothing for other trees."""
    if isinstance(tree, ValuePlace):
        yield tree
    elif isinstance(tree, tuple):
        for item in tree:
            yield from _places(item)


def _numbered(name: str, kind: str) -> int | None:
    found = _PARAMETER.fullmatch(name)
    return int(found[2]) if found is not None and found[1] == kind else None


def _called(value: Value) -> str:
    """Return what a fault calls a value."""
    node, number = value
    if node.op == "variable":
        return f"the old value of {node.attrs['variable']}"
    return f"{describe(node)}[{number}]" if node.is_tuple else describe(node)
