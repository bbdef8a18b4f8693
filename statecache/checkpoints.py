"""Checkpoints as users get them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from statecache.model import Position

Scope = Literal["key", "group"]


class MadeBy(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint was made with, to be compared before it is gone back to.

    `application_version` is the setting of that name. `configuration_hash` is the SHA-256 of the settings that decide
    how states are kept: no URL, no file, no name of a process is in it. `dependencies` are versions of Python and of
    the libraries that encode and carry values.
    """

    statecache_version: str
    application_version: str
    configuration_hash: str
    dependencies: dict[str, str]


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A named point in the history of a key or of a whole group, which no retention takes away while it is `pinned`.

    That of a key is its `version`, made by the change `change_id`, with the value's `schema` and `sha256`. That of a
    group is a `position` of its shard: one consistent point of all its keys, whose version is None. `created_at` and
    `position` are those of the commit that made it, `writer` who made that. `automatic` says that a policy had it made.
    """

    key: str
    label: str
    scope: Scope
    version: int | None
    change_id: str
    position: Position
    created_at: datetime
    writer: str
    metadata: Any
    schema: str
    sha256: str
    made_by: MadeBy
    automatic: bool = False
    pinned: bool = True
