"""`vectors list|create|drop`: which namespaces' vectors Postgres indexes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from statecache.cli.asking import confirmed
from statecache.cli.exits import FINDING, OK
from statecache.cli.options import AsJson, PostgresUrl, Yes, settings_of
from statecache.cli.screen import counted, print_json, print_table, say, tell

if TYPE_CHECKING:
    from statecache.core.postgres.vector_indexes import VectorIndex

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="The first segment of its keys.")]
Dims = Annotated[int, typer.Option("--dims", help="How many dimensions the vectors have.")]
Member = Annotated[str, typer.Option("--member", help="The member of a value that holds them.")]


def list_command(postgres_url: PostgresUrl = None, as_json: AsJson = False) -> int:
    """List the namespaces whose vectors are indexed, and how many states workers have yet to take in.

    Exit status 1 when an index cannot be searched, takes nothing in, or has refused states, with what to do.
    With --json, one object with `indexes`, a list.

    \b
    Examples:
      statecache vectors list
      statecache vectors list --json
    """
    from statecache.cli.vector_troubles import vector_troubles
    from statecache.core.postgres.vector_indexes import indexes

    found = asyncio.run(indexes(settings_of(postgres_url=postgres_url)))
    troubles = [*vector_troubles((one.namespace, one.refused, one.trouble) for one in found)]
    if as_json:
        print_json({"indexes": found})
    elif not found:
        say("no vectors are indexed; `statecache vectors create NAMESPACE --dims …` begins that")
    else:
        print_table(("namespace", "member", "dims", "waiting", "refused", "table"), [_row(one) for one in found])
        for one in found:
            if not one.ready:
                tell(f"{one.namespace}: searches compare all until a worker has made it anew, which takes pgvector")
        for trouble in troubles:
            tell(f"{trouble.what}; {trouble.costs}: {trouble.remedy}")
    return OK if all(one.ready for one in found) and not troubles else FINDING


def create(
    namespace: Namespace, dims: Dims, member: Member = "vectors", postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:  # fmt: skip
    """Have Postgres index a namespace's vectors, by pgvector; workers take in what is there and all that comes.

    Searches by nearness use it at once, and look at what is not taken in yet besides. It takes the role that migrates,
    and pgvector on the server.

    \b
    Examples:
      statecache vectors create langgraph-store --dims 1536
      statecache vectors create notes --dims 384 --member embedding
    """
    from statecache.core.postgres.vector_indexes import create as run

    states = asyncio.run(run(settings_of(postgres_url=postgres_url), namespace, member=member, dims=dims))
    if as_json:
        print_json({"namespace": namespace, "states": states})
    else:
        say(f"the vectors of {namespace!r} are indexed from now on; workers take in {counted(states, 'state')}")
    return OK


def drop(namespace: Namespace, yes: Yes = False, postgres_url: PostgresUrl = None, as_json: AsJson = False) -> int:
    """Let the index of a namespace's vectors go; the states keep their vectors, and searches compare all of them.

    \b
    Example:
      statecache vectors drop notes
    """
    from statecache.core.postgres.vector_indexes import drop as run

    if not confirmed(f"the index of the vectors of {namespace!r} would go", yes=yes):
        tell("nothing was dropped")
        return FINDING
    there = asyncio.run(run(settings_of(postgres_url=postgres_url), namespace))
    if as_json:
        print_json({"namespace": namespace, "dropped": there})
    else:
        say(f"the index of {namespace!r} is gone" if there else f"no vectors of {namespace!r} were indexed")
    return OK if there else FINDING


def _row(one: VectorIndex) -> list[str]:
    return [one.namespace, one.member, f"{one.dims:,}", f"{one.waiting:,}", f"{one.refused:,}", one.table]
