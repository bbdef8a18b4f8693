"""The large values of checkpoints, in pieces: from this process, from the channels' states, and from their history.

A piece is known by the version of its channel's state: what this process has put or read of that version is not asked
for again, the newest one is in Redis, and an older one comes from the history. Of several checkpoints that are read
together, what they need of one channel's history is read at once.

Retention lets old versions go, and an export takes only the newest ones along. So what the latest checkpoint names is
always the newest: whoever has the head name a checkpoint whose values were written over since puts these again, of what
this process holds or the history keeps, and is refused where neither does. Their versions are others after a
`rollback`, or an import elsewhere: by its digest a piece is known all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache import CodecError, HistoryDamaged, HistoryIncomplete, VersionNotFound
from statecache.adapters.langgraph.documents import Document, place_of
from statecache.adapters.langgraph.names import Place, other_state_of
from statecache.adapters.langgraph.recent import PieceName
from statecache.adapters.langgraph.values import Form, Packed, digest_of, joined, packed_of, piece_of
from statecache.adapters.plans import Plan, call

if TYPE_CHECKING:
    from statecache import Change, State
    from statecache.adapters.langgraph.recent import Recent

Pieces = dict[PieceName, bytes]
_APART_MAX = 4
"""How many versions of a channel may lie between two that are read at once."""


class _Large(NamedTuple):
    """A large value: its channel, its form, and the pieces that it is of, each with the name of its copy, or empty."""

    channel: str
    form: Form
    pieces: dict[PieceName, str]


def packed_values(
    document: Document, channels: Collection[str], recent: Recent, known: Mapping[PieceName, bytes] | None = None,
    along: Mapping[str, State[Any] | None] | None = None,
) -> Plan[dict[str, Packed]]:  # fmt: skip
    """Return the values of those of the channels that have any, as bytes.

    `known` are pieces that were read before, `along` states of channels, by name, that were read with the checkpoint.
    """
    forms: dict[str, Form] = {one: form for one, form in document["channel_values"].items() if one in channels}
    large = [*_large(document, forms)]
    if not large:
        return {channel: packed_of(form) for channel, form in forms.items()}
    wanted = {piece: copy for one in large for piece, copy in one.pieces.items()}
    pieces = {one: known[one] for one in wanted if one in known} if known else {}
    pieces |= recent.pieces(_without(wanted, pieces))
    pieces |= _held(_without(wanted, pieces), along or {})
    pieces |= yield from _newest(_without(wanted, pieces))
    pieces |= yield from _each(_without(wanted, pieces), wanted)
    recent.add(pieces)
    values = {one.channel: joined(one.form, (pieces[piece] for piece in one.pieces)) for one in large}
    return {channel: values[channel] if channel in values else packed_of(form) for channel, form in forms.items()}


def pieces_of(documents: Iterable[Document], recent: Recent) -> Plan[Pieces]:
    """Return what can be read at once of the large values of several checkpoints."""
    large = [one for document in documents for one in _large(document, document["channel_values"])]
    wanted = {piece: copy for one in large for piece, copy in one.pieces.items()}
    pieces = recent.pieces(wanted)
    pieces |= yield from _newest(_without(wanted, pieces))
    for run in _runs(_without(wanted, pieces)):
        pieces |= yield from _between(run)
    return pieces


def _large(document: Document, forms: Mapping[str, Form]) -> Iterator[_Large]:
    """Yield those values of a checkpoint that have states of their own, which may be those of another thread."""
    place: Place | None = None
    for channel, form in forms.items():
        if "versions" not in form:
            continue
        place = place or place_of(document)
        other = Place(form["thread_id"], place.checkpoint_ns) if "thread_id" in form else None
        beside = form.get("beside", False)
        yield _Large(channel, form, {
            PieceName((other or place).channel(channel, at, beside=beside), version, form["of"], digest):
                place.channel(channel, at, beside=beside) if other else ""
            for at, (version, digest) in enumerate(zip(form["versions"], _digests(form), strict=True))
        })  # fmt: skip


def _digests(form: Form) -> list[str]:
    return form.get("digests") or [""] * len(form["versions"])


def _without(wanted: Iterable[PieceName], pieces: Mapping[PieceName, bytes]) -> list[PieceName]:
    return [one for one in wanted if one not in pieces]


def _held(wanted: Iterable[PieceName], states: Mapping[str, State[Any] | None]) -> Pieces:
    """Return those pieces that these states hold."""
    return {
        one: piece_of(state.value) for one in wanted
        if (state := states.get(one.name)) is not None and _is(state, one)
    }  # fmt: skip


def _newest(wanted: Collection[PieceName]) -> Plan[Pieces]:
    """Return those pieces that the states of channels hold now."""
    pieces, older = Pieces(), set[PieceName]()
    for read in ("local", "primary"):  # a state that is older than wanted, or went with its Redis, is not the newest
        left = [one for one in wanted if one not in pieces and one not in older]
        names = [*dict.fromkeys(one.name for one in left)]
        found: dict[str, State[Any] | None] = (yield from call("get_many", names, read=read)) if names else {}
        pieces |= _held(left, found)
        for one in _without(left, pieces):
            state = found[one.name]
            if state is not None and state.version > one.version:
                older.add(one)
    return pieces


def _runs(wanted: Collection[PieceName]) -> Iterator[list[PieceName]]:
    """Yield pieces whose versions of a state lie near one another, the oldest first."""
    run: list[PieceName] = []
    for one in sorted(wanted):
        if run and (one.name != run[-1].name or one.version > run[-1].version + _APART_MAX):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _between(run: Sequence[PieceName]) -> Plan[Pieces]:
    """Return what the history holds of a run of pieces; what it does not is looked for one by one, by who needs it."""
    if len(run) == 1:
        return {}
    try:
        changes: list[Change[Any]] = yield from call(
            "history", run[0].name, since=run[0].version, until=run[-1].version, values=True
        )
    except (CodecError, HistoryDamaged, HistoryIncomplete):
        return {}
    found: dict[int, Document] = {one.version: one.value for one in changes if one.value is not None}
    there = [one for one in run if one.version in found and found[one.version]["checkpoint_id"] == one.of]
    return {one: piece_of(found[one.version]) for one in there}


def _each(wanted: Collection[PieceName], copies: Mapping[PieceName, str]) -> Plan[Pieces]:
    """Return pieces from the history, one by one.

    What is gone with the thread from which a group was branched is in the state that it began with, if it was the
    newest then: `copies` says which that is.
    """
    pieces = Pieces()
    for one in wanted:
        state = yield from _older(one, copies[one])
        pieces[one] = piece_of(state.value)
    return pieces


def _older(one: PieceName, copy: str) -> Plan[State[Any]]:
    """Return the state of a piece from the history; `copy` is the name of its copy, or empty.

    What the history does not hold any more may have been put again in the channel's other state.
    """
    state: State[Any] | None = None
    gone: VersionNotFound | None = None
    try:
        state = yield from call("get_at", one.name, version=one.version)
    except VersionNotFound as error:
        gone = error
    sought = one
    if not copy and not _is(state, one):
        state, sought = (yield from call("get", other_state_of(one.name), read="primary")), one._replace(version=0)
    if copy and not _is(state, one):  # the first thread is gone, or another one has its name
        state = yield from call("get", copy, read="primary")
        if not _is(state, one):
            state, sought = (yield from call("get_at", copy, version=1)), one._replace(version=1)
    if state is None or not _is(state, sought):
        why = f"it was not put with checkpoint {one.of!r}"
        raise gone or VersionNotFound(one.name, wanted=f"version {one.version}", reason=why)
    return state


def are_kept(document: Document, channels: Collection[str], recent: Recent) -> Plan[bool]:
    """Return whether the values of these channels can be read.

    None is read that this process holds, or the history says that it keeps. Others may be the newest under another
    version, or copies: these are read.
    """
    forms = {channel: document["channel_values"][channel] for channel in channels}
    pieces = [piece for large in _large(document, forms) for piece in large.pieces]
    for one in _without(pieces, recent.pieces(pieces)):
        try:
            changes: list[Change[Any]] = yield from call("history", one.name, since=one.version, until=one.version)
        except (CodecError, HistoryDamaged, HistoryIncomplete):
            break
        if not any(change.kept and not change.deleted for change in changes):
            break
    else:
        return True
    try:
        yield from packed_values(document, forms, recent)
    except VersionNotFound:
        return False
    return True


def kept_values(document: Document, recent: Recent) -> Plan[tuple[dict[str, Packed], set[str]]]:
    """Return the values of a checkpoint, as bytes, and the channels of which a policy has let them go."""
    channels = document["channel_values"]
    try:
        return (yield from packed_values(document, channels, recent)), set()
    except VersionNotFound:
        pass
    values, lost = dict[str, Packed](), set[str]()
    for channel in channels:
        try:
            values |= yield from packed_values(document, [channel], recent)
        except VersionNotFound:
            lost.add(channel)
    return values, lost


def _is(state: State[Any] | None, one: PieceName) -> bool:
    """Return whether a channel's state is the one that a checkpoint names, or holds the same."""
    if state is None or state.value["checkpoint_id"] != one.of:
        return False
    return state.version == one.version or digest_of(piece_of(state.value)) == one.digest


def not_newest(
    document: Document, forms: Mapping[str, Form], recent: Recent
) -> Plan[tuple[dict[str, Packed], dict[str, VersionNotFound]]]:
    """Return those large values of a checkpoint, of these forms, that are not the newest of their states.

    Also return of which channels there is none any more, in this process or in the history, and what says so.
    """
    values, lost = dict[str, Packed](), dict[str, VersionNotFound]()
    large = [*_large(document, forms)]
    names = [copy or one.name for each in large for one, copy in each.pieces.items()]
    newest: dict[str, State[Any] | None] = (yield from call("get_many", names, read="primary")) if names else {}
    for each in large:
        states = {one: newest[copy or one.name] for one, copy in each.pieces.items()}
        there = {one: piece_of(state.value) for one, state in states.items() if state is not None and _is(state, one)}
        if len(there) == len(each.pieces):
            continue
        there |= recent.pieces(_without(each.pieces, there))
        try:
            there |= yield from _each(_without(each.pieces, there), each.pieces)
        except VersionNotFound as error:
            lost[each.channel] = error
        else:
            values[each.channel] = joined(each.form, (there[one] for one in each.pieces))
    return values, lost
