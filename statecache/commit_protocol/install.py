"""What was loaded from Postgres, to be installed in Redis by itself, or ahead of the commit it was loaded for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statecache.lua import script

if TYPE_CHECKING:
    from statecache.model import Record

INSTALL = "hydrate_install"


class Install(NamedTuple):
    """What Postgres holds of states of one shard, and the tokens of its loader that may stand in Redis.

    It is installed under the last of the tokens; what is absent, by a proof that needs none. Where that was not carried
    out, tokens are to be given back.
    """

    shard: int
    records: Mapping[str, Record]
    redis_keys: Sequence[str]
    arguments: Sequence[Any]
    tokens: Sequence[str] = ()
    script: str = INSTALL

    def command(self, link: Any) -> Any:
        """Return the command that installs, for that connection."""
        return link.call(script(self.script), self.redis_keys, self.arguments)

    def carried_out(self, link: Any, reply: Any) -> bool:
        """Return whether it was: then no token stands any more, but where the epoch ended, and its tokens with it."""
        known = not isinstance(reply, Exception)
        link.knows(script(self.script), known)
        return known
