"""Plans of steps are proved, and wrong ones are refuted, whatever was made wrong."""

from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
import loopnest.graph as G
from graph_kernels.plan_mutants import (
    Broken,
    PlanMachine,
    bodies_of,
    copied,
    leaves,
    mutants,
    reason,
)
from graph_kernels.random_programs import SIZES, RandomProgram
from loopnest.graph_kernels import runs_by_size
from loopnest.graph_kernels.plan_proof import ArenaProof, plan_faults
from loopnest.graph_kernels.step_plan import plan_steps


def variable(shape, name, seed=0):
    return G.Variable(np.random.default_rng(seed).normal(size=shape).astype(np.float32), name)


def products():
    """A library's products, which read transposed operands, between kernels; and one of NumPy."""
    x, w = G.var("x", (4, 6)), G.var("w", (6, 4))
    y = G.tanh(x @ w)
    z = G.transpose(y, (1, 0)) @ y
    return G.Graph([x, w], [G.softmax(z @ y), G.sum(z), G.cumsum(z, 0)]), {"library": True}


def training():
    """A step of Adam: variables that are overwritten, and read before."""
    x, t = G.var("x", (4, 6)), G.var("t", (4, 5))
    scores = G.tanh(x @ variable((6, 5), "w")) @ variable((5, 5), "v", 1)
    loss = G.mean((scores - t) * (scores - t))
    return G.Graph([x, t], [loss, G.optim.Adam(0.1).minimize(loss)]), {"library": False}


def exchange():
    """Variables that take each other's values, and one that is read behind its update."""
    a, b, c = [variable((3,), name, n) for n, name in enumerate("abc")]
    updates = [G.assign(a, b), G.assign(b, a), G.assign(c, c * 2.0 + b)]
    return G.Graph([], [G.group(*updates), c, G.sum(a) + G.sum(c)]), {"library": False}


def kept():
    """An update whose old value is read again by what needs the new one."""
    s, x = variable((4, 4), "s"), G.var("x", (4, 4))
    new = G.tanh(s * 0.5 + x)
    graph = G.Graph([x], [G.assign(s, new), G.softmax(new @ new) + s])
    return graph, {"library": False}


def copied_first():
    """A kernel that overwrites a variable whose old value is a result."""
    s, x = variable((3,), "s"), G.var("x", (3,))
    updates = G.group(G.assign(s, s * 2.0 + x))
    return G.Graph([x], [s, G.reshape(s, (3, 1)), updates, G.sum(s)]), {"library": False}


def views():
    """Windows that NumPy reads at strides, and reshapes of what lies in the arena."""
    x = G.var("x", (4, 6))
    y = G.exp(x)
    seen = G.strided_view(G.reshape(y, (24,)), (3, 4), (4, 3))
    flat = G.reshape(y, (6, 4))
    return G.Graph([x], [G.cumsum(seen, 1), G.softmax(flat), G.cumsum(flat, 0)]), {"library": True}


def symbolic():
    """A network with its gradients, whose sizes are symbols."""
    x, w, b = G.var("x", ("N", "D")), G.var("w", ("D", 8)), G.var("b", (8,))
    y = G.softmax(G.relu(x @ w + b))
    loss = G.mean(y * y)
    return G.Graph([x, w, b], [loss, *G.gradient(loss, [x, w, b])]), {"library": False}


SUBJECTS = [products, training, exchange, kept, copied_first, views, symbolic]


def compiled(subject):
    graph, options = subject()
    return G.compile(graph, target="interpret", **options)


class Judge:
    """Holds what the proof says of a plan's mutants against what the machine computes."""

    def __init__(self, fn, sizes):
        self.sizes, self.count = sizes, len(fn.graph.outputs)
        self.run = fn._runs.at(tuple([sizes[name] for name in fn._runs.names]))
        self.plan = self.run.plan
        self.kernels = fn._runs.kernels_of(self.run.sized)
        self.bodies = bodies_of(self.plan)
        random = np.random.default_rng(0)
        self.feeds = {
            x.name: random.normal(size=x.static_shape).astype(x.dtype.numpy)
            for x in self.plan.graph.inputs
        }
        self.state = {name: np.array(x) for name, x in fn.state.items()}
        self.expected = self.results(self.plan)
        assert isinstance(self.expected, list), self.expected

    def faults(self, plan):
        return plan_faults(plan, self.kernels, self.count, self.sizes)

    def results(self, plan):
        """Return the results bit by bit with two contents of the memory before, or an error."""
        found = []
        for seed in range(2):
            try:
                values, after = PlanMachine(plan, self.bodies, self.feeds, self.state, seed).run()
            except (Broken, ln.LoopnestError, ValueError, TypeError, IndexError) as error:
                return str(error)
            parts = [leaves(tuple(values)), [after[name] for name in sorted(after)]]
            found.append([[(x.shape, x.dtype, x.tobytes()) for x in part] for part in parts])
        return found

    def refuted(self):
        """Return the number of mutants that are refuted; the others have a reason."""
        count = 0
        for name, mutant in mutants(self.plan):
            if self.faults(mutant):
                count += 1
                continue
            assert self.results(mutant) == self.expected, f"{name}: not refuted, and wrong"
            assert reason(self.plan, mutant), f"{name}: not refuted, for no known reason"
        return count


def sizes_of(fn):
    known = {"N": 5, "D": 3, **SIZES}
    return {name: known[name] for name in fn._runs.names}


LEAST = {
    products: 180, training: 550, exchange: 100, kept: 100, copied_first: 50, views: 90,
    symbolic: 170,
}  # fmt: skip
"""How many mutants of each are refuted at least."""


@pytest.mark.parametrize("subject", SUBJECTS)
def test_wrong_plans_are_refuted(subject):
    fn = compiled(subject)
    assert fn.verify().ok
    judge = Judge(fn, sizes_of(fn))
    assert not judge.faults(judge.plan)
    count = judge.refuted()
    assert count >= LEAST[subject]


@pytest.mark.parametrize("seed", range(6))
def test_wrong_plans_of_random_programs_are_refuted(seed):
    program = RandomProgram(seed, steps=20, symbolic=bool(seed % 2))
    fn = G.compile(program.graph, target="interpret", library=seed % 3 == 0)
    Judge(fn, sizes_of(fn)).refuted()


def test_with_sizes_as_symbols_the_verdicts_are_those_at_sizes():
    """Both plans have the same steps; storages have memory of their own, as symbols give them."""
    fn = compiled(symbolic)
    judge = Judge(fn, sizes_of(fn))
    plan, used = copied(judge.plan), 0
    for storage in plan.storages:
        if storage.kind == "arena":
            storage.offset, used = used, used + -(-storage.bytes // 64) * 64
    plan = replace(plan, arena=used)
    kernels = fn._runs._kernels
    at_sizes = dict(mutants(plan))
    verdicts = []
    for name, mutant in mutants(fn._runs.plan):
        if name in at_sizes:
            verdicts.append(bool(plan_faults(mutant, kernels, judge.count, {})))
            assert verdicts[-1] == bool(judge.faults(at_sizes[name])), name
    assert len(verdicts) > 100
    assert verdicts.count(False) < 20


# Reports


def two_products():
    x = G.var("x", (4, 4))
    y = G.tanh(x @ x)
    return G.compile(G.Graph([x], [G.softmax(y @ y) @ y]), target="interpret", library=True)


def test_a_room_that_is_moved_over_another_is_refuted_with_its_step():
    fn = two_products()
    assert str(fn.verify()) == "proved for all sizes"
    plan = fn.plan()
    _, y, z = [s for s in plan.storages if s.kind == "arena"][:3]
    z.offset = y.offset
    report = fn.verify()
    assert report.status == "refuted"
    assert [str(f) for f in report.findings] == REFUTED


MATMUL = "matmul(@kernel0(…), @kernel0(…))"
REFUTED = [
    f"inplace: value 0 of step 2, {MATMUL} is written to bytes 64 to 128 of the arena while "
    "operand 0 is read from there",
    f"inplace: value 0 of step 2, {MATMUL} is written to bytes 64 to 128 of the arena while "
    "operand 1 is read from there",
    "order: operand 1 of step 4, matmul(@kernel1(…), @kernel0(…)), @kernel0(matmul(…)) is read "
    f"from bytes 64 to 128 of the arena, where step 2, {MATMUL} has put {MATMUL}",
]


def test_sizes_that_are_named_and_sizes_that_are_not():
    fn = compiled(symbolic)
    assert str(fn.verify()) == "proved for all sizes"
    assert str(fn.verify(N=4, D=2)) == "proved for N=4, D=2"
    assert fn.verify(N=4).all_sizes
    plan = fn.plan(N=4, D=2)
    rooms = [s for s in plan.storages if s.kind == "arena"]
    rooms[0].offset = rooms[1].offset
    assert fn.verify(N=5, D=2).ok
    (finding, *_) = fn.verify().findings
    assert finding.sizes == {"N": 4, "D": 2}
    assert fn.verify(N=4, D=2).status == "refuted"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"K": 1}, "main(...): it has no size 'K'; its sizes are: N, D"),
        ({"N": -1}, "main(...): N = -1 is no size; sizes are ints >= 0"),
        ({"N": "4"}, "main(...): N = '4' is no size; sizes are ints >= 0"),
        ({"N": True}, "main(...): N = True is no size; sizes are ints >= 0"),
    ],
)
def test_sizes_that_it_does_not_have(sizes, message):
    with pytest.raises(ln.LaunchError) as caught:
        compiled(symbolic).verify(**sizes)
    assert str(caught.value) == message


def test_kernels_are_proved_where_that_is_asked():
    fn = compiled(symbolic)
    assert fn.verify(kernels=True).ok
    report = fn.verify(kernels=True, N=3, D=2)
    assert report.scope == "N=3, D=2; N=3"


def test_a_wrong_plan_never_runs(monkeypatch):
    def broken(*args):
        plan = plan_steps(*args)
        return replace(plan, steps=plan.steps[::-1])

    monkeypatch.setattr(runs_by_size, "plan_steps", broken)
    fn = compiled(symbolic)
    with pytest.raises(ln.InternalError) as caught:
        fn.plan(N=2, D=3)
    assert str(caught.value) == WRONG


WRONG = (
    "main(...): the plan of its steps is wrong: operand 0 of step 0, @kernel5(get_item(…)), "
    "get_item(@kernel1(…)) is read from bytes 128 to 192 of the arena, where nothing has been "
    "written"
)


def test_rooms_that_a_plan_needs_at_once_are_found_without_its_graph():
    """Whatever the whole proof says of rooms that are moved, theirs is no weaker."""
    fn = compiled(symbolic)
    judge = Judge(fn, sizes_of(fn))
    proof, sizes = ArenaProof(fn._runs.plan), judge.sizes

    def faults(plan):
        own = enumerate(plan.storages)
        places = {n: (s.offset, s.bytes) for n, s in own if s.kind == "arena"}
        return proof.faults(places, plan.arena, sizes)

    assert not faults(judge.plan)
    rooms = [n for n, s in enumerate(judge.plan.storages) if s.kind == "arena"]
    refuted = 0
    for number in rooms:
        for place in [-1, 32, judge.plan.arena, *[judge.plan.storages[n].offset for n in rooms]]:
            moved = copied(judge.plan)
            moved.storages[number].offset = place
            if judge.faults(moved):
                refuted += 1
                assert faults(moved)
    assert refuted
    moved = copied(judge.plan)
    moved.storages[rooms[0]].offset = 32
    (fault,) = faults(moved)[:1]
    count = moved.storages[rooms[0]].bytes
    assert fault.message == (
        f"storage {rooms[0]}, bytes 32 to {32 + count} of an arena of {moved.arena}, is in no "
        "place for it"
    )
