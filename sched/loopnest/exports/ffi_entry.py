"""The function by which apache-tvm-ffi calls an exported kernel, in C, for its library.

It takes the arrays of inputs and outputs as DLPack describes them, scalars, and the sizes that no
array tells; it checks them, finds the workspace and runs the kernel. Torch, JAX and C++ call it as
it is. The text that it stands on is `loopnest_ffi.h`.

Source: the stable interface in C of apache-tvm-ffi.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from loopnest import kir
from loopnest.backends.cuda.driver.dlpack import element_code
from loopnest.exports.entry_point import ALIGNMENT, EntryPoint, c_type
from loopnest.scalar.expr import Symbol


def ffi_source(entry: EntryPoint) -> str:
    """Return the text in C that goes behind the source of a kernel."""
    prelude = (Path(__file__).parent / "loopnest_ffi.h").read_text(encoding="utf-8")
    return "\n".join([prelude, *_function(entry), ""])


def ffi_arguments(entry: EntryPoint) -> list[kir.Param]:
    """Return what it takes: arrays, scalars, and the sizes that no array tells."""
    told = {size for _, size in _told_sizes(entry)}
    sizes = [p for p in entry.params("size") if p.name not in told]
    return [*entry.params("input", "output"), *entry.params("scalar"), *sizes]


def _told_sizes(entry: EntryPoint) -> Iterator[tuple[str, str]]:
    """Yield, for each size that an array tells, the text that tells it, and its name."""
    known: set[str] = set()
    for place, param in enumerate(entry.params("input", "output")):
        told = [(f"ln_array{place}->shape[{axis}]", e) for axis, e in enumerate(param.shape)]
        for axis, stride in enumerate(param.strides or ()):
            told.append((f"ln_ffi_stride(ln_array{place}, {axis})", stride))
        for text, extent in told:
            if isinstance(extent, Symbol) and extent.name not in known:
                known.add(extent.name)
                yield text, extent.name


def _function(entry: EntryPoint) -> Iterator[str]:
    name, p = entry.program.name, entry.prefix
    given, arrays = ffi_arguments(entry), entry.params("input", "output")
    yield f"int __tvm_ffi_{p}(void *ln_self, const ln_ffi_value *ln_args, int32_t ln_count,"
    yield "    ln_ffi_value *ln_result) {"
    yield f'  static const char ln_kernel[] = "{name}";'
    yield "  int ln_bad = 0;"
    yield "  (void)ln_self; (void)ln_bad; (void)ln_args;"
    shown = ", ".join([param.name for param in given])
    yield f'  if (ln_ffi_counted(ln_kernel, ln_count, {len(given)}, "{shown}")) return -1;'
    for place, param in enumerate(given):
        yield from _taken(entry, place, param)
    for text, size in _told_sizes(entry):
        yield f"  const int64_t {entry.names[size]} = {text};"
    for place, param in enumerate(arrays):
        yield from _shape_checks(entry, place, param)
    sizes = entry.given("size")
    refused = f"ln_ffi_refused(ln_kernel, {p}_sentence"
    yield f"  const int64_t ln_bytes = {p}_workspace({', '.join(sizes)});"
    yield f"  if (ln_bytes < 0) return {refused}((int)-ln_bytes));"
    room = f"(size_t)(ln_bytes + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}"
    yield f"  void *const ln_space = ln_bytes > 0 ? aligned_alloc({ALIGNMENT}, {room}) : NULL;"
    passed = [f"ln_ffi_data(ln_array{place})" for place in range(len(arrays))]
    passed += [*entry.given("scalar"), *sizes, "ln_space", "ln_bytes"]
    yield f"  const int ln_status = {p}_run({', '.join(passed)});"
    yield "  free(ln_space);"
    yield f"  if (ln_status) return {refused}(ln_status));"
    yield "  *ln_result = (ln_ffi_value){LN_FFI_NONE, 0, {0}};"
    yield "  return 0;"
    yield "}"


def _taken(entry: EntryPoint, place: int, param: kir.Param) -> Iterator[str]:
    """Yield the variable of an argument."""
    if param.kind in ("input", "output"):
        code, bits = element_code(param.dtype)
        asked = f"{param.dtype}[{', '.join(map(str, param.shape))}]"
        yield f"  const ln_ffi_array *const ln_array{place} = ln_ffi_take(ln_kernel,"
        yield f'      ln_args + {place}, "{param.name}", "{asked}",'
        yield f"      {code}, {bits}, {len(param.shape)});"
        yield f"  if (ln_array{place} == NULL) return -1;"
        return
    is_real = param.kind == "scalar" and param.dtype.is_float
    number = f"ln_kernel, ln_args + {place}, {int(is_real)}"
    yield f'  if (ln_ffi_no_number({number}, "{param.name}")) return -1;'
    value = f"ln_ffi_real(ln_args + {place})" if is_real else f"ln_args[{place}].value.integer"
    kind = c_type(param.dtype) if param.kind == "scalar" else "int64_t"
    yield f"  const {kind} {entry.names[param.name]} = ({kind}){value};"


def _shape_checks(entry: EntryPoint, place: int, param: kir.Param) -> Iterator[str]:
    """Yield statements that refuse an array of another shape, or of other strides."""
    array = f'ln_kernel, ln_array{place}, "{param.name}"'
    for axis, extent in enumerate(param.shape):
        wanted = f"(int64_t){entry.text.size(extent)}"
        yield f'  if (ln_ffi_extent({array}, {axis}, {wanted}, "{extent}")) return -1;'
    if param.strides is None:
        yield f"  if (ln_ffi_no_rows({array})) return -1;"
    for axis, stride in enumerate(param.strides or ()):
        wanted = f"(int64_t){entry.text.size(stride)}"
        yield f'  if (ln_ffi_steps({array}, {axis}, {wanted}, "{stride}")) return -1;'
