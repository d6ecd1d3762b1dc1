"""The harness: made inputs, what a kernel's math and reference say of them, the comparison.

Results are right where they lie in the interval that the oracle gives with its values (see
`enclosure`). A reference is one more computation of the same math, with rounding errors of its own:
it gets the inputs in float64 but may compute in float32 as well, by another formula than the math,
without the rounding to 16-bit types. So it has to lie in the interval of such computations, and the
results too. No tolerance is made up anywhere.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from loopnest.base.errors import DefinitionError, LaunchError
from loopnest.numerics.compare import Reference, Verdict, compare
from loopnest.numerics.subsample import Sample, choose
from loopnest.scalar.arguments import check_conditions, size_value
from loopnest.scalar.dtypes import DType
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import TensorView

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from loopnest.devtools.kernel_def import KernelDef, Range
    from loopnest.numerics.intervals import Interval
    from loopnest.numerics.target_accuracy import Arithmetic

Array: TypeAlias = "npt.NDArray[Any]"
Draw: TypeAlias = "Callable[[np.random.Generator, tuple[int, ...] | None, DType], Any]"
"""Draws the values of an array of a shape, or one for a run-time scalar, where it is None."""


def small_targets() -> tuple[str, ...]:
    """Return the targets on which small problems are run to be judged."""
    from loopnest.backends.cpu.c_compiler import find_compiler

    return ("interpret", "c") if find_compiler() is not None else ("interpret",)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one launch: arrays in the order of the inputs, scalars and sizes by name."""

    arrays: tuple[Array, ...]
    scalars: Mapping[str, Any]
    sizes: Mapping[str, int]

    def keywords(self, fusion: Fusion) -> dict[str, Any]:
        """Return the keyword arguments: the scalars, and the sizes that no input has."""
        shown = {str(size) for tensor in fusion.inputs for size in tensor.sizes}
        rest = {name: size for name, size in self.sizes.items() if name not in shown}
        return {**self.scalars, **rest}

    def fresh(self) -> tuple[Array, ...]:
        """Return copies of the arrays at their strides: a kernel may overwrite its inputs."""
        from loopnest.launch.strided_arrays import copied

        return tuple([copied(array) for array in self.arrays])


def make_arguments(
    fusion: Fusion,
    sizes: Mapping[str, int],
    ranges: Mapping[str, Range] | None = None,
    seed: int = 0,
    draw: Draw | None = None,
) -> Arguments:
    """Return arguments that are the same each time.

    Floats are normal with variance 1, integers even in [-8, 8], bools even; run-time scalars are
    even in [0.25, 0.75), in [1, 4] or true. Places that are declared to differ (``unique=True`` of
    a scatter) are a permutation along their axis, or the beginning of one.

    Args:
        fusion: the math.
        sizes: of each size symbol; others than those of the fusion are ignored.
        ranges: input or scalar -> (least, greatest): drawn from there instead, evenly.
        seed: another one gives other values.
        draw: draws other values than these.

    Raises:
        LaunchError: a size is missing, an assumption does not hold, a range has too few integers.
        DefinitionError: a range of no input or scalar.
    """
    import numpy as np

    subject = f"arguments of {fusion.name}"
    known = {symbol.name: sizes[symbol.name] for symbol in fusion.symbols if symbol.name in sizes}
    for symbol in fusion.symbols:
        if symbol.name not in known:
            raise LaunchError(
                subject,
                f"the size {symbol.name} is not given",
                f"name it in sizes= of the kernel, or pass -D {symbol.name}=...",
            )
    check_conditions(fusion.facts.conditions, known, subject)
    chosen = _chosen(fusion, known, ranges or {})
    _require_memory(fusion, known, subject)
    differing = {
        found.reads[0].producer.name: found.distinct
        for found in [tensor.definition for tensor in fusion.tensors]
        if found is not None and found.distinct is not None
    }

    def values(number: int, name: str, shape: tuple[int, ...] | None, dtype: DType) -> Array:
        rng, place = np.random.default_rng([seed, number]), chosen.get(name)
        if name in differing and shape is not None:
            axis, extent = differing[name].axis, size_value(differing[name].extent, known)
            drawn = _permuted(rng, shape, axis, extent, place, f"{subject}: {name}")
        elif place is None:
            drawn = (draw or _usual)(rng, shape, dtype)
        else:
            drawn = _within(rng, shape or (), dtype, place)
        with np.errstate(over="ignore"):
            return np.asarray(drawn).astype(dtype.numpy)

    arrays = []
    for number, tensor in enumerate(fusion.inputs):
        shape = tuple([size_value(size, known) for size in tensor.sizes])
        if prod(shape):
            _require_values(tensor, chosen.get(tensor.name), subject)
        made = values(number, tensor.name, shape, tensor.dtype)
        if any(declared.ascending for declared in fusion.ranges if declared.name == tensor.name):
            made = np.sort(made)
        if tensor.strides is not None:
            from loopnest.launch.strided_arrays import arranged

            made = arranged(made, [size_value(stride, known) for stride in tensor.strides])
        arrays.append(made)
    scalars = {
        scalar.name: values(number, scalar.name, None, scalar.dtype).item()
        for number, scalar in enumerate(fusion.scalars, len(fusion.inputs) + len(fusion.scalars))
    }
    return Arguments(tuple(arrays), scalars, known)


def _chosen(
    fusion: Fusion, sizes: Mapping[str, int], ranges: Mapping[str, Range]
) -> dict[str, Range]:
    """Return where the values of inputs and scalars come from: what is declared, or asked for."""
    chosen: dict[str, Range] = {}
    for declared in fusion.ranges:
        low, high = size_value(declared.low, sizes), size_value(declared.high, sizes) - 1
        before = chosen.get(declared.name, (low, high))
        chosen[declared.name] = (max(before[0], low), min(before[1], high))
    chosen |= ranges
    names = [tensor.name for tensor in fusion.inputs] + [scalar.name for scalar in fusion.scalars]
    for name in chosen:
        if name not in names:
            raise DefinitionError(
                f"kernel {fusion.name}",
                f"ranges= names '{name}', which is no input or scalar",
                f"these are {', '.join(names)}",
            )
    return chosen


def _require_values(tensor: TensorView, place: Range | None, subject: str) -> None:
    """Refuse an input of integers from a range that holds none: indices into nothing."""
    if place is not None and not tensor.dtype.is_float and place[1] < place[0]:
        raise LaunchError(
            subject,
            f"{tensor.name} is to hold integers from {place[0]} to {place[1]}, and there are none",
            "take other sizes, or widen the range that was assumed",
        )


def _require_memory(fusion: Fusion, sizes: Mapping[str, int], subject: str) -> None:
    """Refuse inputs that this machine has no memory for."""
    wanted = 0
    for tensor in fusion.inputs:
        count = prod([size_value(size, sizes) for size in tensor.sizes])
        wanted += count * tensor.dtype.numpy.itemsize
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > present:
        shown = ", ".join([f"{name}={size}" for name, size in sizes.items()])
        raise LaunchError(
            subject,
            f"the inputs at {shown} take {wanted / 2**30:.4g} GiB",
            f"this machine has {present / 2**30:.4g} GiB of memory; take smaller sizes",
        )


def _usual(rng: np.random.Generator, shape: tuple[int, ...] | None, dtype: DType) -> Any:
    import numpy as np

    if shape is None:
        return _within(rng, (), dtype, (0.25, 0.75) if dtype.is_float else (1, 4))
    if dtype.is_bool:
        return rng.integers(0, 2, shape)
    if dtype.is_float:
        single = dtype.numpy.itemsize <= 4
        return rng.standard_normal(shape, np.float32 if single else np.float64)
    return rng.integers(-8, 8, shape, endpoint=True)


def _within(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, place: Range) -> Any:
    if dtype.is_float:
        return place[0] + (place[1] - place[0]) * rng.random(shape)
    low, high = int(place[0]), int(place[1])
    return rng.integers(low, max(low, high), shape, endpoint=True)


def _permuted(
    rng: np.random.Generator, shape: tuple[int, ...], axis: int, extent: int,
    place: Range | None, subject: str,
) -> Any:  # fmt: skip
    """Return integers that differ along an axis: from a range, or from 0 on."""
    import numpy as np

    low, high = (0, max(extent, shape[axis]) - 1) if place is None else map(int, place)
    pool = np.arange(low, max(low, high + 1))
    if prod(shape) and pool.size < shape[axis]:
        raise LaunchError(
            subject,
            f"{shape[axis]} different integers are wanted along axis {axis}, from {low} to {high}",
            "take other sizes, or widen the range",
        )
    rows = np.broadcast_to(pool, (*shape[:axis], *shape[axis + 1 :], pool.size))
    return np.moveaxis(rng.permuted(rows, axis=-1)[..., : shape[axis]], -1, axis)


@dataclass(frozen=True, eq=False, slots=True)
class Wanted:
    """What results are compared with: an array an output.

    Args:
        arrays: those of the reference, or of the oracle at the coordinates in `sample`.
        enclosures: what results of a kernel lie in, at the coordinates in `sample`.
        loose: what results of a reference lie in; None where the arrays are the oracle's.
        sample: the coordinates that are compared.
    """

    arrays: tuple[Array, ...]
    enclosures: tuple[Interval, ...]
    loose: tuple[Interval, ...] | None
    sample: Sample


MOST_POINTS = 1 << 24
"""The oracle evaluates at most so many points, 24 bytes each while needed: some seconds. Of larger
problems it takes a part."""


def oracle(
    fusion: Fusion,
    arguments: Arguments,
    fast_math: bool = False,
    most: int = MOST_POINTS,
    target: str = "",
    reference: bool = False,
) -> Wanted | None:
    """Return what the math gives, an array an output; None where even a part would take long.

    Args:
        fusion: the math, scheduled or not.
        arguments: of the launch.
        fast_math: whether the kernel was compiled with ``fast_math=True``.
        most: at how many points to evaluate it at most.
        target: whose results are to be judged; "": those of any target.
        reference: whether what is judged computes as a reference may: by a formula of its own, and
            without the rounding to 16-bit types between.
    """
    from loopnest.numerics.float64_math import stored
    from loopnest.numerics.target_accuracy import Arithmetic

    sample = choose(fusion, arguments.sizes, most)
    if sample is None:
        return None
    found = _enclosed(fusion, arguments, Arithmetic(fast_math, reference, target), sample)
    arrays = [stored(e.value, t.dtype) for e, t in zip(found, fusion.outputs, strict=True)]
    return Wanted(tuple(arrays), found, None, sample)


def _enclosed(
    fusion: Fusion, arguments: Arguments, arithmetic: Arithmetic, sample: Sample
) -> tuple[Interval, ...]:
    from loopnest.numerics.error_bounds import enclosures

    keywords = arguments.keywords(fusion)
    found = enclosures(fusion, arguments.arrays, keywords, None, arithmetic, sample.places)
    return tuple([found[tensor.name] for tensor in fusion.outputs])


def expected(
    kernel: KernelDef,
    fusion: Fusion,
    arguments: Arguments,
    params: Mapping[str, Any],
    fast_math: bool = False,
    most: int = MOST_POINTS,
    exact: Wanted | None = None,
    target: str = "",
) -> Wanted | None:
    """Return what the kernel's reference gives, an array an output.

    Args:
        kernel: which has the reference.
        fusion: its math, scheduled or not.
        arguments: of the launch.
        params: parameters of the math, which the reference may take.
        fast_math: whether the kernel was compiled with ``fast_math=True``.
        most: at how many points to evaluate the oracle at most, which says how exact it must be.
        exact: what `oracle` gives for these arguments, where it is known.
        target: whose results are to be judged; "": those of any target.

    Returns:
        None where it has no reference, or too much is reduced to each result for the oracle.

    Raises:
        DefinitionError: it gives another number of arrays than there are outputs.
    """
    from loopnest.numerics.target_accuracy import Arithmetic

    if kernel.reference is None:
        return None
    if exact is None:
        exact = oracle(fusion, arguments, fast_math, most, target)
    if exact is None:
        return None
    arrays = _referred(kernel, fusion, arguments, params)
    loose = _enclosed(fusion, arguments, Arithmetic(fast_math, reference=True), exact.sample)
    return Wanted(arrays, exact.enclosures, loose, exact.sample)


def _referred(
    kernel: KernelDef, fusion: Fusion, arguments: Arguments, params: Mapping[str, Any]
) -> tuple[Array, ...]:
    """Return what the reference gives, as arrays."""
    import numpy as np

    reference = kernel.reference
    assert reference is not None
    wide = [
        array.astype(np.float64) if tensor.dtype.is_float else array.copy()
        for tensor, array in zip(fusion.inputs, arguments.arrays, strict=True)
    ]
    offered = {**kernel.parameters(""), **params}
    named = inspect.signature(reference).parameters
    taken = {
        name: value
        for name, value in {**offered, **arguments.keywords(fusion)}.items()
        if name in named or name in arguments.scalars
    }
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of means of nothing, say
        result = reference(*wide, **taken)
    several = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    if len(several) != len(fusion.outputs):
        raise DefinitionError(
            f"reference of {kernel.name}",
            f"it returns {len(several)} arrays for {len(fusion.outputs)} outputs",
            "return one array an output, in their order",
        )
    return tuple([np.asarray(array) for array in several])


def judge(fusion: Fusion, sizes: Mapping[str, int], actual: Any, wanted: Wanted) -> list[Verdict]:
    """Return how each output compares with what was expected.

    Args:
        fusion: the math.
        sizes: of each size symbol.
        actual: what the kernel returned.
        wanted: by `oracle` or `expected`.
    """
    import numpy as np

    results = actual if isinstance(actual, tuple) else (actual,)
    verdicts = []
    for number, (tensor, result) in enumerate(zip(fusion.outputs, results, strict=True)):
        shape = tuple([size_value(size, sizes) for size in tensor.sizes])
        verdicts.append(verdict_of(tensor, shape, np.asarray(result), wanted, number))
    return verdicts


def verdict_of(
    tensor: TensorView, shape: tuple[int, ...], result: Array, wanted: Wanted, number: int
) -> Verdict:
    """Return how one result compares with what was expected of the output of a number."""
    sample, enclosure, reference = wanted.sample, wanted.enclosures[number], None
    if result.shape != shape:
        return Verdict(tensor.name, problem=f"its shape is {result.shape}, not {shape}")
    if wanted.loose is not None:
        array = wanted.arrays[number]
        if array.shape != shape:
            problem = f"the reference has the shape {array.shape}, not {shape}"
            return Verdict(tensor.name, problem=problem)
        reference = Reference(sample.of(tensor, array), wanted.loose[number])
    found = compare(tensor.name, sample.of(tensor, result), enclosure, reference)
    if found.size == result.size:
        return found
    return replace(found, place=sample.index(tensor, found.place), whole=result.size)
