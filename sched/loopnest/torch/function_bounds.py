"""How far the results of anybody's kernel may lie from a function of torch's: no made-up tolerance.

The function is called once, on copies. The ATen operators that it calls become one graph, and that
the math of one fusion: what lies between kernels is bounded with the rest. Its enclosures (see
`loopnest.numerics`) hold every result that is computed in the types of the function or wider ones,
by whatever formula, in whatever order and fusion, with 16-bit values between rounded or not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

import loopnest as ln
from loopnest.base.errors import DefinitionError, LoopnestError, NotSupported, kind_of
from loopnest.devtools.harness import MOST_POINTS, Arguments, Wanted, oracle, verdict_of
from loopnest.graph.node_origins import place_of
from loopnest.graph_kernels.group_math import group_math
from loopnest.graph_kernels.op_math import value_alone
from loopnest.numerics.compare import Verdict
from loopnest.numerics.error_bounds import enclosures
from loopnest.numerics.target_accuracy import Arithmetic
from loopnest.scalar.arguments import size_value
from loopnest.torch.aten_graph import AtenOutput, translated
from loopnest.torch.dynamo_backend import decompositions, shapes_propagated
from loopnest.torch.symbolic_sizes import NotTranslated
from loopnest.torch.tensor_arrays import Tensor, array_of, tensor_of, torch_dtype

_MOST_POINTS = 64 * MOST_POINTS
"""What takes more, a minute or so, is refused."""


@dataclass(frozen=True)
class FunctionMath:
    """A function of torch at some tensors, as math.

    Args:
        fusion: unscheduled.
        arrays: one an input of it.
        results: for each tensor that the function returns the number of the fusion's output.
        structure: of what the function returns.
    """

    fusion: ln.Fusion
    arrays: tuple[npt.NDArray[Any], ...]
    results: tuple[int, ...]
    structure: TreeSpec

    def returned(self, values: Any) -> Any:
        """Return arrays of the fusion's outputs as what the function returns."""
        outputs = values if isinstance(values, tuple) else (values,)
        tensors = [tensor_of(np.array(outputs[number])) for number in self.results]
        return tree_unflatten(tensors, self.structure)


def error_bound(fn: Callable[..., Any], *tensors: Any) -> Any:
    """Return how far each result of a correct kernel may lie from that of a function of torch's.

    From that of its math in float64, that is: the operators that it calls on these tensors. The
    bound holds for kernels of any compiler that compute in the function's types or in wider ones
    (TF32 is none of these), by any formula, in any order of sums, fused or not. It is 0 where
    elements are only moved, and inf where a result may be anything, as a quotient whose divisor may
    be 0, or what computed values choose, as `sort` does.

    >>> import torch
    >>> from loopnest.torch import error_bound
    >>> x = torch.full((1, 1000), 0.1)
    >>> bool(error_bound(lambda x: x.sum(1), x) < 1001 * 2.0**-24 * 100.1)
    True
    >>> error_bound(lambda x: x.T[:2], x).max().item()
    0.0

    Args:
        fn: the function, or a module; it returns tensors, in tuples, lists or dicts.
        tensors: what it is called with. What is no tensor is passed on.

    Returns:
        What the function returns, with a tensor of float64 on the CPU in place of each.

    Raises:
        NotSupported: it cannot be traced, or calls an operator that has no rule.
        DefinitionError: it is no function, or returns something else than tensors.
        LaunchError: an index is out of range.

    Source: see `loopnest.error_bound`.
    """
    found = function_math(fn, tensors, f"error_bound({_name(fn)})")
    known = enclosures(found.fusion, found.arrays, {}, None, Arithmetic(reference=True))
    return found.returned(tuple([known[tensor.name].bound for tensor in found.fusion.outputs]))


def assert_close(got: Any, fn: Callable[..., Any], *tensors: Any) -> None:
    """Check that what a kernel computed lies within the error bound of a function of torch's.

    Of large results a part is compared, and a failure says of which part it speaks.

    >>> import torch
    >>> from loopnest.torch import assert_close
    >>> x = torch.linspace(-3, 3, 12).reshape(2, 6)
    >>> assert_close(torch.softmax(x, 1), lambda x: x.softmax(1), x)
    >>> assert_close(torch.softmax(x, 1) * 1.001, lambda x: x.softmax(1), x)
    Traceback (most recent call last):
    AssertionError: assert_close(<lambda>): the result: largest error 0.000437 at [1, 5], where rounding allows 5.68e-07; 12 of 12 elements differ

    Args:
        got: the results of the kernel, as the function returns them.
        fn: see `error_bound`.
        tensors: what both were called with.

    Raises:
        AssertionError: a result is wrong; each wrong one is named with its worst element.
        NotSupported: as `error_bound`; or one element is made of more than the oracle looks at.
        DefinitionError: as `error_bound`.
        LaunchError: an index is out of range.
    """  # noqa: E501 - what the doctest shows is one line
    subject = f"assert_close({_name(fn)})"
    found = function_math(fn, tensors, subject)
    given = tree_flatten(got)[0]
    if len(given) != len(found.results):
        raise AssertionError(f"{subject}: {len(given)} results, not {len(found.results)}")
    arguments = Arguments(found.arrays, {}, {})
    wanted = oracle(found.fusion, arguments, reference=True)
    if wanted is None:  # no part of that size can be evaluated alone
        wanted = oracle(found.fusion, arguments, most=_MOST_POINTS, reference=True)
    if wanted is None:
        reason = f"an element is made of more than {_MOST_POINTS:,} others"
        raise NotSupported(subject, reason, "compare smaller tensors")
    names = [f"result {number}" for number in range(len(given))]
    rows = zip(names if len(given) > 1 else ["the result"], given, found.results, strict=True)
    verdicts = [_verdict(found.fusion, name, own, wanted, place) for name, own, place in rows]
    if not all(verdict.ok for verdict in verdicts):
        told = "; ".join([str(verdict) for verdict in verdicts if not verdict.ok])
        raise AssertionError(f"{subject}: {told}")


def _verdict(fusion: ln.Fusion, name: str, own: Any, wanted: Wanted, place: int) -> Verdict:
    """Return how a result compares with an output of the math."""
    tensor = fusion.outputs[place]
    if not isinstance(own, torch.Tensor):
        return Verdict(name, problem=f"it is {kind_of(own)}, no tensor")
    if own.dtype != torch_dtype(tensor.dtype):
        return Verdict(name, problem=f"its type is {own.dtype}, not {torch_dtype(tensor.dtype)}")
    shape = tuple([size_value(size, {}) for size in tensor.sizes])
    return replace(verdict_of(tensor, shape, array_of(own.cpu()), wanted, place), name=name)


def function_math(fn: Callable[..., Any], args: Sequence[Any], subject: str) -> FunctionMath:
    """Return the math of a function of torch at arguments.

    Args:
        fn: a function, or a module, which stays as it is.
        args: its arguments; tensors are copied.
        subject: who asks, for what is refused.

    Raises:
        NotSupported: it cannot be traced, or calls an operator that has no rule.
        DefinitionError: it is no function, or returns something else than tensors.
    """
    if not callable(fn):
        raise DefinitionError(subject, f"it was given {kind_of(fn)}", "pass a function of torch's")
    places = [place for place, x in enumerate(args) if isinstance(x, torch.Tensor)]
    state: dict[str, Tensor] = {}
    if isinstance(fn, torch.nn.Module):
        state = {**dict(fn.named_parameters()), **dict(fn.named_buffers())}
    structures: list[TreeSpec] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        given = list(args)
        for place, tensor in zip(places, tensors, strict=False):
            given[place] = tensor
        if isinstance(fn, torch.nn.Module):
            own = dict(zip(state, tensors[len(places) :], strict=True))
            returned = torch.func.functional_call(fn, own, tuple(given))
        else:
            returned = fn(*given)
        leaves, structure = tree_flatten(returned)
        structures.append(structure)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                reason = f"the function returns {kind_of(leaf)}"
                raise DefinitionError(subject, reason, "it returns tensors alone")
        return [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves]

    copies = [_copy(x) for x in (*[args[place] for place in places], *state.values())]
    try:
        # Operators of oneDNN have no rules; the switch warns of another one of its own.
        silent = warnings.catch_warnings(action="ignore")
        with silent, torch.backends.mkldnn.flags(enabled=False):
            called = make_fx(flat)(*copies)
            traced = make_fx(torch.func.functionalize(called), decompositions())(*copies)
    except LoopnestError:
        raise
    except Exception as error:  # of torch's tracing, or the function's own
        flat(*[_copy(x) for x in copies])
        reason = f"torch cannot trace it: {str(error).splitlines()[0]}"
        raise NotSupported(subject, reason, "it may not look at what tensors hold") from error
    return _math_of(traced, copies, structures[-1], subject)


def _copy(tensor: Tensor) -> Tensor:
    own = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return own.requires_grad_(tensor.requires_grad)


def _math_of(
    traced: Any, tensors: Sequence[Tensor], structure: TreeSpec, subject: str
) -> FunctionMath:
    try:
        graph = translated(traced, shapes_propagated(traced, tensors), False, "c", strided=False)
    except NotTranslated as missing:
        raise NotSupported(subject, str(missing)) from missing
    for node in graph.graph.nodes:
        if node.op in ("torch_call", "torch_random"):
            name = str(node.attrs["function"])
            reason = f"there is no math of {name}{place_of(node)}: {graph.in_torch[name]}"
            raise NotSupported(subject, reason)
    math = group_math(graph.graph, value=value_alone)
    sources = [graph.inputs[number] for number in math.inputs]
    given = [tensors[source] if isinstance(source, int) else source for source in sources]
    arrays = tuple([array_of(tensor.cpu().contiguous()) for tensor in given])
    results = [output.number for output in graph.outputs if isinstance(output, AtenOutput)]
    return FunctionMath(math.fusion, arrays, tuple(results), structure)


def _name(fn: object) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))
