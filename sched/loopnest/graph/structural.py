"""Equality by structure: the same ops, attributes, types and sharing; names of inputs do not count.

The key of a graph is one flat tuple: each node's op, attributes, type and the numbers of its
operands, in the order of `Graph.nodes`, which follows from the structure alone. Keys are compared
and hashed without recursion, whatever the depth.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Hashable
from typing import TypeAlias

import numpy as np

from loopnest.graph.node import Node
from loopnest.graph.node_origins import postorder
from loopnest.graph.program import Graph, require_root

Key: TypeAlias = tuple[Hashable, ...]


def attribute_key(value: object) -> Hashable:
    """Return a key of an attribute's value: keys are equal where values are, bit by bit.

    1, 1.0 and True differ, and so do 0.0 and -0.0; a NaN equals itself.
    """
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(value.tobytes()).digest()
        return ("array", value.dtype.name, value.shape, digest)
    if isinstance(value, tuple):
        return ("tuple", *[attribute_key(item) for item in value])
    if isinstance(value, Graph):
        return ("graph", structural_key(value))
    if value is None or isinstance(value, (bool, int, str)):
        return (type(value).__name__, value)
    return ("object", str(value))  # a DType: its name


def node_key(node: Node) -> Key:
    """Return op, attributes and type of a node: all of it but its operands and its name.

    Two nodes with equal keys on the same operands compute the same. A var has only itself.
    """
    if node.op == "var":
        return ("var", id(node))
    attrs = tuple([(key, attribute_key(node.attrs[key])) for key in sorted(node.attrs)])
    return (node.op, attrs, str(node.type))


def structural_key(root: Graph | Node) -> Key:
    """Return the key of a graph's (or a node's) structure; kept, since graphs do not change.

    Vars count by their place (of a graph among the inputs, of a node in the order of use).
    """
    if isinstance(root, Graph):
        found: Key | None = root.__dict__.get("_structural_key")
        if found is None:
            found = _key(root.nodes, root.outputs, len(root.inputs))
            root.__dict__["_structural_key"] = found
        return found
    return _key(postorder([root]), (root,), 0)


def _key(nodes: tuple[Node, ...] | list[Node], outputs: tuple[Node, ...], inputs: int) -> Key:
    numbers: dict[Node, int] = {}
    parts: list[Hashable] = [inputs]
    for node in nodes:
        numbers[node] = len(numbers)
        own: Key = ("var", str(node.type)) if node.op == "var" else node_key(node)
        parts.append((own, tuple([numbers[x] for x in node.inputs])))
    parts.append(tuple([numbers[x] for x in outputs]))
    return tuple(parts)


def structural_equal(a: Graph | Node, b: Graph | Node) -> bool:
    """Whether two graphs (or two nodes) are the same up to the names of inputs and nodes.

    Args:
        a: a graph or a node.
        b: likewise.

    >>> import loopnest.graph as G
    >>> x, y = G.var("x", (4,)), G.var("y", (4,))
    >>> G.structural_equal(G.exp(x), G.exp(y)), G.structural_equal(G.exp(x), G.log(x))
    (True, False)

    Source: TVM's `StructuralEqual`.
    """
    roots = [require_root(root, "structural_equal") for root in (a, b)]
    return structural_key(roots[0]) == structural_key(roots[1])


def structural_hash(root: Graph | Node) -> str:
    """Return a digest of the structure, the same in every process: a key for caches."""
    root = require_root(root, "structural_hash")
    return hashlib.sha256(repr(structural_key(root)).encode()).hexdigest()
