"""Random programs whose threads meet, as nest text."""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCKS = [(32,), (64,), (33,), (7,), (1,), (8, 4), (16, 3), (4, 2, 5), (64, 2), ("B",), ("B", 2)]

OWN = 3
"""Bodies in which threads do not meet count as deeper than this; two of them may nest."""


@dataclass
class Scope:
    """What statements at one place may read: scalars, arrays with their extents, loop indices."""

    scalars: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    arrays: list[tuple[str, int]] = field(default_factory=list)
    indices: list[str] = field(default_factory=list)

    def inner(self, *indices):
        return Scope([*self.scalars], [*self.cells], [*self.arrays], [*self.indices, *indices])


class RandomProgram:
    """One program: its `text`, and the `sizes` at which it is to run."""

    def __init__(self, random, name="k"):
        self.random = random
        self.count = 0
        dims = BLOCKS[random.integers(len(BLOCKS))]
        self.has_grid_barriers = bool(random.random() < 0.3)
        grid = [("G",), ("G", 2), ()][random.choice(3, p=[0.6, 0.25, 0.15])]
        if self.has_grid_barriers and not grid:
            grid = ("G",)
        self.sizes = {
            "B": int(random.choice([1, 5, 32, 40])),
            "G": int(random.integers(1, 4)),
            "R": int(random.choice([0, 1, 2, 2, 3])),
            "D": int(random.integers(1, 70)),
        }
        self.threads = self._product(dims)
        self.workspace, self.shared, loops = [], [], []
        self.lin = self._linear("block", dims, loops)
        self.block = self._linear("grid", grid, loops)
        self.total = f"{self._product(grid)} * {self.threads}"
        self.everyone = f"({self.block}) * {self.threads} + {self.lin}"
        scope = Scope()
        body = []
        for _ in range(random.integers(4, 12)):
            body += self.statement(scope, 0, "grid" if self.has_grid_barriers else "block")
        ends = " + ".join([*scope.scalars, *scope.cells]) or "0.0"
        body += [f"y[{self.everyone}] = {ends}"]
        shared = [f"{name}: float32[{self.threads}] shared" for name in self.shared]
        nested = [*self.workspace]
        pad = ""
        for loop in sorted(loops, key=lambda item: "grid" not in item):
            nested.append(pad + loop)
            pad += "  "
        nested += [pad + line for line in (*shared, *body)]
        head = (
            f"kernel {name}(x: float32[{self.total}], w: float32[D], b: float32[B], g: float32[G], "
            f"r: float32[R]) -> (y: float32[{self.total}])"
        )
        self.text = "\n".join([head, *nested])

    def _product(self, extents):
        return " * ".join([str(e) for e in extents]) or "1"

    def _linear(self, kind, extents, loops):
        terms, step = [], "1"
        for axis, extent in zip("xyz", extents, strict=False):
            index = f"{kind}_{axis}"
            if self.random.random() < 0.7:
                index = f"{kind[0]}{axis}"
                loops.append(f"for {index} in {extent}:  # {kind}_{axis}")
            else:
                loops.append(f"for unused_{kind[0]}{axis} in {extent}:  # {kind}_{axis}")
            terms.append(f"{index} * {step}" if step != "1" else index)
            step = str(extent) if step == "1" else f"{step} * {extent}"
        return "(" + (" + ".join(terms) or "0") + ")"

    def fresh(self, stem):
        self.count += 1
        return f"{stem}{self.count}"

    def pick(self, items):
        return items[self.random.integers(len(items))]

    # Values

    def value(self, scope):
        terms = [self.term(scope) for _ in range(self.random.integers(1, 4))]
        if len(terms) == 1:
            return terms[0]
        if self.random.random() < 0.2:
            return f"where({self.condition(scope)}, {terms[0]}, {terms[1]})"
        return f"min(max({' + '.join(terms)}, -99.0), 99.0)"

    def term(self, scope):
        found = [*scope.scalars[-5:], *scope.cells]
        found += [f"{name}[{self.random.integers(size)}]" for name, size in scope.arrays]
        found += [f"float32({i})" for i in scope.indices]
        found += [f"float32({self.lin})", f"x[{self.everyone}]", f"w[({self.lin} * 7) % D]"]
        if scope.indices:
            found.append(f"w[({self.pick(scope.indices)} * 32 + {self.lin}) % D]")
        return self.pick(found)

    def condition(self, scope):
        found = [
            f"{self.lin} % 3 == 0",
            f"{self.lin} < 5",
            "block_x == 0",
            f"{self.lin} // 32 == 0",
        ]
        found += [f"{name} < 3.0" for name in scope.scalars[-2:]]
        return self.pick(found)

    # Statements

    def statements(self, scope, depth, count, meet):
        result = []
        for _ in range(1 + self.random.integers(count)):
            result += self.statement(scope, depth, meet)
        return result

    def statement(self, scope, depth, meet):
        kinds = [self.let, self.cell, self.array, self.update, self.update]
        kinds += [self.own_branch, self.own_loop] if depth < OWN + 2 else []
        if meet:
            kinds += [self.exchange, self.exchange, self.shuffle, self.shuffle]
            kinds += [self.loop, self.branch] if depth < 2 else []
            kinds += [self.warps] if depth < 2 and meet == "block" else []
        if meet == "grid":
            kinds += [self.grid_exchange] * 3
        return self.pick(kinds)(scope, depth, meet)

    def let(self, scope, depth, meet):
        name = self.fresh("v")
        if self.random.random() < 0.2:
            index = self.fresh("n")
            line = f"let {index} = {self.lin} * 2 + {self.random.integers(3)}"
            scope.indices.append(index)
            return [line]
        line = f"let {name} = {self.value(scope)}"
        scope.scalars.append(name)
        return [line]

    def cell(self, scope, depth, meet):
        name = self.fresh("t")
        lines = [f"{name}: float32[1] local", f"{name}[0] = {self.value(scope)}"]
        scope.cells.append(f"{name}[0]")
        return lines

    def array(self, scope, depth, meet):
        name, size, index = self.fresh("a"), int(self.random.integers(2, 6)), self.fresh("j")
        inner = scope.inner(index)
        place = index if self.random.random() < 0.7 else f"{size - 1} - {index}"
        dot = self.pick(["", ".flat"])
        lines = [
            f"{name}: float32[{size}] local",
            f"for {index} in {size}:",
            f"  {name}{dot}[{place}] = {self.value(inner)}",
        ]
        scope.arrays.append((name, size))
        return lines

    def update(self, scope, depth, meet):
        if scope.arrays and self.random.random() < 0.4:
            name, size = self.pick(scope.arrays)
            return [f"{name}[{self.random.integers(size)}] = {self.value(scope)}"]
        if not scope.cells:
            return self.cell(scope, depth, meet)
        return [f"{self.pick(scope.cells)} = {self.value(scope)}"]

    def own_branch(self, scope, depth, meet):
        lines = [f"if {self.condition(scope)}:"]
        lines += _shifted(self.statements(scope.inner(), max(depth, OWN) + 1, 3, ""))
        if self.random.random() < 0.5:
            lines += [
                "else:",
                *_shifted(self.statements(scope.inner(), max(depth, OWN) + 1, 3, "")),
            ]
        return lines

    def own_loop(self, scope, depth, meet):
        index = self.fresh("i")
        extent = self.pick(["R", "3", "5"])
        kind = self.pick(["", "", "  # unroll"]) if extent != "R" else ""
        body = self.statements(scope.inner(index), max(depth, OWN) + 1, 3, "")
        return [f"for {index} in {extent}:{kind}", *_shifted(body)]

    def exchange(self, scope, depth, meet):
        name = self.pick(self.shared) if self.shared and self.random.random() < 0.6 else ""
        if not name:
            name = self.fresh("s")
            self.shared.append(name)
        got = self.fresh("v")
        lines = [
            f"{name}[{self.lin}] = {self.value(scope)}",
            "barrier block",
            f"let {got} = {name}[({self.lin} + {self.random.integers(40)}) % ({self.threads})]",
        ]
        if self.random.random() < 0.3:
            lines += [f"let {got}b = {got} + {name}[0]"]
        scope.scalars.append(got)
        return [*lines, "barrier block"]

    def shuffle(self, scope, depth, meet):
        name, mode = self.fresh("v"), self.pick(["xor", "down", "up", "lane"])
        value = self.value(scope)
        if scope.scalars and self.random.random() < 0.6:
            value = self.pick(scope.scalars)
        line = f"let {name} = shuffle_{mode}({value}, {self.random.integers(32)})"
        scope.scalars.append(name)
        return [line, "barrier warp"] if self.random.random() < 0.2 else [line]

    def grid_exchange(self, scope, depth, meet):
        name, got = self.fresh("buf"), self.fresh("v")
        self.workspace.append(f"{name}: float32[{self.total}] global")
        shift = self.random.integers(100)
        scope_value = self.value(scope)
        scope.scalars.append(got)
        return [
            f"{name}[{self.everyone}] = {scope_value}",
            "barrier grid",
            f"let {got} = {name}[({self.everyone} + {shift}) % ({self.total})]",
            "barrier grid",
        ]

    def loop(self, scope, depth, meet):
        index = self.fresh("k")
        body = self.statements(scope.inner(index), depth + 1, 4, meet)
        return [f"for {index} in {self.pick(['R', '2'])}:", *_shifted(body)]

    def branch(self, scope, depth, meet):
        same = [
            "R % 2 == 0",
            "w[0] < 1.0",
            *[f"{i} % 2 == 0" for i in scope.indices if i[0] == "k"],
        ]
        lines = []
        condition = self.pick(same)
        if meet == "block":
            condition = self.pick([condition, f"({self.block}) % 2 == 0"])
        if self.random.random() < 0.4:  # known to be the same only at run time
            flag = self.fresh("p")
            lines.append(f"let {flag} = {condition} and {self.lin} < 10000")
            condition = flag
        lines += [f"if {condition}:"]
        lines += _shifted(self.statements(scope.inner(), depth + 1, 4, meet))
        if self.random.random() < 0.5:
            lines += ["else:", *_shifted(self.statements(scope.inner(), depth + 1, 4, meet))]
        return lines

    def warps(self, scope, depth, meet):
        """Return a branch that some warps take, with shuffles in it."""
        inner = scope.inner()
        lines = [f"if {self.lin} // 32 % 2 == 0:"]
        body = []
        for _ in range(self.random.integers(1, 4)):
            body += self.pick([self.shuffle, self.let, self.update])(inner, 3, meet)
        return [*lines, *_shifted(body)]


def _shifted(body):
    return ["  " + line for line in body] or ["  pass"]
