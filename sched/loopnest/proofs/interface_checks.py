"""The interface of a program: what a caller passes, gets back, and may rely on.

A proof is about the kernel that is called. Its parameters, their types, their order, the memory
that they lie in and the space that buffers share must be those of the math, not only its values.
Extents and strides depend on sizes; `symbolic` and `enumeration` hold them against the math.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.proofs.program_model import Model
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor

ORDER = ("input", "output", "scalar", "size", "workspace")
"""The kinds of parameters, in the order in which they are passed."""


def interface_faults(model: Model, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    """Yield (tensor or parameter, sentence) for each thing that is not as the math declares it."""
    program = model.program
    yield from _order(program)
    yield from _arrays(program, math, "input")
    yield from _arrays(program, math, "output")
    yield from _outputs(program, math)
    yield from _numbers(program, math)
    for param in program.params:
        yield from _parameter(param, math)
    yield from _conditions(program, math)
    yield from _names(model)
    inputs = {p.buffer: p.name for p in program.params if p.kind == "input"}
    for site in model.sites:
        if isinstance(site.node, kir.Allocate):
            yield from _allocated(model, site.node.storage)
        elif isinstance(site.node, kir.Store) and site.node.storage in inputs:
            yield from _overwrites(site.node, inputs[site.node.storage], math)


# Parameters


def _order(program: kir.Program) -> Iterator[tuple[str, str]]:
    places = []
    for param in program.params:
        if param.kind not in ORDER:
            yield param.name, f"parameter {param.name} is of the unknown kind '{param.kind}'"
        else:
            places.append(ORDER.index(param.kind))
    if places != sorted(places):
        found = ", ".join([f"{p.name} ({p.kind})" for p in program.params])
        yield "", f"the parameters are {found}; they are passed in the order {', '.join(ORDER)}"


def _arrays(program: kir.Program, math: MathSnapshot, kind: str) -> Iterator[tuple[str, str]]:
    found = [p.name for p in program.params if p.kind == kind]
    wanted = [t.name for t in math.tensors if t.role == kind and not t.inplace]
    if kind == "output":
        wanted = [name for name in math.outputs if name in wanted]
    yield from _listed(f"{kind} parameters", found, wanted)


def _outputs(program: kir.Program, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    yield from _listed("outputs", [o.name for o in program.outputs], math.outputs)
    for output in program.outputs:
        tensor = math.tensor(output.name)
        if tensor is None:
            continue
        if output.inplace != tensor.inplace:
            yield (
                output.name,
                (
                    f"output {output.name} lies in the memory of {output.inplace or 'its own'}, "
                    f"the math has {tensor.inplace or 'its own'}"
                ),
            )
        place = output.inplace or output.name
        passed = next((p.buffer for p in program.params if p.name == place), None)
        if passed is not output.buffer:
            yield (
                output.name,
                (
                    f"output {output.name} is read from buffer {output.buffer.name}, which is not "
                    f"that of parameter {place}"
                ),
            )


def _numbers(program: kir.Program, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    scalars = [p for p in program.params if p.kind == "scalar"]
    sizes = [p for p in program.params if p.kind == "size"]
    yield from _listed("scalars", [p.name for p in scalars], [s.name for s in math.scalars])
    yield from _listed("sizes", [p.name for p in sizes], [s.name for s in math.symbols])
    types = {s.name: s.dtype for s in math.scalars}
    types.update({s.name: dtypes.index for s in math.symbols})
    for param in (*scalars, *sizes):
        wanted = types.get(param.name, param.dtype)
        if param.dtype is not wanted:
            yield param.name, f"{param.kind} {param.name} is {param.dtype}, the math has {wanted}"
        if param.buffer is not None:
            yield param.name, f"{param.kind} {param.name} has a buffer"


def _listed(what: str, found: Sequence[str], wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    if list(found) != list(wanted):
        have, need = [", ".join(names) or "none" for names in (found, wanted)]
        yield "", f"the {what} are {have}; the math has {need}"


def _parameter(param: kir.Param, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the buffer of an input, an output or workspace."""
    name, buffer = param.name, param.buffer
    if param.kind in ("scalar", "size") or param.kind not in ORDER:
        return
    if buffer is None:
        yield name, f"{param.kind} {name} has no buffer"
        return
    kinds = ("workspace", "counter") if param.kind == "workspace" else (param.kind,)
    if buffer.memory is not Memory.GLOBAL or buffer.kind not in kinds:
        yield name, f"{param.kind} {name} is passed as {buffer.memory.value} {buffer.kind} memory"
    if buffer.name != name:
        yield name, f"{param.kind} {name} has the buffer of another name, {buffer.name}"
    if param.dtype is not buffer.dtype:
        yield name, f"{param.kind} {name} is {param.dtype}, its buffer holds {buffer.dtype}"
    if buffer.kind == "counter" and buffer.dtype is not dtypes.int32:
        yield name, f"the counter {name} is {buffer.dtype}; blocks arrive at int32"
    if buffer.alias_of is not None or buffer.swizzles or buffer.stages != 1:
        yield name, f"{param.kind} {name} is no plain array: {_odd(buffer)}"
    tensor = math.tensor(name)
    if param.kind != "workspace" and tensor is not None:
        yield from _array(param, buffer, tensor)


def _odd(buffer: Buffer) -> str:
    if buffer.alias_of is not None:
        return f"it shares the space of {buffer.alias_of}"
    return "it is swizzled" if buffer.swizzles else f"it has {buffer.stages} stages"


def _array(param: kir.Param, buffer: Buffer, tensor: MathTensor) -> Iterator[tuple[str, str]]:
    name = param.name
    if buffer.tensor != name:
        yield name, f"{param.kind} {name} is passed as the array of {buffer.tensor}"
    if param.dtype is not tensor.dtype:
        yield name, f"{param.kind} {name} is {param.dtype}, the math has {tensor.dtype}"
    rank, wanted = len(param.shape), len(tensor.logical)
    if rank != wanted:
        yield name, f"{param.kind} {name} has {rank} axes, the math has {wanted}"


def _conditions(program: kir.Program, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    """Yield conditions of a launch that the math does not have, and those that are missing."""
    found, wanted = [
        [condition for _, condition in c] for c in (program.conditions, math.conditions)
    ]
    for condition in found:
        if condition not in wanted:
            yield "", f"it asks for '{condition}', which the math does not assume"
    for condition in wanted:
        if condition not in found:
            yield "", f"it does not check '{condition}', which the math assumes"
    for declared in program.ranges:
        if declared not in math.ranges:
            yield declared.name, f"it asks for '{declared}', which the math does not declare"
    for declared in math.ranges:
        if declared not in program.ranges:
            yield declared.name, f"it does not check '{declared}', which the math declares"


# Buffers


def _overwrites(store: kir.Store, name: str, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    """Yield a store to an input that is not one of the output in its place."""
    tensor = math.tensor(store.tensor)
    if tensor is None or tensor.inplace != name:
        yield store.tensor, f"{store.tensor} is stored to the input {name}, which the caller keeps"


def _names(model: Model) -> Iterator[tuple[str, str]]:
    """Yield names that two things have."""
    params = [p.name for p in model.program.params]
    arrays = {p.buffer for p in model.program.params}
    made = [b.name for b in model.buffers() if b not in arrays]
    seen: set[str] = set()
    for name in (*params, *made):
        if name in seen:
            yield name, f"two buffers or parameters are called {name}"
        seen.add(name)


def _allocated(model: Model, buffer: Buffer) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a buffer that the program makes."""
    name = buffer.name
    if buffer in model.params:
        yield name, f"the parameter {name} is allocated in the program"
    elif buffer.memory is Memory.GLOBAL:
        yield name, f"{name} is allocated in GLOBAL memory, which only a caller can pass"
    if buffer.alias_of is None:
        return
    named = {b.name: b for b in model.buffers()}
    base = named.get(buffer.alias_of)
    if base is not None and _is_circular(buffer, named):
        yield name, f"{name} shares the space of {buffer.alias_of}, and that the space of {name}"
    elif buffer.memory is not Memory.SHARED or base is None or base.memory is not Memory.SHARED:
        yield (
            name,
            (
                f"{name} shares the space of {buffer.alias_of}; only two SHARED buffers of the "
                "program can"
            ),
        )


def _is_circular(buffer: Buffer, named: Mapping[str, Buffer]) -> bool:
    """Whether the buffers whose space one takes lead back to it."""
    base, seen = buffer, {buffer}
    while base.alias_of is not None and base.alias_of in named:
        base = named[base.alias_of]
        if base in seen:
            return True
        seen.add(base)
    return False
