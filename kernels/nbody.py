"""Attraction between all pairs of bodies: three sums over one set of weights.

The weight of a pair, m_j / (distance^2 + softening)^(3/2), is computed once for the three
components of the acceleration: their sums share the loop over the others, and all that is computed
for a pair lies in registers. Neighbouring bodies are lanes, and the loop over the others goes
around them, so that what is read of the other body is one number for all lanes.

    python kernels/nbody.py                       # show it, run it, compare it
    python kernels/nbody.py dump --stage cuda
"""

import numpy as np

import loopnest as ln

SOFTENING = 1e-3


def nbody_numpy(p, m):
    d = p[:, None, :] - p[:, :, None]  # [axis, body, other]
    square = (d * d).sum(axis=0) + SOFTENING
    weight = m / (np.sqrt(square) * square)
    return tuple((weight * d[n]).sum(axis=1) for n in range(3))


@ln.kernel(sizes={"N": 2048}, reference=nbody_numpy)
def nbody(f):
    p = f.input("p", (3, "N"), ln.float32)
    m = f.input("m", ("N",), ln.float32)
    d = [p[n, None, :] - p[n, :, None] for n in range(3)]
    square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + SOFTENING
    weight = (m * ln.rsqrt(square) * ln.reciprocal(square)).named("weight")
    for n, name in enumerate("xyz"):
        f.output(ln.sum(weight * d[n], axis=1), f"a{name}")


@nbody.schedule("gpu")
def gpu(f, threads=128):
    """A thread owns a body, and goes through all others; neighbours read the same one."""
    outputs = [f["ax"], f["ay"], f["az"]]
    sums = [y.cache_before() for y in outputs]
    for y in outputs:
        y.split(0, threads)
        y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    sums[0].compute_at(outputs[0], 2)
    f["weight"].compute_at(sums[0], -1)  # the three sums share the loop over the others
    f.inline_most(replay=True)


@nbody.schedule("cpu")
def cpu(f, lanes=16, vectors=2):
    """A core owns `vectors * lanes` bodies, whose sums stay in registers for all others."""
    outputs = [f["ax"], f["ay"], f["az"]]
    sums = [y.cache_before() for y in outputs]
    for y in outputs:
        y.split(0, lanes * vectors)
        y.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    first = sums[0].compute_at(outputs[0], 1)
    first.split(1, lanes)
    first.reorder({3: 1})  # [block, other, vector, lane]
    f["weight"].compute_at(first, -1)
    # Whether the last block is whole is asked once, in front of the loop over the others.
    first.axis(1).parallelize(ln.ParallelType.unswitch)
    first.axis(2).parallelize(ln.ParallelType.unroll)
    first.axis(3).parallelize(ln.ParallelType.vectorize)
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
