"""The functions by which programs without Python call an exported kernel, in C.

All names begin with that of the kernel. Parameters stand in the order of `Kernel.params`: inputs,
outputs, scalars, sizes; then the workspace. A launch is checked as in Python, by its sizes; each
reason to refuse it is a status with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, count

import numpy as np

from loopnest import kir
from loopnest.backends.clike.identifiers import symbol
from loopnest.backends.clike.narrow_counts import launch_names
from loopnest.backends.cpu.c_printer import c_prelude, entry_name, print_c, print_entry
from loopnest.backends.cpu.data_checks import OUTSIDE
from loopnest.backends.cpu.fission.thread_loop_fission import slot_sizes
from loopnest.backends.cuda.architecture_needs import check_architecture
from loopnest.backends.cuda.cuda_target import ALIGNMENT as GPU_ALIGNMENT
from loopnest.backends.cuda.printing import cuda_printer
from loopnest.backends.cuda.toolchain import nvrtc
from loopnest.exports.size_checks import SizeText, prelude
from loopnest.kir.shared_memory import shared_layout
from loopnest.kir.vector_access import alignments, wide_accesses
from loopnest.launch.index_width import IndexWidth
from loopnest.launch.launch_plan import MAX_SHARED_BYTES, identity
from loopnest.proofs.empty_launches import empty_sizes, of_the_host
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, MOST_ALONG, MOST_THREADS
from loopnest.scalar.expr import Buffer, Const, Expr, Op, integer

ABI = 1
"""The version of the functions and of their parameters; it grows with a change of them."""

CONDITIONS, DATA = 100, 1000
"""The first status of assumptions that do not hold, and of data outside of their ranges."""

_FIXED = {
    "OK": (0, "it ran"),
    "NO_MEMORY": (1, "no memory is left for its local buffers"),
    "NULL": (2, "an array that has elements is NULL"),
    "NEGATIVE": (3, "a size is negative"),
    "WORKSPACE": (4, "the workspace has fewer bytes than {}_workspace says, or is NULL"),
    "TOO_LARGE": (5, "an index exceeds 64 bits"),
    "SPLIT": (6, "an axis is split by a size that is not 1 or more"),
    "LAUNCH": (7, "a block has too many threads, or the grid too many blocks"),
    "SHARED": (8, "a block needs too much shared memory"),
    "OVERLAP": (9, "an array that is written has memory in common with another"),
    "NO_THREADS": (10, "no thread runs at these sizes, and the host does not do its work"),
    "DRIVER": (11, "the driver refused a call"),
    "FILES": (12, "a file of the export is missing or cannot be read"),
}
_OF_GPU = ("DRIVER", "FILES")

_TYPES = {
    "bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t", "float8_e4m3fn": "uint8_t",
    "float8_e5m2": "uint8_t", "float32": "float", "float64": "double",
}  # fmt: skip
"""Element types in headers; narrow floats are their bits."""


def c_type(dtype: DType) -> str:
    """Return the type of an element or a scalar in a header."""
    return _TYPES.get(dtype.name) or f"{dtype.name}_t"


@dataclass(frozen=True)
class EntryPoint:
    """The interface of an exported kernel.

    Args:
        program: the kernel.
        scalar: the variant for sizes that its vectors do not divide; None where there is none.
        alignment: of each piece of the workspace, in bytes.
        more: elements of arrays that the text indexes beside the buffers, of each variant.
        on_gpu: whether launches need a driver.
    """

    program: kir.Program
    scalar: kir.Program | None
    alignment: int
    more: tuple[tuple[Expr, ...], ...] = ((), ())
    on_gpu: bool = False

    @property
    def prefix(self) -> str:
        """What all names begin with."""
        return symbol(self.program.name)

    @property
    def variants(self) -> tuple[kir.Program, ...]:
        """The programs, of which sizes choose one."""
        return (self.program,) if self.scalar is None else (self.program, self.scalar)

    @cached_property
    def names(self) -> dict[str, str]:
        """How C names each parameter, each in one way: those of two kinds may be alike in C."""
        found: dict[str, str] = {}
        for param in self.program.params:
            own = symbol(param.name)
            while own in found.values() or own in _TAKEN:
                own += "_"
            found[param.name] = own
        return found

    @cached_property
    def text(self) -> SizeText:
        """Writes expressions of the sizes."""
        return SizeText(self.names)

    def params(self, *kinds: str) -> list[kir.Param]:
        """Return the parameters of some kinds, in order."""
        return [p for p in self.program.params if p.kind in kinds]

    @cached_property
    def written(self) -> set[str]:
        """The parameters whose arrays are written."""
        return {*[p.name for p in self.params("output")],
                *[o.inplace for o in self.program.outputs if o.inplace]}  # fmt: skip

    # Statuses

    @cached_property
    def statuses(self) -> tuple[tuple[str, int, str], ...]:
        """Each status: its macro, its number, its sentence."""
        found = [
            (f"{self.prefix}_{name}".upper(), number, sentence.format(self.prefix))
            for name, (number, sentence) in _FIXED.items()
            if self.on_gpu or name not in _OF_GPU
        ]
        for number, (text, _) in enumerate(self.program.conditions, CONDITIONS):
            found.append(("", number, f"the assumption '{text}' does not hold"))
        for number, declared in enumerate(self.program.ranges, DATA):
            found.append(("", number, f"an element is out of range: {declared} was declared"))
        for number, check in enumerate(self.program.index_checks, DATA + len(self.program.ranges)):
            said = (
                f"two elements of {check.source} along axis {check.axis} are equal, which were "
                "declared to differ"
                if check.distinct
                else f"an index of {check.source} lies outside of axis {check.axis} of "
                f"{check.table}, where {check.reader} reads it"
            )
            found.append(("", number, said))
        return tuple(found)

    def sentences(self) -> Iterator[str]:
        """Yield the function that says what a status means."""
        yield f"const char *{self.prefix}_sentence(int status) {{"
        yield "  switch (status) {"
        for _, number, sentence in self.statuses:
            yield f'    case {number}: return "{_quoted(sentence)}";'
        yield "  }"
        yield f'  return "no status of {self.prefix}";'
        yield "}"

    # Declarations

    def declared(self, pointer: str = "") -> list[str]:
        """Return the declarations of inputs, outputs, scalars and sizes.

        Args:
            pointer: the type of all arrays, where it is no pointer to elements.
        """
        found = []
        for param in self.params("input", "output"):
            const = "" if param.name in self.written else "const "
            kind = pointer or f"{const}{c_type(param.dtype)} *"
            found.append(f"{kind}{'' if kind.endswith('*') else ' '}{self.names[param.name]}")
        found += [f"{c_type(p.dtype)} {self.names[p.name]}" for p in self.params("scalar")]
        return [*found, *self.declared_sizes()]

    def declared_sizes(self) -> list[str]:
        """Return the declarations of the sizes."""
        return [f"int64_t {self.names[p.name]}" for p in self.params("size")]

    def given(self, *kinds: str) -> list[str]:
        """Return the names of parameters of some kinds, to pass them on."""
        return [self.names[p.name] for p in self.params(*kinds)]

    def sizes_list(self, *more: str) -> str:
        """Return the parameter list of a function of the sizes."""
        return ", ".join([*self.declared_sizes(), *more]) or "void"

    def header(self, functions: Sequence[str], includes: Sequence[str] = ()) -> str:
        """Return the header; `functions` are the prototypes that a target has beside the common."""
        p = self.prefix
        lines = [
            f"/* {self.program.name}, exported by loopnest; interface {ABI}.",
            " *",
            *[f" * {line}" for line in self._about()],
            " */",
            f"#ifndef LOOPNEST_EXPORT_{p.upper()}_H",
            f"#define LOOPNEST_EXPORT_{p.upper()}_H",
            "",
            "#include <stdint.h>",
            *includes,
            "",
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            f"#define {p.upper()}_ABI {ABI}",
            *[f"#define {macro} {number} /* {text} */" for macro, number, text in self.statuses
              if macro],
            "",
            "/* Whether a launch of these sizes is taken: 0, or a status. */",
            f"int {p}_check({self.sizes_list()});",
            "",
            "/* The bytes of workspace that it needs, 0 or more; -status where it is refused. */",
            f"int64_t {p}_workspace({self.sizes_list()});",
            "",
            "/* What a status means. */",
            f"const char *{p}_sentence(int status);",
            "",
            *functions,
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            "#endif",
            "",
        ]  # fmt: skip
        return "\n".join(lines)

    def _about(self) -> Iterator[str]:
        """Yield what the parameters are."""
        for param in self.params("input", "output", "scalar", "size"):
            name = self.names[param.name]
            shape = ", ".join(map(str, param.shape))
            match param.kind:
                case "size":
                    yield f"{name}: a size, 0 or more"
                case "scalar":
                    yield f"{name}: a scalar of type {param.dtype}"
                case _:
                    rest = "C-contiguous"
                    if param.strides is not None:
                        rest = f"strides ({', '.join(map(str, param.strides))}) in elements"
                    kind = "written" if param.name in self.written else "read"
                    yield f"{name}: {param.dtype}[{shape}], {rest}, {kind}"
        yield "workspace: memory for the kernel alone while it runs; NULL where it needs none"
        for text, _ in self.program.conditions:
            yield f"assumed, and checked: {text}"

    # The plan of a launch

    def plan(self) -> Iterator[str]:
        """Yield the functions that check sizes and choose the variant and its launch."""
        p, sizes = self.prefix, self.sizes_list()
        parts = max([len(v.launches) for v in self.variants])
        yield "typedef struct {"
        yield "  int variant, bits, nothing, empty;"
        yield f"  int64_t dims[{parts}][6], shared[{parts}];"
        yield f"  int64_t places[{len(pieces(self.program)) + 1}], bytes;"
        yield f"}} {p}_plan_t;"
        for number, variant in enumerate(self.variants):
            yield from self._bits(number, variant)
            yield from self._own_plan(number, variant)
        yield f"static int {p}_plan({self.sizes_list(f'{p}_plan_t *plan')}) {{"
        yield "  int ln_bad = 0;"
        yield "  (void)ln_bad;"
        for name in self.given("size"):
            yield f"  if ({name} < 0) return {fixed('NEGATIVE')};"
        for number, (_, condition) in enumerate(self.program.conditions, CONDITIONS):
            yield f"  if (!{self.text.size(condition)} || ln_bad) return {number};"
        yield "  plan->variant = 0;"
        if self.scalar is not None:
            tests = " && ".join([self.text.size(c) for _, c in self.program.requires]) or "1"
            yield f"  if (!({tests}) || ln_bad) plan->variant = 1;"
            yield f"  if (plan->variant == 1) return {self.call('plan_1', 'plan')};"
        yield f"  return {self.call('plan_0', 'plan')};"
        yield "}"
        yield f"int {p}_check({sizes}) {{"
        yield f"  {p}_plan_t plan;"
        yield f"  return {self.call('plan', '&plan')};"
        yield "}"
        yield f"int64_t {p}_workspace({sizes}) {{"
        yield f"  {p}_plan_t plan;"
        yield f"  const int status = {self.call('plan', '&plan')};"
        if self.scalar is None:
            yield "  return status ? -(int64_t)status : plan.bytes;"
        else:  # addresses may choose the other variant
            yield "  const int64_t ln_bytes = plan.bytes;"
            yield "  if (status || plan.variant == 1) return status ? -(int64_t)status : ln_bytes;"
            yield f"  if ({self.call('plan_1', '&plan')}) return ln_bytes;"
            yield "  return ln_bytes > plan.bytes ? ln_bytes : plan.bytes;"
        yield "}"

    def call(self, function: str, *more: str) -> str:
        """Return a call of a function of the sizes."""
        return f"{self.prefix}_{function}({', '.join([*self.given('size'), *more])})"

    def _bits(self, number: int, variant: kir.Program) -> Iterator[str]:
        yield f"static int {self.prefix}_bits_{number}({self.sizes_list()}) {{"
        yield "  int ln_bad = 0;"
        yield "  (void)ln_bad;"
        for line in self.text.fits(IndexWidth(variant), self.more[number]):
            yield f"  {line}"
        yield "}"

    def _own_plan(self, number: int, variant: kir.Program) -> Iterator[str]:
        """Yield the function that plans a launch of one variant; see `Planner.own_plan`."""
        p, size = self.prefix, self.text.size
        yield f"static int {p}_plan_{number}({self.sizes_list(f'{p}_plan_t *plan')}) {{"
        yield "  int ln_bad = 0;"
        yield f"  plan->variant = {number};"
        empty = [" || ".join([f"{size(e)} <= 0" for e in o.shape]) or "0" for o in variant.outputs]
        yield f"  plan->nothing = {' && '.join([f'({test})' for test in empty])};"
        yield "  plan->empty = 0;"
        yield "  plan->bytes = 0;"
        yield f"  plan->bits = {self.call(f'bits_{number}')};"
        yield f"  const int ln_refused = plan->bits == 0 ? {fixed('TOO_LARGE')} : 0;"
        yield "  if (plan->nothing) return ln_refused;"
        for factor in variant.split_factors:
            yield f"  if ({size(factor)} < 1) return {fixed('SPLIT')};"
        for place, part in enumerate(variant.launches):
            yield from self._dimensions(place, part)
        yield "  if (ln_refused) return ln_refused;"
        for place, buffer in enumerate(pieces(variant)):
            yield from self._room(place, buffer)
        if self.on_gpu and any(part.is_cooperative for part in variant.launches):
            yield f"  plan->bytes += {self.alignment};  /* the counter of the grid */"
        yield "  (void)ln_bad;"
        yield "  return 0;"
        yield "}"

    def _dimensions(self, place: int, part: kir.Program) -> Iterator[str]:
        extents = dict(part.launch)
        threads: Expr = integer(1)
        for number, dimension in enumerate(LAUNCH_DIMENSIONS):
            extent = extents.get(dimension, integer(1))
            if dimension.is_block:
                threads = Op("mul", (threads, extent), dtypes.index)
            text = self.text.size(extent)
            yield f"  if ({text} > {MOST_ALONG[dimension]}) return {fixed('LAUNCH')};"
            yield f"  plan->dims[{place}][{number}] = (int64_t){text};"
            if not isinstance(extent, Const) or extent.value == 0:
                yield f"  plan->empty |= {text} <= 0;"
        yield f"  if ({self.text.size(threads)} > {MOST_THREADS}) return {fixed('LAUNCH')};"
        shared = self.text.size(shared_layout(part).total)
        yield f"  if ({shared} > {MAX_SHARED_BYTES}) return {fixed('SHARED')};"
        yield f"  plan->shared[{place}] = (int64_t){shared};"

    def _room(self, place: int, buffer: Buffer) -> Iterator[str]:
        """Yield where a piece of the workspace lies; it has room for one thread where none runs."""
        size = self.text.size
        room = size(integer(1))
        for extent in buffer.shape:
            room = f"ln_size_mul({room}, ln_size_max({size(extent)}, 1))"
        most = f"INT64_MAX / {4 * buffer.dtype.size}"
        yield "  {"
        yield f"    const ln_size ln_count = plan->empty ? {room} : {size(buffer.size)};"
        yield f"    if (ln_count > {most} || plan->bytes > INT64_MAX / 4)"
        yield f"      return {fixed('TOO_LARGE')};"
        yield f"    plan->places[{place}] = plan->bytes;"
        yield f"    plan->bytes += (int64_t)(ln_count * {buffer.dtype.size} + {self.alignment - 1})"
        yield f"                   / {self.alignment} * {self.alignment};"
        yield "  }"

    # The function that runs the kernel

    def run(self, declared: Sequence[str]) -> str:
        """Return how that function is declared."""
        params = ",\n    ".join(declared)
        return f"int {self.prefix}_run(\n    {params})"

    def planned(self, declared: Sequence[str], address: str) -> Iterator[str]:
        """Yield its head: it returns where the plan or an array has a fault, or nothing is to do.

        Args:
            declared: its parameters.
            address: makes a ``const void *`` of an array, with {} for its name.
        """
        yield f"{self.run(declared)} {{"
        yield "  int ln_bad = 0;"
        yield f"  {self.prefix}_plan_t plan;"
        yield f"  int status = {self.call('plan', '&plan')};"
        yield "  if (status || plan.nothing) return status;"
        yield from self._array_checks(address)

    def workspace_check(self) -> Iterator[str]:
        """Yield a statement that returns a status where the workspace will not do."""
        yield "  if (plan.bytes > 0 && (workspace == 0 || workspace_bytes < plan.bytes))"
        yield f"    return {fixed('WORKSPACE')};"

    def passed(self, variant: kir.Program, piece: str) -> list[str]:
        """Return what a function of a variant takes, with {} in `piece` for its number."""
        places = count()
        return [
            piece.format(next(places)) if param.kind == "workspace" else self.names[param.name]
            for param in variant.params
        ]

    def counters(self, variant: kir.Program) -> Iterator[tuple[int, str]]:
        """Yield the number of each piece of workspace that starts at 0, and its bytes."""
        for place, buffer in enumerate(pieces(variant)):
            if buffer.kind == "counter":
                yield place, f"(size_t)({self.text.size(buffer.size)} * {buffer.dtype.size})"

    def _array_bytes(self, param: kir.Param) -> str:
        assert param.buffer is not None
        return f"ln_size_mul({self.text.size(param.buffer.size)}, {param.dtype.size})"

    def _array_checks(self, address: str) -> Iterator[str]:
        """Yield statements that return a status where arrays are NULL, or overlap."""
        arrays = self.params("input", "output")
        for param in arrays:
            name, null = address.format(self.names[param.name]), fixed("NULL")
            yield f"  if ({self._array_bytes(param)} > 0 && {name} == 0) return {null};"
        for place, param in enumerate(arrays):
            for other in arrays[:place]:
                if {param.name, other.name} & self.written:
                    first = f"{address.format(self.names[other.name])}, {self._array_bytes(other)}"
                    second = f"{address.format(self.names[param.name])}, {self._array_bytes(param)}"
                    yield f"  if (ln_overlap({first}, {second})) return {fixed('OVERLAP')};"


_TAKEN = ("workspace", "workspace_bytes", "plan", "status", "kernel", "stream", "ln_bad")


def pieces(variant: kir.Program) -> list[Buffer]:
    """Return the buffers of the workspace."""
    return [p.buffer for p in variant.params if p.kind == "workspace" and p.buffer is not None]


def fixed(name: str) -> int:
    """Return the number of a status that every kernel has."""
    return _FIXED[name][0]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def names_of(entry: EntryPoint) -> Mapping[str, str]:
    """Return the names of the functions, as a manifest has them."""
    parts = ("check", "workspace", "sentence", "run")
    return {part: f"{entry.prefix}_{part}" for part in parts}


# Exports for "c": one self-contained source with its header, and the library made of it.


ALIGNMENT = 64
_MOST_HOSTS = 16
"""How many sets of sizes without threads have a function of their own."""


class CExport:
    """A kernel as C.

    Args:
        program: the kernel.
        scalar: the variant for sizes that its vectors do not divide; None where there is none.
    """

    def __init__(self, program: kir.Program, scalar: kir.Program | None) -> None:
        own = [program] if scalar is None else [program, scalar]
        more = tuple([slot_sizes(variant) for variant in own])
        self.entry = EntryPoint(program, scalar, ALIGNMENT, more)
        self.programs = {
            (number, bits): replace(variant, name=f"{program.name}_variant{number}_{bits}")
            for number, variant in enumerate(own)
            for bits in (32, 64)
        }
        """What is printed, by variant and width of indices."""
        self.hosts = list(_hosts(own[-1]))

    def words_entry(self, variant: int, bits: int) -> str:
        """Return the name of the function that Python calls."""
        return entry_name(self.programs[variant, bits])

    def header(self) -> str:
        """Return the header."""
        return self.entry.header([
            "/* Run it: 0, or a status, and then nothing was written but the workspace. Threads",
            " * may call it at the same time, each with a workspace and outputs of its own. */",
            f"{self.entry.run(self._declared())};",
        ])  # fmt: skip

    def _declared(self) -> list[str]:
        return [*self.entry.declared(), "void *workspace", "int64_t workspace_bytes"]

    def source(self) -> str:
        """Return the source, which compiles alone."""
        texts = [self.header(), c_prelude(32), prelude(), "#include <string.h>", ""]
        texts.append("#pragma GCC visibility push(hidden)")
        for bits in (32, 64):
            texts += [] if bits == 32 else ["#define idx_t int64_t"]
            for (_, own), program in self.programs.items():
                if own == bits:
                    texts.append(print_c(program, bits, prelude=False))
        texts += [print_c(self._host(n), 64, prelude=False) for n in range(len(self.hosts))]
        texts += ["#undef idx_t", "#pragma GCC visibility pop"]
        texts += ["\n".join(self.entry.plan()), "\n".join(self.entry.sentences())]
        texts.append("\n".join(self._run()))
        # What Python calls: the same functions, with a word for each argument.
        texts += [print_entry(program) for program in self.programs.values()]
        return "\n".join(texts) + "\n"

    def _host(self, number: int) -> kir.Program:
        return replace(self.hosts[number][1], name=f"{self.entry.program.name}_empty{number}")

    def _run(self) -> Iterator[str]:
        entry, p = self.entry, self.entry.prefix
        yield f"static int {p}_told(int status) {{"
        yield f"  return status < {OUTSIDE} ? status : status + {DATA - OUTSIDE};"
        yield "}"
        yield from entry.planned(self._declared(), "(const void *){}")
        yield from entry.workspace_check()
        yield "  (void)ln_bad; (void)workspace_bytes;"
        for number, variant in enumerate(entry.variants):
            for place, size in entry.counters(variant):
                yield f"  if (plan.variant == {number})"
                yield f"    memset((char *)workspace + plan.places[{place}], 0,"
                yield f"           {size});"
        yield f"  status = {fixed('NO_THREADS')};"
        yield "  if (plan.empty) {"
        yield from self._empty()
        yield "  }"
        for (number, bits), program in self.programs.items():
            yield f"  else if (plan.variant == {number} && plan.bits == {bits})"
            yield f"    status = {self._called(program)};"
        yield "  return status;"
        yield "}"

    def _called(self, program: kir.Program) -> str:
        """Return a call of a printed function."""
        given = self.entry.passed(program, "(void *)((char *)workspace + plan.places[{}])")
        return f"{self.entry.prefix}_told({symbol(program.name)}({', '.join(given)}))"

    def _empty(self) -> Iterator[str]:
        """Yield what is done where no thread runs: outputs get what their reductions start from."""
        program = self.entry.variants[-1]
        if self.entry.scalar is not None:
            call = self.entry.call("plan_1", "&plan")
            yield f"    if (plan.variant == 0 && {call}) return {fixed('NO_THREADS')};"
            yield from [f"  {line}" for line in self.entry.workspace_check()]
        for output in program.outputs:
            if not output.inplace:
                yield from _filled(self.entry, output.buffer, self._name_of(output.buffer),
                                   identity(program, output.buffer))  # fmt: skip
        # The most sizes first: they are the most special.
        order = sorted(range(len(self.hosts)), key=lambda n: -len(self.hosts[n][0]))
        for place, number in enumerate(order):
            sizes = self.hosts[number][0]
            test = " && ".join([f"{self.entry.names[n]} == {v}" for n, v in sizes.items()])
            yield f"    {'else ' if place else ''}if ({test})"
            yield f"      status = {self._called(self._host(number))};"

    def _name_of(self, buffer: Buffer) -> str:
        program = self.entry.variants[-1]
        return next(self.entry.names[p.name] for p in program.params if p.buffer is buffer)


def _filled(entry: EntryPoint, buffer: Buffer, name: str, value: float) -> Iterator[str]:
    bits = np.array(value, buffer.dtype.numpy).tobytes()
    shown = ", ".join([str(byte) for byte in bits])
    yield f"    for (int64_t ln_i = 0; ln_i < {entry.text.size(buffer.size)}; ++ln_i) {{"
    yield f"      static const unsigned char ln_value[] = {{{shown}}};"
    yield f"      memcpy({name} + ln_i, ln_value, sizeof ln_value);"
    yield "    }"


def _hosts(program: kir.Program) -> Iterator[tuple[Mapping[str, int], kir.Program]]:
    """Yield sizes at which a launch has no thread, and what the host then does."""
    if len(program.launches) > 1:
        return
    alone = list(empty_sizes(program, {}))
    seen: list[Mapping[str, int]] = []
    for most in (1, 2, 3):
        for parts in combinations(alone, most):
            sizes: dict[str, int] = {}
            for part in parts:
                sizes.update({n: v for n, v in part.items() if n not in sizes})
            whole = all(sizes[n] == v for part in parts for n, v in part.items())
            if whole and sizes not in seen and len(seen) < _MOST_HOSTS:
                seen.append(sizes)
                yield sizes, of_the_host(program, sizes)


# Exports for "cuda": cubins and PTX, and a launcher for CUDA's driver API in plain C.


_HELPERS = """\
static _Thread_local CUresult {p}_last = CUDA_SUCCESS;

CUresult {p}_driver_result(void) {{ return {p}_last; }}

static int {p}_failed(CUresult result) {{
  if (result != CUDA_SUCCESS) {p}_last = result;
  return result != CUDA_SUCCESS;
}}

/* The bytes of a file, with a 0 behind them; NULL where it cannot be read. */
static char *{p}_read(const char *folder, const char *name) {{
  char *path = malloc(strlen(folder) + strlen(name) + 2), *data = NULL;
  if (path == NULL) return NULL;
  sprintf(path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  free(path);
  if (file == NULL) return NULL;
  long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (bytes >= 0 && fseek(file, 0, SEEK_SET) == 0) data = malloc((size_t)bytes + 1);
  if (data != NULL && fread(data, 1, (size_t)bytes, file) != (size_t)bytes) {{
    free(data);
    data = NULL;
  }}
  if (data != NULL) data[bytes] = 0;
  fclose(file);
  return data;
}}

/* Machine code where the GPU runs it, else PTX, which the driver compiles. */
static int {p}_load(const char *folder, const char *cubin, const char *ptx, CUmodule *module) {{
  char *code = {p}_read(folder, cubin);
  if (code == NULL) return {files};
  CUresult result = cuModuleLoadData(module, code);
  free(code);
  if (result == CUDA_SUCCESS) return 0;
  code = {p}_read(folder, ptx);
  if (code == NULL) return {files};
  result = cuModuleLoadData(module, code);
  free(code);
  return {p}_failed(result) ? {driver} : 0;
}}
"""


class CudaExport:
    """A kernel as machine code and a launcher.

    Args:
        program: the kernel.
        scalar: the variant for sizes and addresses that its vectors do not fit; None where there
            is none.
    """

    def __init__(self, program: kir.Program, scalar: kir.Program | None) -> None:
        self.entry = EntryPoint(program, scalar, GPU_ALIGNMENT, on_gpu=True)
        self.codes = [
            (number, bits) for number in range(len(self.entry.variants)) for bits in (32, 64)
        ]
        self.parts = len(program.launches)

    def machine_code(self, arch: str) -> tuple[dict[str, bytes], Mapping[str, str]]:
        """Return the files of all variants and widths, and the cubin of each.

        Raises:
            CompileError: NVRTC is missing or fails, or knows no such architecture.
            LoweringError: the kernel has no CUDA text.
        """
        files, names = {}, {}
        for number, bits in self.codes:
            program = self.entry.variants[number]
            source = cuda_printer.print_cuda(program, bits)
            built = nvrtc.compile_cuda(source, arch)
            check_architecture(program, built.target, f"{program.name}.export(arch={arch!r})")
            name = self._file(number, bits)
            files[f"{name}.cubin"], files[f"{name}.ptx"] = built.cubin, built.ptx.encode()
            files[f"{name}.cu"] = source.encode()
            names[f"{number}_{bits}"] = f"{name}.cubin"
        return files, names

    def _file(self, number: int, bits: int) -> str:
        return f"{self.entry.prefix}_variant{number}_{bits}"

    def header(self) -> str:
        """Return the header."""
        p = self.entry.prefix
        return self.entry.header(
            [
                f"typedef struct {p}_kernel {p}_kernel;",
                "",
                "/* Load the machine code from the folder of the export into the current context:",
                " * 0, or a status. */",
                f"int {p}_open(const char *folder, {p}_kernel **kernel);",
                f"void {p}_close({p}_kernel *kernel);",
                "",
                "/* What the driver said last in this thread, where a status says so. */",
                f"CUresult {p}_driver_result(void);",
                "",
                "/* Enqueue it: 0, or a status, and then nothing was launched. Arrays and the",
                " * workspace lie on the GPU. What is declared of the data is not checked. */",
                f"{self.entry.run(self._declared())};",
            ],
            ["#include <cuda.h>"],
        )

    def _declared(self) -> list[str]:
        return [
            f"{self.entry.prefix}_kernel *kernel", *self.entry.declared("CUdeviceptr"),
            "CUdeviceptr workspace", "int64_t workspace_bytes", "CUstream stream",
        ]  # fmt: skip

    def source(self) -> str:
        """Return the launcher; with the header and cuda.h it compiles as C11."""
        p = self.entry.prefix
        helpers = _HELPERS.format(p=p, files=fixed("FILES"), driver=fixed("DRIVER"))
        includes = ["stdint", "stdio", "stdlib", "string"]
        return "\n".join([
            *[f"#include <{name}.h>" for name in includes], f'#include "{p}.h"', prelude(), helpers,
            *self.entry.plan(), *self.entry.sentences(), *self._open(), *self._run(), "",
        ])  # fmt: skip

    def _open(self) -> Iterator[str]:
        p, count = self.entry.prefix, len(self.codes)
        yield f"struct {p}_kernel {{"
        yield f"  CUmodule modules[{count}];"
        yield f"  CUfunction functions[{count}][{self.parts}];"
        yield "};"
        yield f"void {p}_close({p}_kernel *kernel) {{"
        yield "  if (kernel == NULL) return;"
        yield f"  for (int n = 0; n < {count}; ++n)"
        yield "    if (kernel->modules[n] != NULL) cuModuleUnload(kernel->modules[n]);"
        yield "  free(kernel);"
        yield "}"
        yield f"int {p}_open(const char *folder, {p}_kernel **kernel) {{"
        yield f"  static const char *const cubins[] = {{{self._names('cubin')}}};"
        yield f"  static const char *const texts[] = {{{self._names('ptx')}}};"
        for number, variant in enumerate(self.entry.variants):
            names = ", ".join([f'"{symbol(name)}"' for name in launch_names(variant)])
            yield f"  static const char *const names_{number}[] = {{{names}}};"
        all_names = ", ".join([f"names_{number}" for number, _ in self.codes])
        yield f"  static const char *const *const names[] = {{{all_names}}};"
        yield f"  {p}_kernel *made = calloc(1, sizeof *made);"
        yield f"  if (made == NULL) return {fixed('NO_MEMORY')};"
        yield f"  for (int n = 0; n < {count}; ++n) {{"
        yield f"    int status = {p}_load(folder, cubins[n], texts[n], &made->modules[n]);"
        yield f"    for (int m = 0; status == 0 && m < {self.parts}; ++m)"
        yield f"      if ({p}_failed(cuModuleGetFunction(&made->functions[n][m], made->modules[n],"
        yield f"          names[n][m]))) status = {fixed('DRIVER')};"
        yield "    if (status) {"
        yield f"      {p}_close(made);"
        yield "      return status;"
        yield "    }"
        yield "  }"
        yield "  *kernel = made;"
        yield "  return 0;"
        yield "}"

    def _names(self, kind: str) -> str:
        return ", ".join([f'"{self._file(number, bits)}.{kind}"' for number, bits in self.codes])

    def _run(self) -> Iterator[str]:
        entry = self.entry
        yield from entry.planned(self._declared(), "(const void *)(uintptr_t){}")
        if entry.scalar is not None:
            tests = " || ".join([f"{entry.names[n]} % {a}" for n, a in self._alignments()])
            yield f"  if (plan.variant == 0 && ({tests or '0'}))"
            yield f"    if ((status = {entry.call('plan_1', '&plan')})) return status;"
        yield f"  if (plan.empty) return {fixed('NO_THREADS')};"
        yield from entry.workspace_check()
        yield "  (void)ln_bad; (void)workspace_bytes;"
        yield "  const int ln_code = plan.variant * 2 + (plan.bits == 64);"
        for number, variant in enumerate(entry.variants):
            yield f"  if (plan.variant == {number}) {{"
            yield from [f"    {line}" for line in self._launches(variant)]
            yield "  }"
        yield "  return 0;"
        yield "}"

    def _alignments(self) -> Iterator[tuple[str, int]]:
        """Yield the arrays that vectors need aligned, with the bytes."""
        found = alignments(wide_accesses(self.entry.program))
        for param in self.entry.params("input", "output"):
            if param.buffer in found and found[param.buffer] > 1:
                yield param.name, found[param.buffer]

    def _launches(self, variant: kir.Program) -> Iterator[str]:
        """Yield the launches of one variant, one after the other."""
        entry, p = self.entry, self.entry.prefix
        driver = f"return {fixed('DRIVER')}"
        counters = dict(entry.counters(variant))
        for place in range(len(pieces(variant))):
            yield f"CUdeviceptr ln_space{place} = workspace + plan.places[{place}];"
            if place in counters:
                cleared = f"cuMemsetD8Async(ln_space{place}, 0, {counters[place]}, stream)"
                yield f"if ({p}_failed({cleared}))"
                yield f"  {driver};"
        given = [f"&{name}" for name in entry.passed(variant, "ln_space{}")]
        if any(part.is_cooperative for part in variant.launches):
            yield f"CUdeviceptr ln_counter = workspace + plan.bytes - {GPU_ALIGNMENT};"
            yield f"if ({p}_failed(cuMemsetD8Async(ln_counter, 0, 4, stream))) {driver};"
        for number, part in enumerate(variant.launches):
            extra = ["&ln_counter"] if part.is_cooperative else []
            yield "{"
            yield f"  CUfunction ln_function = kernel->functions[ln_code][{number}];"
            yield f"  void *ln_arguments[] = {{{', '.join([*given, *extra]) or '0'}}};"
            shared = "0"
            if shared_layout(part).is_dynamic:
                shared = f"(unsigned)plan.shared[{number}]"
                yield f"  if ({p}_failed(cuFuncSetAttribute(ln_function,"
                yield "      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,"
                yield f"      (int)plan.shared[{number}]))) {driver};"
            sizes = [f"(unsigned)plan.dims[{number}][{n}]" for n in range(len(LAUNCH_DIMENSIONS))]
            launch = "cuLaunchCooperativeKernel" if part.is_cooperative else "cuLaunchKernel"
            rest = "ln_arguments" if part.is_cooperative else "ln_arguments, NULL"
            yield f"  if ({p}_failed({launch}(ln_function, {', '.join(sizes)},"
            yield f"      {shared}, stream, {rest}))) {driver};"
            yield "}"
