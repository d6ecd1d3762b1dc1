"""Trying a kernel out: made inputs, what its reference says of them, and the comparison."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from loopnest.arguments import check_conditions, size_value
from loopnest.dtypes import DType
from loopnest.errors import DefinitionError, LaunchError
from loopnest.fusion import Fusion
from loopnest.tolerance import Verdict, bounds, compare

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from loopnest.script import KernelDef, Range

Array: TypeAlias = "npt.NDArray[Any]"


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
        """Return copies of the arrays: a kernel may overwrite its inputs."""
        return tuple([array.copy() for array in self.arrays])


def make_arguments(
    fusion: Fusion,
    sizes: Mapping[str, int],
    ranges: Mapping[str, Range] | None = None,
    seed: int = 0,
) -> Arguments:
    """Return arguments that are the same each time.

    Floats are normal with variance 1, integers even in [-8, 8], bools even; run-time scalars are
    even in [0.25, 0.75), in [1, 4] or true.

    Args:
        fusion: the math.
        sizes: of each size symbol; others than those of the fusion are ignored.
        ranges: input or scalar -> (least, greatest): drawn from there instead, evenly.
        seed: another one gives other values.

    Raises:
        LaunchError: a size is missing, or an assumption does not hold.
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
    chosen = dict(ranges or {})
    names = [tensor.name for tensor in fusion.inputs] + [scalar.name for scalar in fusion.scalars]
    for name in chosen:
        if name not in names:
            raise DefinitionError(
                f"kernel {fusion.name}",
                f"ranges= names '{name}', which is no input or scalar",
                f"these are {', '.join(names)}",
            )
    arrays = []
    for number, tensor in enumerate(fusion.inputs):
        shape = tuple([size_value(size, known) for size in tensor.sizes])
        draw = np.random.default_rng([seed, number])
        arrays.append(_made(draw, shape, tensor.dtype, chosen.get(tensor.name)))
    scalars = {}
    for number, scalar in enumerate(fusion.scalars):
        draw = np.random.default_rng([seed, len(names) + number])
        default = (0.25, 0.75) if scalar.dtype.is_float else (1, 4)
        place = chosen.get(scalar.name, default)
        scalars[scalar.name] = _made(draw, (), scalar.dtype, place).item()
    return Arguments(tuple(arrays), scalars, known)


def _made(
    draw: np.random.Generator, shape: tuple[int, ...], dtype: DType, place: Range | None
) -> Array:
    import numpy as np

    if dtype.is_bool:
        values = draw.integers(0, 2, shape) if place is None else np.full(shape, True)
    elif dtype.is_float:
        single = dtype.numpy.itemsize <= 4
        if place is None:
            values = draw.standard_normal(shape, np.float32 if single else np.float64)
        else:
            values = place[0] + (place[1] - place[0]) * draw.random(shape)
    else:
        low, high = (-8, 8) if place is None else (int(place[0]), int(place[1]))
        values = draw.integers(low, high, shape, endpoint=True)
    return np.asarray(values).astype(dtype.numpy)


def expected(
    kernel: KernelDef, fusion: Fusion, arguments: Arguments, params: Mapping[str, Any]
) -> tuple[Array, ...] | None:
    """Return what the kernel's reference gives, an array an output; None where it has none.

    Raises:
        DefinitionError: it gives another number of arrays than there are outputs.
    """
    import numpy as np

    reference = kernel.reference
    if reference is None:
        return None
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


def points(fusion: Fusion, sizes: Mapping[str, int]) -> int:
    """Return at how many points the oracle would evaluate definitions."""
    total = 0
    for tensor in fusion.tensors:
        count = 1
        for axis in tensor.root_domain:
            count *= size_value(axis.size, sizes)
        total += count
    return total


def judge(
    fusion: Fusion, sizes: Mapping[str, int], actual: Any, wanted: Sequence[Array]
) -> list[Verdict]:
    """Return how each output compares with what was expected; see `tolerance`."""
    import numpy as np

    found = bounds(fusion, sizes)
    results = actual if isinstance(actual, tuple) else (actual,)
    return [
        compare(tensor.name, np.asarray(got), want, tensor.dtype, found[tensor])
        for tensor, got, want in zip(fusion.outputs, results, wanted, strict=True)
    ]
