"""Operators that torch and kernels can compute: by made-up times, the faster does."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from loopnest.graph.node_origins import place_of  # noqa: E402 - torch is asked for first
from loopnest.graph_kernels import library_times  # noqa: E402 - torch is asked for first
from loopnest.torch import loopnest_backend, op_times, recording  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of several versions


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (2.0, 1.0)])
def test_the_faster_of_torch_and_kernels_computes_an_operator(monkeypatch, tmp_path, seconds):
    asked = []

    def in_turns(runs, finish, clock):
        asked.append([run()[0] for run in runs])
        return seconds

    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(library_times, "_TIMES", {})
    monkeypatch.setattr(library_times, "in_turns", in_turns)
    monkeypatch.setattr(op_times, "is_measured", lambda: True)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())
    x = torch.randn(2, 2, 6, 6)
    with recording() as programs, torch.no_grad():
        found = torch.compile(
            model, backend=loopnest_backend, options={"compile": {"optimize": 0}}
        )(x)
        torch.testing.assert_close(found, model(x))
    (program,) = programs
    (times,) = program.times
    assert str(times).startswith(
        "aten.convolution.default([float32[2, 2, 6, 6] at [72, 36, 6, 1], "
        "float32[3, 2, 3, 3] at [18, 9, 3, 1], float32[3] at [1], [1, 1], "
    )
    by_torch = seconds[1] < seconds[0]
    assert [launch.library for launch in program.kernels] == (
        [True, False] if by_torch else [False]
    )
    assert program.kernels[0].times == (str(times) if by_torch else "")
    for kernels, library in asked:
        torch.testing.assert_close(kernels, library)
    assert len(asked) == 1


def test_nodes_know_the_line_of_the_model():
    torch._dynamo.reset()
    line = inspect.currentframe().f_lineno + 2

    def model(x):
        return x.exp()

    with recording() as programs, torch.no_grad():
        torch.compile(model, backend=loopnest_backend, options={"target": "interpret"})(
            torch.ones(3)
        )
    (node,) = programs[0].found.graph.outputs
    assert place_of(node) == f" made at {__file__}:{line + 1}"
