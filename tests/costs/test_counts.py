"""Counts of costs: exact beside every point counted by itself, and the interpreter's stores."""

import contextlib
import importlib
import io
import math
import random
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
from costs.counting import by_interpreter, by_points
from fuzzing.fusions import FusionWriter
from loopnest.costs.iteration_classes import period
from loopnest.costs.launch_counts import count_launches, plain
from loopnest.devtools.fuzzing import Failure
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.devtools.harness import make_arguments
from loopnest.devtools.kernel_def import kernels_of
from loopnest.devtools.trial_sizes import trial_sizes
from loopnest.kir.tiles import in_registers
from loopnest.proofs.point_arrays import NoLaunch, TooMany, Undecidable
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Index, Op, integer

GRID, BLOCK = ln.ParallelType.grid_x, ln.ParallelType.block_x


def compare(program, sizes):
    """Hold the counts of each launch against those of every point; return how many accesses."""
    compared = 0
    for part, counts in zip(program.launches, count_launches(program, sizes), strict=True):
        if not counts.exact or counts.sampled:
            continue
        slow = by_points(plain(in_registers(part)), sizes)
        quick = {}
        for access in counts.accesses:
            told = quick.setdefault(f"{'store' if access.writes else 'load'} {access.access}", {})
            for name in ("elements", "requests", "sectors", "wavefronts"):
                told[name] = told.get(name, 0) + getattr(access, name)
            assert access.least <= access.wavefronts
        for text, found in slow.items():
            memory = "sectors" if quick.get(text, {}).get("sectors") else "wavefronts"
            for name in ("elements", "requests", memory):
                at = f"{text}: {name} at {sizes}\n{program.name}"
                assert quick.get(text, {}).get(name, 0) == found[name], at
            compared += 1
    return compared


def random_kernel(seed):
    rng = random.Random(seed)
    session = Session(f"c{seed}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            with session.fusion:
                FusionWriter(session, rng).write()
            ScheduleWriter(session, rng).write()
        return ln.lower(session.fusion), session.fusion
    except (Failure, ln.LoopnestError):
        return None


@pytest.mark.parametrize("block", range(4))
def test_random_schedules(block, monkeypatch):
    """Accesses are those of all points, and stores those of a run by the interpreter."""
    compared = 0
    for seed in range(40 * block, 40 * block + 40):
        made = random_kernel(seed)
        if made is None:
            continue
        kernel, fusion = made
        for sizes in list(trial_sizes(kernel.program))[:2]:
            with contextlib.suppress(NoLaunch, TooMany, Undecidable, ln.LaunchError):
                config = kernel.launch(**sizes)
                if config.is_empty:
                    continue
                chosen = (
                    kernel.scalar if config.variant == "scalar" and kernel.has_scalar else kernel
                )
                compared += compare(chosen.program, sizes)
                stores(chosen, fusion, sizes, monkeypatch)
    assert compared > 50


def stores(kernel, fusion, sizes, monkeypatch):
    """Hold stores against those of a run by the interpreter."""
    counts = count_launches(kernel.program, sizes)
    if not all(one.exact and not one.sampled for one in counts):
        return
    found = by_interpreter(kernel, make_arguments(fusion, sizes), fusion, monkeypatch)
    own = {}
    for access in [a for one in counts for a in one.accesses if a.writes]:
        own[access.buffer] = own.get(access.buffer, 0) + access.elements
    assert {k: v for k, v in own.items() if v} == {k: v for k, v in found.items() if v}


@pytest.mark.parametrize("kinds", [["grid_x"], ["grid_x", "block_x"], ["grid_y"]], ids="-".join)
@pytest.mark.parametrize("sizes", [{"N": 5, "M": 7}, {"N": 1, "M": 40}], ids=str)
def test_one_block_of_all_is_the_last(kinds, sizes, monkeypatch):
    """It alone reads the sums of all blocks, once."""
    with ln.Fusion("columns") as f:
        f.output(ln.sum(f.input("x", ("N", "M"), ln.float32), 0), "y")
    f["y"].parallelize({i: ln.ParallelType[kind] for i, kind in enumerate(kinds)})
    kernel = ln.lower(f)
    assert "arrive(" in str(kernel)
    stores(kernel, f, sizes, monkeypatch)
    (launch,) = count_launches(kernel.program, sizes)
    assert launch.exact
    assert {a.elements for a in launch.accesses if a.buffer == "y_blocks"} == {
        math.prod(sizes.values())
    }


def defined_in(name):
    """Return the kernels of a file of kernels/, which is loaded for that."""
    importlib.import_module(f"kernels.{name}")
    found = kernels_of(f"kernels.{name}")
    assert found
    return found


KERNELS = sorted((Path(__file__).parents[2] / "kernels").glob("*.py"))


@pytest.mark.parametrize("file", KERNELS, ids=lambda f: f.stem)
def test_kernels(file):
    """Every schedule for a GPU, at sizes that its tiles do not divide."""
    for definition in defined_in(file.stem):
        for schedule in [s for s in definition.schedules if s.startswith("gpu")]:
            kernel = ln.lower(definition.fusion(schedule))
            for sizes in list(trial_sizes(kernel.program))[:3]:
                with contextlib.suppress(NoLaunch, TooMany, Undecidable, ln.LaunchError):
                    config = kernel.launch(**sizes)
                    if not config.is_empty:
                        scalar = config.variant == "scalar" and kernel.has_scalar
                        compare((kernel.scalar if scalar else kernel).program, sizes)


def test_large_sizes_are_exact_and_quick():
    """What a launch of 2^33 points does follows from a few of them."""
    from kernels.gemm import gemm

    kernel = ln.lower(gemm.fusion("gpu"))
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    found = ln.profile(kernel, **sizes)
    assert found.exact
    assert found.flops == 2 * 4096**3
    assert [t.moved for t in found.tensors] == [32 * 4096**2 * 4] * 2 + [4096**2 * 4]
    ragged = ln.profile(kernel, M=4095, N=4093, K=4091)
    assert ragged.exact
    assert ragged.tensors[2].written == 4095 * 4093 * 4


@pytest.mark.parametrize("name", ["gemm", "conv2d", "attention"])
def test_drawn_iterations_stand_for_all(name):
    """Counts of few points are near those of many, and are said to be drawn."""
    for definition in defined_in(name):
        kernel = ln.lower(definition.fusion("gpu"))
        many, few = (
            count_launches(kernel.program, definition.sizes, most) for most in (1 << 16, 1 << 11)
        )
        for one, drawn in zip(many, few, strict=True):
            assert drawn.sampled
            assert figures(drawn) == pytest.approx(figures(one), rel=0.2), definition.name


def figures(counts):
    return [
        counts.flops,
        sum(a.sectors for a in counts.accesses),
        sum(a.wavefronts for a in counts.accesses),
        counts.barriers["block"],
    ]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda v: Op("mul", (v, integer(6)), dtypes.index), (1, 6)),
        (lambda v: Op("mod", (v, integer(6)), dtypes.index), (6, 0)),
        (lambda v: Op("floordiv", (v, integer(4)), dtypes.index), (4, 1)),
        (lambda v: Op("bitxor", (v, integer(5)), dtypes.index), (8, 8)),
        (lambda v: Op("mul", (v, v), dtypes.index), None),
        (lambda v: Op("min", (v, integer(7)), dtypes.index), None),
    ],
)
def test_periods(make, expected):
    var = Index("v", integer(64))
    node = make(var)
    found = period(node, var, {var: 64})
    assert found == expected
    if found is not None:
        value = {"mul": lambda v: 6 * v, "mod": lambda v: v % 6, "floordiv": lambda v: v // 4,
                 "bitxor": lambda v: v ^ 5}[node.op]  # fmt: skip
        step, shift = found
        assert all(value(v + step) == value(v) + shift for v in range(50))


def padded(padding):
    """A transpose through SHARED memory whose rows are `padding` elements apart beside 32."""
    with ln.Fusion("turned") as f:
        x = f.input("x", (32, 32), ln.float32)
        f.output(ln.permute(x, (1, 0)), "y")
    y, tile = f["y"], x.cache_after()
    tile.memory = ln.SHARED
    if padding:
        tile.allocation_domain(padding={1: padding})
    y.parallelize({1: BLOCK})
    tile.parallelize({1: BLOCK})
    return ln.lower(f)


def test_a_column_of_a_tile_conflicts():
    """32 lanes read one bank of rows of 32 words: 32 wavefronts a request, 31 of them conflicts."""
    found = ln.profile(padded(0))
    assert found.bank_conflicts == 32 * 31
    (load,) = [a for a in found.accesses if a.memory is ln.SHARED and not a.writes]
    assert (load.requests, load.wavefronts, load.least) == (32, 1024, 32)


def test_data_count_as_the_most_that_they_may_cost():
    with ln.Fusion("looked_up") as f:
        table = f.input("table", ("V",), ln.float32)
        index = f.input("index", ("N",), ln.int32)
        f.output(ln.take(table, index, 0), "y")
    f["y"].split(0, 128)
    f["y"].parallelize({0: GRID, 1: BLOCK})
    found = ln.profile(ln.lower(f), V=1000, N=256)
    assert not found.exact
    (load,) = [a for a in found.accesses if a.buffer == "table"]
    assert (load.requests, load.sectors, load.exact) == (8, 256, False)
    assert "at most: data decide" in str(found)


@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (lambda x, b: ln.where(b, x, False), False),
        (lambda x, b: ln.logical_and(b, x), False),
        (lambda x, b: ln.pad(x, ((1, 2),)), True),
        (lambda x, b: ln.where(b, True, False) ^ x, True),
    ],
)
def test_data_that_choose_whether_an_element_is_loaded_make_counts_inexact(make, exact):
    with ln.Fusion("chosen") as f:
        x = f.input("x", ("N",), ln.bool)
        f.output(make(x, f.input("b", ("N",), ln.bool)), "y")
    f.inline_most()
    found = ln.profile(ln.lower(f), N=8)
    assert found.exact == exact
    loads = {a.buffer: (a.elements, a.exact) for a in found.accesses if not a.writes}
    assert loads["x"][1] == exact
    assert loads["b"] == (8, True) if "b" in loads else exact


def test_a_kernel_of_outputs_without_elements_does_nothing():
    with ln.Fusion("nothing") as f:
        x = f.input("x", (4,), ln.float32)
        t = ln.exp(x)
        f.output(t[:0], "y")
    t.memory = ln.GLOBAL
    kernel = ln.lower(f)
    found = ln.profile(kernel)
    assert (found.special, found.bytes_moved, found.launches) == (0, 0, ())


def test_a_profile_as_numbers():
    with ln.Fusion("sums") as f:
        x = f.input("x", ("N", 256), ln.float32)
        f.output(ln.sum(ln.exp(x), axis=1), "y")
    y = f["y"]
    y.parallelize({0: GRID, 1: BLOCK})
    f.inline_most()
    found = ln.profile(ln.lower(f), N=100, device="a100")
    told = found.to_dict()
    assert told["special"] == 100 * 256
    assert told["bytes_least"] == 100 * 256 * 4 + 100 * 4
    assert told["device"] == "A100"
    assert math.isclose(told["gmem_ratio"], (100 * 256 * 4 + 100 * 32) / told["bytes_least"])
    others = [r["name"] for r in told["roofs"] if r["name"] != "latency"]
    assert others[0] in ("memory", "special functions")
    assert "<caption>" in found._repr_html_()
    assert np.isfinite(found.wide_accesses)


@pytest.mark.parametrize(("rows", "there"), [(4, 4), (1 << 20, 132 * 32)])
def test_latency_bounds_the_time_of_few_bytes_in_flight(rows, there):
    """Of 132 multiprocessors with room for 32 blocks each, those threads load that there are."""
    with ln.Fusion("copied") as f:
        f.output(f.input("x", ("N", 32), ln.float32) * 2.0, "y")
    f["y"].parallelize({0: GRID, 1: BLOCK})
    found = ln.profile(ln.lower(f), N=rows)
    if found.resources is None:
        assert [roof for roof in found.roofs if roof.name == "latency"] == []
        pytest.skip("no NVRTC: occupancy is unknown")
    (roof,) = [roof for roof in found.roofs if roof.name == "latency"]
    read, at_once = rows * 128, there * 32 * 4
    assert roof.seconds == pytest.approx(read * 700e-9 / at_once)
    assert roof.formula == f"{read} bytes that must be read * 700 ns / {at_once} bytes in flight"


@pytest.mark.parametrize("dtype", [ln.float16, ln.float32])
def test_products_of_tensor_cores(dtype):
    """Products by instructions are no arithmetic of lanes, and rows of slices have no conflicts."""
    from kernels.gemm import gemm

    sizes = {"M": 4096, "N": 4096, "K": 4096}
    found = ln.profile(gemm.lower("gpu_mma", dtype=dtype), **sizes)
    assert (found.flops, found.products) == (0, 2 * 4096**3)
    (roof,) = [r for r in found.roofs if r.name == "tensor cores"]
    assert roof.seconds == pytest.approx(2 * 4096**3 * dtype.size / 2 / (4096 * 132 * 1.98e9))
    assert found.exact
    rows = [a for a in found.accesses if a.memory is ln.SHARED and a.width == 16]
    assert rows
    assert sum(a.conflicts for a in rows) == 0
