"""The loop nest: its nodes, which are public, and what all its readers share.

In come statements that lowering made, or a text; out come programs that printers, the machine and
the proofs read, and what they would else compute each by itself.

The three types to know: `nodes.Statement` (what each class of statements declares of itself),
`kernel_program.Program` (a whole kernel), `nodes.StatementVisitor` (a reader, a method a class).

The way of the data:

- `buffers`, `nodes`, `kernel_program`: memory with its layout, statements and their semantics, the
  program around them. Walks and rewritings ask of a statement what its class declares.
- `legal_program`, `legal_tiles`: what a legal nest is, asked after every pass.
- `nest_text`, `nest_parser`: the text that users read, and back. `loop_bounds`: the bounds in it.
- `instruction_table`, `instruction_rows`, `tiles`, `matrix_rows`: instructions of a warp as rows,
  and tiles as their bodies, for those that need no instruction.
- `vector_access`, `shared_memory`, `atomic_updates`: which accesses are wide, where SHARED buffers
  lie, which updates are one operation.
- `lowered`, `kernel_facts`: what lowering hands over, and what a kernel tells of itself.
"""

from loopnest.kir.kernel_program import IndexCheck, Output, Param, Program
from loopnest.kir.nest_parser import parse
from loopnest.kir.nodes import (
    BOUND,
    WHOLE_ELEMENTS,
    Allocate,
    Arrive,
    Barrier,
    Collective,
    Commit,
    If,
    Issue,
    Launch,
    Let,
    Loop,
    S,
    Shuffle,
    StatementVisitor,
    Stmt,
    Store,
    Tile,
    Until,
    Wait,
    allocated,
    before,
    bodies,
    defined,
    expressions,
    holds_sync,
    is_sync,
    is_unconditional,
    loaded,
    map_accesses,
    map_body,
    map_expressions,
    meets,
    one_launch,
    walk,
    with_bodies,
    written,
)

__all__ = [
    "BOUND",
    "WHOLE_ELEMENTS",
    "Allocate",
    "Arrive",
    "Barrier",
    "Collective",
    "Commit",
    "If",
    "IndexCheck",
    "Issue",
    "Launch",
    "Let",
    "Loop",
    "Output",
    "Param",
    "Program",
    "S",
    "Shuffle",
    "StatementVisitor",
    "Stmt",
    "Store",
    "Tile",
    "Until",
    "Wait",
    "allocated",
    "before",
    "bodies",
    "defined",
    "expressions",
    "holds_sync",
    "is_sync",
    "is_unconditional",
    "loaded",
    "map_accesses",
    "map_body",
    "map_expressions",
    "meets",
    "one_launch",
    "parse",
    "walk",
    "with_bodies",
    "written",
]
