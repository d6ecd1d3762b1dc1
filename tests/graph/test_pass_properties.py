"""Every pass, and random orders of them, on random graphs: values, form, idempotence."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopnest.graph as G
from graph import published
from graph.random_graphs import samples

IDEMPOTENT = {
    "FoldConstant": G.FoldConstant,
    "SimplifyExpr": G.SimplifyExpr,
    "SimplifyExpr loose": lambda: G.SimplifyExpr(reassociate=True),
    "DeadCodeElimination": G.DeadCodeElimination,
    "EliminateCommonSubexpr": G.EliminateCommonSubexpr,
    "EliminateCommonSubexpr commutative": lambda: G.EliminateCommonSubexpr(commutative=True),
    "AutoInline": G.AutoInline,
    "AlterOpLayout": G.AlterOpLayout,
}
EXACT = ["FoldConstant", "DeadCodeElimination", "EliminateCommonSubexpr"]
OTHERS = [name for name in ("FuseOps", "Distribute") if name in G.pass_names()]
CONVS = ("conv2d", "conv2d_backward_data", "conv2d_backward_weight")


def blocked(attrs, inputs, types, out_type):
    """Ask for blocks of two where channels and groups allow it."""
    if attrs["groups"] > 1 or any(t.shape[1] % 2 for t in types if len(t.shape) == 4):
        return None
    return {"data_layout": "NCHW2c", "kernel_layout": "OIHW2i2o"}


@pytest.fixture(autouse=True, scope="module")
def hooks():
    for op in CONVS:
        G.register_alter_op_layout(op)(blocked)
    yield
    for op in CONVS:
        G.unregister_alter_op_layout(op)


def checked(tolerance=None):
    return G.PassContext(
        opt_level=3, instruments=[G.WellFormed(), G.SameValues(tolerance=tolerance)]
    )


@pytest.mark.parametrize("name", IDEMPOTENT)
@settings(max_examples=60, deadline=None)
@given(sample=samples())
def test_a_pass_keeps_values_and_is_idempotent(name, sample):
    with checked(0 if name in EXACT else None):
        once = IDEMPOTENT[name]()(sample.graph)
        assert IDEMPOTENT[name]()(once) is once


@settings(max_examples=120, deadline=None)
@given(
    sample=samples(max_ops=12),
    order=st.lists(st.sampled_from([*IDEMPOTENT, *OTHERS]), min_size=2, max_size=6),
)
def test_passes_in_any_order_keep_values(sample, order):
    passes = [IDEMPOTENT[n]() if n in IDEMPOTENT else G.make_pass(n) for n in order]
    with checked():
        G.Sequential(passes)(sample.graph)


@settings(max_examples=60, deadline=None)
@given(
    sample=samples(max_ops=8, differentiable=True),
    order=st.lists(st.sampled_from([*IDEMPOTENT]), min_size=1, max_size=4),
)
def test_gradients_are_graphs_as_any(sample, order):
    graph = sample.graph
    (y,) = [G.sum(x) for x in graph.outputs[:1]]
    both = G.Graph(graph.inputs, [y, *G.gradient(y, list(graph.inputs))])
    with checked(1e-7):
        G.Sequential([IDEMPOTENT[name]() for name in order])(both)


@pytest.mark.parametrize("name", IDEMPOTENT)
def test_the_seeds_examples(name):
    graphs = [
        published.tanh_of_cse_rfc().backward,
        published.batch_norm_of_cse_rfc().backward,
        published.gamma_gradient_of_cse_rfc().backward,
        published.distribute_of_ublas(),
        published.adam_of_nnvm(),
        published.worked_example_of_tvm(channels=4, size=6),
        published.diamond_of_tvm(),
        published.conv_chain_of_tvm(),
    ]
    for graph in graphs:
        with checked():
            once = IDEMPOTENT[name]()(graph)
        assert IDEMPOTENT[name]()(once) is once


def deep():
    """A chain of 4,000 nodes: pointwise ops and movements that cancel in pairs, over a conv2d."""
    x, w = G.var("x", (1, 4, 4, 4), "float64"), G.var("w", (4, 4, 1, 1), "float64")
    y = G.conv2d(x, w)
    for i in range(1000):
        y = G.flip(G.tanh(y + 1.0), i % 4) if i % 3 else G.transpose(y + y, (0, 1, 3, 2))
    return G.Graph([x, w], [y])


@pytest.mark.parametrize("name", IDEMPOTENT)
def test_deep_graphs(name):
    graph = deep()
    with checked(1e-6):
        once = IDEMPOTENT[name]()(graph)
    assert IDEMPOTENT[name]()(once) is once


def test_a_thousand_ops_in_good_time():
    """The residual network of 50 layers, forward and backward, through the usual passes."""
    network = published.residual_network()
    timing = G.PassTiming()
    passes = [G.SimplifyExpr(), G.FoldConstant(), G.AutoInline(), G.EliminateCommonSubexpr()]
    with G.PassContext(opt_level=3, instruments=[timing]):
        done = G.Sequential([*passes, G.DeadCodeElimination()])(network)
    assert len(done.nodes) < len(network.nodes)
    assert sum(run.seconds for run in timing.profiles) < 10  # about 1 s; machines are shared
