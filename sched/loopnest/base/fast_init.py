"""Make instances of frozen dataclasses fast, for nodes and records of which there are many."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TypeVar

Record = TypeVar("Record", bound=type)


def fast_init(cls: Record) -> Record:
    """Give a frozen dataclass an `__init__` that does the same in less than half of the time.

    That of `dataclasses` looks up `object.__setattr__` for each field, and that looks up the field.
    Here a slot is set by its descriptor, and a field without a slot in the instance's dictionary.

    >>> from dataclasses import dataclass
    >>> @fast_init
    ... @dataclass(frozen=True, slots=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(3)
    Point(x=3, y=0)
    """
    own: dict[str, object] = {}
    params: list[str] = []
    lines: list[str] = []
    keyword = False
    for field in fields(cls):
        if not field.init or hasattr(cls, "__post_init__"):
            raise TypeError(f"{cls.__name__}: {field.name} takes more than setting a field")
        if field.kw_only and not keyword:
            keyword = True
            params.append("*")
        default = ""
        if field.default is not MISSING:
            own[f"_default_{field.name}"] = field.default
            default = f"=_default_{field.name}"
        if field.default_factory is not MISSING:
            own["_missing"], own[f"_make_{field.name}"] = MISSING, field.default_factory
            default = "=_missing"
            lines.append(f"    if {field.name} is _missing: {field.name} = _make_{field.name}()")
        params.append(field.name + default)
        put = getattr(getattr(cls, field.name, None), "__set__", None)
        if put is not None:
            own[f"_set_{field.name}"] = put
            lines.append(f"    _set_{field.name}(self, {field.name})")
        else:
            lines.append(f"    self.__dict__[{field.name!r}] = {field.name}")
    text = "\n".join([f"def __init__(self, {', '.join(params)}):", *lines])
    exec(text, own)  # as `dataclasses` does: the parameters are those of the class
    made = own["__init__"]
    before = vars(cls)["__init__"]
    for name in ("__annotations__", "__qualname__", "__doc__"):
        setattr(made, name, getattr(before, name))
    type.__setattr__(cls, "__init__", made)
    return cls
