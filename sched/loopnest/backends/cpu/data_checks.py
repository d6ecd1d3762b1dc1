"""C of what a launch asks of its data before it runs: declared ranges, and indices of axes.

The checks are numbered: those of declared ranges first, then those of indices. The function that is
called returns `LN_OUTSIDE` and the number of the first that fails, and has then written nothing.
Indices that the kernel computes are computed by a function of their own, into memory of the call.
Of those that were declared to differ, each marks what it chooses, and finds it unmarked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
            if declared.ascending:
                yield from self._descends(self.inputs[declared.name], number)
        for number, check in enumerate(self.program.index_checks, len(self.program.ranges)):
            if check.distinct:
                yield from self._of_distinct(check, number)
                continue
            yield f"  // {check.reader} reads axis {check.axis} of {check.table} at {check.source}"
            pad = "" if check.always else "  "
            if not check.always:
                yield f"  if ({self._some_size_is_zero()}) {{"
            found = (
                self._of_input(self.inputs[check.source], ZERO, check.extent, number)
                if check.program is None
                else self._of_computed(check, check.program, [self._found_outside(check, number)])
            )
            yield from [pad + line for line in found]
            if not check.always:
                yield "  }"

    def _some_size_is_zero(self) -> str:
        sizes = [self.names[p.name] for p in self.program.params if p.kind == "size"]
        return " || ".join([f"{size} == 0" for size in sizes]) or "1"

    def _descends(self, param: kir.Param, number: int) -> Iterator[str]:
        """Yield the test that no element is below the one before it; there is one axis."""
        step = "1" if param.strides is None else self.size(param.strides[0])
        asked = ", ".join([self.names[param.name], self.size(param.shape[0]), step])
        yield f"  if (ln_descends_{param.dtype.name}({asked})) return LN_OUTSIDE + {number};"

    def _of_input(self, param: kir.Param, low: Expr, high: Expr, number: int) -> Iterator[str]:
        assert param.buffer is not None
        name, failed = self.names[param.name], f"return LN_OUTSIDE + {number};"
        if param.strides is None:
            outside = self._outside(name, param.dtype, param.buffer.size, low, high)
            yield f"  if ({outside}) {failed}"
            return
        places = [self.size(stride) for stride in param.strides]
        pad, value = "  ", f"{name}[{_sum(places)}]"
        for line in self._loops(param.shape):
            yield pad + line
            pad += "  "
        yield f"{pad}if ({value} < {self.size(low)} || {value} >= {self.size(high)}) {failed}"

    def _loops(self, shape: Sequence[Expr], but: int | None = None) -> Iterator[str]:
        """Yield the loops over the axes of a shape, all but one."""
        for axis, extent in enumerate(shape):
            if axis != but:
                index = f"ln_{axis}"
                yield f"for (int64_t {index} = 0; {index} < {self.size(extent)}; ++{index})"

    def _of_distinct(self, check: kir.IndexCheck, number: int) -> Iterator[str]:
        yield f"  // {check.reader} has one update an element, at {check.source}"
        if check.program is not None:
            asked = self._repeated(check, number, "ln_found", None)
            yield from self._of_computed(check, check.program, asked)
            return
        param = self.inputs[check.source]
        yield "  {"
        yield "    int ln_status = LN_OK;"
        for line in self._repeated(check, number, self.names[param.name], param.strides):
            yield f"    {line}"
        yield "    if (ln_status != LN_OK) return ln_status;"
        yield "  }"

    def _repeated(
        self, check: kir.IndexCheck, number: int, name: str, strides: Sequence[Expr] | None
    ) -> Iterator[str]:
        """Yield what goes along the axis of a check, once for each index of the others."""
        extents = [f"({self.size(extent)})" for extent in check.shape]
        steps = [" * ".join(extents[axis + 1 :]) or "1" for axis, _ in enumerate(extents)]
        if strides is not None:
            steps = [self.size(stride) for stride in strides]
        yield from self._loops(check.shape, check.axis)
        at = check.axis
        line = [f"{name} + {_sum(steps, at)}", extents[at], steps[at], self.size(check.extent)]
        yield f"  if (ln_status == LN_OK && ln_repeated_{check.dtype.name}({', '.join(line)}))"
        yield f"    ln_status = LN_OUTSIDE + {number};"

    def _outside(self, name: str, dtype: DType, count: Expr, low: Expr, high: Expr) -> str:
        arguments = ", ".join([name, *map(self.size, (count, low, high))])
        return f"ln_outside_{dtype.name}({arguments})"

    def _found_outside(self, check: kir.IndexCheck, number: int) -> str:
        assert check.program is not None
        count = check.program.outputs[0].buffer.size
        outside = self._outside("ln_found", check.dtype, count, ZERO, check.extent)
        return f"if ({outside}) ln_status = LN_OUTSIDE + {number};"

    def _of_computed(
        self, check: kir.IndexCheck, program: kir.Program, asked: Iterable[str]
    ) -> Iterator[str]:
        """Yield what computes indices, and then the statements `asked`, which set ``ln_status``."""
        (output,) = program.outputs
        kind, count = self.element(check.dtype), self.size(output.buffer.size)
        given = ["ln_found" if p.kind == "output" else self.names[p.name] for p in program.params]
        yield "  {"
        yield "    size_t ln_bytes = 0;"
        yield f"    ln_reserve(&ln_bytes, {count}, sizeof({kind}));"
        yield "    void *ln_memory;"
        yield f"    {kind} *const ln_found = ({kind} *)ln_scratch_new(&ln_memory, 1, ln_bytes);"
        yield "    if (ln_memory == NULL) return LN_OUT_OF_MEMORY;"
        yield f"    int ln_status = {self.functions[program]}({', '.join(given)});"
        yield "    if (ln_status == LN_OK) {"
        yield from [f"      {line}" for line in asked]
        yield "    }"
        yield "    __builtin_free(ln_memory);"
        yield "    if (ln_status != LN_OK) return ln_status;"
        yield "  }"


def _sum(steps: Sequence[str], but: int | None = None) -> str:
    """Return the place of an element with these strides, of all axes but one, in elements."""
    terms = [f"ln_{axis} * ({step})" for axis, step in enumerate(steps) if axis != but]
    return " + ".join(terms) or "0"


def computing_programs(program: kir.Program) -> Sequence[kir.Program]:
    """Return the programs that compute indices, each once."""
    found = [check.program for check in program.index_checks if check.program is not None]
    return tuple(dict.fromkeys(found))
