"""One response of a running query, read from gRPC's bytes without a copy of its rows.

protobuf would copy them: once when it parses the message, once more for each use of the field. So the two fields around
them are found by hand, and protobuf parses what is left, some hundred bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from penstock.spark import protos
from penstock.spark.errors import CorruptResponse

_ARROW_BATCH = 2
_DATA = 2
_LENGTH_DELIMITED = 2
_FIXED = {1: 8, 5: 4}


@dataclass(frozen=True, slots=True)
class Piece:
    """An Arrow batch in a response, or a chunk of one."""

    data: pa.Buffer
    head: Any
    """The message ArrowBatch without its data."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response; `message` is all of it but the Arrow batch."""

    message: Any
    piece: Piece | None


def parse_response(raw: bytes) -> Response:
    """Return a response; anything malformed is a CorruptResponse."""
    try:
        outer = _find(raw, 0, len(raw), _ARROW_BATCH)
        if outer is None:
            return Response(protos.ExecutePlanResponse.FromString(raw), None)
        tag, begin, end = outer
        rest = protos.ExecutePlanResponse.FromString(raw[:tag] + raw[end:])
        inner = _find(raw, begin, end, _DATA)
        if inner is None:
            head, data = protos.ExecutePlanResponse.ArrowBatch.FromString(raw[begin:end]), pa.py_buffer(b"")
        else:
            data_tag, data_begin, data_end = inner
            head = protos.ExecutePlanResponse.ArrowBatch.FromString(raw[begin:data_tag] + raw[data_end:end])
            data = pa.py_buffer(raw).slice(data_begin, data_end - data_begin)
    except (DecodeError, IndexError, ValueError) as malformed:
        raise CorruptResponse(f"a response of {len(raw):,} bytes is malformed: {malformed}") from malformed
    if rest.WhichOneof("response_type") is not None or head.data:
        raise CorruptResponse("a response has an Arrow batch and something else in its place")
    return Response(rest, Piece(data, head))


def _find(raw: bytes, begin: int, end: int, wanted: int) -> tuple[int, int, int] | None:
    """Return where a message's field `wanted` stands: its tag, the first byte of its value, and its end."""
    result = None
    position = begin
    while position < end:
        tag = position
        key, position = _varint(raw, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            _, position = _varint(raw, position)
        elif wire_type == _LENGTH_DELIMITED:
            size, start = _varint(raw, position)
            position = start + size
            if number == wanted:
                if result is not None:
                    raise ValueError(f"field {wanted} stands there twice")
                result = (tag, start, position)
        elif wire_type in _FIXED:
            position += _FIXED[wire_type]
        else:
            raise ValueError(f"wire type {wire_type}")
    if position != end:
        raise ValueError("it ends within a field")
    return result


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def encode_varint(value: int) -> bytes:
    """Return a number as protobuf writes lengths."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])
