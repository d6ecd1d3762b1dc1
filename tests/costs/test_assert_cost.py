"""`assert_cost`: limits that hold, limits that do not, and limits that are none."""

import pytest

import loopnest as ln
from loopnest.costs.cost_limits import moved_costs

TYPES = ln.ParallelType


@pytest.fixture(scope="module")
def kernel():
    """2 x, by threads one after the other: sectors are read eight times."""
    with ln.Fusion("doubled") as f:
        x = f.input("x", (1024, 32), ln.float32)
        f.output(x + x, "y")
    f["y"].split(0, 128)
    f["y"].parallelize({0: TYPES.grid_x, 1: TYPES.block_x})
    return ln.lower(f)


def test_limits_that_hold(kernel):
    ln.assert_cost(kernel, {}, gmem_ratio="<=8", barriers=0, bank_conflicts="==0", spills=0,
                   registers="<=64", shared_bytes="<48K", flops=1024 * 32)  # fmt: skip


def test_what_is_not_within_its_limit(kernel):
    with pytest.raises(ln.CostError) as told:
        ln.assert_cost(kernel, {}, gmem_ratio="<=1.05", flops=7, barriers=0)
    assert str(told.value) == (
        "doubled at its own sizes: gmem_ratio is 8, not <= 1.05 (x moves 1048576 bytes in sectors, "
        "where 131072 do); flops is 32768, not == 7"
    )
    assert isinstance(told.value, AssertionError)


def test_the_access_that_is_not_wide(kernel):
    with pytest.raises(ln.CostError, match=r"most by the load x\[.*\], of 4 bytes"):
        ln.assert_cost(kernel, {}, wide_accesses=">=0.9")


def test_elements_that_are_computed_again():
    """By every thread, or by each that reads them."""
    kernels = []
    for placed in (0, 1):
        with ln.Fusion("blurred") as f:
            root = ln.sqrt(f.input("x", (64,), ln.float32))
            y = f.output(ln.sum(ln.unfold(root, 0, 3), 1), "y")
        if placed:
            f.inline_most()
        y.parallelize({0: TYPES.block_x})
        kernels.append(ln.lower(f))
    ln.assert_cost(kernels[1], {}, again="<=3", in_flight=24, products=0)
    with pytest.raises(ln.CostError) as told:
        ln.assert_cost(kernels[1], {}, again=1, in_flight=">=64")
    assert str(told.value) == (
        "blurred at its own sizes: again is 2.906, not == 1 (each element of T1); in_flight is 24, "
        "not >= 64"
    )
    before, after = [ln.profile(kernel) for kernel in kernels]
    assert "again was 62 and is 2.906 (each element of T1)" in moved_costs(before, after)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"speed": 1}, "assert_cost(...): there is no cost 'speed'; the costs are gmem_ratio, "),
        (
            {"barriers": "few"},
            "assert_cost(...): barriers='few' is no limit; pass a number, or as ",
        ),
        (
            {"gmem_ratio": "<= 1.0.0"},
            "assert_cost(...): gmem_ratio='<= 1.0.0' is no limit; pass a number, or as ",
        ),
        ({"flops": float("nan")}, "assert_cost(...): flops=nan is no limit; pass a number, or as "),
        ({"barriers": True}, "assert_cost(...): barriers=True is no limit; pass a number, or as "),
        ({"arch": "sm_1"}, "assert_cost(...): no device has the architecture 'sm_1'; use sm_80, "),
    ],
)
def test_limits_that_are_none(kernel, limits, message):
    with pytest.raises(ln.LoopnestError) as told:
        ln.assert_cost(kernel, {}, **limits)
    assert str(told.value).startswith(message)


def test_what_is_no_kernel():
    with pytest.raises(ln.LoopnestError) as told:
        ln.profile(3)
    assert str(told.value) == "profile(...): an int is no kernel; pass what ln.lower returned"


def test_an_unknown_device(kernel):
    with pytest.raises(ln.LoopnestError) as told:
        ln.profile(kernel, device="V1")
    assert str(told.value) == (
        "profile(device='V1'): no device is called 'V1'; use one of A100, H100, H200, B200, "
        "RTX 4090"
    )


def test_a_size_that_is_missing():
    with ln.Fusion("doubled") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x + x, "y")
    with pytest.raises(ln.LaunchError):
        ln.profile(ln.lower(f))
