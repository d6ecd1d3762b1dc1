"""The Kernel: a snapshot of a lowered fusion, its texts, its layout, its launches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload, runtime_checkable

from loopnest import kir
from loopnest.base.errors import CompileError, LoopnestError, LoweringError, kind_of
from loopnest.kir.kernel_facts import BufferInfo, Parameter, Stages
from loopnest.kir.lowered import (
    Explained,
    Lowered,
    Note,
    TensorInfo,
)
from loopnest.scalar.expr import Expr, whole
from loopnest.scalar.target_names import target_name
from loopnest.tensor.fusion import Fusion

if TYPE_CHECKING:
    from loopnest.backends.compiled_kernel import CompiledKernel
    from loopnest.backends.cuda.toolchain.cubin import Resources
    from loopnest.backends.cuda.toolchain.nvrtc import Compiled
    from loopnest.launch.launch_plan import LaunchConfig, Planner
    from loopnest.pictures.svg import Svg
    from loopnest.proofs import Report


class Kernel:
    """A lowered fusion; later changes of the fusion's schedule do not reach it.

    Made by `loopnest.lower`. ``str(kernel)`` is the nest. It never changes, and so is its own copy;
    a pickle holds the nest, the math and the texts of the stages.
    """

    def __init__(self, lowered: Lowered) -> None:
        self._lowered = lowered
        self._texts: dict[tuple[str, int], str] = {}
        self._needed_bits: dict[str, int | None] = {}
        self._compiled: dict[tuple[str, int], Compiled] = {}

    def __reduce__(self) -> tuple[type[Kernel], tuple[Lowered]]:
        return Kernel, (self._lowered,)

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Kernel:
        return self

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"

    @property
    def program(self) -> kir.Program:
        """The loop nest as nodes."""
        return self._lowered.program

    @property
    def name(self) -> str:
        """The name of the fusion."""
        return self.program.name

    @cached_property
    def scalar(self) -> Kernel | None:
        """The variant without wide accesses, for sizes and addresses that they do not fit.

        None where this kernel runs on all.
        """
        return None if self._lowered.scalar is None else Kernel(self._lowered.scalar())

    @property
    def has_scalar(self) -> bool:
        """Whether there is a scalar variant."""
        return self._lowered.scalar is not None

    def _scalar_program(self) -> kir.Program:
        assert self.scalar is not None
        return self.scalar.program

    # Texts

    @cached_property
    def _nest(self) -> str:
        from loopnest.kir.nest_text import print_nest

        return print_nest(self.program)

    def __str__(self) -> str:
        return self._nest

    def text(self, *, full: bool = False) -> str:
        """Return the nest, as `str`; where `full`, all of the kernel, which `parse` reads back.

        The full text holds every field of every statement and buffer, the math, and the scalar
        variant, but not the texts of the passes. Its first line is the version.
        """
        if not full:
            return self._nest
        from loopnest.certificate import full_text

        return full_text(self._lowered)

    @staticmethod
    def parse(text: str) -> Kernel:
        """Return the kernel whose full text this is: it verifies, compiles and prints the same.

        Raises:
            LoopnestError: another version wrote the text, or a line is damaged.
        """
        if not isinstance(text, str):
            found = f"{kind_of(text)} is no text"
            raise LoopnestError("parse(...)", found, "pass what Kernel.text(full=True) returned")
        from loopnest.certificate import read_text

        return Kernel(read_text(text, "parse(...)"))

    def certificate(self, path: str | PathLike[str]) -> Report:
        """Prove the kernel, and write a file with which others prove it again.

        ``python -m loopnest.certificate FILE`` does so from its text alone, without lowering, the
        schedule, or the Python file of the kernel, and says for what math.

        Args:
            path: of the file; one that is there is written anew.

        Returns:
            The proof.

        Raises:
            VerifyError: the kernel is not proved, it has no math, or the file cannot be written.

        >>> import loopnest as ln
        >>> with ln.Fusion("k") as f:
        ...     x = f.input("x", ("N",), ln.float32)
        ...     y = f.output(x * 2.0, "y")
        >>> print(ln.lower(f).certificate("/dev/null"))
        proved for all sizes

        Source: Necula, "Proof-carrying code", POPL 1997.
        """
        from loopnest.certificate import write_certificate

        return write_certificate(self._lowered, path)

    def cuda(self, index_bits: int | None = None) -> str:
        """Return CUDA C++.

        Args:
            index_bits: the width of indices, 32 or 64. None: 64 where static sizes need it, else
                32. At sizes that are given at run time, a launch chooses by itself.

        Raises:
            LoweringError: a local buffer has a symbolic size; another width, or one that is too
                narrow for static sizes.
        """
        from loopnest.backends.cuda.printing.cuda_printer import print_cuda

        return self._text("cuda", index_bits, print_cuda)

    def c(self, index_bits: int | None = None) -> str:
        """Return C; `index_bits` as in `cuda`.

        Raises:
            LoweringError: another width, or one that is too narrow for static sizes.
        """
        from loopnest.backends.cpu.c_printer import print_c
        from loopnest.backends.cpu.fission.thread_loop_fission import slot_sizes

        return self._text("c", index_bits, print_c, slot_sizes)

    def printed(self, target: str, index_bits: int | None = None) -> str:
        """Return the text for any target that has one: ``printed("c")`` is `c`.

        Raises:
            CompileError: there is no such target, or it has no text.
            LoweringError: as `cuda`.
        """
        from loopnest.backends.targets import TARGETS

        row = TARGETS.get(target_name(target)) if isinstance(target, str) else None
        if row is None or row.text is None:
            found = f"there is no target {target!r}" if row is None else "this target has no text"
            known = ", ".join([f'"{name}"' for name, row in TARGETS.items() if row.text])
            raise CompileError(f"{self.name}.printed({target!r})", found, f"use one of {known}")
        return self._text(row.name, index_bits, row.text.print, row.text.sizes)

    def _text(
        self,
        call: str,
        index_bits: int | None,
        printed: Callable[[kir.Program, int], str],
        sizes: Callable[[kir.Program], tuple[Expr, ...]] = lambda program: (),
    ) -> str:
        """Return a text; `sizes` are those of arrays that it indexes beside the program's own."""
        bits = self._index_bits(call, index_bits, sizes)
        if (call, bits) not in self._texts:
            self._texts[call, bits] = printed(self.program, bits)
        return self._texts[call, bits]

    def _index_bits(
        self,
        call: str,
        asked: int | None,
        sizes: Callable[[kir.Program], tuple[Expr, ...]] = lambda program: (),
    ) -> int:
        """Return the width of indices in a text."""
        wanted = whole(asked)
        if call not in self._needed_bits:
            self._needed_bits[call] = self._planner.bounds.static_bits(sizes(self.program))
        needed = self._needed_bits[call]
        subject = f"{self.name}.{call}(index_bits={asked!r})"
        if asked is not None and wanted not in (32, 64):
            hint = "use 32, 64, or None for what its static sizes need"
            raise LoweringError(subject, f"{asked!r} is no width of indices", hint)
        if needed is None:
            found = self._planner.bounds.too_large()
            raise LoweringError(subject, found, "use smaller static sizes")
        if wanted is not None and wanted < needed:
            hint = f"use {needed}, or None for what they need"
            raise LoweringError(subject, f"its static sizes need {needed}-bit indices", hint)
        return wanted or needed

    @cached_property
    def stages(self) -> Stages:
        """The text after each pass of the lowering."""
        return Stages(self._lowered.stages, self.name)

    def walk(self) -> Iterator[tuple[kir.Stmt, tuple[kir.Stmt, ...]]]:
        """Yield (statement, ancestors) in pre-order, ancestors outermost first."""
        return kir.walk(self.program.body)

    # What it takes and where things live

    @cached_property
    def params(self) -> tuple[Parameter, ...]:
        """Inputs, outputs, scalars, sizes in order of first appearance, workspace."""
        return tuple([Parameter.of(p) for p in self.program.params])

    @cached_property
    def buffers(self) -> tuple[BufferInfo, ...]:
        """Every piece of memory, parameters first."""
        return tuple([BufferInfo.of(b) for b in self._lowered.buffers])

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Every tensor as it was scheduled, in order of creation."""
        return self._lowered.tensors

    def tensor(self, name: str) -> TensorInfo:
        """Return how the tensor `name` was scheduled.

        Raises:
            LoweringError: there is no such tensor.
        """
        for tensor in self._lowered.tensors:
            if isinstance(name, str) and tensor.name == name:
                return tensor
        names = ", ".join([tensor.name for tensor in self._lowered.tensors])
        raise LoweringError(
            f"{self.name}.tensor({name!r})", "no tensor has this name", f"the tensors are {names}"
        )

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """What was asked of the schedule and has no effect on the nest, in the order of the calls.

        Each schedule call and assumption is looked for in the nest; a call that is not witnessed
        there, a LOCAL buffer of symbolic size, a test in an innermost loop and tiles with halo that
        overlap give a note. The nest is that of this kernel. A scalar variant and a kernel read
        from text have none.
        """
        return () if self._lowered.notes is None else self._lowered.notes()

    def explained(self) -> tuple[Explained, ...] | None:
        """Return what `loopnest.explain` shows; None where there is no schedule to ask."""
        return None if self._lowered.explained is None else self._lowered.explained()

    # Launches

    @cached_property
    def _planner(self) -> Planner:
        from loopnest.launch.launch_plan import Planner

        return Planner(self.program, self._scalar_program if self.has_scalar else None)

    def launch(self, /, **sizes: int) -> LaunchConfig:
        """Return the configuration of a launch: `.grid`, `.block`, `.shared_bytes`, `.variant`.

        Raises:
            LaunchError: a size is missing, unknown or no int >= 0; a broken assumption; too many
                threads or too much shared memory.
        """
        given = ", ".join([f"{name}={size!r}" for name, size in sizes.items()])
        return self._planner.keyword_config(sizes, f"{self.name}.launch({given})")

    def named_sizes(self, sizes: Mapping[str, object], call: str) -> dict[str, int]:
        """Return the sizes of a launch that are given by name; `call` is for errors.

        Raises:
            LaunchError: a size is missing, unknown or no int >= 0; a broken assumption.
        """
        return self._planner.named_sizes(sizes, call)

    # Leaving Python

    def export(
        self,
        folder: str | os.PathLike[str],
        target: str = "c",
        *,
        arch: str = "sm_90",
        prove: bool = True,
    ) -> str:
        """Write this kernel into a folder, for programs without Python and for `loopnest.load`.

        The folder gets a header and a source with functions whose names begin with the kernel's
        (``softmax_run``, ``softmax_workspace``, ``softmax_check``, ``softmax_sentence``); on "c"
        the library made of them, on "cuda" cubin and PTX, and the source is the launcher; the
        nest; and ``manifest.json``, which says all that and the SHA-256 of each file.

        Args:
            folder: a new or an empty one, or one of an earlier export, which is replaced.
            target: "c" or "cuda".
            arch: the GPU that machine code is for; PTX serves newer ones.
            prove: whether the manifest has a proof of the kernel and its scope.

        Returns:
            The digest of the export, for `loopnest.load`.

        Raises:
            CompileError: no such target; a compiler is missing or fails.
            LaunchError: the folder cannot be written, or holds other files.
            LoweringError: a size depends on data.
            VerifyError: the kernel is refuted.
        """
        from loopnest.exports.manifest import export_kernel

        name = target_name(target) if isinstance(target, str) else target
        return export_kernel(self, folder, name, arch, prove)

    # Pictures

    def picture(self, name: str | None = None, /, **sizes: int) -> Svg:
        """Return a picture as SVG text: of the nest, or of who touches the elements of a buffer.

        The nest is drawn as boxes inside of each other, coloured by what runs them (grid, block,
        vectors, unrolled), with a bar beside it for the life of each buffer. A buffer is drawn once
        for each access: the first block and the iterations of one tile, elements with the number of
        the first thread that touches them, coloured by warps; in SHARED memory with their banks,
        and a red frame where a request asks for several words of a bank. A circular buffer's stages
        are drawn in time.

        Args:
            name: of a buffer of SHARED or GLOBAL memory, or of the tensor that it holds.
            **sizes: the value of every size; usual ones where none is given.

        Raises:
            LoweringError: there is no such buffer.
            LaunchError: as `launch`; or sizes for the picture of a nest.

        Source: banks and requests as `loopnest.profile` counts them.
        """
        from loopnest.pictures.kernel_picture import draw_kernel

        return draw_kernel(self, name, sizes)

    def chrome_trace(self, name: str) -> str:
        """Return the stages of a circular buffer in time, as JSON for Chrome's trace viewer.

        Args:
            name: of the buffer, or of the tensor that it holds.

        Raises:
            LoweringError: there is no such buffer, or no loop turns it.

        Source: the "Trace Event Format" of the Chromium project.
        """
        from loopnest.pictures.kernel_picture import trace_kernel

        return trace_kernel(self, name)

    def _repr_html_(self) -> str:
        return self.picture()

    # Machine code

    def _machine(self, call: str, arch: str | int, index_bits: int | None) -> Compiled:
        from loopnest.backends.cuda.architecture_needs import check_architecture
        from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

        key = (str(arch), self._index_bits(call, index_bits))
        if key not in self._compiled:
            self._compiled[key] = compile_cuda(self.cuda(key[1]), arch)
        target = self._compiled[key].target
        asked = replace(target, virtual=True) if call == "ptx" else target
        check_architecture(self.program, asked, f"{self.name}.{call}(arch={arch!r})")
        return self._compiled[key]

    def ptx(self, arch: str | int, index_bits: int | None = None) -> str:
        """Return PTX for an architecture such as "sm_90", by NVRTC; `index_bits` as in `cuda`.

        Raises:
            CompileError: NVRTC is missing, or knows no such architecture; it lacks what the kernel
                uses, or, for machine code, the shared memory of a block.
            LoweringError: as `cuda`.
        """
        return self._machine("ptx", arch, index_bits).ptx

    def cubin(self, arch: str | int, index_bits: int | None = None) -> bytes:
        """Return machine code (an ELF file); as `ptx`."""
        return self._machine("cubin", arch, index_bits).cubin

    def sass(self, arch: str | int, index_bits: int | None = None) -> str:
        """Return the disassembled machine code; as `ptx`."""
        return self._machine("sass", arch, index_bits).sass

    def resources(self, arch: str | int, index_bits: int | None = None, **sizes: int) -> Resources:
        """Return registers, spill bytes and shared bytes; as `ptx`.

        Of several launches the most that one takes; spilled bytes are those of all. Shared memory
        is that of `launch`: where it depends on sizes and none are given, an expression over them.

        Raises:
            LaunchError: as `launch`, where sizes are given.
        """
        from loopnest.backends.cuda.toolchain.cubin import together

        given = self.named_sizes(sizes, f"{self.name}.resources(...)") if sizes else {}
        found = together(self._machine("resources", arch, index_bits).resources.values())
        return replace(found, shared_bytes=self._planner.block_bytes(given))


def lower(fusion: Fusion) -> Kernel:
    """Return the kernel of `fusion` as it is scheduled now; the fusion is unchanged.

    Raises:
        LoweringError: no kernel exists for this schedule, it is no fusion, or has no output.
        NotSupported: it needs a feature that does not exist yet.

    Args:
        fusion: its math and its schedule; later changes do not reach the kernel.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> print(ln.lower(f))
    # loopnest nest 1
    kernel k(x: float32[N]) -> (y: float32[N])
    for i0 in N:
      y[i0] = x[i0] * 2.0

    Source: nvFuser `GpuLower`; Halide `lower`.
    """
    from loopnest.lowering.pipeline import lower as run_passes

    if not isinstance(fusion, Fusion):
        raise LoweringError(f"lower({fusion!r})", f"{kind_of(fusion)} is no Fusion")
    if not fusion.outputs:
        raise LoweringError(
            f"lower({fusion.name})", "the fusion declares no output", "call f.output(tensor, name)"
        )
    return Kernel(run_passes(fusion))


F = TypeVar("F", covariant=True)


@runtime_checkable
class Compilable(Protocol[F]):
    """What compiles itself, such as a kernel that chooses its schedule by size."""

    def compiled(self, target: str, options: Mapping[str, Any]) -> F:
        """Return the function that runs on arrays."""


@overload
def compile(
    kernel: Fusion | Kernel, target: str = "auto", **options: Any
) -> CompiledKernel[Kernel]: ...


@overload
def compile(kernel: Compilable[F], target: str = "auto", **options: Any) -> F: ...


def compile(
    kernel: Fusion | Kernel | Compilable[F], target: str = "auto", **options: Any
) -> CompiledKernel[Kernel] | F:
    """Return a function that runs a fusion or a kernel on arrays.

    Args:
        kernel: what to run; a fusion is lowered as it is scheduled now. Of a kernel that chooses
            its schedule by size (`KernelDef.choose`) all schedules are compiled.
        target: "cuda", "c", "interpret" (`backends.targets.TARGETS` has them all), or "auto": the
            first of them that this machine can do.
        **options: "cuda": `fast_math`, `min_blocks` (that a multiprocessor holds at once),
            `max_registers` (a thread); "c": `threads`, `fast_math`, `optimize` (0 to 3),
            `check_indices` (False: launches look at no indices but those of declared ranges);
            "interpret": `thread_order` (a seed: threads run one after another in a random order).

    Raises:
        CompileError: an unknown target or option; a compiler or a GPU is missing, or fails.
        LoweringError: as `lower`.
        NotSupported: the target cannot run this kernel yet.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> double = ln.compile(f, target="interpret")
    >>> print(double(np.array([1, 2], np.float32)))
    [2. 4.]

    Source: nvFuser `KernelExecutor`; Halide `Pipeline::compile_jit`.
    """
    from loopnest.backends.targets import compile_kernel

    if isinstance(kernel, Compilable):
        return kernel.compiled(target, options)
    return compile_kernel(_as_kernel(kernel), target, options)


def compile_many(
    kernels: Sequence[Fusion | Kernel], target: str = "c", optimize: int = 1
) -> list[CompiledKernel[Kernel]]:
    """Return many kernels ready to run, built in one run of the C compiler; see `compile`.

    Args:
        kernels: fusions and kernels; a fusion is lowered as it is scheduled now.
        target: as in `compile`; where it is not "c", each is compiled by itself.
        optimize: the level of the C compiler, 0 to 3.

    Raises:
        CompileError: no sequence of fusions and kernels; a compiler is missing or fails.
        LoweringError: as `lower`.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> first, second = ln.compile_many([f, ln.lower(f)], target="interpret")
    >>> print(second(np.array([1, 2], np.float32)))
    [2. 4.]

    Source: as `compile`.
    """
    from loopnest.backends.targets import compile_together

    if isinstance(kernels, (str, bytes)) or not isinstance(kernels, Sequence):
        raise CompileError(
            f"compile_many({kernels!r})",
            f"{kernels!r} is no sequence of Fusions and Kernels",
        )
    return compile_together([_as_kernel(k) for k in kernels], target, optimize)


def load(folder: str | os.PathLike[str], digest: str | None = None) -> CompiledKernel[Kernel]:
    """Return the kernel that `Kernel.export` wrote into a folder, ready to run.

    Its machine code is that of the folder: loading runs it, so load what you trust. Each file is
    held against the digest in the manifest, and the manifest against `digest`.

    Args:
        folder: what was exported.
        digest: what `Kernel.export` returned; None takes any export.

    Raises:
        CompileError: there is no export; its files are damaged, of another version, or not those
            that `digest` names; the machine code does not run here.

    >>> import tempfile
    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("double") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     digest = ln.lower(f).export(folder)
    ...     double = ln.load(folder, digest=digest)
    >>> print(double(np.array([1, 2], np.float32)))
    [2. 4.]

    Source: Halide's ahead-of-time pipelines; TVM's ``load_module``.
    """
    from loopnest.exports.manifest import loaded, read_export

    found = read_export(folder, digest)
    subject = f"load({str(folder)!r})"
    try:
        kernel = Kernel.parse(found.kernel_text)
    except LoopnestError as error:
        raise CompileError(subject, f"its kernel cannot be read: {error}") from None
    return loaded(kernel, found, subject)


def _as_kernel(kernel: Fusion | Kernel) -> Kernel:
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, Fusion):
        found = f"{kind_of(kernel)} is neither a Fusion nor a Kernel"
        raise CompileError(f"compile({kernel!r})", found)
    return lower(kernel)
