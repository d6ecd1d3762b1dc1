"""Attention, forward: y = softmax(q k^T / sqrt(D)) v, for each head, in three forms.

`attention` goes over the keys once, in tiles of 64. A tile gives partial results for each row: the
largest score, the sum of the exponentials, and their product with the values, a contraction like
any other. `ln.reduce` folds these over the tiles by the reducer `online_softmax`: what is held so
far is rescaled wherever a larger score turns up. So an exponential is taken once a row and key (and
two a row and tile), and no memory grows with the number of keys.

`attention_causal` is the same, but row m sees the keys up to m alone: tiles that none of a block's
rows sees are neither loaded nor multiplied. `attention_two_pass` is the softmax as it is written:
the scores of a row are kept, or computed twice. Where inputs have 16 bits, the first two round the
exponentials to that type before the product with the values, as tensor cores take them.

    python kernels/attention.py                      # show it, run it, compare it
    python kernels/attention.py dump --stage cuda
"""

import math

import numpy as np

import loopnest as ln

LEAST = -1e30
"""The score of a key that does not count: below all others, and no infinity."""


def attention_numpy(q, k, v, causal=False):
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if causal:
        rows, keys = scores.shape[1:]
        scores = np.where(np.arange(keys) <= np.arange(rows)[:, None], scores, LEAST)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True, initial=LEAST))
    return weights @ v / weights.sum(axis=2, keepdims=True)


def causal_numpy(q, k, v):
    return attention_numpy(q, k, v, causal=True)


def rescaled(a, b):
    """Combine (largest score, sum of exponentials, their product with the values)."""
    most = ln.maximum(a[0], b[0])
    one, other = ln.exp(a[0] - most), ln.exp(b[0] - most)
    return most, a[1] * one + b[1] * other, a[2] * one + b[2] * other


ONLINE_SOFTMAX = ln.Reducer((float("-inf"), 0.0, 0.0), rescaled, "online_softmax")


def inputs(f, dtype, width):
    """Declare q, k and v; a row of each has `width` elements."""
    return [f.input(n, ("H", rows, width), dtype) for n, rows in zip("qkv", "MSS", strict=True)]


def in_tiles(tensor, tile):
    """Return `tensor` with T tiles in place of axis 1, and the elements of a tile as a last axis.

    The last tile may reach beyond the end, where 0 stands.
    """
    return ln.unfold(tensor, 1, tile, stride=tile, padding=(0, tile - 1))


def begun(tiles, tile):
    """Return whether row m sees the first key of tile t, of [T, M, 1]."""
    rows = ln.broadcast(ln.iota("M"), (True, False, True))
    return ln.broadcast(ln.iota(tiles, step=tile), (False, True, True)) <= rows


def over_tiles(f, dtype, width, tile, causal):
    """Declare attention by one reduction over tiles of keys."""
    q, k, v = inputs(f, dtype, width)
    keys, values = in_tiles(k, tile), ln.permute(in_tiles(v, tile), (0, 1, 3, 2))
    if dtype is not dtype.compute:  # once a tile, not once a row
        keys, values = ln.cast(keys, dtype.compute), ln.cast(values, dtype.compute)
        q = ln.cast(q, dtype.compute)
    keys.named("keys")  # [H, T, D, tile]
    values.named("values")  # [H, T, tile, W]
    rows = ln.broadcast(q, (False, True, False, False))
    scores = ln.matmul(rows, keys, dtype=dtype.compute).named("scores")  # [H, T, M, tile]

    first = ln.iota(keys.sizes[1], step=tile, dtype=ln.int32)
    number = ln.broadcast(first, (False, True, True)) + ln.iota(tile, dtype=ln.int32)
    count = ln.cast(f.extent("S"), ln.int32)
    seen = ln.minimum(ln.iota("M", start=1, dtype=ln.int32), count) if causal else None
    counts = number < (count if seen is None else ln.broadcast(seen, (False, True)))
    scaled = ln.where(counts, scores * width**-0.5, LEAST).named("scaled")
    largest = ln.max(scaled, axis=3, keepdims=True)
    weights = ln.exp(scaled - largest).named("weights")
    total = ln.sum(weights, axis=3, keepdims=True)
    rounded = weights if dtype is dtype.compute else ln.cast(weights, dtype)
    product = ln.matmul(rounded, values, dtype=dtype.compute).named("product")  # [H, T, M, W]
    largest.reduction.named("largest")
    total.reduction.named("total")
    partial = [largest, total, product]
    if causal:  # a tile whose first key comes after the row folds the identity: it is skipped
        partial = [
            ln.where(begun(keys.sizes[1], tile), value, nothing)
            for value, nothing in zip(partial, (float("-inf"), 0.0, 0.0), strict=True)
        ]
    _, sums, sized = ln.reduce(ONLINE_SOFTMAX, partial, axis=1)
    y = sized.named("sized") / sums.named("sums")
    f.output(y if dtype is dtype.compute else ln.cast(y, dtype), "y")


@ln.kernel(sizes={"H": 16, "M": 1024, "S": 1024}, reference=attention_numpy)
def attention(f, dtype=ln.float32, width=64, tile=64):
    over_tiles(f, dtype, width, tile, causal=False)


@ln.kernel(sizes={"H": 16, "M": 1024, "S": 1024}, reference=causal_numpy)
def attention_causal(f, dtype=ln.float32, width=64, tile=64):
    over_tiles(f, dtype, width, tile, causal=True)


@ln.kernel(sizes={"H": 16, "M": 1024, "S": 1024}, reference=attention_numpy)
def attention_two_pass(f, dtype=ln.float32, width=64):
    q, k, v = inputs(f, dtype, width)
    scores = ln.matmul(q, ln.permute(k, (0, 2, 1)), dtype=dtype.compute).named("scores")
    scaled = (scores * width**-0.5).named("scaled")
    largest = ln.max(scaled, axis=2, keepdims=True)
    weights = ln.exp(scaled - largest).named("weights")
    total = ln.sum(weights, axis=2, keepdims=True)
    product = ln.matmul(weights, v, dtype=dtype.compute).named("product")
    largest.reduction.named("largest")
    total.reduction.named("total")
    y = product / total
    f.output(y if dtype is dtype.compute else ln.cast(y, dtype), "y")


def by_tiles(f, rows, some):
    """Give a block `rows` rows of a head, and let it go through the tiles of keys.

    `sized` and `sums` get the axes [M / rows, H, T, rows / some, some, ...]. All else is computed
    in their loop over T, for `some` rows at a time; the exponentials of a tile are kept.
    """
    y, sized, sums = f["y"], f["sized"], f["sums"]
    y.split(1, rows)
    y.reorder({1: 0, 0: 1})  # [M / rows, H, rows, W]
    for result in (sized, sums):
        result.compute_at(y, 2)
        result.reorder({3: 2, 2: 3})
        result.split(3, some)
    for name in ("product", "weights", "largest", "scaled", "scores"):
        f[name].compute_at(sized, 4)
    for name in ("keys", "values"):
        f[name].compute_at(sized, 3)
    f["total"].compute_at(sums, 4)


KEPT = (
    *("keys", "values", "scores", "scaled", "largest"),
    *("weights", "product", "total", "sized", "sums"),
)
"""What a block keeps of a tile; all else is computed where one of these needs it."""


def inline_rest(f, *partials):
    """Compute what else there is where it is needed, a vector at a time."""
    kept = [*partials, *(f[name] for name in KEPT)]
    for tensor in (*kept, f["y"]):
        inline_producers(tensor, (*kept, *f.inputs))


def inline_producers(consumer, kept):
    """Compute what `consumer` reads, but for `kept`, where it is read, a vector at a time."""
    innermost = consumer.axis(-1).parallel
    lanes = innermost in (ln.ParallelType.vectorize, ln.ParallelType.unroll)
    wide = lanes and not consumer.axis(-1).is_reduction
    for tensor in consumer.producers:
        if tensor in kept:
            continue
        if tensor.compute_at_pos < 4 or not tensor.axis(-1).is_broadcast:
            tensor.compute_at(consumer, consumer.ndim - wide)
            alike = innermost is ln.ParallelType.vectorize or tensor.ndim == consumer.ndim
            if wide and alike and not tensor.axis(-1).is_broadcast:
                loads = any(source.memory is ln.SHARED for source in tensor.producers)
                tensor.axis(-1).parallelize(ln.ParallelType.vectorize if loads else innermost)
        inline_producers(tensor, kept)


def in_vectors(f, lanes, partials=(), inner=ln.ParallelType.vectorize):
    """Split what a block keeps to vectors, and compute the rest where it is needed."""
    unroll = ln.ParallelType.unroll
    for name in ("scores", "scaled", "weights", "product", "sized", "y"):
        stored = f[name].memory is not ln.LOCAL
        f[name].split(-1, max(lanes, 16 // f["y"].dtype.size) if name == "y" else lanes)
        f[name].parallelize({-2: unroll, -1: ln.ParallelType.vectorize if stored else inner})
    inline_rest(f, *partials)


def in_blocks(tensor, copy, threads, across, along, rows_first=False):
    """Let the threads of a block copy what a tile needs of an input, in 16 bytes.

    Neighbouring threads take neighbours along the last axis, or, `rows_first`, along the other.

    Args:
        tensor: in shared memory; its last two axes are those of a tile.
        copy: what a thread loads to registers: rows of the input.
        threads: of a block.
        across, along: elements of a thread in both axes.
    """
    tensor.split(-1, along).split(-3, across)
    tensor.reorder({-4: -3, -3: -2, -2: -4} if rows_first else {-3: -2, -2: -3})
    tensor.merge(-4).split(-3, threads)  # [.., threads, across, along]
    tensor.parallelize({-3: ln.ParallelType.block_x, -2: ln.ParallelType.unroll})
    copy.compute_at(tensor, tensor.ndim - 2)
    copy.axis(-2).parallelize(ln.ParallelType.unroll)
    for part in (tensor, copy):
        part.axis(-1).parallelize(ln.ParallelType.vectorize)


@attention.schedule("gpu")
@attention_causal.schedule("gpu")
def gpu(f, rows=64, lanes=4):
    """A thread owns a row, a block `rows` of a head; all threads read the same keys and values.

    These lie in shared memory as float32, a tile at a time, as do the queries and the exponentials
    of a row, whose columns a thread goes through in a loop; sums and scores stay in registers.
    Inputs are loaded in 16 bytes; a thread turns `lanes` keys by 16 bytes round in registers. So go
    exponentials: rows of them are padded by `lanes`, and stay aligned.
    """
    block, unroll = ln.ParallelType.block_x, ln.ParallelType.unroll
    parts = [f[name].cache_after() for name in "qkv"]
    queries = parts[0].cache_after()
    found = f["weights"].cache_after()
    wide = 16 // queries.dtype.size
    by_tiles(f, rows, 1)
    queries.compute_at(f["sized"], 2)
    word = max(1, 4 // queries.dtype.size)  # a row later is a bank later
    for held in (queries, f["keys"], f["values"]):
        held.memory = ln.SHARED
    queries.set_allocation(pad={3: word})
    f["keys"].set_allocation(pad={3: lanes})
    f["values"].allocation_domain.split(3, 32).pad(4, lanes)  # the halves of a row in other banks
    in_blocks(queries, parts[0], rows, 1, wide, rows_first=True)
    in_blocks(f["keys"], parts[1], rows, wide, lanes)
    in_blocks(f["values"], parts[2], rows, 1, wide)
    f["weights"].memory = ln.SHARED
    f["weights"].set_allocation(pad={5: lanes})
    y = f["y"]
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.grid_y, 2: block})
    for name in ("scores", "scaled", "largest", "weights", "product", "total", "sized", "sums"):
        f[name].axis(3).parallelize(block)
    f["largest"].axis(-1).parallelize(unroll)
    for name in ("scores", "product"):
        f[name].reorder({-1: 4})  # sum outside of rows and columns
    f["total"].reorder({-1: 4})
    for name in ("product", "total"):
        f[name].split(4, lanes)
    found.compute_at(f["product"], 5)  # `lanes` exponentials of a row are one access
    found.reorder({5: -1})
    found.axis(-1).parallelize(ln.ParallelType.vectorize)
    f["total"].axis(5).parallelize(unroll)
    in_vectors(f, lanes, [queries, *parts, found], unroll)


ROWS = {
    ln.float16: "mma.m16n8k16.f32.f16",
    ln.bfloat16: "mma.m16n8k16.f32.bf16",
    ln.float32: "mma.m16n8k8.f32.tf32",
}
"""The instruction that multiplies tiles, by the type of the inputs."""


def in_quads(tensor, rows):
    """Spread 16 rows and all columns over lanes as an instruction does with its sums.

    Four lanes, a quad, have a row: each has two neighbours of every eight columns. `rows` and
    `rows` + 1 become [2, lanes, columns / 8, 2]; the two rows of a lane are 8 apart.
    """
    tensor.split(rows + 1, 8).split(rows + 2, 2).split(rows, 8)  # [2, 8, columns / 8, 4, 2]
    tensor.reorder({rows + 3: rows + 2})
    tensor.merge(rows + 1)
    tensor.axis(rows + 1).parallelize(ln.ParallelType.block_x)


def as_quads_hold(tensor, axis):
    """Put eight columns in another order: the first neighbour of each lane, then the second.

    An instruction that sums 8 terms wants them so; a sum has any order.
    """
    tensor.split(axis, 2)
    tensor.reorder({axis + 1: axis})
    tensor.merge(axis)


def in_flight(tile, warps):
    """Let the warps of a block copy the two last axes of a tile, 16 bytes a lane.

    Pieces of 16 bytes are permuted within 128 bytes by an XOR with the number of the row, so that
    eight rows read at once lie in banks of their own.
    """
    wide = 16 // tile.dtype.size
    tile.reorder({-1: -2})
    pieces = tile.axis(-1).extent // wide
    layout = tile.allocation_domain
    layout.split(-1, wide)
    if pieces in (2, 4):  # several rows are one of 128 bytes
        layout.split(-3, 8 // pieces).merge(-3)
    if pieces & (pieces - 1) == 0:
        layout.swizzle(ln.Swizzle.XOR, -3, -2)
    tile.split(-1, wide)
    tile.merge(-3)
    tile.split(-2, 32).split(-3, warps)  # [..., rounds, warps, lanes, elements]
    tile.parallelize({-3: ln.ParallelType.block_y, -2: ln.ParallelType.block_x})
    tile.axis(-1).parallelize(ln.ParallelType.vectorize)
    tile.move_by("cp.async")


def first_product(scores, queries, keys, sized, row):
    """Compute the scores of a warp's 16 rows by an instruction, from the lanes of its operands."""
    depth = row.extents["k"]
    scores.split(5, 8).split(-1, depth)
    scores.reorder({4: 6, 6: 7, 7: 4})  # [..., D / 16, tile / 8, 16, 8, 16]
    keys.compute_at(scores, 5)
    keys.split(-1, 8)
    keys.reorder({-2: 3})
    queries.compute_at(sized, 2)
    queries.split(2, 16).split(-1, depth)
    queries.reorder({-2: 3})
    queries.axis(2).parallelize(ln.ParallelType.block_y)
    scores.instruct(row.name, axes=(-3, -2, -1))
    queries.move_by("ldmatrix.x4")
    in_pairs(keys)
    keys.move_by("ldmatrix.x4")


def second_product(product, weights, values, row):
    """Multiply the weights of a warp's 16 rows, which lie in its lanes, with values."""
    depth = row.extents["k"]
    product.split(5, 8).split(-1, depth)  # [..., 16, W / 8, 8, tile / 16, 16]
    weights.split(-1, depth)
    weights.reorder({-2: 4})  # [..., tile / 16, 16, 1, 16]
    if depth == 8:
        as_quads_hold(product, 8)
        as_quads_hold(weights, 7)
    product.reorder({4: 6, 6: 7, 7: 4})  # [..., tile / 16, W / 8, 16, 8, 16]
    values.compute_at(product, 5)
    values.split(-1, 8)
    if depth == 8:
        as_quads_hold(values, 3)
    values.reorder({-2: 3})
    product.instruct(row.name, axes=(-3, -2, -1))
    in_pairs(values)
    if values.dtype.size == 2:
        values.move_by("ldmatrix.x4.trans")


def in_pairs(operand):
    """Let a move to lanes take two tiles of an operand."""
    operand.split(-3, 2)
    operand.reorder({-3: -1})  # [..., 2, lanes, registers, 2]


def by_quads(whole):
    """Fold the tile of a row in four lanes each on its own, then what they exchange.

    Returns:
        What each lane finds, what the four exchange, and what each of them reads of that.
    """
    whole.split(-1, 8).split(-1, 2)  # [H, T, M, tile / 8, lanes of a row, 2]
    part = whole.rfactor([-3, -1])
    exchanged = part.cache_after()
    exchanged.memory = ln.SHARED
    return part, exchanged, exchanged.cache_after()


def exchange(whole, part, exchanged, four, result):
    """Compute what `by_quads` made in the loops of `result` over tiles of keys and warps."""
    exchanged.compute_at(result, 4)
    exchanged.split(4, 8)
    exchanged.merge(5)  # [..., 4, 2, lanes]
    exchanged.axis(5).parallelize(ln.ParallelType.block_x)
    part.compute_at(exchanged, 6)
    four.compute_at(whole, whole.ndim - 1)
    four.axis(-1).parallelize(ln.ParallelType.vectorize)
    whole.axis(-1).parallelize(ln.ParallelType.unroll)


@attention.schedule("gpu_mma")
@attention_causal.schedule("gpu_mma")
def gpu_mma(f, warps=4, stages=2):
    """Tensor cores: a warp owns 16 rows of a head, a block `warps` of them.

    Both products go by tiles of an instruction. The weights of a tile of keys are computed in the
    lanes that have the scores, rounded there, and are an operand of the second product as they lie.
    A row lies in four lanes: each finds the largest of its own scores, and their sum, and they
    exchange these through shared memory. Queries stay in registers; keys and values are in flight
    to shared memory `stages` - 1 tiles ahead, and go from there to lanes by LDSM.
    """
    names = ("y", "sized", "sums", "scores", "scaled", "largest", "weights", "total", "product")
    y, sized, sums, scores, scaled, largest, weights, total, product = [f[n] for n in names]
    row = ln.instructions[ROWS[f["q"].dtype]]
    queries = f["q"].cache_after()
    left = queries.cache_after()
    (keys,), (columns,) = f["k"].consumers, f["v"].consumers
    right = keys.cache_after()
    (values,) = columns.consumers
    rounded, _ = product.producers[0].producers
    (most,) = largest.consumers
    for tensor in (queries, keys, columns, most):
        tensor.memory = ln.SHARED
    for tensor in (left, right, rounded, values):
        tensor.memory = ln.WARP
    folds = {whole: by_quads(whole) for whole in (largest, total)}

    y.split(1, 16 * warps)
    y.reorder({1: 0})  # [M / 64, H, 64, W]
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.grid_y})
    sized.compute_at(y, 2)
    sized.reorder({3: 2, 2: 3})
    y.split(2, 16)
    sized.split(3, 16)  # [M / 64, H, T, 4, 16, W]
    for result, at in ((y, 2), (sized, 3)):
        result.axis(at).parallelize(ln.ParallelType.block_y)
        in_quads(result, at + 1)
    y.axis(-1).parallelize(ln.ParallelType.vectorize)

    # What a warp does with a tile of keys; what has a value a row is in all lanes of the row.
    held, share = sized.producers
    _, scale = share.producers
    running, _ = scale.producers
    _, taken = sums.producers
    for tensor in (product, rounded, weights, scaled, scores):
        tensor.compute_at(sized, 4)
    for tensor in (held, scale, running):
        tensor.compute_at(sized, 6)
    for tensor in (taken, total):
        tensor.compute_at(sums, 6)
    second_product(product, rounded, values, row)
    most.compute_at(sized, 4)
    most.axis(4).parallelize(ln.ParallelType.block_x)
    largest.compute_at(most, 5)
    for tensor in (weights, scaled):
        in_quads(tensor, 4)
    exchange(largest, *folds[largest], sized)
    exchange(total, *folds[total], sums)
    first_product(scores, left, right, sized, row)

    queries.compute_at(sized, 2)
    in_flight(queries, warps)
    for tile in (keys, columns):
        tile.compute_at(sized, 3)
        tile.allocation_domain.reorder({-1: -2})  # rows of D or W elements
        in_flight(tile, warps)
        if stages > 1:
            tile.circular_buffer(stages)
    for tensor in (scores, product):
        tensor.producers[0].compute_at(tensor, -1)
    staged = (queries, keys, columns, left, right, values, rounded, most, held, scale, running)
    named = [f[name] for name in names]
    kept = {*f.inputs, *named, *staged, taken, *folds[largest], *folds[total]}
    ln.inline_most([t for t in f.tensors if t not in kept], replay=True)


@attention.schedule("cpu")
@attention_causal.schedule("cpu")
def cpu(f, rows=None, some=None, parts=None, lanes=None, line=16):
    """A core owns `rows` rows of a head and goes over the keys in tiles.

    The scores of `some` rows with `parts` vectors of keys stay in registers while they are summed,
    and so does the product with the values: 6 x 2 of the 16 of AVX2, 4 x 4 of the 32 of AVX-512, as
    `ln.machine()` finds them. The keys of a tile lie next to each other for it: they are read along
    their rows, and squares of `line` x `line` are transposed in registers. `unswitch` tests once
    for all sums whether the rows exist. Largest score and sum of a row are folded `lanes` side by
    side first.
    """
    machine = ln.machine()
    tall, wide = (4, 4) if machine.vector_registers >= 32 else (6, 2)
    some, parts = some or tall, parts or wide
    rows = rows or (128 if tall == 4 else 96)
    lanes = lanes or machine.lanes(4)
    width, tile = f["keys"].shape[2:]
    parts = max(1, math.gcd(parts, width // lanes, tile // lanes))  # small tiles have fewer
    line = math.gcd(line, width, tile)
    vector, unroll = ln.ParallelType.vectorize, ln.ParallelType.unroll
    partials = []
    for name in ("largest", "total"):
        f[name].split(-1, lanes)
        partials.append(f[name].rfactor(-2))
    keys = f["keys"]
    staged = keys.cache_before()
    by_tiles(f, rows, some)
    for partial, result in zip(partials, ("sized", "sums"), strict=True):
        partial.compute_at(f[result], 4)
        partial.axis(-1).parallelize(vector)
    f["y"].parallelize({0: ln.ParallelType.cpu_parallel})
    keys.split(3, line).split(2, line)
    keys.reorder({3: 4})  # [H, T, D / line, tile / line, line of D, line of the tile]
    keys.parallelize({4: unroll, 5: vector})
    keys.allocation_domain.reorder({4: 3, 3: 4})
    staged.compute_at(keys, 2)
    staged.reorder({2: 3})  # [H, T, tile, D]
    for tensor in (staged, f["values"]):
        tensor.split(-1, lanes)
        tensor.axis(-1).parallelize(vector)
    for name in ("scores", "product"):
        f[name].split(5, parts * lanes)  # [.., some, columns / these, these, the summed]
        f[name].reorder({5: 4, 7: 5, 4: 6, 6: 7})
        f[name].parallelize({5: ln.ParallelType.unswitch, 6: unroll})
    in_vectors(f, lanes, [staged, *partials])


@attention_two_pass.schedule("gpu")
def gpu_two_pass(f, threads=64):
    """A block owns a row and keeps its scores in shared memory: for few rows and many keys.

    A thread takes a key, then a column of the result.
    """
    y, block = f["y"], ln.ParallelType.block_x
    y.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x, 2: block})
    for name in ("product", "total", "weights", "largest", "scaled"):
        f[name].compute_at(y, 2)
    for name in ("scaled", "weights", "largest", "total"):
        f[name].split(2, threads)
        f[name].axis(3).parallelize(block)
    for name in ("scaled", "weights"):
        f[name].memory = ln.SHARED
    f["scores"].compute_at(f["scaled"], -1)
    rows = [f[name] for name in ("scaled", "largest", "weights", "total", "product", "scores")]
    for tensor in (*rows, y):
        inline_producers(tensor, (*rows, *f.inputs))
    f.inline_most()


@attention_two_pass.schedule("cpu")
def cpu_two_pass(f, rows=4, lanes=16):
    """A core keeps the scores of `rows` rows in its cache; the products go in vectors."""
    y, vector = f["y"], ln.ParallelType.vectorize
    f["scores"].split(-1, lanes)
    terms = f["scores"].rfactor(-2)
    y.split(1, rows)
    y.reorder({1: 0, 0: 1})  # [M / rows, H, rows, W]
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    for name in ("product", "total", "weights", "largest", "scaled"):
        f[name].compute_at(y, 2)
    f["product"].reorder({-1: 2})  # [M / rows, H, S, rows, W]
    for tensor in (f["product"], y):
        tensor.split(-1, lanes)
        tensor.axis(-1).parallelize(vector)
    f["product"].parallelize({3: ln.ParallelType.unroll, 4: ln.ParallelType.unroll})
    f["scores"].compute_at(f["scaled"], -1)
    terms.compute_at(f["scores"], f["scores"].ndim - 1)
    terms.axis(-1).parallelize(vector)
    inline_producers(f["product"], (f["weights"], *f.inputs))
    inline_producers(terms, f.inputs)
    f.inline_most()


if __name__ == "__main__":
    ln.main()
