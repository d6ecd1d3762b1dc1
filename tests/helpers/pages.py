"""Run the code blocks of a Markdown page, in order, in one namespace, and compare what they print.

A ``python`` block runs. What it prints, and the error of the package that it ends with, stand in
the ``text`` or ``cuda`` block after it; a line ``...`` there stands for lines that are left out.
Blocks of other languages (``console`` for commands, ``c`` for excerpts) are not run.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser

import loopnest as ln

SHOWN = ("text", "cuda")
"""The languages of blocks that show what the code block before them prints."""
GAP = "...\n"
_ERROR = re.compile(r"\w+(?:Error|Fault): ")


class PageFault(AssertionError):
    """A code block of a page does not do what the page says."""


class Page:
    """A page whose blocks are run one after another.

    Args:
        path: the Markdown file.
        update: whether to write into the page what is printed, instead of comparing it.
    """

    def __init__(self, path: Path, *, update: bool = False) -> None:
        self.path = path
        self.update = update
        self.printed = ""
        self.changes: list[tuple[int, int, str]] = []
        parsers = [CodeBlockParser("python", self._run)]
        parsers += [CodeBlockParser(language, self._compare) for language in SHOWN]
        self.document = Document.parse(str(path), *parsers)

    def run(self) -> None:
        """Run and compare all blocks.

        Raises:
            PageFault: a text differs, is missing, or belongs to no code.
        """
        self.document.namespace["__name__"] = "page"
        for example in self.document.examples():
            example.evaluate()
        self._check_shown("its end")
        text = self.document.text
        for start, end, new in reversed(self.changes):
            text = text[:start] + new + text[end:]
        if self.changes:
            self.path.write_text(text, encoding="utf-8")

    def _check_shown(self, where: str) -> None:
        if self.printed:
            raise PageFault(
                f"{self.path}, before {where}: the page does not show what the code prints:\n\n"
                f"{self.printed}"
            )

    def _run(self, example: Example) -> None:
        self._check_shown(f"line {example.line}")
        source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
        code = compile(source, str(self.path), "exec", dont_inherit=True)
        stream = io.StringIO()
        with redirect_stdout(stream):
            try:
                exec(code, example.namespace)
            except ln.LoopnestError as error:
                print(f"{type(error).__name__}: {error}")
        self.printed = stream.getvalue()

    def _compare(self, example: Example) -> None:
        wanted, found, self.printed = str(example.parsed), self.printed, ""
        if not found:
            raise PageFault(f"{self.path}, line {example.line}: the code before prints nothing")
        if pattern_of(wanted).fullmatch(found):
            return
        surprise = _ERROR.match(found) is not None and _ERROR.match(wanted) is None
        if not self.update or GAP in wanted or surprise:
            raise PageFault(
                f"{self.path}, line {example.line}: the page shows\n\n{wanted}\n"
                f"and the code prints\n\n{found}\n"
                "if the new text is right, write it with pytest --update-goldens"
            )
        start = example.document.text.index(wanted, example.start)
        self.changes.append((start, start + len(wanted), found))


def pattern_of(shown: str) -> re.Pattern[str]:
    """Return the pattern of a shown text: a line ``...`` is any number of lines."""
    lines = shown.splitlines(keepends=True)
    return re.compile("".join([r"(?:.*\n)*?" if x == GAP else re.escape(x) for x in lines]))
