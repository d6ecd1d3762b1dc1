"""A kernel as an operator of another package: what it is made of, takes and returns, by shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from loopnest import kir
from loopnest.base.errors import DefinitionError, kind_of
from loopnest.facade.kernel_class import Kernel, compile, lower
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Expr, Symbol
from loopnest.scalar.target_names import among
from loopnest.tensor.fusion import Fusion


class OperatorKernels:
    """The kernel of an operator for each target, lowered and compiled when first used."""

    def __init__(self, given: Any, schedules: Mapping[str, Any], options: Mapping[str, Any]):
        self.given, self.schedules, self.options = given, schedules, options
        self.compiled = cache(self._compiled)
        self.kernel = cache(self._kernel)

    def _kernel(self, target: str) -> Kernel:
        given = self.given
        if isinstance(given, Kernel):
            return given
        if isinstance(given, Fusion):
            return lower(given)
        if hasattr(given, "lower") and hasattr(given, "fusion"):
            name = self.schedules.get(among(target, self.schedules))
            found: Kernel = given.lower() if name is None else given.lower(name)
            return found
        hint = "pass a Fusion, a Kernel, or what @ln.kernel made"
        raise DefinitionError("op(…)", f"it was given {kind_of(given)}", hint)

    def _compiled(self, target: str) -> Any:
        return compile(self.kernel(target), target=target, **self.options)

    @property
    def program(self) -> kir.Program:
        """The program by which its parameters are told."""
        return self.kernel("c").program

    def named(self, name: object) -> tuple[str, str]:
        """Return the name of the operator, and the call for errors.

        Raises:
            DefinitionError: it is none, or there is no kernel.
        """
        called = self.kernel("c").name if name is None else name
        subject = f"op({called})"
        if not isinstance(called, str) or not called.isidentifier():
            raise DefinitionError(subject, "the name is not an identifier")
        return called, subject


class OperatorSignature:
    """What an operator takes and returns, from the parameters of its program."""

    def __init__(self, program: kir.Program) -> None:
        self.program = program
        self.inputs = [p for p in program.params if p.kind == "input"]
        self.scalars = [p for p in program.params if p.kind == "scalar"]
        given = {e.name for p in self.inputs for e in p.shape if isinstance(e, Symbol)}
        sizes = [p for p in program.params if p.kind == "size"]
        self.sizes = [p for p in sizes if p.name not in given]
        self.overwritten = [o.inplace for o in program.outputs if o.inplace]
        self.outputs = [o for o in program.outputs if not o.inplace]

    def split(self, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arrays of a call, and its scalars and sizes by name."""
        count = len(self.inputs)
        names = [p.name for p in (*self.scalars, *self.sizes)]
        return [*args[:count]], dict(zip(names, args[count:], strict=True))

    def shapes(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> list[list[Any]]:
        """Return the shape of each output; extents may be symbolic in the package's own way."""
        sizes = {p.name: given[p.name] for p in self.sizes}
        for p, array in zip(self.inputs, arrays, strict=True):
            rows = zip(p.shape, array.shape, strict=False)
            sizes.update({e.name: extent for e, extent in rows if isinstance(e, Symbol)})
        shapes = {p.name: p.shape for p in self.program.params if p.kind == "output"}
        return [[_extent(e, sizes) for e in shapes[o.name]] for o in self.outputs]

    def results(self, made: Sequence[Any]) -> Any:
        """Return outputs as an operator does."""
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    def gradients(self, found: Any, of: str) -> tuple[Any, ...]:
        """Return what a gradient's function returned, one for each array.

        Raises:
            DefinitionError: there are more or fewer.
        """
        parts = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        count = len(self.inputs)
        if len(parts) != count:
            raise DefinitionError(
                f"the gradient of {of}",
                f"it returned {len(parts)} gradients",
                f"return one for each of {count} tensors, None where there is none",
            )
        return parts


def _extent(extent: Expr, sizes: Mapping[str, Any]) -> Any:
    return sizes[extent.name] if isinstance(extent, Symbol) else size_value(extent, sizes)
