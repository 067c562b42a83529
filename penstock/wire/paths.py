"""Paths: what a user types everywhere. `store/demo/trips`, `write/5d41…`; a kind, then a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import InvalidRequest

MAX_KEY = 512
KINDS = ("store", "topic", "write")
_ALLOWED = re.compile(r"[A-Za-z0-9._/=-]{1,512}")


@dataclass(frozen=True, slots=True)
class Path:
    """A kind and a key below it; an empty key is the folder of everything of that kind."""

    kind: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"

    @property
    def parents(self) -> tuple[str, ...]:
        """The keys of the folders above: a/b for a/b/c."""
        names = self.key.split("/")
        return tuple("/".join(names[:depth]) for depth in range(1, len(names)))


def is_topic(path: str) -> bool:
    """Whether what stands there only grows, and its rows have offsets."""
    return path.startswith("topic/")


def check_key(key: str) -> str:
    """The key, if it is one: it never becomes a file name, and yet may not look like a way out of a folder."""
    if not _ALLOWED.fullmatch(key):
        raise InvalidRequest(
            f"key {_shown(key)}: a key has 1 to {MAX_KEY} characters of A-Z a-z 0-9 . _ / = - (this one has {len(key)})"
        )
    if any(name in ("", ".", "..") for name in key.split("/")):
        raise InvalidRequest(f"key {_shown(key)}: no part between slashes may be empty, '.' or '..'")
    return key


def parse(text: str) -> Path:
    """A path to one thing, such as store/demo/trips."""
    path = parse_folder(text)
    if not path.key:
        raise InvalidRequest(f"path {_shown(text)} names no thing: expected e.g. {path.kind}/demo/trips")
    return path


def parse_folder(text: str) -> Path:
    """A path to a thing or a folder: store/, store, store/demo/ and store/demo/trips all pass."""
    kind, _, key = text.partition("/")
    if kind not in KINDS:
        raise InvalidRequest(
            f"path {_shown(text)}: expected one that begins with {' or '.join(f'{k}/' for k in KINDS)}"
        )
    return Path(kind, check_key(key.removesuffix("/")) if key else "")


def from_descriptor(parts: Sequence[bytes]) -> Path:
    """A Flight descriptor's path, whole (`store/a/b`) or in pieces (`store`, `a`, `b`)."""
    try:
        return parse("/".join(part.decode() for part in parts))
    except UnicodeDecodeError as broken:
        raise InvalidRequest("the descriptor's path isn't UTF-8") from broken


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
