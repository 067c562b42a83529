"""`verify` and `backup`: a drill on a data folder, while its server works."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli import app
from penstock.client.client import Client
from tests.kit.cli import Run


@pytest.fixture
def data(client: Client, tmp_path: Path) -> Path:
    """The data folder of a server that has a dataset and a topic."""
    client.put("store/a", pa.table({"id": range(100)}))
    client.put("topic/t", pa.table({"id": range(50)}))
    return tmp_path / "data"


def test_verify_is_a_drill_that_a_server_does_not_notice(here: Run, client: Client, data: Path) -> None:
    done = here("verify", "--data", str(data))
    assert (done.code, done.err) == (0, "")
    assert b"150 rows" in done.out
    before = sorted(data.glob("parts/*/*"))
    damaged = min(before)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    done = here("verify", "--data", str(data))
    assert done.code == app.FAILED
    assert damaged.name in done.out.decode() + done.err
    assert sorted(data.glob("parts/*/*")) == before
    client.put("store/b", pa.table({"id": [1]}))


def test_a_backup_is_verified_before_it_has_its_name(here: Run, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "monday"
    assert here("backup", str(target), "--data", str(data)).code == 0
    done = here("verify", "--data", str(target), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rows"] == 150
    done = here("backup", str(target), "--data", str(data))
    assert (done.code == 0, "name a new folder" in done.err) == (False, True), done.err


def test_a_backup_is_its_owners_and_verified_read_only(here: Run, data: Path, tmp_path: Path) -> None:
    """It has the key of the tickets; and a snapshot or another's disk may be mounted without a right to write."""
    target = tmp_path / "monday"
    assert here("backup", str(target), "--data", str(data)).code == 0
    assert target.stat().st_mode & 0o077 == 0
    before = sorted(target.rglob("*"))
    assert here("verify", "--data", str(target)).code == 0
    assert sorted(target.rglob("*")) == before, "neither a lock nor a log was made"


def test_verify_says_where_no_data_folder_is(here: Run, tmp_path: Path) -> None:
    done = here("verify", "--data", str(tmp_path / "nowhere"))
    assert done.code != 0
    assert "nowhere" in done.err
