"""Rewrite a program for the C printer: threads become loops, tests become loop bounds.

1. The launch becomes loops: over blocks (parallel ones), then over the threads of a block. A loop
   that is bound to a launch dimension and wraps the whole program simply becomes that loop. Where
   threads meet, `thread_loop_fission` does this instead.
2. A loop whose whole body stands under a test on its index stops where the test fails::

       for i3 in 16:                      for i3 in min(16, N - i0 * 16):
         if i0 * 16 + i3 < N:        ->     y[i0 * 16 + i3] = …
           y[i0 * 16 + i3] = …

   C compilers turn the right one into vector code, the left one often not (a load that does not
   depend on i3 would need a mask). Of a vectorize loop both forms are made: the whole one, without
   a test, where all lanes are needed, else the short one; register tiles survive in the former.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loopnest.backends.clike.sink_allocations import settle_allocations
from loopnest.kir import Allocate, If, Let, Loop, Program, Stmt, Store, map_body
from loopnest.kir import walk as walk_statements
from loopnest.kir.loop_bounds import gaps, slope
from loopnest.scalar import dtypes
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, ParallelType
from loopnest.scalar.expr import (
    ONE,
    Buffer,
    Const,
    Expr,
    Index,
    Local,
    Op,
    Symbol,
    all_of,
    free_indices,
    integer,
    loads,
    substitute,
    terms_of,
    walk,
)
from loopnest.scalar.simplify import Simplifier


@dataclass(frozen=True, slots=True)
class LoopForm:
    """A program as loops.

    Args:
        body: the statements; loops over blocks are cpu_parallel.
        launch: the index that stands for each launch dimension in use.
        blocks: the loops over blocks, which are independent by the meaning of a launch.
        limits: by loop: more upper bounds of its index, beside its extent.
        lane: the index of neighbouring threads, whose loops are innermost where they can be.
    """

    body: tuple[Stmt, ...]
    launch: Mapping[ParallelType, Index]
    blocks: frozenset[Index]
    limits: dict[Loop, tuple[Expr, ...]] = field(default_factory=dict)
    lane: Index | None = None


def loop_form(program: Program) -> LoopForm:
    """Return `program` as loops."""
    wrapped, body = _wrapping_loops(program)
    launch = {loop.parallel: loop.var for loop in wrapped}
    rest = [(d, size) for d, size in program.launch if d not in launch and size is not ONE]
    # The last dimension of a launch varies slowest, hence stands outermost.
    rest.sort(key=lambda item: -LAUNCH_DIMENSIONS.index(item[0]))
    for dimension, size in rest:
        launch[dimension] = Index(dimension.value, size)
        wrapped.append(Loop(launch[dimension], dimension, "", ()))
    for grid in (False, True):  # blocks around threads
        for loop in reversed([w for w in wrapped if w.parallel.is_grid == grid]):
            parallel = ParallelType.cpu_parallel if grid else ParallelType.serial
            body = (Loop(loop.var, parallel, loop.axis, body, loop.origin),)
    return trimmed(body, launch)


def trimmed(
    body: tuple[Stmt, ...], launch: Mapping[ParallelType, Index], lane: Index | None = None
) -> LoopForm:
    """Return the form of `body`, whose loops no longer depend on a launch, with trimmed loops."""
    limits: dict[Loop, tuple[Expr, ...]] = {}
    body = map_body(settle_allocations(body), lambda node: _trim(node, limits))
    blocks = frozenset(index for d, index in launch.items() if d.is_grid)
    return LoopForm(body, launch, blocks, limits, lane)


def _wrapping_loops(program: Program) -> tuple[list[Loop], tuple[Stmt, ...]]:
    """Return the loops around everything that cover their launch dimension, and what they hold."""
    body = program.body
    loops: list[Loop] = []
    sizes = dict(program.launch)
    while len(body) == 1:
        (node,) = body
        if not isinstance(node, Loop) or sizes.pop(node.parallel, None) is not node.var.extent:
            break
        loops.append(node)
        body = node.body
    return loops, body


_TRIMMED = (ParallelType.serial, ParallelType.vectorize, ParallelType.cpu_parallel)


def _trim(node: Stmt, limits: dict[Loop, tuple[Expr, ...]]) -> Stmt:
    if not isinstance(node, Loop) or node.parallel not in _TRIMMED or len(node.body) != 1:
        return node
    (test,) = node.body
    # What is loaded may change from iteration to iteration, and a loop stops at the first that
    # fails.
    if not isinstance(test, If) or test.orelse or loads(test.condition):
        return node
    fixed, bounds, kept = _sort_terms(test.condition, node.var)
    if not fixed and not bounds:
        return node
    body = (If(all_of(kept), test.body, (), test.reason, test.origin),) if kept else test.body
    whole = Loop(node.var, node.parallel, node.axis, body, node.origin)
    result: Stmt = whole
    if bounds:
        result = short = Loop(node.var, node.parallel, node.axis, body, node.origin)
        limits[short] = tuple(bounds)
        if node.parallel is ParallelType.vectorize:
            full = all_of([Op("le", (node.var.extent, b), dtypes.bool_) for b in bounds])
            result = If(full, (whole,), (short,), test.reason, test.origin)
    return If(all_of(fixed), (result,), (), test.reason, test.origin) if fixed else result


def _sort_terms(condition: Expr, var: Index) -> tuple[list[Expr], list[Expr], list[Expr]]:
    """Return the terms of a conjunction: free of `var`, as upper bounds of `var`, and the rest."""
    fixed: list[Expr] = []
    bounds: list[Expr] = []
    kept: list[Expr] = []
    for term in terms_of(condition):
        bound = None
        if _is_movable(term):
            if var not in free_indices(term):
                fixed.append(term)
                continue
            bound = upper_bound(term, var)
        (kept if bound is None else bounds).append(term if bound is None else bound)
    return fixed, bounds, kept


def _is_movable(term: Expr) -> bool:
    """Whether `term` may be evaluated before the loop, and where the loop does not run.

    Not a named value, which may be defined inside; nor a division by a size, which may be 0.
    """
    return not any(isinstance(n, Local) or _divides_by_a_size(n) for n in walk(term))


def _divides_by_a_size(node: Expr) -> bool:
    division = isinstance(node, Op) and node.op in ("floordiv", "mod", "ceildiv")
    return division and not isinstance(node.args[1], Const)


def upper_bound(term: Expr, var: Index) -> Expr | None:
    """Return b where ``term`` says ``var < b`` and b is free of `var`, else None."""
    if not isinstance(term, Op) or any(arg.dtype is not dtypes.index for arg in term.args):
        return None
    algebra = Simplifier()
    found = gaps(term, algebra)
    # The test fails once and for all only where the index has the factor 1, and all else stands
    # still.
    if len(found) != 1 or slope(found[0], var, algebra) != -1:
        return None
    rest = algebra.simplify(substitute(found[0], {var: integer(0)}))
    return algebra.add(rest, ONE)


# Which loops may run out of order


def stores_apart(loop: Loop, *, lanes: bool) -> bool:
    """Whether each iteration of `loop` writes elements of its own in all that outlives it.

    A loop may promise that its order does not matter and yet fold into one element, or pass a
    value from statement to statement through a buffer made outside; its iterations must then not
    overlap. With `lanes`, the index must move with the loop's in a linear way.
    """
    inside: set[Buffer] = set()
    moving: set[Expr] = {loop.var}
    for node, _ in walk_statements(loop.body):
        match node:
            case Allocate():
                inside.add(node.storage)
            case Let() if any(n in moving for n in walk(node.value)):
                moving.add(node.var)
            case Store() if node.atomic and not lanes:
                pass  # threads may update one element at once
            case Store() if node.storage not in inside:
                if node.atomic:
                    return False
                if lanes and not any(_is_linear(i, loop.var) for i in node.index):
                    return False
                if not any(n in moving for i in node.index for n in walk(i)):
                    return False
    return True


def _is_linear(index: Expr, var: Index) -> bool:
    """Whether `index` is var * c + rest, c not 0 and both free of `var`."""
    if index is var:
        return True
    if not isinstance(index, Op) or index.op not in ("add", "sub", "mul"):
        return False
    found = [var in free_indices(a) for a in index.args]
    if found[0] == found[1]:
        return False
    moving, other = index.args if found[0] else index.args[::-1]
    # A size is not 0 inside a loop that runs.
    steady = index.op != "mul" or isinstance(other, Symbol) or _is_nonzero(other)
    return steady and _is_linear(moving, var)


def _is_nonzero(value: Expr) -> bool:
    return isinstance(value, Const) and value.value != 0


def parallel_chain(loop: Loop, form: LoopForm) -> list[Loop]:
    """Return `loop` and the cpu_parallel loops that it directly holds, as far as one may collapse.

    Their iterations are then shared out together. A loop without loops inside stays whole: it may
    become vector code, and would not pay for the divisions that find its index.
    """
    chain = [loop]
    while len(chain[-1].body) == 1:
        (inner,) = chain[-1].body
        if (
            not isinstance(inner, Loop)
            or inner.parallel is not ParallelType.cpu_parallel
            or inner in form.limits
            or not any(isinstance(n, Loop) for n, _ in walk_statements(inner.body))
            or free_indices(inner.var.extent)
            or not may_share_out(inner, form)
        ):
            break
        chain.append(inner)
    return chain


def may_share_out(loop: Loop, form: LoopForm) -> bool:
    """Whether the iterations of a cpu_parallel loop may run at the same time."""
    return loop.var in form.blocks or stores_apart(loop, lanes=False)


def allocations(body: tuple[Stmt, ...]) -> Iterable[Buffer]:
    """Return the buffers that `body` makes, each once, in order."""
    found = {n.storage: None for n, _ in walk_statements(body) if isinstance(n, Allocate)}
    return found.keys()
