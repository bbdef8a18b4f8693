"""The key-value store: each value is a state, and all of a collection are a group.

A put writes over whatever is there, so it reads nothing first and never conflicts: of two at once the one that comes
second stays. The names have a segment of their own, `kv`, which no other adapter's names have in that place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from llama_index.core.storage.kvstore.types import DEFAULT_BATCH_SIZE, DEFAULT_COLLECTION, BaseKVStore

from statecache import CodecError, Set, Settings
from statecache.adapters.clients import Clients, OnClients, settings_of
from statecache.adapters.items import given, kept
from statecache.adapters.plans import Plan, call, commits, proven, to_its_end
from statecache.adapters.segments import refuse_nul, refuse_parted, segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statecache import AsyncStateCache, Durability, ReadMode, State, StateCache

NAMESPACE = "llama-index"
OF = "llama-index value"
COLLECTION_BYTES_MAX = 120
KEY_BYTES_MAX = 250
"""How many UTF-8 bytes of each stand in a name. A name has at most 512 in all."""
STATES_PER_COMMIT = 250
COMMIT_BYTES_MAX = 12 * 1024 * 1024


class StateCacheKVStore(OnClients, BaseKVStore):
    """A key-value store of LlamaIndex on statecache: documents, indices and caches, hot in Redis, durable in Postgres.

    `cache` is a `StateCache`, an `AsyncStateCache`, or `Settings`; without it settings come from STATECACHE_*
    variables. On settings the store makes clients of its own, for threads and for each event loop, and closes them:
    use it as a context manager, with `async` or without, or call `close` or `aclose`. A client that is given stays
    open. `namespace` is that of all its states. `durability` is when a put counts as written, the setting without it.
    `read` is how `get` reads: from the `primary`, or `local`, which may be as old as the near cache may be believed.

    What statecache raises is raised: `CodecError` for a value that is no JSON, `LimitExceeded` for one above 8 MiB,
    `OutcomeUnknown` where it is not known whether a put was applied, which makes the same put safe to repeat.
    """

    def __init__(
        self,
        cache: StateCache | AsyncStateCache | Settings | None = None,
        *,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
        read: ReadMode = "primary",
    ) -> None:
        refuse_parted(namespace, "a collection")
        self._namespace, self._read = namespace, read
        on, policy = Settings() if cache is None else cache, {"durability": durability, "read": read}
        self._clients = Clients(on, namespace, policy, of="store", awaited="aput, aget")

    @classmethod
    def from_url(
        cls,
        *,
        url: str | None = None,
        postgres_url: str | None = None,
        namespace: str = NAMESPACE,
        durability: Durability | None = None,
        read: ReadMode = "primary",
        **settings: Any,
    ) -> Self:
        """Return a store with clients of its own; `url` is that of Redis.

        What is not given comes from STATECACHE_* variables; every other setting may be given by its name.
        """
        told = settings_of(url, postgres_url, settings)
        return cls(told, namespace=namespace, durability=durability, read=read)

    def group_of(self, collection: str = DEFAULT_COLLECTION) -> str:
        """Return the key of the group that a collection's values are of, as `erase` and `get_group_at` take it."""
        return f"{self._namespace}/{_collection(collection)}"

    def put(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Put a value, whatever is there."""
        self._clients.run(_put([(key, val)], collection))

    async def aput(self, key: str, val: dict[str, Any], collection: str = DEFAULT_COLLECTION) -> None:
        """Do what `put` does."""
        await self._clients.arun(_put([(key, val)], collection))

    def put_all(
        self,
        kv_pairs: Sequence[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,  # noqa: ARG002  # it is part of the contract
    ) -> None:
        """Put values, the last of each key, in commits of up to 250 of them or 12 MiB, whatever `batch_size` says.

        Each commit is all of it or nothing. Where one fails, those before it are written; where one is written, and
        not yet as durable as it has to be, those behind it are written too, and then its error is raised.
        """
        self._clients.run(_put(kv_pairs, collection))

    async def aput_all(
        self,
        kv_pairs: Sequence[tuple[str, dict[str, Any]]],
        collection: str = DEFAULT_COLLECTION,
        batch_size: int = DEFAULT_BATCH_SIZE,  # noqa: ARG002  # it is part of the contract
    ) -> None:
        """Do what `put_all` does."""
        await self._clients.arun(_put(kv_pairs, collection))

    def get(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Return a value, of which each caller has its own, or None where there is none."""
        return self._clients.run(_get(key, collection, self._read))

    async def aget(self, key: str, collection: str = DEFAULT_COLLECTION) -> dict[str, Any] | None:
        """Do what `get` does."""
        return await self._clients.arun(_get(key, collection, self._read))

    def get_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Return all values of a collection, each as of some moment during the call."""
        return self._clients.run(_get_all(collection))

    async def aget_all(self, collection: str = DEFAULT_COLLECTION) -> dict[str, dict[str, Any]]:
        """Do what `get_all` does."""
        return await self._clients.arun(_get_all(collection))

    def delete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Delete a value, and return whether there was one."""
        return self._clients.run(_delete(key, collection))

    async def adelete(self, key: str, collection: str = DEFAULT_COLLECTION) -> bool:
        """Do what `delete` does."""
        return await self._clients.arun(_delete(key, collection))


def _collection(collection: str) -> str:
    refuse_nul("collection", collection)
    return segment(collection, COLLECTION_BYTES_MAX)


def _name(key: str, collection: str) -> str:
    refuse_nul("key", key)
    return f"{_collection(collection)}/kv/{segment(key, KEY_BYTES_MAX)}"


def _put(pairs: Iterable[tuple[str, Any]], collection: str) -> Plan[None]:
    sets, sizes = dict[str, Set](), dict[str, int]()
    for at, (key, value) in enumerate(pairs):
        name, told, one = _name(key, collection), kept(key, at), kept(value, at)
        sets[name] = Set(name, {"of": OF, "key": told.data, "value": one.data})
        sizes[name] = one.size + told.size
    yield from to_its_end(commits(_parts(sets, sizes)))


def _parts(sets: dict[str, Set], sizes: dict[str, int]) -> list[list[Set]]:
    parts: list[list[Set]] = []
    size = 0
    for name, one in sets.items():
        if not parts or len(parts[-1]) == STATES_PER_COMMIT or size + sizes[name] > COMMIT_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += sizes[name]
    return parts


def _get(key: str, collection: str, read: ReadMode) -> Plan[dict[str, Any] | None]:
    state = yield from call("get", _name(key, collection), read=read)
    return None if state is None else _told(state)[1]


def _get_all(collection: str) -> Plan[dict[str, dict[str, Any]]]:
    """Return the values of a collection; what stands below one, as its named checkpoints, is none."""
    prefix = f"{_collection(collection)}/kv/"
    states: list[State[Any]] = yield from call("list", prefix)
    own = [state for state in states if state.key.count("/") == prefix.count("/") + 1]
    return dict(map(_told, own))


def _delete(key: str, collection: str) -> Plan[bool]:
    name = _name(key, collection)
    deleted = (yield from call("delete", name)) is not None
    if not deleted:
        yield from proven(name)
    return deleted


def _told(state: State[Any]) -> tuple[str, dict[str, Any]]:
    """Return a key and its value, or raise CodecError where a state is of somebody else."""
    document = state.value
    if not isinstance(document, dict) or document.get("of") != OF or not document.keys() >= {"key", "value"}:
        raise CodecError(key=state.key, verb="decoded", reason="it is no value of a key-value store for LlamaIndex")
    return str(given(document["key"])), given(document["value"])
