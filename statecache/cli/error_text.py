"""How the command line tells an error: what happened, and what to do about it with commands instead of the client.

An error's own remedy is for those who write a program. What a person at a terminal does instead stands here, by kind.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from statecache.cli.exits import refuses_user
from statecache.cli.screen import plain
from statecache.errors import (
    AlreadyExists,
    Backpressure,
    BulkError,
    ChangeIdReused,
    Forked,
    LimitExceeded,
    OutcomeUnknown,
    PostgresUnavailable,
    Quarantined,
    RedisUnavailable,
    StateCacheError,
    Unavailable,
    UsageError,
    VersionConflict,
)
from statecache.history_errors import (
    CheckpointExists,
    CheckpointNotFound,
    HistoryIncomplete,
    MergeConflict,
    VersionNotFound,
)
from statecache.settings import Settings, process_environment, variable_of

_REMEDIES: dict[type[StateCacheError], Callable[[Any], str]] = {
    VersionConflict: lambda error: (
        f"`statecache get {_word(error.key)} --meta` shows what is there now; give its change_id as --expected."
    ),
    ChangeIdReused: lambda error: (
        "Nothing was written: leave --change-id out for a new change. "
        f"`statecache get {_word(error.key)}` shows what is there."
    ),
    AlreadyExists: lambda error: (
        f"`statecache get {_word(error.key)}` shows it"
        + (
            "; without --create it is overwritten."
            if error.remedy == AlreadyExists.hint
            else f". Choose another key, or remove it first: `statecache rm {_word(error.key)}`."
        )
    ),
    BulkError: lambda _: "The others are applied; the same command again does what is left.",
    Quarantined: lambda _: "`statecache quarantine list` tells why.",
    Forked: lambda error: (
        f"Both sides are kept, this one in the table conflict: `statecache get {_word(error.key)}` shows the other."
    ),
    Backpressure: lambda _: "Nothing was applied. `statecache status` shows how the workers and Postgres stand.",
    VersionNotFound: lambda error: (
        f"`statecache log {_word(error.key)}` lists what there is." + _nearest(error) * (error.nearest is not None)
    ),
    HistoryIncomplete: lambda error: (
        f"`statecache log {_word(error.key)} --flushed` shows what Postgres has; "
        "`statecache status` shows how the servers and the workers stand."
    ),
    CheckpointNotFound: lambda error: f"`statecache checkpoints {_word(error.key)}` lists those that there are.",
    CheckpointExists: lambda error: (
        f"Choose another label. `statecache checkpoints {_word(error.key)}` lists those that there are."
    ),
    MergeConflict: lambda error: (
        f"Nothing was applied. `statecache merge {_word(error.branch)} {_word(error.into)} --dry-run` shows what each "
        "made of it; --prefer ours or --prefer theirs decides."
    ),
    LimitExceeded: lambda error: error.remedy.replace("value_bytes_max", variable_of("value_bytes_max")),
}

_AGAIN = {
    "erase": "Begin it again with the same command: it goes on with what is left.",
    "import": "Run it again: what has come through is found there, and the rest is written.",
    "quarantine drop": "`statecache quarantine list` shows whether it is still there, and is to be dropped again.",
}
"""What to do about an outcome that is not known, by command, where there is no --change-id to ask with."""

_CALLS = {
    "Say ttl=timedelta": "Say 90s, 20min, 2h or 30d; `statecache rm` deletes at once.",
    "Say group=True": "--group, with the groups, takes all of the group along in one commit.",
    "Say ttl=": "`statecache show KEY@POINT` shows it; `statecache set KEY VALUE --ttl` writes it anew.",
}
"""What a remedy of a UsageError begins with that names an argument of the client, and what it is in commands."""


class CommandGiven(NamedTuple):
    """The command that was given: its name, whether it can then be repeated with --change-id, and whether it writes."""

    command: str = ""
    takes_change_id: bool = True
    writes: bool = False


ANY = CommandGiven()
_database_denied = re.compile(r"/(\d+)\S*: .*'select'").search
"""Finds the number of a database that a user may not choose, in what Redis says of that."""


def line_of(error: BaseException, asked: CommandGiven = ANY) -> str:
    """Return the line that tells an error."""
    return f"statecache: {' '.join(text_of(error, asked).split()) or type(error).__name__}"


def text_of(error: BaseException, asked: CommandGiven = ANY) -> str:
    """Return the message and the remedy; of a UsageError only its reason: nobody here used a client wrongly."""
    if not isinstance(error, StateCacheError):
        return str(error)
    if isinstance(error, Unavailable) and refuses_user(error):
        return f"{error.problem} {credentials(error)}"
    if isinstance(error, UsageError):
        remedy = next((command for call, command in _CALLS.items() if call in error.remedy), error.remedy)
        return f"{error.reason.rstrip('.')}. {remedy}"
    if isinstance(error, OutcomeUnknown):
        return f"{error.problem} {_asking_again(error, asked)}"
    remedy = next((words(error) for kind, words in _REMEDIES.items() if isinstance(error, kind)), error.remedy)
    return f"{error.problem} {remedy}"


def facts_of(error: BaseException) -> dict[str, Any]:
    """Return an error as one JSON object: its name, the message, and the facts that it holds."""
    facts = error.facts if isinstance(error, StateCacheError) else {}
    shown = {name: value for name, value in facts.items() if name not in ("hint", "where", "unit")}
    return {"error": type(error).__name__, "message": line_of(error).removeprefix("statecache: "), **shown}


def origin_told(text: str, *, given: Collection[str]) -> str:
    """Return the text with each server's default URL marked as one; `given` names the settings that were set."""
    for name in ("redis_url", "postgres_url"):
        default = Settings.model_fields[name].default
        if name not in given and default in text:
            text = text.replace(default, f"{default} (the default: {variable_of(name)} is not set)", 1)
    return text


def given_by(arguments: Collection[str]) -> set[str]:
    """Return which of the URLs stand in the environment or among a command's arguments."""
    environment, options = process_environment(), {word.partition("=")[0] for word in arguments}
    return {
        name
        for name in ("redis_url", "postgres_url")
        if variable_of(name) in environment or f"--{name.replace('_', '-')}" in options
    }


def credentials(error: Unavailable) -> str:
    """Return what helps where a server does not let this user in."""
    if isinstance(error, RedisUnavailable) and (denied := _database_denied(error.detail)):
        return f"This user may not use database {denied[1]}: grant it +select, or name database 0."
    if error.hint and "password" not in error.hint:
        return error.hint
    name = "postgres_url" if isinstance(error, PostgresUnavailable) else "redis_url"
    return f"Check user and password in {variable_of(name)}."


def _asking_again(error: OutcomeUnknown, asked: CommandGiven) -> str:
    workers = "Workers bring changes into Postgres: `statecache status` shows whether any lives. "
    if asked.takes_change_id:
        again = f"The same command with --change-id {error.change_id} asks again: it is applied at most once."
    elif asked.command in _AGAIN or not error.keys:
        again = _AGAIN.get(asked.command, "Look whether it was applied before you say it again.")
    else:
        again = f"`statecache log {_word(error.keys[0])}` shows whether it was applied; look before you say it again."
    return workers * _awaits_postgres(error) + again


def interrupted(asked: CommandGiven) -> str:
    """Return what to say of a command that was interrupted: where it may have been applied, that it may; else ''."""
    if not asked.writes and asked.command not in _AGAIN:
        return ""
    again = _AGAIN.get(asked.command, "Look whether it was applied before you say it again.")
    return f"interrupted: whether it was applied is not known. {again}"


def _awaits_postgres(error: OutcomeUnknown) -> bool:
    return error.remedy != error.hint


def _nearest(error: VersionNotFound) -> str:
    return f" Version {error.nearest} is the one next to it that has a value."


def _word(key: str) -> str:
    return shlex.quote(plain(key))
