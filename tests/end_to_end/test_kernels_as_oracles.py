"""`ln.evaluate` and `ln.error_bound` of a kernel: those of the fusion that it was lowered from."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from end_to_end.test_goldens import CASES
from loopnest.devtools.harness import make_arguments
from loopnest.devtools.trial_sizes import sizes_of_variants
from loopnest.facade.kernel_class import Kernel


@pytest.mark.parametrize(("kernel", "schedule"), CASES)
def test_a_kernel_means_what_its_fusion_means(kernel, schedule):
    math = kernel.fusion(schedule)
    lowered = kernel.lower(schedule)
    sizes = sizes_of_variants(lowered.program, {})[-1]
    made = make_arguments(math, {**kernel.sizes, **sizes}, kernel.ranges)
    for asked in (ln.evaluate, ln.error_bound):
        wanted = asked(math, *made.fresh(), **made.keywords(math))
        found = asked(lowered, *made.fresh(), **made.keywords(math))
        wanted, found = ([x] if isinstance(x, np.ndarray) else list(x) for x in (wanted, found))
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a, b)


def scheduled():
    with ln.Fusion("row_sum") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        a = f.scalar("a", ln.float32)
        y = f.output(ln.sum(a * x, axis=1), "y")
    y.split(1, 4)
    part = y.rfactor(2)
    part.compute_at(y, 1)
    return f


def test_a_kernel_keeps_its_math_in_every_form():
    f = scheduled()
    k = ln.lower(f)
    x = np.linspace(-1, 1, 14, dtype=np.float32).reshape(2, 7)
    wanted, tensors = ln.evaluate(k, x, a=0.1, tensors=True, exact=True)
    assert list(tensors) == [t.name for t in f.tensors]
    for form in (Kernel.parse(k.text(full=True)), pickle.loads(pickle.dumps(k)), f):
        assert (ln.evaluate(form, x, a=0.1, exact=True) == wanted).all()
        bound = ln.error_bound(form, x, a=0.1, target="c")
        assert (bound == ln.error_bound(k, x, a=0.1, target="c")).all()
        assert (bound > 0).all()
        assert (bound < 1e-6).all()
    f["y"].parallelize({0: ln.ParallelType.grid_x})  # a later schedule does not reach the kernel
    assert (ln.evaluate(k, x, a=0.1, exact=True) == wanted).all()


def test_sizes_that_no_input_tells_are_keywords():
    with ln.Fusion("ramp") as f:
        f.output(ln.cast(ln.iota("N"), ln.float32) * 0.5, "y")
    assert ln.evaluate(ln.lower(f), N=3).tolist() == [0.0, 0.5, 1.0]
    assert ln.error_bound(ln.lower(f), N=3).tolist() == [0.0, 0.0, 0.0]


def test_assumptions_and_ranges_are_those_of_the_fusion():
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N",), ln.float32)
        i = f.input("i", ("M",), ln.int32)
        f.assume("N % 4 == 0")
        f.assume_range(i, 0, "N")
        f.output(ln.take(x, i, 0), "y")
    k, x = ln.lower(f), np.arange(4, dtype=np.float32)
    assert ln.evaluate(k, x, np.array([3, 0], np.int32)).tolist() == [3.0, 0.0]
    for arrays in ((x[:3], np.zeros(2, np.int32)), (x, np.array([4], np.int32)), (x,)):
        messages = []
        for asked in (f, k):
            with pytest.raises(ln.LaunchError) as caught:
                ln.evaluate(asked, *arrays)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def test_a_program_made_by_hand_carries_no_math():
    k = ln.lower(scheduled())
    bare = Kernel(replace(k._lowered, math=None))
    for name in ("evaluate", "error_bound"):
        with pytest.raises(ln.LaunchError) as caught:
            getattr(ln, name)(bare)
        assert str(caught.value) == (
            f"{name}(<Kernel row_sum>): this kernel carries no math; "
            "pass the fusion, or the kernel that ln.lower made of it"
        )
