"""Vectorized loops in CUDA text: wide loads, lanes on registers, wide stores.

A copy is one assignment, in words of 32 bits where elements are smaller: compilers keep lanes of 16
bits apart, and a store of what went through a loop falls into pieces. Everything else has a scope
of its own::

    ln_wide<4>(&T2[0]) = ln_wide<4>(&x[i * 4]);  // T2, 4 lanes
    ln_wide<2>((unsigned int *)&T3[0]) = ln_wide<2>((const unsigned int *)&h[i * 4]);  // 4 lanes

    {  // i2 vectorize
      const ln_vec<float, 4> x_v = ln_wide<4>(&x[i * 4]);
      ln_vec<float, 4> y_v;
      #pragma unroll
      for (idx_t i2 = 0; i2 < 4; ++i2) {
        y_v[i2] = x_v[i2] * 2.0f;  // y
      }
      ln_wide<4>(&y[i * 4]) = y_v;
    }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopnest.kir import Loop, Program, Store
from loopnest.kir.vector_access import VectorFinder, WideAccess, first_lane, is_vector
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Expr, Load

WORD = 4
"""Bytes of a register."""

MAX_PIECE = 16
"""Bytes of the widest access; register arrays that one touches are aligned to it."""

WIDE = """\
// N elements that are accessed together, in pieces of BYTES.
template <class T, int N, int BYTES = (sizeof(T) * N < 16 ? sizeof(T) * N : 16)>
struct __align__(BYTES) ln_vec {
  T lane[N];
  __device__ __forceinline__ T &operator[](int i) { return lane[i]; }
  __device__ __forceinline__ const T &operator[](int i) const { return lane[i]; }
};
template <int N, int... BYTES, class T>
static __device__ __forceinline__ ln_vec<T, N, BYTES...> &ln_wide(T *place) {
  return *(ln_vec<T, N, BYTES...> *)place;
}
template <int N, int... BYTES, class T>
static __device__ __forceinline__ const ln_vec<T, N, BYTES...> &ln_wide(const T *place) {
  return *(const ln_vec<T, N, BYTES...> *)place;
}"""


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring elements that are accessed together: `index` is that of the first."""

    buffer: Buffer
    index: tuple[Expr, ...]
    flat: bool


@dataclass(frozen=True, slots=True)
class WideCopy:
    """A vectorized loop that is one assignment of all its lanes.

    Args:
        store: its one statement.
        target: where it stores.
        source: where it loads.
        template: the arguments of ``ln_wide``.
        piece: the bytes of each access.
        words: the type that is copied, where it is not that of the elements; else "".
        accesses: the wide ones.
    """

    store: Store
    target: Span
    source: Span
    template: str
    piece: int
    words: str
    accesses: tuple[WideAccess, ...]


@dataclass(frozen=True, slots=True)
class WideLoop:
    """A vectorized loop with wide accesses around its lanes."""

    accesses: tuple[WideAccess, ...]

    @property
    def loads(self) -> tuple[WideAccess, ...]:
        """Those before the lanes."""
        return tuple([a for a in self.accesses if not a.is_store])

    @property
    def stores(self) -> tuple[WideAccess, ...]:
        """Those behind the lanes."""
        return tuple([a for a in self.accesses if a.is_store])


def plan_vectors(program: Program) -> dict[Loop, WideCopy | WideLoop]:
    """Return how the vectorized loops of `program` are printed; others are plain loops."""
    loops = [n for n in program.nodes if isinstance(n, Loop) and is_vector(n)]
    found: dict[Loop, WideCopy | WideLoop] = {}
    if not loops:
        return found
    finder = VectorFinder(program)
    for loop in loops:
        accesses = finder.of_loop(loop)
        if accesses:
            found[loop] = _copy(loop, finder, accesses) or WideLoop(accesses)
    return found


def _copy(loop: Loop, finder: VectorFinder, accesses: tuple[WideAccess, ...]) -> WideCopy | None:
    """Return a loop as a copy where it is one, both sides of which may be accessed wide."""
    piece = finder.copied_pieces(loop)
    if not piece:
        return None
    (store,) = loop.body
    assert isinstance(store, Store)
    assert isinstance(store.value, Load)
    assert isinstance(loop.extent, int)
    source, sides = store.value, (store.own, store.value)
    target, origin = (Span(s.buffer, first_lane(loop, s.args), s.flat) for s in sides)
    size = max(source.dtype.size, WORD)
    arguments = _template(loop.extent * source.dtype.size // size, size, piece)
    words = "unsigned int" if source.dtype.size < WORD else ""
    return WideCopy(store, target, origin, arguments, piece, words, accesses)


def template(buffer: Buffer, lanes: int, piece_bytes: int) -> str:
    """Return the arguments of ``ln_wide`` for lanes in pieces of that size."""
    return _template(lanes, buffer.dtype.size, piece_bytes)


def _template(count: int, size: int, piece_bytes: int) -> str:
    usual = min(count * size, MAX_PIECE)
    return str(count) if piece_bytes == usual else f"{count}, {piece_bytes}"


def aligned_locals(plans: Mapping[Loop, WideCopy | WideLoop]) -> frozenset[Buffer]:
    """Return the register arrays that wide copies read or write."""
    return frozenset(
        span.buffer
        for plan in plans.values()
        if isinstance(plan, WideCopy)
        for span in (plan.target, plan.source)
        if span.buffer.memory is Memory.LOCAL
    )
