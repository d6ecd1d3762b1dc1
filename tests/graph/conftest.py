"""Fixtures of tests that register passes."""

import pytest

import loopnest.graph as G


@pytest.fixture
def clean_catalog():
    """Forget the toy passes that a test registers."""
    before = set(G.pass_names())
    yield
    for name in set(G.pass_names()) - before:
        G.unregister_pass(name)
