"""Stores whose value has another form than the math: refuted by data, or not known."""

from __future__ import annotations

from pathlib import Path

import pytest

import loopnest as ln
from helpers.verify_nests import report_on
from kernels.adam import adam
from kernels.layernorm import layernorm
from kernels.softmax import softmax
from loopnest.proofs import verify_program
from loopnest.proofs.obligations import program_of as lowered
from mutation.judge import mutants_of
from mutation.mutants import mutants
from mutation.subjects import keys_in, load

NEST = """# loopnest nest 1
kernel k(x: float32[N]) -> (y: float32[N])
for i0 in N:
  y[i0] = {}  # y(i0)
"""


def doubled() -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y")
    return f


@pytest.mark.parametrize("sizes", [{}, {"N": 7}, {"N": 1 << 24}], ids=["any", "small", "large"])
def test_a_wrong_constant_is_refuted(sizes: dict[str, int]) -> None:
    report = report_on(doubled(), NEST.format("x[i0] * 3.0"), **sizes)
    assert report.status == "refuted"
    (finding,) = report.findings
    assert finding.kind == "value"
    assert finding.message == (
        "the store computes '3.0' where the math of y (mul) has '2.0': for some data it is "
        f"{3 * 0.5478467345237732}, not {2 * 0.5478467345237732}"
    )
    assert finding.index == (0,)
    assert finding.sizes == (sizes or {"N": 3})


def test_another_value_of_a_tensor_without_axes_is_refuted() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (), ln.float32)
        f.output(x * 2.0, "y")
    nest = (
        "# loopnest nest 1\nkernel k(x: float32[]) -> (y: float32[])\ny[0] = x[0] * x[0]  # y()\n"
    )
    (finding,) = report_on(f, nest).findings
    assert (finding.status, finding.kind, finding.index) == ("refuted", "value", ())


@pytest.mark.parametrize(
    "value", ["x[i0] + x[i0]", "x[i0] * 4.0 * 0.5", "x[i0] * 2.0000001", "x[i0] - -x[i0]"]
)
def test_another_form_of_the_same_value_is_not_known(value: str) -> None:
    """The last but one differs by less than rounding may do."""
    report = report_on(doubled(), NEST.format(value))
    assert report.status == "unknown"
    assert [f.status for f in report.findings] == ["unknown"]


@pytest.mark.parametrize("value", ["x[i0] * x[i0]", "x[i0] + 2.0", "-2.0 * x[i0]", "2.0"])
def test_another_value_is_refuted(value: str) -> None:
    assert report_on(doubled(), NEST.format(value)).status == "refuted"


def test_what_reads_other_elements_is_not_refuted_by_its_form() -> None:
    """The kernel is right: of i - 3.5 the element 7 - i is the negative of the element i."""
    with ln.Fusion("k") as f:
        i = ln.iota(8, dtype=ln.float32) - 3.5
        f.output(-i, "y")
    text = """# loopnest nest 1
kernel k() -> (y: float32[8])
T: float32[8] global  # {0}
for i0 in 8:
  T[i0] = float32(i0) - 3.5  # {0}(i0)
for i1 in 8:
  y[i1] = T[7 - i1] * 1.0  # y(i1)
"""
    assert report_on(f, text.format(i.name)).status == "unknown"


def test_a_wrong_update_is_refuted() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.sum(x * x, axis=1), "y")
    text = """# loopnest nest 1
kernel k(x: float32[N, D]) -> (y: float32[N])
for i0 in N:
  y[i0] = 0.0  # init y(i0, 0)
  for i1 in D:
    T1: float32[1] local
    T1[0] = x[i0, i1] * x[i0, i1]  # T1(i0, i1)
    y[i0] = y[i0] + T1[0]{}  # update y(i0, i1)
"""
    assert report_on(f, text.format("")).ok
    report = report_on(f, text.format(" * 0.5"))
    assert report.status == "refuted"
    assert report.findings[0].message.startswith(
        "the store computes 'T1[0] * 0.5' where the math of y (sum) has '$0': for some data it is "
    )


def test_a_fault_elsewhere_leaves_it_unknown() -> None:
    """It is not known then what the operands are."""
    assert report_on(doubled(), NEST.format("x[i0 + 1] * 3.0")).status == "unknown"


@pytest.mark.parametrize(
    ("kernel", "schedule"), [(adam, "cpu"), (layernorm, "gpu_warp"), (softmax, "gpu_warp")]
)
def test_other_constants_and_operations_in_kernels(kernel, schedule) -> None:  # type: ignore[no-untyped-def]
    program, math = lowered(kernel.lower(schedule), "verify")
    changed = list(mutants(program, frozenset({"constant", "operation"})))
    assert len(changed) > 5
    for mutant in changed:
        assert verify_program(mutant.program, math, {}).status == "refuted", mutant.text


def test_components_that_store_each_other_s_values_are_not_proved() -> None:
    """A component that is computed from its siblings alone has no element of its own to go on."""
    folder = Path(__file__).resolve().parent.parent / "mutation" / "kernels"
    for key in keys_in(folder, ("plain_moments",)):
        subject = load(key)
        assert subject is not None
        for mutant in mutants_of(subject, frozenset({"values"})):
            assert verify_program(mutant.program, subject.math).status != "proved", mutant.text
