"""C of what a launch asks of its data before it runs: declared ranges, and indices of axes.

The checks are numbered: those of declared ranges first, then those of indices. The function that is
called returns `LN_OUTSIDE` and the number of the first that fails, and has then written nothing.
Indices that the kernel computes are computed by a function of their own, into memory of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from loopnest import kir
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import ZERO, Expr

OUTSIDE = 2
"""The status of a call whose first check fails: `LN_OUTSIDE`."""


def is_checked(program: kir.Program) -> bool:
    """Whether a launch looks at its data."""
    return bool(program.ranges or program.index_checks)


class DataChecks:
    """The checks of a program.

    Args:
        program: the program.
        names: how C names each parameter.
        size: writes a size, in 64 bits.
        element: writes the type of an element.
        functions: the name of the function that computes indices, by the program that it is of.
    """

    def __init__(
        self,
        program: kir.Program,
        names: Mapping[str, str],
        size: Callable[[Expr], str],
        element: Callable[[DType], str],
        functions: Mapping[kir.Program, str],
    ) -> None:
        self.program, self.names, self.size, self.element = program, names, size, element
        self.functions = functions
        self.inputs = {p.name: p for p in program.params if p.kind == "input"}

    def lines(self) -> Iterator[str]:
        """Yield the statements."""
        for number, declared in enumerate(self.program.ranges):
            yield f"  // {declared}"
            yield from self._of_input(
                self.inputs[declared.name], declared.low, declared.high, number
            )
        for number, check in enumerate(self.program.index_checks, len(self.program.ranges)):
            yield f"  // {check.reader} reads axis {check.axis} of {check.table} at {check.source}"
            pad = "" if check.always else "  "
            if not check.always:
                yield f"  if ({self._some_size_is_zero()}) {{"
            found = (
                self._of_input(self.inputs[check.source], ZERO, check.extent, number)
                if check.program is None
                else self._of_computed(check, check.program, number)
            )
            yield from [pad + line for line in found]
            if not check.always:
                yield "  }"

    def _some_size_is_zero(self) -> str:
        sizes = [self.names[p.name] for p in self.program.params if p.kind == "size"]
        return " || ".join([f"{size} == 0" for size in sizes]) or "1"

    def _of_input(self, param: kir.Param, low: Expr, high: Expr, number: int) -> Iterator[str]:
        assert param.buffer is not None
        name, failed = self.names[param.name], f"return LN_OUTSIDE + {number};"
        if param.strides is None:
            outside = self._outside(name, param.dtype, param.buffer.size, low, high)
            yield f"  if ({outside}) {failed}"
            return
        indices = [f"ln_{axis}" for axis, _ in enumerate(param.shape)]
        pairs = zip(indices, param.strides, strict=True)
        place = " + ".join([f"{index} * ({self.size(stride)})" for index, stride in pairs])
        pad = "  "
        for index, extent in zip(indices, param.shape, strict=True):
            yield f"{pad}for (int64_t {index} = 0; {index} < {self.size(extent)}; ++{index})"
            pad += "  "
        value = f"{name}[{place or '0'}]"
        yield f"{pad}if ({value} < {self.size(low)} || {value} >= {self.size(high)}) {failed}"

    def _outside(self, name: str, dtype: DType, count: Expr, low: Expr, high: Expr) -> str:
        arguments = ", ".join([name, *map(self.size, (count, low, high))])
        return f"ln_outside_{dtype.name}({arguments})"

    def _of_computed(
        self, check: kir.IndexCheck, program: kir.Program, number: int
    ) -> Iterator[str]:
        (output,) = program.outputs
        kind, count = self.element(check.dtype), self.size(output.buffer.size)
        outside = self._outside("ln_found", check.dtype, output.buffer.size, ZERO, check.extent)
        given = ["ln_found" if p.kind == "output" else self.names[p.name] for p in program.params]
        yield "  {"
        yield "    size_t ln_bytes = 0;"
        yield f"    ln_reserve(&ln_bytes, {count}, sizeof({kind}));"
        yield "    void *ln_memory;"
        yield f"    {kind} *const ln_found = ({kind} *)ln_scratch_new(&ln_memory, 1, ln_bytes);"
        yield "    if (ln_memory == NULL) return LN_OUT_OF_MEMORY;"
        yield f"    int ln_status = {self.functions[program]}({', '.join(given)});"
        yield f"    if (ln_status == LN_OK && {outside}) ln_status = LN_OUTSIDE + {number};"
        yield "    __builtin_free(ln_memory);"
        yield "    if (ln_status != LN_OK) return ln_status;"
        yield "  }"


def computing_programs(program: kir.Program) -> Sequence[kir.Program]:
    """Return the programs that compute indices, each once."""
    found = [check.program for check in program.index_checks if check.program is not None]
    return tuple(dict.fromkeys(found))
