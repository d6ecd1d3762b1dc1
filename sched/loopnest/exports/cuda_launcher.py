"""Exports for "cuda": cubins and PTX, and a launcher for CUDA's driver API in plain C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopnest import kir
from loopnest.backends.clike.identifiers import symbol
from loopnest.backends.clike.narrow_counts import launch_names
from loopnest.backends.cuda.architecture_needs import check_architecture
from loopnest.backends.cuda.cuda_target import ALIGNMENT
from loopnest.exports.entry_point import EntryPoint, fixed, pieces
from loopnest.exports.size_checks import prelude
from loopnest.kir.shared_memory import shared_layout
from loopnest.kir.vector_access import alignments, wide_accesses
from loopnest.scalar.enums import LAUNCH_DIMENSIONS

_HELPERS = """\
static _Thread_local CUresult {p}_last = CUDA_SUCCESS;

CUresult {p}_driver_result(void) {{ return {p}_last; }}

static int {p}_failed(CUresult result) {{
  if (result != CUDA_SUCCESS) {p}_last = result;
  return result != CUDA_SUCCESS;
}}

/* The bytes of a file, with a 0 behind them; NULL where it cannot be read. */
static char *{p}_read(const char *folder, const char *name) {{
  char *path = malloc(strlen(folder) + strlen(name) + 2), *data = NULL;
  if (path == NULL) return NULL;
  sprintf(path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  free(path);
  if (file == NULL) return NULL;
  long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (bytes >= 0 && fseek(file, 0, SEEK_SET) == 0) data = malloc((size_t)bytes + 1);
  if (data != NULL && fread(data, 1, (size_t)bytes, file) != (size_t)bytes) {{
    free(data);
    data = NULL;
  }}
  if (data != NULL) data[bytes] = 0;
  fclose(file);
  return data;
}}

/* Machine code where the GPU runs it, else PTX, which the driver compiles. */
static int {p}_load(const char *folder, const char *cubin, const char *ptx, CUmodule *module) {{
  char *code = {p}_read(folder, cubin);
  if (code == NULL) return {files};
  CUresult result = cuModuleLoadData(module, code);
  free(code);
  if (result == CUDA_SUCCESS) return 0;
  code = {p}_read(folder, ptx);
  if (code == NULL) return {files};
  result = cuModuleLoadData(module, code);
  free(code);
  return {p}_failed(result) ? {driver} : 0;
}}
"""


class CudaExport:
    """A kernel as machine code and a launcher.

    Args:
        program: the kernel.
        scalar: the variant for sizes and addresses that its vectors do not fit; None where there
            is none.
    """

    def __init__(self, program: kir.Program, scalar: kir.Program | None) -> None:
        self.entry = EntryPoint(program, scalar, ALIGNMENT, on_gpu=True)
        self.codes = [
            (number, bits) for number in range(len(self.entry.variants)) for bits in (32, 64)
        ]
        self.parts = len(program.launches)

    def machine_code(self, arch: str) -> tuple[dict[str, bytes], Mapping[str, str]]:
        """Return the files of all variants and widths, and the cubin of each.

        Raises:
            CompileError: NVRTC is missing or fails, or knows no such architecture.
            LoweringError: the kernel has no CUDA text.
        """
        from loopnest.backends.cuda.printing.cuda_printer import print_cuda
        from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

        files, names = {}, {}
        for number, bits in self.codes:
            program = self.entry.variants[number]
            built = compile_cuda(print_cuda(program, bits), arch)
            check_architecture(program, built.target, f"{program.name}.export(arch={arch!r})")
            name = self._file(number, bits)
            files[f"{name}.cubin"], files[f"{name}.ptx"] = built.cubin, built.ptx.encode()
            files[f"{name}.cu"] = print_cuda(program, bits).encode()
            names[f"{number}_{bits}"] = f"{name}.cubin"
        return files, names

    def _file(self, number: int, bits: int) -> str:
        return f"{self.entry.prefix}_variant{number}_{bits}"

    def header(self) -> str:
        """Return the header."""
        p = self.entry.prefix
        return self.entry.header(
            [
                f"typedef struct {p}_kernel {p}_kernel;",
                "",
                "/* Load the machine code from the folder of the export into the current context:",
                " * 0, or a status. */",
                f"int {p}_open(const char *folder, {p}_kernel **kernel);",
                f"void {p}_close({p}_kernel *kernel);",
                "",
                "/* What the driver said last in this thread, where a status says so. */",
                f"CUresult {p}_driver_result(void);",
                "",
                "/* Enqueue it: 0, or a status, and then nothing was launched. Arrays and the",
                " * workspace lie on the GPU. What is declared of the data is not checked. */",
                f"{self.entry.run(self._declared())};",
            ],
            ["#include <cuda.h>"],
        )

    def _declared(self) -> list[str]:
        return [
            f"{self.entry.prefix}_kernel *kernel", *self.entry.declared("CUdeviceptr"),
            "CUdeviceptr workspace", "int64_t workspace_bytes", "CUstream stream",
        ]  # fmt: skip

    def source(self) -> str:
        """Return the launcher; with the header and cuda.h it compiles as C11."""
        p = self.entry.prefix
        helpers = _HELPERS.format(p=p, files=fixed("FILES"), driver=fixed("DRIVER"))
        includes = ["stdint", "stdio", "stdlib", "string"]
        return "\n".join([
            *[f"#include <{name}.h>" for name in includes], f'#include "{p}.h"', prelude(), helpers,
            *self.entry.plan(), *self.entry.sentences(), *self._open(), *self._run(), "",
        ])  # fmt: skip

    def _open(self) -> Iterator[str]:
        p, count = self.entry.prefix, len(self.codes)
        yield f"struct {p}_kernel {{"
        yield f"  CUmodule modules[{count}];"
        yield f"  CUfunction functions[{count}][{self.parts}];"
        yield "};"
        yield f"void {p}_close({p}_kernel *kernel) {{"
        yield "  if (kernel == NULL) return;"
        yield f"  for (int n = 0; n < {count}; ++n)"
        yield "    if (kernel->modules[n] != NULL) cuModuleUnload(kernel->modules[n]);"
        yield "  free(kernel);"
        yield "}"
        yield f"int {p}_open(const char *folder, {p}_kernel **kernel) {{"
        yield f"  static const char *const cubins[] = {{{self._names('cubin')}}};"
        yield f"  static const char *const texts[] = {{{self._names('ptx')}}};"
        for number, variant in enumerate(self.entry.variants):
            names = ", ".join([f'"{symbol(name)}"' for name in launch_names(variant)])
            yield f"  static const char *const names_{number}[] = {{{names}}};"
        all_names = ", ".join([f"names_{number}" for number, _ in self.codes])
        yield f"  static const char *const *const names[] = {{{all_names}}};"
        yield f"  {p}_kernel *made = calloc(1, sizeof *made);"
        yield f"  if (made == NULL) return {fixed('NO_MEMORY')};"
        yield f"  for (int n = 0; n < {count}; ++n) {{"
        yield f"    int status = {p}_load(folder, cubins[n], texts[n], &made->modules[n]);"
        yield f"    for (int m = 0; status == 0 && m < {self.parts}; ++m)"
        yield f"      if ({p}_failed(cuModuleGetFunction(&made->functions[n][m], made->modules[n],"
        yield f"          names[n][m]))) status = {fixed('DRIVER')};"
        yield "    if (status) {"
        yield f"      {p}_close(made);"
        yield "      return status;"
        yield "    }"
        yield "  }"
        yield "  *kernel = made;"
        yield "  return 0;"
        yield "}"

    def _names(self, kind: str) -> str:
        return ", ".join([f'"{self._file(number, bits)}.{kind}"' for number, bits in self.codes])

    def _run(self) -> Iterator[str]:
        entry = self.entry
        yield from entry.planned(self._declared(), "(const void *)(uintptr_t){}")
        if entry.scalar is not None:
            tests = " || ".join([f"{entry.names[n]} % {a}" for n, a in self._alignments()])
            yield f"  if (plan.variant == 0 && ({tests or '0'}))"
            yield f"    if ((status = {entry.call('plan_1', '&plan')})) return status;"
        yield f"  if (plan.empty) return {fixed('NO_THREADS')};"
        yield from entry.workspace_check()
        yield "  (void)ln_bad; (void)workspace_bytes;"
        yield "  const int ln_code = plan.variant * 2 + (plan.bits == 64);"
        for number, variant in enumerate(entry.variants):
            yield f"  if (plan.variant == {number}) {{"
            yield from [f"    {line}" for line in self._launches(variant)]
            yield "  }"
        yield "  return 0;"
        yield "}"

    def _alignments(self) -> Iterator[tuple[str, int]]:
        """Yield the arrays that vectors need aligned, with the bytes."""
        found = alignments(wide_accesses(self.entry.program))
        for param in self.entry.params("input", "output"):
            if param.buffer in found and found[param.buffer] > 1:
                yield param.name, found[param.buffer]

    def _launches(self, variant: kir.Program) -> Iterator[str]:
        """Yield the launches of one variant, one after the other."""
        entry, p = self.entry, self.entry.prefix
        driver = f"return {fixed('DRIVER')}"
        counters = dict(entry.counters(variant))
        for place in range(len(pieces(variant))):
            yield f"CUdeviceptr ln_space{place} = workspace + plan.places[{place}];"
            if place in counters:
                cleared = f"cuMemsetD8Async(ln_space{place}, 0, {counters[place]}, stream)"
                yield f"if ({p}_failed({cleared}))"
                yield f"  {driver};"
        given = [f"&{name}" for name in entry.passed(variant, "ln_space{}")]
        if any(part.is_cooperative for part in variant.launches):
            yield f"CUdeviceptr ln_counter = workspace + plan.bytes - {ALIGNMENT};"
            yield f"if ({p}_failed(cuMemsetD8Async(ln_counter, 0, 4, stream))) {driver};"
        for number, part in enumerate(variant.launches):
            extra = ["&ln_counter"] if part.is_cooperative else []
            yield "{"
            yield f"  CUfunction ln_function = kernel->functions[ln_code][{number}];"
            yield f"  void *ln_arguments[] = {{{', '.join([*given, *extra]) or '0'}}};"
            shared = "0"
            if shared_layout(part).is_dynamic:
                shared = f"(unsigned)plan.shared[{number}]"
                yield f"  if ({p}_failed(cuFuncSetAttribute(ln_function,"
                yield "      CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,"
                yield f"      (int)plan.shared[{number}]))) {driver};"
            sizes = [f"(unsigned)plan.dims[{number}][{n}]" for n in range(len(LAUNCH_DIMENSIONS))]
            launch = "cuLaunchCooperativeKernel" if part.is_cooperative else "cuLaunchKernel"
            rest = "ln_arguments" if part.is_cooperative else "ln_arguments, NULL"
            yield f"  if ({p}_failed({launch}(ln_function, {', '.join(sizes)},"
            yield f"      {shared}, stream, {rest}))) {driver};"
            yield "}"
