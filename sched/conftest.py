"""How pytest collects doctests: without modules whose extra is missing, each module once.

Given one file, pytest imports its package and then runs the file again; one that registers
something would register it twice. It does not where the module is known before.
"""

from importlib.util import find_spec

import loopnest.graph  # noqa: F401

collect_ignore_glob = [
    f"loopnest/{room}/*"
    for room, packages in {"torch": ["torch"], "jax": ["jax", "jax_tvm_ffi"]}.items()
    if not all(map(find_spec, packages))
]
