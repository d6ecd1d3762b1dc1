"""Pass "early_exit": a loop over steps ends where the step is reached that is the last one.

Of a recurrence with a condition (`ln.recur(…, until=)`) a tensor has the number of the first step
at which the condition holds: a fold over all steps, by the least. Behind the update of that fold a
step that is not the last one of all can be in it only by the condition, and no later step changes
it. Nor is a state of a later step read: consumers read that of the step which the fold names.

Requires a program whose statements are final. Ensures that each loop of the fold has an `Until` as
its last statement. It comes after unswitch, which writes bodies twice, so that each has its own.

Before: ``for i0 in T: { …; T9 = min(T9, where(T7, i0, T - 1)) }``; after::

    for i0 in T: { …; T9 = min(T9, where(T7, i0, T - 1)); until T9 < T - 1 }
"""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.base.errors import LoweringError
from loopnest.kir import If, Loop, Program, Stmt, Store, Until, map_body, walk, with_bodies
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import (
    ONE,
    Expr,
    Index,
    LaunchIndex,
    Local,
    Op,
    cast,
    free_indices,
    loads,
)
from loopnest.scalar.expr import walk as nodes_of
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.tensor_view import TensorView


def end_early(program: Program, tensors: Iterable[TensorView], algebra: Simplifier) -> Program:
    """Return `program`, whose loops over steps end where conditions among `tensors` say so.

    Raises:
        LoweringError: not each thread that runs such a loop finds where it ends.
    """
    for tensor in tensors:
        if tensor.definition is not None and tensor.definition.op == "until":
            program = _ended(program, tensor, algebra)
    return program


def _ended(program: Program, tensor: TensorView, algebra: Simplifier) -> Program:
    """Return `program`, where the loops of one fold end by what it holds."""
    last = cast(algebra.sub(tensor.domain.root[0].size, ONE), dtypes.int64)
    started: set[Index] = set()
    ends: dict[Index, Until] = {}
    for node, around in walk(program.body):
        if not isinstance(node, Store) or node.tensor != tensor.name:
            continue
        loops = [outer for outer in around if isinstance(outer, Loop)]
        if node.role == "init":
            started.update([loop.var for loop in loops])
        elif node.role == "update":
            own = [loop for loop in loops if loop.var not in started]
            _check(tensor, node, around)
            reached = Until(Op("lt", (node.own, last), dtypes.bool_), node.origin)
            ends.update(dict.fromkeys([loop.var for loop in own], reached))

    def rule(node: Stmt) -> Stmt:
        if isinstance(node, Loop) and node.var in ends:
            return with_bodies(node, ((*node.body, ends[node.var]),))
        return node

    return program.with_body(map_body(program.body, rule)) if ends else program


def _check(tensor: TensorView, update: Store, around: Iterable[Stmt]) -> None:
    """Refuse a fold that not each thread that runs the loop has."""
    if update.storage.memory is not Memory.LOCAL:
        raise LoweringError(
            tensor.name,
            f"it is in {update.storage.memory.value.upper()} memory, where one thread folds it, "
            "and each thread that runs the loop over steps ends it by what it has folded",
            f"leave {tensor.name} in LOCAL or SHARED memory",
        )
    threads = {n.var for n in around if isinstance(n, Loop) and n.parallel.is_thread}
    for test in [n.condition for n in around if isinstance(n, If)]:
        if not _is_alike(test, threads):
            raise LoweringError(
                tensor.name,
                f"it is computed where {test}, which threads that run the loop over steps may find "
                "different, and the loop ends where it says",
                "let each thread of the loop have what the condition reads",
            )


def _is_alike(test: Expr, threads: set[Index]) -> bool:
    """Whether all threads find a test alike."""
    own = any(isinstance(n, (LaunchIndex, Local)) for n in nodes_of(test)) or any(loads(test))
    return not own and threads.isdisjoint(free_indices(test))
