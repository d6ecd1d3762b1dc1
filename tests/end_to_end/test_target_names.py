"""Targets and schedules are found by the name of a target and by that of its device."""

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from helpers.command_line import SCALE, SCALED, output
from helpers.fake_gpu import FakeGpu, plug_in
from loopnest.schedulers import (
    Scheduler,
    auto_schedule,
    register_scheduler,
    schedulers,
    unregister_scheduler,
)

NAMES = [("cpu", "c"), ("gpu", "cuda")]


def doubled():
    with ln.Fusion("double") as f:
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
    return f


@pytest.mark.parametrize(("device", "target"), NAMES)
def test_automatic_schedules(device, target):
    kernels = []
    for name in (device, target):
        f = doubled()
        auto_schedule(f, name)
        kernels.append(ln.lower(f))
    assert str(kernels[0]) == str(kernels[1])
    assert kernels[0].printed(device) == kernels[1].printed(target)
    assert schedulers(device) == schedulers(target)


@pytest.mark.parametrize(("device", "target"), NAMES)
def test_compiled_kernels(device, target, monkeypatch):
    plug_in(monkeypatch, FakeGpu())
    f = doubled()
    if target == "cuda":
        auto_schedule(f, device)
    fn = ln.compile(f, target=device)
    assert fn.target == target
    (both,) = ln.compile_many([f], target=device)
    assert both.target == target
    graph = G.Graph([x := G.var("x", (4,))], [G.exp(x)])
    assert G.compile(graph, target=device).target == target
    with G.Target(device) as entered:
        assert (entered.kind, entered.device) == (target, device)


def test_results_and_bounds():
    f, x = doubled(), np.ones(3, np.float32)
    assert ln.compile(f, target="cpu")(x).tolist() == [2, 2, 2]
    bounds = [ln.error_bound(f, x, target=name) for name in ("cpu", "c")]
    np.testing.assert_array_equal(*[np.asarray(b) for b in bounds])


@pytest.mark.parametrize(("device", "target"), NAMES)
def test_schedules_of_kernels(device, target):
    @ln.kernel(sizes={"N": 8})
    def double(f):
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")

    @double.schedule("first")
    def first(f):
        pass

    for own, other in ((device, target), (target, device)):
        double.schedules.pop(other, None)

        @double.schedule(own)
        def scheduled(f):
            f["y"].split(0, 4)

        assert double.resolve(other) == double.resolve(own) == own
        assert double.suited(target) == double.suited(device) == own
        assert str(double.lower(other)) == str(double.lower(own))

    @double.schedule(other)
    def both(f):
        pass

    assert (double.resolve(own), double.resolve(other)) == (own, other)
    with pytest.raises(ln.ScheduleError) as caught:
        double.resolve("tpu")
    assert str(caught.value).startswith("double@tpu: kernel double has no schedule 'tpu'; its sch")


def test_a_scheduler_of_a_device():
    own = Scheduler("own", "gpu", lambda f, p: False, lambda f, p: None)
    assert register_scheduler(own).target == "cuda"
    try:
        assert schedulers("cuda")[0].name == "own"
        with pytest.raises(ln.ScheduleError):
            register_scheduler(own)
    finally:
        unregister_scheduler("own", "gpu")
    assert "own" not in [s.name for s in schedulers("gpu")]


def test_the_command_line(tmp_path):
    file = tmp_path / "scale.py"
    file.write_text(SCALE)
    assert output("dump", f"{file}:scale@cuda") == output("dump", f"{file}:scale@gpu")
    for stage in ("--stage", "--target"):
        assert output("dump", str(file), stage, "cpu") == output("dump", str(file), stage, "c")
    small = "-D", "N=8", "--target", "cpu"
    assert "scale@gpu on target c: N=8" in output("run", str(file), *small)
    file.write_text(SCALED + '@scale.schedule("cpu")\ndef cpu(f):\n    f["y"].split(0, 4)\n')
    assert "scale@cpu" in output("check", f"{file}:scale@c", "-D", "N=8")


@pytest.mark.parametrize("bad", ["tpu", None, 3, []])
def test_no_targets(bad):
    for call in (ln.compile, auto_schedule, G.compile):
        fusion = G.Graph([x := G.var("x", (4,))], [x]) if call is G.compile else doubled()
        with pytest.raises((ln.CompileError, ln.ScheduleError)) as caught:
            call(fusion, target=bad)
        assert repr(bad) in str(caught.value)
