"""Changes of tests, stores, loads and temporaries, one at a time: what a statement computes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from loopnest.kir import (
    If,
    Let,
    Loop,
    Program,
    Stmt,
    Store,
    Until,
)
from loopnest.kir import walk as statements
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import (
    Const,
    Expr,
    Index,
    Load,
    Op,
    all_of,
    integer,
    substitute,
    terms_of,
    walk,
)
from mutation.mutant import Mutant
from mutation.rewriting import (
    in_scope,
    neighbours,
    replaced,
)

# Tests


def of_test(program: Program, node: If) -> Iterator[Mutant]:
    for text, condition in _tests(node.condition):
        test = If(condition, node.body, node.orelse, node.reason, node.origin)
        yield Mutant("predicate", text, replaced(program, node, test), node)


def _tests(condition: Expr) -> Iterator[tuple[str, Expr]]:
    """Yield other conditions: a term dropped, weaker, narrower, or of another index."""
    terms = terms_of(condition)
    for number, term in enumerate(terms):
        rest = [t for n, t in enumerate(terms) if n != number]
        yield f"drop '{term}'", all_of(rest)
        if not isinstance(term, Op):
            continue
        left, right = term.args[0], term.args[-1]
        if term.op == "lt":
            for step, name in ((1, "weaken"), (-1, "narrow")):
                bound = Op("add", (right, integer(step)), dtypes.index)
                yield f"{name} '{term}'", all_of([*rest, Op("lt", (left, bound), dtypes.bool_)])
        if term.op == "le" and left.dtype is dtypes.index:
            for step, name in ((-1, "weaken"), (1, "narrow")):
                bound = Op("add", (left, integer(step)), dtypes.index)
                yield f"{name} '{term}'", all_of([*rest, Op("le", (bound, right), dtypes.bool_)])
        if term.op in ("lt", "le", "eq") and left.dtype is dtypes.index:
            for index, other in _without(left):
                changed = Op(term.op, (other, right), dtypes.bool_)
                yield f"'{term}' {index}", all_of([*rest, changed])


def of_until(program: Program, node: Until) -> Iterator[Mutant]:
    """Yield other ends of a loop; without one it runs on, and its result is the same."""
    test = node.condition
    others = [("by the opposite", Op("not", (test,), dtypes.bool_))]
    if isinstance(test, Op) and test.op == "lt":
        left, right = test.args
        one = Const(1, left.dtype)
        above = Op("lt", (Op("sub", (left, one), left.dtype), right), test.dtype)
        others.append(("where it may not", above))
    for text, condition in others:
        new = replaced(program, node, replace(node, condition=condition))
        yield Mutant("end", f"end {text}", new, node)
    for body in [n.body for n, _ in statements(program.body) if isinstance(n, Loop)]:
        if body[-1] is node and len(body) > 1:
            early = replaced(program, body[-2], (replace(node), body[-2]))
            yield Mutant("end", "end before a statement", replaced(early, node, None), node)


def _without(index: Expr) -> Iterator[tuple[str, Expr]]:
    for var in dict.fromkeys(n for n in walk(index) if isinstance(n, Index)):
        yield f"without {var}", substitute(index, {var: integer(0)})


# Stores, loads, temporaries


def of_store(program: Program, node: Store) -> Iterator[Mutant]:
    yield from _dropped(program, node)
    yield from _redirected(program, node)
    if node.atomic:
        new = replace(node, atomic=False)
        yield Mutant(
            "atomic", f"update {node.storage.name} by steps", replaced(program, node, new), node
        )
    for place, index in enumerate(node.index):
        for name, other in indices(index):
            changed = (*node.index[:place], other, *node.index[place + 1 :])
            text = f"store {node.storage.name}: {name}"
            yield Mutant("index", text, replaced(program, node, replace(node, index=changed)), node)
    for place, index in enumerate(node.index) if node.storage.memory is Memory.WARP else ():
        for name, other in _swapped_digits(index):
            changed = (*node.index[:place], other, *node.index[place + 1 :])
            text = f"store {node.storage.name}: {name}"
            yield Mutant("tile", text, replaced(program, node, replace(node, index=changed)), node)
    other_values = (*values(node.value), *_other_math(node.value), *_of_lanes(node))
    for kind, text, value in other_values:
        yield Mutant(kind, text, replaced(program, node, replace(node, value=value)), node)
    for place, index in enumerate(node.coordinate):
        if isinstance(index, Const) or node.role == "fill":
            continue  # a fill claims no more than that it lies outside
        other = Op("add", (index, integer(1)), dtypes.index)
        changed = (*node.coordinate[:place], other, *node.coordinate[place + 1 :])
        text = f"claim of {node.tensor}: axis {place}"
        new = replace(node, coordinate=changed)
        yield Mutant("claim", text, replaced(program, node, new), node)


def _redirected(program: Program, node: Store) -> Iterator[Mutant]:
    """Yield stores to other buffers in which the same index may stand."""
    mine = node.storage
    for other in in_scope(program, node):
        alike = len(other.shape) == len(mine.shape) and other.kind not in ("input", "counter")
        if other is not mine and alike and other.memory is mine.memory and not node.flat:
            text = f"store {mine.name}: to {other.name}"
            new = replace(node, storage=other)
            yield Mutant("redirect", text, replaced(program, node, new), node)


def clobbered(program: Program, nodes: list[Stmt]) -> Iterator[Mutant]:
    """Yield inits repeated behind each other store to their buffer."""
    inits = {n.storage: n for n in nodes if isinstance(n, Store) and n.role == "init"}
    for node in nodes:
        if isinstance(node, Store) and node.role != "init" and node.storage in inits:
            again = replace(inits[node.storage], index=node.index, coordinate=node.coordinate)
            text = f"start {node.storage.name} again behind its {node.role}"
            yield Mutant("clobber", text, replaced(program, node, (node, again)), node)


def _dropped(program: Program, node: Store) -> Iterator[Mutant]:
    if node.role == "init":
        text = f"drop {node.storage.name} init"
        yield Mutant("init", text, replaced(program, node, None), node)
        if isinstance(node.value, Const):
            other = Const(node.value.value == 0, node.value.dtype)
            text = f"start {node.storage.name} from {other}"
            new = replace(node, value=other)
            yield Mutant("identity", text, replaced(program, node, new), node)
    else:
        text = f"drop {node.storage.name}"
        yield Mutant("store", text, replaced(program, node, None), node)
    if node.role == "fill" and isinstance(node.value, Const):
        other = Const(node.value.value == 0, node.value.dtype)
        text = f"fill {node.storage.name} with {other}"
        yield Mutant("identity", text, replaced(program, node, replace(node, value=other)), node)


def values(value: Expr) -> Iterator[tuple[str, str, Expr]]:
    """Yield (kind, text, other value): loads at other places, masks dropped."""
    for load in dict.fromkeys(n for n in walk(value) if isinstance(n, Load)):
        for place, index in enumerate(load.args):
            for name, other in indices(index):
                changed = (*load.args[:place], other, *load.args[place + 1 :])
                new = substitute(value, {load: Load(load.buffer, changed, load.flat)})
                yield "index", f"load {load.buffer.name}: {name}", new
    for mask in dict.fromkeys(n for n in walk(value) if isinstance(n, Op) and n.op == "where"):
        if any(isinstance(n, Load) for n in walk(mask.args[0])):
            continue  # part of the math
        for text, condition in _tests(mask.args[0]):
            new = Op("where", (condition, *mask.args[1:]), mask.dtype)
            yield "predicate", f"mask: {text}", substitute(value, {mask: new})
        yield "predicate", f"no mask '{mask.args[0]}'", substitute(value, {mask: mask.args[1]})
        if isinstance(mask.args[2], Const):
            other = Const(mask.args[2].value == 0, mask.args[2].dtype)
            new = Op("where", (*mask.args[:2], other), mask.dtype)
            yield "identity", f"mask: fill with {other}", substitute(value, {mask: new})


_OTHER_OPERATIONS = {
    "add": "sub", "sub": "add", "mul": "add", "div": "mul", "max": "min", "min": "max",
    "lt": "ge", "le": "gt", "exp": "exp2", "log": "log2", "sin": "cos", "tanh": "sigmoid",
    "sqrt": "rsqrt", "shl": "shr", "shr": "shl", "bitand": "bitor", "bitor": "bitxor",
    "bitxor": "bitand", "floordiv": "mod", "mod": "floordiv",
}  # fmt: skip


def _other_math(value: Expr) -> Iterator[tuple[str, str, Expr]]:
    """Yield (kind, text, other value): another literal, another operation."""
    nodes = [n for n in dict.fromkeys(walk(value)) if n.dtype is not dtypes.index]
    for node in nodes:
        if isinstance(node, Const) and not node.dtype.is_bool and math.isfinite(node.value):
            changed = node.value * 2 + 1
            integral = isinstance(changed, int) and node.dtype.kind == "i"
            other: Expr = Const(node.dtype.wrapped(changed) if integral else changed, node.dtype)
            yield "constant", f"{node} with {other}", substitute(value, {node: other})
        if isinstance(node, Op) and node.op == "cast" and _loses(node):
            by_way = Op("cast", (Op("cast", node.args, dtypes.int8),), node.dtype)
            yield "operation", f"{node} by way of int8", substitute(value, {node: by_way})
        if isinstance(node, Op) and node.op in _OTHER_OPERATIONS:
            name = _OTHER_OPERATIONS[node.op]
            if all(arg.dtype is not dtypes.index for arg in node.args):
                other = Op(name, node.args, node.dtype)
                yield "operation", f"{name} for {node.op}", substitute(value, {node: other})


def _loses(node: Op) -> bool:
    """Whether a cast gives other values by way of int8."""
    source = node.args[0].dtype
    return (
        node.dtype.is_integer
        and node.dtype.size > 1
        and not source.is_bool
        and source is not dtypes.int8
    )


def indices(index: Expr) -> Iterator[tuple[str, Expr]]:
    yield f"{index} + 1", Op("add", (index, integer(1)), dtypes.index)
    for name, other in _without(index):
        yield f"{index} {name}", other
    for data in dict.fromkeys(n for n in walk(index) if isinstance(n, Load)):
        yield f"{index} with 0 for {data}", substitute(index, {data: Const(0, data.dtype)})
    for number in dict.fromkeys(n for n in walk(index) if isinstance(n, Const) and n.value > 1):
        yield f"{index} with {number} + 1", substitute(index, {number: integer(number.value + 1)})


def _of_lanes(node: Store) -> Iterator[tuple[str, str, Expr]]:
    """Yield (kind, text, other value): digits swapped in a load from or for WARP memory."""
    for load in dict.fromkeys(n for n in walk(node.value) if isinstance(n, Load)):
        if Memory.WARP not in (load.buffer.memory, node.storage.memory):
            continue
        for place, index in enumerate(load.args):
            for name, other in _swapped_digits(index):
                changed = (*load.args[:place], other, *load.args[place + 1 :])
                new = substitute(node.value, {load: Load(load.buffer, changed, load.flat)})
                yield "tile", f"load {load.buffer.name}: {name}", new


def _swapped_digits(index: Expr) -> Iterator[tuple[str, Expr]]:
    """Yield an index with the factors of two of its digits in each other's place."""
    digits = list(_digits(index))
    for (one, n), (two, m) in combinations(digits, 2):
        if n != m:
            changed = [(d, m if d is one else n if d is two else f) for d, f in digits]
            terms = [Op("mul", (d, integer(f)), dtypes.index) for d, f in changed]
            total: Expr = terms[0]
            for term in terms[1:]:
                total = Op("add", (total, term), dtypes.index)
            yield f"digits of {n} and {m} in {index} swapped", total


def _digits(index: Expr) -> Iterator[tuple[Expr, int]]:
    """Yield the terms of a sum, each with its constant factor."""
    if isinstance(index, Op) and index.op == "add":
        for part in index.args:
            yield from _digits(part)
    elif isinstance(index, Op) and index.op == "mul" and isinstance(index.args[1], Const):
        yield index.args[0], int(index.args[1].value)
    elif not isinstance(index, Const):
        yield index, 1


def of_let(program: Program, node: Let) -> Iterator[Mutant]:
    if node.var.dtype is dtypes.index:
        for name, other in indices(node.value):
            text = f"let {node.var.name}: {name}"
            yield Mutant("index", text, replaced(program, node, replace(node, value=other)), node)
    for kind, text, value in values(node.value):
        yield Mutant(kind, text, replaced(program, node, replace(node, value=value)), node)


def swapped_values(program: Program) -> Iterator[Mutant]:
    """Yield neighbouring stores each of which stores the value of the other."""
    for a, b in neighbours(program):
        if not isinstance(a, Store) or not isinstance(b, Store):
            continue
        if a.value is b.value or a.value.dtype is not b.value.dtype:
            continue
        once = replaced(program, a, replace(a, value=b.value))
        text = f"store {a.storage.name} and {b.storage.name}: each other's values"
        yield Mutant("values", text, replaced(once, b, replace(b, value=a.value)), b)
