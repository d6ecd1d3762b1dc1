"""A graph of ATen operators, as AOTAutograd hands it over, as a graph of loopnest's.

Where torch's shapes are symbolic, the graph has sizes. What no rule translates is a node
``torch_call``, so that every graph of static shapes becomes one.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

import loopnest.graph as G
from loopnest.base.errors import LoopnestError
from loopnest.graph.dimensions import Dim
from loopnest.graph.node import Node, TensorType, TupleType
from loopnest.graph.node_origins import made_for
from loopnest.graph.size_binding import graph_sizes
from loopnest.graph_kernels.library_times import LibraryTimes
from loopnest.scalar.expr import Expr, Symbol
from loopnest.scalar.origin import Origin
from loopnest.torch import aten_arithmetic, aten_movement  # noqa: F401 - registers the rules
from loopnest.torch.aten_table import RULES, Call, Rule, ordered
from loopnest.torch.input_layouts import InputLayout, contiguous, order_in_memory
from loopnest.torch.symbolic_sizes import (
    NotTranslated,
    UnknownSizes,
    is_symbolic,
    number_node,
    size_of,
    sizes_of,
    strides_of,
)
from loopnest.torch.torch_calls import OperandPlace, torch_node, type_of_tensor

_log = logging.getLogger("loopnest")
_told: set[str] = set()

_LINE = re.compile(r'File "([^"]+)", line (\d+)')
FxNode: TypeAlias = "Any"
WINDOWS_OF = ("avg_pool", "convolution", "max_pool")
"""How operators that read windows begin; schedules for "cuda" have none yet."""
LIBRARY = frozenset(
    (
        *("mm", "bmm", "addmm", "convolution", "convolution_backward", "mv"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    )
)
"""What torch's own libraries compute where `library` is True."""


VIEWS = frozenset(
    (
        *("alias", "detach", "expand", "permute", "reshape", "squeeze", "t", "transpose"),
        *("unsqueeze", "view", "_unsafe_view"),
    )
)
"""Operators whose value is their operand's memory."""
OF_MEMORY = frozenset(("as_strided", "as_strided_copy", "as_strided_scatter"))
"""Operators whose value depends on how their operand lies in memory, which steps do not keep."""


@dataclass(frozen=True, slots=True)
class AtenOutput:
    """A value that a program returns.

    Args:
        number: of the graph's output.
        axes: the order of its axes; None where they stay.
        shape: to what its axes of one element are then repeated; None where they are not.
        strides: those that torch expects; none where that is not known.
    """

    number: int
    axes: tuple[int, ...] | None
    shape: tuple[Dim, ...] | None
    strides: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class AtenGraph:
    """A graph that was translated.

    Args:
        graph: its inputs are the placeholders that are tensors, then captured tensors.
        inputs: for each of its inputs the number of the placeholder, or the tensor captured.
        layouts: how each of them lies in memory.
        sizes: for each size of the graph the number of the placeholder that says it.
        outputs: for each value that the program returns which output it is; a number, a size or
            None as a tuple of one.
        aliases: the outputs of the graph that may be memory of an input.
        in_torch: the operators that run in torch, by name, and why.
        times: of operators that torch and loopnest were measured at.
    """

    graph: G.Graph
    inputs: tuple[Any, ...]
    layouts: tuple[InputLayout, ...]
    sizes: Mapping[str, int]
    outputs: tuple[AtenOutput | tuple[Any], ...]
    aliases: frozenset[int]
    in_torch: Mapping[str, str]
    times: tuple[LibraryTimes, ...] = ()


def translated(
    module: Any,
    values: Sequence[Any],
    library: bool,
    target: str,
    strided: bool = True,
    times: Mapping[FxNode, LibraryTimes] | None = None,
) -> AtenGraph:
    """Return the graph of a module of ATen operators.

    Args:
        module: a ``torch.fx.GraphModule`` whose nodes know their fake tensors.
        values: for each placeholder its value: a (fake) tensor, or a number.
        library: whether products of matrices and convolutions are left to torch.
        target: of the kernels.
        strided: whether inputs lie as their fake tensors say; else all are C-contiguous.
        times: of operators that both can compute: the faster does; what is not in it is torch's.

    Raises:
        NotTranslated: a tensor has a type that loopnest does not know.
        UnknownSizes: an operator has no rule for symbolic shapes.
    """
    return _Translation(module, values, library, target, strided, times or {}).result()


class _Translation:
    def __init__(
        self,
        module: Any,
        values: Sequence[Any],
        library: bool,
        target: str,
        strided: bool,
        times: Mapping[FxNode, LibraryTimes],
    ) -> None:
        self.times = times
        self.module, self.library, self.target = module, library, target
        self.values, self.strided = list(values), strided
        self.symbolic = any(is_symbolic(n.meta.get("val")) for n in module.graph.nodes)
        self.sizes: dict[str, int] = {}
        self.layouts: list[InputLayout] = []
        self.known: dict[FxNode, Any] = {}
        self.fakes: dict[FxNode, Any] = {}
        self.vars: list[Node] = []
        self.sources: list[Any] = []
        self.in_torch: dict[str, str] = {}

    def result(self) -> AtenGraph:
        returned: Any = ()
        place = 0
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, self.values[place], place)
                place += 1
            elif node.op == "get_attr":
                self._captured(node)
            elif node.op == "output":
                returned = node.args[0]
            else:
                with made_for(_origin(node)):
                    self.known[node] = self._call(node)
        return self._returned(returned)

    # Leaves

    def _placeholder(self, node: FxNode, value: Any, place: int) -> None:
        self.fakes[node] = value
        if isinstance(value, torch.Tensor):
            self.known[node] = self._var(value, place)
            return
        self.known[node] = size_of(value) if isinstance(value, torch.SymInt) else value
        if isinstance(self.known[node], Symbol):
            self.sizes.setdefault(self.known[node].name, place)

    def _var(self, tensor: Any, source: Any) -> Node:
        kind = type_of_tensor(tensor)
        if kind is None:
            raise NotTranslated(f"an input is {tensor.dtype}")
        strides = strides_of(tensor) if self.strided else contiguous(kind.shape)
        layout = InputLayout(kind.shape, strides)
        var, seen = layout.nodes(f"x{len(self.vars)}", kind.dtype)
        self.vars.append(var)
        self.sources.append(source)
        self.layouts.append(layout)
        return seen

    def _captured(self, node: FxNode) -> None:
        """Take a tensor of the module: a number as a constant, another as an input."""
        value = self.module
        for part in node.target.split("."):
            value = getattr(value, part)
        self.fakes[node] = value
        if not isinstance(value, torch.Tensor):
            self.known[node] = value
        elif not value.dim() and value.device.type == "cpu" and type_of_tensor(value):
            kind = type_of_tensor(value)
            assert kind is not None
            self.known[node] = G.const(value.item(), kind.dtype)
        else:
            self.known[node] = self._var(value, value)

    # Calls

    def _call(self, node: FxNode) -> Any:
        self.fakes[node] = node.meta.get("val")
        target = node.target
        if target is operator.getitem:
            found = self._argument(node.args[0])[node.args[1]]
            if found is None and isinstance(node.meta.get("val"), torch.Tensor):
                raise UnknownSizes(f"value {node.args[1]} of {node.args[0]} is of symbolic sizes")
            return found
        if isinstance(target, torch._ops.HigherOrderOperator):
            raise NotTranslated(f"{target} is no operator of tensors alone")
        if not isinstance(target, torch._ops.OpOverload):
            return self._number(node)
        if not _has_tensors(node.meta.get("val")):
            return self._number(node)
        name = target.overloadpacket.__name__
        if self.library and name in LIBRARY:
            times = self.times.get(node)
            if times is None or times.by_library:
                return self._in_torch(node, "" if times is None else str(times), True)
        rule = RULES.get(target)
        reason = "it has no rule"
        if self.target == "cuda" and name.startswith(WINDOWS_OF):
            rule, reason = None, 'there is no schedule of windows for "cuda"'
        if rule is not None:
            try:
                return self._by_rule(rule, node)
            except NotTranslated as missing:
                reason = str(missing)
        self._tell(node, reason)
        return self._in_torch(node, reason)

    def _by_rule(self, rule: Rule, node: FxNode) -> Any:
        """Return the nodes that a rule replaces a call by.

        Raises:
            NotTranslated: it makes nothing, or what torch does not say.
        """
        try:
            found = rule(self._arguments(node))
            self._check(node, found)
            return found
        except TypeError as error:
            if not self.symbolic:
                raise
            raise NotTranslated(f"of symbolic sizes: {error}") from error
        except LoopnestError as error:
            raise NotTranslated(str(error)) from error

    def _number(self, node: FxNode) -> Any:
        """Compute a number that torch computes beside the tensors: a size, a product of sizes."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymFloat):
            return number_node(value)
        if is_symbolic(value):
            return size_of(value)
        args = [self._argument(x) for x in node.args]
        kwargs = {key: self._argument(x) for key, x in node.kwargs.items()}
        if any(isinstance(x, Node) for x in (*args, *kwargs.values())):
            args = [self._fake(x) for x in node.args]
            kwargs = {key: self._fake(x) for key, x in node.kwargs.items()}
        found = node.target(*args, **kwargs)
        return int(found) if isinstance(found, torch.SymInt) else found

    def _arguments(self, node: FxNode) -> Call:
        """Return a call with every argument of its schema."""
        schema = node.target._schema.arguments
        given = {a.name: value for a, value in zip(schema, node.args, strict=False)}
        given.update(node.kwargs)
        whole = {a.name: given.get(a.name, a.default_value) for a in schema}
        args = {name: self._argument(value) for name, value in whole.items()}
        fakes = {name: self._fake(value) for name, value in whole.items()}
        return Call(args, fakes, node.meta["val"])

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.known[value]
        if isinstance(value, (tuple, list)):
            return [self._argument(item) for item in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return size_of(value)
        return value

    def _fake(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            own = self.known[value]
            return own if isinstance(own, (int, float, Expr)) else self.fakes[value]
        if isinstance(value, (tuple, list)):
            return [self._fake(item) for item in value]
        return value

    @staticmethod
    def _check(node: FxNode, found: Any) -> None:
        """Check that a rule made what torch says: a rule that does not is not used."""
        whole = node.meta["val"]
        values = whole if isinstance(whole, (tuple, list)) else (whole,)
        nodes = found if isinstance(found, tuple) else (found,)
        for value, own in zip(values, nodes, strict=True):
            if own is None or not isinstance(value, torch.Tensor):
                continue
            if own.tensor_type != type_of_tensor(value):
                raise NotTranslated(f"its rule makes {own.type}, torch {type_of_tensor(value)}")

    # Torch's own

    def _tell(self, node: FxNode, reason: str) -> None:
        name = str(node.target)
        self.in_torch.setdefault(name, reason)
        if name not in _told:
            _told.add(name)
            place = _origin(node)
            _log.info("torch computes %s%s: %s", name, f" at {place}" if place else "", reason)

    def _in_torch(self, node: FxNode, why: str, library: bool = False) -> Any:
        """Return a node that calls torch, or its values; why it does, and whether by choice.

        Raises:
            NotTranslated: of the memory of its operand, or of types that loopnest does not know.
        """
        if _packet(node) in OF_MEMORY:
            raise NotTranslated(f"{node.target}: {why}")
        told = (library, why)
        operands: list[Node] = []
        args = tuple([self._place(x, operands) for x in node.args])
        kwargs = {key: self._place(x, operands) for key, x in node.kwargs.items()}
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            kind = type_of_tensor(value)
            if kind is None:
                raise NotTranslated(f"{node.target} returns {value.dtype}")
            order = order_in_memory(sizes_of(value.shape), strides_of(value))
            if order is None or order == sorted(order):
                return torch_node(node.target, operands, args, kwargs, kind, (), told)
            moved = TensorType(tuple([kind.shape[axis] for axis in order]), kind.dtype)
            found = torch_node(node.target, operands, args, kwargs, moved, order, told)
            return G.transpose(found, sorted(range(len(order)), key=order.__getitem__))
        kept = [x for x in value if isinstance(x, torch.Tensor)]
        kinds = [type_of_tensor(x) for x in kept]
        if None in kinds:
            raise NotTranslated(f"{node.target} returns types that loopnest does not know")
        fields = TupleType(tuple([kind for kind in kinds if kind is not None]))
        whole = torch_node(node.target, operands, args, kwargs, fields, (), told)
        numbers = iter(range(len(kept)))
        return [whole[next(numbers)] if isinstance(x, torch.Tensor) else None for x in value]

    def _place(self, value: Any, operands: list[Node]) -> Any:
        """Return an argument as `torch_node` takes it, tensors by number."""
        if isinstance(value, torch.fx.Node):
            return self._place_of(self.known[value], operands)
        if isinstance(value, (tuple, list)):
            return tuple([self._place(item, operands) for item in value])
        return size_of(value) if isinstance(value, torch.SymInt) else value

    def _place_of(self, own: Any, operands: list[Node]) -> Any:
        if isinstance(own, Node):
            operands.append(own)
            return OperandPlace(len(operands) - 1)
        if isinstance(own, (tuple, list)):
            return tuple([self._place_of(item, operands) for item in own])
        return own

    # Results

    def _returned(self, returned: Any) -> AtenGraph:
        ends: dict[tuple[Node, bool], int] = {}
        outputs: list[AtenOutput | tuple[Any]] = []
        items = returned if isinstance(returned, (tuple, list)) else [returned]
        for item in items:
            own = self._argument(item)
            if not isinstance(own, Node):
                outputs.append((own,))
                continue
            strides = _strides(self.fakes.get(item))
            once = _once(own, strides)
            shape = None if once is own else own.shape
            own, axes = _arranged(once, strides, _is_view(item))
            number = ends.setdefault((own, _is_view(item)), len(ends))
            outputs.append(AtenOutput(number, axes, shape, strides))
        graph = G.Graph(self.vars, [node for node, _ in ends], "aten")
        if any(name not in self.sizes for name in graph_sizes(graph)):
            raise UnknownSizes("no argument says a size")
        aliases = frozenset([number for (_, is_view), number in ends.items() if is_view])
        told = dict(self.in_torch)
        return AtenGraph(
            graph, tuple(self.sources), tuple(self.layouts), self.sizes, tuple(outputs), aliases,
            told, tuple(dict.fromkeys(self.times.values())),
        )  # fmt: skip


def _once(node: Node, strides: Sequence[Dim]) -> Node:
    """Return what torch repeats along axes of stride 0: what lies in memory of a value."""
    while node.op == "broadcast_to" and node.inputs[0].ndim == node.ndim == len(strides):
        (source,) = node.inputs
        rows = zip(node.shape, source.shape, strides, strict=True)
        if any(own != once and step != 0 for own, once, step in rows):
            break
        node = source
    return node


def _arranged(
    node: Node, strides: Sequence[Dim], is_view: bool
) -> tuple[Node, tuple[int, ...] | None]:
    """Return what lies in memory as torch expects of a value, and the order of the value's axes.

    Of a transpose that is its operand; of what torch keeps in another order (channels last) it is
    the transpose.
    """
    if is_view and node.op != "transpose":
        return node, None
    order = None if is_view else order_in_memory(node.shape, strides)
    if order is None:
        return (node.inputs[0], node.attrs["axes"]) if node.op == "transpose" else (node, None)
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    moved = ordered(node, order)
    return moved, None if back == tuple(range(len(back))) else back


def _is_view(item: FxNode) -> bool:
    """Whether torch returns memory of an input for a value."""
    while item.op == "call_function" and _packet(item) in VIEWS:
        item = item.args[0]
    return bool(item.op == "placeholder")


def _origin(item: FxNode) -> Origin | None:
    """Return the line of the model that an operator was traced at, where torch knows it."""
    lines = _LINE.findall(item.meta.get("stack_trace") or "")
    return Origin(lines[-1][0], int(lines[-1][1])) if lines else None


def _packet(item: FxNode) -> str:
    return str(getattr(getattr(item.target, "overloadpacket", None), "__name__", ""))


def _strides(fake: Any) -> tuple[Dim, ...]:
    return strides_of(fake) if isinstance(fake, torch.Tensor) else ()


def _has_tensors(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(x, torch.Tensor) for x in values)
