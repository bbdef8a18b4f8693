"""An agent asks a person, and waits for the answer, which is given with `statecache set`.

python examples/approval.py
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import sys

from statecache import AsyncStateCache
from where import somewhere

PATIENCE_S = 60.0


async def agent(key: str) -> None:
    """Ask, wait to be woken by the answer, and act on it."""
    async with AsyncStateCache() as cache:
        asked = await cache.create(key, {"question": "Refund 30 for order 7?", "approved": None})
        command = ["statecache", "set", key, '{"approved": true, "by": "ada"}']
        print(f"agent: may I? Whoever may say so types\n\n  {shlex.join(command)}\n", flush=True)
        person = await asyncio.create_subprocess_exec(  # in this example it is typed for you
            sys.executable, "-m", *command, stdout=asyncio.subprocess.DEVNULL
        )
        answer = await cache.wait_for(key, after=asked, timeout=PATIENCE_S)
        await person.wait()
        if answer is not None and answer.value["approved"]:
            print(f"agent: {answer.value['by']} has approved, in version {answer.version}; refunding", flush=True)
        else:
            print("agent: it was not approved", flush=True)


def main() -> None:
    """Run one agent."""
    with somewhere():
        asyncio.run(agent(f"approvals/example-{secrets.token_hex(4)}"))


if __name__ == "__main__":
    main()
