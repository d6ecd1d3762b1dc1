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
def gemm(f, dtype=ln.float32):
    a = f.input("a", ("M", "K"), dtype)
    b = f.input("b", ("K", "N"), dtype)
    f.output(ln.matmul(a, b), "c")


@gemm.schedule("gpu")
def gpu(f, threads=16, tile=4):
    """A block of `threads` x `threads` threads; a thread owns a tile of `tile` x `tile` sums.

    The operands are copied to registers for each k: `tile` elements of b, then one of a at a time.
    """
    c = f["c"]
    (product,) = c.producers
    left, right = product.producers
    total = c.cache_before()

    c.split(1, tile)
    c.split(1, threads)
    c.split(0, tile)
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
    for tensor in (total, right, c):
        tensor.axis(-1).parallelize(ln.ParallelType.unroll)
    for tensor in (total, c):
        tensor.axis(-2).parallelize(ln.ParallelType.unroll)


@gemm.schedule("cpu")
def cpu(f, rows=6, columns=32):
    """A core owns `columns` columns of c and goes down them `rows` rows at a time.

    6 x 32 sums fill 12 of the 32 vector registers of AVX-512 (use 6 x 16 for AVX2). The columns of
    b that it needs are packed into a buffer of its own first, [K, columns] without gaps: it lies
    in the second-level cache and is read from front to back once for each tile.
    """
    c = f["c"]
    (product,) = c.producers
    left, right = product.producers
    total = c.cache_before()

    c.split(1, columns)
    c.split(0, rows)
    c.reorder({2: 0})  # [N / 32, M / 6, 6, 32]
    c.parallelize({0: ln.ParallelType.cpu_parallel, 2: ln.ParallelType.unroll})
    right.compute_at(c, 1)
    right.reorder({-1: 1})  # [N / 32, K, 1, 32]
    total.compute_at(c, 2)
    total.reorder({-1: 2})  # [N / 32, M / 6, K, 6, 32]
    total.parallelize({2: ln.ParallelType.unswitch, 3: ln.ParallelType.unroll})
    product.compute_at(total, -1)
    left.compute_at(product, -1)


if __name__ == "__main__":
    ln.main()
