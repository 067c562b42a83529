"""`ls`, `show`, `rm`, `redrive` and `top` of queues."""

from __future__ import annotations

import pytest

from penstock.cli import app
from penstock.client.client import Client
from penstock.flight_server.server import PenstockServer
from tests.kit.cli import Run
from tests.kit.queues import IN, OUT, numbered, states


def set_aside(client: Client) -> None:
    """Let the first message be dead, claim the second, and leave the third."""
    client.push(IN, numbered(1, 2, 3))
    leases = []
    for lease in client.claim(IN, prefetch=0):
        leases.append(lease)
        if len(leases) == 2:
            break
    with leases[0]:
        leases[0].drop("no use for 1")
    leases[1].ack()


def test_queues_are_listed_with_their_counts(here: Run, client: Client) -> None:
    set_aside(client)
    client.push(OUT, numbered(1), finish=True)
    heads, first, second = here("ls", "queue").text.splitlines()
    assert heads.split() == ["queue", "pending", "claimed", "done", "dead", "size", "oldest"]
    assert first.split()[:5] == [IN, "1", "0", "1", "1"]
    assert first.endswith("open")
    assert second.split()[:5] == [OUT, "1", "0", "0", "0"]
    assert "no queue here" in here("rm", "-y", IN, OUT, "-r").err + here("ls", "queue").err


def test_show_tells_a_queue(here: Run, client: Client) -> None:
    set_aside(client)
    text = here("show", IN).text
    for words in ("state", "open", "pending", "done/s", "1 upstream", "put"):
        assert words in text
    assert here("show", "--json", IN).json[0]["queue"]["counts"]["dead"] == 1


def test_dead_messages_are_listed_and_redriven(here: Run, client: Client) -> None:
    set_aside(client)
    heads, line = here("ls", f"{IN}/dead").text.splitlines()
    assert heads.split() == ["message", "error", "text", "tries", "worker", "dead", "for"]
    assert "Dropped  no use for 1" in line
    assert here("ls", "--json", f"{IN}/dead").json[0]["tries"] == 1
    name = line.split()[0]
    assert here("redrive", IN, "other").text == f"0 messages of {IN} may be claimed again\n"
    assert here("redrive", IN, name).text == f"1 message of {IN} may be claimed again\n"
    assert states(client) == (2, 0, 1, 0)
    assert here("redrive", "--json", IN).json == [{"path": IN, "messages": 0}]
    assert here("redrive", "queue/none").code == app.NOT_FOUND


def test_rm_removes_a_queue(here: Run, client: Client) -> None:
    set_aside(client)
    assert here("rm", "-y", IN).text.startswith(f"deleted {IN}: 3 messages, ")
    assert here("show", IN).code == app.NOT_FOUND


def test_top_shows_queues(here: Run, client: Client) -> None:
    set_aside(client)
    line = here("top").text.splitlines()[1]
    assert line.split()[:5] == [IN, "1", "0", "1", "1"]


@pytest.mark.parametrize("names", [True, False])
def test_metrics_show_queues(names: bool, client: Client, server: PenstockServer) -> None:
    set_aside(client)
    page = server.state.metrics.text(names=names)
    assert (f'penstock_queue_messages{{queue="{IN}",state="dead"}} 1.0' in page) is names
    assert (f'penstock_queue_oldest_seconds{{queue="{IN}"}}' in page) is names
    assert 'penstock_leases_total{how="drop"} 1.0' in page
