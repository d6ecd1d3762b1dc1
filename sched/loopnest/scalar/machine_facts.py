"""What is known of the processor that kernels of target "c" run on; nothing here measures.

Compiler flags, the defaults of "cpu" schedules and thresholds are computed from these facts. They
are measured by `loopnest.backends.cpu.machine_probe`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """A processor as kernels see it.

    Args:
        name: the model.
        cores: that this process may use.
        vector_bytes: of the widest vectors that are faster than narrower ones.
        vector_registers: that a core has.
        caches: bytes of the data caches, the nearest first; the last one is shared by the cores.
        flops: float32 operations a second at which one core multiplies and adds, 0 if not known.
        bandwidth: bytes a second that all cores together read and write in a copy by streaming
            stores, 0 if not known.
    """

    name: str = "any machine"
    cores: int = 1
    vector_bytes: int = 32
    vector_registers: int = 16
    caches: tuple[int, ...] = (32 << 10, 512 << 10, 8 << 20)
    flops: float = 0.0
    bandwidth: float = 0.0

    def lanes(self, element_bytes: int) -> int:
        """Return how many elements fill a vector.

        >>> MachineFacts(vector_bytes=64).lanes(4)
        16
        """
        return self.vector_bytes // element_bytes


ANY = MachineFacts()
"""What is assumed where the machine must not matter: tests, and texts that are compared."""
