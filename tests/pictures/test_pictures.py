"""Pictures: SVG that says of axes, nests, tiles, pipelines and rooflines what is so."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.pictures.tile_picture import pipeline_of, touched_by

PT = ln.ParallelType
SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[2]


def texts(picture: str) -> list[str]:
    """Return the lines of text of a picture, which is checked to be XML."""
    return [node.text or "" for node in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def hints(picture: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(picture).iter(f"{SVG}title")]


def transpose(pad: int = 0) -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """A tile of 32 by 32 whose columns a warp reads."""
    with ln.Fusion("transpose") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.permute(x, (1, 0)), "y")
    tile = x.cache_after()
    tile.memory = ln.SHARED
    y.split(0, 32).split(2, 32).reorder([0, 2, 1, 3])
    tile.compute_at(y, 2)
    y.split(2, 8)
    y.parallelize({0: PT.grid_x, 1: PT.grid_y, 3: PT.block_y, 4: PT.block_x})
    tile.reorder({3: 2}).split(2, 8)
    tile.parallelize({3: PT.block_y, 4: PT.block_x})
    if pad:
        tile.set_allocation(pad={-1: pad})
    return f, y, tile


def test_axes_from_root_to_leaf() -> None:
    _, y, tile = transpose()
    found = texts(y.picture())
    assert found[0] == "y float32 global"
    for label in ("i: D", "i: N", "split by 32", "i0: ceildiv(D, 32)", "grid_x", "i4: 32",
                  "block_x", "root", "leaf", "split by 8", "produced_at 2"):  # fmt: skip
        assert label in found
    assert found.count("split by 32") == 2
    assert "compute_at 2" in texts(tile.picture())
    assert "loop 1: iteration axis of extent ceildiv(N, 32)" in hints(y.picture())


def test_a_tensor_without_transforms_and_a_scalar() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.sum(x), "y")
    assert {"r: N", "r0: N"} <= set(texts(y.picture()))
    assert texts(x.picture())[0] == "x float32 global"
    with ln.Fusion("s") as g:
        z = g.output(ln.full((), 1.0, ln.float32), "z")
    assert texts(z.picture())[0] == "z float32 global"


def test_a_merge_hangs_under_both_of_its_axes() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 4), ln.float32)
        y = f.output(x * 2.0, "y")
    y.merge(0)
    picture = y.picture()
    assert {"i: N", "i: 4", "merge", "i0: N * 4"} <= set(texts(picture))
    assert picture.count('class="link"') == 2


def test_every_line_of_a_nest_is_there() -> None:
    k = ln.lower(transpose()[0])
    found = texts(k.picture())
    lines = [line.strip() for line in str(k).splitlines()[1:]]
    assert found[0] == lines[0]
    assert [line for line in found if line in lines] == lines
    assert "T2: float32[4, 8, 32] in shared memory" in hints(k.picture())


def test_lives_reach_over_the_loops_that_use_a_buffer() -> None:
    """What is made in front of a loop and used in it lives to its end."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 8), ln.float32)
        y = f.output(ln.sum(x, 1), "y")
    t = y.cache_before()
    t.compute_at(y, 1)
    picture = ElementTree.fromstring(ln.lower(f).picture())
    (bar,) = [
        node
        for node in picture.iter(f"{SVG}rect")
        if (title := node.find(f"{SVG}title")) is not None
        and title.text == f"{t.name}: float32[1] in local memory"
    ]
    lines = str(ln.lower(f)).splitlines()[2:]
    first = next(n for n, line in enumerate(lines) if line.strip().startswith(f"{t.name}: "))
    assert float(bar.get("height", 0)) >= 18 * (len(lines) - first) - 4


def test_a_tile_names_its_threads_banks_and_conflicts() -> None:
    k = ln.lower(transpose()[0])
    picture = k.picture("T2", N=64, D=64)
    assert "T2.flat[i2 * 256 + i3 * 32 + i4] stored: no conflicts" in texts(picture)
    assert "T2.flat[i7 * 32 + i5 * 8 + i6] read: conflicts, up to 32 words of a bank" in texts(
        picture
    )
    assert "row 1,1, 5: thread (5, 1, 0) of warp 1, bank 5" in hints(picture)
    wrong = "row 0,5, 9: thread (5, 1, 0) of warp 1, bank 9, 32 words of it in one request"
    assert wrong in hints(picture)
    padded = ln.lower(transpose(1)[0])
    assert "words of a bank" not in padded.picture("T2")
    assert "row 0,1, 0: thread (0, 1, 0) of warp 1, bank 1" in hints(padded.picture("T2"))


def test_threads_of_a_tile_are_those_that_run() -> None:
    """Each element of the tile has the thread whose index maps lead to it."""
    k = ln.lower(transpose()[0])
    (buffer,) = [n.storage for n, _ in k.walk() if isinstance(n, kir.Allocate)]
    stored, read = touched_by(k.program, {"N": 64, "D": 64}, buffer)
    row, column = np.arange(1024) // 32, np.arange(1024) % 32
    assert (stored.element == np.arange(1024)).all()
    assert (read.element == np.arange(1024)).all()
    assert (stored.thread == row % 8 * 32 + column).all()
    assert (read.thread == column % 8 * 32 + row).all()
    assert (stored.ways == 1).all()
    assert (read.ways == 32).all()


def test_global_memory_is_drawn_where_the_first_block_touches_it() -> None:
    found = hints(ln.lower(transpose()[0]).picture("x", N=64, D=64))
    assert "row 31, 31: thread (31, 7, 0) of warp 7" in found
    assert not [line for line in found if line.startswith(("row 32,", "row 0, 32"))]


@pytest.mark.parametrize("strides", [(1, 1), (0, 1), (2, 1)])
def test_memory_whose_elements_have_several_indices(strides: tuple[int, int]) -> None:
    """It is drawn by distances from its first element: those of a row are as far as it is wide."""
    with ln.Fusion("k") as f:
        x = f.input("x", (40, 4), ln.float32, strides=strides)
        y = f.output(x * 2.0, "y")
    y.parallelize({0: PT.block_x})
    last = 39 * strides[0] + 3
    found = hints(ln.lower(f).picture("x"))
    ends = [line for line in found if line.startswith(f"row {last // 64}, ")]
    assert [line for line in ends if re.search(rf"[, .]{last % 64}: thread", line)]


def kernels() -> Iterator[tuple[str, ln.Kernel]]:
    """The schedules of kernels/ that have tiles in SHARED memory, at 256 of each size."""
    for path in sorted((ROOT / "kernels").glob("*.py")):
        for name, value in vars(importlib.import_module(f"kernels.{path.stem}")).items():
            if isinstance(value, ln.KernelDef) and value.name == name:
                for schedule in value.schedules:
                    if schedule.startswith("gpu"):
                        yield f"{name}@{schedule}", value.lower(schedule)


def test_conflicts_are_those_that_profiles_count() -> None:
    """An access has a red frame if and only if the profile counts conflicts of it."""
    compared = 0
    for name, kernel in kernels():
        sizes = {p.name: 64 for p in kernel.params if p.kind == "size"}
        tiles = [n.storage for n, _ in kernel.walk() if isinstance(n, kir.Allocate)]
        shared = [tile for tile in tiles if tile.memory is ln.SHARED]
        if not shared or len(kernel.program.launches) > 1:
            continue
        try:
            profile = ln.profile(kernel, **sizes)
        except ln.LoopnestError:
            continue
        if profile.variant == "scalar":
            continue
        for tile in shared:
            for touched in touched_by(kernel.program, sizes, tile):
                key = (tile.name, touched.access, touched.writes)
                counted = [a for a in profile.accesses if (a.buffer, a.access, a.writes) == key]
                assert touched.worst < 2 or sum([a.conflicts for a in counted]) > 0, (name, key)
                compared += 1
    assert compared > 60


def test_every_kernel_has_its_pictures() -> None:
    drawn = []
    for _, kernel in kernels():
        texts(kernel.picture())
        (first, *_) = [param for param in kernel.params if param.kind == "input"]
        with contextlib.suppress(ln.LaunchError):  # usual sizes do for most
            drawn.append(texts(kernel.picture(first.name)))
    assert len(drawn) > 40


def pipelined(stages: int) -> ln.Kernel:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 64), ln.float32)
        y = f.output(ln.sum(x * 1.0, 0), "y")
    copy = x.cache_after()
    copy.memory = ln.SHARED
    y.parallelize({1: PT.block_x})
    f.inline_most([copy.consumers[0]])
    copy.compute_at(y, 1)
    copy.parallelize({1: PT.block_x})
    copy.circular_buffer(stages)
    return ln.lower(f)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_in_time(stages: int) -> None:
    k = pipelined(stages)
    (buffer,) = [
        n.storage
        for n, _ in k.walk()
        if isinstance(n, kir.Allocate) and n.storage.memory is ln.SHARED
    ]
    pipeline = pipeline_of(k.program, buffer, {"N": 16})
    assert pipeline is not None
    assert (pipeline.stages, pipeline.prefetch, pipeline.in_flight) == (stages, stages - 1, False)
    assert {"stage 0", f"stage {stages - 1}", "copy 0", "read 0"} <= set(
        texts(k.picture(buffer.name))
    )
    events = json.loads(k.chrome_trace(buffer.name))["traceEvents"]
    reads = {e["name"].split()[1]: e for e in events if e["cat"] == "read"}
    for event in events:
        number = event["name"].split()[1]
        if event["cat"] == "copy" and number in reads:
            assert event["tid"] == reads[number]["tid"]
            assert event["ts"] + event["dur"] <= reads[number]["ts"] + 1000


def test_copies_in_flight_end_where_they_are_waited_for() -> None:
    from kernels.gemm import gemm

    events = json.loads(gemm.lower("gpu_async").chrome_trace("T7"))["traceEvents"]
    copies = [e["dur"] for e in events if e["cat"] == "copy"]
    assert set(copies) == {2000}


def test_a_roofline_has_both_points() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 1024), ln.float32)
        y = f.output(ln.sum(x * 0.5, 1), "y")
    y.parallelize({0: PT.grid_x})
    profile = ln.profile(ln.lower(f), N=4096, device="A100")
    least = profile.flops / profile.bytes_least
    moved = profile.flops / profile.bytes_moved
    found = texts(profile.picture())
    assert found[0] == "k (N=4096) on A100"
    assert f"{least:.2f} operations a byte that must move" in found
    assert f"{moved:.2f} operations a byte that warps touch" in found
    none = ln.profile(ln.lower(transpose()[0]), N=64, D=64)
    assert "no operations on floats: memory bounds it" in texts(none.picture())


def test_notebooks_show_them() -> None:
    f, y, _ = transpose()
    k = ln.lower(f)
    assert y._repr_html_() == y.picture() == y.picture()._repr_svg_()
    assert k._repr_html_() == k.picture()
    assert f._repr_html_().startswith("<pre>transpose(x: float32[N, D]) -&gt; ")
    assert f._repr_html_().count("<svg") == 2
    assert ln.profile(k, N=64, D=64)._repr_html_().count("<svg") == 0


def test_a_picture_is_saved(tmp_path: Path) -> None:
    y = transpose()[1]
    path = y.picture().save(tmp_path / "axes.svg")
    assert path.read_text("utf-8") == y.picture()


REFUSED = [
    (("T9",), {}, ln.LoweringError,
     "transpose.picture('T9'): no buffer of shared or global memory is called 'T9'; the buffers "
     "are x, y, T2"),
    ((), {"N": 4}, ln.LaunchError,
     "transpose.picture(N=4): the picture of a nest is the same at all sizes; leave the sizes out, "
     "or name a buffer"),
    (("T2",), {"N": 4}, ln.LaunchError,
     "transpose.picture('T2', N=4): the size D is missing; pass N=..., D=..."),
]  # fmt: skip


@pytest.mark.parametrize(("args", "sizes", "kind", "message"), REFUSED)
def test_what_cannot_be_drawn(args: tuple[str, ...], sizes: dict[str, int], kind: type[Exception],
                              message: str) -> None:  # fmt: skip
    k = ln.lower(transpose()[0])
    with pytest.raises(kind) as told:
        k.picture(*args, **sizes)
    assert str(told.value) == message


def test_what_has_no_stages() -> None:
    k = ln.lower(transpose()[0])
    with pytest.raises(ln.LoweringError) as told:
        k.chrome_trace("T2")
    assert str(told.value) == (
        "transpose.chrome_trace('T2'): T2 has no stages that a loop turns; ask for one by "
        "T2.circular_buffer(stages)"
    )


def test_usual_sizes_that_no_launch_takes() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y")
    f.assume("N % 97 == 1")
    with pytest.raises(ln.LaunchError) as told:
        ln.lower(f).picture("x")
    assert str(told.value) == (
        "k.picture('x'): there are no sizes that all are one of the usual ones; give N=…"
    )


@pytest.mark.parametrize("page", ["pictures", "primitives/split", "primitives/merge"])
def test_pages_draw_what_their_code_makes(page: str) -> None:
    path = ROOT / "sched" / "docs" / "conf.py"
    spec = importlib.util.spec_from_file_location("conf", path)
    assert spec is not None
    assert spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    text = (ROOT / "sched" / "docs" / "guide" / f"{page}.md").read_text("utf-8")
    drawn = conf.drawn(text)
    assert drawn.count("<svg") >= 3
    assert re.sub(r"\n```\{raw\} html\n.*?\n```\n", "", drawn, flags=re.DOTALL) == text
