"""The store: LangGraph's operations, each a plan that clients carry out, those of one event loop in batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from statecache import AsyncStateCache, Settings, StateCache, StateCacheError
from statecache.adapters.clients import Clients, OnClients, settings_of
from statecache.adapters.langgraph.batching import Batch, Queue
from statecache.adapters.langgraph.store.items import Get, Put, get_items, last_of_each, put_items
from statecache.adapters.langgraph.store.names import group
from statecache.adapters.langgraph.store.namespaces import list_namespaces
from statecache.adapters.langgraph.store.putting import Putting, take_vectors, texts_of
from statecache.adapters.langgraph.store.searching import Search, search_items
from statecache.adapters.langgraph.store.vectors import Index
from statecache.adapters.plans import Plan
from statecache.adapters.segments import refuse_parted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from langchain_core.embeddings import Embeddings

    from statecache import Durability, ReadMode

_GETS_PER_BATCH = 500
_GETTING_MAX = 2
_LOOKING_MAX = 8


class StateCacheStore(OnClients, BaseStore):
    """A LangGraph store on statecache: what agents remember across threads, hot in Redis and durable in Postgres.

    `cache` is a `StateCache`, an `AsyncStateCache`, or `Settings`; without it settings come from STATECACHE_*
    variables. On settings the store makes clients of its own, for threads and for each event loop, and closes them:
    use it as a context manager, with `async` or without, or call `close` or `aclose`. A client that is given stays
    open. `namespace` is that of all its states. `durability` is when a put counts as written, the setting without it.
    `read` is how `get` reads: from the `primary`, or `local`, which may be as old as the near cache may be believed.

    `index` and `ttl` are as LangGraph has them; items end without being swept, and are never read beyond their end. A
    query is answered by pgvector once `statecache vectors create` has made an index of the namespace, else by comparing
    the vectors of all items under its prefix, exactly, of at most 10,000.

    What statecache raises is raised: `OutcomeUnknown` where it is not known whether a put was applied, which makes the
    same put safe to repeat, and `CodecError` for a state under an item's key that no store has written.
    """

    supports_ttl = True

    def __init__(
        self,
        cache: StateCache | AsyncStateCache | Settings | None = None,
        *,
        namespace: str = "langgraph-store",
        durability: Durability | None = None,
        read: ReadMode = "primary",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        super().__init__()
        refuse_parted(namespace, "items")
        self._namespace, self._read = namespace, read
        self._index = Index(index) if index else None
        self.ttl_config = ttl
        policy = {"durability": durability, "read": read}
        self._clients = Clients(
            Settings() if cache is None else cache, namespace, policy, of="store", awaited="aput, aget"
        )
        self._queues: dict[asyncio.AbstractEventLoop, _Queues] = {}

    @classmethod
    def from_conn_string(
        cls,
        redis_url: str | None = None,
        postgres_url: str | None = None,
        *,
        namespace: str = "langgraph-store",
        durability: Durability | None = None,
        read: ReadMode = "primary",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        **settings: Any,
    ) -> Self:
        """Return a store with clients of its own; what is not given comes from STATECACHE_* variables."""
        told = settings_of(redis_url, postgres_url, settings)
        return cls(told, namespace=namespace, durability=durability, read=read, index=index, ttl=ttl)

    @property
    def index_config(self) -> IndexConfig | None:
        """What `index=` said."""
        return None if self._index is None else self._index.config

    @property
    def embeddings(self) -> Embeddings | None:
        """What makes vectors, as LangChain has it; None without an index."""
        return None if self._index is None else self._index.embeddings

    def group_of(self, namespace: tuple[str, ...]) -> str:
        """Return the key of the group that a namespace's items are of, as `erase` and `get_group_at` take it."""
        return f"{self._namespace}/{group(tuple(namespace))}"

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations, and return what each gives: first all that read, then the puts, the last of each item.

        The puts of one namespace are one commit, up to 250 of them. Where a put fails, those of others may be written.
        """
        asked = _Asked(ops, self._index)
        results: dict[int, Any] = {}
        if asked.gets:
            found = self._clients.run(get_items([*asked.gets.values()], self._read))
            _raise_first(found)
            results |= zip(asked.gets, found, strict=True)
        for at, one in asked.looks.items():
            query = _query_of(one)
            vector = self._index.embed_query(query) if query and self._index is not None else None
            results[at] = self._clients.run(_looked(one, vector))
        if asked.puts:
            puts = last_of_each(asked.puts.values())
            if self._index is not None and (texts := texts_of(puts)):
                take_vectors(puts, texts, self._index.embed(texts))
            _raise_first(self._clients.run(put_items(puts)))
        return [results.get(at) for at in range(asked.count)]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do what `batch` does, in common batches with whatever else is awaited at the moment."""
        asked, queues = _Asked(ops, self._index), self._queues_of_loop()
        results: dict[int, Any] = {}
        if asked.gets:
            results |= zip(asked.gets, await queues.gets.ask([*asked.gets.values()]), strict=True)
        if asked.looks:
            results |= zip(asked.looks, await queues.look([*asked.looks.values()]), strict=True)
        if asked.puts:
            await queues.puts.put([*asked.puts.values()])
        return [results.get(at) for at in range(asked.count)]

    def _queues_of_loop(self) -> _Queues:
        loop = asyncio.get_running_loop()
        if loop not in self._queues:
            for ended in [one for one in [*self._queues] if one.is_closed()]:
                self._queues.pop(ended, None)
            self._queues[loop] = _Queues(self._clients, self._read, self._index)
        return self._queues[loop]


class _Sought:
    """A search that was asked for, with what it is for."""

    __slots__ = ("asked", "search")

    def __init__(self, asked: SearchOp) -> None:
        self.asked, self.search = asked, Search(asked)


_Look = _Sought | ListNamespacesOp
_Vector = list[float]


class _Asked:
    """Operations by their places, checked: what gets items, what looks for items or namespaces, and what puts."""

    def __init__(self, ops: Iterable[Op], index: Index | None) -> None:
        self.gets: dict[int, Get] = {}
        self.looks: dict[int, _Look] = {}
        self.puts: dict[int, Put] = {}
        self.count = 0
        for at, op in enumerate(ops):
            validate_op_namespace(op)
            if isinstance(op, GetOp):
                self.gets[at] = Get(op)
            elif isinstance(op, PutOp):
                self.puts[at] = Put(op, index)
            elif isinstance(op, SearchOp):
                self.looks[at] = _Sought(op)
            elif isinstance(op, ListNamespacesOp):
                self.looks[at] = op
            else:
                raise ValueError(f"Unknown operation type: {type(op)}")
            self.count = at + 1


class _Queues:
    """What one event loop asks of a store; who asks for no vectors waits for none."""

    def __init__(self, clients: Clients, read: ReadMode, index: Index | None) -> None:
        self._clients, self._read, self._index = clients, read, index
        self.gets: Queue[Get, Item | None] = Queue(self._get, batch_max=_GETS_PER_BATCH, in_flight_max=_GETTING_MAX)
        self.puts = Putting(clients, index)
        self._looks: Queue[tuple[_Look, _Vector | None], Any] = Queue(
            self._look, batch_max=1, in_flight_max=_LOOKING_MAX
        )
        self._vectors: Queue[str, _Vector] = Queue(self._embed, batch_max=1, in_flight_max=_LOOKING_MAX)

    async def look(self, asked: Sequence[_Look]) -> list[Any]:
        """Return what each finds, once all queries have their vectors."""
        queries = [None if self._index is None else _query_of(one) for one in asked]
        texts = [*dict.fromkeys(query for query in queries if query)]
        vectors = dict(zip(texts, await self._vectors.ask(texts), strict=True))
        found = [vectors[query] if query else None for query in queries]
        return await self._looks.ask([*zip(asked, found, strict=True)])

    async def _get(self, batch: Batch[Get, Item | None]) -> list[Item | StateCacheError | None]:
        return await self._clients.arun(get_items(batch.wanted(), self._read, batch.begin_to_write))

    async def _look(self, batch: Batch[tuple[_Look, _Vector | None], Any]) -> list[Any]:
        looks = batch.wanted()
        found = [await self._clients.arun(_looked(*look, batch.begin_to_write)) for look in looks]
        return found if batch.wanted() else []

    async def _embed(self, batch: Batch[str, _Vector]) -> list[_Vector]:
        assert self._index is not None
        return [await self._index.aembed_query(text) for text in batch.wanted()]


def _raise_first(answers: Iterable[Any]) -> None:
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer


def _query_of(one: _Look) -> str | None:
    return one.asked.query if isinstance(one, _Sought) else None


def _looked(one: _Look, vector: _Vector | None, begin_to_write: Callable[[], object] = lambda: True) -> Plan[Any]:
    if isinstance(one, _Sought):
        return search_items(one.search, vector, begin_to_write)
    return list_namespaces(one)
