"""The functions by which programs without Python call an exported kernel, in C.

All names begin with that of the kernel. Parameters stand in the order of `Kernel.params`: inputs,
outputs, scalars, sizes; then the workspace. A launch is checked as in Python, by its sizes; each
reason to refuse it is a status with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from loopnest import kir
from loopnest.backends.clike.identifiers import symbol
from loopnest.exports.size_checks import SizeText
from loopnest.kir.buffers import Buffer
from loopnest.kir.shared_memory import shared_layout
from loopnest.launch.index_width import IndexWidth
from loopnest.launch.launch_plan import MAX_SHARED_BYTES
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, MOST_ALONG, MOST_THREADS
from loopnest.scalar.expr import Const, Expr, Op, integer

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
