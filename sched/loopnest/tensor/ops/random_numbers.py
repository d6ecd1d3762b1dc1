"""Random numbers: each element is a function of a seed, an offset and its own place.

The generator is Philox 4x32 in ten rounds, so every target, schedule and order of elements gives
the same bits. Elements are numbered in C order; four in a row share a block.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from loopnest.base.errors import DefinitionError, kind_of
from loopnest.scalar.dtypes import DType, bool_, float32, index, int64, uint32
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ZERO, Const, Coordinate, Expr, Op, cast, whole
from loopnest.tensor.fusion import Fusion, Scalar, ScalarOperand
from loopnest.tensor.ops.construction import Axis, axes_of, define, elementwise
from loopnest.tensor.ops.data_movement import Extent, fusion_of_scalars, root_axes, sizes_of
from loopnest.tensor.ops.operands import call_text, fusion_of, is_number, require_tensor
from loopnest.tensor.tensor_view import TensorView

Seed: TypeAlias = "ScalarOperand | int"


def random_bits(seed: Seed, offset: Seed, shape: Extent | Sequence[Extent]) -> TensorView:
    """Return a uint32 tensor of random bits.

    Element e, in C order, is word e % 4 of Philox 4x32-10 of the counter offset + e // 4 (128 bits,
    the low word first) and the key that the low and the high word of `seed` are.

    Args:
        seed: an int of 64 bits, or an integer scalar of the fusion.
        offset: an int of 128 bits, or an integer scalar of the fusion: the first block. The next
            tensor of the same seed starts ceil(elements / 4) later.
        shape: an extent an axis (an int, the name of a size symbol, an extent of a tensor), or one.

    Raises:
        DefinitionError: outside of a fusion, or bad arguments.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     y = f.output(ln.random_bits(0, 0, (4,)), "y")
    >>> print([hex(bits) for bits in ln.evaluate(f)])
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    return _drawn("random_bits", (seed, offset, shape), uint32)


def random_uniform(seed: Seed, offset: Seed, shape: Extent | Sequence[Extent]) -> TensorView:
    """Return a float32 tensor of numbers in [0, 1): the upper 24 bits of `random_bits` by 2^24.

    Args:
        seed: see `random_bits`.
        offset: likewise.
        shape: likewise.

    Raises:
        DefinitionError: outside of a fusion, or bad arguments.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     y = f.output(ln.random_uniform(0, 0, (3,)), "y")
    >>> print(ln.evaluate(f).round(4))
    [0.399  0.8805 0.7357]

    Source: the 24 bits of a float32 in [1, 2), as in Random123's u01 functions.
    """
    return _drawn("random_uniform", (seed, offset, shape), float32)


def dropout(tv: TensorView, p: Scalar, seed: Seed, offset: Seed) -> TensorView:
    """Return `tv` with each element 0 with probability `p`, else divided by 1 - p.

    An element is kept where `random_uniform` of the same seed, offset and shape is at least `p`.

    Args:
        tv: a tensor of floats.
        p: a number in [0, 1], or a float scalar of the fusion.
        seed: see `random_bits`.
        offset: likewise.

    Raises:
        DefinitionError: no tensor of floats, no probability, or bad arguments.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.dropout(x, 0.5, seed=0, offset=0), "y")
    >>> print(ln.evaluate(f, np.ones(6, np.float32)))
    [0. 2. 2. 2. 2. 0.]

    Source: Srivastava and others, "Dropout: a simple way to prevent neural networks from
    overfitting", 2014; scaled as torch.nn.functional.dropout does.
    """
    require_tensor("dropout", tv, p, seed, offset)
    operands = (tv, p, seed, offset)
    call = call_text("dropout", operands)
    if not tv.dtype.is_float:
        raise DefinitionError(call, f"{tv.name} is {tv.dtype}", "cast it to a float first")
    if isinstance(p, ScalarOperand):
        if not p.dtype.is_float:
            raise DefinitionError(
                call, f"p is {p.dtype}", "use a number in [0, 1] or a float scalar"
            )
    elif not is_number(p) or not 0 <= p <= 1:
        raise DefinitionError(call, "p is no probability", "use a number in [0, 1]")
    fusion_of("dropout", (tv, p))
    words = _words_of(tv.fusion, call, seed, offset)
    kept = _defined(tv.fusion, "random_uniform", words, axes_of(tv), float32)
    real = tv.dtype.compute

    def template(x: Expr, chance: Expr, drawn: Expr) -> Expr:
        scaled = Op("mul", (x, _scale(chance, real)), real)
        keep = Op("ge", (drawn, chance), bool_)
        return Op("where", (keep, scaled, Const(0, real)), real)

    types = (real, float32, float32)
    result = elementwise(tv.fusion, "dropout", (tv, p, kept), types, tv.dtype, template)
    assert isinstance(result, TensorView)
    return result


def _scale(chance: Expr, dtype: DType) -> Expr:
    """Return 1 / (1 - p) in `dtype`; of p = 1, where nothing is kept, anything finite."""
    if isinstance(chance, Const):
        kept = 1.0 - float(chance.value)
        return Const(1.0 / kept if kept else 0.0, dtype)
    kept_share = Op("sub", (Const(1.0, dtype), cast(chance, dtype)), dtype)
    return Op("div", (Const(1.0, dtype), kept_share), dtype)


def _drawn(name: str, operands: tuple[object, ...], dtype: DType) -> TensorView:
    seed, offset, shape = operands
    call = call_text(name, operands)
    scalars = tuple([o for o in (seed, offset) if isinstance(o, ScalarOperand)])
    fusion = fusion_of_scalars(call, scalars)
    given = (shape,) if isinstance(shape, (int, str, Expr)) else shape
    words = _words_of(fusion, call, seed, offset)
    return _defined(fusion, name, words, root_axes(sizes_of(fusion, call, given)), dtype)


def _defined(
    fusion: Fusion, name: str, words: tuple[Expr, ...], axes: Sequence[Axis], dtype: DType
) -> TensorView:
    """Return a tensor of random numbers, given the words of `_words_of`."""
    key, low, high = words
    value: Expr = Op("philox", (key, low, high, cast(_number_of(axes), int64)), uint32)
    if dtype is float32:
        bits = Op("shr", (value, Const(8, uint32)), uint32)
        value = Op("mul", (cast(bits, float32), Const(2.0**-24, float32)), float32)
    implied = not isinstance(high, Const) or high.value == 0
    shown = (key, low) if implied else (key, low, high)
    return define(fusion, name, shown, (), axes, dtype, value)


def _words_of(fusion: Fusion, call: str, seed: object, offset: object) -> tuple[Expr, ...]:
    """Return the key, and the low and the high 64 bits of the first counter."""
    key, _ = _words(fusion, call, "seed", seed, 64)
    return key, *_words(fusion, call, "offset", offset, 128)


def _words(fusion: Fusion, call: str, what: str, value: object, bits: int) -> tuple[Expr, Expr]:
    """Return the low and the high 64 bits of a seed or an offset, as int64."""
    if isinstance(value, ScalarOperand) and value.dtype.kind == "i":
        if value.fusion is not fusion:
            raise DefinitionError(
                call,
                f"{what} {value} belongs to fusion {value.fusion.name}, not to {fusion.name}",
                "all operands of an expression belong to one fusion",
            )
        low = cast(value.expr, int64)
        if not value.dtype.signed:
            return low, Const(0, int64)
        return low, Op("shr", (low, Const(63, int64)), int64)
    number = whole(value)
    if number is None:
        shown = value.dtype if isinstance(value, ScalarOperand) else kind_of(value)
        raise DefinitionError(call, f"{what} is {shown}", "use an int or an integer scalar")
    if not -(1 << 63) <= number < 1 << bits:
        raise DefinitionError(
            call, f"{what} {number} has more than {bits} bits", f"use -2**63..2**{bits} - 1"
        )
    low, high = [Const(int64.wrapped(number >> shift), int64) for shift in (0, 64)]
    return low, high


def _number_of(axes: Sequence[Axis]) -> Expr:
    """Return the number of an element in C order, as an index."""
    result: Expr = ZERO
    for place, (size, kind) in enumerate(axes):
        if kind is IterKind.BROADCAST:
            continue
        own = Coordinate(place)
        result = (
            own if result is ZERO else Op("add", (Op("mul", (result, size), index), own), index)
        )
    return result
