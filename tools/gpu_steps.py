"""The steps of `gpu_check.py` on one subject; each returns what its cells of the table say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from unittest import mock

import numpy as np
from filelock import FileLock
from gpu_peers import Torch
from gpu_subjects import Sizes, Subject
from gpu_tools import CHECKS, child, count, sanitize

import loopnest as ln
from loopnest.backends.cuda.driver.device_array import DeviceArray, uploaded
from loopnest.backends.cuda.driver.gpu_driver import find_driver
from loopnest.base.errors import LaunchError
from loopnest.devtools.harness import Arguments, Wanted, judge, make_arguments, oracle
from loopnest.facade.kernel_class import compile
from loopnest.launch.launch_plan import Planner

Found = dict[str, Any]
"""What a step found, as JSON has it."""

Run = Callable[[Any, Arguments, ln.Fusion], Any]


ALONE = FileLock(Path(gettempdir()) / "loopnest_gpu_times.lock")
"""Held by the one process that measures."""


# Results


def results(subject: Subject) -> Found:
    """Compare with the oracle at all sizes: arrays of the host, of the GPU, and 64-bit indices.

    Each run has other values, so that what an earlier one left in memory is wrong.
    """
    fusion = subject.fusion()
    function = compile(subject.kernel, target="cuda")
    variants, runs = set(), 0
    small = subject.small()
    for place, sizes in enumerate((*small, dict(subject.definition.sizes))):
        variants.add(subject.kernel.launch(**_own(subject, sizes)).variant)
        every = place < 4 or sizes is small[-1]
        for way, run in WAYS.items() if every else [("host", on_host)]:
            try:
                arguments = make_arguments(
                    fusion, {**subject.definition.sizes, **sizes}, subject.definition.ranges, runs
                )
            except LaunchError:  # indices into an axis that is empty: no data is legal
                continue
            runs += 1
            wanted = oracle(fusion, arguments)
            if wanted is None:
                continue
            wrong = _wrong(fusion, arguments, run(function, arguments, fusion), wanted)
            if wrong:
                named = ", ".join([f"{k}={v}" for k, v in sizes.items()])
                return {"results": f"wrong at {named} ({way}): {wrong}"}
    missing = {"vector", "scalar"} - variants if subject.kernel.has_scalar else set()
    told = f"; no size took the {', '.join(sorted(missing))} variant" if missing else ""
    return {"results": f"right ({runs} runs){told}"}


def _own(subject: Subject, sizes: Mapping[str, int]) -> Sizes:
    return {name: sizes[name] for name in subject.symbols}


def _wrong(fusion: ln.Fusion, arguments: Arguments, actual: Any, wanted: Wanted) -> str:
    bad = [v for v in judge(fusion, arguments.sizes, actual, wanted) if not v.ok]
    return str(bad[0]) if bad else ""


def on_host(function: Any, arguments: Arguments, fusion: ln.Fusion) -> Any:
    """Run on NumPy's arrays."""
    return function(*arguments.fresh(), **arguments.keywords(fusion))


def on_device(function: Any, arguments: Arguments, fusion: ln.Fusion) -> Any:
    """Run on arrays that lie on the GPU already."""
    given = [on_gpu(array) for array in arguments.arrays]
    found = function(*given, **arguments.keywords(fusion))
    return tuple([a.numpy() for a in found]) if isinstance(found, tuple) else found.numpy()


def with_wide_indices(function: Any, arguments: Arguments, fusion: ln.Fusion) -> Any:
    """Run the build whose indices have 64 bits, which launches beyond 2^31 elements take."""
    fresh = compile(function.kernel, target="cuda")
    with mock.patch.object(Planner, "_index_bits", return_value=64):
        return on_host(fresh, arguments, fusion)


WAYS: Mapping[str, Run] = {
    "host": on_host,
    "GPU": on_device,
    "64-bit indices": with_wide_indices,
}


def on_gpu(array: Any) -> DeviceArray:
    """Return a copy of an array of the host on the GPU."""
    driver = find_driver()
    (element,) = [d for d in _types() if d.numpy == array.dtype]
    with driver.current():
        memory = uploaded(np.ascontiguousarray(array), driver, 0).owner
        return DeviceArray(memory, array.shape, element, 0)  # type: ignore[arg-type]


@lru_cache
def _types() -> Sequence[Any]:
    from loopnest.scalar import dtypes

    return dtypes.ALL


# Times


def times(subject: Subject, torch: Torch | None) -> Found:
    """Time launches at large sizes by events, and torch on the same arrays.

    All is compiled and copied first; what is timed has the GPU to itself, if other processes here
    measure by this function too.
    """
    fusion = subject.fusion()
    sizes = subject.large()
    arguments = make_arguments(fusion, sizes, subject.definition.ranges)
    function = compile(subject.kernel, target="cuda")
    given, keywords = [on_gpu(array) for array in arguments.arrays], arguments.keywords(fusion)
    function(*given, **keywords)
    peers = None if torch is None else torch.prepare(subject.definition.name, arguments.arrays)
    with ALONE:
        found: Found = {"sizes": sizes, "moved": subject.moved(sizes),
                        "seconds": function.bench(*given, **keywords).seconds}  # fmt: skip
        if peers is not None:
            told = peers()
            found |= {"eager": told.eager, "compiled": told.compiled}
    return found


def copy_bandwidth(torch: Torch | None) -> float:
    """Return the bytes a second of a copy: the better of torch's and of a kernel of ours."""
    types = ln.ParallelType
    with ln.Fusion("copy") as f:
        y = f.output(f.input("x", ("N",), ln.float32), "y")
    y.split(0, 4)
    y.split(0, 256)
    y.parallelize({0: types.grid_x, 1: types.block_x, 2: types.vectorize})
    found = compile(f, target="cuda").bench(on_gpu(np.zeros(1 << 28, np.float32)))
    ours = found.bytes / found.seconds
    return ours if torch is None else max(ours, torch.copy_bandwidth())


# Other tools, around a process that runs the kernel


def checks(subject: Subject, seconds: float) -> Found:
    """Let compute-sanitizer watch launches at ragged sizes of both variants."""
    command = child(subject, subject.small()[:4])
    return {"checks": {name: sanitize(name, command, seconds) for name in CHECKS}}


def counts(subject: Subject, seconds: float) -> Found:
    """Let Nsight Compute count a launch at large sizes, beside what its profile says."""
    sizes = subject.large()
    found = count(subject.kernel.name, child(subject, [sizes], "counts"), seconds)
    if found is None:
        return {}
    launch = ln.profile(subject.kernel, device="H100", **_own(subject, sizes)).launches[0]
    sectors = sum([a.sectors for a in launch.accesses if not a.atomic])
    wavefronts = sum([a.wavefronts for a in launch.accesses])
    return {"sizes": sizes, "moved": subject.moved(sizes), "bytes": found.bytes,
            "conflicts": found.conflicts, "exact": launch.exact,
            "sectors": [found.sectors, sectors],
            "wavefronts": [found.wavefronts, wavefronts]}  # fmt: skip


def once(subject: Subject, sizes: Sequence[Sizes], alone: bool = False) -> None:
    """Run a kernel once at each of the sizes: what the tools watch, as the only one or not."""
    fusion = subject.fusion()
    function = compile(subject.kernel, target="cuda")
    for found in sizes:
        wanted = {**subject.definition.sizes, **found}
        arguments = make_arguments(fusion, wanted, subject.definition.ranges)
        with ALONE if alone else nullcontext():
            function(*arguments.arrays, **arguments.keywords(fusion))
