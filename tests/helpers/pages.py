"""Run the code blocks of a Markdown page, in order, in one namespace, and compare what they print.

A ``python`` block runs; where its first line is a file name in a comment, it is written to that
file. What it prints, and the error of the package that it ends with, stand in the ``text`` or
``cuda`` block after it. The commands of a ``console`` block, after ``$``, run in the current
folder, and what they print follows them. A line ``...`` stands for lines that are left out, ``…``
in a line for any characters. Blocks of other languages (``sh``, ``c``) are not run. Neither are
those of a page's optional packages where these are not installed.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Collection
from contextlib import redirect_stdout
from pathlib import Path

from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser

import loopnest as ln

SHOWN = ("text", "cuda")
"""The languages of blocks that show what the code block before them prints."""
GAP = "...\n"
ANY = "…"
_FILE = re.compile(r"# (\w+\.py)\n")
_ERROR = re.compile(r"\w+(?:Error|Fault): ")


class PageFault(AssertionError):
    """A code block of a page does not do what the page says."""


class Page:
    """A page whose blocks are run one after another.

    Args:
        path: the Markdown file.
        update: whether to write into the page what is printed, instead of comparing it.
        optional: packages without which the blocks that import them are left out.
    """

    def __init__(self, path: Path, *, update: bool = False, optional: Collection[str] = ()) -> None:
        self.path = path
        self.update = update
        self.printed = ""
        self.optional = optional
        self.is_left_out = False
        self.changes: list[tuple[int, int, str]] = []
        parsers = [CodeBlockParser("python", self._run)]
        parsers += [CodeBlockParser(language, self._compare) for language in SHOWN]
        parsers += [CodeBlockParser("console", self._command)]
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
        self.is_left_out = False
        if name := _FILE.match(example.parsed):
            Path(name[1]).write_text(example.parsed, encoding="utf-8")
        source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
        code = compile(source, str(self.path), "exec", dont_inherit=True)
        stream = io.StringIO()
        with redirect_stdout(stream):
            try:
                exec(code, example.namespace)
            except ModuleNotFoundError as error:
                if error.name not in self.optional:
                    raise
                self.is_left_out = True
                return
            except ln.LoopnestError as error:
                print(f"{type(error).__name__}: {error}")
        self.printed = stream.getvalue()

    def _compare(self, example: Example) -> None:
        if self.is_left_out:
            return
        wanted, found, self.printed = inside(example), self.printed, ""
        if not found:
            raise PageFault(f"{self.path}, line {example.line}: the code before prints nothing")
        self._judge(example, wanted, found)

    def _command(self, example: Example) -> None:
        self._check_shown(f"line {example.line}")
        found = ""
        for line in example.parsed.splitlines():
            if line.startswith("$ "):
                found += f"{line}\n{output_of(line[2:])}"
        self._judge(example, inside(example), found)

    def _judge(self, example: Example, wanted: str, found: str) -> None:
        if pattern_of(wanted).fullmatch(found):
            return
        surprise = _ERROR.match(found) is not None and _ERROR.match(wanted) is None
        if not self.update or GAP in wanted or ANY in wanted or surprise:
            raise PageFault(
                f"{self.path}, line {example.line}: the page shows\n\n{wanted}\n"
                f"and the code prints\n\n{found}\n"
                "if the new text is right, write it with pytest --update-goldens"
            )
        start = example.document.text.index("\n", example.start) + 1  # behind the opening fence
        self.changes.append((start, start + len(wanted), found))


def inside(example: Example) -> str:
    """Return the lines of a block as they are: Sybil takes a common indentation away."""
    return "".join(example.document.text[example.start : example.end].splitlines(True)[1:-1])


def pattern_of(shown: str) -> re.Pattern[str]:
    """Return the pattern of a shown text: ``...`` is any number of lines, ``…`` part of a line."""
    lines = shown.splitlines(keepends=True)
    texts = [".*".join([re.escape(part) for part in line.split(ANY)]) for line in lines]
    return re.compile("".join([r"(?:.*\n)*?" if t == re.escape(GAP) else t for t in texts]))


def output_of(command: str) -> str:
    """Return what a command prints, on both streams, with this interpreter first on the path.

    As a reader sees it: in continuous integration pytest prints more.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    reader = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}
    env = {**reader, "PATH": path, "COLUMNS": "100", "LOOPNEST_VERIFY": "0"}
    done = subprocess.run(
        ["bash", "-c", command],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.stdout
