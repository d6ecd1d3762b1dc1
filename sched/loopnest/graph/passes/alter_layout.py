"""AlterOpLayout: compute ops in the layouts that their hooks ask for.

```
y = relu(conv2d(x, w))
=>
x' = layout_transform(x, NCHW -> NCHW16c)
y  = layout_transform(relu(conv2d(x', w, data_layout="NCHW16c")), NCHW16c -> NCHW)
```

A tensor that comes in another layout is handed on in it, through pointwise ops, pools and
reductions, as far as readers take it; the transform back is made where one does not. So a transform
there and one back that would meet are never made.

The attribute ``layouts`` of an op is a `LayoutRule`. A hook is registered for an op by
`register_alter_op_layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from loopnest.base.errors import kind_of
from loopnest.graph import operators
from loopnest.graph.data_layout import DataLayout, LayoutRule, parse_layout, transformed_shape
from loopnest.graph.dimensions import Dim
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Attrs, Node, TensorType, Type, describe
from loopnest.graph.passes.auto_inline import is_pointwise
from loopnest.graph.passes.compile_target import Target
from loopnest.graph.passes.manager import FunctionPass, PassContext, PassInfo, register_pass
from loopnest.graph.program import Graph, Unit
from loopnest.graph.registry import call, get_attr, get_op, rebuild
from loopnest.graph.rewriting import substitute

Hook: TypeAlias = Callable[
    [dict[str, Any], list[Node], list[Type], Type], "Node | Mapping[str, object] | None"
]
H = TypeVar("H", bound=Hook)


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


_FOLDS = frozenset({"sum", "prod", "max", "min", "any", "all", "mean", "variance"})


class AlterOpLayout(FunctionPass):
    """Compute ops in the layouts that hooks ask for (`register_alter_op_layout`).

    Without a hook that applies, the same graph comes back. Inputs and outputs keep their layouts.
    Bodies of fused calls are left alone: run it before FuseOps, and FoldConstant after it, which
    transforms constants.

    Values stay the same up to the order of additions in the altered ops. Idempotent, if hooks
    return what they get where it is what they want.

    Source: TVM's `relay.transform.AlterOpLayout` (to v0.18).
    """

    info = PassInfo("AlterOpLayout", 3)

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return _Alterer().run(func)


@dataclass(frozen=True, slots=True)
class _Form:
    """A tensor that is computed in the layout `now`, where the graph had it in `old`."""

    node: Node
    old: DataLayout
    now: DataLayout


class _Alterer:
    def __init__(self) -> None:
        self.forms: dict[Node, _Form] = {}
        """The nodes of the old graph that are computed in another layout."""
        self.own: dict[Node, Node] = {}
        """Nodes in the layout that they had."""
        self.made: dict[tuple[Node, str, str], Node] = {}
        """Nodes transformed to a layout, of what layout they had."""

    def run(self, graph: Graph) -> Graph:
        for node in graph.nodes:
            form = self._asked(node) or self._followed(node)
            if form is not None:
                self.forms[node] = form
            elif node not in self.own:
                self.own[node] = self._kept(node)
        return graph.with_outputs([self._home(x) for x in graph.outputs])

    # Reading operands

    def _home(self, node: Node) -> Node:
        """Return a node in the layout that it had."""
        if node not in self.own:
            form = self.forms[node]
            self.own[node] = operators.layout_transform(form.node, str(form.now), str(form.old))
        return self.own[node]

    def _in(self, node: Node, old: DataLayout, now: DataLayout) -> Node:
        """Return a node, which had the layout `old`, in the layout `now`."""
        form = self.forms.get(node)
        if form is not None and form.old == old:
            if form.now == now:
                return form.node
            source, have = form.node, form.now  # at once, not back and there
        else:
            source, have = self._home(node), old
        key = (node, str(old), str(now))
        if key not in self.made:
            self.made[key] = operators.layout_transform(source, str(have), str(now))
        return self.made[key]

    def _kept(self, node: Node) -> Node:
        """Return a node on operands in the layouts that they had."""
        if node.op == "layout_transform":
            src, dst = [parse_layout(node.attrs[key]) for key in ("src_layout", "dst_layout")]
            if node.inputs[0] in self.forms:
                return self._in(node.inputs[0], src, dst)
        return rebuild(node, [self._home(x) for x in node.inputs])

    # What hooks ask for

    def _asked(self, node: Node) -> _Form | None:
        """Return a node computed as its hook asks, None if there is none or it keeps the node."""
        rule = rule_of(node)
        hook = None if rule is None else hook_of(node.op)
        if rule is None or hook is None:
            return None
        names = enumerate(zip(node.inputs, rule.inputs, strict=True))
        inputs = [stand_in(x, layout_in(node.attrs, name), f"operand{i}") for i, (x, name) in names]
        try:
            found = ask(hook, node, inputs)
            if isinstance(found, Mapping):
                attrs = _with_shape({**node.attrs, **found}, node, rule)
                made = None if attrs == node.attrs else self._changed(node, rule, attrs)
            else:
                same = found is None or (found.op == node.op and found.attrs == node.attrs)
                made = None if same or found is None else self._placed(node, rule, found, inputs)
        except (GraphError, Refused) as error:
            subject = f"the hook of {node.op} for {describe(node)}"
            raise GraphError(subject, str(error)) from error
        return None if made is None else _form(node, rule, made)

    def _changed(self, node: Node, rule: LayoutRule, attrs: dict[str, object]) -> Node:
        """Return a node with other attributes, on transformed operands."""
        operands = [
            self._in(x, layout_in(node.attrs, name), layout_in(attrs, name))
            for x, name in zip(node.inputs, rule.inputs, strict=True)
        ]
        return call(node.op, operands, attrs, node.name)

    def _placed(self, node: Node, rule: LayoutRule, found: Node, inputs: list[Node]) -> Node:
        """Return the node that a hook made of stand-ins, on transformed operands."""
        own = dict(zip(inputs, node.inputs, strict=True))
        homes = {each: self._home(operand) for each, operand in own.items()}
        theirs = rule_of(found)
        operands: list[Node] = []
        for number, operand in enumerate(found.inputs):
            if operand in own and theirs is not None:
                old = layout_in(node.attrs, rule.inputs[inputs.index(operand)])
                now = layout_in(found.attrs, theirs.inputs[number])
                operands.append(self._in(own[operand], old, now))
            else:
                operands += substitute([operand], homes)
        return call(found.op, operands, found.attrs, node.name)

    # Handing layouts on

    def _followed(self, node: Node) -> _Form | None:
        """Return a node computed in the layout that an operand comes in, if its op can be."""
        found = [self.forms[x] for x in node.inputs if x in self.forms]
        if not found:
            return None
        rule = rule_of(node)
        if rule is not None and rule.follows:
            return self._windows(node, rule, found[0])
        if node.op in _FOLDS:
            return self._fold(node, found[0])
        if not is_pointwise(node):
            return None
        whole = [self.forms[x] for x in node.inputs if x in self.forms and x.shape == node.shape]
        return self._pointwise(node, whole[0]) if whole else None

    def _windows(self, node: Node, rule: LayoutRule, form: _Form) -> _Form | None:
        if any(layout_in(node.attrs, name) != form.old for name in (*rule.inputs, rule.output)):
            return None
        names = dict.fromkeys((*rule.inputs, rule.output), str(form.now))
        attrs = _with_shape({**node.attrs, **names}, node, rule)
        operands = [self._in(x, form.old, form.now) for x in node.inputs]
        return _Form(call(node.op, operands, attrs, node.name), form.old, form.now)

    def _fold(self, node: Node, form: _Form) -> _Form | None:
        """Fold axes that have no blocks; without keepdims the small result is transformed back."""
        letters = [form.old.axes[axis] for axis in node.attrs["axis"]]
        if any(block or form.now.block(letter) > 1 for letter, block in letters):
            return None
        if any(form.old.block(letter) > 1 for letter, _ in letters):
            return None
        axes = tuple(sorted(form.now.axes.index(letter) for letter in letters))
        made = call(node.op, (form.node,), {**node.attrs, "axis": axes, "keepdims": True})
        if node.attrs["keepdims"]:
            return _Form(made, form.old, form.now)
        back = operators.layout_transform(made, str(form.now), str(form.old))
        self.own[node] = operators.squeeze(back, node.attrs["axis"])
        return None

    def _pointwise(self, node: Node, form: _Form) -> _Form:
        operands = [self._aligned(x, node, form) for x in node.inputs]
        return _Form(call(node.op, operands, node.attrs, node.name), form.old, form.now)

    def _aligned(self, operand: Node, node: Node, form: _Form) -> Node:
        """Return an operand of a pointwise node, which may broadcast, in the form's layout."""
        own = self.forms.get(operand)
        kin = own is not None and (own.old, own.now) == (form.old, form.now)
        if operand.shape == node.shape or kin:
            return self._in(operand, form.old, form.now)
        if all(extent == 1 for extent in operand.shape):
            return self._home(operand)
        key = (operand, f"{form.old} {node.shape}", str(form.now))
        if key not in self.made:
            self.made[key] = _broadcast(self._home(operand), node, form)
        return self.made[key]


def _form(node: Node, rule: LayoutRule, made: Node) -> _Form:
    """Return a form of a node.

    Raises:
        GraphError: what was made is no form of it.
    """
    theirs = rule_of(made)
    old = layout_in(node.attrs, rule.output)
    now = old if theirs is None else layout_in(made.attrs, theirs.output)
    if transformed_shape(made.shape, now, old) != node.shape or made.dtype is not node.dtype:
        raise GraphError(
            f"the hook of {node.op} for {describe(node)}",
            f"it makes {made.type} in {now} of {node.type} in {old}",
        )
    return _Form(made, old, now)


def _broadcast(operand: Node, node: Node, form: _Form) -> Node:
    """Return an operand with extents of 1, or fewer axes, in the form's layout."""
    lead = node.ndim - operand.ndim
    if lead:
        operand = operators.expand_dims(operand, tuple(range(lead)))
    pairs = zip(form.old.axes, operand.shape, node.shape, strict=True)
    repeated = {letter for (letter, _), own, whole in pairs if own != whole}
    if any(form.old.block(letter) > 1 for letter in repeated):
        operand, repeated = operators.broadcast_to(operand, node.shape), set()
    kept = [axis for axis in form.now.axes if not (axis[1] and axis[0] in repeated)]
    text = "".join(f"{block}{letter.lower()}" if block else letter for letter, block in kept)
    moved = operators.layout_transform(operand, str(form.old), text)
    places = [i for i, (letter, block) in enumerate(form.now.axes) if block and letter in repeated]
    return operators.expand_dims(moved, places) if places else moved


def _with_shape(attrs: dict[str, object], node: Node, rule: LayoutRule) -> dict[str, object]:
    """Return attributes with ``shape``, if the op has it, in the new layout of the result."""
    if "shape" in attrs and attrs["shape"] == node.attrs["shape"]:
        old, now = layout_in(node.attrs, rule.output), layout_in(attrs, rule.output)
        attrs["shape"] = transformed_shape(node.attrs["shape"], old, now)
    return attrs


register_pass("AlterOpLayout", AlterOpLayout)
