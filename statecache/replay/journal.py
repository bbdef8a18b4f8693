"""Journals: one file for each life of an agent process, a JSON line an event, whole before anything else happens.

A line is one `write` on a descriptor opened with O_APPEND, so it is in the kernel when the call returns, and a SIGKILL
cannot take it back. Only the last line of a file can be torn, by a kill in the middle of that write; then the
`invoke` it was to be was never sent, and the `ok` it was to be leaves its change in doubt. Anything else that does not
read as a line is an error. Times are CLOCK_MONOTONIC: one machine, so journals can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from statecache.errors import StateCacheError


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    at: float


class Started(_Line, frozen=True, tag="start"):
    """The first line of a journal: which life of which agent."""

    agent: int
    life: int
    pid: int


class Level(_Line, frozen=True, tag="level"):
    """A change of durability: the agent goes on at `level`, for that reason."""

    level: str
    reason: str


class Resumed(_Line, frozen=True, tag="resume"):
    """A run that a later life takes up after `step` acknowledged messages."""

    run: str
    step: int


class Invoke(_Line, frozen=True, tag="invoke"):
    """The line before every sending of a change; `expected` is the change it continues, empty for the first."""

    run: str
    index: int
    change_id: str
    expected: str


class Ok(_Line, frozen=True, tag="ok"):
    """The acknowledgement of a change; `found` if a reading told of it and not the reply to the commit."""

    change_id: str
    version: int
    epoch: int
    position: str
    found: bool = False


class Unknown(_Line, frozen=True, tag="unknown"):
    """The end of a sending whose outcome is not known."""

    change_id: str
    error: str


class Fail(_Line, frozen=True, tag="fail"):
    """The refusal of a sending: as the cache said, nothing was applied."""

    change_id: str
    error: str


class Done(_Line, frozen=True, tag="done"):
    """The last line of a journal: all runs of the agent are complete."""


class Fatal(_Line, frozen=True, tag="fatal"):
    """The error for which the agent gave up for good; `kind` is its class."""

    kind: str
    error: str


Line = Started | Level | Resumed | Invoke | Ok | Unknown | Fail | Done | Fatal

_decoder = msgspec.json.Decoder(Line)
_encode = msgspec.json.Encoder().encode


class JournalBroken(StateCacheError):
    """The journal {path} cannot be trusted: line {number}: {reason}."""

    def __init__(self, path: Path, *, number: int, reason: str) -> None:
        super().__init__(path=str(path), number=number, reason=reason)


class Journal:
    """A journal to append to: a new file that nobody else writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._descriptor)

    def write(self, line: Line) -> None:
        """Append a line; when the call returns, no kill of this process can take it back."""
        data = _encode(line) + b"\n"
        self._lines += 1
        if os.write(self._descriptor, data) != len(data):
            raise JournalBroken(self._path, number=self._lines, reason="the disk took only a part of it")


class Tail:
    """A journal that is read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._lines = 0

    def read(self) -> Iterator[Line]:
        """Yield the whole lines that came since the last call: none from a journal that is not there yet."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines += 1
            try:
                yield _decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise JournalBroken(self.path, number=self._lines, reason=str(error)) from None


def journal_path(folder: Path, agent: int, life: int) -> Path:
    """Return the path of the journal of one life of an agent."""
    return folder / f"agent-{agent}.{life}.jsonl"
