"""The inspector under the rights of config/users.acl and config/roles.sql: what is enough to look, and to write."""

from __future__ import annotations

from typing import Any

from tests.fixtures.flusher import flush
from tests.support.deployment_world import SHARDS, Deployment, agent, at_work, denied
from tests.support.inspected import inspected

KEY = "runs/42"
PAGES = (
    "",
    "keys?prefix=runs/",
    f"key?key={KEY}&version=1",
    f"diff?key={KEY}&a=1&b=2",
    f"run?group={KEY}",
    "shards",
    "aside",
)


async def test_an_agents_user_and_the_inspectors_role_are_enough_to_look(deployment: Deployment, raw: Any) -> None:
    async with at_work(deployment) as worker, agent(deployment) as cache:
        await cache.set(KEY, {"step": 1})
        await cache.set(KEY, {"step": 2})
        await cache.checkpoint(KEY, "mark", durability="memory")
        await flush(worker)
    role = deployment.postgres_url_of("inspector")
    looks = deployment.settings_of("agent", shards=SHARDS).model_copy(update={"postgres_url": role})
    before = denied(raw, "agent")
    with inspected(looks, write=True) as web:
        for path in PAGES:
            page = web.get(path)
            assert page.status == 200
            assert "unavailable" not in page.text
            assert "permission denied" not in page.text
        assert "step : 1" in web.get("key", key=KEY, version=1).text
        assert "mark" in web.get("key", key=KEY).text
    assert denied(raw, "agent") == before
