"""Operators that torch and kernels can compute: by made-up times, the faster does."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from loopnest.graph.node_origins import place_of  # noqa: E402 - torch is asked for first
from loopnest.graph_kernels import library_times  # noqa: E402 - torch is asked for first
from loopnest.torch import dynamo_backend, loopnest_backend, recording  # noqa: E402

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
    monkeypatch.setattr(dynamo_backend, "is_measured", lambda: True)
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
    assert ", then aten.relu.default([it]): " in str(times)
    by_torch = seconds[1] < seconds[0]
    assert [launch.library for launch in program.kernels] == (
        [True, False] if by_torch else [False]
    )
    assert program.kernels[0].times == (str(times) if by_torch else "")
    for kernels, library in asked:
        torch.testing.assert_close(kernels, library)
    assert len(asked) == 1


def pointwise_alone(x, w, b):
    y = x @ w
    return torch.nn.functional.silu(y + b) * 2


def a_value_that_is_read_by_more(x, w, b):
    y = x @ w
    z = torch.relu(y)
    return z + y.sum(1, keepdim=True), z * b


@pytest.mark.parametrize(
    ("function", "told", "count"),
    [
        (pointwise_alone, ["add", "sigmoid", "mul", "mul"], 1),
        # What adds the sum waits for it, and is no part of one kernel with the product.
        (a_value_that_is_read_by_more, ["relu", "mul"], 3),
    ],
)
def test_an_operator_is_measured_with_the_pointwise_ones_that_follow(
    monkeypatch, tmp_path, function, told, count
):
    results = []

    def in_turns(runs, finish, clock):
        results.append([run() for run in runs])
        return 1.0, 2.0

    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(library_times, "_TIMES", {})
    monkeypatch.setattr(library_times, "in_turns", in_turns)
    monkeypatch.setattr(dynamo_backend, "is_measured", lambda: True)
    torch._dynamo.reset()
    x, w, b = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5)
    options = {"compile": {"optimize": 0}}
    with recording() as programs, torch.no_grad():
        found = torch.compile(function, backend=loopnest_backend, options=options)(x, w, b)
        torch.testing.assert_close(found, function(x, w, b))
    ((times,), ((kernels, library),)) = (programs[0].times, results)
    after = times.op.partition(", then ")[2]
    assert [name.split(".")[1] for name in after.split("aten")[1:]] == told
    assert len(kernels) == len(library) == count
    torch.testing.assert_close(kernels, library)


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
