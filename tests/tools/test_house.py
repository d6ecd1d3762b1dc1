"""The size of the rooms, measured by `tools/house.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

TOOL = Path(__file__).parents[2] / "tools" / "house.py"
spec = importlib.util.spec_from_file_location("house", TOOL)
assert spec is not None
assert spec.loader is not None
house_tool = importlib.util.module_from_spec(spec)
sys.modules["house"] = house_tool
spec.loader.exec_module(house_tool)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of two rooms with a circle of each kind."""
    files = {
        "__init__.py": "",
        "__main__.py": "print('hello')\n",
        "low/__init__.py": '"""A room."""\n\nfrom pack.low.leaf import LEAF\n',
        "low/leaf.py": "LEAF = 1\n",
        "low/top.py": "from pack.low import leaf\nfrom . import other\n",
        "low/other.py": "import pack.low.top\n",
        "high/__init__.py": "",
        "high/a.py": (
            "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from pack.high import b\n"
        ),
        "high/b.py": "from pack.high import a\n\n\ndef f():\n    import pack.low.leaf\n",
    }
    for name, text in files.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "pack"


def test_no_room_is_above_its_ceiling():
    house = house_tool.House.read()
    assert house_tool.complaints(house, house_tool.read_ceilings()) == []


def test_no_circle_on_top_of_files():
    assert house_tool.House.read().circles("top") == []


@pytest.mark.parametrize("kind", ["typing", "function"])
def test_the_only_circle_is_that_of_a_tensor_and_its_fusion(kind: str):
    tensor = ["fusion", "intents", "schedule_trace", "tensor_view"]
    circles = [[f"loopnest.tensor.{name}" for name in tensor]]
    assert house_tool.House.read().circles(kind) == circles


def test_a_code_line_holds_a_token_of_code():
    source = '''"""A module."""
# a comment

X = (
    1,  # counted
)


def f():
    """Say nothing.

    At length.
    """
    return """a
    text"""
'''
    assert house_tool.code_lines(source) == 6


def test_circles_are_told_apart_by_the_place_of_their_imports(package: Path):
    house = house_tool.House.read(package)
    top = ["pack.low.other", "pack.low.top"]
    assert house.circles("top") == [top]
    assert house.circles("typing") == [["pack.high.a", "pack.high.b"], top]
    assert house.circles("function") == [["pack.high.a", "pack.high.b"], top]


def test_rooms_are_folders(package: Path):
    house = house_tool.House.read(package)
    assert {room: [m.name for m in modules] for room, modules in house.rooms.items()} == {
        "(loose)": ["pack", "pack.__main__"],
        "high": ["pack.high", "pack.high.a", "pack.high.b"],
        "low": ["pack.low", "pack.low.leaf", "pack.low.other", "pack.low.top"],
    }


def test_a_module_with_one_user(package: Path):
    house = house_tool.House.read(package)
    assert house.single["pack.low.top"] == "pack.low.other"
    assert "pack.low.leaf" not in house.single  # three import it


def test_what_is_said_of_a_room(package: Path):
    house = house_tool.House.read(package)
    assert house_tool.complaints(house, {"(loose)": 1, "low": 2, "attic": 9}) == [
        "attic has a ceiling and no modules",
        "high has no ceiling",
        "low has 5 code lines, 3 above its ceiling: what does the change make superfluous?",
    ]
    assert house_tool.complaints(house, {"(loose)": 1, "low": 5, "high": 100}) == [
        "high has 6 code lines, 94 below its ceiling: tools/run python tools/house.py --lower"
    ]


def test_ceilings_fall_and_never_rise(package: Path, tmp_path: Path):
    path = tmp_path / "ceilings.toml"
    path.write_text('# why\n[lines]\n"(loose)" = 40\nhigh = 2\n# a sentence\nlow = 50\n')
    house_tool.lower_ceilings(house_tool.House.read(package), path)
    assert path.read_text() == '# why\n[lines]\n"(loose)" = 1\nhigh = 2\n# a sentence\nlow = 5\n'


def test_the_command_lists_circles(monkeypatch: pytest.MonkeyPatch, package: Path):
    house = house_tool.House.read(package)
    monkeypatch.setattr(house_tool.House, "read", lambda: house)
    result = CliRunner().invoke(house_tool.main, ["--circles"])
    assert result.exit_code == 1
    assert (
        "circles by imports on top of files: 1 (2)\n  pack.low.other pack.low.top" in result.output
    )
