"""Publishers are processes of the server's: killed with it or alone, what a finish has named is published."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import penstock
from penstock.wire.put import Receipt
from tests.kit.pubsub.emulator import Names
from tests.kit.server import RestartingServer, served, token_of, tokens_file
from tests.kit.wait import eventually

if TYPE_CHECKING:
    from tests.kit.pubsub.fake import FakePubSub

pytestmark = [pytest.mark.process, pytest.mark.faults, pytest.mark.timeout(180)]
ROWS = 40_000


@pytest.fixture
def address(fake_pubsub: FakePubSub, pubsub_names: Names) -> Iterator[str]:
    """The address of a fake that has the topic."""
    from tests.kit.pubsub import messages as pb
    from tests.kit.pubsub.fake import served as fake_served

    fake_pubsub.call("CreateTopic", pb.Topic(name=pubsub_names.topic))
    with fake_served(fake_pubsub) as address:
        yield address


def rows() -> pa.Table:
    return pa.table({"data": [b"%d" % number for number in range(ROWS)]})


def path_of(names: Names) -> str:
    return names.topic.replace("projects/", "publish/").replace("/topics/", "/")


def counts(fake: FakePubSub, names: Names) -> Counter[int]:
    return Counter(int(message.data) for message in fake.published(names.topic))


def publisher_of(path: str) -> int | None:
    """Return the process that publishes to a topic."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if path.encode() in words and b"publisher" in words:
            return int(process.name)
    return None


def test_a_publisher_has_a_token_of_its_own(
    fake_pubsub: FakePubSub, pubsub_names: Names, address: str, tmp_path: Path
) -> None:
    """Who publishes needs no more than the right to write."""
    path = path_of(pubsub_names)
    tokens = tokens_file(tmp_path, writer={"write": [path]})
    with (
        served(tmp_path / "data", allow_emulator=True, pubsub_endpoint=address, tokens=tokens) as server,
        penstock.connect(server.url, token=token_of("writer")) as client,
    ):
        assert client.put(path, rows().slice(0, 10)).rows == 10
    assert counts(fake_pubsub, pubsub_names) == Counter(range(10))


def test_a_killed_publisher_is_followed_by_another(
    fake_pubsub: FakePubSub, pubsub_names: Names, address: str, tmp_path: Path
) -> None:
    path, done = path_of(pubsub_names), list[Receipt]()
    fake_pubsub.fail("Publish", times=-1)
    with served(tmp_path / "data", allow_emulator=True, pubsub_endpoint=address) as server:
        with penstock.connect(server.url) as client:
            put = threading.Thread(target=lambda: done.append(client.put(path, rows())))
            put.start()
            eventually(lambda: "Publish" in fake_pubsub.requests(), within=60)
            killed = publisher_of(path)
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            fake_pubsub.heal()
            put.join(120)
        assert [receipt.rows for receipt in done] == [ROWS]
        assert set(counts(fake_pubsub, pubsub_names)) == {*range(ROWS)}
        assert publisher_of(path) not in (None, killed)
    assert publisher_of(path) is None


@pytest.mark.parametrize("step", ["publish.named", "publish.noted", "finish.shown"])
def test_a_server_that_dies_at_a_step_publishes_all(
    fake_pubsub: FakePubSub, pubsub_names: Names, address: str, tmp_path: Path, step: str
) -> None:
    """The put waits for it, and its folder keeps nothing of the rows."""
    server = RestartingServer(tmp_path / "data", crash_at=step, allow_emulator=True, pubsub_endpoint=address)
    with server.living(), penstock.connect(server.url, retry_for=90) as client:
        receipt = client.put(path_of(pubsub_names), rows())
        assert receipt.rows == ROWS
        eventually(lambda: not client.list("write/"))
    assert server.lives == 2
    assert set(counts(fake_pubsub, pubsub_names)) == {*range(ROWS)}
