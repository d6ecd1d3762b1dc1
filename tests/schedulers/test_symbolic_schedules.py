"""Automatic schedules of symbolic extents are proved for all sizes."""

import pytest

import loopnest as ln
from loopnest.schedulers import Processor, auto_schedule


def softmax(x):
    e = ln.exp(x - ln.max(x, axis=1, keepdims=True))
    return e / ln.sum(e, axis=1, keepdims=True)


def norm_of_images(x):
    """Over symbolic rows and columns of each image."""
    center = x - ln.mean(x, axis=(2, 3), keepdims=True)
    return center * ln.rsqrt(ln.mean(center * center, axis=(2, 3), keepdims=True) + 1e-5)


def scaled(x, c):
    return x * ln.broadcast(c, (False, True, True)) + 1.0


def conv(x, w):
    return ln.relu(ln.conv(x, w, stride=2, padding=1))


def depthwise(x, w):
    return ln.sum(ln.unfold(ln.unfold(x, 2, 3), 3, 3) * w, axis=(4, 5))


CASES = {
    "images and channels": (scaled, [("N", 16, "H", "W"), (16,)], "pointwise"),
    "one size twice": (scaled, [(4, 16, "N", "N"), (16,)], "pointwise"),
    "layout": (lambda x: ln.permute(x, (0, 2, 3, 1)) + 1.0, [("N", "C", "H", "W")], "transpose"),
    "softmax of a middle axis": (softmax, [("A", "B", "C", "D")], "fold"),
    "norm of images": (norm_of_images, [("N", 8, "H", "W")], "fold"),
    "columns": (lambda x: ln.sum(x, axis=1), [("A", "B", "C")], "fold"),
    "place of the largest": (lambda x: ln.argmax(x, 1), [("A", "B", "C")], "fold"),
    "all of a matrix": (lambda x: ln.sum(x * x), [("N", "D")], "fold_alone"),
    "all of one size": (lambda x: ln.mean(x, axis=(0, 1, 2)), [("N", 3, "N")], "fold_alone"),
    "products of batches": (ln.matmul, [("B", "M", "K"), ("B", "K", "N")], "contraction"),
    "one right operand": (ln.matmul, [("A", "B", "M", "K"), ("K", "N")], "contraction"),
    "convolution": (conv, [("N", 3, "H", "W"), (8, 3, 3, 3)], "contraction"),
    "convolution of a line": (conv, [("N", 3, "L"), (8, 3, 3)], "contraction"),
    "windows": (depthwise, [("N", 8, "H", "W"), (8, 1, 1, 3, 3)], "window"),
    "pool": (lambda x: ln.max_pool(x, 3, 2, 1), [("N", 8, "H", "W")], "window"),
    "scan": (lambda x: ln.cumsum(x, 1), [("A", "L", "C", "D")], "scan"),
    "scan of rows": (lambda x: ln.cumsum(ln.exp(x), 2), [("A", "B", "L")], "scan"),
}


@pytest.mark.parametrize("target", ["c", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_proved_for_all_sizes(name, target):
    build, shapes, scheduler = CASES[name]
    with ln.Fusion("case") as f:
        f.output(build(*[f.input(f"x{i}", shape, ln.float32) for i, shape in enumerate(shapes)]))
    chosen = auto_schedule(f, target, Processor())
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    expected = "fold" if target == "cuda" and scheduler == "fold_alone" else scheduler
    assert (chosen.name, report.all_sizes) == (expected, True), str(report)
    if target == "cuda":
        assert kernel.cuda()


def test_cores_share_loops_over_several_sizes():
    """What a core gets is two loops of one size each: no index of them is divided by a size."""
    with ln.Fusion("case") as f:
        x, c = f.input("x", ("N", 16, "H", "W"), ln.float32), f.input("c", (16,), ln.float32)
        f.output(scaled(x, c), "y")
    auto_schedule(f, "c", Processor())
    lines = str(ln.lower(f)).splitlines()
    loops = [line.strip() for line in lines if "for " in line]
    assert loops == [
        "for i0 in N * 16:  # cpu_parallel",
        "for i1 in H:  # cpu_parallel",
        "for i2 in W:",
    ]
    assert "  y.flat[i0 * H * W + i1 * W + i2] = " in str(ln.lower(f))
