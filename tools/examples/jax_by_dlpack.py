"""Pass arrays of JAX to a kernel and back, by DLPack.

    tools/run python tools/examples/jax_by_dlpack.py

JAX's arrays are not changed in place, so a kernel reads them where they are and writes arrays of
its own; `jax.numpy.from_dlpack` takes those without a copy. Inside `jax.jit` a kernel is a callback
(`jax.pure_callback`), whose shapes JAX must be told. On "cuda" a compiled kernel takes JAX's arrays
of a GPU as they are.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import loopnest as ln


def softmax() -> ln.Kernel:
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        e = ln.exp(x - ln.max(x, axis=1, keepdims=True))
        f.output(e / ln.sum(e, axis=1, keepdims=True), "y")
    f.inline_most()
    return ln.lower(f)


def main() -> int:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        print("jax is not installed")
        return 0
    run = ln.compile(softmax(), target="c")
    x = jax.random.normal(jax.random.key(0), (4, 8), jnp.float32)

    def call(array: Any) -> Any:
        return jnp.from_dlpack(run(np.from_dlpack(array)))

    y = call(x)
    print(type(y).__name__, float(jnp.abs(y - jax.nn.softmax(x)).max()))

    @jax.jit
    def model(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda a: run(np.asarray(a)), shape, x * 2.0).sum(0)

    print(float(jnp.abs(model(x) - jax.nn.softmax(x * 2.0).sum(0)).max()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
