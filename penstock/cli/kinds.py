"""The kinds of things at a server, and how each is shown by what the server says about it.

To add a kind, add it to KINDS: `ls`, `show`, `top`, `rm`, `put` and the completion of paths know it from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from penstock.text import counted, cut, format_age, format_size, format_table, printable

Thing = Mapping[str, Any]
"""The answer to `describe`, or a piece of it."""
Columns = Mapping[str, str | Callable[[Thing], Any]]
"""Heads, each with the field that is under it, or with a function of the thing."""


class Table(NamedTuple):
    """A table about a thing: its shards, its consumers, or itself as the only row."""

    noun: str
    rows: Callable[[Any], Sequence[Any]]
    columns: Columns
    id: str = ""
    """The field by which `top` recognises a row at the next look."""
    rate: str = ""
    """The field that `top` fills with the growth per second of `amount`."""
    amount: Callable[[Thing], float] = lambda row: 0


@dataclass(frozen=True)
class Kind:
    """A kind of thing; the defaults show anything."""

    name: str
    """As the server calls it."""
    root: str = ""
    """The first name of its paths."""
    plural: str = ""
    title: str = "{path}"
    in_ls: bool = False
    """Whether `ls` without a path lists it."""
    listing: Columns | None = None
    """The columns of `ls`, which then describes each thing; None: the columns of every other listing."""
    reads: bool = False
    """Whether `ls` lists the rows that are at the path, such as dead messages."""
    nothing: str = "nothing here; penstock put store/… FILE brings something"
    facts: Columns | None = None
    """The lines of `show`; None: all fields that aren't nested."""
    show: Sequence[Table] = ()
    top: Sequence[Table] = ()
    appends: bool = False
    """Whether `put` appends rows, converted to the types that are there."""
    holds: str = "row"
    """What it has many of."""
    deleted: str = "deleted {path}: {count}, {size}"


def kind_named(name: str) -> Kind:
    """Return the kind of this name."""
    return next((kind for kind in KINDS if kind.name == name), Kind(name))


def kind_at(path: str) -> Kind:
    """Return the kind whose paths begin as this one does."""
    root = path.partition("/")[0]
    return next((kind for kind in KINDS if kind.root == root), Kind(root))


def cells(columns: Columns, thing: Thing) -> dict[str, str]:
    """Return a thing's text under each head; nothing for what isn't known."""
    return {head: _text(head, value) for head, value in _values(columns, thing).items()}


def text_of(columns: Columns, things: Sequence[Thing]) -> str:
    """Return the things as a table, numbers and times at the right."""
    rows = [_values(columns, thing) for thing in things]
    right = [head for head in columns if any(isinstance(row[head], int | float) for row in rows)]
    return format_table([*columns], [[_text(head, row[head]) for head in columns] for row in rows], right=right)


def _values(columns: Columns, thing: Thing) -> dict[str, Any]:
    return {head: thing.get(field) if isinstance(field, str) else field(thing) for head, field in columns.items()}


def _text(head: str, value: Any) -> str:
    if value is None or isinstance(value, str | bool):
        return printable(str(value or ""))
    return _FORMATS.get(head, "{:,}".format)(value)


def _ago(moment: float) -> str:
    return f"{format_age(time.time() - moment)} ago"


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("rows/s", "committed/s", "confirmed/s", "published/s"), "{:,.0f}".format),
    "done/s": "{:,.1f}".format,
    **dict.fromkeys(("opened", "last put", "read", "seen", "started", "ended"), _ago),
    "size": format_size,
    **dict.fromkeys(("oldest", "oldest unacked", "lag"), format_age),
    "time": "{:,.1f} s".format,
    **dict.fromkeys(("size in", "size out"), format_size),
}
"""How a number is written under a head, if not as it is."""


# --- datasets, folders, topics --------------------------------------------------------------


def _size(thing: Thing) -> str:
    return f"{format_size(thing['bytes'])} in {counted(thing['parts'], 'part')}"


def _changed(thing: Thing) -> str:
    moment = thing.get("changed")
    return "" if moment is None else f"{_ago(moment)}, {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}"


def _compacted(thing: Thing) -> str:
    """Return when small parts of it became one last; nothing if that was never."""
    return _ago(thing["compacted"]) if "compacted" in thing else ""


def _expires(thing: Thing) -> str:
    """Return when a dataset with a time to live is deleted."""
    return f"in {format_age(max(0.0, thing['expires'] - time.time()))}" if "expires" in thing else ""


def _partitions(thing: Thing) -> str:
    return cut(", ".join("{partition} ({rows:,} rows)".format(**each) for each in thing.get("partitions", ())), 1_000)


def _queries(thing: Thing) -> str:
    """Return what the queries that write to it have landed last."""
    return ", ".join("{query} up to epoch {epoch}".format(**each) for each in thing.get("queries", ()))


def kept(topic: Thing) -> str:
    """Return how long a topic keeps its rows, and how much of them."""
    limit = f", {format_size(topic['keep_bytes'])} at most" if "keep_bytes" in topic else ""
    limit += ", whoever is away" if limit and "keep_absent" in topic else ""
    return format_age(topic["keep_seconds"]) + limit


_LOST = "its rows were in the memory of a server that has ended; put it again with --mode overwrite"
_STORED: dict[str, Any] = {
    "rows": "rows", "size": _size, "compacted": _compacted, "changed": _changed, "queries": _queries,
    "lost": lambda thing: _LOST if thing.get("lost") else "",
}  # fmt: skip
_SCHEMA = Table(
    "column", lambda thing: thing["schema"],
    {"name": "name", "type": "type", "": lambda column: "" if column["nullable"] else "not null"},
)  # fmt: skip


def _oldest(consumer: Mapping[str, Any]) -> float | None:
    """Return the age of the oldest row that a consumer has to read."""
    return consumer["lag_seconds"] if consumer["lag_rows"] else None


_LAG: Columns = {"behind": "lag_rows", "size": "lag_bytes", "oldest": _oldest}


def _dead(consumer: Mapping[str, Any]) -> int | None:
    """Return how many dead rows a consumer has; nothing for none, as most have none."""
    return consumer.get("dead") or None


def _state_of(consumer: Mapping[str, Any]) -> str:
    """Return a consumer's state, and whether rows or acks wait for nobody but it, who is away."""
    return f"{consumer['state']}, absent: rows wait for it" if consumer.get("absent") else str(consumer["state"])


def _members(consumer: Mapping[str, Any]) -> int | None:
    """Return how many members of a group have shards; nothing of a query."""
    return len(consumer["members"]) if "members" in consumer else None


_FOLDER = Kind("folder", facts={"datasets": "datasets", "topics": "topics", "writes": "writes", **_STORED})
_PAYLOAD = Kind("payload", facts={"rows": "rows", "size": lambda thing: format_size(thing["bytes"])}, show=[_SCHEMA])
_DATASET = Kind(
    "dataset", "store", "datasets", in_ls=True,
    facts=_STORED | {"read": "used", "expires": _expires, "partitions": _partitions}, show=[_SCHEMA],
)  # fmt: skip
_TOPIC = Kind(
    "topic", "topic", "topics", in_ls=True, appends=True,
    facts=_STORED | {"key": "key", "kept": kept, "journal": lambda topic: "{journal}, epoch {epoch}".format(**topic)},
    show=[
        _SCHEMA,
        Table(
            "shard", lambda topic: topic["shards"],
            {"shard": "shard", "first": "first", "next": "next", "rows": lambda shard: shard["next"] - shard["first"]},
        ),
        Table(
            "consumer", lambda topic: sorted(topic["consumers"], key=lambda consumer: -consumer["lag_rows"]),
            {"consumer": "consumer", **_LAG, "dead": _dead, "members": _members, "seen": "seen", "": _state_of},
        ),
    ],
    top=[
        Table(
            "topic", lambda topic: [topic],
            {
                "topic": "path", "rows": "rows", "rows/s": "rows_per_s", "size": "bytes", "oldest": "oldest",
                "consumers": lambda topic: len(topic["consumers"]),
                "behind": lambda topic: max((consumer["lag_rows"] for consumer in topic["consumers"]), default=0),
            },
            "path", "rows_per_s", lambda topic: sum(shard["next"] for shard in topic["shards"]),
        ),
        Table(
            "consumer", lambda topic: topic["consumers"],
            {
                "consumer": lambda consumer: consumer["consumer"][:12], "topic": "path", **_LAG,
                "committed/s": "committed_per_s", "seen": "seen", "": _state_of,
            },
            "consumer", "committed_per_s", lambda consumer: sum(consumer["position"].values()),
        ),
    ],
)  # fmt: skip


# --- consumers ------------------------------------------------------------------------------


def _in_consumer(function: Callable[[Thing], Any]) -> Callable[[Thing], Any]:
    """Return the value of the one consumer that a thing is."""
    return lambda thing: function(thing["consumers"][0])


def _positions(thing: Thing) -> Sequence[Thing]:
    """Return each shard with the consumer's position, and the member of the group that has it."""
    [consumer] = thing["consumers"]
    holders = {shard: member for member, shards in consumer.get("members", {}).items() for shard in shards}
    return [
        {"shard": int(shard), "next": offset, "member": holders.get(int(shard))}
        for shard, offset in consumer["position"].items()
        if shard != "life"
    ]


_CONSUMER_FACTS: Columns = {
    "behind": "rows", "size": "bytes", "oldest": _in_consumer(_oldest), "dead": _in_consumer(_dead),
    "members": _in_consumer(_members), "seen": "changed", "state": _in_consumer(_state_of),
}  # fmt: skip
_CONSUMER = Kind(
    "consumer", "consumer", "consumers", nothing="no consumer here: queries of Spark's and groups are some",
    listing={"consumer": "path", **_CONSUMER_FACTS}, facts=_CONSUMER_FACTS,
    show=[Table("shard", _positions, {"shard": "shard", "next": "next", "member": "member"})],
    deleted="deleted {path}, which was {count} behind",
)  # fmt: skip


# --- subscriptions --------------------------------------------------------------------------


def _of_pubsub(name: str) -> Callable[[Thing], Any]:
    """Return what is known of a subscription besides its journal."""
    return lambda thing: thing["subscription"].get(name)


def _unreleased(thing: Thing) -> str:
    state = thing["subscription"]
    return f"{counted(state['unreleased_rows'], 'row')} ({format_size(state['unreleased_bytes'])})"


def _duplicates(thing: Thing) -> str:
    counts = thing["subscription"]["duplicates"]
    return (
        ", ".join(f"{count:,} {cause}" for cause, count in counts.items() if count) or "none since the server's start"
    )


def _leases(thing: Thing) -> str:
    return "{outstanding:,} outstanding, {extensions:,} extensions, {lapses:,} lapsed".format(**_figures(thing))


def _acks(thing: Thing) -> str:
    return "{acks_sent:,} sent, {acks_confirmed:,} confirmed, {acks_failed:,} failed".format(**_figures(thing))


def _streams(thing: Thing) -> str:
    figures = _figures(thing)
    return f"{figures['streams_needed']:,} for {format_size(figures['bytes_per_second'])}/s"


def _figures(thing: Thing) -> Thing:
    figures: Thing = thing["subscription"]["figures"]
    return figures


def _figure(name: str) -> Callable[[Thing], Any]:
    return lambda thing: _figures(thing).get(name)


def _counter(name: str) -> Callable[[Thing], int]:
    return lambda puller: int(puller["counters"].get(name, 0))


_PULLED: Columns = {
    "outstanding": _counter("outstanding"), "extensions": _counter("extensions"), "lapses": _counter("lapses"),
    "acks sent": _counter("acks_sent"), "confirmed": _counter("acks_confirmed"), "failed": _counter("acks_failed"),
    "oldest unacked": "oldest_unacked",
}  # fmt: skip
_SUBSCRIPTION = replace(
    _TOPIC, name="subscription", root="subscription", plural="subscriptions", appends=False,
    deleted="detached {path}: {count}, {size}; Pub/Sub keeps the subscription",
    facts=_TOPIC.facts | {  # type: ignore[operator]  # it has some
        "at Pub/Sub": _of_pubsub("subscription"), "ack": _of_pubsub("ack"), "unreleased": _unreleased,
        "pullers": lambda thing: f"{len(thing['subscription']['connected'])} connected",
        "leases": _leases, "acks": _acks, "oldest unacked": _figure("oldest_unacked"), "streams needed": _streams,
        "duplicates": _duplicates, "error": _of_pubsub("error"),
    },
    show=[
        *_TOPIC.show,
        Table("puller", lambda thing: thing["subscription"]["connected"], {"puller": "puller", **_PULLED}),
    ],
    top=[
        Table(
            "subscription", lambda thing: [thing],
            {
                "subscription": "path", "rows/s": "rows_per_s", "unreleased": _figure("unreleased_rows"),
                "outstanding": _figure("outstanding"), "oldest unacked": _figure("oldest_unacked"),
                "lapses": _figure("lapses"), "acks failed": _figure("acks_failed"),
                "duplicates": lambda thing: sum(_figures(thing)["duplicates"].values()),
                "pullers": _figure("pullers"), "streams needed": _figure("streams_needed"),
            },
            "path", "rows_per_s", lambda thing: sum(shard["next"] for shard in thing["shards"]),
        ),
        Table(
            "puller", lambda thing: thing["subscription"]["connected"],
            {"puller": "puller", "subscription": "path", **_PULLED, "confirmed/s": "confirmed_per_s"},
            "puller", "confirmed_per_s", _counter("acks_confirmed"),
        ),
        _TOPIC.top[1],
    ],
)  # fmt: skip


# --- writes ---------------------------------------------------------------------------------

_ENDED = {"finished": "yes", "aborted": "never, it was aborted", "expired": "never, it was idle for too long"}


def _target(write: Thing) -> str:
    """Return where the rows go, and how, if not by the defaults."""
    run = write.get("run")
    how = [write["mode"]] * (write["mode"] != "error") + [f"run {run}"] * (run is not None)
    return f"{write['path']} ({', '.join(how)})" if how else str(write["path"])


def _visible(write: Thing) -> str:
    """Tell whether readers see the write's rows, and if not, why."""
    if write["state"] != "open":
        return _ENDED[write["state"]]
    attempts = write["attempts"]
    return f"no, {counted(attempts, 'whole attempt')} until finish" if attempts else "no, no attempt is whole"


def _failed(write: Thing) -> str:
    """Tell why a write isn't published, and how it goes on."""
    if "failed" not in write:
        return ""
    again = f"write run {write['run']} again to go on" if write.get("run") else "nobody goes on with it"
    return f"{write['failed']}; {again}, or give it up: penstock rm write/{write['write']}; kept for 30 days"


_WRITE = Kind(
    "write", "write", "writes", "write/{write}", nothing="no write is open", deleted="ended write/{write} to {path}",
    listing={
        "write": lambda write: f"write/{write['write']}", "for": _target, "rows": "rows", "size": "bytes",
        "opened": "opened", "last put": "touched", "visible": _visible,
    },
    facts={
        "for": _target, "state": "state", "opened": "opened", "last put": "touched",
        "whole": lambda write: counted(write["attempts"], "attempt"),
        "rows": lambda write: f"{write['rows']:,} ({_size(write)})" if write["state"] in ("open", "finished") else "",
        "visible": _visible,
        "published": lambda write: f"{write['published']:,} so far" if "published" in write else "",
        "failed": _failed,
    },
    top=[
        Table(
            "write", lambda write: [write],
            {
                "write": lambda write: write["write"][:12], "for": "path", "attempts": "attempts", "rows": "rows",
                "rows/s": "rows_per_s", "size": "bytes", "last put": "touched",
            },
            "write", "rows_per_s", lambda write: write["rows"],
        )
    ],
)  # fmt: skip


def _of_publishing(name: str) -> Callable[[Thing], Any]:
    return lambda topic: topic["publishing"][name]


def _staged(topic: Thing) -> str:
    figures = topic["publishing"]
    size = format_size(figures["waiting_bytes"])
    return f"{counted(figures['waiting_rows'], 'message')} ({size}) of {counted(figures['writes'], 'write')}"


def _published(topic: Thing) -> str:
    figures = topic["publishing"]
    size = format_size(figures["published_bytes"])
    messages, requests = counted(figures["published_rows"], "message"), counted(figures["requests"], "request")
    return f"{messages} ({size}) in {requests}, {figures['retries']:,} sent again"


_PUBLISH = Kind(
    "publish", "publish", "published topics", nothing="nothing is being published",
    facts={
        "published": lambda topic: f"{topic['published']:,} of {counted(topic['rows'], 'message')} of open writes",
        "waiting": _staged, "since the server's start": _published, "failed": "failed",
    },
    top=[
        Table(
            "topic", lambda topic: [topic],
            {
                "publish": "path", "waiting": _of_publishing("waiting_rows"), "failed": _of_publishing("failed"),
                "published": _of_publishing("published_rows"), "published/s": "published_per_s",
                "oldest": _of_publishing("oldest_seconds"),
            },
            "path", "published_per_s", _of_publishing("published_rows"),
        )
    ],
)  # fmt: skip


# --- queues ---------------------------------------------------------------------------------


def _count(name: str) -> Callable[[Thing], Any]:
    return lambda queue: queue["queue"]["counts"].get(name)


def _waiting(queue: Thing) -> float | None:
    """Return the age of the oldest pending message."""
    oldest = _count("oldest")(queue)
    return None if oldest is None else max(0.0, time.time() - oldest)


def _dead_for(message: Thing) -> str:
    return format_age(time.time() - message["ended"])


def _queue_lag(thing: Thing) -> float | None:
    """Return how long what is pending lasts."""
    return thing["queue"].get("lag_seconds") if "queue" in thing else None


_COUNTS: Columns = {
    "pending": _count("pending"), "claimed": _count("claimed"), "done": _count("done"), "dead": _count("dead"),
    "size": _count("bytes"), "oldest": _waiting,
}  # fmt: skip
_QUEUE = Kind(
    "queue", "queue", "queues", nothing="no queue here; penstock.write(…, queue=…) or client.push makes one",
    listing={"queue": "path", **_COUNTS, "": _count("state")},
    facts={
        "state": _count("state"), "cause": _count("cause"), **_COUNTS,
        "done/s": lambda queue: queue["queue"]["done_per_second"], "lag": _queue_lag,
    },
    show=[
        Table("upstream", lambda queue: queue["queue"]["upstreams"], {"filled by": "upstream", "": "state"}),
    ],
    top=[
        Table(
            "queue", lambda queue: [queue],
            {"queue": "path", **_COUNTS, "done/s": "done_per_s", "lag": _queue_lag, "": _count("state")},
            "path", "done_per_s", _count("done"),
        )
    ],
    holds="message",
)  # fmt: skip


# --- jobs -----------------------------------------------------------------------------------


def _of_job(name: str) -> Callable[[Thing], Any]:
    return lambda thing: thing["job"].get(name)


def _in_queues(name: str) -> Callable[[Thing], int]:
    """Return the sum of a count over the job's queues."""
    return lambda thing: sum(each["queue"]["counts"][name] for each in thing["job"]["stages"] if "queue" in each)


def _in_notes(name: str) -> Callable[[Thing], int | None]:
    """Return the sum of what the driver says of its stages; None if it has said nothing."""

    def summed(thing: Thing) -> int | None:
        said = [each["note"][name] for each in thing["job"]["stages"] if "note" in each]
        return sum(said) if said else None

    return summed


def _of_stage(name: str) -> Callable[[Thing], Any]:
    return lambda stage: stage["queue"]["counts"].get(name) if "queue" in stage else None


def _noted(name: str) -> Callable[[Thing], Any]:
    return lambda stage: stage.get("note", {}).get(name)


def _done_per_second(stage: Thing) -> float | None:
    return stage["queue"]["done_per_second"] if "queue" in stage else None


def _driver(job: Thing) -> str:
    """Return who drives the job, and since when nothing was heard of it."""
    said = job["job"]
    if said["state"] != "running":
        return ""
    if "seen" not in said:
        return "not seen since the server's start"
    silent = time.time() - said["seen"]
    return f"{said['driver']}" + (f", silent for {format_age(silent)}" if silent > _SILENT else "")


def _state(job: Thing) -> str:
    """Return the job's state, and whether nobody drives it."""
    said = job["job"]
    is_driven = said["state"] != "running" or time.time() - said.get("seen", 0) <= _SILENT
    return str(said["state"]) if is_driven else "running, without a driver"


def _stages(job: Thing) -> Sequence[Thing]:
    """Return the stages of a running job that have a queue, each with its path."""
    stages = [each for each in job["job"]["stages"] if "queue" in each]
    for each in stages:
        each["stage_path"] = each["queue"]["counts"]["path"]
    return stages if job["job"]["state"] == "running" else []


_SILENT = 10.0
"""Seconds after which a driver that says nothing is away: it speaks four times a second."""
_STAGE: Columns = {
    **{name: _of_stage(name) for name in ("pending", "claimed", "done", "dead")},
    "retries": _noted("retries"), "workers": _noted("workers"),
}  # fmt: skip
_JOB = Kind(
    "job", "job", "jobs", nothing="no job here; penstock.Job(…).run() makes one",
    listing={
        "job": "path", "state": _state, "started": _of_job("created"), "pending": _in_queues("pending"),
        "claimed": _in_queues("claimed"), "done": _in_queues("done"), "dead": _in_queues("dead"),
    },
    facts={
        "state": _state, "cause": _of_job("cause"), "started": _of_job("created"), "ended": _of_job("ended"),
        "driver": _driver,
    },
    show=[
        Table(
            "stage", lambda job: job["job"]["stages"],
            {
                "stage": lambda stage: stage["planned"]["stage"], "what": lambda stage: stage["planned"]["what"],
                "after": lambda stage: ", ".join(stage["planned"]["after"]), **_STAGE, "size": _of_stage("bytes"),
                "done/s": _done_per_second, "lag": _queue_lag,
            },
        ),
        Table(
            "stage", lambda job: [each for each in job["job"]["stages"] if "note" in each],
            {
                "last run": lambda stage: stage["planned"]["stage"],
                **{name: _noted(name.replace(" ", "_")) for name in ("rows in", "rows out")},
                "size in": _noted("bytes_in"), "size out": _noted("bytes_out"), "time": _noted("seconds"),
            },
        ),
    ],
    top=[
        Table(
            "job", lambda job: [job] if job["job"]["state"] == "running" else [],
            {
                "job": "path", "started": _of_job("created"), "pending": _in_queues("pending"),
                "claimed": _in_queues("claimed"), "done": _in_queues("done"), "dead": _in_queues("dead"),
                "retries": _in_notes("retries"), "workers": _in_notes("workers"), "done/s": "job_done_per_s",
                "": _driver,
            },
            "path", "job_done_per_s", _in_queues("done"),
        ),
        Table(
            "stage", _stages,
            {"stage": "stage_path", **_STAGE, "done/s": "stage_done_per_s", "lag": _queue_lag},
            "stage_path", "stage_done_per_s", _of_stage("done"),
        ),
    ],
    deleted="deleted {path} and its queues; what it has written stays",
)  # fmt: skip
_MESSAGES = Kind(
    "messages", facts={"messages": "rows"}, show=[_SCHEMA], nothing="no message is dead", reads=True,
    listing={
        "message": "message_id", "error": "error", "text": lambda message: cut(message["text"] or "", 60),
        "tries": "tries", "worker": "worker", "dead for": _dead_for,
    },
)  # fmt: skip

KINDS = (_FOLDER, _DATASET, _PAYLOAD, _TOPIC, _CONSUMER, _SUBSCRIPTION, _QUEUE, _JOB, _MESSAGES, _PUBLISH, _WRITE)
