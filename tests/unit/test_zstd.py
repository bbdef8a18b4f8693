"""Frames of values, and of what parts them from others: however they are made, they are read in the same way."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from statecache import zstd
from statecache.zstd import compressed, compressed_behind, decompressed, plain_frame

Behind = Callable[[bytes, bytes], bytes]
SAID = random.Random(7).randbytes(6_000).hex().encode()


@pytest.fixture(params=["prefix", "dictionary"])
def behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Behind]:
    """Make frames by a prefix, and as where cffi is not installed."""
    if request.param == "dictionary":
        monkeypatch.setitem(sys.modules, "zstandard.backend_cffi", None)
    zstd._by_prefix.cache_clear()
    assert (zstd._by_prefix() is None) == (request.param == "dictionary")
    yield compressed_behind
    zstd._by_prefix.cache_clear()


@given(st.binary(max_size=300), st.lists(st.binary(max_size=40), max_size=4), st.integers(0, 300))
def test_any_value_comes_back_from_what_parts_it_from_any_other(prefix: bytes, parts: list[bytes], at: int) -> None:
    value = prefix[:at] + b"".join(parts) + prefix[at:]
    for frame in (
        compressed_behind(prefix, value),
        zstd._by_dictionary(prefix, value) if prefix else compressed(value),
    ):
        assert decompressed([plain_frame(prefix), frame]) == value
    assert decompressed([plain_frame(value)]) == decompressed([compressed(value)]) == value


@pytest.mark.parametrize("size", [0, 1, 97, 5_000, 99_999, 140_000, 3_000_000])
def test_it_is_as_small_as_what_is_new(behind: Behind, size: int) -> None:
    chance = random.Random(size)
    prefix = chance.randbytes(size)
    value = prefix[: size // 3] + b"something that is new" + prefix[size // 3 :]
    frame = behind(prefix, value)
    assert len(frame) <= 60 + size // 5_000
    assert decompressed([plain_frame(prefix), frame]) == value


def test_what_has_not_changed_takes_next_to_nothing_also_where_it_is_the_same_object(behind: Behind) -> None:
    for other in (SAID, bytes(bytearray(SAID))):
        frame = behind(other, SAID)
        assert len(frame) < 40
        assert decompressed([plain_frame(SAID), frame]) == SAID


def test_many_are_read_one_behind_the_other(behind: Behind) -> None:
    values = [SAID]
    for step in range(30):
        values.append(values[-1] + f" and step {step}".encode())
    frames = [compressed(SAID), *(behind(*pair) for pair in pairwise(values))]
    assert decompressed(frames) == values[-1]


def test_without_what_it_repeats_it_does_not_come_back(behind: Behind) -> None:
    frame = behind(SAID, SAID + b"more")
    with pytest.raises(ValueError, match=r"."):
        decompressed([frame])
    other = bytes(reversed(SAID))
    assert decompressed([plain_frame(other), frame]) != SAID + b"more"


def test_threads_may_do_so_at_the_same_time(behind: Behind) -> None:
    values = [random.Random(seed).randbytes(40_000) for seed in range(4)]

    def came_back(value: bytes) -> bool:
        changed = value[:20_000] + b"new" + value[20_000:]
        return all(
            decompressed([plain_frame(value), behind(value, changed)]) == changed and len(behind(value, changed)) < 60
            for _ in range(50)
        )

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(came_back, values)) == [True] * 4


def test_a_context_that_failed_is_used_no_more_and_the_frame_is_made_without(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = pytest.importorskip("zstandard.backend_cffi")
    real = backend.lib

    class Failing:
        def __getattr__(self, name: str) -> object:
            return (lambda _: 1) if name == "ZSTD_isError" else getattr(real, name)

    monkeypatch.setattr(backend, "lib", Failing())
    zstd._by_prefix.cache_clear()
    monkeypatch.setattr(zstd, "_contexts", [])
    try:
        frame = compressed_behind(SAID, SAID + b"more")
        assert frame == zstd._by_dictionary(SAID, SAID + b"more")
        assert zstd._contexts == []
    finally:
        zstd._by_prefix.cache_clear()


def test_what_is_no_frame_is_told() -> None:
    for frame in (b"", b"no frame", compressed(SAID)[:-5]):
        with pytest.raises(ValueError, match=r"."):
            decompressed([frame])
    assert not issubclass(zstandard.ZstdError, ValueError)
