"""A filter's text as tokens: words, names, literals, signs."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from penstock.errors import InvalidRequest

MAX_TEXT = 16_000
"""Characters of one filter: the ticket of every endpoint has it."""
Literal = int | Decimal | bool | str | bytes
Token = tuple[str, Literal]
"""Its kind (number, hex, string, quoted, word, keyword, sign) and its value."""
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
  | [xX]'(?P<hex>(?:[0-9a-fA-F]{2})*)'
  | '(?P<string>(?:[^']|'')*)'
  | (?P<quoted>`(?:[^`]|``)*`|"(?:[^"]|"")*")
  | (?P<word>[^\W\d]\w*)
  | (?P<sign><=|>=|<>|!=|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_WORDS = {"and", "or", "not", "in", "is", "null", "between", "true", "false"}


def tokens(text: str) -> list[Token]:
    """Return the tokens; InvalidRequest shows where the text can't be read."""
    if len(text) > MAX_TEXT:
        raise InvalidRequest(f"filter: expected at most {MAX_TEXT:,} characters, got {len(text):,}")
    result: list[Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise InvalidRequest(f"filter {text[:200]!r}: can't be read at {text[at : at + 20]!r}")
        result.append(_token(match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return result


def _token(kind: str, text: str) -> Token:
    if kind == "number":
        return kind, int(text) if re.fullmatch(r"[-+]?\d{1,40}", text) else _decimal(text)
    if kind == "hex":
        return kind, bytes.fromhex(text)
    if kind == "string":
        return kind, text.replace("''", "'")
    if kind == "quoted":
        return kind, text[1:-1].replace(text[0] * 2, text[0])
    if kind == "word" and text.lower() in _WORDS:
        return "keyword", text.lower()
    return kind, text


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as beyond:  # an exponent of more than 18 digits
        raise InvalidRequest(f"filter: the number {text[:80]!r} is too large") from beyond
