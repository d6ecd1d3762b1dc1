"""What exported kernels ask of sizes, in C, against what launches from Python ask."""

from __future__ import annotations

import ctypes
import random

import pytest

import loopnest as ln
from kernels.column_sum import column_sum
from kernels.conv2d import conv2d
from kernels.cumsum import cumsum_long
from kernels.gemm import gemm
from kernels.grid_sum import grid_sum
from kernels.row_sum import row_sum
from kernels.softmax import softmax
from loopnest.backends.cpu.c_compiler import compile_c
from loopnest.base.errors import LaunchError, LoweringError
from loopnest.exports.entry_point import EntryPoint
from loopnest.exports.size_checks import check_sizes, prelude
from loopnest.launch.launch_plan import Planner

KERNELS = [
    (row_sum, "gpu"), (softmax, "gpu_warp"), (softmax, "gpu_shared"), (gemm, "gpu"),
    (cumsum_long, "gpu"), (cumsum_long, "gpu_launches"), (column_sum, "gpu"), (grid_sum, "gpu"),
    (conv2d, "gpu"),
]  # fmt: skip


def entry_of(kernel):
    scalar = None if kernel.scalar is None else kernel.scalar.program
    return EntryPoint(kernel.program, scalar, alignment=64)


def planned(entry):
    """Return a function of sizes: the plan that the C text makes, or a status."""
    p, sizes = entry.prefix, entry.given("size")
    probe = f"""
int probe(const int64_t *sizes, int64_t *found) {{
  {p}_plan_t plan;
  int status = {p}_plan({", ".join([*[f"sizes[{n}]" for n in range(len(sizes))], "&plan"])});
  if (status) return status;
  *found++ = plan.variant; *found++ = plan.bits; *found++ = plan.nothing; *found++ = plan.empty;
  *found++ = plan.bytes;
  for (int m = 0; m < (int)(sizeof plan.shared / sizeof *plan.shared); ++m) {{
    for (int n = 0; n < 6; ++n) *found++ = plan.dims[m][n];
    *found++ = plan.shared[m];
  }}
  return 0;
}}
"""
    source = "\n".join([prelude(), *entry.plan(), probe])
    function = compile_c(source, optimize=0).function("probe", restype=ctypes.c_int)

    def plan(values):
        given = (ctypes.c_int64 * max(len(values), 1))(*values.values())
        found = (ctypes.c_int64 * 64)()
        status = function(given, found)
        return status or list(found)

    return plan


def plan_or_error(planner, values):
    try:
        return planner.plan(planner.named_sizes(values, "k"), "k")
    except LaunchError as error:
        return error


STATUSES = {3: "is no size", 5: "exceeds 64 bits", 6: "split by", 7: "use at most", 8: "shared"}


@pytest.mark.parametrize(
    ("kernel", "schedule"), [pytest.param(*k, id=k[0].label(k[1])) for k in KERNELS]
)
def test_plans_are_those_of_python(kernel, schedule):
    lowered = kernel.lower(schedule)
    entry = entry_of(lowered)
    planner = Planner(lowered.program, None if entry.scalar is None else lambda: entry.scalar)
    plan = planned(entry)
    draw = random.Random(1)
    taken = 0
    for _ in range(400):
        most = draw.choice([3, 100, 3000, 1 << 17, 1 << 33])
        values = {name: draw.randrange(most) // draw.choice([1, 4]) * draw.choice([1, 4])
                  for name in planner.names}  # fmt: skip
        found = plan(values)
        wanted = plan_or_error(planner, values)
        if isinstance(wanted, LaunchError):
            assert isinstance(found, int), (values, wanted)
            assert found >= 100 or STATUSES[found] in str(wanted), (values, wanted)
            continue
        assert isinstance(found, list), (values, found)
        taken += 1
        variant = int(wanted.program is not lowered.program)
        assert found[:3] == [variant, wanted.index_bits, all(0 in s for s in wanted.outputs)], (
            values
        )
        if found[2]:
            continue
        assert found[3] == wanted.config.is_empty
        spaces = [p for p in wanted.program.params if p.kind == "workspace"]
        bytes_ = [count * p.dtype.size for count, p in zip(wanted.workspace, spaces, strict=True)]
        assert found[4] == sum([-(-count // 64) * 64 for count in bytes_])
        for number, part in enumerate(wanted.config.launches):
            own = found[5 + 7 * number : 12 + 7 * number]
            assert own[:6] == [*part.grid, *part.block]
            assert own[6] == part.shared_bytes
    assert taken > 20


def test_integers_without_a_sign_are_bounded():
    with ln.Fusion("k") as f:
        x, last = f.input("x", ("N",), ln.float32), f.input("last", ("N",), ln.uint32)
        f.output(ln.sum(ln.where(ln.iota("N") < last[:, None] - 1, x, 0.0), axis=1), "y")
    f.inline_most(replay=True)
    kernel = ln.lower(f)
    wanted = Planner(kernel.program, None).plan({"N": 3}, "k").index_bits
    assert planned(entry_of(kernel))({"N": 3})[1] == wanted


def test_sizes_that_depend_on_data_are_named():
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.int32)
        f.output(x + 1, "y")
    program = ln.lower(f).program
    store = next(n for n in program.nodes if hasattr(n, "value"))
    text = r"^k\.export\(\.\.\.\): y has a size that depends on data: 'x\[i0\] \+ 1'; what leaves "
    text += "Python has sizes that its caller gives; keep this kernel in Python$"
    with pytest.raises(LoweringError, match=text):
        check_sizes([("y", store.value)], "k.export(...)")
