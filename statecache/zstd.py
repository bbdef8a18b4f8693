"""zstd frames: of a value alone, and of one that repeats another, which is what a delta is.

A delta is the frame of a value whose prefix is its parent: zstd finds in it what the value repeats. It is read as any
frame whose dictionary is the parent's bytes, so how it was made does not show. zstandard's own compressors take such
bytes as a dictionary only when they are made, and to make one and its tables costs several times what compressing
does. Where its cffi backend can be used (with `cffi` installed), one context is kept and told the prefix of each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import zstandard

_LEVEL = 1
_LEVEL_SUFFICES = 100_000
"""Up to how many bytes of both a value and its parent the level's own parameters find what they have in common."""
_WINDOW_LOG_MIN, _HASH_LOG_MIN = 10, 6
_FRAME = b"\x28\xb5\x2f\xfd\xa0"
"""How a zstd frame begins whose content's size follows in four bytes."""
_BLOCK_BYTES_MAX = 128 * 1024

_compressors: list[zstandard.ZstdCompressor] = []
_decompressors: list[zstandard.ZstdDecompressor] = []
_contexts: list[Any] = []
"""Those that nobody uses now: each is for one thread at a time, and one that failed does not come back."""


def compressed(value: bytes) -> bytes:
    """Return a value as a frame."""
    try:
        compressor = _compressors.pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(level=_LEVEL)
    frame = compressor.compress(value)
    _compressors.append(compressor)
    return frame


def compressed_behind(prefix: bytes, value: bytes) -> bytes:
    """Return a value as a frame that says what of it is in the prefix, which has to be there to read it."""
    return (_by_prefix() or _by_dictionary)(prefix, value) if prefix else compressed(value)


def plain_frame(value: bytes) -> bytes:
    """Return a value as a frame that is not compressed, which costs no more than to copy it."""
    parts = [_FRAME, len(value).to_bytes(4, "little")]
    for start in range(0, len(value) or 1, _BLOCK_BYTES_MAX):
        block = value[start : start + _BLOCK_BYTES_MAX]
        last = start + _BLOCK_BYTES_MAX >= len(value)
        parts += [(len(block) << 3 | last).to_bytes(3, "little"), block]
    return b"".join(parts)


def decompressed(frames: list[bytes]) -> bytes:
    """Return what the last of these frames holds, of which each has what the one before holds as its prefix.

    Raises ValueError where one of them does not decompress.
    """
    try:
        decompressor = _decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor()
    try:
        value = decompressor.decompress_content_dict_chain([*frames])
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    _decompressors.append(decompressor)
    return value


def _by_dictionary(prefix: bytes, value: bytes) -> bytes:
    dictionary = zstandard.ZstdCompressionDict(prefix, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    both = len(prefix) + len(value)
    if both <= _LEVEL_SUFFICES:
        return zstandard.ZstdCompressor(level=_LEVEL, dict_data=dictionary).compress(value)
    parameters = _parameters(both.bit_length())
    return zstandard.ZstdCompressor(compression_params=parameters, dict_data=dictionary).compress(value)


@cache
def _parameters(window_log: int) -> zstandard.ZstdCompressionParameters:
    """Return parameters whose window reaches all of the parent, and whose table has room for most places in it."""
    return zstandard.ZstdCompressionParameters.from_level(_LEVEL, window_log=window_log, hash_log=window_log - 4)


@cache
def _by_prefix() -> Callable[[bytes, bytes], bytes] | None:
    """Return what does the same with a context that is kept; None where zstandard's cffi backend cannot be used."""
    try:
        backend: Any = import_module("zstandard.backend_cffi")  # it is slow to import, and few compress
        ffi, lib = backend.ffi, backend.lib
        create, free = lib.ZSTD_createCCtx, lib.ZSTD_freeCCtx
        refer, compress, failed = lib.ZSTD_CCtx_refPrefix, lib.ZSTD_compress2, lib.ZSTD_isError
        bound, tune = lib.ZSTD_compressBound, lib.ZSTD_CCtx_setParameter
        level, window, table = lib.ZSTD_c_compressionLevel, lib.ZSTD_c_windowLog, lib.ZSTD_c_hashLog
    except (ImportError, AttributeError):
        return None

    def behind(prefix: bytes, value: bytes) -> bytes:
        try:
            context = _contexts.pop()
        except IndexError:
            context = ffi.gc(create(), free)
            if context == ffi.NULL:
                raise MemoryError from None
            tune(context, level, _LEVEL)
        window_log = max((len(prefix) + len(value)).bit_length(), _WINDOW_LOG_MIN)
        tune(context, window, window_log)
        tune(context, table, max(window_log - 3, _HASH_LOG_MIN))
        other = bytearray(prefix) if prefix is value else prefix  # of what is compressed itself zstd finds nothing
        refer(context, ffi.from_buffer(other), len(other))
        room = bound(len(value))
        frame = ffi.new("char[]", room)
        size = compress(context, frame, room, ffi.from_buffer(value), len(value))
        if failed(size):
            return _by_dictionary(prefix, value)
        _contexts.append(context)
        return bytes(ffi.buffer(frame, size))

    return behind
