"""The code blocks of the documentation's pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def blocks(page: str | Path, kind: str) -> list[str]:
    """Return the code blocks of a page whose first line is ```kind, a regular expression."""
    return re.findall(rf"^```(?:{kind})\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def run_all(page: str, kind: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a page's blocks one after the other, and return the names that they leave."""
    for code in blocks(page, kind):
        exec(compile(code, page, "exec"), names)
    return names
