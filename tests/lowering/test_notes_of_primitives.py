"""Each schedule primitive is found in the loop nest, or a note says what became of it."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

import pytest

import loopnest as ln
import loopnest.schedule
from helpers.mma_gemm import mma_gemm
from loopnest.kir.lowered import Note
from loopnest.lowering.schedule_notes.findings import findings
from loopnest.lowering.schedule_notes.lowered_schedule import Lowering
from loopnest.schedule import transaction

P = ln.ParallelType
Found = list[tuple[str, str]]
CASES: dict[str, tuple[Callable[[ln.Fusion], object], Found]] = {}


def case(*expected: tuple[str, str]) -> Callable[[Callable[[ln.Fusion], object]], None]:
    """Register a schedule: of its last calls are found these kinds, with a witness or a note."""

    def register(run: Callable[[ln.Fusion], object]) -> None:
        CASES[run.__name__] = run, list(expected)

    return register


def found(f: ln.Fusion) -> Found:
    """Return what is found of each intent of a scheduled fusion: its kind, witness or note."""
    (lowering,) = ln.lower(f)._lowered.notes.args  # type: ignore[union-attr]
    assert isinstance(lowering, Lowering)
    return [
        (intent.kind, f"note: {made.became}" if isinstance(made, Note) else made)
        for intent, made in findings(lowering)
    ]


def pointwise(f: ln.Fusion) -> tuple[ln.TensorView, ln.TensorView]:
    with f:
        x = f.input("x", (64, 32), ln.float32)
        t = ln.exp(x)
        return t, f.output(t * 2.0, "y")


def stencil(f: ln.Fusion) -> tuple[ln.TensorView, ln.TensorView]:
    with f:
        x = f.input("x", (64, 34), ln.float32)
        t = ln.exp(x)
        return t, f.output(t[:, 2:] + t[:, :-2], "y")


def row_sums(f: ln.Fusion) -> ln.TensorView:
    with f:
        return f.output(ln.sum(f.input("x", (64, 32), ln.float32), 1), "y")


IN_TILE = "its statements stand inside of y.i0, y.i1"


@case(("loops", "its statements stand inside of y.i0, y.i1, y.i2"))
def split(f: ln.Fusion) -> None:
    pointwise(f)[1].split(1, 8)


@case(("loops", "its statements stand inside of y.i0"))
def merge(f: ln.Fusion) -> None:
    pointwise(f)[1].merge(0)


@case(("loops", IN_TILE))
def reorder(f: ln.Fusion) -> None:
    pointwise(f)[1].reorder([1, 0])


@case(("loops", "its statements stand inside of T3.i1, h.s0"))
def skew(f: ln.Fusion) -> None:
    with f:
        x = f.input("x", ("N",), ln.float32)
        h = ln.recur(lambda h, _: h + ln.pad(h, [(1, -1)]), x, steps="T")
        f.output(h, "h").skew(0, 1)


@case(
    ("parallel", "the launch has 64 along grid_x, which it uses"),
    ("parallel", "y is accessed in pieces of 16 bytes"),
)
def parallelize(f: ln.Fusion) -> None:
    pointwise(f)[1].split(1, 4).parallelize({0: P.grid_x, 2: P.vectorize})


@case(("pinned", "no producer shares the loop"))
def pin(f: ln.Fusion) -> None:
    pointwise(f)[1].pin(1)


@case(("memory", "its buffer is shared"))
def set_memory(f: ln.Fusion) -> None:
    pointwise(f)[0].memory = ln.SHARED


@case(("loops", "its statements stand inside of T1.i2, y.i0, y.i1"), ("place", IN_TILE))
def compute_at(f: ln.Fusion) -> None:
    t, y = pointwise(f)
    t.compute_at(y.split(1, 8), 2)


@case(*[("loops", f"its statements stand inside of T{n}.i2, y.i0, y.i1") for n in (2, 3, 1)],
      *[("place", IN_TILE)] * 3)  # fmt: skip
def compute_at_tiles_of_windows(f: ln.Fusion) -> None:
    t, y = stencil(f)
    t.compute_at(y.split(1, 8), 2)


@case(
    ("loops", "its statements stand inside of T1_2.i0, T1_2.i1"), ("tensor", "it is stored"),
    ("place", "its statements stand inside of no loop"), ("place", IN_TILE),
)  # fmt: skip
def compute_at_clones(f: ln.Fusion) -> None:
    with f:
        t = ln.exp(f.input("x", (64, 32), ln.float32))
        y = f.output(t / ln.sum(t, 1, keepdims=True), "y")
    t.compute_at(y, 2, recompute=True)


@case(("launch", "it is computed in launch 1 of 0 to 1"))
def new_launch(f: ln.Fusion) -> None:
    t, y = pointwise(f)
    t.memory = ln.GLOBAL
    y.new_launch()


@case(("place", "its statements stand inside of y.i0"))
def inline_at(f: ln.Fusion) -> None:
    pointwise(f)[0].inline_at(1)


@case(("loops", "its statements stand inside of T1.i2, T3.i0, T3.i1"),
      ("place", "its statements stand inside of T3.i0, T3.i1"))  # fmt: skip
def inline_at_windows(f: ln.Fusion) -> None:
    stencil(f)[0].inline_at(-1)


@case(("place", IN_TILE), ("place", IN_TILE), ("place", "its statements stand inside of y.i0"))
def inline_most(f: ln.Fusion) -> None:
    stencil(f)
    f.inline_most()


@case(("loops", "its statements stand inside of T1.i0, T1.i1, T1.i2"))
def propagate(f: ln.Fusion) -> None:
    ln.propagate(pointwise(f)[1].split(1, 8))


@case(("parallel", "the launch has 64 along grid_x, which it uses"))
def parallelize_like(f: ln.Fusion) -> None:
    t, y = pointwise(f)
    t.memory = ln.SHARED
    y.axis(0).parallelize(P.grid_x)
    ln.parallelize_like(y)


@case(
    ("loops", "its statements stand inside of T2.i0, T2.i2, T2.r1"),
    ("tensor", "it is stored"),
    ("loops", "its statements stand inside of y.i0, y.r1"),
)
def rfactor(f: ln.Fusion) -> None:
    row_sums(f).split(1, 8).rfactor(1)


@case(
    ("tensor", "it is stored"), ("tensor", "it is stored"), ("tensor", "it is stored"),
    ("loops", "its statements stand inside of T3.i0, T3.i1"),
    ("loops", "its statements stand inside of T4.i0, T4.i1"),
)  # fmt: skip
def rfactor_of_a_scan(f: ln.Fusion) -> None:
    with f:
        y = f.output(ln.cumsum(f.input("x", (64, 32), ln.float32), 1), "y")
    y.split(1, 8).rfactor(2)


@case(
    ("loops", "its statements stand inside of T2.i0"), ("tensor", "it is stored"),
    ("memory", "its buffer is global"),
    ("parallel", "the launch has 32 along block_x, which it uses"),
)  # fmt: skip
def atomic(f: ln.Fusion) -> None:
    y = row_sums(f)
    y.atomic()
    y.parallelize({1: P.block_x})


@case(("loops", "its statements stand inside of T3.i0, T3.i1"), ("tensor", "it is stored"))
def cache_after(f: ln.Fusion) -> None:
    pointwise(f)
    f.inputs[0].cache_after()


@case(("tensor", "it is stored"), ("loops", IN_TILE))
def cache_before(f: ln.Fusion) -> None:
    pointwise(f)[1].cache_before()


@case(
    ("tensor", "it is stored"), ("memory", "its buffer is global"),
    ("memory", "its buffer is local"),
)  # fmt: skip
def cache_fork(f: ln.Fusion) -> None:
    t, _ = pointwise(f)
    f.output(t, "t").cache_fork()


@case(("stages", "loads stand before the uses in the loop over y.i0"))
def circular_buffer(f: ln.Fusion) -> None:
    t, y = pointwise(f)
    x = f.inputs[0].cache_after()
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    x.compute_at(t, 1)
    t.circular_buffer(3)


@case(
    ("stages", "a later call set it again"),
    ("stages", ("note: each iteration of the loop over y.i0 waits for the loads of a later one")),
)
def circular_buffer_of_another_distance(f: ln.Fusion) -> None:
    t, y = pointwise(f)
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.circular_buffer(3)
    t.circular_buffer(3, 1)


@case(("swizzle", "its buffer is swizzled: ((1, 2),)"))
def swizzle(f: ln.Fusion) -> None:
    t, _ = pointwise(f)
    t.memory = ln.SHARED
    t.split(0, 32).swizzle(ln.Swizzle.XOR, 1, 2)


@case(("move", "note: each copy is waited for at once"))
def move_by(f: ln.Fusion) -> None:
    t, y = pointwise(f)
    x = f.inputs[0].cache_after()
    x.memory = ln.SHARED
    x.compute_at(y, 1)
    t.compute_at(y, -1)
    x.move_by("cp.async")


@case(
    ("move", "its copies are tiles of ldmatrix.x4"), ("move", "its copies are tiles of ldmatrix.x2")
)
def move_by_matrices(f: ln.Fusion) -> None:
    made = mma_gemm("mma.m16n8k16.f32.f16", f)
    a, b = [t for t in made.tensors if t.memory is ln.WARP]
    a.move_by("ldmatrix.x4")
    b.move_by("ldmatrix.x2")


QUADS = ln.Fragment("(g) (t p) -> (g t) (p)", g=8, t=4, p=2)


@case(("parallel", "the launch has 32 along block_x, which it uses"))
def distribute(f: ln.Fusion) -> None:
    _, y = pointwise(f)
    y.split(1, 8).split(0, 8)
    y.distribute(QUADS, (1, 3))


IN_LANES = "its statements stand inside of T6.i2, T6.r0, T6.r3"


@case(
    (
        "instruction",
        "mma.m16n8k16.f32.f16 executes its tiles, whose lane maps rest on "
        + ln.instructions["mma.m16n8k16.f32.f16"].witness,
    ),
    *(("loops", IN_LANES), ("place", IN_LANES)) * 3,
)
def instruct(f: ln.Fusion) -> None:
    row = "mma.m16n8k16.f32.f16"
    with f:
        a, b = f.input("a", (16, 32), ln.float16), f.input("b", (32, 8), ln.float16)
        c = f.output(ln.matmul(a, b, dtype=ln.float32), "c")
    (product,) = c.producers
    acc = c.cache_before()
    held = [operand.cache_after() for operand in (a, b)]
    acc.split(2, 16).reorder({2: 0})
    for tensor in held:
        tensor.memory = ln.WARP
        tensor.compute_at(acc, 1)
    c.distribute(ln.instructions[row].operands["d"].fragment, axes=(0, 1))
    acc.instruct(row, axes=(1, 2, 3))
    product.compute_at(acc, -1)
    f.inline_most(product.producers, replay=True)


@case(("order", "the strides of its buffer have that order"), ("pad", "its buffer has these gaps"))
def set_allocation(f: ln.Fusion) -> None:
    pointwise(f)[0].set_allocation([1, 0], {0: 1})


@case(("allocation", "its buffer is made of axes of its allocation domain: 8, 8, 32"))
def allocation_domain_split(f: ln.Fusion) -> None:
    pointwise(f)[0].allocation_domain.split(0, 8)


@case(("allocation", "its buffer is made of axes of its allocation domain: 2048"))
def allocation_domain_merge(f: ln.Fusion) -> None:
    pointwise(f)[0].allocation_domain.merge(0)


@case(("order", "the strides of its buffer have that order"))
def allocation_domain_reorder(f: ln.Fusion) -> None:
    pointwise(f)[0].allocation_domain.reorder([1, 0])


@case(("pad", "note: nothing is padded"), ("place", IN_TILE))
def allocation_domain_pad(f: ln.Fusion) -> None:
    t, y = pointwise(f)
    t.allocation_domain.pad(1, 1)
    t.compute_at(y, 2)


@case(("swizzle", "its buffer is swizzled: ((0, 1),)"))
def allocation_domain_swizzle(f: ln.Fusion) -> None:
    t, _ = pointwise(f)
    t.memory = ln.SHARED
    t.allocation_domain.swizzle(ln.Swizzle.XOR, 0, 1)


@case(("pad", "a later call set it again"), ("swizzle", "a later call set it again"),
      ("pad", "its buffer has no gaps"), ("swizzle", "its buffer is not swizzled"))  # fmt: skip
def allocation_domain_reset(f: ln.Fusion) -> None:
    t, _ = pointwise(f)
    t.memory = ln.SHARED
    t.allocation_domain.pad(1, 1).swizzle(ln.Swizzle.XOR, 0, 1).reset()


@case(("range", "elements of i are indices, or compared to them"))
def assume_range(f: ln.Fusion) -> None:
    with f:
        x, i = f.input("x", ("N", 4), ln.float32), f.input("i", ("K",), ln.int32)
        f.output(ln.take(x, i, 0, mode="wrap"), "y")
    f.assume_range(i, 0, "N")


@case(("range", "note: each launch checks it, and nothing is faster"))
def assume_range_of_no_index(f: ln.Fusion) -> None:
    with f:
        i = f.input("i", ("K",), ln.int32)
        f.output(i + 1, "y")
    f.assume_range(i, 0, "K")


@pytest.mark.parametrize("name", list(CASES))
def test_a_witness_or_a_note(name: str) -> None:
    run, expected = CASES[name]
    f = ln.Fusion("k")
    run(f)
    assert found(f)[-len(expected) :] == expected


def test_every_primitive_has_a_case() -> None:
    names = set()
    for info in pkgutil.iter_modules(loopnest.schedule.__path__):
        module = import_module(f"loopnest.schedule.{info.name}")
        for value in vars(module).values():
            code = getattr(value, "__code__", None)
            if (
                code is not None
                and code.co_filename == transaction.__file__
                and code.co_name == "call"
            ):
                names.add(value.__name__.strip("_").replace(".", "_"))
    assert names <= set(CASES)
    assert len(names) > 20
