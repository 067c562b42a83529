"""What a typed read needs to know of a topic before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from penstock.decode.decoding import Decoding, plan
from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.client.client import Client


class Decoded(TypedDict, total=False):
    """The arguments of a read that makes columns of a topic's payloads."""

    decode: str | None
    schema: Any
    """Text as Spark's `.schema(…)` takes it, or an Arrow schema; for `penstock.read` Spark's types, too."""
    mode: str | None


def plan_decoding(client: Client, path: str, arguments: Decoded, *, with_error: bool = True) -> Decoding | None:
    """Return how a read of a topic is decoded; None for one that isn't. `with_error` as in `plan`."""
    decode, schema, mode = arguments.get("decode"), arguments.get("schema"), arguments.get("mode")
    if decode is None:
        for name, value in (("schema", schema), ("mode", mode)):
            if value is not None:
                raise InvalidRequest(f"{name}={value!r:.80} is for a decoded read: pass decode='json' too, or omit it")
        return None
    info = client.info(path)
    if info.kind == "dataset":
        raise InvalidRequest(f"{path} is a dataset: decode reads the payloads of a topic or a subscription")
    return plan(path, info.schema.names, decode, schema, mode, with_error=with_error)
