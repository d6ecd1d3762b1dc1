"""A matrix product: c = a @ b."""

import loopnest as ln


def gemm_numpy(a, b):
    return a @ b


@ln.kernel(sizes={"M": 2048, "N": 2048, "K": 1024}, reference=gemm_numpy)
def gemm(f, dtype=ln.float32):
    a = f.input("a", ("M", "K"), dtype)
    b = f.input("b", ("K", "N"), dtype)
    f.output(ln.matmul(a, b), "c")
