"""`export` and `import`: states as lines of JSON, out of a deployment and into one."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TextIO

import typer

from statecache.cli.connecting import client
from statecache.cli.exits import FINDING, OK
from statecache.cli.options import (
    Actor,
    AsJson,
    Level,
    PostgresUrl,
    Reason,
    RedisUrl,
    checked_durability,
    operator,
    settings_of,
)
from statecache.cli.screen import Counting, counted, plain, print_json, say, tell
from statecache.cli.states.command import whole_prefix
from statecache.cli.states.framework_import import FRAMEWORKS, Asked, take_in_from
from statecache.disk_space import FULL
from statecache.errors import InvalidKey, UsageError
from statecache.settings import Settings

SHOWN_MAX = 20
"""How many keys of one kind an import names; there may be millions."""


def export(
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="A namespace at least, like runs/ or runs/4.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; else standard output.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on behind what is in the file already.")] = False,
    after: Annotated[str, typer.Option(metavar="KEY", help="Only what comes after this key.")] = "",
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
) -> int:
    """Write the states under a prefix as lines of JSON, by key, those not yet in Postgres too.

    A line has the key, the value as it is stored (JSON under `value`, other bytes under `base64`), its encoding and
    schema, and version, change_id, updated_at and writer. It is no snapshot: each state is as of some moment
    meanwhile. Changes in quarantine are left out; no history goes along, and so checkpoints are not imported again.

    \b
    Examples:
      statecache export runs/ > runs.jsonl
      statecache export runs/ -o runs.jsonl --resume
      statecache export runs/ | jq -r .key
    """
    if resume and (output is None or after):
        raise UsageError("--resume goes with --output, and finds out by itself after which key")
    if output is not None and not resume and os.path.lexists(output):
        raise UsageError(f"{output} exists", hint="Choose another file, or go on with it: --resume.")
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    whole = whole_prefix(prefix)
    try:
        with _opened(output, "ab", sys.stdout) as file:
            if resume and output is not None:
                after = _cut_to_whole_lines(output, file, whole)
            with Counting(f"exporting {plain(whole)}") as progress:
                count = asyncio.run(_export(settings, whole, after, file, progress))
    except InvalidKey as error:
        raise InvalidKey(prefix, reason=error.reason) from error
    tell(f"{counted(count, 'state')} exported")
    return OK


def _opened(path: Path | None, mode: Literal["ab", "rb"], else_: TextIO) -> AbstractContextManager[BinaryIO]:
    """Open a file; without a path, the bytes of a standard stream, which stays open."""
    if path is None:
        return nullcontext(else_.buffer)
    with _openable(path):
        return open(path, mode)


@contextmanager
def _openable(path: Path) -> Iterator[None]:
    """Tell a path that cannot be opened as what it is: a wrong argument."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UsageError(f"{path} cannot be opened: {(error.strerror or str(error)).lower()}") from None


def _cut_to_whole_lines(output: Path, file: BinaryIO, prefix: str) -> str:
    """Drop a line that was cut off at the end of an export, and return the key of the last one before it."""
    from statecache.cli.states.transfer import last_key

    with _openable(output):
        after, length = last_key(output)
    if after and not after.startswith(prefix):
        raise UsageError(f"{output} is an export of something else: its last key is {after!r}")
    file.truncate(length)
    return after


async def _export(settings: Settings, prefix: str, after: str, file: BinaryIO, progress: Callable[[int], None]) -> int:
    from statecache.cli.states.transfer import exported

    count = 0
    async with client(settings) as cache:
        async for line in exported(cache, prefix, after=after):
            file.write(line + b"\n")
            count += 1
            progress(count)
        file.flush()
    return count


Prefix = Annotated[str | None, typer.Option(metavar="NAME", help="As LangGraph's Redis saver was given it.")]


def take_in(
    source: Annotated[
        str, typer.Argument(metavar=f"FILE|-|{'|'.join(FRAMEWORKS)}", help="Lines as export writes them; - for stdin.")
    ],
    where: Annotated[str | None, typer.Argument(metavar="[URL|FILE]", help="Where a framework keeps it.")] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a framework's adapter, if it is another one than its own.")
    ] = None,
    checkpoint_prefix: Prefix = None,
    checkpoint_write_prefix: Prefix = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite keys that have another value.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only compare and count.")] = False,
    durability: Level = None,
    actor: Actor = "",
    reason: Reason = "",
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Write the states of an export: new changes, with the values, encodings and schemas of the file.

    What is there already is left alone, so an import that was interrupted is repeated. Exit status 1 where a key has
    another value, without --replace, or could not be written. Checkpoints are left out, for they name changes of the
    history that they were made in. With --json, one object: `written`, `same`, `ended`, `checkpoints`, `kept`,
    `failed`.

    What a framework keeps is read there and written as its adapter here does, with the adapter's durability: what an
    adapter finds is the same as there. It may be repeated too, until agents are switched over; what was gone on with
    here, or deleted, is left alone and named, and so is what cannot be taken in, with the reason: exit status 1.

    \b
    Examples:
      statecache import runs.jsonl --dry-run
      statecache import langgraph-postgres postgresql://localhost/agents
      statecache import langgraph-redis redis://localhost:6379
      statecache import openai-sqlite conversations.db
      statecache import adk-database postgresql://localhost/sessions --dry-run
      statecache import runs.jsonl --reason "moved from staging"
      gunzip < runs.jsonl.gz | statecache import -
    """
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    prefixes = _prefixes(source, prefix=checkpoint_prefix, write_prefix=checkpoint_write_prefix)
    if source in FRAMEWORKS:
        if where is None or replace or actor or reason:
            hint = f"statecache import {source} WHERE [--namespace NAME] [--durability LEVEL] [--dry-run]"
            raise UsageError(f"{source} takes where it is, and neither --replace nor --actor nor --reason", hint=hint)
        asked = Asked(where, settings, namespace, checked_durability(durability), dry_run, prefixes)
        return take_in_from(source, asked, as_json=as_json)
    if where is not None or namespace is not None:
        words = f"{where or namespace!r} goes with {' or '.join(FRAMEWORKS)}"
        raise UsageError(f"{words}, not with a file of lines")
    more = {"durability": checked_durability(durability), "actor": actor or operator(), "reason": reason}
    with _opened(None if source == "-" else Path(source), "rb", sys.stdin) as file:
        done = asyncio.run(_import(settings, file, replace=replace, dry_run=dry_run, more=more))
    if as_json:
        print_json(done)
    else:
        would = "would be " if dry_run else ""
        ended = f", {done.ended:,} left out, for their end has come" if done.ended else ""
        say(f"{counted(done.written, 'state')} {would}written, {done.same:,} there already{ended}")
        if done.checkpoints:
            left_out = f"{counted(done.checkpoints, 'checkpoint')} left out"
            tell(f"{left_out}: each names a point of a history that does not come along")
        _name(f"{counted(len(done.kept), 'key')} left alone, for the value there is another one (--replace)", done.kept)
        failed = [f"{key}: {why}" for key, why in done.failed.items()]
        _name(f"{counted(len(failed), 'key')} not written", failed)
    return FINDING if done.kept or done.failed else OK


def _prefixes(source: str, **given: str | None) -> dict[str, str]:
    """Return what keys begin with at LangGraph's saver on Redis, as far as it is given."""
    prefixes = {name: prefix for name, prefix in given.items() if prefix is not None}
    if prefixes and source != "langgraph-redis":
        raise UsageError("--checkpoint-prefix and --checkpoint-write-prefix go with langgraph-redis")
    return prefixes


def _name(what: str, lines: list[str]) -> None:
    if lines:
        tell(f"{what}:")
    for line in lines[:SHOWN_MAX]:
        print(f"  {plain(line)}", file=sys.stderr)
    if len(lines) > SHOWN_MAX:
        print(f"  and {len(lines) - SHOWN_MAX:,} more; --json names all", file=sys.stderr)


async def _import(settings: Settings, file: BinaryIO, **how: Any) -> Any:
    from statecache.cli.states.transfer import imported

    async with client(settings) as cache:
        with Counting("importing") as progress:
            return await imported(cache, file, **how, progress=lambda done: progress(done.count))
