"""An item's state as JSON, and what it comes back as.

    {"namespace": ["users", "ada"], "key": "prefs", "value": {…}}
                                                  and, where they say more than the state itself does:
    "created_at"   when the item was first put, from its second put on; else that is when the state was written
    "updated_at"   when the item was put last, once reading it has renewed its end
    "ttl"          for how many minutes it lasts from its last put or reading
    "vectors"      by the path of a field, the vector of its text: 32-bit floats in base64

So a first put needs no clock but that of Redis, which all items are dated by.

An item that was copied, with its group or by itself, is of the namespace and key under which it stands then. What it
says counts only where a digest stands for a part of a name that is too long, and has to fit it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec
from langgraph.store.base import Item, SearchItem

from statecache import CodecError, LimitExceeded, UsageError
from statecache.adapters.langgraph.store.names import Labels, group, group_of, key_of, namespace_of

if TYPE_CHECKING:
    from langgraph.store.base import PutOp

    from statecache import State

Document = dict[str, Any]
ITEM_BYTES_MAX = 8 * 1024 * 1024 - 128
"""How large an item's document may be when it is put, in bytes: there is room for its dates in a state."""
TTL_MINUTES_MAX = 100 * 365 * 24 * 60
_DEPTH_MAX = 100
_LEAST, _MOST = -(2**63), 2**63 - 1


def document(put: PutOp) -> Document:
    """Return what a put writes, for an item that was not there."""
    if not isinstance(put.value, Mapping):
        raise UsageError(f"an item's value is a dictionary, not a {type(put.value).__name__}")
    made: Document = {"namespace": [*put.namespace], "key": put.key, "value": _plain(dict(put.value), "value")}
    if put.ttl is not None:
        if not (isinstance(put.ttl, (int, float)) and 0 < put.ttl < TTL_MINUTES_MAX):
            raise UsageError(f"ttl={put.ttl!r} is not a number of minutes above 0, below 100 years")
        made["ttl"] = float(put.ttl)
    return made


def size_of(made: Document) -> int:
    """Return how many bytes a document takes."""
    return len(msgspec.json.encode(made))


def refusal_of(size: int) -> LimitExceeded | None:
    """Return the error of an item that takes so many bytes, or None where it has room in a state."""
    if size <= ITEM_BYTES_MAX:
        return None
    hint = "Keep what is large elsewhere, and its name in the item."
    return LimitExceeded("an item", actual=size, limit=ITEM_BYTES_MAX, hint=hint)


def written_over(made: Document, known: State[Document] | None) -> Document:
    """Return what a put writes over an item that is there, whose beginning it keeps."""
    return made if known is None else made | {"created_at": created_at(known).isoformat()}


def renewed(known: State[Document]) -> Document:
    """Return what renews an item's end, and says when it was put, which the state itself does not any more."""
    dated = {"created_at": created_at(known).isoformat(), "updated_at": updated_at(known).isoformat()}
    return known.value | dated


def lasts_s(made: Document) -> float | None:
    """Return for how many seconds an item lasts, or None for ever."""
    return None if "ttl" not in made else made["ttl"] * 60


def foreign(state: State[Any]) -> CodecError | None:
    """Return the error of a state under a store's key that no store has written, or None for an item."""
    value = state.value
    is_item = (
        isinstance(value, dict)
        and isinstance(value.get("value"), dict)
        and isinstance(value.get("key"), str)
        and isinstance(value.get("namespace"), list)
        and all(isinstance(label, str) for label in value["namespace"])
    )
    if is_item:
        return None
    return CodecError(key=state.key, verb="decoded", reason="it is no item of a store of LangGraph")


def refuse_foreign(states: Iterable[State[Any]]) -> None:
    """Raise CodecError for the first state that no store has written."""
    for state in states:
        if (error := foreign(state)) is not None:
            raise error


def created_at(state: State[Document]) -> datetime:
    """Return when an item was first put."""
    return _time(state.value.get("created_at")) or updated_at(state)


def updated_at(state: State[Document]) -> datetime:
    """Return when an item was put last."""
    return _time(state.value.get("updated_at")) or state.updated_at


def told_namespace(state: State[Document]) -> Labels | None:
    """Return the namespace that an item is in, or None where neither its key nor the item can tell that."""
    name = group_of(state)
    if (labels := namespace_of(name)) is not None:
        return labels
    said = tuple(state.value["namespace"])
    return said if group(said) == name else None


def namespace(state: State[Document]) -> Labels:
    """Return the namespace that an item is in; raise UsageError where it was copied to one that nothing tells."""
    if (labels := told_namespace(state)) is None:
        said = tuple(state.value["namespace"])
        what = f"{state.key!r} was copied from the namespace {said!r}, to one that is too long to be told from its key"
        hint = "Search its items in that namespace itself, and put them there again: then they tell it."
        raise UsageError(what, hint=hint)
    return labels


def _key(state: State[Document]) -> str:
    """Return the key of an item; raise UsageError where it was copied to one that nothing tells."""
    if (key := key_of(state.key, state.value["key"])) is None:
        what = f"{state.key!r} was copied from the item {state.value['key']!r}, to one whose key is too long to be told"
        raise UsageError(what, hint="Get it by its key, and put it there again: then it tells it.")
    return key


def item(state: State[Document], labels: Labels, key: str) -> Item:
    """Return an item as LangGraph knows it, as that which was asked for."""
    return Item(
        value=state.value["value"], key=key, namespace=labels,
        created_at=created_at(state), updated_at=updated_at(state),
    )  # fmt: skip


def search_item(state: State[Document], labels: Labels, score: float | None = None) -> SearchItem:
    """Return an item that a search has found."""
    return SearchItem(
        namespace=labels, key=_key(state), value=state.value["value"],
        created_at=created_at(state), updated_at=updated_at(state), score=score,
    )  # fmt: skip


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _plain(value: Any, path: str, depth: int = 0) -> Any:
    """Return a value as plain JSON that shares nothing with it, or raise UsageError and say what is none."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(str.__str__(value), path)
    if isinstance(value, int) and _LEAST <= value <= _MOST:
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return float(value)
    if isinstance(value, (int, float)):
        raise _refused(path, f"the number {value!r}, which JSON in Postgres does not hold exactly")
    if depth == _DEPTH_MAX:
        raise _refused(path, f"more than {_DEPTH_MAX} levels")
    if isinstance(value, (list, tuple)):
        return [_plain(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(value)]
    if isinstance(value, dict):
        return {_name(name, path): _plain(one, f"{path}.{name}", depth + 1) for name, one in value.items()}
    raise _refused(path, f"a {type(value).__name__}, which is no JSON")


def _name(name: Any, path: str) -> str:
    if not isinstance(name, str):
        raise _refused(path, f"the member {name!r}, whose name is no text")
    return _text(str.__str__(name), path)


def _text(text: str, path: str) -> str:
    if "\0" in text:
        raise _refused(path, "a text with a NUL, which Postgres has no place for")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refused(path, "a text with half of a surrogate pair, which is no Unicode") from None
    return text


def _refused(path: str, what: str) -> UsageError:
    hint = "Put what JSON can say: text, numbers, true, false, None, lists and dictionaries of these."
    return UsageError(f"the item's {path} holds {what}", hint=hint)
