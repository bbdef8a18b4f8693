"""The profiles of the chaos: which servers there are, who writes, and what strikes.

chaos       one Valkey, one Postgres: what kills, freezes, cuts, squeezes and empties them, and the network
roles       a primary and two replicas that change their roles, behind an address that moves
debian      the same with the machine's `redis-server` in place of the Valkey
threads     processes of many threads that share a synchronous client, one of them over TLS
deployments     two deployments, and who is pointed at the wrong servers
rights      a Redis user loses rights in the middle of its life
releases    the release before beside the present one
locks       holders of locks and agents that run steps are stopped, killed, cut off and told late
postgres    a Postgres that goes back, changes its place, is full, slow, read-only, or set up by somebody else
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.simulation import deployments, nemesis, releases
from tests.simulation.arena import Arena
from tests.simulation.deployments import DeploymentsArena, DeploymentsFaults
from tests.simulation.faults import Faults
from tests.simulation.locks_faults import LocksArena, LocksFaults
from tests.simulation.postgres_arena import PostgresArena
from tests.simulation.postgres_faults import PostgresFaults
from tests.simulation.releases import ReleasesArena, ReleasesFaults
from tests.simulation.rights_faults import RightsArena, RightsFaults
from tests.simulation.roles_arena import RolesArena
from tests.simulation.roles_faults import RolesFaults
from tests.simulation.threads_arena import ThreadsArena


class Profile(NamedTuple):
    """What makes a chaos of its own."""

    name: str
    table: Mapping[str, tuple[float, float, float]]
    alone: frozenset[str]
    arena: type[Arena]
    faults: type[Faults]


class DebianArena(RolesArena):
    """Servers that change their roles, of the Redis that the machine brings along: it has no WAITAOF."""

    redis_server = Path(shutil.which("redis-server") or "redis-server")

    @classmethod
    def lacking(cls) -> str:
        """Return what this machine lacks for it; nothing where it has all."""
        return "" if shutil.which("redis-server") else "there is no redis-server on PATH"


CHAOS = Profile("chaos", nemesis.KINDS, nemesis.ALONE, Arena, Faults)
PROFILES = {
    one.name: one
    for one in (
        CHAOS,
        Profile("roles", nemesis.ROLES, nemesis.ROLES_ALONE, RolesArena, RolesFaults),
        Profile("threads", nemesis.THREADS, frozenset(), ThreadsArena, Faults),
        Profile("postgres", nemesis.POSTGRES, nemesis.POSTGRES_ALONE, PostgresArena, PostgresFaults),
        Profile("locks", nemesis.LOCKS, nemesis.LOCKS_ALONE, LocksArena, LocksFaults),
        Profile("deployments", deployments.KINDS, frozenset(deployments.KINDS), DeploymentsArena, DeploymentsFaults),
        Profile("rights", nemesis.RIGHTS, frozenset(), RightsArena, RightsFaults),
        Profile("releases", releases.KINDS, frozenset({"typed"}), ReleasesArena, ReleasesFaults),
        Profile("debian", nemesis.ROLES, nemesis.ROLES_ALONE, DebianArena, RolesFaults),
    )
}
