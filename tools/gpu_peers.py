"""What the kernels of `kernels/` are compared with on a GPU: torch, and torch.compile (Triton)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

    return {
        "adam": adam,
        "batchnorm": lambda x, *rest: nn.batch_norm(x, None, None, *rest, training=True),
        "bias_gelu": lambda x, bias: nn.gelu(x + bias),
        "column_sum": lambda x: x.sum(0),
        "cross_entropy": lambda x, target: nn.cross_entropy(x, target, reduction="none"),
        "gemm": lambda a, b: a @ b,
        "grid_sum": lambda x: x.sum(),
        "layernorm": lambda x, g, b: nn.layer_norm(x, x.shape[-1:], g, b),
        "lstm_cell": lstm_cell,
        "row_sum": lambda x: x.sum(1),
        "softmax": lambda x: torch.softmax(x, -1),
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
        self.torch = torch
        self.functions = functions(torch)

    def copy_bandwidth(self, count: int = 1 << 30) -> float:
        """Return the bytes a second of a copy on the device, those read and those written."""
        source = self.torch.zeros(count, dtype=self.torch.uint8, device="cuda")
        target = self.torch.empty_like(source)
        return 2 * count / self.seconds(lambda: target.copy_(source))

    def times(self, kernel: str, arrays: Sequence[Any]) -> PeerTimes:
        """Return the times of torch's form of a kernel on the same arrays."""
        function = self.functions.get(kernel)
        if function is None:
            return PeerTimes(None, None)
        tensors = [self._tensor(a) for a in arrays]
        return PeerTimes(
            self._tried(function, tensors), self._tried(self.torch.compile(function), tensors)
        )

    def _tensor(self, array: Any) -> Any:
        """Return an array as torch takes it: labels and other integers have 64 bits there."""
        tensor = self.torch.from_numpy(array).cuda()
        return tensor.long() if tensor.dtype == self.torch.int32 else tensor

    def _tried(self, function: Function, tensors: Sequence[Any]) -> float | None:
        try:
            with self.torch.no_grad():
                return self.seconds(lambda: function(*tensors))
        except Exception:  # a form that takes other arguments, or what its compiler cannot do
            return None

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
