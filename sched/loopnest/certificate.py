"""Certificates: a proved kernel as a text that another process reads and proves again.

A certificate holds the kernel's full text: nest, variant without wide accesses, and math. Nothing
in it is believed. ``python -m loopnest.certificate FILE`` reads the nest and the math from the text
alone, proves the one against the other, and says what the kernel takes, computes and gives; neither
lowering nor schedules are loaded. With ``--second`` a second checker, which shares nothing with the
proofs, then runs the nest at sizes and compares (`loopnest.second_checker`). The digest tells a
damaged file from one that was written so; it is no signature, since what is certified is what the
proof finds.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence

from loopnest.base.errors import LoopnestError, VerifyError, kind_of
from loopnest.base.recursion import deep
from loopnest.kir.legal_program import program_faults
from loopnest.kir.lowered import BUFFERS, KernelRecord, Lowered
from loopnest.kir.nest_text import print_nest
from loopnest.proofs import Report, verify
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import Arg, Expr, ScalarParam, substitute
from loopnest.scalar.record_text import SCALAR_MEMBERS, parse_records, print_records
from loopnest.second_checker import second_opinion
from loopnest.tensor.math_snapshot import AXES, MathSnapshot

VERSION = 1
_FIRST = "# loopnest certificate"
_MADE_BY = "write it again with k.certificate(path)"
_USAGE = """usage: python -m loopnest.certificate [--second] FILE...

Prove the kernels of certificates again, from their text alone. With --second, ask the second
checker too: it runs the nest at sizes that cross two tiles of each split, and compares."""


@deep
def full_text(lowered: Lowered) -> str:
    """Return all of a kernel as text, which `read_text` reads back."""
    return print_records(KernelRecord.of(lowered), {**SCALAR_MEMBERS, **BUFFERS, **AXES})


@deep
def read_text(text: str, call: str) -> Lowered:
    """Return the kernel whose full text this is.

    Raises:
        LoopnestError: another version wrote the text, a line is damaged, or the nest is not legal;
            `call` is what the user called.
    """
    members = {**BUFFERS, **SCALAR_MEMBERS, **AXES}
    record: KernelRecord = parse_records(text, KernelRecord, members, (MathSnapshot,))
    lowered = record.lowered()
    for program in (lowered.program, *([lowered.scalar().program] if lowered.scalar else [])):
        for fault in program_faults(program):
            raise LoopnestError(call, f"the text has no legal nest: {fault}")
    return lowered


def write_certificate(lowered: Lowered, path: object) -> Report:
    """Prove a kernel and write its certificate; return the proof.

    Args:
        lowered: the kernel.
        path: of the file; one that is there is written anew.

    Raises:
        VerifyError: it is not proved, or the file cannot be written.
    """
    subject = f"{lowered.program.name}.certificate({path!r})"
    if not isinstance(path, (str, os.PathLike)):
        raise VerifyError(subject, f"{kind_of(path)} is no path", "pass a str or a Path")
    report = verify(lowered)
    if not report.ok:
        raise VerifyError(subject, f"it is no proved kernel: {report}", "see ln.verify")
    text = certificate_text(lowered, report)
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        found = f"the file cannot be written: {error.strerror}"
        raise VerifyError(subject, found, "name a file in a folder that is there") from error
    return report


def certificate_text(lowered: Lowered, report: Report) -> str:
    """Return the certificate of a kernel of which this is the proof."""
    rest = f"claim {report.verdict}\n{full_text(lowered)}\n"
    return f"{_FIRST} {VERSION}\nsha256 {_digest(rest)}\n{rest}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_certificate(text: str, call: str) -> tuple[Lowered, str]:
    """Return the kernel of a certificate, and what is claimed of it.

    Raises:
        VerifyError: it is none, of another version, or was changed.
        LoopnestError: as `read_text`.
    """
    first, _, rest = text.partition("\n")
    found = re.fullmatch(rf"{_FIRST} (\d+)", first)
    if found is None:
        raise VerifyError(call, "it is no certificate of loopnest", _MADE_BY)
    if int(found[1]) != VERSION:
        why = f"it is a certificate of version {found[1]}; this loopnest reads version {VERSION}"
        raise VerifyError(call, why, "use the loopnest that wrote it")
    second, _, signed = rest.partition("\n")
    claim, _, body = signed.partition("\n")
    if second != f"sha256 {_digest(signed)}" or not claim.startswith("claim "):
        why = "it was changed since it was written: its digest is not that of its text"
        raise VerifyError(call, why, _MADE_BY)
    return read_text(body.removesuffix("\n"), call), claim.removeprefix("claim ")


def check_certificate(text: str, call: str = "certificate") -> tuple[Lowered, Report]:
    """Prove the kernel of a certificate again; return it, and the proof.

    Raises:
        VerifyError: as `read_certificate`, or its kernel is not proved as it claims.
    """
    lowered, claim = read_certificate(text, call)
    report = verify(lowered)
    if not report.ok:
        raise VerifyError(call, f"it claims '{claim}', and its kernel is {report}")
    if report.verdict != claim:
        raise VerifyError(
            call, f"it claims '{claim}', what is found is '{report.verdict}'", _MADE_BY
        )
    return lowered, report


def main(arguments: Sequence[str]) -> int:
    """Check the certificates in files; return the exit status."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    options = [argument for argument in arguments if argument.startswith("-")]
    unknown = [option for option in options if option not in ("-h", "--help", "--second")]
    if unknown:
        print(f"error: there is no option {unknown[0]}; there is --second", file=sys.stderr)
        return 2
    if not names or "-h" in options or "--help" in options:
        print(_USAGE)
        return 0 if names or options else 2
    return max([_checked(name, second="--second" in options) for name in names])


def _checked(name: str, *, second: bool) -> int:
    """Check the certificate in a file, print what is found, and return the exit status."""
    started = time.perf_counter()
    try:
        with open(name, encoding="utf-8") as file:
            lowered, report = check_certificate(file.read(), name)
    except (LoopnestError, OSError, UnicodeDecodeError) as error:
        known = isinstance(error, LoopnestError)
        print(f"error: {error}" if known else f"error: {name}: {_unread(error)}", file=sys.stderr)
        return 1
    print(_summary(name, lowered, report, time.perf_counter() - started))
    return 0 if not second or _seconded(lowered) else 1


def _seconded(lowered: Lowered) -> bool:
    """Print what the second checker says of a kernel, and return whether it is right in all."""
    assert lowered.math is not None
    variants = {"": lowered}
    if lowered.scalar is not None:
        variants[" of the variant without wide accesses"] = lowered.scalar()
    right = True
    for which, variant in variants.items():
        started = time.perf_counter()
        found = second_opinion(variant.program, lowered.math())
        print(f"  second checker{which}: {found} ({time.perf_counter() - started:.1f} s)")
        right = right and found.ok
    return right


def _unread(error: Exception) -> str:
    return f"{error.strerror}" if isinstance(error, OSError) else "it is no text in UTF-8"


def _summary(name: str, lowered: Lowered, report: Report, seconds: float) -> str:
    """Return what a certificate shows, and of what math."""
    assert lowered.math is not None
    nest = print_nest(lowered.program).splitlines()
    lines = [f"{name}: {report.verdict} ({seconds:.1f} s)", f"  {nest[1]}"]
    lines += [f"  {line}" for line in _definitions(lowered.math())]
    return "\n".join([*lines, *[f"  note: {finding}" for finding in report.findings]])


def _definitions(math: MathSnapshot) -> Iterator[str]:
    """Yield the value of each tensor at the index #0, #1, … of its root domain."""
    for tensor in math.tensors:
        definition = tensor.definition
        if definition is None:
            continue
        read: dict[Expr, Expr] = {}
        for number, found in enumerate(definition.reads):
            place = ", ".join(map(str, found.indices))
            dtype = next(t.dtype for t in math.tensors if t.name == found.producer)
            read[Arg(number, dtype)] = ScalarParam(f"{found.producer}[{place}]", dtype)
        value = substitute(definition.values[definition.component], read)
        extents = ", ".join([f"{axis.extent}" for axis in tensor.logical])
        folded = [n for n, a in enumerate(tensor.root) if a.kind is IterKind.REDUCTION]
        how = ""
        if definition.reducer is not None:
            scan = definition.scan
            along = [scan.axis] if scan is not None else folded
            axes = ", ".join([f"#{n} < {tensor.root[n].extent}" for n in along])
            how = f"{'scan by ' if scan else ''}{definition.reducer.name} over {axes} of "
        yield f"{tensor.name}: {tensor.dtype}[{extents}] = {how}{value}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
