"""Fixtures of the tests with torch.

`LOOPNEST_TORCH_DEVICE=cuda tools/run pytest tests/pytorch` puts their tensors on a GPU.
"""

import os
from contextlib import suppress

import pytest

with suppress(ImportError):
    import torch

    if "LOOPNEST_TORCH_DEVICE" in os.environ:
        torch.set_default_device(os.environ["LOOPNEST_TORCH_DEVICE"])


@pytest.fixture(autouse=True)
def fresh():
    """Forget what torch compiled for the test before."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
