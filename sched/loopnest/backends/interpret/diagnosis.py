"""`loopnest.diagnose`: the first tensor of a kernel whose values are not what its math says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.backends.interpret import launches_at
from loopnest.base.errors import KernelFault, LaunchError
from loopnest.kir.lowered import Lowered
from loopnest.kir.nest_text import nest_lines, print_nest
from loopnest.lane_machine.abstract_machine import Machine
from loopnest.lane_machine.frame import Frame
from loopnest.lane_machine.loop_dependence import Expansions
from loopnest.lane_machine.native_math import Array
from loopnest.launch.strided_arrays import copied, element_strides, span
from loopnest.numerics.error_bounds import enclosures
from loopnest.numerics.float64_math import stored
from loopnest.numerics.intervals import Interval
from loopnest.scalar.arguments import ArraySpec, Bound, bind, broken_condition
from loopnest.scalar.expr import Expr, Load
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathSnapshot, thaw
from loopnest.tensor.tensor_view import TensorView


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `loopnest.diagnose` found; `ok` where nothing differs.

    Args:
        kernel: its name.
        tensor: the first tensor, in program order, that differs; "" where none does.
        index: its first element that does.
        actual, expected: the two values there; `actual` is None where none was stored.
        allowed: by how much they may differ.
        line, text: the store's line in the nest; 0 where there is none.
        placed: the schedule call, or the definition, that placed the store.
        differing: how many elements of the tensor differ.
        fault: how the run ended, where a rule was broken.
        compared: the tensors compared, in program order.
    """

    kernel: str
    tensor: str = ""
    index: tuple[int, ...] = ()
    actual: Any = None
    expected: Any = None
    allowed: float = 0.0
    line: int = 0
    text: str = ""
    placed: str = ""
    differing: int = 0
    fault: str = ""
    compared: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every tensor has the values of the math and no rule was broken."""
        return not self.tensor and not self.fault

    def __str__(self) -> str:
        parts: list[str] = []
        if self.tensor:
            found = "is never stored" if self.actual is None else f"is {self.actual!r}"
            parts.append(
                f"{self.kernel}: {self.tensor}{list(self.index)} {found}, the math says "
                f"{self.expected!r} (allowed difference {self.allowed:.3g}; "
                f"{self.differing} elements of {self.tensor} differ)"
            )
        if self.line:
            parts.append(f"stored at nest line {self.line} '{self.text}'")
        if self.placed:
            parts.append(f"placed by {self.placed}")
        if self.fault:
            parts.append(f"the run broke a rule: {self.fault}")
        if not parts:
            return f"{self.kernel}: all {len(self.compared)} tensors have the values of the math"
        return "; ".join(parts)


def diagnose(k: Any, *arrays: Any, **scalars: Any) -> Diagnosis:
    """Compare every tensor of kernel `k` with the oracle, in program order; return the first off.

    The variant that a launch on these arrays would take is what runs.

    Args:
        k: a kernel, as `loopnest.lower` returns it.
        *arrays: the inputs, in order.
        **scalars: the run-time scalars, and the sizes that are the extent of no input.

    Raises:
        LaunchError: no kernel that carries its math, or arguments that do not fit.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> print(ln.diagnose(ln.lower(f), np.array([1, 2], np.float32)))
    k: all 1 tensors have the values of the math

    Source: nvFuser's `testValidate`, for every tensor in place of the outputs.
    """
    lowered = getattr(k, "_lowered", k)
    program, make = getattr(lowered, "program", None), getattr(lowered, "math", None)
    if not isinstance(program, kir.Program) or make is None:
        raise LaunchError(
            f"diagnose({k!r})",
            "it is no kernel that carries its math",
            "pass what ln.lower returns",
        )
    math: MathSnapshot = make()
    sizes = _bound(program, thaw(math), arrays, scalars).sizes
    scalar: Callable[[], Lowered] | None = getattr(lowered, "scalar", None)
    if scalar is not None and broken_condition(program.requires, sizes) is not None:
        program = scalar().program
    return diagnose_program(program, math, arrays, scalars)


def diagnose_program(
    program: kir.Program, math: MathSnapshot, arrays: tuple[Any, ...], scalars: Mapping[str, Any]
) -> Diagnosis:
    """Compare what `program` stores with `math`; see `diagnose`."""
    fusion = thaw(math)
    wanted = enclosures(fusion, arrays, scalars, fusion.tensors)
    fault = ""
    for recorder in _recorders(program, math, fusion, arrays, scalars, wanted):
        try:
            recorder.run(last=recorder.program.body is program.launches[-1].body)
        except KernelFault as found:
            fault = str(found)
            break
    compared: list[str] = []
    for name in _program_order(program):
        first = _first_off(program, fusion[name], recorder, wanted[name], bool(fault))
        if first is not None:
            return Diagnosis(program.name, **first, fault=fault, compared=tuple(compared))
        compared.append(name)
    return Diagnosis(program.name, fault=fault, compared=tuple(compared))


def _program_order(program: kir.Program) -> list[str]:
    nodes = [node for node, _ in kir.walk(program.body)]
    stored = [n.tensor for n in nodes if isinstance(n, kir.Store)]
    return list(dict.fromkeys([*stored, *[output.name for output in program.outputs]]))


def _recorders(
    program: kir.Program,
    math: MathSnapshot,
    fusion: Fusion,
    arrays: tuple[Any, ...],
    keywords: Mapping[str, Any],
    wanted: Mapping[str, Interval],
) -> Iterator[Recorder]:
    """Yield a recorder for each launch, once the one before has run."""
    bound = _bound(program, fusion, arrays, keywords)
    held = {
        t.name: np.array(a, dtype=t.dtype.numpy, order="C", copy=True)
        if t.strides is None
        else span(copied(np.asarray(a)))
        for t, a in zip(fusion.inputs, arrays, strict=True)
    }
    for output in program.outputs:
        if not output.inplace:
            kind = fusion[output.name].dtype.numpy
            held[output.name] = np.zeros(wanted[output.name].value.shape, kind)
    names = _program_order(program)
    shapes = {name: wanted[name].value.shape for name in names}
    elements = dict(_elements(program, math))
    recorder: Recorder | None = None
    for launch in launches_at(program, bound.sizes):
        recorder = Recorder(launch, held, bound.scalars, shapes, elements, recorder)
        yield recorder


def _bound(
    program: kir.Program, fusion: Fusion, arrays: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Bound:
    """Return the sizes and scalars that the arguments give.

    Raises:
        LaunchError: arguments that do not fit.
    """
    specs = [ArraySpec(t.name, t.dtype, t.sizes, t.strides) for t in fusion.inputs]
    call = f"diagnose({program.name})"
    return bind(
        specs, fusion.scalars, fusion.symbols, program.conditions, arrays, keywords, call,
        lambda array: element_strides(array, call),
    )  # fmt: skip


def _elements(program: kir.Program, math: MathSnapshot) -> Iterator[tuple[kir.Store, Any]]:
    """Yield each store with the logical index that it claims."""
    for node, _ in kir.walk(program.body):
        tensor = math.tensor(node.tensor) if isinstance(node, kir.Store) else None
        if tensor is None or not isinstance(node, kir.Store):
            continue
        if tensor.scan is not None and node.storage.kind == "accumulator":
            continue  # what is folded so far: of an exclusive scan that is no element yet
        whole = node.role in kir.WHOLE_ELEMENTS
        if len(node.coordinate) == len(tensor.claims(whole=whole)):  # else it cannot be told
            yield node, tensor.claimed(node.coordinate, whole=whole)


def _first_off(
    program: kir.Program, tensor: TensorView, recorder: Recorder, want: Interval, partial: bool
) -> dict[str, Any] | None:
    """Return the first element of a tensor that differs, as fields of `Diagnosis`; or None.

    Elements that were never stored count only for outputs of a run that came to its end; of a run
    that did not, only values that no reduction is still at.
    """
    held = recorder.recorded[tensor.name]
    known = held.known
    with np.errstate(invalid="ignore"):
        off = known & ~want.contains(held.values.astype(want.value.dtype))
    if partial:  # the run stopped: what accumulates need not be complete
        whole = [n for n, s in enumerate(recorder.stores) if s.role in ("define", "finish")]
        off &= np.isin(held.store, whole)
    if tensor.is_output and not partial and not recorder.setting.is_roomy:
        off = off | ~known
    if not off.any():
        return None
    place = tuple([int(i) for i in np.argwhere(off)[0]])
    with np.errstate(over="ignore"):
        expected = stored(want.value[place], tensor.dtype).item()
    result: dict[str, Any] = {
        "tensor": tensor.name,
        "index": place,
        "expected": expected,
        "allowed": float(want.bound_in(tensor.dtype)[place]),
        "differing": int(np.count_nonzero(off)),
    }
    if known[place]:
        result["actual"] = held.values[place].item()
        store = recorder.stores[int(held.store[place])]
        result |= _where(program, store)
    return result


def _where(program: kir.Program, store: kir.Store) -> dict[str, Any]:
    line = nest_lines(program)[store]
    text = print_nest(program).splitlines()[line - 1].strip()
    placed = str(store.origin) if store.origin is not None else ""
    return {"line": line, "text": text, "placed": placed}


@dataclass(eq=False, slots=True)
class Recorded:
    """The values of one tensor.

    Args:
        values: of its logical shape, in the type of what was stored last.
        known: which elements were stored.
        store: for each element the number of the store that came last, in `Recorder.stores`.
    """

    values: Array
    known: Array
    store: Array


class Recorder(Machine):
    """A machine that keeps the last value stored to each element of each tensor.

    Args:
        expansions, arrays, scalars: as for `Machine`.
        shapes: name of each tensor to record -> its logical extents.
        elements: for each store the logical index that it claims; stores not named are left out.
        earlier: the recorder of the launch before this one, which this one goes on with.
    """

    def __init__(
        self,
        expansions: Expansions,
        arrays: Mapping[str, Array],
        scalars: Mapping[str, object],
        shapes: Mapping[str, Sequence[int]],
        elements: Mapping[kir.Store, tuple[Expr, ...]],
        earlier: Recorder | None = None,
    ) -> None:
        super().__init__(expansions, arrays, scalars, earlier=earlier)
        self.elements = elements
        self.stores: list[kir.Store] = [] if earlier is None else earlier.stores
        self.recorded: Mapping[str, Recorded] = (
            earlier.recorded
            if earlier is not None
            else {
                name: Recorded(
                    np.zeros(tuple(shape), np.float64),
                    np.zeros(tuple(shape), np.bool_),
                    np.full(tuple(shape), -1),
                )
                for name, shape in shapes.items()
            }
        )

    def visit_store(self, node: kir.Store, frame: Frame) -> None:
        super().visit_store(node, frame)
        element = self.elements.get(node)
        if element is not None:
            self._record(node, element, frame)

    def _record(self, node: kir.Store, element: tuple[Expr, ...], frame: Frame) -> None:
        held = self.recorded[node.tensor]
        address = self.eval.address(Load(node.storage, node.index, node.flat), frame)
        # What a copy in flight brings is not there yet.
        flying = self.flying.copies[-1].value if self.flying.issuing else None
        value = self.memory[node.storage].load(address) if flying is None else flying
        if node not in self.stores:
            self.stores.append(node)
        if not held.values.ndim:
            place: tuple[Array, ...] = ()
            value, inside = value[-1], np.ones((), np.bool_)
        else:
            index = [np.asarray(self.eval.value(e, frame)) for e in element]
            parts = [np.atleast_1d(p) for p in np.broadcast_arrays(*index, value)]
            inside = np.ones(parts[0].shape, np.bool_)
            for part, extent in zip(parts, held.values.shape, strict=False):
                inside &= (part >= 0) & (part < extent)
            place, value = tuple([p[inside] for p in parts[:-1]]), parts[-1][inside]
        if held.values.dtype != value.dtype and not held.known.any():
            held.values = held.values.astype(value.dtype)
        elif held.values.dtype != value.dtype:
            held.values = held.values.astype(np.result_type(held.values.dtype, np.float32))
        held.values[place] = value
        held.known[place] = True
        held.store[place] = self.stores.index(node)
