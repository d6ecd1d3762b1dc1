"""Axes by name: where names come from, what keeps them, what shows them, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

import loopnest as ln
from helpers.schedule_run import PT, assert_computes, nest, random, refused, state
from loopnest.kir.nest_text import print_nest


def names(tensor: ln.TensorView) -> list[str]:
    """Return for each leaf axis its names, "" where it has none."""
    return ["/".join(axis.names) for axis in tensor.leaf_domain]


def given(tensor: ln.TensorView) -> list[str]:
    """Return the leaf axes as texts call them."""
    return [axis.label(place) for place, axis in enumerate(tensor.leaf_domain)]


def rows() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView, ln.TensorView]:
    """Return x[N, D], t = exp(x) and the output y = 2 t."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = ln.exp(x)
        y = f.output(t * 2.0, "y")
    return f, x, t, y


def test_a_schedule_by_names() -> None:
    f, _, t, y = rows()
    y.split("D", 8, names=("do", "di"))
    y.reorder("do", "N", "di")
    y.parallelize(do=PT.grid_x, N=PT.block_x)
    t.compute_at(y, "N")
    y.axis("di").parallelize(PT.unroll)
    assert str(y) == (
        "y float32 global [i0 do: ceildiv(D, 8) grid_x, i1: N block_x, i2 di: 8 unroll] "
        "compute_at=0 produced_at=2"
    )
    assert str(t) == (
        "T1 float32 local [i0 do: ceildiv(D, 8), i1: N, i2 di: 8] compute_at=2 produced_at=0"
    )
    assert nest(f) == (
        "for i0 in ceildiv(D, 8):  # do, grid_x\n"
        "  for i1 in N:  # block_x\n"
        "    T1: float32[8] local\n"
        "    for i2 in 8:  # di\n"
        "      if i0 * 8 + i2 < D:\n"
        "        T1[i2] = exp(x[i1, i0 * 8 + i2])\n"
        "    for i3 in 8:  # di, unroll\n"
        "      if i0 * 8 + i3 < D:\n"
        "        y[i1, i0 * 8 + i3] = T1[i3] * 2.0"
    )
    assert_computes(f, random(5, 19))
    assert [call.call for call in f.trace] == [
        "y.split(axis='D', factor=8, names=('do', 'di'))",
        "y.reorder('do', 'N', 'di')",
        "y.parallelize(do=grid_x, N=block_x)",
        "T1.compute_at(y, 'N')",
        "y.parallelize({2: unroll})",
    ]


def test_every_call_that_takes_an_axis_takes_a_name() -> None:
    """Each pair of calls gives one nest."""
    pairs: list[tuple[Callable[..., object], Callable[..., object]]] = [
        (lambda t, y: y.merge("N", "D"), lambda t, y: y.merge(0, 1)),
        (lambda t, y: y.merge("N"), lambda t, y: y.merge(0)),
        (lambda t, y: y.split("N", 4), lambda t, y: y.split(0, 4)),
        (lambda t, y: y.reorder("D", "N"), lambda t, y: y.reorder([1, 0])),
        (lambda t, y: y.reorder(["D", "N"]), lambda t, y: y.reorder([1, 0])),
        (lambda t, y: y.reorder({"D": 0}), lambda t, y: y.reorder({1: 0})),
        (lambda t, y: y.reorder({"D": "N"}), lambda t, y: y.reorder({1: 0})),
        (lambda t, y: y.reorder(1, 0), lambda t, y: y.reorder([1, 0])),
        (lambda t, y: y.parallelize({"D": PT.unroll}), lambda t, y: y.parallelize({1: PT.unroll})),
        (lambda t, y: y.parallelize(D=PT.block_x), lambda t, y: y.parallelize({1: PT.block_x})),
        (lambda t, y: y.pin("N"), lambda t, y: y.pin(0)),
        (lambda t, y: y.axis("N").pin(), lambda t, y: y.axis(0).pin()),
        (lambda t, y: t.compute_at(y, "D"), lambda t, y: t.compute_at(y, 2)),
        (lambda t, y: t.inline_at("N"), lambda t, y: t.inline_at(1)),
        (lambda t, y: ln.propagate(y.merge(0), -1), lambda t, y: ln.propagate(y.merge("N"), 1)),
        (lambda t, y: ln.propagate(y, "N"), lambda t, y: ln.propagate(y, 1)),
        (lambda t, y: t.set_allocation(order=["D", "N"]), lambda t, y: t.set_allocation([1, 0])),
        (lambda t, y: t.set_allocation(pad={"D": 1}), lambda t, y: t.set_allocation(pad={1: 1})),
        (lambda t, y: t.allocation_domain.split("D", 4),
         lambda t, y: t.allocation_domain.split(1, 4)),
        (lambda t, y: t.allocation_domain.merge("N", "D"),
         lambda t, y: t.allocation_domain.merge(0, 1)),
        (lambda t, y: t.allocation_domain.reorder("D", "N"),
         lambda t, y: t.allocation_domain.reorder([1, 0])),
        (lambda t, y: t.allocation_domain.pad("D", 1).reorder({"D": 0}),
         lambda t, y: t.allocation_domain.pad(1, 1).reorder({1: 0})),
    ]  # fmt: skip
    for by_name, by_place in pairs:
        found = []
        for call in (by_name, by_place):
            f, _, t, y = rows()
            call(t, y)
            found.append((str(ln.lower(f)), [str(tensor) for tensor in f.tensors]))
        assert found[0] == found[1]


def test_pure_functions_and_swizzles_take_names() -> None:
    _, _, t, y = rows()
    y.split(0, 4, names=("no", "ni"))
    for name, pos in (("no", 1), ("ni", 2), ("D", 3)):
        assert ln.replay_pasc(t, y, name)[1] == ln.replay_pasc(t, y, pos)[1] == pos
    assert ln.replay_casp(y, t, "D")[1] == 2
    with ln.Fusion() as f:
        x = f.input("x", (32, 32), ln.float32, names=("row", "column"))
        f.output(x * 2.0, "y")
    texts = []
    for axes in (("row", "column"), (0, 1)):
        tile = x.cache_after()
        tile.memory = ln.SHARED
        tile.swizzle(ln.Swizzle.XOR, *axes)
        texts.append(str(tile.allocation_domain))
        assert tile.allocation_domain.swizzle(ln.Swizzle.XOR, *axes) is not None
    assert texts == ["[i0 row: 32, i1 column: 32 xor i0]"] * 2


def test_tiles_take_names() -> None:
    """The axes of a fragment, and those of an instruction, which is refused alike."""
    quads = ln.Fragment("(g) (t p) -> (g t) (p)", g=8, t=4, p=2)
    found = []
    for axes in (("ri", "column"), (1, 2)):
        with ln.Fusion("k") as f:
            x = f.input("x", (64, 8), ln.float32, names=("row", "column"))
            y = f.output(x * 2.0, "y")
        found.append(str(y.split("row", 8, names=("ro", "ri")).distribute(quads, axes=axes)))
    assert found[0] == found[1]
    with ln.Fusion("k") as f:
        a, b = f.input("a", (16, 16), ln.float16), f.input("b", (16, 8), ln.float16)
        c = f.output(ln.matmul(a, b, dtype=ln.float32), "c")
    why = []
    for axes in (("m", "n", "k"), (0, 1, 2)):
        with pytest.raises(ln.ScheduleError) as caught:
            c.instruct("mma.m16n8k16.f32.f16", axes)
        why.append(caught.value.reason)
    assert why[0] == why[1]


def test_names_of_inputs() -> None:
    """They are the sizes; none where a size stands twice, is a number or an expression."""
    with ln.Fusion() as f:
        a = f.input("a", ("N", "D", "N", 4, 1, "D // 2"), ln.float32)
        b = f.input("b", ("N", 8), ln.float32, names=("row", "column"))
        c = f.input("c", ("N", "D"), ln.float32, names=(None, "d"))
    assert names(a) == ["", "D", "", "", "", ""]
    assert names(b) == ["row/N", "column"]
    assert names(c) == ["N", "d/D"]
    assert given(b) == ["i0 row", "i1 column"]
    assert given(c) == ["i0", "i1 d"]
    assert [axis.name for axis in c.leaf_domain] == ["N", "d"]
    assert a.axis(0).name is None


def test_names_follow_definitions() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32, names=("n", "d"))
        v = f.input("v", ("D",), ln.float32)
        i = f.input("i", ("K",), ln.int32)
        cases = [
            (ln.exp(x), ["n/N", "d/D"]),
            (x + v, ["n/N", "d/D"]),
            (v + x, ["n/N", "d/D"]),
            (ln.permute(x, (1, 0)), ["d/D", "n/N"]),
            (ln.sum(x, axis=1), ["n/N", "d/D"]),
            (ln.sum(x, axis=1, keepdims=True), ["n/N", ""]),
            (ln.sum(x, axis=1).fusion.tensors[-1] + 1.0, ["n/N"]),
            (ln.broadcast(v, (True, False)), ["", "D"]),
            (ln.cumsum(x, 1), ["n/N", "d/D"]),
            (x[:, 1:], ["n/N", ""]),
            (ln.flip(x, 1), ["n/N", "D"]),
            (ln.reshape(x, ("N", "D", 1)), ["n/N", "d/D", ""]),
            (ln.take(x, i, 0), ["K", "d/D"]),
            (ln.iota(f.symbol("M")), ["M"]),
        ]
    for tensor, wanted in cases:
        assert names(tensor) == wanted, tensor.definition


def test_names_of_a_matrix_product() -> None:
    """m, n, k, behind the names that the operands' axes have."""
    with ln.Fusion() as f:
        a = f.input("a", (8, "L", 16), ln.float32)
        b = f.input("b", (16, 32), ln.float32)
        c = f.output(ln.relu(ln.matmul(a, b)), "c")
    (total,) = c.producers
    assert names(total) == ["", "L/m", "n", "k"]
    assert names(total.producers[0]) == ["", "L/m", "n", "k"]
    assert names(c) == ["", "L/m", "n"]
    c.split("m", 4).reorder({"n": 0})
    assert str(c) == (
        "c float32 global [i0: 32, i1: 8, i2: ceildiv(L, 4), i3: 4] compute_at=0 produced_at=0"
    )


def test_replay_carries_names() -> None:
    """To producers and consumers, through rfactor, to siblings, and across windows."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = ln.exp(x)
        mean, var, _ = ln.welford(t, axis=1)
        y = f.output(mean + var, "y")
    mean.split("D", 4, names=("do", "di"))
    assert given(var) == given(mean) == ["i0", "r1 do", "r2 di"]
    part = mean.rfactor("di")
    assert given(part) == ["i0", "i1 do", "r2 di"]
    assert given(mean) == ["i0", "r1 do"]
    part.split("N", 2, names=("no", "ni"))
    t.compute_at(part, "do")
    assert given(t) == ["i0 no", "i1 ni", "i2 do", "i3 di"]
    ln.propagate(part, "ni")
    assert given(y) == ["i0 no", "i1 ni"]
    assert_computes(f, random(5, 9))
    with ln.Fusion() as f:
        t = f.input("x", ("N",), ln.float32) * 2.0
        y = f.output(t[1:] - t[:-1], "y")
    y.split(0, 8, names=("tile", "lane"))
    t.compute_at(y, "tile")
    assert given(t) == ["i0 tile", "i1"]
    assert_computes(f, random(21))


def test_caches_have_the_names() -> None:
    f, x, t, y = rows()
    y.split("D", 8, names=("do", "di"))
    before = y.cache_before()
    assert given(before) == given(y) == ["i0", "i1 do", "i2 di"]
    assert names(x.cache_after()) == ["N", "D"]
    t.compute_at(before, "do")
    assert given(t) == ["i0", "i1 do", "i2 di"]
    assert_computes(f, random(5, 19))


def test_clones_have_the_names() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = ln.exp(x)
        y = f.output(t / ln.sum(t, axis=0, keepdims=True), "y")
    for tensor in (t, y):
        tensor.split("D", 8, names=("do", "di"))
    t.compute_at(y, "N", recompute=True)
    (clone,) = t.clones
    assert given(clone) == given(t) == ["i0", "i1 do", "i2 di"]


def test_a_merge_may_get_a_name() -> None:
    f, _, t, y = rows()
    y.split("D", 8, names=("do", None)).merge("N", "do", name="outer").split("outer", 4)
    assert given(y) == ["i0", "i1", "i2"]
    y.merge(0, 1, name="all").parallelize(all=PT.grid_x)
    t.compute_at(y, "all")
    assert given(t) == ["i0 all", "i1"]
    assert_computes(f, random(5, 19))


def test_reorder_moves_named_axes_among_their_places() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("A", "B", "C", "D"), ln.float32)
        y = f.output(x * 2.0, "y")
    y.reorder("D", "B")
    assert names(y) == ["A", "D", "C", "B"]
    y.reorder("C", "A", "B")
    assert names(y) == ["C", "D", "A", "B"]
    y.reorder("A")
    assert names(y) == ["C", "D", "A", "B"]


BAD: list[tuple[Callable[[ln.TensorView, ln.TensorView], object], str]] = [
    (
        lambda t, y: y.split("q", 4),
        "y.split(axis='q', factor=4): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: y.split("D", 4),
        "y.split(axis='D', factor=4): y has no axis named 'D' any more: it became i1 do and "
        "i2 di; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: y.merge("N", "q"),
        "y.merge('N', 'q'): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: y.merge("di"),
        "y.merge('di'): axis 2 (di) is the last of the leaf axes [i0, i1 do, i2 di], there is"
        " none to merge it with; name the inner axis: merge(2, other)",
    ),
    (
        lambda t, y: y.merge("do", "do"),
        "y.merge('do', 'do'): axis 1 (do) cannot be merged with itself; name two axes",
    ),
    (
        lambda t, y: y.reorder("do", "q"),
        "y.reorder('do', 'q'): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: y.reorder("do", "do"),
        "y.reorder('do', 'do'): ('do', 'do') names an axis or a place twice; each may stand once",
    ),
    (
        lambda t, y: y.reorder(["do", "N"]),
        "y.reorder(['do', 'N']): the permutation ['do', 'N'] names 2 axes; y has 3 leaf axes "
        "[i0, i1 do, i2 di]",
    ),
    (
        lambda t, y: y.parallelize(q=PT.grid_x),
        "y.parallelize(q=grid_x): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: y.parallelize(do=1),  # type: ignore[arg-type]
        "y.parallelize(do=1): 1 is no ParallelType; use ln.ParallelType."
        f"{{{', '.join(parallel.value for parallel in PT)}}}",
    ),
    (
        lambda t, y: y.parallelize(do=PT.grid_x, di=PT.grid_x),
        "y.parallelize(do=grid_x, di=grid_x): axes 1 (do) and 2 (di) of y would both be "
        "grid_x; one axis of a tensor may have a launch dimension",
    ),
    (
        lambda t, y: y.parallelize({1: PT.grid_x}, do=PT.unroll),
        "y.parallelize({1: grid_x}, do=unroll): axis 1 (do) of y would be grid_x and unroll; "
        "give an axis one parallel type",
    ),
    (
        lambda t, y: y.pin("q"),
        "y.pin('q'): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: y.axis("q"),
        "y.axis('q'): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: t.compute_at(y, "q"),
        "T1.compute_at(y, 'q'): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: t.inline_at("do"),
        "T1.inline_at('do'): T1 has no axis named 'do'; its axes are [i0 N, i1 D]",
    ),
    (
        lambda t, y: t.rfactor("N"),
        "T1.rfactor('N'): T1 is no reduction; rfactor factors a reduction",
    ),
    (
        lambda t, y: ln.propagate(y, "q"),
        "propagate(y, 'q'): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: ln.replay_pasc(t, y, "q"),
        "replay_pasc(T1, y, 'q'): y has no axis named 'q'; its axes are [i0 N, i1 do, i2 di]",
    ),
    (
        lambda t, y: t.allocation_domain.pad("q", 1),
        "T1.allocation_domain.pad('q', 1): the allocation domain of T1 has no axis named 'q';"
        " its axes are [i0 N, i1 D]",
    ),
    (
        lambda t, y: t.set_allocation(pad={"q": 1}),
        "T1.set_allocation(pad={'q': 1}): T1 has no axis named 'q'; its axes are [i0 N, i1 D]",
    ),
    (
        lambda t, y: y.split("N", 4, names=("do", "ni")),
        "y.split(axis='N', factor=4, names=('do', 'ni')): two axes would be named 'do'; the "
        "names of a tensor's axes differ",
    ),
    (
        lambda t, y: y.split("do", 4, names=("N", "x")),
        "y.split(axis='do', factor=4, names=('N', 'x')): two axes would be named 'N'; the "
        "names of a tensor's axes differ",
    ),
    (
        lambda t, y: y.split("N", 4, names=("a", "a")),
        "y.split(axis='N', factor=4, names=('a', 'a')): two axes would be named 'a'; the "
        "names of a tensor's axes differ",
    ),
    (
        lambda t, y: y.split("N", 4, names=("types", "a")),
        "y.split(axis='N', factor=4, names=('types', 'a')): the name 'types' is a keyword of "
        "parallelize; choose another name",
    ),
    (
        lambda t, y: y.split("N", 4, names=("unroll", "a")),
        "y.split(axis='N', factor=4, names=('unroll', 'a')): the name 'unroll' is a parallel "
        "type; choose another name",
    ),
    (
        lambda t, y: y.split("N", 4, names=("a b", "a")),
        "y.split(axis='N', factor=4, names=('a b', 'a')): the name 'a b' is not an "
        "identifier; give a name of letters and digits",
    ),
    (
        lambda t, y: y.split("N", 4, names=(3, "a")),  # type: ignore[arg-type]
        "y.split(axis='N', factor=4, names=(3, 'a')): the name 3 is not an identifier; give a"
        " name of letters and digits",
    ),
    (
        lambda t, y: y.split("N", 4, names=("a",)),
        "y.split(axis='N', factor=4, names=('a',)): names=('a',) are no names of 2 axes; give"
        " one for each, or None",
    ),
    (
        lambda t, y: y.split("N", 4, names="ab"),
        "y.split(axis='N', factor=4, names='ab'): names='ab' are no names of 2 axes; give one"
        " for each, or None",
    ),
    (
        lambda t, y: y.merge("N", "do", name="di"),
        "y.merge('N', 'do', name='di'): two axes would be named 'di'; the names of a tensor's"
        " axes differ",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m.split("):")[0] for _, m in BAD])
def test_bad_names_are_said_and_change_nothing(
    call: Callable[[ln.TensorView, ln.TensorView], object], message: str
) -> None:
    f, _, t, y = rows()
    y.split("D", 8, names=("do", "di"))
    before = state(f)
    with refused(message):
        call(t, y)
    assert state(f) == before


@pytest.mark.parametrize(
    ("shape", "axes", "why"),
    [
        (
            ("N", "D"),
            ("a", "a"),
            "two axes would be named 'a'; the names of a tensor's axes differ",
        ),
        (
            ("N", "D"),
            ("D", None),
            "two axes would be named 'D'; the names of a tensor's axes differ",
        ),
        (("N", "D"), ("a",), "names=('a',) are no names of 2 axes; give one for each, or None"),
        (("N",), "a", "names='a' are no names of 1 axis; give one for each, or None"),
        (("N",), ("types",), "the name 'types' is a keyword of parallelize; choose another name"),
    ],
)
def test_bad_names_of_inputs(shape: tuple[str, ...], axes: tuple[str, ...], why: str) -> None:
    with ln.Fusion() as f, refused(f"input('x', {shape!r}): {why}"):
        f.input("x", shape, ln.float32, names=axes)
    assert f.tensors == ()


def test_two_axes_of_one_name_are_given_by_position() -> None:
    """An outer product has the axis N twice, and replay may bring a name that there is."""
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x[:, None] * x[None, :], "y")
    with refused(
        "y.split(axis='N', factor=4): axes 0 and 1 of y are named 'N'; its axes are [i0 N, i1 N]: "
        "give another name, or a position"
    ):
        y.split("N", 4)
    y.split(0, 4, names=("no", "ni"))
    assert y.axis("N") is y.leaf_domain[2]
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        t = ln.exp(x)
        y = f.output(t * 2.0, "y")
    t.split("D", 4, names=("o", "i"))
    y.split("N", 8, names=("o", "i"))
    t.compute_at(y, "i")
    assert given(t) == ["i0 o", "i1 i", "i2 o", "i3 i"]
    with refused(
        "T1.axis('o'): axes 0 and 2 of T1 are named 'o'; its axes are [i0 o, i1 i, i2 o, i3 i]: "
        "give another name, or a position"
    ):
        t.axis("o")
    assert "for i2 in ceildiv(D, 4):\n" in str(ln.lower(f))


def test_a_named_axis_goes_before_what_is_implied() -> None:
    with ln.Fusion() as f:
        a = f.input("a", ("M", 16), ln.float32)
        b = f.input("b", (16, "N"), ln.float32)
        c = f.output(ln.matmul(a, b), "c")
    assert names(c) == ["M/m", "N/n", "k"]
    c.split("N", 8, names=("m", "r"))
    assert c.axis("m") is c.leaf_domain[1]
    assert c.axis("M") is c.leaf_domain[0]


def test_names_like_positions_are_no_labels_of_loops() -> None:
    f, _, _, y = rows()
    y.split("N", 4, names=("i1", "i0"))
    loops = [node.axis for node, _ in ln.lower(f).walk() if isinstance(node, ln.kir.Loop)]
    assert loops == ["T1.i0", "T1.i1", "y.i0", "y.i1", "y.i2"]
    assert str(y.axis("i1").extent) == "ceildiv(N, 4)"


def test_texts_keep_names() -> None:
    """The nest is read again as it is, and so are kernels and fusions that were pickled."""
    f, _, t, y = rows()
    y.split("D", 8, names=("do", "di")).parallelize(di=PT.vectorize)
    t.compute_at(y, "do")
    f.inline_most()
    kernel = ln.lower(f)
    text = str(kernel)
    assert "for i1 in D // 8:  # do\n" in text
    assert "# di, vectorize" in text
    assert print_nest(ln.kir.parse(text)) == text
    assert str(ln.Kernel.parse(kernel.text(full=True))) == text
    assert "// y.di vectorize\n" in kernel.c()
    again = pickle.loads(pickle.dumps(f))
    assert str(ln.lower(again)) == text
    assert str(again["y"].axis("do").extent) == "ceildiv(D, 8)"
    loops = {node.axis for node, _ in kernel.walk() if isinstance(node, ln.kir.Loop)}
    assert loops == {"y.do", "y.di", "y.i0", "T1.di"}


def test_names_that_give_way_to_other_loops() -> None:
    """A tensor that gets the loops of another one cannot keep names of its own: that is said."""
    f, _, t, y = rows()
    t.split("N", 8, names=("a", "b")).split("D", 2, names=("c", None))
    y.split("N", 4, names=("no", "ni"))
    t.compute_at(y, "no")
    assert given(t) == ["i0 no", "i1 ni", "i2 c", "i3"]
    (note,) = [note for note in ln.lower(f).notes if "no more" in note.became]
    assert str(note).startswith(
        "T1: T1.compute_at(y, 'no'): the axes a and b of T1 are no more, because loops of another "
        "tensor, which are split otherwise, took the place; name the axes of that tensor, which "
        "replay carries, or split both alike ("
    )
    call = f.trace[-1]
    with refused(
        "T1.axis('a'): T1 has no axis named 'a' any more: it gave way to other loops in "
        f"T1.compute_at(y, 'no') (test_axis_names.py:{call.line}); its axes are [i0 no, i1 ni, i2 "
        "c, i3]"
    ):
        t.axis("a")
    with ln.Fusion() as g:
        y = g.output(ln.sum(g.input("x", (8, 64), ln.float32), axis=1), "y")
    y.split(1, 8, names=("do", "di")).rfactor("di")
    y.cache_before()
    assert not any("no more" in note.became for note in ln.lower(g).notes)


def test_notes_name_axes() -> None:
    """And loops that tensors share are called by a name that one of them has."""
    f, _, t, y = rows()
    for tensor in (t, y):
        tensor.split("D", 8, names=("do", "di") if tensor is t else None)
    t.compute_at(y, 2)
    assert "for i1 in ceildiv(D, 8):  # do\n" in str(ln.lower(f))
    f, _, t, y = rows()
    y.split("D", 8, names=("do", "di")).parallelize(do=PT.unroll)
    t.compute_at(y, "N")
    unrolled, tested = ln.lower(f).notes
    assert unrolled.became == "the loop over y.do is not unrolled"
    assert (tested.subject, tested.asked) == ("y.di", "a loop over y.di")


def test_a_size_may_have_the_name_of_the_keyword() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("types", "self"), ln.float32)
        y = f.output(x * 2.0, "y")
    with refused("y.parallelize(grid_x): <ParallelType.grid_x: 'grid_x'> is no mapping; use {axis: "
                 "ln.ParallelType.grid_x}"):  # fmt: skip
        y.parallelize(types=PT.grid_x)  # type: ignore[arg-type]
    y.parallelize({"types": PT.grid_x})
    y.parallelize(self=PT.block_x)
    assert [axis.parallel for axis in y.leaf_domain] == [PT.grid_x, PT.block_x]
