"""`torch.compile(backend="loopnest")`: models forward and backward, against torch itself."""

import inspect
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import loopnest as ln  # noqa: E402 - torch is asked for first
from helpers.torch_models import close, compiled, gradients  # noqa: E402
from loopnest.torch import recording  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of several versions
ROOT = Path(__file__).parents[2]


class Block(nn.Module):
    """A transformer layer without dropout."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        parts = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = parts[0], parts[1], parts[2]
        scores = (q @ k.transpose(-2, -1)).softmax(-1)
        x = self.norm(x + (scores @ v).transpose(1, 2).reshape(n, t, c))
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


class Attention(nn.Module):
    """Causal attention of several heads, by torch's own function."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x):
        n, t, c = x.shape
        shape = n, t, self.heads, c // self.heads
        q, k, v = [part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return found.transpose(1, 2).reshape(n, t, c)


class Language(nn.Module):
    """Embedded words, and the loss of what comes next."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 6, padding_idx=2)
        self.ends = nn.Linear(6, 7)

    def forward(self, x):
        words = torch.tensor([[1, 2, 3], [6, 2, 0]])
        logits = self.ends(self.words(words) * x)
        return nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1),
        nn.AvgPool2d(2, 1, 1, count_include_pad=False),
        nn.Flatten(),
        nn.Linear(162, 5),
        nn.LogSoftmax(-1),
    )


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), (3, 8)),
    "block": (Block, (2, 5, 16)),
    "convolutions": (convolutions, (2, 3, 6, 6)),
    "language": (Language, (3, 6)),
    "attention": (Attention, (2, 5, 8)),
    "depthwise": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.SiLU(), nn.Conv2d(4, 3, 1)
        ),
        (2, 4, 5, 5),
    ),
    "norms": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.ELU(), nn.InstanceNorm1d(4), nn.Softplus()),
        (2, 4, 9),
    ),
}


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward(name, library):
    make, shape = MODELS[name]
    model = make()
    x = torch.randn(shape)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    expected = gradients(model, model, x)
    after = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    found = gradients(model, compiled(model, library=library), x)
    close(found, expected, 10)
    for key, value in model.state_dict().items():  # running statistics too
        close(value, after[key])


@pytest.mark.parametrize("name", MODELS)
def test_everything_is_generated(name):
    make, shape = MODELS[name]
    with recording() as programs:
        gradients(model := make(), compiled(model, library=False), torch.randn(shape))
    assert len(programs) == 2
    assert [p.in_torch for p in programs] == [{}, {}]
    assert not [x for p in programs for x in p.kernels if x.fallback or x.library]


def test_kernels_are_proved():
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.MaxPool1d(2), nn.Softmax(-1))
    with recording() as programs:
        gradients(model, compiled(model, library=False), torch.randn(2, 2, 11))
    kernels = [x.kernel for p in programs for x in p.kernels]
    assert [ln.verify(k).status for k in kernels] == ["proved"] * len(kernels)


def test_a_step_of_an_optimiser():
    """Parameters change in place, inside a compiled step."""
    models = [nn.Linear(4, 3) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    steps = []
    for model in models:
        adam = torch.optim.Adam(model.parameters(), 0.1)

        def step(x, model=model, adam=adam):
            adam.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            adam.step()
            return loss

        steps.append(step)
    x = torch.randn(5, 4)
    fast = compiled(models[0])
    adam = torch.optim.Adam(models[0].parameters(), 0.1)
    update = compiled(adam.step)
    for _ in range(3):
        adam.zero_grad()
        loss = (fast(x) ** 2).mean()
        loss.backward()
        update()
        close(loss, steps[1](x))
    close(dict(models[0].state_dict()), dict(models[1].state_dict()), 10)


def test_batches_of_other_sizes():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Softmax(0))
    fast = compiled(model)
    for count in (3, 5, 1, 8, 3):
        x = torch.randn(count, 6)
        close(gradients(model, fast, x), gradients(model, model, x))


def test_an_operator_without_a_rule_runs_in_torch_and_is_named_once(caplog):
    line = inspect.currentframe().f_lineno + 3

    def model(x):
        return torch.logcumsumexp(x.exp() + torch.eye(3), 1) * 2

    from loopnest.torch import aten_graph

    aten_graph._told.clear()
    x = torch.randn(3, 3)
    with caplog.at_level(logging.INFO, "loopnest"), recording() as programs:
        fast = compiled(model)
        close(fast(x), model(x), 10)
        torch._dynamo.reset()
        close(compiled(model)(x), model(x), 10)
    told = [r.message for r in caplog.records if r.message.startswith("torch computes")]
    place = f"{__file__}:{line}"
    assert told == [f"torch computes aten.logcumsumexp.default at {place}: it has no rule"]
    assert [set(p.in_torch) for p in programs] == [{"aten.logcumsumexp.default"}] * 2


def test_random_numbers_are_those_of_torch():
    model = nn.Dropout(0.5)
    x = torch.randn(50)
    expected = torch.compile(model, backend="aot_eager")
    torch.manual_seed(3)
    wanted = expected(x)
    torch.manual_seed(3)
    close(compiled(model)(x), wanted)


def test_autocast():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    x = torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        found = compiled(model, library=False)(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_indices():
    x, i = torch.randn(4, 5), torch.tensor([3, -1, 0])

    def model(x, i):
        return x[i], x[:, i.abs()], x.index_select(1, i.clamp(min=0))

    with recording() as programs:
        close(compiled(model)(x, i), model(x, i))
    assert programs[0].in_torch == {}


def cached_rows(cache, rows, places):
    cache = cache.clone()
    cache[:, places] = rows
    return cache * 2


def scattered(x, i, s):
    whole = x.clone()
    whole[1:3] = s[:2, : x.shape[1]]
    return (
        x.scatter(1, i, s), x.scatter_reduce(1, i, s, "sum", include_self=False),
        x.scatter_add(1, i, s), x.index_fill(1, i[0], 3.0), x.gather(1, i),
        x.index_add(1, i[0], s.new_ones(len(x), i.shape[1]), alpha=2), x[i[0, :3] // 3, i[1, :3]],
        whole,
    )  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_elements_that_data_choose_are_written_by_kernels(dynamic):
    chosen = torch.stack([torch.randperm(9)[:6] for _ in range(4)])
    calls = [
        (cached_rows, (torch.randn(2, 12, 8), torch.randn(2, 3, 8), torch.tensor([7, 0, 11]))),
        (scattered, (torch.randn(5, 9), chosen, torch.randn(5, 9))),
    ]
    for function, args in calls:
        torch._dynamo.reset()
        options = {"library": False}
        with recording() as programs:
            fast = torch.compile(function, backend="loopnest", dynamic=dynamic, options=options)
            close(fast(*args), function(*args))
        (program,) = programs
        assert program.in_torch == {}
        assert "scatter" in [launch.schedule for launch in program.kernels]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("include_self", [False, True])
@pytest.mark.parametrize("fold", ["amax", "amin", "mean", "prod", "sum"])
def test_elements_are_folded_where_data_say(fold, include_self, dynamic):
    """Forward and backward by kernels alone, where several fall on one element and NaN is one."""

    def function(x, i, s):
        return x.scatter_reduce(1, i, s, fold, include_self=include_self) * 2

    places, given = torch.randint(0, 9, (4, 40)), torch.randn(4, 40)
    given[1, 3] = torch.nan
    given[2:, 5:9] = 0
    found = []
    for fast in (function, torch.compile(function, backend="loopnest", dynamic=dynamic)):
        torch._dynamo.reset()
        x, s = [t.clone().requires_grad_() for t in (torch.linspace(-2, 2, 45).view(5, 9), given)]
        with recording() as programs:
            y = fast(x, places, s)
            y.nan_to_num().sum().backward()
        found.append((y.detach(), x.grad, s.grad))
    for own, wanted in zip(*found, strict=True):
        torch.testing.assert_close(wanted, own, equal_nan=True)
    assert [program.in_torch for program in programs] == [{}, {}]


def mean_of_groups(x, group, weight):
    rows = group.view(-1, 1).expand_as(x)
    sums = x.new_zeros(3, x.shape[1]).scatter_add_(0, rows, x)
    counts = x.new_zeros(3).scatter_add_(0, group, x.new_ones(len(x))).clamp(min=1)
    return sums / counts.view(-1, 1) * weight


@pytest.mark.parametrize("dynamic", [False, True])
def test_means_of_groups_go_by_rows(dynamic):
    """Counts, then means; backward their elements. No index has a place for each element."""
    group, weight = torch.randint(0, 3, (40,)), torch.randn(3, 8)
    found = []
    for fast in (
        mean_of_groups,
        torch.compile(mean_of_groups, backend="loopnest", dynamic=dynamic),
    ):
        torch._dynamo.reset()
        x = torch.arange(320.0).view(40, 8).sin().requires_grad_()
        with recording() as programs:
            y = fast(x, group, weight)
            (y * y).sum().backward()
        found.append((y.detach(), x.grad))
    close(*found)
    assert [len(program.kernels) for program in programs] == [2, 1]
    assert "lt" not in [op for program in programs for k in program.kernels for op in k.ops]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((6, 4), 0), ((6, 4), 1), ((2, 6, 4), 1), ((6, 2, 4), 0), ((5, 4), 0)]
)
def test_an_index_that_is_expanded_names_rows(shape, axis, dynamic):
    def both(x, i, values):
        wide = i.view([-1 if n == axis else 1 for n in range(x.ndim)])
        wide = wide.expand([len(i) if n == axis else e for n, e in enumerate(values.shape)])
        return x.gather(axis, wide), x.scatter_add(axis, wide, values), wide

    torch._dynamo.reset()
    x, i = torch.randn(shape), torch.tensor([1, 0, 1])
    fast = torch.compile(both, backend="loopnest", dynamic=dynamic)
    values = torch.randn([3 if n == axis else e for n, e in enumerate(shape)])
    narrow = torch.randn([e + 1 if n == axis else max(e - 1, 2) for n, e in enumerate(shape)])
    for own in (values, narrow):
        found, expected = fast(x, i, own), both(x, i, own)
        close(found, expected)
        assert found[2].stride() == expected[2].stride()
        assert found[2].data_ptr() == i.data_ptr()


@pytest.mark.parametrize(
    ("once", "span"), [(torch.randn(1, 1, 4), 4), (torch.randn(4, 3).t()[:, None], 12)]
)
def test_an_input_that_torch_repeats_is_read_once(once, span):
    torch._dynamo.reset()
    x, y = once.expand(3, 2, 4), torch.randn(3, 2, 4)
    fast = compiled(lambda x, y: (x * 2.0 + y, x))
    with recording() as programs:
        found = fast(x, y)
    close(found[0], x * 2.0 + y)
    assert found[1].stride() == x.stride()
    assert programs[0].found.graph.inputs[0].shape == (span,)


def test_an_index_outside_of_its_axis_is_refused_before_anything_runs():
    x = torch.randn(3, 4)
    for function in (
        lambda x, i: x[i, i],
        lambda x, i: x.gather(1, i[None].expand(2, 2)),
        lambda x, i: x.scatter(1, i[None].expand(2, 2), 1.0),
    ):
        fast = compiled(function, library=False)
        close(fast(x, torch.tensor([0, 2])), function(x, torch.tensor([0, 2])))
        with pytest.raises(
            ln.LaunchError,
            match=r"1\] is (-1|4), but it was declared that 0 <= p\d < \d+; pass elements",
        ):
            fast(x, torch.tensor([0, 4]))


def test_windows_on_a_gpu_run_in_torch():
    """Without a schedule for "cuda" a kernel would be evaluated on the host."""
    from loopnest.torch.aten_graph import translated

    found = {}

    def keep(module, inputs):
        found["module"] = module
        return module.forward

    from torch._dynamo.backends.common import aot_autograd

    model = torch.compile(
        lambda x: nn.functional.max_pool1d(x, 2).exp(), backend=aot_autograd(fw_compiler=keep)
    )
    model(torch.randn(1, 2, 6))
    module = found["module"]
    values = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    assert not translated(module, values, True, "c").in_torch
    told = translated(module, values, True, "cuda").in_torch
    assert [*told.values()] == ['there is no schedule of windows for "cuda"']


def test_no_gradient():
    model = nn.Linear(3, 2)
    with torch.no_grad():
        found = compiled(model)(torch.ones(1, 3))
    assert not found.requires_grad


def test_types_that_loopnest_does_not_have():
    """The whole graph runs in torch."""
    x = torch.randn(4, dtype=torch.complex64)
    close(compiled(lambda x: (x * 2).abs())(x), (x * 2).abs())


TYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float64"]


@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype):
    own = getattr(torch, dtype)
    x = (torch.randn(4, 5) * 3).to(own)

    def model(x):
        return x + x, x * 2, x > 1, x.sum(1), x.to(torch.float32) / 3, x.amax(0), -x.float()

    torch.testing.assert_close(compiled(model)(x), model(x))


POINTWISE = """
abs ceil clamp(-0.5,0.5) cos elu(0.7) erf exp expm1 floor gelu hardsigmoid hardtanh
leaky_relu(0.2) log1p_abs log_sigmoid mish neg pow(3) reciprocal relu round rsqrt_abs
selu sigmoid sign silu sin softplus softsign sqrt_abs square tan tanh trunc remainder(0.7)
floor_divide(0.3)
"""


@pytest.mark.parametrize("text", POINTWISE.split())
def test_pointwise(text):
    name, _, rest = text.partition("(")
    args = [float(x) for x in rest.rstrip(")").split(",")] if rest else []
    name, own = name.removesuffix("_abs").replace("log_sigmoid", "logsigmoid"), "_abs" in name
    function = getattr(torch, name, None) or getattr(nn.functional, name)
    infinite = [] if name == "gelu" else [torch.inf, -torch.inf]  # torch's own is nan at inf
    x = torch.cat([torch.randn(40) * 3, torch.tensor([0.0, -0.0, torch.nan, *infinite])])

    def model(x):
        return function(x.abs() if own else x, *args)

    with recording() as programs:
        found = compiled(model)(x)
    torch.testing.assert_close(found, model(x), equal_nan=True, rtol=1e-5, atol=1e-6)
    assert programs[0].in_torch == {}


def test_options_that_there_are_not():
    with pytest.raises(Exception, match=re.escape("there is no option 'fast'; there are: library")):
        compiled(lambda x: x + 1, fast=True)(torch.ones(2))


def test_the_backend_is_found_by_its_name(tmp_path):
    """An installed package is found by its entry point, without an import."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(r'\[project.entry-points.torch_dynamo_backends\]\n(loopnest) = "(.*)"', text)
    info = tmp_path / "loopnest_backend-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loopnest-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{found[1]} = {found[2]}\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "sched")])
    code = (
        "import torch\n"
        "f = torch.compile(lambda x: x.relu() * 2, backend='loopnest')\n"
        "assert f(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 4.0]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_loopnest_does_not_import_torch():
    code = "import loopnest, loopnest.graph, sys; assert 'torch' not in sys.modules"
    path = {**os.environ, "PYTHONPATH": str(ROOT / "sched")}
    assert subprocess.run([sys.executable, "-c", code], env=path).returncode == 0


SYMBOLIC = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), (8,)),
    "block": (Block, (5, 16)),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(9), nn.ELU(), nn.Softmax(-1)), (4, 9)),
    "batch norm": (lambda: nn.Sequential(nn.BatchNorm1d(5), nn.ReLU()), (5,)),
    "pools": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.MaxPool1d(2), nn.AvgPool1d(2)), (2, 12)),
}


@pytest.mark.parametrize("library", [True, False])
@pytest.mark.parametrize("name", SYMBOLIC)
def test_dynamic_batches_are_compiled_once(name, library):
    make, shape = SYMBOLIC[name]
    model = make()
    with recording() as programs:
        fast = compiled(model, library=library)
        for count in (3, 5, 8):
            x = torch.randn(count, *shape)
            torch._dynamo.mark_dynamic(x, 0)
            expected = gradients(model, model, x)
            leaf = x.clone().requires_grad_()
            torch._dynamo.mark_dynamic(leaf, 0)
            model.zero_grad()
            found = fast(leaf)
            (found * found).sum().backward()
            own = (found.detach(), [leaf.grad], [p.grad.clone() for p in model.parameters()])
            close(own, expected, 10)
    assert [len(p.run.sizes) for p in programs] == [1, 1]  # forward and backward


@pytest.mark.parametrize("columns", [3, 5, 6])
def test_gradients_of_few_columns(columns):
    """A choice by data among loads of a loop that the C compiler unrolls."""
    model = nn.Sequential(nn.BatchNorm1d(columns), nn.ReLU())
    x = torch.randn(8, columns)
    close(gradients(model, compiled(model), x), gradients(model, model, x), 5)


def test_gradients_through_what_has_none():
    """Torch says what stops: a rounded value has the gradient 0, an index none."""

    def model(x):
        return (x.round() * 2 + x.detach() * x).sum() + x.argmax().float()

    x = torch.randn(5)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(model)(a).backward()
    model(b).backward()
    close(a.grad, b.grad)
    with pytest.raises(RuntimeError, match="does not require grad"):
        compiled(lambda x: x.argmax().float())(a).backward()


def test_autocast_forward_and_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    x = torch.randn(3, 8)
    grads = []
    for call in (model, compiled(model)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(x).float().square().mean()
        loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads, rtol=5e-2, atol=2e-2)


def test_no_elements_forward_and_backward():
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.ReLU())
    x = torch.randn(0, 4)
    close(gradients(model, compiled(model, library=False), x), gradients(model, model, x))


@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding", "ceil"),
    [
        ((2, 3, 9, 14), 3, 2, 1, False),
        ((2, 3, 9, 14), (2, 3), (3, 1), (1, 0), True),
        ((3, 7, 5), 2, 2, 0, True),
        ((1, 2, 6, 6), 2, 5, 1, False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_places_of_the_largest(
    shape: Any, size: Any, stride: Any, padding: Any, ceil: bool, dtype: torch.dtype
) -> None:
    """Of equal elements the first counts, a NaN is the largest, the padding never is."""
    x = torch.randint(0, 3, shape).to(dtype)
    x[..., 1, 1], x[..., 0, :] = torch.nan, -torch.inf
    x.requires_grad_()

    def pooled(x: Any) -> Any:
        return nn.functional.max_pool2d(x, size, stride, padding, 1, ceil, return_indices=True)

    found, places = torch.compile(pooled, backend="loopnest")(x)
    wanted, wanted_places = pooled(x)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert torch.equal(places, wanted_places)
    step = torch.randn_like(wanted)
    (one,) = torch.autograd.grad(found, x, step)
    (other,) = torch.autograd.grad(wanted, x, step)
    torch.testing.assert_close(one, other)
