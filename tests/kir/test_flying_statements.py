"""Issue, Commit and Wait as text, and what is legal of them."""

import pytest

from helpers.flying_nests import pipeline, plain
from loopnest import kir
from loopnest.kir.legal_program import program_faults
from loopnest.kir.nest_text import HEADER, print_nest


@pytest.mark.parametrize(("stages", "prefetch"), [(2, 1), (3, 2), (4, 1)])
def test_text_is_read_back(stages: int, prefetch: int) -> None:
    text = f"{HEADER}\n{plain(pipeline(stages, prefetch))}"
    program = kir.parse(text)
    assert print_nest(program) == text
    assert program_faults(program) == []
    kinds = [type(node) for node, _ in kir.walk(program.body)]
    assert kinds.count(kir.Issue) == kinds.count(kir.Commit) == prefetch + 1
    assert kinds.count(kir.Wait) == 1


def faults(*lines: str) -> list[str]:
    head = ("kernel k(x: float32[8], h: float16[8]) -> (y: float32[8])", "T: float32[8] shared",
            "L: float32[8] local")  # fmt: skip
    return program_faults(kir.parse("\n".join([*head, *lines])))


def test_a_commit_and_a_wait_stand_under_no_test() -> None:
    tested = faults("if 0 < N:", "  commit", "  wait 3")
    assert tested == ["commit stands under a test", "wait 3 stands under a test"]
    some = faults("for i0 in 8:  # block_x", "  y[i0] = 0.0", "for i1 in 4:  # block_x", "  commit")
    assert some == ["commit stands under a test"]
    assert faults("for i0 in 8:  # block_x", "  commit", "for i1 in N:", "  wait 0") == []


def test_bounds_of_a_loop_are_a_test_where_threads_differ() -> None:
    head = ["for i0 in 8:  # block_x", "  y[i0] = 0.0"]
    assert (
        faults(*head, "for i1 in 8:  # grid_x", "  for i2 in 0..min(i1 + 1, 8) of 8:", "    wait 0")
        == []
    )
    own = faults("for i0 in 8:  # block_x", "  for i1 in 0..min(i0 + 1, 8) of 8:", "    commit")
    assert own == ["commit stands under a test"]


def test_a_zero_of_another_type_is_a_constant() -> None:
    assert faults("S: float16[8] shared", "issue cp.async:", "  S[0] = float16(0.0)") == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("L[0] = x[0]", "issue cp.async: the store to L, in local memory; use SHARED"),
        ("T[0] = L[0]", "issue cp.async: the store to T copies from local memory; use GLOBAL"),
        ("T[0] = x[0] * 2.0", "issue cp.async: the store to T computes; it copies what one load "
         "finds, or a constant"),
        ("T[0] = h[0]", "issue cp.async: the store to T converts float16 to float32"),
        ("commit", "commit stands inside of an issue"),
        ("let a = x[0]", "issue cp.async holds more than loops, tests and stores"),
    ],
)  # fmt: skip
def test_an_issue_holds_copies(line: str, fault: str) -> None:
    assert fault in faults("L[0] = 0.0", "issue cp.async:", f"  {line}")


def test_an_issue_holds_no_issue() -> None:
    nested = faults("issue cp.async:", "  issue cp.async:", "    T[0] = x[0]")
    assert "issue cp.async stands inside of another issue" in nested
