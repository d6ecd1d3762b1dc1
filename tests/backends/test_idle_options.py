"""Options of a compilation that change nothing of a kernel: `CompiledKernel.notes`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import loopnest as ln
from helpers.fake_gpu import FakeGpu
from loopnest.backends.cpu import c_compiler
from loopnest.backends.cuda.cuda_target import CompiledCuda
from loopnest.backends.cuda.toolchain import cuda_toolkit, nvrtc

needs_compiler = pytest.mark.skipif(c_compiler.find_compiler() is None, reason="no C compiler")


def of(value: Callable[[ln.TensorView], ln.TensorView], dtype: ln.DType = ln.float32) -> ln.Fusion:
    with ln.Fusion("f") as f:
        x = f.input("x", ("N",), dtype)
        f.output(value(x), "y")
    return f


def notes(f: ln.Fusion, target: str, **options: object) -> list[str]:
    return [str(note) for note in ln.compile(f, target=target, **options).notes]


SAME = "f: fast_math=True: the machine code is the same without it, because "
ON_C = (
    SAME + 'on "c" it computes erf and tanh of float32 by shorter functions, divides by '
    "reciprocals where these are shared or constant, and takes -0.0 for 0.0, and nothing in this "
    "kernel is faster so; leave it out"
)


@pytest.mark.parametrize(
    ("value", "dtype", "changes"),
    [
        (ln.exp, ln.float32, False),
        (lambda x: x + 1.0, ln.float32, False),
        (lambda x: x * 3, ln.int32, False),
        (ln.tanh, ln.float32, True),
        (ln.erf, ln.float32, True),
        (lambda x: x / 3.0, ln.float32, True),
    ],
    ids=["exp", "sum", "integers", "tanh", "erf", "constant divisor"],
)
@needs_compiler
def test_fast_math_on_c(
    value: Callable[[ln.TensorView], ln.TensorView], dtype: ln.DType, changes: bool
) -> None:
    f = of(value, dtype)
    assert notes(f, "c", fast_math=True) == ([] if changes else [ON_C])
    assert notes(f, "c", fast_math=False) == []


@needs_compiler
def test_threads_and_indices_on_c() -> None:
    f = of(ln.exp)
    assert notes(f, "c", threads=1) == notes(f, "c", check_indices=True) == []
    assert notes(f, "c", threads=2, check_indices=False) == [
        "f: threads=2: the kernel runs on one thread, because none of its loops is parallel; "
        "parallelize one: axis.parallelize(ln.ParallelType.cpu_parallel)",
        "f: check_indices=False: it leaves nothing out, because no launch checks an index of this "
        "kernel; leave it out",
    ]
    f.outputs[0].axis(0).parallelize(ln.ParallelType.cpu_parallel)
    assert notes(f, "c", threads=2) == []
    with ln.Fusion("rows") as g:
        table = g.input("table", (8, 4), ln.float32)
        g.output(ln.take(table, g.input("i", (3,), ln.int32), 0), "y")
    assert notes(g, "c", check_indices=False) == []


def test_interpret_has_none_to_change() -> None:
    why = (
        "it changes nothing, because the interpreter runs one thread at a time, exactly, and "
        'checks every access; leave it out, or compile for "c" or "cuda"'
    )
    options = {"threads": 2, "fast_math": True, "check_indices": False}
    assert notes(of(ln.exp), "interpret", **options) == [
        f"f: threads=2: {why}",
        f"f: fast_math=True: {why}",
        f"f: check_indices=False: {why}",
    ]
    assert notes(of(ln.exp), "interpret", threads=1, fast_math=False, thread_order=1) == []


def test_notes_of_the_schedule_come_first() -> None:
    f = of(ln.exp)
    f.assume("N <= 100")
    first, second = notes(f, "interpret", fast_math=True)
    assert first == str(ln.lower(f).notes[0])
    assert second.startswith("f: fast_math=True: it changes nothing, ")


@pytest.mark.parametrize(
    ("dtype", "changes"), [(ln.float32, True), (ln.int32, False)], ids=["float32", "int32"]
)
def test_on_cuda(dtype: ln.DType, changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        cuda_toolkit.load_nvrtc()
    except ln.CompileError as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(nvrtc, "check_driver", lambda target, supported: None)
    f = of(lambda x: x * 3, dtype)
    f.outputs[0].axis(0).parallelize(ln.ParallelType.block_x)
    built = CompiledCuda(ln.lower(f).program, FakeGpu(), fast_math=True, check_indices=False)
    same = (
        "fast_math=True",
        "the machine code is the same without it",
        'on "cuda" it changes arithmetic of float32 and divisions, and here are none',
    )
    left_out = (
        "check_indices=False",
        "it leaves nothing out",
        'on "cuda" no launch looks at indices',
    )
    found = [(idle.asked, idle.became, idle.why) for idle in built.idle_options()]
    assert found == ([left_out] if changes else [same, left_out])
