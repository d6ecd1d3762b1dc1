"""Pass "inplace": every element of an input that is overwritten is read before, by its thread.

Requires placed statements. Ensures that an output takes an input's memory only where every read of
the buffer stands before the output's store, in loops that correspond to its loops and at the
elements that it writes, and each point of these loops writes another element; refuses it
elsewhere. It comes after predicates, when the order is final. It changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from loopnest.base.errors import LoweringError
from loopnest.kir import Arrive, If, Loop, Program, Stmt, Store, expressions, walk
from loopnest.lowering.indexing.phase_terms import one_thread
from loopnest.lowering.loops.loop_plan import LoopPlan, is_trivial
from loopnest.scalar.expr import Buffer, Const, Expr, Local, loads, substitute, terms_of
from loopnest.tensor.tensor_view import TensorView

Loops: TypeAlias = "tuple[Loop, ...]"

_ALL, _FIRST = -1, -2
"""How a statement uses a launch dimension that none of its loops is bound to."""


class StatementPlace(NamedTuple):
    """Where a statement stands.

    Args:
        loops: around it, outermost first.
        threads: for each launch dimension of the kernel the number of the loop bound to it, or
            whether all threads or just the first execute the statement.
        flags: of the reductions over the grid whose last block alone executes it.
    """

    loops: Loops
    threads: tuple[int, ...]
    flags: frozenset[Expr]


def check_inplace(program: Program, plan: LoopPlan) -> None:
    """Check each in-place output of the program.

    Raises:
        LoweringError: an element could be read after its overwrite.
    """
    for output in program.outputs:
        if output.inplace:
            _check(program, output.buffer, plan, plan.fusion[output.name])


def _check(program: Program, buffer: Buffer, plan: LoopPlan, tensor: TensorView) -> None:
    target = plan.fusion.inplace[tensor]
    old_value = {consumer.name for consumer in target.consumers}
    stores: list[tuple[int, Store, StatementPlace]] = []
    reads: list[tuple[int, tuple[Expr, ...], StatementPlace]] = []
    arrivals: dict[Expr, int] = {}  # of all blocks at one counter
    for order, (node, ancestors) in enumerate(walk(program.body)):
        here = _place(ancestors, program)
        if isinstance(node, Arrive) and all(isinstance(i, Const) for i in node.index):
            arrivals[node.var] = order
        if isinstance(node, Store) and node.storage is buffer:
            stores.append((order, node, here))
        if isinstance(node, Store) and node.tensor not in old_value:
            continue  # it reads the output, which its store precedes
        for load in (x for e in expressions(node) for x in loads(e)):
            if load.buffer is buffer:
                reads.append((order, load.args, here))
    if not stores:  # another launch does
        return
    own = [s for s in map(plan.spec, tensor.domain.leaf) if not is_trivial(s)]
    # A reduction stores its element before it has read all that it folds.
    legal = len(stores) == 1 and stores[0][1].role == "define"
    if legal:
        order, store, there = stores[0]
        # Where a loop runs over more than the tensor has, its element is stored again, from a value
        # that was overwritten.
        once = not plan.promotions[tensor].image and len(there.loops) == len(own)
        arrived = max([arrivals[flag] for flag in there.flags if flag in arrivals], default=-1)
        legal = once and all(
            place < arrived  # every block has read, by the time that the last one goes on
            or (
                place <= order
                and (here.threads, here.flags) == (there.threads, there.flags)
                and _same_element(index, here.loops, store.index, there.loops)
            )
            for place, index, here in reads
        )
    if not legal:
        raise LoweringError(
            f"{tensor.name} in the memory of {buffer.tensor}",
            "an element could be read after it is overwritten",
            f"compute every tensor that reads {buffer.tensor} in the loops of {tensor.name} "
            "(compute_at) and at the same element, or drop inplace=",
        )


def _place(ancestors: tuple[Stmt, ...], program: Program) -> StatementPlace:
    """Return the loops around a statement, and how it uses each launch dimension."""
    loops = tuple([a for a in ancestors if isinstance(a, Loop)])
    bound = {loop.parallel: number for number, loop in enumerate(loops)}
    tests = {term for a in ancestors if isinstance(a, If) for term in terms_of(a.condition)}
    threads = tuple(
        [bound.get(d, _FIRST if one_thread(d) in tests else _ALL) for d, _ in program.launch]
    )
    return StatementPlace(
        loops, threads, frozenset(term for term in tests if isinstance(term, Local))
    )


def _same_element(
    index: tuple[Expr, ...], loops: Loops, written: tuple[Expr, ...], around: Loops
) -> bool:
    """Whether an access in `loops` covers, per iteration of the common loops, what is written.

    The loops that the two do not share must correspond one to one and give the same elements; the
    earlier nest then reads all of them before the later one writes any.
    """
    if len(loops) != len(around) or len(index) != len(written):
        return False
    mapping: dict[Expr, Expr] = {}
    for mine, theirs in zip(loops, around, strict=True):
        if mine is not theirs:
            if mine.var.extent is not theirs.var.extent:
                return False
            mapping[mine.var] = theirs.var
    return all(substitute(a, mapping) is b for a, b in zip(index, written, strict=True))
