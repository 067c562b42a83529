"""Tokens: who calls, and what the caller may do where. Every request and every ticket is checked here.

With --tokens a file says so, in TOML, a table for each caller:

    [reports]
    sha256 = "…"                     # of the token, in hex: the file has no secret
    read = ["store/trips", "topic/"]
    write = ["queue/reports"]
    admin = ["store/reports"]        # reads and writes, too; "/" is everything

With --token-file one token has all rights; with neither everybody has.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, get_args

from penstock.errors import Denied, Expired, InvalidRequest
from penstock.text import counted, suggest
from penstock.wire.paths import Path, parse_folder
from penstock.wire.rights import Right

log = logging.getLogger("penstock")
ALL = ""
"""The id of a caller with all rights: everybody, or who has the token of --token-file."""
_EVERYTHING = Path("")
_RIGHTS: tuple[Right, ...] = get_args(Right)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
_ID = 16
"""Characters of a digest that are a caller's id in tickets: a token that is replaced ends its tickets."""
_ELSEWHERE = {"write": "at the path that the write leads to", "consumer": "at the consumer's topic or subscription"}
_VERBS: Mapping[Right, str] = {"read": "read", "write": "write", "admin": "administer"}
Grants = Mapping[Right, tuple[Path, ...]]


@dataclass(frozen=True, slots=True)
class Principal:
    """One caller: the digest of its token, and the paths and folders at which it has each right."""

    name: str
    id: str
    digest: bytes
    grants: Grants

    def may(self, right: Right, path: Path) -> bool:
        """Return whether the caller has a right at a path."""
        return any(_covers(granted, path) for each in (right, "admin") for granted in self.grants.get(each, ()))

    def may_within(self, right: Right, folder: Path) -> bool:
        """Return whether the caller has a right somewhere in a folder."""
        return any(_covers(folder, granted) for each in (right, "admin") for granted in self.grants.get(each, ()))


class Tokens:
    """The callers that a server knows. The table is replaced as a whole, so that no lock is needed."""

    def __init__(
        self, token: str | None = None, file: File | None = None, own: str = "", kinds: Collection[str] = ()
    ) -> None:
        self.file = file
        self._kinds = kinds
        self.is_open = token is None and file is None
        """Whether everybody may do everything."""
        if file is None:
            self._always = Principal("everybody", ALL, _digest(token or ""), {"admin": (_EVERYTHING,)})
        else:  # the server's pullers and publishers, which get its own token at their start
            digest = _digest(own)
            grants: Grants = {"admin": (Path("subscription"), Path("publish"))}
            self._always = Principal("the server itself", digest.hex()[:_ID], digest, grants)
        self._principals: Mapping[str, Principal] = {self._always.id: self._always}
        if file is not None:
            self._read(file)

    def reload(self) -> None:
        """Read the file again: who is no longer in it is refused from now on, tickets and open streams included.

        A file that can't be read changes nothing.
        """
        try:
            if self.file is not None:
                self._read(self.file)
        except (InvalidRequest, OSError) as error:
            log.error("the tokens stay as they were: %s", error)  # noqa: TRY400  # the file's fault, no traceback

    def _read(self, file: File) -> None:
        principals = (self._always, *_read(file, self._kinds))
        table = {principal.id: principal for principal in principals}
        if len(table) < len(principals):
            raise InvalidRequest(f"{file}: two callers have one token: make another with openssl rand -hex 32")
        self._principals = table
        log.info("%s has the tokens of %s", file, counted(len(table) - 1, "caller"))

    def identify(self, token: str | None) -> str | None:
        """Return the id of who shows a token; None without one. Its time doesn't tell how much of a token is right."""
        if self.is_open:
            return ALL
        if token is None:
            return None
        digest, identity = _digest(token), None
        for principal in self._principals.values():
            if hmac.compare_digest(principal.digest, digest):
                identity = principal.id
        if identity is None:
            raise Denied("the token is wrong")
        return identity

    def of(self, who: str | None) -> Principal:
        """Return who calls; reject callers without a token, and those whose token is no longer valid."""
        if who is None:
            raise Denied("this call needs the server's token: set PENSTOCK_TOKEN, or pass token=")
        principal = self._principals.get(who)
        if principal is None:
            raise Denied("the token of this call, or of its ticket, was removed at the server: set another and retry")
        return principal

    def check(self, who: str | None, right: Right, path: Path) -> None:
        """Reject a caller who lacks a right at a path."""
        principal = self.of(who)
        if not principal.may(right, path):
            raise Denied(
                f"{principal.name} may not {_VERBS[right]} {path}: grant it in the server's --tokens file, {right} = "
                f'["{path}"] below [{principal.name}], and send the server SIGHUP'
            )

    def check_ticket(self, by: str | None, right: Right, path: str) -> None:
        """Reject a ticket whose caller may no longer do what it is for."""
        if self.file is None:
            return
        if by is None:
            raise Expired(f"the ticket for {path} is from before the server had --tokens: get a new one")
        self.check(by, right, parse_folder(path.partition("@")[0]))


def _covers(granted: Path, path: Path) -> bool:
    """Return whether a path is a granted one, or below it: store/a covers store/a/b, and not store/ab."""
    if granted == _EVERYTHING:
        return True
    return granted.kind == path.kind and (
        not granted.key or path.key == granted.key or path.key.startswith(f"{granted.key}/")
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _read(file: File, kinds: Collection[str]) -> list[Principal]:
    """Return the callers of a file that its owner alone can change."""
    if file.stat().st_mode & 0o022:
        raise InvalidRequest(f"{file} can be changed by others, who could grant themselves anything: chmod 600 {file}")
    try:
        tables = tomllib.loads(file.read_text())
    except ValueError as malformed:
        raise InvalidRequest(f"{file} is not TOML: {malformed}") from malformed
    return [_principal(f"{file}, [{name}]", name, table, kinds) for name, table in tables.items()]


def _principal(where: str, name: str, table: Any, kinds: Collection[str]) -> Principal:
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise InvalidRequest(
            f"{where}: expected a table for each caller, its name 1 to 80 characters of A-Z a-z 0-9 . _ -"
        )
    known = ("sha256", *_RIGHTS)
    for field in table:
        if field not in known:
            raise InvalidRequest(f"{where} has no field {field!r}; {suggest(field, known)}")
    digest = table.get("sha256")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidRequest(
            f"{where}: sha256 has to be 64 characters of 0-9 a-f, what printf %s TOKEN | sha256sum prints"
        )
    grants: Grants = {
        right: tuple(_prefix(f"{where}: {right}", text, kinds) for text in _list(where, right, table))
        for right in _RIGHTS
    }
    return Principal(name, digest[:_ID], bytes.fromhex(digest), grants)


def _list(where: str, right: Right, table: Mapping[str, Any]) -> list[Any]:
    texts = table.get(right, [])
    if not isinstance(texts, list):
        raise InvalidRequest(f'{where}: {right} has to be a list of paths, such as {right} = ["store/demo"]')
    return texts


def _prefix(where: str, text: Any, kinds: Collection[str]) -> Path:
    if text == "/":
        return _EVERYTHING
    try:
        path = parse_folder(text if isinstance(text, str) else "")
    except InvalidRequest as wrong:
        raise InvalidRequest(f'{where}: {wrong}, store/ or "/" for everything') from wrong
    if path.kind in _ELSEWHERE:
        raise InvalidRequest(f"{where}: {path}: rights there are those {_ELSEWHERE[path.kind]}: name that")
    if path.kind not in kinds:
        raise InvalidRequest(f"{where}: there is no kind {path.kind!r}; {suggest(path.kind, kinds)}")
    return path
