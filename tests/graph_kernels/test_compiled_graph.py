"""`G.compile`: values, memory, what shares a kernel, what is listed, and wrong calls."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import loopnest as ln
import loopnest.graph as G
from graph.op_cases import CASES, COMPOSITES
from graph_kernels.random_programs import RandomProgram, assert_alike
from helpers.graph_arrays import counter, feeds, normal
from helpers.made_at import without_lines
from loopnest.graph.registry import register_op, unregister_op
from loopnest.schedulers import Scheduler, register_scheduler, unregister_scheduler
from loopnest.schedulers.scheduler_table import structure


@pytest.mark.parametrize("case", [*CASES, *COMPOSITES], ids=repr)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_op(case, dtype):
    arrays = case.operands()
    arrays = [a.astype(dtype) if a.dtype == np.float64 else a for a in arrays]
    if case.op in ("fused", "assign") and dtype == "float32":
        pytest.skip("the case has a type of its own")
    graph = case.graph(arrays)
    fn = G.compile(graph, target="interpret", library=False)
    assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays))[0])
    assert not [launch for launch in fn.kernels if launch.fallback]
    assert_alike(G.compile(graph, target="interpret")(*arrays), fn(*arrays))


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed):
    program = RandomProgram(seed)
    fn = G.compile(program.graph, target="c", library=bool(seed % 2), optimize=0)
    assert not [launch for launch in fn.kernels if launch.fallback]
    results = fn(*program.arrays())
    expected = program.expected()
    assert_alike(results if len(expected) > 1 else (results,), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_where_ops_are(dtype):
    x = G.var("x", (5, 40), dtype)
    graph = G.Graph([x], [G.softmax(x), G.layer_norm(x, G.ones(40, dtype), G.zeros(40, dtype))])
    arrays = normal(graph)
    results = G.compile(graph, target="c", optimize=0)(*arrays)
    for found, wanted in zip(results, G.evaluate(graph, feeds(graph, arrays)), strict=True):
        assert found.dtype == wanted.dtype
        step = 2.0**-8 if dtype == "bfloat16" else 2.0**-10
        difference = np.abs(found.astype(float) - wanted.astype(float))
        assert np.all(difference <= step * np.maximum(np.abs(wanted.astype(float)), 0.1))


@pytest.mark.parametrize(
    ("channels", "groups", "stride", "padding", "kernels"),
    [(4, 4, 1, 1, 2), (4, 4, 2, 1, 2), (6, 2, 2, 0, 1), (6, 3, 1, 2, 1)],
)
def test_gradients_of_grouped_convolutions(channels, groups, stride, padding, kernels):
    x = G.var("x", (2, channels, 9, 8))
    w = G.var("w", (channels, channels // groups, 3, 3))
    y = G.conv2d(x, w, stride, padding, groups=groups)
    dy = G.var("dy", y.shape)
    graph = G.Graph([x, w, dy], G.gradient(y, [x, w], dy))
    fn = G.compile(graph, target="interpret")
    assert len([launch for launch in fn.kernels if launch.kernel]) == kernels
    arrays = normal(graph)
    assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays)))


def test_layers_of_a_convolution_and_its_norm_have_five_launches():
    """The norm's backward is one: the mask of relu, four sums, and what is spread back.

    That of the last layer is one with its forward.
    """
    x = G.var("x", (3, 4, 6, 6))
    y, weights = x, []
    for number in range(3):
        w = [G.var(f"{name}{number}", shape) for name, shape in
             (("w", (4, 4, 3, 3)), ("gamma", (4,)), ("beta", (4,)))]  # fmt: skip
        y = G.relu(G.batch_norm(G.conv2d(y, w[0], padding=1), *w[1:]))
        weights += w
    dy = G.var("dy", y.shape)
    graph = G.Graph([x, *weights, dy], [y, *G.gradient(y, weights, dy)])
    fn = G.compile(graph, target="interpret", library=False)
    heavy = [launch.ops for launch in fn.kernels if any("conv" in op for op in launch.ops)]
    assert len(heavy) == 3 + 3 + 2
    assert all(len(ops) == 1 for ops in heavy)
    assert len(fn.kernels) == len(heavy) + 2 + 2 + 1
    arrays = normal(graph)
    assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays)))


def test_updates_of_a_norm_overwrite_its_variables():
    """The scale is read in its own backward's loops: once for all, before it is overwritten."""
    random = np.random.default_rng(0)
    x = G.var("x", (2, 3, 5, 5))
    w, gamma, beta = [
        G.Variable(random.normal(size=shape).astype(np.float32), name)
        for name, shape in (("w", (4, 3, 3, 3)), ("gamma", (4,)), ("beta", (4,)))
    ]
    loss = G.mean(G.relu(G.batch_norm(G.conv2d(x, w, padding=1), gamma, beta)) * 2.0)
    graph = G.Graph([x], [loss, G.optim.SGD(0.1, 0.9).minimize(loss)])
    fn, state = G.compile(graph, target="c", optimize=0), {}
    plan = fn.plan()
    assert not plan.commits
    assert not any(step.copies for step in plan.steps)
    for seed in range(3):
        arrays = normal(graph, seed)
        assert_alike(fn(*arrays)[0], G.evaluate(graph, feeds(graph, arrays), state)[0])
    for name, value in fn.state.items():
        assert_alike(value, state[name])


def this_line():
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def test_a_compiler_that_fails_is_named_with_the_ops(monkeypatch):
    x = G.var("x", (4, 6))
    monkeypatch.setenv("CC", "/no/such/compiler")
    y, place = G.exp(x), this_line()
    z, other = y * 3.140625, this_line()
    with pytest.raises(G.GraphError) as error:
        G.compile(G.Graph([x], [z]), target="c", optimize=0)
    assert str(error.value) == (
        f"@kernel0(x): its kernel (exp made at {place}, mul made at {other}) does not compile: "
        'target "c": CC=/no/such/compiler does not start; mend or unset CC'
    )


# Schedules of a user's own


def test_a_hand_made_schedule_is_used_for_its_math():
    """The scheduler knows the fusion that it was made for by its structure, and replays it."""

    def math():
        with ln.Fusion("mine") as f:
            x = f.input("x", (6, 40), ln.float32)
            f.output(ln.exp(x * 0.5) + 1.0, "y")
        return f

    def schedule(f, processor):
        y = f.outputs[0]
        y.split(1, 8)
        y.axis(0).parallelize(ln.ParallelType.cpu_parallel)
        f.inline_most()

    made_for = structure(math())
    own = Scheduler("by hand", "c", lambda f, processor: structure(f) == made_for, schedule)
    x, other = G.var("x", (6, 40)), G.var("z", (7, 40))
    graph = G.Graph([x, other], [G.exp(x * 0.5) + 1.0, G.exp(other * 0.5) + 1.0])
    register_scheduler(own)
    try:
        fn = G.compile(graph, target="c", optimize=0)
    finally:
        unregister_scheduler("by hand", "c")
    assert [launch.schedule for launch in fn.kernels] == ["by hand", "pointwise"]
    assert "for i2 in 5:\n    for i3 in 8:" in str(fn.kernels[0].kernel)
    arrays = normal(graph)
    assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays)))


# What shares a kernel


def test_a_norm_and_its_gradient_share_a_kernel():
    x, dy = G.var("x", (32, 64)), G.var("dy", (32, 64))
    gamma, beta = G.var("gamma", (64,)), G.var("beta", (64,))
    y = G.layer_norm(x, gamma, beta)
    graph = G.Graph([x, gamma, beta, dy], [y, *G.gradient(y, [x, gamma, beta], dy)])
    fn = G.compile(graph, target="c", optimize=1)
    assert [launch.schedule for launch in fn.kernels] == ["fold"] * 3  # rows, and two of columns
    assert sum(len(launch.ops) for launch in fn.kernels) > 25
    arrays = normal(graph)
    assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays)))


def test_what_follows_a_product_joins_it():
    x, w, b = G.var("x", (20, 30)), G.var("w", (30, 40)), G.var("b", (40,))
    graph = G.Graph([x, w, b], [G.relu(x @ w + b)])
    (launch,) = G.compile(graph, target="interpret", library=False).kernels
    assert launch.ops == ("matmul", "add", "relu")
    assert (launch.schedule, launch.library, launch.fallback) == ("contraction", False, "")
    assert launch.bytes == 4 * (20 * 30 + 30 * 40 + 40 + 20 * 40)
    assert launch.flops == 2 * 20 * 30 * 40 + 2 * 20 * 40
    assert isinstance(launch.kernel, ln.Kernel)
    by_library = G.compile(graph, target="interpret").kernels
    assert [(k.ops, k.library) for k in by_library] == [
        (("matmul",), True),
        (("add", "relu"), False),
    ]


def test_equal_groups_share_a_kernel():
    x = G.var("x", (8, 8))
    y = x
    for _ in range(3):
        y = G.tanh(y @ G.transpose(y))
    fn = G.compile(G.Graph([x], [y]), target="interpret", library=True)
    kernels = [launch.kernel for launch in fn.kernels if not launch.library]
    assert len(kernels) == 3
    assert kernels[0] is kernels[1] is kernels[2]


@pytest.fixture
def opaque():
    """An op that nobody can lower: twice its operand."""
    register_op(
        "opaque", infer=lambda types, attrs: types[0], evaluate=lambda node, x: x * 2, arity=1
    )
    yield lambda x: G.call("opaque", [x])
    unregister_op("opaque")


def test_no_cycle_of_groups(opaque):
    """exp(x) and its use must not share a kernel with what stands in between."""
    x = G.var("x", (6, 7))
    e = G.exp(x)
    graph = G.Graph([x], [e * opaque(e)])
    fn = G.compile(graph, target="interpret")
    assert [k.ops for k in fn.kernels] == [("exp",), ("opaque",), ("mul",)]
    assert [k.fallback for k in fn.kernels] == ["", "op opaque has no attribute 'lower'", ""]
    arrays = normal(graph)
    assert_alike((fn(*arrays),), G.evaluate(graph, feeds(graph, arrays)))


@pytest.mark.parametrize(
    "read",
    [
        lambda b: b + G.expand_dims(b, 1),
        lambda b: b * G.transpose(b, (1, 0, 2)),
        lambda b: G.sum(b * G.transpose(b, (1, 0, 2)), 2),
        lambda b: G.softmax(b + G.transpose(b, (1, 0, 2))),
        lambda b: G.matmul(b, G.transpose(b, (0, 2, 1))),
    ],
)
def test_what_is_repeated_is_read_in_two_ways(read):
    """An axis that a tensor repeats is another axis for each reader."""
    x = G.var("x", (3, 5))
    graph = G.Graph([x], [read(G.broadcast_to(G.tanh(x), (3, 3, 5)))])
    for target in ("c", "cuda"):
        with G.Target("llvm" if target == "c" else "cuda"):
            assert not G.CodeGen()(G.KernelFusion()(G.Decompose()(graph))).attrs["fallback"]
    fn = G.compile(graph, target="interpret", library=False)
    arrays = normal(graph)
    assert_alike((fn(*arrays),), G.evaluate(graph, feeds(graph, arrays)))


# Memory


def test_the_arena_is_used_again():
    x = G.var("x", (64, 64))
    y = x
    for _ in range(6):
        y = G.tanh(y @ y)
    fn = G.compile(G.Graph([x], [y]), target="c", optimize=0)
    assert len(fn.kernels) == 12
    assert fn.plan().arena <= 2 * 64 * 64 * 4


def test_results_are_the_callers():
    x = G.var("x", (4, 4))
    y = x + 1.0
    fn = G.compile(G.Graph([x], [y, y, x, G.reshape(y, (16,)), G.const([1.0])]), target="c")
    a = np.zeros((4, 4), np.float32)
    first = fn(a)
    for result in first:
        result += 100
    assert not np.any(a)
    second = fn(a)
    assert [float(r.flat[0]) for r in second] == [1, 1, 0, 1, 1]
    assert all(np.all(r >= 100) for r in first)


def test_inputs_of_any_strides():
    x = G.var("x", (6, 4))
    fn = G.compile(G.Graph([x], [x * 2.0]), target="c")
    a = np.arange(24, dtype=np.float32).reshape(4, 6).T
    np.testing.assert_array_equal(fn(a), a * 2)
    np.testing.assert_array_equal(fn(np.repeat(a, 2, 1)[:, ::2]), a * 2)


def test_an_unused_input_and_no_kernel():
    x, y = G.var("x", (3,)), G.var("y", (2,))
    fn = G.compile(G.Graph([x, y], [x]), target="c")
    assert fn.kernels == ()
    np.testing.assert_array_equal(fn(np.ones(3, np.float32), np.ones(2, np.float32)), np.ones(3))


# Wrong calls


def error_of(call, kind):
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def test_wrong_arguments():
    x = G.var("x", (2, 3))
    fn = G.compile(G.Graph([x], [x + 1.0], "f"), target="c")
    assert error_of(fn, ln.LaunchError) == (
        "f(...): 0 arrays were given for 1 inputs; pass x: float32[2, 3]"
    )
    assert error_of(lambda: fn(np.zeros((2, 3))), ln.LaunchError) == (
        "f(...): x is float32[2, 3], the array float64[2, 3]; "
        "compile the graph for the shapes and types that it is called with"
    )
    assert error_of(lambda: fn(np.zeros((3, 2), np.float32)), ln.LaunchError) == (
        "f(...): x is float32[2, 3], the array float32[3, 2]; "
        "compile the graph for the shapes and types that it is called with"
    )


@pytest.mark.parametrize(
    ("value", "kind"), [(None, "a NoneType"), ("abc", "a str"), (G.var("y", (2, 3)), "a Node")]
)
def test_arguments_that_are_no_arrays(value, kind):
    x = G.var("x", (2, 3))
    fn = G.compile(G.Graph([x], [x + 1.0], "f"), target="c")
    assert error_of(lambda: fn(value), ln.LaunchError) == (
        f"f(...): x is float32[2, 3], it is given {kind}; pass arrays"
    )


def test_a_target_that_there_is_not():
    x = G.var("x", (2, 3))
    for outputs in ([x + 1.0], [x]):  # also where there is nothing to compile
        graph = G.Graph([x], outputs, "f")
        assert error_of(lambda g=graph: G.compile(g, target="tpu"), ln.CompileError) == (
            "compile(f, target='tpu'): there is no target 'tpu'; "
            'use one of "cuda", "c", "interpret", "auto"'
        )


def test_arguments_of_which_two_are_one_array_or_that_cannot_be_written():
    """Arguments are read: they stay as they are, whatever memory they have."""
    x, y = G.var("x", (2, 3)), G.var("y", (2, 3))
    fn = G.compile(G.Graph([x, y], [x + y, x - y], "f"), target="c")
    array = np.arange(8, dtype=np.float32)
    array.flags.writeable = False
    same, shifted = array[:6].reshape(2, 3), array[2:].reshape(2, 3)
    for other in (same, shifted, array[5::-1].reshape(2, 3)):
        total, difference = fn(same, other)
        np.testing.assert_array_equal(total, same + other)
        np.testing.assert_array_equal(difference, same - other)
    assert array.tolist() == list(range(8))


def test_a_variable_that_is_assigned_twice():
    s = counter()
    graph = G.Graph([], [G.assign(s, s + 1.0), G.assign(s, s + 2.0)])
    assert without_lines(error_of(lambda: G.compile(graph), G.GraphError)) == (
        "graph main, node assign(s, add(s, 2.0)): the variable s is assigned twice, first by "
        "assign(s, add(s, 1.0)); its new value is one node"
    )


def test_everything_generated_or_refused(opaque):
    x = G.var("x", (4, 5))
    y = G.exp(x)
    graph, place = G.Graph([x], [G.call("opaque", [y])], "f"), this_line()
    assert error_of(lambda: G.compile(graph, "c", library=False), G.GraphError) == (
        f"compile(f, library=False), node opaque(exp(…)) made at {place}: it has no kernel: op "
        "opaque has no attribute 'lower'; pass library=True"
    )
    assert error_of(lambda: G.compile(graph, "c", library=3), G.GraphError) == (
        "compile(f): library is an int; pass True or False"
    )
    assert error_of(lambda: G.compile(3), G.GraphError) == (
        "compile(…): it was given an int; pass a G.Graph"
    )


# Passes that make kernels, by name


def test_code_gen_pulls_in_fusion():
    x, w = G.var("x", (6, 5)), G.var("w", (5, 4))
    graph = G.Graph([x, w], [1.0 / (1.0 + G.exp(-(x @ w))), G.softmax(x)])
    with G.Target("c"):
        made = G.apply_passes(graph, ["RTCGen"])
    assert set(made.attrs) >= {"subgraph", "kernel", "rtc"}
    assert set(made.attrs["kernel"]) == set(made.calls) == set(made.attrs["rtc"])
    assert all(isinstance(kernel, ln.Kernel) for kernel in made.attrs["kernel"].values())
    assert all(runner.target == "c" for runner in made.attrs["rtc"].values())
    assert made.attrs["fallback"] == {}
    arrays = normal(graph)
    fn = G.compile(made, target="c")
    assert len(fn.kernels) == len(made.calls)
    assert_alike(fn(*arrays), G.evaluate(graph, feeds(graph, arrays)))


def test_kernel_fusion_is_a_pass():
    x = G.var("x", (6, 5))
    graph = G.Graph([x], [G.softmax(x)])
    with G.Target("c"):
        fused = G.apply_passes(graph, ["KernelFusion", "CodeGen"])
    (call,) = fused.calls
    assert fused.attrs["subgraph"] == {call: fused.functions[0]}
    assert fused.attrs["schedule"] == {call: "fold"}
    assert len(G.FuseOps()(graph).calls) == 1  # where softmax is opaque: an op of its own


def test_the_graph_layer_loads_no_kernels():
    code = (
        "import sys, loopnest.graph; "
        "print([m for m in sys.modules if m.startswith(('loopnest.graph_kernels', "
        "'loopnest.facade.kernel_class', 'loopnest.lowering', 'loopnest.schedulers'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Training


@pytest.mark.parametrize(
    "optimizer",
    [G.optim.SGD(0.1), G.optim.SGD(0.1, 0.9), G.optim.Adam(0.01)],
    ids=["descent", "momentum", "Adam"],
)
def test_training_steps_are_those_of_the_evaluator(optimizer):
    random = np.random.default_rng(0)
    x, labels = G.var("x", (64, 20)), G.var("labels", (64, 5))
    w1 = G.Variable(random.normal(size=(20, 32)).astype(np.float32) * 0.3, "w1")
    b1 = G.Variable(np.zeros(32, np.float32), "b1")
    w2 = G.Variable(random.normal(size=(32, 5)).astype(np.float32) * 0.3, "w2")
    loss = G.cross_entropy(G.relu(x @ w1 + b1) @ w2, labels)
    graph = G.Graph([x, labels], [loss, optimizer.minimize(loss)])
    fn = G.compile(graph, target="c", optimize=1)
    arrays = [
        random.normal(size=(64, 20)).astype(np.float32),
        np.eye(5, dtype=np.float32)[random.integers(5, size=64)],
    ]
    state, losses = {}, []
    for _ in range(8):
        expected = G.evaluate(graph, feeds(graph, arrays), state)
        losses.append(fn(*arrays)[0])
        np.testing.assert_allclose(losses[-1], expected[0], rtol=1e-4)
    assert losses[-1] < losses[0]
    assert not fn.plan().commits  # every variable is overwritten in place
    assert not [step for step in fn.plan().steps if step.copies]


def test_adam_updates_a_variable_by_one_kernel():
    w, g = G.Variable(np.ones((100, 30), np.float32), "w"), G.var("g", (100, 30))
    update = G.group(*G.optim.Adam().updates([w], [g]))
    fn = G.compile(G.Graph([g], [update]), target="c")
    rate, step = fn.kernels
    assert rate.ops.count("pow") == 2
    assert step.bytes == 7 * 4 * 3000 + 4  # reads w, g, m, v and the rate; writes w, m, v
    assert step.kernel.program.outputs[0].inplace
    assert [output.inplace is not None for output in step.kernel.program.outputs] == [True] * 3


@pytest.mark.parametrize("last", [2, 3])
def test_windows_of_windows_are_one_tensor(last: int) -> None:
    """Along other axes they are; windows along the elements of windows are not."""
    x = G.var("x", (2, 8, 9, 7))
    y = x
    for axis, size, step in ((1, 3, 2), (2, 2, 3), (last, 2, 1)):
        y = G.unfold(y, axis, size, step)
    fn = G.compile(G.Graph([x], [G.sum(y, range(4, 7))]), target="c", library=False)
    (launch,) = fn.kernels
    assert launch.kernel is not None
    assert str(launch.kernel).count("float32[1] local") == (1 if last == 3 else 2)
    given = np.random.default_rng(0).standard_normal((2, 8, 9, 7)).astype(np.float32)
    wanted = given
    for axis, size, step in ((1, 3, 2), (2, 2, 3), (last, 2, 1)):
        wanted = sliding_window_view(wanted, size, axis)
        wanted = wanted[(slice(None),) * axis + (slice(None, None, step),)]
    np.testing.assert_allclose(fn(given), wanted.sum((4, 5, 6)), rtol=1e-4, atol=1e-5)
