"""Hypothesis's profiles: `ci`, and with `--hypothesis-profile=long` one that looks fifty times further."""

from __future__ import annotations

from hypothesis import settings

_CI = 60
# No deadline per example: a busy machine makes an fsync slow, and that is no fault of the code.
# Not derandomized, as Hypothesis would be where CI is set: each run looks somewhere new, its blob replays it.
settings.register_profile("ci", max_examples=_CI, deadline=None, print_blob=True, derandomize=False)
settings.register_profile("long", parent=settings.get_profile("ci"), max_examples=50 * _CI)
settings.load_profile("ci")


def examples(number: int) -> int:
    """Return this number of examples, or as many times more as the profile asks for."""
    return number * settings.default.max_examples // _CI  # type: ignore[union-attr]  # it has a default
