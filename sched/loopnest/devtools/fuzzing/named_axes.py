"""Schedule calls whose axes are given by name, in place of their positions."""

from __future__ import annotations

import re
from random import Random

import loopnest as ln
from loopnest.devtools.fuzzing.case_lines import Session

_CALL = re.compile(r"((?:\w+ = )?(\w+)\.(split|merge|reorder|axis|pin|rfactor)\()(.*)")
_AT = re.compile(r"((?:\w+\.compute_at\(((?!None\b)\w+), |(\w+)\.inline_at\())(-?\d+)(.*)")
_FIRST, _ALL = r"^-?\d+", r"(?<![\w'])-?\d+(?![\w'])"
_AXES = {
    **{name: re.compile(_FIRST) for name in ("split", "axis", "pin")},
    "merge": re.compile(_ALL),
    "reorder": re.compile(rf"{_ALL}(?=:)|(?<=[\[,]){_ALL}|(?<=, ){_ALL}(?=[,\]])"),
    "rfactor": re.compile(rf"{_FIRST}|{_ALL}(?=[,\]])"),
}
"""Where the axes stand among the arguments of a call."""


def with_names(line: str, number: int) -> str:
    """Return a schedule line whose split names the axes that it makes, by the line's number."""
    split = re.fullmatch(r"(\w+\.split\(.*)\)", line)
    return f"{split[1]}, names=('o{number}', 'n{number}'))" if split else line


def by_names(line: str, session: Session, rng: Random) -> str:
    """Return a line that means the same axes by names, as far as they have some."""
    at = _AT.fullmatch(line)
    if at is not None:
        tensor, pos = session.tensor(at[2] or at[3]), int(at[4])
        place = pos + (tensor.ndim if pos < 0 else -1)
        return f"{at[1]}{_name(tensor, place, at[4], rng)}{at[5]}" if place >= 0 else line
    call = _CALL.fullmatch(line)
    if call is None:
        return line
    tensor = session.tensor(call[2])
    return call[1] + _AXES[call[3]].sub(
        lambda found: _name(tensor, int(found[0]), found[0], rng), call[4]
    )


def _name(tensor: ln.TensorView, place: int, shown: str, rng: Random) -> str:
    """Return a name that only the axis at a place has; the position as it was where none does."""
    leaf = tensor.leaf_domain
    if not -len(leaf) <= place < len(leaf):
        return shown
    first = [axis.name for axis in leaf]
    every = [name for axis in leaf for name in axis.names]
    axis = leaf[place]
    found = [
        name
        for name in axis.names
        if (first.count(name) == 1 if name in first else every.count(name) == 1)
        and (name not in first or name == axis.name)
    ]
    return repr(rng.choice(found)) if found else shown
