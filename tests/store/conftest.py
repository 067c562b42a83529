"""What the tests of media share."""

from __future__ import annotations

import pytest

from penstock.store import payloads


@pytest.fixture(autouse=True)
def no_inline_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep small payloads in parts, too: these tests are about parts, and small ones are quick."""
    monkeypatch.setattr(payloads, "INLINE", 0)
