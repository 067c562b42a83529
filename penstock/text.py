"""Sizes, ages, tables and hints for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from itertools import islice

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_LONGEST_NAME = 100  # the search for a similar name takes its time for each character
_MOST_SEARCHED = 2_000
_MOST_LISTED = 20


def format_size(size: float) -> str:
    """Return a number of bytes as 1.2 MB; in powers of 1,000, as disks and networks count."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5:
            return f"{size:.{0 if size >= 99.95 else 1}f} {unit}"
    return f"{size:,.0f} TB"


def format_age(seconds: float) -> str:
    """Return a time in its largest unit: 12 s, 5 min, 3 h, 2 days."""
    for unit, length in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < length:
            return f"{max(0, seconds):.0f} {unit}"
        seconds /= length if unit != "h" else 24
    return f"{seconds:.0f} days"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: 1 part, 2 parts; `many` is what more than one are, if not with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def cut(text: str, length: int) -> str:
    """Return the text, or its beginning and an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def printable(text: str) -> str:
    """Return the text with its control characters escaped, as a terminal might obey them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def parse_duration(text: str) -> float | None:
    """Return 90s, 10m, 12h or 2d in seconds; None if the text is no duration."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d)\s*", text)
    return float(match[1]) * _SECONDS[match[2]] if match else None


def parse_seconds(text: str) -> float | None:
    """Return a duration in seconds; a number without a unit is seconds already."""
    return parse_duration(f"{text}s" if text[-1:].isdecimal() else text)


def suggest(name: str, known: Collection[str], otherwise: str = "there are") -> str:
    """Return a hint for an unknown name: the known name that is most like it, or else a list of known names."""
    searched = [other for other in islice(known, _MOST_SEARCHED) if len(other) <= _LONGEST_NAME]
    similar = difflib.get_close_matches(name[:_LONGEST_NAME], searched, n=1)
    return f"did you mean {similar[0]!r}?" if similar else f"{otherwise} {', '.join(islice(known, _MOST_LISTED))}"


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Return aligned columns under their heads, two spaces apart; the columns named in `right` are right-aligned."""
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if head in right else cell.ljust(width)
            for head, cell, width in zip(heads, line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def format_html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Return the same table as HTML, for notebooks."""
    import html

    styles = [f' style="text-align:{"right" if head in right else "left"}"' for head in heads]

    def line(tag: str, cells: Sequence[str]) -> str:
        tagged = (f"<{tag}{s}>{html.escape(cell)}</{tag}>" for s, cell in zip(styles, cells, strict=True))
        return f"<tr>{''.join(tagged)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>"
