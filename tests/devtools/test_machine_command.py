"""``loopnest machine``: the facts as a table and as JSON."""

import json
from dataclasses import asdict, replace

from click.testing import CliRunner

from loopnest.backends.cpu import machine_probe
from loopnest.devtools.cli import Source, command_line
from loopnest.scalar.machine_facts import ANY


def output(*arguments):
    group = command_line(False, "loopnest")
    result = CliRunner().invoke(group, ["machine", *arguments], obj=Source(script=False))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_table():
    assert output() == (
        "fact                   value\n"
        "processor              any machine\n"
        "cores                  1\n"
        "vectors that pay       32 bytes, 8 float32\n"
        "vector registers       16\n"
        "data caches            L1 32 KiB, L2 512 KiB, L3 8 MiB\n"
        "peak of a core         not measured\n"
        "copy by all cores      not measured\n"
        "flags of the compiler  -\n"
    )


def test_json():
    assert json.loads(output("--json")) == {**asdict(ANY), "caches": list(ANY.caches)}


def test_rates(monkeypatch):
    found = replace(ANY, flops=2.5e11, bandwidth=9.9e10, caches=(48 << 10, 1000))
    monkeypatch.setattr(machine_probe, "machine", lambda: found)
    text = output()
    assert "250 GFLOP/s of float32" in text
    assert "99 GB/s" in text
    assert "L1 48 KiB, L2 1000 bytes" in text


def test_again(monkeypatch):
    forgotten = []
    monkeypatch.setattr(machine_probe, "forget_machine", lambda: forgotten.append(True))
    output("--again")
    assert forgotten == [True]
