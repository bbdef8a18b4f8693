"""What is looked at when everything is healed and at rest: both tiers, whole, and the journals of all processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import redis

from statecache.clock import monotonic, wall
from statecache.expiry import until_of
from statecache.history import Stored, values_of
from statecache.keys import KeySpace
from statecache.rules.provenance import provenance_of
from tests.simulation.arena import EXPECTED_ERRORS, Arena
from tests.simulation.checker import check
from tests.simulation.evidence import Evidence, Loss, Row, Verdict
from tests.simulation.history import Operation, digest_of, read_journals
from tests.simulation.history_judge import judge_history

_LOST = re.compile(r"Lost: Change (\w+) of .* (?:began without|Postgres went past) its position (\d+)-(\d+),")
_OF_A_MOMENT = re.compile(rb"[^:]+:\{\d+\}:(?!state:)")
"""Redis keys that are no state's, whatever key they end in: those of this and of other releases that take turns."""
_FIELDS = ("key", "op", "version", "epoch", "change_id", "value")

LEFT_S = 45.0
"""How long after its end a state may still be there: workers try again so late after a long outage."""

Connection = psycopg.Connection[Any]


def evidence(connection: Connection, schema: str) -> Evidence:
    """Return every chain of Postgres and whatever was set aside."""
    chains: dict[str, list[Row]] = {}
    query = (
        "SELECT key, change_id, parent_change_id, epoch, version, op, n, reason, gap, at, encoding,"
        f" value, packed, keyframe, digest FROM {schema}.change ORDER BY key, version"
    )
    found = {key: [*rows] for key, rows in groupby(connection.execute(query.encode()), itemgetter(0))}
    for key, values in _values(connection, schema, found).items():
        chains[key] = [_row(*(*row[:11], value)) for row, value in zip(found[key], values, strict=True)]
    conflicts = connection.execute(f"SELECT change_id, key FROM {schema}.conflict".encode()).fetchall()
    parked = connection.execute(f"SELECT change_id, unnest(keys) FROM {schema}.quarantine".encode()).fetchall()
    return Evidence(chains=chains, conflicts=set(conflicts), quarantined=set(parked))


def _values(connection: Connection, schema: str, found: Mapping[str, Sequence[Any]]) -> dict[str, list[bytes | None]]:
    """Return the values of each chain; those of branches are read behind those that they began from."""
    query = f"SELECT key, version, origin, origin_version FROM {schema}.branch"
    links = {(key, version): (origin, at) for key, version, origin, at in connection.execute(query.encode())}
    values: dict[str, list[bytes | None]] = {}
    known: dict[tuple[str, int], bytes | None] = {}
    todo = [*found]
    while todo:
        ready = [key for key in todo if all(links.get((key, row[4])) in known for row in found[key] if _is_branch(row))]
        for key in ready or todo:
            origins = {row[4]: known.get(links.get((key, row[4]), ("", 0))) for row in found[key] if _is_branch(row)}
            values[key] = values_of((Stored(row[4], *row[11:]) for row in found[key]), origins)
            known |= {(key, row[4]): value for row, value in zip(found[key], values[key], strict=True)}
        todo = [key for key in todo if key not in values]
    return values


def _is_branch(row: Sequence[Any]) -> bool:
    """Return whether a row's value is kept as a delta to another key's."""
    return bytes(row[12] or b"")[:1] == b"o"


def _row(
    key: str, change_id: str, parent: str, epoch: int, version: int, op: str, n: int, reason: str, gap: bool,
    at: datetime, encoding: str, value: bytes | None,
) -> Row:  # fmt: skip
    until = until_of(encoding) or inf
    value_made = msgspec.json.decode(value or b'"it cannot be read"') if op == "set" else {}
    content = value_made if isinstance(value_made, dict) else {}
    return Row(
        key=key, change_id=change_id, parent=parent, epoch=epoch, version=version, op=op, n=n,
        tag=_tag(reason) or content.get("by", ""), digest=digest_of(value_made) if op == "set" else "",
        follows=content.get("after"), by=content.get("by", ""), value=None if content else value_made, gap=gap,
        at=at.timestamp() * 1000, until=until, ends=until / 1000 - wall().timestamp() + monotonic(),
    )  # fmt: skip


def _tag(reason: str) -> str:
    """Return the tag in a change's reason, behind what it says of where the change came from."""
    said = provenance_of(reason)
    return reason if said is None or said.kind == "expired" else said.reason


def tips(connection: Connection, raw: redis.Redis, keys: KeySpace, schema: str, found: Evidence) -> list[str]:
    """Compare the end of each chain, Postgres's row and Redis's hash of each key; return the differences."""
    findings = []
    query = f"SELECT key, op, version, epoch, change_id, value FROM {schema}.state"
    states = {row[0]: (*row[:5], bytes(row[5])) for row in connection.execute(query.encode())}
    ends = {key: (key, row.op, row.version, row.epoch, row.change_id) for key, (*_, row) in found.chains.items()}
    for key in states.keys() | ends.keys():
        state = states.get(key)
        if state is None or state[:5] != ends.get(key):
            findings.append(f"{key}: the chain ends in {ends.get(key)}, the state is {state and state[:5]}")
    for key, held in _hashes(raw, keys):
        if held is None or held[0] != key:
            findings.append(f"{key}: its hash in Redis is of {held and held[0]!r}")
        elif held[1] == "absent" and (key not in states or states[key][1] == "delete"):
            continue
        elif held != states.get(key):
            findings.append(f"{key}: Redis has {held}, Postgres {states.get(key)}")
    return findings


def left_behind(found: Evidence, now: float) -> list[str]:
    """Return the states that ended long before that moment of the monotonic clock, and that no worker has deleted."""
    tips = ((key, row) for key, (*_, row) in found.chains.items())
    return [
        f"{key}: {row.change_id} ended {now - row.ends:.0f} s ago, and is not deleted"
        for key, row in tips
        if row.op == "set" and row.ends + LEFT_S < now
    ]


def _hashes(raw: redis.Redis, keys: KeySpace) -> list[tuple[str, tuple[Any, ...] | None]]:
    """Return every state that Redis holds, with the key that its Redis key stands for; None for a torn hash."""
    found: list[tuple[str, tuple[Any, ...] | None]] = []
    for name in raw.scan_iter(match=keys.every_state(), count=1000):
        if _OF_A_MOMENT.match(name):  # of a key that spells a state's name itself
            continue
        values: Any = raw.hmget(name, _FIELDS)
        key = _key_of(name.decode(), keys)
        if None in values:
            if raw.exists(name):  # what has a time to live may have gone since it was listed
                found.append((key, None))
            continue
        said, op, version, epoch, change_id, value = values
        found.append((key, (said.decode(), op.decode(), int(version), int(epoch), change_id.decode(), value)))
    return found


def _key_of(name: str, keys: KeySpace) -> str:
    """Return the key whose hash has this name, or the name if there is none: each end of the name is tried."""
    for at in range(len(name)):
        if "/" in name[at:].strip("/") and not name[at:].startswith("/") and keys.state(name[at:]) == name:
            return name[at:]
    return name


def journals(folder: Path) -> list[Operation]:
    """Read the journals of all writers."""
    return read_journals(sorted(folder.glob("*.jsonl")))


def unexpected(operations: Sequence[Operation], expected: Sequence[str] = EXPECTED_ERRORS) -> list[str]:
    """Return the errors that no fault explains."""
    told = (one for one in operations if one.error and one.error.split(":")[0] not in expected)
    return [f"{one.tag} ({one.verb} at {one.level}): {one.error}" for one in told]


def lost_in_vain(operations: Sequence[Operation], found: Evidence) -> list[str]:
    """Return the operations that were told of a lost position which is in the chains, all of it.

    Its change may be, at another; and so may a part of it, of which the rest was gone with its entry.
    """
    places = Counter((row.change_id, row.epoch, row.n) for chain in found.chains.values() for row in chain)
    keys = {one.change_id: len(one.keys) for one in operations if one.kind == "write"}
    told = [(one, _LOST.match(one.error)) for one in operations if one.error.startswith("Lost:")]
    return [
        f"{one.tag} ({one.verb}): {one.error}: it is there"
        for one, match in told
        if match is None or places[match[1], int(match[2]), int(match[3])] >= keys.get(match[1], 1)
    ]


def judge(arena: Arena, operations: Sequence[Operation], losses: Sequence[Loss]) -> tuple[Verdict, list[str]]:
    """Return the verdict on the history, and what else is wrong with the data at rest."""
    schema = arena.settings.postgres_schema
    with arena.postgres() as connection, arena.redis(seconds=10) as raw:
        found = evidence(connection, schema)
        wrong = tips(connection, raw, arena.keys, schema, found) + lost_in_vain(operations, found)
        wrong += left_behind(found, monotonic()) + judge_history(connection, schema)
    aside = {key for key in found.chains if key.startswith(arena.aside) or "/checkpoints/" in key}
    chains = {key: chain for key, chain in found.chains.items() if key not in aside}
    found = msgspec.structs.replace(found, chains=chains)
    return check(operations, found, losses=losses, behind=arena.behind), wrong


def leaks(arena: Arena) -> list[str]:
    """Return what the workers left behind after they have ended."""
    schema = arena.settings.postgres_schema
    with arena.postgres() as connection:
        workers = connection.execute(f"SELECT id FROM {schema}.worker".encode()).fetchall()
        owned = connection.execute(f"SELECT shard, owner FROM {schema}.shard WHERE owner IS NOT NULL".encode())
        return [f"worker row of {row[0]}" for row in workers] + [f"shard {row[0]} owned by {row[1]}" for row in owned]
