"""The table of instructions, and what a row must be."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import loopnest as ln
from loopnest.kir import instruction_table

D = ln.Fragment("(g) (t p) -> (g t) (p)", g=8, t=4, p=2)
WHOLE = ln.Operand(ln.float32, ("m", "n"), D)
ROW = ln.Instruction("plus.m8n8", {"d": WHOLE, "a": WHOLE}, "d[m, n] = d[m, n] + a[m, n]")


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the rows back that a test adds."""
    kept = dict(instruction_table._table)
    yield
    instruction_table._table.clear()
    instruction_table._table.update(kept)


def test_a_row_from_outside() -> None:
    assert ln.add_instruction(ROW) is ROW
    assert ln.instructions["plus.m8n8"] is ROW
    assert ROW.extents == {"m": 8, "n": 8}
    assert ROW.result == "d"
    assert not ROW.is_move


def test_the_table_is_read_only() -> None:
    with pytest.raises(TypeError):
        ln.instructions["plus.m8n8"] = ROW  # type: ignore[index]


def test_the_statements_of_the_rows() -> None:
    stores = {name: row.statement for name, row in ln.instructions.items()}
    assert {name: str(s.own) + " = " + str(s.value) for name, s in stores.items()} == {
        "mma.m16n8k16.f32.f16": "d[m, n] = d[m, n] + float32(a[m, k]) * float32(b[k, n])",
        "mma.m16n8k16.f32.bf16": "d[m, n] = d[m, n] + float32(a[m, k]) * float32(b[k, n])",
        "mma.m16n8k8.f32.tf32": "d[m, n] = d[m, n] + a[m, k] * b[k, n]",
        "mma.m16n8k32.s32.s8": "d[m, n] = d[m, n] + int32(a[m, k]) * int32(b[k, n])",
        "dot.n16k2.f32.bf16": "d[n] = d[n] + float32(a[k]) * float32(b[k, n])",
        "dot.n16k2.s32.s16": "d[n] = d[n] + int32(a[k]) * int32(b[k, n])",
        "dot.n16k4.s32.u8.s8": "d[n] = d[n] + int32(a[k]) * int32(b[k, n])",
        "dot.n16k4.s32.s8": "d[n] = d[n] + int32(a[k]) * int32(b[k, n])",
        "cp.async": "d[byte] = s[byte]",
        **{
            f"ldmatrix.x{count}{trans}": "d[matrix, row, byte] = s[matrix, row, byte]"
            for count in (2, 4)
            for trans in ("", ".trans")
        },
    }


@pytest.mark.parametrize("name", ["tma.load", "cp.async.bulk.shared", "wgmma.m64n8k16"])
def test_later_instructions(name: str) -> None:
    message = (
        f"add_instruction('{name}'): instructions of this kind need statements that do not exist "
        "yet; names begin otherwise than tma, cp.async.bulk, wgmma"
    )
    with pytest.raises(ln.NotSupported, match=f"^{re.escape(message)}$"):
        ln.add_instruction(replace(ROW, name=name))


NARROW = replace(WHOLE, fragment=ln.Fragment("(g) (t p) -> (g t) (p)", g=4, t=4, p=2))
TALL = replace(WHOLE, fragment=ln.Fragment("(x g) (t p) -> (g t) (x p)", x=2, g=8, t=4, p=2))
STATEMENT = 'write one statement, as "d[m, n] = d[m, n] + a[m, k] * b[k, n]"'

REFUSED = [
    (
        {"name": "mma.m16n8k16.f32.f16"},
        "add_instruction('mma.m16n8k16.f32.f16'): there is a row of this name already; choose "
        "another name",
    ),
    ({"scope": "block"}, ": scope='block'; it is 'warp' or 'thread'"),
    ({"completion": "later"}, ": completion='later'; it is '' or 'group'"),
    ({"arch": "80"}, ": arch='80'; use the form \"sm_80\""),
    ({"ptx": "mma {d}, {c};"}, ": its ptx names 'c'; the operands are d, a"),
    ({"accuracy": {"c": 0.1}}, ": its accuracy names 'c'; the operands are d, a"),
    (
        {"operands": {"d": WHOLE, "a": NARROW}},
        ": the fragment of operand a has 16 lanes; the scope warp has 32",
    ),
    (
        {"operands": {"d": WHOLE, "a": TALL}},
        ": axis m has extent 8 in operand d and 16 in a; an axis has one extent",
    ),
    (
        {"operands": {"d": WHOLE, "a": replace(WHOLE, axes=("m",))}},
        ": operand a has the axes (m) and a fragment of 2 axes; a fragment has a group for each "
        "axis",
    ),
    (
        {"operands": {"d": WHOLE, "a": replace(WHOLE, fragment=None)}},
        ": operand a is in warp memory and has no fragment; operands in ln.WARP have one, and no "
        "others",
    ),
    (
        {"operands": {"d": WHOLE, "a": replace(WHOLE, memory=ln.SHARED)}},
        ": operand a is in shared memory and has a fragment; operands in ln.WARP have one, and no "
        "others",
    ),
    (
        {"behaviour": "d[m, n] = d[m, n] +"},
        f": its behaviour 'd[m, n] = d[m, n] +' cannot be read; {STATEMENT}",
    ),
    (
        {"behaviour": "d[m, n] = d[m, n] + c[m, n]"},
        ": its behaviour names 'c'; the operands are d, a, the axes m, n",
    ),
    (
        {"behaviour": "d[n, m] = d[n, m] + a[m, n]"},
        ": its behaviour has d[n, m] where operand d has (m, n); an operand is read and written by "
        "its axes",
    ),
    (
        {"behaviour": "d[m, n] = d[m, n] + 1.0"},
        f": its behaviour does not name the operand 'a'; {STATEMENT}",
    ),
    (
        {"operands": {"d": WHOLE, "a": replace(WHOLE, dtype=ln.float16)}},
        ": its behaviour 'd[m, n] = d[m, n] + a[m, n]' cannot be read; expected operands of one "
        "type for add, not d[m, n]: float32, a[m, n]: float16",
    ),
    *[
        (
            {"name": name},
            f'add_instruction: name={name!r}; it is letters, digits and dots, as "mma.m8n8k4"',
        )
        for name in (3, None, "", "two words", "f(x)", ".x")
    ],
    *[
        ({field: value}, f": {field}={value!r}; it is a text")
        for field in ("behaviour", "ptx", "arch", "witness", "c")
        for value in (None, 3)
    ],
    ({"ptx": "mma {"}, ": its ptx 'mma {' cannot be read; write {{ and }} for braces of the text"),
    (
        {"c": "f({d});"},
        ": it has a c, and the scope warp; a row for C has the scope thread, and no ptx",
    ),
    (
        {"c": "f({d});", "scope": "thread", "ptx": "f {d};"},
        ": it has a c, and a ptx; a row for C has the scope thread, and no ptx",
    ),
    (
        {"c": "f({d});", "scope": "thread"},
        ": arch='sm_80'; use the form \"avx512bf16\" for a row with a c",
    ),
    (
        {"c": "f({x});", "scope": "thread", "arch": "avx2"},
        ": its c names 'x'; the operands are d, a",
    ),
    (
        {"c": "f({", "scope": "thread", "arch": "avx2"},
        ": its c 'f({' cannot be read; write {{ and }} for braces of the text",
    ),
    (
        {"c": "f({d});", "scope": "thread", "arch": "avx2"},
        ": operand d is in warp memory and has a fragment; operands in ln.LOCAL have one, and no "
        "others",
    ),
    ({"flushes": 1}, ": flushes=1; it is True or False"),
    ({"operands": None}, ": operands=None; it is role -> ln.Operand"),
    ({"operands": {"d": WHOLE, 3: WHOLE}}, ": the role 3; a role is a name, as in Python"),
    ({"operands": {"d": WHOLE, "a": 3}}, ": operand a is 3; it is an ln.Operand"),
    *[
        (
            {"operands": {"d": WHOLE, "a": replace(WHOLE, **{field: value})}},
            f": operand a has {field}={value!r}; {allowed}",
        )
        for field, value, allowed in (
            ("dtype", "float32", "it is a type, as ln.float16"),
            ("axes", "mn", 'it is a tuple of names, as ("m", "k")'),
            ("axes", ("m", 3), 'it is a tuple of names, as ("m", "k")'),
            ("axes", ("m n", "n"), 'it is a tuple of names, as ("m", "k")'),
            ("fragment", "(g) -> (g) ()", "it is an ln.Fragment"),
            ("memory", "warp", "it is a memory, as ln.WARP"),
        )
    ],
    ({"accuracy": 0.1}, ": accuracy=0.1; it is role -> relative error, or None"),
    *[
        (
            {"accuracy": {"a": error}},
            f": its accuracy of a is {error!r}; it is a relative error, between 0 and 1",
        )
        for error in (-0.1, 0, 1.0, float("nan"), "small", None)
    ],
    *[
        (
            {"behaviour": f"d[m, n] = {value}"},
            f": its behaviour 'd[m, n] = {value}' is neither a copy nor a sum; {STATEMENT}",
        )
        for value in (
            "max(d[m, n], a[m, n])",
            "d[m, n] * a[m, n]",
            "-d[m, n] + a[m, n]",
            "a[m, n] * 2.0",
            "d[m, n] + a[m, n] * d[m, n]",
            "d[m, n] + d[m, n]",
        )
    ],
    ({"completion": "group"}, ": completion='group' of what computes; copies alone may end later"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refused(changes: dict[str, object], message: str) -> None:
    row = replace(ROW, **changes)  # type: ignore[arg-type]
    whole = message if message.startswith("add") else f"add_instruction('plus.m8n8'){message}"
    before = dict(ln.instructions)
    with pytest.raises(ln.DefinitionError, match=f"^{re.escape(whole)}$"):
        ln.add_instruction(row)
    assert dict(ln.instructions) == before


def test_no_row() -> None:
    with pytest.raises(ln.DefinitionError, match=r"^add_instruction: a str is no ln\.Instruction$"):
        ln.add_instruction("mma")  # type: ignore[arg-type]
