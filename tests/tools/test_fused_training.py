"""The example of an activation and of Adam as fused kernels."""

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

import loopnest.graph as G

_PATH = Path(__file__).resolve().parents[2] / "tools" / "examples" / "fused_training.py"


@pytest.fixture(autouse=True)
def _beside(monkeypatch):
    """The examples import each other, as programs of one folder."""
    monkeypatch.syspath_prepend(_PATH.parent)


def example():
    spec = importlib.util.spec_from_file_location("fused_training", _PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_activation_is_one_kernel():
    fn = G.compile(example().activation(1000), target="c")
    (launch,) = fn.kernels
    assert launch.bytes == 3 * 4 * 1000  # x is read, the value and the gradient are written


def test_it_prints_a_row_a_program():
    arguments = ["--elements", "1000", "--hidden", "8", "--steps", "2", "--no-unfused"]
    done = CliRunner().invoke(example().main, arguments)
    assert done.exit_code == 0, done.output
    assert "my_sigmoid" in done.output
    assert "training" in done.output
