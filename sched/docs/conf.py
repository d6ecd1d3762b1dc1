"""Settings of the site: ``sphinx-build -W --keep-going sched/docs build/site``.

The pages are Markdown, the reference is read from docstrings. Search is Sphinx's own, an index that
the browser reads: it works from files, without a network. ``llms.txt`` lists the pages as Markdown.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from importlib.metadata import version as installed
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

import loopnest as ln

project = "loopnest"
version = release = installed("loopnest")
copyright = "the loopnest authors, Apache-2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns: list[str] = []
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
html_theme = "furo"
html_title = "loopnest"
html_show_sphinx = False
pygments_style = "friendly"

myst_heading_anchors = 3
default_role = "literal"  # `name` in docstrings
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
copybutton_exclude = ".linenos, .gp, .go"
# Links are held against files by tests/test_pages.py; excerpts on how-to pages are no programs,
# and "type" in a signature is Python's, not an attribute of that name.
suppress_warnings = ["misc.highlighting_failure", "ref.python"]


BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$\n", re.MULTILINE | re.DOTALL)


def drawn(page: str) -> str:
    """Return the Markdown of a page with the pictures that its own code makes.

    Its blocks of Python run in order. Behind one that assigns `picture` stands that picture; behind
    one that shows or lowers `f` stand the nest of `f` and the axes of the tensors that it changed.
    """
    namespace: dict[str, object] = {"__name__": "page"}
    known: dict[str, str] = {}
    pieces, end, pictures = [], 0, ""
    for block in BLOCK.finditer(page):
        # What a block prints stands behind it, and pictures behind that.
        kind, code = block.groups()
        pieces += [pictures if kind != "text" else "", page[end : block.start()]]
        pictures = pictures if kind == "text" else ""
        pieces.append(block.group())
        end = block.end()
        if kind == "text":
            pieces.append(pictures)
            pictures = ""
        elif kind == "python":
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ln.LoopnestError):
                exec(code, namespace)
            pictures = "".join(pictures_of(code, namespace, known))
    return "".join([*pieces, pictures, page[end:]])


def pictures_of(code: str, namespace: dict[str, object], known: dict[str, str]) -> Iterator[str]:
    """Yield the pictures behind a block; `known` is how each tensor looked before."""
    found = namespace.pop("picture", None)
    if isinstance(found, str):
        yield raw(found)
        return
    for name, fusion in list(namespace.items()):
        if not isinstance(fusion, ln.Fusion):
            continue
        if re.search(rf"(?:^show|ln\.lower)\({name}\)", code, re.MULTILINE):
            with contextlib.suppress(ln.LoopnestError):
                yield raw(ln.lower(fusion).picture())
        for tensor in fusion.tensors:
            axes, place = str(tensor.domain), f"{fusion.name}.{tensor.name}"
            if tensor.domain.history and known.get(place) != axes:
                yield raw(tensor.picture())
            known[place] = axes


def raw(picture: str) -> str:
    """Return a picture as Markdown takes it."""
    return f'\n```{{raw}} html\n<div style="overflow-x: auto">{picture}</div>\n```\n'


def executed(notebook: str) -> str:
    """Return a notebook as Markdown: its cells, and behind each of code what it prints.

    Cells that hold a solution are closed until somebody opens them.
    """
    namespace: dict[str, object] = {"__name__": "notebook"}
    pieces = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces.append(text)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, f"<{cell['id']}>", "exec"), namespace)
        shown = f"```python\n{text}\n```\n\n```text\n{printed.getvalue()}```"
        if "solution" in cell["metadata"].get("tags", ()):
            shown = f"<details>\n<summary>Show it</summary>\n\n{shown}\n\n</details>"
        pieces.append(shown)
    return "\n\n".join(pieces)


def draw_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the pictures into a page of the guide that has some, and execute notebooks."""
    if app.env.doc2path(name).suffix == ".ipynb":
        source[0] = executed(source[0])
    elif name.startswith("guide/primitives/") or name == "guide/pictures":
        source[0] = drawn(source[0])


def write_llms_txt(app: Sphinx, exception: Exception | None) -> None:
    """Write ``llms.txt`` (llmstxt.org): each page with its first sentence, as Markdown source."""
    if exception is not None or app.builder.name != "html":
        return
    lines = [f"# {project}", "", f"> {first_sentence(app, 'index')}", ""]
    for name in sorted(app.env.found_docs):
        title = app.env.titles[name].astext()
        source = f"_sources/{name}{app.env.doc2path(name).suffix}.txt"
        lines.append(f"- [{title}]({source}): {first_sentence(app, name)}")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def first_sentence(app: Sphinx, name: str) -> str:
    """Return the first sentence of a page's text."""
    for paragraph in app.env.get_doctree(name).findall(nodes.paragraph):
        return re.split(r"(?<=\.)\s", " ".join(paragraph.astext().split()), maxsplit=1)[0]
    return ""


def setup(app: Sphinx) -> None:
    """Register what is done to pages, and written after the build."""
    app.connect("source-read", draw_page)
    app.connect("build-finished", write_llms_txt)
