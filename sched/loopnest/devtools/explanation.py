"""Explanations: why a kernel came out as it did, tensor by tensor, and which call made it so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict
from typing import Any

from loopnest.base.errors import LoopnestError, LoweringError, NotSupported, kind_of
from loopnest.costs.kernel_profile import html_table, text_table
from loopnest.facade.kernel_class import Kernel, lower
from loopnest.kir.lowered import Explained, Note
from loopnest.lowering.schedule_notes.explanations import refusal_of
from loopnest.scalar.origin import Origin
from loopnest.schedule.inlining import depth_limit
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import TensorView


class Explanation:
    """Why a kernel, or one of its tensors, came out as it did; `print` shows it as tables.

    ``explanation["T3"]`` is that of one tensor. All is made of notes, as `Kernel.notes` is.

    Attributes:
        name: of the kernel.
        tensors: what there is to say of each (`kir.lowered.Explained`), in order of creation.
    """

    def __init__(self, name: str, tensors: tuple[Explained, ...]) -> None:
        self.name, self.tensors = name, tensors

    def __getitem__(self, name: str) -> Explanation:
        """Return what there is to say of one tensor.

        Raises:
            LoopnestError: the kernel computes no tensor of this name.
        """
        found = tuple([one for one in self.tensors if one.name == name])
        if not found:
            known = ", ".join([one.name for one in self.tensors])
            raise LoopnestError(
                f"explain({self.name})[{name!r}]",
                "it computes no tensor of this name",
                f"the tensors are {known}",
            )
        return Explanation(self.name, found)

    def __iter__(self) -> Iterator[Explained]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as strings, lists and dictionaries."""
        return {"kernel": self.name, "tensors": {one.name: _plain(one) for one in self.tensors}}

    def _tables(self) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield a title and a table for each tensor, each with its head first."""
        for one in self.tensors:
            rows = [["", ""], *_rows("place", one.place)]
            for label, notes in (
                ("memory", one.buffers), ("test", one.tests), ("note", one.notes)
            ):  # fmt: skip
                for note in notes:
                    rows += _rows(label, note)
            yield one.name, rows

    def __str__(self) -> str:
        return "\n\n".join([f"{title}\n{text_table(rows)}" for title, rows in self._tables()])

    def __repr__(self) -> str:
        return f"<Explanation of {self.name}: {', '.join([one.name for one in self.tensors])}>"

    def _repr_html_(self) -> str:
        return "".join([html_table(title, rows) for title, rows in self._tables()])


def _rows(label: str, note: Note) -> Iterator[list[str]]:
    """Yield the lines of a note: what became of what, because of what, and what changes it."""
    yield [label, note.became]
    yield ["  by", note.asked + _at(note)]
    yield ["  because", note.why]
    if note.remedy:
        yield ["  change", note.remedy]


def _at(note: Note) -> str:
    return "" if note.origin is None else f" ({note.origin.file}:{note.origin.line})"


def _plain(one: Explained) -> dict[str, Any]:
    return {
        "place": _fields(one.place),
        "memory": [_fields(note) for note in one.buffers],
        "tests": [_fields(note) for note in one.tests],
        "notes": [_fields(note) for note in one.notes],
    }


def _fields(note: Note) -> dict[str, Any]:
    found = asdict(note)
    found["origin"] = None if note.origin is None else f"{note.origin.file}:{note.origin.line}"
    return found


def explain(kernel: Kernel) -> Explanation:
    """Return why a kernel came out as it did, tensor by tensor.

    Of each tensor: where it is computed and the call that put it there, what keeps it from lying
    deeper in the loops of its consumers and the calls that take it there; why its buffer has its
    memory and its size; each test around it with the split or the size behind it, and the
    assumption or the factor that makes it superfluous. Calls that are named were tried.

    Args:
        kernel: what `lower` returned. The fusion may have been scheduled further since.

    Returns:
        An `Explanation`: tables by `print` and in notebooks, `.to_dict()` for programs, one tensor
        by ``explain(k)["T3"]``.

    Raises:
        LoopnestError: no Kernel, or one that was read from text or from a pickle, or a scalar
            variant: these have no schedule to ask.

    >>> import loopnest as ln
    >>> with ln.Fusion("rows") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     t = ln.exp(x)
    ...     y = f.output(ln.sum(t, axis=1), "y")
    >>> y = y.split(0, 4)
    >>> found = ln.explain(ln.lower(f))
    >>> place, (test,) = found["T1"].tensors[0].place, found["y"].tensors[0].tests[:1]
    >>> place.remedy
    'T1.compute_at(y, -1)'
    >>> test.remedy
    'f.assume("N % 4 == 0")'

    Source: nvFuser's and Halide's schedules are explained by nobody; the remarks of compilers
    (``-Rpass-missed`` of LLVM) name what kept a transformation from happening.
    """
    if not isinstance(kernel, Kernel):
        raise LoopnestError(
            "explain(...)", f"{kind_of(kernel)} is no kernel", "pass what ln.lower returned"
        )
    found = kernel.explained()
    if found is None:
        raise LoopnestError(
            f"explain({kernel.name})",
            "it was read from text or a pickle, or is a scalar variant, and has no schedule to ask",
            "explain the kernel that ln.lower returned",
        )
    return Explanation(kernel.name, found)


def explain_inline(tv: TensorView) -> Note:
    """Return what keeps a tensor from lying deeper in the loops of its consumers.

    Args:
        tv: a tensor that is computed, in its schedule as it is now.

    Returns:
        A note: ``.became`` says how many loops it shares, ``.why`` what keeps it from more,
        ``.remedy`` has the calls that take it deeper, which were tried and undone.

    Raises:
        LoopnestError: no TensorView, an input, or a tensor that no output depends on.

    >>> import loopnest as ln
    >>> with ln.Fusion("rows") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     t = ln.exp(x)
    ...     y = f.output(ln.sum(t, axis=1), "y")
    >>> y = y.split(0, 4)
    >>> note = ln.explain_inline(t)
    >>> note.became, note.remedy
    ('it shares none of its 2 loops with y', 'T1.compute_at(y, -1)')
    >>> note.why
    'its axis i0 is no loop of y [i0, i1, r2]'

    Source: as `explain`.
    """
    call = "explain_inline(...)"
    if not isinstance(tv, TensorView):
        raise LoopnestError(call, f"{kind_of(tv)} is no TensorView", "pass a tensor of a fusion")
    call = f"explain_inline({tv.name})"
    if tv.is_input:
        raise LoopnestError(call, f"{tv.name} is an input, which no loop computes", "ask of a copy")
    if tv not in tv.fusion.live():
        raise LoopnestError(
            call, f"no output depends on {tv.name}", "ask of a tensor that is computed"
        )
    limit = depth_limit(tv, lambda: refusal_of(tv.fusion, lower))
    readers = " and ".join([c.name for t in tv.siblings for c in t.consumers]) or "others"
    became = f"it shares {limit.pos or 'none'} of its {tv.ndim} loops with {readers}"
    asked = tv.placed.call if tv.placed is not None else "no call placed it"
    return Note(tv.name, asked, became, limit.why, limit.remedy, tv.placed or tv.origin)


def bisect(fusion: Fusion, predicate: Callable[[Kernel], object]) -> tuple[int, Origin]:
    """Return the first call of a schedule after which a predicate of its kernel holds.

    The kernels behind one call after the other are asked, the first of them first, so that the
    predicate may hold, fail and hold again. Where a call leaves no kernel, none is asked. The
    fusion is unchanged.

    Args:
        fusion: its math and its schedule.
        predicate: a function of a `Kernel`.

    Returns:
        The place of the call in ``fusion.trace``, and the call with its file and line.

    Raises:
        LoopnestError: it holds before the first call, or behind none; no fusion, no function, or a
            fusion that was copied or loaded, which has no earlier states.

    >>> import loopnest as ln
    >>> with ln.Fusion("rows") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(ln.exp(x), axis=1), "y")
    >>> y = y.split(0, 4).parallelize({0: ln.ParallelType.grid_x})
    >>> t = f["T1"].compute_at(y, -1)
    >>> index, call = ln.bisect(f, lambda kernel: "T1: float32[1]" in str(kernel))
    >>> index, call.call
    (2, 'T1.compute_at(y, -1)')

    Source: ``git bisect``; here each state is asked, since kernels are made in milliseconds.
    """
    if not isinstance(fusion, Fusion):
        raise LoopnestError(
            f"bisect({fusion!r}, ...)",
            f"{kind_of(fusion)} is no Fusion",
            "use bisect(f, predicate)",
        )
    subject = f"bisect({fusion.name}, ...)"
    if not callable(predicate):
        raise LoopnestError(subject, f"{predicate!r} is no function", "pass a function of a Kernel")
    for number in range(-1, len(fusion.trace)):
        with _behind(fusion, number, subject) as state:
            try:
                kernel = lower(state)
            except (LoweringError, NotSupported):
                continue
        if predicate(kernel):
            break
    else:
        calls = len(fusion.trace)
        raise LoopnestError(
            subject,
            f"the predicate holds behind none of the {calls} calls",
            "ask of ln.lower(f) first",
        )
    if number < 0:
        raise LoopnestError(
            subject,
            "the predicate holds of the math, before the first call",
            "ask for what a call brings about",
        )
    return number, fusion.trace[number]


@contextmanager
def _behind(fusion: Fusion, number: int, subject: str) -> Iterator[Fusion]:
    """Let a fusion be what it was behind a call; give it, or a copy that is."""
    start, state = fusion.after_call(-1), fusion.after_call(number)
    if start is None or state is None:
        raise LoopnestError(
            subject,
            "this fusion was copied or loaded, and has no earlier states",
            "bisect the one that the calls were made on",
        )
    if not fusion.trace.ends_in_stage(number + 1):
        with fusion.as_of(state):
            yield fusion
        return
    with fusion.as_of(start):
        again = copy(fusion)
    exec(fusion.trace.script(number + 1), {"f": again})
    yield again
