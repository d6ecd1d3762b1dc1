"""Instructions as data: what each does to small matrices, and where a warp has their elements.

A row says all that anybody may know of an instruction: its operands, what it does as one statement
of the nest, how its operands lie in lanes, and its PTX. Schedules, lowering, printers and proofs
read rows and name none.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType, NoneType

from loopnest.base.errors import DefinitionError, LoopnestError, NotSupported, kind_of
from loopnest.kir.kernel_program import Program
from loopnest.kir.nest_parser import parse
from loopnest.kir.nodes import Store, walk
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import WARP, Memory
from loopnest.scalar.expr import Expr, Index, Load, Op, loads
from loopnest.scalar.fragments import Fragment
from loopnest.scalar.op_table import OPS

_SCOPES = {"warp": WARP, "thread": 1}
"""Who executes an instruction together -> how many lanes its fragments have."""

_COMPLETIONS = ("", "group")

LATER = ("tma", "cp.async.bulk", "wgmma")
"""What the names of instructions begin with that need statements of their own."""


@dataclass(frozen=True)
class Operand:
    """What an instruction reads or writes: a small matrix, or as many bytes as a move takes.

    Args:
        dtype: the type of an element.
        axes: their names, as the behaviour has them.
        fragment: where the elements lie; None where the operand has an address.
        memory: where it is: of one with a fragment `ln.WARP`, or `ln.LOCAL` where the scope of the
            instruction is a thread.

    >>> import loopnest as ln
    >>> row = ln.Fragment("(g) (t p) -> (g t) (p)", g=8, t=4, p=2)
    >>> ln.Operand(ln.float32, ("m", "n"), row).fragment.shape
    (8, 8)

    Source: the operands of PTX's warp-level matrix instructions.
    """

    dtype: DType
    axes: tuple[str, ...]
    fragment: Fragment | None = None
    memory: Memory = Memory.WARP


@dataclass(frozen=True)
class Instruction:
    """A row of `ln.instructions`: one instruction of a target.

    Args:
        name: as `tv.instruct` and `tv.move_by` take it.
        operands: by their roles, the names of the behaviour.
        behaviour: one statement of the nest's grammar, for all indices of the operands' axes.
        ptx: with ``{role}`` where an operand's registers or address stand; empty where no CUDA
            kernel can be printed.
        arch: the least architecture that has it; of one with a `c`, what a C compiler calls the
            extension of a processor, as "avx512bf16".
        scope: "warp" or "thread": who executes it together.
        completion: empty where the instruction has ended when the next one begins; "group" where
            it ends at some time before the Wait for its group.
        accuracy: role -> relative error: of a factor, to which its elements are rounded first; of
            the result, the unit of (terms + 1) roundings of the largest magnitude. None where the
            instruction computes as the nest does.
        witness: what the lane maps rest on: a published table, a device and a date.
        c: statements of C for scope "thread", with ``{role}`` where the address of an operand's
            elements stands. Compiled for a processor that lacks the extension, a kernel has the
            behaviour in loops.
        flushes: whether it takes subnormal factors and sums for 0.

    >>> import loopnest as ln
    >>> [name for name, row in ln.instructions.items() if row.completion]
    ['cp.async']

    Source: PTX ISA, "Warp-level matrix instructions".
    """

    name: str
    operands: Mapping[str, Operand]
    behaviour: str
    ptx: str = ""
    arch: str = "sm_80"
    scope: str = "warp"
    completion: str = ""
    accuracy: Mapping[str, float] | None = None
    witness: str = ""
    c: str = ""
    flushes: bool = False

    @property
    def extents(self) -> dict[str, int]:
        """The extent of each axis that an operand with a fragment has."""
        return {
            axis: extent
            for operand in self.operands.values()
            if operand.fragment is not None
            for axis, extent in zip(operand.axes, operand.fragment.shape, strict=True)
        }

    @property
    def statement(self) -> Store:
        """The behaviour: a store whose indices are those of loops called as the axes."""
        return behaviour_store(self.behaviour, _signature(self))

    @property
    def result(self) -> str:
        """The role of the operand that is written."""
        return self.statement.buffer

    @property
    def added(self) -> Expr:
        """What is added to the result, of one that computes a sum."""
        value = self.statement.value
        assert isinstance(value, Op)
        (found,) = [
            a for a in value.args if not isinstance(a, Load) or a.buffer.name != self.result
        ]
        return found

    @property
    def is_move(self) -> bool:
        """Whether it copies, and computes nothing."""
        return isinstance(self.statement.value, Load)

    @property
    def lanes(self) -> int:
        """How many lanes execute it together."""
        return _SCOPES[self.scope]

    @property
    def holder(self) -> Memory:
        """Where operands with a fragment lie."""
        return Memory.WARP if self.lanes > 1 else Memory.LOCAL

    def executes_on(self, target: str) -> bool:
        """Whether kernels for a target may have it in the place of its behaviour."""
        return target in ("", "c" if self.c else "cuda")


def gives_lanes(name: str) -> bool:
    """Whether an instruction moves matrices to the lanes of a warp, which name their rows."""
    row = instructions.get(name)
    return row is not None and row.is_move and row.operands[row.result].memory is Memory.WARP


_Signature = tuple[tuple[str, str, tuple[tuple[str, int], ...]], ...]


def _signature(row: Instruction) -> _Signature:
    """Return role, type and axes with extents of each operand; 1 where nothing says how many."""
    extents = row.extents
    return tuple([
        (role, operand.dtype.name, tuple([(axis, extents.get(axis, 1)) for axis in operand.axes]))
        for role, operand in row.operands.items()
    ])  # fmt: skip


@lru_cache
def behaviour_store(behaviour: str, signature: _Signature) -> Store:
    """Return the behaviour as the one store of a nest of loops over all axes."""
    nodes = [node for node, _ in walk(_behaviour_nest(behaviour, signature).body)]
    (store,) = [node for node in nodes if isinstance(node, Store)]
    return store


def _behaviour_nest(behaviour: str, signature: _Signature) -> Program:
    """Return the nest that does what the behaviour says."""
    arrays = [
        f"{role}: {dtype}[{', '.join([str(extent) for _, extent in axes])}]"
        for role, dtype, axes in signature
    ]
    extents = {axis: extent for _, _, axes in signature for axis, extent in axes}
    lines = [f"kernel behaviour({', '.join(arrays)}) -> ()"]
    lines += ["  " * n + f"for {axis} in {extents[axis]}:" for n, axis in enumerate(extents)]
    return parse("\n".join([*lines, "  " * len(extents) + behaviour]))


_table: dict[str, Instruction] = {}

instructions: Mapping[str, Instruction] = MappingProxyType(_table)
"""Name -> row: those of the package, and what `add_instruction` added."""


def add_instruction(row: Instruction) -> Instruction:
    """Add a row to `ln.instructions` and return it.

    Args:
        row: the instruction; `tv.instruct` and `tv.move_by` take its name from then on.

    Raises:
        DefinitionError: there is a row of that name, its fragments do not fit its operands, or
            its behaviour is not one statement about them.
        NotSupported: the name begins as those of instructions that need a later version.

    >>> import loopnest as ln
    >>> ln.add_instruction(ln.instructions["ldmatrix.x4"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    loopnest.base.errors.DefinitionError: add_instruction('ldmatrix.x4'): there is a row ...

    Source: rows of instructions as data are those of Exo's @instr.
    """
    if not isinstance(row, Instruction):
        raise DefinitionError("add_instruction", f"{kind_of(row)} is no ln.Instruction")
    if not isinstance(row.name, str) or not _NAME.fullmatch(row.name):
        reason = f"name={row.name!r}"
        raise DefinitionError(
            "add_instruction", reason, 'it is letters, digits and dots, as "mma.m8n8k4"'
        )
    subject = f"add_instruction('{row.name}')"
    if row.name.startswith(LATER):
        reason = "instructions of this kind need statements that do not exist yet"
        raise NotSupported(subject, reason, f"names begin otherwise than {', '.join(LATER)}")
    if row.name in _table:
        raise DefinitionError(subject, "there is a row of this name already", "choose another name")
    _check_types(row, subject)
    _check_fields(row, subject)
    _check_operands(row, subject)
    _check_behaviour(row, subject)
    _table[row.name] = row
    return row


def _check_types(row: Instruction, subject: str) -> None:
    """Refuse fields of other types than theirs."""
    for field in ("behaviour", "ptx", "arch", "witness", "c"):
        if not isinstance(getattr(row, field), str):
            raise DefinitionError(subject, f"{field}={getattr(row, field)!r}", "it is a text")
    if not isinstance(row.operands, Mapping):
        raise DefinitionError(subject, f"operands={row.operands!r}", "it is role -> ln.Operand")
    for role, operand in row.operands.items():
        if not isinstance(role, str) or not role.isidentifier():
            raise DefinitionError(subject, f"the role {role!r}", "a role is a name, as in Python")
        if not isinstance(operand, Operand):
            raise DefinitionError(subject, f"operand {role} is {operand!r}", "it is an ln.Operand")
        _check_operand(operand, f"operand {role}", subject)
    if not isinstance(row.flushes, bool):
        raise DefinitionError(subject, f"flushes={row.flushes!r}", "it is True or False")
    if not isinstance(row.accuracy, (Mapping, NoneType)):
        reason = f"accuracy={row.accuracy!r}"
        raise DefinitionError(subject, reason, "it is role -> relative error, or None")


def _check_operand(operand: Operand, which: str, subject: str) -> None:
    """Refuse fields of an operand that are not of their types."""
    axes: object = operand.axes
    named = isinstance(axes, tuple) and all(isinstance(a, str) and a.isidentifier() for a in axes)
    for field, fits, allowed in (
        ("dtype", isinstance(operand.dtype, DType), "it is a type, as ln.float16"),
        ("axes", named, 'it is a tuple of names, as ("m", "k")'),
        ("fragment", isinstance(operand.fragment, (Fragment, NoneType)), "it is an ln.Fragment"),
        ("memory", isinstance(operand.memory, Memory), "it is a memory, as ln.WARP"),
    ):
        if not fits:
            reason = f"{which} has {field}={getattr(operand, field)!r}"
            raise DefinitionError(subject, reason, allowed)


def _check_fields(row: Instruction, subject: str) -> None:
    """Refuse fields that are not one of what is allowed."""
    allowed = {"scope": tuple(_SCOPES), "completion": _COMPLETIONS}
    for field, values in allowed.items():
        value = getattr(row, field)
        if value not in values:
            shown = " or ".join([repr(v) for v in values])
            raise DefinitionError(subject, f"{field}={value!r}", f"it is {shown}")
    _check_texts(row, subject)
    for role, error in (row.accuracy or {}).items():
        if role not in row.operands:
            reason = f"its accuracy names '{role}'"
            raise DefinitionError(subject, reason, f"the operands are {', '.join(row.operands)}")
        if not isinstance(error, (int, float)) or not 0 < error < 1:
            reason = f"its accuracy of {role} is {error!r}"
            raise DefinitionError(subject, reason, "it is a relative error, between 0 and 1")


def _check_texts(row: Instruction, subject: str) -> None:
    """Refuse texts of targets that cannot be read, or that do not fit scope and architecture."""
    digits = row.arch.removeprefix("sm_")
    if row.c:
        if row.scope != "thread" or row.ptx:
            reason = f"it has a c, and {'a ptx' if row.ptx else f'the scope {row.scope}'}"
            raise DefinitionError(subject, reason, "a row for C has the scope thread, and no ptx")
        if not _FEATURE.fullmatch(row.arch) or digits != row.arch:
            reason = f"arch={row.arch!r}"
            raise DefinitionError(subject, reason, 'use the form "avx512bf16" for a row with a c')
    elif digits == row.arch or not digits.rstrip("af").isdigit():
        raise DefinitionError(subject, f"arch={row.arch!r}", 'use the form "sm_80"')
    for field in ("ptx", "c"):
        text = getattr(row, field)
        known = {*row.operands, *(("bytes", "taken") if field == "ptx" else ())}
        try:
            names = [name for _, name, _, _ in string.Formatter().parse(text)]
        except ValueError:
            reason = f"its {field} '{text}' cannot be read"
            hint = "write {{ and }} for braces of the text"
            raise DefinitionError(subject, reason, hint) from None
        for name in names:
            if name is not None and name not in known:
                operands = ", ".join(row.operands)
                reason = f"its {field} names '{name}'"
                raise DefinitionError(subject, reason, f"the operands are {operands}")


def _check_operands(row: Instruction, subject: str) -> None:
    """Refuse fragments that do not fit axes, lanes or each other."""
    extents: dict[str, tuple[str, int]] = {}
    for role, operand in row.operands.items():
        where = f"operand {role}"
        fragment = operand.fragment
        if (fragment is None) is (operand.memory is row.holder):
            reason = f"{where} is in {operand.memory.value} memory and has " + (
                "no fragment" if fragment is None else "a fragment"
            )
            allowed = f"operands in ln.{row.holder.name} have one, and no others"
            raise DefinitionError(subject, reason, allowed)
        if fragment is None:
            continue
        if len(fragment.shape) != len(operand.axes):
            axes = ", ".join(operand.axes)
            reason = f"{where} has the axes ({axes}) and a fragment of {len(fragment.shape)} axes"
            raise DefinitionError(subject, reason, "a fragment has a group for each axis")
        if fragment.lanes != row.lanes:
            reason = f"the fragment of {where} has {fragment.lanes} lanes"
            raise DefinitionError(subject, reason, f"the scope {row.scope} has {row.lanes}")
        for axis, extent in zip(operand.axes, fragment.shape, strict=True):
            other, known = extents.setdefault(axis, (role, extent))
            if known != extent:
                reason = f"axis {axis} has extent {known} in operand {other} and {extent} in {role}"
                raise DefinitionError(subject, reason, "an axis has one extent")


def _check_behaviour(row: Instruction, subject: str) -> None:
    """Refuse a behaviour that is no statement about the whole operands."""
    axes = {axis for operand in row.operands.values() for axis in operand.axes}
    try:
        tree = ast.parse(row.behaviour)
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    except SyntaxError:
        raise DefinitionError(
            subject, f"its behaviour '{row.behaviour}' cannot be read", _STATEMENT
        ) from None
    unknown = sorted(names - axes - set(row.operands) - set(OPS) - _TYPE_NAMES)
    if unknown:
        known = f"the operands are {', '.join(row.operands)}, the axes {', '.join(sorted(axes))}"
        raise DefinitionError(subject, f"its behaviour names '{unknown[0]}'", known)
    try:
        store = row.statement
    except (LoopnestError, ValueError) as error:
        why = getattr(error, "hint", "") or _STATEMENT
        raise DefinitionError(
            subject, f"its behaviour '{row.behaviour}' cannot be read", why
        ) from None
    used = [store.own, *loads(store.value)]
    for load in used:
        operand = row.operands[load.buffer.name]
        shown = ", ".join(operand.axes)
        if [i.name if isinstance(i, Index) else "" for i in load.args] != [*operand.axes]:
            reason = f"its behaviour has {load} where operand {load.buffer.name} has ({shown})"
            raise DefinitionError(subject, reason, "an operand is read and written by its axes")
    parts = store.value.args if isinstance(store.value, Op) and store.value.op == "add" else ()
    others = [part for part in parts if part is not store.own]
    is_sum = len(others) == 1 and store.own not in loads(others[0])
    if not row.is_move and not is_sum:
        reason = f"its behaviour '{row.behaviour}' is neither a copy nor a sum"
        raise DefinitionError(subject, reason, _STATEMENT)
    if not row.is_move and row.completion:
        reason = f"completion='{row.completion}' of what computes"
        raise DefinitionError(subject, reason, "copies alone may end later")
    missing = sorted(set(row.operands) - {load.buffer.name for load in used})
    if missing:
        raise DefinitionError(
            subject, f"its behaviour does not name the operand '{missing[0]}'", _STATEMENT
        )


_FEATURE = re.compile(r"[a-z][a-z0-9-]*")
"""What compilers have for an extension of a processor."""

_NAME = re.compile(r"[A-Za-z][\w.]*")
"""What a nest's text may have for an instruction."""

_STATEMENT = 'write one statement, as "d[m, n] = d[m, n] + a[m, k] * b[k, n]"'
_TYPE_NAMES = {dtype.name for dtype in dtypes.ALL}
