"""Loops that end early: what they leave out changes nothing that is read.

All other facts are proved of the nest in which no loop ends before its extent. What is left out by
an `Until` is then harmless where all of this holds:

- the math has the least of the steps at which a condition holds, or the last one: "until". Where
  the loop ends, what it has folded of that is below the number of the last step;
- steps are folded in ascending order, so that those left out are above what is folded, which is
  then the fold of all; each loop of the fold ends by it;
- each thread folds for itself, and under no test that others may find different, so that all that
  meet in the loop leave it together;
- of what else the loop stores, nobody outside reads but states of the step that the fold names;
- threads are in order wherever the loop ends: that is proved of the nest in which the extent of the
  loop is any number up to its own.

Where one of these does not show, the nest runs at small sizes on random data, beside the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from loopnest import kir
from loopnest.base.errors import KernelFault, LaunchError
from loopnest.kir.loop_bounds import slope
from loopnest.kir.nodes import WHOLE_ELEMENTS
from loopnest.lane_machine.abstract_machine import Machine
from loopnest.lane_machine.concrete_program import ConcreteProgram
from loopnest.lane_machine.loop_dependence import Expansions
from loopnest.numerics.error_bounds import enclosures
from loopnest.numerics.target_accuracy import STANDARD
from loopnest.proofs.affine import NotAffine
from loopnest.proofs.obligations import obligations
from loopnest.proofs.point_arrays import number
from loopnest.proofs.program_model import Model
from loopnest.proofs.report import Finding
from loopnest.proofs.size_choice import small_sizes
from loopnest.proofs.symbolic import NotProved, prove_order
from loopnest.proofs.value_comparison import drawn
from loopnest.scalar import dtypes
from loopnest.scalar.enums import IterKind, Memory
from loopnest.scalar.expr import (
    ONE,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    Symbol,
    cast,
    free_indices,
    loads,
    substitute,
    walk,
)
from loopnest.tensor.computed_ranges import data_index
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor, thaw

_MOST_SIZES = 4
_DRAWS = 5
"""Of how many sizes, and sets of inputs, a nest is run."""


def early_ends(model: Model, math: MathSnapshot, given: Mapping[str, int]) -> Finding | None:
    """Return what is wrong where loops of a program end early; None where all is shown."""
    program = model.program
    if not any(isinstance(node, kir.Until) for node, _ in kir.walk(program.body)):
        return None
    problem = _Ends(model, math).problem()
    if problem is not None:
        wrong = _differing(program, math, given)
        if wrong is not None:
            return Finding("until", "refuted", f"{problem}; {wrong[1]}", sizes=wrong[0])
    elif program.launch:
        problem = _unordered(_cut(program), math, given)
    return None if problem is None else Finding("until", "unknown", problem)


class _Ends:
    """The loops of a program that end early."""

    def __init__(self, model: Model, math: MathSnapshot) -> None:
        self.model, self.math, self.algebra = model, math, model.algebra
        self.nodes = list(kir.walk(model.program.body))

    def problem(self) -> str | None:
        """Return why something is not shown, of the first loop of which something is not."""
        for node, around in self.nodes:
            if isinstance(node, kir.Until):
                found = next(self._problems(node, around), None)
                if found is not None:
                    return f"a loop ends where {node.condition}: {found}"
        return None

    def _problems(self, node: kir.Until, around: tuple[kir.Stmt, ...]) -> Iterator[str]:
        loop = around[-1]
        folded = self._folded(node.condition)
        if folded is None:
            yield "that is not what a fold of the first step says, below the last step"
            return
        tensor, load = folded
        stores = [(n, outer) for n, outer in self.nodes
                  if isinstance(n, kir.Store) and n.storage is load.buffer]  # fmt: skip
        if load.buffer.memory is not Memory.LOCAL:
            yield f"{load.buffer.name} is not each thread's own"
        if any(s.tensor != tensor.name or s.own is not load for s, _ in stores):
            yield f"{load.buffer.name} holds more than the fold of {tensor.name}"
        begun = {n for s, outer in stores if s.role == "init" for n in outer}
        for store, outer in stores:
            if store.role != "update":
                continue
            own = [n for n in outer if isinstance(n, kir.Loop) and n not in begun]
            if loop not in own:
                yield f"{tensor.name} is not folded in it"
            elif not self._ascends(store.coordinate[0], own):
                yield f"{tensor.name} does not fold the steps in ascending order"
            elif not all(_ends_by(n, node.condition) for n in own):
                yield "a loop around it goes on"
            elif not self._is_common(outer):
                yield f"threads may find different whether {tensor.name} is folded"
            yield from self._readers(tensor, own[0], store.coordinate[0])

    def _folded(self, condition: Expr) -> tuple[MathTensor, Load] | None:
        """Return the fold that a condition asks for, and the load of it."""
        for load in loads(condition):
            tensor = self.math.tensor(load.buffer.tensor)
            if tensor is None or tensor.definition is None or tensor.definition.op != "until":
                continue
            last = cast(self.algebra.sub(tensor.root[0].extent, ONE), dtypes.int64)
            if condition is Op("lt", (load, last), dtypes.bool_):
                return tensor, load
        return None

    def _ascends(self, step: Expr, loops: Sequence[kir.Loop]) -> bool:
        """Whether a step grows from iteration to iteration of loops, outermost first."""
        behind = 1
        for loop in reversed(loops):
            if slope(step, loop.var, self.algebra) != behind:
                return False
            extent = loop.var.extent
            if loop is not loops[0]:
                if not isinstance(extent, Const):
                    return False
                behind *= int(extent.value)
        return True

    def _is_common(self, around: Sequence[kir.Stmt]) -> bool:
        """Whether all threads find the tests around a statement alike."""
        threads = {n.var for n in around if isinstance(n, kir.Loop) and n.parallel.is_thread}
        for test in [n.condition for n in around if isinstance(n, kir.If)]:
            own = [n for n in walk(test) if isinstance(n, (LaunchIndex, Local, Load))]
            if own or not threads.isdisjoint(free_indices(test)):
                return False
        return True

    def _readers(self, fold: MathTensor, loop: kir.Loop, step: Expr) -> Iterator[str]:
        """Yield what is read outside of a loop but states of the step that a fold names."""
        inside = {n for n, _ in kir.walk(loop.body)}
        stores = [n for n, _ in self.nodes if isinstance(n, kir.Store)]
        made = {n.tensor for n in stores if n in inside}
        outside = {n.tensor for n in stores if n not in inside and n.role not in WHOLE_ELEMENTS}
        for name in sorted(made - {fold.name}):
            tensor = self.math.tensor(name)
            if tensor is None:
                continue
            states = [n for n in stores if n in inside and n.tensor == name]
            stepped = bool(tensor.logical) and tensor.logical[0].kind is IterKind.STEP
            in_step = stepped and all(n.coordinate[:1] == (step,) for n in states)
            if tensor.role == "output":
                yield f"{name} is an output"
            for reader in [t for t in self.math.tensors if t.name in outside]:
                reads = () if reader.definition is None else reader.definition.reads
                for read in [r for r in reads if r.producer == name]:
                    found = data_index(read.indices[0]) if in_step else None
                    if found is None or reads[found.number].producer != fold.name:
                        yield f"{reader.name} reads {name} behind it"


def _ends_by(loop: kir.Loop, condition: Expr) -> bool:
    last = loop.body[-1]
    return isinstance(last, kir.Until) and last.condition is condition


# Threads


def _cut(program: kir.Program) -> kir.Program:
    """Return a program whose loops that end early have any extent up to their own."""
    params, conditions = list(program.params), list(program.conditions)
    names = {param.name for param in params}
    known: dict[Expr, Expr] = {}
    for node, _ in kir.walk(program.body):
        if isinstance(node, kir.Loop) and any(isinstance(n, kir.Until) for n in node.body):
            name = next(n for k in range(len(names) + 1) if (n := f"steps_{k}") not in names)
            names.add(name)
            steps, extent = Symbol(name), node.var.extent
            known[node.var] = Index(node.var.name, steps)
            params.append(kir.Param(name, "size", dtypes.index))
            conditions.append((f"{name} <= {extent}", Op("le", (steps, extent), dtypes.bool_)))

    def rule(node: kir.Stmt) -> kir.Stmt | None:
        if isinstance(node, kir.Until):
            return None
        node = kir.map_expressions(node, lambda value: substitute(value, known))
        if isinstance(node, kir.Loop) and isinstance(var := known.get(node.var), Index):
            return replace(node, var=var)
        return node

    body = kir.map_body(program.body, rule)
    return replace(program, params=tuple(params), conditions=tuple(conditions), body=body)


def _unordered(program: kir.Program, math: MathSnapshot, given: Mapping[str, int]) -> str | None:
    """Return why it does not show that the threads of a program are in order."""
    model = Model(program)
    works, exchanges, problems = obligations(model, math)
    if problems:
        return f"it is not shown that threads are in order where a loop ends: {problems[0]}"
    try:
        prove_order(model, math, works, exchanges, dict(given), ())
    except (NotProved, NotAffine) as why:
        return f"it is not shown that threads are in order where a loop ends: {why}"
    return None


# Data


def _differing(
    program: kir.Program, math: MathSnapshot, given: Mapping[str, int]
) -> tuple[dict[str, int], str] | None:
    """Return sizes, and how a program differs from its math on some data; None where none does."""
    for sizes in islice(small_sizes(program, given), _MOST_SIZES):
        for seed in range(_DRAWS):
            found = _difference(program, math, sizes, seed)
            if found is not None:
                return sizes, found
    return None


def _difference(
    program: kir.Program, math: MathSnapshot, sizes: Mapping[str, int], seed: int
) -> str | None:
    fusion, draw = thaw(math), np.random.default_rng(seed)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for tensor in fusion.inputs:
        shape = [number(size, sizes) for size in tensor.sizes]
        arrays[tensor.name] = drawn(draw, tensor.dtype, shape, seed)
    scalars = {s.name: drawn(draw, s.dtype, (), seed).item() for s in fusion.scalars}
    shown = {str(size) for tensor in fusion.inputs for size in tensor.sizes}
    keywords = {**scalars, **{s.name: sizes[s.name] for s in fusion.symbols if s.name not in shown}}
    for tensor in fusion.outputs:
        shape = [number(size, sizes) for size in tensor.sizes]
        arrays[tensor.name] = np.zeros(shape, tensor.dtype.numpy)
    inputs = [np.array(arrays[tensor.name]) for tensor in fusion.inputs]
    try:
        wanted = enclosures(fusion, inputs, keywords, list(fusion.outputs), STANDARD)
    except LaunchError:  # the math asks of its data what does not hold of these
        return None
    try:
        Machine(Expansions(ConcreteProgram(program, sizes, program)), arrays, scalars, False).run()
    except KernelFault as fault:
        return f"for some data {fault}"
    for name, interval in wanted.items():
        found = arrays[name].astype(np.float64)
        wrong = (found < interval.low) | (found > interval.high)
        if np.any(wrong & np.isfinite(interval.low) & np.isfinite(interval.high)):
            return f"for some data {name} has other values"
    return None
