"""Options of passes: the entries of `PassContext.config`, registered so that typos are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError


@dataclass(frozen=True, slots=True)
class PassOption:
    """An entry of `PassContext.config` that a pass reads."""

    key: str
    default: object
    kind: type | tuple[type, ...]
    doc: str


_OPTIONS: dict[str, PassOption] = {}


def register_option(
    key: str, default: object, kind: type | tuple[type, ...] | None = None, doc: str = ""
) -> PassOption:
    """Register an option ``"Pass.option"`` of `PassContext.config`.

    Args:
        key: the name of the pass, a dot, and that of the option.
        default: its value where the context has none.
        kind: the type that a value must have; that of `default` unless that is None.
        doc: what it does.
    """
    if not isinstance(key, str):
        kind_of = type(key).__name__
        raise GraphError("register_option(…)", f"the key is a {kind_of}", "write 'Pass.option'")
    if kind is None:
        kind = object if default is None else type(default)
    _OPTIONS[key] = PassOption(key, default, kind, doc)
    return _OPTIONS[key]


def option_of(key: str) -> PassOption:
    """Return a registered option.

    Raises:
        GraphError: no option has that name.
    """
    if key not in _OPTIONS:
        raise GraphError(f"option({key!r})", "there is no such option", "use register_option")
    return _OPTIONS[key]


def check_config(config: Mapping[str, object]) -> None:
    """Check the entries that belong to a pass; others are free.

    Raises:
        GraphError: a pass has no such option, or the value has another type.
    """
    owners = {key.partition(".")[0] for key in _OPTIONS}
    for key, value in config.items():
        subject = f"PassContext(config={{{key!r}: {value!r}}})"
        option = _OPTIONS.get(key)
        if option is None and str(key).partition(".")[0] in owners:
            mine = [k for k in sorted(_OPTIONS) if k.startswith(str(key).partition(".")[0] + ".")]
            raise GraphError(subject, "there is no such option", f"there are: {', '.join(mine)}")
        if option is not None and not _is_kind(value, option.kind):
            raise GraphError(subject, f"the value is {kind_of(value)}", option.doc)


def _is_kind(value: object, kind: type | tuple[type, ...]) -> bool:
    if isinstance(value, bool) and kind in (int, float):
        return False
    return isinstance(value, kind)
