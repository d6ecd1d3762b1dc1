"""Copies in flight on "interpret": undefined until their Wait, and then a store."""

import numpy as np
import pytest

import loopnest as ln
from helpers.flying_nests import mutants, pipeline, plain
from loopnest import kir
from loopnest.backends.interpret import interpret

PIPELINES = [(2, 1), (3, 2), (4, 3), (3, 1)]


def run(text: str, rows: int, thread_order: int | None = None) -> None:
    """Interpret a pipeline, and compare what it computes."""
    x = np.random.default_rng(0).integers(-9, 9, (rows, 64)).astype(np.float32)
    y = np.full(64, np.nan, np.float32)
    interpret(kir.parse(plain(text)), {"x": x, "y": y}, {"N": rows}, {}, thread_order)
    np.testing.assert_array_equal(y, x[:, ::-1].sum(0))


@pytest.mark.parametrize(("stages", "prefetch"), PIPELINES)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7])
def test_copies_land_at_any_time(stages: int, prefetch: int, rows: int) -> None:
    text = pipeline(stages, prefetch)
    for order in (None, 0, 1, 2):
        run(text, rows, order)


@pytest.mark.parametrize(
    ("stages", "prefetch", "name"),
    [(s, p, name) for s, p in PIPELINES for name in mutants(s, p)],
)
def test_a_wrong_pipeline_is_a_fault(stages: int, prefetch: int, name: str) -> None:
    with pytest.raises(ln.KernelFault):
        run(mutants(stages, prefetch)[name], 9)


def fault(*lines: str) -> str:
    head = ("kernel k(x: float32[8]) -> (y: float32[8])", "T: float32[8] shared",
            "for i0 in 8:", "  y[i0] = 0.0")  # fmt: skip
    arrays = {"x": np.arange(8, dtype=np.float32), "y": np.zeros(8, np.float32)}
    with pytest.raises(ln.KernelFault) as caught:
        interpret(kir.parse("\n".join([*head, *lines])), arrays, {}, {})
    return str(caught.value)


def test_a_thread_may_not_read_what_it_has_in_flight() -> None:
    assert fault("issue cp.async:", "  T[2] = x[2]", "commit", "y[0] = T[2]", "wait 0") == (
        "k, nest line 9 'y[0] = T[2]': y reads T[2] of buffer T (tensor T), which was never "
        "stored; block (0, 0, 0), thread (0, 0, 0)"
    )


def test_a_thread_may_not_store_where_its_copy_will_land() -> None:
    lines = ("issue cp.async:", "  T[2] = x[2]", "commit", "T[2] = 1.0", "wait 0")
    assert fault(*lines) == (
        "k, nest line 7 'T[2] = x[2]': T[2] of buffer T (tensor T) was stored to while the copy "
        "of T was in flight; block (0, 0, 0), thread (0, 0, 0)"
    )


def test_a_thread_may_not_change_the_source_of_its_copy() -> None:
    lines = ("issue cp.async:", "  T[2] = y[2]", "commit", "y[2] = 1.0", "wait 0")
    assert fault(*lines) == (
        "k, nest line 7 'T[2] = y[2]': y[2] of buffer y (tensor y) was changed while the copy of "
        "T was in flight; block (0, 0, 0), thread (0, 0, 0)"
    )


def outcomes(*lines: str, seeds: int = 40) -> set[float | str]:
    """Return what y[0] may be, or "fault", over orders of threads."""
    head = ("kernel k(x: float32[8]) -> (y: float32[8])", "T: float32[8] shared",
            "for i0 in 8:", "  y[i0] = 0.0")  # fmt: skip
    program, found = kir.parse("\n".join([*head, *lines])), set[float | str]()
    for seed in range(seeds):
        arrays = {"x": np.arange(8, dtype=np.float32), "y": np.zeros(8, np.float32)}
        try:
            interpret(program, arrays, {}, {}, thread_order=seed)
        except ln.KernelFault:
            found.add("fault")
        else:
            found.add(float(arrays["y"][0]))
    return found


ISSUED = ("issue cp.async:", "  T[2] = x[2]", "commit")


def test_in_some_order_a_copy_lands_early_and_in_some_at_its_wait() -> None:
    assert outcomes(*ISSUED, "wait 0", "y[0] = T[2]") == {2.0}
    assert outcomes(*ISSUED, "y[0] = T[2]", "wait 0") == {2.0, "fault"}
    later = ("issue cp.async:", "  T[3] = x[3]", "commit")
    assert outcomes(*ISSUED, *later, "wait 1", "y[0] = T[2]", "wait 0") == {2.0}
    assert outcomes(*ISSUED, *later, "wait 1", "y[0] = T[3]", "wait 0") == {3.0, "fault"}
    assert outcomes(*ISSUED, *later, "wait 2", "y[0] = T[2]", "wait 0") == {2.0, "fault"}
    assert outcomes(ISSUED[0], ISSUED[1], "wait 0", "y[0] = T[2]") == {2.0, "fault"}


def test_in_some_order_a_store_comes_while_the_copy_is_in_flight() -> None:
    assert outcomes(*ISSUED, "T[2] = 1.0", "wait 0", "y[0] = T[2]") == {1.0, "fault"}
    changed = ("issue cp.async:", "  T[2] = y[2]", "commit", "y[2] = 1.0", "wait 0", "y[0] = T[2]")
    assert outcomes(*changed) == {0.0, "fault"}


def test_two_copies_to_one_element() -> None:
    lines = ("issue cp.async:", "  T[2] = x[2]", "  T[2] = x[3]", "commit", "wait 0")
    assert "T[2] of buffer T (tensor T) was stored to while the copy" in fault(*lines)
