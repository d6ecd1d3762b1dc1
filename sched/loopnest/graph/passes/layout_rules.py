"""The layout attributes of ops, and the hooks by which AlterOpLayout is asked for others.

The attribute ``layouts`` of an op is a `LayoutRule`. A hook is registered for an op by
`register_alter_op_layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from loopnest.base.errors import kind_of
from loopnest.graph.data_layout import DataLayout, parse_layout
from loopnest.graph.dimensions import Dim
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Attrs, Node, TensorType, Type
from loopnest.graph.passes.compile_target import Target
from loopnest.graph.registry import get_attr, get_op, register_attr

Hook: TypeAlias = Callable[
    [dict[str, Any], list[Node], list[Type], Type], "Node | Mapping[str, object] | None"
]
H = TypeVar("H", bound=Hook)


@dataclass(frozen=True, slots=True)
class LayoutRule:
    """Which attributes hold layouts.

    Attributes:
        inputs: for each operand, the attribute that is its layout.
        output: the attribute that is the layout of the result (and of an attribute ``shape``).
        follows: whether the op takes on the layout that its operands come in.
    """

    inputs: tuple[str, ...]
    output: str
    follows: bool = False


_DATA, _KERNEL = "data_layout", "kernel_layout"
for _op, _rule in {
    "conv2d": LayoutRule((_DATA, _KERNEL), _DATA),
    "conv2d_backward_data": LayoutRule((_DATA, _KERNEL), _DATA),
    "conv2d_backward_weight": LayoutRule((_DATA, _DATA), _KERNEL),
    "max_pool2d": LayoutRule((_DATA,), _DATA, follows=True),
    "avg_pool2d": LayoutRule((_DATA,), _DATA, follows=True),
    "max_pool2d_backward": LayoutRule((_DATA, _DATA), _DATA, follows=True),
    "max_pool2d_gather": LayoutRule((_DATA, _DATA), _DATA, follows=True),
    "avg_pool2d_backward": LayoutRule((_DATA,), _DATA, follows=True),
}.items():
    register_attr(_op, "layouts", _rule)


def rule_of(node: Node) -> LayoutRule | None:
    """Return how layouts stand in a node's attributes, None if the op has none."""
    found: LayoutRule | None = get_attr(node, "layouts", None)
    return found


def layout_in(attrs: Attrs, name: str) -> DataLayout:
    """Return the layout that an attribute holds."""
    return parse_layout(attrs[name])


# Hooks


@dataclass(frozen=True, slots=True)
class _LayoutEntry:
    level: int
    target: str | None
    hook: Hook


_HOOKS: dict[str, list[_LayoutEntry]] = {}


def register_alter_op_layout(
    op: str, level: int = 10, target: str | None = None
) -> Callable[[H], H]:
    """Register what says in which layouts `AlterOpLayout` computes an op, as a decorator.

    The hook is a function (attrs, inputs, types, out_type): a dict of the attributes, stand-ins for
    the operands, the types of the operands, the type of the result. It returns

    * the op on the stand-ins with other layouts: ``conv2d(*inputs, **{**attrs, "data_layout":
      "NCHW16c"})``; a stand-in fits any layout of its extents, the pass inserts the transform;
    * or a mapping of the attributes to change: ``{"data_layout": "NCHW16c"}``;
    * or None, to leave the node alone.

    Args:
        op: the op's name.
        level: of several hooks the one of the highest level counts; one of the same level and
            target is replaced.
        target: a kind ("cuda") or device ("cpu") under which the hook counts; None for all.

    Raises:
        GraphError: no such op, or it has no layouts.

    Source: TVM's `relay.op.register_alter_op_layout` (to v0.18).
    """
    get_op(op)
    if get_attr(op, "layouts", None) is None:
        raise GraphError(
            f"register_alter_op_layout({op!r})",
            f"op {op} has no layouts",
            f"register_attr({op!r}, 'layouts', LayoutRule(…)) says where they stand",
        )

    def add(hook: H) -> H:
        entries = _HOOKS.setdefault(op, [])
        entries[:] = [e for e in entries if (e.level, e.target) != (level, target)]
        entries.append(_LayoutEntry(level, target, hook))
        entries.sort(key=lambda entry: entry.level, reverse=True)
        return hook

    return add


def unregister_alter_op_layout(op: str, level: int | None = None) -> None:
    """Forget the hooks of an op: those of a level, or all."""
    _HOOKS[op] = [e for e in _HOOKS.get(op, ()) if level is not None and e.level != level]


def hook_of(op: str) -> Hook | None:
    """Return the hook that counts for an op under the current target."""
    current = Target.current()
    names = {None} if current is None else {None, current.kind, current.device}
    return next((e.hook for e in _HOOKS.get(op, ()) if e.target in names), None)


class LaidOut(tuple[Dim, ...]):
    """A shape that knows its layout, so that it fits any layout of the same extents.

    `layout.math_shape` reads it in its own layout. It is the shape of stand-ins alone.
    """

    layout: DataLayout


def stand_in(operand: Node, layout: DataLayout, name: str) -> Node:
    """Return a var for an operand of a hook; it never gets into a graph."""
    shape = LaidOut(operand.shape)
    shape.layout = layout
    kind = TensorType(shape, operand.dtype)
    return Node("var", (), {"shape": shape, "dtype": operand.dtype}, kind, name)


def ask(hook: Hook, node: Node, inputs: Sequence[Node]) -> Node | Mapping[str, object] | None:
    """Return what a hook answers for a node: another node, attributes to change, or None.

    Raises:
        GraphError: the answer is of another kind.
    """
    found = hook(dict(node.attrs), list(inputs), [x.type for x in node.inputs], node.type)
    if found is None or isinstance(found, (Node, Mapping)):
        return found
    raise GraphError(
        f"the hook of {node.op}", f"it returned {kind_of(found)}", "a node or attributes"
    )
