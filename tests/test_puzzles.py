"""The puzzles of the docs: the start misses the goal, the solution ends with a proof."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

PUZZLES = Path(__file__).parents[1] / "sched" / "docs" / "puzzles"
NOTEBOOKS = sorted(PUZZLES.glob("*.ipynb"))


def printed(notebook: Path) -> list[str]:
    """Return what each cell of code prints."""
    found, namespace = [], {"__name__": "notebook"}
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown):
                exec("".join(cell["source"]), namespace)
            found.append(shown.getvalue())
    return found


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_puzzle_has_a_goal_and_a_solution(notebook: Path) -> None:
    *_, start, solution = printed(notebook)
    assert re.search("^(Not yet: |refuted )", start, re.MULTILINE)
    assert "proved for all sizes" not in start
    assert solution.splitlines()[-1].endswith("proved for all sizes")


def test_all_puzzles_stand_in_their_index() -> None:
    linked = re.findall(r"\]\((\w+\.ipynb)\)", (PUZZLES / "README.md").read_text("utf-8"))
    assert linked == [path.name for path in NOTEBOOKS]
