"""Whether enough replicas keep up for Redis to write at all (`min-replicas-to-write`). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

REPLICAS = "min-replicas-to-write"


def replicas_min_of(config: Any) -> int | None:
    """Return what CONFIG GET says of REPLICAS; None where it is refused."""
    told = config[1] if isinstance(config, list) and len(config) == 2 else b""
    return int(told) if told.isdigit() else None


def too_few_replicas(info: Mapping[str, str], replicas_min: int | None) -> str:
    """Return in words what Redis lacks where too few replicas keep up for it to write at all; or ''."""
    good = info.get("min_slaves_good_slaves", "")
    if not good.isdigit() or int(good) >= (replicas_min or 1):
        return ""
    asked = "at least one" if replicas_min is None else str(replicas_min)
    return f"{good} replicas keep up with it, and {REPLICAS} asks for {asked}"


def unreplicated(info: Mapping[str, str], replicas_min: int | None) -> Iterator[str]:
    """Yield that Redis refuses writes, with what to do, where too few replicas keep up."""
    if short := too_few_replicas(info, replicas_min):
        yield (
            f"Redis refuses every commit and every lock (NOREPLICAS): {short}: bring the replicas back, or, for as "
            f"long as they are away: CONFIG SET {REPLICAS} 0"
        )
