"""What the docstrings of pointwise functions share, in the core and in the graph.

For each function the values of an example and a source, and its rule of types as a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopnest.scalar import dtypes
from loopnest.scalar.op_table import FUNCTIONS


@dataclass(frozen=True, slots=True)
class Row:
    """What the docstring of a function cannot take from its rule of types.

    Args:
        x: the elements of the first operand of the example.
        y: what NumPy prints of the result.
        source: where the function is defined.
        b: the second operand of the example, for a function of two.
        dtype: the type of the first operand.
    """

    x: str
    y: str
    source: str
    b: str = ""
    dtype: str = "float32"


ROWS: Mapping[str, Row] = {
    "add": Row("1, 2, 3", "[1.5 2.5 3.5]", "numpy.add", "0.5"),
    "sub": Row("1, 2, 3", "[0.5 1.5 2.5]", "numpy.subtract", "0.5"),
    "mul": Row("1, 2, 3", "[0.5 1.  1.5]", "numpy.multiply", "0.5"),
    "div": Row("1, 2, 3", "[0.5 1.  1.5]", "numpy.divide", "2.0"),
    "mod": Row("-1, 2, 5", "[2. 2. 2.]", "numpy.remainder", "3.0"),
    "floordiv": Row("-7, 7, 8", "[-4  3  4]", "numpy.floor_divide", "2", "int32"),
    "lshift": Row("1, 2, 3", "[ 8 16 24]", "numpy.left_shift", "3", "int32"),
    "rshift": Row("-8, 8, 9", "[-2  2  2]", "numpy.right_shift", "2", "int32"),
    "pow": Row("1, 2, 3", "[ 1.  8. 27.]", "numpy.power", "3.0"),
    "neg": Row("-1, 0, 2", "[ 1. -0. -2.]", "numpy.negative"),
    "abs": Row("-1, 0, 2", "[1. 0. 2.]", "numpy.absolute"),
    "floor": Row("-1.5, 0.5, 2", "[-2.  0.  2.]", "numpy.floor"),
    "ceil": Row("-1.5, 0.5, 2", "[-1.  1.  2.]", "numpy.ceil"),
    "round": Row("-1.5, 0.5, 2.5", "[-2.  0.  2.]", "numpy.rint"),
    "trunc": Row("-1.5, 0.5, 2", "[-1.  0.  2.]", "numpy.trunc"),
    "maximum": Row("1, 2, 3", "[2. 2. 3.]", "numpy.maximum", "2.0"),
    "minimum": Row("1, 2, 3", "[1. 2. 2.]", "numpy.minimum", "2.0"),
    "relu": Row("-1, 0, 2", "[0. 0. 2.]", "Nair and Hinton, ICML 2010"),
    "exp": Row("0, 1, 2", "[1.        2.7182817 7.389056 ]", "numpy.exp"),
    "exp2": Row("0, 1, 3", "[1. 2. 8.]", "numpy.exp2"),
    "log": Row("0, 1, 2", "[     -inf 0.        0.6931472]", "numpy.log"),
    "log2": Row("0, 1, 8", "[-inf   0.   3.]", "numpy.log2"),
    "log1p": Row("-1, 0, 1", "[     -inf 0.        0.6931472]", "numpy.log1p"),
    "sqrt": Row("0, 4, 9", "[0. 2. 3.]", "numpy.sqrt"),
    "rsqrt": Row("1, 4, 16", "[1.   0.5  0.25]", "CUDA math library, rsqrtf"),
    "reciprocal": Row("1, 2, 4", "[1.   0.5  0.25]", "numpy.reciprocal, of floats"),
    "sin": Row("0, 0.5, 1", "[0.         0.47942555 0.84147096]", "numpy.sin"),
    "cos": Row("0, 0.5, 1", "[1.         0.87758255 0.5403023 ]", "numpy.cos"),
    "tan": Row("0, 0.5, 1", "[0.        0.5463025 1.5574077]", "numpy.tan"),
    "tanh": Row("0, 0.5, 1", "[0.         0.46211717 0.7615942 ]", "numpy.tanh"),
    "sigmoid": Row("-1, 0, 1", "[0.26894143 0.5        0.7310586 ]", "the logistic function"),
    "erf": Row("0, 0.5, 1", "[0.        0.5204999 0.8427008]", "C11, 7.12.8.1"),
    "silu": Row("-1, 0, 1", "[-0.26894143  0.          0.7310586 ]", "Elfwing et al., 2018"),
    "eq": Row("1, 2, 3", "[False  True False]", "numpy.equal", "2.0"),
    "ne": Row("1, 2, 3", "[ True False  True]", "numpy.not_equal", "2.0"),
    "lt": Row("1, 2, 3", "[ True False False]", "numpy.less", "2.0"),
    "le": Row("1, 2, 3", "[ True  True False]", "numpy.less_equal", "2.0"),
    "gt": Row("1, 2, 3", "[False False  True]", "numpy.greater", "2.0"),
    "ge": Row("1, 2, 3", "[False  True  True]", "numpy.greater_equal", "2.0"),
    "bitand": Row("5, 6, 7", "[1 2 3]", "numpy.bitwise_and", "3", "int32"),
    "bitor": Row("5, 6, 7", "[7 7 7]", "numpy.bitwise_or", "3", "int32"),
    "bitxor": Row("5, 6, 7", "[6 5 4]", "numpy.bitwise_xor", "3", "int32"),
    "invert": Row("0, 1, -1", "[-1 -2  0]", "numpy.invert", "", "int32"),
    "logical_and": Row("0, 1, 2", "[False  True  True]", "numpy.logical_and", "1.0"),
    "logical_or": Row("0, 1, 2", "[False  True  True]", "numpy.logical_or", "0.0"),
    "logical_not": Row("0, 1, 2", "[ True False False]", "numpy.logical_not"),
    "isnan": Row("0, np.nan, 2", "[False  True False]", "numpy.isnan"),
}


def types(name: str) -> str:
    """Return the rule of types of a function as a sentence."""
    rule = FUNCTIONS[name].rule
    groups: dict[str, list[dtypes.DType]] = {}
    for dtype in dtypes.ALL:
        found = rule.get(dtype)
        groups.setdefault("refused" if found is None else str(found[1]), []).append(dtype)
    own = [dtype for dtype in dtypes.ALL if dtype in groups.get(str(dtype), ())]
    if len(groups) > 1 and own:
        groups = {r: [d for d in group if d not in own] for r, group in groups.items()}
        groups = {"the operand's own": own, **groups}
    told = [f"{result} for {_named(group)}" for result, group in groups.items() if group]
    return f"Result type: {'; '.join(told)}."


def _named(group: list[dtypes.DType]) -> str:
    """Return the names of types, families in one word."""
    words = {"floats": dtypes.FLOATS, "integers": dtypes.INTEGERS}
    found = [word for word, members in words.items() if set(members) <= set(group)]
    rest = [str(d) for d in group if not any(d in words[word] for word in found)]
    return ", ".join([*found, *rest])
