"""Messages that wait to be sent to the server: neighbours are gathered, as each batch costs something by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.queue.pubsub.columns import MOST_BYTES

_ENOUGH = 1_000
_SECONDS = 0.02
"""A batch is due once so many messages or `MOST_BYTES` are there, or the first has waited for so long."""
_MOST = 10_000
"""Messages of one batch at most, where more have come while the server was busy: fewer, larger batches cost less."""


@dataclass(slots=True)
class Piece:
    """Messages that came together."""

    received: Sequence[Any]
    first: int
    """The number of the first one's lease."""
    size: int
    since: float


class Inbox:
    """Pieces in their order; for one thread at a time."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._messages = self._size = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: Piece) -> None:
        """Add what has come."""
        self._pieces.append(piece)
        self._messages += len(piece.received)
        self._size += piece.size

    def due(self) -> float:
        """Return when the next batch is due."""
        is_enough = self._messages >= _ENOUGH or self._size >= MOST_BYTES
        return self._pieces[0].since + (0.0 if is_enough else _SECONDS)

    def take(self) -> list[Piece]:
        """Take neighbours up to the size of a batch; one piece at least."""
        pieces: list[Piece] = []
        messages = size = 0
        while self._pieces:
            messages, size = messages + len(self._pieces[0].received), size + self._pieces[0].size
            if pieces and (messages > _MOST or size > MOST_BYTES):
                break
            piece = self._pieces.popleft()
            pieces.append(piece)
            self._messages -= len(piece.received)
            self._size -= piece.size
        return pieces
