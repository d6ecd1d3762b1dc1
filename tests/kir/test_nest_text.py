"""The nest text: its exact format, and the line of each statement."""

import math
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from helpers.printer_cases import FORMS, ROW_SUM, row_sum
from loopnest.base.errors import LoopnestError
from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    If,
    Let,
    Loop,
    Program,
    Shuffle,
    Store,
    walk,
)
from loopnest.kir import parse as parse_nest
from loopnest.kir.nest_text import nest_lines, print_nest
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE, ZERO, Arg, Buffer, Load, Local, integer


def test_example_of_the_format():
    assert print_nest(row_sum()) == ROW_SUM


@pytest.mark.parametrize("text", FORMS, ids=lambda text: text.split("(")[0].split()[-1])
def test_text_reads_back(text):
    assert print_nest(parse_nest(text)) == text


@pytest.mark.parametrize(
    ("name", "dtype", "start"),
    [("max", "int32", -(2**31)), ("min", "uint8", 255), ("max", "float16", -math.inf)],
)
def test_what_an_extremum_starts_from(name, dtype, start):
    text = (
        f"# loopnest nest 1\nkernel k(x: {dtype}[8]) -> (y: {dtype}[8])\n"
        f"for i0 in 8:  # block_x\n  v1 = {name}(x[i0]) over block_x:\n"
        f"    let v0 = x[i0]\n    let v1 = shuffle_xor(v0, 4)\n  y[i0] = v1"
    )
    program = parse_nest(text)
    (found,) = [n for n, _ in walk(program.body) if isinstance(n, Collective)]
    assert [const.value for const in found.identity] == [start]
    assert print_nest(program) == text


def test_swizzles_read_back():
    """Several in the order in which they are applied."""
    text = (
        "# loopnest nest 1\nkernel k(x: float32[8]) -> ()\n"
        "T1: float32[8, 8, 4] shared xor(0, 1) xor(2, 1) = T0\nT1[0, 0, 0] = x[0]"
    )
    program = parse_nest(text)
    (made,) = [n for n, _ in walk(program.body) if isinstance(n, Allocate)]
    assert made.storage.swizzles == ((0, 1), (2, 1))
    assert print_nest(program) == text


def test_statements_of_several_threads():
    """Shuffles and arrivals define names; a collective declares what its body computes."""
    part = Buffer("T2_acc", "T2", Memory.LOCAL, dtypes.float32, (ONE,), (ONE,), ONE, "accumulator")
    count = Buffer("T2_count", "T2", Memory.GLOBAL, dtypes.int32, (ONE,), (ONE,), ONE, "counter")
    offered, taken = Local("v0", dtypes.float32), Local("v1", dtypes.float32)
    last = Local("T2_last", dtypes.bool_)
    load = Load(part, (ZERO,))
    body = (Let(offered, load), Shuffle(taken, offered, "xor", integer(16)))
    dims = (ParallelType.block_x,)
    nodes = (
        Collective("sum", (taken,), (load,), dims, (ZERO,), (Arg(0, load.dtype),), body),
        Barrier("warp"),
        Arrive(last, count, (ZERO,), integer(8)),
    )
    lines = print_nest(Program("k", (), nodes)).splitlines()[2:]
    assert lines == [
        "v1 = sum(T2_acc[0]) over block_x:",
        "  let v0 = T2_acc[0]",
        "  let v1 = shuffle_xor(v0, 16)",
        "barrier warp",
        "let T2_last = arrive(T2_count[0], 8)",
    ]


@pytest.mark.parametrize("text", FORMS, ids=lambda text: text.split("(")[0].split()[-1])
def test_lines_name_statements(text):
    program = parse_nest(text)
    lines = text.splitlines()
    places = nest_lines(program)
    statements = [node for node, _ in walk(program.body)]
    assert list(places) == statements
    for node, line in places.items():
        shown = lines[line - 1].strip()
        match node:
            case Loop():
                assert shown.startswith(f"for {node.index} in {node.extent}:")
            case If():
                assert shown == f"if {node.condition}:"
            case Store():
                assert shown.endswith(f"] = {node.value}")
            case Allocate():
                assert shown.startswith(f"{node.buffer}: ")


def test_same_bytes_in_any_process():
    source = (
        "from loopnest.kir import parse as parse_nest\n"
        "from helpers.printer_cases import FORMS\n"
        "from loopnest.backends.cpu.c_printer import print_c\n"
        "from loopnest.backends.cuda.printing.cuda_printer import print_cuda\n"
        "from loopnest.kir.nest_text import print_nest\n"
        "print(print_nest(parse_nest(FORMS[2])))\n"
        "for form in FORMS[:2]:\n"
        "    program = parse_nest(form)\n"
        "    print(print_nest(program), print_c(program), print_cuda(program))\n"
    )
    texts = set()
    for seed in ("0", "1", "77"):
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", source]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        texts.add(done.stdout)
    assert len(texts) == 1


NEST = """\
# loopnest nest 1
kernel k(x: float32[N]) -> (y: float32[N])
for i0 in N:
  y[i0] = x[i0] * 2.0
"""
DAMAGES = {
    "another version": (
        ("nest 1", "nest 2"),
        "parse, line 1: it is '# loopnest nest 2'; expected '# loopnest nest 1'",
    ),
    "the signature": (
        (") -> (", ") => ("),
        "parse, line 2: 'kernel k(x: float32[N]) => (y: float32[N])' cannot be read; "
        "expected kernel name(inputs) -> (outputs)",
    ),
    "a loop": (
        ("for i0 in N", "for i0 of N"),
        "parse, line 3: 'for i0 of N:' cannot be read; expected for index in extent:  # axis, "
        "parallel",
    ),
    "two types": (
        ("2.0", "i0"),
        "parse, line 4: 'y[i0] = x[i0] * i0' cannot be read; "
        "expected operands of one type for mul, not x[i0]: float32, i0: index",
    ),
    "no statement": (
        ("  y[i0] = x[i0] * 2.0", "  y"),
        "parse, line 4: 'y' cannot be read; expected a statement",
    ),
    "an unknown buffer": (
        ("x[i0]", "z[i0]"),
        "parse, line 4: 'y[i0] = z[i0] * 2.0' cannot be read; expected a nest's line",
    ),
}


@pytest.mark.parametrize(("change", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_lines(change, message):
    with pytest.raises(LoopnestError) as caught:
        parse_nest(NEST.replace(*change))
    assert str(caught.value) == message


@pytest.mark.parametrize("seed", range(2))
def test_no_damage_is_another_error(seed):
    rng = Random(seed)
    for text in (NEST, *FORMS):
        for _ in range(60):
            at, length = rng.randrange(len(text)), rng.randrange(1, 12)
            piece = text[at : at + length] * rng.choice((0, 2))
            try:
                parse_nest(text[:at] + piece + text[at + length :])
            except LoopnestError:
                continue
