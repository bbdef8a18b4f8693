"""Where a replay runs: on throwaway servers of its own, which it may kill, or on given ones, which it may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from statecache._tls import FILES, NO_FILES
from statecache.errors import ConfigurationError
from statecache.replay.deployment import beside_others
from statecache.settings import Settings, variable_of
from statecache.testing import servers

SERVERS = ("redis", "postgres")
_TOLD = ("redis_url", "postgres_url", "prefix", "postgres_schema")


class Killable(Protocol):
    """Servers of one's own, which may be killed."""

    def kill(self, name: str) -> None:
        """Kill a server with SIGKILL."""

    def restart(self, name: str) -> None:
        """Start a server again with its data, and return when it answers."""

    def start_workers(self, count: int = 1) -> None:
        """Start that many workers, and return when they are ready."""


class Stage:
    """A replay's servers: settings, the environment of its child processes, and `servers` where it may kill them."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], servers: Killable | None) -> None:
        self.settings = settings
        self.environment = environment
        self.servers = servers


def urls_are_given(settings: Settings) -> bool:
    """Return whether the settings name both servers; raise ConfigurationError if they name only one."""
    given = {"redis_url", "postgres_url"} & settings.model_fields_set
    if len(given) == 1:
        missing = ({"redis_url", "postgres_url"} - given).pop()
        raise ConfigurationError(
            f"{given.pop()} is set and {missing} is not", hint="Set both, or none for throwaway servers."
        )
    return bool(given)


@contextmanager
def stage(settings: Settings, keys: Sequence[str], *, throwaway: bool = False) -> Iterator[Stage]:
    """Set the stage for states of those keys, and of no others, until the block ends.

    It stands on the servers that the settings name, or on throwaway ones where none are, or if asked to.
    """
    if not throwaway and urls_are_given(settings):
        with beside_others(settings, keys) as own_settings:
            environment = {variable_of(name): str(getattr(own_settings, name)) for name in _TOLD}
            yield Stage(own_settings, environment, None)
        return
    quick = {} if {"lease_s", "lease_renew_s"} & settings.model_fields_set else {"lease_s": "2", "lease_renew_s": "0.5"}
    with servers(workers=0, appendfsync="always", settings=quick) as own:
        values = {name: getattr(settings, name) for name in settings.model_fields_set} | quick
        values |= dict.fromkeys(FILES.values())
        own_settings = Settings(**{**values, "redis_url": own.redis_url, "postgres_url": own.postgres_url})
        yield Stage(own_settings, NO_FILES | own.environment(), own)
