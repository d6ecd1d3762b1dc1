"""FuseOps: examples of TVM's pass, options, and the invariants of groups."""

from __future__ import annotations

from random import Random

import hypothesis
import pytest
from hypothesis import strategies as st

import loopnest.graph as G
from graph import published
from graph.random_graphs import Sample, samples
from helpers.work import calls
from loopnest.graph.passes import fuse_ops
from loopnest.graph.passes.fuse_ops import ForwardGraph, PostDominators, forward_graph, partition

P = G.Pattern
CHECKED = G.PassContext(opt_level=3, instruments=[G.WellFormed(), G.SameValues()])


def fused(graph: G.Graph, *args: object, **options: object) -> G.Graph:
    with CHECKED:
        return G.FuseOps(*args, **options)(graph)


def sizes(graph: G.Graph) -> list[dict[str, int]]:
    return [G.count_ops(body) for body in graph.functions]


# The published example


def test_the_worked_example_fuses_into_one_function() -> None:
    passes = [G.FoldConstant(), G.EliminateCommonSubexpr(), G.FuseOps(fuse_opt_level=2)]
    with CHECKED:
        graph = G.Sequential(passes)(published.worked_example_of_tvm(2, 4))
    assert G.to_text(graph, constants=False) == (
        "# loopnest graph 1\n"
        "graph main(x: float32[1, 2, 4, 4], weight: float32[2, 2, 3, 3]) {\n"
        "  def @fused0(p0: float32[1, 2, 4, 4], p1: float32[2, 2, 3, 3], "
        "p2: float32[1, 2, 2, 2], p3: float32[1, 2, 2, 2]) {\n"
        "    %0: float32[1, 2, 2, 2] = conv2d(p0, p1)\n"
        "    %1: float32[1, 2, 2, 2] = add(%0, p2)\n"
        "    %2: float32[1, 2, 2, 2] = add(%1, p3)\n"
        "    %3: float32[1, 2, 2, 2] = add(%2, %2)\n"
        "    return %3\n"
        "  }\n"
        "  %0: float32[1, 2, 2, 2] = const [-4.0, -2.857143, -1.7142857, -0.5714286, 0.5714286, "
        "1.7142857, 2.857143, 4.0]\n"
        "  %1: float32[1, 2, 2, 2] = const [-1.0, -0.71428573, -0.42857143, -0.14285715, "
        "0.14285715, 0.42857143, 0.71428573, 1.0]\n"
        "  %2: float32[1, 2, 2, 2] = @fused0(x, weight, %0, %1)\n"
        "  return %2\n"
        "}"
    )


def test_the_two_equal_additions_stay_below_level_3() -> None:
    passes = [G.FoldConstant(), G.EliminateCommonSubexpr(), G.FuseOps(fuse_opt_level=2)]
    graph = G.Sequential(passes)(published.worked_example_of_tvm(2, 4))
    assert sizes(graph) == [{"add": 4, "conv2d": 1}]


def test_fuse_opt_level_0_makes_a_function_of_every_op() -> None:
    graph = fused(G.FoldConstant()(published.worked_example_of_tvm(2, 4)), fuse_opt_level=0)
    assert sizes(graph) == [{"conv2d": 1}, *[{"add": 1}] * 4]
    assert len(set(graph.functions)) == 2  # equal functions are one


def test_without_the_pass_nothing_is_fused() -> None:
    with G.PassContext(opt_level=3, disabled_pass=["FuseOps"]):
        graph = G.Sequential([G.FoldConstant(), G.FuseOps()])(published.worked_example_of_tvm(2, 4))
    assert graph.functions == ()


def test_a_level_of_minus_1_is_that_of_the_context() -> None:
    graph = published.diamond_of_tvm()
    with G.PassContext(opt_level=0):
        assert len(G.FuseOps(-1)(graph).functions) == 6
    with G.PassContext(opt_level=1):
        assert len(G.FuseOps(-1)(graph).functions) == 1


# What fuses


def test_the_diamond_fuses_into_one_function() -> None:
    graph = fused(published.diamond_of_tvm())
    assert sizes(graph) == [{"add": 2, "conv2d": 1, "mul": 1, "relu": 1, "tanh": 1}]


def test_an_opaque_op_in_a_branch_keeps_the_heavy_op_alone() -> None:
    graph = fused(published.diamond_of_tvm(opaque=True))
    assert sizes(graph) == [{"conv2d": 1}, {"softmax": 1}, {"add": 2, "mul": 1, "relu": 1}]


def test_two_heavy_ops_never_share_a_group() -> None:
    graph = fused(published.conv_chain_of_tvm())
    assert sizes(graph) == [{"add": 1, "conv2d": 1, "relu": 1}, {"add": 1, "conv2d": 1}]


def test_two_heavy_ops_that_meet_in_a_sum_do_not_share_a_group() -> None:
    x, v, w = G.var("x", (4, 4)), G.var("v", (4, 4)), G.var("w", (4, 4))
    graph = fused(G.Graph([x, v, w], [G.relu(x @ v) + G.tanh(x @ w)]))
    assert sizes(graph) == [{"matmul": 1, "tanh": 1}, {"add": 1, "matmul": 1, "relu": 1}]


def test_pointwise_ops_fuse_into_a_reduction_but_not_behind_it() -> None:
    x = G.var("x", (4, 8))
    graph = fused(G.Graph([x], [G.exp(G.sum(G.tanh(x * 2.0), 1))]))
    assert sizes(graph) == [{"mul": 1, "sum": 1, "tanh": 1}, {"exp": 1}]


def test_an_edge_is_elementwise_where_shapes_agree() -> None:
    x, w = G.var("x", (1, 4)), G.var("w", (4, 3))
    row, table = G.var("row", (1, 3)), G.var("table", (5, 3))
    agree = G.Graph([x, w, row], [x @ w + row])
    assert sizes(fused(agree)) == [{"add": 1, "matmul": 1}]
    spread = G.Graph([x, w, table], [x @ w + table])  # the product is repeated
    assert sizes(fused(spread)) == [{"matmul": 1}, {"add": 1}]


def test_injective_ops_fuse_into_pointwise_ones() -> None:
    x = G.var("x", (4, 8))
    graph = fused(G.Graph([x], [G.relu(G.transpose(x)) + 1.0]))
    assert sizes(graph) == [{"add": 1, "relu": 1, "transpose": 1}]


def test_the_third_phase_fuses_injective_ops_into_a_tuple() -> None:
    graph = published.tuple_of_tvm()
    assert sizes(fused(graph)) == [{"exp": 1, "get_item": 2, "mul": 1, "transpose": 2, "tuple": 1}]
    _, groups = fuse_ops.detect(graph, 2, 256)
    assert [merge.phase for merge in groups.merges] == [1, 1, 2, 2]


def test_a_tuple_that_is_returned_stays_between_functions() -> None:
    x = G.var("x", (4,), "float64")
    graph = fused(G.Graph([x], [G.make_tuple(G.exp(x), G.tanh(x))]))
    assert sizes(graph) == [{"exp": 1}, {"tanh": 1}]
    assert graph.outputs[0].op == "tuple"


def test_a_field_of_a_tuple_from_elsewhere_is_taken_before_the_call() -> None:
    x = G.var("x", (4,), "float64")
    pair = G.make_tuple(G.exp(x), G.tanh(x))
    graph = fused(G.Graph([x], [pair, G.relu(pair[0]) + 1.0]))
    call = graph.outputs[1]
    assert [node.op for node in call.inputs] == ["get_item"]
    assert all(not p.is_tuple for body in graph.functions for p in body.inputs)


def test_scalar_constants_are_copied_and_other_constants_are_parameters() -> None:
    x, table = G.var("x", (2,), "float64"), G.const([1.0, 2.0], "float64")
    two = G.const(2.0, "float64")
    graph = fused(G.Graph([x], [x * two + table, x * two]))
    assert [node for call in graph.calls for node in call.inputs if node.op == "const"] == [table]


def test_state_is_updated_from_within_functions() -> None:
    graph = fused(published.adam_of_nnvm())
    assert {n.op for n in graph.nodes} == {"var", "variable", "fused", "group"}
    assigned = [n for body in graph.functions for n in body.nodes if n.op == "assign"]
    assert len(assigned) == 7


def test_functions_of_equal_structure_are_one_body() -> None:
    graph = fused(published.residual_network(blocks=3))
    assert len(set(graph.functions)) < len(graph.functions) / 2


def test_calls_stay_and_new_functions_get_other_names() -> None:
    first = fused(published.conv_chain_of_tvm())
    more = first.with_outputs([G.tanh(first.outputs[0]) * 2.0])
    again = fused(more)
    assert [body.name for body in again.functions] == ["fused0", "fused1", "fused2"]
    assert again.functions[:2] == first.functions


def test_a_graph_without_ops_comes_back() -> None:
    x = G.var("x", (4,))
    graph = G.Graph([x], [x])
    assert G.FuseOps()(graph) is graph


# Limits, options, names


def chain(count: int) -> G.Graph:
    x = y = G.var("x", (4,))
    for _ in range(count):
        y = G.tanh(y)
    return G.Graph([x], [y])


def test_max_depth_is_the_largest_number_of_ops_in_a_group() -> None:
    assert [b["tanh"] for b in sizes(G.FuseOps(max_depth=4)(chain(10)))] == [4, 4, 2]
    with G.PassContext(config={"FuseOps.max_depth": 3}):
        assert [b["tanh"] for b in sizes(G.FuseOps()(chain(7)))] == [3, 3, 1]
        assert [b["tanh"] for b in sizes(G.FuseOps(max_depth=7)(chain(7)))] == [7]
    assert [b["tanh"] for b in sizes(G.FuseOps()(chain(300)))] == [256, 44]


def test_max_depth_counts_every_branch() -> None:
    graph = published.diamond_of_tvm()
    assert len(G.FuseOps(max_depth=6)(graph).functions) == 1
    assert len(G.FuseOps(max_depth=5)(graph).functions) > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: G.FuseOps(max_depth=0),
            "FuseOps(max_depth=0): it must be an integer >= 1",
        ),
        (
            lambda: G.FuseOps("2"),
            "FuseOps(fuse_opt_level='2'): it must be an integer >= -1",
        ),
        (
            lambda: G.FuseOps(True),
            "FuseOps(fuse_opt_level=True): it must be an integer >= -1",
        ),
        (
            lambda: G.PassContext(config={"FuseOps.depth": 3}),
            "PassContext(config={'FuseOps.depth': 3}): there is no such option; "
            "there are: FuseOps.max_depth",
        ),
    ],
)
def test_wrong_arguments_are_named(make: object, message: str) -> None:
    with pytest.raises(G.GraphError) as caught:
        make()
    assert str(caught.value) == message


def test_an_option_out_of_range_is_named() -> None:
    with (
        G.PassContext(config={"FuseOps.max_depth": 0}),
        pytest.raises(G.GraphError) as caught,
    ):
        G.FuseOps()(chain(2))
    assert str(caught.value) == "FuseOps(max_depth=0): it must be an integer >= 1"


def test_fusion_by_name_provides_the_map_from_calls_to_bodies() -> None:
    graph = G.apply_passes(published.conv_chain_of_tvm(), ["Fusion"])
    assert graph.attrs["subgraph"] == dict(zip(graph.calls, graph.functions, strict=True))
    again = G.apply_passes(graph, ["Fusion"])
    assert again is graph


def test_groups_are_detected_once_for_a_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def counted(*args: object) -> object:
        runs.append(args)
        return partition(*args)

    monkeypatch.setattr(fuse_ops, "partition", counted)
    monkeypatch.setattr(fuse_ops, "_PARTITIONS", type(fuse_ops._PARTITIONS)())
    first, second = published.diamond_of_tvm(), published.diamond_of_tvm()
    assert str(G.FuseOps()(first)) == str(G.FuseOps()(second))
    assert len(runs) == 1
    G.FuseOps(max_depth=2)(first)
    G.FuseOps(fuse_opt_level=0)(first)
    G.FuseOps()(published.diamond_of_tvm(opaque=True))
    assert len(runs) == 4


def test_a_changed_pattern_is_not_served_from_what_is_remembered() -> None:
    graph = published.diamond_of_tvm()
    assert len(G.FuseOps()(graph).functions) == 1
    G.register_attr("tanh", "pattern", P.OPAQUE, override=True)
    try:
        assert len(G.FuseOps()(graph).functions) == 3
    finally:
        G.register_attr("tanh", "pattern", P.ELEMWISE, override=True)


def test_what_is_remembered_is_bounded() -> None:
    for count in range(2, fuse_ops._KEPT + 20):
        G.FuseOps()(chain(count))
    assert len(fuse_ops._PARTITIONS) == fuse_ops._KEPT


# Properties


def slow_parents(graph: ForwardGraph) -> list[int]:
    """Return immediate post-dominators by intersecting sets."""
    count = len(graph)
    behind: list[set[int]] = [set() for _ in range(count + 1)]
    for i in reversed(range(count)):
        ways = [behind[j] | {j} for j, _ in graph.edges[i]]
        behind[i] = set() if graph.outputs[i] else set.intersection(*ways)
    return [min(behind[i], default=count) for i in range(count)]


@hypothesis.given(samples(max_ops=30))
@hypothesis.settings(max_examples=60, deadline=None)
def test_post_dominators_agree_with_intersected_sets(sample: Sample) -> None:
    ops = forward_graph(sample.graph)
    assert PostDominators(ops).parents[:-1] == slow_parents(ops)


def lattice(seed: int) -> ForwardGraph:
    """A random graph without ops, denser than programs are."""
    random = Random(seed)
    count = random.randint(2, 40)
    kinds = [P.ELEMWISE, P.BROADCAST, P.INJECTIVE, P.REDUCTION]
    edges = []
    for i in range(count):
        later = range(i + 1, count)
        users = sorted(random.sample(later, min(len(later), random.randint(1, 3))))
        edges.append(tuple((user, random.choice(kinds)) for user in users))
    outputs = [i == count - 1 or random.random() < 0.1 for i in range(count)]
    return ForwardGraph((None,) * count, (P.ELEMWISE,) * count, tuple(edges), tuple(outputs))


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_post_dominators_and_their_patterns_on_dense_graphs(start: int) -> None:
    for seed in range(start, start + 100):
        check_tree(lattice(seed))


def check_tree(graph: ForwardGraph) -> None:
    tree = PostDominators(graph)
    parents = slow_parents(graph)
    assert tree.parents[:-1] == parents
    for i, parent in enumerate(parents):
        if parent < len(graph):
            assert tree.patterns[i] == largest_edge(graph, i, parent)


def largest_edge(graph: ForwardGraph, source: int, sink: int) -> G.Pattern:
    found, pending, seen = P.ELEMWISE, [source], {source}
    while pending:
        for number, pattern in graph.edges[pending.pop()]:
            found = max(found, pattern)
            if number != sink and number not in seen:
                seen.add(number)
                pending.append(number)
    return found


@hypothesis.given(samples(max_ops=30), st.integers(1, 12))
@hypothesis.settings(max_examples=80, deadline=None)
def test_groups_have_one_output_one_heavy_op_and_no_way_around(sample: Sample, depth: int) -> None:
    ops = forward_graph(sample.graph)
    groups = partition(ops, depth)
    members: dict[int, list[int]] = {}
    for number, leader in enumerate(groups.leaders):
        members.setdefault(leader, []).append(number)
    for leader, group in members.items():
        patterns = [ops.patterns[i] for i in group]
        assert len(group) <= depth
        assert patterns.count(P.OUT_ELEMWISE_FUSABLE) <= 1
        assert patterns.count(P.REDUCTION) <= 1
        assert len(group) == 1 or P.OPAQUE not in patterns
        assert leader == max(group)
        assert leader in groups.refusals
        for number in group:
            if number != leader:
                assert not ops.outputs[number]
                assert all(groups.leaders[user] == leader for user, _ in ops.edges[number])


@hypothesis.given(samples(max_ops=25), st.sampled_from([0, 2]), st.integers(1, 300))
@hypothesis.settings(max_examples=60, deadline=None)
def test_values_and_counts_stay_and_a_second_run_changes_nothing(
    sample: Sample, level: int, depth: int
) -> None:
    graph = fused(sample.graph, level, depth)
    assert fused(graph, level, depth) is graph
    assert G.count_ops(graph) == G.count_ops(sample.graph)
    assert str(G.parse(str(graph))) == str(graph)


@hypothesis.given(samples(max_ops=20, fused=False))
@hypothesis.settings(max_examples=30, deadline=None)
def test_every_pair_of_ops_is_explained(sample: Sample) -> None:
    graph = sample.graph
    ops, groups = fuse_ops.detect(graph, 2, 256)
    for i, a in enumerate(ops.nodes):
        for j, b in enumerate(ops.nodes[: i + 1]):
            text = G.explain_fusion(graph, a, b)
            if i != j:
                together = groups.leaders[i] == groups.leaders[j]
                assert (" do not fuse: " not in text) == together
                assert ("] fuse: phase " in text) == together


def test_a_chain_of_3000_ops_is_no_problem() -> None:
    graph = chain(3000)
    assert [b["tanh"] for b in sizes(G.FuseOps(max_depth=5000)(graph))] == [3000]
    assert " fuse: phase 0 " in G.explain_fusion(graph, graph.nodes[1], graph.nodes[200])


def test_the_residual_network_is_partitioned_by_some_calls_a_node() -> None:
    graph = published.residual_network()
    assert len(graph.nodes) > 2000
    assert calls(lambda: partition(forward_graph(graph), 256)) < 100 * len(graph.nodes)
