"""What the command line's arguments ask for: a kernel of a file, a schedule, parameters, sizes."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from loopnest import dtypes
from loopnest.dtypes import DType
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
            name = self._load(spec)
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

    def _load(self, spec: str) -> str:
        """Run the file that `spec` names; return what stands behind the colon."""
        path, rest = spec, ""
        if not Path(path).exists():
            path, _, rest = spec.rpartition(":")
        if not path or not Path(path).is_file():
            raise CliError(f"{spec}: there is no such file; use FILE[:KERNEL[@SCHEDULE]]")
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
        loader.loader.exec_module(module)
        return rest


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
