"""The inspector: one of the thousand versions of a value of 50 KB as a page, beside a bare read of that version."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from statecache import Settings, StateCache
from tests.benchmarks.measuring import Row, in_turns
from tests.support.inspected import inspected

KEY, VERSIONS, MESSAGES, CALLS = "runs/42", 1000, 250, 20
PAGE_MS = 500.0
SEED = 7
TIMEOUT_S = 60.0


def inspecting(settings: Settings, rounds: int) -> Iterator[Row]:
    """Measure the row, with a worker that runs."""
    with StateCache(settings=settings) as cache:
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"message {n}, " * 13} for n in range(MESSAGES)]
        for version in range(1, VERSIONS + 1):
            messages[version % MESSAGES]["content"] = f"answer {version} to what was asked, " * 7
            state = cache.set(KEY, {"messages": messages, "step": version})
        cache.wait_durable(state, timeout=TIMEOUT_S)
        pages, reads = Random(SEED), Random(SEED)
        with inspected(settings) as web:

            def page() -> None:
                found = web.client.get(f"{web.home}key", params={"key": KEY, "version": pages.randint(1, VERSIONS)})
                if found.status_code != 200:
                    raise RuntimeError(f"the page is {found.status_code}")

            yield in_turns(
                (f"inspector: a page of one of {VERSIONS:,} versions of 50 KB", page),
                ("get_at of the same", lambda: cache.get_at(KEY, version=reads.randint(1, VERSIONS))),
                bound=PAGE_MS, rounds=rounds, calls=CALLS, unit="ms", alone=True,
            )  # fmt: skip
