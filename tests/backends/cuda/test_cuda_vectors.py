"""Wide accesses: which accesses of a vectorized loop are wide, their text, their machine code."""

import re
from collections import Counter

import pytest

from helpers import cuda_cases as cases
from loopnest.backends.cuda.printing.cuda_printer import print_cuda
from loopnest.kir import Allocate, If, Let, Loop, Store
from loopnest.kir.vector_access import alignments, wide_accesses
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ZERO, Const, Index, Load, Local, Op, Symbol, integer

PT = ParallelType
F32 = dtypes.float32
op, add = cases.op, cases.add


def accesses(program):
    """Return (buffer, whether stored, lanes, bytes of a piece) of each wide access."""
    return [
        (a.buffer.name, "store" if a.is_store else "load", a.lanes, a.piece_bytes)
        for a in wide_accesses(program)
    ]


def compiled(program, arch="sm_90"):
    pytest.importorskip("cuda.bindings")
    from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

    found = compile_cuda(print_cuda(program), arch)
    (numbers,) = found.resources.values()
    assert (numbers.spill_bytes, numbers.stack_bytes) == (0, 0)
    return found


def memory_operations(program, arch="sm_90"):
    return Counter(re.findall(r"\b((?:LDG|STG|LDS|STS|LDL|STL)\S*)", compiled(program, arch).sass))


def lanes_of(body, lanes=4, *, buffers, requires=("D",), before=(), launch=None, **others):
    """Make a program of one vectorized loop over `lanes` elements of each thread."""
    inner = cases.loop("v", lanes, PT.vectorize, body)
    tests = [(f"{s} % {lanes} == 0",
              Op("eq", (op("mod", Symbol(s), integer(lanes)), ZERO), dtypes.bool_))
             for s in requires]  # fmt: skip
    launch = launch or {PT.grid_x: "N", PT.block_x: 32}
    return cases.program("k", buffers, (*before, inner), launch, requires=tuple(tests), **others)


ROW, THREAD = cases.LaunchIndex(PT.grid_x), cases.LaunchIndex(PT.block_x)


def column(v, lanes=4):
    return op("add", op("mul", THREAD, integer(lanes)), v)


def matrices(dtype=F32):
    return cases.global_("x", ("N", "D"), dtype), cases.global_("y", ("N", "D"), dtype, "output")


def pointwise(value=None, dtype=F32, lanes=4, **others):
    x, y = matrices(dtype)

    def body(v):
        load = Load(x, (ROW, column(v, lanes)))
        made = add(load, load) if value is None else value(load)
        return [Store(y, (ROW, column(v, lanes)), made, "y")]

    return lanes_of(body, lanes, buffers=[x, y], **others)


# Which


def test_a_copy():
    program = cases.copy()
    assert accesses(program) == [("x", "load", 4, 16), ("y", "store", 4, 16)]
    first, second = wide_accesses(program)
    assert (first.piece_lanes, str(first.index[1])) == (4, "block_x * 4")
    assert first.load is not None
    assert second.load is None
    assert {b.name: n for b, n in alignments(wide_accesses(program)).items()} == {"x": 16, "y": 16}


@pytest.mark.parametrize(
    ("dtype", "lanes", "expected"),
    [
        ("float32", 2, 8), ("float32", 8, 16), ("float32", 16, 16), ("float64", 2, 16),
        ("float64", 4, 16), ("float16", 2, 4), ("float16", 4, 8), ("float16", 8, 16),
        ("bfloat16", 16, 16), ("bool", 4, 4), ("bool", 16, 16), ("int64", 2, 16),
        ("bool", 2, None), ("float32", 1, None), ("float32", 3, None),
    ],
)  # fmt: skip
def test_pieces(dtype, lanes, expected):
    found = accesses(cases.copy(lanes, dtypes.of(dtype)))
    wanted = [("x", "load", lanes, expected), ("y", "store", lanes, expected)]
    assert found == ([] if expected is None else wanted)


def test_what_divides_only_by_two_goes_in_halves():
    x, y = matrices()

    def body(v):
        place = (ROW, op("add", op("mul", THREAD, integer(2)), v))
        return [Store(y, place, Load(x, place), "y")]

    program = lanes_of(body, buffers=[x, y])
    assert accesses(program) == [("x", "load", 4, 8), ("y", "store", 4, 8)]
    assert "ln_wide<4, 8>(&y[grid_x * D + block_x * 2])" in print_cuda(program)
    assert memory_operations(program) == {"LDG.E.64.CONSTANT": 2, "STG.E.64": 2}


def test_sizes_must_be_known_to_divide():
    assert accesses(pointwise(requires=())) == []
    x, y = matrices()

    def body(v):
        return [Store(y, (ROW, column(v)), Load(x, (ROW, column(v))), "y")]

    condition = Op("eq", (op("mod", Symbol("D"), integer(8)), ZERO), dtypes.bool_)
    program = lanes_of(body, buffers=[x, y], requires=(), conditions=(("D % 8 == 0", condition),))
    assert len(accesses(program)) == 2


def test_offsets_named_before():
    x, y = matrices()
    start, row = Local("start", dtypes.index), Local("row", dtypes.index)

    def body(v):
        return [Store(y, (row, op("add", start, v)), Load(x, (row, op("add", start, v))), "y")]

    before = (Let(row, ROW), Let(start, op("mul", THREAD, integer(4))))
    assert len(accesses(lanes_of(body, buffers=[x, y], before=before))) == 2


def test_flat_offsets():
    x, y = matrices()

    def body(v):
        place = op("add", op("mul", ROW, Symbol("D")), column(v))
        return [Store(y, (place,), Load(x, (place,), flat=True), "y", flat=True)]

    assert len(accesses(lanes_of(body, buffers=[x, y]))) == 2


def test_divisions_that_cancel():
    """Merged and split axes: x[e // D, e % D] is x.flat[e]."""
    x, y = matrices()

    def body(v):
        e = op("add", op("mul", op("add", op("mul", ROW, integer(32)), THREAD), integer(4)), v)
        place = (op("floordiv", e, Symbol("D")), op("mod", e, Symbol("D")))
        return [Store(y, place, Load(x, place), "y")]

    assert len(accesses(lanes_of(body, buffers=[x, y]))) == 2


@pytest.mark.parametrize("name", ["strided", "backwards", "same", "scattered", "shifted"])
def test_lanes_that_are_no_neighbours_or_start_anywhere(name):
    x, y = matrices()
    t = cases.global_("t", ("D",), dtypes.int64)

    def body(v):
        place = {
            "strided": (v, THREAD),
            "backwards": (ROW, op("sub", integer(3), v)),
            "same": (ROW, op("mul", THREAD, integer(4))),
            "scattered": (ROW, cases.cast(Load(t, (column(v),)), dtypes.index)),
            "shifted": (ROW, op("add", column(v), integer(1))),
        }[name]
        return [Store(y, (ROW, column(v)), Load(x, place), "y")]

    program = lanes_of(body, buffers=[x, t, y])
    gathered = [("t", "load", 4, 16)] if name == "scattered" else []  # the offsets are neighbours
    assert accesses(program) == [*gathered, ("y", "store", 4, 16)]
    compiled(program)


def test_guarded_loads_stay_single():
    x, y = matrices()
    m = cases.global_("m", ("D",), dtypes.bool_)

    def body(v):
        guard = Load(m, (column(v),))
        value = Op("where", (guard, Load(x, (ROW, column(v))), Const(0.0, F32)), F32)
        return [Store(y, (ROW, column(v)), value, "y")]

    program = lanes_of(body, buffers=[x, m, y])
    assert accesses(program) == [("m", "load", 4, 4), ("y", "store", 4, 16)]
    compiled(program)


def test_tests_of_lanes_leave_nothing_wide():
    x, y = matrices()

    def body(v):
        store = Store(y, (ROW, column(v)), Load(x, (ROW, column(v))), "y")
        return [If(cases.less(column(v), Symbol("D")), (store,))]

    program = lanes_of(body, buffers=[x, y])
    assert accesses(program) == []
    assert "#pragma unroll\n  for (idx_t v = 0; v < 4; ++v) {  // v vectorize\n" in print_cuda(
        program
    )


def test_loops_inside_leave_nothing_wide():
    x, y = matrices()

    def body(v):
        store = Store(y, (ROW, column(v)), Load(x, (ROW, column(v))), "y")
        return [Loop(Index("i", integer(2)), PT.serial, "", (store,))]

    assert accesses(lanes_of(body, buffers=[x, y])) == []


def test_an_update_in_place_loads_before_it_stores():
    x, y = matrices()

    def body(v):
        place = (ROW, column(v))
        return [Store(y, place, add(Load(y, place), Load(x, place)), "y")]

    program = lanes_of(body, buffers=[x, y])
    assert accesses(program) == [("y", "load", 4, 16), ("x", "load", 4, 16), ("y", "store", 4, 16)]
    assert memory_operations(program) == {"LDG.E.128": 1, "LDG.E.128.CONSTANT": 1, "STG.E.128": 1}


def test_what_is_read_after_it_is_written_stays_in_order():
    x, y = matrices()
    held = cases.shared("T2", (128,))

    def body(v):
        place = (ROW, column(v))
        return [
            Store(held, (column(v),), Load(x, place), "T2"),
            Store(y, place, Load(held, (column(v),)), "y"),
        ]

    program = lanes_of(body, buffers=[x, y], before=(Allocate(held),))
    assert accesses(program) == [("x", "load", 4, 16), ("y", "store", 4, 16)]
    compiled(program)


def test_two_stores_into_one_buffer_are_wide_together_or_not_at_all():
    x, y = matrices()

    def body(second):
        def made(v):
            place = (ROW, column(v))
            return [
                Store(y, place, Load(x, place), "y"),
                Store(y, (ROW, second(v)), Load(x, place), "y"),
            ]

        return made

    apart = lanes_of(body(lambda v: op("add", column(v), integer(128))), buffers=[x, y])
    assert [a[:2] for a in accesses(apart)] == [("x", "load"), ("y", "store"), ("y", "store")]
    text = print_cuda(apart)
    assert text.index(" = y_v;") < text.index(" = y_v1;")
    compiled(apart)
    mixed = lanes_of(body(lambda v: op("mul", column(v), integer(2))), buffers=[x, y])
    assert accesses(mixed) == [("x", "load", 4, 16)]
    compiled(mixed)


def swizzled(row, lane, lanes=4, dims=(16, 16)):
    """Store a vector into a swizzled tile at (row, lane)."""
    x, _ = matrices()
    y = cases.global_("y", ("N", "D"), kind="output")
    held = cases.shared("T2", dims, swizzles=((0, 1),))

    def body(v):
        return [Store(held, (row, lane(v)), Load(x, (ROW, column(v, lanes))), "T2")]

    return lanes_of(body, lanes, buffers=[x, y], before=(Allocate(held),))


def test_a_swizzled_access_is_wide_where_xor_moves_lanes_together():
    quarter = op("mul", op("mod", THREAD, integer(4)), integer(4))
    whole = op("mul", op("floordiv", THREAD, integer(8)), integer(4))
    any_row = op("floordiv", THREAD, integer(2))

    def lane(v):
        return op("add", quarter, v)

    program = swizzled(whole, lane)
    assert ("T2", "store", 4, 16) in accesses(program)
    place = "T2[block_x / 8 * 4 * 16 + (block_x % 4 * 4 ^ block_x / 8 * 4)]"
    assert f"  ln_wide<4>(&{place}) = " in print_cuda(program)
    assert [a[0] for a in accesses(swizzled(any_row, lane))] == ["x"]
    crossing = op("mul", op("mod", THREAD, integer(4)), integer(2))
    assert [a[0] for a in accesses(swizzled(whole, lambda v: op("add", crossing, v)))] == ["x"]


def test_a_swizzle_of_chunks_keeps_accesses_wide():
    """XOR moves a chunk whole: 32 rows of 8 chunks of 4 elements."""
    x, _ = matrices()
    y = cases.global_("y", ("N", "D"), kind="output")
    held = cases.shared("T2", (32, 8, 4), swizzles=((0, 1),))
    row, chunk = op("floordiv", THREAD, integer(8)), op("mod", THREAD, integer(8))

    def body(v):
        return [Store(held, (row, chunk, v), Load(x, (ROW, column(v, 4))), "T2")]

    program = lanes_of(body, 4, buffers=[x, y], before=(Allocate(held),))
    assert ("T2", "store", 4, 16) in accesses(program)
    place = "T2[block_x / 8 * 32 + (block_x % 8 ^ (block_x / 8 & 7)) * 4]"
    assert f"  ln_wide<4>(&{place}) = " in print_cuda(program)
    compiled(program)


# Texts


def test_a_copy_is_one_assignment():
    text = print_cuda(cases.copy())
    assert "  __align__(16) float T2[4];\n" in text
    assert (
        "  ln_wide<4>(&T2[0]) = ln_wide<4>(&x[grid_x * D + block_x * 4]);  // T2, 4 lanes\n"
        "  ln_wide<4>(&y[grid_x * D + block_x * 4]) = ln_wide<4>(&T2[0]);  // y, 4 lanes\n"
    ) in text
    assert "#pragma unroll" not in text
    assert "// requires D % 4 == 0\n// addresses aligned: x to 16, y to 16 bytes\n" in text


def test_arithmetic_goes_through_registers():
    text = print_cuda(pointwise())
    assert text.endswith("""\
  const ln_vec<float, 4> x_v = ln_wide<4>(&x[grid_x * D + block_x * 4]);
  ln_vec<float, 4> y_v;
  #pragma unroll
  for (idx_t v = 0; v < 4; ++v) {  // v vectorize
    y_v[v] = x_v[v] + x_v[v];  // y
  }
  ln_wide<4>(&y[grid_x * D + block_x * 4]) = y_v;  // y, 4 lanes
}
""")


def test_without_wide_accesses_there_is_no_template():
    assert "ln_vec" not in print_cuda(cases.row_sum())


# Machine code


@pytest.mark.parametrize(
    ("dtype", "lanes", "width", "count", "arch"),
    [("float32", 4, ".128", 1, "sm_80"), ("float32", 8, ".128", 2, "sm_90"),
     ("float16", 8, ".128", 1, "sm_90"), ("float16", 2, "", 1, "sm_80"),
     ("bool", 16, ".128", 1, "sm_80"), ("float64", 4, ".128", 2, "sm_90")],
)  # fmt: skip
def test_machine_code(dtype, lanes, width, count, arch):
    dtype = dtypes.of(dtype)
    expected = {f"LDG.E{width}.CONSTANT": count, f"STG.E{width}": count}
    assert memory_operations(cases.copy(lanes, dtype), arch) == expected

    def changed(load):
        return Op("not" if dtype.is_bool else "neg", (load,), dtype)

    assert memory_operations(pointwise(changed, dtype, lanes), arch) == expected


def test_ptx():
    ptx = compiled(cases.copy()).ptx
    assert "ld.global.nc.v4.f32" in ptx
    assert "st.global.v4.f32" in ptx


def test_shared_memory_is_accessed_wide():
    held = cases.shared("T2", (128,))
    program = cases.copy(through=held)
    assert [a[:2] for a in accesses(program)] == [
        ("x", "load"),
        ("T2", "store"),
        ("T2", "load"),
        ("y", "store"),
    ]
    assert "  ln_wide<4>(&T2[block_x * 4]) = ln_wide<4>(&x[grid_x * D + block_x * 4]);" in (
        print_cuda(program)
    )
    assert set(alignments(wide_accesses(program))) == {
        a.buffer for a in wide_accesses(program) if a.buffer.memory is Memory.GLOBAL
    }
    # The compiler keeps what a thread reads back of its own in registers.
    assert memory_operations(program)["STS.128"] == 1


def test_tiles_of_registers_stay_in_registers():
    """Rows of a tile, loaded wide in an unrolled loop and summed by columns."""
    x, y = matrices()
    tile, total = cases.local("T2", (4, 4)), cases.local("T3", (4,))

    def rows(i):
        def lane(v):
            return [Store(tile, (i, v), Load(x, (op("add", ROW, i), column(v))), "T2")]

        return [cases.loop("v", 4, PT.vectorize, lane)]

    def columns(v):
        value = Load(tile, (ZERO, v))
        for k in range(1, 4):
            value = add(value, Load(tile, (integer(k), v)))
        return [Store(total, (v,), value, "T3")]

    def out(v):
        return [Store(y, (ROW, column(v)), Load(total, (v,)), "y")]

    body = [
        Allocate(tile),
        Allocate(total),
        cases.loop("i", 4, PT.unroll, rows),
        cases.loop("j", 4, PT.unroll, columns),
        cases.loop("w", 4, PT.vectorize, out),
    ]
    test = Op("eq", (op("mod", Symbol("D"), integer(4)), ZERO), dtypes.bool_)
    program = cases.program(
        "k", [x, y], body, {PT.grid_x: "N", PT.block_x: 32}, requires=(("D % 4 == 0", test),)
    )
    assert memory_operations(program) == {"LDG.E.128.CONSTANT": 4, "STG.E.128": 1}


def test_registers_of_lanes_are_those_of_their_loop():
    """The same load, the same operation on it and the same store stand before, in and behind."""
    x, y = matrices()

    def body(v):
        load = Load(x, (ROW, v))
        return [Store(y, (ROW, v), add(load, load), "y")]

    wide = cases.loop("v", 4, PT.vectorize, body)
    (store,) = wide.body
    single = Loop(wide.var, PT.serial, wide.axis, (store,))
    test = Op("eq", (op("mod", Symbol("D"), integer(4)), ZERO), dtypes.bool_)
    program = cases.program(
        "k", [x, y], [single, wide, single], {PT.grid_x: "N"}, requires=(("D % 4 == 0", test),)
    )
    text = print_cuda(program)
    plain = "y[grid_x * D + v] = x[grid_x * D + v] + x[grid_x * D + v];  // y"
    lanes = "y_v[v] = x_v[v] + x_v[v];  // y"
    stored = [line.strip() for line in text.splitlines() if line.endswith("// y")]
    assert stored == [plain, lanes, plain]
    compiled(program)
