"""The checkpointer: LangGraph's methods, each a plan that clients carry out."""

from __future__ import annotations

import asyncio
from functools import partial
from random import random
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)

from statecache import (
    AsyncStateCache,
    DurabilityNotMet,
    OutcomeUnknown,
    Settings,
    StateCache,
    StateCacheError,
    Unavailable,
)
from statecache.adapters.clients import Clients, OnClients, settings_of
from statecache.adapters.langgraph import copying, deltas, listing, putting, reading, threads, writing
from statecache.adapters.langgraph.batching import Batch, Queue
from statecache.adapters.langgraph.decoded import Decoded
from statecache.adapters.langgraph.documents import Document, config_of, merged, write_documents
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.recent import Recent
from statecache.adapters.langgraph.values import Serde
from statecache.adapters.plans import Listing, Plan, to_its_end
from statecache.adapters.segments import refuse_parted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from statecache import Durability
    from statecache.adapters.langgraph.reading import PackedWrites

_TaskWrites = tuple[str, list[Document]]
"""A task, and what it has written."""
_TASKS_PER_BATCH = 100
"""Of how many tasks the writes at one checkpoint are put together."""
STRATEGIES = ("keep_latest", "delete")


class _Where(NamedTuple):
    """A checkpoint, and the event loop in which tasks write at it."""

    loop: asyncio.AbstractEventLoop
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str


class StateCacheSaver(OnClients, BaseCheckpointSaver[str]):
    """A LangGraph checkpointer on statecache: threads are hot in Redis, and durable in Postgres.

    `cache` is a `StateCache`, an `AsyncStateCache`, or `Settings`; without it settings come from STATECACHE_*
    variables. On settings the saver makes clients of its own, for threads and for each event loop, and closes them:
    use it as a context manager, with `async` or without, or call `close` or `aclose`. A client that is given stays
    open. `namespace` is that of all its states. `durability` is when a checkpoint counts as written, the setting
    without it. `serde` is as LangGraph has it.

    What statecache raises is raised: a `VersionConflict` where a commit could not be had against many others,
    `OutcomeUnknown` where it is not known whether it was applied, which makes the same put safe to repeat.
    """

    def __init__(
        self,
        cache: StateCache | AsyncStateCache | Settings | None = None,
        *,
        namespace: str = "langgraph",
        durability: Durability | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        refuse_parted(namespace, "a thread")
        self._namespace = namespace
        on, policy = Settings() if cache is None else cache, {"durability": durability}
        self._clients = Clients(on, namespace, policy, of="saver", awaited="aput, aget_tuple")
        self._recent, self._decoded = Recent(), Decoded()
        self._writing: dict[_Where, Queue[_TaskWrites, None]] = {}

    @classmethod
    def from_conn_string(
        cls,
        redis_url: str | None = None,
        postgres_url: str | None = None,
        *,
        namespace: str = "langgraph",
        durability: Durability | None = None,
        serde: SerializerProtocol | None = None,
        **settings: Any,
    ) -> Self:
        """Return a saver with clients of its own; what is not given comes from STATECACHE_* variables."""
        told = settings_of(redis_url, postgres_url, settings)
        return cls(told, namespace=namespace, durability=durability, serde=serde)

    def group_of(self, thread_id: str) -> str:
        """Return the key of the group that a thread's states are of, as `erase` and `get_group_at` take it."""
        return f"{self._namespace}/{Place(thread_id).thread}"

    # Checkpoints.

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:  # fmt: skip
        """Put a checkpoint, in one commit, and return the configuration that names it.

        Raises VersionNotFound, and puts nothing, for a fork that would be the latest, and that takes over what the
        namespace's policy has let go and this process does not hold.
        """
        self._clients.run(self._put(config, checkpoint, metadata, new_versions))
        return config_of(_place(config), checkpoint["id"])

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:  # fmt: skip
        """Do what `put` does."""
        await self._clients.arun(self._put(config, checkpoint, metadata, new_versions))
        return config_of(_place(config), checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task has written at a checkpoint, which may come later."""
        self._clients.run(self._put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Do what `put_writes` does; what tasks write at a checkpoint at one moment is written together."""
        documents = write_documents(writes, task_id, task_path, self._serde)
        place, checkpoint_id = _place(config), config["configurable"]["checkpoint_id"]
        await self._queue_at(place, checkpoint_id).ask([(task_id, documents)])

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that is named, or the latest, with its pending writes; None where there is none.

        Raises VersionNotFound for an older one whose large values the namespace's policy has let go.
        """
        return self._clients.run(self._get_tuple(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do what `get_tuple` does."""
        return await self._clients.arun(self._get_tuple(config))

    def list(
        self, config: RunnableConfig | None, *, filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None, limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:  # fmt: skip
        """Yield checkpoints, the newest first; without `config` those of all threads, whose names are all read."""
        return self._clients.stream(self._list(config, filter, before, limit))

    async def alist(
        self, config: RunnableConfig | None, *, filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None, limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:  # fmt: skip
        """Do what `list` does."""
        async for found in self._clients.astream(self._list(config, filter, before, limit)):
            yield found

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what was written to delta channels since their last snapshots, along a checkpoint's ancestors."""
        return self._clients.run(self._delta_history(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Do what `get_delta_channel_history` does."""
        return await self._clients.arun(self._delta_history(config, channels))

    # Threads.

    def delete_thread(self, thread_id: str) -> None:
        """Delete all of a thread. Its named checkpoints and what it once held stay: `erase` of its group ends that."""
        self._clients.run(to_its_end(threads.delete_thread(Place(thread_id))))

    async def adelete_thread(self, thread_id: str) -> None:
        """Do what `delete_thread` does."""
        await self._clients.arun(to_its_end(threads.delete_thread(Place(thread_id))))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs have put, with their pending writes.

        Raises UsageError, and deletes nothing, where of what would be left of a thread the namespace's policy has let
        values go, so that none of it could be read.
        """
        self._clients.run(to_its_end(threads.delete_for_runs(_sequence(run_ids, "run_ids"), self._recent)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Do what `delete_for_runs` does."""
        await self._clients.arun(to_its_end(threads.delete_for_runs(_sequence(run_ids, "run_ids"), self._recent)))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another one, which may have some; cut off, it may be called again.

        Raises VersionNotFound at a fork that takes over what the namespace's policy has let go of the other thread.
        """
        self._clients.run(self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Do what `copy_thread` does."""
        await self._clients.arun(self._copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads but the latest of each namespace; or, with `delete`, all of them.

        Ancestors that hold what delta channels of the latest are made of stay, too.
        """
        self._clients.run(to_its_end(_pruned(thread_ids, strategy, self._recent)))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Do what `prune` does."""
        await self._clients.arun(to_its_end(_pruned(thread_ids, strategy, self._recent)))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Return a channel version that is greater, and that no other branch of the thread has."""
        count = 0 if current is None else int(str(current).partition(".")[0])
        return f"{count + 1:032d}.{random():.16f}"  # noqa: S311

    def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Plan[None]:  # fmt: skip
        told = get_serializable_checkpoint_metadata(config, metadata)
        parent_id = get_checkpoint_id(config)
        return putting.put(_place(config), parent_id, checkpoint, told, new_versions, self._serde, self._recent)

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Plan[None]:
        tasks = {task_id: write_documents(writes, task_id, task_path, self._serde)}
        return writing.put_writes(_place(config), config["configurable"]["checkpoint_id"], tasks, self._recent)

    def _queue_at(self, place: Place, checkpoint_id: str) -> Queue[_TaskWrites, None]:
        """Return the queue in which tasks of this event loop write at a checkpoint."""
        where = _Where(asyncio.get_running_loop(), place.thread_id, place.checkpoint_ns, checkpoint_id)
        queue = self._writing.get(where)
        if queue is None:
            for other, one in [*self._writing.items()]:
                if one.is_idle or other.loop.is_closed():
                    self._writing.pop(other, None)
            put = partial(self._put_of_tasks, place, checkpoint_id)
            queue = self._writing[where] = Queue(put, batch_max=_TASKS_PER_BATCH, in_flight_max=1)
        return queue

    async def _put_of_tasks(
        self, place: Place, checkpoint_id: str, batch: Batch[_TaskWrites, None]
    ) -> Sequence[Exception | None]:
        """Put what the tasks of a batch have written."""
        return await self._put_together(place, checkpoint_id, batch.begin_to_write)

    async def _put_together(
        self, place: Place, checkpoint_id: str, begin_to_write: Callable[[], Sequence[_TaskWrites]]
    ) -> Sequence[Exception | None]:
        """Put what tasks have written; where that is refused, what each has by itself."""
        calls: list[_TaskWrites] = []
        tasks: dict[str, Sequence[Document]] = {}

        def put() -> Plan[None]:
            calls.extend(begin_to_write())
            for task_id, documents in calls:
                tasks[task_id] = merged(tasks.get(task_id, ()), documents) or tasks.get(task_id, [])
            yield from writing.put_writes(place, checkpoint_id, tasks, self._recent)

        try:
            await self._clients.arun(put())
        except (Unavailable, OutcomeUnknown, DurabilityNotMet):
            raise
        except StateCacheError:
            if len(tasks) == 1:
                raise
            alone = [self._put_together(place, checkpoint_id, partial(list, [one])) for one in calls]
            found = await asyncio.gather(*alone, return_exceptions=True)
            return [one if isinstance(one, Exception) else None for one in found]
        return [None] * len(calls)

    def _get_tuple(self, config: RunnableConfig) -> Plan[CheckpointTuple | None]:
        return reading.get_tuple(_place(config), get_checkpoint_id(config), self._serde, self._recent)

    def _get_writes(self, config: RunnableConfig) -> Plan[PackedWrites | None]:
        return reading.packed_writes(_place(config), config["configurable"]["checkpoint_id"])

    def _list(
        self, config: RunnableConfig | None, wanted: Mapping[str, Any] | None, before: RunnableConfig | None,
        limit: int | None,
    ) -> Listing:  # fmt: skip
        query = listing.Query(
            _place(config) if config else None,
            whole_thread=bool(config) and cast("RunnableConfig", config)["configurable"].get("checkpoint_ns") is None,
            checkpoint_id=get_checkpoint_id(config) if config else None,
            filter=wanted, before=get_checkpoint_id(before) if before else None, limit=limit,
        )  # fmt: skip
        return listing.listed(query, self._serde, self._recent)

    def _delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> Plan[dict[str, DeltaChannelHistory]]:
        return deltas.delta_history(_place(config), get_checkpoint_id(config), channels, self._serde, self._recent)

    def _copy(self, source: str, target: str) -> Plan[None]:
        return copying.copy_thread(Place(source).thread, target, self._recent)

    @property
    def _serde(self) -> Serde:
        return Serde(self.serde, self._decoded)


def _place(config: RunnableConfig) -> Place:
    configurable = config["configurable"]
    return Place(configurable["thread_id"], configurable.get("checkpoint_ns") or "")


def _sequence(names: Sequence[str], what: str) -> Sequence[str]:
    if isinstance(names, str):
        raise TypeError(f"{what} is a sequence of ids, not one text")
    return names


def _pruned(thread_ids: Sequence[str], strategy: str, recent: Recent) -> Plan[None]:
    if strategy not in STRATEGIES:
        raise ValueError(f"the strategy {strategy!r} is not one of {', '.join(STRATEGIES)}")
    for thread_id in _sequence(thread_ids, "thread_ids"):
        place = Place(thread_id)
        yield from threads.delete_thread(place) if strategy == "delete" else threads.keep_latest(place, recent)
