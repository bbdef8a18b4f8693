"""What is taken out of a copy of the tree, one thing at a time: each keeps a promise, and has to be missed."""

from __future__ import annotations

from tests.simulation.mutations.agents import AGENTS
from tests.simulation.mutations.durable import DURABLE
from tests.simulation.mutations.expiry import EXPIRY
from tests.simulation.mutations.feed import FEED
from tests.simulation.mutations.gates import GATES
from tests.simulation.mutations.histories import HISTORIES
from tests.simulation.mutations.hot import HOT
from tests.simulation.mutations.merging import MERGING
from tests.simulation.mutations.modifiers import MODIFIERS
from tests.simulation.mutations.near import NEAR
from tests.simulation.mutations.operators import OPERATORS
from tests.simulation.mutations.retention import RETENTION
from tests.simulation.mutations.vectors import VECTORS

MUTANTS = (
    HOT
    | DURABLE
    | GATES
    | NEAR
    | AGENTS
    | OPERATORS
    | FEED
    | EXPIRY
    | MODIFIERS
    | RETENTION
    | HISTORIES
    | MERGING
    | VECTORS
)
