"""`f.inline_most()` and `ln.inline_most()`: of all tensors, or of those that are given."""

import pytest

import loopnest as ln


def chain(name="k"):
    with ln.Fusion(name) as f:
        x = f.input("x", ("N", "D"), ln.float32)
        a = ln.exp(x)
        b = ln.tanh(a)
        f.output(b + 1.0, "y")
    return f, a, b


@pytest.mark.parametrize("form", [list, tuple, iter, lambda tensors: tensors[0]])
def test_tensors_of_a_fusion(form):
    f, a, b = chain()
    _, other_a, other_b = chain()
    f.inline_most(form([b]))
    ln.inline_most(form([other_b]))
    assert (a.compute_at_pos, b.compute_at_pos) == (0, 2)
    assert (other_a.compute_at_pos, other_b.compute_at_pos) == (0, 2)
    f.inline_most([])
    assert a.compute_at_pos == 0
    f.inline_most()
    assert a.compute_at_pos == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda f, g, a: [a], "k.inline_most(…): T1 is a tensor of g; give tensors of k"),
        (lambda f, g, a: a, "k.inline_most(…): T1 is a tensor of g; give tensors of k"),
        (
            lambda f, g, a: [f["y"], a],
            "k.inline_most: T1 is no TensorView of the same fusion; give TensorViews",
        ),
        (
            lambda f, g, a: "y",
            "k.inline_most: 'y' is no TensorView of the same fusion; give TensorViews",
        ),
        (lambda f, g, a: 3, "k.inline_most(3): 3 is no list of TensorViews"),
    ],
)
def test_what_is_no_tensor_of_the_fusion(given, message):
    f, a, b = chain()
    g, other, _ = chain("g")
    with pytest.raises(ln.ScheduleError) as caught:
        f.inline_most(given(f, g, other))
    assert str(caught.value) == message
    assert (a.compute_at_pos, b.compute_at_pos) == (0, 0)
