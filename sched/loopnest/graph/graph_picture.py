"""Graphs as pictures: SVG by Graphviz, one graph or two side by side (before and after a pass).

Graphviz comes with pygraphviz, whose wheels bring its libraries along: no system package, no
``dot`` program. It is the extra ``loopnest[show]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Node
from loopnest.graph.passes.manager import Pass
from loopnest.graph.passes.numbering import Numbering
from loopnest.graph.printer import inline_value, show_attribute
from loopnest.graph.program import Graph, body_of
from loopnest.graph.registry import Pattern, get_op, pattern_of
from loopnest.graph.structural import attribute_key
from loopnest.pictures.svg import Svg


def show(graph: Graph, after: Graph | Pass | None = None, path: str | Path | None = None) -> Svg:
    """Return a picture of a graph, or of a graph before and after a pass.

    Ops are coloured by their fusion pattern; fused groups stand in boxes. With `after`, what only
    the left graph computes is outlined in red, what only the right one computes in green.

    Args:
        graph: the graph.
        after: another graph to show beside it, or a pass that makes one of it.
        path: a file to write the picture to.

    Raises:
        GraphError: no graph, or pygraphviz is not installed.
    """
    if not isinstance(graph, Graph):
        raise GraphError("show(…)", f"it was given {kind_of(graph)}", "pass a G.Graph")
    if after is not None and not isinstance(after, (Graph, Pass)):
        kind = type(after).__name__
        raise GraphError(f"show({graph.name}, …)", f"after is a {kind}", "pass a graph or a pass")
    made = after(graph) if isinstance(after, Pass) else after
    picture = Svg(_rendered(to_dot(graph, made)))
    if path is not None:
        picture.save(path)
    return picture


def html_of(graph: Graph) -> str:
    """Return what notebooks show of a graph: its picture, its text where Graphviz is missing."""
    if find_spec("pygraphviz") is None:
        return f"<pre>{escape(str(graph))}</pre>"
    return show(graph)


def _rendered(dot: str) -> str:
    try:
        import pygraphviz
    except ImportError:
        raise GraphError(
            "show(…)", "pygraphviz is not installed", "pip install 'loopnest[show]'"
        ) from None
    svg: bytes = pygraphviz.AGraph(string=dot).draw(format="svg", prog="dot")
    return svg.decode("utf-8")


_COLOURS = {
    Pattern.ELEMWISE: "#dbe9f6",
    Pattern.BROADCAST: "#dbe9f6",
    Pattern.INJECTIVE: "#e3f1dd",
    Pattern.REDUCTION: "#fdeacb",
    Pattern.OUT_ELEMWISE_FUSABLE: "#f8d9d5",
    Pattern.TUPLE: "#eeeeee",
    Pattern.OPAQUE: "#e4def0",
}
_LEFT, _RIGHT = "#c0392b", "#1e8449"


@dataclass(frozen=True, slots=True)
class _Effort:
    """How a picture of many nodes is laid out: refinement of the layout grows with their square.

    Attributes:
        nodes: the number of nodes from which on these settings hold.
        far: from how many levels on an edge is replaced by the value's name at its reader.
        settings: what Graphviz is told.
    """

    nodes: int
    far: int
    settings: str


_EFFORTS = (
    _Effort(1000, 4, "splines=line nslimit=0.1 nslimit1=0.1 mclimit=0.1"),
    _Effort(200, 12, "splines=line nslimit=1 nslimit1=1 mclimit=0.3"),
)
"""Largest graphs first; smaller ones than all of these are laid out in full."""


def to_dot(graph: Graph, after: Graph | None = None) -> str:
    """Return one graph or two in the language of Graphviz; deterministic."""
    sides = [_flat(each) for each in ([graph] if after is None else [graph, after])]
    lines = ["digraph {", '  node [shape=box style="filled,rounded" fontname=Helvetica]']
    total = sum(len(side.nodes) for side in sides)
    effort = next((each for each in _EFFORTS if total > each.nodes), None)
    if effort is not None:
        lines.append(f"  graph [{effort.settings}]")
    outlines = _outlines(sides)
    for number, side in enumerate(sides):
        title = f"{('before', 'after')[number]}: {side.name}" if after is not None else side.name
        lines.append(f"  subgraph cluster_{number} {{ label={_quoted(title)} fontname=Helvetica")
        drawn = _lines(side, f"n{number}_", outlines[number], effort.far if effort else None)
        lines += [f"    {line}" for line in drawn]
        lines.append("  }")
    return "\n".join([*lines, "}"])


@dataclass
class _FlatGraph:
    """A graph with the bodies of its calls in place: what is drawn."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    group: dict[Node, int] = field(default_factory=dict)
    titles: dict[int, str] = field(default_factory=dict)
    outputs: tuple[Node, ...] = ()


def _flat(graph: Graph) -> _FlatGraph:
    flat = _FlatGraph(graph.name)
    flat.outputs = _expanded(graph, {}, flat, None, count())
    return flat


def _expanded(
    graph: Graph,
    done: dict[Node, Node],
    flat: _FlatGraph,
    group: int | None,
    numbers: Iterator[int],
) -> tuple[Node, ...]:
    """Add the nodes of a graph (`done` has its parameters); return its outputs."""
    for node in graph.nodes:
        if node in done:
            continue
        inputs = tuple([done[x] for x in node.inputs])
        if node.op == "fused":
            body, inner = body_of(node), next(numbers)
            flat.titles[inner] = f"@{body.name}"
            params = dict(zip(body.inputs, inputs, strict=True))
            outputs = _expanded(body, params, flat, inner, numbers)
            if len(outputs) == 1:
                done[node] = outputs[0]
                continue
            new = Node("tuple", outputs, {}, node.type, node.name)
        else:
            new = Node(node.op, inputs, node.attrs, node.type, node.name)
        done[node] = new
        flat.nodes.append(new)
        if group is not None:
            flat.group[new] = group
    return tuple([done[x] for x in graph.outputs])


def _outlines(sides: list[_FlatGraph]) -> list[dict[Node, str]]:
    """Return the colour of the outline of each node that only one side computes."""
    if len(sides) == 1:
        return [{}]
    numbers = Numbering()
    for side in sides:
        numbers.add(side.nodes)
    values = [{numbers[node] for node in side.nodes} for side in sides]
    return [
        {node: colour for node in side.nodes if numbers[node] not in other}
        for side, other, colour in zip(sides, reversed(values), (_LEFT, _RIGHT), strict=True)
    ]


def _lines(
    side: _FlatGraph, prefix: str, outlines: Mapping[Node, str], far: int | None
) -> Iterator[str]:
    names = {node: f"{prefix}{i}" for i, node in enumerate(side.nodes)}
    groups: dict[int | None, list[Node]] = {None: []}
    for node in side.nodes:
        groups.setdefault(side.group.get(node), []).append(node)
    for group, members in groups.items():
        inside = [
            f"{names[node]} [{_style(node, outlines.get(node), _mark(names[node], far))}]"
            for node in members
        ]
        if group is None:
            yield from inside
        else:
            title = f"label={_quoted(side.titles[group])} style=rounded color=gray fontsize=11"
            yield f"subgraph cluster_{prefix}{group} {{ {title}"
            yield from [f"  {line}" for line in inside]
            yield "}"
    yield from _edges(side, names, far)
    for place, node in enumerate(side.outputs):
        end = f"{prefix}out{place}"
        yield f'{end} [label="output {place}" shape=plaintext style=""]'
        yield f"{names[node]} -> {end}"


def _edges(side: _FlatGraph, names: Mapping[Node, str], far: int | None) -> Iterator[str]:
    """Yield the edges; those over more than `far` levels as a note at the reader."""
    level: dict[Node, int] = {}
    for node in side.nodes:
        level[node] = max([level[x] + 1 for x in node.inputs], default=0)
        for place, operand in enumerate(node.inputs):
            if far is None or level[node] - level[operand] <= far:
                yield f"{names[operand]} -> {names[node]}"
            else:
                note = f"{names[node]}_{place}"
                text = _quoted(_title(operand) + _mark(names[operand], far))
                yield f'{note} [label={text} shape=plaintext style="" fontcolor=gray40]'
                yield f"{note} -> {names[node]} [style=dashed]"


def _mark(name: str, far: int | None) -> str:
    """Return the number by which notes speak of a node; "" where there are no notes."""
    return "" if far is None else f" #{name.rpartition('_')[2]}"


def _style(node: Node, outline: str | None, mark: str) -> str:
    leaf = node.op in ("var", "const", "variable")
    lines = [_title(node) + mark, *_attributes(node), str(node.type)]
    parts = ["label=" + _quoted("\n".join(lines))]
    parts += ["shape=ellipse", "style=filled", "fillcolor=white"] if leaf else []
    parts += [] if leaf else [f'fillcolor="{_COLOURS[pattern_of(node)]}"']
    parts += [f'color="{outline}"', "penwidth=2"] if outline else ["color=gray40"]
    return " ".join(parts)


def _title(node: Node) -> str:
    if node.op == "const":
        text = inline_value(node.value)
        return text if text is not None and len(text) <= 20 else "const"
    if node.op in ("var", "variable"):
        return node.name
    return f"{node.op} {node.name}".rstrip()


def _attributes(node: Node) -> list[str]:
    """Return the attributes of an op that do not have their default."""
    if node.op in ("var", "const", "variable"):
        return []
    defaults = get_op(node.op).params
    return [
        f"{key}={show_attribute(value)}"
        for key, value in node.attrs.items()
        if attribute_key(defaults[key]) != attribute_key(value)
    ]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
