"""`verify` and `backup` of a data folder whose server works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.client import Client, connect
from penstock.errors import AlreadyExists
from penstock.flight_server.config import ServerConfig
from penstock.flight_server.lifecycle import serving
from penstock.ledger.backup import backup
from penstock.ledger.verify import Verified, verify
from penstock.queue.destinations import DESTINATIONS
from penstock.queue.work import work_queues
from penstock.store.disk import DiskMedium
from tests.kit.rows import numbers
from tests.kit.server import ANY_PORT
from tests.kit.wait import eventually

DATASETS = 8


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def client(data: Path) -> Iterator[Client]:
    """A client of a server with datasets and a topic."""
    with serving(ServerConfig(data=data, listen=ANY_PORT, ticket_life=0.01)) as server, connect(server.url) as client:
        for n in range(DATASETS):
            client.put(f"store/{n}", numbers(100 + n))
        client.put("topic/t", numbers(50))
        yield client


def verified(data: Path) -> Verified:
    return verify(data, DiskMedium(data), DESTINATIONS, work_queues, is_served=True)


def copied(data: Path, target: Path) -> Verified:
    return backup(data, DiskMedium(data), target, DESTINATIONS, work_queues)


def test_a_whole_folder_is_verified_while_it_is_served(client: Client, data: Path) -> None:
    answer = verified(data)
    assert (answer.losses, answer.parts, answer.rows) == ((), DATASETS + 1, sum(range(100, 108)) + 50)


def test_every_loss_is_named(client: Client, data: Path) -> None:
    parts = sorted(data.glob("parts/*/*"))
    parts[0].unlink()
    parts[1].write_bytes(parts[1].read_bytes()[:-1])
    first, second = parts[2].read_bytes(), parts[3].read_bytes()
    parts[2].write_bytes(second)
    parts[3].write_bytes(first)
    before = {part.name for part in data.glob("parts/*/*")}
    losses = verified(data).losses
    assert len(losses) == 4
    for part in parts[:4]:
        assert any(part.name in loss for loss in losses), (part.name, losses)
    assert {part.name for part in data.glob("parts/*/*")} == before
    assert not list(data.glob("quarantine/*"))


def test_a_backup_starts_a_server_with_all_rows(client: Client, data: Path, tmp_path: Path) -> None:
    assert copied(data, tmp_path / "copy").losses == ()
    client.put("store/later", numbers(3))
    with serving(ServerConfig(data=tmp_path / "copy", listen=ANY_PORT)) as server, connect(server.url) as restored:
        assert [entry.path for entry in restored.list("store/")] == [f"store/{n}" for n in range(DATASETS)]
        for n in range(DATASETS):
            assert restored.get(f"store/{n}").read_all() == numbers(100 + n)
        assert restored.get("topic/t").read_all() == numbers(50)
        restored.put("topic/t", numbers(1))


def test_payloads_that_share_a_file_are_verified_and_copied(client: Client, data: Path, tmp_path: Path) -> None:
    client.push("queue/j/in", [numbers(5_000 + n) for n in range(4)], finish=True)
    answer = verified(data)
    assert (answer.losses, answer.parts, answer.unnamed) == ((), DATASETS + 5, 0)
    assert len(list(data.glob("parts/*/*"))) == DATASETS + 2
    assert copied(data, tmp_path / "copy").losses == ()
    with serving(ServerConfig(data=tmp_path / "copy", listen=ANY_PORT)) as server, connect(server.url) as restored:
        assert server.state.store.orphans(server.state.ledger.part_names()) == []
        sizes = []
        for lease in restored.claim("queue/j/in"):
            with lease as split:
                sizes.append(split.payload.data.num_rows)
        assert sizes == [5_000, 5_001, 5_002, 5_003]
    [file] = [part for part in data.glob("parts/*/*") if b"queue/j/in" in part.read_bytes()]
    content = bytearray(file.read_bytes())
    content[10_000] ^= 1
    file.write_bytes(content)
    [loss] = verified(data).losses
    assert "record 1" in loss


def test_a_backup_has_one_moment_while_datasets_change(client: Client, data: Path, tmp_path: Path) -> None:
    """Each path is overwritten all the time, and old parts are deleted at once."""
    stop = threading.Event()

    def overwrite(rounds: int) -> None:
        for n in range(DATASETS):
            client.put(f"store/{n}", numbers(rounds), mode="overwrite")

    def overwrite_all_the_time() -> None:
        rounds = 1
        while not stop.is_set():
            overwrite(rounds := rounds + 1)

    overwrite(1)
    thread = threading.Thread(target=overwrite_all_the_time)
    thread.start()
    try:
        answers = [copied(data, tmp_path / str(number)) for number in range(5)]
    finally:
        stop.set()
        thread.join()
    for number, answer in enumerate(answers):
        assert answer.losses == ()
        config = ServerConfig(data=tmp_path / str(number), listen=ANY_PORT)
        with serving(config) as server, connect(server.url) as restored:
            counts = [restored.get(f"store/{n}").read_all().num_rows for n in range(DATASETS)]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] - counts[-1] in (0, 1), counts


def test_a_part_that_is_deleted_meanwhile_is_no_loss(
    client: Client, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = DiskMedium.copy
    begun: list[str] = []

    def copy_late(self: DiskMedium, name: str, source: DiskMedium) -> None:
        if not begun:
            begun.append(name)
            before = {part for part, _ in source.names()}
            for n in range(DATASETS):
                client.put(f"store/{n}", numbers(1), mode="overwrite")
            eventually(
                lambda: len(before & {part for part, _ in source.names()}) == 1, what="only the topic's part stays"
            )
        copy(self, name, source)

    monkeypatch.setattr(DiskMedium, "copy", copy_late)
    answer = copied(data, tmp_path / "copy")
    assert (answer.losses, answer.rows) == ((), DATASETS + 50)


def test_a_backup_names_what_was_lost_before(client: Client, data: Path, tmp_path: Path) -> None:
    lost = min(data.glob("parts/*/*"))
    lost.unlink()
    (loss,) = copied(data, tmp_path / "copy").losses
    assert lost.name in loss


def test_a_backup_replaces_nothing(client: Client, data: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(AlreadyExists, match="name a new folder"):
        copied(data, tmp_path / "copy")
