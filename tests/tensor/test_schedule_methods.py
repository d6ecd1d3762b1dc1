"""The methods that `tensor/schedule_methods` declares are there, as they are declared."""

from __future__ import annotations

import pickle
import subprocess
import sys
from inspect import Parameter, getclosurevars, getsource, signature
from pathlib import Path
from types import FunctionType

import pytest

import loopnest as ln
import loopnest.schedule  # which fulfils them
from loopnest.tensor.schedule_methods import DECLARED, AllocationMethods, ScheduleMethods

PRIMITIVES = [
    pytest.param(methods, name, id=f"{methods.__name__}.{name}")
    for methods in (AllocationMethods, ScheduleMethods)
    for name in DECLARED[methods]
]


def parameters(function: object) -> list[tuple[str, object]]:
    assert isinstance(function, FunctionType)
    around = getclosurevars(function).nonlocals
    if inner := around.get("step", around.get("run")):  # which a primitive calls
        return parameters(inner)
    found = [*signature(function, follow_wrapped=False).parameters.values()][1:]
    return [(p.name, p.default) for p in found if p.kind is not Parameter.VAR_KEYWORD]


@pytest.mark.parametrize(("methods", "name"), PRIMITIVES)
def test_a_primitive_takes_what_is_declared(methods: type, name: str) -> None:
    made, declared = getattr(methods, name), DECLARED[methods][name]
    assert parameters(made) == parameters(declared)
    assert made.__doc__ == declared.__doc__


@pytest.mark.parametrize(("methods", "name"), PRIMITIVES)
def test_a_reader_of_source_finds_what_is_declared(methods: type, name: str) -> None:
    """Sphinx reads the defaults of a signature there, as they were written."""
    made, declared = getattr(methods, name), DECLARED[methods][name]
    assert signature(made) == signature(declared)
    assert getsource(made) == getsource(declared)


@pytest.mark.parametrize("methods", DECLARED, ids=lambda methods: methods.__name__)
def test_all_that_is_declared_is_fulfilled(methods: type) -> None:
    for name in DECLARED[methods]:
        assert not vars(methods)[name].__code__.co_filename.endswith("schedule_methods.py"), name
        assert vars(methods)[name].__name__ == name


def fresh(code: str) -> str:
    """Return what code prints where nothing else of the package was used before."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


INPUT = "import loopnest as ln\nf = ln.Fusion('k')\nx = f.input('x', (8,), ln.float32)\n"


def test_an_operator_is_what_is_used_first() -> None:
    assert fresh(INPUT + "print(type(x * 2.0).__name__)") == "TensorView\n"


@pytest.mark.parametrize("copied", ["copy.deepcopy(f)", "pickle.loads(pickle.dumps(f))"])
def test_a_copy_is_what_is_made_first(copied: str) -> None:
    code = f"{INPUT}import copy, pickle\ng = {copied}\nprint(g is f, type(g['x'] * 2.0).__name__)"
    assert fresh(code) == "False TensorView\n"


def test_a_fusion_from_a_file_has_its_methods(tmp_path: Path) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (8, 8), ln.float32)
        f.output(x * 2.0, "y")
    (tmp_path / "f").write_bytes(pickle.dumps(f))
    code = f"import pickle; f = pickle.load(open({str(tmp_path / 'f')!r}, 'rb'))\n"
    code += "f['y'].split(0, 4); print(f['x'][1:], f['y'])"
    assert fresh(code) == (
        "T2 float32 local [i0: 7, i1: 8] compute_at=0 produced_at=0 "
        "y float32 global [i0: 2, i1: 4, i2: 8] compute_at=0 produced_at=0\n"
    )


def test_arguments_by_place_and_by_name_are_one_call() -> None:
    def shown(second: bool) -> tuple[str, str]:
        with ln.Fusion("k") as f:
            x = f.input("x", (8, 8), ln.float32)
            y = f.output(x * 2.0, "y")
        y.split(axis=0, factor=4, inner=False) if second else y.split(0, 4, False)
        with pytest.raises(ln.ScheduleError) as error:
            y.split(factor=0, axis=1) if second else y.split(1, 0)
        return str(error.value), str(f.trace)

    assert shown(True) == shown(False)
    assert shown(True)[0].startswith("y.split(axis=1, factor=0): ")


def test_an_axis_may_be_named_like_a_parameter() -> None:
    unroll = ln.ParallelType.unroll
    with ln.Fusion("k") as f:
        x = f.input("x", (8, 8), ln.float32)
        y = f.output(x * 2.0, "y")
    y.split(0, 4, names=("axes", "n")).parallelize({"n": unroll}, axes=unroll)
    assert [axis.parallel for axis in y.leaf_domain[:2]] == [unroll, unroll]
    assert str(f.trace).endswith(f".parallelize({{'n': ln.{unroll}}}, axes=ln.{unroll})")
