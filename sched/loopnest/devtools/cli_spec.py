"""What the command line's arguments ask for: a kernel of a file, a schedule, parameters, sizes."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from loopnest.base.errors import LoopnestError
from loopnest.devtools.harness import make_arguments
from loopnest.devtools.kernel_def import KernelDef, forget, kernels_of
from loopnest.devtools.work_farm import KernelFile
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.target_names import among

if TYPE_CHECKING:
    from loopnest.devtools.harness import Arguments
    from loopnest.tensor.fusion import Fusion


class CliError(click.ClickException):
    """A mistake of the user's, or a failure, as one sentence.

    Args:
        message: the sentence.
        facts: what --json prints of it.
    """

    def __init__(self, message: str, facts: object = None) -> None:
        super().__init__(message)
        self.facts = facts

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
        kernel, schedule = self.open(spec)
        return self.named(kernel) if kernel else self.kernels()[0], schedule or None

    def open(self, spec: str) -> tuple[str, str]:
        """Load the file that ``FILE[:KERNEL[@SCHEDULE]]`` names; return both names, or ""."""
        name = spec
        if not self.script:
            path, name = _split(spec)
            require_file(path, spec)
            self.load(path)
        return _names_in(name, spec)

    def named(self, kernel: str) -> KernelDef:
        """Return the kernel of that name."""
        found = self.kernels()
        for one in found:
            if one.name == kernel:
                return one
        known = ", ".join([one.name for one in found])
        raise CliError(f"{self._label}: there is no kernel '{kernel}'; it has {known}")

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
            CliError: it is no Python file, cannot be read, or ends the process.
            Exception: whatever running it raises.
        """
        self.file = str(Path(path).resolve())
        # A name of its own: a kernel file may be called like a module that it imports.
        self.module = "loopnest_file_" + hashlib.sha256(os.fsencode(self.file)).hexdigest()[:16]
        spec = importlib.util.spec_from_file_location(self.module, self.file)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            raise CliError(f"{path}: it is no Python file; its name does not end in .py")
        module = importlib.util.module_from_spec(spec)
        forget(self.module)
        sys.modules[self.module] = module
        sys.path.insert(0, str(Path(self.file).parent))
        try:
            with _without_bytecode():
                exec(self._code(spec.loader), vars(module))
        except SystemExit:
            raise CliError(f"{self._label}: it ends the process when it is loaded") from None

    def _code(self, loader: SourceFileLoader) -> CodeType:
        """Return the compiled file.

        Raises:
            SyntaxError: at a line of the file.
            CliError: it cannot be read, or as a whole is no text of Python.
        """
        try:
            code = loader.get_code(self.module)
        except SyntaxError as error:
            if error.lineno is not None:
                raise
            raise CliError(f"{self._label}: it is no Python text: {error.msg}") from None
        except OSError as error:
            raise CliError(f"{self._label}: it cannot be read: {error.strerror}") from None
        except (ValueError, MemoryError, RecursionError) as error:
            raise CliError(f"{self._label}: it is no Python text: {error}") from None
        assert code is not None
        return code


@lru_cache(maxsize=1)
def source_of(file: KernelFile) -> Source:
    """Return a kernel file that travelled; a worker loads it once for what it does with it."""
    source = Source(script=False)
    source.load(file.local())
    return source


@contextmanager
def _without_bytecode() -> Iterator[None]:
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _split(spec: str) -> tuple[str, str]:
    """Return the path in ``PATH[:KERNEL[@SCHEDULE]]``, and what stands behind the colon."""
    if os.path.exists(spec):
        return spec, ""
    path, _, rest = spec.rpartition(":")
    return (path, rest) if path else (spec, "")


def spec_files(spec: str) -> list[str]:
    """Return the files that ``FILE|FOLDER[:KERNEL[@SCHEDULE]]`` names, also where they lack."""
    path = Path(_split(spec)[0]).absolute()
    return [str(file) for file in (_python_files(path) if path.is_dir() else [path])]


def own_modules() -> dict[str, str]:
    """Return the modules of the user's that are loaded: name -> file."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    others = (str(Path(__file__).parents[1]), *[sysconfig.get_path(kind) for kind in kinds])
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return {
        name: os.path.abspath(file)
        for name, file in files.items()
        if file and name != "__main__" and not os.path.abspath(file).startswith(others)
    }


def _decoded(argument: str) -> str:
    """Return an argument as text where the locale's encoding cannot, as POSIX's."""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


def _names_in(name: str, spec: str) -> tuple[str, str]:
    """Return kernel and schedule in ``[KERNEL][@SCHEDULE]``, "" where there is none."""
    kernel, at, schedule = _decoded(name).partition("@")
    if at and not schedule:
        raise CliError(f"{spec}: no schedule is named behind the '@'")
    return kernel, schedule


def require_file(path: str, spec: str) -> None:
    """Refuse a path at which there is no file to read."""
    if os.path.isfile(path):
        return
    _require_path(path, spec, "FILE")
    if os.path.isdir(path):
        raise CliError(f"{path}: it is a folder; only 'check' takes folders")
    raise CliError(f"{path}: it is no regular file")


def _require_path(path: str, spec: str, what: str) -> None:
    if not path.strip(": "):
        raise CliError(f"no file is named; use {what}[:KERNEL[@SCHEDULE]]")
    if not os.path.exists(path):
        either = "file" if what == "FILE" else "file or folder"
        hint = f"; use {what}[:KERNEL[@SCHEDULE]]" if what == "FILE" else ""
        raise CliError(f"{spec}: there is no such {either}{hint}")


def sentence_of(error: BaseException, file: str) -> str:
    """Return an error as one sentence, with its place in the user's file where it has one."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    place = f"{Path(file).name}:{lines[-1]}: " if lines else ""
    if isinstance(error, click.ClickException):
        return error.message
    if isinstance(error, LoopnestError):
        return f"{place}{error}"
    if isinstance(error, SystemExit):
        return f"{place}it ends the process"
    if isinstance(error, MemoryError):
        return f"{place}there is not enough memory{_in_brackets(error)}; set smaller sizes by -D"
    if isinstance(error, OSError) and error.strerror and not place:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
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


def _in_brackets(error: BaseException) -> str:
    return f" ({error})" if str(error) else ""


@dataclass(frozen=True)
class CommandOptions:
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
        for symbol in fusion.symbols:
            if symbol.name in self.values:
                whole(symbol.name, self.values[symbol.name])

    def sizes(self, fusion: Fusion, most: int | None = None) -> dict[str, int]:
        """Return the value of each size; those that -D does not set are at most `most`."""
        self.check_values(fusion)
        own = {
            name: size if most is None else min(size, most)
            for name, size in self.kernel.sizes.items()
        }
        symbols = [s.name for s in fusion.symbols]
        return own | {name: whole(name, v) for name, v in self.values.items() if name in symbols}

    def arguments(self, fusion: Fusion, seed: int, most: int | None = None) -> Arguments:
        """Return made arguments; sizes that -D does not set are at most `most`."""
        made = make_arguments(fusion, self.sizes(fusion, most), self.kernel.ranges, seed)
        symbols = [s.name for s in fusion.symbols]
        given = {name: v for name, v in self.values.items() if name not in symbols}
        return replace(made, scalars={**made.scalars, **given})


def whole(name: str, value: float) -> int:
    """Return a size; refuse what is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CliError(f"-D {name}={value}: sizes are ints >= 0")
    return value


@dataclass(frozen=True)
class Request:
    """What a command is asked about.

    Args:
        source: where kernels come from.
        spec: the argument that names them.
        define: each ``-D``.
        param: each ``-P``.
    """

    source: Source
    spec: str
    define: Sequence[str] = ()
    param: Sequence[str] = ()

    @property
    def schedule(self) -> str:
        """The schedule that is named; "" where none is."""
        name = self.spec if self.source.script else _split(self.spec)[1]
        return _names_in(name, self.spec)[1]

    def choose(self, device: str | None, schedule: str | None = None) -> CommandOptions:
        """Return what is asked for.

        Args:
            device: the target that a schedule is picked for where none is named.
            schedule: another one than the argument names.
        """
        kernel, named = self.source.choose(self.spec)
        schedule = named if schedule is None else schedule
        given, values = self._given()
        if schedule is not None:
            name = kernel.resolve(schedule)
        elif kernel.chosen is not None:
            name = kernel.at_sizes({**kernel.sizes, **values})
        elif device is not None:
            name = kernel.suited(device, tuple(given))
        else:
            name = kernel.resolve()
        known = kernel.parameters(name)
        params = {n: _read(n, text, known.get(n, "")) for n, text in given.items()}
        return CommandOptions(kernel, name, params, values)

    def choose_all(self) -> Asked:
        """Return all schedules in ``FILE|FOLDER[:[KERNEL][@SCHEDULE]]``.

        Parameters and sizes go to the kernels that have them.

        Raises:
            CliError: there is no such file, kernel or schedule; no kernel has a parameter or a size
                of that name.
        """
        path, name = ("", self.spec) if self.source.script else _split(self.spec)
        if self.source.script:
            kernels = [(self.source.file, kernel) for kernel in self.source.kernels()]
            loaded = Asked(())
        else:
            _require_path(path, self.spec, "FILE|FOLDER")
            if not os.path.isdir(path):
                require_file(path, self.spec)
            kernels, loaded = _loaded(Path(path))
        given, values = self._given()
        found = tuple(_matching(kernels, _names_in(name, self.spec), given, values))
        if not found and not loaded.broken:
            known = ", ".join([kernel.label(s) for _, kernel in kernels for s in _names(kernel)])
            raise CliError(
                f"{self.spec}: there is no such kernel or schedule; there are {known or 'none'}"
            )
        _check_known(found, given, values)
        return replace(loaded, found=found)

    def _given(self) -> tuple[dict[str, str], dict[str, float]]:
        """Return the texts of parameters, and the values of sizes and scalars."""
        given = _pairs("-P", self.param)
        return given, {n: _number(n, text) for n, text in _pairs("-D", self.define).items()}


# All that a file or a folder holds


@dataclass(frozen=True)
class FoundSchedule:
    """A schedule that is asked for, and the file that has it."""

    file: str
    choice: CommandOptions


@dataclass(frozen=True)
class Asked:
    """All schedules that are asked for.

    Args:
        found: them, in the order of files and of definition.
        skipped: files of a folder that were left out, each with a reason.
        broken: files that could not be loaded, each with a sentence.
    """

    found: tuple[FoundSchedule, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    broken: tuple[tuple[str, str], ...] = ()


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
        source = Source(script=False)
        try:
            if path.is_dir() and not _uses_loopnest(file):
                skipped.append((shown, "it does not use loopnest"))
                continue
            source.load(str(file))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            broken.append((shown, sentence_of(error, source.file)))
            continue
        own = kernels_of(source.module) if path.is_dir() else source.kernels()
        if not own:
            skipped.append((shown, "it defines no kernel"))
        kernels += [(source.file, kernel) for kernel in own]
    return kernels, Asked((), tuple(skipped), tuple(broken))


def _uses_loopnest(file: Path) -> bool:
    """Return whether the text of a file names the package.

    Raises:
        CliError: there is no text to read.
    """
    if not file.is_file():
        target = f", it is a link to {os.readlink(file)}" if file.is_symlink() else ""
        raise CliError(f"there is no such file{target}" if target else "it is no regular file")
    try:
        return "loopnest" in file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CliError(f"{error.strerror}") from None


def _python_files(folder: Path) -> list[Path]:
    """Return the Python files below a folder, without those of hidden and virtual environments."""
    environments = [found.parent for found in folder.rglob("pyvenv.cfg")]
    return [
        file
        for file in sorted(folder.rglob("*.py"))
        if not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and not file.is_dir()
        and not any(e in file.parents for e in environments)
    ]


def _names(kernel: KernelDef) -> tuple[str, ...]:
    return tuple(kernel.schedules) or ("",)


def _matching(
    kernels: Sequence[tuple[str, KernelDef]],
    names: tuple[str, str],
    given: Mapping[str, str],
    values: Mapping[str, float],
) -> Iterator[FoundSchedule]:
    wanted, schedule = names
    for file, kernel in kernels:
        for own in _names(kernel):
            if wanted in ("", kernel.name) and among(schedule, _names(kernel)) in ("", own):
                known = kernel.parameters(own)
                params = {n: _read(n, t, known[n]) for n, t in given.items() if n in known}
                yield FoundSchedule(file, CommandOptions(kernel, own, params, values))


def _check_known(
    found: Sequence[FoundSchedule], given: Mapping[str, str], values: Mapping[str, float]
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
            whole(name, value)


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return the values of an option that may be given several times, once a name."""
    found: dict[str, str] = {}
    for text in texts:
        name, value = _pair(option, text)
        if name in found:
            raise CliError(f"{option} {name}: it is given twice, {found[name]} and {value}")
        found[name] = value
    return found


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = _decoded(text).partition("=")
    if not equals or not name.strip().isidentifier():
        raise CliError(f"{option} {text}: use {option} NAME=VALUE")
    return name.strip(), value.strip()


_UNREADABLE = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
"""What `ast.literal_eval` raises of a text that is no literal."""


def _number(name: str, text: str) -> float:
    try:
        value = ast.literal_eval(text)
    except _UNREADABLE:
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
    except _UNREADABLE:
        value = text
    kind = type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if default is not None and type(value) is not kind:
        raise CliError(f"-P {name}={text}: '{text}' is no {kind.__name__}")
    return value
