"""Indices that are data: gathers (take, gather), scatters, and rows of different lengths.

A gather is one definition, which reads the indices and, where they say, the other tensor: an index
template has the `Arg` of the read that finds it. An index outside of the axis has no meaning: it is
clamped or wrapped by the template, or the math asks of the data that there is none.

A scatter (scatter_add, index_add, scatter_max, scatter) updates elements that data choose. What is
added to an element is a sum over all updates, each where its index is that element's and 0
elsewhere: a reduction like any other, whose order is free. Where its loops over the updates stand
outside of those over the chosen axis, these run over the one index of the update, so that it goes
through the updates alone; by atomic operations (`TensorView.atomic`) threads share these out. What
is assigned is found by such a fold, too: the largest number of an update that an element has, which
is the last one, in whatever order they come.

`segments` tells where rows begin and end that lie one behind the other. The elements j of row r are
those with ``offsets[r] <= j < offsets[r + 1]``: the rows of a sparse
matrix in CSR form, the sequences of a batch, the groups of a grouped product. A reduction under
that mask runs through the elements of the row alone, since the loop over j begins and ends there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.conditions import le
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, TRUE, ZERO, Arg, Const, Coordinate, Expr, Op, all_of, cast
from loopnest.scalar.templates import at
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.index_forms import index_form
from loopnest.tensor.ops import conversions, pointwise, reducers
from loopnest.tensor.ops.construction import (
    Axis,
    Demands,
    along,
    axes_of,
    compared,
    define,
    fresh_domain,
    position,
    replaced,
    view,
)
from loopnest.tensor.ops.data_movement import Extent, broadcast, iota
from loopnest.tensor.ops.operands import (
    call_text,
    fusion_of,
    kind_text,
    refusing,
    require_tensor,
    show,
)
from loopnest.tensor.ops.pointwise import ge, logical_and, lt
from loopnest.tensor.ops.slices import slice as sliced
from loopnest.tensor.tensor_view import Definition, Distinct, Read, TensorView

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
    with refusing(call):
        return position(tensor, axis)


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
    with refusing(call):
        for number, (mine, other) in enumerate(zip(tv.sizes, indices.sizes, strict=True)):
            if number != place:
                reason = f"along axis {number} {indices.name} has {other}, {tv.name} {mine}"
                demands.at_most(other, mine, reason, "the indices are no larger there")
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
    with refusing(call):
        demands.at_most(ONE, size, f"axis {place} of {tv.name} is empty", "it has no nearest index")
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


def scatter_add(
    tv: TensorView, indices: TensorView, updates: TensorView, axis: int, deterministic: bool = False
) -> TensorView:
    """Return `tv` with each element of `updates` added where `indices` say along `axis`.

    ``scatter_add(x, i, u, 0)`` is x with ``u[r, c]`` added at ``(i[r, c], c)``, for all (r, c).

    Args:
        tv: the operand.
        indices: integers, of the rank of `tv` and no larger along the other axes. What has
            an index outside of `axis` is added nowhere.
        updates: of the shape of `indices` and the type of `tv`.
        axis: of all of them.
        deterministic: asks for the same bits each time and on every target: `TensorView.atomic`
            then refuses a sum of floats. All other schedules give them in any case; another
            schedule may have other bits.

    Raises:
        DefinitionError: no TensorViews, types or shapes that do not fit, or an axis out of range.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", (3,), ln.float32)
    ...     i = f.input("i", ("K",), ln.int32)
    ...     u = f.input("u", ("K",), ln.float32)
    ...     y = f.output(ln.scatter_add(x, i, u, 0), "y")
    >>> x, u = np.zeros(3, np.float32), np.array([1, 2, 4, 8], np.float32)
    >>> print(ln.evaluate(f, x, np.array([2, 0, 2, 2], np.int32), u))
    [ 2.  0. 13.]

    Source: torch.Tensor.scatter_add.
    """
    return _by_elements("scatter_add", tv, indices, updates, axis, "added", deterministic)


def scatter_max(tv: TensorView, indices: TensorView, updates: TensorView, axis: int) -> TensorView:
    """Return `tv` with each element the largest of itself and of its updates along `axis`.

    ``scatter_max(x, i, u, 0)`` is x with ``u[r, c]`` at ``(i[r, c], c)`` where that is larger, for
    all (r, c). A NaN stays, as in `loopnest.max`. The order of the updates does not matter, so that
    `TensorView.atomic` gives the same bits each time.

    Args:
        tv: the operand.
        indices: integers, of the rank of `tv` and no larger along the other axes. What has
            an index outside of `axis` goes nowhere.
        updates: of the shape of `indices` and the type of `tv`.
        axis: of all of them.

    Raises:
        DefinitionError: no TensorViews, types or shapes that do not fit, or an axis out of range.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", (3,), ln.float32)
    ...     i = f.input("i", ("K",), ln.int32)
    ...     u = f.input("u", ("K",), ln.float32)
    ...     y = f.output(ln.scatter_max(x, i, u, 0), "y")
    >>> x, u = np.full(3, 3, np.float32), np.array([1, 2, 4, 8], np.float32)
    >>> print(ln.evaluate(f, x, np.array([2, 0, 2, 5], np.int32), u))
    [3. 3. 4.]

    Source: torch.Tensor.scatter_reduce, "amax" with include_self.
    """
    return _by_elements("scatter_max", tv, indices, updates, axis, "ordered")


def scatter_min(tv: TensorView, indices: TensorView, updates: TensorView, axis: int) -> TensorView:
    """Return `tv` with each element the least of itself and of its updates along `axis`.

    ``scatter_min(x, i, u, 0)`` is x with ``u[r, c]`` at ``(i[r, c], c)`` where that is less, for
    all (r, c). A NaN stays, as in `loopnest.min`. The order of the updates does not matter, so that
    `TensorView.atomic` gives the same bits each time.

    Args:
        tv: the operand.
        indices: integers, of the rank of `tv` and no larger along the other axes. What has
            an index outside of `axis` goes nowhere.
        updates: of the shape of `indices` and the type of `tv`.
        axis: of all of them.

    Raises:
        DefinitionError: no TensorViews, types or shapes that do not fit, or an axis out of range.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", (3,), ln.float32)
    ...     i = f.input("i", ("K",), ln.int32)
    ...     u = f.input("u", ("K",), ln.float32)
    ...     y = f.output(ln.scatter_min(x, i, u, 0), "y")
    >>> x, u = np.full(3, 3, np.float32), np.array([1, 2, 4, 8], np.float32)
    >>> print(ln.evaluate(f, x, np.array([2, 0, 2, 5], np.int32), u))
    [2. 3. 1.]

    Source: torch.Tensor.scatter_reduce, "amin" with include_self.
    """
    return _by_elements("scatter_min", tv, indices, updates, axis, "ordered")


def scatter_prod(tv: TensorView, indices: TensorView, updates: TensorView, axis: int) -> TensorView:
    """Return `tv` with each element multiplied by its updates along `axis`, as `scatter_add` adds.

    No name of the package: graphs multiply by it, and in math of one's own a product under a mask
    is the same.

    Raises:
        DefinitionError: as there.

    Source: torch.Tensor.scatter_reduce, "prod" with include_self.
    """
    return _by_elements("scatter_prod", tv, indices, updates, axis, "multiplied")


def _by_elements(
    name: str,
    tv: TensorView,
    indices: TensorView,
    updates: TensorView,
    axis: int,
    done: str,
    deterministic: bool = False,
) -> TensorView:
    """Return `tv` with its updates folded in, each of which has an index of its own."""
    call = call_text(name, (tv, indices, updates, axis))
    place = checked_indices(name, call, tv, indices, axis)
    _check_updates(call, tv, updates, done)
    _check_switch(call, "deterministic", deterministic)
    where = _places(call, tv, indices, updates, place)
    folded = axes_of(indices)[place][0]
    return _scattered(name, tv, indices, updates, place, folded, (where, where), deterministic)


def scatter(
    tv: TensorView, indices: TensorView, updates: TensorView, axis: int, unique: bool = False
) -> TensorView:
    """Return `tv` with each element of `updates` in place of that which `indices` say along `axis`.

    ``scatter(x, i, u, 0)`` is x with ``u[r, c]`` at ``(i[r, c], c)``, for all (r, c). Of several
    updates of one element the last along `axis` stays, on every target and under every schedule.

    Args:
        tv: the operand.
        indices: integers, of the rank of `tv` and no larger along the other axes. What has
            an index outside of `axis` goes nowhere.
        updates: of the shape of `indices` and the type of `tv`.
        axis: of all of them.
        unique: declares that no element has two updates. Each launch on "c" looks (LaunchError;
            `check_indices=False` leaves that out), on "interpret" two updates are a KernelFault,
            and `loopnest.verify` names the declaration.

    Raises:
        DefinitionError: no TensorViews, types or shapes that do not fit, or an axis out of range.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", (3,), ln.float32)
    ...     i = f.input("i", ("K",), ln.int32)
    ...     u = f.input("u", ("K",), ln.float32)
    ...     y = f.output(ln.scatter(x, i, u, 0), "y")
    >>> x, u = np.zeros(3, np.float32), np.array([1, 2, 4, 8], np.float32)
    >>> print(ln.evaluate(f, x, np.array([2, 0, 2, 5], np.int32), u))
    [2. 0. 4.]

    Source: torch.Tensor.scatter, whose duplicates are in no order; NumPy's put_along_axis.
    """
    call = call_text("scatter", (tv, indices, updates, axis))
    place = checked_indices("scatter", call, tv, indices, axis)
    _check_types(call, tv, updates)
    _check_switch(call, "unique", unique)
    where = _places(call, tv, indices, updates, place)
    last = _last_update(tv, indices, updates, place, where, unique)
    # Behind no update at all nothing is read: the nearest number of one does not matter then.
    size, own = updates.sizes[place], axes_of(tv)
    algebra = tv.fusion.algebra
    nearest = algebra.max(cast(Arg(0, last.dtype), dtypes.index), ZERO)
    read = [along(n, axis) for n, axis in enumerate(own)]
    read[place] = algebra.min(nearest, algebra.sub(size, ONE))
    old, new = Arg(1, tv.dtype), Arg(2, tv.dtype)
    is_given = compared("ge", Arg(0, last.dtype), Const(0, last.dtype))
    value: Expr = Op("where", (is_given, new, old), tv.dtype)
    inside = _inside(tv, updates, place)
    if le(ONE, size, algebra) is not TRUE:
        inside.append(compared("lt", ZERO, size))
    if inside:
        value = Op("where", (all_of(inside), value, old), tv.dtype)
    along_own = tuple(range(len(own)))
    reads = (Read.along(last, along_own), Read.along(tv, along_own), Read(updates, tuple(read)))
    return define(tv.fusion, "scatter", (last, tv, updates), reads, own, tv.dtype, value,
                  f"axis={place}")  # fmt: skip


def _last_update(
    tv: TensorView,
    indices: TensorView,
    updates: TensorView,
    place: int,
    where: Sequence[Expr],
    unique: bool,
) -> TensorView:
    """Return for each element of `tv` the number along `place` of its last update; else below 0."""
    folded = axes_of(indices)[place][0]
    short = isinstance(folded, Const) and folded.value <= dtypes.int32.greatest
    kind = dtypes.int32 if short else dtypes.int64
    reducer = reducers.MAX.of(kind)
    (none,) = reducer.identity
    number = cast(Coordinate(len(axes_of(tv))), kind)
    value: Expr = Op("where", (_is_chosen(tv, indices, place), number, none), kind)
    inside = _inside(tv, updates, place)
    if inside:
        value = Op("where", (all_of(inside), value, none), kind)
    axes: list[Axis] = [*axes_of(tv), (folded, IterKind.REDUCTION)]
    result = TensorView(tv.fusion, fresh_domain(axes), kind)
    note = f"axis={place}" + (", unique=True" if unique else "")
    distinct = Distinct(place, tv.sizes[place]) if unique else None
    reads = (Read(indices, tuple(where)),)
    result.define(
        Definition(
            "last_update", (indices,), reads, (result,), (value,), reducer, note,
            distinct=distinct,
        )
    )  # fmt: skip
    return result


def index_add(
    tv: TensorView, axis: int, indices: TensorView, updates: TensorView, deterministic: bool = False
) -> TensorView:
    """Return `tv` with each slice of `updates` along `axis` added to that which `indices` name.

    ``index_add(w, 0, i, u)`` is w with the row ``u[k]`` added to its row ``i[k]``, for all k: the
    gradient of ``take(w, i, 0)``.

    Args:
        tv: the operand.
        axis: of `tv` and `updates`.
        indices: integers, of one axis. What has an index outside of `axis` is added nowhere.
        updates: of the type of `tv`, and of its shape but for `axis`, which is that of `indices`.
        deterministic: asks for the same bits each time and on every target: `TensorView.atomic`
            then refuses a sum of floats. All other schedules give them in any case; another
            schedule may have other bits.

    Raises:
        DefinitionError: no TensorViews, types or shapes that do not fit, or an axis out of range.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     g = f.input("g", ("K", 2), ln.float32)
    ...     i = f.input("i", ("K",), ln.int64)
    ...     w = f.output(ln.index_add(ln.full((3, 2), 0.0), 0, i, g), "w")
    >>> print(ln.evaluate(f, np.array([[1, 2], [3, 4], [5, 6]], np.float32), np.array([2, 0, 2])))
    [[3. 4.]
     [0. 0.]
     [6. 8.]]

    Source: torch.Tensor.index_add.
    """
    call = call_text("index_add", (tv, axis, indices, updates))
    place = checked_indices("index_add", call, tv, indices, axis)
    _check_updates(call, tv, updates, "added")
    _check_switch(call, "deterministic", deterministic)
    sizes = list(tv.sizes)
    found = f"{updates.name} is {updates.signature}, {indices.name} is {indices.signature}"
    if len(indices.sizes) != 1:
        raise DefinitionError(call, f"{indices.name} is {indices.signature}", "use one axis")
    sizes[place] = indices.sizes[0]
    if list(updates.sizes) != sizes:
        hint = f"the updates are [{', '.join(map(str, sizes))}], {tv.name} is {tv.signature}"
        raise DefinitionError(call, found, hint)
    last = Coordinate(len(sizes))
    where = [along(n, axis) for n, axis in enumerate(axes_of(updates))]
    where[place] = last
    own = [last]
    return _scattered(
        "index_add", tv, indices, updates, place, sizes[place], (own, where), deterministic
    )


def _places(
    call: str, tv: TensorView, indices: TensorView, updates: TensorView, place: int
) -> list[Expr]:
    """Return where an update and its index stand, along axis `place` by the folded coordinate.

    Raises:
        DefinitionError: ranks or shapes that do not fit.
    """
    same_rank(call, tv, indices)
    if updates.sizes != indices.sizes:
        found = f"{updates.name} is {updates.signature}, {indices.name} is {indices.signature}"
        raise DefinitionError(call, found, "the indices have the shape of the updates")
    fitting(call, tv, indices, place)
    where = [along(n, axis) for n, axis in enumerate(axes_of(indices))]
    where[place] = Coordinate(len(where))
    return where


def _check_types(call: str, tv: TensorView, updates: object) -> None:
    if not isinstance(updates, TensorView):
        raise DefinitionError(call, f"the updates are {kind_text(updates)}", "use a TensorView")
    fusion_of(call.partition("(")[0], (tv, updates))
    if updates.dtype is not tv.dtype:
        found = f"{updates.name} is {updates.dtype}, {tv.name} is {tv.dtype}"
        raise DefinitionError(call, found, "both have one type; convert one by ln.cast")


def _check_updates(call: str, tv: TensorView, updates: object, folded: str) -> None:
    _check_types(call, tv, updates)
    if tv.dtype.is_bool:
        raise DefinitionError(call, f"{tv.name} is bool", f"use a type that can be {folded}")


def _check_switch(call: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise DefinitionError(call, f"{name} is {value!r}", "use True or False")


def _scattered(
    name: str,
    tv: TensorView,
    indices: TensorView,
    updates: TensorView,
    place: int,
    folded: Expr,
    where: tuple[Sequence[Expr], Sequence[Expr]],
    deterministic: bool = False,
) -> TensorView:
    """Return `tv` and the fold over the last axis of updates whose index is that of the element.

    `where` says at which indices the indices and the updates are read.
    """
    fusion, real = tv.fusion, tv.dtype.compute
    family, join = _FOLDS.get(name, (reducers.SUM, pointwise.add))
    reducer = family.of(real)
    (none,) = reducer.identity
    own = axes_of(tv)
    axes: list[Axis] = [*own, (folded, IterKind.REDUCTION)]
    value: Expr = Op(
        "where", (_is_chosen(tv, indices, place), cast(Arg(1, updates.dtype), real), none), real
    )
    inside = _inside(tv, updates, place)
    if inside:
        value = Op("where", (all_of(inside), value, none), real)
    # What no update reaches has the identity, which need not be a number of a narrow type.
    kind = tv.dtype if family is reducers.SUM else real
    result = TensorView(fusion, fresh_domain(axes), kind)
    reads = (Read(indices, tuple(where[0])), Read(updates, tuple(where[1])))
    note = f"axis={place}" + (", deterministic=True" if deterministic else "")
    result.define(
        Definition(
            name, (indices, updates), reads, (result,), (value,), reducer, note,
            deterministic=deterministic,
        )
    )  # fmt: skip
    if family is reducers.SUM and tv.definition is not None and tv.definition.is_zero:
        return result
    total = join(tv, result)
    assert isinstance(total, TensorView)
    return total if total.dtype is tv.dtype else conversions.cast(total, tv.dtype)


_FOLDS = {
    "scatter_max": (reducers.MAX, pointwise.maximum),
    "scatter_min": (reducers.MIN, pointwise.minimum),
    "scatter_prod": (reducers.PROD, pointwise.mul),
}


def _is_chosen(tv: TensorView, indices: TensorView, place: int) -> Expr:
    """Return whether the index of an update, `Arg(0)`, is that of the element."""
    own = along(place, axes_of(tv)[place])
    return compared("eq", cast(Arg(0, indices.dtype), dtypes.index), own)


def _inside(tv: TensorView, updates: TensorView, place: int) -> list[Expr]:
    """Return what holds of the elements for which there may be updates."""
    return [
        compared("lt", Coordinate(n), size)
        for n, size in enumerate(updates.sizes)
        if n != place and le(tv.sizes[n], size, tv.fusion.algebra) is not TRUE
    ]


class RaggedRows(NamedTuple):
    """Rows of a ragged array, as `ln.segments` returns them.

    Args:
        first: the number of the first element of each row [R].
        last: the number behind its last element [R].
        mask: whether an element belongs to a row [R, length].
    """

    first: TensorView
    last: TensorView
    mask: TensorView


def segments(offsets: TensorView, length: Extent) -> RaggedRows:
    """Return where rows begin and end that lie one behind the other, and which elements they have.

    Row r has the elements ``offsets[r] <= j < offsets[r + 1]`` of an axis of `length` elements. A
    reduction over them, ``ln.sum(ln.where(rows.mask, x, 0.0), axis=1)``, visits these alone: its
    loop is lowered as ``for j in offsets[r]..offsets[r + 1] of length``, within the axis whatever
    the data are.

    Args:
        offsets: integers that ascend, one more than there are rows. Of an input that is declared,
            and the range 0 <= offset <= length (`Fusion.assume_range`): each launch checks it.
        length: the extent of the axis that the rows lie along: an int, the name of a size symbol,
            or an extent of a tensor.

    Raises:
        DefinitionError: no tensor of integers with one axis, or fewer than one offset.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("row_sum") as f:
    ...     x = f.input("x", ("Z",), ln.float32)
    ...     offsets = f.input("offsets", ("P",), ln.int32)
    ...     rows = ln.segments(offsets, "Z")
    ...     y = f.output(ln.sum(ln.where(rows.mask, x, 0.0), axis=1), "y")
    >>> print(ln.evaluate(f, np.array([1, 2, 3, 4], np.float32), np.array([0, 1, 1, 4], np.int32)))
    [1. 0. 9.]

    Source: the row pointers of the compressed sparse row format (Saad, "Iterative methods for
    sparse linear systems", 2003, section 3.4).
    """
    call = call_text("segments", (offsets, length))
    require_tensor("segments", offsets)
    axes = axes_of(offsets)
    if len(axes) != 1 or offsets.dtype not in dtypes.INTEGERS:
        found = f"{offsets.name} is {offsets.dtype} with {len(axes)} axes"
        raise DefinitionError(call, found, "use integers along one axis")
    fusion = offsets.fusion
    ((count, _),) = axes
    if isinstance(count, Const) and count.value < 1:
        raise DefinitionError(call, f"{offsets.name} has no element", "use one more than rows")
    size = fusion.size(call, length)
    end = fusion.algebra.add(size, ONE)
    declared = DataRange(offsets.name, ZERO, end, ascending=True)
    if offsets in fusion.inputs and declared not in fusion.ranges:
        fusion.assume_range(offsets, 0, end, ascending=True)
    first, last = sliced(offsets, (None,), (-1,)), sliced(offsets, (1,), (None,))
    element = broadcast(iota(size), (True, False))
    begun = ge(element, broadcast(first, (False, True)))
    open_yet = lt(element, broadcast(last, (False, True)))
    return RaggedRows(first, last, logical_and(begun, open_yet))
