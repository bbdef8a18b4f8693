"""What many processes did to a cache and saw of it, kept so that a SIGKILL takes nothing back.

Every process writes a journal of its own: one JSON line an event, one `os.write` on an O_APPEND descriptor a line.

    invoke    before anything is sent: who, what, on which keys, expecting what; repeated where a write is sent again
    ok        it was done, and this is what was written and read
    fail      nothing was applied; `final` where the answer speaks of all sendings of the change, not of this one alone
    unknown   it may have been done

So an operation without an end, and a line that was torn by a kill, mean unknown: it returned at infinity. A write's
tag goes into the `reason` of its changes, by which a change is known to its operation even where no answer named its
change_id. Times are CLOCK_MONOTONIC of one machine, so the journals of several processes can be compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from statecache.clock import monotonic
from statecache.model import State

Outcome = Literal["ok", "fail", "unknown"]
Kind = Literal["read", "write", "confirm", "ask"]
Modifier = tuple[str, Any]
"""The verb of a modifier, and what it is given: a number, or items."""
MOVES = ("copy", "rename", "touch", "rollback", "undo", "redo", "rollback_group", "branch")
"""Verbs that write a value which was made by another write."""


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key as an operation saw or left it.

    `op` is `set` or `delete` of a change that is named, or says only that the key was `absent` or `present`.
    """

    key: str
    op: str = "set"
    change_id: str = ""
    parent: str | None = None
    epoch: int = 0
    version: int = 0
    n: int = 0
    digest: str = ""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of one session, from its first sending to its end; a session does one at a time.

    `kind` is `write` for whatever may change a key (`keys` are then those that it would change), `confirm` for waiting
    until a change is durable, `ask` for asking what became of one (`verdict` is the answer), else `read`. `expected`
    maps keys to a change_id, ABSENT or PRESENT, `modifiers` maps them to what is made of what is there. What an
    acknowledged write has `read` was still current at the moment of its commit; a refused one read it at some moment. A
    read asked for a state not older than `stale_s` seconds, and of at least `version_min`; `at_once` means that nothing
    was waited for. `held` says whether Postgres, queried directly, held the change when it was reported durable: `yes`,
    `no`, or '' where it was not asked.
    """

    tag: str
    session: str
    number: int
    verb: str
    kind: Kind
    keys: tuple[str, ...]
    invoked: float
    returned: float = inf
    outcome: Outcome = "unknown"
    change_id: str = ""
    expected: Mapping[str, str] = {}
    modifiers: Mapping[str, Modifier] = {}
    mode: str = ""
    level: str = "memory"
    stale_s: float = inf
    version_min: int = 0
    at_once: bool = False
    written: tuple[Seen, ...] = ()
    read: tuple[Seen, ...] = ()
    error: str = ""
    verdict: str = ""
    held: str = ""


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    tag: str
    at: float


class Invoke(_Line, frozen=True, tag="invoke"):
    """The line before every sending."""

    session: str
    number: int
    verb: str
    kind: Kind
    keys: tuple[str, ...]
    change_id: str = ""
    expected: dict[str, str] = {}
    modifiers: dict[str, Modifier] = {}
    mode: str = ""
    level: str = "memory"
    stale_s: float | None = None
    version_min: int = 0


class Ok(_Line, frozen=True, tag="ok"):
    """The line of an operation that was done; `level` is set where another one than asked for was reached."""

    change_id: str = ""
    level: str = ""
    at_once: bool = False
    written: tuple[Seen, ...] = ()
    read: tuple[Seen, ...] = ()
    verdict: str = ""
    held: str = ""


class Fail(_Line, frozen=True, tag="fail"):
    """The line of a sending that applied nothing; with `final`, no sending of the operation did."""

    error: str = ""
    final: bool = False
    read: tuple[Seen, ...] = ()


class Unknown(_Line, frozen=True, tag="unknown"):
    """The line of a sending that may have been applied."""

    error: str = ""
    change_id: str = ""


Line = Invoke | Ok | Fail | Unknown

_decoder = msgspec.json.Decoder(Line)
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


def digest_of(value: Any) -> str:
    """Return a short digest of a JSON value, the same before it is stored and after it was read."""
    return hashlib.sha256(_canonical(value)).hexdigest()[:16]


def seen_of(state: State[Any]) -> Seen:
    """Return what a state of the public API shows; a tombstone has no value."""
    return Seen(
        key=state.key,
        op="delete" if state.value is None else "set",
        change_id=state.change_id,
        parent=state.parent_change_id,
        epoch=state.epoch,
        version=state.version,
        n=0 if state.position is None else state.position.n,
        digest="" if state.value is None else digest_of(state.value),
    )


class Recorder:
    """The writer of one process's journal; `process` names one life of the process and no other.

    One recorder serves all sessions of the process, in tasks or threads: a line is one system call.
    """

    def __init__(self, path: Path, process: str, *, clock: Callable[[], float] = monotonic) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._process = process
        self._clock = clock
        self._numbers: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._descriptor)

    def invoke(
        self,
        session: str,
        verb: str,
        keys: Iterable[str],
        *,
        kind: Kind,
        change_id: str = "",
        expected: Mapping[str, str] | None = None,
        modifiers: Mapping[str, Modifier] | None = None,
        mode: str = "",
        level: str = "memory",
        stale_s: float | None = None,
        version_min: int = 0,
    ) -> Invoke:
        """Note that an operation is about to be sent; its `tag` goes into the `reason` of a write."""
        session = f"{self._process}.{session}"
        number = self._numbers[session] = self._numbers.get(session, 0) + 1
        line = Invoke(
            tag=f"{session}.{number}", at=self._clock(), session=session, number=number, verb=verb, kind=kind,
            keys=tuple(keys), change_id=change_id, expected=dict(expected or {}), modifiers=dict(modifiers or {}),
            mode=mode, level=level, stale_s=stale_s, version_min=version_min,
        )  # fmt: skip
        self._write(line)
        return line

    def again(self, invoked: Invoke, *, change_id: str) -> Invoke:
        """Note that the same write is about to be sent once more, under the change_id it had."""
        line = msgspec.structs.replace(invoked, at=self._clock(), change_id=change_id)
        self._write(line)
        return line

    def ok(
        self,
        invoked: Invoke,
        *,
        written: Iterable[Seen] = (),
        read: Iterable[Seen] = (),
        change_id: str = "",
        level: str = "",
        at_once: bool = False,
        verdict: str = "",
        held: str = "",
    ) -> None:
        """Note that the operation was done."""
        written = tuple(written)
        change_id = change_id or next((seen.change_id for seen in written), "")
        ended = Ok(
            tag=invoked.tag, at=self._clock(), change_id=change_id, level=level, at_once=at_once, written=written,
            read=tuple(read), verdict=verdict, held=held,
        )  # fmt: skip
        self._write(ended)

    def fail(self, invoked: Invoke, error: BaseException, *, final: bool, read: Iterable[Seen] = ()) -> None:
        """Note that nothing was applied; `read` is what the refusal told of the keys."""
        self._write(Fail(tag=invoked.tag, at=self._clock(), error=_named(error), final=final, read=tuple(read)))

    def unknown(self, invoked: Invoke, error: BaseException, *, change_id: str = "") -> None:
        """Note that the outcome is not known."""
        self._write(Unknown(tag=invoked.tag, at=self._clock(), error=_named(error), change_id=change_id))

    def _write(self, line: Line) -> None:
        data = _encode(line) + b"\n"
        if os.write(self._descriptor, data) != len(data):
            raise OSError("the disk took only a part of a line")


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class BrokenJournal(Exception):
    """A journal that no recorder writes and no kill leaves behind."""


def lines_of(data: bytes, name: str = "journal") -> Iterator[Line]:
    """Yield a journal's lines; only the last one may be torn, and then counts as not written."""
    *lines, _torn = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield _decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise BrokenJournal(f"{name}, line {number}: {error}") from None


def operations_of(lines: Iterable[Line]) -> list[Operation]:
    """Return the operations of one journal's lines, in the order of their first sending."""
    attempts: dict[str, list[Line]] = {}
    for line in lines:
        if not isinstance(line, Invoke) and line.tag not in attempts:
            raise BrokenJournal(f"{line.tag} ends without having begun")
        attempts.setdefault(line.tag, []).append(line)
    return [_operation(lines) for lines in attempts.values()]


def _operation(lines: list[Line]) -> Operation:
    first, last = lines[0], lines[-1]
    assert isinstance(first, Invoke)
    operation = Operation(
        tag=first.tag, session=first.session, number=first.number, verb=first.verb, kind=first.kind, keys=first.keys,
        invoked=first.at, change_id=_change_id(lines), expected=first.expected, modifiers=first.modifiers,
        mode=first.mode, level=first.level,
        stale_s=inf if first.stale_s is None else first.stale_s, version_min=first.version_min,
    )  # fmt: skip
    if isinstance(last, Ok):
        return msgspec.structs.replace(
            operation, returned=last.at, outcome="ok", written=last.written, read=last.read,
            level=last.level or first.level, at_once=last.at_once, verdict=last.verdict, held=last.held,
        )  # fmt: skip
    error = next((line.error for line in reversed(lines) if isinstance(line, Fail | Unknown)), "")
    if isinstance(last, Fail) and (last.final or not _in_doubt(lines)):
        return msgspec.structs.replace(operation, returned=last.at, outcome="fail", read=last.read, error=error)
    return msgspec.structs.replace(operation, error=error)


def _in_doubt(lines: list[Line]) -> bool:
    """Return whether an earlier sending may have been applied; the last line is the last sending's refusal."""
    sendings = sum(isinstance(line, Invoke) for line in lines)
    refusals = sum(isinstance(line, Fail) for line in lines)
    return refusals < sendings


def _change_id(lines: list[Line]) -> str:
    named = (line.change_id for line in reversed(lines) if not isinstance(line, Fail))
    return next((change_id for change_id in named if change_id), "")


def read_journals(paths: Iterable[Path]) -> list[Operation]:
    """Return the operations of all these journals, by the time of their first sending."""
    found = [operation for path in paths for operation in operations_of(lines_of(path.read_bytes(), path.name))]
    return sorted(found, key=lambda operation: operation.invoked)
