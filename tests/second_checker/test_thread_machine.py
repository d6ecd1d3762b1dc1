"""The machine that judges the checkers: each rule of `loopnest.kir`, on nests written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loopnest import kir
from loopnest.kir import parse as parse_nest
from loopnest.second_checker.thread_machine import MachineRun, run
from mutation.judge import machine_run
from mutation.subjects import Key, keys_in, load

ROOT = Path(__file__).parents[2]


def ran(text: str, seed: int = 0, trace: bool = False, **arrays: np.ndarray) -> MachineRun:
    """Run a nest; sizes are those of the first array's shape, in order of the names N, D."""
    program = parse_nest(text)
    first = next(iter(arrays.values()))
    sizes = dict(
        zip([p.name for p in program.params if p.kind == "size"], first.shape, strict=False)
    )
    return run(program, sizes, arrays, {}, seed, trace)


def values(*shape: int) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def both(text: str, **arrays: np.ndarray) -> list[MachineRun]:
    return [ran(text, seed, **arrays) for seed in range(4)]


ROW_SUM = """
kernel row_sum(x: float32[N, D]) -> (y: float32[N])
for i0 in ceildiv(N, 4):  # grid_x
  for i1 in 4:  # block_y
    T2: float32[1] local
    T2[0] = 0.0
    if i0 * 4 + i1 < N:
      for i2 in D:
        T2[0] = T2[0] + x[i0 * 4 + i1, i2]
      y[i0 * 4 + i1] = T2[0]
"""


def test_a_right_nest_breaks_no_rule() -> None:
    x = values(6, 5)
    for found in both(ROW_SUM, x=x):
        assert not found.broken
        np.testing.assert_array_equal(found.outputs[0], x.sum(axis=1))


def test_bounds() -> None:
    found = ran(ROW_SUM.replace("if i0 * 4 + i1 < N:", "if i0 * 4 + i1 < N + 1:"), x=values(6, 5))
    assert set(found.broken) == {"bounds"}
    assert found.broken["bounds"].startswith("bounds: x[6, 0], line 9, thread 1.2")


def test_an_element_that_was_never_stored_holds_garbage() -> None:
    text = ROW_SUM.replace("    T2[0] = 0.0\n", "")
    found = both(text, x=values(6, 5))
    assert all(set(f.broken) == {"undefined"} for f in found)
    assert (found[0].outputs[0] != found[1].outputs[0]).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "int64"])
def test_garbage_has_the_type_of_its_element(dtype: str) -> None:
    text = (
        f"kernel k(x: float32[N]) -> (y: {dtype}[N])\nfor i0 in N:\n  if i0 < 0:\n    y[i0] = 1\n"
    )
    found = both(text, x=values(6))
    assert all(set(f.broken) == {"unwritten"} for f in found)
    assert (found[0].outputs[0] != found[1].outputs[0]).any()


def test_inputs_are_read_at_their_strides() -> None:
    x = values(5, 6).T
    text = "kernel k(x: float32[N, D] strides(1, N)) -> (y: float32[N, D])\n"
    text += "for i0 in N:\n  for i1 in D:\n    y[i0, i1] = x[i0, i1]\n"
    (found, *_) = both(text, x=x)
    assert not found.broken
    np.testing.assert_array_equal(found.outputs[0], x)


def test_an_allocation_forgets() -> None:
    text = """
    kernel again(x: float32[N]) -> (y: float32[N])
    for i0 in N:
      t: float32[1] local
      if i0 == 0:
        t[0] = x[0]
      y[i0] = t[0]
    """
    assert set(ran(text, x=values(3)).broken) == {"undefined"}


def test_an_output_must_be_stored() -> None:
    text = ROW_SUM.replace("      y[i0 * 4 + i1]", "      if i1 < 3:\n        y[i0 * 4 + i1]")
    assert set(ran(text, x=values(6, 5)).broken) == {"unwritten"}


SHARED = """
kernel turn(x: float32[64]) -> (y: float32[64])
t: float32[64] shared
for i0 in 64:  # block_x
  t[i0] = x[i0]
barrier block
for i1 in 64:  # block_x
  y[i1] = t[63 - i1]
"""


def test_a_barrier_orders_a_block() -> None:
    for found in both(SHARED, x=values(64)):
        assert not found.broken
        np.testing.assert_array_equal(found.outputs[0], values(64)[::-1])


@pytest.mark.parametrize("barrier", ["", "barrier warp\n"])
def test_without_it_threads_race(barrier: str) -> None:
    for found in both(SHARED.replace("barrier block\n", barrier), x=values(64)):
        assert "race" in found.broken
        assert "divergence" not in found.broken


def test_a_barrier_of_the_warp_orders_the_warp() -> None:
    text = SHARED.replace("block\n", "warp\n").replace(
        "t[63 - i1]", "t[i1 // 32 * 32 + (i1 + 1) % 32]"
    )
    assert all(not found.broken for found in both(text, x=values(64)))


def test_a_buffer_used_again_needs_a_second_barrier() -> None:
    text = """
    kernel tiles(x: float32[N, 8]) -> (y: float32[N, 8])
    for i0 in N:
      t: float32[8] shared
      for i1 in 8:  # block_x
        t[i1] = x[i0, i1]
      barrier block
      for i2 in 8:  # block_x
        y[i0, i2] = t[7 - i2]
      barrier block
    """
    x = values(3, 8)
    for found in both(text, x=x):
        assert not found.broken
        np.testing.assert_array_equal(found.outputs[0], x[:, ::-1])
    second = text.rindex("      barrier block\n")
    assert all("race" in f.broken for f in both(text[:second], x=x))


def test_blocks_race_too_and_equal_values_are_told_apart() -> None:
    text = """
    kernel all(x: float32[4]) -> (y: float32[1])
    for i0 in 4:  # grid_x
      y[0] = x[i0]
    """
    assert set(ran(text, x=values(4)).broken) == {"race"}
    assert set(ran(text, x=np.ones(4, np.float32)).broken) == {"equal race"}


UPDATES = """
kernel total(x: float32[N]) -> (y: float32[1])
launch:
  y[0] = 0.0
launch:
  for i0 in N:  # grid_x
    atomic y[0] = y[0] + x[i0]
"""


def test_updates_in_one_step_do_not_race() -> None:
    found = both(UPDATES, x=values(6))
    assert not any(f.broken for f in found)
    np.testing.assert_allclose(found[0].outputs[0], values(6).sum(keepdims=True), rtol=1e-6)


def test_updates_by_steps_race_and_so_does_a_reader_beside_them() -> None:
    assert "race" in ran(UPDATES.replace("atomic ", ""), x=values(6)).broken
    beside = UPDATES.replace("(y: float32[1])", "(y: float32[1], z: float32[N])") + (
        "    z[i0] = y[0]\n"
    )
    assert "race" in ran(beside, x=values(6)).broken


def test_a_barrier_of_the_grid_orders_blocks() -> None:
    text = """
    kernel turn(x: float32[4]) -> (y: float32[4])
    w: float32[4] global
    for i0 in 4:  # grid_x
      w[i0] = x[i0]
    barrier grid
    for i1 in 4:  # grid_x
      y[i1] = w[3 - i1]
    """
    for found in both(text, x=values(4)):
        assert not found.broken
        np.testing.assert_array_equal(found.outputs[0], values(4)[::-1])
    for scope in ("", "barrier block\n"):
        assert "race" in ran(text.replace("barrier grid\n", scope), x=values(4)).broken


@pytest.mark.parametrize("scope", ["warp", "block", "grid"])
def test_a_barrier_that_some_threads_pass_by(scope: str) -> None:
    text = f"""
    kernel part(x: float32[8]) -> (y: float32[8])
    for i0 in 8:  # block_x
      if i0 < 5:
        barrier {scope}
      y[i0] = x[i0]
    """
    assert "divergence" in ran(text, x=values(8)).broken


def test_barriers_must_meet_in_the_same_iteration() -> None:
    text = """
    kernel late(x: float32[2]) -> (y: float32[2])
    for i0 in 2:  # block_x
      for i1 in 2:
        if i0 <= i1:
          barrier block
      y[i0] = x[i0]
    """
    assert "divergence" in ran(text, x=values(2)).broken


BLOCKS = """
kernel total(x: float32[4]) -> (y: float32[1])
part: float32[4] global
count: int32[1] global
for i0 in 4:  # grid_x
  part[i0] = x[i0]
  let last = arrive(count[0], 4)
  if last:
    t: float32[1] local
    t[0] = 0.0
    for i1 in 4:
      t[0] = t[0] + part[i1]
    y[0] = t[0]
"""


def parses(text: str) -> bool:
    return any(isinstance(n, (kir.Arrive, kir.Shuffle)) for n, _ in kir.walk(parse_nest(text).body))


def test_the_last_block_sees_all_others() -> None:
    assert parses(BLOCKS)
    for found in both(BLOCKS, x=values(4)):
        assert not found.broken
        assert found.outputs[0][0] == 10


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        ("], 4)", "], 3)", {"race", "undefined"}),
        ("], 4)", "], 5)", {"unwritten"}),
        ("if last:", "if 0 == 0:", {"race", "undefined"}),
    ],
)
def test_a_wrong_count_or_guard(old: str, new: str, rules: set[str]) -> None:
    broken = {rule for f in both(BLOCKS.replace(old, new), x=values(4)) for rule in f.broken}
    assert rules <= broken


SHUFFLED = """
kernel warp_sum(x: float32[32]) -> (y: float32[1])
for i0 in 32:  # block_x
  let a = x[i0]
  let b = shuffle_xor(a, 16)
  let c = a + b
  let d = shuffle_down(c, 8)
  let e = c + d
  let f = shuffle_xor(e, 4)
  let g = e + f
  let h = shuffle_down(g, 2)
  let i = g + h
  let j = shuffle_lane(i, 1)
  let k = i + j
  if i0 == 0:
    y[0] = k
"""


def test_shuffles_give_what_another_lane_has() -> None:
    for found in both(SHUFFLED, x=values(32)):
        assert not found.broken
        assert found.outputs[0][0] == values(32).sum()
    found = ran(SHUFFLED.replace("xor(e, 4)", "xor(e, 3)"), x=values(32))
    assert found.outputs[0][0] != values(32).sum()


def test_a_store_to_shared_space_makes_the_other_buffer_undefined() -> None:
    text = """
    kernel alias(x: float32[8]) -> (y: float32[8])
    a: float32[8] shared
    b: float32[8] shared = a
    for i0 in 8:  # block_x
      a[i0] = x[i0]
    barrier block
    for i1 in 8:  # block_x
      b[i1] = a[i1] * 2.0
    barrier block
    for i2 in 8:  # block_x
      y[i2] = b[i2]
    """
    assert not ran(text, x=values(8)).broken
    assert set(ran(text.replace("b[i2]", "a[i2]"), x=values(8)).broken) == {"undefined"}
    crossed = text.replace("a[i1] * 2.0", "a[7 - i1] * 2.0")
    assert "race" in ran(crossed, x=values(8)).broken


def test_stores_to_bytes_of_their_own_do_not_race_in_the_space_of_wider_elements() -> None:
    text = """
    kernel narrow(x: int8[8]) -> (y: int8[8])
    a: int32[2] shared
    b: int8[8] shared = a
    for i0 in 2:  # block_x
      a[i0] = int32(x[i0])
    barrier block
    for i1 in 8:  # block_x
      b[i1] = x[i1]
    barrier block
    for i2 in 8:  # block_x
      y[i2] = b[7 - i2]
    """
    x = np.arange(8, dtype=np.int8)
    for found in both(text, x=x):
        assert not found.broken
        np.testing.assert_array_equal(found.outputs[0], x[::-1])
    first, _, rest = text.partition("    barrier block\n")
    assert all("race" in found.broken for found in both(first + rest, x=x))
    own = "      b[i1] = x[i1]\n"
    late = text.replace(own, f"{own}      if i1 == 0:\n        a[1] = 0\n")
    assert all("race" in found.broken for found in both(late, x=x))


def test_a_use_before_the_allocation() -> None:
    text = """
    kernel early(x: float32[2]) -> (y: float32[2])
    for i0 in 2:
      if i0 == 1:
        t: float32[1] local
        t[0] = x[0]
      y[i0] = x[i0]
    """
    program = parse_nest(text)
    assert not run(program, {}, {"x": values(2)}, {}).broken
    loop = program.body[0]
    assert isinstance(loop, kir.Loop)
    (test,) = [n for n in loop.body if isinstance(n, kir.If)]
    moved = kir.map_body(program.body, lambda n: (n, test.body[1]) if n is test else n)
    assert set(run(program.with_body(moved), {}, {"x": values(2)}, {}).broken) == {
        "scope",
        "unwritten",
    }


def test_a_trace_has_the_stores_of_each_thread() -> None:
    found = ran(ROW_SUM, trace=True, x=values(1, 2))
    assert found.trace[0, 0] == [("T2", 0, 0.0), ("T2", 0, 1.0), ("T2", 0, 3.0), ("y", 0, 3.0)]
    assert found.trace[0, 1] == [("T2", 0, 0.0)]


EMPTY = """
kernel row_sum(x: float32[N, D]) -> (y: float32[N], z: float32[1])
z_blocks: float32[D] global
for i0 in N:
  T2: float32[1] local
  T2[0] = 0.0
  for i1 in D:  # grid_x
    T2[0] = T2[0] + x[i0, i1]
  z_blocks[grid_x] = T2[0]
  for i2 in D:  # grid_x
    y[i0] = T2[0]
z[0] = 2.0
"""


def test_an_empty_launch_runs_one_thread() -> None:
    """It has room in what the launch makes for itself, and takes part in no loop over nothing."""
    found = ran(EMPTY, x=values(2, 0))
    assert not found.broken
    np.testing.assert_array_equal(found.outputs[0], [0.0, 0.0])
    np.testing.assert_array_equal(found.outputs[1], [2.0])


# Against the oracle

OWN = list(keys_in(ROOT / "tests" / "mutation" / "kernels"))


@pytest.mark.parametrize("key", OWN, ids=lambda key: key.name)
def test_kernels_are_right_on_it(key: Key) -> None:
    subject = load(key)
    assert subject is not None
    assert subject.trials
    for trial in subject.trials:
        for seed in (0, 1):
            found = machine_run(subject.program, trial, seed)
            assert not found.broken
            assert not trial.difference(found.outputs)


@pytest.mark.parametrize("number", range(14))
def test_random_kernels_are_right_on_it(number: int) -> None:
    subject = load(Key("random", number=number))
    for trial in subject.trials if subject else ():
        found = machine_run(subject.program, trial, 1)
        assert not found.broken
        assert not trial.difference(found.outputs)
