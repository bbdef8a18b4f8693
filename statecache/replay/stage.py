"""Where a replay runs: on throwaway servers of its own, which it may kill, or on given ones, which it may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from statecache.errors import ConfigurationError
from statecache.settings import Settings
from statecache.testing import servers

SERVERS = ("redis", "postgres")


class Killable(Protocol):
    """This is what can be done to a server of one's own."""

    def kill(self, name: str) -> None:
        """This ends it with SIGKILL."""

    def restart(self, name: str) -> None:
        """This starts it again with its data, and returns when it answers."""

    def start_workers(self, count: int = 1) -> None:
        """This starts that many workers, and returns when they are ready."""


class Stage:
    """This holds the settings of the servers, what child processes need to meet them, and the power over them."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], servers: Killable | None) -> None:
        self.settings = settings
        self.environment = environment
        self.servers = servers


def urls_are_given(settings: Settings) -> bool:
    """This says whether the settings name servers; naming one of the two is a ConfigurationError."""
    given = {"redis_url", "postgres_url"} & settings.model_fields_set
    if len(given) == 1:
        missing = ({"redis_url", "postgres_url"} - given).pop()
        raise ConfigurationError(
            f"{given.pop()} is set and {missing} is not", hint="Set both, or none for throwaway servers."
        )
    return bool(given)


@contextmanager
def stage(settings: Settings, *, throwaway: bool = False) -> Iterator[Stage]:
    """This gives the given servers, or throwaway ones for the length of the block, where none are given or wanted."""
    if not throwaway and urls_are_given(settings):
        environment = {"STATECACHE_REDIS_URL": settings.redis_url, "STATECACHE_POSTGRES_URL": settings.postgres_url}
        yield Stage(settings, environment, None)
        return
    quick = {} if {"lease_s", "lease_renew_s"} & settings.model_fields_set else {"lease_s": "2", "lease_renew_s": "0.5"}
    with servers(workers=0, appendfsync="always", settings=quick) as own:
        values = {name: getattr(settings, name) for name in settings.model_fields_set} | quick
        own_settings = Settings(**{**values, "redis_url": own.redis_url, "postgres_url": own.postgres_url})
        yield Stage(own_settings, own.environment(), own)
