"""Updates of elements that data choose: scatter_add, index_add, scatter_max, and scatter.

What is added to an element is a sum over all updates, each where its index is that element's and 0
elsewhere: a reduction like any other, whose order is free. Where its loops over the updates stand
outside of those over the chosen axis, these run over the one index of the update, so that it goes
through the updates alone; by atomic operations (`TensorView.atomic`) threads share these out. What
is assigned is found by such a fold, too: the largest number of an update that an element has, which
is the last one, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.conditions import le
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, TRUE, ZERO, Arg, Const, Coordinate, Expr, Op, all_of, cast
from loopnest.tensor.definition import Definition, Distinct, Read
from loopnest.tensor.ops import conversions, pointwise, reducers
from loopnest.tensor.ops.construction import Axis, axes_of, define, fresh_domain
from loopnest.tensor.ops.gathers import checked_indices, fitting, same_rank
from loopnest.tensor.ops.index_maps import along, compared
from loopnest.tensor.ops.operands import call_text, fusion_of, kind_text
from loopnest.tensor.tensor_view import TensorView


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
    call = call_text("scatter_add", (tv, indices, updates, axis))
    place = checked_indices("scatter_add", call, tv, indices, axis)
    _check_updates(call, tv, updates, "added")
    _check_switch(call, "deterministic", deterministic)
    where = _places(call, tv, indices, updates, place)
    folded = axes_of(indices)[place][0]
    return _scattered(
        "scatter_add", tv, indices, updates, place, folded, (where, where), deterministic
    )


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
    return _extremum("scatter_max", tv, indices, updates, axis)


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
    return _extremum("scatter_min", tv, indices, updates, axis)


def _extremum(
    name: str, tv: TensorView, indices: TensorView, updates: TensorView, axis: int
) -> TensorView:
    call = call_text(name, (tv, indices, updates, axis))
    place = checked_indices(name, call, tv, indices, axis)
    _check_updates(call, tv, updates, "ordered")
    where = _places(call, tv, indices, updates, place)
    folded = axes_of(indices)[place][0]
    return _scattered(name, tv, indices, updates, place, folded, (where, where))


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
