"""Nest texts of kernels whose threads exchange values."""

from __future__ import annotations


def block_sum(threads, blocks=3):
    """Every thread gets the sum of its block: shuffles in warps, then one slot a warp."""
    lines, value = [], "v0"
    for step, offset in enumerate((16, 8, 4, 2, 1)):
        mode, new = ("xor" if threads % 32 == 0 else "down"), f"v{step + 1}"
        lines.append(f"let u{step} = shuffle_{mode}({value}, {offset})")
        both = f"{value} + u{step}"
        if mode == "down":
            lanes = f"min(32, {threads} - i1 // 32 * 32)"
            both = f"where(i1 % 32 + {offset} < {lanes}, {both}, {value})"
        lines.append(f"let {new} = {both}")
        value = new
    warps = -(-threads // 32)
    inner = "\n".join("      " + line for line in lines)
    return f"""
kernel block_sum(x: float32[{blocks}, {threads}]) -> (y: float32[{blocks}, {threads}])
for i0 in {blocks}:  # grid_x
  for i1 in {threads}:  # block_x
    let v0 = x[i0, i1]
    all = sum(v0) over block_x:
{inner}
      part: float32[{warps}] shared
      total: float32[1] local
      if i1 % 32 == 0:
        part[i1 // 32] = {value}
      barrier block
      total[0] = 0.0
      for i2 in {warps}:
        total[0] = total[0] + part[i2]
      let all = total[0]
    y[i0, i1] = all
"""


NEIGHBOURS = """
kernel neighbours(x: float32[K, 64]) -> (y: float32[K, 64])
s: float32[64] shared
for i0 in 64:  # block_x
  for i1 in K:
    s[i0] = x[i1, i0]
    barrier block
    y[i1, i0] = s[(i0 + 1) % 64]
    barrier block
"""
"""Each thread reads what its neighbour stored; the second barrier is for the next iteration."""

IN_WARPS = """
kernel in_warps(x: float32[K, 70]) -> (y: float32[K, 70])
s: float32[70] shared
for i0 in 70:  # block_x
  for i1 in K:
    s[i0] = x[i1, i0]
    barrier warp
    y[i1, i0] = s[min(i0 // 32 * 32 + 31, 69) - i0 % 32]
    barrier warp
"""
"""Each warp, a partial one too, reverses its values."""

GRID_SUM = """
kernel grid_sum(x: float32[B, 48]) -> (y: float32[1])
blocks: float32[B] global
count: int32[1] global
for i0 in B:  # grid_x
  for i1 in 48:  # block_x
    s: float32[48] shared
    s[i1] = x[i0, i1]
    barrier block
    if i1 == 0:
      blocks[i0] = 0.0
      for i2 in 48:
        blocks[i0] = blocks[i0] + s[i2]
    let last = arrive(count[0], B)
    if last:
      if i1 == 0:
        y[0] = 0.0
        for i3 in B:
          y[0] = y[0] + blocks[i3]
"""
"""The last block sums what all blocks left."""

GRID_STEP = """
kernel grid_step(x: float32[B, 8]) -> (y: float32[B, 8])
w: float32[B, 8] global
for i0 in B:  # grid_x
  for i1 in 8:  # block_x
    w[i0, i1] = x[i0, i1]
    barrier grid
    y[i0, i1] = w[B - 1 - i0, 7 - i1]
"""
"""Every block reads what another one wrote."""

TWO_USES = """
kernel two_uses(x: float32[64]) -> (y: float32[64])
for i0 in 64:  # block_x
  s: float32[64] shared
  s[i0] = x[i0]
  barrier block
  let a = s[63 - i0]
  barrier block
  u: int32[64] shared = s
  u[i0] = 1
  barrier block
  y[i0] = a * float32(u[63 - i0])
"""
"""One space holds floats, then integers."""


def tiled_gemm(m, n, k, tile=16):
    """Blocks of 64 by 64, 256 threads with 4 by 4 sums each, tiles of both in shared memory."""
    place = "(i2 * 16 + i3 + i6 * 256)"
    row, column = f"{place} // {tile}", f"{place} % {tile}"
    return f"""
kernel gemm(a: float32[{m}, {k}], b: float32[{k}, {n}]) -> (c: float32[{m}, {n}])
for i0 in {m // 64}:  # grid_y
  for i1 in {n // 64}:  # grid_x
    ta: float32[{tile}, 65] shared
    tb: float32[{tile}, 64] shared
    for i2 in 16:  # block_y
      for i3 in 16:  # block_x
        sums: float32[4, 4] local
        for i4 in 4:
          for i5 in 4:
            sums[i4, i5] = 0.0
        for i4 in {k // tile}:
          for i6 in {tile // 4}:
            ta[{column}, {row}] = a[i0 * 64 + {row}, i4 * {tile} + {column}]
            tb[{place} // 64, {place} % 64] = b[i4 * {tile} + {place} // 64, i1 * 64 + {place} % 64]
          barrier block
          for i7 in {tile}:
            for i8 in 4:
              for i9 in 4:
                sums[i8, i9] = sums[i8, i9] + ta[i7, i2 * 4 + i8] * tb[i7, i3 * 4 + i9]
          barrier block
        for i8 in 4:
          for i9 in 4:
            c[i0 * 64 + i2 * 4 + i8, i1 * 64 + i3 * 4 + i9] = sums[i8, i9]
"""


def without(text, line, number=0):
    """Return `text` without its `number`-th line of this kind."""
    lines = text.splitlines()
    found = [n for n, each in enumerate(lines) if each.strip() == line]
    del lines[found[number]]
    return "\n".join(lines)
