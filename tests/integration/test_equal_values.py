"""Values that Python takes for equal, and JSON does not: 0 and false, 1 and true, 1 and 1.0."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from agents.memory import SQLiteSession
from google.adk.errors import StaleSessionError
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from llama_index.core.llms import ChatMessage

from statecache import AsyncStateCache, Settings
from statecache.adapters.adk import StateCacheSessionService
from statecache.adapters.filling import PAGE_ITEMS_MAX
from statecache.adapters.llama_index import StateCacheChatStore
from statecache.adapters.openai_agents import StateCacheSession
from tests.support.adk_services import ID, event, loaded
from tests.support.command_line import CommandLine

BEFORE = {"zero": 0, "one": 1, "whole": 1, "deep": [{"n": 0}], "order": {"a": 1, "b": 2}}
AFTER = {"zero": False, "one": True, "whole": 1.0, "deep": [{"n": False}], "order": {"b": 2, "a": 1}}
PREFIXES = ("app:", "user:", "")

# ADK's own service for SQLite lets a connection go open, and binds by numbers that newer releases of Python warn of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Binding 1 :DeprecationWarning"),
]


def _of_all(state: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": value for prefix in PREFIXES for name, value in state.items()}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


async def _filled(file: Path) -> None:
    service = SqliteSessionService(str(file))
    session = await service.create_session(**ID, state=_of_all(BEFORE))
    await service.append_event(session, event("one", timestamp=1e9, custom_metadata={"n": 1}))


async def _state(settings: Settings) -> dict[str, Any]:
    async with AsyncStateCache(settings=settings) as cache:
        return (await loaded(StateCacheSessionService(cache))).state


def test_what_changed_in_states_of_adk_is_taken_in(cli: CommandLine, settings: Settings, tmp_path: Path) -> None:
    asyncio.run(_filled(file := tmp_path / "sessions.db"))
    assert cli("import", "adk-sqlite", str(file)).status == 0
    with sqlite3.connect(file) as rows:
        for table in ("app_states", "user_states", "sessions"):
            rows.execute(f"UPDATE {table} SET state = ?", (json.dumps(AFTER),))
    rows.close()
    for states in (2, 0):
        again = cli("import", "adk-sqlite", str(file), "--json")
        assert (again.status, again.json["states"], again.json["kept"]) == (0, states, []), again
        assert _text(asyncio.run(_state(settings))) == _text(_of_all(AFTER))


def test_an_event_of_adk_that_became_another_has_its_session_named(cli: CommandLine, tmp_path: Path) -> None:
    asyncio.run(_filled(file := tmp_path / "sessions.db"))
    assert cli("import", "adk-sqlite", str(file)).status == 0
    with sqlite3.connect(file) as rows:
        rows.execute("UPDATE events SET event_data = json_set(event_data, '$.custom_metadata.n', json('true'))")
    rows.close()
    again = cli("import", "adk-sqlite", str(file), "--json")
    assert (again.status, again.json["kept"]) == (1, ["orders:alice:42"]), again


async def test_an_event_of_adk_that_differs_from_the_last_one_is_no_repetition_of_it(cache: AsyncStateCache) -> None:
    service = StateCacheSessionService(cache)
    old = await service.create_session(**ID)
    told = event("one", custom_metadata={"n": 1})
    await service.append_event(await loaded(service), told)
    with pytest.raises(StaleSessionError):
        await service.append_event(old.model_copy(), told.model_copy(update={"custom_metadata": {"n": True}}))
    await service.append_event(old, told.model_copy())
    assert [one.custom_metadata for one in (await loaded(service)).events] == [{"n": 1}]


def test_an_item_of_the_agents_sdk_that_became_another_has_its_session_named(
    cli: CommandLine, settings: Settings, tmp_path: Path
) -> None:
    source = tmp_path / "conversations.db"
    one = SQLiteSession("s", source)
    item: Any = {"role": "user", "content": "x", "n": 1}
    asyncio.run(one.add_items([item]))
    one.close()
    assert cli("import", "openai-sqlite", str(source)).status == 0
    with sqlite3.connect(source) as rows:
        rows.execute("UPDATE agent_messages SET message_data = json_set(message_data, '$.n', json('true'))")
    rows.close()
    again = cli("import", "openai-sqlite", str(source), "--json")
    assert (again.status, again.json["kept"]) == (1, ["s"]), again

    async def there() -> list[Any]:
        async with StateCacheSession("s", settings) as session:
            return await session.get_items()

    assert _text(asyncio.run(there())) == _text([item])


async def test_a_page_of_a_chat_that_comes_to_hold_what_differs_is_written(cache: AsyncStateCache) -> None:
    store = StateCacheChatStore(cache)
    values: list[Any] = [*[1] * PAGE_ITEMS_MAX, *[True] * PAGE_ITEMS_MAX]
    await store.aset_messages("chat", [ChatMessage(content="x", additional_kwargs={"n": one}) for one in values])
    await store.adelete_message("chat", 0)
    found = [message.additional_kwargs["n"] for message in await store.aget_messages("chat")]
    assert _text(found) == _text(values[1:])
