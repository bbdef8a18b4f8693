"""A change without its value, as the commands on history show it: an object for programs, lines for people.

What a change was made from, as its reason says, stands beside the reason that was given for it.
"""

from __future__ import annotations

from datetime import datetime

import msgspec
from rich.text import Text

from statecache.cli.screen import plain, size_text, time_text
from statecache.expiry import expires_at, form_of
from statecache.records import text_of
from statecache.rules.provenance import Kind, Provenance, provenance_of
from statecache.rules.versions import Version


class MadeFrom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a change was made from: a version of a key; of a delete by a worker, only which kind it is."""

    kind: Kind
    key: str = ""
    version: int | None = None
    position: str = ""

    def __str__(self) -> str:
        at = self.position if self.version is None else str(self.version)
        if not at:
            return self.kind
        return (
            f"{self.kind} to {at}" if self.kind in ("rollback", "undo", "redo") else f"{self.kind} of {self.key}@{at}"
        )


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A change without its value."""

    key: str
    version: int
    op: str
    at: str
    epoch: int
    position: str
    change_id: str
    parent_change_id: str
    writer: str
    actor: str
    reason: str
    made_from: MadeFrom | None
    bytes: int
    sha256: str
    encoding: str
    schema: str
    expires_at: str
    durable: bool
    kept: bool
    gap: bool

    def facts(self, now: datetime, at: datetime) -> list[tuple[str, str]]:
        """Return what there is to say, as pairs of name and text; what is empty is left out."""
        said = [
            ("key", self.key), ("version", str(self.version)), ("op", self.op), ("at", f"{self.at} ({ago(at, now)})"),
            ("made from", str(self.made_from or "")), ("reason", self.reason), ("actor", self.actor),
            ("writer", self.writer), ("change_id", self.change_id), ("parent", self.parent_change_id),
            ("position", self.position), ("bytes", f"{self.bytes:,}" if self.op == "set" else ""),
            ("sha256", self.sha256 if self.op == "set" else ""), ("encoding", self.encoding), ("schema", self.schema),
            ("expires_at", self.expires_at), ("durable", "yes" if self.durable else "not yet"),
            ("before it", "versions are missing" if self.gap else ""),
        ]  # fmt: skip
        return [(name, text) for name, text in said if text]


def header_of(version: Version) -> Header:
    """Return a change as it is shown."""
    until = expires_at(version.encoding)
    return Header(
        key=version.key, version=version.version, op=version.op, at=text_of(version.at), epoch=version.epoch,
        position=str(version.position), change_id=version.change_id, parent_change_id=version.parent_change_id,
        writer=version.writer, actor=version.actor, reason=reason_of(version), made_from=made_from(version),
        bytes=version.size, sha256=(version.digest or b"").hex(), encoding=form_of(version.encoding),
        schema=version.schema, expires_at="" if until is None else text_of(until), durable=version.durable,
        kept=version.kept, gap=version.gap,
    )  # fmt: skip


def made_from(version: Version) -> MadeFrom | None:
    """Return what a change was made from; None where its reason does not say so."""
    found = provenance_of(version.reason)
    if found is None:
        return None
    key = version.key if found.kind in ("rollback", "undo", "redo") else _origin(found, version.key)
    position = "" if found.position is None else str(found.position)
    return MadeFrom(kind=found.kind, key=key, version=found.version, position=position)


def reason_of(version: Version) -> str:
    """Return the reason that whoever made a change gave for it."""
    found = provenance_of(version.reason)
    return version.reason if found is None else found.reason


def who(version: Version) -> str:
    """Return who made a change: the actor that was named, else the process."""
    return version.actor or version.writer


def titled(version: Version, now: datetime) -> Text:
    """Return a change in a line: which one, when, by whom, from what, and why."""
    line = Text(plain(f"{version.key}@{version.version}"), "bold")
    line.append(f"  {ago(version.at, now)}", "cyan")
    line.append(f"  {plain(who(version))}", "none")
    if version.op != "set":
        line.append(f"  {plain(version.op)}", "red")
    if (made := made_from(version)) is not None:
        line.append(f"  {plain(str(made))}", "magenta")
    return line.append(f"  {plain(reason_of(version))}".rstrip(), "none")


def ago(at: datetime, now: datetime) -> str:
    """Return in a few characters how long ago something was."""
    return f"{time_text((now - at).total_seconds())} ago"


def size_of(version: Version) -> str:
    """Return the bytes of a change's value in a few characters; that of a delete has none."""
    return size_text(version.size) if version.op == "set" else ""


def _origin(found: Provenance, key: str) -> str:
    return found.origin_of(key) if found.origin else ""
