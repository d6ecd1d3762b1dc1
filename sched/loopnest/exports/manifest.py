"""The folder of an exported kernel, written and loaded: its files, and a manifest that names them.

`manifest.json` is data: parameters, launch formulas, what is required, the proof with its scope,
the certificate where there is one, and the SHA-256 of every other file. Its own SHA-256 is the
digest of the export, which a caller may pin.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from loopnest import kir
from loopnest.backends.compiled_kernel import CompiledKernel, K
from loopnest.backends.cpu import c_target
from loopnest.backends.cpu.c_compiler import command_line, machine_code, package_version
from loopnest.backends.cuda import cuda_target
from loopnest.base.errors import CompileError, LaunchError, VerifyError, kind_of
from loopnest.base.pickling import SCHEMA
from loopnest.exports.entry_point import ABI, CExport, CudaExport, EntryPoint, c_type, names_of
from loopnest.exports.ffi_entry import ffi_arguments, ffi_source
from loopnest.exports.size_checks import check_sizes
from loopnest.kir.lowered import Lowered
from loopnest.kir.shared_memory import shared_layout
from loopnest.launch.target_interface import Executable
from loopnest.scalar.expr import Expr

NAME = "manifest.json"
FORMAT, VERSION = "loopnest export", 1

Files: TypeAlias = "dict[str, bytes]"
Json: TypeAlias = "dict[str, Any]"


class Exportable(Protocol):
    """What an export needs of a kernel."""

    @property
    def program(self) -> kir.Program: ...

    @property
    def name(self) -> str: ...

    @property
    def scalar(self) -> Exportable | None: ...

    @property
    def _lowered(self) -> Lowered: ...

    def text(self, *, full: bool = False) -> str: ...


@dataclass(frozen=True)
class Export:
    """An export that was read, its digests checked.

    Args:
        folder: where it lies.
        manifest: what it says of itself.
        files: the other files, by name.
    """

    folder: Path
    manifest: Json
    files: Files

    @property
    def kernel_text(self) -> str:
        """The kernel, for `Kernel.parse`."""
        return self.files[self.manifest["nest"]["full"]].decode(errors="replace")


def export_kernel(
    kernel: Exportable, folder: str | os.PathLike[str], target: str, arch: str, prove: bool
) -> str:
    """Write the export of a kernel; see `Kernel.export`. Return its digest."""
    subject = f"{kernel.name}.export({str(folder)!r}, target={target!r})"
    place = _place(folder, subject)
    check_sizes(list(_sizes(kernel.program)), subject)
    proof, certificate = _proof(kernel, subject) if prove else (None, "")
    files: Files
    if target == "c":
        entry, files, built = _c_files(kernel)
    elif target == "cuda":
        entry, files, built = _cuda_files(kernel, arch)
    else:
        raise CompileError(subject, f"target {target!r} exports nothing", 'use "c" or "cuda"')
    name = entry.prefix
    files[f"{name}.nest"] = (str(kernel) + "\n").encode()
    files[f"{name}.kernel"] = kernel.text(full=True).encode()
    if certificate:
        files[f"{name}.certificate"] = certificate.encode()
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "loopnest": package_version(),
        "schema": SCHEMA,
        "interface": ABI,
        "kernel": kernel.name,
        "target": target,
        "entry": names_of(entry),
        "parameters": list(_parameters(entry)),
        "outputs": [
            {"name": o.name, "shape": list(map(str, o.shape)), "inplace": o.inplace or None}
            for o in kernel.program.outputs
        ],
        "assumptions": [text for text, _ in kernel.program.conditions],
        "ranges": [str(declared) for declared in kernel.program.ranges],
        "variants": [_variant(program) for program in entry.variants],
        "statuses": {str(number): text for _, number, text in entry.statuses},
        "nest": {"text": f"{name}.nest", "full": f"{name}.kernel"},
        "proof": proof,
        "certificate": f"{name}.certificate" if certificate else None,
        "built": built,
        "files": {file: _sha(data) for file, data in sorted(files.items())},
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False).encode() + b"\n"
    _write(place, {**files, NAME: text}, subject)
    return _sha(text)


_FOLDER = "name a folder that k.export made"
_DAMAGES = (ValueError, TypeError, KeyError, RecursionError)


def read_export(folder: str | os.PathLike[str], digest: str | None) -> Export:
    """Read an export, and hold each file against its digest.

    Raises:
        CompileError: there is none; a file is missing, or another than the manifest says; it is of
            another version, or its manifest is another than `digest` says.
    """
    subject = f"load({str(folder)!r})"
    again = "export the kernel again"
    try:
        place = Path(folder)
        text = (place / NAME).read_bytes()
    except TypeError:
        raise CompileError(subject, f"{kind_of(folder)} is no path", _FOLDER) from None
    except (OSError, ValueError) as error:
        reason = f"there is no {NAME} to read ({_why(error)})"
        raise CompileError(subject, reason, _FOLDER) from None
    if digest is not None and _sha(text) != digest:
        reason = f"its digest is {_sha(text)}, not {digest}"
        raise CompileError(subject, reason, "it is another export; trust it, or get the right one")
    try:
        manifest = json.loads(text)
        format_, version, files = [manifest[key] for key in ("format", "version", "files")]
        known = {**files}
    except _DAMAGES:
        raise CompileError(subject, f"{NAME} is damaged", again) from None
    if format_ != FORMAT:
        raise CompileError(subject, f"{NAME} is no manifest of a kernel", again)
    if (version, manifest.get("schema")) != (VERSION, SCHEMA):
        found = f"version {version}, kernels of schema {manifest.get('schema')}"
        reason = f"it was made by loopnest {manifest.get('loopnest')} ({found})"
        own = f"this is version {VERSION}, schema {SCHEMA}"
        raise CompileError(subject, reason, f"{own}: {again} with this one")
    held: Files = {}
    for name, wanted in known.items():
        if os.path.basename(name) != name:
            raise CompileError(subject, f"{NAME} names '{name}', which is no file of it", again)
        try:
            held[name] = (place / name).read_bytes()
        except (OSError, ValueError) as error:
            reason = f"{name} cannot be read ({_why(error)})"
            raise CompileError(subject, reason, again) from None
        if _sha(held[name]) != wanted:
            reason = f"{name} has the digest {_sha(held[name])}, where {NAME} says {wanted}"
            raise CompileError(subject, reason, f"it is damaged, or of another export; {again}")
    if not _is_whole(manifest, held):
        raise CompileError(subject, f"{NAME} is damaged", again)
    return Export(place, manifest, held)


def _is_whole(manifest: dict[str, Any], held: Files) -> bool:
    """Whether a manifest names what loading needs."""
    try:
        names = [*manifest["built"]["code"].values(), manifest["nest"]["full"]]
        is_named = len(names) > 1 and all(isinstance(name, str) for name in names)
        return bool(is_named and names[-1] in held and manifest["target"])
    except (TypeError, KeyError, AttributeError):
        return False


def loaded(kernel: K, export: Export, subject: str) -> CompiledKernel[K]:
    """Return a kernel that runs the machine code of an export.

    Args:
        kernel: what was exported.
        export: its files.
        subject: the call, for errors.

    Raises:
        CompileError: the machine code does not load, lacks a function, or is for no target.
    """
    target = export.manifest["target"]
    if target not in ("c", "cuda"):
        raise CompileError(subject, f"it is for target {target!r}, which is none")
    first = kernel.program

    def build(variant: Any) -> Executable:
        number = 0 if variant.program is first else 1
        return _executable(export, target, variant.program, number, subject)

    of_target: type[CompiledKernel[K]] = CompiledKernel
    if target == "cuda":
        of_target = cuda_target.CudaKernel
    return of_target(kernel, target, build(kernel), build)


def _executable(
    export: Export, target: str, program: kir.Program, number: int, subject: str
) -> Executable:
    built = export.manifest["built"]
    try:
        own = {bits: built["code"][f"{number}_{bits}"] for bits in (32, 64)}
        held = {}
        if target == "cuda":
            texts = {bits: name.removesuffix(".cubin") + ".ptx" for bits, name in own.items()}
            held = {b: (export.files[own[b]], export.files[texts[b]]) for b in own}
        library = export.files[built["library"]] if target == "c" else b""
    except (KeyError, TypeError):
        raise CompileError(
            subject, "its manifest does not fit its files", "export it again"
        ) from None
    if target == "cuda":
        return cuda_target.from_machine_code(program, held, built["arch"])
    try:
        return c_target.from_library(library, program, own)
    except CompileError as error:
        reason = f"its library does not fit its manifest, or this machine: {error}"
        raise CompileError(subject, reason, "export the kernel on this machine") from None


def _place(folder: str | os.PathLike[str], subject: str) -> Path:
    try:
        place = Path(folder)
        is_folder, is_there = place.is_dir(), place.exists()
        holds_others = is_folder and any(place.iterdir()) and not (place / NAME).exists()
    except TypeError:
        raise LaunchError(subject, f"{folder!r} is no path", "name a folder") from None
    except OSError as error:
        raise LaunchError(subject, f"it cannot be written ({_why(error)})") from None
    if is_there and not is_folder:
        raise LaunchError(subject, "there is a file of that name", "name a folder")
    if holds_others:
        hint = "name a new folder, an empty one, or one that an export made"
        raise LaunchError(subject, "the folder holds other files", hint)
    return place


def _write(place: Path, files: Files, subject: str) -> None:
    """Write all files; the manifest last, so that what is half written is no export."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        if (place / NAME).exists():
            for name in _known_files(place):
                (place / name).unlink(missing_ok=True)
            (place / NAME).unlink()
        for name, data in files.items():
            (place / name).write_bytes(data)
    except (OSError, ValueError) as error:
        raise LaunchError(subject, f"it cannot be written ({_why(error)})") from None


def _known_files(place: Path) -> list[str]:
    """Return the files of an export that is replaced."""
    try:
        names = json.loads((place / NAME).read_bytes())["files"]
        return [name for name in names if os.path.basename(name) == name]
    except (OSError, *_DAMAGES):
        return []


def _why(error: OSError | ValueError) -> str:
    """Return why a path cannot be read or written; one with a 0 byte is a ValueError."""
    return getattr(error, "strerror", None) or str(error)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# What the manifest says


def _sizes(program: kir.Program) -> Iterator[tuple[str, Expr]]:
    """Yield each size of a kernel, with what it is the size of."""
    for param in program.params:
        if param.buffer is not None:
            yield from [(param.name, size) for size in (*param.shape, param.buffer.size)]
    for part in program.launches:
        yield from [(f"the launch ({d.value})", size) for d, size in part.launch]


def _parameters(entry: EntryPoint) -> Iterator[Json]:
    for param in entry.params("input", "output", "scalar", "size", "workspace"):
        found: Json = {"name": param.name, "kind": param.kind}
        if param.kind != "workspace":
            found["c"] = entry.names[param.name]
            found["c_type"] = "int64_t" if param.kind == "size" else c_type(param.dtype)
        if param.buffer is not None:
            found |= {"shape": list(map(str, param.shape)), "elements": str(param.buffer.size)}
        if param.kind != "size":
            found["dtype"] = param.dtype.name
        if param.strides is not None:
            found["strides"] = list(map(str, param.strides))
        if param.buffer is not None and param.buffer.kind == "counter":
            found["starts_at"] = 0
        yield found


def _variant(program: kir.Program) -> Json:
    launches = [
        {**{d.value: str(size) for d, size in part.launch},
         "shared_bytes": str(shared_layout(part).total), "cooperative": part.is_cooperative}
        for part in program.launches
    ]  # fmt: skip
    return {
        "requires": [text for text, _ in program.requires],
        "launches": launches,
        "factors_of_1_or_more": list(map(str, program.split_factors)),
    }


def _proof(kernel: Exportable, subject: str) -> tuple[Json, str]:
    """Prove a kernel; both variants, and the weaker proof counts. Return its certificate, too.

    That is empty where the kernel is not proved.

    Raises:
        VerifyError: it is refuted.
    """
    from loopnest.certificate import certificate_text
    from loopnest.proofs import verify

    report = verify(kernel)
    if report.status == "refuted":
        reason = report.findings[0].message if report.findings else "it is wrong"
        raise VerifyError(subject, f"the kernel is refuted: {reason}", "mend it first")
    found = {
        "status": report.status,
        "scope": report.scope,
        "findings": [finding.message for finding in report.findings],
    }
    return found, certificate_text(kernel._lowered, report) if report.ok else ""


def _c_files(kernel: Exportable) -> tuple[EntryPoint, Files, Json]:
    made = CExport(kernel.program, None if kernel.scalar is None else kernel.scalar.program)
    source, name = made.source() + ffi_source(made.entry), made.entry.prefix
    options = c_target.code_options([*made.programs.values()])
    files = {
        f"{name}.h": made.header().encode(),
        f"{name}.c": source.encode(),
        f"lib{name}.so": machine_code(source, **options),
    }
    code = {f"{v}_{bits}": made.words_entry(v, bits) for v, bits in made.programs}
    return made.entry, files, {
        "library": f"lib{name}.so", "code": code,
        "command": [*command_line(**options), f"{name}.c", "-o", f"lib{name}.so", "-lm"],
        "machine": _machine(),
        "ffi": [param.name for param in ffi_arguments(made.entry)],
    }  # fmt: skip


def _machine() -> str:
    import platform

    return f"{platform.system()} {platform.machine()}"


def _cuda_files(kernel: Exportable, arch: str) -> tuple[EntryPoint, Files, Json]:
    made = CudaExport(kernel.program, None if kernel.scalar is None else kernel.scalar.program)
    files, code = made.machine_code(arch)
    name = made.entry.prefix
    files |= {f"{name}.h": made.header().encode(), f"{name}.c": made.source().encode()}
    return made.entry, files, {"arch": arch, "code": code}
