"""Nest texts with claims: hand-written kernels that `loopnest.verify` can hold against their math.

What a store claims stands behind it: ``T2[i, j] = x[j, i]  # T2(i, j)``, with the role before it if
it is not "define": ``acc[0] = 0.0  # init y(i, 0)``, ``part[0] = acc[0]  # partial y``. What tensor
a buffer holds stands behind its allocation: ``acc: float32[1] local  # y``.
"""

from __future__ import annotations

from dataclasses import replace

import loopnest as ln
from loopnest import kir
from loopnest.kir.nest_parser import NestParser
from loopnest.proofs import Report, verify_program
from loopnest.tensor.math_snapshot import snapshot


class _Claiming(NestParser):
    def allocate_or_store(self, line):
        code, _, note = line.partition("  # ")
        made = super().allocate_or_store(code.rstrip())
        if isinstance(made, kir.Store):
            return self.claimed(made, note)
        if note and made is None:  # workspace
            param = self.workspace.pop()
            buffer = self.of(param.buffer, note)
            self.workspace.append(replace(param, buffer=buffer))
        elif note:
            return replace(made, storage=self.of(made.storage, note))
        return made

    def of(self, buffer, tensor):
        held = self.buffers[buffer.name] = replace(buffer, tensor=tensor)
        return held

    def claimed(self, store, note):
        role, _, claim = (
            note.rpartition(" ") if "(" not in note else note.partition("(")[0].rpartition(" ")
        )
        tensor = claim or store.tensor
        coordinate = ()
        if "(" in note:
            inner = note[note.index("(") + 1 : -1]
            coordinate = self.expressions(inner)
        return replace(store, tensor=tensor, role=role or "define", coordinate=coordinate)


def program_of(text: str, launch: dict | None = None) -> kir.Program:
    """Return the program of a nest text with claims."""
    return _Claiming(text, (), launch or {}).parsed()


def report_on(f: ln.Fusion, text: str, **sizes: int) -> Report:
    """Return what verify says of a nest text that claims to compute `f`."""
    return verify_program(program_of(text), snapshot(f), sizes)
