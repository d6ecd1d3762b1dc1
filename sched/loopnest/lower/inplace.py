"""Check of in-place outputs: every element is read before its overwrite, by the same thread.

Requires placed statements. An output may take an input's memory where every access to the buffer
stands in the very loops of the output's store, before it, at the very element that it writes, and
each point of these loops writes another element. It changes nothing.
"""

from __future__ import annotations

from loopnest.buffers import Buffer
from loopnest.errors import LoweringError
from loopnest.expr import Index, loads
from loopnest.kir import If, Loop, Program, Stmt, Store, expressions, walk
from loopnest.lower.groups import Plan
from loopnest.tensor import TensorView


def check_inplace(program: Program, plan: Plan) -> None:
    """Check each in-place output of the program.

    Raises:
        LoweringError: an element could be read after its overwrite.
    """
    for output in program.outputs:
        if output.inplace:
            _check(program, output.buffer, plan, plan.fusion[output.name])


def _check(program: Program, buffer: Buffer, plan: Plan, tensor: TensorView) -> None:
    stores: list[tuple[int, Store, tuple[Index, ...]]] = []
    reads: list[tuple[int, Stmt, tuple[Index, ...]]] = []
    for order, (node, ancestors) in enumerate(walk(program.body)):
        loops = tuple([a.var for a in ancestors if isinstance(a, Loop)])
        if isinstance(node, Store) and node.storage is buffer:
            stores.append((order, node, loops))
        if any(load.buffer is buffer for e in expressions(node) for load in loads(e)):
            reads.append((order, node, loops))
    repeated = bool(plan.promotions[tensor].image) or any(
        len(loops) != len(_own_loops(plan, tensor)) for _, _, loops in stores
    )
    legal = len(stores) == 1 and not repeated and stores[0][1].role == "define"
    if legal:
        order, store, loops = stores[0]
        legal = all(
            place <= order and around == loops and _at(node, buffer, store)
            for place, node, around in reads
        )
    if not legal:
        raise LoweringError(
            f"{tensor.name} in the memory of {buffer.tensor}",
            "an element could be read after it is overwritten",
            f"compute every tensor that reads {buffer.tensor} inside all loops of {tensor.name} "
            "(compute_at, -1) and at the same element, or drop inplace=",
        )


def _own_loops(plan: Plan, tensor: TensorView) -> list[object]:
    from loopnest.lower.groups import is_trivial

    found = [plan.spec(axis) for axis in tensor.domain.leaf]
    return [spec for spec in found if not is_trivial(spec)]


def _at(node: Stmt, buffer: Buffer, store: Store) -> bool:
    assert not isinstance(node, If)
    accesses = [x for e in expressions(node) for x in loads(e) if x.buffer is buffer]
    return all(x.args == store.index and x.flat == store.flat for x in accesses)
