"""What is published, and how long its rows take until they are committed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scripts.bench.publisher import Send, batches, message, paced, rows
from scripts.bench.session import repeated
from scripts.bench.streaming import committed, seconds_of


def test_a_row_is_timed_from_when_it_was_due_until_its_commit() -> None:
    sent = [(10.0, 5), (11.0, 5), (12.0, 5)]  # due, rows; two rows were there before
    commits = [(10.5, 2), (11.5, 9), (12.5, 12), (14.0, 17)]
    assert seconds_of(sent, commits, before=2, warm=0) == [1.5, 1.5, 2.0]
    assert seconds_of(sent, commits, before=2, warm=1) == [1.5, 2.0]


@pytest.mark.parametrize("offset", [{"shards": {"0": 3, "1": 4}, "journal": "j"}, {"topic": {"0": 3, "1": 4}}])
def test_commits_are_read_from_sparks_own_logs(tmp_path: Path, offset: dict[str, object]) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch, seconds in ((2, 5.0), (10, 6.0)):
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
        os.utime(tmp_path / "commits" / str(batch), (seconds, seconds))
    (tmp_path / "offsets" / "11").write_text(f"v1\n{{}}\n{json.dumps(offset)}")  # planned, and not committed
    assert committed(tmp_path) == [(5.0, 7), (6.0, 7)]


def test_a_publisher_sends_as_many_rows_as_it_is_told() -> None:
    sent: list[int] = []
    send: Send = lambda messages: sent.append(len(messages))  # noqa: E731
    assert len(batches(send, 3, 7)) == 3
    answer = paced(send, rate=1000, seconds=0.1, tick=0.02)
    assert sent == [7, 7, 7, 20, 20, 20, 20, 20]
    assert [count for _, count in answer] == [20] * 5
    assert answer[4][0] - answer[0][0] == pytest.approx(0.08)


def test_a_message_is_json_of_about_130_bytes() -> None:
    assert json.loads(message(7))["id"] == 10_000_007
    assert all(120 <= len(message(n)) <= 140 for n in (0, 7, 12_345, 1_999_999))


@pytest.mark.parametrize("kind", ["json", "integers"])
def test_ready_rows_are_as_many_as_wanted_and_alike(kind: str) -> None:
    row = rows(kind, range(1))
    ready = list(repeated(row, 25, 10))
    assert [batch.num_rows for batch in ready] == [10, 10, 5]
    assert all(batch.schema == row.schema and batch.to_pylist() == row.to_pylist() * batch.num_rows for batch in ready)
