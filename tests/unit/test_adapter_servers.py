"""What a store says of the servers that it stands on, to be made again from its fields."""

from __future__ import annotations

import pytest

from statecache import Settings, UsageError
from statecache.adapters.clients import servers_of, settings_again

SAID = {"redis_url": "redis://ada:one@cache:6379/0", "postgres_url": "postgresql://ada:two@db:5432/agents"}
OTHERS = [("redis_url", "redis://ada:one@cache:6380/0"), ("postgres_url", "postgresql://ada:two@db:5432/others"),
          ("prefix", "other"), ("postgres_schema", "other")]  # fmt: skip


def test_a_release_says_of_the_same_servers_what_those_before_it_said() -> None:
    rotated = {name: url.replace(":one@", ":new@") for name, url in SAID.items()}
    for settings in (
        Settings(**SAID, prefix="sc", postgres_schema="statecache"),
        Settings(**rotated),
        Settings(**SAID, durability="disk", timeout_s=30.0),
    ):
        assert servers_of(settings) == "700109ffa14231a6"


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_other_servers_than_the_environments_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    for one, told in SAID.items():
        monkeypatch.setenv(f"STATECACHE_{one.upper()}", told)
    ours, others = servers_of(Settings()), servers_of(Settings(**(SAID | {name: value})))
    assert settings_again(None, of="store") == settings_again(ours, of="store") == Settings()
    with pytest.raises(UsageError, match="this store is made again from its fields") as refused:
        settings_again(others, of="store")
    assert ":one@" not in str(refused.value)
