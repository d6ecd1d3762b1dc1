"""Facts of a processor that automatic schedules are computed from; nothing else enters them."""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.facade import language as ln


@dataclass(frozen=True, slots=True)
class Processor:
    """What a schedule is chosen by, beside shapes and types.

    Args:
        lanes: partial results that a core folds side by side, at most.
        vector_bytes: of the widest vector that a schedule asks for.
        chunk: neighbouring elements that a core takes at once.
        small: below so many elements a second core is not worth its start.
        columns: neighbouring results that a core folds side by side; pieces of rows that are much
            shorter are not fetched ahead.
        tile: rows and columns of a product that a core keeps in registers.
        threads: of a block.
        registers: vectors that a core holds.
        cache: bytes of a core's second data cache.
        cores: that share a kernel.
    """

    lanes: int = 16
    vector_bytes: int = 64
    chunk: int = 4096
    small: int = 1 << 14
    columns: int = 128
    tile: tuple[int, int] = (6, 32)
    threads: int = 128
    registers: int = 16
    cache: int = 1 << 19
    cores: int = 1


def this_processor() -> Processor:
    """Return the facts of the machine at hand; those of no particular one where none are measured.

    Two vectors of results by six rows fill 16 registers, by eight rows half of 32.
    """
    facts = ln.machine()
    if not facts.flops:
        return Processor()
    rows = 8 if facts.vector_registers >= 32 else 6
    return Processor(
        vector_bytes=facts.vector_bytes,
        tile=(rows, 2 * facts.lanes(4)),
        registers=facts.vector_registers,
        cache=facts.caches[min(1, len(facts.caches) - 1)],
        cores=facts.cores,
    )
