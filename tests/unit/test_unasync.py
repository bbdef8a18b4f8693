"""The mirror's rules, one story each: what is rewritten, what is left alone, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

from tests.generators.unasync import (
    NAME_RULES,
    SOURCE,
    TARGET,
    TOKEN_RULES,
    UnasyncError,
    differences,
    main,
    mirror,
    rewrite,
    write,
)

EVERY_RULE = '''
"""An `AsyncThing` opens; ``await thing.get(1)`` reads. We await the reply, asynchronously."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from statecache._async.pool import AsyncPool
from statecache._bridge import AsyncSignal, async_timeout


class AsyncThing:
    """A holder of one."""

    async def __aenter__(self) -> "AsyncThing":
        return self

    async def get(self, call: Callable[[int], int | Awaitable[int]], then: Awaitable[AsyncPool]) -> int:
        async with async_timeout(1):  # await self.pool.take() would do
            return (await self.redis.get("a")).value + (await call(1) + 2)

    @asynccontextmanager
    async def all(self) -> AsyncIterator[Redis]:
        yield [row async for row in self.rows(f"{await self.name()} of {self!r:>{await self.width()}}")]
        await self.close()
'''

ITS_TWIN = '''
"""A `Thing` opens; ``thing.get(1)`` reads. We await the reply, asynchronously."""

from collections.abc import Iterator, Callable
from contextlib import contextmanager

from redis import Redis

from statecache._sync.pool import Pool
from statecache._bridge import Signal, timeout


class Thing:
    """A holder of one."""

    def __enter__(self) -> "Thing":
        return self

    def get(self, call: Callable[[int], int], then: Pool) -> int:
        with timeout(1):  # self.pool.take() would do
            return self.redis.get("a").value + (call(1) + 2)

    @contextmanager
    def all(self) -> Iterator[Redis]:
        yield [row for row in self.rows(f"{self.name()} of {self!r:>{self.width()}}")]
        self.close()
'''


def test_every_rule_is_applied_and_prose_keeps_its_verbs() -> None:
    used: Counter[str] = Counter()
    twin = rewrite(EVERY_RULE, used=used)
    assert twin.replace("Awaitable, Callable", "Callable") == ITS_TWIN
    assert set(used) == {*NAME_RULES, *TOKEN_RULES}


def test_a_text_without_anything_asynchronous_stays_as_it_is() -> None:
    source = "def f(x: int) -> str:\n    return f'{x:>{4}} \\N{BULLET} {{}}'  # (x)\n"
    assert rewrite(source) == source


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import asyncio\nasyncio.get_running_loop()\n", "asyncio is still asynchronous"),
        ("is_async = True\n", "is_async is still asynchronous"),
        ("async def f(timeout: int) -> None:\n    async_timeout(timeout)\n", "async_timeout would become timeout"),
        ("from x import AsyncPool, Pool\n", "AsyncPool would become Pool"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(tmp_path: Path, source: str, complaint: str) -> None:
    root = _tree(tmp_path, source)
    with pytest.raises(UnasyncError, match=complaint):
        mirror(root)
    assert not (root / TARGET).exists()


def _tree(root: Path, source: str = EVERY_RULE) -> Path:
    (root / SOURCE).mkdir(parents=True)
    (root / SOURCE / "thing.py").write_text(dedent(source))
    return root


def test_a_written_mirror_is_fresh_sorted_and_names_its_source(tmp_path: Path) -> None:
    root = _tree(tmp_path)
    assert write(root) == []
    assert differences(root) == []
    text = (root / TARGET / "thing.py").read_text()
    assert text.startswith("# Generated from statecache/_async/thing.py by tests/generators/unasync.py. Do not edit.\n")
    assert "Awaitable" not in text
    assert "from statecache._bridge import timeout\nfrom statecache._sync.pool import Pool\n" in text


def test_an_edited_twin_a_missing_one_and_an_orphan_are_each_seen(tmp_path: Path) -> None:
    root = _tree(tmp_path)
    [missing] = differences(root)
    assert "+++ statecache/_sync/thing.py (generated)" in missing
    write(root)
    twin = root / TARGET / "thing.py"
    twin.write_text(twin.read_text().replace("self.close()", "pass"))
    (root / TARGET / "orphan.py").write_text("")
    orphan, edited = differences(root)
    assert "orphan.py: only one" in orphan
    assert "+        self.close()" in edited
    write(root)
    assert differences(root) == []


def test_an_idle_rule_is_named(tmp_path: Path) -> None:
    root = _tree(tmp_path, "async def f() -> None: ...\n")
    assert "await x -> x" in mirror(root).unused
    assert any("'await x -> x' was never used" in line for line in differences(root))


def test_a_wrong_call_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err
