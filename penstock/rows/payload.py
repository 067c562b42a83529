"""SplitPayload: what one split carries, and how it is made of tables and of the bytes that Arrow's own writers make.

Id and metadata travel in the schema's metadata, so that any Arrow writer can send them and any reader keeps them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from penstock.errors import InvalidRequest
from penstock.rows import schemas
from penstock.wire.paths import check_key

SPLIT_ID, METADATA = b"penstock.split_id", b"penstock.metadata"
"""The keys in a schema's metadata: the id as text, the metadata as a JSON object."""


@dataclass(frozen=True, slots=True)
class SplitPayload:
    """What one split carries: a table, the split's id, and its metadata."""

    data: pa.Table
    split_id: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arrow(cls, data: pa.Table, split_id: str) -> SplitPayload:
        """Return the payload of a table; id and metadata that its schema carries go before `split_id` and none."""
        own = data.schema.metadata or {}
        if SPLIT_ID not in own and METADATA not in own:
            return cls(data, split_id)
        try:
            split_id = own[SPLIT_ID].decode() if SPLIT_ID in own else split_id
            metadata = json.loads(own.get(METADATA, b"{}"))
        except (ValueError, RecursionError) as broken:
            raise _bad_metadata(split_id) from broken
        if not isinstance(metadata, dict):
            raise _bad_metadata(split_id)
        # Not by replace_schema_metadata, which loses the rows of a table without columns
        return cls(pa.Table.from_batches(data.to_batches(), plain(data.schema)), split_id, metadata)

    @classmethod
    def from_ipc(cls, data: bytes | bytearray | memoryview | pa.Buffer, split_id: str) -> SplitPayload:
        """Return the payload of an Arrow IPC stream or file, as `from_arrow` does; the bytes are not validated."""
        buffer = pa.py_buffer(data)
        is_file = bytes(memoryview(buffer)[:6]) == b"ARROW1"
        try:
            table = pa.ipc.open_file(buffer).read_all() if is_file else pa.ipc.open_stream(buffer).read_all()
        except (pa.ArrowException, OSError, ValueError) as broken:
            raise InvalidRequest(f"expected bytes of an Arrow IPC stream or file: {broken}") from broken
        return cls.from_arrow(table, split_id)

    @classmethod
    def from_any(cls, data: Any, split_id: str) -> SplitPayload:
        """Return the payload of a SplitPayload, a table, or IPC bytes, validated before anything uses it."""
        if isinstance(data, SplitPayload):
            payload = data
        elif isinstance(data, pa.Table):
            payload = cls.from_arrow(data, split_id)
        elif isinstance(data, bytes | bytearray | memoryview | pa.Buffer):
            payload = cls.from_ipc(data, split_id)
        else:
            raise InvalidRequest(
                f"a payload is a SplitPayload, Arrow IPC bytes or a pyarrow.Table, got {type(data).__name__}"
            )
        try:
            payload.data.validate(full=True)
        except (pa.ArrowException, ValueError) as broken:
            raise InvalidRequest(f"the payload {split_id} isn't a valid table: {broken}") from broken
        schemas.check_names(payload.data.schema)
        return payload

    def schema(self) -> pa.Schema:
        """Return the table's schema with id and metadata in it; InvalidRequest if JSON can't hold them."""
        return carrying(self.data.schema, self.split_id, self.metadata)


def plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without a payload's id and metadata."""
    kept = {name: value for name, value in (schema.metadata or {}).items() if name not in (SPLIT_ID, METADATA)}
    return schema.with_metadata(kept or None)


def carrying(schema: pa.Schema, split_id: str, metadata: Mapping[str, Any]) -> pa.Schema:
    """Return a schema with a payload's id and metadata in it; InvalidRequest if JSON can't hold them."""
    try:
        own = {SPLIT_ID: split_id.encode(), METADATA: json.dumps(dict(metadata)).encode()}
    except (AttributeError, TypeError, ValueError, RecursionError) as broken:
        raise InvalidRequest(
            f"the payload {split_id!r:.80} has a split_id that is no text, or metadata that JSON can't hold: {broken}"
        ) from broken
    return schema.with_metadata({**(schema.metadata or {}), **own})


class PayloadStore(ABC):
    """Payloads by key, in a server or in a folder. Safe to share between threads."""

    @abstractmethod
    def store_all(self, payloads: Mapping[str, Any] | Iterable[tuple[str, Any]], *, ttl: float | None = None) -> int:
        """Keep many payloads, each in place of what its key had; return how many. Nothing is kept if it raises.

        What `store` takes, by key. At a server payloads of one schema, up to 10,000, are one stream and one
        transaction; those of other schemas, or more, are further ones, and stay if a later one fails.
        """

    @abstractmethod
    def get_all(self, keys: Iterable[str]) -> dict[str, SplitPayload]:
        """Return the payloads of those keys that have one; Lost if the bytes of one are gone or corrupt."""

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Delete a payload; False if there was none."""

    @abstractmethod
    def clear(self, prefix: str = "") -> int:
        """Delete the payloads whose keys begin with a prefix, and return how many there were."""

    @abstractmethod
    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with a prefix, in order."""

    @abstractmethod
    def close(self) -> None:
        """Close connections and files; payloads that were handed out stay readable."""

    def store(self, key: str, payload: Any, *, ttl: float | None = None) -> str:
        """Keep a SplitPayload, a table, or bytes of an Arrow IPC stream or file, in place of what the key had.

        Durable when it returns. Id and metadata that the schema of a table or of bytes carries are kept. With `ttl` the
        payload is deleted after so many seconds.
        """
        self.store_all([(key, payload)], ttl=ttl)
        return key

    def get(self, key: str) -> SplitPayload | None:
        """Return the payload, None without one; Lost if its bytes are gone or corrupt."""
        return self.get_all([key]).get(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def payloads_by_key(payloads: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> dict[str, SplitPayload]:
    """Return what `store_all` was given as payloads, each validated; reject a key that comes twice."""
    pairs = payloads.items() if isinstance(payloads, Mapping) else payloads
    by_key: dict[str, SplitPayload] = {}
    for key, data in pairs:
        check_key(key)
        if key in by_key:
            raise InvalidRequest(f"the key {key} comes twice: store it once")
        by_key[key] = SplitPayload.from_any(data, key)
    return by_key


def _bad_metadata(split_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"the payload {split_id!r:.80} has a schema whose metadata 'penstock.split_id' is no UTF-8, or "
        "'penstock.metadata' no JSON object: mend its writer"
    )
