"""Proofs about lowered kernels whose threads and blocks work together, and about each barrier."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

import loopnest as ln
from helpers.mma_gemm import mma_gemm
from helpers.verify_nests import program_of
from kernels.softmax import softmax as softmax_async
from loopnest import kir
from loopnest.facade.kernel_class import Kernel, lower
from loopnest.kir.nest_text import nest_lines
from loopnest.kir.vector_access import WideAccess
from loopnest.proofs import (
    Report,
    superfluous_barriers,
    verify,
    verify_program,
    wide_barriers,
)
from loopnest.proofs.affine import NotAffine
from loopnest.proofs.obligations import obligations
from loopnest.proofs.program_model import Model
from loopnest.proofs.symbolic import NotProved, prove
from loopnest.proofs.verifier import enumerated
from loopnest.scalar.dtypes import index as index_type
from loopnest.scalar.enums import ParallelType as PT
from loopnest.scalar.expr import Op, Symbol, integer, loads
from loopnest.tensor.math_snapshot import MathSnapshot, snapshot
from mutation.mutants import mutants

KERNELS: dict[str, Callable[[], ln.Fusion]] = {}


def kernel(make: Callable[[], ln.Fusion]) -> Callable[[], ln.Fusion]:
    KERNELS[make.__name__] = make
    return make


def reduced(
    reduce: Callable[..., ln.TensorView], block: tuple[int | str, ...], over: tuple[int, ...]
) -> ln.Fusion:
    """Return a reduction over axes of a block, all of them bound to threads."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", *block), ln.float32)
        y = f.output(reduce(x, axis=tuple(n + 1 for n in over)), "y")
    dims = (PT.block_y, PT.block_x) if len(block) == 2 else (PT.block_x,)
    y.parallelize({0: PT.grid_x, **{n + 1: d for n, d in enumerate(dims)}})
    return f


for _block, _over in (
    ((32,), (0,)), ((128,), (0,)), ((33,), (0,)), (("D",), (0,)), ((16, 16), (0,)),
    ((16, 16), (1,)), ((16, 16), (0, 1)), ((12, 8), (0,)), (("E", 8), (0,)), ((2, 64), (1,)),
):  # fmt: skip
    for _name, _reduce in (("sum", ln.sum), ("max", ln.max)):
        KERNELS[f"{_name} of {_block} over {_over}"] = (
            lambda reduce=_reduce, block=_block, over=_over: reduced(reduce, block, over)
        )


@kernel
def softmax() -> ln.Fusion:
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        e = ln.exp(x - ln.max(x, axis=1, keepdims=True))
        y = f.output(e / ln.sum(e, axis=1, keepdims=True), "y")
    y.split(1, 64)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    ln.propagate(y, 3)
    f.inline_most()
    ln.parallelize_like(y)
    return f


@kernel
def welford() -> ln.Fusion:
    with ln.Fusion("welford") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        mean, var, _ = ln.welford(x, axis=1)
        f.output(mean, "m")
        f.output(var, "v")
    mean.split(1, 64)
    mean.parallelize({0: PT.grid_x, 2: PT.block_x})
    return f


@kernel
def over_the_grid() -> ln.Fusion:
    with ln.Fusion("over_the_grid") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.split(0, 64)
    y.split(0, 8)
    y.parallelize({1: PT.grid_x, 2: PT.block_x})
    return f


@kernel
def back_to_all_blocks() -> ln.Fusion:
    with ln.Fusion("back_to_all_blocks") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x / ln.sum(x, axis=0, keepdims=True), "y")
    y.split(0, 64)
    y.split(0, 8)
    ln.propagate(y)
    y.parallelize({1: PT.grid_x, 2: PT.block_x})
    ln.parallelize_like(y)
    return f


@kernel
def transposed() -> ln.Fusion:
    with ln.Fusion("transposed") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        y = f.output(ln.permute(x, (1, 0)), "y")
    t = x.cache_after()
    t.memory = ln.SHARED
    y.split(1, 8)
    y.split(0, 8)
    y.reorder([0, 2, 1, 3])
    t.compute_at(y, 2)
    y.parallelize({0: PT.grid_x, 1: PT.grid_y, 2: PT.block_y, 3: PT.block_x})
    t.reorder({-1: -2})
    t.parallelize({2: PT.block_y, 3: PT.block_x})
    t.set_allocation(pad={3: 1})
    return f


@pytest.mark.parametrize("name", list(KERNELS))
def test_a_kernel_of_threads_is_proved(name: str) -> None:
    k = lower(KERNELS[name]())
    report = verify(k)
    assert (report.status, report.scope) == ("proved", "all sizes"), f"{k}\n{report}"


@pytest.mark.parametrize("name", list(KERNELS))
def test_every_barrier_is_needed(name: str) -> None:
    k = lower(KERNELS[name]())
    assert superfluous_barriers(k) == []
    for node, _ in k.walk():
        if isinstance(node, kir.Barrier) and "E" not in name:
            report = without(k, node)
            assert "race" in [f.kind for f in report.findings], str(report)


def without(k: Kernel, barrier: kir.Barrier) -> Report:
    """Return what verify says of a kernel with one barrier removed."""
    program = k.program
    body = kir.map_body(program.body, lambda node: None if node is barrier else node)
    assert k._lowered.math is not None
    return verify_program(program.with_body(body), k._lowered.math())


def test_a_barrier_that_orders_nothing_is_superfluous() -> None:
    k = lower(transposed())
    extra = kir.Barrier("block")
    body = (*k.program.body, extra)
    lowered = replace(k._lowered, program=k.program.with_body(body))
    assert superfluous_barriers(lowered) == [extra]
    assert superfluous_barriers(lowered, N=20, M=20) == [extra]


@pytest.mark.parametrize("name", [n for n in KERNELS if "E" not in n])
def test_what_needs_each_barrier_is_told(name: str) -> None:
    assert_each_is_needed(lower(KERNELS[name]()))


def test_what_needs_the_barriers_of_a_kernel_with_tiles_is_told() -> None:
    """In lines of the nest that people see, in which tiles have no barriers around them."""
    k = lower(mma_gemm("mma.m16n8k16.f32.f16", tiles=(1, 1, 1)))
    assert_each_is_needed(k)
    assert superfluous_barriers(k) == wide_barriers(k) == []


def test_a_finding_behind_a_tile_has_the_line_of_the_nest_that_people_see() -> None:
    k = lower(mma_gemm("mma.m16n8k16.f32.f16", tiles=(1, 1, 1)))
    store = next(n for n, _ in k.walk() if isinstance(n, kir.Store) and n.tensor == "c")
    row, column = store.index
    wrong = replace(store, index=(row, Op("add", (column, integer(1)), index_type)))
    program = k.program.with_body(
        kir.map_body(k.program.body, lambda n: wrong if n is store else n)
    )
    assert k._lowered.math is not None
    (found,) = verify_program(program, k._lowered.math()).findings
    assert found.message == "c writes out of bounds: index 8 for axis 1 of c, which has extent 8"
    assert found.at is not None
    assert found.at.line == nest_lines(program)[wrong]
    assert found.at.text == str(wrong.own) + f" = {wrong.value}"


def assert_each_is_needed(k: Kernel) -> None:
    notes = [f for f in verify(k, needed=True).findings if f.kind in ("needed", "superfluous")]
    barriers = [node for node, _ in k.walk() if isinstance(node, kir.Barrier)]
    assert len(notes) == len(barriers)
    lines = nest_lines(k.program)
    for note, barrier in zip(notes, barriers, strict=True):
        assert (note.kind, note.status) == ("needed", "note")
        assert note.at is not None
        assert note.other is not None
        scope = barrier.scope
        told = f"the barrier of the {scope} at nest line {lines[barrier]} orders two accesses"
        assert note.message == told
        texts = [text.strip() for text in str(k).splitlines()]
        for place in (note.at, note.other):
            assert texts[place.line - 1] == place.text


def test_a_superfluous_barrier_is_told_with_its_line() -> None:
    k = lower(transposed())
    body = (*k.program.body, kir.Barrier("block"))
    lowered = replace(k._lowered, program=k.program.with_body(body), scalar=None)
    notes = [f for f in verify(lowered, needed=True).findings if f.kind == "superfluous"]
    assert [note.message for note in notes] == [
        "the barrier of the block is superfluous: without it there is no race at any size looked at"
    ]
    assert notes[0].at is not None
    assert notes[0].at.text == "barrier block"


def test_waits_and_atomic_stores_are_told() -> None:
    copies = verify(softmax_async.lower("gpu_async"), needed=True).findings
    kinds = [n.message.partition(" at nest")[0] for n in copies if n.kind == "needed"]
    assert kinds == ["the wait for copies", *["the barrier of the block"] * 2]
    with ln.Fusion("columns") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.atomic()
    y.parallelize({0: PT.grid_x})
    notes = [n for n in verify(lower(f), needed=True).findings if n.kind == "needed"]
    assert any(n.message.startswith("the atomic store") and n.other for n in notes), notes


def test_needed_is_a_bool() -> None:
    message = "verify(transposed, needed=…): needed is an int; pass True or False"
    with pytest.raises(ln.VerifyError, match=f"^{re.escape(message)}$"):
        verify(lower(transposed()), needed=3)


def test_two_symbolic_extents_of_a_block_are_proved_for_sizes() -> None:
    report = verify(lower(reduced(ln.sum, ("D", "E"), (0, 1))))
    assert report.ok, str(report)
    assert report.scope.startswith("N=3, D=5, E=2; ")


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({PT.block_x: 2048}, "a block has 2048 threads; a launch takes at most 1024"),
        ({PT.block_z: 65}, "block_z has the extent 65; a launch takes at most 64"),
        ({PT.grid_y: 65536}, "grid_y has the extent 65536; a launch takes at most 65535"),
    ],
)
def test_a_program_that_no_launch_admits_is_refuted(launch: dict[PT, int], message: str) -> None:
    k = lower(pointwise((4, "N"), {0: PT.block_y}))
    wide = replace(k.program, launch=tuple([(d, integer(e)) for d, e in launch.items()]))
    assert k._lowered.math is not None
    report = verify_program(wide, k._lowered.math())
    assert report.status == "refuted"
    assert message in [f.message for f in report.findings if f.kind == "launch"]
    assert report.verdict == "refuted: no launch admits this kernel"


def test_sizes_that_no_launch_admits_are_refuted() -> None:
    k = lower(pointwise(("M", "N"), {0: PT.block_y, 1: PT.block_x}))
    assert verify(k).all_sizes
    report = verify(k, M=40, N=32)
    assert [str(f) for f in report.findings] == [
        "launch: a block has 1280 threads; a launch takes at most 1024; M=40, N=32"
    ]


@pytest.mark.parametrize(
    ("shape", "types", "message"),
    [
        (
            (4, 2048),
            {1: PT.block_x},
            "a block has 2048 threads: block_x (y.i1) = 2048; use at most 1024",
        ),
        (
            (40, "N", 32),
            {0: PT.block_y, 2: PT.block_x},
            "a block has 1280 threads: block_x (y.i2) = 32 * block_y (y.i0) = 40; use at most 1024",
        ),
        ((4, 65), {1: PT.block_z}, "block_z (y.i1) has the extent 65; use at most 64"),
        ((70000, 2), {0: PT.grid_y}, "grid_y (y.i0) has the extent 70000; use at most 65535"),
    ],
)
def test_static_extents_that_no_launch_admits_are_refused(
    shape: tuple[int | str, ...], types: dict[int, PT], message: str
) -> None:
    with pytest.raises(ln.LoweringError) as refused:
        lower(pointwise(shape, types))
    assert str(refused.value) == f"wide: {message}"


def pointwise(shape: tuple[int | str, ...], types: dict[int, PT]) -> ln.Fusion:
    with ln.Fusion("wide") as f:
        y = f.output(f.input("x", shape, ln.float32) + 1.0, "y")
    y.parallelize(types)
    return f


def in_blocks(parts: int = 11, axes: int = 1) -> ln.Fusion:
    """Return a sum over [parts, N / parts / 8, 4, 2], the first by blocks, the third by threads."""
    names = ("N", "M")[:axes]
    with ln.Fusion("k") as f:
        y = f.output(ln.sum(f.input("x", names, ln.float32), axis=tuple(range(axes))), "y")
    t = y.cache_before()
    for axis, dims in zip(range(0, 4 * axes, 4), (PT.grid_x, PT.grid_y), strict=False):
        t.split(axis, 2)
        t.split(axis, 4)
        t.split(axis, parts, inner=False)
        t.parallelize({axis: dims, axis + 2: (PT.block_x, PT.block_y)[axis // 4]})
    return f


def test_parts_of_as_many_elements_as_the_size_asks_for() -> None:
    for f in (in_blocks(), in_blocks(264), in_blocks(9, axes=2)):
        report = verify(lower(f))
        assert (report.status, report.scope) == ("proved", "all sizes"), str(report)


def test_parts_that_are_none_are_not_proved() -> None:
    f = in_blocks()
    program, math = lower(f).program, snapshot(f)
    proved = [m.text for m in mutants(program) if is_proved(m.program, math)]
    assert proved == ["loop i0 +1", "loop i2 +1", "loop i4 +1"]  # no thread comes there


def is_proved(program: kir.Program, math: MathSnapshot) -> bool:
    """Whether a proof for all sizes is found."""
    model = Model(program)
    works, exchanges, problems = obligations(model, math)
    if problems:
        return False
    try:
        prove(model, math, works, exchanges, {})
    except (NotProved, NotAffine):
        return False
    return True


def test_parts_that_are_stored_are_proved_for_sizes() -> None:
    with ln.Fusion("k") as f:
        t = f.input("x", ("N",), ln.float32) * 2.0
        y = f.output(t + 1.0, "y")
    y.split(0, 11, inner=False)
    y.parallelize({0: PT.grid_x})
    t.compute_at(y, 1)
    report = verify(lower(f))
    assert report.ok, str(report)
    assert report.scope.startswith("N=")


def test_sizes_given_are_looked_at() -> None:
    report = verify(lower(softmax()), N=3, D=100)
    assert (report.status, report.scope) == ("proved", "N=3, D=100")


def test_sums_of_rows_beyond_the_last_are_nobodys() -> None:
    """Threads combine 0 times a weight there, which is no part of a sum, and nobody takes it."""
    with ln.Fusion("k") as f:
        x, w = f.input("x", ("N", "D"), ln.float32), f.input("w", ("D",), ln.float32)
        weighted = (x * w).named("weighted")
        total = ln.sum(weighted, axis=1, keepdims=True)
        y = f.output(weighted - total, "y")
    row, weights = x.cache_after(), w.cache_after()
    y.split(1, 4)
    y.split(0, 8, inner=False)
    ln.propagate(y)
    for tensor in (row, weighted, total.reduction):
        tensor.compute_at(y, 2)
    for tensor in (row, weighted, total.reduction, y):
        tensor.axis(2).parallelize(PT.block_x)
    weights.compute_at(weighted, 3)
    for tensor in (row, weights):
        tensor.axis(-1).parallelize(PT.vectorize)
    y.axis(0).parallelize(PT.grid_x)
    f.inline_most()
    scalar = lower(f).scalar
    model, math = Model(scalar.program), snapshot(f)
    works, exchanges, _ = obligations(model, math)
    report = enumerated(model, math, works, exchanges, {"N": 3, "D": 5})
    assert (report.status, report.scope) == ("proved", "N=3, D=5"), str(report)


# Wide accesses

WIDE = """
kernel k(x: float32[N]) -> (y: float32[N])
for i0 in N // 8:  # grid_x
  t: float32[9] shared
  for i1 in 2:  # block_x
    for i2 in 4:  # vectorize
      t[i1 * 4 + i2] = x[i0 * 8 + i1 * 4 + i2] * 2.0  # t(i0 * 8 + i1 * 4 + i2)
  barrier warp
  for i3 in 2:  # block_x
    for i4 in 4:  # vectorize
      y[i0 * 8 + i3 * 4 + i4] = t[i3 * 4 + i4] + 1.0  # y(i0 * 8 + i3 * 4 + i4)
"""


def wide(monkeypatch: pytest.MonkeyPatch, *edits: tuple[str, str], sure: bool = True) -> Report:
    """Return a report on WIDE with texts replaced; all accesses are said to be wide if `sure`."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        t = (x * 2.0).named("t")
        f.output(t + 1.0, "y")
        f.assume("N % 8 == 0")
    text = WIDE
    for old, new in edits:
        text = text.replace(old, new)
    math = snapshot(f)
    program = replace(program_of(text), conditions=math.conditions)
    if sure:
        module = sys.modules["loopnest.proofs.wide_accesses"]
        monkeypatch.setattr(module, "wide_accesses", claimed)
    return verify_program(program, math)


def claimed(program: kir.Program) -> tuple[WideAccess, ...]:
    """Return every access of a vectorized loop to common memory as a wide one."""
    found: list[WideAccess] = []
    for loop, _ in kir.walk(program.body):
        if isinstance(loop, kir.Loop) and loop.parallel is PT.vectorize:
            for node in loop.body:
                if isinstance(node, kir.Store):
                    (load,) = loads(node.value)
                    found.append(
                        WideAccess(
                            loop, node, load.buffer, False, 4, 16, load.args, load.flat, load
                        )
                    )
                    found.append(
                        WideAccess(loop, node, node.storage, True, 4, 16, node.index, node.flat)
                    )
    return tuple(found)


@pytest.mark.parametrize("sure", [False, True])
def test_wide_accesses_begin_at_multiples(monkeypatch: pytest.MonkeyPatch, sure: bool) -> None:
    report = wide(monkeypatch, sure=sure)
    assert (report.status, report.scope) == ("proved", "all sizes"), str(report)


MISALIGNED = {
    "shifted": (
        [("t[i1 * 4 + i2]", "t[i1 * 4 + i2 + 1]"), ("t[i3 * 4 + i4]", "t[i3 * 4 + i4 + 1]")],
        "a wide access to t begins at element 1, no multiple of 4",
    ),
    "strided": (
        [
            ("t: float32[9]", "t: float32[16]"),
            ("t[i1 * 4 + i2]", "t[(i1 * 4 + i2) * 2]"),
            ("t[i3 * 4 + i4]", "t[(i3 * 4 + i4) * 2]"),
        ],
        "the lanes of a wide access to t do not follow each other",
    ),
    "reversed": (
        [("t[i1 * 4 + i2]", "t[i1 * 4 + 3 - i2]"), ("t[i3 * 4 + i4]", "t[i3 * 4 + 3 - i4]")],
        "the lanes of a wide access to t do not follow each other",
    ),
}


@pytest.mark.parametrize("what", list(MISALIGNED))
def test_a_wide_access_that_is_none_is_refuted(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    edits, message = MISALIGNED[what]
    report = wide(monkeypatch, *edits)
    assert report.status == "refuted", str(report)
    assert ("vector", message) in [(f.kind, f.message) for f in report.findings]


# Sizes at which nothing happens, and divisions by 0


def split_by_a_size() -> ln.Fusion:
    with ln.Fusion("rows") as f:
        y = f.output(ln.sum(f.input("x", ("N", "K"), ln.float32), axis=1), "y")
    y.split(0, "K")
    y.parallelize({0: PT.grid_x})
    return f


@pytest.mark.parametrize("sizes", [{"K": 0}, {"N": 0, "K": 0}, {"N": 3, "K": 0}])
def test_sizes_at_which_nothing_is_launched_are_proved(sizes: dict[str, int]) -> None:
    report = verify(lower(split_by_a_size()), **sizes)
    assert (report.status, report.all_sizes) == ("proved", False)
    assert [str(f) for f in report.findings] == ["launch: nothing is launched at these sizes"]


def test_a_division_by_0_that_is_evaluated_is_refuted() -> None:
    k = lower(pointwise(("M", "N"), {}))
    store = next(n for n, _ in kir.walk(k.program.body) if isinstance(n, kir.Store))
    size = Symbol("N")
    quotient = Op("floordiv", (integer(0), Op("sub", (size, size), index_type)), index_type)
    never = Op("lt", (size, integer(0)), ln.bool)
    asked = Op("ge", (quotient, integer(0)), ln.bool)
    assert k._lowered.math is not None
    for condition, status in (
        (Op("or", (Op("ge", (size, integer(0)), ln.bool), asked), ln.bool), "proved"),
        (Op("not", (Op("and", (never, asked), ln.bool),), ln.bool), "proved"),
        (asked, "refuted"),
    ):
        tested = kir.If(condition, (store,))
        body = kir.map_body(k.program.body, lambda n, t=tested: t if n is store else n)
        report = verify_program(k.program.with_body(body), k._lowered.math())
        assert report.status == status, f"{condition}\n{report}"
    assert report.findings[0].message == "an index or a test divides by 0"


def test_sizes_that_only_products_of_tiles_fulfil_are_found() -> None:
    with ln.Fusion("tiles") as f:
        x = f.input("x", ("M",), ln.float32)
        y = f.output(x + 1.0, "y")
    y.split(0, 5, inner=False)
    y.merge(0)
    y.split(0, 8)
    y.axis(1).parallelize(PT.vectorize)
    report = verify(lower(f))
    assert report.ok, str(report)


def test_an_index_by_way_of_a_narrow_integer_wraps() -> None:
    with ln.Fusion("k") as f:
        f.output(ln.cast(ln.iota("N"), ln.float32), "y")
    f.inline_most()
    program, math = lower(f).program, snapshot(f)
    narrow = [m for m in mutants(program, frozenset({"operation"})) if "by way of int8" in m.text]
    assert narrow
    for mutant in narrow:
        assert verify_program(mutant.program, math, {"N": 128}).status == "proved"
        assert verify_program(mutant.program, math, {"N": 129}).status == "refuted"
