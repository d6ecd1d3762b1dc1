"""The code of the pages runs and prints what they show; their links and paths lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from helpers.pages import Page, PageFault
from loopnest.tensor.schedule_methods import DECLARED, ScheduleMethods

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "sched" / "docs"
EXCERPTS = DOCS / "howto"
"""Its code blocks are excerpts of files, which tests/test_howto.py looks for."""

PAGES = sorted(p for p in DOCS.rglob("*.md") if EXCERPTS not in p.parents)
OPTIONAL = {"languages": ("torch", "jax", "jax_tvm_ffi", "tvm_ffi")}
"""Packages that a page shows, and that need not be there."""
LINKING = [
    *sorted(DOCS.rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
    *[ROOT / "sched" / "ARCHITECTURE.md"],
    *sorted((ROOT / "tests").rglob("*.md")),
]
FENCED = re.compile(r"^ *(`{3,})[^\n]*\n.*?^ *\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<!`)`((?:tests|kernels|tools|sched)/[\w./*-]+)`(?!`)")


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=shown)
def test_the_code_of_a_page(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.stem == "pytorch":
        pytest.importorskip("torch")
        import loopnest.torch  # noqa: F401 - registers the backend, where it is not installed
    monkeypatch.chdir(tmp_path)  # pages write files
    update = bool(request.config.getoption("--update-goldens"))
    Page(page, update=update, optional=OPTIONAL.get(page.stem, ())).run()


def anchors(text: str) -> set[str]:
    """Return the anchors that headings of a page have."""
    found = set()
    for line in FENCED.sub("", text).splitlines():
        if heading := re.match(r"#+ +(.*)", line):
            plain = re.sub(r"[^\w\- ]", "", heading[1].lower())
            found.add(plain.strip().replace(" ", "-"))
    return found


def dead_links(page: Path) -> list[str]:
    """Return what a page links to, or names as a path of the repository, and is not there."""
    prose = FENCED.sub("", page.read_text("utf-8"))
    dead = []
    for link in LINK.findall(prose):
        target, _, anchor = unquote(link).partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            dead.append(f"{link}: there is no {target}")
        elif anchor and anchor not in anchors(path.read_text("utf-8")):
            dead.append(f"{link}: {path.name} has no heading for it")
    dead += [f"there is no {name}" for name in NAMED.findall(prose) if not any(ROOT.glob(name))]
    return dead


@pytest.mark.parametrize("page", LINKING, ids=shown)
def test_links_lead_somewhere(page: Path) -> None:
    found = dead_links(page)
    assert not found, "\n".join(found)


INDEXES = [DOCS / "guide" / "primitives", DOCS / "guide" / "kernels"]


@pytest.mark.parametrize("folder", INDEXES, ids=lambda path: path.name)
def test_all_pages_of_a_folder_stand_in_its_index(folder: Path) -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", (folder / "README.md").read_text("utf-8")))
    assert linked == {page.name for page in folder.glob("*.md")} - {"README.md"}


def test_primitives_and_kernels_have_a_page_each() -> None:
    """A page for each schedule method of a tensor, and for each file of kernels."""
    scheduling = {name for name in DECLARED[ScheduleMethods] if not name.startswith("_")} - {"axis"}
    pages = {page.stem for page in INDEXES[0].glob("*.md")}
    kernels = {path.stem for path in (ROOT / "kernels").glob("*.py")}
    assert {page.stem for page in INDEXES[1].glob("*.md")} - {"README"} == kernels
    others = {"allocation_domain", "memory", "inline_most", "propagate", "parallelize_like"}
    assert scheduling | others == pages - {"README"}


def test_all_variables_of_the_environment_stand_on_their_page() -> None:
    read = set()
    for path in [*(ROOT / "sched" / "loopnest").rglob("*.py"), ROOT / "tools" / "run"]:
        read |= set(re.findall(r"\bLOOPNEST_[A-Z_]*[A-Z]\b", path.read_text("utf-8")))
    # Macros of texts in C.
    read -= {"LOOPNEST_COMPACT", "LOOPNEST_OPENMP_SIMD"}
    page = (DOCS / "guide" / "environment.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(LOOPNEST_\w+)`", page, re.MULTILINE)) == read


CODE = re.compile(r"(?<![\w/.])(?:sched|tests|kernels|tools)/[\w./-]*\w\.(?:py|md|nest|toml)\b")


def test_files_that_code_names_exist() -> None:
    """Docstrings and comments of the package, the kernels and the tools name files that exist."""
    dead = []
    for folder in ("sched", "kernels", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name in CODE.findall(path.read_text("utf-8")):
                if not (ROOT / name).exists() and not (path.parent / name).exists():
                    dead.append(f"{shown(path)}: there is no {name}")
    assert not dead, "\n".join(dead)


PRIVATE = re.compile(r"\b(?:the|our) (?:seeds? on|contract)\b|\bshared/seeds\b", re.IGNORECASE)


def test_sources_can_be_followed_by_outsiders() -> None:
    """Nothing names papers that only the authors have."""
    dead = []
    for path in [*ROOT.glob("*.md"), *ROOT.glob("[kst]*/**/*.py"), *ROOT.glob("[kst]*/**/*.md")]:
        if path != Path(__file__):
            dead += [
                f"{shown(path)}: {found}" for found in PRIVATE.findall(path.read_text("utf-8"))
            ]
    assert not dead, "\n".join(dead)


def written(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


SUM = "```python\na = 1 + 1\nprint(a)\nprint(a + 1)\nprint(a + 2)\n```\n\n"


def test_a_page_that_is_right(tmp_path: Path) -> None:
    Page(written(tmp_path, f"{SUM}```text\n2\n3\n4\n```\n")).run()
    Page(written(tmp_path, f"{SUM}```text\n2\n...\n```\n\n```python\nb = a\n```\n")).run()


def test_a_text_that_differs_is_named(tmp_path: Path) -> None:
    page = written(tmp_path, f"{SUM}```text\n2\n5\n```\n")
    with pytest.raises(PageFault, match=r"line 8: the page shows\n\n2\n5\n\nand the code prints"):
        Page(page).run()
    Page(page, update=True).run()
    assert page.read_text("utf-8") == f"{SUM}```text\n2\n3\n4\n```\n"


def test_a_text_that_is_not_shown_is_named(tmp_path: Path) -> None:
    with pytest.raises(PageFault, match="before its end: the page does not show"):
        Page(written(tmp_path, SUM)).run()
    with pytest.raises(PageFault, match="before line 8: the page does not show"):
        Page(written(tmp_path, SUM + SUM)).run()
    with pytest.raises(PageFault, match="line 1: the code before prints nothing"):
        Page(written(tmp_path, "```text\n2\n```\n")).run()


def test_an_error_is_shown_like_a_text(tmp_path: Path) -> None:
    code = "```python\nimport loopnest as ln\n\nln.lower(3)\n```\n\n"
    error = "```text\nLoweringError: lower(3): an int is no Fusion\n```\n"
    Page(written(tmp_path, code + error)).run()


def test_an_error_is_never_written_where_the_page_shows_none(tmp_path: Path) -> None:
    code = "```python\nimport loopnest as ln\n\nln.lower(3)\n```\n\n"
    page = written(tmp_path, f"{code}```text\nfor i0 in N:\n```\n")
    with pytest.raises(PageFault, match="the code prints\n\nLoweringError: "):
        Page(page, update=True).run()
    Page(written(tmp_path, f"{code}```text\nLoweringError: ?\n```\n"), update=True).run()


def test_dead_links_are_named(tmp_path: Path) -> None:
    text = "# A b\n\n[x](nothing.md), [y](#a-b), [z](#c), `tests/nothing.py`, [w](https://a.b)\n"
    assert dead_links(written(tmp_path, text)) == [
        "nothing.md: there is no nothing.md",
        "#c: page.md has no heading for it",
        "there is no tests/nothing.py",
    ]
