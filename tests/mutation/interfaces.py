"""Changes of what a caller sees of a program: parameters, types, order, outputs, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from loopnest.kir import Allocate, Output, Param, Program, Store, walk
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Const, Expr, Op, ScalarParam, Symbol, integer, substitute
from mutation.rewriting import packed, with_buffer, with_values

T = TypeVar("T")

_OTHER_TYPE = {
    "float64": dtypes.float32, "float32": dtypes.float16, "float16": dtypes.float32,
    "bfloat16": dtypes.float16, "int64": dtypes.int32, "int32": dtypes.int64,
    "int8": dtypes.uint8, "uint8": dtypes.int8, "int16": dtypes.int32,
    "uint16": dtypes.int16, "uint32": dtypes.int32,
    "float8_e4m3fn": dtypes.float8_e5m2, "float8_e5m2": dtypes.float8_e4m3fn,
}  # fmt: skip


def changed_interfaces(program: Program) -> Iterator[tuple[str, Program]]:
    """Yield (text, program) for each change; every one is wrong, whatever is computed."""
    yield from _of_parameters(program)
    yield from _of_outputs(program)
    yield from _of_memory(program)
    yield from _of_conditions(program)
    for place, declared in enumerate(program.ranges):
        yield f"drop '{declared}'", replace(program, ranges=_without(program.ranges, place))
        wider = replace(declared, high=Op("add", (declared.high, integer(1)), dtypes.index))
        yield f"'{wider}'", replace(program, ranges=_replaced(program.ranges, declared, wider))
    for param in program.params:
        if param.kind == "input" and param.buffer is not None:
            yield f"store to the input {param.name}", _overwritten(program, param.buffer)


def _without(items: Sequence[T], place: int) -> tuple[T, ...]:
    return (*items[:place], *items[place + 1 :])


def _exchanged(items: Sequence[T], a: T, b: T) -> tuple[T, ...]:
    return tuple([b if i is a else a if i is b else i for i in items])


def _of_parameters(program: Program) -> Iterator[tuple[str, Program]]:
    params = program.params
    for place, param in enumerate(params):
        if param.kind != "workspace":
            text = f"drop parameter {param.name}"
            yield text, replace(program, params=_without(params, place))
            other = replace(param, name=f"{param.name}_2")
            text = f"rename parameter {param.name}"
            yield text, replace(program, params=_replaced(params, param, other))
        yield from _of_type(program, param)
        if param.buffer is not None and param.kind in ("input", "output"):
            yield from _of_array(program, param, param.buffer)
    for a, b in pairwise(params):
        if "workspace" not in (a.kind, b.kind):
            text = f"swap parameters {a.name} and {b.name}"
            yield text, replace(program, params=_exchanged(params, a, b))
        if a.kind == b.kind and a.buffer is not None and b.buffer is not None:
            text = f"pass {a.name} for {b.name}, {b.name} for {a.name}"
            pair = (replace(a, buffer=b.buffer), replace(b, buffer=a.buffer))
            passed = _replaced(_replaced(params, a, pair[0]), b, pair[1])
            yield text, replace(program, params=passed)


def _replaced(items: Sequence[T], old: T, new: T) -> tuple[T, ...]:
    return tuple([new if i is old else i for i in items])


def _of_type(program: Program, param: Param) -> Iterator[tuple[str, Program]]:
    dtype = _OTHER_TYPE.get(param.dtype.name)
    if dtype is None:
        return
    text = f"{param.kind} {param.name} of {dtype} instead of {param.dtype}"
    if param.buffer is not None:
        yield text, retyped(program, param.buffer, dtype)
    elif param.kind == "scalar":
        old, new = ScalarParam(param.name, param.dtype), ScalarParam(param.name, dtype)
        changed = with_values(program, lambda e: substitute(e, {old: new}))
        params = _replaced(program.params, param, replace(param, dtype=dtype))
        yield text, replace(changed, params=params)


def retyped(program: Program, buffer: Buffer, dtype: DType) -> Program:
    """Return `program` with elements of another type in a buffer."""
    changed = with_buffer(program, buffer, replace(buffer, dtype=dtype))
    params = [
        replace(p, dtype=p.buffer.dtype) if p.buffer is not None else p for p in changed.params
    ]
    return replace(changed, params=tuple(params))


def _of_array(program: Program, param: Param, buffer: Buffer) -> Iterator[tuple[str, Program]]:
    if len(buffer.shape) < 2 or buffer.shape[0] is buffer.shape[-1]:
        return
    shape = tuple(reversed(buffer.shape))
    strides, size = packed(shape)
    other = replace(buffer, strides=tuple(reversed(strides)), size=size)
    yield f"{param.name} by columns", with_buffer(program, buffer, other)
    turned = replace(param, shape=tuple(reversed(param.shape)))
    text = f"{param.name} of the shape of its transpose"
    yield text, replace(program, params=_replaced(program.params, param, turned))


def _of_outputs(program: Program) -> Iterator[tuple[str, Program]]:
    outputs = program.outputs
    for a, b in pairwise(outputs):
        text = f"swap outputs {a.name} and {b.name}"
        yield text, replace(program, outputs=_exchanged(outputs, a, b))
        text = f"exchange the names of outputs {a.name} and {b.name}"
        names = (replace(a, name=b.name), replace(b, name=a.name))
        named = _replaced(_replaced(outputs, a, names[0]), b, names[1])
        yield text, replace(program, outputs=named)
        text = f"output {b.name} from the buffer of {a.name}"
        yield text, replace(program, outputs=_replaced(outputs, b, replace(b, buffer=a.buffer)))
    yield "drop the last output", replace(program, outputs=outputs[:-1])
    for output in outputs:
        yield from _of_output(program, output)


def _of_output(program: Program, output: Output) -> Iterator[tuple[str, Program]]:
    params = [p for p in program.params if p.name != output.name]
    text = f"output {output.name} as workspace"
    passed = [p for p in program.params if p.name == output.name]
    moved = [replace(p, kind="workspace") for p in passed]
    if moved:
        yield text, replace(program, params=(*params, *moved))
    inputs = [p for p in program.params if p.kind == "input" and p.buffer is not None]
    for param in inputs[:1]:
        place = "" if output.inplace else param.name
        text = f"output {output.name} in the memory of {place or 'its own'}"
        other = replace(output, inplace=place)
        yield text, replace(program, outputs=_replaced(program.outputs, output, other))


def _of_memory(program: Program) -> Iterator[tuple[str, Program]]:
    made = [n.storage for n, _ in walk(program.body) if isinstance(n, Allocate)]
    made = list(dict.fromkeys(made))
    for buffer in made:
        other = replace(buffer, memory=Memory.GLOBAL)
        yield f"allocate {buffer.name} in GLOBAL memory", with_buffer(program, buffer, other)
        if buffer.alias_of is None:
            other = replace(buffer, alias_of="nothing")
            yield f"{buffer.name} in the space of nothing", with_buffer(program, buffer, other)
    local = [b for b in made if b.memory is Memory.LOCAL]
    for a, b in pairwise(local):
        other = replace(b, alias_of=a.name)
        yield f"{b.name} in the space of {a.name}", with_buffer(program, b, other)
        other = replace(b, name=a.name)
        yield f"{b.name} by the name of {a.name}", with_buffer(program, b, other)


def _of_conditions(program: Program) -> Iterator[tuple[str, Program]]:
    for place, (text, _) in enumerate(program.conditions):
        fewer = _without(program.conditions, place)
        yield f"do not check '{text}'", replace(program, conditions=fewer)
    sizes = [p for p in program.params if p.kind == "size"]
    for param in sizes[:1]:
        condition: Expr = Op("ge", (Symbol(param.name), integer(2)), dtypes.bool_)
        more = (*program.conditions, (f"{param.name} >= 2", condition))
        yield f"ask for {param.name} >= 2", replace(program, conditions=more)


def _overwritten(program: Program, buffer: Buffer) -> Program:
    """Return a program that stores to an input when all else is done."""
    last = next(n for n, _ in reversed(list(walk(program.body))) if isinstance(n, Store))
    zero = tuple([integer(0)] * len(buffer.shape))
    store = Store(buffer, zero, Const(0, buffer.dtype), last.tensor, "define", False,
                  last.coordinate, last.origin)  # fmt: skip
    return program.with_body((*program.body, store))
