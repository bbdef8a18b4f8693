"""What LangGraph's own saver for Redis holds: documents that are found by what their keys begin with.

    checkpoint:THREAD:NS:ID                  {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id",
                                              "checkpoint", with the values of its channels, "metadata"}
    checkpoint_write:THREAD:NS:ID:TASK:IDX   {"task_id", "task_path", "idx", "channel", "type", "blob"}

The names of all checkpoints are read first and put in order, then one checkpoint after the other. The vendor's saver
decodes the values that it keeps as JSON, which no other serializer knows; it is not asked for checkpoints, for of one
that is named it gives no pending writes. In that JSON objects are named by their classes. One whose class this process
cannot import would come back as the dictionary that names it, so its thread is refused. Nothing is written there, and
no search index is needed.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from langgraph.checkpoint.base import CheckpointTuple, get_checkpoint_id
from redis import exceptions

from statecache import ConfigurationError, RedisUnavailable, UsageError
from statecache.adapters.langgraph.stored import AsStored

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
    from redis import Redis

CHECKPOINTS, WRITES = "checkpoint", "checkpoint_write"
"""What keys begin with, up to the first colon, where the saver was not given `checkpoint_prefix` and the other."""
_NOTHING = {"__empty__", "00000000-0000-0000-0000-000000000000"}
"""What stands for an empty text, which a search index could not hold."""
_ADDED = {"type", "pending_sends"}
"""What the saver adds to a checkpoint: its serializer's word for it, and a list that is always empty."""
_OWN_OBJECT = 2
"""What marks an object in JSON that is not of LangChain."""
_KEYS_PER_READ = 200
_SPECIAL = re.compile(r"[][*?\\]")
"""What means more than itself in a pattern of keys."""
_NAMED = ("$.thread_id", "$.checkpoint_ns", "$.checkpoint_id")


class Name(NamedTuple):
    """What names a checkpoint, as it was given to the saver."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str

    @property
    def config(self) -> RunnableConfig:
        """The configuration that names it."""
        return {"configurable": self._asdict()}


class RedisCheckpoints:
    """The checkpoints that a Redis holds, by their names; `saver` is the vendor's, which decodes their values.

    `prefix` is what the keys of checkpoints begin with, `write_prefix` what those of pending writes do.
    """

    def __init__(self, redis: Redis, saver: Any, prefix: str, write_prefix: str) -> None:
        self._redis, self._saver = redis, saver
        self._keys: dict[Name, bytes] = {}
        self._writes: dict[Name, list[bytes]] = {}
        for key, names in self._named(prefix):
            self._keys[names] = key
        for key, names in self._named(write_prefix):
            self._writes.setdefault(names, []).append(key)
        if not self._keys and not self._writes:
            # A Redis that cannot hold documents is another one than was meant, and says so of any key.
            with suppress(exceptions.ResponseError):
                self._read([f"{prefix}:".encode()], "$")

    def configs(self) -> Iterator[RunnableConfig]:
        """Yield what names each checkpoint: a thread after the other, its oldest checkpoint first."""
        yield from (name.config for name in sorted(self._keys))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that is named, with its pending writes; None where it is gone."""
        configurable = config["configurable"]
        name = Name(configurable["thread_id"], configurable["checkpoint_ns"], get_checkpoint_id(config) or "")
        (document,) = self._documents([self._keys[name]] if name in self._keys else []) or [None]
        if document is None:
            return None
        checkpoint, parent_id = _json(document["checkpoint"]), _text(document.get("parent_checkpoint_id"))
        if "channel_values" not in checkpoint:
            raise ConfigurationError(
                "this Redis holds checkpoints of an early release of LangGraph's Redis saver, with values beside them",
                hint="Have langgraph-checkpoint-redis 0.1 or later put them again: its `put` keeps both together.",
            )
        self._refuse_unknown(checkpoint["channel_values"])
        values = self._saver._deserialize_channel_values(checkpoint["channel_values"])
        core = {name: part for name, part in checkpoint.items() if name not in _ADDED}
        return CheckpointTuple(
            config=name.config,
            checkpoint=cast("Checkpoint", core | {"channel_values": values}),
            metadata=cast("CheckpointMetadata", _json(document["metadata"])),
            parent_config=name._replace(checkpoint_id=parent_id).config if parent_id else None,
            pending_writes=[
                (one["task_id"], one["channel"], self._value(one["type"], b64decode(one["blob"])))
                for one in sorted(
                    (found for found in self._documents(self._writes.get(name, ())) if found is not None),
                    key=lambda one: (one.get("task_path", ""), one["task_id"], one["idx"]),
                )
            ],
        )

    def task_paths(self, config: RunnableConfig) -> dict[str, str]:
        """Return the paths of the tasks that have written at a checkpoint, by the tasks' ids."""
        configurable = config["configurable"]
        name = Name(configurable["thread_id"], configurable["checkpoint_ns"], get_checkpoint_id(config) or "")
        found = self._read(self._writes.get(name, ()), "$.task_id", "$.task_path")
        return {one["$.task_id"][0]: one["$.task_path"][0] for one in found if one and one["$.task_path"]}

    def _value(self, kind: str, data: bytes) -> Any:
        """Return what a task has written: JSON decoded, anything else as it is stored."""
        if kind != "json":
            return AsStored().loads_typed((kind, data))
        self._refuse_unknown(msgspec.json.decode(data))
        return self._saver.serde.loads_typed((kind, data))

    def _refuse_unknown(self, part: Any) -> None:
        """Raise UsageError where an object stands in JSON whose class cannot be imported."""
        if isinstance(part, list):
            for one in part:
                self._refuse_unknown(one)
        if not isinstance(part, dict):
            return
        if part.get("lc") == _OWN_OBJECT and part.get("type") == "constructor":
            try:
                self._saver.serde._constructor_class(part)
            except ValueError as error:
                raise UsageError(
                    f"it holds an object whose class this process does not have: {error}",
                    hint="Have the agent's modules on PYTHONPATH.",
                ) from error
        for one in part.values():
            self._refuse_unknown(one)

    def _named(self, prefix: str) -> Iterator[tuple[bytes, Name]]:
        """Yield the keys that begin so and hold documents, with the checkpoints that these name."""
        some: list[bytes] = []
        plain = _SPECIAL.sub(r"\\\g<0>", prefix)
        for key in self._redis.scan_iter(match=f"{plain}:*", count=1000):
            some.append(key)
            if len(some) == _KEYS_PER_READ:
                yield from self._names_of(some)
                some = []
        yield from self._names_of(some)

    def _names_of(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, Name]]:
        for key, found in zip(keys, self._read(keys, *_NAMED), strict=True):
            if found is not None and all(found.get(path) for path in _NAMED):
                yield key, Name(*(_text(found[path][0]) for path in _NAMED))

    def _documents(self, keys: Sequence[bytes]) -> list[dict[str, Any] | None]:
        """Return whole documents, None for those that are gone."""
        return [found and found[0] for found in self._read(keys, "$")]

    def _read(self, keys: Sequence[bytes], *paths: str) -> list[Any]:
        """Return what stands at these places of documents; None for what is gone, or is no document."""
        pipe: Any = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.execute_command("JSON.GET", key, *paths)
        replies = pipe.execute(raise_on_error=False) if keys else []
        for reply in replies:
            if isinstance(reply, Exception) and "unknown command" in str(reply).lower():
                raise ConfigurationError(
                    "this Redis holds no documents, as LangGraph's Redis saver writes them: it knows no JSON.GET",
                    hint="Name the Redis of its threads: Redis 8, or one with the module RedisJSON.",
                ) from reply
        return [reply if reply is None or isinstance(reply, (dict, list)) else _decoded(reply) for reply in replies]


@contextmanager
def redis_checkpoints(
    url: str, *, prefix: str = CHECKPOINTS, write_prefix: str = WRITES
) -> Iterator[tuple[RedisCheckpoints, Iterator[RunnableConfig]]]:
    """Open the vendor's Redis, and yield its checkpoints with what names each of them.

    `prefix` and `write_prefix` are the saver's `checkpoint_prefix` and `checkpoint_write_prefix`.
    Raises ConfigurationError where the vendor's package or the module for documents is missing, UsageError for what is
    no URL, and RedisUnavailable.
    """
    try:
        from langgraph.checkpoint.redis import RedisSaver
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "an import from LangGraph's Redis needs the package langgraph-checkpoint-redis",
            hint="pip install langgraph-checkpoint-redis",
        ) from error
    with ExitStack() as opened:
        try:
            try:
                saver: Any = opened.enter_context(RedisSaver.from_conn_string(url))
            except ValueError as error:
                raise UsageError("this is no URL of a Redis", hint="redis://HOST:6379/0") from error
            found = RedisCheckpoints(saver._redis, saver, prefix, write_prefix)
            yield found, found.configs()
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise RedisUnavailable("connect", detail=f"what is taken in: {error}") from error
        except exceptions.RedisError as error:
            raise ConfigurationError(f"the Redis that is taken in cannot be read: {error}") from error


def _decoded(reply: Any) -> Any:
    """Return the document that a reply spells; None where the key holds something else."""
    if not isinstance(reply, Exception):
        return msgspec.json.decode(reply)
    if "wrong" in str(reply).lower() and "type" in str(reply).lower():
        return None
    raise reply


def _json(part: Any) -> dict[str, Any]:
    """Return a part of a document, which earlier releases keep as text."""
    decoded: dict[str, Any] = msgspec.json.decode(part) if isinstance(part, str) else part
    return decoded


def _text(value: Any) -> str:
    return "" if value is None or value in _NOTHING else str(value)
