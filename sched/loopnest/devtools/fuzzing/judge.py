"""The judge: what a fusion computes is held against what its math means.

`expect` is asked before the fusion is scheduled, `check` after. Both raise `Failure`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import loopnest as ln
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.devtools.fuzzing.arrays import Array, make_arrays
from loopnest.devtools.fuzzing.cuda_text import NO_CUDA, failures_of
from loopnest.devtools.fuzzing.declared_shared import too_small
from loopnest.devtools.fuzzing.failures import Failure
from loopnest.devtools.fuzzing.garbage import fill, garbage
from loopnest.devtools.fuzzing.snapshot import Snapshot
from loopnest.facade.kernel_class import Kernel
from loopnest.facade.kernel_class import compile as compile_kernel
from loopnest.facade.kernel_class import lower as lower_fusion
from loopnest.launch.strided_arrays import copied
from loopnest.numerics.compare import compare as compare_elements
from loopnest.numerics.error_bounds import enclosures
from loopnest.numerics.float64_math import stored
from loopnest.numerics.intervals import Interval
from loopnest.scalar.dtypes import DType
from loopnest.schedule.loop_forest import LoopForest
from loopnest.schedule.loop_groups import Conflict

TARGETS = ("interpret", "c") if find_compiler() is not None else ("interpret",)


@dataclass(frozen=True)
class Expected:
    """What a fusion computes of some arrays.

    `outputs` are the oracle's; in `enclosures` lies what a correct kernel gives.
    """

    sizes: Mapping[str, int]
    arrays: Sequence[Array]
    keywords: Mapping[str, Any]
    outputs: Sequence[Array]
    enclosures: Sequence[Interval]
    dtypes: Sequence[DType]
    names: Sequence[str]

    def copies(self) -> list[Array]:
        """Return the inputs to pass: an output in place overwrites its own."""
        return [copied(a) for a in self.arrays]


def expect(
    fusion: ln.Fusion,
    sizes: Mapping[str, int],
    data: int = 0,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Expected:
    """Return what `fusion`, which is not scheduled yet, computes at `sizes`.

    Raises:
        Failure: the oracle gives other values when it bounds errors.
    """
    arrays, keywords = make_arrays(fusion, sizes, data, ranges)
    try:
        outputs = _oracle(fusion, arrays, keywords)
        found = enclosures(fusion, arrays, keywords)
    except ln.LoopnestError:
        raise
    except Exception as error:
        raise Failure("oracle", f"{type(error).__name__}: {error}", where=str(sizes)) from error
    bounds = [found[t.name] for t in fusion.outputs]
    dtypes = [t.dtype for t in fusion.outputs]
    names = [t.name for t in fusion.outputs]
    expected = Expected(sizes, arrays, keywords, outputs, bounds, dtypes, names)
    _require_agreement(expected)
    return expected


def _oracle(
    fusion: ln.Fusion, arrays: Sequence[Array], keywords: Mapping[str, Any]
) -> Sequence[Array]:
    found = ln.evaluate(fusion, *arrays, **keywords)
    return found if isinstance(found, tuple) else (found,)


def _require_agreement(found: Expected) -> None:
    parts = zip(found.outputs, found.enclosures, found.dtypes, found.names, strict=True)
    for output, enclosure, dtype, name in parts:
        with np.errstate(all="ignore"):
            value = stored(enclosure.value, dtype)
        if output.dtype != value.dtype or output.shape != value.shape:
            what = f"{name} is {output.dtype}{output.shape}, not {value.dtype}{value.shape}"
            raise Failure("oracle", what, where=str(found.sizes))
        if output.tobytes() != value.tobytes():
            raise Failure("oracle", f"{name} is not what its bound is of", where=str(found.sizes))
    compare(found.outputs, found, f"{dict(found.sizes)} by ln.evaluate", "oracle")


# A schedule call


@contextmanager
def judged(fusion: ln.Fusion) -> Iterator[None]:
    """Judge a schedule call in a script: a ScheduleError passes if nothing has changed."""
    before = Snapshot(fusion)
    try:
        yield
    except (ln.ScheduleError, ln.NotSupported) as error:
        before.require_same("", error)
        print(f"refused: {error}")
    else:
        before.require_frozen("")


def require_order(fusion: ln.Fusion, line: str = "") -> None:
    """Raise `Failure` where the positions of `fusion` leave no order of expressions."""
    try:
        LoopForest(fusion).check()
    except Conflict as conflict:
        raise Failure("order", conflict.reason, line) from conflict


# Lowering

LEGITIMATE: Mapping[str, str] = {
    "a value crosses threads": r"the reading thread is not the writing one",
    "initial values of other blocks": r"starts from .* each has a memory of its own",
    "two parallel types in one loop": r"for the one and .* for the other",
    "a launch limit": r"a block has \d+ threads|has the extent \d+; use at most",
    "a launch dimension twice": r"one launch dimension may be used once in a nest",
    "a vectorized axis is not innermost": r"is vectorized, but it has \d+ leaf axes",
    "blocks that fold into SHARED memory": r"each block has SHARED memory of its own",
    "a vector of atomic updates": r"is vectorized, but an atomic operation updates one element",
    "the width of a vector": r"its vectorized axis \d+ has the extent",
    "a vector that never divides": r"its vectorized axis of extent \d+ runs over .* divide",
    "a vectorized or cpu_parallel reduction": r"each step of a reduction needs the one before",
    "a read before the store": r"in a later iteration of the \w+ loop \S+ than one that reads it",
    "a race in a parallel loop": r"is computed again in each iteration of the .* loop",
    "a value crosses lanes": r"one lane of the vectorize loop \S+ stores it",
    "an output in place is read late": r"an element could be read after it is overwritten",
    "a swizzle of axes that are not stored": r"its swizzle is over axes that its buffer",
    "a swizzle of other extents": r"its swizzle is over axes of the extents",
    "tiles that store one element": r"overlap, and would store the same elements of",
    "tiles in a wider loop": r"its tiles begin where the windows of \w+ do, but the loop",
    "threads that store one element": r"laid out by its own axes, but several threads",
    "a circular buffer cannot run ahead": r"cannot run ahead of it",
    "a fold by threads cannot run ahead": r"its circular buffer runs ahead in the loop",
    "a circular buffer in a parallel loop": r"the loop that its circular buffer rotates through",
    "a copy of what is no array": r"it is moved by cp.async, from GLOBAL memory",
    "an exchange in register stages": r"its circular buffer in registers unrolls the loop",
    "the order of a reducer": r"do not meet the elements in their order, and",
    "the order of a scan": r"a scan needs the one before|the axis of its scan|inside of its scan",
    "threads of a scan": r"goes through items|over their items twice|no neighbouring elements",
    "memory that ends with its launch": r"memory, which ends with launch",
    "a layout that passes between launches": r"reads it in a later launch .* allocation domain",
    "an input that a launch overwrites": r"launch \d+ overwrites",
    "no common domain": r"a loop that they share has no common domain",
}
"""Why a schedule may have no kernel: name -> what the sentence says."""


def refusal_of(error: ln.LoopnestError) -> str:
    """Return the name of a legitimate refusal by the lowering.

    Raises:
        Failure: it is none.
    """
    text = str(error)
    for name, pattern in LEGITIMATE.items():
        if re.search(pattern, text):
            return name
    raise Failure("lowering", f"{type(error).__name__}: {text}") from error


def lowered(fusion: ln.Fusion) -> Kernel | str:
    """Return the kernel of `fusion`, or why there is none.

    Raises:
        Failure: an error that is no LoweringError or NotSupported, or one without a good reason;
            a lowering that changes the fusion.
    """
    require_order(fusion)
    before = Snapshot(fusion)
    try:
        return lower_fusion(fusion)
    except (ln.LoweringError, ln.NotSupported) as error:
        return refusal_of(error)
    except Exception as error:
        raise Failure("lowering", f"{type(error).__name__}: {error}") from error
    finally:
        before.require_same("ln.lower(f)", None)


def require_texts(kernel: Kernel, fusion: ln.Fusion) -> None:
    """Raise `Failure` where a kernel does not print, or prints differently when lowered again.

    Its C text is looked at where it is compiled.
    """
    try:
        text = str(kernel)
        same = text == str(lower_fusion(fusion))
    except Exception as error:
        raise Failure("printing", f"{type(error).__name__}: {error}") from error
    if not same or not text.startswith("# loopnest nest 1\n"):
        raise Failure("printing", "the same fusion lowers to two texts")
    try:
        small = too_small(kernel.program, kernel.cuda())
    except ln.LoweringError as error:
        if not NO_CUDA.search(str(error)):
            raise Failure("printing", f"LoweringError: {error}") from error
    except Exception as error:
        raise Failure("printing", f"{type(error).__name__}: {error}") from error
    else:
        if small:
            raise Failure("printing", f"shared memory: {small[0]}")


# Runs

_LAUNCH_LIMITS = re.compile(
    r"a block has \d+ threads|has extent \d+; use at most|an axis is split by .* which is 0|"
    r"a block needs \d+ bytes of shared memory"
)


def run(function: Any, expected: Expected, target: str) -> str:
    """Run a compiled kernel once and judge its results; return "" or why it could not start.

    Raises:
        Failure: a wrong result, a fault, a bare error.
    """
    where = f"{dict(expected.sizes)} on {target}"
    arrays = expected.copies()
    out = tuple(
        None if o.inplace else _poisoned(e)
        for o, e in zip(function.kernel.program.outputs, expected.outputs, strict=True)
    )
    try:
        with garbage():
            results = function(*arrays, out=out, **expected.keywords)
    except ln.KernelFault as fault:
        raise Failure("fault", _without_line(str(fault)), where=where) from fault
    except ln.LaunchError as error:
        if _LAUNCH_LIMITS.search(str(error)):
            return "a launch limit"
        raise Failure("launch", str(error), where=where) from error
    except Exception as error:
        raise Failure("run", f"{type(error).__name__}: {error}", where=where) from error
    results = results if isinstance(results, tuple) else (results,)
    compare(results, expected, where)
    return ""


def _without_line(text: str) -> str:
    return re.sub(r"nest line \d+ ", "", text)


def _poisoned(like: Array) -> Array:
    """Return an array of the shape of `like` that holds none of its values: NaN, mostly."""
    array = np.empty(like.shape, like.dtype)
    fill(array)
    with np.errstate(invalid="ignore"):
        same = (array == like) | ((array != array) & (like != like))
    array[same] = like.dtype.type(0) if like.dtype == np.bool_ else like.dtype.type(77)
    return array


def compare(results: Sequence[Array], expected: Expected, where: str, kind: str = "result") -> None:
    """Raise `Failure` where a result is none that a correct kernel may give."""
    for result, enclosure, name in zip(results, expected.enclosures, expected.names, strict=True):
        verdict = compare_elements(name, result, enclosure)
        if verdict.ok:
            continue
        what = str(verdict)
        if verdict.place:
            got, want = result[verdict.place], enclosure.value[verdict.place]
            what = f"{name} at {list(verdict.place)} is {got!r}, not {want!r}: {verdict}"
        raise Failure(kind, what, where=where)


def blind_outputs(expected: Sequence[Expected]) -> list[str]:
    """Return the outputs of which zeros would be right at all sizes that have any element."""
    rejected: dict[str, bool] = {}
    for case in expected:
        for name, output, enclosure in zip(case.names, case.outputs, case.enclosures, strict=True):
            if output.size:
                verdict = compare_elements(name, np.zeros_like(output), enclosure)
                rejected[name] = rejected.get(name, False) or not verdict.ok
    return [name for name, seen in rejected.items() if not seen]


def check(fusion: ln.Fusion, expected: Sequence[Expected], targets: Sequence[str] = TARGETS) -> str:
    """Lower, compile and run `fusion`; return "" or why it has no kernel.

    Raises:
        Failure: what it does is not what `expected` says.
    """
    check_oracle(fusion, expected)
    kernel = lowered(fusion)
    if isinstance(kernel, str):
        print(f"no kernel: {kernel}")
        return kernel
    require_texts(kernel, fusion)
    if "nvrtc" in targets:
        require_ptx(kernel)
    if "verify" in targets:
        require_proof(kernel)
    for target in targets_of(kernel, targets):
        function = compiled(kernel, target)
        for case in cases_on(target, expected):
            run(function, case, target)
    return ""


def check_oracle(fusion: ln.Fusion, expected: Sequence[Expected]) -> None:
    """Raise `Failure` where the schedule changed what the math means (rfactor, caches, clones)."""
    for case in expected[:2]:
        where = f"{dict(case.sizes)} by ln.evaluate of the scheduled fusion"
        try:
            outputs = _oracle(fusion, case.arrays, case.keywords)
        except ln.LaunchError as error:
            if _LAUNCH_LIMITS.search(str(error)):
                continue
            raise Failure("oracle", str(error), where=where) from error
        except ZeroDivisionError:
            continue  # rfactor of a loop that is split by a size, which is 0
        except Exception as error:
            raise Failure("oracle", f"{type(error).__name__}: {error}", where=where) from error
        compare(outputs, case, where)


def require_ptx(kernel: Kernel) -> None:
    """Raise `Failure` where NVRTC refuses the CUDA text of `kernel`, if it has one."""
    (failure,) = failures_of([kernel])
    if failure is not None:
        raise failure


THREADS_APART = "interpret, threads one by one"
"""The target on which a value that crosses threads shows: they run in a random order."""


def require_proof(kernel: Kernel) -> str:
    """Return for what a kernel is proved: "all sizes", "named sizes", "" where it is not known.

    Raises:
        Failure: it is refuted, or the proof breaks off.
    """
    try:
        report = ln.verify(kernel)
    except Exception as error:
        raise Failure("verify", f"{type(error).__name__}: {error}", where="ln.verify") from error
    if report.status == "refuted":
        raise Failure("verify", str(report.findings[0]), where="ln.verify")
    if not report.ok:
        return ""
    return report.scope if report.scope == "all sizes" else "named sizes"


def targets_of(kernel: Kernel, targets: Sequence[str]) -> tuple[str, ...]:
    """Return `targets`, with `THREADS_APART` where `kernel` has threads and is interpreted."""
    run = tuple(t for t in targets if t not in ("nvrtc", "verify", "refused"))
    return (*run, THREADS_APART) if "interpret" in run and kernel.program.launch else run


def cases_on(target: str, expected: Sequence[Expected]) -> Sequence[Expected]:
    """Return the sizes to run at: one, not always alike, where threads run one by one, slowly."""
    if target != THREADS_APART or len(expected) < 2:
        return expected
    place = sum(expected[0].sizes.values()) % 2
    return expected[place : place + 1]


def compiled(kernel: Kernel, target: str) -> Any:
    """Return `kernel` ready to run.

    Raises:
        Failure: it does not compile.
    """
    options = {"c": {"optimize": 1}, THREADS_APART: {"thread_order": 1}}.get(target, {})
    name = target.partition(",")[0]
    try:
        with garbage():
            return compile_kernel(kernel, target=name, **options)
    except ln.VerifyError as error:
        if "): unknown" not in str(error):
            raise Failure("compile", f"VerifyError: {error}", where=target) from error
    except Exception as error:
        raise Failure("compile", f"{type(error).__name__}: {error}", where=target) from error
    asked = os.environ.pop("LOOPNEST_VERIFY", "")  # no proof, and no refutation: it is run
    try:
        with garbage():
            return compile_kernel(kernel, target=name, **options)
    except Exception as error:
        raise Failure("compile", f"{type(error).__name__}: {error}", where=target) from error
    finally:
        if asked:
            os.environ["LOOPNEST_VERIFY"] = asked
