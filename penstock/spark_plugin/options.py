"""The options of `format("penstock")`, in one place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

import pyarrow as pa

from penstock.client.client import Client
from penstock.client.publish import Publishing
from penstock.client.typed import Decoded, plan_decoding
from penstock.decode.decoding import Decoding
from penstock.errors import InvalidRequest
from penstock.spark_plugin import other_sources
from penstock.text import parse_seconds, suggest
from penstock.wire.actions import AFTER_ALL
from penstock.wire.read import PayloadSchema

Use = Literal["read", "write", "stream", "sink"]


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as a user writes it."""

    name: str
    meaning: str
    default: str
    uses: tuple[Use, ...]


_ALL: tuple[Use, ...] = ("read", "write", "stream", "sink")
_READS: tuple[Use, ...] = ("read", "stream")
_WRITES: tuple[Use, ...] = ("write", "sink")
OPTIONS = (
    Option("path", "the dataset or topic, such as `store/demo/trips`; `load`, `save` and `start` take it, too",
           "required", _ALL),
    Option("subscription", "a Pub/Sub subscription, `projects/p/subscriptions/orders`, in place of `path`", "none",
           _READS),
    Option("topic", "the Pub/Sub topic to publish to, `projects/p/topics/clean`, in place of `path`", "none", _WRITES),
    Option("encode", "how rows become messages: `json` makes an object of all columns but `attributes` and "
           "`ordering_key`; `avro` and `protobuf` write them by the topic's own schema", "none: the rows have `data`",
           _WRITES),
    Option("idAttribute", "`true`: each message has the attribute `penstock-id`, the same in each of its copies",
           "`false`", _WRITES),
    Option("compression", "of requests to Pub/Sub: `gzip`", "none", _WRITES),
    Option("create", "the Pub/Sub topic, `projects/p/topics/t`, of which to make the subscription if it is missing",
           "refuse", _READS),
    Option("ack", "when messages are acknowledged: `commit`, once every query has committed them, or `journal`, once "
           "they are durable at the server", "by the subscription", _READS),
    Option("settle", "an AvailableNow run of a subscription begins when no message older than its start has come for "
           "so long: `10`, `30s`; it waits five minutes at most", "`10`", ("stream",)),
    Option("url", "the server's address", "`PENSTOCK_URL`, else `grpc://127.0.0.1:8815`", _ALL),
    Option("token", "the server's token; better by `PENSTOCK_TOKEN`, as Spark Connect logs options",
           "`PENSTOCK_TOKEN`", _ALL),
    Option("ca", "certificates (PEM): a file on the driver's host, or their text", "`PENSTOCK_CA`", _ALL),
    Option("cert", "the client's own certificate (PEM), where the server asks for one; a file or text, as `ca`",
           "`PENSTOCK_CERT`", _ALL),
    Option("key", "the private key of `cert`; better by `PENSTOCK_KEY`, as Spark Connect logs options",
           "`PENSTOCK_KEY`", _ALL),
    Option("retry_for",
           "how long to wait (`30`, `90s`, `5m`) for a server that is busy or away; tasks and commits: at least `600`",
           "`30`; of a running query `600`", _ALL),
    Option("columns", "only these, separated by commas; `` `a,b` `` is one name", "all", _READS),
    Option("filter", "only rows for which this is true, evaluated by the server: `fare > 10 or city in ('Oslo')`",
           "none", ("read",)),
    Option("decode", "how payloads become the columns of `.schema(…)`: `json`, `avro`, `protobuf`", "none", _READS),
    Option("writerSchema", "a file on the driver's host, `.avsc` or `.proto`, with the schema of Avro or protobuf "
           "payloads whose messages don't name theirs", "by message", _READS),
    Option("mode", "what becomes of a payload that doesn't decode: nulls and `_error`, where the schema has it "
           "(`PERMISSIVE`), no row (`DROPMALFORMED`) or an error (`FAILFAST`)", "`PERMISSIVE`", _READS),
    Option("startingOffsets",
           "where to begin in a topic: `earliest`, `latest`, a time such as `2026-11-18T20:00:00Z`, or "
           'these or offsets by shard, `{"0": 500, "1": "latest"}`; a query that has a checkpoint continues there',
           "`earliest`", _READS),
    Option("endingOffsets", "where a batch read of a topic ends: `latest`, a time, or these or offsets by shard",
           "`latest`", ("read",)),
    Option("consumer", "what the query is called where consumers are shown, such as `billing`; the query of a new "
           "checkpoint has another suffix", "an id", ("stream",)),
    Option("maxRowsPerTrigger", "about how many rows a batch has at most", "all there are", ("stream",)),
    Option("maxBytesPerTrigger", "about how many bytes a batch has at most", "all there are", ("stream",)),
    Option("minRowsPerTrigger", "a batch waits for so many rows", "none", ("stream",)),
    Option("maxTriggerDelay", "but for so long at most: `900`, `90s`, `15m`", "`900`", ("stream",)),
    Option("minPartitions", "at least so many tasks for a batch, where the topic has no key", "by bytes", ("stream",)),
    Option("failOnDataLoss", "`false`: rows that were removed unread cause a warning, and the query continues",
           "`true`", ("stream",)),
    Option("run", "a name under which this is written once: the same run again writes nothing", "none", ("write",)),
)  # fmt: skip
_KNOWN = {option.name.lower(): option for option in OPTIONS}
_ASYNC = "asyncprogresstracking"
_SPARKS = ("checkpointlocation", f"{_ASYNC}enabled", f"{_ASYNC}checkpointintervalms",
           f"_{_ASYNC}overridesinksupportcheck")  # fmt: skip
"""Spark's own options, which it hands to a streaming sink, too."""
_SIDES: dict[Use, other_sources.Side] = {"read": "in", "write": "out", "stream": "in", "sink": "out"}
_CALLS = {"read": ".load('store/…')", "write": ".save('store/…')", "stream": ".load('topic/…')",
          "sink": ".start('store/…')"}  # fmt: skip
_WORDS = {"read": "read", "write": "write", "stream": "streaming read", "sink": "streaming write"}
_NAME = r"\s*(?:`((?:[^`]|``)+)`|([^`,\s](?:[^`,]*[^`,\s])?))\s*"


def checked(options: Mapping[str, str], use: Use, *others: Use) -> dict[str, str]:
    """Return the options by lower-case name; reject any that aren't for this use, or for one of the others."""
    values = {name.lower(): value for name, value in options.items()}
    if use == "sink":
        if values.get(f"{_ASYNC}enabled", "").lower() == "true":
            raise InvalidRequest(
                "asyncProgressTracking doesn't repeat an epoch with the same rows, so they can't be written once: "
                "leave it out"
            )
        values = {name: value for name, value in values.items() if name not in _SPARKS}
    values, said = other_sources.take_others(values, _SIDES[use])
    if "paths" in values:
        raise InvalidRequest("load: one path at a time; load each and union them")
    for name in values:
        _check_name(name, said.get(name), use, *others)
    for name, root in (("subscription", "subscription"), ("topic", "publish")):
        if name in values:
            values["path"] = _path_of(name, root, values.pop(name), values.get("path"))
    if not values.get("path"):
        raise InvalidRequest(
            f"the option 'path' is missing: say {_CALLS[use]}. Spark hands no "
            "options on from its tables (saveAsTable, INSERT INTO, CREATE TABLE): use load and save"
        )
    return values


def publishing(values: Mapping[str, str]) -> Publishing:
    """Return how rows become messages."""
    arguments = {name: values.get(name) for name in ("encode", "compression")}
    return Publishing.of(values["path"], {**arguments, "id_attribute": switch(values, "idAttribute", False)})


def columns(text: str | None) -> tuple[str, ...] | None:
    """Return the names in `columns`."""
    if text is None:
        return None
    if not re.fullmatch(f"{_NAME}(?:,{_NAME})*", text):
        raise InvalidRequest(f"the option columns={text[:200]!r}: expected names separated by commas: a, b, `c,d`")
    return tuple(quoted.replace("``", "`") or plain for quoted, plain in re.findall(_NAME, text))


def switch(values: Mapping[str, str], name: str, default: bool) -> bool:
    """Return an option that is true or false."""
    text = values.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidRequest(f"the option {name}={text[:80]!r}: expected true or false")
    return text == "true"


def count(values: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a number from 1."""
    text = values.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(f"the option {name}={text[:80]!r}: expected a whole number from 1")
    return int(text)


def seconds(values: Mapping[str, str], name: str, default: float) -> float:
    """Return an option that is a time: `30`, `90s`, `15m`."""
    text = values.get(name.lower())
    if text is None:
        return default
    duration = parse_seconds(text)
    if duration is None or duration >= 1e6:
        raise InvalidRequest(f"the option {name}={text[:80]!r}: expected seconds, or a time such as 90s, 15m or 2h")
    return duration


def decoding(
    client: Client, values: Mapping[str, str], schema: pa.Schema | None
) -> tuple[Decoding | None, PayloadSchema | None]:
    """Return how payloads become the columns of a schema, in tasks or at the server; None twice without `decode`."""
    decode = values.get("decode")
    arguments: Decoded = {
        "decode": decode, "schema": None if decode is None else schema, "mode": values.get("mode"),
        "writer_schema": values.get("writerschema"),
    }  # fmt: skip
    return plan_decoding(client, values["path"], arguments, with_error=False)


Bound = float | dict[str, int | float] | None
"""Where a read of a topic begins or ends: a time, None for the first row; or offsets (int) and times by shard."""


def bound(path: str, text: str, option: str) -> Bound:
    """Return where a read of a topic begins or ends: `earliest`, `latest`, a time, or {"0": 5, "1": "latest"}.

    Kafka's {"orders": {"0": 5, "1": -1}} is understood, too: -2 is `earliest`, -1 is `latest`.
    """
    if text == "earliest":
        return None
    try:
        if not text.startswith("{"):
            return _moment(text)
        shards = _of_topic(path, json.loads(text), option)
        return {shard: at if type(at) is int and at >= 0 else _moment(at) for shard, at in shards.items()}
    except (ValueError, TypeError, AttributeError) as wrong:
        raise InvalidRequest(
            f"{option}={text[:80]!r}: expected earliest, latest, a time such as 2026-11-18T20:00:00Z, or "
            'offsets by shard such as {"0": 500, "1": "latest"}'
        ) from wrong


def _moment(at: Any) -> float:
    word = {"earliest": 0.0, -2: 0.0, "latest": AFTER_ALL, -1: AFTER_ALL}.get(at)
    return datetime.fromisoformat(at).timestamp() if word is None else word


def _of_topic(path: str, offsets: dict[str, Any], option: str) -> dict[str, Any]:
    """Return offsets by shard, also of Kafka's, which are by topic."""
    if not any(isinstance(shards, dict) for shards in offsets.values()):
        return offsets
    name = path.removeprefix("topic/")
    if list(offsets) not in ([name], [path]):
        raise InvalidRequest(f"{option} names {', '.join(offsets)[:80]}, this reads {path}: expected {name!r} alone")
    [shards] = offsets.values()
    return cast("dict[str, Any]", shards)


def _path_of(option: str, root: str, name: str, path: str | None) -> str:
    """Return the path of a Pub/Sub subscription or topic by its full name."""
    if path:
        raise InvalidRequest(f"the options path={path[:80]!r} and {option}={name[:80]!r}: expected one")
    named = re.fullmatch(rf"projects/([^/]+)/{option}s/([^/]+)", name)
    if named is None:
        raise InvalidRequest(f"the option {option}={name[:80]!r}: expected a name such as projects/p/{option}s/orders")
    return f"{root}/{named[1]}/{named[2]}"


def _check_name(name: str, said: str | None, use: Use, *others: Use) -> None:
    if name not in _KNOWN:
        ours = [option.name for option in OPTIONS if use in option.uses]
        known = other_sources.find(name, _SIDES[use])
        hint = suggest(name, ours) if known is None else known.hint
        name = name if known is None else known.spelled(name)
        raise InvalidRequest(f"penstock has no option '{name[:80]}'; {hint}")
    if not {use, *others} & {*_KNOWN[name].uses}:
        other = " and ".join(_WORDS[each] for each in _KNOWN[name].uses)
        raise InvalidRequest(
            f"the option '{said or _KNOWN[name].name}' is for a {other}, this is a {_WORDS[use]}: leave it out"
        )
