"""Makes docs/settings.md from `Settings`: names, variables, defaults, limits, and what each field says it means."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from statecache.settings import Settings, variable_of

HEAD = """# Settings

Generated from the code by `make sync`. A setting is a keyword argument of the client and of `Settings`, or an
environment variable: `redis_url` is `STATECACHE_REDIS_URL`. Arguments win over variables.
[`config/statecache.env.example`](../config/statecache.env.example) has every variable with its default.

What ends in `_s` is in seconds, what ends in `_bytes_max` in bytes. What begins with "worker" is about
`statecache worker`. A wrong value is a `ConfigurationError` that names the setting. Commands name on stderr a variable
`STATECACHE_…` that is no setting.

| setting | default | values | meaning |
|---|---|---|---|
"""
_LIMITS = {"ge": "from {}", "gt": "above {}", "le": "to {}"}
_DAY_S, _HOUR_S = 86_400, 3_600


def page() -> str:
    """Return the whole page."""
    rows = [
        f"| `{name}` | {_default(name, field)} | {_values(name, field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return HEAD + "\n".join(rows) + "\n"


def undescribed() -> list[str]:
    """Return the settings that do not say what they mean."""
    return [variable_of(name) for name, field in Settings.model_fields.items() if not field.description]


def _default(name: str, field: FieldInfo) -> str:
    if field.default is None or field.default == "":
        return "none"
    if isinstance(field.default, str):
        return f"`{field.default}`"
    return _number(name, field.default)


def _number(name: str, value: float) -> str:
    """Return a number as people say it, with a unit where it has a large one."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    for unit, size, ends in (("MiB", 1024 * 1024, "_bytes_max"), ("days", _DAY_S, "_s"), ("hours", _HOUR_S, "_s")):
        if name.endswith(ends) and value >= size and value % size == 0:
            return f"{value / size:,.0f} {unit.removesuffix('s') if value == size else unit}"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def _values(name: str, field: FieldInfo) -> str:
    """Return what may be given: the words, or the kind of value with its limits."""
    kinds = [one for one in _alternatives(field.annotation) if one is not type(None)]
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words:
        return ", ".join(f"`{word}`" for word in words)
    names = {str: "text", bool: "`true`, `false`", int: "whole number", float: "number"}
    limits = [
        text.format(_number(name, limit))
        for fact in field.metadata
        for bound, text in _LIMITS.items()
        if (limit := getattr(fact, bound, None)) is not None
    ]
    return " ".join([*(names[kind] for kind in kinds), *limits])


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
