"""A product of int8 matrices that is scaled to floats: the linear layer of a quantised network.

y[m, n] = (sum over k of a[m, k] * b[n, k]) * row_scale[m] * column_scale[n] + bias[n]. Products and
sums are int32, and exact; both operands lie along k, as quantised weights are kept.

    python kernels/int8_gemm.py                      # show it, run it, compare it
    python kernels/int8_gemm.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def int8_gemm_numpy(a, b, row_scale, column_scale, bias):
    total = (a.astype(np.int32) @ b.astype(np.int32).T).astype(row_scale.dtype)
    return total * row_scale[:, None] * column_scale + bias


@ln.kernel(
    sizes={"M": 1024, "N": 1024, "K": 1024},
    reference=int8_gemm_numpy,
    ranges={"a": (-127, 127), "b": (-127, 127)},
)
def int8_gemm(f, dtype=ln.float32):
    a, b = f.input("a", ("M", "K"), ln.int8), f.input("b", ("N", "K"), ln.int8)
    row_scale = f.input("row_scale", ("M",), ln.float32)
    column_scale = f.input("column_scale", ("N",), ln.float32)
    bias = f.input("bias", ("N",), ln.float32)
    total = ln.matmul(a, ln.permute(b, (1, 0)), dtype=ln.int32).named("total")
    by_row = (total * ln.broadcast(row_scale, (False, True))).named("by_row")
    scaled = (by_row * column_scale).named("scaled")
    shifted = (scaled + bias).named("shifted")
    f.output(ln.cast(shifted, dtype), "y")


def inline_epilogue(f):
    """Compute what lies between the sums and `y` in the innermost loop of `y`."""
    for name in ("shifted", "scaled", "by_row"):
        f[name].compute_at(f["y"], -1)
    for name in ("shifted", "scaled", "by_row"):
        factor = f[name].producers[1]
        factor.compute_at(f[name], -1)


@int8_gemm.schedule("gpu")
def gpu(f, threads=16, tile=4, depth=64, stages=2):
    """A block of `threads` x `threads` threads; a thread owns `tile` x `tile` sums.

    A block owns 64 x 64 results and goes through a and b in slices of `depth` along k. A slice goes
    from global memory to registers by vectors of 16 bytes, to shared memory, where `stages` of them
    take turns, and to registers again, 16 values of k at a time. In shared memory the 16 bytes of
    neighbouring rows lie side by side, so what neighbouring threads read lies in different banks.
    Neighbouring threads own neighbouring columns, and store them together. Four products and their
    sum are one instruction on the processor, which the compiler finds by itself.
    """
    y, total = f["y"], f["total"]
    (product,) = total.producers
    left, right = product.producers
    (turned,) = right.producers
    slices = []
    for name in ("a", "b"):
        loaded = f[name].cache_after()
        shared = loaded.cache_after()
        shared.memory = ln.SHARED
        slices.append((loaded, shared, shared.cache_after()))

    block = threads * tile
    y.split(1, block)
    y.split(0, block)
    y.reorder({2: 1})  # [M / 64, N / 64, 64, 64]
    y.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x})
    total.compute_at(y, 2)
    total.split(4, depth)
    total.reorder({4: 2})  # [M / 64, N / 64, K / 64, 64, 64, 64]
    for loaded, shared, _ in slices:
        shared.compute_at(total, 3)
        loaded.compute_at(shared, shared.compute_at_pos)
    total.split(5, 16)  # [M / 64, N / 64, K / 64, 64, 64, 4, 16]
    for tensor, rows in ((y, 2), (total, 3)):
        tensor.split(rows + 1, threads)
        tensor.split(rows, tile)
        order = list(range(tensor.ndim))
        order[rows : rows + 4] = [rows + n for n in (0, 3, 1, 2)]
        tensor.reorder(order)  # [..., ty, tx, 4, 4, ...]
        tensor.parallelize({rows: ln.ParallelType.block_y, rows + 1: ln.ParallelType.block_x})
    total.reorder({7: 5})  # [M / 64, N / 64, K / 64, ty, tx, 4, 4, 4, 16]
    for loaded, shared, fragment in slices:
        fragment.compute_at(total, 6)
        fragment.axis(-1).parallelize(ln.ParallelType.vectorize)
        for tensor in (loaded, shared):
            tensor.split(-1, 16)
            tensor.split(-3, threads)
            tensor.reorder({-2: -3})
            tensor.merge(-4)
            tensor.split(-3, threads)  # [..., rounds, ty, tx, 16]
            tensor.parallelize(
                {
                    -3: ln.ParallelType.block_y,
                    -2: ln.ParallelType.block_x,
                    -1: ln.ParallelType.vectorize,
                }
            )
        shared.circular_buffer(stages)
    for axis in (6, 7, 8):
        total.axis(axis).parallelize(ln.ParallelType.unroll)
    product.compute_at(total, -1)
    left.compute_at(product, -1)
    right.compute_at(product, -1)
    turned.compute_at(right, -1)
    inline_epilogue(f)


@int8_gemm.schedule("gpu_mma")
def gpu_mma(f, warps=(2, 4), tiles=(4, 4, 2), stages=3):
    """Tensor cores: `warps` warps of a block, each with `tiles` tiles of `mma.m16n8k32`.

    A block owns 128 x 128 results and goes through a and b in slices of 64 bytes along k, which are
    in flight to shared memory `stages` - 1 slices ahead. Both operands lie along k, as the
    instruction wants their rows: LDSM loads four matrices of 8 rows, of a one tile, of b two. Its
    pieces of 16 bytes are permuted by an XOR with the number of the row, so that eight rows read
    at once lie in banks of their own. Sums are scaled in the registers that the instruction leaves
    them in, and stored from there.
    """
    y, total = f["y"], f["total"]
    (product,) = total.producers
    left, right = product.producers
    (turned,) = right.producers
    row = ln.instructions["mma.m16n8k32.s32.s8"]
    rows, columns, depth = row.extents.values()
    slices = [f[name].cache_after() for name in ("a", "b")]
    held = [tile.cache_after() for tile in slices]

    y.split(1, columns * tiles[1] * warps[1])
    y.split(0, rows * tiles[0] * warps[0])
    y.reorder({2: 1})  # [M / 128, N / 128, 128, 128]
    y.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x})
    total.compute_at(y, 2)
    total.split(4, depth * tiles[2])
    total.reorder({4: 2})  # [M / 128, N / 128, K / 64, 128, 128, 64]
    for tensor, at in ((y, 2), (total, 3)):
        tensor.split(at + 1, columns)
        tensor.split(at + 1, tiles[1])
        tensor.split(at, rows)
        tensor.split(at, tiles[0])
        order = list(range(tensor.ndim))
        order[at : at + 6] = [at + n for n in (0, 3, 1, 4, 2, 5)]
        tensor.reorder(order)  # [..., warps, warps, 4, 4, 16, 8, ...]
        tensor.parallelize({at: ln.ParallelType.block_z, at + 1: ln.ParallelType.block_y})
    total.split(-1, depth)
    total.reorder({-2: 5})  # [M / 128, N / 128, K / 64, warps, warps, 2, 4, 4, 16, 8, 32]
    for tile, operand in zip(slices, held, strict=True):
        tile.memory, operand.memory = ln.SHARED, ln.WARP
        tile.compute_at(total, 3)
        operand.compute_at(total, 6)
    total.instruct(row.name, axes=(-3, -2, -1))
    y.distribute(row.operands["d"].fragment, axes=(-2, -1))

    for tile in slices:
        layout = tile.allocation_domain
        layout.split(-1, 16).split(-3, 2).merge(-3)  # [..., 64, 8, 16]
        layout.swizzle(ln.Swizzle.XOR, -3, -2)
        tile.split(-1, 16)
        tile.merge(-3)
        tile.split(-2, 32)
        tile.split(-3, warps[1])
        tile.split(-4, warps[0])  # [..., rounds, warps, warps, lanes, 16]
        tile.parallelize({-4: ln.ParallelType.block_z, -3: ln.ParallelType.block_y})
        tile.parallelize({-2: ln.ParallelType.block_x, -1: ln.ParallelType.vectorize})
        tile.move_by("cp.async").circular_buffer(stages)
    held[1].split(-3, 2)
    held[1].reorder({-3: -1})  # [..., 2, lanes, registers, 2]: two tiles a move
    for operand in held:
        operand.move_by("ldmatrix.x4")
    product.compute_at(total, -1)
    ln.inline_most([left, right, turned], replay=True)
    inline_epilogue(f)


@int8_gemm.schedule("cpu")
def cpu(f, rows=8):
    """A core owns rows of y, `rows` at a time, and goes through b for them all.

    Both operands lie along k: a sum over k is a loop that becomes vector code, since the order of
    an integer sum is free. Whether a row exists is asked once for all of them.
    """
    y, total = f["y"], f["total"]
    (product,) = total.producers
    left, right = product.producers
    y.split(0, rows)
    y.reorder({1: 2})  # [M / 8, N, 8]
    y.parallelize({0: ln.ParallelType.cpu_parallel, 2: ln.ParallelType.unswitch})
    total.compute_at(y, 3)
    product.compute_at(total, -1)
    left.compute_at(product, -1)
    right.compute_at(product, -1)
    right.producers[0].compute_at(right, -1)
    inline_epilogue(f)


@int8_gemm.schedule("cpu_dot")
def cpu_dot(f, rows=8, parts=2, columns=8):
    """As "cpu", by an instruction that sums four products in each of 16 lanes (AVX-512 VNNI).

    The sums of `rows` rows and `parts` vectors stay in registers. The rows of b that a core needs
    are packed first, so that the four terms of all lanes lie side by side; so are `rows` rows of a,
    for `columns` tiles of y. What lies outside of a and b is 0 in these copies: no tile is tested.
    The same loops run without the instruction where a processor lacks it.
    """
    y, total = f["y"], f["total"]
    (product,) = total.producers
    (turned,) = product.producers[1].producers
    row = ln.instructions["dot.n16k4.s32.s8"]
    lanes, depth = row.extents["n"], row.extents["k"]
    left, right = [f[name].cache_after() for name in ("a", "b")]
    y.split(1, lanes)
    y.split(1, parts).split(1, columns)
    y.split(0, rows)
    y.reorder({2: 0, 0: 1, 3: 2, 1: 3})  # [N / 256, M / 8, 8, 8, 2, 16]
    y.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    right.compute_at(y, 1)
    left.compute_at(y, 2)
    total.compute_at(y, 3)
    total.split(-1, depth)
    total.reorder({-2: 3})  # [N / 256, M / 8, 8, K / 4, 8, 2, 16, 4]
    left.split(-1, depth)  # [M / 8, 8, K / 4, 4]
    right.split(-1, depth)
    right.reorder({-2: 2})  # [N / 256, 8, K / 4, 2, 16, 4]
    total.instruct(row.name, axes=(-2, -1))
    total.parallelize({4: ln.ParallelType.unroll, 5: ln.ParallelType.unroll})
    left.axis(1).parallelize(ln.ParallelType.unswitch)
    right.parallelize({2: ln.ParallelType.unswitch, -1: ln.ParallelType.unroll})
    product.compute_at(total, -1)
    ln.inline_most([*product.producers, turned], replay=True)
    inline_epilogue(f)


if __name__ == "__main__":
    ln.main()
