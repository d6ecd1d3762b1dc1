"""Random programs whose threads meet: target "c" against threads that run one by one."""

import numpy as np
import pytest

from helpers.threads_oracle import run_threads
from helpers.threads_random import RandomProgram
from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cpu.c_target import build_together
from loopnest.kir import parse as parse_nest
from loopnest.launch.launch_plan import Planner
from loopnest.scalar.arguments import size_value

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

PROGRAMS = 10
"""Programs of one test, which the C compiler sees together."""


def arrays_of(program, sizes, random):
    arrays = {}
    for param in program.params:
        if param.buffer is not None:
            count = size_value(param.buffer.size, sizes)
            arrays[param.name] = np.zeros(count, param.dtype.numpy)
            if param.kind == "input":
                arrays[param.name][:] = random.integers(-3, 4, count)
    return arrays


@pytest.mark.parametrize("first", range(0, 4 * PROGRAMS, PROGRAMS))
def test_random_programs(first):
    made = [RandomProgram(np.random.default_rng(first + n)) for n in range(PROGRAMS)]
    programs = [parse_nest(random.text) for random in made]
    built = build_together(programs, optimize=1)
    for number, (random, program, kernel) in enumerate(zip(made, programs, built, strict=True)):
        seed = first + number
        expected = arrays_of(program, random.sizes, np.random.default_rng(seed))
        found = {name: array.copy() for name, array in expected.items()}
        run_threads(program, random.sizes, expected, seed)
        plan = Planner(program).plan(random.sizes, "k(...)")
        kernel.run([found[p.name] for p in program.params if p.buffer is not None], [], plan)
        shown = f"seed {seed}, sizes {random.sizes}\n{random.text}"
        np.testing.assert_array_equal(found["y"], expected["y"], err_msg=shown)
