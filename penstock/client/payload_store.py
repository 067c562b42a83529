"""SplitPayloadStore: payloads by key, at a server from any process, or alone in a folder.

with penstock.SplitPayloadStore() as store:
    store.store("job/7", table)
    store.get("job/7").data
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Self, TypeVar

import pyarrow as pa

from penstock.client.client import Client, connect
from penstock.client.get import read_tickets
from penstock.client.push import put_payloads
from penstock.errors import InvalidRequest, Lost, NotFound
from penstock.rows.payload import PayloadStore, SplitPayload, payloads_by_key, plain
from penstock.wire.actions import CLEAR_PAYLOADS, FIND_PAYLOADS, LIST_PAYLOADS
from penstock.wire.paths import check_key, check_payload_key
from penstock.wire.payloads import (
    MOST_KEYS,
    MOST_PAYLOADS,
    ClearPayloads,
    FindPayloads,
    FoundPayload,
    ListPayloads,
)

_T = TypeVar("_T")


class SplitPayloadStore(PayloadStore):
    """Payloads by key, at the server at `url`, PENSTOCK_URL or loopback; `disk:/a/folder` and `ray:` need no server.

    A key is a path below `store/`: what `get` finds there may be a payload, a split of a dataset,
    `path@<attempt>-<n>`, or a dataset, which comes whole. The arguments are those of `connect`. Pickles as its address.
    """

    def __new__(cls, url: str | None = None, **server: Any) -> Self:
        """Open a store; a folder's is one of `penstock.store`, with the same verbs."""
        if url is None or url.partition(":")[0] not in ("disk", "memory", "ray"):
            return super().__new__(cls)
        if server:
            raise InvalidRequest(f"{url} is opened without a server: omit {', '.join(server)}")
        from penstock.store.open import open as open_folder  # SQLite, which workers with a server do without

        return open_folder(url)  # type: ignore[return-value]  # as pathlib.Path() returns a PosixPath

    def __init__(self, url: str | None = None, **server: Any) -> None:
        self._client = connect(url, **server)

    def __repr__(self) -> str:
        return f"SplitPayloadStore({self._client.settings.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SplitPayloadStore) and other._client.settings == self._client.settings

    def __hash__(self) -> int:
        return hash(self._client.settings.url)

    def __reduce__(self) -> tuple[Any, ...]:
        return _store_of, (self._client,)

    def close(self) -> None:
        """Close the connection; payloads that were handed out stay readable."""
        self._client.close()

    def store_all(self, payloads: Mapping[str, Any] | Iterable[tuple[str, Any]], *, ttl: float | None = None) -> int:
        by_key = payloads_by_key(payloads)
        streams: dict[bytes, list[tuple[str, SplitPayload]]] = {}
        for key, payload in by_key.items():
            payload.schema()  # rejects metadata before anything is sent
            streams.setdefault(plain(payload.data.schema).serialize().to_pybytes(), []).append((key, payload))
        for stream in streams.values():
            for some in _batched(stream, MOST_PAYLOADS):
                put_payloads(self._client.connection, some, ttl=ttl)
        return len(by_key)

    def get_all(self, keys: Iterable[str]) -> dict[str, SplitPayload]:
        by_key: dict[str, SplitPayload] = {}
        for some in _batched(map(check_payload_key, keys), MOST_KEYS):
            answer = self._client.call(FIND_PAYLOADS, FindPayloads(tuple(some)))
            for found in answer.payloads:
                payload = self._read(found, answer.local)
                if payload is not None:
                    by_key[found.key] = payload
        return by_key

    def _read(self, found: FoundPayload, local: str | None) -> SplitPayload | None:
        if found.inline is not None:
            return SplitPayload.from_ipc(base64.b64decode(found.inline), found.key)
        try:
            if found.ticket is None:
                return SplitPayload.from_arrow(self._client.get(f"store/{found.key}").read_all(), found.key)
            tickets = [(found.ticket.encode(), found.rows or 0)]
            batches = list(read_tickets(self._client.connection, tickets, local=local, columns=None))
        except NotFound:  # deleted meanwhile
            return None
        except Lost as gone:
            raise Lost(f"the payload {found.key} is lost: {gone}") from gone
        return SplitPayload.from_arrow(pa.Table.from_batches(batches), found.key)

    def delete(self, key: str) -> bool:
        """Delete a payload, or the dataset at its path; False if there was neither."""
        try:
            self._client.delete(f"store/{check_key(key)}")
        except NotFound:
            return False
        return True

    def clear(self, prefix: str = "") -> int:
        """Delete the payloads whose keys begin with a prefix, and return how many; datasets stay."""
        return self._client.call(CLEAR_PAYLOADS, ClearPayloads(prefix)).payloads

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of payloads that begin with a prefix, in order: those stored here, not a queue's own."""
        keys: list[str] = []
        while some := self._client.call(LIST_PAYLOADS, ListPayloads(prefix, keys[-1] if keys else "")).keys:
            keys += some
        return keys


def _store_of(client: Client) -> SplitPayloadStore:
    store = object.__new__(SplitPayloadStore)
    store._client = client
    return store


def _batched(elements: Iterable[_T], size: int) -> Iterator[list[_T]]:
    iterator = iter(elements)
    while batch := list(islice(iterator, size)):
        yield batch
