"""The checkpointer beside LangGraph's own for Postgres, on the same Postgres, and sessions beside their vendors' own.

What three graphs asked of a saver is played into both, call by call, into a new thread of each in every round; then
each thread is read, and deleted. Both savers are used as they come: ours acknowledges when Redis has executed a commit
(`durability="memory"`), theirs when Postgres has; a row of its own says what a put takes that waits for Postgres. What
either reads back is compared before anything is timed. Bytes are those of tables, TOAST and indexes of all that a
thread's calls left there, and our worker's flushing is in what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from random import Random
from time import perf_counter
from typing import Any

import psycopg
import redis

from statecache import Settings, StateCache
from statecache.adapters.langgraph import StateCacheSaver
from statecache.keys import KeySpace
from statecache.testing import servers
from statecache.testing.embedded import Servers
from tests.benchmarks.adapters_adk import adk_sessions
from tests.benchmarks.adapters_at_once import sessions, writes_at_once
from tests.benchmarks.adapters_store import searches
from tests.benchmarks.backlog import Backlog
from tests.benchmarks.graph_calls import PROFILES, SEED, Call, Words, config_of
from tests.benchmarks.measuring import Measure, Row, left_out, times_faster
from tests.benchmarks.values import Value

VENDOR = "langgraph-checkpoint-postgres"
THREADS = 5
READS, LISTS, LISTED = 24, 6, 10
MANY = 2_000
FIRST_PUTS = 20
PUT, PUT_WRITES, GET, LATEST, LIST = "put", "put_writes", "get_tuple by id", "get_tuple, latest", "list(limit=10)"
TIMES_FASTER = {PUT: 2.0, PUT_WRITES: 4.0, GET: 3.0, LATEST: 10.0, LIST: 2.0}
ELSEWHERE = {one: f"{one}, first by another client" for one in (GET, LATEST, LIST)}
ELSEWHERE_GETS, ELSEWHERE_LATEST = 8, 4
BYTES_MAX = 0.2
_SIZE = """SELECT sum(pg_total_relation_size(pg_class.oid)) FROM pg_class
JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE relkind = 'r' AND nspname = %s"""


class Sides:
    """Both savers on the same servers, each with a synchronous client as it comes."""

    def __init__(self, running: Servers, cache: StateCache, theirs: Any, psql: psycopg.Connection[Any]) -> None:
        self.ours: Any = StateCacheSaver(cache)
        self.theirs, self.cache = theirs, cache
        self._running, self._psql = running, psql
        self._turn = 0

    def both(self, call: Callable[[Any], Any], ours: Any = None) -> tuple[float, float]:
        """Make one call on either side, neither always first; return the seconds of ours and of theirs."""
        self._turn += 1
        pair = (0, ours or self.ours), (1, self.theirs)
        spent = [0.0, 0.0]
        for at, saver in pair if self._turn % 2 else reversed(pair):
            begun = perf_counter()
            call(saver)
            spent[at] = perf_counter() - begun
        return spent[0], spent[1]

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of all of our tables, and of theirs, once all is flushed."""
        self.until_flushed()
        schemas = self.cache.settings.postgres_schema, "public"
        ours, theirs = (self._psql.execute(_SIZE, [schema]).fetchone()[0] for schema in schemas)  # type: ignore[index]
        return int(ours), int(theirs)

    def until_flushed(self) -> None:
        """Wait until Postgres holds all of our commits."""
        with redis.Redis.from_url(self._running.redis_url) as bare:
            settings = self.cache.settings
            Backlog(bare, KeySpace(settings.prefix, settings.shards), []).until_flushed()


def adapters(values: Sequence[Value], rounds: int) -> Iterator[Row]:
    """Measure the rows, those of each profile on servers of their own."""
    words = Words([value["messages"][0]["content"] for value in values])
    if find_spec("psycopg_pool") is None or find_spec("langgraph.checkpoint.postgres") is None:
        yield left_out("LangGraph: all calls of a saver", f"{VENDOR} is not installed: the extra `bench` brings it")
    else:
        yield from _savers(words, rounds)
    with servers(workers=1) as running:
        settings = Settings(redis_url=running.redis_url, postgres_url=running.postgres_url)
        yield from sessions(settings, words, rounds)
        yield from adk_sessions(settings, words, rounds)


def _savers(words: Words, rounds: int) -> Iterator[Row]:
    """Measure the rows of LangGraph's checkpointers."""
    for name, profile in PROFILES.items():
        calls = profile(words)
        yield from _on_servers(lambda sides, name=name, calls=calls: _profile(sides, name, calls, rounds))  # type: ignore[misc]
    calls = PROFILES["chat"](words)
    yield from _on_servers(lambda sides: _threads(sides, calls, rounds))
    yield from _on_servers(lambda sides: [writes_at_once(sides.cache.settings, calls[0], words, rounds)])
    yield from _on_servers(lambda sides: searches(sides.cache, words, rounds))


def _on_servers(rows: Callable[[Sides], Iterable[Row]]) -> Iterator[Row]:
    """Yield rows measured on fresh servers with one worker."""
    saver: Any = import_module("langgraph.checkpoint.postgres").PostgresSaver
    with (
        servers(workers=1) as running,
        StateCache(redis_url=running.redis_url, postgres_url=running.postgres_url) as cache,
        saver.from_conn_string(running.postgres_url) as theirs,
        psycopg.connect(running.postgres_url, autocommit=True) as psql,
    ):
        theirs.setup()
        cache.set("open/1", 1)
        yield from rows(Sides(running, cache, theirs, psql))


def _profile(sides: Sides, name: str, calls: Sequence[Call], rounds: int) -> Iterator[Row]:
    """Measure what one graph asks for, and what its threads take in Postgres."""
    before = sides.sizes()
    times = {one: _Spent(rounds) for one in [*TIMES_FASTER, *ELSEWHERE.values()]}
    for number in range(THREADS):
        for call in calls:
            sides.both(lambda saver, call=call: call.on(saver, f"kept-{number}"))  # type: ignore[misc]  # noqa: B023
    after = sides.sizes()
    compare(sides.ours, sides.theirs, "kept-0", calls)
    rng = Random(SEED)
    for turn in range(rounds):
        _one_round(sides, turn, calls, times, rng)
    for what, spent in times.items():
        yield spent.row(f"{name}, {what}", bound=TIMES_FASTER.get(what))
    kept = [(end - begin) / THREADS for begin, end in zip(before, after, strict=True)]
    yield Row(
        subject=Measure(name=f"LangGraph: {name}, {kept[0] / 1024:,.0f} KB a thread in Postgres"),
        against=Measure(name=f"{VENDOR}: {kept[1] / 1024:,.0f} KB"),
        figures=[kept[0] / kept[1]], bound=BYTES_MAX,
    )  # fmt: skip


def _one_round(sides: Sides, turn: int, calls: Sequence[Call], times: Mapping[str, _Spent], rng: Random) -> None:
    """Play the calls into a new thread of either side, and read it."""
    thread = f"round-{turn}"

    def timed(what: str, call: Callable[[Any], Any]) -> None:
        times[what].note(turn, sides.both(call))

    for call in calls:
        timed(call.verb, lambda saver, call=call: call.on(saver, thread))  # type: ignore[misc]
    ids = [call.arguments[0]["id"] for call in calls if call.verb == "put"]
    for one in rng.choices(ids, k=READS):
        timed(GET, partial(_got, thread, one))
    for _ in range(READS):
        timed(LATEST, partial(_got, thread, ""))
    for _ in range(LISTS):
        timed(LIST, partial(_listed, thread))
    sides.until_flushed()
    for what, asked in ((GET, rng.sample(ids, ELSEWHERE_GETS)), *[(LATEST, [""])] * ELSEWHERE_LATEST, (LIST, [""])):
        with StateCache(settings=sides.cache.settings) as cache:
            other: Any = StateCacheSaver(cache)
            [*other.list(config_of("kept-0"), limit=1)]  # it is connected
            for one in asked:
                read = partial(_listed, thread) if what == LIST else partial(_got, thread, one)
                times[ELSEWHERE[what]].note(turn, sides.both(read, other))


def _got(thread: str, checkpoint_id: str, saver: Any) -> Any:
    return saver.get_tuple(config_of(thread, checkpoint_id))


def _listed(thread: str, saver: Any) -> Any:
    return [*saver.list(config_of(thread), limit=LISTED)]


def compare(ours: Any, theirs: Any, thread: str, calls: Sequence[Call]) -> None:
    """Raise RuntimeError where the two savers do not read the same of a thread into which these calls were played."""
    found = [[*saver.list(config_of(thread))] for saver in (ours, theirs)]
    shown = [[(one.config, one.parent_config, one.checkpoint, one.metadata) for one in side] for side in found]
    writes = [[sorted(map(repr, one.pending_writes or ())) for one in side] for side in found]
    puts = sum(call.verb == "put" for call in calls)
    if len(shown[0]) != puts or shown[0] != shown[1] or writes[0] != writes[1]:
        raise RuntimeError("the two savers read different checkpoints")


def _threads(sides: Sides, calls: Sequence[Call], rounds: int) -> Iterator[Row]:
    """Measure what is done to whole threads: begun, listed among many checkpoints, deleted."""
    numbers = count()
    begun, listed, deleted, durable = (_Spent(rounds) for _ in range(4))
    waiting = StateCacheSaver(sides.cache, durability="postgres")
    for number in range(MANY):
        call = Call("put", None, (*_checkpoint(calls, number), {}))
        sides.both(lambda saver, call=call: call.on(saver, "long"))  # type: ignore[misc]
    sides.until_flushed()
    for turn in range(rounds):
        for _ in range(FIRST_PUTS):
            thread = f"new-{next(numbers)}"
            begun.note(turn, sides.both(lambda saver, thread=thread: calls[0].on(saver, thread)))  # type: ignore[misc]
        for _ in range(LISTS):
            listed.note(turn, sides.both(partial(_listed, "long")))
        for call in calls:
            spent = sides.both(
                lambda saver, call=call, turn=turn: call.on(  # type: ignore[misc]
                    waiting if saver is sides.ours and call.verb == "put" else saver, f"old-{turn}"
                )
            )
            if call.verb == "put":
                durable.note(turn, spent)
        deleted.note(turn, sides.both(lambda saver, turn=turn: saver.delete_thread(f"old-{turn}")))  # type: ignore[misc]
    puts = sum(call.verb == "put" for call in calls)
    yield begun.row("the first put of a thread", bound=1.0)
    yield listed.row(f"list(limit={LISTED}) among {MANY:,}", bound=1.0)
    yield deleted.row(f"delete_thread of {puts}", bound=1.0)
    yield durable.row("put, durability='postgres'", bound=None)


class _Spent:
    """The seconds of a kind of call on either side, one list a round."""

    def __init__(self, rounds: int) -> None:
        self._sides: tuple[list[list[float]], list[list[float]]] = (
            [[] for _ in range(rounds)],
            [[] for _ in range(rounds)],
        )

    def note(self, turn: int, seconds: tuple[float, float]) -> None:
        """Note what one call took on either side."""
        for side, one in zip(self._sides, seconds, strict=True):
            side[turn].append(one)

    def row(self, name: str, *, bound: float | None) -> Row:
        """Make the row."""
        return times_faster(f"LangGraph: {name}", VENDOR, self._sides, bound=bound)


def _checkpoint(calls: Sequence[Call], number: int) -> tuple[Any, Any]:
    """Return a small checkpoint with an id of its own, later than those before."""
    checkpoint, metadata, _ = calls[2].arguments
    small = checkpoint | {"id": f"1f000000-0000-6000-8000-{number:012x}", "channel_values": {"count": number}}
    return small | {"channel_versions": {"count": f"{number:032}.0"}}, metadata
