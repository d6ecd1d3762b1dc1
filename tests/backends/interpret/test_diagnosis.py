"""diagnose: the first tensor in program order whose values are not the oracle's."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from loopnest.backends.interpret.diagnosis import Diagnosis, diagnose, diagnose_program
from loopnest.base.errors import LaunchError
from loopnest.facade.kernel_class import Kernel, lower
from loopnest.scalar.enums import ParallelType as PT
from mutation.mutants import mutants


def softmax() -> Kernel:
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        a = f.scalar("alpha", ln.float32)
        e = ln.exp(a * (x - ln.max(x, axis=1, keepdims=True)))
        y = f.output(e / ln.sum(e, axis=1, keepdims=True), "y")
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    ln.propagate(y, 2)
    f.inline_most()
    return lower(f)


def factored() -> Kernel:
    with ln.Fusion("factored") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 4)
    y.rfactor(1).compute_at(y, 1)
    return lower(f)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, shape)


def broken(k: Kernel, kind: str, text: str, *arrays: np.ndarray, **scalars: float) -> Diagnosis:
    mutant = next(m for m in mutants(k.program) if m.kind == kind and m.text.startswith(text))
    make = k._lowered.math
    assert make is not None
    return diagnose_program(mutant.program, make(), arrays, scalars)


def test_a_right_kernel_has_nothing_to_say() -> None:
    found = diagnose(softmax(), values(7, 10).astype(np.float16), alpha=0.5)
    assert found.ok
    assert str(found) == "softmax: all 8 tensors have the values of the math"
    assert diagnose(factored(), values(5, 9).astype(np.float32)).ok
    assert diagnose(factored(), np.zeros((0, 3), np.float32)).ok


def test_the_first_wrong_tensor_is_named_with_its_store() -> None:
    x = values(7, 10).astype(np.float16)
    found = broken(softmax(), "index", "load T5: i5 without", x, alpha=0.5)
    assert not found.ok
    assert (found.tensor, found.index) == ("y", (0, 1))
    assert found.text == "y[i0 * 4 + i1, i5] = T5[0] / T7[0]"
    assert found.actual != found.expected
    assert found.compared == ("T1", "T2", "T3", "T4", "T5", "T6", "T7")
    assert str(found).startswith(f"softmax: y[0, 1] is {found.actual!r}, the math says ")
    assert f"stored at nest line {found.line} '{found.text}'; placed by " in str(found)


def test_the_schedule_call_is_named() -> None:
    found = broken(factored(), "bound", "loop i2 -1", values(5, 9).astype(np.float32))
    assert found.tensor == "T2"
    assert found.placed.startswith("T2.compute_at(y, 1) at ")


def test_a_fault_is_told_and_half_done_sums_are_not_blamed() -> None:
    found = broken(factored(), "init", "drop T2", values(5, 9).astype(np.float32))
    assert found.tensor == ""
    assert not found.ok
    assert "which was never stored" in found.fault
    assert str(found).startswith("the run broke a rule: factored, nest line")


def test_an_output_never_stored_is_named() -> None:
    with ln.Fusion("scale") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y", inplace=x)
    found = broken(lower(f), "store", "drop x", values(4).astype(np.float32))
    assert (found.tensor, found.index, found.actual) == ("y", (0,), None)
    assert "y[0] is never stored, the math says " in str(found)


def test_the_callers_arrays_stay_as_they_are() -> None:
    with ln.Fusion("scale") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y", inplace=x)
    data = values(4).astype(np.float32)
    before = data.copy()
    assert diagnose(lower(f), data).ok
    np.testing.assert_array_equal(data, before)


def test_arguments_are_checked() -> None:
    with pytest.raises(LaunchError) as found:
        diagnose(3)
    assert str(found.value) == (
        "diagnose(3): it is no kernel that carries its math; pass what ln.lower returns"
    )


def test_the_variant_that_a_launch_would_take_is_what_runs():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = x + 1.0
        y = f.output(t * 2.0, "y")
    y.split(1, 4)
    y.axis(2).parallelize(ln.ParallelType.vectorize)
    t.memory = ln.GLOBAL
    kernel = ln.lower(f)
    assert kernel.has_scalar
    for d in (8, 7):
        assert ln.diagnose(kernel, np.ones((2, d), np.float32)).ok
