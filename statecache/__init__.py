"""statecache: a state cache that many stateless AI agents share.

Agents read and write typed state through `AsyncStateCache` or `StateCache`; Redis holds it hot, workers stream every
change into Postgres. The names below are the whole public surface.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statecache.agent_run import AgentRun
from statecache.changes import Branch, Change
from statecache.checkpoint_policy import CheckpointPolicy
from statecache.checkpoints import Checkpoint, MadeBy
from statecache.erasure import ErasedFrom, Erasure
from statecache.errors import (
    AlreadyExists,
    Backpressure,
    BulkError,
    ChangeIdReused,
    CodecError,
    ConfigurationError,
    CursorEnded,
    DurabilityNotMet,
    DurabilityRefused,
    ForeignData,
    Forked,
    InvalidKey,
    LeaseLost,
    LimitExceeded,
    LockHeld,
    LockTimeout,
    Lost,
    NotChanged,
    NotFound,
    OutcomeUnknown,
    PostgresUnavailable,
    Quarantined,
    RedisUnavailable,
    SchemaNewer,
    StaleToken,
    StateCacheError,
    StepMismatch,
    StepUnknown,
    Unavailable,
    UsageError,
    VersionConflict,
)
from statecache.history_errors import (
    AlreadyCurrent,
    CheckpointExists,
    CheckpointNotFound,
    HistoryDamaged,
    HistoryIncomplete,
    MergeConflict,
    VersionNotFound,
)
from statecache.model import (
    DrainReport,
    Durability,
    LostCommit,
    NearStatistics,
    Observer,
    Operation,
    Outcome,
    Policy,
    Position,
    ReadMode,
    State,
    Token,
    UnknownCommit,
)
from statecache.mutations import Add, Append, Create, Delete, Increment, Remove, Set
from statecache.rules.difference import Difference
from statecache.rules.steps import Done, NotDone, Retry, Step
from statecache.rules.vectors import Scored

if TYPE_CHECKING:
    from statecache._async.client import AsyncNamespace, AsyncStateCache
    from statecache._async.transaction import AsyncTransaction
    from statecache._async.verbs import AsyncLease
    from statecache._sync.client import Namespace, StateCache
    from statecache._sync.transaction import Transaction
    from statecache._sync.verbs import Lease
    from statecache.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Add",
    "AgentRun",
    "AlreadyCurrent",
    "AlreadyExists",
    "Append",
    "AsyncLease",
    "AsyncNamespace",
    "AsyncStateCache",
    "AsyncTransaction",
    "Backpressure",
    "Branch",
    "BulkError",
    "Change",
    "ChangeIdReused",
    "Checkpoint",
    "CheckpointExists",
    "CheckpointNotFound",
    "CheckpointPolicy",
    "CodecError",
    "ConfigurationError",
    "Create",
    "CursorEnded",
    "Delete",
    "Difference",
    "Done",
    "DrainReport",
    "Durability",
    "DurabilityNotMet",
    "DurabilityRefused",
    "ErasedFrom",
    "Erasure",
    "ForeignData",
    "Forked",
    "HistoryDamaged",
    "HistoryIncomplete",
    "Increment",
    "InvalidKey",
    "Lease",
    "LeaseLost",
    "LimitExceeded",
    "LockHeld",
    "LockTimeout",
    "Lost",
    "LostCommit",
    "MadeBy",
    "MergeConflict",
    "Namespace",
    "NearStatistics",
    "NotChanged",
    "NotDone",
    "NotFound",
    "Observer",
    "Operation",
    "Outcome",
    "OutcomeUnknown",
    "Policy",
    "Position",
    "PostgresUnavailable",
    "Quarantined",
    "ReadMode",
    "RedisUnavailable",
    "Remove",
    "Retry",
    "SchemaNewer",
    "Scored",
    "Set",
    "Settings",
    "StaleToken",
    "State",
    "StateCache",
    "StateCacheError",
    "Step",
    "StepMismatch",
    "StepUnknown",
    "Token",
    "Transaction",
    "Unavailable",
    "UnknownCommit",
    "UsageError",
    "VersionConflict",
    "VersionNotFound",
]

_LAZY = {
    "AsyncLease": "statecache._async.verbs",
    "AsyncNamespace": "statecache._async.client",
    "AsyncStateCache": "statecache._async.client",
    "AsyncTransaction": "statecache._async.transaction",
    "Lease": "statecache._sync.verbs",
    "Namespace": "statecache._sync.client",
    "StateCache": "statecache._sync.client",
    "Transaction": "statecache._sync.transaction",
    "Settings": "statecache.settings",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'statecache' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
