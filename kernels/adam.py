"""One step of Adam over a flat parameter: three inputs are overwritten by three outputs.

`f.output(tensor, name, inplace=input)` gives an output an input's memory. That is legal only
where each element is read before it is overwritten, by the same thread: here all three results
share all their loops, and so each element of p, m and v is loaded, updated and stored at once.

The bias corrections change from step to step, so they are run-time scalars. Elements of 16 bits are
widened where they are loaded, and rounded once, where they are stored.
"""

import numpy as np

import loopnest as ln


def adam_numpy(p, g, m, v, correction1, correction2, lr, beta1, beta2, eps):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    p = p - lr * (m * correction1) / (np.sqrt(v * correction2) + eps)
    return p, m, v


@ln.kernel(
    sizes={"N": 1 << 22},
    reference=adam_numpy,
    ranges={"v": (0.01, 1.0), "correction1": (1.0, 2.0), "correction2": (1.0, 2.0)},
)
def adam(f, dtype=ln.float32, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    p, g, m, v = [f.input(name, ("N",), dtype) for name in ("p", "g", "m", "v")]
    correction1 = f.scalar("correction1", dtype.compute)  # 1 / (1 - beta1 ** step)
    correction2 = f.scalar("correction2", dtype.compute)
    held = (p, m, v)
    if dtype is not dtype.compute:
        p, g, m, v = [ln.cast(t, dtype.compute) for t in (p, g, m, v)]
    new_m = beta1 * m + (1 - beta1) * g
    new_v = beta2 * v + (1 - beta2) * g * g
    step = lr * (new_m * correction1) / (ln.sqrt(new_v * correction2) + eps)
    for new, old in zip((p - step, new_m, new_v), held, strict=True):
        result = new if dtype is dtype.compute else ln.cast(new, dtype)
        f.output(result, f"new_{old.name}", inplace=old)


@adam.schedule("gpu")
def gpu(f, threads=256, lanes=None):
    """A thread updates `lanes` neighbours, by accesses of 16 bytes.

    The copies of the inputs are what is loaded as vectors. `new_m` and `new_v` are outputs, and
    `new_p` reads them: `cache_fork` keeps them in registers, and makes the outputs copies. Of 16
    bits they are such copies already.
    """
    p = f["new_p"]
    copies = [f[name].cache_after() for name in ("p", "g", "m", "v")]
    outputs = [f[name] for name in ("new_m", "new_v")]
    outputs = [t.cache_fork() if t.consumers else t for t in outputs]
    p.split(0, lanes or 16 // p.dtype.size)
    p.split(0, threads)
    p.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    ln.propagate(p)
    for copy in copies:
        copy.compute_at(p, 2)
    for tensor in (*copies, *outputs, p):
        tensor.axis(2).parallelize(ln.ParallelType.vectorize)
    ln.inline_most()


@adam.schedule("cpu")
def cpu(f, chunk=4096):
    """Chunks go to the cores, and the loop over a chunk becomes vector code.

    The last chunk may be short. `unswitch` tests once a chunk whether it is.
    """
    p = f["new_p"]
    p.split(0, chunk)
    p.parallelize({0: ln.ParallelType.cpu_parallel, 1: ln.ParallelType.unswitch})
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
