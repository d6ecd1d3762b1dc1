"""Fusions that no scheduler takes as a whole: each stage has the loops of the one that takes it."""

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.schedulers import Processor, auto_schedule

F = ln.float32
TARGETS = ["c", "cuda"]
SIZES = {"B": 3, "M": 13, "N": 10}
ROWS, WEIGHTS = ("M", 32), (32, 48)
IMAGES, FILTERS = ("B", 8, 6, 10), (16, 8, 3, 3)


def silu(x):
    return x * ln.sigmoid(x)


def softmax(x, axis):
    e = ln.exp(x - ln.max(x, axis=axis, keepdims=True))
    return e / ln.sum(e, axis=axis, keepdims=True)


def layer_norm(x):
    away = x - ln.mean(x, axis=1, keepdims=True)
    return away / ln.sqrt(ln.mean(away * away, axis=1, keepdims=True) + 1.0)


def group_norm(x):
    groups = ln.reshape(x, ("M", 6, 8))
    away = groups - ln.mean(groups, axis=2, keepdims=True)
    return ln.reshape(away / ln.sqrt(ln.mean(away * away, axis=2, keepdims=True) + 1.0), ("M", 48))


def attention(q, k, v):
    return softmax(q @ ln.permute(k, (0, 2, 1)), 2) @ v


def two_results(a, b):
    y = a @ b
    return y, ln.sum(y, axis=1), ln.max(y, axis=0)


CASES = {
    "reshape": (lambda a, b: ln.reshape(a @ b, ("M", 6, 8)), [ROWS, WEIGHTS]),
    "slice": (lambda a, b: (a @ b)[:, 3:40], [ROWS, WEIGHTS]),
    "concatenate": (lambda a, b: ln.concatenate([a @ b, a], axis=1), [ROWS, WEIGHTS]),
    "pad": (lambda a, b: ln.pad(a @ b, ((1, 1), (2, 2))), [ROWS, WEIGHTS]),
    "flip": (lambda a, b: ln.flip(a @ b, 1), [ROWS, WEIGHTS]),
    "logsumexp": (lambda a, b: ln.logsumexp(a @ b, axis=1), [ROWS, WEIGHTS]),
    "max of rows": (lambda a, b: ln.max(a @ b, axis=0), [ROWS, WEIGHTS]),
    "argmax": (lambda a, b: ln.argmax(a @ b, axis=1), [ROWS, WEIGHTS]),
    "cumsum": (lambda a, b: ln.cumsum(a @ b, axis=1), [ROWS, WEIGHTS]),
    "mean": (lambda a, b: ln.mean((a @ b - 1.0) ** 2), [ROWS, WEIGHTS]),
    "softmax": (lambda a, b: softmax(a @ b, 1), [ROWS, WEIGHTS]),
    "norm": (lambda a, b: layer_norm(a + ln.maximum(a @ b, 0.0)), [ROWS, (32, 32)]),
    "group norm": (lambda a, b: group_norm(a @ b), [ROWS, WEIGHTS]),
    "largest three": (lambda a, b: ln.topk(a @ b, 3, axis=1)[0], [ROWS, WEIGHTS]),
    "three results": (two_results, [ROWS, WEIGHTS]),
    "gate": (lambda a, b, c: silu(a @ b) * (a @ c), [ROWS, WEIGHTS, WEIGHTS]),
    "layers": (lambda a, b, c: ln.maximum(a @ b, 0.0) @ c, [ROWS, WEIGHTS, (48, 16)]),
    "two by two": (lambda a, b, c, d: (a @ b) @ (c @ d), [ROWS, WEIGHTS, (48, 8), (8, 16)]),
    "attention": (attention, [("B", "M", 16), ("B", "N", 16), ("B", "N", 16)]),
    "mean of an image": (
        lambda x, w: ln.mean(ln.maximum(ln.conv(x, w, padding=1), 0.0), axis=(2, 3)),
        [IMAGES, FILTERS],
    ),
    "two convolutions": (
        lambda x, w, v: ln.conv(ln.maximum(ln.conv(x, w, padding=1), 0.0), v),
        [IMAGES, FILTERS, (8, 16, 3, 3)],
    ),
    "classes": (
        lambda x, w, v: ln.reshape(ln.conv(x, w, padding=1), ("B", 960)) @ v,
        [IMAGES, FILTERS, (960, 5)],
    ),
}


def fusion(build, *shapes):
    with ln.Fusion("case") as f:
        found = build(*[f.input(f"x{n}", shape, F) for n, shape in enumerate(shapes)])
        for n, y in enumerate(found if isinstance(found, tuple) else (found,)):
            f.output(y, f"y{n}")
    return f


def arrays(shapes, seed=0):
    rng = np.random.default_rng(seed)
    sized = [[SIZES.get(n, n) for n in shape] for shape in shapes]
    return [rng.standard_normal(shape).astype(np.float32) for shape in sized]


def stored(f):
    """What goes through memory, by name."""
    ends = {*f.inputs, *f.outputs}
    return [t.name for t in f.tensors if t.memory is ln.GLOBAL and t not in ends]


def loops_around(kernel, names):
    """The parallel types of loops around the folds of tensors, without those of one element."""
    found = set()
    for node, around in kernel.walk():
        if isinstance(node, kir.Store) and node.tensor in names and node.role == "update":
            found |= {s.parallel for s in around if isinstance(s, kir.Loop)}
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_results(name, target):
    build, shapes = CASES[name]
    f = fusion(build, *shapes)
    given = arrays(shapes)
    right, bound = ln.evaluate(f, *given), ln.error_bound(f, *given)
    assert auto_schedule(f, target, Processor()).name == "stages"
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    if target == "cuda":
        assert kernel.cuda()
    found = ln.compile(kernel, target="interpret" if target == "cuda" else "c")(*given)
    several = isinstance(right, tuple)
    for a, b, limit in zip(*[v if several else (v,) for v in (found, right, bound)], strict=True):
        assert np.all(np.abs(np.asarray(a, np.float64) - b) <= limit)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [n for n in CASES if n != "mean"])
def test_products_keep_their_tiles_in_registers(name, target):
    """Of each product and each convolution: none is folded an element at a time."""
    build, shapes = CASES[name]
    f = fusion(build, *shapes)
    products = [t for t in f.tensors if t.definition and t.definition.op in ("sum", "conv")]
    products = [t for t in products if len({*_sources(t)}) > 1]
    auto_schedule(f, target, Processor())
    alone = [note.subject for note in ln.lower(f).notes if "folded by itself" in note.became]
    assert products
    assert not {t.name for t in products} & {*alone}


def _sources(tensor):
    """The inputs, and folds, that pairs are made of."""
    for producer in tensor.producers:
        folds = producer.definition is not None and producer.definition.reducer is not None
        yield from [producer] if producer.is_input or folds else _sources(producer)


def test_a_stage_has_the_loops_that_it_has_alone():
    """Those of the product: rows and vectors of results in registers."""
    whole = fusion(lambda a, b: ln.max(a @ b, axis=1), (24, 32), (32, 64))
    alone = fusion(lambda a, b: a @ b, (24, 32), (32, 64))
    types = []
    for f in (whole, alone):
        auto_schedule(f, "c", Processor())
        totals = {t.name for t in f.tensors if t.definition and t.definition.reducer}
        totals -= {t.name for t in f.tensors if t.definition and "max" in t.definition.op}
        types.append(loops_around(ln.lower(f), totals))
    assert types[0] == types[1] >= {ln.ParallelType.unroll, ln.ParallelType.unswitch}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("reshape", 1), ("gate", 1), ("layers", 1), ("softmax", 1), ("norm", 1), ("two by two", 2),
        ("attention", 2), ("three results", 0), ("two convolutions", 1), ("mean of an image", 1),
    ],
)  # fmt: skip
def test_as_little_as_possible_goes_through_memory(name, expected):
    """One of two products is folded where both are used; a bias and a function stay with theirs."""
    build, shapes = CASES[name]
    f = fusion(build, *shapes)
    auto_schedule(f, "cuda", Processor())
    assert len(stored(f)) == expected


def test_notes_say_what_is_stored_and_what_has_no_scheduler():
    f = fusion(lambda a, b: ln.max(a @ b, axis=1), ROWS, WEIGHTS)
    auto_schedule(f, "c", Processor())
    (name,) = stored(f)
    (note,) = [n for n in ln.lower(f).notes if n.asked.startswith("auto_schedule")]
    assert str(note).startswith(
        f"{name}: auto_schedule(case, 'c'): it is stored, and the loops of what reads it load it "
        "again, because no scheduler takes it and what reads it in one loop nest; where that costs "
        "much, schedule both by hand: compute_at shares loops ("
    )


def test_a_fold_that_no_scheduler_takes_is_a_note():
    lines = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "lines")
    f = fusion(lambda a, b: ln.reduce(lines, (a @ b, 1.0), axis=1)[1], ROWS, WEIGHTS)
    auto_schedule(f, "c", Processor())
    (note,) = [n for n in ln.lower(f).notes if "by itself" in n.became]
    assert str(note).startswith(
        "y0: auto_schedule(case, 'c'): each of its elements is folded by itself, in order, "
        "because no scheduler takes it with what it is computed from, or what one made of it has "
        "no kernel; where that costs much, schedule it by hand: rfactor folds side by side ("
    )


@pytest.mark.parametrize("of_columns", [1, 2])
def test_a_launch_begins_where_its_loops_pass_memory_on(of_columns):
    """The sums of a row that are turned around go through memory inside of the loops of y."""
    with ln.Fusion("rows_and_columns") as f:
        x = f.input("x", ("N", "M"), F)
        columns = ln.cumsum(x, 0) if of_columns == 1 else ln.cumsum(ln.cumsum(x, 0), 1)
        f.output(ln.cumsum(x, 1, exclusive=True, reverse=True) + columns, "y")
    assert auto_schedule(f, "cuda", Processor()).name == "stages"
    assert ln.verify(ln.lower(f)).all_sizes
    a = np.random.default_rng(0).standard_normal((33, 70)).astype(np.float32)
    away = np.abs(ln.compile(f, target="interpret")(a) - ln.evaluate(f, a).astype(np.float64))
    assert np.all(away <= ln.error_bound(f, a))
