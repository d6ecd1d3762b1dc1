"""Math and nests of kernels whose threads exchange values, each by another mechanism."""

from __future__ import annotations

import loopnest as ln
from helpers.verify_nests import report_on
from loopnest.proofs import Report


def transposed() -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        t = ln.permute(x, (1, 0)).named("t")
        f.output(t * 2.0, "y")
    return f


TILE = """
kernel k(x: float32[N, M]) -> (y: float32[M, N])
for i0 in ceildiv(M, 8):  # grid_x
  for i1 in ceildiv(N, 8):  # grid_y
    t: float32[8, 8] shared
    for i2 in 8:  # block_y
      if i1 * 8 + i2 < N:
        for i3 in 8:  # block_x
          if i0 * 8 + i3 < M:
            t[i2, i3] = x[i1 * 8 + i2, i0 * 8 + i3]  # t(i0 * 8 + i3, i1 * 8 + i2)
    barrier block
    for i4 in 8:  # block_y
      if i0 * 8 + i4 < M:
        for i5 in 8:  # block_x
          if i1 * 8 + i5 < N:
            y[i0 * 8 + i4, i1 * 8 + i5] = t[i5, i4] * 2.0  # y(i0 * 8 + i4, i1 * 8 + i5)
"""


def copied() -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        t = (x * 2.0).named("t")
        f.output(t + 1.0, "y")
    return f


EXCHANGE = """
kernel k(x: float32[N]) -> (y: float32[N])
t: float32[64] shared
for i0 in ceildiv(N, 64):
  for i1 in 64:  # block_x
    if i0 * 64 + i1 < N:
      t[i1] = x[i0 * 64 + i1] * 2.0  # t(i0 * 64 + i1)
  barrier block
  for i2 in 64:  # block_x
    if i0 * 64 + (i2 + 1) % 64 < N:
      y[i0 * 64 + (i2 + 1) % 64] = t[(i2 + 1) % 64] + 1.0  # y(i0 * 64 + (i2 + 1) % 64)
  barrier block
"""


def product() -> ln.Fusion:
    with ln.Fusion("k") as f:
        a = f.input("a", ("M", "K"), ln.float32)
        b = f.input("b", ("K", "N"), ln.float32)
        left, right = (a + 1.0).named("left"), (b + 1.0).named("right")
        f.output(left @ right, "y")
    return f


GEMM = """
kernel k(a: float32[M, K], b: float32[K, N]) -> (y: float32[M, N])
for i0 in ceildiv(M, 8):  # grid_y
  for i1 in ceildiv(N, 8):  # grid_x
    acc: float32[1] local  # y
    acc[0] = 0.0  # init y(i0 * 8 + block_y, i1 * 8 + block_x, 0)
    left: float32[8, 8] shared
    right: float32[8, 8] shared
    for i2 in ceildiv(K, 8):
      for i3 in 8:  # block_y
        for i4 in 8:  # block_x
          if i0 * 8 + i3 < M and i2 * 8 + i4 < K:
            left[i3, i4] = a[i0 * 8 + i3, i2 * 8 + i4] + 1.0  # left(i0 * 8 + i3, i2 * 8 + i4)
          if i2 * 8 + i3 < K and i1 * 8 + i4 < N:
            right[i3, i4] = b[i2 * 8 + i3, i1 * 8 + i4] + 1.0  # right(i2 * 8 + i3, i1 * 8 + i4)
      barrier block
      for i5 in 8:  # block_y
        for i6 in 8:  # block_x
          if i0 * 8 + i5 < M and i1 * 8 + i6 < N:
            for i7 in 8:
              if i2 * 8 + i7 < K:
                l: float32[1] local
                r: float32[1] local
                p: float32[1] local
                l[0] = left[i5, i7]  # T4(i0 * 8 + i5, 0, i2 * 8 + i7)
                r[0] = right[i7, i6]  # T5(0, i1 * 8 + i6, i2 * 8 + i7)
                p[0] = l[0] * r[0]  # T6(i0 * 8 + i5, i1 * 8 + i6, i2 * 8 + i7)
                acc[0] = acc[0] + p[0]  # update y(i0 * 8 + i5, i1 * 8 + i6, i2 * 8 + i7)
      barrier block
    for i8 in 8:  # block_y
      for i9 in 8:  # block_x
        if i0 * 8 + i8 < M and i1 * 8 + i9 < N:
          y[i0 * 8 + i8, i1 * 8 + i9] = acc[0]  # finish y(i0 * 8 + i8, i1 * 8 + i9, 0)
"""


def summed() -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.sum(x, axis=1), "y")
    return f


BLOCK = """
kernel k(x: float32[N, D]) -> (y: float32[N])
for i0 in N:  # grid_x
  acc: float32[1] local  # y
  acc[0] = 0.0  # init y(i0, 0)
  for i1 in ceildiv(D, 128):
    for i2 in 128:  # block_x
      if i1 * 128 + i2 < D:
        acc[0] = acc[0] + x[i0, i1 * 128 + i2]  # update y(i0, i1 * 128 + i2)
  v15 = sum(acc[0]) over block_x:
    let v0 = acc[0]
    let v1 = shuffle_xor(v0, 16)
    let v2 = v0 + v1
    let v3 = shuffle_xor(v2, 8)
    let v4 = v2 + v3
    let v5 = shuffle_xor(v4, 4)
    let v6 = v4 + v5
    let v7 = shuffle_xor(v6, 2)
    let v8 = v6 + v7
    let v9 = shuffle_xor(v8, 1)
    let v10 = v8 + v9
    part: float32[4] shared
    if block_x % 32 == 0:
      part[block_x // 32] = v10  # partial y
    barrier block
    let v11 = part[block_x % 4]
    let v12 = shuffle_xor(v11, 2)
    let v13 = v11 + v12
    let v14 = shuffle_xor(v13, 1)
    let v15 = v13 + v14
  if block_x == 0:
    y[i0] = v15  # finish y(i0, 0)
"""


ODD = """
kernel k(x: float32[N, D]) -> (y: float32[N])
for i0 in N:  # grid_x
  acc: float32[1] local  # y
  acc[0] = 0.0  # init y(i0, 0)
  for i1 in ceildiv(D, 33):
    for i2 in 33:  # block_x
      if i1 * 33 + i2 < D:
        acc[0] = acc[0] + x[i0, i1 * 33 + i2]  # update y(i0, i1 * 33 + i2)
  v9 = sum(acc[0]) over block_x:
    slots: float32[33] shared
    slots[block_x] = acc[0]  # partial y
    barrier block
    total: float32[1] local
    total[0] = 0.0  # init y
    for i3 in 33:
      total[0] = total[0] + slots[i3]  # update y
    let v9 = total[0]
  if block_x == 0:
    y[i0] = v9  # finish y(i0, 0)
"""


COLUMNS = """
kernel k(x: float32[N, D]) -> (y: float32[N])
for i0 in ceildiv(N, 16):  # grid_x
  acc: float32[1] local  # y
  acc[0] = 0.0  # init y(i0 * 16 + block_x, 0)
  for i1 in 16:  # block_x
    if i0 * 16 + i1 < N:
      for i2 in ceildiv(D, 16):
        for i3 in 16:  # block_y
          if i2 * 16 + i3 < D:
            acc[0] = acc[0] + x[i0 * 16 + i1, i2 * 16 + i3]  # update y(i0 * 16 + i1, i2 * 16 + i3)
  v8 = sum(acc[0]) over block_y:
    slots: float32[16, 16] shared
    slots[block_y, block_x] = acc[0]  # partial y
    barrier block
    if block_y + 8 < 16:
      slots[block_y, block_x] = slots[block_y, block_x] + slots[block_y + 8, block_x]  # partial y
    barrier block
    if block_y + 4 < 8:
      slots[block_y, block_x] = slots[block_y, block_x] + slots[block_y + 4, block_x]  # partial y
    barrier block
    if block_y + 2 < 4:
      slots[block_y, block_x] = slots[block_y, block_x] + slots[block_y + 2, block_x]  # partial y
    barrier block
    if block_y + 1 < 2:
      slots[block_y, block_x] = slots[block_y, block_x] + slots[block_y + 1, block_x]  # partial y
    barrier block
    let v8 = slots[0, block_x]
  if block_y == 0:
    for i4 in 16:  # block_x
      if i0 * 16 + i4 < N:
        y[i0 * 16 + i4] = v8  # finish y(i0 * 16 + i4, 0)
"""


def total() -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.sum(x, axis=0), "y")
    return f


GRID = """
kernel k(x: float32[N]) -> (y: float32[])
parts: float32[4] global  # y
count: int32[1] global
acc: float32[1] local  # y
acc[0] = 0.0  # init y(0)
for i0 in ceildiv(N, 4):
  for i1 in 4:  # grid_x
    if i0 * 4 + i1 < N:
      acc[0] = acc[0] + x[i0 * 4 + i1]  # update y(i0 * 4 + i1)
parts[grid_x] = acc[0]  # partial y
let last = arrive(count[0], 4)
if last:
  acc[0] = 0.0  # init y(0)
  for i2 in 4:
    acc[0] = acc[0] + parts[i2]  # update y(0)
  y[0] = acc[0]  # finish y(0)
"""


TOGETHER = """
kernel k(x: float32[N]) -> (y: float32[])
parts: float32[4] global  # y
acc: float32[1] local  # y
acc[0] = 0.0  # init y(0)
for i0 in ceildiv(N, 4):
  for i1 in 4:  # grid_x
    if i0 * 4 + i1 < N:
      acc[0] = acc[0] + x[i0 * 4 + i1]  # update y(i0 * 4 + i1)
parts[grid_x] = acc[0]  # partial y
barrier grid
acc[0] = 0.0  # init y(0)
for i2 in 4:
  acc[0] = acc[0] + parts[i2]  # update y(0)
if grid_x == 0:
  y[0] = acc[0]  # finish y(0)
"""


def chained() -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 8), ln.float32)
        t = (x * 2.0).named("t")
        v = (t + 1.0).named("v")
        u = (v * 3.0).named("u")
        f.output(u * 2.0, "y")
        f.output(t + 4.0, "z")
    return f


ALIAS = """
kernel k(x: float32[N, 8]) -> (y: float32[N, 8], z: float32[N, 8])
for i0 in N:  # grid_x
  t: float32[8] shared
  u: float32[8] shared = t
  v: float32[1] local
  for i1 in 8:  # block_x
    t[i1] = x[i0, i1] * 2.0  # t(i0, i1)
  barrier block
  v[0] = t[(block_x + 1) % 8] + 1.0  # v(i0, (block_x + 1) % 8)
  z[i0, block_x] = t[block_x] + 4.0  # z(i0, block_x)
  barrier warp
  u[(block_x + 1) % 8] = v[0] * 3.0  # u(i0, (block_x + 1) % 8)
  barrier block
  for i2 in 8:  # block_x
    y[i0, i2] = u[i2] * 2.0  # y(i0, i2)
"""


CASES = {
    "tile": (transposed, TILE),
    "exchange": (copied, EXCHANGE),
    "gemm": (product, GEMM),
    "block": (summed, BLOCK),
    "odd": (summed, ODD),
    "columns": (summed, COLUMNS),
    "grid": (total, GRID),
    "together": (total, TOGETHER),
    "alias": (chained, ALIAS),
}


def on(name: str, *edits: tuple[str, str, int]) -> Report:
    """Return what verify says of a case with texts replaced: (old, new, which occurrence)."""
    make, text = CASES[name]
    for old, new, number in edits:
        parts = text.split(old)
        assert len(parts) > number, f"'{old}' is not there"
        text = old.join(parts[:number]) + new + old.join(parts[number:])
    return report_on(make(), text)
