"""Records that name other keys of their group: the heads of what adapters keep, which count and find the pages there.

A head alone is worth nothing. Where a verb makes one of a head of another group, and takes no page along, it counts
what is not there; so such a verb is refused. Heads are told by what they hold, in any namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PAGED = ("adk session", "llama-index chat", "pydantic-ai")
"""What the heads say that they are of, whose pages stand below them."""
_OPENAI = frozenset({"session_id", "items", "pages", "revision"})
_OPENAI_MORE = _OPENAI | {"logs", "grown_as"}
_LANGGRAPH = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "newest"})


def is_head(value: Any) -> bool:
    """Return whether plain data is a record that names other keys of its group."""
    if not isinstance(value, Mapping):
        return False
    if "of" in value:
        return value["of"] in _PAGED and "pages" in value
    return _OPENAI <= value.keys() <= _OPENAI_MORE or value.keys() >= _LANGGRAPH
