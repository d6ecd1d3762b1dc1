"""Dropout: y = x / (1 - p) where a random number is at least p, else 0.

The numbers are Philox's: each is a function of the seed, the offset and the place of its element,
so no state is kept, and the backward pass draws the same ones again. Four neighbours share a block
of the generator, which a thread that owns a multiple of four computes once.

    python kernels/dropout.py                        # show it, run it, compare it
    python kernels/dropout.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def philox(seed, offset, count):
    """Return `count` random words: Philox 4x32-10 of neighbouring counters."""
    low = np.uint64(0xFFFFFFFF)
    counter = np.arange(offset, offset + -(-count // 4), dtype=np.uint64)
    words = [counter & low, counter >> 32, np.zeros_like(counter), np.zeros_like(counter)]
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        even, odd = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            odd >> 32 ^ words[1] ^ keys[0],
            odd & low,
            even >> 32 ^ words[3] ^ keys[1],
            even & low,
        ]
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return np.stack(words, axis=1).ravel()[:count]


def dropout_numpy(x, seed, offset, p):
    uniform = (philox(seed, offset, x.size) >> 8) / 2**24
    return np.where(uniform >= np.float32(p), x * (1 / (1 - p)), 0)


@ln.kernel(sizes={"N": 1 << 22}, reference=dropout_numpy)
def dropout(f, dtype=ln.float32, p=0.1):
    x = f.input("x", ("N",), dtype)
    seed, offset = f.scalar("seed", ln.int64), f.scalar("offset", ln.int64)
    f.output(ln.dropout(x, p, seed, offset), "y")


@dropout.schedule("gpu")
def gpu(f, threads=256):
    """A thread owns 16 bytes of neighbours, and draws their numbers first."""
    x, y = f["x"], f["y"]
    _, drawn = y.producers
    copy = x.cache_after()
    y.split(0, 16 // x.dtype.size)
    y.split(0, threads)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    ln.propagate(y)
    for tensor in (copy, drawn):
        tensor.compute_at(y, 2)
    drawn.axis(2).parallelize(ln.ParallelType.unroll)
    for tensor in (copy, y):
        tensor.axis(2).parallelize(ln.ParallelType.vectorize)


@dropout.schedule("cpu")
def cpu(f, chunk=4096):
    """A core owns chunks, for which it draws all numbers first, four a block of the generator.

    Both loops over a chunk become vector code: the first over blocks, the second over elements. An
    axis of one element around them is unswitched, so that N is tested once a chunk.
    """
    y = f["y"]
    _, drawn = y.producers
    y.split(0, chunk)
    y.split(0, 1)
    y.parallelize({0: ln.ParallelType.cpu_parallel, 1: ln.ParallelType.unswitch})
    ln.propagate(y)
    drawn.compute_at(y, 2)
    drawn.split(2, 4)
    drawn.axis(3).parallelize(ln.ParallelType.unroll)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
