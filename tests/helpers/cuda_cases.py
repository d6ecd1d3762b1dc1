"""Programs in which threads work together, made by hand: for the tests of "cuda"."""

from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    If,
    Let,
    Loop,
    Output,
    Param,
    Program,
    Shuffle,
    Store,
)
from loopnest.scalar import dtypes
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    FALSE,
    ONE,
    ZERO,
    Arg,
    Buffer,
    Const,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    Symbol,
    cast,
    integer,
)

PT = ParallelType
F32 = dtypes.float32


def op(name, *args):
    if name == "mul" and all(isinstance(a, Const) for a in args):
        return integer(args[0].value * args[1].value)
    return Op(name, args, dtypes.index)


def less(a, b):
    return Op("lt", (a, b), dtypes.bool_)


def size_of(shape):
    result = ONE
    for extent in shape:
        result = extent if result is ONE else op("mul", result, extent)
    return result


def buffer(name, memory, dtype, shape, kind, **others):
    """Make a buffer in C order; `shape` of ints, names and expressions."""
    shape = tuple([extent_of(s) for s in shape])
    strides = []
    size = ONE
    for extent in reversed(shape):
        strides.insert(0, size)
        size = size_of((extent, size)) if size is not ONE else extent
    return Buffer(name, name, memory, dtype, shape, tuple(strides), size, kind, **others)


def extent_of(size):
    if isinstance(size, int):
        return integer(size)
    return Symbol(size) if isinstance(size, str) else size


def global_(name, shape, dtype=F32, kind="input"):
    return buffer(name, Memory.GLOBAL, dtype, shape, kind)


def shared(name, shape, dtype=F32, kind="shared", **others):
    return buffer(name, Memory.SHARED, dtype, shape, kind, **others)


def local(name, shape=(1,), dtype=F32):
    return buffer(name, Memory.LOCAL, dtype, shape, "local")


def program(name, buffers, body, launch, *, scalars=(), **others):
    """Make a program; its sizes are the symbols in the shapes of `buffers`, in order."""
    arrays = [
        Param(b.name, "workspace" if b.kind == "counter" else b.kind, b.dtype, b, b.shape)
        for b in buffers
    ]
    symbols = dict.fromkeys([s.name for b in buffers for s in b.shape if isinstance(s, Symbol)])
    params = [p for kind in ("input", "output") for p in arrays if p.kind == kind]
    params += [Param(s.name, "scalar", s.dtype) for s in scalars]
    params += [Param(s, "size", dtypes.index) for s in symbols]
    params += [p for p in arrays if p.kind == "workspace"]
    outputs = [Output(b.name, b, b.shape) for b in buffers if b.kind == "output"]
    extents = {d: extent_of(size) for d, size in launch.items()}
    order = tuple([(d, extents[d]) for d in LAUNCH_DIMENSIONS if d in extents])
    return Program(name, tuple(params), tuple(body), order, tuple(outputs), **others)


def loop(name, extent, parallel, body):
    """Make a loop; `body` gets its index and returns statements."""
    var = Index(name, extent_of(extent))
    return Loop(var, parallel, name, tuple(body(var)))


def add(a, b):
    return Op("add", (a, b), a.dtype)


def butterfly(value, lanes, stem):
    """Return the statements that sum `value` over groups of `lanes` lanes, and the result."""
    statements = []
    offset = lanes // 2
    while offset:
        other = Local(f"{stem}_{offset}", value.dtype)
        total = Local(f"{stem}_{offset}_sum", value.dtype)
        statements += [Shuffle(other, value, "xor", integer(offset)), Let(total, add(value, other))]
        value, offset = total, offset // 2
    return statements, value


def row_sum(threads=128):
    """Sum the rows of x: a block a row, partial sums in registers, shuffles, shared memory."""
    x, y = global_("x", ("N", "D")), global_("y", ("N",), kind="output")
    part = local("T2")
    slots = shared("slots", (threads // 32,), kind="scratch")
    row, thread = LaunchIndex(PT.grid_x), LaunchIndex(PT.block_x)

    def strip(i):
        column = op("add", op("mul", i, integer(threads)), thread)
        load = Load(x, (row, column))
        step = Store(part, (ZERO,), add(Load(part, (ZERO,)), load), "T2", "update")
        return [If(less(column, Symbol("D")), (step,))]

    first, total = butterfly(Load(part, (ZERO,)), 32, "a")
    warp = op("floordiv", thread, integer(32))
    lane = op("mod", thread, integer(32))
    zero = Const(0.0, F32)
    mine = Local("mine", F32)
    is_slot = less(lane, integer(threads // 32))
    second, whole = butterfly(mine, 32, "b")
    body = [
        Allocate(slots),
        *first,
        If(Op("eq", (lane, ZERO), dtypes.bool_), (Store(slots, (warp,), total, "T2"),)),
        Barrier("block"),
        Let(mine, Op("where", (is_slot, Load(slots, (lane,)), zero), F32)),
        *second,
    ]
    sums = Collective(
        "sum", (whole,), (Load(part, (ZERO,)),), (PT.block_x,), (zero,),
        (add(Arg(0, F32), Arg(1, F32)),), tuple(body),
    )  # fmt: skip
    strips = op("ceildiv", Symbol("D"), integer(threads))
    statements = [
        Allocate(part),
        Store(part, (ZERO,), zero, "T2", "init"),
        loop("i1", strips, PT.serial, strip),
        sums,
        If(Op("eq", (thread, ZERO), dtypes.bool_), (Store(y, (row,), whole, "y"),)),
    ]
    return program("row_sum", [x, y], statements, {PT.grid_x: "N", PT.block_x: threads})


def grid_sum(threads=64, blocks=8):
    """Sum all of x: one partial sum a block, the last block adds them up."""
    x, y = global_("x", ("N",)), global_("y", (1,), kind="output")
    parts = global_("T3", (blocks,), kind="workspace")
    count = global_("done", (1,), dtypes.int32, kind="counter")
    block, thread = LaunchIndex(PT.grid_x), LaunchIndex(PT.block_x)
    mine = shared("T2", (threads,))
    zero = Const(0.0, F32)

    def gather(i):
        place = op(
            "add",
            op("mul", i, integer(threads * blocks)),
            op("add", op("mul", block, integer(threads)), thread),
        )
        value = add(Load(mine, (thread,)), Load(x, (place,)))
        return [If(less(place, Symbol("N")), (Store(mine, (thread,), value, "T2", "update"),))]

    def fold(source, target, place, extent):
        def body(i):
            value = add(Load(target, place), Load(source, (i,)))
            return [Store(target, place, value, "T3", "update")]

        return [Store(target, place, zero, "T3", "init"), loop("i2", extent, PT.serial, body)]

    last = Local("last", dtypes.bool_)
    one = Op("eq", (thread, ZERO), dtypes.bool_)
    strips = op("ceildiv", Symbol("N"), integer(threads * blocks))
    statements = [
        Allocate(mine),
        Store(mine, (thread,), zero, "T2", "init"),
        loop("i1", strips, PT.serial, gather),
        Barrier("block"),
        If(one, tuple(fold(mine, parts, (block,), threads))),
        Arrive(last, count, (ZERO,), integer(blocks)),
        If(last, (If(one, tuple(fold(parts, y, (ZERO,), blocks))),)),
    ]
    launch = {PT.grid_x: blocks, PT.block_x: threads}
    return program("grid_sum", [x, y, parts, count], statements, launch)


def neighbours(threads=32, blocks=4):
    """Give each element the one after it, through GLOBAL memory and a barrier of the grid."""
    size = threads * blocks
    x, y = global_("x", (size,)), global_("y", (size,), kind="output")
    between = global_("T2", (size,), kind="workspace")
    place = op("add", op("mul", LaunchIndex(PT.grid_x), integer(threads)), LaunchIndex(PT.block_x))
    after = op("mod", op("add", place, ONE), integer(size))
    statements = [
        Store(between, (place,), Load(x, (place,)), "T2"),
        Barrier("grid"),
        Store(y, (place,), Load(between, (after,)), "y"),
    ]
    return program(
        "neighbours", [x, y, between], statements, {PT.grid_x: blocks, PT.block_x: threads}
    )


def transpose(tile=32, swizzle=True):
    """Transpose through a tile of shared memory, padded by swizzling."""
    x, y = global_("x", ("N", "M")), global_("y", ("M", "N"), kind="output")
    held = shared("T2", (tile, tile), swizzles=((0, 1),) if swizzle else ())
    bx, by = LaunchIndex(PT.grid_x), LaunchIndex(PT.grid_y)
    tx, ty = LaunchIndex(PT.block_x), LaunchIndex(PT.block_y)

    def at(block, thread):
        return op("add", op("mul", block, integer(tile)), thread)

    def guarded(a, b, store):
        both = Op("and", (less(a, Symbol("N")), less(b, Symbol("M"))), dtypes.bool_)
        return If(both, (store,))

    first = (at(by, ty), at(bx, tx))
    second = (at(by, tx), at(bx, ty))
    statements = [
        Allocate(held),
        guarded(*first, Store(held, (ty, tx), Load(x, first), "T2")),
        Barrier("block"),
        guarded(*second, Store(y, second[::-1], Load(held, (tx, ty)), "y")),
    ]
    launch = {
        PT.grid_x: op("ceildiv", Symbol("M"), integer(tile)),
        PT.grid_y: op("ceildiv", Symbol("N"), integer(tile)),
        PT.block_x: tile,
        PT.block_y: tile,
    }
    return program("transpose", [x, y], statements, launch)


def exchange(dtype, threads=48):
    """Shuffle a value of `dtype` in each way, in a block of `threads` threads."""
    x = global_("x", ("N",), dtype)
    modes = ("xor", "down", "up", "lane")
    outputs = [global_(f"y{mode}", ("N",), dtype, "output") for mode in modes]
    thread = LaunchIndex(PT.block_x)
    value = Local("value", dtype)
    guard = less(thread, Symbol("N"))
    body = [Let(value, Op("where", (guard, Load(x, (thread,)), cast(Const(0, dtypes.int32), dtype)
                                    if not dtype.is_bool else FALSE), dtype))]  # fmt: skip
    for y, mode in zip(outputs, modes, strict=True):
        var = Local(f"v_{mode}", dtype)
        body += [Shuffle(var, value, mode, ONE), If(guard, (Store(y, (thread,), var, y.name),))]
    body.append(Barrier("warp"))
    return program("exchange", [x, *outputs], body, {PT.block_x: threads})


def reverse(count):
    """Reverse 64 elements by way of `count` floats of shared memory."""
    x, y = global_("x", (64,)), global_("y", (64,), kind="output")
    held, thread = shared("T2", (count,)), LaunchIndex(PT.block_x)
    body = [
        Allocate(held),
        Store(held, (thread,), Load(x, (thread,)), "T2"),
        Barrier("block"),
        Store(y, (thread,), Load(held, (op("sub", integer(63), thread),)), "y"),
    ]
    return program("reverse", [x, y], body, {PT.block_x: 64})


def copy(lanes=4, dtype=F32, through=None, width=None):
    """Copy rows of x to y in vectors: by way of registers, or of `through`."""
    x, y = global_("x", ("N", "D"), dtype), global_("y", ("N", "D"), dtype, "output")
    row, thread = LaunchIndex(PT.grid_x), LaunchIndex(PT.block_x)
    held = local("T2", (lanes,), dtype) if through is None else through
    start = op("mul", thread, integer(lanes))

    def column(lane):
        return op("add", start, lane)

    inner = (lambda lane: lane) if through is None else column
    statements = [
        Allocate(held),
        loop("i1", lanes, PT.vectorize, lambda v: [
            Store(held, (inner(v),), Load(x, (row, column(v))), "T2")]),
        loop("i2", lanes, PT.vectorize, lambda v: [
            Store(y, (row, column(v)), Load(held, (inner(v),)), "y")]),
    ]  # fmt: skip
    divides = Op("eq", (op("mod", Symbol("D"), integer(lanes)), ZERO), dtypes.bool_)
    threads = op("floordiv", Symbol("D"), integer(lanes))
    return program(
        "copy",
        [x, y],
        statements,
        {PT.grid_x: "N", PT.block_x: threads},
        requires=((f"D % {lanes} == 0", divides),),
    )
