"""Stream entries, strictly read: the numbered fields that the commit script writes, and nothing else.

    <epoch>-<n>   format 1  change_id  at  writer  entries  bytes  [actor]  [reason]
                  in format 2, which a commit under leases has: for i = 1…k:  lock<i>  token<i>
                  then for i = 1…m:  key<i>  op<i>  version<i>  parent<i>  encoding<i>  schema<i>  value<i>

What is not exactly that was not written by a commit: another program's entry, or a damaged one. It raises
`ForeignEntry` with the reason, and whoever reads the stream parks it raw. An entry whose format number is above ours
is neither: it was written by a newer release, which alone knows what to do with it, so `NewerFormat` is another error.

Earlier releases wrote a ttl<i> behind a value; the state's hash holds it now, and it is passed over.

Texts are checked to be UTF-8 and no further: what Postgres refuses (a NUL) is Postgres' to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from statecache.model import STATES_PER_COMMIT_MAX, ChangeRecord, ChangeSet, Position, Token

FORMAT = 2
"""The newest format that this release reads; what has no tokens is written in the first, for workers of old."""
INTEGER_MAX = 2**63 - 1

_OPS = {b"set": "set", b"delete": "delete"}
_HEAD = [b"change_id", b"at", b"writer", b"entries", b"bytes"]
_STATE = ("key", "op", "version", "parent", "encoding", "schema", "value")
_NAMES = [[b"%s%d" % (name.encode(), i) for name in _STATE] for i in range(1, STATES_PER_COMMIT_MAX + 1)]
_TTLS = [b"ttl%d" % i for i in range(1, STATES_PER_COMMIT_MAX + 1)]
_WIDTH = 2 * len(_STATE)


class ForeignEntry(ValueError):
    """The reason why a stream entry is not one of ours."""


class NewerFormat(ValueError):
    """An entry that a newer release wrote."""


def position_of(entry_id: bytes) -> Position:
    """Return the position that `<epoch>-<n>` spells; raise ForeignEntry for an id that no shard can have reached."""
    epoch, _, n = entry_id.partition(b"-")
    return Position(_integer(epoch, "the epoch"), _integer(n, "n"))


def change_set(entry_id: bytes, fields: Sequence[bytes], *, position: Position | None = None) -> ChangeSet:
    """Read one entry: its id (or the position, where the id was read already) and its flat list of fields.

    Raises ForeignEntry for what no commit wrote, and NewerFormat for an entry of a newer release.
    """
    if not fields or fields[0] != b"format" or len(fields) % 2:
        raise ForeignEntry("it does not start with a format number")
    if fields[1] != b"1" and fields[1] != b"2":
        if _integer(fields[1], "the format") > FORMAT:
            raise NewerFormat(f"its format is {fields[1].decode()}, this program knows {FORMAT}")
        raise ForeignEntry(f"its format is {fields[1].decode()}")
    if fields[2:12:2] != _HEAD:
        raise ForeignEntry("the fields of its head are not those of a commit")
    at, actor, reason = 12, "", ""
    try:
        if at < len(fields) and fields[at] == b"actor":
            actor, at = fields[at + 1].decode(), at + 2
        if at < len(fields) and fields[at] == b"reason":
            reason, at = fields[at + 1].decode(), at + 2
        tokens = () if fields[1] == b"1" else _tokens(fields, at)
        at += 4 * len(tokens)
        change_id = fields[3].decode()
        return ChangeSet(
            position=position or position_of(entry_id),
            change_id=change_id,
            at=_time(fields[5]),
            writer=fields[7].decode(),
            actor=actor,
            reason=reason,
            entries=_integer(fields[9], "entries"),
            bytes=_integer(fields[11], "bytes"),
            changes=_changes(change_id, fields, at),
            tokens=tokens,
        )
    except UnicodeDecodeError as error:
        raise ForeignEntry(f"it holds text that is not UTF-8: {error.reason}") from None


def _tokens(fields: Sequence[bytes], at: int) -> tuple[tuple[str, Token], ...]:
    """Read the leases under which a commit was made; this format has at least one."""
    tokens: list[tuple[str, Token]] = []
    while fields[at : at + 4 : 2] == [b"lock%d" % (len(tokens) + 1), b"token%d" % (len(tokens) + 1)]:
        token = Token.parse(fields[at + 3].decode())
        if token is None or max(token) > INTEGER_MAX:
            raise ForeignEntry("its token is not one that a lock gives")
        tokens.append((fields[at + 1].decode(), token))
        at += 4
    if not tokens:
        raise ForeignEntry("its format is 2 and it names no lock")
    return tuple(tokens)


def _changes(change_id: str, fields: Sequence[bytes], at: int) -> tuple[ChangeRecord, ...]:
    changes: list[ChangeRecord] = []
    end = len(fields)
    while at < end:
        i = len(changes)
        if i == STATES_PER_COMMIT_MAX or fields[at : at + _WIDTH : 2] != _NAMES[i]:
            raise ForeignEntry(f"the fields of its state {i + 1} are not those of a commit")
        op = _OPS.get(fields[at + 3])
        if op is None:
            raise ForeignEntry(f"the op of its state {i + 1} is not one of ours")
        after = at + _WIDTH
        if after < end and fields[after] == _TTLS[i]:
            after += 2
        changes.append(
            ChangeRecord(
                change_id=change_id,
                key=fields[at + 1].decode(),
                op=op,
                version=_integer(fields[at + 5], "a version"),
                parent_change_id=fields[at + 7].decode(),
                value=fields[at + 13],
                encoding=fields[at + 9].decode(),
                schema=fields[at + 11].decode(),
            )
        )
        at = after
    if not changes:
        raise ForeignEntry("it holds no state")
    return tuple(changes)


def salvaged(fields: Sequence[bytes]) -> tuple[str, tuple[str, ...]]:
    """Return what an unreadable entry still shows: its change_id and keys, as Postgres can store them."""
    pairs = list(zip(fields[::2], fields[1::2], strict=False))
    change_id = next((value for name, value in pairs if name == b"change_id"), b"")
    keys = (value for name, value in pairs if name[:3] == b"key" and name[3:].isdigit())
    return storable(change_id)[:200], tuple(storable(key)[:1000] for key in keys)


def storable(text: bytes | str) -> str:
    """Return the text as Postgres can store it: what is not UTF-8, and NUL, becomes a replacement character."""
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    return text.decode("utf-8", "replace").replace("\0", "\ufffd")


def parts_text(position: str, many: int, actor: str, reason: str) -> str:
    """Return what a state's hash tells of the commit that wrote it: how many states that wrote, who did it, and why.

    It is `<position> <many>`, and where any is given, behind that the actor's length in bytes, actor and reason.
    """
    said = f" {len(actor.encode())} {actor}{reason}" if actor or reason else ""
    return f"{position} {many}{said}"


def many_of(state: Mapping[str, bytes]) -> int:
    """Return how many states a state's commit wrote; 1 where it does not tell, for that of an earlier one may stand."""
    many = _told(state).partition(b" ")[0]
    return int(many) if many.isdigit() and len(many) < 5 else 1


def said_of(state: Mapping[str, bytes]) -> tuple[str, str]:
    """Return who made a state's commit, and why; '' where it does not tell."""
    length, _, said = _told(state).partition(b" ")[2].partition(b" ")
    end = int(length) if length.isdigit() and len(length) < 9 else 0
    return said[:end].decode(), said[end:].decode()


def _told(state: Mapping[str, bytes]) -> bytes:
    """Return what stands in `parts` behind the position; nothing where that is of an earlier commit."""
    position, _, told = state.get("parts", b"").partition(b" ")
    return told if position == state.get("position") else b""


def change_set_of_states(
    position: Position, totals: tuple[int, int], states: Sequence[Mapping[str, bytes]]
) -> ChangeSet:
    """Rebuild a commit whose entry is lost, from the hashes of those states that it was the last to write.

    States that were written again since are not in it. `totals` are the shard's entries and bytes up to and including
    it. Raises ForeignEntry for a damaged hash.
    """
    try:
        first = states[0]
        actor, reason = next(filter(any, map(said_of, states)), ("", ""))
        return ChangeSet(
            position=position,
            change_id=first["change_id"].decode(),
            at=_time(first["updated_at"]),
            writer=first["writer"].decode(),
            actor=actor,
            reason=reason,
            entries=totals[0],
            bytes=totals[1],
            changes=tuple(_change_of_state(state) for state in states),
        )
    except KeyError as error:
        raise ForeignEntry(f"the state's field {error} is missing") from None
    except UnicodeDecodeError as error:
        raise ForeignEntry(f"the state holds text that is not UTF-8: {error.reason}") from None


def fields_of(one: ChangeSet) -> list[bytes]:
    """Return the fields of a change-set's entry, as a commit adds them; those of its leases are not known any more."""
    told = {"format": "1", "change_id": one.change_id, "at": one.at.isoformat(), "writer": one.writer,
            "entries": one.entries, "bytes": one.bytes}  # fmt: skip
    told |= {name: said for name, said in (("actor", one.actor), ("reason", one.reason)) if said}
    fields = [part for name, said in told.items() for part in (name.encode(), str(said).encode())]
    for i, change in enumerate(one.changes, 1):
        texts = (change.key, change.op, str(change.version), change.parent_change_id, change.encoding, change.schema)
        for name, said in zip(_STATE, (*(text.encode() for text in texts), change.value), strict=True):
            fields += [b"%s%d" % (name.encode(), i), said]
    return fields


def _change_of_state(state: Mapping[str, bytes]) -> ChangeRecord:
    op = _OPS.get(state["op"])
    if op is None:
        raise ForeignEntry("the state's op is not one of ours")
    return ChangeRecord(
        change_id=state["change_id"].decode(),
        key=state["key"].decode(),
        op=op,
        version=_integer(state["version"], "the state's version"),
        parent_change_id=state["parent_change_id"].decode(),
        value=state["value"],
        encoding=state["encoding"].decode(),
        schema=state["schema"].decode(),
    )


def _integer(text: bytes, what: str) -> int:
    if not text.isdigit() or len(text) > 20 or (number := int(text)) > INTEGER_MAX:
        raise ForeignEntry(f"{what} is not a number that Postgres can hold")
    return number


def _time(text: bytes) -> datetime:
    try:
        at = datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        raise ForeignEntry("its time is not one that the script writes") from None
    if at.tzinfo is not UTC and at.utcoffset() is None:
        raise ForeignEntry("its time has no zone")
    return at
