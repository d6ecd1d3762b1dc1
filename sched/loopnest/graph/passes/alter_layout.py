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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopnest.graph import operators
from loopnest.graph.data_layout import DataLayout, parse_layout, transformed_shape
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Node, describe
from loopnest.graph.passes.auto_inline import is_pointwise
from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.decorators import register_pass
from loopnest.graph.passes.info import PassInfo
from loopnest.graph.passes.layout_rules import (
    LayoutRule,
    ask,
    hook_of,
    layout_in,
    rule_of,
    stand_in,
)
from loopnest.graph.passes.manager import FunctionPass
from loopnest.graph.passes.module import Unit
from loopnest.graph.program import Graph
from loopnest.graph.registry import call, rebuild
from loopnest.graph.rewriting import substitute

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
