"""The options of `format("penstock")`: what is known is taken, what isn't is refused with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.rows.to_json import JsonEncoding
from penstock.spark_plugin import options
from penstock.wire.publish import PublishOptions

PAGES = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "uses"), [("datasource.md", ("read", "write", "stream", "sink")), ("streaming.md", ("stream", "sink"))]
)
def test_the_pages_have_the_table_of_the_registry(page: str, uses: tuple[str, ...]) -> None:
    heads = ("option", "for", "what it says", "default", "known elsewhere as")
    rows = [
        (f"`{option.name}`", ", ".join(use for use in option.uses if use in uses), option.meaning, option.default,
         ", ".join(f"`{name}`" for name in option.elsewhere))
        for option in options.OPTIONS if {*option.uses} & {*uses}
    ]  # fmt: skip
    lines = [f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows)]

    assert "\n".join(["", *lines, ""]) in (PAGES / page).read_text()


def test_names_are_told_apart_once() -> None:
    names = [option.name for option in options.OPTIONS]
    elsewhere = [name.lower() for option in options.OPTIONS for name in option.elsewhere]
    assert len({*names, *elsewhere}) == len(names) + len(elsewhere)
    assert len({name.lower() for name in names}) == len(names), "Spark hands them over in lower case"
    assert all(option.meaning and option.default and option.uses for option in options.OPTIONS)


def test_whatever_case_spark_hands_over_is_one_name() -> None:
    assert options.checked({"PATH": "store/x", "Url": "grpc://h:1"}, "read") == {"path": "store/x", "url": "grpc://h:1"}


NEAREST: list[tuple[options.Use, str, str]] = [
    ("read", "fliter", "did you mean 'filter'"),
    ("read", "kafka.bootstrap.servers", "did you mean 'url'"),
    ("read", "txnAppId", "did you mean 'run'"),
    ("read", "zzz", "there are path, subscription, create, ack, url, token, ca, cert, key, retry_for, columns, .*"),
    ("stream", "subscribe", "did you mean 'path'"),
    ("stream", "maxOffsetsPerTrigger", "did you mean 'maxRowsPerTrigger'"),
    ("stream", "minOffsetsPerTrigger", "did you mean 'minRowsPerTrigger'"),
    ("stream", "startingTimestamp", "did you mean 'startingOffsets'"),
    ("stream", "numFetchPartitions", "did you mean 'minPartitions'"),
    ("stream", "subscriptionId", "did you mean 'subscription'"),
    ("stream", "topicId", "did you mean 'create'"),
    ("stream", "numPartitions", "did you mean 'minPartitions'"),
    ("stream", "batchSize", "did you mean 'maxRowsPerTrigger'"),
    ("stream", "lingerMs", "did you mean 'maxTriggerDelay'"),
    ("stream", "maxBatchBytes", "did you mean 'maxBytesPerTrigger'"),
    ("stream", "maxRowPerTrigger", "did you mean 'maxRowsPerTrigger'"),
    ("sink", "topicId", "did you mean 'topic'"),
    ("write", "projectId", "did you mean 'topic'"),
    ("sink", "batchSize", "requests to Pub/Sub have up to 1,000 messages by themselves"),
    ("sink", "kafka.compression.type", "did you mean 'compression'"),
    ("sink", "encoding", "did you mean 'encode'"),
    ("sink", "kafka.linger.ms", "requests to Pub/Sub have up to 1,000 messages by themselves"),
    ("sink", "kafka.acks", "an epoch is done once Pub/Sub has answered for all of it"),
    ("write", "includeHeaders", "headers are the column attributes"),
    ("write", "kafka.enable.idempotence", "did you mean 'idAttribute'"),
    ("stream", "kafka.group.id", "no Kafka client is behind penstock"),
]


@pytest.mark.parametrize(("use", "name", "said"), NEAREST)
def test_an_unknown_option_is_refused_with_the_nearest(use: options.Use, name: str, said: str) -> None:
    """Options of other sources are known by their names there."""
    with pytest.raises(InvalidRequest, match=f"no option '{name.lower()}'; {said}"):
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
