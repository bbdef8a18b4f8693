"""What a worker knows of how the histories of namespaces are kept, as it last looked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from statecache.rules.retention import retention_of


class KeptHistories(msgspec.Struct):
    """The namespaces of whose history only the latest values are kept, and whether any policy lets values go."""

    latest: frozenset[str] = frozenset()
    bounded: bool = False

    def take(self, rows: Sequence[Sequence[Any]]) -> None:
        """Take over what is recorded."""
        policies = {name: retention_of(*policy) for name, *policy, _, _ in rows}
        self.latest = frozenset(name for name, one in policies.items() if one.history == "latest")
        self.bounded = any(one.bounded for one in policies.values())
