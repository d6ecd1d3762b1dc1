"""A circular buffer in time: which copy goes into which of its stages while which one is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from loopnest import kir
from loopnest.kir.buffers import Buffer
from loopnest.pictures.svg import LINE, Canvas
from loopnest.proofs.point_arrays import number
from loopnest.scalar.expr import ZERO, Expr, Index, LaunchIndex, integer, substitute, walk

_LEFT, _COLUMN, _ROW = 84, 72, 26
_SHOWN = 8
"""How many iterations are drawn."""


@dataclass(frozen=True, slots=True)
class StageUse:
    """What happens in one stage of a buffer for some iterations of its loop.

    Args:
        text: what happens.
        stage: in which stage.
        start: the iteration in which it begins; below 0 in front of the loop.
        end: the iteration before which it has ended, in which it ends if `copies`.
        copies: whether a copy fills the stage; else the stage is read.
    """

    text: str
    stage: int
    start: int
    end: int
    copies: bool


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a loop turns a circular buffer.

    Args:
        loop: the loop.
        stages: how many stages there are.
        prefetch: how many iterations ahead copies are for.
        in_flight: whether they end later than they begin (cp.async).
    """

    loop: kir.Loop
    stages: int
    prefetch: int
    in_flight: bool

    def spans(self, count: int = _SHOWN) -> Iterator[StageUse]:
        """Yield what happens in the first iterations of the loop."""
        for turn in range(count + self.prefetch):
            start = turn - self.prefetch
            if start < count:
                end = turn if self.in_flight else start + 1
                yield StageUse(f"copy {turn}", turn % self.stages, start, end, True)
            if turn < count:
                yield StageUse(f"read {turn}", turn % self.stages, turn, turn + 1, False)


def pipeline_of(program: kir.Program, buffer: Buffer, sizes: Mapping[str, int]) -> Pipeline | None:
    """Return how a loop turns a buffer; None where none does."""
    if buffer.stages < 2:
        return None
    stride = number(buffer.strides[0], sizes)
    for node, around in kir.walk(program.body):
        if not isinstance(node, kir.Store) or node.storage is not buffer:
            continue
        in_flight = any(isinstance(outer, kir.Issue) for outer in around)
        for loop in [n for n in around if isinstance(n, kir.Loop) and not n.parallel.is_thread]:
            ahead = [_stage(node, loop.var, turn, stride, sizes) for turn in range(buffer.stages)]
            for prefetch in range(buffer.stages):
                wanted = [(turn + prefetch) % buffer.stages for turn in range(buffer.stages)]
                if ahead == wanted:
                    return Pipeline(loop, buffer.stages, prefetch, in_flight)
    return None


def _stage(store: kir.Store, var: Index, turn: int, stride: int, sizes: Mapping[str, int]) -> int:
    """Return the stage of an element that a store reaches in an iteration of a loop."""
    index = store.index[0]
    values: dict[Expr, Expr] = {
        node: integer(turn) if node is var else ZERO
        for node in walk(index)
        if isinstance(node, (Index, LaunchIndex))
    }
    found = number(substitute(index, values), sizes)
    return found // stride if store.flat else found


def draw_stages(canvas: Canvas, pipeline: Pipeline, y: float) -> float:
    """Draw a pipeline from a height on; return where it ends."""
    loop = pipeline.loop
    canvas.text(12, y, f"stages over the iterations of {loop.index}", "loud")
    y += LINE
    first = -pipeline.prefetch
    for turn in range(first, _SHOWN):
        x = _LEFT + (turn - first) * _COLUMN
        name = f"{loop.index} = {turn}" if turn >= 0 else "before"
        canvas.text(x + 4, y, name, "quiet")
    for stage in range(pipeline.stages):
        canvas.text(12, y + 22 + 2 * _ROW * stage, f"stage {stage}", "quiet")
    for span in pipeline.spans():
        x = _LEFT + (span.start - first) * _COLUMN
        width = (min(span.end, _SHOWN) - span.start) * _COLUMN - 3
        top = y + 8 + 2 * _ROW * span.stage + (0 if span.copies else _ROW)
        kind = "shared" if span.copies else "block"
        hint = f"{span.text}, from iteration {span.start} until {span.end}"
        canvas.box(x, top, width, _ROW - 4, kind, hint)
        canvas.text(x + 5, top + 15, span.text)
    return y + 8 + 2 * _ROW * pipeline.stages


def chrome_trace(name: str, pipeline: Pipeline, count: int = _SHOWN) -> str:
    """Return a pipeline in the format of Chrome's trace viewer, an iteration being 1 ms.

    Source: the "Trace Event Format" of the Chromium project (complete events, "X").
    """
    events = [
        {
            "name": span.text, "cat": "copy" if span.copies else "read", "ph": "X", "pid": name,
            "tid": f"stage {span.stage}", "ts": (span.start + pipeline.prefetch) * 1000,
            "dur": (span.end - span.start) * 1000,
        }
        for span in pipeline.spans(count)
    ]  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1)
