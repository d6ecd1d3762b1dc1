"""What the kernels of `kernels/` are compared with on a GPU: torch, and torch.compile (Triton)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Function = Callable[..., Any]


def functions(torch: Any) -> dict[str, Function]:
    """Return the math of each kernel as one writes it with torch, by the kernel's name."""
    nn = torch.nn.functional

    def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
        new_m = torch.lerp(m, g, 0.1)
        new_v = torch.addcmul(v * 0.999, g, g, value=0.001)
        return p - 1e-3 * new_m / (new_v.sqrt() + 1e-8), new_m, new_v

    def lstm_cell(x: Any, c: Any, *rest: Any) -> Any:
        half = len(rest) // 2
        gates = [x @ w + b for w, b in zip(rest[:half], rest[half:], strict=True)]
        i, f, g, o = gates
        new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return new_c, torch.sigmoid(o) * torch.tanh(new_c)

    def embedding_grad(g: Any, token: Any) -> Any:
        return torch.zeros(512, g.shape[1], device=g.device).index_add(0, token, g)

    def int8_gemm(a: Any, b: Any, rows: Any, columns: Any, bias: Any) -> Any:
        return torch._int_mm(a, b.t()) * rows[:, None] * columns + bias

    def layernorm_backward(x: Any, g: Any, gamma: Any, mean: Any, scale: Any) -> Any:
        return torch.ops.aten.native_layer_norm_backward(
            g, x, x.shape[-1:], mean[:, None], scale[:, None], gamma, gamma, [True] * 3
        )

    def rmsnorm(x: Any, residual: Any, gamma: Any) -> Any:
        added = x + residual
        return added, nn.rms_norm(added, x.shape[-1:], gamma, 1e-6)

    return {
        "adam": adam,
        "argmax": lambda x: x.argmax(1),
        "attention": nn.scaled_dot_product_attention,
        "attention_causal": lambda *qkv: nn.scaled_dot_product_attention(*qkv, is_causal=True),
        "attention_two_pass": nn.scaled_dot_product_attention,
        "batchnorm": lambda x, *rest: nn.batch_norm(x, None, None, *rest, training=True),
        "bias_gelu": lambda x, bias: nn.gelu(x + bias),
        "centred": lambda x: x - x.mean(),
        "column_sum": lambda x: x.sum(0),
        "concatenate": lambda *parts: torch.cat(parts, 1),
        "conv1d": lambda x, w: nn.conv1d(nn.pad(x, (3, 0)), w[:, None], groups=w.shape[0]),
        "conv2d": lambda x, w: nn.conv2d(x, w, padding=1),
        "cross_entropy": lambda x, target: nn.cross_entropy(x, target, reduction="none"),
        "cumsum": lambda x: x.cumsum(1),
        "cumsum_long": lambda x: x.cumsum(0),
        "doubled": lambda x: x + x,
        "embedding": lambda table, token: nn.embedding(token, table),
        "embedding_grad": embedding_grad,
        "gemm": lambda a, b: a @ b,
        "grid_sum": lambda x: x.sum(),
        "group_norm": lambda x, *rest: nn.group_norm(x, 32, *rest),
        "histogram": lambda x: torch.bincount(x, minlength=256),
        "int8_gemm": int8_gemm,
        "layernorm": lambda x, g, b: nn.layer_norm(x, x.shape[-1:], g, b),
        "layernorm_backward": layernorm_backward,
        "lstm_cell": lstm_cell,
        "max_pool": lambda x: nn.max_pool2d(x, 3, stride=2, padding=1),
        "rmsnorm": rmsnorm,
        "row_sum": lambda x: x.sum(1),
        "softmax": lambda x: torch.softmax(x, -1),
        "spmv": lambda value, column, x: (value * x[column]).sum(0),
        "transpose": lambda x: x.t().contiguous(),
    }


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """Seconds of a call: torch as it is, and compiled by it to Triton; None where it failed."""

    eager: float | None
    compiled: float | None


class Torch:
    """torch on this machine's GPU.

    Raises:
        ImportError: it is not installed, or sees no GPU.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        torch.backends.cudnn.allow_tf32 = False  # as its products, and as our kernels
        self.torch = torch
        self.functions = functions(torch)
        self._known: dict[tuple[Any, ...], PeerTimes] = {}

    def copy_bandwidth(self, count: int = 1 << 30) -> float:
        """Return the bytes a second of a copy on the device, those read and those written."""
        source = self.torch.zeros(count, dtype=self.torch.uint8, device="cuda")
        target = self.torch.empty_like(source)
        return 2 * count / self.seconds(lambda: target.copy_(source))

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> Callable[[], PeerTimes]:
        """Call torch's forms of a kernel once, which compiles them; return what times them."""
        function = self.functions.get(kernel)
        if function is None:
            return lambda: PeerTimes(None, None)
        tensors = [self._tensor(a) for a in arrays]
        forms = [function, self.torch.compile(function)]
        tried = [self._tried(partial(form, *tensors)) for form in forms]
        return lambda: PeerTimes(*[None if call is None else self.seconds(call) for call in tried])

    def _tensor(self, array: Any) -> Any:
        """Return an array as torch takes it: labels and other integers have 64 bits there."""
        tensor = self.torch.from_numpy(array).cuda()
        return tensor.long() if tensor.dtype == self.torch.int32 else tensor

    def _tried(self, call: Callable[[], Any]) -> Callable[[], Any] | None:
        """Return a call without gradients, None if it fails."""
        without = self.torch.no_grad()(call)
        try:
            without()
        except Exception:  # a form that takes other arguments, or what its compiler cannot do
            return None
        return without  # type: ignore[no-any-return]

    def seconds(self, call: Callable[[], Any], rounds: int = 20, least: float = 0.01) -> float:
        """Return the median time of a call, by events of the GPU around many of them."""
        for _ in range(3):
            call()
        count = 1
        while (total := self._span(call, count)) < least and count < 1024:
            count *= 2
        return statistics.median(
            [total / count] + [self._span(call, count) / count for _ in range(rounds)]
        )

    def _span(self, call: Callable[[], Any], count: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
