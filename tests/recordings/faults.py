"""The faults that are recorded: each goes through its moments, and yields the second at which the next one comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import redis

from tests.recordings.scene import Scene

Moments = Callable[[Scene], Iterator[int]]


class Fault(NamedTuple):
    """One fault: what goes wrong, for how many minutes it is recorded, what its servers are started with."""

    moments: Moments
    minutes: int
    options: dict[str, Any]


FAULTS: dict[str, Fault] = {}


def fault(*, minutes: int, **options: Any) -> Callable[[Moments], Moments]:
    """Return a decorator that adds a fault to the table by its name."""

    def add(moments: Moments) -> Moments:
        FAULTS[moments.__name__] = Fault(moments, minutes, options)
        return moments

    return add


@fault(minutes=8)
def calm(scene: Scene) -> Iterator[int]:
    """Nothing goes wrong."""
    yield 0


@fault(minutes=13)
def workers_killed(scene: Scene) -> Iterator[int]:
    """One of two workers is killed after two minutes, the other after nine and a half."""
    yield 120
    scene.servers.kill_worker()
    yield 570
    scene.servers.kill_worker()


@fault(minutes=12)
def postgres_down(scene: Scene) -> Iterator[int]:
    """Postgres is killed after two minutes and comes back after nine; one key is written as fast as it goes."""
    scene.durability = "postgres"
    yield 120
    scene.servers.kill("postgres")
    yield 150
    scene.durability = "memory"
    key = scene.agents.key_on(0, "hot")
    yield 180
    scene.flood(key, 85_000)
    yield 360
    scene.flood(key, 20_000)
    scene.aside(lambda: scene.client.set(key, "no room"))
    yield 540
    scene.servers.restart("postgres")


@fault(minutes=12)
def redis_down(scene: Scene) -> Iterator[int]:
    """Redis is killed after two minutes and comes back after nine and a half."""
    yield 120
    scene.servers.kill("redis")
    yield 570
    scene.servers.restart("redis")


@fault(minutes=10)
def redis_restarts(scene: Scene) -> Iterator[int]:
    """Redis is started anew again and again."""
    for times in range(6):
        yield 60 + 60 * times
        scene.servers.kill("redis")
        scene.servers.restart("redis")


@fault(minutes=6, redis_config={"maxmemory": "64mb", "maxmemory-policy": "volatile-lru"})
def redis_full(scene: Scene) -> Iterator[int]:
    """Another program fills Redis with what may not be evicted."""
    yield 60
    with suppress(redis.exceptions.ResponseError):
        for number in range(1_000):
            scene.raw.set(f"other/{number}", "x" * 100_000)
    yield 270
    scene.raw.delete(*(f"other/{number}" for number in range(1_000)))


@fault(minutes=9)
def gates_closed(scene: Scene) -> Iterator[int]:
    """Redis says that it is another server than the one which Postgres knows, of one shard."""
    yield 60
    scene.sql("UPDATE shard SET replid = repeat('b', 40) WHERE shard = 1")
    scene.raw.hset(scene.keys.meta(1), "replid", "a" * 40)


@fault(minutes=10)
def damaged(scene: Scene) -> Iterator[int]:
    """Postgres refuses a key; another is vouched to be new and is not; entries are deleted; a meta is no hash."""
    agents, keys = scene.agents, scene.keys
    yield 60
    scene.sql("ALTER TABLE change ADD CHECK (key NOT LIKE 'bad/%') NOT VALID")
    scene.aside(lambda: scene.client.set("bad/1", "poison", durability="postgres"))
    yield 75
    scene.client.set("forked/1", "truth", durability="postgres")
    scene.raw.delete(keys.state("forked/1"))
    agents.commit(("forked/1", "fork"))
    yield 90
    gone = agents.key_on(2, "gone")
    scene.frozen(lambda: [agents.commit((gone, str(n))) for n in range(9)], lambda: scene.raw.xtrim(keys.changes(2), 0))
    yield 180
    scene.raw.rename(keys.meta(3), keys.meta(3) + ".kept")
    scene.raw.set(keys.meta(3), "something else")


@fault(minutes=10)
def slow_postgres(scene: Scene) -> Iterator[int]:
    """Every transaction with changes takes a second and a half."""
    yield 60
    scene.sql(
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END $$",
        "CREATE TRIGGER slowly AFTER INSERT ON change FOR EACH STATEMENT EXECUTE FUNCTION slowly()",
    )


@fault(minutes=6, settings={"timeout_s": "600"})
def stalled(scene: Scene) -> Iterator[int]:
    """Postgres stands still, and workers wait for it as long as they were told to: ten minutes."""
    yield 60
    scene.servers.pause("postgres")
    yield 330
    scene.servers.resume("postgres")
