"""`inspect`: a deployment's states, their history and its shards as web pages on this machine."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from statecache.cli.exits import CONFIGURATION, OK
from statecache.cli.options import PostgresUrl, RedisUrl, operator, settings_of
from statecache.cli.screen import print_json

NEEDS = (
    "statecache: the inspector needs starlette, uvicorn and jinja2: "
    "pip install 'statecache[web]' ('.[web]' in a checkout)"
)


def inspect(
    write: Annotated[bool, typer.Option("--write", help="Also let states be set, rolled back and deleted.")] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", help="Insist on this port; else a free one.")
    ] = None,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="The URL as one JSON object, once it answers.")] = False,
) -> int:
    """Look into a deployment with a browser: keys, values at any version, runs, shards, and what was set aside.

    It prints the URL to open, serves to this machine alone, and ends with Ctrl-C. Whoever has the URL can read all
    states: the token in it is new each time. It changes nothing, unless --write is given.

    \b
    Examples:
      statecache inspect
      statecache inspect --write --port 8042
      ssh -L 8042:127.0.0.1:8042 host statecache inspect --port 8042
    """
    try:
        from statecache.inspector.serving import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "jinja2"):
            raise
        print(NEEDS, file=sys.stderr)
        return CONFIGURATION

    def told(url: str) -> None:
        if as_json:
            print_json({"url": url, "write": write})
        else:
            print(f"{url}\n{'states can be changed' if write else 'read-only'}; Ctrl-C ends it")
        sys.stdout.flush()

    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    asyncio.run(serve(settings, port=port, write=write, operator=operator(), told=told))
    return OK
