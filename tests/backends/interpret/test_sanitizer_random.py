"""The race detector against vector clocks: random programs, every pair of accesses."""

from __future__ import annotations

import random

import numpy as np
import pytest

import loopnest as ln
from loopnest.backends.interpret import interpret
from loopnest.kir import parse as parse_nest
from loopnest.lane_machine import abstract_machine

F = np.float32
BLOCKS, THREADS, WARP = 3, 40, 32
HEAD = f"""
kernel k(x: float32[{THREADS}]) -> (y: float32[{BLOCKS}, {THREADS}])
g: float32[{BLOCKS * 64}] global
count: int32[2] global
for b in {BLOCKS}:  # grid_x
  for t in {THREADS}:  # block_x
    s: float32[64] shared
    a: float32[1] local
    a[0] = 0.0
    s[t] = 1.0
    g[b * 64 + t] = 1.0
    if t < 24:
      s[t + 40] = 1.0
      g[b * 64 + t + 40] = 1.0
    barrier block
"""


class RandomProgram:
    """Loads and stores at random places, under random tests, with random barriers between them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = 0
        self.barriers = self.random.choice([0.4, 0.7, 0.9])
        scopes = ["block"] * 4 + ["warp"] * 2
        scopes += self.random.choice([[], [], ["arrive"], ["arrive"], ["grid"]])
        self.scopes = scopes
        self.arrivals = iter([0, 1])
        lines = self.body(4, self.random.randint(2, 6))
        self.text = HEAD + "\n".join([*lines, "    y[b, t] = a[0]"])

    def body(self, pad, count, loops=()):
        lines = []
        for _ in range(count):
            made = self.statement(loops)
            if not loops and self.random.random() < 0.3:
                inner = self.body(pad + 2, self.random.randint(1, 3), ("k",))
                made = ["for k in 2:", *[line[pad:] for line in inner]]
            elif self.random.random() < 0.3:
                made = [f"if {self.condition()}:", *["  " + line for line in made]]
            lines += [" " * pad + line for line in made]
            if self.random.random() < self.barriers:
                lines += [" " * pad + line for line in self.sync(loops)]
        return lines

    def sync(self, loops):
        scope = self.random.choice(self.scopes)
        if scope == "arrive":
            number = None if loops else next(self.arrivals, None)
            if number is None:
                return ["barrier block"]
            store = f"g[{self.random.choice(['t', 'b * 64 + t', 't * 2'])}]"
            return [
                f"let last{number} = arrive(count[{number}], {BLOCKS})",
                f"if last{number}:",
                f"  {store} = 3.0",
            ]
        test = {"block": "b < 2", "warp": "t < 32"}.get(scope)
        if test and self.random.random() < 0.3:
            return [f"if {test}:", f"  barrier {scope}"]
        return [f"barrier {scope}"]

    def condition(self):
        return self.random.choice(["t < 32", "t == 5", "t % 2 == 0", "b == 1", "b < 2", "t >= 16"])

    def place(self, loops, moves):
        """Return an element; each thread has another where `moves` is 0."""
        forms = [
            ["t"],
            ["(t + 1) % 64", "63 - t", "t % 32 + 32", "t // 32 * 32 + t % 32"],
            ["t // 2", "t // 8 * 8", "7"],
        ][moves]
        forms += ["(t + k) % 64", "(t + k * 20) % 64"] if loops and moves else []
        inner = self.random.choice(forms)
        if self.random.random() < 0.6:
            return f"s[{inner}]"
        base = self.random.choice(["b * 64"] * 8 + ["(b + 1) % 3 * 64", "64"] * moves)
        return f"g[{base} + {inner}]"

    def statement(self, loops):
        kind, moves = self.random.random(), self.random.choice([0, 0, 0, 1])
        if kind < 0.3:
            return [f"{self.place(loops, moves)} = a[0] + float32(t)"]
        if kind < 0.45:
            place = self.place(loops, moves)
            return [f"{place} = {place} + 1.0"]
        self.names += 1
        name = f"v{self.names}"
        load = f"let {name} = {self.place(loops, self.random.randrange(3))}"
        return [load, f"a[0] = a[0] * 0.5 + {name}"]


class Clocks:
    """What happens before what, by a vector clock a thread; `races` once two accesses do not."""

    def __init__(self):
        total = BLOCKS * THREADS
        self.clock = np.eye(total, dtype=int)
        self.seen = {}
        self.counters = {}
        self.races = False

    def access(self, thread, element, writes):
        for other, time, wrote in self.seen.setdefault(element, []):
            if other != thread and (writes or wrote) and self.clock[thread, other] < time:
                self.races = True
        self.seen[element].append((thread, self.clock[thread, thread], writes))

    def join(self, threads):
        self.clock[threads] = self.clock[threads].max(axis=0)
        self.clock[threads, threads] += 1

    def arrive(self, counter, block):
        """Let a block arrive; return whether it is the last."""
        threads = list(range(block * THREADS, (block + 1) * THREADS))
        self.join(threads)
        there = self.counters.setdefault(counter, [])
        there.append(self.clock[threads[0]].copy())
        for t in threads:
            there[-1][t] = self.clock[t, t] - 1
        if len(there) == BLOCKS:
            self.clock[threads] = np.maximum(self.clock[threads], np.max(there, axis=0))
        return len(there) == BLOCKS


def groups(scope, threads):
    size = {"warp": None, "block": THREADS, "grid": BLOCKS * THREADS}[scope]
    found = {}
    for t in threads:
        key = t // size if size else (t // THREADS, t % THREADS // WARP)
        found.setdefault(key, []).append(t)
    return found.values()


def happens(program):
    """Return whether the program has a race."""
    clocks = Clocks()
    run_body(program.body, list(range(BLOCKS * THREADS)), {}, clocks)
    return clocks.races


def run_body(body, threads, env, clocks):
    for node in body:
        match type(node).__name__:
            case "Loop" if node.parallel.is_thread:
                run_body(node.body, threads, env, clocks)
            case "Loop":
                for k in range(node.extent):
                    run_body(node.body, threads, {**env, node.index: k}, clocks)
            case "If":
                touch([node.condition], threads, env, clocks)
                taken = [t for t in threads if value(node.condition, t, env)]
                run_body(node.body, taken, env, clocks)
            case "Let":
                touch([node.value], threads, env, clocks)
            case "Store":
                touch([node.value], threads, env, clocks)
                for t in threads if node.storage.name != "a" else ():
                    clocks.access(t, element(node.storage, node.index, t, env), True)
            case "Barrier":
                for group in groups(node.scope, threads):
                    clocks.join(group)
            case "Arrive":
                blocks = dict.fromkeys(t // THREADS for t in threads)
                last = {b: clocks.arrive(str(node.index[0]), b) for b in blocks}
                env[node.var.name] = last


def touch(values, threads, env, clocks):
    from loopnest.scalar.expr import loads

    for load in [load for v in values for load in loads(v)]:
        for t in threads if load.buffer.name != "a" else ():
            clocks.access(t, element(load.buffer, load.args, t, env), False)


def element(buffer, index, thread, env):
    return (
        buffer.name,
        thread // THREADS * (buffer.name == "s"),
        *[value(i, thread, env) for i in index],
    )


def value(node, thread, env):
    names = {"b": thread // THREADS, "t": thread % THREADS}
    names |= {n: v[thread // THREADS] if isinstance(v, dict) else v for n, v in env.items()}
    return eval(str(node), {}, names)


def outcome(program, order=None):
    """Return the output, or the fault."""
    y = np.zeros((BLOCKS, THREADS), F)
    try:
        interpret(program, {"x": np.zeros(THREADS, F), "y": y}, {}, {}, order)
    except ln.KernelFault as error:
        return str(error)
    return y.tobytes()


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_random_programs_race_as_vector_clocks_say(start, monkeypatch):
    verdicts = []
    for seed in range(start, start + 40):
        text = RandomProgram(seed).text
        program = parse_nest(text)
        verdicts.append(happens(program))
        for lanes in (1 << 14, THREADS):
            monkeypatch.setattr(abstract_machine, "LANES", lanes)
            found = outcome(program)
            assert isinstance(found, str) == verdicts[-1], f"{seed}, {lanes} lanes: {found}{text}"
    assert 5 < sum(verdicts) < 35


@pytest.mark.parametrize("start", range(1000, 1120, 40))
def test_a_random_order_changes_what_races_and_nothing_else(start):
    racing = shown = 0
    for seed in range(start, start + 40):
        text = RandomProgram(seed).text
        program = parse_nest(text)
        found = outcome(program)
        others = [outcome(program, order) for order in range(4)]
        if isinstance(found, str):
            racing += 1
            shown += len(set(others)) > 1 or isinstance(others[0], str)
        elif "arrive" in text:  # which block is the last one may show
            assert not any(isinstance(other, str) for other in others), f"{seed}: {others}{text}"
        else:
            assert set(others) == {found}, f"{seed}: {others}{text}"
    assert shown > 0.6 * racing
