"""Where a key lives, as lines to paste into a shell. Pure: nothing is connected.

Passwords are never printed: the lines work as they are where there is none, and otherwise with REDISCLI_AUTH or
PGPASSWORD in the environment, which the notes say.
"""

from __future__ import annotations

import re
import shlex
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from redis.connection import parse_url

from statecache.errors import ConfigurationError
from statecache.keys import KeySpace, checked_key
from statecache.settings import Settings, masked

_SECRETS = ("password", "sslpassword")
_plain_in_double_quotes = re.compile(r"[^\"$`\\!\x00-\x1f\x7f]*").fullmatch


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where a key lives, and how to look."""

    key: str
    shard: int
    shards: int
    redis_key: str
    redis_cli: str
    psql: str
    notes: list[str]


def where(settings: Settings, key: str) -> Where:
    """Find the place of a key; raise InvalidKey where it is none."""
    checked_key(key)
    shard, redis_key = KeySpace(settings.prefix, settings.shards).place(key)
    redis, redis_note = _redis_cli(settings)
    postgres, postgres_note = _psql(settings)
    return Where(
        key=key,
        shard=shard,
        shards=settings.shards,
        redis_key=redis_key,
        redis_cli=_line([*redis, "HGETALL", redis_key]),
        psql=_line([*postgres, "-c", _select(settings.postgres_schema, key)]),
        notes=[note for note in (redis_note, postgres_note) if note],
    )


def _redis_cli(settings: Settings) -> tuple[list[str], str]:
    try:
        options: dict[str, Any] = dict(parse_url(settings.redis_url))  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigurationError(f"redis_url {masked(settings.redis_url)}: {error}") from None
    words = ["redis-cli"]
    database = options.get("db", 0)
    if "path" in options:
        words += ["-s", options["path"], "-n", str(database)]
    else:
        host = options.get("host", "localhost")
        scheme = urlsplit(settings.redis_url).scheme
        shown = f"[{host}]" if ":" in host else host
        words += ["-u", f"{scheme}://{shown}:{options.get('port', 6379)}/{database}"]
    for option, file in (
        ("--cacert", settings.redis_ca_file or options.get("ssl_ca_certs")),
        ("--cert", settings.redis_certificate_file or options.get("ssl_certfile")),
        ("--key", settings.redis_key_file or options.get("ssl_keyfile")),
    ):
        if file:
            words += [option, file]
    if options.get("username"):
        words += ["--user", options["username"]]
    note = "Redis asks for a password: put it into REDISCLI_AUTH first." if options.get("password") else ""
    return words, note


def _psql(settings: Settings) -> tuple[list[str], str]:
    url = settings.postgres_url
    try:
        options = conninfo_to_dict(url)
    except ProgrammingError as error:
        raise ConfigurationError(f"postgres_url {masked(url)}: {str(error).strip()}") from None
    note = "Postgres asks for a password: put it into PGPASSWORD first." if options.get("password") else ""
    if "://" not in url:
        return ["psql", make_conninfo("", **{k: v for k, v in options.items() if k not in _SECRETS})], note
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    query = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in _SECRETS]
    shown = f"{parts.scheme}://{name}@{hosts}" if name else f"{parts.scheme}://{hosts}"
    return ["psql", shown + parts.path + (f"?{urlencode(query, quote_via=quote, safe='/')}" if query else "")], note


def _select(schema: str, key: str) -> str:
    """Return the query. No SQL word begins like the schema's usual name, so that needs no quotes."""
    table = f"{schema}.state_view" if schema.startswith("statecache") else f'"{schema}".state_view'
    literal = key.replace("'", "''")
    return f"select key, epoch, version, value_json from {table} where key = '{literal}'"  # noqa: S608 - to be read


def _line(words: list[str]) -> str:
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """Quote a word for a shell, with double quotes where single ones would have to be escaped and these not.

    What is not printable would reach the terminal before it reached the shell: it is spelled in `$'…'`, byte by byte,
    which bash, zsh and ksh read.
    """
    if not word.isprintable():
        return "$'" + "".join(map(_spelled, word)) + "'"
    if "'" in word and _plain_in_double_quotes(word):
        return f'"{word}"'
    return shlex.quote(word)


def _spelled(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    return character if character.isprintable() else "".join(f"\\{byte:03o}" for byte in character.encode())
