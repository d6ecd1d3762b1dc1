"""What a shell completes after ``FILE:``, kernels and schedules, found in the text of the file.

The file is not run: a key press would run what its author wrote, and wait for it.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

from click.shell_completion import BashComplete, CompletionItem, split_arg_string

_BREAKS = ":@="
"""Where bash ends a word, though it is one argument."""


def completions(incomplete: str) -> list[CompletionItem]:
    """Return what ``FILE[:KERNEL[@SCHEDULE]]`` may go on with."""
    path, colon, name = incomplete.rpartition(":")
    if not colon:
        return [CompletionItem(incomplete, type="file")]
    found: list[str] = []
    for kernel, schedules in declared_kernels(path).items():
        if not name.startswith(f"{kernel}@"):
            found.append(kernel)
        if name.startswith(kernel):
            found += [f"{kernel}@{schedule}" for schedule in schedules]
    return [CompletionItem(f"{path}:{label}") for label in found if label.startswith(name)]


def declared_kernels(path: str) -> dict[str, list[str]]:
    """Return the kernels that a file's decorators declare, each with its schedules."""
    try:
        body = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, list[str]] = {}
    for function in body:
        for decorator in getattr(function, "decorator_list", ()):
            match decorator:
                case ast.Call(func=ast.Attribute(attr="kernel") | ast.Name(id="kernel")):
                    found[getattr(function, "name", "")] = []
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=kernel), attr="schedule"),
                    args=[ast.Constant(value=schedule), *_],
                ):
                    found.setdefault(kernel, []).append(str(schedule))
    return found


class ColonBash(BashComplete):
    """Completion in bash, which takes ``FILE:KERNEL@SCHEDULE`` for five words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments, and the one that is being typed."""
        words = split_arg_string(os.environ["COMP_WORDS"])
        last = int(os.environ["COMP_CWORD"])
        joined: list[str] = []
        goes_on = False
        for word in words[: last + 1]:
            is_break = not word.strip(_BREAKS)
            if joined and (is_break or goes_on):
                joined[-1] += word
            else:
                joined.append(word)
            goes_on = is_break
        if last >= len(words):
            return joined[1:], ""
        return joined[1:-1], joined[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """Return an item as its last word: bash has the others already."""
        return f"{item.type},{re.split(f'[{_BREAKS}]', item.value)[-1]}"
