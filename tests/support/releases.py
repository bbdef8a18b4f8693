"""A type as two releases of an application have it."""

from __future__ import annotations

from typing import Any

import msgspec


def release(name: str, version: int = 1, **fields: Any) -> Any:
    """Return a Struct as one release has it."""
    made = msgspec.defstruct(name, [(field, *given) for field, given in fields.items()], module=__name__)
    made.__schema_version__ = version  # type: ignore[attr-defined]
    return made


OLD = release("Run", goal=(str,), steps=(int, 0))
NEW = release("Run", goal=(str,), steps=(int, 0), budget=(float, 0.0))
