/* Arithmetic on sizes as loopnest's launches do it: in more bits than sizes have, and saturated, so
 * that nothing overflows. A quotient by 0 is 0; a remainder by 0 sets *bad, and fulfils nothing. */
#ifndef LOOPNEST_SIZES_H
#define LOOPNEST_SIZES_H

#include <stdint.h>

#define LN_SIZE static inline __attribute__((unused))

typedef __int128 ln_size;

#define LN_MOST_SIZE ((ln_size)1 << 120)

LN_SIZE ln_size ln_size_cut(ln_size a) {
  return a > LN_MOST_SIZE ? LN_MOST_SIZE : a < -LN_MOST_SIZE ? -LN_MOST_SIZE : a;
}
LN_SIZE ln_size ln_size_add(ln_size a, ln_size b) { return ln_size_cut(a + b); }
LN_SIZE ln_size ln_size_sub(ln_size a, ln_size b) { return ln_size_cut(a - b); }
LN_SIZE ln_size ln_size_neg(ln_size a) { return -a; }
LN_SIZE ln_size ln_size_mul(ln_size a, ln_size b) {
  ln_size found;
  if (__builtin_mul_overflow(a, b, &found)) return (a < 0) == (b < 0) ? LN_MOST_SIZE : -LN_MOST_SIZE;
  return ln_size_cut(found);
}
LN_SIZE ln_size ln_size_floordiv(ln_size a, ln_size b) {
  return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
}
LN_SIZE ln_size ln_size_ceildiv(ln_size a, ln_size b) { return -ln_size_floordiv(-a, b); }
LN_SIZE ln_size ln_size_mod(ln_size a, ln_size b, int *bad) {
  if (b != 0) return a - ln_size_floordiv(a, b) * b;
  *bad = 1;
  return 0;
}
LN_SIZE ln_size ln_size_min(ln_size a, ln_size b) { return a < b ? a : b; }
LN_SIZE ln_size ln_size_max(ln_size a, ln_size b) { return a > b ? a : b; }

/* The least and the largest value of an index, as `launch/index_width` bounds them. */
typedef struct { ln_size low, high; } ln_range;

LN_SIZE ln_range ln_range_of(ln_size low, ln_size high) { return (ln_range){low, high}; }
LN_SIZE ln_range ln_range_below(ln_range extent) {
  return ln_range_of(0, ln_size_max(extent.high - 1, 0));
}
LN_SIZE ln_range ln_range_add(ln_range a, ln_range b) {
  return ln_range_of(ln_size_add(a.low, b.low), ln_size_add(a.high, b.high));
}
LN_SIZE ln_range ln_range_sub(ln_range a, ln_range b) {
  return ln_range_of(ln_size_sub(a.low, b.high), ln_size_sub(a.high, b.low));
}
LN_SIZE ln_range ln_range_neg(ln_range a) { return ln_range_of(-a.high, -a.low); }
LN_SIZE ln_range ln_range_ends(ln_size a, ln_size b, ln_size c, ln_size d) {
  return ln_range_of(ln_size_min(ln_size_min(a, b), ln_size_min(c, d)),
                     ln_size_max(ln_size_max(a, b), ln_size_max(c, d)));
}
LN_SIZE ln_range ln_range_mul(ln_range a, ln_range b) {
  return ln_range_ends(ln_size_mul(a.low, b.low), ln_size_mul(a.low, b.high),
                       ln_size_mul(a.high, b.low), ln_size_mul(a.high, b.high));
}
LN_SIZE ln_range ln_range_floordiv(ln_range a, ln_range b) {
  if (b.low <= 0) return ln_range_of(ln_size_min(a.low, 0), ln_size_max(a.high, 0));
  return ln_range_ends(ln_size_floordiv(a.low, b.low), ln_size_floordiv(a.low, b.high),
                       ln_size_floordiv(a.high, b.low), ln_size_floordiv(a.high, b.high));
}
LN_SIZE ln_range ln_range_ceildiv(ln_range a, ln_range b) {
  return ln_range_neg(ln_range_floordiv(ln_range_neg(a), b));
}
LN_SIZE ln_range ln_range_mod(ln_range a, ln_range b) {
  (void)a;
  return ln_range_of(0, ln_size_max(b.high - 1, 0));
}
LN_SIZE ln_range ln_range_min(ln_range a, ln_range b) {
  return ln_range_of(ln_size_min(a.low, b.low), ln_size_min(a.high, b.high));
}
LN_SIZE ln_range ln_range_max(ln_range a, ln_range b) {
  return ln_range_of(ln_size_max(a.low, b.low), ln_size_max(a.high, b.high));
}
LN_SIZE ln_range ln_range_where(ln_range a, ln_range b) {
  return ln_range_of(ln_size_min(a.low, b.low), ln_size_max(a.high, b.high));
}
LN_SIZE ln_range ln_range_bits(ln_range a, ln_range b) {
  const ln_size largest = ln_size_max(ln_size_max(-a.low, a.high), ln_size_max(-b.low, b.high));
  ln_size end = 1;
  while (end <= largest) end *= 2;
  return ln_range_of(a.low < 0 || b.low < 0 ? -end : 0, end - 1);
}
LN_SIZE int ln_range_fits(ln_range a, ln_size most) { return a.low >= -most && a.high <= most; }

/* Whether two arrays have memory in common. */
LN_SIZE int ln_overlap(const void *a, ln_size bytes, const void *b, ln_size more) {
  const ln_size first = (ln_size)(uintptr_t)a, second = (ln_size)(uintptr_t)b;
  return bytes > 0 && more > 0 && first < second + more && second < first + bytes;
}

#endif
