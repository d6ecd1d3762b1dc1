"""Kernels of several launches: the nest, its text, what each launch needs, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from helpers.launch_cases import CASES, numbers, split_sum
from loopnest.kir.legal_program import program_faults
from loopnest.kir.nest_text import print_nest

PT = ln.ParallelType


def message(call) -> str:
    with pytest.raises(ln.LoopnestError) as found:
        call()
    return str(found.value)


def test_the_nest_of_a_sum_in_two_launches():
    """No barrier, and each launch as large as its own loops."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.split(0, 8)
    part = y.rfactor(1)
    part.memory = ln.GLOBAL
    part.parallelize({0: PT.grid_x})
    y.new_launch()
    k = ln.lower(f)
    assert (
        str(k)
        == """\
# loopnest nest 1
kernel k(x: float32[N]) -> (y: float32[])
T2: float32[ceildiv(N, 8)] global
launch:
  for i0 in ceildiv(N, 8):  # grid_x
    T2[i0] = 0.0
    for i1 in 8:
      if i0 * 8 + i1 < N:
        T2[i0] = T2[i0] + x[i0 * 8 + i1]
launch:
  y[0] = 0.0
  for i2 in ceildiv(N, 8):
    y[0] = y[0] + T2[i2]"""
    )
    config = k.launch(N=20)
    assert [part.grid for part in config.launches] == [(3, 1, 1), (1, 1, 1)]
    assert (config.grid, config.block, config.is_empty) == ((3, 1, 1), (1, 1, 1), False)
    assert k.launch(N=0).is_empty


@pytest.mark.parametrize("name", CASES)
def test_the_nest_is_legal_and_its_text_is_read_back(name):
    make, _, count = CASES[name]
    program = ln.lower(make()).program
    assert program_faults(program) == []
    assert len(program.launches) == count
    again = ln.kir.parse(print_nest(program))
    assert print_nest(again) == print_nest(program)
    assert [[d for d, _ in part.launch] for part in again.launches] == [
        [d for d, _ in part.launch] for part in program.launches
    ]


def test_blocks_of_two_shapes_that_no_single_launch_admits():
    """256 threads along x in one launch, 8 along y in the other: together they would be 2048."""
    with ln.Fusion("k") as f:
        x = f.input("x", (256, 8), ln.float32)
        t = ln.exp(x)
        y = f.output(t + 1.0, "y")
    t.memory = ln.GLOBAL
    t.parallelize({0: PT.block_x})
    y.parallelize({1: PT.block_y})
    assert "a block has 2048 threads" in message(lambda: ln.lower(f))
    y.new_launch()
    found = ln.lower(f).launch().launches
    assert [part.block for part in found] == [(256, 1, 1), (1, 8, 1)]


def test_stages_show_each_launch():
    stages = ln.lower(split_sum()).stages
    assert stages["groups"].splitlines()[1] == "launch 0"
    assert [line for line in stages["nest"].splitlines() if line.startswith("# launch")] == [
        "# launch 0", "# launch 1",
    ]  # fmt: skip


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED], ids=str)
def test_what_ends_with_its_launch_is_not_read_in_the_next_one(memory):
    f = split_sum()
    part = f["T2"]
    part.memory = memory
    assert message(lambda: ln.lower(f)) == (
        f"T2: it is in {memory.value.upper()} memory, which ends with launch 0, and y reads it in "
        "launch 1; set T2.memory = ln.GLOBAL, or compute it in the loops of y (compute_at)"
    )


def test_a_layout_of_its_own_does_not_pass_between_launches():
    f = split_sum()
    f["T2"].set_allocation(pad={0: 1})
    assert message(lambda: ln.lower(f)) == (
        "T2: y reads it in a later launch (number 1), and it has an allocation domain of its own; "
        "leave what passes between launches in C order (allocation_domain.reset())"
    )


def in_place(*, swap: bool) -> ln.Fusion:
    """y takes the memory of x, which z reads in the launch before; w reads y in a later one."""
    with ln.Fusion("k") as f:
        x = f.input("x", (16,), ln.float32)
        z = ln.flip(x, 0)
        y = f.output(x + z if swap else x * 2.0, "y", inplace=x)
        w = y if swap else f.output(ln.flip(y, 0), "w")
        if not swap:
            f.output(z, "z")
    if swap:
        z.memory = ln.GLOBAL
    y.new_launch()
    w.new_launch()
    return f


def test_an_input_is_overwritten_after_the_launches_that_read_it():
    k = ln.lower(in_place(swap=True))
    assert ln.verify(k).ok
    data = np.arange(16, dtype=np.float32)
    for target in ("interpret", "c"):
        assert np.array_equal(ln.compile(k, target=target)(data.copy()), data + data[::-1])


def test_an_output_in_the_memory_of_an_input_is_read_by_a_later_launch():
    k = ln.lower(in_place(swap=False))
    report = ln.verify(k)
    assert report.ok, report
    data = np.arange(16, dtype=np.float32)
    for target in ("interpret", "c"):
        y, w, z = ln.compile(k, target=target)(data.copy())
        assert np.array_equal(y, 2 * data)
        assert np.array_equal(w, 2 * data[::-1])
        assert np.array_equal(z, data[::-1])


def test_an_input_that_a_later_launch_reads_is_not_overwritten():
    with ln.Fusion("k") as f:
        x = f.input("x", (16,), ln.float32)
        y = f.output(x * 2.0, "y", inplace=x)
        t = ln.flip(y, 0)
        f.output(t + x, "w")
    f["w"].new_launch()
    t.memory = ln.GLOBAL
    assert message(lambda: ln.lower(f)) == (
        "y in the memory of x: launch 0 overwrites x, and w reads it in launch 1; start a launch "
        "with y too, or drop inplace="
    )


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_and_c_run_all_launches(name):
    make, shape, _ = CASES[name]
    f, x = make(), numbers(shape)
    k = ln.lower(f)
    expected, bound = ln.evaluate(f, x), ln.error_bound(f, x)
    if not isinstance(expected, tuple):
        expected, bound = (expected,), (bound,)
    runs = [ln.compile(k, target="interpret", thread_order=seed)(x) for seed in (None, 3)]
    for found in (*runs, ln.compile(k, target="c", optimize=0)(x)):
        every = found if isinstance(found, tuple) else (found,)
        for a, b, most in zip(every, expected, bound, strict=True):
            assert (np.abs(a.astype(np.float64) - b) <= most).all()
    assert ln.diagnose(k, x).ok


@pytest.mark.parametrize("target", ["interpret", "c"])
def test_a_launch_without_threads_is_done_on_the_host(target):
    """The first launch has no blocks at N = 0; the second one stores the identity."""
    fn = ln.compile(split_sum(), target=target)
    assert fn(np.zeros(0, np.float32)) == 0
    assert fn(np.ones(1, np.float32)) == 1


def test_a_fault_names_the_line_in_the_nest_of_all_launches():
    f = split_sum()
    k = ln.lower(f)
    first, second = k.program.body
    wrong = ln.kir.map_body(
        second.body, lambda n: None if isinstance(n, ln.kir.Store) and n.role == "init" else n
    )
    from dataclasses import replace

    from loopnest.backends.interpret import interpret

    program = k.program.with_body((first, replace(second, body=wrong)))
    arrays = {"x": numbers((20,)), "y": np.zeros((), np.float32)}
    found = message(lambda: interpret(program, arrays, {"N": 20}, {}))
    lines = print_nest(program).splitlines()
    place = next(n for n, line in enumerate(lines, 1) if "y_acc[0] + T2[" in line)
    assert f"nest line {place} " in found


def test_what_a_launch_stores_and_nothing_reads_is_math_of_it() -> None:
    """The index along an axis of one element is 0, whatever the data say."""
    with ln.Fusion("k") as f:
        x = f.input("x", (1,), ln.int16)
        t, wide = ln.cast(x, ln.int32), x * 2
        y = f.output(ln.take(wide, t, axis=0, mode="wrap"), "y")
    t.memory = wide.memory = ln.GLOBAL
    y.new_launch()
    kernel = ln.lower(f)
    assert "y[0] = T2[0]" in str(kernel)
    assert ln.verify(kernel).all_sizes
