"""The options of `format("penstock")`: what is known is taken, what isn't is refused with the nearest name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.rows.to_json import JsonEncoding
from penstock.spark_plugin import options, other_sources
from penstock.wire.publish import PublishOptions

PAGES = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "uses"), [("datasource.md", ("read", "write", "stream", "sink")), ("streaming.md", ("stream", "sink"))]
)
def test_the_pages_have_the_table_of_the_registry(page: str, uses: tuple[str, ...]) -> None:
    rows = [
        (f"`{option.name}`", ", ".join(use for use in option.uses if use in uses), option.meaning, option.default)
        for option in options.OPTIONS if {*option.uses} & {*uses}
    ]  # fmt: skip
    assert as_table(("option", "for", "what it says", "default"), rows) in (PAGES / page).read_text()


def test_the_page_has_the_table_of_other_sources() -> None:
    words = {("in",): "read", ("out",): "write", ("in", "out"): "read, write"}
    rows = [
        (", ".join(f"`{name}`" for name in other.names), other.owner, words[other.sides], other.answer)
        for other in other_sources.OTHERS
    ]
    assert as_table(("option", "of", "for", "here"), rows) in (PAGES / "streaming.md").read_text()


USES: dict[other_sources.Side, tuple[options.Use, ...]] = {"in": ("read", "stream"), "out": ("write", "sink")}


def as_table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows)]
    return "\n".join(["", *lines, ""])


def test_names_are_told_apart_once() -> None:
    names = [option.name.lower() for option in options.OPTIONS]
    assert len({*names}) == len(names), "Spark hands them over in lower case"
    for side, uses in (("in", {"read", "stream"}), ("out", {"write", "sink"})):
        own = [option.name.lower() for option in options.OPTIONS if uses & {*option.uses}]
        others = [name.lower() for each in other_sources.OTHERS if side in each.sides for name in each.names]
        assert len({*own, *others}) == len(own) + len(others)
    assert all(option.meaning and option.default and option.uses for option in options.OPTIONS)
    assert all(
        other.reason or other.ours in {option.name for option in options.OPTIONS} for other in other_sources.OTHERS
    )


@pytest.mark.parametrize("other", other_sources.OTHERS, ids=lambda other: f"{other.names[0]}-{other.sides[0]}")
def test_an_option_of_other_sources_is_taken_or_refused(other: other_sources.OtherOption) -> None:
    """With the reason, or with the name of the option here that is for the use at hand."""
    for name in (name.replace("*", "anything") for name in other.names):
        for use in (use for side in other.sides for use in USES[side]):
            if other.translate is None:
                with pytest.raises(InvalidRequest, match=re.escape(f"no option '{name}'; {other.hint}")):
                    options.checked({"path": "topic/x", name: "1"}, use)


TAKEN: list[tuple[options.Use, dict[str, str], dict[str, str]]] = [
    ("stream", {"subscribe": "orders"}, {"path": "topic/orders"}),
    ("read", {"subscribe": "topic/a/b"}, {"path": "topic/a/b"}),
    ("stream", {"path": "topic/x", "maxOffsetsPerTrigger": "7"}, {"path": "topic/x", "maxrowspertrigger": "7"}),
    ("stream", {"path": "topic/x", "minOffsetsPerTrigger": "7"}, {"path": "topic/x", "minrowspertrigger": "7"}),
    (
        "stream",
        {"path": "topic/x", "startingTimestamp": "1700000000123"},
        {"path": "topic/x", "startingoffsets": "2023-11-14T22:13:20.123000+00:00"},
    ),
    (
        "read",
        {"path": "topic/x", "startingTimestamp": "2026-11-18", "endingTimestamp": "0"},
        {"path": "topic/x", "startingoffsets": "2026-11-18", "endingoffsets": "1970-01-01T00:00:00+00:00"},
    ),
    (
        "read",
        {"path": "topic/x", "endingOffsetsByTimestamp": '{"x": {"0": 1000}}'},
        {"path": "topic/x", "endingoffsets": '{"x": {"0": "1970-01-01T00:00:01+00:00"}}'},
    ),
    ("stream", {"projectId": "p", "subscriptionId": "orders"}, {"path": "subscription/p/orders"}),
    (
        "stream",
        {"projectId": "p", "subscriptionId": "orders", "topicId": "o"},
        {"path": "subscription/p/orders", "create": "projects/p/topics/o"},
    ),
    ("sink", {"projectId": "p", "topicId": "clean"}, {"path": "publish/p/clean"}),
]


@pytest.mark.parametrize(("use", "values", "ours"), TAKEN)
def test_names_that_mean_the_same_are_taken(use: options.Use, values: dict[str, str], ours: dict[str, str]) -> None:
    assert options.checked(values, use) == ours


@pytest.mark.parametrize(
    ("use", "values", "said"),
    [
        ("stream", {"subscribe": "a,b"}, "one topic each"),
        ("stream", {"path": "topic/x", "subscribe": "x"}, "'subscribe' and 'path' mean the same: leave one out"),
        ("stream", {"path": "topic/x", "maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "leave one out"),
        ("stream", {"path": "topic/x", "startingTimestamp": "1", "startingOffsetsByTimestamp": '{"x": {"0": 1}}'},
         "'startingOffsetsByTimestamp' and 'startingTimestamp' mean the same"),
        ("stream", {"path": "topic/x", "startingTimestamp": "9" * 20}, "expected milliseconds since 1970"),
        ("stream", {"path": "topic/x", "startingOffsetsByTimestamp": '{"0": 5}'}, "expected milliseconds by shard"),
        ("stream", {"path": "topic/x", "startingOffsetsByTimestamp": "5"}, "expected milliseconds by shard"),
        ("stream", {"subscriptionId": "orders"}, "needs 'projectId' beside it"),
        ("read", {"path": "topic/x", "maxOffsetsPerTrigger": "1"}, "'maxOffsetsPerTrigger' is for a streaming read"),
        ("stream", {"path": "topic/x", "endingTimestamp": "1"}, "'endingTimestamp' is for a read"),
        ("stream", {"path": "topic/x", "includeHeaders": "true"}, "no option 'includeHeaders'"),
    ],
)  # fmt: skip
def test_a_value_that_has_no_meaning_here_is_refused(use: options.Use, values: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        options.checked(values, use)


@pytest.mark.parametrize("name", ["x", "topic/x"])
def test_kafkas_offsets_name_a_topic_as_subscribe_does(name: str) -> None:
    path = options.checked({"subscribe": name}, "stream")["path"]
    assert options.bound(path, json.dumps({name: {"0": 5}}), "startingOffsets") == {"0": 5}


def test_whatever_case_spark_hands_over_is_one_name() -> None:
    assert options.checked({"PATH": "store/x", "Url": "grpc://h:1"}, "read") == {"path": "store/x", "url": "grpc://h:1"}


NEAREST: list[tuple[options.Use, str, str]] = [
    ("read", "fliter", "did you mean 'filter'"),
    ("read", "kafka.bootstrap.servers", "did you mean 'url'"),
    ("write", "txnAppId", "did you mean 'run'"),
    ("read", "zzz", "there are path, subscription, create, ack, url, token, ca, cert, key, retry_for, columns, .*"),
    ("stream", "maxRowPerTrigger", "did you mean 'maxRowsPerTrigger'"),
    ("sink", "batchSize", "requests to Pub/Sub have up to 1,000 messages by themselves"),
    ("sink", "kafka.compression.type", "did you mean 'compression'"),
    ("sink", "encoding", "did you mean 'encode'"),
    ("sink", "kafka.linger.ms", "requests to Pub/Sub have up to 1,000 messages by themselves"),
    ("sink", "kafka.acks", "an epoch is done once Pub/Sub has answered for all of it"),
    ("write", "includeHeaders", "headers are the column attributes"),
    ("write", "kafka.enable.idempotence", "did you mean 'idAttribute'"),
    ("stream", "kafka.fetch.min.bytes", "no Kafka client is behind penstock"),
]


@pytest.mark.parametrize(("use", "name", "said"), NEAREST)
def test_an_unknown_option_is_refused_with_the_nearest(use: options.Use, name: str, said: str) -> None:
    """Options of other sources are known by their names there."""
    with pytest.raises(InvalidRequest, match=f"(?i)no option '{name}'; {said}"):
        options.checked({"path": "topic/x", name: "1"}, use)


def test_a_subscription_is_named_in_full() -> None:
    values = {"subscription": "projects/p.x:y/subscriptions/orders%2B", "ack": "journal"}
    assert options.checked(values, "stream") == {"path": "subscription/p.x:y/orders%2B", "ack": "journal"}
    for name in (
        "orders",
        "p/orders",
        "projects/p/topics/orders",
        "projects/p/subscriptions/",
        "subscription/p/orders",
    ):
        with pytest.raises(InvalidRequest, match="expected a name such as projects/p/subscriptions/orders"):
            options.checked({"subscription": name}, "stream")
    with pytest.raises(InvalidRequest, match="expected one"):
        options.checked({"path": "topic/x", "subscription": "projects/p/subscriptions/orders"}, "read")


def test_a_topic_is_named_in_full() -> None:
    values = {"topic": "projects/p/topics/clean", "encode": "json", "idAttribute": "true"}
    checked = options.checked(values, "sink")
    assert checked["path"] == "publish/p/clean"
    publishing = options.publishing(checked)
    assert (publishing.encoding, publishing.options) == (JsonEncoding("publish/p/clean"), PublishOptions(True))
    for name in ("clean", "topic/clean", "projects/p/subscriptions/clean"):
        with pytest.raises(InvalidRequest, match="expected a name such as projects/p/topics/"):
            options.checked({"topic": name}, "write")
    with pytest.raises(InvalidRequest, match="encode says how messages are published"):
        options.publishing(options.checked({"path": "store/x", "encode": "json"}, "write"))
    with pytest.raises(InvalidRequest, match="'topic' is for a write and streaming write, this is a read"):
        options.checked({"topic": "projects/p/topics/clean"}, "read")


def test_what_is_sparks_own_is_no_option_of_a_sink() -> None:
    values = {"path": "store/x", "checkpointLocation": "/c", "asyncProgressTrackingEnabled": "false"}
    assert options.checked(values, "sink") == {"path": "store/x"}
    with pytest.raises(InvalidRequest, match="asyncProgressTracking doesn't repeat an epoch with the same rows"):
        options.checked(values | {"asyncProgressTrackingEnabled": "true"}, "sink")
    with pytest.raises(InvalidRequest, match="no option 'checkpointlocation'"):
        options.checked(values, "stream")


WORDS = {"read": "read", "write": "write", "stream": "streaming read", "sink": "streaming write"}


@pytest.mark.parametrize(
    ("use", "name"),
    [("write", "columns"), ("write", "filter"), ("read", "run"), ("stream", "endingOffsets"), ("stream", "filter"),
     ("sink", "run"), ("sink", "maxRowsPerTrigger"), ("read", "maxRowsPerTrigger")],
)  # fmt: skip
def test_an_option_of_the_other_use_is_refused(use: options.Use, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"option '{name}' is for a .*, this is a {WORDS[use]}: leave it out"):
        options.checked({"path": "store/x", name: "a"}, use)


@pytest.mark.parametrize("values", [{}, {"path": ""}])
def test_a_missing_path_is_refused_by_name(values: dict[str, str]) -> None:
    """As saveAsTable and INSERT INTO hand out no options at all."""
    with pytest.raises(InvalidRequest, match=r"'path' is missing: say \.save.*saveAsTable"):
        options.checked(values, "write")


def test_several_paths_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="one path at a time"):
        options.checked({"paths": '["store/x", "store/y"]'}, "read")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, None),
        ("a", ("a",)),
        (" a , b c ,é", ("a", "b c", "é")),
        ("`a,b`,c", ("a,b", "c")),
        ("`a``b`", ("a`b",)),
    ],
)
def test_columns_are_names_between_commas(text: str | None, names: tuple[str, ...] | None) -> None:
    assert options.columns(text) == names


@pytest.mark.parametrize("text", ["", " ", ",", "a,", "a,,b", "`a", "a`b`", "``"])
def test_columns_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected names separated by commas"):
        options.columns(text)


def test_seconds() -> None:
    assert options.seconds({}, "retry_for", 30) == 30
    assert options.seconds({"maxtriggerdelay": "0.5"}, "maxTriggerDelay", 30) == 0.5
    assert options.seconds({"maxtriggerdelay": "15m"}, "maxTriggerDelay", 30) == 900
    for wrong in ("soon", "-1", "nan", "inf", "", "15 minutes", "30d"):
        with pytest.raises(InvalidRequest, match=r"maxTriggerDelay=.*expected seconds, or a time"):
            options.seconds({"maxtriggerdelay": wrong}, "maxTriggerDelay", 30)


def test_a_count_is_a_whole_number_from_1() -> None:
    assert options.count({}, "minPartitions") is None
    assert options.count({"minpartitions": "7"}, "minPartitions") == 7
    for wrong in ("0", "-1", "1.5", "1e3", "many", "", "²"):
        with pytest.raises(InvalidRequest, match=r"minPartitions=.*expected a whole number from 1"):
            options.count({"minpartitions": wrong}, "minPartitions")


def test_a_switch_is_true_or_false() -> None:
    said = [options.switch({"pushdown": text}, "pushdown", True) for text in ("false", "TRUE")]
    assert [*said, options.switch({}, "pushdown", True), options.switch({}, "pushdown", False)] == [
        False,
        True,
        True,
        False,
    ]
    with pytest.raises(InvalidRequest, match="pushdown='yes': expected true or false"):
        options.switch({"pushdown": "yes"}, "pushdown", False)
