"""Taking in what another checkpointer of LangGraph holds: `statecache import langgraph-postgres` and `langgraph-redis`.

Every checkpoint is read as the other checkpointer gives it and put under its own id, a thread's oldest first, with its
parent, its metadata and its pending writes. What is there already is passed over, so an import that was cut off, or is
made again later, puts what is missing; the latest checkpoint of a thread never becomes an earlier one. Pending writes
that were replaced there since, as by the next question of a node that asks several, are replaced here. Of a thread that
was gone on with here, answered, rolled back or deleted nothing more is put. A thread of which something is left alone
is named, and one that cannot be taken in, and those after it are taken in.

Values of the agent's own classes are taken in as the bytes that they are stored as, which needs no such class here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import psycopg
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple, get_checkpoint_id
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from redis.exceptions import RedisError

from statecache import (
    ConfigurationError,
    Position,
    PostgresUnavailable,
    StateCacheError,
    UsageError,
    VersionNotFound,
)
from statecache.adapters.imported import REFUSED, why
from statecache.adapters.langgraph.interrupts import Interrupts
from statecache.adapters.langgraph.left_alone import Importing, LeftAlone, Source, ThreadAsFound
from statecache.adapters.langgraph.names import Place
from statecache.adapters.langgraph.saver import StateCacheSaver
from statecache.adapters.langgraph.stored import AsStored, comparable, repacked, unpacked
from statecache.adapters.langgraph.values import Packed, Serde
from statecache.adapters.plans import Plan, call, level

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from statecache import State
    from statecache.adapters.langgraph.reading import PackedWrites

_LANGGRAPHS = Serde(JsonPlusSerializer())
_NEXT = """
SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints
WHERE (thread_id, checkpoint_ns, checkpoint_id) > (%s, %s, %s) ORDER BY 1, 2, 3 LIMIT 1000
"""
_PATHS = """
SELECT DISTINCT task_id, task_path FROM checkpoint_writes
WHERE (thread_id, checkpoint_ns, checkpoint_id) = (%s, %s, %s)
"""


@runtime_checkable
class NamesPaths(Protocol):
    """A source that tells where in the graph a task stood, by which what several have written is put in order."""

    def task_paths(self, config: RunnableConfig) -> dict[str, str]:
        """Return the paths of the tasks that have written at a checkpoint, by the tasks' ids."""


class ImportedThreads(msgspec.Struct, kw_only=True):
    """What an import did: checkpoints by what became of them, and threads.

    `kept` names those that were left alone, in whole or in part, for they were changed or deleted, here or
    at their source; `failed` says why others could not be taken in.
    """

    threads: int = 0
    written: int = 0
    same: int = 0
    kept: list[str] = []
    failed: dict[str, str] = {}


def import_checkpoints(
    configs: Iterable[RunnableConfig], source: Source, target: StateCacheSaver, *,
    progress: Callable[[int], object], dry_run: bool = False,
) -> ImportedThreads:  # fmt: skip
    """Put the checkpoints that are named, in that order, which is a thread's oldest first.

    `progress` is told how many it has gone through. One that is gone meanwhile is passed over.
    """
    done = ImportedThreads()
    with Interrupts() as interrupts:
        for thread_id, thread in groupby(configs, key=lambda one: one["configurable"]["thread_id"]):
            done.threads += 1
            try:
                for how in _taken_in(thread_id, thread, source, target, interrupts, dry_run=dry_run):
                    if how == "kept":
                        done.kept += [] if thread_id in done.kept[-1:] else [thread_id]
                    done.same, done.written = done.same + (how == "same"), done.written + (how == "written")
                    progress(done.same + done.written)
                if not dry_run:
                    target._clients.run(_proven(thread_id))
            except (*REFUSED, VersionNotFound) as error:  # the second from a source that keeps histories, as ours does
                done.failed[thread_id] = why(error)
            except (StateCacheError, psycopg.Error, RedisError, OSError):
                raise
            except Exception as error:  # either's serializer raises anything, for an interrupt as well
                interrupts.raise_again()
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                done.failed[thread_id] = f"its values cannot be read, or not be written: {reason}"
    return done


def _taken_in(
    thread_id: str, thread: Iterable[RunnableConfig], source: Source, target: StateCacheSaver, interrupts: Interrupts,
    *, dry_run: bool,
) -> Iterator[str]:  # fmt: skip
    """Put the checkpoints of a thread, and yield what became of each: same, kept or written."""
    importing, serde = copy(target), target.serde
    importing._clients = plans = Importing(target._clients)  # type: ignore[assignment]
    here = ThreadAsFound(thread_id, target, plans, source, partial(_has_more, serde=serde))
    for config in thread:
        found = source.get_tuple(config)
        if found is None:
            continue
        there = target._clients.run(target._get_writes(found.config))
        interrupts.raise_again()
        if there is not None and not _written(found.pending_writes, serde) - _written_here(there, serde):
            yield "same"
            continue
        is_left = here.leaves_alone(found.config, is_there=there is not None)
        if not is_left:
            found = _repacked(found, serde)
            is_left = not dry_run and not _is_put(found, source, importing, here, is_there=there is not None)
        yield "kept" if is_left else "written"


class PostgresCheckpoints:
    """The checkpoints that the vendor's saver holds in Postgres; `rows` is a connection of our own to it."""

    def __init__(self, saver: BaseCheckpointSaver[Any], rows: psycopg.Connection[Any]) -> None:
        self._saver, self._rows = saver, rows

    def configs(self) -> Iterator[RunnableConfig]:
        """Yield what names each, by pages: a transaction that waited for the import would hold up vacuum."""
        page = [("", "", "")]
        while page := self._rows.execute(_NEXT, page[-1]).fetchall():
            yield from (_config(*row) for row in page)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that is named, with its pending writes; None where it is gone."""
        return self._saver.get_tuple(config)

    def task_paths(self, config: RunnableConfig) -> dict[str, str]:
        """Return the paths of the tasks that have written at a checkpoint, by the tasks' ids."""
        named = config["configurable"]
        where = named["thread_id"], named["checkpoint_ns"], get_checkpoint_id(config)
        return dict(self._rows.execute(_PATHS, where).fetchall())


@contextmanager
def postgres_checkpoints(url: str) -> Iterator[tuple[PostgresCheckpoints, Iterator[RunnableConfig]]]:
    """Open the vendor's Postgres, and yield its checkpoints with what names each of them.

    Raises ConfigurationError where its package or its tables are missing, UsageError for what is no URL, and
    PostgresUnavailable.
    """
    try:
        from langgraph.checkpoint.postgres import PostgresSaver
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "an import from LangGraph's Postgres needs the package langgraph-checkpoint-postgres",
            hint="pip install langgraph-checkpoint-postgres",
        ) from error
    try:
        with PostgresSaver.from_conn_string(url) as saver, psycopg.connect(url, autocommit=True) as rows:
            saver.serde = AsStored()
            found = PostgresCheckpoints(saver, rows)
            yield found, found.configs()
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise ConfigurationError(
            "this database holds no checkpoints of LangGraph's Postgres saver, or those of an early release of it",
            hint="Name the database of its threads; its own `setup()` brings the tables of early releases up to date.",
        ) from error
    except psycopg.ProgrammingError as error:
        if error.sqlstate is not None:
            raise
        raise UsageError("this is no URL of a Postgres", hint="postgresql://USER@HOST/DATABASE") from error
    except psycopg.OperationalError as error:
        raise PostgresUnavailable("connect", detail=f"what is taken in: {error}") from error


def _config(thread_id: str, checkpoint_ns: str, checkpoint_id: str | None = None) -> RunnableConfig:
    named = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}
    return {"configurable": named | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


def _is_put(
    found: CheckpointTuple, source: Source, target: StateCacheSaver, here: ThreadAsFound, *, is_there: bool
) -> bool:
    """Put a checkpoint with its writes, and return whether nobody has gone on with the thread meanwhile."""
    try:
        _put(found, source, target, is_there=is_there)
    except LeftAlone:
        here.note_left_alone()
        return False
    return True


def _put(found: CheckpointTuple, source: Source, target: StateCacheSaver, *, is_there: bool) -> None:
    """Put a checkpoint as it was put when it was new, and what tasks have written at it."""
    thread_id, namespace = (found.config["configurable"][name] for name in ("thread_id", "checkpoint_ns"))
    if not is_there:
        parent = source.get_tuple(found.parent_config) if found.parent_config else None
        before = parent.checkpoint["channel_versions"] if parent else {}
        versions = found.checkpoint["channel_versions"]
        new = {name: version for name, version in versions.items() if before.get(name) != version}
        parent_id = get_checkpoint_id(found.parent_config) if found.parent_config else None
        target.put(_config(thread_id, namespace, parent_id), found.checkpoint, found.metadata, new)
    writes: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in found.pending_writes or ():
        writes.setdefault(task_id, []).append((channel, value))
    paths = _task_paths(source, found.config, writes)
    for task_id, written in writes.items():
        # Those that replace one another have places of their own: the others keep theirs when such a one has come.
        target.put_writes(
            found.config, sorted(written, key=lambda one: one[0] in WRITES_IDX_MAP), task_id, paths[task_id]
        )


def _repacked(found: CheckpointTuple, serde: SerializerProtocol) -> CheckpointTuple:
    """Return a checkpoint with what stands in it as LangGraph's serializer has packed it, as the target's does."""
    values = {name: _own(value, serde) for name, value in found.checkpoint["channel_values"].items()}
    writes = [(task_id, channel, _own(value, serde)) for task_id, channel, value in found.pending_writes or ()]
    return found._replace(checkpoint=found.checkpoint | {"channel_values": values}, pending_writes=writes)


def _own(value: Any, serde: SerializerProtocol) -> Any:
    return repacked(value, serde) if isinstance(value, Packed) else value


def _proven(thread_id: str) -> Plan[None]:
    """Wait until Postgres holds all of a thread, where what is written counts once it does."""
    if (yield from level()) == "postgres":
        states: list[State[Any]] = yield from call("list", f"{Place(thread_id, '').thread}/", values=False)
        newest = max(states, key=lambda state: state.position or Position(0, 0), default=None)
        if newest is not None:
            yield from call("wait_durable", newest)


def _task_paths(source: Source, config: RunnableConfig, tasks: Iterable[str]) -> Mapping[str, str]:
    """Return where in the graph tasks stood; of a source that does not tell, their places in the order it gives."""
    ranks = {task_id: f"{rank:06}" for rank, task_id in enumerate(tasks)}
    return ranks | source.task_paths(config) if ranks and isinstance(source, NamesPaths) else ranks


def _written(
    writes: Iterable[tuple[str, str, Any]] | None, serde: SerializerProtocol
) -> Counter[tuple[str, str, tuple[str, str | bytes]]]:
    """Return what tasks have written at a checkpoint, in a form that compares whatever it is.

    It is LangGraph's own: another serializer may give other bytes each time, as one that encrypts does. What there is
    no such form for, no other saver has written.
    """
    if isinstance(serde, EncryptedSerializer):
        serde = serde.serde

    def form(value: Any) -> tuple[str, str | bytes]:
        try:
            return comparable(_LANGGRAPHS.pack(value))
        except TypeError:
            return comparable(Packed(*serde.dumps_typed(value)))

    return Counter((task_id, channel, form(value)) for task_id, channel, value in writes or ())


def _written_here(writes: PackedWrites, serde: SerializerProtocol) -> Counter[tuple[str, str, tuple[str, str | bytes]]]:
    """Return the same of what states hold."""
    return _written(((task_id, channel, unpacked(one, serde)) for task_id, channel, one in writes), serde)


def _has_more(here: PackedWrites, there: CheckpointTuple | None, serde: SerializerProtocol) -> bool:
    """Return whether tasks have written at a checkpoint here what they have not at the source's."""
    return bool(_written_here(here, serde) - _written(there.pending_writes if there else (), serde))
