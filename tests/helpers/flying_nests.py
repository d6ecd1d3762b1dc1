"""Copies in flight: a pipeline as a nest text with claims, its mutants, fusions that have one."""

from __future__ import annotations

import loopnest as ln

PT = ln.ParallelType


def mirrored_sums() -> ln.Fusion:
    """Return ``y[i] = sum over n of x[n, 63 - i]``, of a copy of x in shared memory."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 64), ln.float32)
        mirrored = ln.flip(x, 1).named("mirrored")
        f.output(ln.sum(mirrored, axis=0), "y")
    tile = x.cache_after().named("tile")
    ln.inline_most([mirrored])
    tile.memory = ln.SHARED
    return f


def pipeline(stages: int, prefetch: int) -> str:
    """Return a nest that computes `mirrored_sums`, each row copied some iterations ahead."""
    ahead = "".join(
        f"""\
if {stage} < N:
  for i1 in 64:  # block_x
    issue cp.async:
      tile[{stage}, i1] = x[{stage}, i1]  # tile({stage}, i1)
commit
"""
        for stage in range(prefetch)
    )
    return f"""\
kernel k(x: float32[N, 64]) -> (y: float32[64])
tile: float32[{stages}, 64] shared  # tile
acc: float32[1] local  # y
for i0 in 64:  # block_x
  acc[0] = 0.0  # init y(0, i0)
{ahead}for i2 in N:
  wait {prefetch - 1}
  barrier block
  if i2 + {prefetch} < N:
    for i3 in 64:  # block_x
      issue cp.async:
        tile[(i2 + {prefetch}) % {stages}, i3] = x[i2 + {prefetch}, i3]  # tile(i2 + {prefetch}, i3)
  commit
  for i4 in 64:  # block_x
    one: float32[1] local  # mirrored
    one[0] = tile[i2 % {stages}, 63 - i4]  # mirrored(i2, i4)
    acc[0] = acc[0] + one[0]  # update y(i2, i4)
for i5 in 64:  # block_x
  y[i5] = acc[0]  # finish y(0, i5)"""


def mutants(stages: int, prefetch: int) -> dict[str, str]:
    """Return wrong versions of the pipeline, by what was done to it."""
    text, wait = pipeline(stages, prefetch), f"  wait {prefetch - 1}\n"
    made = {
        "no wait": (wait, ""),
        "no barrier": ("  barrier block\n", ""),
        "waits for one less": (wait, f"  wait {prefetch}\n"),
        "waits behind the barrier": (f"{wait}  barrier block\n", f"  barrier block\n{wait}"),
        "no commit": ("  commit\n  for i4", "  for i4"),
        "no first commit": ("\ncommit\n", "\n"),
    }
    found = {name: text.replace(old, new, 1) for name, (old, new) in made.items()}
    if stages == prefetch + 1:
        fewer = text.replace(f"float32[{stages}, 64]", f"float32[{prefetch}, 64]")
        found["a stage too few"] = fewer.replace(f"% {stages}", f"% {prefetch}")
    assert text not in found.values()
    return found


def plain(text: str) -> str:
    """Return a nest text without claims."""
    lines = [line.partition("  # ") for line in text.splitlines()]
    return "\n".join(
        [code + mark + note if note == "block_x" else code for code, mark, note in lines]
    )


def column_sums(
    stages: int = 2,
    prefetch: int | None = None,
    *,
    dtype: ln.DType = ln.float32,
    lanes: int = 4,
    wide: bool = True,
) -> ln.Fusion:
    """Return ``y[d] = sum over n of 2 x[n, d]`` with copies in flight, four rows a group."""
    with ln.Fusion("column_sums") as f:
        x = f.input("x", ("N", "D"), dtype)
        y = f.output(ln.sum(x * 2, axis=0, dtype=dtype), "y")
    tile, total = x.cache_after().named("tile"), y.cache_before()
    tile.memory = ln.SHARED
    y.split(0, 128)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    total.compute_at(y, 1)
    total.split(2, 4)
    total.reorder({1: 2, 2: 1})  # [D / 128, N / 4, 128, 4]
    total.axis(2).parallelize(PT.block_x)
    tile.compute_at(total, 2)
    tile.reorder({-1: -2})
    tile.split(-1, lanes)
    tile.merge(-3)
    tile.split(-2, 128)
    tile.axis(-2).parallelize(PT.block_x)
    if wide:
        tile.axis(-1).parallelize(PT.vectorize)
    f.inline_most()
    tile.move_by("cp.async")
    return f if stages == 1 else tile.circular_buffer(stages, prefetch).fusion
