"""Settings of the site: ``sphinx-build -W --keep-going sched/docs build/site``.

The pages are Markdown, the reference is read from docstrings. Search is Sphinx's own, an index that
the browser reads: it works from files, without a network. ``llms.txt`` lists the pages as Markdown.
"""

from __future__ import annotations

import re
from importlib.metadata import version as installed
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

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


def write_llms_txt(app: Sphinx, exception: Exception | None) -> None:
    """Write ``llms.txt`` (llmstxt.org): each page with its first sentence, as Markdown source."""
    if exception is not None or app.builder.name != "html":
        return
    lines = [f"# {project}", "", f"> {first_sentence(app, 'index')}", ""]
    for name in sorted(app.env.found_docs):
        title = app.env.titles[name].astext()
        lines.append(f"- [{title}](_sources/{name}.md.txt): {first_sentence(app, name)}")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def first_sentence(app: Sphinx, name: str) -> str:
    """Return the first sentence of a page's text."""
    for paragraph in app.env.get_doctree(name).findall(nodes.paragraph):
        return re.split(r"(?<=\.)\s", " ".join(paragraph.astext().split()), maxsplit=1)[0]
    return ""


def setup(app: Sphinx) -> None:
    """Register what is written after the build."""
    app.connect("build-finished", write_llms_txt)
