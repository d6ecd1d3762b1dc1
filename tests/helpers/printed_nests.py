"""The C text of nests without its headers, and arrays to run it on, for tests of the C printer."""

import numpy as np
import pytest

from loopnest.backends.cpu.c_printer import print_c

RNG = np.random.default_rng(7)


def randn(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def body_of(program, **options):
    """Return the text without the headers."""
    return print_c(program, prelude=False, **options)


def both_widths(test):
    return pytest.mark.parametrize("bits", [32, 64])(test)
