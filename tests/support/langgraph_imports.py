"""What imports of LangGraph's threads are tested with: the vendor's savers, and what they and ours tell of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import fakeredis
import pytest
from langgraph.checkpoint.redis import RedisSaver
from langgraph.checkpoint.redis.key_registry import SyncCheckpointKeyRegistry
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.types import Command

from tests.support.langgraph_stories import builder, config


class Numbered(CipherProtocol):
    """A cipher as AES with a nonce: what it makes of one text is another one each time."""

    def __init__(self) -> None:
        self._numbers = count()

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        """Put a number before the text turned round."""
        return "numbered", next(self._numbers).to_bytes(8) + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        """Turn the text round again."""
        return ciphertext[8:][::-1]


def all_told(saver: Any, thread: str) -> list[Any]:
    """Return all that a saver tells of a thread's checkpoints, the newest first."""
    return [
        (one.config["configurable"], one.parent_config and one.parent_config["configurable"], one.checkpoint,
         one.metadata, sorted(one.pending_writes or (), key=repr))
        for one in saver.list({"configurable": {"thread_id": thread}})
    ]  # fmt: skip


def play(saver: Any, thread: str, *answers: str) -> dict[str, Any]:
    """Run a graph that asks a person; return what it ends with."""
    graph = builder().compile(checkpointer=saver)
    ended = graph.invoke({"messages": ["hello"], "count": 0}, config(thread)) if not answers else {}
    for answer in answers:
        ended = graph.invoke(Command(resume=answer), config(thread))
    return ended


@contextmanager
def redis_of_documents() -> Iterator[str]:
    """Serve a Redis that holds documents, as the vendor's saver wants it, and yield its URL."""
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0), server_type="redis", server_version=(7, 4))
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    serving.join()
    server.server_close()


@contextmanager
def redis_saver(url: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Iterator[Any]:
    """Open the vendor's saver as its `setup` leaves it, on a Redis that knows no search."""
    with RedisSaver.from_conn_string(url, **more) as saver:
        saver._key_registry = SyncCheckpointKeyRegistry(saver._redis)
        monkeypatch.setattr(RedisSaver, "_load_pending_sends_with_registry_check", lambda *_, **__: [])
        yield saver


def by_name(told: list[Any]) -> list[Any]:
    """Return what was told of checkpoints in the order of their names: savers differ over several namespaces."""
    return sorted(told, key=lambda one: (one[0]["checkpoint_ns"], one[0]["checkpoint_id"]))


def put_in(source: Any, target: Any, thread: str) -> None:
    """Put a thread into the vendor's saver as it was put into another one, checkpoints before their writes."""
    before: dict[str, Any] = {}
    for one in reversed([*source.list({"configurable": {"thread_id": thread}})]):
        named = one.config["configurable"]
        parent = one.parent_config["configurable"] if one.parent_config else {"checkpoint_id": None}
        new = {name: one.checkpoint["channel_versions"][name] for name in one.checkpoint["channel_versions"]
               if before.get(name) != one.checkpoint["channel_versions"][name]}  # fmt: skip
        before = one.checkpoint["channel_versions"]
        target.put(
            {"configurable": named | {"checkpoint_id": parent["checkpoint_id"]}}, one.checkpoint, one.metadata, new
        )
        writes: dict[str, list[Any]] = {}
        for task_id, channel, value in one.pending_writes or ():
            writes.setdefault(task_id, []).append((channel, value))
        for rank, (task_id, written) in enumerate(writes.items()):
            target.put_writes(one.config, written, task_id, f"~{rank:06}")
