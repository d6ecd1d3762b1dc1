"""What the command line's arguments ask for: a kernel of a file, a schedule, parameters, sizes."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from loopnest import dtypes
from loopnest.dtypes import DType
from loopnest.errors import LoopnestError
from loopnest.script import KernelDef, forget, kernels_of
from loopnest.trial import make_arguments

if TYPE_CHECKING:
    from loopnest.fusion import Fusion
    from loopnest.trial import Arguments


class CliError(click.ClickException):
    """A mistake of the user's, as one sentence."""

    def show(self, file: Any = None) -> None:
        console = Console(stderr=True, file=file, soft_wrap=True)
        console.print(Text(f"error: {self.message}", style="red"))


@dataclass
class Source:
    """Where the kernels come from: the file that was started (`script`), or one that is named."""

    script: bool
    file: str = ""
    module: str = ""

    def choose(self, spec: str) -> tuple[KernelDef, str | None]:
        """Return the kernel that ``FILE[:KERNEL[@SCHEDULE]]`` names, and its schedule.

        Of a kernel file that runs itself the first part is left out.
        """
        name = spec
        if not self.script:
            path, name = _split(spec)
            if not Path(path).is_file():
                raise CliError(f"{spec}: there is no such file; use FILE[:KERNEL[@SCHEDULE]]")
            self.load(path)
        kernel, _, schedule = name.partition("@")
        found = self.kernels()
        if kernel:
            chosen = [k for k in found if k.name == kernel]
            if not chosen:
                known = ", ".join([k.name for k in found])
                raise CliError(f"{self._label}: there is no kernel '{kernel}'; it has {known}")
            return chosen[0], schedule or None
        return found[0], schedule or None

    def kernels(self) -> tuple[KernelDef, ...]:
        """Return the kernels of the file, at least one."""
        found = kernels_of(self.module)
        if not found:
            raise CliError(
                f"{self._label}: it defines no kernel; decorate its math with @ln.kernel(...)"
            )
        return found

    @property
    def _label(self) -> str:
        return Path(self.file).name

    def load(self, path: str) -> None:
        """Run the file at `path`; nothing is written beside it.

        Raises:
            CliError: it is no Python file, or ends the process.
            Exception: whatever running it raises.
        """
        self.file = str(Path(path).resolve())
        # A name of its own: a kernel file may be called like a module that it imports.
        self.module = "loopnest_file_" + hashlib.sha256(self.file.encode()).hexdigest()[:16]
        loader = importlib.util.spec_from_file_location(self.module, self.file)
        if loader is None or loader.loader is None:
            raise CliError(f"{path}: it is no Python file")
        module = importlib.util.module_from_spec(loader)
        forget(self.module)
        sys.modules[self.module] = module
        sys.path.insert(0, str(Path(self.file).parent))
        try:
            with _without_bytecode():
                loader.loader.exec_module(module)
        except SystemExit:
            raise CliError(f"{self._label}: it ends the process when it is loaded") from None


@contextmanager
def _without_bytecode() -> Iterator[None]:
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _split(spec: str) -> tuple[str, str]:
    """Return the path in ``PATH[:KERNEL[@SCHEDULE]]``, and what stands behind the colon."""
    if Path(spec).exists():
        return spec, ""
    path, _, rest = spec.rpartition(":")
    return (path, rest) if path else (spec, "")


def sentence_of(error: BaseException, file: str) -> str:
    """Return an error as one sentence, with its place in the user's file where it has one."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    place = f"{Path(file).name}:{lines[-1]}: " if lines else ""
    if isinstance(error, click.ClickException):
        return error.message
    if isinstance(error, LoopnestError):
        return f"{place}{error}"
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        where = f"{Path(error.filename or file).name}:{error.lineno}"
        return f"{where}: {type(error).__name__}: {error.msg}"
    if place or not frames:
        return f"{place}{said}"
    last = frames[-1]
    return (
        f"{said} (at {Path(last.filename).name}:{last.lineno}); "
        "this is a bug of loopnest, please report it"
    )


@dataclass(frozen=True)
class Choice:
    """What the options of a command ask for."""

    kernel: KernelDef
    schedule: str
    params: Mapping[str, Any]
    values: Mapping[str, float]  # -D: sizes and scalars

    @property
    def label(self) -> str:
        return self.kernel.label(self.schedule)

    def fusion(self) -> Fusion:
        return self.kernel.fusion(self.schedule or None, **self.params)

    def check_values(self, fusion: Fusion) -> None:
        """Refuse a -D that is no size or scalar of the kernel."""
        known = [s.name for s in fusion.symbols] + [s.name for s in fusion.scalars]
        for name in self.values:
            if name not in known:
                raise CliError(
                    f"-D {name}: {self.kernel.name} has no size or scalar '{name}'; "
                    f"it has {', '.join(known) or 'none'}"
                )

    def arguments(self, fusion: Fusion, seed: int, most: int | None = None) -> Arguments:
        """Return made arguments; sizes that -D does not set are at most `most`."""
        self.check_values(fusion)
        sizes = {
            name: size if most is None else min(size, most)
            for name, size in self.kernel.sizes.items()
        }
        symbols = [s.name for s in fusion.symbols]
        sizes |= {name: _whole(name, v) for name, v in self.values.items() if name in symbols}
        made = make_arguments(fusion, sizes, self.kernel.ranges, seed)
        given = {name: v for name, v in self.values.items() if name not in symbols}
        return replace(made, scalars={**made.scalars, **given})


def _whole(name: str, value: float) -> int:
    if not isinstance(value, int) or value < 0:
        raise CliError(f"-D {name}={value}: sizes are ints >= 0")
    return value


def choose(
    source: Source, spec: str, device: str | None, define: Sequence[str], param: Sequence[str]
) -> Choice:
    """Return what is asked for; `device` is the target that a schedule is picked for, if any."""
    kernel, schedule = source.choose(spec)
    given = dict(_pair("-P", text) for text in param)
    if schedule is not None:
        name = kernel.resolve(schedule)
    elif device is not None:
        name = kernel.suited(device, tuple(given))
    else:
        name = kernel.resolve()
    known = kernel.parameters(name)
    params = {n: _read(n, text, known.get(n, "")) for n, text in given.items()}
    values = {n: _number(n, text) for n, text in (_pair("-D", text) for text in define)}
    return Choice(kernel, name, params, values)


# All that a file or a folder holds


@dataclass(frozen=True)
class Found:
    """A schedule that is asked for, and the file that has it."""

    file: str
    choice: Choice


@dataclass(frozen=True)
class Asked:
    """All schedules that are asked for.

    Args:
        found: them, in the order of files and of definition.
        skipped: files of a folder that were left out, each with a reason.
        broken: files that could not be loaded, each with a sentence.
    """

    found: tuple[Found, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    broken: tuple[tuple[str, str], ...] = ()


def choose_all(source: Source, spec: str, define: Sequence[str], param: Sequence[str]) -> Asked:
    """Return all schedules in ``FILE|FOLDER[:[KERNEL][@SCHEDULE]]``.

    Parameters and sizes go to the kernels that have them.

    Raises:
        CliError: there is no such file, kernel or schedule; no kernel has a parameter or a size of
            that name.
    """
    path, name = ("", spec) if source.script else _split(spec)
    if source.script:
        kernels = [(source.file, kernel) for kernel in source.kernels()]
        loaded = Asked(())
    elif not Path(path).exists():
        raise CliError(f"{spec}: there is no such file or folder")
    else:
        kernels, loaded = _loaded(Path(path))
    given = dict([_pair("-P", text) for text in param])
    values = {n: _number(n, text) for n, text in [_pair("-D", text) for text in define]}
    found = tuple(_matching(kernels, name, given, values))
    if not found and not loaded.broken:
        known = ", ".join([kernel.label(s) for _, kernel in kernels for s in _names(kernel)])
        raise CliError(f"{spec}: there is no such kernel or schedule; there are {known or 'none'}")
    _check_known(found, given, values)
    return replace(loaded, found=found)


def _loaded(path: Path) -> tuple[list[tuple[str, KernelDef]], Asked]:
    """Load a file, or all files in a folder that use loopnest."""
    kernels: list[tuple[str, KernelDef]] = []
    skipped: list[tuple[str, str]] = []
    broken: list[tuple[str, str]] = []
    files = _python_files(path) if path.is_dir() else [path]
    if not files:
        raise CliError(f"{path}: there is no Python file in this folder")
    for file in files:
        shown = str(file.relative_to(path)) if path.is_dir() else file.name
        if path.is_dir() and "loopnest" not in file.read_text(encoding="utf-8", errors="replace"):
            skipped.append((shown, "it does not use loopnest"))
            continue
        source = Source(script=False)
        try:
            source.load(str(file))
        except Exception as error:
            broken.append((shown, sentence_of(error, source.file)))
            continue
        own = kernels_of(source.module) if path.is_dir() else source.kernels()
        if not own:
            skipped.append((shown, "it defines no kernel"))
        kernels += [(source.file, kernel) for kernel in own]
    return kernels, Asked((), tuple(skipped), tuple(broken))


def _python_files(folder: Path) -> list[Path]:
    """Return the Python files below a folder, without those of hidden and virtual environments."""
    environments = [found.parent for found in folder.rglob("pyvenv.cfg")]
    return [
        file for file in sorted(folder.rglob("*.py"))
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and not any(e in file.parents for e in environments)
    ]  # fmt: skip


def _names(kernel: KernelDef) -> tuple[str, ...]:
    return tuple(kernel.schedules) or ("",)


def _matching(
    kernels: Sequence[tuple[str, KernelDef]],
    name: str,
    given: Mapping[str, str],
    values: Mapping[str, float],
) -> Iterator[Found]:
    wanted, _, schedule = name.partition("@")
    for file, kernel in kernels:
        for own in _names(kernel):
            if wanted in ("", kernel.name) and schedule in ("", own):
                known = kernel.parameters(own)
                params = {n: _read(n, t, known[n]) for n, t in given.items() if n in known}
                yield Found(file, Choice(kernel, own, params, values))


def _check_known(
    found: Sequence[Found], given: Mapping[str, str], values: Mapping[str, float]
) -> None:
    """Refuse a -P or -D that nothing has."""
    parameters = {n for f in found for n in f.choice.kernel.parameters(f.choice.schedule)}
    for name in given:
        if name not in parameters:
            known = ", ".join(sorted(parameters)) or "none"
            raise CliError(f"-P {name}: no kernel here has such a parameter; there are {known}")
    if not values:
        return
    sizes: set[str] = set()
    scalars: set[str] = set()
    for one in found:
        try:
            fusion = one.choice.fusion()
        except Exception:
            continue  # told when it is checked
        sizes |= {symbol.name for symbol in fusion.symbols}
        scalars |= {scalar.name for scalar in fusion.scalars}
    for name, value in values.items():
        if name not in sizes | scalars and found:
            known = ", ".join(sorted(sizes | scalars)) or "none"
            raise CliError(f"-D {name}: no kernel here has this size or scalar; there are {known}")
        if name in sizes:
            _whole(name, value)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise CliError(f"{option} {text}: use {option} NAME=VALUE")
    return name.strip(), value.strip()


def _number(name: str, text: str) -> float:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if not isinstance(value, (bool, int, float)):
        raise CliError(f"-D {name}={text}: '{text}' is no number")
    return value


def _read(name: str, text: str, default: object) -> Any:
    """Return a parameter's value, read as the type of its default."""
    match default:
        case DType():
            names = [dtype.name for dtype in dtypes.ALL]
            if text not in names:
                raise CliError(f"-P {name}={text}: use one of {', '.join(names)}")
            return dtypes.of(text)
        case str():
            return text
        case _:
            return _literal(name, text, default)


def _literal(name: str, text: str, default: object) -> Any:
    words = {"true": True, "yes": True, "false": False, "no": False}
    try:
        value = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = text
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if default is not None and type(value) is not kind:
        raise CliError(f"-P {name}={text}: '{text}' is no {kind.__name__}")
    return value
