"""The table of interned nodes: one object for equal ones; what nothing refers to is dropped."""

import os
import sys
from threading import Barrier, Event, Thread
from time import sleep

import pytest

from loopnest.scalar import dtypes, expr
from loopnest.scalar.expr import Const, Index, InternTable, Symbol, integer, loads
from loopnest.scalar.polynomials import index_op


class Node:
    """A node that refers to others."""

    def __init__(self, *args: "Node") -> None:
        self.args = args


def test_a_key_has_one_node():
    table = InternTable[Node]()
    first, second = Node(), Node()
    assert table.find("a") is None
    assert table.add("a", first) is first
    assert table.add("a", second) is first
    assert table.find("a") is first


def test_a_sweep_drops_what_the_table_alone_refers_to():
    table = InternTable[Node]()
    kept = table.add("kept", Node())
    table.add("dropped", Node())
    table.sweep()
    assert table.find("kept") is kept
    assert table.find("dropped") is None
    assert len(table) == 1


def test_a_sweep_drops_users_and_their_operands_at_once():
    table = InternTable[Node]()
    node = table.add(0, Node())
    for number in range(1, 100):
        node = table.add(number, Node(node))
    held = node.args[0]
    del node
    table.sweep()
    assert len(table) == 99
    assert table.find(98) is held
    del held
    table.sweep()
    assert len(table) == 0


def test_the_table_is_swept_when_it_has_grown(monkeypatch):
    monkeypatch.setattr(expr, "FEWEST", 64)
    table = InternTable[Node]()
    kept = [table.add(("kept", n), Node()) for n in range(100)]
    for n in range(1000):
        table.add(("dropped", n), Node())
        assert len(table) <= 203
    assert [table.find(("kept", n)) for n in range(100)] == kept


def test_threads_get_one_node(monkeypatch):
    monkeypatch.setattr(expr, "FEWEST", 8)
    table, start = InternTable[Node](), Barrier(4)
    found: list[list[Node]] = [[] for _ in range(4)]

    def run(mine: list[Node]) -> None:
        start.wait()
        for n in range(500):
            node = table.find(n) or table.add(n, Node())
            mine.append(node)

    threads = [Thread(target=run, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == found[0] for mine in found)


def test_equal_expressions_are_one_after_a_sweep():
    from loopnest.scalar.expr import _TABLE

    i, n = Index("i", Symbol("N")), Symbol("N")
    value = index_op("add", index_op("mul", i, integer(12345)), n)
    _TABLE.sweep()
    assert index_op("add", index_op("mul", i, integer(12345)), Symbol("N")) is value


def test_an_expression_does_not_hold_itself():
    from loopnest.scalar.expr import _TABLE

    i = Index("i", integer(7))
    value = index_op("add", index_op("mul", i, integer(54321)), integer(99991))
    assert loads(value) == ()
    numbers = [(Const, number, dtypes.index) for number in (54321, 99991)]
    _TABLE.sweep()
    assert None not in map(_TABLE.find, numbers)
    del value
    _TABLE.sweep()
    assert list(map(_TABLE.find, numbers)) == [None, None]  # nor the sum and product over them


class Interrupt(BaseException):
    """What a signal raises, wherever a thread is."""


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 40, 41, 42, 43, 44, 45, 46])
def test_a_sweep_that_a_signal_stops_forgets_no_node(lines):
    table = InternTable[Node]()
    kept = [table.add(n, Node()) for n in range(20)]

    def trace(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_name != "_sweep":
            return None
        if event == "line":
            lines -= 1
            if lines == -1:
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(Interrupt):
            table.sweep()
    finally:
        sys.settrace(before)
    assert [table.find(n) for n in range(20)] == kept
    table.sweep()
    assert [table.find(n) for n in range(20)] == kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_can_add_nodes():
    table, held = InternTable[Node](), Event()
    table.guard_forks()

    def hold() -> None:
        with table._lock:
            held.set()
            sleep(0.1)

    thread = Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(not table._lock.acquire(timeout=10))
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert table.add(0, Node()) is table.find(0)
