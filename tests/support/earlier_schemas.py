"""Deployments with the schema of an earlier release."""

from __future__ import annotations

import pytest

from statecache import Settings
from statecache.core.postgres import migrate as module
from statecache.core.postgres.migrate import migrate
from statecache.sql import Migration, migrations
from tests.fixtures.servers import MakeSettings


async def migrated_until(last: int, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of a deployment whose schema has the migrations up to that number."""
    made = make_settings(migrated=False)

    def known(schema: str) -> list[Migration]:
        return [step for step in migrations(schema) if step.number <= last]

    with monkeypatch.context() as patch:
        patch.setattr(module, "migrations", known)
        await migrate(made)
    return made
