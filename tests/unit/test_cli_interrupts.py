"""A command that has something to clear away is told to stop once, and says so by its exit status."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from statecache.cli.interrupts import Interrupts

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Handle signals afterwards as before."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_ends_the_block_and_the_next_ones_do_not_disturb_its_end(number: signal.Signals) -> None:
    ended: list[str] = []

    def block() -> None:
        with Interrupts():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)
                ended.append("cleared away")

    with pytest.raises(KeyboardInterrupt):
        block()
    signal.raise_signal(number)
    assert ended == ["cleared away"]


def test_one_that_was_dropped_on_its_way_ends_the_block_when_all_is_done() -> None:
    done: list[str] = []

    def block() -> None:
        with Interrupts():
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["all"]


def test_one_that_was_wanted_is_the_commands_own_to_see_to() -> None:
    with Interrupts() as interrupts:
        interrupts.ignore_unless(wanted=True)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_is_ignored_is_no_interrupt_and_the_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with Interrupts() as interrupts:
        interrupts.ignore()
        signal.raise_signal(signal.SIGTERM)
        interrupts.ignore_unless(wanted=True)
    assert [signal.getsignal(number) for number in NUMBERS] == before
