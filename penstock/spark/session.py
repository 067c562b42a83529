"""A session with a Spark Connect server: its settings, its queries, and their end."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from penstock.errors import InvalidRequest
from penstock.spark import protos
from penstock.spark.client import CALL_TIMEOUT, Client, Identity
from penstock.spark.errors import Unsupported, no_such_name
from penstock.spark.execution import Execution
from penstock.spark.results import Progress, Result, decode_checkpoint
from penstock.spark.sources import Sources
from penstock.spark.uri import parse_uri

_ELSEWHERE = {
    "catalog": "penstock.spark.experimental.Catalog(spark) has it",
    "udf": "Python functions don't travel: pyspark's do, with penstock.read and penstock.write around them",
    "udtf": "Python functions don't travel: pyspark's do, with penstock.read and penstock.write around them",
    "readStream": "streaming queries are pyspark's",
    "streams": "streaming queries are pyspark's",
    "sparkContext": "a server of Spark Connect shows none",
    "builder": "penstock.spark_connect('sc://host:15002') returns a session",
    "newSession": "penstock.spark_connect('sc://host:15002') returns another session, clone() a copy of this one",
    "cloneSession": "clone() is its name",
    "interruptAll": "interrupt() ends all queries",
    "interruptTag": "interrupt(tag=…) ends the queries of a tag",
    "interruptOperation": "interrupt(operation=…) ends one query",
    "addTag": "each query has its own: frame.stream(tag=…)",
}
"""What pyspark's sessions have and these don't: what to write instead."""


def spark_connect(
    uri: str | None = None,
    *,
    ca: str | None = None,
    session_id: str | None = None,
    user_id: str | None = None,
    retry_for: float | None = None,
    timeout: float = CALL_TIMEOUT,
) -> Session:
    """Return a session with the Spark Connect server at `sc://host:port/;key=value`, or SPARK_REMOTE.

    `ca` is a file of certificates, for a server whose own no one else knows. A server that is away is tried again for
    `retry_for` seconds: 30, or ten minutes once it has answered. `timeout` is that of a call which runs no query.
    Nothing is sent until the first call.
    """
    parsed = parse_uri(uri)
    if session_id is not None:
        try:
            parsed = replace(parsed, session_id=str(uuid.UUID(session_id)))
        except ValueError:
            raise InvalidRequest(f"session_id={session_id!r:.80}: expected a UUID") from None
    if user_id is not None:
        parsed = replace(parsed, user_id=user_id)
    return Session(Client(parsed, ca=ca, retry_for=retry_for, timeout=timeout))


class Session(Sources):
    """A session of Spark's: settings and temporary views that live at the server until `close`.

    Safe to share between threads. A context manager.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.conf = Conf(client)

    @property
    def session_id(self) -> str:
        """The id under which the server has the session."""
        return self.client.identity.session_id

    @property
    def version(self) -> str:
        """The server's version of Spark."""
        return str(self.analyze(spark_version={}).spark_version.version)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (released)" if self.client.closed else ""
        return f"<penstock.spark_connect({str(self.client.uri)!r}): session {self.session_id}{state}>"

    if not TYPE_CHECKING:  # a type checker finds such names by itself

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_name("a session has", self, name, _ELSEWHERE)

    def execute(
        self,
        plan: Any,
        *,
        tag: str | None = None,
        timeout: float | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> Result:
        """Run a Plan, Relation or Command message, and return its result as it comes.

        What is wrong with the query is raised here. `tag` is for `interrupt`; after `timeout` seconds the query is
        interrupted; `on_progress` is called with the server's reports while batches are waited for.
        """
        execution = Execution(self.client, _plan_of(plan).SerializeToString(), tags=_tags(tag), timeout=timeout)
        return Result(self.client, execution, on_progress=on_progress)

    def analyze(self, **request: Any) -> Any:
        """Ask about a plan without running it, such as `schema={"plan": plan}`; the answer has a field of that name."""
        message = protos.AnalyzePlanRequest()
        for name, fields in request.items():
            getattr(message, name).SetInParent()
            for field, value in fields.items():
                if hasattr(value, "DESCRIPTOR"):
                    getattr(getattr(message, name), field).CopyFrom(value)  # a constructor's copy may not be deep
                else:
                    setattr(getattr(message, name), field, value)
        return self.client.call("AnalyzePlan", message)

    def resume(
        self, checkpoint: str, *, timeout: float | None = None, on_progress: Callable[[Progress], object] | None = None
    ) -> Result:
        """Return the rest of a result behind a checkpoint, of any process that read it with this server.

        The query is of the session that began it, and that goes on.
        """
        identity, position = decode_checkpoint(checkpoint)
        is_ours = identity == self.client.identity
        client = self.client if is_ours else self.client.derived(identity)
        execution = Execution.resumed(client, position, timeout=timeout)
        return Result(client, execution, rows=position.rows, on_progress=on_progress, owns_client=not is_ours)

    def interrupt(self, *, tag: str | None = None, operation: str | None = None) -> list[str]:
        """Interrupt the session's queries: all, those of a tag, or one by its operation id. Return their ids."""
        if tag is not None and operation is not None:
            raise InvalidRequest("interrupt(tag=…, operation=…): expected one of them, or neither for all queries")
        request = protos.InterruptRequest(interrupt_type=protos.InterruptRequest.INTERRUPT_TYPE_ALL)
        if tag is not None:
            request.interrupt_type, request.operation_tag = protos.InterruptRequest.INTERRUPT_TYPE_TAG, tag
        if operation is not None:
            request.interrupt_type = protos.InterruptRequest.INTERRUPT_TYPE_OPERATION_ID
            request.operation_id = operation
        return list(self.client.call("Interrupt", request).interrupted_ids)

    def clone(self) -> Session:
        """Return a session that begins with a copy of this one's settings and temporary views. From Spark 4.1 on."""
        wanted = str(uuid.uuid4())
        answer = self.client.call("CloneSession", protos.CloneSessionRequest(new_session_id=wanted))
        if answer.new_session_id != wanted:
            raise Unsupported(f"{self.client.uri} made a clone of another id than it was asked for")
        cloned = Session(self.client.derived(Identity(wanted, self.client.identity.user_id)))
        cloned.client.settings.update(self.client.settings)
        return cloned

    def close(self) -> None:
        """Release the session at the server, which interrupts its queries, and close the connection."""
        if not self.client.closed:
            self.client.call_once("ReleaseSession", protos.ReleaseSessionRequest(), timeout=10.0)
            self.client.close()

    stop = close  # pyspark's name


class Conf:
    """The settings of a session."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return a setting; without a default an unknown one is an error."""
        if default is None:
            operation: dict[str, Any] = {"get": {"keys": [key]}}
        else:
            operation = {"get_with_default": {"pairs": [{"key": key, "value": default}]}}
        (pair,) = self._config(operation).pairs
        return str(pair.value) if pair.HasField("value") else None

    def set(self, key: str, value: str | int | bool) -> None:
        """Set a setting for this session's queries."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        self._config({"set": {"pairs": [{"key": key, "value": text}]}})
        self._client.settings[key] = text

    def unset(self, key: str) -> None:
        """Give a setting its default again."""
        self._config({"unset": {"keys": [key]}})
        self._client.settings.pop(key, None)

    def all(self, prefix: str | None = None) -> dict[str, str]:
        """Return the settings of the session, or those whose names begin with a prefix."""
        operation = {"get_all": {} if prefix is None else {"prefix": prefix}}
        start = prefix or ""  # the server cuts it off
        return {start + pair.key: pair.value for pair in self._config(operation).pairs}

    def _config(self, operation: dict[str, Any]) -> Any:
        return self._client.call("Config", protos.ConfigRequest(operation=operation))


def _plan_of(message: Any) -> Any:
    """Return the plan that holds a relation or a command. A constructor would copy 100 levels at most."""
    if message.DESCRIPTOR.name == "Plan":
        return message
    fields = {"Relation": "root", "Command": "command"}
    if message.DESCRIPTOR.name not in fields:
        raise InvalidRequest(
            f"execute({message.DESCRIPTOR.name}): expected a Plan, a Relation or a Command of Spark Connect"
        )
    plan = protos.Plan()
    getattr(plan, fields[message.DESCRIPTOR.name]).CopyFrom(message)
    return plan


def _tags(tag: str | None) -> tuple[str, ...]:
    if tag is None:
        return ()
    if not tag or "," in tag:
        raise InvalidRequest(f"tag={tag!r:.80}: expected a word without commas")
    return (tag,)
