"""`loopnest.torch.error_bound`, `assert_close`: results of anybody's kernel, by the math alone."""

import re

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch is asked for first
from torch.nn import functional as F  # noqa: E402

import loopnest as ln  # noqa: E402
from loopnest.torch import assert_close, error_bound  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of several versions


def normal(*shapes, dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def slope(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(x.tanh().sum(), x)[0]


CASES = {
    "sum": (lambda x: x.sum(1), normal((4, 300))),
    "softmax": (lambda x: x.softmax(-1), normal((4, 33))),
    "layer norm": (nn.LayerNorm(16), normal((5, 16))),
    "gelu": (F.gelu, normal((5, 16))),
    "product": (lambda a, b: a @ b.T, normal((5, 70), (6, 70))),
    "convolution": (nn.Conv2d(4, 6, 3, padding=1, groups=2), normal((2, 4, 8, 8))),
    "batch norm": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), normal((2, 3, 8, 8))),
    "max pool": (lambda x: F.max_pool2d(x.exp(), 2), normal((1, 2, 8, 8))),
    "loss": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3])), normal((3, 9))),
    "indices that are computed": (lambda x: x[x.argmax(1)].exp(), normal((4, 4))),
    "sorted": (lambda x: x.sort(-1)[0].exp(), normal((4, 9))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        normal(*[(1, 2, 9, 8)] * 3),
    ),
    "recurrence": (nn.LSTM(4, 3), normal((2, 2, 4))),
    "gradient": (slope, normal((4, 5))),
    "several": (lambda x: {"y": [x.exp(), x.t().sin()], "z": (x.sum(),)}, normal((4, 5))),
    "one twice": (lambda x: (y := x.exp(), y), normal((4, 5))),
    "a number": (lambda x, axis, by: (x / by).sum(axis), [*normal((4, 5)), 1, 3.0]),
    "bfloat16": (lambda x: (x * 1.1).softmax(-1), normal((5, 70), dtype=torch.bfloat16)),
    "float64": (lambda x: x.cumsum(1), normal((3, 50), dtype=torch.float64)),
}


def leaves(found):
    return torch.utils._pytree.tree_leaves(found)


@pytest.mark.parametrize("case", CASES)
def test_torch_lies_within_the_bound_and_zeros_do_not(case):
    fn, args = CASES[case]
    wanted = fn(*args)
    assert_close(wanted, fn, *args)
    zeros = torch.utils._pytree.tree_map(torch.zeros_like, wanted)
    with pytest.raises(AssertionError):
        assert_close(zeros, fn, *args)
    bounds = error_bound(fn, *args)
    assert torch.utils._pytree.tree_structure(bounds) == torch.utils._pytree.tree_structure(wanted)
    for bound, value in zip(leaves(bounds), leaves(wanted), strict=True):
        assert bound.dtype == torch.float64
        assert bound.shape == value.shape
        assert 0 < bound.max() < 0.1 * value.abs().max()


def test_the_bound_is_that_of_the_math():
    """A sum of n terms errs by n - 1 roundings of the sum of magnitudes, and is rounded once."""
    (x,) = normal((6, 40))
    bound = error_bound(lambda x: x.sum(1), x)
    magnitudes = x.double().abs().sum(1)
    assert (bound <= 41 * 2.0**-24 * magnitudes).all()
    assert (bound >= 39 * 2.0**-24 * magnitudes * 0.9).all()


def test_values_between_may_stay_unrounded():
    """A kernel that keeps what torch rounds to bfloat16 is right too, a wrong one not."""
    fn = lambda x, y: (x * y) - x  # noqa: E731
    x, y = normal((64, 64), (64, 64), dtype=torch.bfloat16)
    fused = (x.float() * y.float() - x.float()).bfloat16()
    assert not torch.equal(fused, fn(x, y))
    assert_close(fused, fn, x, y)
    assert_close(fn(x, y), fn, x, y)
    with pytest.raises(AssertionError):
        assert_close(fused * 1.02, fn, x, y)


def with_bias_first(x, w, b):
    found = b.expand(len(x), -1)
    for k in range(len(w)):
        found = found + x[:, k : k + 1] * w[k]
    return found


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, b: x @ w + b,
        lambda x, w, b: F.linear(x, w.T, b),
        lambda x, w, b: x @ w - -b,
        lambda x, w, b: F.conv2d(x[:, :, None, None], w.T[:, :, None, None], b)[:, :, 0, 0],
    ],
)
def test_a_sum_may_begin_with_what_is_added_to_it(fn):
    """A bias that is far larger than the products is rounded with each of them, then."""
    x, w, b = 0.01 * torch.randn(200, 6), 0.01 * torch.randn(6, 50), torch.randn(50)
    got = with_bias_first(x, w, b)
    assert_close(got, fn, x, w, b)
    assert_close(fn(x, w, b), fn, x, w, b)
    assert error_bound(fn, x, w, b).max() < 9 * 2.0**-24 * b.abs().max()
    with pytest.raises(AssertionError):
        assert_close(got + 2e-6, fn, x, w, b)
    b[0], b[1] = torch.nan, torch.inf
    assert_close(fn(x, w, b), fn, x, w, b)
    with pytest.raises(AssertionError, match=r"; 400 of 10000 elements differ"):
        assert_close(fn(x, w, b).nan_to_num(0, 0), fn, x, w, b)


def test_one_wrong_element_is_named():
    (x,) = normal((3, 5))
    got = x.exp()
    got[1, 2] += 1
    with pytest.raises(AssertionError) as caught:
        assert_close(got, torch.exp, x)
    assert re.fullmatch(
        r"assert_close\(exp\): the result: largest error 1 at \[1, 2\], where rounding allows "
        r"[\d.]+e-0[67]; 1 of 15 elements differ",
        str(caught.value),
    )


def test_each_wrong_result_is_named():
    (x,) = normal((3, 5))
    fn = lambda x: (x.exp(), x.neg(), x.t(), x.sum())  # noqa: E731
    got = (x.exp().double(), x.neg()[:2], 3, x.sum())
    with pytest.raises(AssertionError) as caught:
        assert_close(got, fn, x)
    assert str(caught.value) == (
        "assert_close(<lambda>): result 0: its type is torch.float64, not torch.float32; "
        "result 1: its shape is (2, 5), not (3, 5); result 2: it is an int, no tensor"
    )
    with pytest.raises(AssertionError) as caught:
        assert_close(got[:3], fn, x)
    assert str(caught.value) == "assert_close(<lambda>): 3 results, not 4"


def test_a_part_of_large_results_is_compared():
    a, b = normal((900, 700), (700, 800))
    got = a @ b
    assert_close(got, torch.matmul, a, b)
    got[-1] += 1
    with pytest.raises(AssertionError, match=r"at \[899, \d+\].*; compared \d+ of 720000 elements"):
        assert_close(got, torch.matmul, a, b)


def test_arguments_and_modules_stay_as_they_are():
    (x,) = normal((5, 4))
    kept = x.clone()
    error_bound(lambda x: x.mul_(2).add_(1), x)
    assert torch.equal(x, kept)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    error_bound(model, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_argument_that_lies_otherwise_in_memory():
    (x,) = normal((6, 5))
    for view in (x.t(), x[::2], x[:, 1:], x[:1].expand(4, 5)):
        assert_close(view.exp().sum(0), lambda x: x.exp().sum(0), view)


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (3, ln.DefinitionError, "{}(int): it was given an int; pass a function of torch's"),
        (
            lambda x: (x, 3),
            ln.DefinitionError,
            "{}(<lambda>): the function returns an int; it returns tensors alone",
        ),
        (
            lambda x: torch.linalg.det(x),
            ln.NotSupported,
            "{}(<lambda>): there is no math of aten._linalg_det.default made at "
            f"{__file__}:LINE: it has no rule",
        ),
        (
            lambda x: torch.fft.fft(x).real,
            ln.NotSupported,
            "{}(<lambda>): aten._fft_r2c.default returns torch.complex64",
        ),
    ],
)
def test_what_is_refused(fn, error, message):
    (x,) = normal((4, 4))
    for name, call in {
        "error_bound": lambda: error_bound(fn, x),
        "assert_close": lambda: assert_close(x, fn, x),
    }.items():
        with pytest.raises(error) as caught:
            call()
        assert re.sub(r":\d+:", ":LINE:", str(caught.value)) == message.format(name)


def test_functions_that_look_at_data_or_fail():
    (x,) = normal((4, 5))
    told = r"^error_bound\(<lambda>\): torch cannot trace it: .*; it may not look at what .* hold$"
    with pytest.raises(ln.NotSupported, match=told):
        error_bound(lambda x: x if x.sum() > 0 else -x, x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        error_bound(lambda x: x @ x, x)
