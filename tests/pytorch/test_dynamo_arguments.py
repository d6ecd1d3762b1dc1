"""Arguments of compiled torch programs: views, strides, memory that is shared or changed."""

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import loopnest as ln  # noqa: E402 - torch is asked for first
import loopnest.graph as G  # noqa: E402
from helpers.torch_models import close, compiled  # noqa: E402
from loopnest.torch import loopnest_backend, recording  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of several versions


def mutating(x, y):
    x.add_(y)
    y[1:] *= 2
    return x.sum() + y[0].sum()


def test_arguments_that_the_program_changes():
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    a, b = x.clone(), y.clone()
    close(compiled(mutating)(a, b), mutating(x, y))
    close((a, b), (x, y))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.t(), x[1:].clone(), x.view(-1)),
        lambda x: (x.clone(), x + 1, (x + 1).t()),
        lambda x: (x, x),
        lambda x: x.permute(1, 0).contiguous() * 2,
    ],
)
def test_views_and_copies(function):
    """What torch returns as a view of an argument is one, and what it copies is none."""
    x = torch.randn(3, 4)
    expected, found = function(x), compiled(function)(x)
    close(found, expected)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for a, b in pairs:
        assert a.stride() == b.stride()
        same = b.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert (a.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == same


@pytest.mark.parametrize("given", [(4, 3), (3, 8), (0, 4), (3, 0)])
def test_strided_and_empty_arguments(given):
    rows, columns = given
    x = torch.randn(columns, rows).t()[:, ::2]
    model = lambda x: (x * 2 + 1).sum(0)  # noqa: E731
    close(compiled(model)(x), model(x))


LAYOUTS = {
    "transposed": lambda: torch.randn(6, 5).t(),
    "sliced": lambda: torch.randn(9, 12)[1:6, ::2],
    "expanded": lambda: torch.randn(5, 1).expand(5, 6),
    "permuted": lambda: torch.randn(2, 3, 5).permute(2, 0, 1).flatten(1)[:, :6],
    "unfolded": lambda: torch.randn(10).unfold(0, 6, 1),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strided_arguments_are_read_where_they_lie(name, monkeypatch):
    """No argument is copied: the address that a kernel takes is that of the tensor."""
    from loopnest.torch import compiled_program

    x = LAYOUTS[name]()
    model = lambda x: (x * 2).exp().sum(1)  # noqa: E731
    seen = []

    def address(array):
        seen.append(array.data_ptr())
        return array.data_ptr()

    original = compiled_program.TorchArrays.__init__

    def made(self, device):
        original(self, device)
        self.address = address

    monkeypatch.setattr(compiled_program.TorchArrays, "__init__", made)
    copies = []
    whole = torch.Tensor.contiguous
    monkeypatch.setattr(
        torch.Tensor, "contiguous", lambda t, *a, **k: copies.append(t.shape) or whole(t, *a, **k)
    )
    with recording() as programs:
        fast = compiled(model, library=False)
        close(fast(x), model(x), 5)
    assert x.data_ptr() in seen
    assert copies == []
    assert [ln.verify(k.kernel).status for p in programs for k in p.kernels] == ["proved"]


def test_a_convolution_in_torch_reads_and_returns_channels_last():
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    with recording() as programs, torch.no_grad():
        found = compiled(model)(x)
    close(found, model(x))
    assert found.stride() == model(x).stride()
    assert [k.ops for k in programs[0].kernels] == [("torch_call",)]


def test_an_argument_that_lies_otherwise_than_when_it_was_compiled():
    """A gradient comes as torch's engine made it, whatever the graph was compiled for."""
    x = torch.randn(4, 3, requires_grad=True)
    fast = compiled(lambda x: x.t() * 2)
    for dy in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.ones(()).expand(3, 4)):
        x.grad = None
        fast(x).backward(dy)
        close(x.grad, 2 * dy.t())


def test_arguments_that_share_memory():
    """One changes what the other reads."""

    def model(x, y):
        x.mul_(2)
        return x.sum() + y * 3

    a = torch.arange(12.0)
    b = a.clone()
    close(compiled(model)(a, a[4:8]), model(b, b[4:8]))
    close(a, b)
    square = torch.randn(3, 3)
    close(compiled(lambda x, y: x @ y + x)(square, square.t()), square @ square.t() + square)


def test_a_buffer_that_the_model_changes():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen += x.sum(0)
            return x * self.seen

    models = [Counter(), Counter()]
    fast = compiled(models[0])
    for _ in range(3):
        x = torch.randn(2, 3)
        close(fast(x), models[1](x))
    close(models[0].seen, models[1].seen)


class Halved(nn.Module):
    """Half the size in three ways, by windows of which the last may be short."""

    def __init__(self):
        super().__init__()
        self.shrink = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(3, 2, 1, ceil_mode=True)

    def forward(self, x):
        average = nn.functional.avg_pool2d(x, 2, 2, 1, count_include_pad=False)
        pooled = average.square().sum() + self.pool(x).square().sum()
        return self.shrink(x).square().sum() + pooled


def test_windows_of_symbolic_sizes_and_their_gradients_are_compiled_once():
    model = Halved()
    options = {"library": False, "compile": {"optimize": 0}}
    fast = torch.compile(model, backend="loopnest", dynamic=True, options=options)
    with recording() as programs:
        for height, width in ((9, 12), (14, 7)):
            x = torch.randn(3, 2, height, width, requires_grad=True)
            results = []
            for run in (fast, model):
                model.zero_grad()
                x.grad = None
                y = run(x)
                y.backward()
                results.append((y, x.grad, *[p.grad for p in model.parameters()]))
            close(*results, 20)
    assert len(programs) == 2
    assert not [k.fallback for p in programs for k in p.kernels if k.fallback]
    assert [p.in_torch for p in programs] == [{}, {}]


def test_a_compiler_that_fails_leaves_arguments_as_they_are(monkeypatch):
    monkeypatch.setenv("CC", "false")

    def changes(x):
        x.mul_(1.4375)
        return x.tanh()

    x = torch.ones(5)
    with pytest.raises(G.GraphError) as error:
        compiled(changes)(x)
    assert f"mul made at {__file__}" in str(error.value)
    assert "CC=false does not start" in str(error.value)
    assert x.tolist() == [1] * 5


def test_arguments_whose_memory_overlaps():
    def changes(a, b):
        a.add_(1.0)
        return a * b

    memory, own = torch.arange(6.0), torch.arange(6.0)
    result = compiled(changes)(memory[:4], memory[2:])
    close(result, changes(own[:4], own[2:]))
    close(memory, own)


def test_each_call_returns_tensors_of_its_own():
    def function(x):
        return x * 2, x.transpose(0, 1) + 1, x.new_zeros(0, 3) * 2

    compiled = torch.compile(function, backend=loopnest_backend)
    given = [torch.full((3, 5), float(value)) for value in range(4)]
    results = [compiled(x) for x in given]
    for x, found in zip(given, results, strict=True):
        for own, wanted in zip(found, function(x), strict=True):
            assert own.stride() == wanted.stride()
            assert torch.equal(own, wanted)


def strides_of_computed_values(x):
    y = torch.softmax(torch.softmax(x @ x.t(), 1) @ x, 0)
    summed = y.t().logcumsumexp(1).t()
    return (
        torch.as_strided(y, (2, 3), (2, 1), 1) + 1,
        torch.as_strided(summed, (2, 3), (2, 1), 1) * 2,
        torch.as_strided(x, (3, 2), (1, 4), 2) - 1,
    )


def view_that_torch_makes(x):
    """What `unfold` returns is memory of its operand, which is not read again."""
    y = torch.softmax(x @ x, 1).unfold(0, 4, 1)
    z = torch.softmax(x @ x.t(), 1)
    for _ in range(3):
        z = torch.softmax(z @ z, 1)
    return torch.softmax(y.sum(0) @ z, 0)


@pytest.mark.parametrize("function", [strides_of_computed_values, view_that_torch_makes])
def test_memory_of_values_between_steps(function):
    x = torch.randn(4, 4)
    close(compiled(function, library=False)(x), function(x), 5)


def test_an_operator_without_a_rule_for_symbolic_sizes_runs_in_torch_at_all_of_them():
    """One program serves all sizes, and no size after the first asks a compiler."""

    def model(x, i):
        y = (x @ x.t()).softmax(-1)
        return y[i, i.flip(0)] * 2, y.logcumsumexp(1) + 1, y.exp()

    fast = torch.compile(model, backend="loopnest", dynamic=True, options={"library": False})
    with recording() as programs:
        for count in (4, 6, 9):
            x, i = torch.randn(count, 5), torch.arange(count - 1)
            close(fast(x, i), model(x, i), 5)
    (program,) = programs
    assert "aten.logcumsumexp.default" in program.in_torch


def test_no_size_after_the_first_call_asks_a_compiler(monkeypatch, tmp_path):
    """What only some sizes need, as vectors along rows of 16 elements, is there too."""

    def model(x):
        y = (x @ x.transpose(1, 2)).softmax(-1)
        return (y @ x).transpose(0, 1) * 2, y.sum(0)

    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path))
    runs = []
    started = subprocess.Popen.__init__

    def popen(self, *args, **kwargs):
        runs.append(args)
        return started(self, *args, **kwargs)

    monkeypatch.setattr(subprocess.Popen, "__init__", popen)
    fast = torch.compile(model, backend="loopnest", dynamic=True, options={"library": False})
    with recording() as programs:
        for number, count in enumerate((16, 5, 32, 7)):
            x = torch.randn(2, count, 8)
            close(fast(x), model(x), 5)
            if not number:
                assert runs
                runs.clear()
    assert any(launch.kernel.has_scalar for launch in programs[0].kernels)
    assert (len(programs), runs) == (1, [])


def test_a_kernel_on_a_gpu_is_lent_parameters(monkeypatch):
    """Without a GPU: what a launch there passes on can be lent by DLPack."""
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    lent = []

    def runner(*arrays, out, stream, N):
        lent.append(([np.from_dlpack(array).tolist() for array in (*arrays, *out)], stream, N))

    from loopnest.torch import compiled_program

    arrays = compiled_program.TorchArrays(torch.device("cuda"))
    parameter = torch.nn.Parameter(torch.ones(2))
    arrays.launch(runner, [parameter], [torch.zeros(2)], {"N": 2})
    assert lent == [([[1.0, 1.0], [0.0, 0.0]], 7, 2)]
