"""Every wrong argument of a launch or a compilation is one sentence, and nothing runs."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph
from loopnest.backends.cuda.driver import gpu_driver
from loopnest.facade.kernel_class import compile, compile_many

PT = ln.ParallelType
F = np.float32


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """Let every machine say the same."""
    monkeypatch.setattr(gpu_driver, "_found", [])
    monkeypatch.setattr(gpu_driver, "_obstacle", ["no GPU was found"])


@pytest.fixture(scope="module")
def fn():
    with ln.Fusion("scale") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        b = f.input("b", ("D",), ln.float32)
        a = f.scalar("alpha", ln.float32)
        n = f.scalar("count", ln.int32)
        f.assume("N <= 64")
        f.output(x * a + b + ln.cast(n, ln.float32), "y")
    return compile(f, target="interpret")


X, B = np.zeros((4, 3), F), np.zeros(3, F)
SCALARS = {"alpha": 1.0, "count": 2}


def message(error, call):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def readonly(array):
    array = array.copy()
    array.flags.writeable = False
    return array


BOTH = "pass 2: x: float32[N, D], b: float32[D]"


@pytest.mark.parametrize(
    ("arrays", "keywords", "expected"),
    [
        ((X,), SCALARS, f"scale(...): 1 array was given; {BOTH}"),
        ((X, B, B), SCALARS, f"scale(...): 3 arrays were given; {BOTH}"),
        (
            ([[1.0]], B),
            SCALARS,
            "scale(...): x is of type list; pass an array, float32[N, D]",
        ),
        (
            (X.astype(np.float64), B),
            SCALARS,
            "scale(...): x has dtype float64; pass float32[N, D]",
        ),
        (
            (X.astype(">f4"), B),
            SCALARS,
            "scale(...): x has dtype float32 in foreign byte order; pass float32[N, D]",
        ),
        ((B, B), SCALARS, "scale(...): x has shape (3,); pass float32[N, D]"),
        (
            (X, np.zeros(4, F)),
            SCALARS,
            "scale(...): D is 3 by axis 1 of x but 4 by axis 0 of b; "
            "a size symbol has one value in a launch",
        ),
        (
            (np.zeros((65, 3), F), B),
            SCALARS,
            "scale(...): the assumption 'N <= 64' does not hold for N = 65; "
            "pass sizes for which it does, or define the kernel without it",
        ),
        (
            (X, B),
            {"alpha": 1.0},
            "scale(...): the scalar count is missing; pass count=..., a number of type int32",
        ),
        (
            (X, B),
            {**SCALARS, "beta": 1},
            "scale(...): it has no scalar 'beta'; the scalars are alpha, count",
        ),
        (
            (X, B),
            {**SCALARS, "count": 2.5},
            "scale(...): count = 2.5 is no int32; pass a Python or NumPy int",
        ),
        ((X, B), {**SCALARS, "count": 2**31}, "scale(...): count = 2147483648 does not fit int32"),
        (
            (X, B),
            {**SCALARS, "alpha": "1"},
            "scale(...): alpha = '1' is no float32; pass a Python or NumPy number",
        ),
        ((X, B), {**SCALARS, "N": 5}, "scale(...): N is 4 by axis 0 of x but 5 by keyword; "
                                      "a size symbol has one value in a launch"),
        (
            (X, B),
            {**SCALARS, "stream": 3},
            "scale(...): a stream was given; target 'interpret' has none",
        ),
        (
            (X, B),
            {**SCALARS, "out": (None, None)},
            "scale(...): out has 2 of 1 arrays; pass y",
        ),
        (
            (X, B),
            {**SCALARS, "out": "y"},
            "scale(...): out (y) is of type str; pass a NumPy array",
        ),
        (
            (X, B),
            {**SCALARS, "out": np.zeros((4, 4), F)},
            "scale(...): out (y) is float32 of shape (4, 4); pass float32 of shape (4, 3)",
        ),
        (
            (X, B),
            {**SCALARS, "out": np.zeros((4, 3))},
            "scale(...): out (y) is float64 of shape (4, 3); pass float32 of shape (4, 3)",
        ),
        (
            (X, B),
            {**SCALARS, "out": readonly(X)},
            "scale(...): out (y) is read-only; pass a writable array",
        ),
        (
            (X, B),
            {**SCALARS, "out": np.zeros((3, 4), F).T},
            "scale(...): out (y) is not C-contiguous; pass a C-contiguous array",
        ),
        ((X, B), {**SCALARS, "out": X}, "scale(...): out (y) shares memory with x; "
                                        "pass arrays apart"),
    ],
)  # fmt: skip
def test_arguments(fn, arrays, keywords, expected):
    for _ in range(2):  # a plan that is kept must not let a wrong call pass
        assert message(ln.LaunchError, lambda: fn(*arrays, **keywords)) == expected
        fn(X, B, **SCALARS)


def test_bench_checks_its_arguments(fn):
    assert message(ln.LaunchError, lambda: fn.bench(X, **SCALARS)) == (
        f"scale(...): 1 array was given; {BOTH}"
    )


def test_a_static_extent():
    with ln.Fusion("fixed") as f:
        x = f.input("x", (4, "N"), ln.float32)
        f.output(x + 1.0, "y")
    fn = compile(f, target="interpret")
    assert message(ln.LaunchError, lambda: fn(np.zeros((5, 2), F))) == (
        "fixed(...): axis 0 of x has extent 5, not 4; pass float32[4, N]"
    )


def test_a_missing_size():
    with ln.Fusion("count") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.full(("M", "N"), 1.0, ln.float32) * x, "y")
    fn = compile(f, target="interpret")
    assert message(ln.LaunchError, lambda: fn(np.zeros(3, F))) == (
        "count(...): the size M is the extent of no input; pass M=..."
    )
    assert fn(np.zeros(3, F), M=1).shape == (1, 3)
    assert message(ln.LaunchError, lambda: fn(np.zeros(3, F), M=True)) == (
        "count(...): M = True is no size; sizes are ints >= 0"
    )


def in_place():
    with ln.Fusion("step") as f:
        p = f.input("p", ("N",), ln.float32)
        g = f.input("g", ("N",), ln.float32)
        f.output(p - g, "q", inplace=p)
    return compile(f, target="interpret")


@pytest.mark.parametrize(
    ("p", "g", "keywords", "expected"),
    [
        (
            np.zeros(8, F)[::2],
            np.zeros(4, F),
            {},
            "step(...): p is not C-contiguous, but output q overwrites it; "
            "pass a C-contiguous NumPy array",
        ),
        (
            readonly(np.zeros(4, F)),
            np.zeros(4, F),
            {},
            "step(...): p is read-only; pass a writable array",
        ),
        (
            np.zeros(4, F),
            np.zeros(4, F),
            {"out": np.zeros(4, F)},
            "step(...): out (q) is another array than p, which it overwrites; leave it None",
        ),
    ],
)
def test_inputs_that_are_overwritten(p, g, keywords, expected):
    assert message(ln.LaunchError, lambda: in_place()(p, g, **keywords)) == expected


def test_inputs_that_are_overwritten_stand_apart():
    p = np.zeros(8, F)
    assert message(ln.LaunchError, lambda: in_place()(p[:4], p[2:6])) == (
        "step(...): p shares memory with g; pass arrays apart"
    )


def test_too_many_threads():
    with ln.Fusion("many") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x + 1.0, "y")
    y.parallelize({0: PT.block_z})
    for target in ("interpret", "auto"):
        fn = compile(f, target=target)
        np.testing.assert_array_equal(fn(np.zeros(64, F)), np.ones(64))
        assert message(ln.LaunchError, lambda fn=fn: fn(np.zeros(65, F))) == (
            "many(...): block_z (y.i0) has extent 65; use at most 64"
        )


def test_an_output_beyond_memory():
    with ln.Fusion("huge") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.full(("M", "N"), 1.0, ln.float32) * x, "y")
    fn = compile(f, target="interpret")
    assert message(ln.LaunchError, lambda: fn(np.zeros(3, F), M=2**56)) == (
        f"huge(...): an array of {3 * 2**58} bytes does not fit into memory; pass smaller arrays"
    )


# Compilation


def small():
    with ln.Fusion("small") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x + 1.0, "y")
    return f


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        (
            "opencl",
            {},
            "compile(small, target='opencl'): there is no target 'opencl'; "
            'use one of "cuda", "c", "interpret", "auto"',
        ),
        (
            3,
            {},
            "compile(small, target=3): there is no target 3; "
            'use one of "cuda", "c", "interpret", "auto"',
        ),
        (
            "c",
            {"blocks": 3},
            "compile(small, target='c', blocks=3): target 'c' has no option 'blocks'; "
            "its options are threads, fast_math, optimize, check_indices",
        ),
        (
            "interpret",
            {"optimize": 3},
            "compile(small, target='interpret', optimize=3): target 'interpret' has no option "
            "'optimize'; its options are thread_order, threads, fast_math, check_indices",
        ),
        (
            "auto",
            {"blocks": 3},
            "compile(small, target='auto', blocks=3): target 'auto' has no option 'blocks'; "
            "its options are fast_math, min_blocks, max_registers, check_indices, threads, "
            "optimize, thread_order",
        ),
        (
            "c",
            {"threads": 0},
            "compile(small, target='c', threads=0): threads = 0; pass an int >= 1",
        ),
        (
            "c",
            {"optimize": 4},
            "compile(small, target='c', optimize=4): optimize = 4; pass an int from 0 to 3",
        ),
        (
            "c",
            {"fast_math": "yes"},
            "compile(small, target='c', fast_math='yes'): fast_math = 'yes'; pass True or False",
        ),
        (
            "interpret",
            {"thread_order": -1},
            "compile(small, target='interpret', thread_order=-1): thread_order = -1; "
            "pass an int >= 0, or None",
        ),
        (
            "auto",
            {"thread_order": 1, "optimize": 2},
            "compile(small, target='auto', thread_order=1, optimize=2): no target can do it: "
            "no GPU was found; target 'c' has no option 'thread_order'; "
            "target 'interpret' has no option 'optimize'",
        ),
        (
            "cuda",
            {"threads": 2},
            "compile(small, target='cuda', threads=2): target 'cuda' has no option 'threads'; "
            "its options are fast_math, min_blocks, max_registers, check_indices",
        ),
        (
            "cuda",
            {"max_registers": 8},
            "compile(small, target='cuda', max_registers=8): max_registers = 8; "
            "pass an int from 24 to 255",
        ),
    ],
)
def test_targets_and_options(target, options, expected):
    assert message(ln.CompileError, lambda: compile(small(), target, **options)) == expected


def test_there_is_no_gpu():
    assert message(ln.CompileError, lambda: compile(small(), target="cuda")) == (
        "compile(small, target='cuda'): no GPU was found; "
        'use target "c" or "interpret"; kernel.cubin(arch) compiles without a GPU'
    )


def test_many_kernels_share_their_options():
    assert message(ln.CompileError, lambda: compile_many([small()], optimize=7)) == (
        "compile_many(...): optimize = 7; pass an int from 0 to 3"
    )


@pytest.mark.parametrize("name", ["out", "stream"])
def test_arguments_that_no_call_can_name(name):
    with ln.Fusion("hidden") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * f.scalar(name, ln.float32), "y")
    assert message(ln.CompileError, lambda: compile(f, target="interpret")) == (
        f"compile(hidden, target='interpret'): its argument '{name}' hides the keyword {name}= of "
        "every call; give it another name"
    )


def test_a_tensor_of_the_math_is_no_array():
    with ln.Fusion("scale") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
    compiled = compile(f, target="interpret")
    node = loopnest.graph.var("x", (3,))
    calls = [
        (compiled, "scale(...)"),
        (lambda *a: ln.evaluate(f, *a), "evaluate(scale)"),
        (lambda *a: ln.error_bound(f, *a), "error_bound(scale)"),
        (lambda *a: ln.diagnose(compiled.kernel, *a), "diagnose(scale)"),
    ]
    for call, subject in calls:
        for given, kind in ((y, "TensorView"), (node, "Node")):
            with pytest.raises(ln.LaunchError) as caught:
                call(given)
            assert str(caught.value) == (
                f"{subject}: x is of type {kind}, which has no elements; pass an array, float32[N]"
            )
