"""Copies in flight are proved for all sizes and trip counts, and wrong pipelines refuted."""

import pytest

from helpers.flying_nests import mirrored_sums, mutants, pipeline
from helpers.verify_nests import report_on

PIPELINES = [(2, 1), (3, 2), (4, 3), (3, 1)]


@pytest.mark.parametrize(("stages", "prefetch"), PIPELINES)
def test_a_pipeline_is_proved_for_all_sizes(stages: int, prefetch: int) -> None:
    report = report_on(mirrored_sums(), pipeline(stages, prefetch))
    assert report.all_sizes, str(report)
    assert report_on(mirrored_sums(), pipeline(stages, prefetch), N=7).ok


@pytest.mark.parametrize(
    ("stages", "prefetch", "name"),
    [(s, p, name) for s, p in PIPELINES for name in mutants(s, p)],
)
def test_a_wrong_pipeline_is_refuted(stages: int, prefetch: int, name: str) -> None:
    text = mutants(stages, prefetch)[name]
    assert report_on(mirrored_sums(), text).status == "refuted"
    assert report_on(mirrored_sums(), text, N=9).status == "refuted"


def test_a_landing_is_asked_of_the_thread_itself_too() -> None:
    """One thread: no race, and nothing that a barrier would order."""
    text = pipeline(2, 1).replace("in 64:  # block_x", "in 64:").replace("  barrier block\n", "")
    alone = text.replace("acc: float32[1]", "acc: float32[64]").replace("acc[0]", "acc[i0]")
    for line in ("update", "finish"):
        index = {"update": "i4", "finish": "i5"}[line]
        alone = "\n".join([row.replace("[i0]", f"[{index}]") if line in row else row
                           for row in alone.splitlines()])  # fmt: skip
    assert report_on(mirrored_sums(), alone).all_sizes
    late = alone.replace("  wait 0\n", "")
    report = report_on(mirrored_sums(), late)
    assert report.status == "refuted"
    assert "a thread uses an element of tile that a copy of its own has in flight" in str(report)
