"""The full text of a kernel: it parses back to a kernel that says and does the same."""

from __future__ import annotations

import pickle
import re
from random import Random

import numpy as np
import pytest

import loopnest as ln
from fuzzing.fusions import FusionWriter
from helpers.statistics_kernel import statistics
from kernels.adam import adam
from kernels.batchnorm import batchnorm
from kernels.bias_gelu import bias_gelu
from kernels.column_sum import column_sum
from kernels.cross_entropy import cross_entropy
from kernels.gemm import gemm
from kernels.grid_sum import grid_sum
from kernels.layernorm import layernorm
from kernels.lstm_cell import lstm_cell
from kernels.row_sum import row_sum
from kernels.softmax import softmax
from kernels.transpose import transpose
from loopnest.base import pickling
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import lowered_or_serial
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.facade.kernel_class import Kernel
from loopnest.kir.lowered import Lowered

KERNELS = (
    *(adam, batchnorm, bias_gelu, column_sum, cross_entropy, gemm, grid_sum),
    *(layernorm, lstm_cell, row_sum, softmax, transpose),
)


def texts(kernel: Kernel) -> dict[str, str]:
    """Return all texts of a kernel but those of its passes."""
    found = {"full": kernel.text(full=True), "nest": str(kernel), "c": kernel.c()}
    found |= {"params": str(kernel.params), "tensors": str(kernel.tensors)}
    found |= {"buffers": str(kernel.buffers)}
    try:
        found["cuda"] = kernel.cuda()
    except ln.LoweringError as error:
        found["cuda"] = str(error)
    if kernel.scalar is not None:
        found |= {f"scalar {name}": text for name, text in texts(kernel.scalar).items()}
    return found


def test_a_kernel_says_and_does_the_same() -> None:
    kernel = ln.lower(statistics(factored=True)[0])
    again = Kernel.parse(kernel.text(full=True))
    assert texts(again) == texts(kernel)
    assert str(ln.verify(again)) == str(ln.verify(kernel))
    x = np.random.default_rng(0).normal(size=(5, 72)).astype(np.float32)
    results = [ln.compile(k, target="interpret")(x, scale=2.0) for k in (kernel, again)]
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert str(ln.diagnose(again, x, scale=2.0)) == str(ln.diagnose(kernel, x, scale=2.0))
    assert again.launch(N=5, D=72) == kernel.launch(N=5, D=72)
    assert texts(pickle.loads(pickle.dumps(again))) == texts(kernel)
    assert kernel.text() == str(kernel)


@pytest.mark.parametrize(
    ("definition", "schedule"),
    [(d, name) for d in KERNELS for name in d.schedules],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_kernels(definition: ln.KernelDef, schedule: str) -> None:
    kernel = definition.lower(schedule)
    again = Kernel.parse(kernel.text(full=True))
    assert texts(again) == texts(kernel)


def test_verdicts() -> None:
    """Verify says the same of a kernel read back, also where it is wrong."""
    for definition in (row_sum, softmax, transpose):
        for schedule in definition.schedules:
            kernel = definition.lower(schedule)
            again = Kernel.parse(kernel.text(full=True))
            assert str(ln.verify(again)) == str(ln.verify(kernel))
    wrong = Kernel.parse(example().replace("x[i0] * 2.0", "x[0] * 2.0"))
    assert ln.verify(wrong).status == "refuted"


@pytest.mark.parametrize("batch", range(4))
def test_random_schedules(batch: int) -> None:
    done = 0
    for seed in range(8 * batch, 8 * batch + 8):
        rng = Random(seed)
        session = Session("case")
        FusionWriter(session, rng).write()
        ScheduleWriter(session, rng).write()
        kernel, _ = lowered_or_serial(session)
        if isinstance(kernel, str):
            continue
        again = Kernel.parse(kernel.text(full=True))
        assert texts(again) == texts(kernel), f"seed {seed}"
        done += 1
        if seed % 4 == 0:
            assert str(ln.verify(again)) == str(ln.verify(kernel)), f"seed {seed}"
    assert done > 3


def test_literals_and_operations_keep_their_types() -> None:
    with ln.Fusion("literals") as f:
        x = f.input("inf", ("N",), ln.float16)  # a label cannot be a word of expressions
        y = ln.where(x > 0.25, ln.cast(x, ln.float64) * 1e-300, -0.0)
        z = ln.mod(ln.cast(-ln.neg(x) + float("inf"), ln.int64), -7)
        f.output(y, "y")
        f.output(z, "z")
        f.output(((z << 3) ^ (z >> 1)) // 5, "v")
        f.output(ln.random_bits(f.scalar("seed", ln.uint32), 2**70, ("N",)), "u")
        f.output(ln.cast(ln.cast(x, ln.float8_e4m3fn, saturate=True), ln.uint8), "t")
        f.output(ln.invert(z) | ln.cast(ln.eq(ln.maximum(x, float("nan")), x), ln.int64), "w")
    kernel = ln.lower(f)
    again = Kernel.parse(kernel.text(full=True))
    assert texts(again) == texts(kernel)
    assert "inf~2 = Buffer" in kernel.text(full=True)


def test_a_kernel_without_math() -> None:
    kernel = ln.lower(statistics(factored=True)[0])
    bare = Kernel(Lowered(kernel.program, (), (), ()))
    assert texts(Kernel.parse(bare.text(full=True))) == texts(bare)


def example() -> str:
    with ln.Fusion("twice") as f:
        f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
    return re.sub(r'file="[^"]*" line=\d+', 'file="user.py" line=3', ln.lower(f).text(full=True))


FIRST = f"# loopnest program {pickling.SCHEMA}"

EXAMPLE = f"""\
{FIRST}
x = Buffer tensor="x" memory=global dtype=float32 shape=[N] strides=[1] size=N kind="input"
y = Buffer tensor="y" memory=global dtype=float32 shape=[N] strides=[1] size=N kind="output"
N = Symbol
i0 = Index extent=N
at = Origin file="user.py" line=3
domain = TensorDomain root=[axis] rfactor=[axis]
domain~2 = TensorDomain root=[axis~2] rfactor=[axis~2]
axis = IterDomain size=N kind=iteration
axis~2 = IterDomain size=N kind=iteration
KernelRecord buffers=[x, y]
  program:
    Program name="twice"
      params:
        Param name="x" kind="input" dtype=float32 buffer=x shape=[N]
        Param name="y" kind="output" dtype=float32 buffer=y shape=[N]
        Param name="N" kind="size" dtype=index
      Loop var=i0 parallel=serial axis="y.i0" origin=at
        Store storage=y index=[i0] value=x[i0] * 2.0 tensor="y" coordinate=[i0] origin=at
      outputs:
        Output name="y" buffer=y shape=[N]
  tensors:
"""


def test_example_of_the_format() -> None:
    assert example().startswith(EXAMPLE)


DAMAGES = {
    "another version": (
        (FIRST, "# loopnest program 99"),
        f"line 1: it is '# loopnest program 99'; expected '{FIRST}', as this version writes it",
    ),
    "cut off": (
        ("# end", ""),
        "line 41: the text ends early; expected '# end' as its last line",
    ),
    "an unknown name": (
        ("x[i0] * 2.0", "x[i7] * 2.0"),
        "line 19: 'i7' stands here; expected a label of the table",
    ),
    "an unknown statement": (
        ("Store storage", "Stare storage"),
        "line 19: 'Stare' stands here; expected one of "
        "Loop, If, Allocate, Store, Let, Barrier, Shuffle, Arrive, Collective, Issue, Commit, "
        "Wait, Until, Tile, Launch",
    ),
    "a missing field": (
        (" index=[i0]", ""),
        "line 19: the field index is missing; expected index=…",
    ),
    "an unknown field": (
        ('name="twice"', 'nome="twice"'),
        "line 13: 'nome' stands here; expected one of the fields "
        "name, params, body, launch, outputs, conditions, requires, about, ranges, counts, "
        "index_checks",
    ),
    "an operand too few": (
        ("x[i0] * 2.0", "max(x[i0])"),
        "line 19: max has 1 operands; expected 2",
    ),
    "no expression": (
        ("x[i0] * 2.0", "x[i0] *"),
        "line 19: 'tensor' stands here; expected a label of the table",
    ),
    "no character": (
        ("x[i0] * 2.0", "x[i0] * ?"),
        "line 19: '? tensor=\"y\" coordinate=[i0] origin=at' cannot be read; "
        "expected a name, a number or a sign",
    ),
    "indented": (
        ("        Store", "          Store"),
        "line 19: it is indented by 10; expected 8 spaces",
    ),
    "a label twice": (
        ("axis~2 =", "axis ="),
        "line 10: axis stands twice in the table; expected one line a member",
    ),
    "a member of another kind": (
        ("buffers=[x, y]", "buffers=[x, axis]"),
        "line 11: an IterDomain stands here; expected a Buffer",
    ),
    "an axis in an expression": (
        ("x[i0] * 2.0", "axis * 2.0"),
        "line 19: an IterDomain stands in an expression; expected a value",
    ),
    "an unknown kind": (
        ("N = Symbol", "N = Simbol"),
        "line 4: 'Simbol' is no kind of a member; expected one of Buffer, Origin, Symbol, "
        "ScalarParam, Local, Index, IterDomain, Split, Merge, TensorDomain",
    ),
}


@pytest.mark.parametrize(("change", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_lines(change: tuple[str, str], message: str) -> None:
    text = example()
    assert change[0] in text
    with pytest.raises(ln.LoopnestError) as caught:
        Kernel.parse(text.replace(*change))
    assert str(caught.value) == f"parse, {message}"


def test_an_illegal_nest() -> None:
    text = example().replace("index=[i0]", "index=[i0, i0]")
    with pytest.raises(ln.LoopnestError) as caught:
        Kernel.parse(text)
    assert str(caught.value) == (
        "parse(...): the text has no legal nest: y has 1 dimensions, an access 2 indices"
    )
    with pytest.raises(ln.LoopnestError) as caught:
        Kernel.parse(3)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "parse(...): an int is no text; pass what Kernel.text(full=True) returned"
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_damage_is_another_error(seed: int) -> None:
    """Whatever is cut out of a text or doubled in it, the error is a sentence, or there is none."""
    rng, text = Random(seed), example()
    for _ in range(300):
        at, length = rng.randrange(len(text)), rng.randrange(1, 12)
        piece = text[at : at + length] * rng.choice((0, 2))
        try:
            Kernel.parse(text[:at] + piece + text[at + length :])
        except ln.LoopnestError:
            continue
