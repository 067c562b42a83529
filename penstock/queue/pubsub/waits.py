"""What is waited for: a wait that takes long is said once, and once more when it is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

LONG = 60.0
"""Seconds after which a wait is said."""


class Waits:
    """Waits by what they are for; a clock is passed in. For one thread at a time."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._said: set[str] = set()

    def moved(self, what: str) -> None:
        """Begin this wait anew: some of what it is for has come."""
        self._since.pop(what, None)

    def look(self, now: float, waits: Mapping[str, str]) -> Iterator[str]:
        """Yield what is to be said now; `waits` has what is waited for, and how things stand with it."""
        for what in self._since.keys() - waits.keys():
            del self._since[what]
        for what in sorted(self._said - self._since.keys()):
            self._said.remove(what)
            yield f"waits no longer for {what}"
        for what, about in waits.items():
            if now - self._since.setdefault(what, now) >= LONG and what not in self._said:
                self._said.add(what)
                yield f"has waited for {what} for {LONG:g} s: {about}"
