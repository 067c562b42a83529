"""What a typed read needs to know of a topic before it begins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypedDict

from penstock.decode.decoding import SCHEMA_FORMATS, Decoding, plan, plan_at_server
from penstock.errors import InvalidRequest
from penstock.wire.read import PayloadSchema

if TYPE_CHECKING:
    from penstock.client.client import Client

_MOST_BYTES = 300 << 10
"""Of a file with a schema; Pub/Sub takes as much."""


class Decoded(TypedDict, total=False):
    """The arguments of a read that makes columns of a topic's payloads."""

    decode: str | None
    schema: Any
    """Text as Spark's `.schema(…)` takes it, or an Arrow schema; for `penstock.read` Spark's types, too."""
    mode: str | None
    writer_schema: str | os.PathLike[str] | None
    """A file, .avsc or .proto, with the schema of Avro or protobuf payloads whose messages don't name theirs."""


def plan_decoding(
    client: Client, path: str, arguments: Decoded, *, with_error: bool = True
) -> tuple[Decoding | None, PayloadSchema | None]:
    """Return how a read of a topic is decoded by its reader, or else by the server; None twice for one that isn't.

    `with_error` as in `plan`.
    """
    decode, schema, mode = arguments.get("decode"), arguments.get("schema"), arguments.get("mode")
    file = arguments.get("writer_schema")
    if decode is None:
        for name, value in (("schema", schema), ("mode", mode), ("writer_schema", file)):
            if value is not None:
                raise InvalidRequest(f"{name}={value!r:.80} is for a decoded read: pass decode='json' too, or omit it")
        return None, None
    if file is not None and decode not in SCHEMA_FORMATS:
        raise InvalidRequest(f"writer_schema={str(file)!r:.80} is for {' and '.join(SCHEMA_FORMATS)}: leave it out")
    info = client.info(path)
    if info.kind == "dataset":
        raise InvalidRequest(f"{path} is a dataset: decode reads the payloads of a topic or a subscription")
    names = info.schema.names
    if decode not in SCHEMA_FORMATS:
        return plan(path, names, decode, schema, mode, with_error=with_error), None
    writer = None if file is None else _read(file)
    return None, plan_at_server(path, names, decode, schema, mode, writer=writer, with_error=with_error)


def _read(file: str | os.PathLike[str]) -> str:
    """Return the text of a schema's file."""
    try:
        with open(file, encoding="utf-8") as opened:
            text = opened.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it isn't text"
        raise InvalidRequest(
            f"writer_schema={str(file)!r:.200}: expected a file with an Avro or a protobuf schema: {why}"
        ) from error
    if len(text) > _MOST_BYTES:
        raise InvalidRequest(f"writer_schema={str(file)!r:.200} has more than {_MOST_BYTES:,} bytes")
    return text
