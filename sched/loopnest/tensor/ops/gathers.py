"""Tensors that have elements of others, at indices that are data: take, gather.

One definition reads the indices and, where they say, the other tensor: an index template has the
`Arg` of the read that finds it. An index outside of the axis has no meaning: it is clamped or
wrapped by the template, or the math asks of the data that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.expr import ONE, ZERO, Arg, Const, Expr, cast
from loopnest.scalar.templates import at
from loopnest.tensor.definition import Read
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.index_forms import index_form
from loopnest.tensor.ops.construction import Axis, axes_of, define, position
from loopnest.tensor.ops.index_maps import Demands, along, replaced, view
from loopnest.tensor.ops.operands import OperandRefused, call_text, fusion_of, require_tensor, show
from loopnest.tensor.tensor_view import TensorView

_MODES = ("raise", "clip", "wrap")


def take(tv: TensorView, indices: TensorView, axis: int, mode: str = "raise") -> TensorView:
    """Return the elements of `tv` along `axis` that stand at `indices`.

    The axes of `indices` take the place of `axis`: of ``x [N, D]`` and ``i [K]``, ``take(x, i, 0)``
    has the element ``x[i[k], d]`` at (k, d).

    Args:
        tv: the operand.
        indices: integers, of any rank.
        axis: of `tv`.
        mode: what an index outside of the axis means. "raise": the math asks that there is none.
            On "c" each launch looks at the indices (a LaunchError), on "interpret" one outside is a
            KernelFault, on "cuda" undefined unless `Fusion.assume_range` lets each launch check
            it. "clip": the nearest that there is. "wrap": its remainder.

    Raises:
        DefinitionError: no TensorViews, indices of another type, an axis out of range, or another
            mode.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     i = f.input("i", ("K",), ln.int32)
    ...     y = f.output(ln.take(x, i, 0), "y")
    >>> print(ln.evaluate(f, np.array([5, 6, 7], np.float32), np.array([2, 0], np.int32)))
    [7. 5.]

    Source: numpy.take.
    """
    call = call_text("take", (tv, indices, axis), "" if mode == "raise" else f"mode={mode!r}")
    place = checked_indices("take", call, tv, indices, axis)
    if mode not in _MODES:
        raise DefinitionError(call, f"there is no mode {show(mode)}", 'use "raise", "clip", "wrap"')
    own, picked = axes_of(tv), axes_of(indices)
    axes = [*own[:place], *picked, *own[place + 1 :]]
    inner = list(range(place, place + len(picked)))
    rest = [n for n in range(len(axes)) if n not in inner]
    where = [along(n, axes[n]) for n in rest]
    read = Read(indices, tuple([along(n, axes[n]) for n in inner]))
    own_index = index_form(Arg(0, indices.dtype), (read,)) if mode == "clip" else None
    where.insert(place, _index(call, tv, place, indices, mode, own_index))
    note = f"axis={place}" + ("" if mode == "raise" else f", mode={mode!r}")
    if own_index is not None:  # computed of coordinates: no data
        source, places = _taken_from(tv, where)
        return view("take", source, places, axes, note)
    return _gathered("take", tv, where, indices, read.indices, axes, note)


def _taken_from(tv: TensorView, where: Sequence[Expr]) -> tuple[TensorView, tuple[Expr, ...]]:
    """Return a tensor and the index in it of the element of `tv` at `where`.

    The tensor is `tv` itself; or, where `tv` is a `take` at indices that are not data, the tensor
    that it takes from.
    """
    found = tv.definition
    plain = found is not None and found.op == "take" and len(found.reads) == 1
    if found is None or not plain or tv.domain.leaf != tv.domain.logical:
        return tv, tuple(where)
    (read,) = found.reads
    return read.producer, tuple([at(index, where) for index in read.indices])


def gather(tv: TensorView, indices: TensorView, axis: int) -> TensorView:
    """Return the elements of `tv` that stand at `indices` along `axis`, else at their own place.

    ``gather(x, i, 1)`` has the element ``x[r, i[r, c]]`` at (r, c). The result has the shape of
    `indices`; along the other axes that is no larger than `tv`.

    Args:
        tv: the operand.
        indices: integers, of the rank of `tv`.
        axis: of both. An index outside of it is as in `take`.

    Raises:
        DefinitionError: no TensorViews, indices of another type or rank, an axis out of range, or
            an extent that is larger than that of `tv`.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", 3), ln.float32)
    ...     i = f.input("i", ("N", 1), ln.int64)
    ...     y = f.output(ln.gather(x, i, 1), "y")
    >>> x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    >>> print(ln.evaluate(f, x, np.array([[2], [0]])))
    [[3.]
     [4.]]

    Source: torch.gather.
    """
    call = call_text("gather", (tv, indices, axis))
    place = checked_indices("gather", call, tv, indices, axis)
    axes = axes_of(indices)
    same_rank(call, tv, indices)
    fitting(call, tv, indices, place)
    coordinates = [along(n, found) for n, found in enumerate(axes)]
    where = replaced(coordinates, place, _index(call, tv, place, indices, "raise"))
    return _gathered("gather", tv, where, indices, coordinates, axes, f"axis={place}")


def checked_indices(name: str, call: str, tv: object, indices: object, axis: object) -> int:
    """Return the axis of a call that has indices, from 0 on.

    Raises:
        DefinitionError: no tensors, indices of another type, or an axis out of range.
    """
    tensor = require_tensor(name, tv, indices, axis)
    fusion_of(name, (tensor, indices))
    if not isinstance(indices, TensorView):
        raise DefinitionError(call, f"the indices are {show(indices)}", "use a TensorView")
    if indices.dtype not in dtypes.INTEGERS:
        hint = "indices are integers; convert them by ln.cast"
        raise DefinitionError(call, f"{indices.name} is {indices.dtype}", hint)
    try:
        return position(tensor, axis)
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None


def same_rank(call: str, tv: TensorView, indices: TensorView) -> None:
    """Refuse indices of another rank than the tensor.

    Raises:
        DefinitionError: they are.
    """
    if len(tv.domain.logical) != len(indices.domain.logical):
        found = f"{tv.name} is {tv.signature}, {indices.name} is {indices.signature}"
        raise DefinitionError(call, found, "both have one rank")


def fitting(call: str, tv: TensorView, indices: TensorView, place: int) -> None:
    """Ask that indices are no larger than the tensor along all axes but one.

    Raises:
        DefinitionError: they are at any sizes.
    """
    demands = Demands(tv.fusion.algebra)
    try:
        for number, (mine, other) in enumerate(zip(tv.sizes, indices.sizes, strict=True)):
            if number != place:
                reason = f"along axis {number} {indices.name} has {other}, {tv.name} {mine}"
                demands.at_most(other, mine, reason, "the indices are no larger there")
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None
    tv.fusion.require(*demands.conditions)


def _index(
    call: str,
    tv: TensorView,
    place: int,
    indices: TensorView,
    mode: str,
    own: Expr | None = None,
) -> Expr:
    """Return the index along axis `place`, which the second read finds; or else `own`, clamped."""
    algebra, size = tv.fusion.algebra, tv.sizes[place]
    found = cast(Arg(1, indices.dtype), dtypes.index)
    if mode == "raise":
        return found
    demands = Demands(algebra)
    try:
        demands.at_most(ONE, size, f"axis {place} of {tv.name} is empty", "it has no nearest index")
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None
    tv.fusion.require(*demands.conditions)
    if mode == "wrap":
        return algebra.mod(found, size)
    if own is not None:
        found = own
    return algebra.min(algebra.max(found, ZERO), algebra.sub(size, ONE))


def _gathered(
    name: str,
    tv: TensorView,
    where: Sequence[Expr],
    indices: TensorView,
    own: Sequence[Expr],
    axes: Sequence[Axis],
    note: str,
) -> TensorView:
    """Return the tensor that reads `tv` at `where`, and `indices` at `own`."""
    reads = (Read(tv, tuple(where)), Read(indices, tuple(own)))
    value = Arg(0, tv.dtype)
    return define(tv.fusion, name, (tv, indices), reads, axes, tv.dtype, value, note)


def declared_range(
    fusion: Fusion, indices: object, low: object, high: object, ascending: object
) -> DataRange:
    """Return what `Fusion.assume_range` declares.

    Raises:
        DefinitionError: as there.
    """
    call = call_text(f"{fusion.name}.assume_range", (indices, low, high))
    if not isinstance(indices, TensorView) or indices not in fusion.inputs:
        hint = "declare ranges of inputs; what is computed can be clamped by ln.clamp"
        raise DefinitionError(call, f"{show(indices)} is no input of this fusion", hint)
    if indices.dtype.kind != "i":
        raise DefinitionError(call, f"{indices.name} is {indices.dtype}", "use an integer type")
    least, behind = [_bound(fusion, call, end) for end in (low, high)]
    plain = isinstance(least, Const) and isinstance(behind, Const)
    if plain and fusion.algebra.proves_le(behind, least):
        raise DefinitionError(call, f"no number is in {low}..{high}", "low is below high")
    if not isinstance(ascending, bool):
        raise DefinitionError(call, f"ascending={show(ascending)} is no bool", "give True or False")
    if ascending and len(indices.domain.logical) != 1:
        found = f"{indices.name} has {len(indices.domain.logical)} axes"
        raise DefinitionError(call, found, "elements ascend along one axis")
    return DataRange(indices.name, least, behind, ascending)


def _bound(fusion: Fusion, call: str, end: object) -> Expr:
    if isinstance(end, int) and not isinstance(end, bool) and end < 0:
        return Const(end, dtypes.index)
    known = [s.name for s in fusion.symbols]
    if isinstance(end, str) and end.isidentifier() and end not in known:
        hint = f"the sizes are {', '.join(known) or 'none'}"
        raise DefinitionError(call, f"'{end}' is no size of {fusion.name}", hint)
    return fusion.size(call, end)
