"""What a checkpoint is made with: versions, and a hash of the settings that decide how states are kept."""

from __future__ import annotations

import platform
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import msgspec

from statecache.checkpoints import MadeBy

if TYPE_CHECKING:
    from statecache.settings import Settings

_LIBRARIES = ("msgspec", "psycopg", "pydantic", "redis", "zstandard")
_DECIDING = (
    "absent_ttl_s", "durability", "fence", "near_window_s", "postgres_schema", "prefix", "read", "redis_ttl_s",
    "replicas", "shards", "stale_reads", "step_claim_s", "value_bytes_max",
)  # fmt: skip
"""The settings that decide how states are kept and read. No URL, which may hold a password, and no name of a file."""


def made_by(settings: Settings) -> MadeBy:
    """Return what checkpoints of a client with these settings are made with."""
    return MadeBy(
        statecache_version=_version_of("statecache"),
        application_version=settings.application_version,
        configuration_hash=configuration_hash(settings),
        dependencies={"python": platform.python_version(), **{name: _version_of(name) for name in _LIBRARIES}},
    )


def configuration_hash(settings: Settings) -> str:
    """Return the SHA-256 of the settings that decide how states are kept, in hexadecimal."""
    return sha256(msgspec.json.encode([(name, getattr(settings, name)) for name in _DECIDING])).hexdigest()


@cache
def _version_of(distribution: str) -> str:
    """Return the version of an installed distribution, or '' where it is not known."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
