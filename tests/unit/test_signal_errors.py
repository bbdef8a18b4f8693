"""What a signal handler raises while a value is read or written goes through as it is; what a class raises does not."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import msgspec
import pydantic
import pytest

from statecache import Settings
from statecache.call_notes import Observation
from statecache.clock import monotonic
from statecache.codec import codec_for
from statecache.concurrency import THREADS, run
from statecache.core.history.computations import Computations
from statecache.core.postgres.connection import connect
from statecache.errors import CodecError
from statecache.model import Operation
from statecache.rules.steps import fingerprint_of
from statecache.set_order import has_sets
from statecache.upgrading import UpgradingCodec
from tests.support.sample_values import KEY, both, stored

SIGNAL = signal.SIGUSR1


class OwnError(Exception):
    """An error of a handler, of no kind that statecache knows."""


class Moody(msgspec.Struct):
    """A class in the middle of whose reading a signal comes."""

    x: int

    def __post_init__(self) -> None:
        Mood.act()


@dataclass
class MoodyData:
    """The same as a dataclass."""

    x: int

    def __post_init__(self) -> None:
        Mood.act()


class MoodyModel(pydantic.BaseModel):
    """The same as a pydantic model, as it is read and as it is written."""

    x: int

    @pydantic.field_validator("x")
    @classmethod
    def check(cls, value: int) -> int:
        Mood.act()
        return value

    @pydantic.field_serializer("x")
    def dump(self, value: int) -> int:
        Mood.act()
        return value


class Holder(msgspec.Struct):
    """A Struct with a model in it, which msgspec asks pydantic for."""

    model: MoodyModel


class Unlike(msgspec.Struct, eq=False):
    """A class in the middle of whose comparison a signal comes."""

    x: int

    def __eq__(self, other: object) -> bool:
        Mood.act()
        return isinstance(other, Unlike) and self.x == other.x


class Versioned(msgspec.Struct):
    """A class of which an earlier version is stored."""

    __schema_version__: ClassVar[int] = 2

    x: int


class Mood:
    """What the classes of these tests do in the middle of their work: nothing, unless a test says so."""

    act: ClassVar[Callable[[], object]] = staticmethod(lambda: None)


def _as_function(error: Exception) -> Any:
    def handler(number: int, frame: object) -> None:
        raise error

    return handler


def _as_any_arguments(error: Exception) -> Any:
    def handler(*_: object) -> None:
        raise error

    return handler


def _as_wrapper(error: Exception) -> Any:
    inner = _as_function(error)
    return lambda number, frame: inner(number, frame)


def _as_partial(error: Exception) -> Any:
    def handler(told: Exception, number: int, frame: object) -> None:
        raise told

    return partial(handler, error)


def _as_object(error: Exception) -> Any:
    class Handler:
        def __call__(self, number: int, frame: object) -> None:
            raise error

    return Handler()


@contextmanager
def interrupted(handler: Any) -> Iterator[None]:
    """Have the classes of these tests meet a signal in the middle of their work."""
    before, Mood.act = signal.signal(SIGNAL, handler), lambda: signal.raise_signal(SIGNAL)
    try:
        yield
    finally:
        Mood.act = lambda: None
        signal.signal(SIGNAL, before)


@pytest.fixture(params=[TimeoutError("late"), ValueError("late"), TypeError("late"), OwnError("late")], ids=repr)
def error(request: pytest.FixtureRequest) -> Exception:
    """What the handler raises."""
    made: Exception = type(request.param)("late")
    return made


@both
@pytest.mark.parametrize("kind", [Moody, MoodyData, MoodyModel, Holder])
def test_a_handler_that_raises_while_a_value_is_read_is_heard(encoding: Any, kind: Any, error: Exception) -> None:
    codec = codec_for(kind, encoding)
    data, _ = codec.encode(Holder(MoodyModel(x=1)) if kind is Holder else kind(x=1), key=KEY, bytes_max=100)
    with interrupted(_as_function(error)), pytest.raises(type(error)) as caught:
        codec.decode(data, key=KEY)
    assert caught.value is error
    assert codec.decode(data, key=KEY) is not None


@both
@pytest.mark.parametrize("kind", [Moody, MoodyModel, Holder, Unlike])
def test_a_handler_that_raises_while_a_value_is_written_is_heard(encoding: Any, kind: Any, error: Exception) -> None:
    value = Holder(MoodyModel(x=1)) if kind is Holder else kind(x=1)
    with interrupted(_as_function(error)), pytest.raises(type(error)) as caught:
        stored(value, kind, encoding)
    assert caught.value is error


def test_a_handler_that_raises_while_arguments_or_types_are_looked_at_is_heard(error: Exception) -> None:
    model = MoodyModel(x=1)
    with interrupted(_as_function(error)), pytest.raises(type(error)):
        fingerprint_of([model], key=KEY)

    class Set(pydantic.BaseModel):
        x: set[int]

        @classmethod
        def model_json_schema(cls, *args: Any, **more: Any) -> Any:
            Mood.act()
            return super().model_json_schema(*args, **more)

    with interrupted(_as_function(error)), pytest.raises(type(error)):
        has_sets(Set)
    assert has_sets(Set)


def test_a_handler_that_raises_in_an_upgrade_is_heard(error: Exception) -> None:
    def upgrade(value: Any) -> Any:
        Mood.act()
        return value

    codec = UpgradingCodec(Versioned, {1: upgrade}, encoding="json")
    old = codec.schema.replace("@2", "@1")
    with interrupted(_as_function(error)), pytest.raises(type(error)) as caught:
        codec.decode(b'{"x":1}', key=KEY, schema=old)
    assert caught.value is error
    assert codec.decode(b'{"x":1}', key=KEY, schema=old) == Versioned(1)


def test_a_handler_that_raises_in_an_observer_is_heard(error: Exception) -> None:
    class Watcher:
        def ended(self, operation: Operation) -> None:
            Mood.act()

    with interrupted(_as_function(error)), pytest.raises(type(error)) as caught:
        Observation(Watcher(), "get").end(None)
    assert caught.value is error


@pytest.mark.parametrize("shape", [_as_any_arguments, _as_wrapper, _as_partial, _as_object])
def test_a_handler_is_known_whatever_it_looks_like(shape: Any) -> None:
    with interrupted(shape(OwnError("late"))), pytest.raises(OwnError, match="late"):
        codec_for(Moody).decode(b'{"x":1}', key=KEY)


def test_what_a_class_raises_is_a_codec_error_while_a_handlers_error_is_handled_too(error: Exception) -> None:
    """The error that is being handled when a call begins is none of the call's own."""

    def refuse() -> None:
        raise type(error)("not this one")

    with interrupted(_as_function(error)), pytest.raises(type(error)):
        Mood.act()
    try:
        with interrupted(_as_function(error)):
            Mood.act()
    except type(error):
        Mood.act = refuse
        try:
            with pytest.raises(CodecError, match="not this one"):
                codec_for(Moody).decode(b'{"x":1}', key=KEY)
            with pytest.raises(CodecError, match="not this one"):
                codec_for(MoodyData).decode(b'{"x":1}', key=KEY)
        finally:
            Mood.act = lambda: None


class Lazy:
    """What is looked up when it is used, as web frameworks have it, and cannot be now."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("there is no request")


def _with_a_lazy_local() -> None:
    here = Lazy()
    raise ValueError(f"it is {type(here).__name__}")


def _with_the_callers_frame() -> None:
    def refuse(frame: Any) -> None:
        raise ValueError(f"{frame.f_code.co_name} is wrong")

    refuse(inspect.currentframe())


def _by_an_earlier_pydantic() -> None:
    raise _EARLIER("wrong")


def _from_itself() -> None:
    error = msgspec.ValidationError("wrong")
    raise error from error


class _Earlier(ValueError):
    def errors(self) -> list[Any]:
        return []


_EARLIER = type("ValidationError", (_Earlier,), {"__module__": "pydantic.v1.error_wrappers"})


@pytest.mark.parametrize("refuse", [_with_a_lazy_local, _with_the_callers_frame, _by_an_earlier_pydantic, _from_itself])
def test_what_a_class_raises_is_a_codec_error_whatever_it_has_at_hand(refuse: Any) -> None:
    Mood.act = refuse
    try:
        with pytest.raises(CodecError):
            codec_for(Moody).decode(b'{"x":1}', key=KEY)
    finally:
        Mood.act = lambda: None


def test_a_handler_that_raises_in_a_long_computation_is_heard(error: Exception) -> None:
    with interrupted(_as_function(error)), pytest.raises(type(error)) as caught:
        run(Computations(THREADS).result(Mood.act, size=5000, end=monotonic() + 60, what="a comparison"))
    assert caught.value is error


def test_a_handler_that_raises_while_a_connection_to_postgres_is_opened_is_heard(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(*_: object) -> None:
        Mood.act()

    monkeypatch.setattr(THREADS, "postgres", opened)
    settings = Settings(postgres_url="postgresql://h/state")
    with interrupted(_as_function(error)), pytest.raises(type(error)) as caught:
        run(connect(settings, "statecache", io=THREADS))
    assert caught.value is error
