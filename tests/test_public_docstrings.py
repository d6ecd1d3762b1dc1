"""Docstrings of public names: what is taken and given, what is refused, an example, a source."""

from __future__ import annotations

import doctest
import inspect
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G

DOCS = Path(__file__).parents[1] / "sched" / "docs"
FUNCTIONS = [name for name in ln.__all__ if inspect.isroutine(getattr(ln, name))]
SECTIONS = ("Args:", "Raises:", ">>> ", "Source: ")

PRIMITIVES = (
    *("split", "merge", "reorder", "parallelize", "pin", "compute_at", "inline_at", "rfactor"),
    *(
        "cache_after",
        "cache_before",
        "cache_fork",
        "skew",
        "circular_buffer",
        "swizzle",
        "set_allocation",
    ),
)
CLASSES = ("Fusion", "IterDomain", "Kernel", "KernelDef", "TensorDomain", "TensorView")


def missing(function: Callable[..., object], sections: tuple[str, ...]) -> list[str]:
    """Return what the docstring of a function lacks."""
    text = inspect.getdoc(function) or ""
    takes = [name for name in inspect.signature(function).parameters if name != "self"]
    wanted = [section for section in sections if section != "Args:" or takes]
    lacks = [section for section in wanted if section not in text]
    if "Args:" in wanted and "Args:" in text:
        described = text.partition("Args:")[2]
        lacks += [f"the parameter {n}" for n in takes if not re.search(rf"\b{n}\b", described)]
    return lacks


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_all_sections(name: str) -> None:
    assert missing(getattr(ln, name), SECTIONS) == []


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_has_all_sections(name: str) -> None:
    assert missing(getattr(ln.TensorView, name), SECTIONS) == []


def test_the_reference_has_every_public_name() -> None:
    """By name, or by the module that defines it."""
    text = "".join([p.read_text("utf-8") for p in (DOCS / "reference").glob("*.md")])
    named = set(re.findall(r"\.\. auto\w+:: ([\w.]+)", text))
    for name in ln.__all__:
        value = getattr(ln, name)
        if not callable(value):
            continue
        assert named & {f"loopnest.{name}", name, value.__module__}, name


def members() -> Iterator[tuple[str, object]]:
    """Yield the public members of the public classes."""
    for cls in CLASSES:
        for base in getattr(ln, cls).__mro__[:-1]:
            for name, value in vars(base).items():
                if not name.startswith("_") and base.__module__.startswith("loopnest."):
                    yield f"{cls}.{name}", value


@pytest.mark.parametrize(
    ("name", "member"), [pytest.param(*found, id=found[0]) for found in members()]
)
def test_a_member_of_a_public_class_says_what_it_is(name: str, member: object) -> None:
    if callable(member) or isinstance(member, property):
        assert inspect.getdoc(member), name


def test_each_parallel_type_says_what_it_does_on_each_target() -> None:
    source = inspect.getsource(ln.ParallelType)
    for member in ln.ParallelType:
        text = re.search(rf'^    {member.name} = ".*\n    """((?:.|\n)*?)"""', source, re.MULTILINE)
        assert text is not None, member
        for target in ("CUDA", "C:", "interpreter"):
            assert target in text[1], f"{member}: {target}"


EXAMPLES = [*FUNCTIONS, *[f"TensorView.{name}" for name in PRIMITIVES]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_runs(name: str) -> None:
    value: object = ln
    for part in name.split("."):
        value = getattr(value, part)
    text = inspect.getdoc(value) or ""
    test = doctest.DocTestParser().get_doctest(text, {"np": np, "ln": ln}, name, None, 0)
    found = io.StringIO()
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=found.write)
    assert result.failed == 0, found.getvalue()


GRAPH_FUNCTIONS = [
    name for name in G.__all__ if inspect.isfunction(getattr(G, name))
]  # fmt: skip
NAMES_ALONE = {"op_names", "pass_names", "structural_hash", "unregister_alter_op_layout"}
"""Graph functions whose first line says all."""


@pytest.mark.parametrize("name", sorted(set(GRAPH_FUNCTIONS) - NAMES_ALONE))
def test_a_function_of_the_graph_says_more_than_one_line(name: str) -> None:
    text = inspect.getdoc(getattr(G, name)) or ""
    assert len(text.splitlines()) > 1, f"G.{name}: {text}"
