"""Actions: the request and the answer of each, in one registry that client and server read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from penstock.wire import job, queue, rights
from penstock.wire.body import Body, field_names
from penstock.wire.payloads import (
    ClearedPayloads,
    ClearPayloads,
    FindPayloads,
    FoundPayloads,
    ListPayloads,
    PayloadKeys,
)
from penstock.wire.position import Position
from penstock.wire.publish import AskParts, NotePublished, PartsToPublish, PublishFigures, PublishOptions
from penstock.wire.put import DatasetOptions, Mode, Release, Run, State
from penstock.wire.read import PayloadSchema
from penstock.wire.rights import Need, at_path, at_prefix

SchemaJson = tuple[dict[str, Any], ...]
"""A list of {name, type, nullable} with Arrow's names of types: for people, as some details are not in the names."""
RequestT = TypeVar("RequestT", bound=Body)
AnswerT = TypeVar("AnswerT", bound=Body)


@dataclass(frozen=True, slots=True)
class Action(Generic[RequestT, AnswerT]):
    """One action of do_action."""

    name: str
    purpose: str
    request: type[RequestT]
    answer: type[AnswerT]
    access: Callable[[RequestT], Iterator[Need]] | Literal["ticket", "anyone"]
    """Who may call: who has a token with the rights that the request needs, the ticket in the request, or everybody."""

    @property
    def sentence(self) -> str:
        """The description in list_actions: the purpose, and the fields of the request."""
        return f"{self.purpose}: {{{', '.join(field_names(self.request))}}}."  # type: ignore[arg-type]  # hashable


# --- writes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenWrite(Body):
    """write.open: begin a write, or join the open one of the same `run`."""

    path: str
    mode: Mode = "error"
    schema: str | None = None
    """The columns of a dataset that may get no rows: an Arrow schema's IPC message in base64."""
    run: Run | None = None
    queue: str | None = None
    """The path of the queue that gets a message for each part of the dataset at finish."""
    split_rows: int | None = None
    """With a queue: the rows of one part at most; without, parts are cut by bytes alone."""
    release: Release = "finish"
    publish: PublishOptions | None = None
    """Of a write to publish/…."""
    dataset: DatasetOptions | None = None
    """Of a write to store/…."""


@dataclass(frozen=True, slots=True)
class Summary(Body):
    """A write's state and counts; those of a finished one never change."""

    write: str
    path: str
    mode: Mode
    state: State
    attempts: int = 0
    rows: int = 0
    bytes: int = 0
    parts: int = 0
    run: str | None = None
    opened: float | None = None
    touched: float | None = None
    published: int | None = None
    """The rows that Pub/Sub has of a write that a finish has named, until it has all of them."""
    ahead: int | None = None
    """The rows of earlier writes to its topic, which Pub/Sub gets first."""
    failed: str | None = None
    """Why Pub/Sub doesn't take the rest."""


@dataclass(frozen=True, slots=True)
class OpenedWrite(Body):
    """The answer of write.open. A state of `finished` means that this run is done: put nothing."""

    write: str
    ticket: str
    state: State
    summary: Summary
    location: str | None = None
    """The server's address for tasks on other hosts, from --advertise."""


@dataclass(frozen=True, slots=True)
class FinishWrite(Body):
    """write.finish: make exactly these attempts the dataset."""

    ticket: str
    attempts: tuple[str, ...]
    run: Run | None = None
    """A run that was not known at write.open; if another write has finished it, this one adds nothing."""
    receipts: str | None = None
    """The path of a queue of receipts: the attempts that its messages name are listed, too, and the messages are done.
    Refused while what fills that queue has not ended."""


@dataclass(frozen=True, slots=True)
class TouchWrite(Body):
    """write.touch: the driver of an open write lives; one with a queue fails after ten minutes without a sign."""

    ticket: str


@dataclass(frozen=True, slots=True)
class AbortWrite(Body):
    """write.abort: end a write that shows nothing."""

    ticket: str


# --- topics and their consumers ------------------------------------------------------------


AFTER_ALL = 1e12
"""A time behind every row: a start there begins with what comes next."""


@dataclass(frozen=True, slots=True)
class AskOffsets(Body):
    """consumer.offsets: the first and next offsets of a topic, and the end of a batch from `start` on."""

    path: str
    journal: str | None = None
    start: Position | None = None
    since: float | None = None
    """In place of `start`: rows appended at this time or later, in seconds since 1970."""
    max_rows: int | None = None
    max_bytes: int | None = None
    until: Position | None = None
    """The furthest end of the batch."""
    consumer: str | None = None
    session: str | None = None
    """The calling session: it counts as alive, and is fenced if a newer one has attached."""
    figures: bool = False
    """Whether to answer the figures of a subscription, too."""
    log: int | None = None
    """Of a subscription: answer what the server's log warns of behind the line of this number; 0: its last line."""


SERVER_LOG = "penstock.server"
"""The logger at a query's driver that has the server's lines."""


@dataclass(frozen=True, slots=True)
class LogLine(Body):
    """A line of the server's log that concerns a subscription, or of its pullers' logs."""

    number: int
    """The microsecond since 1970: it grows over the server's restarts."""
    level: Literal["warning", "error"]
    text: str


@dataclass(frozen=True, slots=True)
class SubscriptionFigures(Body):
    """How a subscription does now: sums over the connected pullers, each since it began."""

    pullers: int
    outstanding: int
    """Leases: what Pub/Sub would send again if nobody acked it."""
    extensions: int
    lapses: int
    acks_sent: int
    acks_confirmed: int
    acks_failed: int
    unreleased_rows: int
    unreleased_bytes: int
    duplicates: dict[str, Any]
    """By cause, since the server began."""
    bytes_per_second: int
    """What comes, over the last ten seconds."""
    streams_needed: int
    """For that, at 10 MB/s each."""
    oldest_unacked: float | None = None
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Offsets(Body):
    """The answer of consumer.offsets; rows, bytes and oldest are of all rows from `start` on."""

    journal: str
    epoch: int
    first: Position
    next: Position
    start: Position
    end: Position
    rows: int
    bytes: int
    oldest: float | None = None
    key: str | None = None
    figures: SubscriptionFigures | None = None
    log: tuple[LogLine, ...] = ()
    dead: int = 0
    """Of the consumer, if the request names one: its dead rows."""


@dataclass(frozen=True, slots=True)
class AttachConsumer(Body):
    """consumer.attach: make this session the one that speaks for the consumer."""

    path: str
    journal: str
    consumer: str
    session: str
    initial: Position | None = None
    position: Position | None = None
    """The consumer's position if the server does not know it; at most the topic's end."""
    known: Position | None = None
    """The furthest position in the reader's checkpoint; attach fails if the server has a later one, as the checkpoint
    is then a stale copy."""
    decoding: PayloadSchema | None = None
    """How the consumer decodes: rows that it commits and that don't decode so are kept as dead."""


@dataclass(frozen=True, slots=True)
class AttachedConsumer(Body):
    """The answer of consumer.attach: the position that the consumer has committed."""

    journal: str
    epoch: int
    position: Position


@dataclass(frozen=True, slots=True)
class RedriveRows(Body):
    """consumer.redrive: append dead rows, as they came, to a topic, or publish them; those of the only consumer that
    has some, unless one is named.
    """

    path: str
    to: str
    consumer: str | None = None
    id: str | None = None
    """Of this redrive: repeated, it has what it had."""


@dataclass(frozen=True, slots=True)
class RedrivenRows(Body):
    """The answer of consumer.redrive."""

    consumer: str
    rows: int
    write: Summary | None = None
    """The write that publishes them: while it is open, call again."""
    notes: tuple[str, ...] = ()
    """What else is to be known: rows that stay dead, rows that were published before."""


@dataclass(frozen=True, slots=True)
class CommitPosition(Body):
    """consumer.commit: rows below `position` are done for good."""

    path: str
    journal: str
    consumer: str
    session: str
    position: Position


@dataclass(frozen=True, slots=True)
class CommittedPosition(Body):
    """The answer of consumer.commit: the consumer's position, which never goes back."""

    position: Position


@dataclass(frozen=True, slots=True)
class DetachConsumer(Body):
    """consumer.detach: this consumer will not return, and holds no rows."""

    path: str
    journal: str
    consumer: str
    session: str


@dataclass(frozen=True, slots=True)
class ShareShards(Body):
    """consumer.share: say what a member of a group has, and has done; have its share of the shards from then on."""

    path: str
    consumer: str
    """The group."""
    session: str
    """The member."""
    held: Position
    """The shards that the member has, each with the offset behind the rows that are done for good. One that is missing
    here is given back."""
    journal: str | None = None
    start: Position | None = None
    """Where a group begins that the server doesn't know; without one with the oldest rows."""
    since: float | None = None
    """In place of `start`: with the rows appended at this time or later, in seconds since 1970."""
    leave: bool = False
    """The member ends: it gives back all."""


@dataclass(frozen=True, slots=True)
class SharedShards(Body):
    """The answer of consumer.share."""

    journal: str
    held: Position
    """The shards that the member has now, each with the group's position; nobody else reads them."""
    surplus: int
    """How many of them the member is to give back, as others have fewer."""
    lease_seconds: float
    """A member that is silent for so long loses its shards."""


@dataclass(frozen=True, slots=True)
class Nothing(Body):
    """A request or an answer without fields."""


# --- subscriptions -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttachSubscription(Body):
    """subscription.attach: pull a subscription of Pub/Sub into a journal, or change how; what is None stays."""

    path: str
    create: str | None = None
    """projects/PROJECT/topics/TOPIC: make the subscription of it, if it is missing."""
    ack: Literal["commit", "journal"] | None = None
    pullers: int | None = None
    keep_seconds: float | None = None
    keep_bytes: int | None = None
    max_unreleased_rows: int | None = None
    max_unreleased_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AlterTopic(Body):
    """topic.alter: change what a topic keeps, give one without a key more shards; what is None stays."""

    path: str
    shards: int | None = None
    keep_seconds: float | None = None
    keep_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AskQuiet(Body):
    """subscription.quiet: for how long no message has come that was published before a time."""

    path: str
    published_before: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Quiet(Body):
    """The answer of subscription.quiet; 0 while no puller is connected."""

    seconds: float


@dataclass(frozen=True, slots=True)
class PullerState(Body):
    """A connected puller, as it has reported: its counters since it began."""

    puller: str
    """host:pid."""
    counters: dict[str, Any]
    oldest_unacked: float | None = None
    """Seconds."""


@dataclass(frozen=True, slots=True)
class SubscriptionState(Body):
    """What a subscription's owner knows, besides its journal."""

    subscription: str
    """Its name at Pub/Sub."""
    ack: Literal["commit", "journal"]
    released: Position
    unreleased_rows: int
    unreleased_bytes: int
    max_unreleased_rows: int
    max_unreleased_bytes: int
    pullers: int
    """Processes that the server starts; `connected` are those that there are, wherever they run."""
    connected: tuple[PullerState, ...]
    duplicates: dict[str, Any]
    """By cause, since the server began."""
    ids: int
    """Messages by which redeliveries are recognized."""
    waiting: int
    """Batches that wait until something is released, or the disk has room."""
    figures: SubscriptionFigures
    error: str | None = None
    """Why it can't be pulled."""


@dataclass(frozen=True, slots=True)
class AttachedSubscription(Body):
    """The answer of subscription.attach; `reason` says why its acks are what they are, where nobody has said."""

    path: str
    journal: str
    ack: Literal["commit", "journal"]
    reason: str
    created: bool
    """Whether it was made at Pub/Sub."""
    attached: bool
    """Whether it is new here."""
    ordered: bool
    exactly_once: bool


# --- every kind ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target(Body):
    """describe, undelete: the thing at a path."""

    path: str


@dataclass(frozen=True, slots=True)
class DeleteTarget(Body):
    """delete: the thing at a path; with `delete` also what it stands for elsewhere, such as Pub/Sub's subscription."""

    path: str
    delete: bool = False
    now: bool = False
    """Whether a dataset's bytes go at once, so that `undelete` can't bring it back."""


@dataclass(frozen=True, slots=True)
class Deleted(Body):
    """The answer of delete: what the path held; of a write its id, state and the path that it wrote to."""

    path: str
    rows: int
    bytes: int
    parts: int
    write: str | None = None
    state: State | None = None
    until: float | None = None
    """Of a dataset: until when `undelete` brings it back, if its room isn't needed before."""


@dataclass(frozen=True, slots=True)
class ShardOffsets(Body):
    """The readable offsets of one shard: `first` up to, not including, `next`."""

    shard: int
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class ConsumerState(Body):
    """One consumer of a topic, and the rows that it has not committed."""

    consumer: str
    state: str
    position: Position
    seen: float
    lag_rows: int
    lag_bytes: int
    lag_seconds: float
    """The age of the oldest row that it has not committed."""
    dead: int = 0
    """Rows that it has committed, that didn't decode, and that weren't redriven."""
    absent: bool = False
    """Not seen for ten minutes, and the only reason that rows or messages' acks wait."""
    members: dict[str, Any] | None = None
    """Of a group: the shards of each member that has some."""


@dataclass(frozen=True, slots=True)
class LandedEpoch(Body):
    """The last epoch of a streaming query, or the last number of a run `query/number`, whose rows are at a path."""

    query: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Partition(Body):
    """Rows of a dataset that were written under one name."""

    partition: str
    rows: int
    bytes: int
    parts: int


@dataclass(frozen=True, slots=True)
class Description(Body):
    """The answer of describe; `kind` says which of the optional fields are there."""

    kind: str
    path: str
    rows: int = 0
    bytes: int = 0
    parts: int = 0
    changed: float | None = None
    schema: SchemaJson | None = None
    lost: bool | None = None
    """Of a dataset: its rows were in the memory of a server that has stopped."""
    last: str | None = None
    """Of a dataset: its end; a dataset that is appended to keeps the rows up to it."""
    compacted: float | None = None
    """Of a dataset: when small parts became one last."""
    expires: float | None = None
    """Of a dataset with a time to live: when it is deleted, unless it is written to before."""
    used: float | None = None
    """Of a dataset: when it was read last, to the minute; None if never."""
    partitions: tuple[Partition, ...] | None = None
    """Of a dataset: the rows that were written under the names of partitions."""
    journal: str | None = None
    epoch: int | None = None
    key: str | None = None
    keep_seconds: float | None = None
    keep_bytes: int | None = None
    keep_absent: bool | None = None
    """False: of a topic whose absent consumers hold no rows beyond `keep_bytes`."""
    shards: tuple[ShardOffsets, ...] | None = None
    oldest: float | None = None
    """The age of a topic's oldest row, in seconds."""
    consumers: tuple[ConsumerState, ...] | None = None
    queries: tuple[LandedEpoch, ...] | None = None
    """Of a dataset or a topic: what the queries that write to it have landed last."""
    subscription: SubscriptionState | None = None
    queue: queue.QueueDescription | None = None
    job: job.JobDescription | None = None
    write: str | None = None
    mode: Mode | None = None
    state: State | None = None
    attempts: int | None = None
    run: str | None = None
    opened: float | None = None
    touched: float | None = None
    published: int | None = None
    ahead: int | None = None
    failed: str | None = None
    publishing: PublishFigures | None = None


@dataclass(frozen=True, slots=True)
class Health(Body):
    """The answer of health; without the token the state alone."""

    state: str
    version: str | None = None
    store: str | None = None
    up_seconds: float | None = None
    open_streams: int | None = None
    store_bytes: int | None = None
    quarantined_parts: int | None = None
    datasets: int | None = None
    topics: int | None = None
    subscriptions: int | None = None
    queues: int | None = None
    jobs: int | None = None
    rows: int | None = None
    dataset_parts: int | None = None
    compacted: int | None = None
    """When small parts of a dataset became one last, in seconds since 1970; 0 if none ever did."""
    open_writes: int | None = None
    visible_bytes: int | None = None
    retired_bytes: int | None = None
    """Bytes of deleted rows, until they are swept."""
    ticketed_bytes: int | None = None
    """Those that read tickets still name, or `undelete` may bring back."""
    ticketed_until: float | None = None
    """When the last of them goes at the latest, in seconds since 1970."""


OPEN_WRITE = Action(
    "write.open", "Begin a write, or join the open one of its run", OpenWrite, OpenedWrite, rights.to_open
)
FINISH_WRITE = Action(
    "write.finish", "Make exactly these attempts the dataset, once per run", FinishWrite, Summary, "ticket"
)
TOUCH_WRITE = Action("write.touch", "The driver of an open write lives", TouchWrite, Nothing, "ticket")
ABORT_WRITE = Action("write.abort", "End a write that shows nothing", AbortWrite, Summary, "ticket")
ATTACH_CONSUMER = Action(
    "consumer.attach", "Read a topic as a consumer", AttachConsumer, AttachedConsumer, at_path("read")
)
ASK_OFFSETS = Action(
    "consumer.offsets",
    "The first and next offsets of a topic, and the end of a batch",
    AskOffsets,
    Offsets,
    at_path("read"),
)
COMMIT_POSITION = Action(
    "consumer.commit",
    "Rows below the position are done for good",
    CommitPosition,
    CommittedPosition,
    at_path("read"),
)
DETACH_CONSUMER = Action(
    "consumer.detach", "This consumer will not return, and holds no rows", DetachConsumer, Nothing, at_path("read")
)
SHARE_SHARDS = Action(
    "consumer.share", "Commit what a member of a group has done, and have its share of the shards", ShareShards,
    SharedShards, at_path("read"),
)  # fmt: skip
REDRIVE_ROWS = Action(
    "consumer.redrive",
    "Put a consumer's dead rows into a topic, or publish them, each once",
    RedriveRows,
    RedrivenRows,
    rights.to_redrive_rows,
)
ALTER_TOPIC = Action(
    "topic.alter",
    "Change what a topic keeps, or give one without a key more shards",
    AlterTopic,
    Description,
    at_path("admin"),
)
ASK_QUIET = Action(
    "subscription.quiet",
    "For how long no message has come that was published before a time",
    AskQuiet,
    Quiet,
    at_path("read"),
)
DESCRIBE = Action("describe", "All that is known of the thing at a path", Target, Description, rights.to_describe)
DELETE = Action("delete", "Delete the thing at a path; a write is aborted", DeleteTarget, Deleted, rights.to_delete)
UNDELETE = Action(
    "undelete", "Make a dataset that was deleted lately what it was", Target, Description, at_path("admin")
)
ATTACH_SUBSCRIPTION = Action(
    "subscription.attach",
    "Pull a subscription of Pub/Sub, or change how",
    AttachSubscription,
    AttachedSubscription,
    rights.to_attach,
)
CLAIM_MESSAGES = Action(
    "queue.claim",
    "Lease messages of a queue to a worker",
    queue.ClaimMessages,
    queue.ClaimedMessages,
    rights.to_claim,
)
ACK_LEASES = Action(
    "queue.ack", "The messages of these leases are done", queue.AckLeases, queue.LeaseOutcomes, rights.of_leases
)
RELEASE_LEASES = Action(
    "queue.release",
    "Give leased messages back, to be claimed after a delay",
    queue.ReleaseLeases,
    queue.LeaseOutcomes,
    rights.of_leases,
)
RELEASE_WORKER = Action(
    "queue.release_worker",
    "Give back all that a worker has claimed of a queue: it has ended",
    queue.ReleaseWorker,
    queue.ReleasedMessages,
    at_path("write"),
)
EXTEND_LEASES = Action(
    "queue.extend",
    "Let leases last for their full time from now on",
    queue.ExtendLeases,
    queue.LeaseOutcomes,
    rights.of_leases,
)
DROP_LEASES = Action(
    "queue.drop", "Set leased messages aside as dead", queue.DropLeases, queue.LeaseOutcomes, rights.of_leases
)
REDRIVE_MESSAGES = Action(
    "queue.redrive",
    "Make dead messages pending again",
    queue.RedriveMessages,
    queue.RedrivenMessages,
    at_path("write"),
)
CREATE_QUEUE = Action(
    "queue.create",
    "Make a queue whose messages are records of a Kafka topic",
    queue.CreateQueue,
    queue.QueueCounts,
    at_path("admin"),
)
FINISH_QUEUE = Action(
    "queue.finish", "Clients push no more messages", queue.FinishQueue, queue.QueueCounts, at_path("write")
)
PUSH_DATASET = Action(
    "queue.push_dataset",
    "Push a message for each part of a dataset",
    queue.PushDataset,
    queue.PushedMessages,
    rights.to_push_dataset,
)
START_JOB = Action(
    "job.start", "Make a job with its queues, or continue it", job.StartJob, job.JobDescription, rights.to_start_job
)
NOTE_JOB = Action(
    "job.note", "A driver's sign of life, and what its workers do", job.NoteJob, job.JobDescription, at_path("write")
)
END_JOB = Action("job.end", "Note how a job has ended", job.EndJob, job.JobDescription, at_path("write"))
ASK_PARTS = Action("publish.next", "A publisher's next parts", AskParts, PartsToPublish, rights.to_publish)
NOTE_PUBLISHED = Action("publish.note", "Pub/Sub has these rows", NotePublished, Nothing, rights.to_note)
FIND_PAYLOADS = Action("payload.find", "Where the bytes of payloads are", FindPayloads, FoundPayloads, rights.to_find)
LIST_PAYLOADS = Action("payload.keys", "The keys of payloads, in order", ListPayloads, PayloadKeys, at_prefix("read"))
CLEAR_PAYLOADS = Action(
    "payload.clear", "Delete the payloads below a prefix", ClearPayloads, ClearedPayloads, at_prefix("admin")
)
HEALTH = Action("health", "The server's version, state and store", Nothing, Health, "anyone")

ACTIONS: dict[str, Action[Any, Any]] = {
    action.name: action
    for action in (
        OPEN_WRITE, FINISH_WRITE, TOUCH_WRITE, ABORT_WRITE, DELETE, UNDELETE, DESCRIBE, HEALTH,
        ATTACH_CONSUMER, ASK_OFFSETS, COMMIT_POSITION, DETACH_CONSUMER, SHARE_SHARDS, REDRIVE_ROWS, ALTER_TOPIC,
        ATTACH_SUBSCRIPTION, ASK_QUIET,
        CLAIM_MESSAGES, ACK_LEASES, RELEASE_LEASES, RELEASE_WORKER, EXTEND_LEASES, DROP_LEASES, REDRIVE_MESSAGES,
        FINISH_QUEUE,
        PUSH_DATASET, START_JOB, NOTE_JOB, END_JOB, CREATE_QUEUE,
        ASK_PARTS, NOTE_PUBLISHED, FIND_PAYLOADS, LIST_PAYLOADS, CLEAR_PAYLOADS,
    )
}  # fmt: skip
"""Every action by name."""
