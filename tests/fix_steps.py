"""What steps do in the tests: charges that a bank counts, and a record of each step to look at."""

from __future__ import annotations

import msgspec
import pytest

from statecache import AgentRun, Step


class Receipt(msgspec.Struct, frozen=True):
    order: str
    key: str
    attempt: int


class Bank:
    """A bank that counts the charges made."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.fails: list[BaseException] = []

    def charge(self, step: Step, order: str) -> Receipt:
        """Make one charge, then raise the next of `fails`, if any."""
        self.charged.append(step.idempotency_key)
        if self.fails:
            raise self.fails.pop(0)
        return Receipt(order, step.idempotency_key, step.attempt)


@pytest.fixture
def bank() -> Bank:
    """A bank."""
    return Bank()


def charged(run: AgentRun, receipt: Receipt) -> AgentRun:
    """Return the run with what a receipt adds to it."""
    return run.with_step("charge", receipt.order)
