"""The handshake asks for every right that a client's scripts will need: none of them may stop half-way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from statecache import AsyncStateCache, ConfigurationError, core
from statecache.cli.doctor import redis_rights as doctor
from statecache.core.redis.rights import CLIENT, FENCED, Rights
from statecache.core.redis.tier import RedisTier
from statecache.lua import script
from statecache_workers import redis_rights
from tests.fixtures.redis import FakeDeployment
from tests.support.deployment_files import grants

SOURCES = Path(core.__file__).parent


def _sources() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))


def _asked_for() -> set[str]:
    return {command.split()[0] for command in (*CLIENT, *FENCED)}


def test_every_command_of_the_clients_scripts_is_asked_for() -> None:
    names = set(re.findall(r'scripts?\(\s*"([a-z_]+)"', _sources())) - {"handshake"}
    assert {"commit", "hydrate_begin", "gate_open"} <= names
    run = {command for name in names for command in re.findall(r"call\(\s*'([A-Z]+)'", script(name).text)}
    assert len(run) > 15
    assert run - _asked_for() == {"SPUBLISH", "RPUSH"}


def test_every_command_that_a_worker_runs_is_asked_for_at_its_start() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(redis_rights.__file__).parent.rglob("*.py"))
    plain = set(re.findall(r'[=\[] ?\("([A-Z]+)", |return \("([A-Z]+)", ', text))
    names = set(re.findall(r'(?:pipeline\(link|scripts?\()(?:, )?\s*"([a-z_]+)"', text))
    assert {"ack", "retire", "sweep", "lease_sweep", "heads"} <= names
    run = {command for name in names for command in re.findall(r"call\(\s*'([A-Z]+)'", script(name).text)}
    run |= {command for found in plain for command in found if command}
    assert {"XREAD", "XTRIM", "HSCAN", "SCAN", "ZRANGEBYSCORE", "RENAME", "SPUBLISH", "XADD"} <= run
    assert run - _asked_for() - {command.split()[0] for command in redis_rights.WORKER} == {"EVAL"}


def test_doctor_asks_for_every_command_that_is_granted() -> None:
    """That agents and workers run what they are granted, and no more, their servers count in the integration tests."""

    def named(*spelled: Sequence[str]) -> set[str]:
        found = [one.lower().split() for some in spelled for one in some]
        return {"|".join(words[: 2 if words[0] in ("client", "xinfo") else 1]) for words in found}

    given, uses = grants(), [use.commands for use in doctor.USES]
    told_elsewhere = {"config|get", "waitaof"}
    assert named(CLIENT, FENCED, doctor.AGENT, *uses) == set(given["agent"]) - told_elsewhere | {"hello"}
    assert named(CLIENT, FENCED, redis_rights.WORKER) | {"eval"} == set(given["worker"])


def test_what_only_a_lock_needs_is_asked_for_by_the_lock_before_it_writes() -> None:
    """Rights that were given before there were locks go on to be enough for whoever locks nothing."""
    text = script("lease").text
    asked = text.index("acl_check_cmd('SPUBLISH'")
    assert asked < min(found.start() for found in re.finditer(r"call\(\s*'(HINCRBY|SPUBLISH)'", text))


def test_what_only_a_turn_needs_is_asked_for_before_anyone_has_it() -> None:
    text = script("turn").text
    asked = [text.index(f"check('{command}'") for command in ("RPUSH", "BLMPOP")]
    assert max(asked) < min(text.index(f"redis.call('{command}'") for command in ("DEL", "RPUSH", "HSET", "PEXPIRE"))


async def test_a_server_that_lacks_what_is_needed_is_refused_with_what_it_lacks(fake: FakeDeployment) -> None:
    """Fakeredis stands for a server of old: its scripts know no flags, and its INFO shows no replication id."""
    fenced = fake.settings.model_copy(update={"fence": "on"})
    async with AsyncStateCache(settings=fenced, dial=fake.dial) as cache:
        with pytest.raises(ConfigurationError, match="lacks script flags") as caught:
            await cache.get("runs/42")
    assert "Redis 7.0" in str(caught.value)


@pytest.mark.parametrize(
    ("shown", "fence", "lacks"),
    [
        ("role:master", "on", [b"!a replication id in INFO"]),
        ("role:master\\r\\nmaster_replid:0a1b", "on", []),
        ("role:master", "off", []),
    ],
)
def test_a_server_that_shows_no_replication_id_cannot_be_fenced(
    fake: FakeDeployment, shown: str, fence: str, lacks: list[bytes]
) -> None:
    """Such servers stand behind some proxies. Here only the script's Lua is real, and INFO says what it is told to."""
    told = f"""
        redis.acl_check_cmd = function() return true end
        redis.pcall = function(name) return name == 'INFO' and '{shown}' or {{ err = 'wrong number of arguments' }} end
    """
    assert fake.redis.eval(told + script("handshake").text, 1, fake.keys.meta(0), fence)[7:] == lacks


def test_what_a_script_includes_stands_in_it() -> None:
    text = script("fenced_read").text
    assert "-- include" not in text
    asked = text.index("redis.call('INFO', 'replication')")
    assert text.index("fence = ") < asked < text.index("if role ~= 'master'")


async def test_a_right_that_is_granted_while_it_is_asked_after_is_named_all_the_same(
    fake: FakeDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def granted(*_: Any, **__: Any) -> Rights:
        return Rights((), ())

    monkeypatch.setattr("statecache.core.redis.tier.rights", granted)
    tier = RedisTier(fake.settings, fake.keys)
    told = await tier.hindered(None, Rights((), ["TIME"]), CLIENT, seconds=1.0)  # type: ignore[arg-type]
    assert "the Redis user may not run TIME" in str(told)
