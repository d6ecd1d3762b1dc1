"""Every public call with arguments of every kind: it works, or raises a LoopnestError.

A call that fails leaves the fusion as it was.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loopnest as ln

VALUES = (
    None, True, False, "x", "", "N", "N % 4 == 0", "a b", b"x", 1.5, float("nan"), float("inf"),
    10**30, -(10**30), 0, 1, -1, 5, 3 + 4j, np.int64(1), np.float32(1.5), np.bool_(True),
    np.arange(3), np.arange(2.0), np.array(1), (), (0,), (0, 0), (1, 1), [0, 1], [1, 0, 2], ["a"],
    [None], {}, {0: 1}, {"a": 1}, {0: None}, {0: ln.ParallelType.grid_x}, {None: 1}, set(), {1},
    object(), object, len, range(3), slice(1), ..., ln.float32, ln.SHARED, ln.ParallelType.grid_x,
    ln.Swizzle.XOR,
)  # fmt: skip
OPERATORS = ("__add__", "__radd__", "__matmul__", "__pow__", "__rpow__", "__lt__", "__and__")
WITHIN = {"bind", "define"}
"""Methods of tensors that only loopnest itself calls."""


def made() -> ln.Fusion:
    with ln.Fusion("junk") as f:
        x = f.input("x", ("N", "D", 4), ln.float32)
        t = ln.exp(x * f.scalar("a", ln.float32))
        f.output(ln.sum(t, axis=1) + 1.0, "y")
        f.output(t * 2.0, "z")
    return f


KERNEL = ln.lower(made())


def own_values(f: ln.Fusion, other: ln.Fusion) -> tuple[object, ...]:
    """Return what belongs to a fusion or to another one."""
    return (
        f, f["x"], f["y"], f["z"], f.tensors[3], other["y"], f["y"].axis(0), f.scalars[0],
        f.symbols[0], (f["x"], f["y"]), KERNEL,
    )  # fmt: skip


def functions() -> dict[str, Callable[[ln.Fusion], Callable[..., object]]]:
    """Return every public function and method, as it is looked up in a fusion."""
    found: dict[str, Callable[[ln.Fusion], Callable[..., object]]] = {}
    for name in ln.__all__:
        if inspect.isfunction(value := getattr(ln, name)) and name != "main":
            found[f"ln.{name}"] = lambda f, value=value: value
    for name in [*vars(ln.TensorView), *OPERATORS]:
        if name in WITHIN or (name.startswith("_") and name not in OPERATORS):
            continue
        if callable(getattr(ln.TensorView, name)):
            for tensor in ("x", "y", "z"):
                found[f"{tensor}.{name}"] = lambda f, n=name, t=tensor: getattr(f[t], n)
    found["y.memory ="] = lambda f: lambda value: setattr(f["y"].producers[0], "memory", value)
    for name in ("input", "scalar", "output", "assume", "__getitem__"):
        found[f"f.{name}"] = lambda f, n=name: getattr(f, n)
    for name in ("parallelize", "pin"):
        found[f"axis.{name}"] = lambda f, n=name: getattr(f["y"].axis(0), n)
    for name in ("cuda", "c", "launch", "tensor"):
        found[f"kernel.{name}"] = lambda f, n=name: getattr(KERNEL, n)
    return found


FUNCTIONS = functions()


def state(f: ln.Fusion) -> object:
    """Return all of a fusion that a call may change."""
    tensors = [
        (id(t), str(t), t.signature, t.definition, t.clones, t.layout, t.consumers)
        for t in f.tensors
    ]
    declared = (f.inputs, f.outputs, f.scalars, f.symbols, dict(f.inplace), f.facts.conditions)
    return tensors, declared, len(f.trace)


def drawn_arguments(
    data: st.DataObject, function: Callable[..., object], values: tuple[object, ...]
) -> tuple[list[object], dict[str, object]]:
    """Return positional and keyword arguments that the signature takes, of any kind."""
    args: list[object] = []
    keywords: dict[str, object] = {}
    for parameter in inspect.signature(function).parameters.values():
        given = parameter.default is parameter.empty or data.draw(st.booleans())
        if not given or parameter.kind is parameter.VAR_KEYWORD:
            continue
        value = data.draw(st.sampled_from(range(len(values))))
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.append(values[value])
        elif parameter.kind is parameter.KEYWORD_ONLY or len(keywords) > 0:
            keywords[parameter.name] = values[value]
        elif parameter.default is parameter.empty:
            args.append(values[value])
        else:
            keywords[parameter.name] = values[value]
    return args, keywords


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore")
def test_wrong_arguments(name: str, data: st.DataObject) -> None:
    f, other = made(), made()
    function = FUNCTIONS[name](f)
    args, keywords = drawn_arguments(data, function, (*VALUES, *own_values(f, other)))
    before = state(f)
    try:
        with f:
            result: Any = function(*args, **keywords)
        if isinstance(result, Iterator):
            list(result)
    except ln.InternalError:
        raise
    except ln.LoopnestError:
        assert state(f) == before
    except Exception as error:
        shown = [*map(repr, args), *[f"{key}={value!r}" for key, value in keywords.items()]]
        call = f"{name}({', '.join(shown)})"
        raise AssertionError(f"{call}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f["y"].split(0, 4, inner="no"),
         "y.split(axis=0, factor=4, inner='no'): inner='no' is no bool; "
         "use inner=True or inner=False"),
        (lambda f: f["z"].producers[0].compute_at(f["z"], 1, recompute=1),
         "T2.compute_at(z, 1, recompute=1): recompute=1 is no bool; "
         "use recompute=True or recompute=False"),
        (lambda f: f["y"].compute_at(None, 1),
         "y.compute_at(None, 1): None is no TensorView"),
        (lambda f: f["z"].producers[0].set_allocation(order=3),
         "T2.set_allocation(order=3): order=3 is no list of axes; name each leaf axis once"),
        (lambda f: f["z"].producers[0].set_allocation(pad=(1,)),
         "T2.set_allocation(pad=(1,)): pad=(1,) is no mapping; use {axis: count}"),
        (lambda f: ln.common_consumers(3),
         "common_consumers(3): 3 is no TensorView; give TensorViews"),
        (lambda f: ln.dependency_chains(f["x"], None),
         "dependency_chains(x, None): None is no TensorView; give TensorViews"),
        (lambda f: ln.use_chains("y"), "use_chains('y'): 'y' is no TensorView; give TensorViews"),
        (lambda f: ln.max(f["x"], 0, keepdims=f["x"]),
         "max(x, keepdims=x): keepdims=x is no bool; use keepdims=True or keepdims=False"),
        (lambda f: ln.gelu(f["x"], []),
         "gelu(x, approximate=[]): there is no approximate=[]; use 'none' or 'tanh'"),
        (lambda f: ln.compile_many(3),
         "compile_many(3): 3 is no sequence of Fusions and Kernels"),
        (lambda f: ln.lower(ln.Fusion("none")),
         "lower(none): the fusion declares no output; call f.output(tensor, name)"),
        (lambda f: ln.compile(ln.Fusion("none")),
         "lower(none): the fusion declares no output; call f.output(tensor, name)"),
    ],
)  # fmt: skip
def test_messages(call: Callable[[ln.Fusion], object], message: str) -> None:
    f = made()
    before = state(f)
    with pytest.raises(ln.LoopnestError) as caught:
        call(f)
    assert str(caught.value) == message
    assert state(f) == before


def test_axes_may_be_ints_of_numpy() -> None:
    f = made()
    y = f["y"]
    y.split(np.int64(0), np.int32(4)).merge(np.int8(-2)).reorder({np.int64(0): np.int64(-1)})
    y.axis(np.uint8(0)).pin()
    assert [axis.pinned for axis in y.leaf_domain] == [True, False]
