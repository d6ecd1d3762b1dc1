"""Facts of this machine: measured once and kept; none where the machine must not matter."""

import json
from dataclasses import asdict, replace

import pytest

import loopnest as ln
from loopnest.backends.cpu import machine_probe
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cpu.machine_probe import forget_machine, machine, vector_flags
from loopnest.scalar.machine_facts import ANY, MachineFacts

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


@pytest.fixture
def at_hand(monkeypatch, tmp_path):
    """Ask for the machine at hand, which no one has measured yet."""
    monkeypatch.delenv("LOOPNEST_MACHINE", raising=False)
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path / "cache"))
    machine_probe._known_machine.cache_clear()
    yield tmp_path / "cache"
    machine_probe._known_machine.cache_clear()


@needs_compiler
def test_a_machine_is_measured_once_and_kept(at_hand, monkeypatch):
    found = machine()
    assert found.cores >= 1
    assert found.vector_bytes in (16, 32, 64)
    assert found.vector_registers in (16, 32)
    assert list(found.caches) == sorted(found.caches)
    assert found.flops > 1e8
    assert found.bandwidth > 1e7
    (entry,) = (at_hand / "machine").glob("*.json")
    assert MachineFacts(**{**json.loads(entry.read_text()), "caches": found.caches}) == found

    machine_probe._known_machine.cache_clear()
    monkeypatch.setattr(machine_probe, "measure_machine", lambda: pytest.fail("measured again"))
    assert machine() == found


@needs_compiler
def test_what_is_kept_can_be_forgotten_and_damaged(at_hand, monkeypatch):
    facts = [replace(ANY, name=name, flops=1.0) for name in ("first", "second", "third")]
    turns = iter(facts)
    monkeypatch.setattr(machine_probe, "measure_machine", lambda: next(turns))
    assert machine().name == "first"
    forget_machine()
    assert machine().name == "second"
    (entry,) = (at_hand / "machine").glob("*.json")
    entry.write_text(json.dumps({**asdict(ANY), "wings": 2}))
    machine_probe._known_machine.cache_clear()
    assert machine().name == "third"


def test_without_a_compiler_nothing_is_measured(at_hand, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    found = machine()
    assert (found.flops, found.bandwidth) == (0.0, 0.0)
    assert vector_flags(found) == ()


def test_wider_vectors_count_where_they_are_faster(monkeypatch):
    class Library:
        def function(self, name, *_):
            return {"probe_registers": lambda: 32, "probe_copy": None, "probe_rate": None}[name]

    monkeypatch.setattr(machine_probe, "compile_c", lambda _: Library())
    monkeypatch.setattr(machine_probe, "_bandwidth", lambda *_: 1e10)
    for rates, wanted in (
        ({16: 1e9, 32: 2e9, 64: 4e9}, 64),
        ({16: 1e9, 32: 2e9, 64: 2.1e9}, 32),  # one unit for two narrow ones
        ({16: 1e9, 32: 0.0, 64: 0.0}, 16),  # there are none
    ):
        monkeypatch.setattr(machine_probe, "_rates", lambda _, rates=rates: rates)
        found = machine_probe.measure_machine()
        assert found.vector_bytes == wanted
        assert found.flops == rates[wanted]


def test_flags_of_the_compiler(monkeypatch):
    monkeypatch.setattr(machine_probe.platform, "machine", lambda: "x86_64")
    measured = replace(ANY, flops=1e9)
    assert vector_flags(replace(measured, vector_bytes=64))[0] == "-mprefer-vector-width=512"
    narrow = replace(measured, vector_bytes=16, caches=())
    assert vector_flags(narrow) == ("-DLN_VECTOR_BYTES=16",)
    assert vector_flags(ANY) == ()
    monkeypatch.setattr(machine_probe.platform, "machine", lambda: "aarch64")
    assert vector_flags(measured) == ()


def test_any_machine(monkeypatch):
    monkeypatch.setenv("LOOPNEST_MACHINE", "any")
    assert ln.machine() is ANY
    monkeypatch.setenv("LOOPNEST_MACHINE", "mine")
    with pytest.raises(ln.LoopnestError, match=r"^LOOPNEST_MACHINE=mine: names no machine; set"):
        ln.machine()
