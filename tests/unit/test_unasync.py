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

from statecache._async.things import AsyncThings
from statecache.concurrency import TASKS


class AsyncThing:
    """A holder of one."""

    async def __aenter__(self) -> "AsyncThing":
        return self

    async def get(self, call: Callable[[int], int | Awaitable[int]], then: Awaitable[AsyncThings]) -> int:
        async with self.pool.turn(1) as turn, self.other():  # await self.pool.take() would do
            return (await self.redis.get("a")).value + (await call(1)[0].real + 2) + len(TASKS, turn)

    async def all(self) -> AsyncIterator[int]:
        async for row in self.rows(await self.name(), [1]):
            yield [one async for one in row.parts if one] + [await (await row.close()).end()]
'''

ITS_TWIN = '''
"""A `Thing` opens; ``thing.get(1)`` reads. We await the reply, asynchronously."""

from collections.abc import Iterator, Callable

from statecache._sync.things import Things
from statecache.concurrency import THREADS


class Thing:
    """A holder of one."""

    def __enter__(self) -> "Thing":
        return self

    def get(self, call: Callable[[int], int], then: Things) -> int:
        with entered(self.pool.turn(1)) as turn, entered(self.other()):  # self.pool.take() would do
            return (run(self.redis.get("a"))).value + (run(call(1)[0].real) + 2) + len(THREADS, turn)

    def all(self) -> Iterator[int]:
        for row in iterated(self.rows(run(self.name()), [1])):
            yield [one for one in iterated(row.parts) if one] + [run((run(row.close())).end())]
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
        ("from x import AsyncPool, Pool\n", "AsyncPool would become Pool"),
        ("async def f() -> str:\n    return f'{await g()}'\n", "await in an f-string"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(tmp_path: Path, source: str, complaint: str) -> None:
    root = _tree(tmp_path, source)
    with pytest.raises(UnasyncError, match=complaint):
        mirror(root)
    assert not (root / TARGET).exists()


def _tree(root: Path, source: str = EVERY_RULE) -> Path:
    (root / SOURCE).mkdir(parents=True)
    text = dedent(source).replace("\nfrom collections", "\nfrom __future__ import annotations\n\nfrom collections", 1)
    (root / SOURCE / "thing.py").write_text(text)
    return root


def test_a_written_mirror_is_fresh_sorted_and_names_its_source(tmp_path: Path) -> None:
    root = _tree(tmp_path)
    assert write(root) == []
    assert differences(root) == []
    text = (root / TARGET / "thing.py").read_text()
    assert text.startswith("# Generated from statecache/_async/thing.py by tests/generators/unasync.py. Do not edit.\n")
    assert "Awaitable" not in text
    assert "Things\nfrom statecache.concurrency import THREADS, entered, iterated, run\n" in text


def test_an_edited_twin_a_missing_one_and_an_orphan_are_each_seen(tmp_path: Path) -> None:
    root = _tree(tmp_path)
    [missing] = differences(root)
    assert "+++ statecache/_sync/thing.py (generated)" in missing
    write(root)
    twin = root / TARGET / "thing.py"
    twin.write_text(twin.read_text().replace("return self\n", "return None\n"))
    (root / TARGET / "orphan.py").write_text("")
    orphan, edited = differences(root)
    assert "orphan.py: only one" in orphan
    assert "+        return self" in edited
    write(root)
    assert differences(root) == []


def test_an_idle_rule_is_named(tmp_path: Path) -> None:
    root = _tree(tmp_path, "async def f() -> None: ...\n")
    assert "await x -> run(x)" in mirror(root).unused
    assert any("'await x -> run(x)' was never used" in line for line in differences(root))


def test_a_wrong_call_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err
