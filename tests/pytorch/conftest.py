"""Fixtures of the tests with torch."""

import pytest


@pytest.fixture(autouse=True)
def fresh():
    """Forget what torch compiled for the test before."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
