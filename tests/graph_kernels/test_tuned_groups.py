"""Groups of a graph whose math equals that of a tuned kernel take its schedule."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from kernels.bias_gelu import bias_gelu
from kernels.conv2d import conv2d
from kernels.gemm import gemm
from kernels.softmax import softmax
from loopnest.devtools import tuned_calls, tuned_rows
from loopnest.graph_kernels import kept_groups


@pytest.fixture(autouse=True)
def _database(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPNEST_TUNED", str(tmp_path / "tuned"))


def keep(kernel, target="c", schedule="cpu", sizes=None, **parameters):
    """Write the row that a tuning would write, and return it."""
    given = {**kernel.sizes, **(sizes or {})}
    scheduled = kernel.fusion(schedule, **parameters)
    row = tuned_rows.TunedRow(
        kernel.name, schedule, target, kernel.digest(), tuned_rows.machine_name("c"), given,
        parameters, 1.0, 0.0, 1.0,
        **tuned_calls.of_graphs(kernel.unscheduled({}), scheduled, given),
    )  # fmt: skip
    tuned_rows.put(row)
    return row


def array(*shape):
    return np.random.default_rng(7).standard_normal(shape, np.float32)


def compiled(inputs, output, target="interpret"):
    return G.compile(G.Graph(inputs, [output]), target=target, library=False)


def product(m, k, n):
    a, b = G.var("a", (m, k)), G.var("b", (k, n))
    return [a, b], G.matmul(a, b)


def test_a_product_takes_the_tuned_tile():
    keep(gemm, rows=3, parts=1)
    inputs, c = product(7, 5, 24)
    fn = compiled(inputs, c)
    (launch,) = fn.kernels
    assert launch.schedule == "gemm@cpu"
    assert " in 3:  # unroll" in str(launch.kernel)
    a, b = array(7, 5), array(5, 24)
    np.testing.assert_allclose(fn(a, b), a @ b, rtol=1e-5, atol=1e-5)


def windows():
    x, w = G.var("x", (2, 2, 6, 8)), G.var("w", (16, 2, 3, 3))
    return [x, w], G.conv2d(x, w, padding=(1, 1))


def activation():
    x, bias = G.var("x", (6, 40)), G.var("bias", (40,))
    return [x, bias], G.gelu(x + bias)


@pytest.mark.parametrize(
    ("kernel", "graph", "parameters"),
    [(conv2d, windows, {"rows": 1, "height": 2}), (bias_gelu, activation, {"lanes": 8})],
    ids=["conv2d", "bias_gelu"],
)
def test_other_kernels(kernel, graph, parameters):
    keep(kernel, **parameters)
    inputs, output = graph()
    fn = compiled(inputs, output)
    assert [launch.schedule for launch in fn.kernels] == [f"{kernel.name}@cpu"]
    arrays = [array(*x.static_shape) for x in inputs]
    named = {x.name: value for x, value in zip(inputs, arrays, strict=True)}
    (expected,) = G.evaluate(G.Graph(inputs, [output]), named)
    np.testing.assert_allclose(fn(*arrays), expected, rtol=1e-4, atol=1e-5)


def test_every_call_of_a_schedule_is_made_again():
    """Of the kernels, on their own math under other names: the nests are equal."""
    for kernel in (gemm, conv2d, softmax, bias_gelu):
        for schedule in kernel.schedules:
            row = keep(kernel, schedule=schedule)
            if not row.calls:
                continue
            again = kernel.unscheduled({})
            data = json.loads(json.dumps(row.calls))
            tuned_calls.make_calls(again, replace(row, calls=data))
            wanted = str(kernel.lower(schedule)).replace("packed", "T7")  # names are not kept
            assert str(ln.lower(again)) == wanted, f"{kernel.name}@{schedule}"


def test_the_nearest_sizes_count():
    keep(gemm, sizes={"M": 2048, "N": 2048, "K": 2048}, rows=8)
    keep(gemm, sizes={"M": 16, "N": 16, "K": 16}, rows=4)
    for size, rows in ((8, 4), (1024, 8)):
        inputs, c = product(size, size, size)
        (launch,) = compiled(inputs, c).kernels
        assert f" in {rows}:  # unroll" in str(launch.kernel)


def test_symbolic_sizes():
    keep(gemm, rows=4)
    inputs, c = product("B", 12, 24)
    fn = compiled(inputs, c)
    assert [launch.schedule for launch in fn.kernels] == ["gemm@cpu"]
    a, b = array(9, 12), array(12, 24)
    np.testing.assert_allclose(fn(a, b), a @ b, rtol=1e-5, atol=1e-5)


def test_other_math_does_not():
    keep(gemm)
    a, b = G.var("a", (16, 16)), G.var("b", (16, 16))
    for other in (G.matmul(a, G.transpose(b)), G.relu(G.matmul(a, b)), a + b):
        fn = compiled([a, b], other)
        assert "gemm@cpu" not in [launch.schedule for launch in fn.kernels]
    half = [G.var(name, (16, 16), "float16") for name in "ab"]
    fn = compiled(half, G.matmul(*half))
    assert "gemm@cpu" not in [launch.schedule for launch in fn.kernels]


def test_other_machines_and_targets_do_not():
    row = keep(gemm)
    inputs, c = product(16, 16, 16)
    for other in (replace(row, machine="another"), replace(row, target="cuda")):
        (path,) = tuned_rows.folder().iterdir()
        path.unlink()
        tuned_rows.put(other)
        assert compiled(inputs, c).kernels[0].schedule == "contraction"


def test_a_row_that_comes_later_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_groups, "_FEW", 1)
    inputs, c = product(24, 24, 24)
    assert compiled(inputs, c).kernels[0].schedule == "contraction"
    keep(gemm)
    assert compiled(inputs, c).kernels[0].schedule == "gemm@cpu"


def test_what_does_not_fit_is_said_and_left_out(caplog):
    row = keep(gemm)
    (path,) = tuned_rows.folder().iterdir()
    path.unlink()
    call = {"name": "split", "tensor": 0, "args": ["N", 4], "keywords": {}}
    wrong = [
        [call],  # of an input
        [{**call, "tensor": 99}],
        [{**call, "name": "__init_subclass__"}],
        [{**call, "args": [{"enum": "os", "value": "system"}]}],
        [{"nothing": 1}],
    ]
    inputs, c = product(16, 16, 16)
    for calls in wrong:
        path = tuned_rows.put(replace(row, calls=calls))
        with caplog.at_level(logging.WARNING, logger="loopnest"):
            caplog.clear()
            assert compiled(inputs, c).kernels[0].schedule == "contraction"
        assert "what was tuned as gemm@cpu does not fit it: " in caplog.text
        path.unlink()


def test_schedules_that_assume_sizes_serve_no_graph():
    @ln.kernel(sizes={"N": 64})
    def doubled(f):
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")

    @doubled.schedule("cpu")
    def cpu(f):
        f.assume("N % 4 == 0")
        f["y"].split(0, 4)

    assert keep(doubled).calls == []


def test_rows_of_the_version_before_load(tmp_path):
    row = keep(gemm)
    (path,) = tuned_rows.folder().iterdir()
    data = json.loads(path.read_text())
    path.unlink()
    for name in ("form", "inputs", "calls"):
        del data[name]
    data["version"] = 1
    tuned_rows.put(tuned_rows.TunedRow(**data))
    (found,) = tuned_rows.rows()
    assert (found.parameters, found.calls) == (row.parameters, [])
    inputs, c = product(16, 16, 16)
    assert compiled(inputs, c).kernels[0].schedule == "contraction"
