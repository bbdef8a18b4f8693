"""Taking in what the SDK's own SQLite sessions hold: `statecache import openai-sqlite FILE`.

A session is read from its first item, and added to the one of the same id in lots. What is there already is passed over
where it is the same, so an import that was cut off, or is made again later, adds what is missing. A session that holds
anything else was gone on with here: it is left alone, and named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statecache.adapters.filling import lots
from statecache.adapters.openai_agents.session import NAMESPACE, StateCacheSession
from statecache.adapters.sqlite_files import reading

if TYPE_CHECKING:
    from statecache import AsyncStateCache, Durability


class ImportedSessions(msgspec.Struct, kw_only=True):
    """What an import did: items by what became of them, and sessions that hold something else here."""

    sessions: int = 0
    written: int = 0
    same: int = 0
    unreadable: int = 0
    kept: list[str] = []


class StoredSession(NamedTuple):
    """A session's id, its items, each with its length in bytes, and how many there are that are no JSON."""

    session_id: str
    items: list[tuple[Any, int]]
    unreadable: int


async def import_sessions(
    sessions: Iterable[StoredSession], cache: AsyncStateCache, *, progress: Callable[[int], object],
    namespace: str = NAMESPACE, durability: Durability | None = None, dry_run: bool = False,
) -> ImportedSessions:  # fmt: skip
    """Add what sessions hold to those of the same id; `progress` is told how many items it has gone through.

    Items that are no JSON are counted as `unreadable`, and left out, as the SDK leaves them out.
    """
    done = ImportedSessions()
    for one in sessions:
        done.sessions += 1
        done.unreadable += one.unreadable
        session = StateCacheSession(one.session_id, cache, namespace=namespace, durability=durability)
        there = await session.get_items()
        if [item for item, _ in one.items[: len(there)]] != there:
            done.kept.append(one.session_id)
            continue
        done.same += len(there)
        for lot in lots(one.items[len(there) :], lambda item: item[1]):
            if not dry_run:
                await session.add_items([item for item, _ in lot])
            done.written += len(lot)
            progress(done.same + done.written)
    return done


def sqlite_sessions(source: Path) -> Iterator[StoredSession]:
    """Yield what the sessions in a file of SQLite hold; nothing is written there.

    Raises UsageError where the file is not there, and ConfigurationError where it holds no sessions of the SDK.
    """
    hint = "SQLiteSession(session_id, FILE) writes such files; tables with other names are not known here."
    with reading(source, what="sessions of the OpenAI Agents SDK", hint=hint) as rows:
        for (name,) in rows.execute("SELECT session_id FROM agent_sessions ORDER BY session_id").fetchall():
            asked = "SELECT message_data FROM agent_messages WHERE session_id = ? ORDER BY id"
            texts = [text for (text,) in rows.execute(asked, (name,))]
            items = [*_read(texts)]
            yield StoredSession(name, items, len(texts) - len(items))


def _read(texts: list[str]) -> Iterator[tuple[Any, int]]:
    for text in texts:
        with suppress(ValueError, TypeError):
            yield json.loads(text), len(text.encode(errors="surrogatepass"))
