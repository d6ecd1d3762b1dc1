"""The judge: what a fusion computes is held against what its math means.

`expect` is asked before the fusion is scheduled, `check` after. Both raise `Failure`. A case goes
through: sizes and arguments that are drawn, what the oracle says of them, the lowering, the texts,
and runs in memory full of garbage; `judge_case` does all of it from the lines of a case.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cuda.printing.cuda_printer import print_cuda
from loopnest.devtools.fuzzing.case_lines import Case, Failure, Session, Sizes, Snapshot
from loopnest.devtools.harness import Arguments, Array, make_arguments, small_targets
from loopnest.facade import language as ln
from loopnest.facade.kernel_class import Kernel
from loopnest.facade.kernel_class import compile as compile_kernel
from loopnest.facade.kernel_class import lower as lower_fusion
from loopnest.kir import Allocate, Program
from loopnest.launch.outputs import Outputs
from loopnest.numerics.compare import compare as compare_elements
from loopnest.numerics.error_bounds import enclosures
from loopnest.numerics.float64_math import stored
from loopnest.numerics.intervals import Interval
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Expr, Symbol, walk
from loopnest.schedule.loop_forest import Conflict, LoopForest

# Sizes

_DIVISIBLE, _RAGGED, _LARGER = (4, 8, 16), (2, 3, 5, 7, 9, 11, 13), (17, 19, 24, 33)
_MOST = 2500
"""The most points that one tensor may be computed at."""


def choose_sizes(fusion: ln.Fusion, rng: Random) -> tuple[Sizes, ...]:
    """Return sizes to run at: divisible, ragged, with ones, with a zero, and once a larger one."""
    names = [s.name for s in fusion.symbols]
    if not names:
        return ({},)
    whole = {n: rng.choice(_DIVISIBLE) for n in names}
    ragged = {n: rng.choice(_RAGGED) for n in names}
    ones = {n: 1 if rng.random() < 0.6 else rng.choice(_RAGGED) for n in names}
    ones[rng.choice(names)] = 1
    zero = {n: rng.choice(_RAGGED) for n in names}
    zero[rng.choice(names)] = 0
    larger = {n: rng.choice(_RAGGED[:3]) for n in names}
    larger[rng.choice(names)] = rng.choice(_LARGER)
    tried = [_fitting(fusion, sizes) for sizes in (whole, ragged, ones, zero, larger)]
    found = [sizes for sizes in tried if sizes is not None]
    return tuple(s for n, s in enumerate(found) if s not in found[:n])


def _fitting(fusion: ln.Fusion, sizes: Sizes) -> Sizes | None:
    """Return sizes that the fusion's assumptions allow and that are not too large, if any."""
    result = dict(sizes)
    while _points(fusion, result) > _MOST and max(result.values()) > 2:
        largest = max(result, key=lambda name: result[name])
        result[largest] = (result[largest] + 1) // 2
    return result if _fit(fusion, result) else None


def _fit(fusion: ln.Fusion, sizes: Sizes) -> bool:
    """Change `sizes` until they are what the fusion assumes; return whether they are."""
    conditions = [condition for _, condition in fusion.facts.conditions]
    for _ in range(20):
        broken = next((c for c in conditions if not size_value(c, sizes)), None)
        if broken is None:
            return True
        _mend(broken, sizes)
    return False


def _mend(condition: Expr, sizes: Sizes) -> None:
    """Change one size so that a condition holds, if there is one that does it."""
    for name in [node.name for node in walk(condition) if isinstance(node, Symbol)]:
        now = sizes[name]
        for value in (8 * ((now + 7) // 8), *range(now + 1, 40), *range(now)):
            if size_value(condition, {**sizes, name: value}):
                sizes[name] = value
                return


def _points(fusion: ln.Fusion, sizes: Sizes) -> int:
    return max(
        math.prod([size_value(axis.size, sizes) for axis in tensor.root_domain])
        for tensor in fusion.tensors
    )


# Arguments

_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e30, -1e-30, 1.0)
_INTEGERS = (0, 1, -1, 2**31 - 1, -(2**31), 7)


def draw_arguments(
    fusion: ln.Fusion,
    sizes: Mapping[str, int],
    seed: int,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Arguments:
    """Return arguments of a seed.

    Floats are multiples of 1/8 (whose sums and products are exact) for even seeds; every eighth
    seed strews NaN, infinities and other special values among them. Those of `ranges`, by the name
    of the input or the scalar, are drawn evenly from there.
    """

    def draw(rng: np.random.Generator, shape: tuple[int, ...] | None, dtype: DType) -> Any:
        return _scalar(rng, dtype) if shape is None else _array(rng, shape, dtype, seed)

    return make_arguments(fusion, sizes, ranges, seed, draw)


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    special = seed % 8 == 7
    if dtype.is_integer:
        values = rng.integers(-5, 6, shape).astype(dtype.numpy)
        return _strewn(rng, values, _INTEGERS) if special else values
    floats = rng.uniform(-2.0, 2.0, shape)
    if seed % 2 == 0:
        floats = np.rint(floats * 8) / 8
    return _strewn(rng, floats, _SPECIAL) if special else np.asarray(floats)


def _strewn(rng: np.random.Generator, values: Array, among: tuple[float, ...]) -> Array:
    values = np.asarray(values)
    chosen = rng.random(values.shape) < 0.1
    return np.where(chosen, rng.choice(among, values.shape), values).astype(values.dtype)


def _scalar(rng: np.random.Generator, dtype: DType) -> Any:
    if dtype.is_bool:
        return rng.integers(0, 2)
    if dtype.is_integer:
        return rng.integers(-3 if dtype.signed else 0, 4)
    return rng.integers(-12, 13) / 8


# Memory full of garbage: what a C kernel reads before it is stored shows in its results.
#
# In a fresh process memory is 0, and so is most of what is never stored: sums come out right. Here
# workspace and what the kernel allocates are NaN (-1 as integers), and variables and arrays of the
# stack hold a pattern, where the compiler can do that.


HEADER = Path(__file__).with_name("garbage.h")
_STACK = ("-ftrivial-auto-var-init=pattern", "-mno-red-zone")
"""Fills variables. GCC 12 stores the pattern by aligned vectors, and to a stack that is not aligned
where it needs no frame of its own; so it always gets one, on processors that have a choice."""


@contextmanager
def garbage() -> Iterator[None]:
    """While it lasts, C kernels are compiled for memory full of garbage, and get such workspace."""
    before, empty = os.environ.get("CC"), Outputs.empty
    command = _command(before or "")
    if command:
        os.environ["CC"] = command
    Outputs.empty = _filled  # type: ignore[method-assign]
    try:
        yield
    finally:
        Outputs.empty = empty  # type: ignore[method-assign]
        if command and before is None:
            del os.environ["CC"]
        elif before is not None:
            os.environ["CC"] = before


def fill(array: np.ndarray[Any, Any]) -> None:
    """Overwrite an array with NaN, or with -1; a bool with True."""
    if array.size:
        array.reshape(-1).view(np.uint8)[...] = 1 if array.dtype == np.bool_ else 0xFF


def _filled(
    self: Outputs, shape: tuple[int, ...], dtype: np.dtype[Any], is_zero: bool = False
) -> np.ndarray[Any, Any]:
    made = np.zeros(shape, dtype)
    if not is_zero:  # counts of blocks that have arrived begin at 0
        fill(made)
    return made


@cache
def _command(compiler: str) -> str:
    """Return the compiler with the flags that fill memory; "" where there is none."""
    found = find_compiler()
    if found is None:
        return ""
    plain = (*found.command, "-include", str(HEADER))
    filled = [(*plain, *flags) for flags in (_STACK, _STACK[:1]) if _works((*plain, *flags))]
    return shlex.join([*filled, plain][0])


def _works(command: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text("int probe(void) { int x; return 0; }\n", encoding="utf-8")
        done = subprocess.run(
            [*command, "-c", str(source), "-o", str(source.with_suffix(".o"))],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0


# How many bytes of shared memory CUDA text declares for a buffer, and what a buffer takes

BYTES = {
    "bool": 1, "signed char": 1, "unsigned char": 1, "short": 2, "unsigned short": 2, "int": 4,
    "unsigned int": 4, "long long": 8, "float": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2,
    "float8_e4m3fn_t": 1, "float8_e5m2_t": 1,
}  # fmt: skip
_ARRAY = re.compile(r"__shared__ __align__\(16\) ([\w ]+?) (\w+)\[(\d+)\];")
_VIEW = re.compile(r"^  ([\w ]+?) \*const (\w+) = \(\1 \*\)(\w+);", re.MULTILINE)


def declared_bytes(text: str) -> dict[str, int]:
    """Return the bytes that static arrays of CUDA text have for each name, views included."""
    found = {name: int(count) * BYTES[of] for of, name, count in _ARRAY.findall(text)}
    for _, name, base in _VIEW.findall(text):
        if base in found:
            found[name] = found[base]
    return found


def too_small(program: Program, text: str) -> list[str]:
    """Return a sentence for each SHARED buffer of static size that has too few bytes in `text`."""
    declared = declared_bytes(text)
    held = {n.storage for n in program.nodes if isinstance(n, Allocate)}
    needs = {
        b.name: size_value(b.size, {}) * b.dtype.size
        for b in held
        if b.memory is Memory.SHARED and b.name in declared
    }
    return [f"{n} has {declared[n]} of {need} bytes" for n, need in sorted(needs.items())
            if need > declared[n]]  # fmt: skip


# CUDA text of many kernels, compiled by NVRTC at once: most of the time goes into its headers

ARCH = "compute_90"
NO_CUDA = re.compile(r"its LOCAL buffer has the symbolic size")
"""Why a kernel may have no CUDA text."""


def has_nvrtc() -> bool:
    """Whether CUDA text can be compiled here."""
    return find_spec("cuda") is not None and find_spec("cuda.bindings") is not None


def texts_of(kernel: Kernel) -> list[Program]:
    """Return the programs of a kernel that are printed: the scalar variant is one too."""
    scalar = kernel.scalar
    return [kernel.program] if scalar is None else [kernel.program, scalar.program]


def failures_of(kernels: Sequence[Kernel]) -> list[Failure | None]:
    """Return for each kernel why NVRTC refuses its CUDA text; None where it takes it.

    A kernel without CUDA text is passed over.
    """
    texts = [_text(kernel) for kernel in kernels]
    if _refusal("\n".join(texts)) is None:
        return [None] * len(kernels)
    return [_refusal(text) for text in texts]


def _text(kernel: Kernel) -> str:
    """Return the text of all variants, each with names of its own."""
    parts = []
    for number, program in enumerate(texts_of(kernel)):
        space = f"variant_{number}_of_{program.name}"
        try:
            text = print_cuda(replace(program, name=space), index_bits=(32, 64)[number % 2])
        except ln.LoweringError as error:
            if NO_CUDA.search(str(error)):
                continue
            raise
        lines = text.splitlines()
        includes = [line for line in lines if line.startswith("#include")]
        rest = [line for line in lines if not line.startswith("#include")]
        parts.append("\n".join([*includes, f"namespace in_{space} {{", *rest, "}"]))
    return "\n".join(parts)


def _refusal(text: str) -> Failure | None:
    from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

    if not text.strip():
        return None
    try:
        assert compile_cuda(text, ARCH).ptx
    except Exception as error:
        found = re.search(r"error: (.*)", str(error))
        what = found[1] if found else f"{type(error).__name__}: {error}"
        return Failure("compile", what, where="nvrtc")
    return None


TARGETS = small_targets()


@contextmanager
def _promised(kind: str, where: str = "", but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise `Failure` for an exception that should never be; let those of `but` through."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (Failure, *but)):
            raise
        raise Failure(kind, f"{type(error).__name__}: {error}", where=where) from error


@dataclass(frozen=True)
class Expected:
    """What a fusion computes of some arguments.

    `outputs` are the oracle's; in `enclosures` lies what a correct kernel gives.
    """

    arguments: Arguments
    keywords: Mapping[str, Any]
    outputs: Sequence[Array]
    enclosures: Sequence[Interval]
    names: Sequence[str]

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes at which it is."""
        return dict(self.arguments.sizes)


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
    arguments = draw_arguments(fusion, sizes, data, ranges)
    keywords = arguments.keywords(fusion)
    with _promised("oracle", str(sizes), (ln.LoopnestError,)):
        outputs = _oracle(fusion, arguments.arrays, keywords)
        found = enclosures(fusion, arguments.arrays, keywords)
    bounds = [found[t.name] for t in fusion.outputs]
    expected = Expected(arguments, keywords, outputs, bounds, [t.name for t in fusion.outputs])
    _require_agreement(expected, [t.dtype for t in fusion.outputs])
    return expected


def _oracle(
    fusion: ln.Fusion, arrays: Sequence[Array], keywords: Mapping[str, Any]
) -> Sequence[Array]:
    found = ln.evaluate(fusion, *arrays, **keywords)
    return found if isinstance(found, tuple) else (found,)


def _require_agreement(found: Expected, dtypes: Sequence[DType]) -> None:
    parts = zip(found.outputs, found.enclosures, dtypes, found.names, strict=True)
    for output, enclosure, dtype, name in parts:
        with np.errstate(all="ignore"):
            value = stored(enclosure.value, dtype)
        if output.dtype != value.dtype or output.shape != value.shape:
            what = f"{name} is {output.dtype}{output.shape}, not {value.dtype}{value.shape}"
            raise Failure("oracle", what, where=str(found.sizes))
        if output.tobytes() != value.tobytes():
            raise Failure("oracle", f"{name} is not what its bound is of", where=str(found.sizes))
    compare(found.outputs, found, f"{found.sizes} by ln.evaluate", "oracle")


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
    "elements that no copy fits": r"moves 4, 8 or 16 aligned bytes, and its copies are of",
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
        with _promised("lowering", but=(ln.LoweringError, ln.NotSupported)):
            return lower_fusion(fusion)
    except (ln.LoweringError, ln.NotSupported) as error:
        return refusal_of(error)
    finally:
        before.require_same("ln.lower(f)", None)


def require_texts(kernel: Kernel, fusion: ln.Fusion) -> None:
    """Raise `Failure` where a kernel does not print, or prints differently when lowered again.

    Its C text is looked at where it is compiled.
    """
    with _promised("printing"):
        text = str(kernel)
        same = text == str(lower_fusion(fusion))
    if not same or not text.startswith("# loopnest nest 1\n"):
        raise Failure("printing", "the same fusion lowers to two texts")
    with _promised("printing"):
        try:
            small = too_small(kernel.program, kernel.cuda())
        except ln.LoweringError as error:
            if not NO_CUDA.search(str(error)):
                raise
            small = []
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
    where = f"{expected.sizes} on {target}"
    arrays = expected.arguments.fresh()
    out = tuple(
        None if o.inplace else _poisoned(e)
        for o, e in zip(function.kernel.program.outputs, expected.outputs, strict=True)
    )
    try:
        with garbage(), _promised("run", where, (ln.KernelFault, ln.LaunchError)):
            results = function(*arrays, out=out, **expected.keywords)
    except ln.KernelFault as fault:
        raise Failure("fault", _without_line(str(fault)), where=where) from fault
    except ln.LaunchError as error:
        if _LAUNCH_LIMITS.search(str(error)):
            return "a launch limit"
        raise Failure("launch", str(error), where=where) from error
    compare(results if isinstance(results, tuple) else (results,), expected, where)
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
    found = _judged_launches(fusion, expected, targets)
    if isinstance(found, int):
        return ""
    print(f"no kernel: {found}")
    return found


def _judged_launches(
    fusion: ln.Fusion, expected: Sequence[Expected], targets: Sequence[str]
) -> int | str:
    """Return how many launches of a scheduled fusion were judged, or why it has no kernel."""
    require_order(fusion)
    check_oracle(fusion, expected)
    kernel = lowered(fusion)
    if isinstance(kernel, str):
        return kernel
    require_texts(kernel, fusion)
    if "nvrtc" in targets:
        require_ptx(kernel)
    if "verify" in targets:
        require_proof(kernel)
    runs = 0
    for target in targets_of(kernel, targets):
        function = compiled(kernel, target)
        for case in cases_on(target, expected):
            runs += not run(function, case, target)
    return runs


def check_oracle(fusion: ln.Fusion, expected: Sequence[Expected]) -> None:
    """Raise `Failure` where the schedule changed what the math means (rfactor, caches, clones)."""
    for case in expected[:2]:
        where = f"{case.sizes} by ln.evaluate of the scheduled fusion"
        try:
            with _promised("oracle", where, (ln.LaunchError, ZeroDivisionError)):
                outputs = _oracle(fusion, case.arguments.arrays, case.keywords)
        except ln.LaunchError as error:
            if _LAUNCH_LIMITS.search(str(error)):
                continue
            raise Failure("oracle", str(error), where=where) from error
        except ZeroDivisionError:
            continue  # rfactor of a loop that is split by a size, which is 0
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
    with _promised("verify", "ln.verify"):
        report = ln.verify(kernel)
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
    try:
        return _compiled(kernel, target)
    except ln.VerifyError as error:
        if "): unknown" not in str(error):
            raise Failure("compile", f"VerifyError: {error}", where=target) from error
    asked = os.environ.pop("LOOPNEST_VERIFY", "")  # no proof, and no refutation: it is run
    try:
        return _compiled(kernel, target)
    finally:
        if asked:
            os.environ["LOOPNEST_VERIFY"] = asked


def _compiled(kernel: Kernel, target: str) -> Any:
    options = {"c": {"optimize": 1}, THREADS_APART: {"thread_order": 1}}.get(target, {})
    with garbage(), _promised("compile", target, (ln.VerifyError,)):
        return compile_kernel(kernel, target=target.partition(",")[0], **options)


# From the lines of a case to a verdict on it: what `tools/fuzz.py` and ``loopnest fuzz`` share

SERIAL = (
    "[t.parallelize({n: ln.ParallelType.serial for n in range(t.ndim)}) "
    "for t in f.tensors if not t.is_input]"
)
"""The schedule line that takes back all parallel types."""

OF_LOOPS = frozenset({
    "a value crosses threads", "a read before the store", "a launch limit",
    "two parallel types in one loop", "a launch dimension twice",
    "a vectorized axis is not innermost", "the width of a vector", "a vector that never divides",
    "a vector of atomic updates", "blocks that fold into SHARED memory",
    "a vectorized or cpu_parallel reduction", "a race in a parallel loop",
    "a circular buffer in a parallel loop", "tiles that store one element", "a value crosses lanes",
    "a fold by threads cannot run ahead", "initial values of other blocks",
})  # fmt: skip
"""Refusals that parallel types alone cause: without these types the schedule must lower."""


def lowered_or_serial(
    session: Session, refused: Callable[[ln.Fusion, str], None] | None = None
) -> tuple[Kernel | str, tuple[str, ...]]:
    """Return the kernel of a scheduled fusion, or why there is none, and all refusals.

    Where parallel types are the reason, they are taken back; what is left must lower. `refused` is
    told of the fusion, and why it was refused, before that.

    Raises:
        Failure: a refusal without a good reason.
    """
    found = lowered(session.fusion)
    if not isinstance(found, str) or found not in OF_LOOPS:
        return found, (found,) if isinstance(found, str) else ()
    if refused is not None:
        refused(session.fusion, found)
    session.attempt(SERIAL)
    second = lowered(session.fusion)
    if isinstance(second, str) and second in OF_LOOPS:
        raise Failure("lowering", f"refused for {second}, but every loop is serial", SERIAL)
    return second, (found, second) if isinstance(second, str) else (found,)


def judge_case(
    case: Case, targets: Sequence[str] = TARGETS, started: Session | None = None
) -> tuple[Failure | None, Session]:
    """Judge a case from its lines; return its failure and the session as far as it came.

    `started` is a session whose math is there already.
    """
    session = started or Session(case.name)
    try:
        for line in case.math:
            session.define(line)
        if session.fusion.outputs:
            _judge_lines(session, case, targets)
    except Failure as failure:
        return failure, session
    return None, session


def _judge_lines(session: Session, case: Case, targets: Sequence[str]) -> None:
    expected = []
    for sizes in case.sizes:
        needed = {s.name for s in session.fusion.symbols}
        kept = {n: v for n, v in sizes.items() if n in needed}
        expected.append(expect(session.fusion, kept, case.data, case.ranges))
    for line in case.schedule:
        if session.attempt(line) and "inline_most" in line:
            require_order(session.fusion, line)
    judge_schedule(session, expected, targets)


def judge_schedule(session: Session, expected: Sequence[Expected], targets: Sequence[str]) -> int:
    """Judge what a schedule came to; return how many launches were judged, 0 without a kernel.

    Raises:
        Failure: a promise is broken.
    """
    found = _judged_launches(session.fusion, expected, targets)
    if isinstance(found, int):
        return found
    if found in OF_LOOPS and session.schedule[-1:] == [SERIAL]:
        raise Failure("lowering", f"refused for {found}, but every loop is serial", SERIAL)
    return 0
