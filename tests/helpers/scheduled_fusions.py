"""Fusions that are given a schedule, and runs of them that are compared."""

import numpy as np

import loopnest as ln
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures


def fusion(build, *shapes, dtype=ln.float32):
    with ln.Fusion("case") as f:
        result = build(*[f.input(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)])
        for number, tensor in enumerate(result if isinstance(result, tuple) else (result,)):
            f.output(tensor, f"y{number}")
    return f


def check_values(f, run=None):
    """Compare a run on "c" with what rounding may do."""
    random = np.random.default_rng(0)
    arrays = [random.normal(size=t.shape).astype(t.dtype.numpy) for t in f.inputs]
    results = (run or ln.compile(f, target="c", optimize=1))(*arrays)
    results = results if isinstance(results, tuple) else (results,)
    bounds = enclosures(f, arrays, {})
    for output, result in zip(f.outputs, results, strict=True):
        verdict = compare(output.name, result, bounds[output.name])
        assert verdict.ok, str(verdict)
