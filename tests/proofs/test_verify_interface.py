"""Proofs hold a program's interface against the math: parameters, types, order, memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

import loopnest as ln
from loopnest import kir
from loopnest.facade.kernel_class import Kernel, lower
from loopnest.proofs import Report, verify, verify_program
from loopnest.scalar.enums import Memory
from loopnest.scalar.enums import ParallelType as PT
from loopnest.scalar.expr import Const, Local, substitute
from mutation.interfaces import retyped
from mutation.mutants import mutants
from mutation.rewriting import with_buffer


def two_outputs() -> Kernel:
    with ln.Fusion("both") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        b = f.input("b", ("N", "M"), ln.float32)
        a = f.scalar("a", ln.float32)
        f.assume("M <= 4096")
        t = x * a
        f.output(t + b, "y")
        f.output(ln.max(t - b, axis=1), "z")
    return lower(f)


def judged(k: Kernel, program: kir.Program) -> Report:
    assert k._lowered.math is not None
    return verify_program(program, k._lowered.math())


def changed(text: str) -> tuple[str, list[str]]:
    """Return the status of the mutant whose text begins so, and what is found of its interface."""
    k = two_outputs()
    assert verify(k).all_sizes
    kinds = frozenset({"interface", "type"})
    mutant = next(m for m in mutants(k.program, kinds) if m.text.startswith(text))
    report = judged(k, mutant.program)
    return report.status, [str(f) for f in report.findings]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "swap parameters x and b",
            "interface: the input parameters are b, x; the math has x, b",
        ),
        (
            "swap parameters b and y",
            "interface: the parameters are x (input), y (output), b (input), z (output), "
            "a (scalar), N (size), M (size); they are passed in the order input, output, scalar, "
            "size, workspace",
        ),
        (
            "pass x for b, b for x",
            "interface: input x has the buffer of another name, b",
        ),
        ("drop parameter a", "interface: the scalars are none; the math has a"),
        ("drop parameter N", "interface: the sizes are M; the math has N, M"),
        ("input x of float16", "interface: input x is float16, the math has float32"),
        ("output y of float16", "interface: output y is float16, the math has float32"),
        ("scalar a of float16", "interface: scalar a is float16, the math has float32"),
        ("swap outputs y and z", "interface: the outputs are z, y; the math has y, z"),
        ("drop the last output", "interface: the outputs are y; the math has y, z"),
        (
            "output z from the buffer of y",
            "interface: output z is read from buffer y, which is not that of parameter z",
        ),
        (
            "output y in the memory of x",
            "interface: output y lies in the memory of x, the math has its own",
        ),
        (
            "output y as workspace",
            "interface: workspace y is passed as global output memory",
        ),
        ("do not check", "interface: it does not check 'M <= 4096', which the math assumes"),
        ("ask for N >= 2", "interface: it asks for 'N >= 2', which the math does not assume"),
        (
            "store to the input x",
            "interface: z is stored to the input x, which the caller keeps",
        ),
    ],
)
def test_an_interface_is_the_math_s(text: str, message: str) -> None:
    status, found = changed(text)
    assert status == "refuted"
    assert message in found


@pytest.mark.parametrize("text", ["x by columns", "x of the shape of its transpose"])
def test_an_array_is_passed_by_rows(text: str) -> None:
    status, found = changed(text)
    assert status == "refuted"
    assert found[0].startswith("layout: input x has the ")


def test_output_names_may_not_be_exchanged() -> None:
    status, found = changed("exchange the names of outputs y and z")
    assert status == "refuted"
    assert found[0] == "interface: the outputs are z, y; the math has y, z"


def local(k: Kernel) -> list[kir.Allocate]:
    return [n for n, _ in kir.walk(k.program.body) if isinstance(n, kir.Allocate)]


def test_only_shared_buffers_share_space() -> None:
    k = two_outputs()
    a, b = [node.storage for node in local(k)][:2]
    report = judged(k, with_buffer(k.program, b, replace(b, alias_of=a.name)))
    assert [str(f) for f in report.findings] == [
        f"interface: {b.name} shares the space of {a.name}; only two SHARED buffers of the "
        "program can"
    ]


def test_global_memory_is_not_allocated() -> None:
    k = two_outputs()
    buffer = local(k)[0].storage
    report = judged(k, with_buffer(k.program, buffer, replace(buffer, memory=Memory.GLOBAL)))
    assert [str(f) for f in report.findings] == [
        f"interface: {buffer.name} is allocated in GLOBAL memory, which only a caller can pass"
    ]


def test_two_buffers_have_two_names() -> None:
    k = two_outputs()
    a, b = [node.storage for node in local(k)][:2]
    report = judged(k, with_buffer(k.program, b, replace(b, name=a.name)))
    assert report.findings[0].message == f"two buffers or parameters are called {a.name}"


def test_a_value_is_rounded_where_the_math_rounds_it_alone() -> None:
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 64)
    part = y.rfactor(1)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    part.compute_at(y, 1)
    part.parallelize({2: PT.block_x})
    k = lower(f)
    assert verify(k).all_sizes
    for node in local(k):
        storage = node.storage
        report = judged(k, retyped(k.program, storage, ln.float16))
        assert report.status == "refuted", storage
        assert any("float16" in f.message for f in report.findings)


def test_a_temporary_is_of_the_type_of_its_value() -> None:
    k = lower(welford())
    let = next(
        n
        for n, _ in kir.walk(k.program.body)
        if isinstance(n, kir.Let) and n.var.dtype is ln.float32
    )
    half = Local(let.var.name, ln.float16)
    report = judged(k, with_name(k.program, let, half))
    assert report.status == "refuted"
    assert f"{let.var.name} is float16 and takes a float32" in [f.message for f in report.findings]


def welford() -> ln.Fusion:
    with ln.Fusion("moments") as f:
        f.output(ln.var(f.input("x", ("N", "D"), ln.float32), axis=1), "v")
    return f


def with_name(program: kir.Program, let: kir.Let, var: Local) -> kir.Program:
    """Return `program` with another temporary in place of one, in its uses too."""

    def rule(node: kir.Stmt) -> kir.Stmt:
        if node is let:
            return replace(let, var=var)
        return kir.map_expressions(node, lambda value: substitute(value, {let.var: var}))

    return program.with_body(kir.map_body(program.body, rule))


def test_an_input_that_an_output_takes_may_be_stored_to() -> None:
    with ln.Fusion("step") as f:
        p = f.input("p", ("N",), ln.float32)
        f.output(p * 2.0, "y", inplace=p)
    k = lower(f)
    assert verify(k).all_sizes
    output = k.program.outputs[0]
    apart = replace(k.program, outputs=(replace(output, inplace=""),))
    assert [str(f) for f in judged(k, apart).findings] == [
        "interface: output y lies in the memory of its own, the math has p",
        "interface: output y is read from buffer p, which is not that of parameter y",
    ]


def test_an_output_is_stored_as_what_it_is() -> None:
    with ln.Fusion("half") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        f.output(ln.sum(x, axis=1), "y")
    k = lower(f)
    finish = next(
        n for n, _ in kir.walk(k.program.body) if isinstance(n, kir.Store) and n.role == "finish"
    )
    zero = replace(finish, role="init", value=Const(0, ln.float32))
    program = k.program.with_body(
        kir.map_body(k.program.body, lambda node: zero if node is finish else node)
    )
    found = [f.message for f in judged(k, program).findings]
    assert "the store stores a partial result of y as float16, the math has float32" in found


def reduced_by_the_grid() -> Kernel:
    with ln.Fusion("row") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 2, inner=False)
    part = y.rfactor([2])
    y.parallelize({0: PT.block_x, 1: PT.grid_x})
    part.compute_at(y, 2)
    return lower(f)


def test_blocks_arrive_at_a_counter_of_int32() -> None:
    k = reduced_by_the_grid()
    assert verify(k).ok
    mutant = next(
        m for m in mutants(k.program, frozenset({"interface"})) if "of int64 instead" in m.text
    )
    report = judged(k, mutant.program)
    assert report.status == "refuted"
    name = next(p.name for p in k.program.params if p.buffer and p.buffer.kind == "counter")
    message = f"interface: the counter {name} is int64; blocks arrive at int32"
    assert message in [str(f) for f in report.findings]


def test_what_depends_on_which_block_is_the_last_is_refuted_where_it_fails() -> None:
    k = reduced_by_the_grid()
    mutant = next(
        m for m in mutants(k.program, frozenset({"threads"})) if m.text.startswith("swap block_x")
    )
    report = judged(k, mutant.program)
    assert (report.status, report.scope) == ("refuted", "N=1, D=1")
    assert report.findings[0].kind == "flow"


def test_buffers_are_no_aliases_of_each_other() -> None:
    with ln.Fusion("circle") as f:
        x = f.input("x", (8,), ln.float32)
        a = (x + 1.0).named("a")
        b = ln.flip(a, 0).named("b")
        y = f.output(ln.flip(b, 0), "y")
    for tensor in (a, b, y):
        tensor.parallelize({0: ln.ParallelType.block_x})
    a.memory = b.memory = ln.SHARED
    k = ln.lower(f)
    first, second = [node.storage for node in local(k)]
    program = with_buffer(k.program, first, replace(first, alias_of="b"))
    report = judged(k, with_buffer(program, second, replace(second, alias_of="a")))
    assert [str(f) for f in report.findings] == [
        "interface: a shares the space of b, and that the space of a",
        "interface: b shares the space of a, and that the space of b",
    ]
