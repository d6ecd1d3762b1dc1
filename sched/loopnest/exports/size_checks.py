"""C text of what a launch asks of its sizes: conditions, launch dimensions, widths of indices.

It says what `launch/launch_plan` and `launch/index_width` compute; both are held against each other
by tests. It stands on `loopnest_sizes.h`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from loopnest.base.errors import LoweringError
from loopnest.launch.index_width import INT32, INT64, UINT32, IndexWidth, whole_range
from loopnest.scalar.expr import Const, Expr, Index, LaunchIndex, Local, Op, Symbol, walk

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGICAL = {"and": "&", "or": "|"}
_FUNCTIONS = ("add", "sub", "mul", "floordiv", "mod", "ceildiv", "min", "max", "neg")
_RANGES = {
    **{op: op for op in ("add", "sub", "neg", "mul", "floordiv", "ceildiv", "mod", "min", "max")},
    "where": "where",
    **dict.fromkeys(("bitand", "bitor", "bitxor"), "bits"),
}
_LIMITS = {32: "INT32_MAX", 64: "INT64_MAX"}


@cache
def prelude() -> str:
    """Return the arithmetic that the texts stand on."""
    return (Path(__file__).parent / "loopnest_sizes.h").read_text(encoding="utf-8")


class SizeText:
    """Writes expressions of sizes in C.

    Args:
        names: how C names each size symbol.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def size(self, node: Expr) -> str:
        """Return an expression, or a comparison, over sizes.

        Where it has a remainder, an ``int ln_bad`` must stand around it.
        """
        match node:
            case Const():
                return f"(ln_size){int(node.value)}"
            case Symbol():
                return f"(ln_size){self.names[node.name]}"
            case Op() if node.op in _FUNCTIONS:
                args = [self.size(arg) for arg in node.args]
                args += ["&ln_bad"] if node.op == "mod" else []
                return f"ln_size_{node.op}({', '.join(args)})"
            case Op() if node.op in _COMPARISONS or node.op in _LOGICAL:
                a, b = [self.size(arg) for arg in node.args]
                return f"({a} {_COMPARISONS.get(node.op) or _LOGICAL[node.op]} {b})"
            case Op() if node.op == "not":
                return f"!{self.size(node.args[0])}"
        raise LoweringError(
            "export(...)", f"the size '{node}' depends on data", "export kernels of plain sizes"
        )

    def fits(self, bounds: IndexWidth, more: Sequence[Expr]) -> Iterator[str]:
        """Yield statements that return the width of indices: 32, 64, or 0 beyond 64 bits.

        Args:
            bounds: of the program.
            more: elements of arrays that the text indexes beside the buffers of the program.
        """
        names: dict[Expr, str] = {}
        for number, node in enumerate(bounds.order):
            names[node] = f"ln_r{number}"
            yield f"const ln_range {names[node]} = {self._range(node, bounds, names)};"
        sums = [node for node in names if isinstance(node, Op) and node.op == "ceildiv"]
        for number, node in enumerate(sums):
            highs = " + ".join([f"{names[arg]}.high" for arg in node.args])
            yield f"const ln_range ln_s{number} = ln_range_of(0, {highs});"
        own = [*names.values(), *[f"ln_s{number}" for number in range(len(sums))]]
        for bits, limit in _LIMITS.items():
            tests = [f"ln_range_fits({name}, {limit})" for name in own]
            tests += [f"{self.size(size)} <= INT32_MAX" for size in more if bits == 32]
            yield f"if ({' && '.join(tests) or '1'}) return {bits};"
        yield "return 0;"

    def _range(self, node: Expr, bounds: IndexWidth, names: Mapping[Expr, str]) -> str:
        if node in bounds.inside:
            most = "(ln_size)0"
            for buffer in bounds.buffers:
                most = f"ln_size_max({most}, {self.size(buffer.size)})"
            return f"ln_range_of(0, {most})"
        match node:
            case Const() | Symbol():
                text = self.size(node)
                return f"ln_range_of({text}, {text})"
            case Index():
                return f"ln_range_below({names[node.extent]})"
            case LaunchIndex():
                extent = bounds.program.launch_extent(node.dimension)
                return "ln_range_of(0, 0)" if extent is None else f"ln_range_below({names[extent]})"
            case Local() if node in bounds.lets:
                return names[bounds.lets[node]]
            case Op() if node.op in _RANGES:
                args = [names[arg] for arg in node.args if arg in names]
                return f"ln_range_{_RANGES[node.op]}({', '.join(args)})"
        low, high = whole_range(node)
        return f"ln_range_of({_number(low)}, {_number(high)})"


def _number(value: int) -> str:
    names = {INT32: "INT32_MAX", UINT32: "(ln_size)UINT32_MAX", INT64: "INT64_MAX"}
    return names.get(value) or f"-{_number(-value)}"


def check_sizes(sizes: Sequence[tuple[str, Expr]], subject: str) -> None:
    """Refuse sizes that follow from data, each given with what it is the size of.

    Raises:
        LoweringError: there is one.
    """
    for owner, size in sizes:
        if any(
            not isinstance(node, (Const, Symbol, Op)) or not _is_plain(node) for node in walk(size)
        ):
            raise LoweringError(
                subject,
                f"{owner} has a size that depends on data: '{size}'",
                "what leaves Python has sizes that its caller gives; keep this kernel in Python",
            )


def _is_plain(node: Expr) -> bool:
    known = (*_FUNCTIONS, *_COMPARISONS, *_LOGICAL, "not")
    return not isinstance(node, Op) or node.op in known
