"""Refutes a store whose value has another form than its template, by data for which both differ.

Another form may have the same value, so that the form alone refutes nothing; and equal values prove
nothing. Both forms are evaluated by the oracle on the same data, and enclosed with what rounding
may do: where the intervals have no number in common, the store computes something else.

Requires that all stores, this one too, read what the math demands: the operands of both forms are
then the same elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from loopnest import kir
from loopnest.base.errors import LaunchError
from loopnest.numerics.error_bounds import enclosures, leaf_enclosures
from loopnest.numerics.float64_math import Values
from loopnest.numerics.interval_rules import enclose
from loopnest.numerics.intervals import Interval, exact
from loopnest.numerics.subsample import Sample, choose
from loopnest.numerics.target_accuracy import STANDARD
from loopnest.proofs.live_points import LivePoints
from loopnest.proofs.obligations import Work, work_of
from loopnest.proofs.point_arrays import number
from loopnest.proofs.program_model import Model, Site
from loopnest.proofs.report import Finding
from loopnest.proofs.size_choice import fulfils, small_sizes, starts
from loopnest.proofs.template_matching import Mismatch, taken_apart
from loopnest.proofs.witness import Witness
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Arg, Coordinate, Expr, walk
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.math_snapshot import MathDefinition, MathSnapshot, thaw

_MOST_SIZES = 3
_MOST_ELEMENTS = 1 << 20

_RANGES: tuple[tuple[float, float], ...] = (
    (-2, 2),
    (0.125, 2),
    (2**-40, 2**-38),
    (-(2**-20), 2**-20),
    (-40, 40),
)
"""Between what ends the values of inputs are drawn, in turn."""


@dataclass(frozen=True, eq=False, slots=True)
class OtherForm:
    """A store whose value is not of its template's form.

    Args:
        work: the store, with what it reads.
        value: what it stores, over the `Arg`s and `Coordinate`s of the math.
        why: how the form differs.
    """

    work: Work
    value: Expr
    why: str

    @classmethod
    def of(cls, model: Model, math: MathSnapshot, site: Site, found: Mismatch) -> OtherForm | None:
        """Return the store at `site`, which was found not to match; None for any other fault."""
        store = site.node
        if found.refutes or found.kind != "value" or not isinstance(store, kir.Store):
            return None
        tensor = math.tensor(store.tensor)
        if tensor is None or tensor.definition is None or tensor.domain is None:
            return None
        apart = taken_apart(site, math, tensor, store.role)
        if apart is None:
            return None
        try:
            live = LivePoints(math, model.program)
            return cls(work_of(model, math, live, site, apart[0]), apart[1], found.message)
        except Mismatch:
            return None


def differing(
    model: Model, math: MathSnapshot, form: OtherForm, given: Mapping[str, int]
) -> Iterator[Finding]:
    """Yield a finding where a store computes another value than the math, with the element."""
    program = model.program
    sizes = (s for s in small_sizes(program, given) if fulfils(program, s) and starts(program, s))
    for chosen in islice(sizes, _MOST_SIZES):
        fusion = thaw(math)
        sample = choose(fusion, chosen, _MOST_ELEMENTS)
        if sample is None:
            continue
        for seed in range(len(_RANGES)):
            found = _Evaluation(fusion, form, chosen, sample, seed).difference()
            if found is not None:
                element, text = found
                message = f"the store {form.why}: {text}"
                yield Witness(model, chosen, (1, 1, 1), (1, 1, 1)).bare(
                    "value", message, form.work.site, index=element
                )
                return


class _Evaluation:
    """Both forms of a store's value on one set of data."""

    def __init__(
        self, fusion: Fusion, form: OtherForm, sizes: Mapping[str, int], sample: Sample, seed: int
    ) -> None:
        self.fusion, self.form, self.sample = fusion, form, sample
        self.tensor = next(t for t in fusion.tensors if t.name == form.work.tensor.name)
        draw = np.random.default_rng(seed)
        self.arrays = [
            drawn(draw, t.dtype, [number(s, sizes) for s in t.sizes], seed) for t in fusion.inputs
        ]
        named = {str(size) for t in fusion.inputs for size in t.sizes}
        self.keywords: dict[str, object] = {
            s.name: sizes[s.name] for s in fusion.symbols if s.name not in named
        }
        for scalar in fusion.scalars:
            self.keywords[scalar.name] = drawn(draw, scalar.dtype, (), seed).item()

    def difference(self) -> tuple[tuple[int, ...], str] | None:
        """Return an element at which the forms differ, and by what; None where there is none."""
        try:
            with np.errstate(all="ignore"):
                pairs = list(self._forms())
        except LaunchError:  # the math asks of its data what does not hold of these
            return None
        for shape, wanted, found in pairs:
            apart = np.broadcast_to(disjoint(wanted, found), shape)
            if apart.any():
                place = tuple(np.argwhere(apart)[0].tolist())
                stored, right = [
                    np.broadcast_to(form.value, shape)[place].item() for form in (found, wanted)
                ]
                return self._element(place), f"for some data it is {stored}, not {right}"
        return None

    def _element(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index of an element along the axes that are not cut to a sample."""
        domain = self.tensor.domain
        axes = domain.logical if self.form.work.kind == "finish" else domain.root
        cut = self.sample.places
        return tuple([int(cut[a][n]) if a in cut else n for a, n in zip(axes, place, strict=True)])

    def _forms(self) -> Iterator[tuple[tuple[int, ...], Interval, Interval]]:
        """Yield (extents, what the math has, what the store has)."""
        tensor, value, places = self.tensor, self.form.value, self.sample.places
        given = self.fusion, self.arrays, self.keywords
        if self.form.work.kind == "finish":
            whole = enclosures(*given, [tensor], STANDARD, places)[tensor.name]
            yield whole.value.shape, whole, enclose(value, {Arg(0, value.dtype): whole}, STANDARD)
            return
        env = leaf_enclosures(*given, tensor, places)
        shape = np.broadcast_shapes(*[leaf.value.shape for leaf in env.values()])
        for partial in self._partials(env, shape):
            env.update(partial)
            yield shape, enclose(self._template(), env, STANDARD), enclose(value, env, STANDARD)

    def _template(self) -> Expr:
        definition = _definition(self.form)
        templates = definition.values if definition.reducer is None else definition.updates
        return templates[definition.component]

    def _partials(
        self, env: Mapping[Expr, Interval], shape: tuple[int, ...]
    ) -> Iterator[dict[Expr, Interval]]:
        """Yield partial results at each element: of none yet, and of one and of two others."""
        definition = self.tensor.definition
        assert definition is not None
        if definition.reducer is None:
            yield {}
            return
        count, reducer = len(definition.reads), definition.reducer
        own = [Arg(count + n, dtype) for n, dtype in enumerate(reducer.types)]
        folded = tuple([n for n, axis in enumerate(self.tensor.root_domain) if axis.is_reduction])

        def turned(values: Values) -> Values:
            shifts = (1,) * len(folded)
            return np.roll(np.broadcast_to(values, shape), shifts, folded)

        partial = [exact(np.asarray(c.value)) for c in reducer.identity]
        yield dict(zip(own, partial, strict=True))
        updates = _definition(self.form).updates
        placed = any(isinstance(node, Coordinate) for u in updates for node in walk(u))
        for _ in range(0 if reducer.ordered or placed else 2):  # of any other elements
            now = dict(env)
            now.update(zip(own, partial, strict=True))
            partial = [enclose(update, now, STANDARD).viewed(turned) for update in updates]
            yield dict(zip(own, partial, strict=True))


def _definition(form: OtherForm) -> MathDefinition:
    definition = form.work.tensor.definition
    assert definition is not None
    return definition


def disjoint(a: Interval, b: Interval) -> npt.NDArray[np.bool_]:
    """Return where no correct result of one is one of the other; only where all are finite."""
    ends = np.broadcast_arrays(a.low, a.high, b.low, b.high)
    finite = np.logical_and.reduce([np.isfinite(end) for end in ends])
    return np.asarray(((ends[0] > ends[3]) | (ends[1] < ends[2])) & finite)


def drawn(
    draw: np.random.Generator, dtype: DType, shape: Sequence[int], seed: int
) -> npt.NDArray[np.generic]:
    """Return random values of a type."""
    if dtype.is_bool:
        return draw.integers(0, 2, shape).astype(dtype.numpy)
    if not dtype.is_float:
        return draw.integers(0, 9, shape).astype(dtype.numpy)
    low, high = _RANGES[seed]
    return np.asarray(draw.uniform(low, high, shape)).astype(dtype.numpy)
