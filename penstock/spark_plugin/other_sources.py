"""Options of other sources and sinks: those that mean the same are taken, others are refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from penstock.errors import InvalidRequest

Side = Literal["in", "out"]
"""Whether rows come into Spark, or go out of it."""
_KAFKA, _PUBSUB, _DELTA = "Kafka", "Databricks' Pub/Sub source", "Delta"
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OtherOption:
    """An option of another source or sink."""

    names: tuple[str, ...]
    owner: str
    sides: tuple[Side, ...]
    ours: str = ""
    """The option here that means the same, or nearly."""
    reason: str = ""
    """Why it is refused."""
    translate: Callable[[str, str], str] | None = None
    """Makes our option's value of its name and value; None where it isn't taken."""

    @property
    def answer(self) -> str:
        """What it is here, for the table in docs/streaming.md."""
        if self.translate is not None:
            return f"taken, as `{self.ours}`"
        return f"refused: {self.reason or f'see `{self.ours}`'}"

    def spelled(self, name: str) -> str:
        """Return a lower-case name as its owner writes it: Spark doesn't keep how it was said."""
        return next((each for each in self.names if each.lower() == name), name)

    @property
    def hint(self) -> str:
        """The remedy in the error."""
        return self.reason or f"did you mean '{self.ours}'?"


def take_others(values: Mapping[str, str], side: Side) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options, by lower-case name, with other sources' names replaced by ours where they mean the same; and
    what was said for those of ours.
    """
    taken, said = dict(values), dict[str, str]()
    project = taken.get("projectid")
    for name, value in values.items():
        other = find(name, side)
        if other is None or other.translate is None:
            continue
        spelled, ours = other.spelled(name), other.ours.lower()
        if other.owner == _PUBSUB:
            if project is None:
                raise InvalidRequest(
                    f"the option '{spelled}' needs 'projectId' beside it: or name '{other.ours}' in full"
                )
            taken.pop("projectid", None)
        if ours in taken:
            raise InvalidRequest(
                f"the options '{spelled}' and '{said.get(ours, other.ours)}' mean the same: leave one out"
            )
        del taken[name]
        taken[ours] = other.translate(spelled, f"{project}/{value}" if other.owner == _PUBSUB else value)
        said[ours] = spelled
    return taken, said


def find(name: str, side: Side) -> OtherOption | None:
    """Return the option that has this lower-case name elsewhere."""
    return _BY_NAME.get((side, name)) or (_BY_NAME[side, "kafka.*"] if name.startswith("kafka.") else None)


# --- values of other sources in our words --------------------------------------------------


def _same(name: str, value: str) -> str:
    return value


def _topic(name: str, value: str) -> str:
    """Return the path of Kafka's topic."""
    if "," in value:
        raise InvalidRequest(f"{name}={value[:80]!r}: one topic each: load each and union them")
    return value if value.startswith("topic/") else f"topic/{value}"


def _time(name: str, value: str) -> str:
    """Return a time: Kafka has milliseconds since 1970, Delta a time in words."""
    if not value.isdecimal():
        return value
    try:
        return (_1970 + timedelta(milliseconds=int(value))).isoformat()
    except OverflowError as wrong:
        raise InvalidRequest(f"{name}={value[:80]!r}: expected milliseconds since 1970") from wrong


def _times(name: str, value: str) -> str:
    """Return a time for each shard, as JSON: Kafka has {"orders": {"0": 1700000000000}}."""
    try:
        topics = {
            topic: {shard: _time(name, str(int(time))) for shard, time in shards.items()}
            for topic, shards in json.loads(value).items()
        }
    except (ValueError, TypeError, AttributeError) as wrong:
        raise InvalidRequest(
            f'{name}={value[:80]!r}: expected milliseconds by shard, {{"orders": {{"0": 1700000000000}}}}'
        ) from wrong
    return json.dumps(topics)


def _full_name(kind: str) -> Callable[[str, str], str]:
    def full_name(name: str, value: str) -> str:
        project, _, own = value.partition("/")
        return f"projects/{project}/{kind}/{own}"

    return full_name


_IN: tuple[Side, ...] = ("in",)
_OUT: tuple[Side, ...] = ("out",)
_BOTH: tuple[Side, ...] = ("in", "out")
_PULLED = (
    "pullers beside the server fetch (`penstock serve --pullers`); a batch has maxRowsPerTrigger rows: leave it out"
)
_CUT = "requests to Pub/Sub have up to 1,000 messages by themselves: leave it out"
OTHERS = (
    OtherOption(("subscribe",), _KAFKA, _IN, "path", translate=_topic),
    OtherOption(("maxOffsetsPerTrigger",), _KAFKA, _IN, "maxRowsPerTrigger", translate=_same),
    OtherOption(("minOffsetsPerTrigger",), _KAFKA, _IN, "minRowsPerTrigger", translate=_same),
    OtherOption(("startingTimestamp",), f"{_KAFKA}, {_DELTA}", _IN, "startingOffsets", translate=_time),
    OtherOption(("endingTimestamp",), _KAFKA, _IN, "endingOffsets", translate=_time),
    OtherOption(("startingOffsetsByTimestamp",), _KAFKA, _IN, "startingOffsets", translate=_times),
    OtherOption(("endingOffsetsByTimestamp",), _KAFKA, _IN, "endingOffsets", translate=_times),
    OtherOption(
        ("startingOffsetsByTimestampStrategy",), _KAFKA, _IN,
        reason="a time behind the last row is the topic's end: leave it out",
    ),
    OtherOption(
        ("includeHeaders",), _KAFKA, _IN,
        reason="a topic's rows have columns of their own, a subscription's the column attributes: leave it out",
    ),
    OtherOption(("subscribePattern", "assign"), _KAFKA, _IN, reason="one topic each: load each and union them"),
    OtherOption(("kafka.group.id", "groupIdPrefix"), _KAFKA, _IN, "consumer"),
    OtherOption(("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"), _KAFKA, _IN,
                "retry_for"),
    OtherOption(("maxRecordsPerPartition", "numPartitions"), _KAFKA, _IN, "minPartitions"),
    OtherOption(("kafka.bootstrap.servers",), _KAFKA, _BOTH, "url"),
    OtherOption(("kafka.ssl.truststore.location",), _KAFKA, _BOTH, "ca"),
    OtherOption(("kafka.ssl.keystore.location", "kafka.ssl.keystore.certificate.chain"), _KAFKA, _BOTH, "cert"),
    OtherOption(("kafka.ssl.keystore.key",), _KAFKA, _BOTH, "key"),
    OtherOption(("kafka.topic",), _KAFKA, _OUT, "topic"),
    OtherOption(("kafka.compression.type",), _KAFKA, _OUT, "compression"),
    OtherOption(
        ("includeHeaders",), _KAFKA, _OUT,
        reason="headers are the column attributes, which is published if it is there: leave it out",
    ),
    OtherOption(
        ("kafka.acks",), _KAFKA, _OUT, reason="an epoch is done once Pub/Sub has answered for all of it: leave it out"
    ),
    OtherOption(("kafka.enable.idempotence",), _KAFKA, _OUT, "idAttribute"),
    OtherOption(
        ("kafka.transactional.id",), _KAFKA, _OUT, reason="did you mean 'run'? A stream's epochs have theirs"
    ),
    OtherOption(
        ("kafka.batch.size", "kafka.linger.ms", "kafka.buffer.memory", "kafka.max.request.size"), _KAFKA, _OUT,
        reason=_CUT,
    ),
    OtherOption(
        ("kafka.*",), _KAFKA, _BOTH,
        reason="no Kafka client is behind penstock, so no option of it counts: leave it out",
    ),
    OtherOption(("subscriptionId",), _PUBSUB, _IN, "subscription", translate=_full_name("subscriptions")),
    OtherOption(("topicId",), _PUBSUB, _IN, "create", translate=_full_name("topics")),
    OtherOption(("topicId",), _PUBSUB, _OUT, "topic", translate=_full_name("topics")),
    OtherOption(("projectId",), _PUBSUB, _IN, reason="it is taken beside 'subscriptionId' and 'topicId'"),
    OtherOption(("projectId",), _PUBSUB, _OUT, reason="it is taken beside 'topicId'"),
    OtherOption(("numFetchPartitions", "maxRecordsPerFetch", "maxFetchPeriod"), _PUBSUB, _IN, reason=_PULLED),
    OtherOption(
        ("deleteSubscriptionOnStreamStop",), _PUBSUB, _IN,
        reason="a subscription stays when a query ends: leave it out, and delete it in Pub/Sub",
    ),
    OtherOption(
        ("clientId", "clientEmail", "privateKey", "privateKeyId", "serviceCredential"), _PUBSUB, _BOTH,
        reason="the server has the credentials for Pub/Sub: leave it out",
    ),
    OtherOption(("batchSize", "maxBatchBytes"), "Pub/Sub connectors", _IN, "maxRowsPerTrigger"),
    OtherOption(("lingerMs",), "Pub/Sub connectors", _IN, "maxTriggerDelay"),
    OtherOption(
        ("batchSize", "maxBatchBytes", "maxBufferSize", "maxBufferBytes", "lingerMs"), "Pub/Sub connectors", _OUT,
        reason=_CUT,
    ),
    OtherOption(
        ("orderingKeySource",), "Pub/Sub connectors", _OUT, reason="the column ordering_key is the key: leave it out"
    ),
    OtherOption(("startingPosition",), "Event Hubs", _IN, "startingOffsets"),
    OtherOption(("maxFilesPerTrigger",), _DELTA, _IN, "maxRowsPerTrigger"),
    OtherOption(
        ("startingVersion", "versionAsOf", "timestampAsOf"), _DELTA, _IN,
        reason="a dataset has no versions; a topic has startingOffsets: leave it out",
    ),
    OtherOption(
        ("ignoreChanges", "ignoreDeletes", "skipChangeCommits", "readChangeFeed"), _DELTA, _IN,
        reason="rows of a topic never change: leave it out",
    ),
    OtherOption(("txnAppId", "txnVersion"), _DELTA, _OUT, "run"),
    OtherOption(("mergeSchema",), _DELTA, _OUT, reason="new columns are added by themselves: leave it out"),
    OtherOption(("maxRecordsPerFile",), "files", _OUT, reason="the server cuts parts of 8 MiB: leave it out"),
    OtherOption(
        ("batch_rows",), "penstock.write", _OUT,
        reason="a data source has no session: set spark.sql.execution.arrow.maxRecordsPerBatch, or use penstock.write",
    ),
    OtherOption(("dbtable",), "JDBC", _BOTH, "path"),
    OtherOption(
        ("pushDownPredicate", "pushdown"), "JDBC", _IN,
        reason="Spark keeps what one query pushes for all queries of the frame: say it in the option 'filter'",
    ),
    OtherOption(("valueFormat",), "Avro and protobuf", _IN, "decode"),
    OtherOption(("descFilePath", "jsonFormatSchema"), "Avro and protobuf", _IN, "writerSchema"),
    OtherOption(("columnNameOfCorruptRecord",), "JSON", _IN, "mode"),
)  # fmt: skip
_BY_NAME = {(side, name.lower()): other for other in OTHERS for name in other.names for side in other.sides}
