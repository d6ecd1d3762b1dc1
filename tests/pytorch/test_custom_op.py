"""`loopnest.torch.op`: a kernel as an operator of torch."""

import pytest

torch = pytest.importorskip("torch")

import loopnest as ln  # noqa: E402 - torch is asked for first
from loopnest.torch import loopnest_backend, op  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of several versions


def row_sums(name):
    with ln.Fusion(name) as f:
        x = f.input("x", ("N", "D"), ln.float32)
        a = f.scalar("alpha", ln.float32)
        f.output(ln.sum(x * a, axis=1), "y")
        f.output(x * x, "z")
    return f


SUMS = op(
    row_sums("test_sums"),
    gradient=lambda inputs, outputs, grads: (2 * inputs[0] * grads[1] + 3 * grads[0][:, None],),
)


def test_opcheck():
    x = torch.randn(4, 6, requires_grad=True)
    torch.library.opcheck(SUMS, (x, 3.0))
    torch.library.opcheck(SUMS, (x.detach()[:, ::2], 3.0))


def test_values_and_gradient():
    x = torch.randn(3, 5, requires_grad=True)
    y, z = SUMS(x, 3.0)
    torch.testing.assert_close(y, 3 * x.sum(1))
    torch.testing.assert_close(z, x * x)
    (y.sum() + z.sum()).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() + 3)


@pytest.mark.parametrize("backend", ["aot_eager", loopnest_backend])
def test_inside_a_compiled_model(backend):
    torch._dynamo.reset()
    model = lambda x: SUMS(x.relu(), 3.0)[0].exp().sum()  # noqa: E731
    fast = torch.compile(model, backend=backend)
    for count in (3, 5, 4):
        x = torch.randn(count, 5, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        fast(x).backward()
        model(other).backward()
        torch.testing.assert_close(x.grad, other.grad)


def test_an_output_in_place():
    with ln.Fusion("test_bump") as f:
        x = f.input("x", ("N",), ln.int32)
        f.output(x + 1, "y", inplace=x)
    bump = op(f)
    x = torch.zeros(4, dtype=torch.int32)
    assert bump(x) is None
    assert x.tolist() == [1, 1, 1, 1]
    torch.library.opcheck(bump, (x,))


def test_sizes_that_no_shape_gives():
    with ln.Fusion("test_ramp") as f:
        x = f.input("x", (1,), ln.bfloat16)
        f.output(x + ln.cast(ln.iota("N"), ln.bfloat16), "y")
    ramp = op(f)
    assert ramp(torch.ones(1, dtype=torch.bfloat16), 3).tolist() == [1.0, 2.0, 3.0]
    torch.library.opcheck(ramp, (torch.ones(1, dtype=torch.bfloat16), 3))


def test_a_definition_with_schedules():
    @ln.kernel(sizes={"N": 10})
    def test_triple(f):
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 3.0, "y")

    @test_triple.schedule("wide")
    def wide(f):
        f["y"].split(0, 4)

    @test_triple.schedule("plain")
    def plain(f):
        pass

    triple = op(test_triple, schedule={"c": "plain"})
    assert triple(torch.ones(2)).tolist() == [3.0, 3.0]


def test_no_gradient():
    with ln.Fusion("test_plain") as f:
        f.output(f.input("x", ("N",), ln.float32) + 1.0, "y")
    plain = op(f)
    y = plain(torch.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match="test_plain"):
        y.sum().backward()


def test_wrong_calls():
    with pytest.raises(ln.DefinitionError) as found:
        op(row_sums("again"), name="test_sums")
    assert str(found.value) == (
        "op(test_sums): torch.ops.loopnest.test_sums is there already; pass another name"
    )
    with pytest.raises(ln.DefinitionError) as found:
        op(3)
    assert str(found.value) == (
        "op(…): it was given an int; pass a Fusion, a Kernel, or what @ln.kernel made"
    )
    with pytest.raises(ln.DefinitionError) as found:
        op(row_sums("named"), name="a b")
    assert str(found.value) == "op(a b): the name is not an identifier"
    with pytest.raises(ln.LaunchError) as found:
        SUMS(torch.ones(2, 2, dtype=torch.float64), 1.0)
    assert "test_sums" in str(found.value)
    one = op(row_sums("test_one"), gradient=lambda inputs, outputs, grads: ())
    y, _ = one(torch.ones(2, 2, requires_grad=True), 1.0)
    with pytest.raises(ln.DefinitionError) as found:
        y.sum().backward()
    assert str(found.value) == (
        "the gradient of loopnest::test_one: it returned 0 gradients; "
        "return one for each of 1 tensors, None where there is none"
    )
