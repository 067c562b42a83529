"""The messages of do_exchange cross the wire as they are; others are refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.wire import exchange
from penstock.wire.exchange import (
    MESSAGES,
    Acks,
    Answer,
    AskAcks,
    Beat,
    Bye,
    Drain,
    End,
    Hello,
    Message,
    Numbered,
    Refusal,
    Released,
    Report,
    Welcome,
)  # fmt: skip
from penstock.wire.position import Position

numbers = st.integers(0, 2**63 - 1)
answers = st.builds(Answer, numbers, st.dictionaries(st.integers(0, 300), st.tuples(numbers, numbers)))
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, st.none() | st.text(), numbers),
    st.builds(Numbered, numbers, numbers),
    st.builds(Report, st.dictionaries(st.text(), numbers), st.dictionaries(st.text(), st.lists(st.lists(numbers)))),
    st.builds(Acks, st.text()),
    st.builds(AskAcks, st.text()),
    st.builds(Beat, st.none() | numbers),
    st.just(Bye()),
    st.just(End()),
    answers,
    st.builds(Answer, numbers),
    st.builds(Welcome, st.text(), numbers, st.floats(1, 100), st.lists(answers).map(tuple), st.none() | st.text()),
    st.builds(Released, st.dictionaries(st.integers(0, 300), numbers).map(Position)),
    st.just(Drain()),
    st.builds(Refusal, st.text(), st.text(), st.none() | st.floats(0, 100)),
)


@given(messages)
def test_a_message_is_decoded_as_it_was_encoded(message: Message) -> None:
    assert exchange.decode(message.encode()) == message
    assert json.loads(message.encode())["type"] == message.type


def test_every_message_is_among_them() -> None:
    assert {message.type for message in MESSAGES.values()} == set(MESSAGES)
    assert len(MESSAGES) == 13


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "expected a JSON object"),
        (b"[]", "expected a JSON object"),
        (b'{"type":"bye"}', "expected version"),
        (b'{"v":2,"type":"bye"}', "expected version"),
        (b'{"v":1}', "no message has the type 'None'"),
        (b'{"v":1,"type":["bye"]}', "no message has the type"),
        (b'{"v":1,"type":"by"}', "did you mean 'bye'?"),
        (b'{"v":1,"type":"batch","n":-1}', "Numbered.n: expected a number from 0"),
        (b'{"v":1,"type":"batch"}', "Numbered lacks the field 'n'"),
        (b'{"v":1,"type":"answer","n":1,"shards":{"a":[1,2]}}', "Answer.shards: expected"),
        (b'{"v":1,"type":"answer","n":1,"shards":{"0":[1]}}', "Answer.shards: expected"),
        (b'{"v":1,"type":"answer","n":1,"shards":{"0":7}}', "Answer.shards: expected"),
    ],
)
def test_what_is_no_message_is_refused_by_name(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        exchange.decode(raw)
    assert words in str(caught.value)
