"""Find out by experiment what each instruction of `ln.instructions` does, on this machine's GPU.

Run it as `tools/run python tools/instruction_probe.py --help`.
"""

from __future__ import annotations

import ctypes
import datetime
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
import numpy.typing as npt

import loopnest as ln
from loopnest.backends.clike.identifiers import function_name
from loopnest.backends.cuda.driver import gpu_driver
from loopnest.backends.cuda.driver.device_array import DeviceMemory
from loopnest.backends.cuda.driver.gpu_driver import Driver, DriverLaunch
from loopnest.backends.cuda.printing.cuda_printer import device_function, word_count
from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = ("sm_80", "sm_90")
ROWS = {name: row for name, row in ln.instructions.items() if row.ptx}
WARP = 32
BASE = 100
"""Elements are told apart by two digits to this base: small integers, exact in every type."""

HELP = """Find out what each instruction of ln.instructions does, by one small kernel a row.

\b
lanes     every element of an operand gets a value of its own; where the values appear tells the
          lane and the register of each, which are compared with the row's fragment
sums      how products of floats are rounded and added: exact products, truncation or nearest,
          bits kept below the largest term, which terms are added together, tiny numbers, and the
          largest error of random and of cancelling sums in units of 2^-23 of the largest magnitude

It prints a table and writes instructions_DEVICE_DATE.md into --out. Exit status: 0, 1 where a
lane map is wrong, 2 where there is no GPU. With --compile, the kernels are compiled for sm_80 and
sm_90, which needs no GPU, and nothing is run.
"""

Array: TypeAlias = npt.NDArray[Any]

Run: TypeAlias = Callable[[ln.Instruction, Mapping[str, Array]], Array]
"""Execute a row once a case. It takes a matrix a case of each operand that is read (of a move
its source's bytes), each spread over lanes and registers as the row's fragments say, and returns
the registers of the result: [cases, lanes, registers]."""


# The kernels


def product_kernel(row: ln.Instruction) -> str:
    """Return a kernel whose every block executes a product once, on registers in memory."""
    words = {}
    for role, operand in row.operands.items():
        assert operand.fragment is not None
        words[role] = word_count(operand, operand.fragment)
    count, result = words[row.result], row.result
    sums = "float" if row.operands[result].dtype is ln.float32 else "unsigned"
    types = {role: sums if role == result else "unsigned" for role in words}
    parameters = ", ".join([f"{types[role]}* {role}_all" for role in words])
    arrays = [f"  {types[role]} {role}[{count}];" for role, count in words.items()]
    at = "(blockIdx.x * 32 + threadIdx.x)"
    loads = [
        f"  for (int i = 0; i < {n}; ++i) {r}[i] = {r}_all[{at} * {n} + i];"
        for r, n in words.items()
    ]
    return "\n".join([
        device_function(row),
        f'extern "C" __global__ void probe({parameters}) {{',
        *arrays,
        *loads,
        f"  {function_name(row)}({', '.join(row.operands)});",
        f"  for (int i = 0; i < {count}; ++i)",
        f"    {result}_all[{at} * {count} + i] = {result}[i];",
        "}",
    ])  # fmt: skip


def load_kernel(row: ln.Instruction) -> str:
    """Return a kernel that loads matrices from rows of shared memory that lie apart."""
    target = row.operands[row.result]
    assert target.fragment is not None
    words, rows = word_count(target, target.fragment), math.prod(target.fragment.shape[:2])
    return "\n".join([
        device_function(row),
        'extern "C" __global__ void probe(unsigned* d_all, const unsigned* s_all) {',
        f"  __shared__ __align__(16) unsigned s[{rows} * 12];",
        f"  for (int i = threadIdx.x; i < {rows} * 4; i += 32)",
        f"    s[i / 4 * 12 + i % 4] = s_all[blockIdx.x * {rows} * 4 + i];",
        "  __syncthreads();",
        f"  unsigned d[{words}];",
        f"  {function_name(row)}(d, s + threadIdx.x % {rows} * 12);",
        f"  for (int i = 0; i < {words}; ++i)",
        f"    d_all[(blockIdx.x * 32 + threadIdx.x) * {words} + i] = d[i];",
        "}",
    ])  # fmt: skip


def copy_kernel(row: ln.Instruction) -> str:
    """Return a kernel whose threads copy 4, 8 and 16 bytes, all and some of them, and wait."""
    cases = []
    for place, (size, taken) in enumerate(COPIES):
        text = row.ptx.format_map({"d": "%0", "s": "%1", "bytes": "%2", "taken": "%3"})
        cases.append(
            f'  asm volatile("{text}" :: "r"(to + {place * 16}), "l"(from), '
            f'"n"({size}), "r"({taken}) : "memory");'
        )
    count = len(COPIES) * 4
    return "\n".join([
        'extern "C" __global__ void probe(unsigned* d_all, const unsigned* s_all) {',
        f"  __shared__ __align__(16) unsigned s[32 * {count}];",
        f"  for (int i = 0; i < {count}; ++i) s[threadIdx.x * {count} + i] = 0xffffffff;",
        f"  const unsigned to = (unsigned)__cvta_generic_to_shared(s + threadIdx.x * {count});",
        "  const unsigned* from = s_all + threadIdx.x * 4;",
        *cases,
        '  asm volatile("cp.async.commit_group;" ::: "memory");',
        '  asm volatile("cp.async.wait_group 0;" ::: "memory");',
        f"  for (int i = 0; i < {count}; ++i)",
        f"    d_all[threadIdx.x * {count} + i] = s[threadIdx.x * {count} + i];",
        "}",
    ])  # fmt: skip


COPIES = ((4, 4), (8, 8), (16, 16), (16, 8), (16, 0), (8, 4), (4, 0))
"""Bytes copied, and how many of them are taken from the source, the rest being 0."""


def kernel_text(row: ln.Instruction) -> str:
    """Return the kernel of a row."""
    if not row.is_move:
        return product_kernel(row)
    return load_kernel(row) if row.scope == "warp" else copy_kernel(row)


class Gpu:
    """Executes rows on the GPU of this machine."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def launch(self, row: ln.Instruction, blocks: int, arrays: list[Array]) -> list[Array]:
        """Run the kernel of a row on copies of arrays; return what they hold afterwards."""
        code = compile_cuda(kernel_text(row), self.driver.device.arch).cubin
        with self.driver.current():
            memory = []
            for array in arrays:
                memory.append(DeviceMemory(self.driver, array.nbytes, 0))
                self.driver.upload(memory[-1].address, array, 0)
            function = self.driver.load(code, "probe")
            given = [ctypes.c_void_p(m.address) for m in memory]
            self.driver.launch(function, DriverLaunch((blocks, 1, 1), (WARP, 1, 1)), given, 0)
            for array, piece in zip(arrays, memory, strict=True):
                self.driver.download(array, piece.address, 0)
        return arrays

    def __call__(self, row: ln.Instruction, given: Mapping[str, Array]) -> Array:
        """Execute a row once a case."""
        cases = len(next(iter(given.values())))
        arrays = {}
        for role, operand in row.operands.items():
            if operand.fragment is None:
                arrays[role] = np.ascontiguousarray(given[role])
            elif role in given:
                arrays[role] = spread(operand, given[role])
            else:
                shape = (cases, WARP, operand.fragment.registers)
                arrays[role] = np.zeros(shape, operand.dtype.numpy)
        done = self.launch(row, cases, list(arrays.values()))
        return dict(zip(arrays, done, strict=True))[row.result]


def places(operand: ln.Operand) -> tuple[Array, ...]:
    """Return lanes and registers of all elements of a matrix, as arrays of its shape."""
    assert operand.fragment is not None
    found = np.empty((2, *operand.fragment.shape), int)
    for element in np.ndindex(*operand.fragment.shape):
        found[(slice(None), *element)] = operand.fragment.place(*element)
    return found[0], found[1]


def spread(operand: ln.Operand, matrices: Array) -> Array:
    """Return matrices [cases, …] as registers [cases, lanes, registers]."""
    assert operand.fragment is not None
    lanes, registers = places(operand)
    shape = (len(matrices), WARP, operand.fragment.registers)
    result = np.zeros(shape, operand.dtype.numpy)
    result[:, lanes, registers] = matrices
    return result


def gathered(operand: ln.Operand, registers: Array) -> Array:
    """Return registers as matrices."""
    lanes, numbers = places(operand)
    found: Array = registers[:, lanes, numbers]
    return found


# Lane maps


def lane_findings(row: ln.Instruction, run: Run) -> dict[str, list[str]]:
    """Return what of the fragment of each operand is not so, a sentence an element."""
    return _load_findings(row, run) if row.is_move else _product_findings(row, run)


def _numbers(operand: ln.Operand) -> Array:
    assert operand.fragment is not None
    return np.arange(math.prod(operand.fragment.shape)).reshape(operand.fragment.shape)


def _product_findings(row: ln.Instruction, run: Run) -> dict[str, list[str]]:
    """Find the elements of a and b by a 1 at one place of the other, those of d by its own values.

    What is found holds up to names: which row of a is called 3 is told by the row of d where it
    appears.
    """
    return {
        "a": _factor_findings(row, run, "a", "b"),
        "b": _factor_findings(row, run, "b", "a"),
        "d": _total_findings(row, run),
    }


def _factor_findings(row: ln.Instruction, run: Run, role: str, other: str) -> list[str]:
    """Compare what each element of the result names of an operand with what the fragment says."""
    mine, theirs, total = row.operands[role], row.operands[other], row.operands[row.result]
    number, ones = _numbers(mine), _numbers(theirs)
    cases = ones.size
    one_each = np.eye(cases).reshape(cases, *ones.shape)
    seen = np.zeros((cases, *_numbers(total).shape), int)
    for scale in (1, BASE):
        digit = number // scale % BASE + 1
        values = np.broadcast_to(digit, (cases, *number.shape))
        given = {role: values.astype(mine.dtype.numpy), other: one_each.astype(theirs.dtype.numpy)}
        found = gathered(total, run(row, given)).astype(int)
        seen += np.where(found > 0, (found - 1) * scale, 0)
        seen = np.where(found > 0, seen, -1)
    wrong: list[str] = []
    for case, element in enumerate(np.ndindex(*ones.shape)):
        names = dict(zip(theirs.axes, element, strict=True))
        for place in np.ndindex(*seen.shape[1:]):
            all_names = {**dict(zip(total.axes, place, strict=True)), **names}
            fits = all(
                names.get(axis, at) == at for axis, at in zip(total.axes, place, strict=True)
            )
            wanted = number[tuple([all_names[axis] for axis in mine.axes])] if fits else -1
            if seen[(case, *place)] != wanted:
                wrong.append(_told(mine, seen[(case, *place)], wanted, number))
    return list(dict.fromkeys(wrong))


def _told(operand: ln.Operand, seen: int, wanted: int, number: Array) -> str:
    """Say where an element is, and where the fragment has it."""
    fragment = operand.fragment
    assert fragment is not None
    names = [
        "nothing" if n < 0 else f"lane, register {fragment.place(*np.argwhere(number == n)[0])}"
        for n in (seen, wanted)
    ]
    return f"{names[0]} is found where {names[1]} should be"


def _total_findings(row: ln.Instruction, run: Run) -> list[str]:
    """Find out whether the result takes up what its registers held before."""
    total = row.operands[row.result]
    number = _numbers(total)
    given = {
        role: np.zeros((1, *_numbers(operand).shape), operand.dtype.numpy)
        for role, operand in row.operands.items()
    }
    given[row.result] = number[None].astype(total.dtype.numpy)
    found = gathered(total, run(row, given))[0].astype(int)
    return [
        f"{_told(total, int(found[tuple(at)]), int(number[tuple(at)]), number)}"
        for at in np.argwhere(found != number)
    ]


def _load_findings(row: ln.Instruction, run: Run) -> dict[str, list[str]]:
    """Find the bytes of a load: two digits of the number of each."""
    target = row.operands[row.result]
    number = _numbers(target)
    (source,) = [role for role in row.operands if role != row.result]
    found = np.zeros(number.shape, int)
    for scale in (1, BASE):
        given = {source: (number // scale % BASE)[None].astype(np.uint8)}
        found += gathered(target, run(row, given))[0].astype(int) * scale
    wrong = [
        _told(target, int(found[tuple(at)]), int(number[tuple(at)]), number)
        for at in np.argwhere(found != number)
    ]
    return {row.result: wrong}


def copy_findings(row: ln.Instruction, gpu: Gpu) -> dict[str, list[str]]:
    """Return which copies in flight did not land as they should."""
    source = np.arange(WARP * 16, dtype=np.uint8)
    target = np.zeros((WARP, len(COPIES), 16), np.uint8)
    target, _ = gpu.launch(row, 1, [target, source])
    wanted = np.full_like(target, 0xFF)
    for place, (size, taken) in enumerate(COPIES):
        wanted[:, place, :size] = 0
        wanted[:, place, :taken] = source.reshape(WARP, 16)[:, :taken]
    return {
        row.result: [
            f"a copy of {size} bytes, {taken} of the source, is wrong"
            for place, (size, taken) in enumerate(COPIES)
            if not np.array_equal(target[:, place], wanted[:, place])
        ]
    }


# Sums


@dataclass
class Sums:
    """The first element of a product's result, of many sums at once.

    Args:
        row: a product.
        run: what executes it.
    """

    row: ln.Instruction
    run: Run

    @property
    def terms(self) -> int:
        """How many products an element is the sum of."""
        return self.row.extents["k"]

    def of(self, a: Array, b: Array, start: Array) -> Array:
        """Return start + the sum of a * b, one sum a line."""
        given = {}
        for role, operand in self.row.operands.items():
            given[role] = np.zeros((len(a), *_numbers(operand).shape), operand.dtype.numpy)
        given["a"][:, 0, :], given["b"][:, :, 0] = a, b
        given["d"][:, 0, 0] = start
        total = self.row.operands["d"]
        found: Array = gathered(total, self.run(self.row, given))[:, 0, 0]
        return found

    def one(self, products: Mapping[int, tuple[float, float]], start: float = 0.0) -> float:
        """Return start + the sum of products, by their places along k."""
        a, b = np.zeros((2, 1, self.terms))
        for place, factors in products.items():
            a[0, place], b[0, place] = factors
        return float(self.of(a, b, np.array([start]))[0])


def sum_findings(row: ln.Instruction, run: Run) -> Iterator[tuple[str, str]]:
    """Yield what was asked of the sums of a row, and what came out."""
    sums = Sums(row, run)
    if not row.operands[row.result].dtype.is_float:
        top = 2**31 - 1
        found = sums.one({0: (1, 1)}, top)
        yield "2^31 - 1 plus 1", "wraps" if found == -(2**31) else f"{found:.0f}"
        return
    yield from _rounding(sums)
    yield from _order(sums)
    yield from _special_values(sums)
    yield from _errors(sums)


def _rounding(sums: Sums) -> Iterator[tuple[str, str]]:
    fine = 1 + 2.0**-7
    exact = sums.one({0: (fine, fine)}) == fine * fine
    yield "a product of two factors of 8 bits", "exact" if exact else "rounded"
    fine = 1 + 2.0**-10
    if sums.row.operands["a"].dtype.size == 4 or sums.one({0: (fine, 1)}) == fine:
        exact = sums.one({0: (fine, fine)}) == fine * fine
        yield "a product of two factors of 11 bits", "exact" if exact else "rounded"
    if sums.row.operands["a"].dtype.size == 4:
        got = sums.one({0: (1 + 2.0**-11 + 2.0**-12, 1)})
        said = {1.0: "cut off", 1 + 2.0**-10: "rounded to nearest"}
        yield "a factor of more than 11 bits", said.get(got, repr(got))
    half = 2.0**-12
    for name, start, factor in (("1 + 0.75", 1.0, 1.5), ("-1 - 0.75", -1.0, -1.5)):
        got = sums.one({0: (half, half * factor)}, start)
        nearest = got == math.copysign(1 + 2.0**-23, start)
        yield f"{name} units in the last place", "to nearest" if nearest else "cut off"
    got = sums.one({0: (half, -half)}, 1.0)
    yield "1 - 2^-24 (exact in float32)", "exact" if got == 1 - 2.0**-24 else repr(got)
    for below in range(24, 31):
        tiny = 2.0 ** -(below // 2), 2.0 ** (below // 2 - below)
        got = sums.one(dict.fromkeys(range(sums.terms), tiny), 1.0)
        share = (got - 1) / (sums.terms * 2.0**-below)
        yield f"1 + {sums.terms} products of 2^-{below}", f"{100 * share:.0f} % of their sum"


def _order(sums: Sums) -> Iterator[tuple[str, str]]:
    """Ask which terms lose bits to large ones that cancel, by the place of these along k."""
    large, small = (2.0**12, 2.0**12), (2.0**-6, 2.0**-6)
    for places in ((0, 1), (0, sums.terms - 1)):
        lost = []
        for place in range(sums.terms):
            if place in places:
                continue
            pair = {places[0]: large, places[1]: (-large[0], large[1])}
            if sums.one({**pair, place: small}) == 0:
                lost.append(place)
        text = f"2^24 at {places[0]} and -2^24 at {places[1]} along k: 2^-12 is lost at"
        yield text, ", ".join(map(str, lost)) or "none"
    kept = sums.one({0: small, 1: (-large[0], large[1])}, 2.0**24)
    yield "2^24 before, -2^24 and 2^-12 along k", "lost" if kept == 0 else repr(kept)


def _special_values(sums: Sums) -> Iterator[tuple[str, str]]:
    least = 2.0**-24 if sums.row.operands["a"].dtype.name == "float16" else 2.0**-130
    yield f"a factor of {least!r} (subnormal) by 1", repr(sums.one({0: (least, 1)}))
    yield "2^-140 (subnormal) before", repr(sums.one({}, 2.0**-140) * 2.0**140)[:8] + " * 2^-140"
    yield "inf * 0", repr(sums.one({0: (math.inf, 0)}))
    yield "nan before", repr(sums.one({}, math.nan))
    big = 2.0**15
    yield "-0.0 before, products of 0", repr(sums.one({}, -0.0))
    yield "the largest float before, plus 2^30", repr(sums.one({0: (big, big)}, 3.4028234e38))


def _errors(sums: Sums, cases: int = 20_000) -> Iterator[tuple[str, str]]:
    """Ask for the largest error of random sums, in units of 2^-23 of the largest magnitude."""
    rng = np.random.default_rng(1)
    dtype = sums.row.operands["a"].dtype.numpy
    for name, spread_bits in (("of like size", 0), ("spread over 2^16", 8), ("that cancel", 0)):
        a = rng.standard_normal((cases, sums.terms)) * 2.0 ** rng.integers(
            -spread_bits, spread_bits + 1, (cases, sums.terms)
        )
        b, start = rng.standard_normal((cases, sums.terms)), rng.standard_normal(cases)
        if sums.row.operands["a"].dtype.size == 4:
            a, b = [np.round(x * 2.0**8) / 2.0**8 for x in (a, b)]  # representable: tf32
            a, b = np.clip(a, -3.875, 3.875), np.clip(b, -3.875, 3.875)
        a, b = [x.astype(dtype).astype(np.float64) for x in (a, b)]
        if name == "that cancel":
            a[:, 1::2], b[:, 1::2] = -a[:, ::2], b[:, ::2]
        start = start.astype(np.float32).astype(np.float64)
        found = sums.of(a, b, start).astype(np.float64)
        products = a * b
        exact = np.array([math.fsum((*p, s)) for p, s in zip(products, start, strict=True)])
        largest = np.maximum(np.abs(products).max(axis=1), np.abs(start))
        error = np.abs(found - exact) / (largest * 2.0**-23)
        yield (
            f"{cases} sums of terms {name}: largest error",
            f"{error.max():.2f} units of 2^-23 of the largest magnitude (claimed: at most "
            f"{sums.terms + 1})",
        )


# The table


def markdown(
    device: str, lanes: Mapping[str, Mapping[str, list[str]]], sums: Mapping[str, list[Any]]
) -> str:
    """Return what was found as a page."""
    lines = [f"# Instructions on {device}, {datetime.date.today().isoformat()}", ""]
    lines += ["Made by `tools/run python tools/instruction_probe.py`.", "", "## Lane maps", ""]
    lines += ["| instruction | operand | fragment | found |", "| --- | --- | --- | --- |"]
    for name, operands in lanes.items():
        for role, wrong in operands.items():
            fragment = ln.instructions[name].operands[role].fragment
            said = f"{len(wrong)} wrong: {'; '.join(wrong[:3])}" if wrong else "as written"
            pattern = f"`{fragment.pattern}`" if fragment else "-"
            lines.append(f"| {name} | {role} | {pattern} | {said} |")
    for name, found in sums.items():
        lines += ["", f"## Sums of {name}", "", "| asked | found |", "| --- | --- |"]
        lines += [f"| {asked} | {answer} |" for asked, answer in found]
    return "\n".join(lines) + "\n"


def compile_all() -> None:
    """Compile the kernels of all rows for the architectures, without a GPU."""
    for name, row in ROWS.items():
        for arch in ARCHITECTURES:
            code = compile_cuda(kernel_text(row), arch).cubin
            click.echo(f"{name} {arch}: {len(code)} bytes")


def measure(gpu: Gpu) -> tuple[dict[str, dict[str, list[str]]], dict[str, list[Any]]]:
    """Return what is wrong with each operand, and what is known of sums, of all rows."""
    lanes, sums = {}, {}
    for name, row in ROWS.items():
        if row.scope == "thread":
            lanes[name] = copy_findings(row, gpu)
            continue
        lanes[name] = lane_findings(row, gpu)
        if not row.is_move:
            sums[name] = list(sum_findings(row, gpu))
    return lanes, sums


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--compile", "only_compile", is_flag=True, help="Compile the kernels, run none.")
@click.option(
    "--out",
    default=ROOT / "tools" / "results",
    show_default="tools/results",
    type=click.Path(path_type=Path),
    help="Where the page goes.",
)
def main(only_compile: bool, out: Path) -> None:
    if only_compile:
        compile_all()
        return
    missing = gpu_driver.obstacle()
    if missing is not None:
        click.echo(f"instruction_probe: {missing}; --compile needs none", err=True)
        sys.exit(2)
    driver = gpu_driver.find_driver()
    lanes, sums = measure(Gpu(driver))
    text = markdown(driver.device.name, lanes, sums)
    click.echo(text)
    out.mkdir(parents=True, exist_ok=True)
    day = datetime.date.today().isoformat()
    place = out / f"instructions_{driver.device.name.replace(' ', '_')}_{day}.md"
    place.write_text(text)
    click.echo(f"written to {place}", err=True)
    sys.exit(int(any(wrong for operands in lanes.values() for wrong in operands.values())))


if __name__ == "__main__":
    main()
