"""A matrix product: c[m, n] = sum over k of a[m, k] * b[k, n].

`ln.matmul` is three tensors that a schedule can reach: both operands broadcast to [M, N, K], their
product, and its sum over k. Both schedules keep a tile of sums in registers and let k run around
it, so that each element that is loaded is used as often as the tile is wide.

    python kernels/gemm.py                           # show it, run it, compare it
    python kernels/gemm.py dump --stage cuda
"""

import loopnest as ln


def gemm_numpy(a, b):
    return a @ b


@ln.kernel(sizes={"M": 2048, "N": 2048, "K": 1024}, reference=gemm_numpy)
def gemm(f, dtype=ln.float32, result=None):
    a = f.input("a", ("M", "K"), dtype)
    b = f.input("b", ("K", "N"), dtype)
    if dtype is dtype.compute:
        c = ln.matmul(a, b, dtype=result)
    else:
        wide = [ln.cast(t, dtype.compute).named(f"wide_{t.name}") for t in (a, b)]
        c = ln.matmul(*wide, dtype=result or dtype)
    f.output(c, "c")


def widened(f):
    """Return both operands in float32, if they have 16 bits: what the products read."""
    return [tensor for tensor in f.tensors if tensor.name in ("wide_a", "wide_b")]


def tile_of_threads(tensor, rows, threads, lanes):
    """Split the rows and columns of a block into [parts, threads, lanes] each.

    `rows` and `rows` + 1 are the two axes; the result is [..., ty, tx, parts, lanes, parts, lanes].
    Neighbouring threads hold neighbouring vectors of `lanes`.
    """
    for axis in (rows + 1, rows):
        tensor.split(axis, lanes)
        tensor.split(axis, threads)
    order = list(range(tensor.ndim))
    order[rows : rows + 6] = [rows + n for n in (1, 4, 0, 2, 3, 5)]
    tensor.reorder(order)
    tensor.parallelize({rows: ln.ParallelType.block_y, rows + 1: ln.ParallelType.block_x})


def slices_of(f):
    """Return the copies of a and of b on their way to the products: loaded, shared, fragment."""
    slices, wide = [], widened(f)
    for operand in (f["a"], f["b"]):
        loaded = operand.cache_after()
        shared = wide.pop(0) if wide else loaded.cache_after()
        shared.memory = ln.SHARED
        slices.append((loaded, shared, shared.cache_after()))
    return slices


def lay_out(transposed, straight, depth, lanes, words):
    """Lay out the slices of a and b in shared memory, so that no lanes of a warp share a bank."""
    layout = transposed.allocation_domain  # [M / 128, K / 8, 128, 8]
    layout.split(-1, lanes).split(-3, 32 * lanes // depth)
    layout.reorder({-2: -4, -1: -3, -4: -2, -3: -1})  # [M / 128, K / 8, 2, 4, 8, 16]
    if lanes > 1:
        layout.swizzle(ln.Swizzle.XOR, -4, -2)
    if words < lanes:
        layout = straight.allocation_domain.split(-2, lanes).split(-2, words)
        layout.reorder({-1: -4, -4: -2, -2: -1})  # [N / 128, K / 16, 16, 2, 16, 4]


def by_vectors(tensor, lanes, words):
    """Let the `lanes` of the last axis go by vectors of `words`."""
    if words < lanes:
        tensor.split(-1, words)
        tensor.axis(-2).parallelize(ln.ParallelType.unroll)
    tensor.axis(-1).parallelize(ln.ParallelType.vectorize)


def one_block_a_tile(c):
    """Give each tile of c a block: rows of tiles along y, columns along x; return where they end.

    The leading axes of c are the tiles, [M / 128, N / 128, 128, 128].
    """
    c.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x})
    return 2


def in_groups(c, group):
    """Merge the tiles of c to one axis: column by column within each `group` rows of tiles.

    Blocks that run at once then share rows of a and columns of b, which the L2 cache holds.
    """
    c.split(0, group)
    c.reorder({2: 1})  # [M / 128 / 8, N / 128, 8, 128, 128]
    c.merge(1)
    c.merge(0)


def tiles_in_shared_memory(f, order, threads, lanes, parts, depth, steps, stages, whole=False):
    """Let a block compute a tile of c from slices of a and b in shared memory, as "gpu" says.

    `order(c)` makes loops of the two axes of tiles and returns how many these are.
    """
    c = f["c"]
    (product,) = c.producers
    lanes = lanes or 16 // c.dtype.size
    words = min(lanes, 16 // product.producers[0].dtype.size)  # what is read from shared memory
    parts = parts or 8 // lanes
    depth, steps = depth or 2 * lanes, steps or words
    total = c.cache_before()
    slices = slices_of(f)
    block = threads * lanes * parts
    if whole:
        f.assume(f"M % {block} == 0")
        f.assume(f"N % {block} == 0")
        f.assume(f"K % {depth} == 0")
    c.split(1, block)
    c.split(0, block)
    c.reorder({2: 1})  # [M / 128, N / 128, 128, 128]
    at = order(c)
    total.compute_at(c, at)
    total.split(at + 2, depth)
    total.split(at + 3, steps)
    total.reorder({at + 2: at, at + 3: at + 1, at + 4: at + 2})  # [tiles, K / 8, 4, 2, 128, 128]
    tile_of_threads(c, at, threads, lanes)
    tile_of_threads(total, at + 3, threads, lanes)
    total.reorder({at + 3: at + 1, at + 4: at + 2})  # [tiles, K / 8, ty, tx, 4, 2, 2, 4, 2, 4]

    for loaded, shared, _ in slices:
        shared.compute_at(total, at + 1)
        loaded.compute_at(shared, shared.compute_at_pos)
    (_, transposed, left), (_, straight, right) = slices
    lay_out(transposed, straight, depth, lanes, words)
    product.compute_at(total, -1)
    for fragment in (right, left):
        fragment.compute_at(total, at + 5)
    for loaded, shared, fragment in slices:
        for tensor in (loaded, shared):
            if fragment is right:
                tensor.reorder({-1: -2})
            tensor.split(-1, lanes)
            tensor.merge(-3)
            tensor.split(-2, threads)
            tensor.split(-3, threads)  # [..., rounds, ty, tx, lanes]
            tensor.parallelize({-3: ln.ParallelType.block_y, -2: ln.ParallelType.block_x})
        loaded.axis(-1).parallelize(ln.ParallelType.vectorize)
        if shared is transposed:
            shared.axis(-1).parallelize(ln.ParallelType.unroll)
        else:
            by_vectors(shared, lanes, words)
        by_vectors(fragment, lanes, words)
        shared.circular_buffer(stages)
    for axis in range(at + 4, at + 9):
        if total.axis(axis).extent != 1:
            total.axis(axis).parallelize(ln.ParallelType.unroll)
    c.axis(-1).parallelize(ln.ParallelType.vectorize)
    f.inline_most(product.producers, replay=True)


@gemm.schedule("gpu", cost={"gmem_ratio": "<=8.5", "bank_conflicts": 0, "wide_accesses": 1})
def gpu(f, threads=16, lanes=None, parts=None, depth=None, steps=None, stages=2, whole=False):
    """A block of `threads` x `threads` threads; a thread owns `parts * lanes` rows and columns.

    A block owns a tile of c, 128 x 128, and goes through a and b in slices of `depth`. A slice goes
    from global memory to registers (vectors of `lanes`, 16 bytes), to shared memory, where `stages`
    of them take turns, and to registers again: the rows and columns that a thread multiplies. The
    loads of the next slice are in flight while this one is multiplied; one barrier a slice is
    enough. 8 x 8 sums use each number that is read from shared memory 8 times.

    Operands of 16 bits are float32 in shared memory: the cast stands where a slice is stored, once
    an element and block, and no product converts. Where a thread's vector in memory, 8 columns of
    16 bits, is wider than 16 bytes of float32, the slice of b keeps its halves apart, so that
    neighbouring threads read neighbouring words.

    The slice of a is transposed in shared memory: its buffer is [depth, 128], so that a thread
    reads its rows of a by 16 bytes, as it reads its columns of b. A swizzle moves the columns of
    that buffer, for each vector of k others: a warp that stores rows of a then uses all banks.

    What lies outside of a and b is 0 in registers and shared memory, so that the sums need no
    tests: these stand at the loads from global memory and the stores to c alone. With `whole`,
    tiles are taken to divide all sizes (each launch checks it): no test remains.
    """
    tiles_in_shared_memory(f, one_block_a_tile, threads, lanes, parts, depth, steps, stages, whole)


@gemm.schedule("gpu_async")
def gpu_async(f, threads=16, lanes=None, parts=None, depth=16, steps=4, stages=3, whole=False):
    """As "gpu", but slices go from global to shared memory without registers: copies in flight.

    Threads begin copies of 16 bytes, `stages` - 1 slices ahead, and wait for those of a slice when
    its turn comes; one barrier a slice is enough, as in "gpu". A copy cannot transpose: the slice
    of a stays as it is, [128, depth], and a thread reads `steps` neighbours along k of each of its
    rows at once, which 16 threads of a warp share.

    Operands of 16 bits are as they are in shared memory, and widened as they are read from it.
    """
    c = f["c"]
    (product,) = c.producers
    lanes = lanes or 16 // c.dtype.size
    parts = parts or 8 // lanes
    total = c.cache_before()
    tiles = [f[name].cache_after() for name in ("a", "b")]
    for tile in tiles:
        tile.memory = ln.SHARED
    rows, columns = widened(f) or [tile.cache_after() for tile in tiles]
    block = threads * lanes * parts
    if whole:
        f.assume(f"M % {block} == 0")
        f.assume(f"N % {block} == 0")
        f.assume(f"K % {depth} == 0")
    c.split(1, block)
    c.split(0, block)
    c.reorder({2: 1})  # [M / 128, N / 128, 128, 128]
    at = one_block_a_tile(c)
    total.compute_at(c, at)
    total.split(at + 2, depth)
    total.split(at + 3, steps)
    total.reorder({at + 2: at, at + 3: at + 1, at + 4: at + 2})  # [tiles, K / 16, 4, 4, 128, 128]
    tile_of_threads(c, at, threads, lanes)
    tile_of_threads(total, at + 3, threads, lanes)
    total.reorder({at + 3: at + 1, at + 4: at + 2})  # [tiles, K / 16, ty, tx, 4, 4, 2, 4, 2, 4]

    for tile in tiles:
        tile.compute_at(total, at + 1)
    product.compute_at(total, -1)
    columns.compute_at(total, at + 5)
    rows.compute_at(total, at + 4)
    rows.reorder({-3: -1})  # [..., 2, 4, 4]: neighbours along k last
    rows.axis(-1).parallelize(ln.ParallelType.vectorize)
    columns.axis(-1).parallelize(ln.ParallelType.vectorize)
    tiles[1].reorder({-1: -2})
    for tile in tiles:
        tile.split(-1, lanes)
        tile.merge(-3)
        tile.split(-2, threads)
        tile.split(-3, threads)  # [..., rounds, ty, tx, lanes]
        tile.parallelize({-3: ln.ParallelType.block_y, -2: ln.ParallelType.block_x})
        tile.axis(-1).parallelize(ln.ParallelType.vectorize)
        tile.move_by("cp.async").circular_buffer(stages)
    for axis in range(at + 4, at + 9):
        if total.axis(axis).extent != 1:
            total.axis(axis).parallelize(ln.ParallelType.unroll)
    c.axis(-1).parallelize(ln.ParallelType.vectorize)
    f.inline_most(product.producers, replay=True)


ROWS = {
    ln.float16: "mma.m16n8k16.f32.f16",
    ln.bfloat16: "mma.m16n8k16.f32.bf16",
    ln.float32: "mma.m16n8k8.f32.tf32",
}
"""The instruction that multiplies tiles, by the type of the operands."""


def tiles_of_warps(tensor, rows, shape, tiles):
    """Split the rows and columns of a block into [warps, warps, tiles, tiles, rows, columns].

    `rows` and `rows` + 1 are the two axes; a warp has `tiles` tiles of `shape` along each.
    """
    for axis, extent, count in ((rows + 1, shape[1], tiles[1]), (rows, shape[0], tiles[0])):
        tensor.split(axis, extent)
        tensor.split(axis, count)
    order = list(range(tensor.ndim))
    order[rows : rows + 6] = [rows + n for n in (0, 3, 1, 4, 2, 5)]
    tensor.reorder(order)
    tensor.parallelize({rows: ln.ParallelType.block_z, rows + 1: ln.ParallelType.block_y})


def in_banks(tile, along_k):
    """Lay a slice out so that what is read of it at once lies in banks of its own."""
    lanes = 16 // tile.dtype.size
    layout = tile.allocation_domain
    # Elements of 4 bytes that go one by one: four rows of eight neighbours are read at once.
    layout.split(-1, 2 * lanes if lanes == 4 and not along_k else lanes)
    if along_k:
        layout.split(-3, 2).merge(-3)  # […, 64, 8, 8]: two rows of 64 bytes are one of 128
    layout.swizzle(ln.Swizzle.XOR, -3, -2)


def in_flight(tile, warps, stages):
    """Let the warps of a block copy the two last axes of a tile, 16 bytes a lane."""
    tile.split(-1, 16 // tile.dtype.size)
    tile.merge(-3)
    tile.split(-2, 32)
    tile.split(-3, warps[1])
    tile.split(-4, warps[0])  # [..., rounds, warps, warps, lanes, elements]
    tile.parallelize({-4: ln.ParallelType.block_z, -3: ln.ParallelType.block_y})
    tile.parallelize({-2: ln.ParallelType.block_x, -1: ln.ParallelType.vectorize})
    tile.move_by("cp.async").circular_buffer(stages)


def shared_by_blocks(c, total, depth, slices):
    """Let blocks compute parts of a sum into workspace, and another launch add them into `c`.

    Returns:
        The parts, [slices, ..., M, N, K / slices / depth, depth].
    """
    total.split(-1, depth).split(-2, slices)
    part = total.rfactor([-3, -1])
    part.memory = ln.GLOBAL
    part.reorder({-2: 0})
    c.new_launch()
    at = c.ndim - 1 - (total is c)
    c.split(at, 128)
    c.parallelize({at - 1: ln.ParallelType.grid_x, at: ln.ParallelType.grid_y})
    for axis in range(at - 1):
        c.axis(axis).parallelize(ln.ParallelType.grid_z)
    c.axis(at + 1).parallelize(ln.ParallelType.block_x)
    if total is not c:
        total.compute_at(c, c.ndim)
    return part


@gemm.schedule("gpu_mma")
def gpu_mma(f, warps=(2, 4), tiles=(4, 4, 2), stages=3, whole=False, slices=1):
    """Tensor cores: `warps` warps of a block, each with `tiles` tiles of an instruction.

    A block owns a tile of c, 128 x 128, and goes through a and b in slices of 64 bytes along k,
    which are in flight to shared memory `stages` - 1 slices ahead. From there a warp loads what its
    lanes multiply by LDSM, 16 bytes a lane: four matrices of 8 rows. An operand that does not lie
    along k, as b here, is transposed on the way, where elements have 16 bits; others are loaded one
    by one. Sums stay in registers, as the instruction leaves them; c is stored from there.

    Eight rows of a slice are read at once. Pieces of 16 bytes are permuted within 128 bytes by an
    XOR with the number of the row, so that all of them lie in banks of their own.

    What lies outside of a and b is 0 in shared memory: no tile is tested. With `whole`, tiles are
    taken to divide all sizes (each launch checks it).

    With `slices`, blocks share the terms of a tile of c: each sums a part of them into
    workspace, and a second launch adds these, always in this order, and stores c.

    It schedules other math too: a and b may be permuted, have an axis of batches in front, and c
    may be computed of the sums.
    """
    c = f["c"]
    total = next(t for t in f.tensors if any(axis.is_reduction for axis in t.root_domain))
    (product,) = total.producers
    name = ROWS[f["a"].dtype]
    row = ln.instructions[name]
    shape = tuple(row.extents[axis] for axis in ("m", "n", "k"))
    rows, columns = shape[0] * tiles[0] * warps[0], shape[1] * tiles[1] * warps[1]
    depth = shape[2] * tiles[2]
    if slices > 1:
        c = shared_by_blocks(c, total, depth, slices)
    total = c.cache_before() if slices > 1 or total is c else total
    copies = [f[name].cache_after() for name in ("a", "b")]
    left, right = [tile.cache_after() for tile in copies]
    if whole:
        f.assume(f"M % {rows} == 0")
        f.assume(f"N % {columns} == 0")
        f.assume(f"K % {depth} == 0")
    c.split(-1, columns)
    c.split(-3, rows)
    c.reorder({-2: -3})  # [..., M / 128, N / 128, 128, 128]
    c.parallelize({-4: ln.ParallelType.grid_y, -3: ln.ParallelType.grid_x})
    for _ in range(c.ndim - 5):
        c.merge(0)
    if c.ndim > 4:
        c.axis(0).parallelize(ln.ParallelType.grid_z)
    at = c.ndim - 2
    total.compute_at(c, at)
    if slices == 1:
        total.split(-1, depth)
    total.reorder({-2: at})  # [tiles, K / 32, 128, 128, 32]
    tiles_of_warps(c, at, shape, tiles)
    tiles_of_warps(total, at + 1, shape, tiles)
    total.split(-1, shape[2])
    total.reorder({-2: at + 3})  # [tiles, K / 32, warps, warps, 2, 4, 4, 16, 8, 16]
    for tile, held in zip(copies, (left, right), strict=True):
        tile.memory, held.memory = ln.SHARED, ln.WARP
        tile.compute_at(total, at + 1)
        if slices > 1:
            tile.reorder({-1: -2})
        held.compute_at(total, at + 4)
    total.instruct(name, axes=(-3, -2, -1))
    c.distribute(row.operands["d"].fragment, axes=(-2, -1))
    c.split(-1, 2)
    c.axis(-1).parallelize(ln.ParallelType.vectorize)

    right.split(-3, 2)
    right.reorder({-3: -1})  # [..., 2, lanes, registers, 2]: two tiles a move
    for name, tile, held in zip(("a", "b"), copies, (left, right), strict=True):
        along_k = f[name].axis("K") == f[name].axis(-1)
        if not along_k:
            tile.reorder({-1: -2})
        in_banks(tile, along_k)
        in_flight(tile, warps, stages)
        if along_k:
            held.move_by("ldmatrix.x4")
        elif held.dtype.size == 2:
            held.move_by("ldmatrix.x4.trans")
    product.compute_at(total, -1)
    kept = (*f.inputs, *copies, left, right, total, c, f["c"])
    ln.inline_most([t for t in f.tensors if t not in kept], replay=True)


@gemm.schedule("gpu_persistent")
def gpu_persistent(f, blocks=132, group=8, threads=16, lanes=None, parts=None, stages=2):
    """As "gpu", by as many blocks as the GPU has multiprocessors; each takes tile after tile.

    The tiles have one number, in the order of `in_groups`: block b takes the tiles b, b + 132, and
    so on. What a launch costs a block, it costs 132 times, whatever the sizes.
    """

    def order(c):
        in_groups(c, group)
        c.split(0, blocks)
        c.reorder({1: 0})  # [132, tiles / 132, 128, 128]
        c.parallelize({0: ln.ParallelType.grid_x})
        return 2

    tiles_in_shared_memory(f, order, threads, lanes, parts, None, None, stages)


@gemm.schedule("gpu_registers")
def gpu_registers(f, threads=16, tile=4):
    """A block of `threads` x `threads` threads; a thread owns a tile of `tile` x `tile` sums.

    The operands are copied to registers for each k: `tile` elements of b, then one of a at a time.
    """
    c = f["c"]
    (product,) = c.producers
    left, right = product.producers
    total = c.cache_before()

    c.split("N", tile)
    c.split(1, threads)
    c.split("M", tile)
    c.split(0, threads)  # [M / 64, 16, 4, N / 64, 16, 4]
    c.reorder([0, 3, 1, 4, 2, 5])
    c.parallelize(
        {
            0: ln.ParallelType.grid_y,
            1: ln.ParallelType.grid_x,
            2: ln.ParallelType.block_y,
            3: ln.ParallelType.block_x,
        }
    )
    total.compute_at(c, 4)
    total.reorder({-1: 4})  # [..., K, 4, 4]
    product.compute_at(total, -1)
    right.compute_at(total, 5)
    left.compute_at(total, 6)
    f.inline_most(widened(f), replay=True)
    for tensor in (total, right, c):
        tensor.axis(-1).parallelize(ln.ParallelType.unroll)
    for tensor in (total, c):
        tensor.axis(-2).parallelize(ln.ParallelType.unroll)


@gemm.schedule("gpu_split_k")
def gpu_split_k(f, slices=8, depth=32, rows=8, columns=32):
    """Blocks share the terms of one tile of c: for few rows and columns, and many terms.

    The sum over k is factored into `slices` parts, which blocks along z compute into workspace; a
    second launch adds them, always in this order. With `slices` 1 a product of 64 x 64 would keep
    16 blocks busy; with 8 it keeps 128.
    """
    c = f["c"]
    (product,) = c.producers
    grid, block = ln.ParallelType.grid_x, ln.ParallelType.block_x
    tiles = widened(f) or [f[name].cache_after() for name in ("a", "b")]
    c.split("K", depth)
    c.split(2, slices)  # [M, N, K / 256, 8, 32]
    part = c.rfactor([2, 4])
    total = part.cache_before()
    part.memory = ln.GLOBAL
    part.split("N", columns)
    part.split("M", rows)  # [M / 8, 8, N / 32, 32, 8]
    part.reorder([4, 0, 2, 1, 3])
    part.parallelize({0: ln.ParallelType.grid_z, 1: ln.ParallelType.grid_y, 2: grid})
    part.parallelize({3: ln.ParallelType.block_y, 4: block})
    total.compute_at(part, 3)  # [8, M / 8, N / 32, 8, 32, K / 256, 32]
    total.reorder({5: 3})
    total.parallelize({4: ln.ParallelType.block_y, 5: block})
    for tile in tiles:
        tile.compute_at(total, 4)
        tile.memory = ln.SHARED
    tiles[1].reorder({3: 4})  # neighbouring threads read neighbours
    for tile in tiles:
        tile.merge(3)
        tile.split(3, columns)
        tile.split(3, rows)  # [8, M / 8, N / 32, K / 256, rounds, 8, 32]
        tile.parallelize({-2: ln.ParallelType.block_y, -1: block})
    ln.inline_most([product, *product.producers])

    c.new_launch()
    c.split(1, 128)
    c.parallelize({0: ln.ParallelType.grid_y, 1: grid, 2: block})


@gemm.schedule("cpu")
def cpu(f, rows=ln.choice(None, 4, 6, 8), parts=ln.choice(2, 1, 3), lanes=None):
    """A core owns `parts` vectors of `lanes` columns of c and goes down them `rows` rows at a time.

    The sums of a tile stay in vector registers: 8 x 2 of the 32 of AVX-512, 6 x 2 of the 16 of
    AVX2, as `ln.machine()` finds them. The columns of b that a core needs are packed into a buffer
    of its own first, [K, columns] without gaps: it lies in the second-level cache and is read from
    front to back once for each tile.
    """
    machine = ln.machine()
    rows = rows or (8 if machine.vector_registers >= 32 else 6)
    lanes = lanes or machine.lanes(4)
    c = f["c"]
    (product,) = c.producers
    left, right = product.producers
    total = c.cache_before()

    c.split("N", lanes)
    c.split(1, parts)
    c.split("M", rows)
    c.reorder({2: 0})  # [N / columns, M / rows, rows, parts, lanes]
    c.parallelize({0: ln.ParallelType.cpu_parallel, 2: ln.ParallelType.unroll})
    right.compute_at(c, 1)
    right.reorder({-1: 1})
    total.compute_at(c, 2)
    total.reorder({-1: 2})  # [..., K, rows, parts, lanes]
    total.parallelize(
        {
            2: ln.ParallelType.unswitch,
            3: ln.ParallelType.unroll,
            4: ln.ParallelType.unroll,
            5: ln.ParallelType.vectorize,
        }
    )
    product.compute_at(total, 5)
    product.axis(-1).parallelize(ln.ParallelType.vectorize)
    left.compute_at(product, 5)
    f.inline_most(widened(f), replay=True)


@gemm.schedule("cpu_dot")
def cpu_dot(f, rows=8, parts=2, columns=8):
    """As "cpu", by an instruction that sums two products in each of 16 lanes (AVX-512 BF16).

    The sums of `rows` rows and `parts` vectors stay in registers. The columns of b that a core
    needs are packed first, the two terms that a lane takes side by side; so are `rows` rows of a,
    for `columns` tiles of c. What lies outside of a and b is 0 in these copies: no tile is tested.

    The same loops run without the instruction where a processor lacks it. Types other than
    bfloat16, for which there is none, take the schedule "cpu".
    """
    if f["a"].dtype is not ln.bfloat16:
        cpu(f)
        return
    c = f["c"]
    (product,) = c.producers
    row = ln.instructions["dot.n16k2.f32.bf16"]
    lanes, depth = row.extents["n"], row.extents["k"]
    total = c.cache_before()
    left, right = [f[name].cache_after() for name in ("a", "b")]
    c.split("N", lanes)
    c.split(1, parts).split(1, columns)
    c.split("M", rows)
    c.reorder({2: 0, 0: 1, 3: 2, 1: 3})  # [N / 256, M / 8, 8, 8, 2, 16]
    c.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    right.compute_at(c, 1)
    left.compute_at(c, 2)
    total.compute_at(c, 3)
    total.split(-1, depth)
    total.reorder({-2: 3})  # [N / 256, M / 8, 8, K / 2, 8, 2, 16, 2]
    left.split(-1, depth)  # [M / 8, 8, K / 2, 2]
    right.split(-1, depth)
    right.reorder({-2: 2})  # [N / 256, 8, K / 2, 2, 16, 2]
    total.instruct(row.name, axes=(-2, -1))
    total.parallelize({4: ln.ParallelType.unroll, 5: ln.ParallelType.unroll})
    left.axis(1).parallelize(ln.ParallelType.unswitch)
    right.parallelize({2: ln.ParallelType.unswitch, -1: ln.ParallelType.unroll})
    product.compute_at(total, -1)
    f.inline_most([*product.producers, *widened(f)], replay=True)


if __name__ == "__main__":
    ln.main()
