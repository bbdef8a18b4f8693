"""`statecache verify`: whether the history that Postgres keeps is whole, row by row."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from statecache.cli.exits import FINDING, OK
from statecache.cli.options import AsJson, PostgresUrl, settings_of
from statecache.cli.screen import Counting, counted, plain, print_json, say, tell
from statecache.keys import checked_prefix_of_list

if TYPE_CHECKING:
    from statecache.rules.chains import Counts, Fault
    from statecache.settings import Settings


class _Progress:
    """How far the walk has come, for whoever interrupts it."""

    def __init__(self) -> None:
        self.after = ""
        self.counts: Counts | None = None
        self.faults: list[Fault] = []


async def _walk(settings: Settings, prefix: str, after: str, progress: _Progress, *, as_json: bool) -> None:
    from statecache_workers.verification import opened

    async with opened(settings, prefix, after=after) as walk:
        progress.counts = walk.counts
        with Counting("changes") as count:
            async for checked in walk.changes():
                _tell(checked.faults, progress, as_json=as_json)
                progress.after = checked.after
                count(checked.counts.changes)
            for rest in (walk.states(), walk.links()):
                async for checked in rest:
                    _tell(checked.faults, progress, as_json=as_json)


def _tell(faults: list[Fault], progress: _Progress, *, as_json: bool) -> None:
    progress.faults += faults
    if not as_json:
        for one in faults:
            print(f"{plain(one.key)}@{one.version}\t{one.what}\t{plain(one.detail)}", flush=True)


def verify(
    prefix: Annotated[str, typer.Option("--prefix", metavar="PREFIX", help="Only keys that begin with it.")] = "",
    after: Annotated[str, typer.Option("--after", metavar="KEY", help="Only keys behind this one.")] = "",
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Walk the history that Postgres keeps, and name every row that is broken, with what is wrong with it.

    Each version's value is made again from what is kept and compared with its digest; each change's hash with that of
    the change before it; versions, parents and the current state with each other; what branches and merges were made
    from with what their changes say; gaps with what is recorded as lost or parked; and whether what checkpoints name is
    kept, and what no policy may have let go. It only reads, and workers may go on meanwhile. Where it is interrupted,
    it says from where on to go on. Exit status 1 where anything is broken.

    \b
    Examples:
      statecache verify
      statecache verify --prefix runs/
      statecache verify --json | jq '.faults[]'
    """
    if prefix:
        checked_prefix_of_list(prefix, 1)
    progress = _Progress()
    try:
        asyncio.run(_walk(settings_of(postgres_url=postgres_url), prefix, after, progress, as_json=as_json))
    except KeyboardInterrupt:
        if progress.after:
            tell(f"go on with --after {shlex.quote(plain(progress.after))}")
        raise
    counts = progress.counts
    assert counts is not None
    if as_json:
        print_json({**_facts(counts), "faults": progress.faults})
    else:
        walked = f"{counted(counts.keys, 'key')}, {counted(counts.changes, 'change')}"
        rest = {"without a value": counts.not_kept, "without a hash yet": counts.unhashed, "erased": counts.erased}
        more = [f"{count:,} {what}" for what, count in rest.items() if count]
        judged = f"{counted(len(progress.faults), 'fault')}" if progress.faults else "whole"
        say(f"{judged}: {', '.join([walked, *more])}")
    return FINDING if progress.faults else OK


def _facts(counts: Counts) -> dict[str, Any]:
    return msgspec.structs.asdict(counts)
