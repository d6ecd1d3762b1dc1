"""Plans of graphs made wrong, and a machine that carries a plan out, to judge them.

The machine knows nothing of the proof. It has bytes for each piece of memory, with a random content
where nothing is known, and lets a kernel write garbage over its outputs before it reads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import loopnest.graph as G
from loopnest.graph.node_values import compute
from loopnest.graph.program import body_of, call_graph
from loopnest.graph_kernels.plan_records import StepPlan, UpdatedVariable, UpdateGroup, ValuePlace
from loopnest.scalar import dtypes

# Mutants


def copied(plan: StepPlan) -> StepPlan:
    steps = [
        replace(s, inputs=[*s.inputs], outputs=[*s.outputs], copies=[*s.copies]) for s in plan.steps
    ]
    return replace(plan, steps=tuple(steps), storages=tuple([replace(s) for s in plan.storages]))


def mutants(plan: StepPlan):
    """Yield kinds of mutants and mutants, all that there are of each kind."""
    for make in (rooms, sizes, orders, operands, outputs, copies, kernels, ends, kinds):
        yield from make(plan)


def changed(items, number, item):
    return (*items[:number], item, *items[number + 1 :])


def rooms(plan):
    """A storage somewhere else in the arena; an arena that is too small."""
    laid = [n for n, s in enumerate(plan.storages) if s.kind == "arena" and s.offset >= 0]
    for number in laid:
        own = plan.storages[number].offset
        places = {own - 64, own + 64, own + 4, -1, *[plan.storages[n].offset for n in laid]}
        for place in sorted(places - {own}):
            mutant = copied(plan)
            mutant.storages[number].offset = place
            yield f"storage {number} moved to {place}", mutant
    if plan.arena:
        yield "a smaller arena", replace(copied(plan), arena=plan.arena - 64)


def sizes(plan):
    """A storage with an element less or more, or of another type."""
    for number, storage in enumerate(plan.storages):
        other = dtypes.float64 if storage.dtype is not dtypes.float64 else dtypes.int32
        for field, value in (
            ("elements", storage.elements - 1),
            ("elements", storage.elements + 1),
            ("dtype", other),
        ):
            mutant = copied(plan)
            setattr(mutant.storages[number], field, value)
            yield f"storage {number} with {field} {value}", mutant


def orders(plan):
    """Two steps the other way round; a step that is left out or done twice."""
    count = len(plan.steps)
    for n in range(count):
        for m in range(n + 1, count):
            steps = [*plan.steps]
            steps[n], steps[m] = steps[m], steps[n]
            yield f"steps {n} and {m} swapped", replace(copied(plan), steps=tuple(steps))
        left = (*plan.steps[:n], *plan.steps[n + 1 :])
        yield f"step {n} left out", replace(copied(plan), steps=left)
        twice = (*plan.steps, plan.steps[n])
        yield f"step {n} once more at the end", replace(copied(plan), steps=twice)


def twins(plan, place):
    """Yield places of the size and the type of a place, in other storages."""
    own = plan.storages[place.storage]
    for number, storage in enumerate(plan.storages):
        fits = (storage.elements, storage.dtype) == (own.elements, own.dtype)
        if fits and number != place.storage:
            yield replace(place, storage=number)


def reshown(place):
    """Yield a place with its elements shown in other ways."""
    if place.axes is not None:
        yield replace(place, axes=None)
        yield replace(place, axes=place.axes[1:] + place.axes[:1])
    elif place.strides is not None:
        yield replace(place, strides=None)
        yield replace(place, strides=place.strides[::-1])
    elif len(set(place.shape)) > 1:
        yield replace(place, shape=place.shape[::-1], axes=tuple(range(len(place.shape)))[::-1])
        yield replace(place, shape=place.shape[::-1])


def operands(plan):
    """An operand that is read from elsewhere, or in another way, or where another one lies."""
    for n, step in enumerate(plan.steps):
        for i, tree in enumerate(step.inputs):
            if not isinstance(tree, ValuePlace):
                continue
            for place in (*twins(plan, tree), *reshown(tree)):
                mutant = copied(plan)
                mutant.steps[n].inputs[i] = place
                yield f"operand {i} of step {n} is {place}", mutant
            for j in range(i):
                mutant = copied(plan)
                own = mutant.steps[n].inputs
                own[i], own[j] = own[j], own[i]
                yield f"operands {i} and {j} of step {n} swapped", mutant


def outputs(plan):
    """A value that is written elsewhere."""
    for n, step in enumerate(plan.steps):
        for i, place in enumerate(step.outputs):
            for other in (*twins(plan, place), *reshown(place)):
                mutant = copied(plan)
                mutant.steps[n].outputs[i] = other
                yield f"value {i} of step {n} is written to {other}", mutant


def copies(plan):
    """A copy that is left out, or that copies something else; before a step, or at the end."""
    for n, step in enumerate(plan.steps):
        for i, (source, target) in enumerate(step.copies):
            mutant = copied(plan)
            del mutant.steps[n].copies[i]
            yield f"copy {i} of step {n} left out", mutant
            for pair in ((target, source), *[(x, target) for x in twins(plan, source)]):
                mutant = copied(plan)
                mutant.steps[n].copies[i] = pair
                yield f"copy {i} of step {n} is {pair}", mutant
    for i, (state, place) in enumerate(plan.commits):
        rest = (*plan.commits[:i], *plan.commits[i + 1 :])
        yield f"commit {i} left out", replace(copied(plan), commits=rest)
        for other in twins(plan, place):
            commits = changed(plan.commits, i, (state, other))
            yield f"commit {i} of {other}", replace(copied(plan), commits=commits)
        for other in twins(plan, ValuePlace(state, ())):
            commits = changed(plan.commits, i, (other.storage, place))
            yield f"commit {i} to {other.storage}", replace(copied(plan), commits=commits)


def kernels(plan):
    """The kernel of another step, with its arrays in another order, or another in-place pair."""
    for n, step in enumerate(plan.steps):
        made = step.made
        if made is None:
            continue
        others = {id(s.made.kernel): s.made for s in plan.steps if s.made}
        for other in others.values():
            if other.kernel is not made.kernel:
                yield f"step {n} has another kernel", _with(plan, n, other)
        for i in range(1, len(made.inputs)):
            order = (made.inputs[i], *made.inputs[1:i], made.inputs[0], *made.inputs[i + 1 :])
            yield f"step {n} passes {order}", _with(plan, n, replace(made, inputs=order))
        pairs = made.inplace[1:] if made.inplace else ((0, made.inputs[0]),) if made.inputs else ()
        if pairs != made.inplace:
            yield f"step {n} overwrites {pairs}", _with(plan, n, replace(made, inplace=pairs))


def _with(plan, number, made):
    mutant = copied(plan)
    mutant.steps[number].made = made
    return mutant


def ends(plan):
    """A result from elsewhere, two results swapped, one less, another variable."""
    for n, tree in enumerate(plan.results):
        if isinstance(tree, ValuePlace):
            for place in (*twins(plan, tree), *reshown(tree)):
                yield (
                    f"result {n} is {place}",
                    replace(copied(plan), results=changed(plan.results, n, place)),
                )
        for m in range(n):
            results = changed(changed(plan.results, n, plan.results[m]), m, tree)
            yield f"results {n} and {m} swapped", replace(copied(plan), results=results)
        if isinstance(tree, UpdateGroup):
            for i, item in enumerate(tree.items):
                if isinstance(item, UpdatedVariable):
                    group = UpdateGroup(changed(tree.items, i, replace(item, name="other")))
                    results = changed(plan.results, n, group)
                    yield f"update {i} of {n} renamed", replace(copied(plan), results=results)
    yield "a result less", replace(copied(plan), results=plan.results[:-1])


def kinds(plan):
    """A storage of another kind, or over another variable."""
    states = [n for n, s in enumerate(plan.storages) if s.kind == "state" and s.over is None]
    for number, storage in enumerate(plan.storages):
        if storage.over is not None:
            for over in states:
                if over != storage.over:
                    mutant = copied(plan)
                    mutant.storages[number].over = over
                    yield f"storage {number} lies over {over}", mutant
            mutant = copied(plan)
            mutant.storages[number].over, mutant.storages[number].kind = None, "output"
            yield f"storage {number} lies over nothing", mutant
        elif storage.kind in ("arena", "output"):
            for over in states:
                mutant = copied(plan)
                mutant.storages[number].over, mutant.storages[number].kind = over, "state"
                yield f"storage {number} lies over {over}", mutant
            mutant = copied(plan)
            mutant.storages[number].kind = "input"
            yield f"storage {number} is an input", mutant


# The machine


class Broken(Exception):
    """What no machine carries out: memory that is not there, arrays that do not fit."""


class PlanMachine:
    """Carries out a plan at known sizes.

    Args:
        plan: the plan.
        bodies: by kernel, the body that it computes.
        feeds: the inputs by name.
        state: the values of variables by name.
        seed: of what lies in memory before.
    """

    def __init__(self, plan, bodies, feeds, state, seed=0):
        self.plan, self.bodies = plan, bodies
        self.random = np.random.default_rng(seed)
        self.arena = self.random.integers(0, 256, plan.arena, np.uint8)
        self.state = {name: np.array(x).reshape(-1) for name, x in state.items()}
        self.feeds = {name: np.array(x).reshape(-1) for name, x in feeds.items()}
        self.given = {name: x.copy() for name, x in self.feeds.items()}
        self.constants: dict[int, np.ndarray] = {}
        self.memory = [self.array(n, s) for n, s in enumerate(plan.storages)]

    def array(self, number, storage):
        owner = storage if storage.over is None else self.plan.storages[storage.over]
        if owner.kind == "input":
            return self.feeds[owner.node.name] if owner.node is not None else None
        if owner.kind == "const":
            flat = np.array(owner.node.value).reshape(-1) if owner.node is not None else None
            return self.constants.setdefault(id(owner.node), flat)
        if owner.kind == "state":
            return self.state[owner.node.attrs["variable"]] if owner.node is not None else None
        count = storage.elements * storage.dtype.numpy.itemsize
        if owner.kind != "arena":
            return self.garbage(count).view(storage.dtype.numpy)
        if storage.offset < 0 or storage.offset + count > len(self.arena):
            return None
        return self.arena[storage.offset : storage.offset + count].view(storage.dtype.numpy)

    def garbage(self, count):
        return self.random.integers(0, 256, count, np.uint8)

    def seen(self, place, tensor=None):
        array = self.memory[place.storage]
        if array is None:
            raise Broken(f"no memory for {place}")
        if tensor is not None and (array.dtype, array.size) != (tensor.dtype.numpy, tensor.size):
            raise Broken(f"{tensor} in {array.size} elements of {array.dtype}")
        if place.strides is not None:
            ends = zip(place.shape, place.strides, strict=True)
            if sum((e - 1) * s for e, s in ends) >= array.size:
                raise Broken(f"{place} of {array.size} elements")
            steps = [step * array.itemsize for step in place.strides]
            return np.lib.stride_tricks.as_strided(array, place.shape, steps)
        if np.prod(place.shape) != array.size:
            raise Broken(f"{place} of {array.size} elements")
        found = array.reshape(place.shape)
        return found if place.axes is None else found.transpose(place.axes)

    def run(self):
        """Carry the plan out; return results, and the variables behind the call."""
        with np.errstate(all="ignore"):
            for step in self.plan.steps:
                for source, target in step.copies:
                    self.seen(target)[...] = self.seen(source).reshape(target.shape)
                (self.kernel if step.made else self.evaluation)(step)
        results = [self.result(tree) for tree in self.plan.results]
        new = [self.seen(place).reshape(-1).copy() for _, place in self.plan.commits]
        for (state, _), value in zip(self.plan.commits, new, strict=True):
            if self.plan.storages[state].kind != "state":
                raise Broken("a commit to no variable")
            self.memory[state][...] = value
        for name, before in self.given.items():
            if before.tobytes() != self.feeds[name].tobytes():
                raise Broken(f"the input {name} is overwritten")
        constants = {id(s.node): s.node for s in self.plan.storages if s.kind == "const"}
        for key, found in self.constants.items():
            if found.tobytes() != constants[key].value.tobytes():
                raise Broken("a constant is overwritten")
        return [self.updated(x) for x in results], self.state

    def result(self, tree):
        if isinstance(tree, ValuePlace):
            return np.array(self.seen(tree))
        if isinstance(tree, UpdatedVariable):
            return tree
        items = tree.items if isinstance(tree, UpdateGroup) else tree
        return tuple([self.result(item) for item in items])

    def updated(self, value):
        if isinstance(value, UpdatedVariable):
            if value.name not in self.state:
                raise Broken(f"no variable {value.name}")
            return self.state[value.name].reshape(value.shape).copy()
        return tuple(map(self.updated, value)) if isinstance(value, tuple) else value

    def evaluation(self, step):
        args = [self.tree(tree) for tree in step.inputs]
        targets = [self.seen(p, t) for p, t in self.typed(step.outputs, step.node.type)]
        for target in targets:
            self.spoil(target)
        found = compute(step.node, args)
        for target, value in zip(targets, leaves(found), strict=True):
            if target.shape != value.shape:
                raise Broken(f"{value.shape} is written as {target.shape}")
            target[...] = value

    def kernel(self, step):
        """A kernel by its body, on what its parameters are given."""
        body = self.bodies[id(step.made.kernel)]
        params = [p for p in step.made.kernel.program.params if p.kind == "input"]
        args, read = [np.zeros(x.static_shape, x.dtype.numpy) for x in body.inputs], {}
        for param, number in zip(params, step.made.inputs, strict=True):
            own = int(param.name.strip("_p"))
            x, array = body.inputs[own], self.seen(step.inputs[number])
            whole = self.memory[step.inputs[number].storage]
            if (whole.dtype, whole.size) != (x.dtype.numpy, x.tensor_type.size):
                raise Broken(f"{param.name} is {x.type}, given {whole.dtype}[{whole.size}]")
            args[own], read[param.name] = array, step.inputs[number]
        targets = [*self.typed(step.outputs, body.type)]
        for number, output in enumerate(step.made.kernel.program.outputs):
            place, tensor = targets[number]
            if output.inplace:
                targets[number] = (read[output.inplace], tensor)
            else:
                self.spoil(self.seen(place, tensor))
        args = [
            np.ascontiguousarray(a).reshape(x.static_shape)
            for a, x in zip(args, body.inputs, strict=True)
        ]
        found = leaves(compute(call_graph(body, self.vars(body)), args))
        if {n for n, o in enumerate(step.made.kernel.program.outputs) if o.inplace} != {
            n for n, _ in step.made.inplace
        }:
            raise Broken("the kernel overwrites other arrays")
        for (place, tensor), value in zip(targets, found, strict=True):
            target = self.seen(place)
            if target.dtype != tensor.dtype.numpy:
                raise Broken(f"{tensor} in {target.dtype}")
            self.memory[place.storage][...] = value.reshape(-1)

    def vars(self, body):
        return [G.var(f"x{n}", x.shape, x.dtype) for n, x in enumerate(body.inputs)]

    def spoil(self, array):
        array[...] = self.garbage(array.nbytes).view(array.dtype).reshape(array.shape)

    def typed(self, places, kind):
        return zip(places, tensors(kind), strict=True)

    def tree(self, tree):
        if isinstance(tree, ValuePlace):
            return self.seen(tree).copy()
        return tuple(map(self.tree, tree))


def tensors(kind):
    return [x for part in kind.fields for x in tensors(part)] if hasattr(kind, "fields") else [kind]


def leaves(value):
    return [x for item in value for x in leaves(item)] if isinstance(value, tuple) else [value]


def bodies_of(plan):
    return {id(s.made.kernel): body_of(s.node) for s in plan.steps if s.made}


# What changes nothing


def pieces(plan):
    """Return the memory of each storage: kind, and what names it."""
    found = []
    for number, storage in enumerate(plan.storages):
        owner = storage if storage.over is None else plan.storages[storage.over]
        count = storage.elements * storage.dtype.numpy.itemsize
        if owner.kind == "state" and owner.node is not None:
            found.append(("state", owner.node.attrs["variable"], 0))
        elif owner.kind == "arena" and count:
            found.append(("arena", owner.offset, owner.offset + count))
        else:
            found.append((owner.kind, number, 0))
    return found


def meet(a, b):
    if a[0] != "arena" or b[0] != "arena":
        return a == b
    return a[1] < b[2] and b[1] < a[2]


def step_forms(plan):
    """Return of each step what it computes and the memory that it reads and writes."""
    memory = pieces(plan)
    forms = []
    for step in plan.steps:

        def shown(tree, made=step.made):
            if not isinstance(tree, ValuePlace):
                return tuple(map(shown, tree))
            plain = made is not None and tree.is_plain
            how = () if plain else (tree.shape, tree.axes, tree.strides)
            return (memory[tree.storage], how)

        reads = tuple(map(shown, step.inputs))
        writes = tuple([memory[place.storage] for place in step.outputs])
        copies = tuple([(memory[a.storage], memory[b.storage]) for a, b in step.copies])
        forms.append((step.node, id(step.made), reads, writes, copies))
    return forms


def end_form(plan):
    memory = pieces(plan)

    def shown(tree):
        if isinstance(tree, ValuePlace):
            return (memory[tree.storage], tree.shape, tree.axes, tree.strides)
        items = tree.items if isinstance(tree, UpdateGroup) else tree
        return tree if isinstance(tree, UpdatedVariable) else tuple(map(shown, items))

    commits = tuple([(memory[state], shown(place)) for state, place in plan.commits])
    return tuple(map(shown, plan.results)), commits


def accessed(form):
    _, _, reads, writes, copies = form
    pending, found = [reads], [*writes, *[piece for pair in copies for piece in pair]]
    while pending:
        tree = pending.pop()
        if isinstance(tree, tuple) and tree and isinstance(tree[0], str):
            found.append(tree)
        elif isinstance(tree, tuple):
            pending += [x for x in tree if isinstance(x, tuple)]
    return found


def written(form):
    return [*form[3], *[target for _, target in form[4]]]


def disturbs(a, b):
    """Whether a step writes memory that another reads or writes."""
    return any(meet(x, y) for x in written(a) for y in accessed(b))


def reason(plan, mutant):
    """Return why a mutant does what the plan does; "" where no reason is known."""
    old, new = step_forms(plan), step_forms(mutant)
    same_end = end_form(plan) == end_form(mutant)
    if old == new and same_end:
        return "the same memory, seen in shapes that kernels do not ask for"
    if same_end and len(old) == len(new) and sorted(map(id_of, old)) == sorted(map(id_of, new)):
        place = {id_of(form): n for n, form in enumerate(new)}
        turned = [
            (a, b)
            for n, a in enumerate(old)
            for b in old[n + 1 :]
            if place[id_of(a)] > place[id_of(b)]
        ]
        if not any(disturbs(a, b) or disturbs(b, a) for a, b in turned):
            return "steps the other way round that share no memory"
    if same_end and len(new) == len(old) + 1 and new[:-1] == old and is_harmless(mutant, new):
        return "a step once more, of the same operands, over what holds its values or nothing"
    moved = [n for n, s in enumerate(plan.storages) if s != mutant.storages[n]]
    if len(moved) == 1 and same_places(plan, mutant):
        life = lives(mutant)
        own = pieces(mutant)[moved[0]]
        others = [n for n, x in enumerate(pieces(mutant)) if n != moved[0] and meet(own, x)]
        if not any(crosses(life.get(n), life.get(moved[0])) for n in others):
            return "a room that is free while its value lives"
    return ""


def is_harmless(mutant, forms):
    """Whether the last step, done once more, finds its operands and destroys nothing needed."""
    last = forms[-1]
    later = [x for form in forms[forms.index(last) + 1 : -1] for x in written(form)]
    targets = [target for _, target in last[4]]
    operands = [x for x in read(last) if x not in targets] + [source for source, _ in last[4]]
    if any(meet(x, y) for x in operands for y in (*later, *written(last))):
        return False
    memory = pieces(mutant)
    ends = [*trees(mutant.results), *[place for _, place in mutant.commits]]
    needed = {memory[place.storage] for place in ends} | {x for x in memory if x[0] == "state"}
    return not any(meet(x, y) for x in written(last) if x in later for y in needed) and all(
        x == y for x in written(last) for y in needed if meet(x, y)
    )


def read(form):
    return accessed((form[0], form[1], form[2], (), ()))


def id_of(form):
    return (id(form[0]), form[1], str(form[2:]))


def same_places(plan, mutant):
    """Whether plans name the same storages everywhere."""
    places = [
        [[(p.storage, p.shape) for p in [*s.outputs, *trees(s.inputs)]] for s in own.steps]
        for own in (plan, mutant)
    ]
    return places[0] == places[1] and plan.results == mutant.results


def lives(plan):
    """Return the first and the last step of each storage; results live to the end."""
    found: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        used = [*step.outputs, *trees(step.inputs), *[p for pair in step.copies for p in pair]]
        for place in used:
            first = found.get(place.storage, (number, number))[0]
            found[place.storage] = first, number
    for place in [*trees(plan.results), *[place for _, place in plan.commits]]:
        first = found.get(place.storage, (0, 0))[0]
        found[place.storage] = first, len(plan.steps)
    return found


def trees(items):
    for item in items:
        if isinstance(item, ValuePlace):
            yield item
        elif isinstance(item, (tuple, UpdateGroup)):
            yield from trees(item.items if isinstance(item, UpdateGroup) else item)


def crosses(a, b):
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]
