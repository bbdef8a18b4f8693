"""Everything that a client and its namespaces share: the two tiers and what works on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import finalize, ref

from msgspec import structs

from statecache._process import begins_anew_after_fork, mutex
from statecache.clock import boottime
from statecache.commit_protocol.in_flight import InFlight
from statecache.commit_protocol.unknown_outcomes import UnknownOutcomes
from statecache.concurrency import TASKS, Concurrency
from statecache.core.commit.committer import Committer, new_change_id
from statecache.core.commit.durability_support import DurabilitySupport
from statecache.core.commit.durable import Durable
from statecache.core.commit.lost import Losses
from statecache.core.commit.many import ManyCommits
from statecache.core.commit.outcome_lookup import OutcomeLookup
from statecache.core.epoch.opener import Opener
from statecache.core.feed.consumers import Consumers
from statecache.core.history.branches import Branches
from statecache.core.history.checkpoints import Checkpoints
from statecache.core.history.computations import Computations
from statecache.core.history.due import DueCheckpoints
from statecache.core.history.policies import HistoryPolicies
from statecache.core.history.reader import HistoryReader
from statecache.core.history.tail import Tails
from statecache.core.history.values import HistoryValues
from statecache.core.lock.leases import Leases
from statecache.core.lock.policies import Policies
from statecache.core.postgres.tier import PostgresTier
from statecache.core.read.hydration import Hydrator
from statecache.core.read.listing import Listing
from statecache.core.read.many import ManyReader
from statecache.core.read.nearest import Nearest
from statecache.core.read.reader import Reader
from statecache.core.read.warming import Warmer
from statecache.core.redis.installation import Pairing
from statecache.core.redis.pubsub import Subscriptions
from statecache.core.redis.tier import RedisTier
from statecache.core.redis.tracking import TrackedConnection
from statecache.core.step.claims import Claims
from statecache.core.step.index import StepIndex
from statecache.core.update.local_queue import LocalQueues
from statecache.core.update.shared_queue import SharedQueues
from statecache.keys import KeySpace
from statecache.near import Near

if TYPE_CHECKING:
    from statecache.core.pool import Pool
    from statecache.core.redis.connection import Dial
    from statecache.model import NearStatistics, Observer
    from statecache.settings import Settings


class Runtime:
    """The parts of one client, wired together; nothing is connected before it is needed."""

    def __init__(
        self,
        settings: Settings,
        *,
        dial: Dial | None = None,
        observer: Observer | None = None,
        io: Concurrency = TASKS,
        postgres: PostgresTier | None = None,
        support: DurabilitySupport | None = None,
    ) -> None:
        self.io = io
        self.settings = settings
        self.observer = observer
        self.keys = KeySpace(prefix=settings.prefix, shards=settings.shards)
        self.postgres = postgres or PostgresTier(
            settings, self.keys, io=io,
            cluster=lambda: redis.cluster, ask_redis=lambda seconds: redis.look_again(seconds),
        )  # fmt: skip
        self.redis = redis = RedisTier(settings, self.keys, dial=dial, pairing=Pairing(settings, self.postgres), io=io)
        self.opener = Opener(settings, self.keys, self.redis, self.postgres)
        self.hydrator = Hydrator(settings, self.keys, self.redis, self.postgres, self.opener, new_token=new_change_id)
        self.near = Near(
            bytes_max=settings.near_bytes_max, entries_max=settings.near_entries_max, window_s=settings.near_window_s,
            mutex=mutex(), server_ms=self.redis.clock.server_ms,
        )  # fmt: skip
        begins_anew_after_fork(self.near)
        self.in_flight = InFlight(fenced=settings.fence == "on")
        self.local_queues = LocalQueues(self.in_flight, io)
        self.shared_queues = SharedQueues(self.keys, self.redis, self.near, new_token=new_change_id)
        self.tracked = TrackedConnection(settings, self.keys, redis, self.near, self.opener.epochs, owner=ref(self))
        self.reader = Reader(
            settings, self.keys, self.redis, self.postgres,
            near=self.near, tracked=self.tracked, hydrator=self.hydrator, opener=self.opener,
        )  # fmt: skip
        self.many = ManyReader(
            settings, self.keys, self.redis, self.postgres,
            near=self.near, tracked=self.tracked, hydrator=self.hydrator, reader=self.reader,
        )  # fmt: skip
        self.warmer = Warmer(self.keys, self.redis, near=self.near, tracked=self.tracked, hydrator=self.hydrator)
        self.listing = Listing(settings, self.keys, self.redis, self.postgres, near=self.near, reader=self.reader)
        self.nearest = Nearest(self.keys, self.postgres, self.listing)
        self.checkpoints, self.branches = Checkpoints(self.many, self.listing), Branches(self.postgres)
        self.due_checkpoints = DueCheckpoints()
        self.policies = Policies(settings, self.keys, self.redis, self.postgres, self.opener)
        self.events = Subscriptions(self.redis, owner=ref(self))
        self.consumers, self.history_values = Consumers(self.postgres), HistoryValues(self.postgres.fetch)
        self.tails = Tails(settings, self.keys, self.redis, self.reader.closed_gates)
        self.history = HistoryReader(self.keys, self.redis, self.postgres, self.history_values, self.tails)
        self.history_policies, self.computations = HistoryPolicies(settings, self.postgres), Computations(io)
        self.durable = Durable(self.keys, self.redis, self.postgres, self.events)
        self.leases = Leases(settings, self.keys, self.redis, self.opener, self.events)
        self.step_index = StepIndex(settings, self.keys, self.redis, self.postgres)
        self.claims = Claims(settings, self.keys, self.redis, self.opener)
        self.support = support or DurabilitySupport(settings)
        self.unknown_outcomes = UnknownOutcomes()
        self.losses = Losses(settings, self.postgres, self.in_flight)
        self.outcome_lookup = OutcomeLookup(
            settings, self.keys, self.redis, postgres=self.postgres, opener=self.opener,
            unknown_outcomes=self.unknown_outcomes, in_flight=self.in_flight,
        )  # fmt: skip
        self.committer = Committer(
            settings, self.keys, self.redis, opener=self.opener, hydrator=self.hydrator, near=self.near,
            durable=self.durable, support=self.support, tracked=self.tracked, unknown_outcomes=self.unknown_outcomes,
            in_flight=self.in_flight, losses=self.losses, policies=self.policies,
        )  # fmt: skip
        self.many_commits = ManyCommits(
            self.redis, self.committer, opener=self.opener, hydrator=self.hydrator, support=self.support,
            in_flight=self.in_flight, unknown_outcomes=self.unknown_outcomes,
        )  # fmt: skip
        finalize(self, _let_go, self.tracked, self.events, redis.pool, self.postgres.pool).atexit = False

    @property
    def place(self) -> object | None:
        """The event loop that the runtime belongs to; None where nothing has opened or used it."""
        return self.redis.pool.place or self.postgres.pool.place

    def open_here(self) -> None:
        """Have the runtime belong to this event loop; raise UsageError where it belongs to another one."""
        self.check_place()
        self.redis.pool.open_here()
        self.postgres.pool.open_here()

    def check_place(self) -> None:
        """Raise UsageError where the runtime belongs to another event loop."""
        self.redis.pool.check_place()
        self.postgres.pool.check_place()

    def near_statistics(self) -> NearStatistics:
        """Return what the near cache has counted, and whether local reads are answered from it."""
        found, tracked = self.near.statistics(boottime()), self.tracked
        return structs.replace(
            found, untrusted_reason=tracked.untrusted_reason, untracked=tracked.wanted and not found.trusted
        )

    async def close(self) -> None:
        """Give the leases back and close every connection; what is under way fails."""
        await self.claims.close()
        await self.leases.close()
        await self.consumers.close()
        await self.history_policies.close()
        await self.tracked.close()
        await self.events.close()
        await self.redis.pool.close()
        await self.postgres.pool.close()
        self.in_flight.closing = self.in_flight.closed = True


def _let_go(*parts: TrackedConnection | Subscriptions | Pool[Any]) -> None:
    """Close what a client left behind that was not closed and that nobody uses any more."""
    for part in parts:
        part.let_go()
