"""`TensorView.allocation_domain`: what each call makes of it, and what it refuses."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

import loopnest as ln


def tile(*extents: int | str, memory: ln.Memory = ln.SHARED) -> tuple[ln.Fusion, ln.TensorView]:
    """Return a fusion, and its intermediate T1 of these extents."""
    with ln.Fusion("tile") as f:
        t = -f.input("x", extents, ln.float32)
        f.output(t * 2.0, "y")
    t.memory = memory
    return f, t


def shown(tensor: ln.TensorView) -> str:
    return str(tensor.allocation_domain)


def test_it_is_derived_until_it_is_laid_out() -> None:
    """The loops give it: the leaf axes that are no reductions, of a GLOBAL tensor the logical."""
    f, t = tile(32, "N")
    y = f["y"]
    assert t.allocation_domain.is_derived
    assert tuple(t.allocation_domain) == t.leaf_domain
    t.split(1, 4)
    assert shown(t) == "[i0: 32, i1: ceildiv(N, 4), i2: 4]"
    y.split(1, 4)
    assert shown(y) == "[i0: 32, i1: N]"
    with ln.Fusion("s") as g:
        s = ln.sum(g.input("x", ("N", 8), ln.float32), axis=1)
        g.output(s, "y")
    assert len(s.cache_before().allocation_domain) == 1


def test_loops_go_on_without_it() -> None:
    f, t = tile(32, 32)
    domain = t.allocation_domain
    assert domain.split(1, 4) is not None
    domain.swizzle(ln.Swizzle.XOR, 0, 1).pad(2, 4).reorder([1, 0, 2])
    assert repr(domain) == "<AllocationDomain of T1: [i0: 8 xor i1, i1: 32, i2: 4 + 4]>"
    assert (len(domain), domain[-1].extent, [a.extent for a in domain[:2]]) == (3, 8, [8, 32])
    t.merge(0)
    t.split(0, 128)
    assert shown(t) == "[i0: 8 xor i1, i1: 32, i2: 4 + 4]"
    assert not domain.is_derived
    domain.reset()
    assert (shown(t), domain.is_derived) == ("[i0: 8, i1: 128]", True)
    assert f.trace[-1].call == "T1.allocation_domain.reset()"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: t.allocation_domain.split(1, 4), "[i0: 8, i1: 8, i2: 4]"),
        (lambda t: t.allocation_domain.split(-1, 3), "[i0: 8, i1: 11, i2: 3]"),
        (lambda t: t.allocation_domain.split(1, 4, inner=False), "[i0: 8, i1: 4, i2: 8]"),
        (lambda t: t.allocation_domain.merge(0), "[i0: 256]"),
        (lambda t: t.allocation_domain.merge(1, 0), "[i0: 256]"),
        (lambda t: t.allocation_domain.reorder({1: 0}), "[i0: 32, i1: 8]"),
        (lambda t: t.allocation_domain.pad(0, 1).pad(0, 2), "[i0: 8 + 3, i1: 32]"),
        (lambda t: t.allocation_domain.pad(0, 0), "[i0: 8, i1: 32]"),
        (lambda t: t.allocation_domain.pad(1, 1).swizzle(ln.Swizzle.XOR, 1, 0),
         "[i0: 8 xor i1, i1: 32 + 1]"),
        (lambda t: t.set_allocation(order=[1, 0], pad={0: 2}), "[i0: 32, i1: 8 + 2]"),
        (lambda t: t.split(1, 8).swizzle(ln.Swizzle.XOR, 0, 2), "[i0: 8, i1: 4, i2: 8 xor i0]"),
    ],
)  # fmt: skip
def test_what_a_call_makes(call: Callable[[ln.TensorView], object], text: str) -> None:
    _, t = tile(8, 32)
    call(t)
    assert shown(t) == text


def test_set_allocation_is_of_the_leaf_axes_and_keeps_the_swizzle() -> None:
    _, t = tile(8, 8)
    t.swizzle(ln.Swizzle.XOR, 0, 1)
    t.set_allocation(pad={1: 1})
    assert shown(t) == "[i0: 8, i1: 8 + 1 xor i0]"
    t.swizzle(ln.Swizzle.XOR, 1, 0)
    assert shown(t) == "[i0: 8 xor i1, i1: 8 + 1]"
    t.set_allocation()
    assert shown(t) == "[i0: 8 xor i1, i1: 8]"


def do_nothing(t: ln.TensorView) -> None:
    pass


Call = Callable[[ln.TensorView], object]

XOR = ln.Swizzle.XOR
REFUSED: list[tuple[Call, Call, str]] = [
    (do_nothing, lambda t: t.allocation_domain.split(2, 4),
     "split(2, 4): axis 2 is out of range; the allocation domain of T1 is [i0: 8, i1: 12]: use "
     "-2..1"),
    (do_nothing, lambda t: t.allocation_domain.split("0", 4),
     "split('0', 4): the allocation domain of T1 has no axis named '0'; its axes are [i0, i1]: "
     "none has a name, give a position"),
    (do_nothing, lambda t: t.allocation_domain.split(0.5, 4),  # type: ignore[arg-type]
     "split(0.5, 4): axis 0.5 is not an int; axes of an allocation domain are given by position, "
     "or by name"),
    (do_nothing, lambda t: t.allocation_domain.split(0, 0),
     "split(0, 0): the factor 0 is not allowed; use an int >= 1, the name of a size symbol, "
     "or arithmetic on these"),
    (do_nothing, lambda t: t.allocation_domain.merge(1),
     "merge(1): axis 1 is the last of the allocation domain [i0: 8, i1: 12], there is none to "
     "merge it with; name the inner axis: merge(1, other)"),
    (do_nothing, lambda t: t.allocation_domain.merge(1, 1),
     "merge(1, 1): axis 1 cannot be merged with itself; name two axes"),
    (do_nothing, lambda t: t.allocation_domain.reorder([0]),
     "reorder([0]): the permutation [0] names 1 axes; the allocation domain of T1 is [i0: 8, i1: "
     "12]"),
    (do_nothing, lambda t: t.allocation_domain.reorder([0, 0]),
     "reorder([0, 0]): [0, 0] names an axis or a place twice; each may stand once"),
    (do_nothing, lambda t: t.allocation_domain.reorder("01"),
     "reorder('01'): the allocation domain of T1 has no axis named '01'; its axes are [i0, i1]: "
     "none has a name, give a position"),
    (do_nothing, lambda t: t.allocation_domain.pad(0, -1),
     "pad(0, -1): count=-1 is no number of elements; use an int >= 0"),
    (do_nothing, lambda t: t.allocation_domain.swizzle("xor", 0, 1),  # type: ignore[arg-type]
     "swizzle('xor', 0, 1): 'xor' is no swizzle; use ln.Swizzle.XOR"),
    (do_nothing, lambda t: t.allocation_domain.swizzle(XOR, 0, -2),
     "swizzle(xor, 0, -2): axis 0 is given twice; give two axes"),
    (do_nothing, lambda t: t.allocation_domain.swizzle(XOR, 0, 1),
     "swizzle(xor, 0, 1): axes 0 and 1 of the allocation domain of T1 have the extents 8 and 12; "
     "two axes of static powers of two may be swizzled"),
    (lambda t: setattr(t, "memory", ln.LOCAL), lambda t: t.allocation_domain.swizzle(XOR, 0, 1),
     "swizzle(xor, 0, 1): T1 is in local memory; set T1.memory = ln.SHARED first"),
    (lambda t: t.allocation_domain.pad(1, 1), lambda t: t.allocation_domain.split(1, 4),
     "split(1, 4): axis 1 of the allocation domain of T1 is padded; split first, then pad and "
     "swizzle (XOR of two axes is XOR of their parts)"),
    (lambda t: t.allocation_domain.split(1, 4).swizzle(XOR, 0, 2),
     lambda t: t.allocation_domain.merge(0),
     "merge(0): axis 0 of the allocation domain of T1 is swizzled; merge first, then pad and "
     "swizzle (XOR of two axes is XOR of their parts)"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "call", "message"), REFUSED, ids=lambda c: str(c)[:12])
def test_what_is_refused_changes_nothing(before: Call, call: Call, message: str) -> None:
    f, t = tile(8, 12)
    before(t)
    domain, trace = t.domain, list(f.trace)
    with pytest.raises(ln.ScheduleError) as caught:
        call(t)
    assert str(caught.value) == f"T1.allocation_domain.{message}"
    assert (t.domain, f.trace) == (domain, trace)


@pytest.mark.parametrize(("name", "role"), [("x", "an input"), ("y", "an output")])
def test_inputs_and_outputs_are_the_callers(name: str, role: str) -> None:
    f, _ = tile(8, 8)
    with pytest.raises(ln.ScheduleError) as caught:
        f[name].allocation_domain.pad(0, 1)
    assert str(caught.value) == (
        f"{name}.allocation_domain.pad(0, 1): {name} is {role}, whose layout is the caller's; lay "
        "out an intermediate: cache_before or cache_after makes one"
    )
    assert f[name].allocation_domain.is_derived


def test_leaf_axes_that_the_allocation_domain_does_not_have() -> None:
    """`swizzle` and `set_allocation` speak of leaf axes; those may be others by now."""
    _, t = tile(8, 8)
    t.swizzle(XOR, 0, 1)
    t.merge(0)
    t.split(0, 8)
    with pytest.raises(ln.ScheduleError) as caught:
        t.swizzle(XOR, 0, 1)
    assert str(caught.value) == (
        "T1.swizzle(xor, 0, 1): axis 0 of T1 is none of its allocation domain [i0: 8, i1: 8 xor "
        "i0], which was laid out before; swizzle axes of T1.allocation_domain, or call its reset() "
        "first"
    )
    with pytest.raises(ln.ScheduleError) as caught:
        t.set_allocation(pad={1: 1})
    assert str(caught.value) == (
        "T1.set_allocation(pad={1: 1}): the swizzle of T1 is over axes of its allocation domain "
        "[i0: 8, i1: 8 xor i0] that are no leaf axes; change that domain by T1.allocation_domain, "
        "or call its reset() first"
    )
    t.allocation_domain.reset()
    t.swizzle(XOR, 0, 1)


def test_a_reduction_is_not_in_a_buffer() -> None:
    with ln.Fusion("s") as f:
        f.output(ln.sum(f.input("x", ("N", 8), ln.float32), axis=1) + 1.0, "y")
    (s,) = f["y"].producers
    with pytest.raises(ln.ScheduleError) as caught:
        s.set_allocation(pad={1: 1})
    assert str(caught.value) == (
        f"{s.name}.set_allocation(pad={{1: 1}}): axis 1 of {s.name} is a reduction, which its "
        "buffer does not have; name iteration axes"
    )


def test_a_tensor_that_is_laid_out_is_no_output() -> None:
    f, t = tile(8, 8)
    t.allocation_domain.split(0, 2)
    with pytest.raises(ln.DefinitionError, match="the buffer of T1 was laid out"):
        f.output(t, "z")


def test_copies_and_pickles_have_it() -> None:
    f, t = tile(8, 8)
    t.allocation_domain.split(1, 4).swizzle(XOR, 0, 1).pad(2, 1)
    axis = t.allocation_domain[1]
    again, place = pickle.loads(pickle.dumps((f, axis)))
    assert shown(again.tensors[1]) == shown(t)
    assert place is again.tensors[1].allocation_domain[1]
    assert str(ln.lower(again)) == str(ln.lower(f))


def test_a_cache_and_an_rfactor_keep_the_layout() -> None:
    """What computes the tensor changes, its buffer does not."""
    _, t = tile(8, "N")
    t.split(1, 4)
    t.allocation_domain.merge(1).pad(0, 1)
    t.cache_before()
    assert shown(t) == "[i0: 8 + 1, i1: ceildiv(N, 4) * 4]"
    with ln.Fusion("s") as f:
        f.output(ln.sum(f.input("x", ("N", "D"), ln.float32), axis=1) + 1.0, "y")
    (s,) = f["y"].producers
    s.memory = ln.GLOBAL
    s.split(1, 4)
    s.allocation_domain.split(0, 8).reorder([1, 0])
    part = s.rfactor([1])
    assert (shown(s), part.allocation_domain.is_derived) == ("[i0: 8, i1: ceildiv(N, 8)]", True)


def test_what_calls_mean_is_looked_for_in_the_nest() -> None:
    f, t = tile(8, 32)
    t.allocation_domain.split(1, 4)
    t.allocation_domain.reorder([1, 0, 2])
    t.allocation_domain.swizzle(XOR, 0, 1)
    t.allocation_domain.pad(2, 1)
    assert [i.kind for i in f.intents[1:]] == ["allocation", "order", "swizzle", "pad"]
    assert ln.lower(f).notes == ()


@pytest.mark.parametrize("how", ["own axes", "axes of loops"])
def test_a_clone_has_the_layout_of_its_original(how: str) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (3, 64), ln.float32)
        t = ln.exp(x).named("t")
        y = f.output(t / ln.sum(t, axis=1, keepdims=True), "y")
    if how == "own axes":
        t.allocation_domain.split(1, 4)
        t.allocation_domain.reorder([0, 2, 1])
        t.allocation_domain.pad(2, 1)
    t.split(1, 8)
    if how == "axes of loops":
        t.set_allocation(order=[0, 2, 1], pad={1: 3})
    y.split(1, 8)
    t.compute_at(y, 2, recompute=True)
    (clone,) = t.clones
    assert str(clone.allocation_domain) == str(t.allocation_domain)
    k = ln.lower(f)
    (buffer,) = [b for b in k.buffers if b.tensor == clone.name]
    wanted = {"own axes": ((3, 4, 16), (68, 17, 1)), "axes of loops": ((3, 8, 8), (88, 1, 11))}
    assert (buffer.shape, buffer.strides) == wanted[how]
    assert ln.verify(k).all_sizes
