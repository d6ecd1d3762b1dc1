"""Exports for "c": one self-contained source with its header, and the library made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from loopnest import kir
from loopnest.backends.clike.identifiers import symbol
from loopnest.backends.cpu.c_printer import c_prelude, entry_name, print_c, print_entry
from loopnest.backends.cpu.data_checks import OUTSIDE
from loopnest.backends.cpu.fission.thread_loop_fission import slot_sizes
from loopnest.exports.entry_point import DATA, EntryPoint, fixed
from loopnest.exports.size_checks import prelude
from loopnest.kir.buffers import Buffer
from loopnest.launch.launch_plan import identity
from loopnest.proofs.empty_launches import empty_sizes, of_the_host

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
    for count in (1, 2, 3):
        for parts in combinations(alone, count):
            sizes: dict[str, int] = {}
            for part in parts:
                sizes.update({n: v for n, v in part.items() if n not in sizes})
            whole = all(sizes[n] == v for part in parts for n, v in part.items())
            if whole and sizes not in seen and len(seen) < _MOST_HOSTS:
                seen.append(sizes)
                yield sizes, of_the_host(program, sizes)
