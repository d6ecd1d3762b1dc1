"""Loops whose indices one sum replaces in proofs, run in another order than that of the sum."""

from __future__ import annotations

from dataclasses import replace

import loopnest as ln
from loopnest import kir
from loopnest.proofs.verifier import verify_program
from loopnest.scalar.expr import substitute


def _moved(loop: kir.Loop, onto: kir.Loop) -> tuple[kir.Stmt, ...]:
    """Return what stands in two loops, over the indices of two others."""
    (inner,), (target,) = loop.body, onto.body
    assert isinstance(inner, kir.Loop)
    assert isinstance(target, kir.Loop)
    values = {loop.var: onto.var, inner.var: target.var}
    return kir.map_body(
        inner.body, lambda n: kir.map_expressions(n, lambda value: substitute(value, values))
    )


def _exchanged(loop: kir.Loop) -> kir.Loop:
    """Return two loops, the inner one outside."""
    (inner,) = loop.body
    assert isinstance(inner, kir.Loop)
    return replace(inner, body=(replace(loop, body=inner.body),))


def test_an_element_that_a_later_iteration_of_exchanged_loops_stores() -> None:
    with ln.Fusion("shifted") as fusion:
        x = fusion.input("x", ("N", "D"), ln.float32)
        t = fusion.output(x * 2.0, "t")
        y = fusion.output(ln.pad(t, ((1, 0), (0, 0)), value=0.0), "y")
    for tensor in (t, y):
        tensor.merge(0)
        tensor.split(0, 4)
    kernel = ln.lower(fusion)
    first, second = kernel.program.body
    assert isinstance(first, kir.Loop)
    assert isinstance(second, kir.Loop)
    (inner,) = second.body
    assert isinstance(inner, kir.Loop)
    fused = replace(second, body=(replace(inner, body=(*_moved(first, second), *inner.body)),))
    math = kernel._lowered.math()
    in_order = verify_program(kernel.program.with_body((fused,)), math)
    assert str(in_order).startswith("proved for all sizes")
    exchanged = verify_program(kernel.program.with_body((_exchanged(fused),)), math)
    assert exchanged.status == "refuted"
    assert "y reads an element of t that was never stored" in str(exchanged)


def test_iterations_that_share_no_element_are_proved_in_any_order() -> None:
    with ln.Fusion("scaled") as fusion:
        x = fusion.input("x", ("N", "D"), ln.float32)
        t = fusion.output(x * 2.0, "t")
    t.merge(0)
    t.split(0, 4)
    t.reorder({0: 1})
    assert str(ln.verify(ln.lower(fusion))).startswith("proved for all sizes")


def test_a_sum_is_proved_in_any_order() -> None:
    with ln.Fusion("total") as fusion:
        x = fusion.input("x", ("N", "D"), ln.float32)
        t = fusion.output(ln.sum(x * 2.0, [0, 1]), "t")
    t.merge(0)
    t.split(0, 4)
    t.reorder({0: 1})
    assert str(ln.verify(ln.lower(fusion))).startswith("proved for all sizes")
