"""Compile a torch model by loopnest, and compare its values and gradients."""

import pytest

torch = pytest.importorskip("torch")


from loopnest.torch import loopnest_backend  # noqa: E402


def compiled(model, **options):
    return torch.compile(model, backend=loopnest_backend, options=options)


def close(found, expected, factor=1.0):
    torch.testing.assert_close(found, expected, rtol=2e-5 * factor, atol=2e-5 * factor)


def gradients(model, call, *inputs):
    """Return the value of a call, and all gradients of its sum of squares."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    model.zero_grad()
    found = call(*leaves)
    (found * found).sum().backward()
    return found.detach(), [x.grad for x in leaves], [p.grad.clone() for p in model.parameters()]
