"""What other compilers got wrong, in ours: proved and run, refused, or wrong without barriers.

`sched/docs/guide/reports.md` lists the reports; each of its rows is one of these tests.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
from field.reports import REPORTS, Report, affine
from loopnest import kir
from loopnest.devtools.fuzzing import check, expect
from loopnest.devtools.fuzzing.judge import TARGETS
from loopnest.proofs.verifier import verify_program

PT = ln.ParallelType
PAGE = Path(__file__).parents[2] / "sched" / "docs" / "guide" / "reports.md"
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("found", REPORTS, ids=lambda found: found.build.__name__)
def test_it_is_proved_and_right(found: Report) -> None:
    """At exact, rounded and special values; in memory that is full of garbage."""
    with ln.Fusion(found.build.__name__) as f:
        steps = found.build(f)
        next(steps)
        expected = [expect(f, sizes, data) for sizes in found.sizes for data in (1, 2, 7)]
        next(steps, None)
    assert check(f, expected, TARGETS) == ""
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.ok, report
    assert found.shows in str(kernel)
    lowered = kernel._lowered
    assert lowered.math is not None
    program = lowered.program
    bare = program.with_body(kir.map_body(program.body, _without_barriers))
    status = "proved" if bare.body == program.body else verify_program(bare, lowered.math()).status
    assert status == ("refuted" if found.barriers else "proved")


def _without_barriers(node: kir.Stmt) -> kir.Stmt | None:
    return None if isinstance(node, kir.Barrier) else node


# What single values become

Values = Sequence[float]
UNARY: list[tuple[str, Callable[[ln.TensorView], ln.TensorView], ln.DType, Values, Values]] = [
    ("triton-lang/triton#619", lambda x: x // -2, ln.int64, range(-4, 5),
     [-n // 2 for n in range(-4, 5)]),
    ("triton-lang/triton#955", lambda x: x // 2, ln.int32, range(-5, -1), [-3, -2, -2, -1]),
    ("triton-lang/triton#954", lambda x: -((-x) // 5), ln.int32, [-36, 36, -35], [-7, 8, -7]),
    ("triton-lang/triton#10920", lambda x: x % 3.0, ln.float32, [-5, 5, -3], [1, 2, 0]),
    ("triton-lang/triton#7349", lambda x: ln.max(x, 0), ln.float32, [NAN, INF, 1], [NAN]),
    ("triton-lang/triton#10697", lambda x: ln.argmin(x, 0), ln.float32, [2, NAN, 1, NAN], [1]),
    ("triton-lang/triton#9022", lambda x: ln.argmax(x, 0), ln.float32, [INF, NAN], [1]),
    ("triton-lang/triton#10291", lambda x: ln.argmax(x, 0), ln.float32, [NAN, 6, 8], [0]),
    ("pytorch/pytorch#93815", lambda x: ln.argmax(x, 0), ln.float16, [3, 7, 1, 7, 7], [1]),
]  # fmt: skip
"""Report, math, type, values, results."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", UNARY, ids=operator.itemgetter(0))
def test_values(
    case: tuple[str, Callable[[ln.TensorView], ln.TensorView], ln.DType, Values, Values],
    target: str,
) -> None:
    _, math, dtype, values, wanted = case
    with ln.Fusion("values") as f:
        y = f.output(math(f.input("x", ("N",), dtype)), "y")
    if y.ndim:
        y.split(0, 2)
    found = ln.compile(f, target=target)(np.array(values, dtype.numpy))
    np.testing.assert_array_equal(np.reshape(found, -1), wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_a_division_by_zero_is_the_same_beside_another(target: str) -> None:
    """triton-lang/triton#4676."""
    with ln.Fusion("both") as f:
        x, y = f.input("x", ("N",), ln.int32), f.input("y", ("N",), ln.int32)
        f.output(x // y, "quotient")
        f.output(x % y, "rest")
    arrays = np.array([2, -2, 0, 7, -7], np.int32), np.array([0, 0, 0, 0, 2], np.int32)
    quotient, rest = ln.compile(f, target=target)(*arrays)
    assert quotient.tolist() == [0, 0, 0, 0, -4]
    for name, beside in (("quotient", quotient), ("rest", rest)):
        with ln.Fusion("alone") as f:
            x, y = f.input("x", ("N",), ln.int32), f.input("y", ("N",), ln.int32)
            f.output(x // y if name == "quotient" else x % y, name)
        assert (ln.compile(f, target=target)(*arrays) == beside).all()


@pytest.mark.parametrize("target", TARGETS)
def test_offsets_beyond_32_bits(target: str) -> None:
    """triton-lang/triton#832 and #6748: a stride times an index is larger than 2 ** 31."""
    with ln.Fusion("far") as f:
        x = f.input("x", ("N",), ln.int8, strides=("S",))
        f.output(x + 1, "y")
    step = 2**30 + 5
    memory = np.zeros(2 * step + 1, np.int8)  # untouched pages take no memory
    memory[[step, 2 * step]] = 3, 7
    view = np.lib.stride_tricks.as_strided(memory, (3,), (step,))
    assert ln.compile(f, target=target)(view).tolist() == [1, 4, 8]


def test_more_elements_than_32_bits_count() -> None:
    """triton-lang/triton#1058: the indices of the text have 64 bits."""
    with ln.Fusion("many") as f:
        y = f.output(f.input("x", (3_276_800_000,), ln.float16) * 2.0, "y")
    y.split(0, 1024)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    kernel = ln.lower(f)
    assert kernel.launch().grid == (3_200_000, 1, 1)
    assert "typedef long long idx_t;" in kernel.cuda()


def test_zeros_are_no_softmax() -> None:
    """ScalingIntelligence/KernelBench#165: all results are smaller than a tolerance of 0.01."""
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("M", "N"), ln.bfloat16)
        e = ln.exp(x - ln.max(x, 1, keepdims=True))
        f.output(e / ln.sum(e, 1, keepdims=True), "y")
    x = np.random.default_rng(0).standard_normal((2, 20_000)).astype(ln.bfloat16.numpy)
    wanted = ln.evaluate(f, x).astype(np.float64)
    assert abs(wanted).max() < 0.01
    assert (abs(wanted) > ln.error_bound(f, x)).all()


# What is refused


def test_vectors_of_a_split_that_does_not_divide() -> None:
    """csarofeen/pytorch#2059."""
    with ln.Fusion("k") as f:
        copied = f.input("x", (24,), ln.float32) + 0.0
        f.output(copied * 1.0, "y")
    copied.split(-1, 2)
    copied.split(-1, 8)
    copied.split(-1, 4)
    copied.axis(-1).parallelize(PT.vectorize)
    with pytest.raises(ln.LoweringError) as found:
        ln.lower(f)
    assert str(found.value) == (
        "T1: its vectorized axis of extent 4 runs over 2 elements, which 4 does not divide; a "
        "vectorized axis must divide: choose another factor"
    )


def test_a_place_inside_of_a_vector() -> None:
    """apache/tvm#15877."""
    with ln.Fusion("k") as f:
        c = f.input("a", ("N",), ln.float32) + f.input("b", ("N",), ln.float32)
        d = c + c
        e = f.output(d * 2.0, "e")
    e.split(0, 8)
    e.axis(1).parallelize(PT.vectorize)
    with pytest.raises(ln.ScheduleError) as found:
        d.compute_at(e, 2)
    assert str(found.value) == (
        "T3.compute_at(e, 2): position 2 lies past axis 1 of e, which is vectorized; use a "
        "position up to 1"
    )


def test_memory_of_another_shape() -> None:
    """NVIDIA/Fuser#4036."""
    with ln.Fusion("k") as f:
        x = f.input("x", (4, 2), ln.float32)
        with pytest.raises(ln.DefinitionError) as found:
            f.output(ln.permute(ln.relu(x), (1, 0)), "y", inplace=x)
    assert str(found.value) == (
        "output('y'): T2 is float32[2, 4] but x is float32[4, 2]; an output takes the memory of an "
        "input of the same shape and type"
    )


def test_a_scan_that_is_not_associative() -> None:
    """triton-lang/triton#3485: a discounted sum, which the composition of affine maps computes."""
    with pytest.raises(ln.DefinitionError) as found:
        ln.Reducer((0.0,), lambda a, b: (a[0] * 0.5 + b[0],), "discounted")
    assert str(found.value) == (
        "Reducer('discounted'): for components of float32, combine is not associative: (a b) c and "
        "a (b c) differ"
    )
    with ln.Fusion("discounted") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.scan(affine(), (ln.full(("N",), 0.5), x), 0)[1], "y")
    found_ = ln.compile(f, target="interpret")(np.array([1, 2, 3, 4], np.float32))
    assert found_.tolist() == [1, 2.5, 4.25, 6.125]


# The page


def test_the_page_has_these_reports() -> None:
    own = {found.where for found in REPORTS} | {case[0] for case in UNARY}
    shown = re.findall(r"\b([\w.-]+/[\w.-]+)#(\d+)(?: and #(\d+))?", Path(__file__).read_text())
    own |= {f"{name}#{number}" for name, *numbers in shown for number in numbers if number}
    page = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| \[([^\]]+)\]\((\S+)\) \| .+ \| .+ \|$", page, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(own)
    for name, link in rows:
        repository, _, number = name.partition("#")
        assert link in (f"https://github.com/{repository}/{kind}/{number}"
                        for kind in ("issues", "pull"))  # fmt: skip
    assert f"{len(rows)} reports" in page
