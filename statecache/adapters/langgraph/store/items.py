"""Getting and putting items: many in one exchange, and the puts of one namespace in one commit.

A put keeps when its item was first put, so it is written over the state that was read. What was read may be old: then
the commit conflicts, and the next attempt reads the primary. Whoever comes last wins, as in every store; where others
are always in between, the last attempt is written over whatever is there.

An item that lasts as long as it is read is renewed by a commit of its own when it is. Where that conflicts, somebody
has put, renewed or deleted the item since, and nothing is left to be done.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from statecache import (
    Backpressure,
    CodecError,
    Delete,
    LimitExceeded,
    LockHeld,
    NotFound,
    OutcomeUnknown,
    Set,
    State,
    StateCacheError,
    Unavailable,
    VersionConflict,
)
from statecache.adapters.langgraph.store.documents import (
    Document,
    document,
    foreign,
    item,
    lasts_s,
    refusal_of,
    refuse_foreign,
    renewed,
    size_of,
    written_over,
)
from statecache.adapters.langgraph.store.names import group_of, item_name
from statecache.adapters.langgraph.store.vectors import kept
from statecache.adapters.plans import Plan, call, proven, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from langgraph.store.base import GetOp, Item, PutOp

    from statecache import ReadMode
    from statecache.adapters.langgraph.store.vectors import Index

One = TypeVar("One")
_STATES_PER_COMMIT = 250
_COMMIT_BYTES_MAX = 12 * 1024 * 1024
_NAMES_PER_READ = 250
_ATTEMPTS_MAX = 20
_PASSING = (Backpressure, LockHeld, OutcomeUnknown, Unavailable)
"""Why nothing is written at the moment: what was read may be given all the same."""


class Put:
    """An item to be put, or to be deleted where its document is None; `texts` are those that it has vectors of."""

    __slots__ = ("document", "name", "size", "texts")

    def __init__(self, asked: PutOp, index: Index | None) -> None:
        self.name = item_name(asked.namespace, asked.key)
        self.document = None if asked.value is None else document(asked)
        self.size = 0 if self.document is None else size_of(self.document)
        if (refused := refusal_of(self.size)) is not None:
            raise refused
        self.texts = index.texts_of(asked) if index is not None else {}

    @property
    def lacks_vectors(self) -> bool:
        """Whether it has texts of which it has taken no vectors yet."""
        return bool(self.texts) and self.document is not None and "vectors" not in self.document

    def take(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Take the vectors of its texts; raise UsageError for one that no search would find."""
        if self.document is not None and self.texts:
            mine = {path: kept(vectors[text], self.name, path) for path, text in self.texts.items()}
            self.document["vectors"] = mine
            self.size = size_of(self.document)


def last_of_each(puts: Iterable[Put]) -> list[Put]:
    """Return the puts without those that others follow of the same item."""
    return [*{one.name: one for one in puts}.values()]


class Get:
    """An item to be got; `renews` says whether it then lasts anew, where it lasts as long as it is read."""

    __slots__ = ("key", "labels", "name", "renews")

    def __init__(self, asked: GetOp) -> None:
        self.labels, self.key = tuple(asked.namespace), asked.key
        self.name, self.renews = item_name(self.labels, self.key), asked.refresh_ttl


def get_items(
    asked: Sequence[Get], read: ReadMode, begin_to_write: Callable[[], Sequence[Get]] | None = None
) -> Plan[list[Item | StateCacheError | None]]:
    """Return for each that is asked for the item, or None, or what hindered it from lasting anew.

    `begin_to_write`, called once they have been read, returns those that still are: only these last anew.
    """
    found = yield from _found([one.name for one in asked], read)
    if begin_to_write is not None:
        asked = begin_to_write()
    strange = _foreign(found)
    renewing = {one.name for one in asked if one.renews and one.name not in strange}
    hindered = yield from renew(state for name, state in found.items() if state is not None and name in renewing)
    first = {one.name: at for at, one in reversed([*enumerate(asked)])}
    return [
        strange.get(one.name)
        or (hindered.get(one.name) if one.renews else None)
        or _own(one, found[one.name], again=first[one.name] != at)
        for at, one in enumerate(asked)
    ]


def _found(asked: Iterable[str], read: ReadMode) -> Plan[dict[str, State[Document] | None]]:
    found: dict[str, State[Document] | None] = {}
    names = [*dict.fromkeys(asked)]
    for at in range(0, len(names), _NAMES_PER_READ):
        found |= yield from call("get_many", names[at : at + _NAMES_PER_READ], read=read)
    return found


def _foreign(found: Mapping[str, State[Document] | None]) -> dict[str, StateCacheError]:
    """Return for each name of what no store has written the error that says so."""
    states = ((name, state) for name, state in found.items() if state is not None)
    return {name: error for name, state in states if (error := foreign(state)) is not None}


def _own(asked: Get, state: State[Document] | None, *, again: bool) -> Item | None:
    """Return an item that nobody else holds; `again` says that somebody else has been given it."""
    if state is None:
        return None
    given = item(state, asked.labels, asked.key)
    if again:
        given.value = deepcopy(given.value)
    return given


def put_items(
    puts: Sequence[Put], begin_to_write: Callable[[], Sequence[Put]] | None = None
) -> Plan[list[StateCacheError | None]]:
    """Put items, each once, and return for each what hindered it, or None.

    `begin_to_write`, called once what is there has been read, returns those of them that are to be put, each item once.
    """
    groups: dict[str, list[Put]] = {}
    known = yield from _found([one.name for one in puts], "local")
    if begin_to_write is not None:
        puts = begin_to_write()
    hindered = _foreign(known)
    for one in puts:
        if one.name in hindered:
            continue
        if (too_large := refusal_of(one.size)) is not None:  # with its vectors
            hindered[one.name] = too_large
        else:
            groups.setdefault(group_of(one.name), []).append(one)
    commits = [some for members in groups.values() for some in _in_commits(members, lambda one: one.size)]
    for some, answer in zip(commits, (yield from together([_commit(some, known) for some in commits])), strict=True):
        if isinstance(answer, (LimitExceeded, CodecError)) and len(some) > 1:  # one's own, which hinders no others
            answers = yield from together([_commit([one], known) for one in some])
            hindered |= {one.name: each for one, each in zip(some, answers, strict=True) if each is not None}
        elif answer is not None:
            hindered |= {one.name: answer for one in some}
    return [hindered.get(one.name) for one in puts]


def _in_commits(ones: Iterable[One], size_of: Callable[[One], int]) -> list[list[One]]:
    """Return what is written in one namespace in as many parts as it takes for each to be one commit."""
    parts: list[list[One]] = []
    size = 0
    for one in ones:
        weight = size_of(one)
        if not parts or len(parts[-1]) == _STATES_PER_COMMIT or size + weight > _COMMIT_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += weight
    return parts


def _commit(puts: Sequence[Put], known: Mapping[str, State[Document] | None]) -> Plan[None]:
    for attempt in range(_ATTEMPTS_MAX):
        found = known
        if attempt:
            found = yield from _found([one.name for one in puts], "primary")
            refuse_foreign(state for state in found.values() if state is not None)
        blind = attempt == _ATTEMPTS_MAX - 1
        try:
            made = yield from call("commit", [_write(one, found, blind=blind) for one in puts])
        except (VersionConflict, NotFound):
            if blind:
                raise
        else:
            if all(state is None for state in made):  # all of it was deleted before
                yield from proven(*(one.name for one in puts))
            return


def _write(one: Put, found: Mapping[str, State[Document] | None], *, blind: bool) -> Set | Delete:
    known = found[one.name]
    expected: Any = ... if blind and (known is not None or one.document is not None) else known
    if one.document is None:
        return Delete(one.name, expected=expected)
    return Set(one.name, written_over(one.document, known), expected=expected, ttl=lasts_s(one.document))


def renew(states: Iterable[State[Document]]) -> Plan[dict[str, StateCacheError]]:
    """Let items last anew that last as long as they are read; return what hindered some of them, by their names.

    That nothing can be written at the moment hinders nobody from reading: then an item lasts as long as it did.
    """
    groups: dict[str, list[State[Document]]] = {}
    for state in states:
        if "ttl" in state.value:
            groups.setdefault(group_of(state), []).append(state)
    commits = [some for members in groups.values() for some in _in_commits(members, lambda state: size_of(state.value))]
    answers = yield from together([_renew(some) for some in commits])
    return {
        _name(state.key): answer
        for some, answer in zip(commits, answers, strict=True) if not (answer is None or isinstance(answer, _PASSING))
        for state in some
    }  # fmt: skip


def _renew(states: Sequence[State[Document]]) -> Plan[None]:
    left = {state.key: state for state in states}
    while left:
        sets = [
            Set(_name(key), renewed(state), expected=state, ttl=lasts_s(state.value)) for key, state in left.items()
        ]
        try:
            yield from call("commit", sets, durability="memory")
        except (VersionConflict, NotFound) as changed:
            left.pop(changed.key)
        except LimitExceeded:  # the dates of one have no room: then the state's own stand for them
            for key, state in left.items():
                with suppress(NotFound):
                    yield from call("touch", _name(key), ttl=lasts_s(state.value), durability="memory")
            return
        else:
            return


def _name(key: str) -> str:
    return key.partition("/")[2]
