"""The options of `format("penstock")`, in one place: what is checked is what the page shows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.errors import InvalidRequest

Use = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as a user writes it."""

    name: str
    meaning: str
    default: str
    uses: tuple[Use, ...]
    elsewhere: tuple[str, ...] = ()
    """What users of other sources know it as; named to them when they write that."""


_BOTH: tuple[Use, ...] = ("read", "write")
OPTIONS = (
    Option("path", "the dataset, such as `store/demo/trips`; `load` and `save` take it, too", "required", _BOTH,
           ("dbtable",)),
    Option("url", "the server's address", "`PENSTOCK_URL`, else `grpc://127.0.0.1:8815`", _BOTH,
           ("kafka.bootstrap.servers",)),
    Option("token", "the server's token; better by `PENSTOCK_TOKEN`, as Spark Connect logs options",
           "`PENSTOCK_TOKEN`", _BOTH),
    Option("ca", "certificates (PEM): a file on the driver's host, or their text", "`PENSTOCK_CA`", _BOTH,
           ("kafka.ssl.truststore.location",)),
    Option("retry_for", "seconds to wait for a server that is busy, restarting or away; tasks and commits wait for 600",
           "`30`", _BOTH),
    Option("columns", "only these, separated by commas; `` `a,b` `` is one name", "all", ("read",)),
    Option("filter", "only rows for which this is true: `fare > 10 and city in ('Oslo', 'Bergen')`", "none", ("read",)),
    Option("pushdown", "`true`: the server evaluates Spark's filters; for a frame that one query uses, once",
           "`false`", ("read",)),
    Option("run", "a name under which this is written once: the same run again writes nothing", "none", ("write",),
           ("txnAppId", "txnVersion")),
)  # fmt: skip
_KNOWN = {option.name: option for option in OPTIONS}
_ELSEWHERE = {name.lower(): option.name for option in OPTIONS for name in option.elsewhere}
_NAME = r"\s*(?:`((?:[^`]|``)+)`|([^`,\s](?:[^`,]*[^`,\s])?))\s*"


def checked(options: Mapping[str, str], use: Use) -> dict[str, str]:
    """The options for this use, if there is nothing among them that it doesn't know."""
    given = {name.lower(): value for name, value in options.items()}
    if "paths" in given:
        raise InvalidRequest("load: one path at a time; load each and union them")
    for name in given:
        _check_name(name, use)
    if not given.get("path"):
        raise InvalidRequest(
            f"the option 'path' is missing: say {'.load' if use == 'read' else '.save'}('store/…'). Spark hands no "
            "options on from its tables (saveAsTable, INSERT INTO, CREATE TABLE): use load and save"
        )
    return given


def columns(text: str | None) -> tuple[str, ...] | None:
    """The names in `columns`."""
    if text is None:
        return None
    if not re.fullmatch(f"{_NAME}(?:,{_NAME})*", text):
        raise InvalidRequest(f"the option columns={text[:200]!r}: expected names separated by commas: a, b, `c,d`")
    return tuple(quoted.replace("``", "`") or plain for quoted, plain in re.findall(_NAME, text))


def switch(text: str | None) -> bool:
    """What `pushdown` says."""
    if text is not None and text.lower() not in ("true", "false"):
        raise InvalidRequest(f"the option pushdown={text[:80]!r}: expected true or false")
    return text is not None and text.lower() == "true"


def seconds(text: str | None, default: float) -> float:
    """The number in `retry_for`."""
    try:
        found = default if text is None else float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e6:
        raise InvalidRequest(f"the option retry_for={str(text)[:80]!r}: expected a number of seconds, from 0")
    return found


def table() -> str:
    """The options as the page has them."""
    heads = ("option", "for", "what it says", "default", "known elsewhere as")
    rows = [
        (f"`{option.name}`", ", ".join(option.uses), option.meaning, option.default,
         ", ".join(f"`{name}`" for name in option.elsewhere))
        for option in OPTIONS
    ]  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows))


def _check_name(name: str, use: Use) -> None:
    if name not in _KNOWN:
        near = [_ELSEWHERE[name]] if name in _ELSEWHERE else difflib.get_close_matches(name, _KNOWN, n=1)
        ours = ", ".join(option.name for option in OPTIONS if use in option.uses)
        hint = f"did you mean '{near[0]}'?" if near else f"there are {ours}"
        raise InvalidRequest(f"penstock has no option '{name[:80]}'; {hint}")
    if use not in _KNOWN[name].uses:
        other = " and ".join(_KNOWN[name].uses)
        raise InvalidRequest(f"the option '{name}' is for a {other}, this is a {use}: leave it out")
