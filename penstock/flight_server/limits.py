"""What one stream may take, and how many streams there may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import pyarrow as pa

from penstock.errors import InvalidRequest, LimitExceeded
from penstock.rows import schemas
from penstock.store.open import parse_bytes
from penstock.text import parse_seconds, suggest

_BYTES_PER_STREAM = 96 << 20
"""Bytes that a put may take: what gRPC has read ahead (18 to 64 MB), and the parts that are being stored. Neither gRPC
nor Arrow survives each allocation that fails: 120 puts of 30 MB ended a server of 4 GiB, one of 12 took them."""
_FEWEST_STREAMS = 4
_TIMES = ("put_idle", "get_idle", "exchange_idle", "put_time")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The defaults suit one machine; `serve --limit streams=32 --limit put_idle=10m` changes them."""

    streams: int = 128
    """Open calls of do_get, do_put, do_exchange and list_flights. Each has a thread of 1 MB stack; pyarrow has no
    limit.
    """
    batch_rows: int = 1 << 26
    """Rows of one batch: 224 bytes can claim 2^31 rows of null."""
    batch_bytes: int = 1 << 30
    """Bytes of one batch once decompressed."""
    put_batches: int = 10_000_000
    """Batches of one do_put."""
    put_rows: int = 1 << 40
    """Rows of one do_put."""
    put_bytes: int = 1 << 40
    """Bytes of one do_put."""
    payload_bytes: int = 256 << 20
    """Bytes of one payload, which is held in memory until it is stored: what is larger is a dataset."""
    put_idle: int = 600
    """Seconds for which a do_put may send nothing: a Spark task may compute for minutes between batches."""
    get_idle: int = 600
    """Seconds for which a caller may leave the next batch of its answer unread: it may compute between batches."""
    exchange_idle: int = 60
    """Seconds for which the client of a do_exchange may send or read nothing; both ends beat thrice in that."""
    dedup_ids: int = 10_000_000
    """Messages that were acked, by which redeliveries are recognized, of all subscriptions: 24 bytes each."""
    queue_messages: int = 10_000_000
    """Messages of one queue that wait for its workers; a put that fills it waits from then on."""
    queue_bytes: int = 64 << 30
    """Bytes of the payloads of one queue."""
    put_time: int = 12 * 3600
    """Seconds that one do_put may take in all."""
    datasets: int = 1_000_000
    """Datasets and topics in the ledger."""
    columns: int = 10_000
    """Columns of one schema."""
    schema_bytes: int = 4 << 20
    """Bytes of one schema with its metadata: the ledger keeps it, and tickets may carry it."""

    def within(self, memory: int) -> ServerLimits:
        """Return the same limits, with only as many streams as this private memory is enough for."""
        return replace(self, streams=max(_FEWEST_STREAMS, min(self.streams, memory // _BYTES_PER_STREAM)))

    def changed(self, texts: Mapping[str, str]) -> ServerLimits:
        """Return these limits with some of them set from text, such as {'put_bytes': '10GB', 'put_idle': '10m'}."""
        known = [field.name for field in fields(self)]
        for name in texts:
            if name not in known:
                raise InvalidRequest(f"no limit is called {name!r}; {suggest(name, known)}")
        return replace(self, **{name: _parse_limit(name, text) for name, text in texts.items()})


def _parse_limit(name: str, text: str) -> int:
    """Return a limit's value. In a time m is minutes, in a number a million."""
    if name in _TIMES:
        value, expected = int(parse_seconds(text) or 0), "seconds, or a time such as 90s, 10m or 12h"
    else:
        expected = "a number from 1, such as 512, 64k or 2GiB"
        try:
            value = parse_bytes(text)
        except InvalidRequest:
            value = 0
    if value < 1:
        raise InvalidRequest(f"--limit {name}={text}: expected {expected}")
    return value


def check_schema(schema: pa.Schema, limits: ServerLimits) -> None:
    """Reject a schema that is too large, or whose columns can't be told apart by their names."""
    check_limit(len(schema), limits.columns, "columns", "columns")
    check_limit(schema.serialize().size, limits.schema_bytes, "bytes in a schema with its metadata", "schema_bytes")
    schemas.check_names(schema)


def check_limit(amount: int, limit: int, what: str, option: str) -> None:
    """Reject an amount above a limit, by the limit's name."""
    if amount > limit:
        raise LimitExceeded(
            f"{what}: this server takes {limit:,}, got {amount:,}. Send less, or start it with --limit {option}=…"
        )
