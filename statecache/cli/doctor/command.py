"""`doctor`: what both servers' settings really promise, what each wrong one costs, and the line that mends it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from statecache.cli.doctor.findings import Finding, LevelSeen, error, warning
from statecache.cli.doctor.postgres_rights import hidden_of
from statecache.cli.error_text import credentials, origin_told, text_of
from statecache.cli.exits import CONFIGURATION, FINDING, OK, refuses_user, status_of
from statecache.cli.options import AsJson, PostgresUrl, RedisUrl, settings_of
from statecache.cli.schema_check import unapplied_text
from statecache.cli.screen import counted, print_json, print_labelled, print_table
from statecache.clock import monotonic
from statecache.errors import ConfigurationError, DurabilityRefused, StateCacheError, Unavailable
from statecache.keys import HASH
from statecache.model import DURABILITIES
from statecache.rules.clusters import APART, is_unrelated
from statecache.rules.epochs import Refusal, decide
from statecache.rules.looks import Pin
from statecache.rules.replids import UNFENCED, adopt_options
from statecache.settings import masked

if TYPE_CHECKING:
    from statecache.cli.doctor.postgres import PostgresFacts
    from statecache.cli.doctor.redis import RedisFacts
    from statecache.settings import Settings

CLOCKS_APART_S = 2.0
_LABEL = 10


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor` found."""

    redis: str
    postgres: str
    unreachable: list[str]
    findings: list[Finding]
    levels: list[LevelSeen]


def doctor(
    worker: Annotated[bool, typer.Option("--worker", help="Insist on a worker's rights, not an agent's.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings lead to exit status 1 too.")] = False,
    redis_url: RedisUrl = None,
    postgres_url: PostgresUrl = None,
    as_json: AsJson = False,
) -> int:
    """Check both servers: which durability they give, what each wrong setting costs, and how to mend it.

    It changes nothing. Run it with the URLs of agents for the agents' rights, and with --worker and the URLs of
    workers for theirs. Exit status 1 when there is an error, with --strict also when there is a warning; 4 when a
    server does not answer, 3 when a URL or a user is not right; the other server is looked at all the same.

    \b
    Examples:
      statecache doctor
      statecache doctor --worker --strict
      statecache doctor --json | jq '.findings[] | select(.severity == "error")'
    """
    settings = settings_of(redis_url=redis_url, postgres_url=postgres_url)
    found, status = asyncio.run(_examine(settings, worker=worker))
    if as_json:
        print_json(found)
    else:
        _show(found, given=settings.model_fields_set)
    bad = ("error", "warning") if strict else ("error",)
    return status or (FINDING if any(one.severity in bad for one in found.findings) else OK)


async def _examine(settings: Settings, *, worker: bool) -> tuple[Diagnosis, int]:
    from statecache.cli.doctor import postgres as doctor_postgres
    from statecache.cli.doctor import redis as doctor_redis

    redis, postgres = await asyncio.gather(
        doctor_redis.ask(settings), doctor_postgres.ask(settings), return_exceptions=True
    )
    found: list[Finding] = []
    status = OK
    for answer in (redis, postgres):
        if isinstance(answer, StateCacheError):
            status = max(status, status_of(answer))
        elif isinstance(answer, BaseException):
            raise answer
    redis_facts = None if isinstance(redis, BaseException) else redis
    postgres_facts = None if isinstance(postgres, BaseException) else postgres
    if redis_facts is not None:
        status = max(status, CONFIGURATION if redis_facts.kind else OK)
        found += doctor_redis.findings(redis_facts, settings, worker=worker)
    if postgres_facts is not None:
        found += doctor_postgres.findings(postgres_facts, settings, worker=worker)
    found += between(redis_facts, postgres_facts, settings)
    found += _refused("redis", redis) + _refused("postgres", postgres)
    diagnosis = Diagnosis(
        redis=masked(settings.redis_url),
        postgres=masked(settings.postgres_url),
        unreachable=[
            " ".join(text_of(one).split())
            for one in (redis, postgres)
            if isinstance(one, StateCacheError) and not refuses_user(one)
        ],
        findings=sorted(found, key=lambda one: ("error", "warning", "note").index(one.severity)),
        levels=await _levels(settings, redis_facts, postgres_facts),
    )
    return diagnosis, status


def _refused(where: Literal["redis", "postgres"], answer: object) -> list[Finding]:
    """Return a finding where the server answers that it does not let this user in."""
    if not (isinstance(answer, Unavailable) and refuses_user(answer)):
        return []
    what = f"it refuses this user: {' '.join(answer.detail.split()).rstrip('.')}"
    told = credentials(answer).rstrip(".")
    remedy = f"{told[0].lower()}{told[1:]}"
    return [error(where, what, "nothing works as this user, and the server could not be examined", remedy)]


def between(redis: RedisFacts | None, postgres: PostgresFacts | None, settings: Settings) -> list[Finding]:
    """Return findings on what concerns both servers, or neither. Pure."""
    found = []
    if settings.fence == "off":
        found.append(warning("redis", "the fence is off", "a Redis that lost its data goes unnoticed; no `postgres`",
                             "unset STATECACHE_FENCE, where the server shows its replid"))  # fmt: skip
    if redis and postgres and redis.pin[4:] and postgres.cluster and redis.pin[4] != postgres.cluster[0]:
        found.append(_apart(redis, postgres))
    elif redis is not None:
        found += _closed(redis, postgres, settings)
    for where, facts in (("Redis", redis), ("Postgres", postgres)):
        if facts is not None and abs(facts.ahead_s) > CLOCKS_APART_S:
            off = f"{abs(facts.ahead_s):.1f} s {'ahead of' if facts.ahead_s > 0 else 'behind'}"
            found.append(warning("both", f"the clock of {where} is {off} this machine's",
                                 "times in records are off, so by age values go late, and those that were replaced "
                                 "while Redis was behind go early once it is right; order never depends on times",
                                 "run an NTP client on both machines"))  # fmt: skip
    return found


def _apart(redis: RedisFacts, postgres: PostgresFacts) -> Finding:
    """Return the finding on two tiers that belong to two clusters, with the command that joins them if one does."""
    ours = postgres.cluster[0] if postgres.cluster else ""
    what = f"Redis belongs to cluster {redis.pin[4]}, Postgres to {ours}"
    seen = [(row, redis.looks[row.shard]) for row in postgres.rows if row.shard in redis.looks]
    if any(is_unrelated(row, look, ours) for row, look in seen):
        never = "they count different logs and are never joined, for Postgres has had epochs of its own"
        return error("both", f"{what}: {never}", "clients and workers refuse them", f"{APART[0].lower()}{APART[1:]}")
    given_up = {row.replid for row in postgres.rows} - {""} or {redis.info.get("master_replid", UNFENCED)}
    adopt = f"statecache epoch adopt all {adopt_options(sorted(given_up), redis.info.get('master_replid', ''))}"
    lost = f"where the Postgres of this Redis is lost for good, and this one takes its place: {adopt}"
    return error("both", what, "clients and workers refuse them", f"name the two tiers of one deployment; {lost}")


def refusals(redis: RedisFacts, postgres: PostgresFacts | None, settings: Settings) -> dict[int, Refusal]:
    """Return why shards may be opened neither by agents nor by a worker that starts. Pure."""
    refused: dict[int, Refusal] = {}
    for row in postgres.rows if postgres is not None else ():
        look = redis.looks.get(row.shard)
        pin = Pin(str(settings.shards), HASH, row.cluster)
        verdict = None if look is None else decide(row, look, "worker", pin=pin)
        if isinstance(verdict, Refusal) and not verdict.wait:
            refused[row.shard] = verdict
    return refused


def _closed(redis: RedisFacts, postgres: PostgresFacts | None, settings: Settings) -> list[Finding]:
    """Return a finding where no data set is open here, or only an operator may open it. Not on a pin that differs."""
    refused = refusals(redis, postgres, settings)
    servers = sorted({row.replid for row in postgres.rows if row.shard in refused}) if postgres is not None else []
    named = adopt_options(filter(None, servers), redis.info.get("master_replid", "")) if any(servers) else ""
    adopt = f"name the deployment's Redis in STATECACHE_REDIS_URL; if this one is: statecache epoch adopt all {named}"
    if redis.kind:
        return []
    if not redis.pin and redis.info:
        return [error("redis", f"no data set under the prefix {settings.prefix!r} has been opened here",
                      "every commit is refused until it is adopted, if this is the right Redis",
                      adopt if named else "statecache migrate")]  # fmt: skip
    if named and list(redis.pin[:2]) == [str(settings.shards), HASH]:
        shard, reason = min(refused.items())
        return [error("both", f"{len(refused)} of {settings.shards} shards may not be opened, {shard} first: "
                      f"{reason.why}", f"commits to them are {_become(redis, refused)}", adopt)]  # fmt: skip
    return []


async def _levels(settings: Settings, redis: RedisFacts | None, postgres: PostgresFacts | None) -> list[LevelSeen]:
    refused = await _refusals(settings, redis)
    if redis is not None and not refused["memory"] and _all_closed(redis, postgres, settings):
        refused = dict.fromkeys(DURABILITIES, f"no shard is open here: every commit is {_become(redis, redis.looks)}")
    if not refused["postgres"]:
        refused["postgres"] = _against_postgres(postgres)
    return [
        LevelSeen(level=level, given=not refused[level], why=refused[level] or _worth(level, settings, redis, postgres))
        for level in DURABILITIES
    ]


def _become(redis: RedisFacts, shards: Iterable[int]) -> str:
    """Return what becomes of commits to shards that may not be opened: a server may take them for open all the same."""
    looks = [redis.looks[shard] for shard in shards if shard in redis.looks]
    taken = any(look.replid == look.server for look in looks)
    return "acknowledged, as by an old primary, and set aside later" if taken else "refused"


def _all_closed(redis: RedisFacts, postgres: PostgresFacts | None, settings: Settings) -> bool:
    """Return whether no shard is open, nor will be by itself."""
    refused = refusals(redis, postgres, settings)
    return bool(redis.looks) and all(look.epoch is None or shard in refused for shard, look in redis.looks.items())


async def _refusals(settings: Settings, redis: RedisFacts | None) -> dict[str, str]:
    """Ask as a client does, and return each level's reason for being refused, empty where it is given."""
    if redis is None or redis.kind:
        why = "Redis could not be asked" if redis is None else f"a {redis.kind} gives none"
        return dict.fromkeys(DURABILITIES, why)
    from statecache.core.commit.durability_support import DurabilitySupport
    from statecache.core.redis.tier import RedisTier
    from statecache.keys import KeySpace

    tier = RedisTier(settings, KeySpace(settings.prefix, settings.shards))
    levels = DurabilitySupport(settings)
    reasons: dict[str, str] = {}
    link = None
    try:
        link = await tier.link()
        for level in DURABILITIES:
            try:
                levels.check(level)
                await levels.check_server(level, link, end=monotonic() + settings.timeout_s)
                reasons[level] = ""
            except DurabilityRefused as refused:
                reasons[level] = refused.reason
    except (ConfigurationError, Unavailable) as failed:
        return dict.fromkeys(DURABILITIES, " ".join(str(failed).split()))
    finally:
        if link is not None:
            await link.close()
    return reasons


def _against_postgres(postgres: PostgresFacts | None) -> str:
    if postgres is None:
        return "Postgres could not be asked"
    if postgres.standby:
        return "this Postgres is a standby: nothing is flushed into it"
    if hidden := hidden_of(postgres.tables):
        return f"row-level security is on for {', '.join(hidden)}"
    if postgres.renamed[0]:
        return "its functions write to another schema"
    if postgres.lacking.stops and not postgres.behind:
        return "the schema is there in part"
    return "" if postgres.tables else "the schema is not there: statecache migrate"


def _worth(level: str, settings: Settings, redis: RedisFacts | None, postgres: PostgresFacts | None) -> str:
    """Return what a level that is given survives here."""
    if level == "memory":
        kept = redis is not None and redis.info.get("aof_enabled") == "1"
        return "survives agents, workers and Postgres" + (
            ", and a restart of Redis" if kept else "; no restart of Redis"
        )
    if level == "replica":
        return f"{settings.replicas} replicas acknowledge; survives the primary, if one of them is promoted"
    if level == "disk":
        return "the append-only file is synced; survives a power loss of the primary"
    if postgres is not None and postgres.behind:
        return f"survives any loss of Redis, where workers do not wait for it: {unapplied_text(postgres.behind)}"
    if postgres is not None and postgres.settings.get("fsync") == "off":
        return "survives any loss of Redis, but no crash of Postgres' machine: fsync is off"
    asynchronous = postgres is not None and postgres.standbys and not postgres.settings.get("synchronous_standby_names")
    if asynchronous:
        return "survives any loss of Redis; a standby of Postgres that takes over may lack the last commits"
    return "survives any loss of Redis"


def _show(found: Diagnosis, *, given: Collection[str]) -> None:
    print_labelled("Redis", origin_told(found.redis, given=given), width=_LABEL, style="note")
    print_labelled("Postgres", origin_told(found.postgres, given=given), width=_LABEL, style="note")
    for reason in found.unreachable:
        print_labelled("unreachable", reason, width=_LABEL + 3, style="error", label_style="error")
    print()
    print_table(
        ["level", "given", "why"],
        [[one.level, "yes" if one.given else "no", one.why] for one in found.levels],
        styles=["" if one.given else "note" for one in found.levels],
    )
    for one in found.findings:
        _show_finding(one)
    severities = Counter(one.severity for one in found.findings)
    counts = [counted(severities[severity], severity) for severity in ("error", "warning", "note")]
    away = [f"{len(found.unreachable)} unreachable"] if found.unreachable else []
    print(f"\n{', '.join(away + counts)}")


def _show_finding(one: Finding) -> None:
    where = {"redis": "Redis", "postgres": "Postgres", "both": "both"}[one.where]
    print()
    print_labelled(one.severity, f"{where}: {one.what}", width=_LABEL, label_style=one.severity)
    for label, text in (("  costs", one.costs), ("  remedy", one.remedy)):
        if text:
            print_labelled(label, text, width=_LABEL, label_style="note")
