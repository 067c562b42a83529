"""Paths: what a user types everywhere. `store/demo/trips`, `write/5d41…`: a kind, then a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import InvalidRequest

MAX_KEY = 512
_KIND = re.compile(r"[a-z]{1,40}")
_SPLIT = re.compile(r"[0-9a-f]{32}-(?:0|[1-9][0-9]{0,8})")
"""Behind an `@`: the attempt that wrote a part of a dataset, and the part's number in it."""
DEAD = "dead"
"""A last name that is the server's: a topic's dead rows, a queue's dead messages."""
_KEY = re.compile(r"[A-Za-z0-9._/=~+%:-]{1,512}")


@dataclass(frozen=True, slots=True)
class Path:
    """A kind and a key below it; an empty key is the folder of everything of that kind.

    The kind is a word in its form only: which kinds there are is what a server has registered.
    """

    kind: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"

    @property
    def parents(self) -> tuple[str, ...]:
        """The keys of the folders above: a, a/b for a/b/c."""
        names = self.key.split("/")
        return tuple("/".join(names[:depth]) for depth in range(1, len(names)))


def check_key(key: str) -> str:
    """Return a valid key. Keys are never used as file names, but must not contain path traversal."""
    if not _KEY.fullmatch(key):
        raise InvalidRequest(
            f"key {_shortened(key)}: expected 1 to {MAX_KEY} characters of A-Z a-z 0-9 . _ / = ~ + % : -, "
            f"got {len(key)}"
        )
    if any(name in ("", ".", "..") for name in key.split("/")):
        raise InvalidRequest(f"key {_shortened(key)}: a name between slashes must not be empty, '.' or '..'")
    return key


def check_payload_key(key: str) -> str:
    """Return a valid key of a payload or of a split."""
    whole, mark, split = key.rpartition("@")
    check_key(whole if mark and _SPLIT.fullmatch(split) else key)
    return key


def of_acks(path: Path) -> Path | None:
    """Return the subscription whose ack ledger is at a path, subscription/PROJECT/NAME/acks; None at any other path."""
    project, _, name = path.key.removesuffix("/acks").partition("/")
    is_ledger = path.kind == "subscription" and path.key == f"{project}/{name}/acks" and name and "/" not in name
    return Path(path.kind, f"{project}/{name}") if is_ledger else None


def of_dead(path: Path) -> Path | None:
    """Return the topic or subscription whose dead rows are at a path; None at any other path."""
    key, _, name = path.key.rpartition("/")
    return Path(path.kind, key) if key and name == DEAD else None


def parse(text: str, *, splits: bool = False) -> Path:
    """Return the path of one thing, such as store/demo/trips; with `splits` also store/demo/trips@<attempt>-<n>."""
    whole, mark, split = text.rpartition("@")
    if splits and mark and _SPLIT.fullmatch(split):
        path = parse(whole)
        return Path(path.kind, f"{path.key}@{split}")
    path = parse_folder(text)
    if "/" not in text:
        raise _no_path(text)
    if not path.key:
        raise InvalidRequest(f"path {_shortened(text)} has no key: expected one such as {path.kind}/demo/trips")
    return path


def parse_folder(text: str) -> Path:
    """Return the path of a thing or a folder: store/, store, store/demo/ and store/demo/trips are all valid."""
    kind, _, key = text.partition("/")
    if not _KIND.fullmatch(kind):
        raise _no_path(text)
    return Path(kind, check_key(key.removesuffix("/")) if key else "")


def join_descriptor(parts: Sequence[bytes]) -> str:
    """Return a Flight descriptor's path as text; it comes whole (`store/a/b`) or in pieces (`store`, `a`, `b`)."""
    try:
        return "/".join(part.decode() for part in parts)
    except UnicodeDecodeError as malformed:
        raise InvalidRequest("the descriptor's path is not UTF-8") from malformed


def _no_path(text: str) -> InvalidRequest:
    return InvalidRequest(f"path {_shortened(text)}: expected a kind and a key, such as store/demo/trips")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
