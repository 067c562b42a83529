"""Sizes, ages, tables and hints for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from itertools import islice

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def format_size(amount: float) -> str:
    """1.2 MB; in powers of 1,000, as disks and networks count."""
    if amount < 1000:
        return f"{amount:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.{0 if amount >= 99.95 else 1}f} {unit}"
    return f"{amount:,.0f} TB"


def format_age(seconds: float) -> str:
    """12 s, 5 min, 3 h, 2 days."""
    for unit, length in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < length:
            return f"{max(0, seconds):.0f} {unit}"
        seconds /= length if unit != "h" else 24
    return f"{seconds:.0f} days"


def parse_duration(text: str) -> float | None:
    """90s, 10m, 12h or 2d in seconds; None if it is none of these."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d)\s*", text)
    return float(found[1]) * _SECONDS[found[2]] if found else None


def suggest(name: str, known: Collection[str], there: str = "there are") -> str:
    """What to say of a name that isn't known: the one that was meant, or some that there are."""
    some = [other for other in islice(known, 2_000) if len(other) <= 100]  # the search takes its time for each
    found = difflib.get_close_matches(name[:100], some, n=1)
    return f"did you mean {found[0]!r}?" if found else f"{there} {', '.join(islice(known, 20))}"


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Aligned columns under their heads, two spaces apart; those named in `right` at the right."""
    widths = [max(len(line[at]) for line in [heads, *rows]) for at in range(len(heads))]
    lines = [
        "  ".join(
            cell.rjust(width) if head in right else cell.ljust(width)
            for head, cell, width in zip(heads, line, widths, strict=True)
        ).rstrip()
        for line in [heads, *rows]
    ]
    return "\n".join(lines)


def format_html_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """The same for a notebook."""
    import html

    style = [' style="text-align:right"' if head in right else ' style="text-align:left"' for head in heads]
    head = "".join(f"<th{s}>{html.escape(text)}</th>" for s, text in zip(style, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{s}>{html.escape(cell)}</td>" for s, cell in zip(style, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
