"""`distribute` and `instruct`: what is refused, by the call or by lowering, and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import loopnest as ln
from loopnest.kir import instruction_table

P = ln.ParallelType
ROW = "mma.m16n8k16.f32.f16"
D = ln.instructions[ROW].operands["d"].fragment
assert D is not None
PRODUCTS = (
    "mma.m16n8k16.f32.f16, mma.m16n8k16.f32.bf16, mma.m16n8k8.f32.tf32, mma.m16n8k32.s32.s8, "
    "dot.n16k2.f32.bf16, dot.n16k2.s32.s16, dot.n16k4.s32.u8.s8, dot.n16k4.s32.s8"
)
BEHAVIOUR = "d[m, n] = d[m, n] + float32(a[m, k]) * float32(b[k, n])"
EXTENTS = f"{ROW} has the extents (16, 8, 16)"


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the rows back that a test adds; prove nothing."""
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    kept = dict(instruction_table._table)
    yield
    instruction_table._table.clear()
    instruction_table._table.update(kept)


def state(f: ln.Fusion) -> object:
    return [str(t) for t in f.tensors], [t.instruction for t in f.tensors], len(f.trace)


def refused(f: ln.Fusion, call: Callable[[], object], message: str) -> None:
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        call()
    assert str(caught.value) == message
    assert state(f) == before


# instruct


def product(
    m: int | str = 16,
    k: int = 16,
    dtype: ln.DType = ln.float16,
    memory: ln.Memory = ln.WARP,
    math: Callable[[ln.TensorView, ln.TensorView], ln.TensorView] | None = None,
) -> ln.TensorView:
    """Return a product c of a and b, copies of which are in WARP memory."""
    with ln.Fusion("product") as f:
        a, b = f.input("a", (m, k), dtype), f.input("b", (k, 8), dtype)
        if math is None:
            c = ln.matmul(a, b, dtype=ln.float32)
        else:
            x, y = [ln.cast(t, ln.float32) for t in (a, b)]
            c = math(ln.broadcast(x, (False, False, True)), ln.broadcast(y, (True, False, False)))
        f.output(c, "c")
    for tensor in (a, b):
        tensor.cache_after().memory = memory
    return c


NAMES = [
    ("mma.m8n8k4", f"there is no instruction 'mma.m8n8k4'; there are {PRODUCTS}"),
    (3, f"there is no instruction 3; there are {PRODUCTS}"),
    ("cp.async", f"cp.async moves values and computes none; use one of {PRODUCTS}"),
]


@pytest.mark.parametrize(("name", "message"), NAMES)
def test_no_such_instruction(name: object, message: str) -> None:
    c = product()
    refused(
        c.fusion,
        lambda: c.instruct(name, (0, 1, 2)),  # type: ignore[arg-type]
        f"c.instruct({name!r}, (0, 1, 2)): {message}",
    )


@pytest.mark.parametrize("name", ["tma.load", "cp.async.bulk", "wgmma.m64n8k16"])
def test_instructions_of_a_later_version(name: str) -> None:
    c = product()
    before = state(c.fusion)
    with pytest.raises(ln.NotSupported) as caught:
        c.instruct(name, (0, 1, 2))
    assert str(caught.value) == (
        f"instruct({name!r}): instructions of this kind need statements that do not exist yet"
    )
    assert state(c.fusion) == before


AXES = [
    ((0, 1), f"axes=(0, 1) are not 3 axes; {EXTENTS}"),
    ((0, 0, 1), f"axes=(0, 0, 1) are not 3 axes; {EXTENTS}"),
    ((0, 1, 7), "axis 7 is out of range; c has 3 leaf axes [i0, i1, r2], so use -3..2"),
    ((0.0, 1, 2), "axis 0.0 is not an int; leaf axes are given by position, or by name"),
    ((1, 0, 2), f"axis 1 of c has the extent 8; {EXTENTS}: split the axes by these"),
    ("mnk", "axes='mnk' is no list of axes; give one position an axis"),
    (5, "axes=5 is no list of axes; give one position an axis"),
    ({0: 1}, "axes={0: 1} is no list of axes; give one position an axis"),
]


@pytest.mark.parametrize(("axes", "message"), AXES)
def test_other_axes(axes: object, message: str) -> None:
    c = product()
    refused(
        c.fusion,
        lambda: c.instruct(ROW, axes),  # type: ignore[arg-type]
        f"c.instruct('{ROW}', {axes!r}): {message}",
    )


EXTENTS_OF = [
    ({"m": 32}, f"axis 0 of c has the extent 32; {EXTENTS}: split the axes by these"),
    ({"k": 32}, f"axis 2 of c has the extent 32; {EXTENTS}: split the axes by these"),
    ({"m": "M"}, f"axis 0 of c has the extent M; {EXTENTS}: split the axes by these"),
]


@pytest.mark.parametrize(("given", "message"), EXTENTS_OF)
def test_other_extents(given: dict[str, object], message: str) -> None:
    c = product(**given)  # type: ignore[arg-type]
    refused(
        c.fusion, lambda: c.instruct(ROW, (0, 1, 2)), f"c.instruct('{ROW}', (0, 1, 2)): {message}"
    )


def test_an_axis_of_another_kind() -> None:
    c = product(math=lambda x, y: ln.sum(x * y, axis=0))  # [r16, i16, i8]
    message = (
        f"c.instruct('{ROW}', (0, 2, 1)): axis 0 of c is a reduction axis; {ROW} takes axes in the "
        "order m, n, k, of which k are reduced"
    )
    refused(c.fusion, lambda: c.instruct(ROW, (0, 2, 1)), message)


FACTORS = "float32(T9) * float32(T10)"
MATH = [
    (lambda x, y: ln.max(x * y, axis=1),
     f"c is a reduction by max; {ROW} computes a sum of products"),
    (lambda x, y: ln.argmax(x * y, axis=1),
     f"c is a reduction by argmax; {ROW} computes a sum of products"),
    (lambda x, y: x * y, f"c is no reduction; {ROW} computes a sum of products"),
    (lambda x, y: ln.cumsum(x * y, axis=1), f"c is no reduction; {ROW} computes a sum of products"),
    (lambda x, y: ln.sum(x * y * 2.0, axis=1),
     f"c adds up {FACTORS} * 2.0; {ROW} computes {BEHAVIOUR}"),
    (lambda x, y: ln.sum(x * y * y, axis=1),
     f"c adds up {FACTORS} * float32(T10); {ROW} computes {BEHAVIOUR}"),
    (lambda x, y: ln.sum(x + y, axis=1),
     f"c adds up float32(T8) + float32(T9); {ROW} computes {BEHAVIOUR}"),
    (lambda x, y: ln.sum(x * y, axis=1, dtype=ln.float64),
     f"c adds in float64; {ROW} adds in float32"),
]  # fmt: skip


@pytest.mark.parametrize(("math", "message"), MATH)
def test_another_definition(
    math: Callable[[ln.TensorView, ln.TensorView], ln.TensorView], message: str
) -> None:
    c = product(math=math)
    refused(
        c.fusion, lambda: c.instruct(ROW, (0, 2, 1)), f"c.instruct('{ROW}', (0, 2, 1)): {message}"
    )


OPERANDS = [
    ({"dtype": ln.float32}, f"c adds up T6 * T7; {ROW} computes {BEHAVIOUR}"),
    ({"dtype": ln.bfloat16}, f"operand a would be T6, of bfloat16; {ROW} takes float16"),
    ({"memory": ln.LOCAL}, f"operand a of {ROW} would be a, in global memory; c must read a copy "
     "in ln.WARP: cache_after, then memory = ln.WARP"),
    ({"memory": ln.SHARED}, f"operand a of {ROW} would be T6, in shared memory; c must read a copy "
     "in ln.WARP: cache_after, then memory = ln.WARP"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), OPERANDS)
def test_other_operands(given: dict[str, object], message: str) -> None:
    c = product(**given)  # type: ignore[arg-type]
    refused(
        c.fusion, lambda: c.instruct(ROW, (0, 1, 2)), f"c.instruct('{ROW}', (0, 1, 2)): {message}"
    )


def test_an_operand_outside_of_the_loops_over_tiles() -> None:
    c = product(m=32)
    c.split(0, 16)
    message = (
        f"c.instruct('{ROW}', (1, 2, 3)): no leaf axis of T6 is axis 1 of c, the m of {ROW}; "
        "compute T6 inside of the loops of c over tiles, or split its axes as those of c"
    )
    refused(c.fusion, lambda: c.instruct(ROW, (1, 2, 3)), message)


def test_an_operand_inside_of_the_tile() -> None:
    c = product()
    c.fusion["a"].consumers[0].compute_at(c, 1)
    message = (
        f"c.instruct('{ROW}', (0, 1, 2)): axis 0 of T6, of extent 16, is shared with c; compute T6 "
        "outside of the tile's axes"
    )
    refused(c.fusion, lambda: c.instruct(ROW, (0, 1, 2)), message)


TAKEN = "the lanes of a warp are threads along block_x"


def test_lanes_that_are_taken() -> None:
    c = product(m=32)
    held = c.fusion["a"].consumers[0]
    for tensor in (c, held):
        tensor.split(0, 16)
    c.parallelize({0: P.block_x})
    call = f"c.instruct('{ROW}', (1, 2, 3)): "
    refused(
        c.fusion,
        lambda: c.instruct(ROW, (1, 2, 3)),
        f"{call}axis 0 of c is bound to threadIdx.x already; {TAKEN}",
    )
    c.parallelize({0: P.serial})
    held.parallelize({0: P.block_x})
    refused(
        c.fusion,
        lambda: c.instruct(ROW, (1, 2, 3)),
        f"{call}axis 0 of T6 is bound to threadIdx.x already; {TAKEN}",
    )
    c.parallelize({1: P.unroll})
    refused(
        c.fusion,
        lambda: c.instruct(ROW, (1, 2, 3)),
        f"{call}axis 1 of c is unroll; axes are spread over lanes before parallelize",
    )


def test_an_atomic_fold() -> None:
    c = product()
    c.atomic()
    message = (
        f"c.instruct('{ROW}', (0, 1, 2)): c is atomic; {ROW} adds to what its lanes hold: leave "
        "atomic out"
    )
    refused(c.fusion, lambda: c.instruct(ROW, (0, 1, 2)), message)


def test_a_product_that_was_inlined_before() -> None:
    c = product()
    c.producers[0].compute_at(c, -1)
    f = c.fusion
    before = state(f)
    message = (
        rf"c\.instruct\('{re.escape(ROW)}', \(0, 1, 2\)\): the leading 3 of the leaf axes "
        r"\[i0, i1, r2\] of c are frozen: their loops are shared by computeAt \(compute_at_pos 0, "
        r"produced_at_pos 3\); change only axes from position 3 on, or take back "
        r"T4\.compute_at\(c, -1\) \(\w+\.py:\d+\), and make it after this call"
    )
    with pytest.raises(ln.ScheduleError, match=f"^{message}$"):
        c.instruct(ROW, (0, 1, 2))
    assert state(f) == before


# Behind instruct


BEHIND = [
    (lambda c: c.instruct(ROW, (0, 1, 2)),
     f"c.instruct('{ROW}', (0, 1, 2)): c is computed by {ROW}; another one comes before instruct, "
     "if at all"),
    (lambda c: c.cache_before(),
     f"c.cache_before(): c is computed by {ROW}; cache_before comes before instruct, if at all"),
    (lambda c: c.rfactor([2]),
     f"c.rfactor([2]): c is computed by {ROW}; rfactor comes before instruct, if at all"),
    (lambda c: c.atomic(),
     f"c.atomic(): c is computed by {ROW}; atomic comes before instruct, if at all"),
    (lambda c: c.parallelize({0: P.serial}),
     f"c.parallelize({{0: serial}}): axis 0 of c is block_x, of a tile of {ROW}; the axes of a "
     "tile stay as instruct made them"),
    (lambda c: c.parallelize({-1: P.unroll}),
     f"c.parallelize({{-1: unroll}}): axis 2 of c is mma, of a tile of {ROW}; the axes of a tile "
     "stay as instruct made them"),
    (lambda c: c.split(1, 2), "c.split(axis=1, factor=2): axis 1 is mma; split before parallelize"),
    (lambda c: c.merge(1), "c.merge(1): axis 1 is mma; merge before parallelize"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BEHIND)
def test_a_tile_stays_whole(call: Callable[[ln.TensorView], object], message: str) -> None:
    c = product()
    c.instruct(ROW, (0, 1, 2))
    refused(c.fusion, lambda: call(c), message)


def test_axes_of_tiles_are_made_by_instruct_alone() -> None:
    c = product()
    message = (
        "c.parallelize({1: mma}): axis 1 of c would be mma, as axes of tiles are; instruct makes a "
        "tile of the axes of a reduction"
    )
    refused(c.fusion, lambda: c.parallelize({1: P.mma}), message)


# What has no kernel


def tiled(
    before: Callable[[ln.TensorView, list[ln.TensorView]], object] | None = None,
    name: str = ROW,
    *,
    distribute: bool = True,
    inline: bool = True,
) -> tuple[ln.Fusion, ln.TensorView, list[ln.TensorView]]:
    """Return a product of two steps by tiles, its sums T6 and its operands T7 and T8."""
    with ln.Fusion("product") as f:
        a, b = f.input("a", (16, 32), ln.float16), f.input("b", (32, 8), ln.float16)
        c = f.output(ln.matmul(a, b, dtype=ln.float32), "c")
    (terms,) = c.producers
    acc, held = c.cache_before(), [x.cache_after() for x in (a, b)]
    acc.split(2, 16).reorder({2: 0})
    for tensor in held:
        tensor.memory = ln.WARP
        tensor.compute_at(acc, 1)
    if before is not None:
        before(acc, held)
    acc.instruct(name, axes=(1, 2, 3))
    if distribute:
        c.distribute(D, axes=(0, 1))
    if inline:
        terms.compute_at(acc, -1)
        f.inline_most(terms.producers, replay=True)
    return f, acc, held


def no_kernel(f: ln.Fusion, message: str) -> None:
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == message


def test_results_stay_in_lanes() -> None:
    f, *_ = tiled(lambda acc, _: setattr(acc, "memory", ln.GLOBAL))
    no_kernel(
        f,
        f"T6: operand d of {ROW} would be in global memory, and its lanes hold it; instruct a copy "
        "of T6 (cache_before), in LOCAL memory",
    )
    for memory in (ln.WARP, ln.SHARED):  # of this one the sums are LOCAL all the same
        f, *_ = tiled(lambda acc, _, memory=memory: setattr(acc, "memory", memory))
        assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED])
def test_the_memory_of_an_operand_was_changed(memory: ln.Memory) -> None:
    f, _, held = tiled()
    held[0].memory = memory
    where = "a, in global" if memory is ln.LOCAL else "T7, in shared"
    no_kernel(
        f,
        f"T6: operand a of {ROW} would be {where} memory; T6 must read a copy in ln.WARP: "
        "cache_after, then memory = ln.WARP",
    )


def test_lanes_that_were_taken_away() -> None:
    f, _, held = tiled()
    held[0].parallelize({-2: P.serial})
    no_kernel(
        f,
        "T7: its memory is WARP, and no axis of it is over the 32 lanes of a warp, in front of one "
        "over registers; spread its axes by T7.distribute, or by instruct of what reads it",
    )


def test_the_result_is_read_in_other_lanes() -> None:
    f, *_ = tiled(distribute=False)
    no_kernel(
        f,
        "c reads T6 (local): along block_x (T6.i1) the reading thread is not the writing one; "
        "compute T6 at a position in c that holds the block_x loop, bind the same axis of both to "
        "it, or set its memory to SHARED or GLOBAL",
    )


def test_what_lies_between_operand_and_tile_is_inlined() -> None:
    f, *_ = tiled(inline=False)
    no_kernel(
        f,
        "T2 reads T7 (warp): along block_x (T7.i1) the reading thread is not the writing one; let "
        "an instruction read it: inline T2 into its tile (compute_at with position -1); compute T7 "
        "at a position in T2 that holds the block_x loop, bind the same axis of both to it, or set "
        "its memory to SHARED or GLOBAL",
    )


def test_warp_memory_that_ordinary_statements_read_in_other_lanes() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (16, 8), ln.float32)
        y = f.output(x * 2.0, "y")
    held = x.cache_after()
    held.memory = ln.WARP
    held.distribute(D, (0, 1))
    y.parallelize({1: P.block_x})
    no_kernel(
        f,
        "y reads T2 (warp): along block_x (T2.i0, y.i1) the reading thread is not the writing one; "
        "let an instruction read it: inline y into its tile (compute_at with position -1); compute "
        "T2 at a position in y that holds the block_x loop, bind the same axis of both to it, or "
        "set its memory to SHARED or GLOBAL",
    )
    y.parallelize({1: P.serial})
    y.distribute(D, (0, 1))
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    assert "warp" in str(kernel)
    assert "float T2[4];" in kernel.cuda()


def test_one_step_has_no_loop_to_start_in() -> None:
    c = product()
    acc = c.cache_before()
    acc.instruct(ROW, (0, 1, 2))
    c.distribute(D, (0, 1))
    (terms,) = acc.producers
    terms.compute_at(acc, -1)
    c.fusion.inline_most(terms.producers, replay=True)
    no_kernel(
        c.fusion,
        f"T8: no loop of its reduction stands around the tile of {ROW}, in which it would start; "
        "split the reduction by the instruction's extent, and move the outer axis to the left of "
        "the tile's axes",
    )


@pytest.mark.parametrize("threads", [16, 64])
def test_blocks_whose_rows_are_no_warps(threads: int) -> None:
    f, *_ = tiled()
    with f:
        f.output(f.input("z", (threads,), ln.float32) * 2.0, "e")
    f["e"].parallelize({0: P.block_x})
    if threads < 32:
        assert str(ln.verify(ln.lower(f))) == "proved for all sizes"
        return
    no_kernel(
        f,
        "T7: its memory is WARP, and block_x (T7.i1, T6.i1, T8.i1, c.i0, e.i0) has the extent 64; "
        "bind axes of 32 lanes alone to block_x, and others to block_y or block_z",
    )


def test_a_row_without_a_witness_is_noted() -> None:
    ln.add_instruction(replace(ln.instructions[ROW], name="toy", witness=""))
    assert ln.lower(tiled()[0]).notes == ()
    (note,) = [str(n).partition(" (/")[0] for n in ln.lower(tiled(name="toy")[0]).notes]
    assert note == (
        "T6: T6.instruct('toy', (1, 2, 3)): on a device the results rest on the lane maps of "
        "toy, because its row names no witness of them; hold them against a published table or a "
        "device, and name it: witness="
    )


# distribute


def doubled(*shape: int | str) -> ln.TensorView:
    with ln.Fusion("k") as f:
        return f.output(f.input("x", shape, ln.float32) * 2.0, "y")


SPREAD = 'ln.Fragment("(mh g) (t p) -> (g t) (mh p)", mh=2, g=8, t=4, p=2)'
FITS = "the fragment has the extents (16, 8)"
DISTRIBUTED = [
    ((16, 8), "x", (0, 1), "'x' is no ln.Fragment; give the fragment of an operand"),
    ((16, 8), None, (0, 1), "None is no ln.Fragment; give the fragment of an operand"),
    ((16, 8), D, (0,), f"axes=(0,) are not 2 axes; {FITS}"),
    ((16, 8), D, (0, 0), f"axes=(0, 0) are not 2 axes; {FITS}"),
    ((16, 8), D, "01", "axes='01' is no list of axes; give one position an axis"),
    ((16, 8), D, None, "axes=None is no list of axes; give one position an axis"),
    ((16, 8), D, (0, 5), "axis 5 is out of range; y has 2 leaf axes [i0, i1], so use -2..1"),
    ((32, 8), D, (0, 1), f"axis 0 of y has the extent 32; {FITS}: split the axes by these"),
    (("M", 8), D, (0, 1), f"axis 0 of y has the extent M; {FITS}: split the axes by these"),
]


@pytest.mark.parametrize(("shape", "fragment", "axes", "message"), DISTRIBUTED)
def test_what_is_not_distributed(
    shape: tuple[int | str, ...], fragment: object, axes: object, message: str
) -> None:
    y = doubled(*shape)
    shown = SPREAD if fragment is D else repr(fragment)
    refused(
        y.fusion,
        lambda: y.distribute(fragment, axes),  # type: ignore[arg-type]
        f"y.distribute({shown}, {axes!r}): {message}",
    )


def test_registers_of_one_thread() -> None:
    """Without lanes, axes are put in order and merged, and no thread is asked for."""
    y = doubled(4, 2, 16)
    y.parallelize({0: P.block_x})
    y.distribute(ln.Fragment("(k) (n) -> () (n k)", k=2, n=16), (1, 2))
    assert str(y).startswith("y float32 global [i0: 4 block_x, i1: 32] ")


@pytest.mark.parametrize("memory", [ln.SHARED, ln.GLOBAL, ln.WARP])
def test_operands_of_one_thread_lie_in_its_registers(memory: ln.Memory) -> None:
    with ln.Fusion("product") as f:
        a, b = f.input("a", (4, 2), ln.bfloat16), f.input("b", (2, 16), ln.bfloat16)
        wide = [ln.cast(operand, ln.float32) for operand in (a, b)]
        c = f.output(ln.matmul(*wide), "c")
    held = [operand.cache_after() for operand in (a, b)]
    held[0].memory = memory
    refused(
        f,
        lambda: c.instruct("dot.n16k2.f32.bf16", (1, 2)),
        "c.instruct('dot.n16k2.f32.bf16', (1, 2)): operand a of dot.n16k2.f32.bf16 would be "
        f"{held[0].name}, in {memory.value} memory; c must read a copy in ln.LOCAL: cache_after",
    )


def test_axes_that_are_bound_already() -> None:
    y = doubled(4, 16, 8)
    y.parallelize({0: P.block_x})
    call = f"y.distribute({SPREAD}, (1, 2)): "
    refused(
        y.fusion,
        lambda: y.distribute(D, (1, 2)),
        f"{call}axis 0 of y is bound to threadIdx.x already; {TAKEN}",
    )
    y.parallelize({0: P.serial, 2: P.vectorize})
    refused(
        y.fusion,
        lambda: y.distribute(D, (1, 2)),
        f"{call}axis 2 of y is vectorize; axes are spread over lanes before parallelize",
    )
    x = y.fusion.inputs[0]
    refused(
        y.fusion,
        lambda: x.distribute(D, (1, 2)),
        f"x.distribute({SPREAD}, (1, 2)): x is an input, which has no loops of its own; only "
        "cache_after and compute_at apply to inputs",
    )
