"""`loopnest.jax.op`: a kernel as a function of JAX."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from kernels.adam import adam
from kernels.gemm import gemm
from kernels.softmax import softmax

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")
op = pytest.importorskip("loopnest.jax").op
jnp = jax.numpy


def array(*shape):
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def times(kernel, **options):
    """Return a kernel that multiplies by a scalar, as a function of JAX."""
    with ln.Fusion(kernel) as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * f.scalar("a", ln.float32), "y")
    return op(f, **options)


def test_kernels_of_the_repository():
    rows, product = op(softmax, "jax_softmax", schedule="cpu"), op(gemm.lower("cpu"), "jax_gemm")
    x, w = array(9, 33), array(33, 7)
    np.testing.assert_allclose(rows(x), jax.nn.softmax(x, axis=1), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(product)(x, w), x @ w, rtol=1e-4, atol=1e-5)
    both = jax.jit(lambda x, w: product(rows(x) + 1.0, w).sum())
    np.testing.assert_allclose(both(x, w), ((jax.nn.softmax(x, 1) + 1) @ w).sum(), rtol=1e-4)


def test_shapes_are_told():
    found = jax.eval_shape(op(gemm, "jax_shapes", schedule="cpu"), array(4, 6), array(6, 5))
    assert (found.shape, found.dtype) == ((4, 5), np.float32)


def test_several_outputs_scalars_and_sizes():
    with ln.Fusion("jax_parts") as f:
        x = f.input("x", ("N",), ln.float32)
        a = f.scalar("a", ln.float32)
        f.output(x * a, "y")
        f.output(ln.sum(x, axis=0) + ln.cast(ln.iota("M"), ln.float32), "z")
    parts = op(f)
    x = array(6)
    y, z = jax.jit(lambda x: parts(x, 3.0, 4))(x)
    np.testing.assert_allclose(y, x * 3, rtol=1e-6)
    np.testing.assert_allclose(z, x.sum() + np.arange(4), rtol=1e-5)


def test_a_gradient():
    own = times("jax_times", gradient=lambda inputs, outputs, grads: own(grads[0], 3.0))
    x = array(5)
    value, slope = jax.value_and_grad(lambda x: (own(x, 3.0) ** 2).sum())(x)
    np.testing.assert_allclose(value, (9 * x**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(slope, 18 * x, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda x: own(x, 3.0).sum()))(x), 3, rtol=1e-6)


def test_a_gradient_of_two_arrays_one_of_which_has_none():
    def gradient(inputs, outputs, grads):
        return (jnp.matmul(grads[0], inputs[1].T), None)

    product = op(gemm, "jax_half", gradient=gradient, schedule="cpu")
    a, b = array(3, 4), array(4, 5)
    left, right = jax.grad(lambda a, b: product(a, b).sum(), argnums=(0, 1))(a, b)
    np.testing.assert_allclose(left, np.ones((3, 5), np.float32) @ b.T, rtol=1e-5)
    assert not right.any()


def test_vmap():
    rows = op(softmax, "jax_mapped", schedule="cpu")
    x = array(3, 4, 8)
    np.testing.assert_allclose(jax.vmap(rows)(x), jax.nn.softmax(x, axis=2), rtol=1e-5)


def test_narrow_floats():
    with ln.Fusion("jax_narrow") as f:
        f.output(f.input("x", ("N",), ln.bfloat16) * 2.0, "y")
    x = jnp.arange(5, dtype=jnp.bfloat16)
    assert op(f)(x).tolist() == [0, 2, 4, 6, 8]


MISTAKES = [
    ((array(3),), "1 were given; it takes 2 arguments (x, a)"),
    ((array(3, 3), 1.0), "x is float32[3, 3]; pass float32[N]"),
    ((np.arange(3, dtype=np.int32), 1.0), "x is int32[3]; pass float32[N]"),
]


def refused(error, text, call, *args, **keywords):
    """Expect an error of exactly this text; JAX may add lines of its own."""
    with pytest.raises(error) as found:
        call(*args, **keywords)
    assert str(found.value) == text


def test_arguments_that_do_not_fit():
    own = times("jax_mistakes")
    for given, text in MISTAKES:
        refused(ln.LaunchError, f"jax_mistakes(...): {text}", own, *given)
    with ln.Fusion("jax_wide") as f:
        f.output(ln.sum(f.input("x", ("N",), ln.int32), axis=0), "y")
    refused(
        ln.LaunchError,
        "jax_wide(...): y is int64, and this JAX computes in 32 bits; "
        'jax.config.update("jax_enable_x64", True)',
        op(f), jnp.arange(3),
    )  # fmt: skip


def test_kernels_that_are_no_functions_of_jax():
    times("jax_again")
    error = ln.DefinitionError
    there = "op(jax_again): a function of JAX of the name jax_again is there already"
    refused(error, f"{there}; pass another name", times, "jax_again")
    refused(error, "op(a-b): the name is not an identifier", times, "jax_more", name="a-b")
    refused(
        error,
        "op(adam): it overwrites its input p; arrays of JAX are never written: declare the output "
        "without inplace",
        op, adam, schedule="cpu",
    )  # fmt: skip
    refused(
        error,
        "op(…): it was given an int; pass a Fusion, a Kernel, or what @ln.kernel made",
        op, 3,
    )  # fmt: skip


def test_sizes_that_disagree_and_gradients_that_are_missing():
    product = op(gemm, "jax_disagree", schedule="cpu")
    with pytest.raises(Exception, match=r"gemm: axis 0 of b has the extent 5; K is 4"):
        product(array(3, 4), array(5, 6)).block_until_ready()
    with pytest.raises(Exception, match="cannot be differentiated"):
        jax.grad(lambda a: product(a, array(4, 6)).sum())(array(3, 4))
    own = times("jax_few", gradient=lambda inputs, outputs, grads: (grads[0], grads[0]))
    refused(
        ln.DefinitionError,
        "the gradient of jax_few: it returned 2 gradients; return one for each of 1 tensors, None "
        "where there is none",
        jax.grad(lambda x: own(x, 1.0).sum()), array(3),
    )  # fmt: skip
