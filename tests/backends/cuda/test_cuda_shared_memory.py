"""Where shared memory lies: offsets, aliases, the static and the dynamic form."""

from dataclasses import replace

import pytest

import loopnest as ln
from helpers import cuda_cases as cases
from loopnest.backends.cuda.printing.cuda_printer import print_cuda
from loopnest.base.errors import InternalError
from loopnest.devtools.fuzzing.judge import declared_bytes, too_small
from loopnest.kir import Allocate, Store
from loopnest.kir.shared_memory import shared_layout, shared_places, swizzled
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import ONE, ZERO, Load, integer

PT = ParallelType


def holding(*buffers):
    """Make a program that allocates these buffers and writes each of them."""
    y = cases.global_("y", ("N",), kind="output")
    body = [Allocate(b) for b in buffers]
    body += [
        Store(b, (ZERO,) * len(b.shape), cases.cast(integer(0), b.dtype), b.name) for b in buffers
    ]
    held = cases.cast(Load(buffers[0], (ZERO,) * len(buffers[0].shape)), dtypes.float32)
    body.append(Store(y, (ZERO,), held, "y"))
    return cases.program("hold", [y], body, {PT.block_x: 32})


def layout(*buffers):
    offsets, total = shared_layout(holding(*buffers))
    return {b.name: str(e) for b, e in offsets.items()}, str(total)


def shared(name, *shape, dtype=dtypes.float32, alias=None):
    return cases.shared(name, shape, dtype, alias_of=alias)


def test_buffers_follow_each_other_at_multiples_of_16_bytes():
    found = layout(shared("a", 3), shared("b", 5, dtype=dtypes.float16), shared("c", 4))
    assert found == ({"a": "0", "b": "16", "c": "32"}, "48")


def test_an_alias_begins_where_its_buffer_begins():
    found = layout(shared("a", 4), shared("b", 4), shared("c", 2, alias="a"))
    assert found == ({"a": "0", "c": "0", "b": "16"}, "32")


def test_a_place_is_as_large_as_the_largest_of_its_aliases():
    one, two = shared("a", 4), shared("b", 20, dtype=dtypes.float16, alias="a")
    found = layout(one, two, shared("c", 8, alias="b"), shared("d", 1))
    assert found == ({"a": "0", "b": "0", "c": "0", "d": "48"}, "64")
    (first, second) = shared_places(holding(one, two, shared("d", 1)))
    assert [b.name for b in first.buffers] == ["a", "b"]
    assert (first.static_bytes, second.static_bytes) == (48, 16)


def test_an_alias_may_be_allocated_before_its_buffer():
    assert layout(shared("b", 8, alias="a"), shared("a", 4)) == ({"a": "0", "b": "0"}, "32")


def test_symbolic_sizes():
    found = layout(shared("a", 3), shared("b", "D"), shared("c", 4))
    blocks = "ceildiv(D * 4, 16) * 16"
    assert found == ({"a": "0", "b": "16", "c": f"16 + {blocks}"}, f"16 + {blocks} + 16")
    _, total = layout(shared("a", "D"), shared("b", 4, alias="a"))
    assert total == f"max({blocks}, 16)"


@pytest.mark.parametrize("alias", ["nothing", "a"])
def test_an_alias_of_nothing(alias):
    with pytest.raises(InternalError) as raised:
        shared_layout(holding(shared("a", 4, alias=alias)))
    assert str(raised.value) == (
        f"a: its buffer is an alias of {alias}, which is no SHARED buffer here"
    )


def test_swizzled_indices():
    held = cases.shared("a", (4, 4), swizzles=((0, 1),))
    i, j = cases.Index("i", integer(4)), cases.Index("j", integer(4))
    assert [str(e) for e in swizzled(held, (i, j))] == ["i", "j ^ i"]
    assert swizzled(held, (ZERO, j)) == (ZERO, j)
    assert swizzled(held, (i, ZERO)) == (i, i)
    assert swizzled(held, (ZERO, ZERO)) == (ZERO, ZERO)
    assert swizzled(cases.shared("b", (4, 4)), (i, j)) == (i, j)


@pytest.mark.parametrize(
    ("shape", "swizzles", "place"),
    [
        ((32, 8), ((0, 1),), ["i", "j ^ i & 7"]),
        ((4, 8), ((0, 1),), ["i", "j ^ i"]),
        ((8, 8), ((0, 1), (1, 0)), ["i ^ (j ^ i)", "j ^ i"]),
    ],
)
def test_swizzles_of_other_tiles(shape, swizzles, place):
    """Only the low bits of the row move a narrower tile's columns; the swizzles go in order."""
    held = cases.shared("a", shape, swizzles=swizzles)
    i, j = cases.Index("i", integer(shape[0])), cases.Index("j", integer(shape[1]))
    assert [str(e) for e in swizzled(held, (i, j))] == place


# Texts


def test_static_arrays():
    text = print_cuda(holding(shared("a", 12, 4), shared("b", 1), shared("c", 100, alias="a")))
    assert "// shared memory: 416 bytes\n" in text
    assert "  __shared__ __align__(16) float a[100];  // a: [12, 4]\n" in text
    assert "  float *const c = (float *)a;  // c: [100]\n" in text
    assert "  __shared__ __align__(16) float b[4];  // b: [1]\n" in text
    assert "ln_shared" not in text


def test_aliases_of_other_types():
    first = shared("a", 9, dtype=dtypes.float16)
    text = print_cuda(holding(first, shared("b", 5, dtype=dtypes.float64, alias="a")))
    assert "  __shared__ __align__(16) __half a[24];  // a: [9]\n" in text
    assert "  double *const b = (double *)a;  // b: [5]\n" in text


def test_the_dynamic_arena():
    text = print_cuda(holding(shared("a", 3), shared("b", "N"), shared("c", 4, alias="a")))
    assert "// dynamic shared memory: 16 + ceildiv(N * 4, 16) * 16 bytes\n" in text
    assert "  extern __shared__ __align__(16) unsigned char ln_shared[];\n" in text
    assert "  float *const a = (float *)ln_shared;  // a: [3]\n" in text
    assert "  float *const b = (float *)(ln_shared + 16);  // b: [N]\n" in text
    assert "  float *const c = (float *)a;  // c: [4]\n" in text


ALIASES = [
    ((4, dtypes.bool_), (4, dtypes.float32)),
    ((1, dtypes.float32), (2, dtypes.float32)),
    ((1, dtypes.float16), (3, dtypes.float32)),
    ((9, dtypes.bool_), (1, dtypes.float64)),
    ((3, dtypes.float64), (1, dtypes.bool_)),
    ((15, dtypes.int8), (5, dtypes.float32)),
    ((1, dtypes.bool_), (1, dtypes.bool_)),
    ((33, dtypes.float32), (17, dtypes.int64)),
]


@pytest.mark.parametrize(("first", "second"), ALIASES, ids=str)
def test_a_declaration_holds_the_largest_of_its_aliases(first, second):
    """As many bytes as a launch reckons."""
    (count, dtype), (more, other) = first, second
    a, b = shared("a", count, dtype=dtype), shared("b", more, dtype=other, alias="a")
    program = holding(a, b, shared("c", 1, dtype=dtypes.int8))
    text = print_cuda(program)
    assert too_small(program, text) == []
    total = shared_layout(program).total
    assert sum(declared_bytes(text)[name] for name in ("a", "c")) == total.value


def masked(size=4):
    """Return a kernel that stores flags to shared memory, then numbers over them."""
    with ln.Fusion("masked") as f:
        x = f.input("x", (size,), ln.float32)
        m = (x > 0.0).named("m")
        z = ln.cast(m, ln.float32)
        w = (z * 2.0).named("w")
        y = f.output(ln.flip(w, 0) + 1.0, "y")
    m.memory = w.memory = ln.SHARED
    for t in (m, z, w, y):
        t.parallelize({0: PT.block_x})
    return ln.lower(f)


@pytest.mark.parametrize("size", [4, 15, 16, 17, 33])
def test_numbers_over_flags(size):
    """The machine code takes as many bytes as a launch says."""
    k = masked(size)
    room = -(-4 * size // 16) * 16
    assert f"\nw: float32[{size}] shared = m\n" in str(k)
    assert f"__shared__ __align__(16) bool m[{room}];  // m: [{size}]\n" in k.cuda()
    assert k.launch().shared_bytes == room
    assert ln.verify(k).all_sizes
    pytest.importorskip("cuda.bindings")
    from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

    (found,) = compile_cuda(k.cuda(), "sm_90").resources.values()
    assert found.shared_bytes == k.resources("sm_90").shared_bytes == room


def test_a_proof_asks_for_the_bytes_that_texts_declare(monkeypatch):
    """A layout whose places have the size of their first buffers alone is seen."""

    def narrow(program):
        found = shared_places(program)
        return [replace(p, bytes=integer(p.buffers[0].dtype.size * 4)) for p in found]

    monkeypatch.setattr("loopnest.proofs.program_model.shared_places", narrow)
    report = ln.verify(masked())
    assert report.status == "refuted"
    assert [str(f) for f in report.findings] == ["layout: buffer w takes 16 bytes of 4"]


def test_resources_are_those_of_a_launch():
    """Of dynamic memory too; where its size depends on sizes, they are given or kept."""
    pytest.importorskip("cuda.bindings")
    with ln.Fusion("large") as f:
        x = f.input("x", ("N", 20000), ln.float32)
        t = (x + 1.0).named("t")
        y = f.output(ln.flip(t, 1), "y")
    t.memory = ln.SHARED
    y.parallelize({0: PT.grid_x})
    t.compute_at(y, 1)
    k = ln.lower(f)
    assert k.resources("sm_90").shared_bytes == k.launch(N=3).shared_bytes == 80000
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = (x + 1.0).named("t")
        y = f.output(ln.flip(t, 1), "y")
    t.memory = ln.SHARED
    y.parallelize({0: PT.grid_x})
    t.compute_at(y, 1)
    k = ln.lower(f)
    assert str(k.resources("sm_90").shared_bytes) == "ceildiv(D * 4, 16) * 16"
    assert k.resources("sm_90", N=3, D=5).shared_bytes == k.launch(N=3, D=5).shared_bytes == 32
    with pytest.raises(ln.LaunchError) as raised:
        k.resources("sm_90", N=3)
    assert str(raised.value) == "rows.resources(...): the size D is missing; pass N=..., D=..."


def test_counts_in_32_bits_take_the_room_of_the_launch():
    """Texts may count in int32 what a launch reckons as int64: both say the same bytes."""
    pytest.importorskip("cuda.bindings")
    with ln.Fusion("counts") as f:
        x = f.input("x", ("N", 64), ln.float32)
        mean, var, count = ln.welford(x, 1)
        y = f.output(mean + var + ln.cast(count, ln.float32), "y")
    mean.parallelize({1: PT.block_x})
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    mean.compute_at(y, 2)
    k = ln.lower(f)
    assert "int T1_part_3[16]" in k.cuda()
    assert k.resources("sm_90").shared_bytes == k.launch(N=8).shared_bytes == 128


@pytest.mark.parametrize(("count", "dynamic"), [(12288, False), (12289, True), (24576, True)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_48_kilobytes_are_static(count, dynamic, arch):
    """96 KiB compile, as dynamic memory: a static array of that size would be refused."""
    pytest.importorskip("cuda.bindings")
    from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

    program = cases.reverse(count)
    assert shared_layout(program).is_dynamic == dynamic
    (found,) = compile_cuda(print_cuda(program), arch).resources.values()
    assert found.shared_bytes == (0 if dynamic else 4 * count)


def test_the_order_of_dimensions_of_a_buffer_stays():
    """Stages are a dimension like others: the first one."""
    held = cases.shared("a", (2, 8), stages=2)
    text = print_cuda(holding(held))
    assert "float a[16];  // a: [2, 8], 2 stages\n" in text
    assert ONE in held.strides


def test_memory_without_elements_is_no_array():
    """CUDA C++ has no array of 0 elements; what holds none takes no bytes."""
    pytest.importorskip("cuda.bindings")
    with ln.Fusion("nothing") as f:
        x = f.input("x", (0, 4), ln.float32)
        t = x * 2.0
        f.output(ln.sum(t, 1), "y")
    t.memory = ln.SHARED
    k = ln.lower(f)
    assert "float *const T1 = (float *)nullptr;  // T1: [0, 4]" in k.cuda()
    assert k.launch().shared_bytes == k.resources("sm_90").shared_bytes == 0
    assert ln.verify(k).ok
