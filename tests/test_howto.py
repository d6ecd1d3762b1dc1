"""The pages of sched/docs/howto name files, names and excerpts that exist, as they are now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "sched" / "docs" / "howto").glob("*.md"))
FENCE = re.compile(r"^ *```\w+\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([\w./]+)\)")
OPENING = r"[\w.]+(?:/[\w.]+)+"


def path_of(name: str) -> Path | None:
    """Return the file or folder that a page names, None where there is none."""
    for base in (ROOT, ROOT / "sched" / "loopnest"):
        for found in (base / name, base / f"{name}.py"):
            if found.exists():
                return found
    return None


def unindented(text: str) -> str:
    return "\n".join([line.strip() for line in text.splitlines() if line.strip()])


def named(text: str) -> list[str]:
    """Return what a page names that looks like a path, in order."""
    prose = FENCE.sub("", text)
    return [word for word in QUOTED.findall(prose) if re.fullmatch(OPENING, word)]


def missing(text: str) -> list[str]:
    """Return what a page says that is not so, a sentence each."""
    lines = []
    for word in named(text):
        module, _, name = word.rpartition(".")
        if path_of(word) is not None:
            continue
        file = path_of(module) if module else None
        if file is None or not file.is_file():
            lines.append(f"there is no {word}")
        elif not re.search(rf"^(?:def |class )?{name}\b", file.read_text("utf-8"), re.MULTILINE):
            lines.append(f"{module} has no {name}")
    before = 0
    for match in FENCE.finditer(text):
        paths = [path_of(word) for word in named(text[before : match.start()])]
        before = match.end()
        texts = [unindented(p.read_text("utf-8")) for p in paths if p is not None and p.is_file()]
        if not texts:
            lines.append(f"no file is named before {match[1].strip()!r}")
        for piece in re.split(r"^ *\.\.\.$", match[1], flags=re.MULTILINE) if texts else ():
            if not any(unindented(piece) in whole for whole in texts):
                lines.append(f"no file named before it holds {unindented(piece)!r}")
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_is_so(page: Path) -> None:
    text = page.read_text("utf-8")
    found = missing(text)
    found += [f"no page {to}" for to in LINK.findall(text) if not (page.parent / to).exists()]
    assert not found, "\n".join(found)


def test_all_pages_stand_in_the_index() -> None:
    index = (PAGES[0].parent / "README.md").read_text("utf-8")
    linked = set(LINK.findall(index))
    assert linked == {page.name for page in PAGES} - {"README.md"}


def test_what_is_wrong_in_a_page_is_named() -> None:
    page = (
        "See `kir/noodles.py`, `kir/nodes.walk` and `kir/nodes.walked`.\n\n"
        "```python\nbodies of nothing\n```\n\n"
        "Then `kir/nodes.py`:\n\n   ```python\n   def is_sync(node: Stmt) -> bool:\n   ...\n"
        "   odd\n   ```\n"
    )
    assert missing(page) == [
        "there is no kir/noodles.py",
        "kir/nodes has no walked",
        "no file is named before 'bodies of nothing'",
        "no file named before it holds 'odd'",
    ]
