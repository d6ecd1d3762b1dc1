"""JAX: a scheduled kernel as one of its functions.

In comes a kernel; out goes a function of JAX's arrays, under `jax.jit`, `jax.vmap` and `jax.grad`.
There is one module, `jax_op`: it exports the kernel as a library, which jax-tvm-ffi registers with
JAX as it is (`exports.ffi_entry`), and tells JAX the shapes of results.

Needs JAX: ``pip install loopnest[jax]``. `import loopnest` does not import jax.
"""

from loopnest.jax.jax_op import op

__all__ = ["op"]
