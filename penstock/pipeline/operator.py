"""Operators: what a stage does with each split. A function, an object, a class or a configuration is one.

class Score:
    def open(self): ...                     # optional, once in each worker: what is heavy, or doesn't travel
    def process(self, split): ...           # a payload, a table, a list or iterator of them, or None
    def process_batch(self, splits): ...    # in place of it: for each of some splits what `process` would return
    def close(self): ...                    # optional
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.client.client import Client
from penstock.client.lease import Lease, Split
from penstock.errors import InvalidRequest


class Work(Protocol):
    """What a worker does with leased splits, before the end of their leases settles all of it. Travels to it."""

    batch: int
    """The most splits that it takes at once."""
    linger: float
    """Seconds that it waits for so many."""
    ends_together: bool
    """Whether the splits of one call end in one transaction or not at all."""

    def open(self, client: Client) -> None:
        """Prepare in the worker's process, before its first split."""
        ...

    def __call__(self, leases: Sequence[Lease], splits: Sequence[Split]) -> list[list[Any]]:
        """Process splits, forward what comes out of each, and return that; an error is of them all."""
        ...

    def close(self) -> None:
        """End, after the worker's last split."""
        ...


@dataclass
class Operation:
    """The work of an operator: what it returns goes to the queues of the stages behind it."""

    what: Any
    to: tuple[str, ...] = ()
    drops: bool = False
    """Whether what the operator returns is of no interest: it is called for its effects."""
    batch: int = 1
    linger = 0.0
    ends_together = False

    def open(self, client: Client) -> None:
        """Make this worker's own copy of the operator, and open it."""
        self._operator = make_operator(self.what)
        self._process = as_function(self._operator)
        if hasattr(self._operator, "open"):
            self._operator.open()

    def __call__(self, leases: Sequence[Lease], splits: Sequence[Split]) -> list[list[Any]]:
        """Process splits, and forward what comes out of each."""
        results = list(self._process(splits))
        if len(results) != len(splits):
            raise InvalidRequest(
                f"process_batch of {name_of(self.what)} returned {len(results)} results for {len(splits)} splits: "
                "expected one for each, None for a split of which nothing comes"
            )
        made = [[] if self.drops else list(outputs_of(result)) for result in results]
        for lease, outputs in zip(leases, made, strict=True):
            if outputs and not self.to:
                raise InvalidRequest(
                    f"{name_of(self.what)} returned {type(outputs[0]).__name__}, and no stage is after it: return "
                    "None, or add a sink such as WriteDataset"
                )
            for queue in self.to:
                lease.forward(queue, outputs)
        return made

    def close(self) -> None:
        """Close the operator."""
        if hasattr(self._operator, "close"):
            self._operator.close()


def make_operator(what: Any) -> Any:
    """Return one worker's operator: threads share nothing that an operator keeps in itself."""
    if isinstance(what, type):
        return what()
    if hasattr(what, "operator_class"):  # a configuration, as Solstice has them
        return what.operator_class(what)
    is_function = not (hasattr(what, "process") or hasattr(what, "process_batch")) and callable(what)
    return what if is_function else copy.copy(what)


def as_function(operator: Any) -> Callable[[Sequence[Split]], Iterable[Any]]:
    """Return the function that processes some splits."""
    if hasattr(operator, "process_batch"):
        return operator.process_batch  # type: ignore[no-any-return]
    if hasattr(operator, "process"):
        return lambda splits: map(operator.process, splits)
    if hasattr(operator, "process_split"):
        return lambda splits: (operator.process_split(split, split.loaded) for split in splits)
    if callable(operator):
        return lambda splits: map(operator, splits)
    raise no_operator(operator)


def no_operator(what: Any) -> InvalidRequest:
    """Return the error of something that is no operator."""
    return InvalidRequest(
        f"{name_of(what)} is no operator: expected a function of a split, or a class or an object with process(split) "
        "or process_batch(splits)"
    )


def is_operator(what: Any) -> bool:
    """Whether a stage can be made of it."""
    owner = getattr(what, "operator_class", what)
    return callable(owner) or any(hasattr(owner, name) for name in ("process", "process_batch", "process_split"))


def takes_batches(what: Any) -> bool:
    """Whether an operator processes several splits at once."""
    return hasattr(getattr(what, "operator_class", what), "process_batch")


def outputs_of(result: Any) -> Iterator[Any]:
    """Yield what an operator has returned: nothing, one thing, or many."""
    if isinstance(result, list | tuple | Iterator):
        yield from (each for each in result if each is not None)
    elif result is not None:
        yield result


def name_of(what: Any) -> str:
    """Return how people recognize an operator."""
    named = what if hasattr(what, "__qualname__") else type(what)
    return f"{named.__module__}.{named.__qualname__}".removeprefix("__main__.").removeprefix("builtins.")
