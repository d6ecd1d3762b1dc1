"""The report of a kernel: one page of HTML with its math, nest, pictures, texts, costs and proof.

The page stands alone: styles, scripts and pictures are in it, nothing is loaded from a network.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loopnest.base.errors import LoopnestError, NotSupported
from loopnest.pictures.math_picture import draw_math
from loopnest.scalar.enums import Memory
from loopnest.tensor.fusion import math_text

if TYPE_CHECKING:
    from loopnest.facade.kernel_class import Kernel
    from loopnest.tensor.fusion import Fusion

_MOST_TILES = 1_200_000
"""How many characters the pictures of tiles may take on a page."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_MARKS = {"+": "added", "-": "removed", " ": ""}


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel that a page shows.

    Args:
        label: as the command line names it: ``softmax@gpu``.
        fusion: the math under its schedule.
        kernel: what it lowers to.
        sizes: those that counts and pictures of tiles are for.
        device: the GPU that times are for.
    """

    label: str
    fusion: Fusion
    kernel: Kernel
    sizes: Mapping[str, int]
    device: str


def report_page(subjects: tuple[Subject, ...]) -> str:
    """Return the page of one kernel, or of two side by side.

    Args:
        subjects: one or two kernels.

    Raises:
        NotSupported: jinja2 is missing.
    """
    try:
        import jinja2
    except ImportError:
        raise NotSupported(
            "report", "jinja2 is not installed", "pip install 'loopnest[report]'"
        ) from None
    text = files("loopnest.devtools").joinpath("report.html.j2").read_text("utf-8")
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    title = " beside ".join([subject.label for subject in subjects])
    return page.from_string(text).render(
        title=title, sides=[_side(s, _MOST_TILES // len(subjects)) for s in subjects]
    )


def _side(subject: Subject, room: int) -> dict[str, Any]:
    """Return what the page shows of one kernel, by the names of the template.

    Args:
        subject: the kernel.
        room: how many characters the pictures of its tiles may take.
    """
    kernel, fusion = subject.kernel, subject.fusion
    names = {tensor.name for tensor in fusion.tensors}
    names |= {buffer.name for buffer in kernel.buffers}
    at = ", ".join([f"{name}={size}" for name, size in subject.sizes.items()])
    return {
        "label": subject.label,
        "sizes": at,
        "math": _lines(math_text(fusion), names),
        "graph": _graph(fusion),
        "domains": [t.picture() for t in fusion.tensors if t.definition is not None],
        "nest": _lines(str(kernel), names),
        "picture": kernel.picture(),
        "tiles": list(_tiles(subject, room)),
        "stages": list(_stages(kernel)),
        "codes": [
            (name, _lines(text, names))
            for name, text in (
                ("CUDA", _or_reason(kernel.cuda)),
                ("C", _or_reason(kernel.c)),
                ("PTX", _or_reason(lambda: kernel.ptx("sm_90"))),
                ("SASS", _or_reason(lambda: kernel.sass("sm_90"))),
            )
        ],
        "profile": _shown(lambda: _profile(subject)),
        "explanation": _shown(lambda: _explanation(kernel)),
        "notes": [str(note) for note in kernel.notes],
        "proof": _or_reason(lambda: _proof(kernel)),
    }


def _graph(fusion: Fusion) -> str:
    producers: dict[str, list[str]] = {}
    labels: dict[str, tuple[str, str, str]] = {}
    for tensor in fusion.tensors:
        definition = tensor.definition
        producers[tensor.name] = [producer.name for producer in tensor.producers]
        what = "input" if definition is None else definition.op
        kind = "global" if tensor.memory is Memory.GLOBAL else "box"
        labels[tensor.name] = (f"{tensor.name} = {what}", tensor.signature, kind)
    return draw_math(f"math of {fusion.name}", producers, labels)


def _lines(text: str, names: set[str]) -> list[str]:
    """Return the lines of a text as HTML, in which each name of a tensor is marked as such."""

    def marked(line: str) -> str:
        parts, end = [], 0
        for found in _NAME.finditer(line):
            if found[0] in names:
                parts += [
                    escape(line[end : found.start()]),
                    f'<b data-t="{found[0]}">{found[0]}</b>',
                ]
                end = found.end()
        return "".join([*parts, escape(line[end:])])

    return [marked(line) for line in text.splitlines()]


def _tiles(subject: Subject, room: int) -> Iterator[tuple[str, str]]:
    """Yield the pictures of SHARED buffers, or why one is left out."""
    for buffer in subject.kernel.buffers:
        if buffer.memory is not Memory.SHARED:
            continue
        try:
            picture: str = subject.kernel.picture(buffer.name, **subject.sizes)
        except LoopnestError as error:
            picture = f"<p>{escape(str(error))}</p>"
        if len(picture) > room:
            picture = f"<p>Too large for this page: k.picture({buffer.name!r}) draws it.</p>"
        room -= len(picture)
        yield buffer.name, picture


def _stages(kernel: Kernel) -> Iterator[dict[str, Any]]:
    """Yield the nest after each pass, with what the pass changed."""
    before: list[str] = []
    for name, text in kernel.stages.items():
        after = text.splitlines()
        changed = [
            (_MARKS[line[0]], line[2:])
            for line in difflib.ndiff(before, after)
            if line[0] in _MARKS
        ]
        same = before == after
        yield {"name": name, "lines": changed if before else [("", line) for line in after],
               "same": same}  # fmt: skip
        before = after


def _or_reason(text: Callable[[], str]) -> str:
    """Return a text, or the sentence that says why there is none."""
    try:
        return text()
    except LoopnestError as error:
        return str(error)


def _shown(html: Callable[[], str]) -> str:
    """Return HTML, or the sentence that says why there is none."""
    try:
        return html()
    except LoopnestError as error:
        return f"<p>{escape(str(error))}</p>"


def _profile(subject: Subject) -> str:
    from loopnest.costs import profile

    return profile(subject.kernel, device=subject.device, **subject.sizes)._repr_html_()


def _explanation(kernel: Kernel) -> str:
    from loopnest.devtools.explanation import explain

    return explain(kernel)._repr_html_()


def _proof(kernel: Kernel) -> str:
    from loopnest.proofs import verify

    return str(verify(kernel))
