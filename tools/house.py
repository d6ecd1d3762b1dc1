#!/usr/bin/env python
"""The size of each room of the package, circles of imports, and modules with a single user."""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sched" / "loopnest"
CEILINGS = ROOT / "tools" / "house_ceilings.toml"

LOOSE = "(loose)"
"""The room of modules that lie beside the rooms."""

KINDS = ("top", "typing", "function")
"""Where an import stands: on top of its file, under TYPE_CHECKING, or inside of a function."""

SLACK = 0.01
"""By which part of its lines a room may lie below its ceiling before the ceiling has to fall."""

HELP = """Measure the house: code lines a room, circles of imports, modules with one user.

A code line holds a token of code: blank lines, comments and docstrings do not count. A circle is a
set of modules that import each other, counted three times: by imports on top of files alone, with
those under TYPE_CHECKING, and with those inside of functions. A module with one user could be part
of it.

Each room has a ceiling (tools/house_ceilings.toml), which tests/tools/test_house.py holds it to. A
ceiling falls with its room:

\b
    tools/run python tools/house.py --lower

To raise one, edit the file, and say in a comment above the line what the room has gained for it.
"""


@dataclass(frozen=True, slots=True)
class Import:
    """A module of the package that another imports, and where the import stands."""

    module: str
    kind: str


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the package: its dotted name, room, code lines, and imports of the package."""

    name: str
    room: str
    lines: int
    imports: frozenset[Import]


def code_lines(source: str) -> int:
    """Count the lines that hold a token of code, without docstrings."""
    empty = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in empty and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for first, last in _docstrings(ast.parse(source)):
        lines.difference_update(range(first, last + 1))
    return len(lines)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each string that is a statement of its own."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield node.lineno, node.end_lineno or node.lineno


class _Imports(ast.NodeVisitor):
    """Collects what a file imports, with the kind of each import."""

    def __init__(self, package: str, known: Iterable[str]) -> None:
        self.package = package
        self.known = frozenset(known)
        self.kind = "top"
        self.found: set[Import] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._inside(node, "function")

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        test = ast.unparse(node.test)
        self._inside(node, "typing" if test.endswith("TYPE_CHECKING") else self.kind)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            # ``from package import name`` imports a module of that name, where there is one.
            self._add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in self.known else base)

    def _inside(self, node: ast.AST, kind: str) -> None:
        outer, self.kind = self.kind, kind
        self.generic_visit(node)
        self.kind = outer

    def _add(self, name: str) -> None:
        if name in self.known:
            self.found.add(Import(name, self.kind))


@dataclass(frozen=True)
class House:
    """All modules of a package, and what is counted of them."""

    modules: Mapping[str, Module]

    @classmethod
    def read(cls, package: Path = PACKAGE) -> House:
        """Read the files of a package."""
        files = {_dotted(path, package): path for path in sorted(package.rglob("*.py"))}
        modules = {}
        for name, path in files.items():
            source = path.read_text(encoding="utf-8")
            inside = name if path.name == "__init__.py" else name.rpartition(".")[0]
            imports = _Imports(inside, files)
            imports.visit(ast.parse(source))
            found = frozenset(item for item in imports.found if item.module != name)
            inner = path.relative_to(package).parts
            room = inner[0] if len(inner) > 1 else LOOSE
            modules[name] = Module(name, room, code_lines(source), found)
        return cls(modules)

    @cached_property
    def rooms(self) -> dict[str, list[Module]]:
        """The modules of each room, in order of names."""
        rooms: dict[str, list[Module]] = {}
        for module in self.modules.values():
            rooms.setdefault(module.room, []).append(module)
        return dict(sorted(rooms.items()))

    def lines(self, room: str) -> int:
        """Count the code lines of a room."""
        return sum(module.lines for module in self.rooms[room])

    @cached_property
    def single(self) -> dict[str, str]:
        """The modules that just one other module imports, with that module."""
        users: dict[str, set[str]] = {name: set() for name in self.modules}
        for module in self.modules.values():
            for item in module.imports:
                users[item.module].add(module.name)
        return {name: min(used) for name, used in users.items() if len(used) == 1}

    def circles(self, kind: str) -> list[list[str]]:
        """List the sets of modules that import each other, by imports of `KINDS` up to this one."""
        kinds = KINDS[: KINDS.index(kind) + 1]
        edges = {
            name: sorted({item.module for item in module.imports if item.kind in kinds})
            for name, module in self.modules.items()
        }
        return sorted((sorted(part) for part in _components(edges) if len(part) > 1), key=len)


def _dotted(path: Path, package: Path) -> str:
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _components(edges: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components of a graph (R. Tarjan, SIAM J. Comput. 1, 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    for start in edges:
        if start in number:
            continue
        work = [(start, iter(edges[start]))]
        number[start] = lowest[start] = len(number)
        path.append(start)
        while work:
            node, following = work[-1]
            unseen = next((other for other in following if other not in number), None)
            if unseen is not None:
                number[unseen] = lowest[unseen] = len(number)
                path.append(unseen)
                work.append((unseen, iter(edges[unseen])))
                continue
            work.pop()
            lowest[node] = min([lowest[node], *(lowest[o] for o in edges[node] if o in path)])
            if lowest[node] == number[node]:
                place = path.index(node)
                yield path[place:]
                del path[place:]


def read_ceilings(path: Path = CEILINGS) -> dict[str, int]:
    """Read how many code lines each room may have."""
    return dict(tomllib.loads(path.read_text(encoding="utf-8"))["lines"])


def complaints(house: House, ceilings: Mapping[str, int]) -> list[str]:
    """Say which rooms lie above their ceiling, or so far below that it has to fall."""
    gone = sorted(ceilings.keys() - house.rooms.keys())
    found = [f"{room} has a ceiling and no modules" for room in gone]
    for room in house.rooms:
        lines, ceiling = house.lines(room), ceilings.get(room)
        if ceiling is None:
            found.append(f"{room} has no ceiling")
        elif lines > ceiling:
            found.append(
                f"{room} has {lines:,} code lines, {lines - ceiling:,} above its ceiling: "
                "what does the change make superfluous?"
            )
        elif ceiling - lines > max(20, ceiling * SLACK):
            found.append(
                f"{room} has {lines:,} code lines, {ceiling - lines:,} below its ceiling: "
                "tools/run python tools/house.py --lower"
            )
    return found


def lower_ceilings(house: House, path: Path = CEILINGS) -> None:
    """Write each ceiling that lies above its room anew; no ceiling rises."""
    ceilings = read_ceilings(path)
    text = path.read_text(encoding="utf-8")
    for room, ceiling in ceilings.items():
        lines = house.lines(room) if room in house.rooms else 0
        if lines < ceiling:
            key = json.dumps(room) if room == LOOSE else room
            text = text.replace(f"\n{key} = {ceiling}\n", f"\n{key} = {lines}\n")
    path.write_text(text, encoding="utf-8")


def table(house: House, ceilings: Mapping[str, int]) -> Table:
    """Make the table of rooms."""
    shown = Table("room", box=None)
    for title in ("files", "code lines", "ceiling", "longest file", "modules with one user"):
        shown.add_column(title, justify="right")
    for room, modules in house.rooms.items():
        shown.add_row(
            room,
            str(len(modules)),
            f"{house.lines(room):,}",
            f"{ceilings.get(room, 0):,}",
            f"{max(module.lines for module in modules):,}",
            str(sum(module.name in house.single for module in modules)),
        )
    total = sum(map(house.lines, house.rooms))
    shown.add_row("all", str(len(house.modules)), f"{total:,}", "", "", str(len(house.single)))
    return shown


def figures(house: House) -> dict[str, object]:
    """Collect all that is measured, for ``--json``."""
    return {
        "lines": {room: house.lines(room) for room in house.rooms},
        "files": {room: len(modules) for room, modules in house.rooms.items()},
        "circles": {kind: house.circles(kind) for kind in KINDS},
        "single": house.single,
    }


def print_circles(house: House, console: Console, names: bool) -> None:
    """Print how many circles there are by kind of import, and with ``names`` their modules."""
    what = {"top": "on top of files", "typing": "and for types", "function": "and in functions"}
    for kind in KINDS:
        found = house.circles(kind)
        sizes = ", ".join(str(len(circle)) for circle in found)
        console.print(
            f"circles by imports {what[kind]}: {len(found)}" + f" ({sizes})" * bool(found)
        )
        for circle in found if names else []:
            console.print("  " + " ".join(circle))


@click.command(help=HELP)
@click.option("--lower", is_flag=True, help="Let the ceilings of rooms that shrank fall.")
@click.option("--circles", is_flag=True, help="List the modules of each circle.")
@click.option("--single", is_flag=True, help="List the modules with one user, and the user.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def main(lower: bool, circles: bool, single: bool, as_json: bool) -> None:
    """Print the table of rooms."""
    house = House.read()
    if lower:
        lower_ceilings(house)
    if as_json:
        print(json.dumps(figures(house), indent=2))
        return
    console = Console()
    console.print(table(house, read_ceilings()))
    print_circles(house, console, names=circles)
    if single:
        for name, user in house.single.items():
            console.print(f"{name}: {user}")
    problems = complaints(house, read_ceilings())
    for problem in problems:
        console.print(problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
