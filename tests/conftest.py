"""Hypothesis's profiles, and where the fixtures are. `pytest --hypothesis-profile=long` looks further."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["tests.fix_server", "tests.fix_ledger", "tests.fix_plain", "tests.fix_cli"]

# No deadline per example: a busy machine makes an fsync slow, and that is no fault of the code.
# Not derandomized, as Hypothesis would be where CI is set: each run looks somewhere new, its blob replays it.
settings.register_profile("ci", max_examples=60, deadline=None, print_blob=True, derandomize=False)
settings.register_profile("long", parent=settings.get_profile("ci"), max_examples=3_000)
settings.load_profile("ci")
