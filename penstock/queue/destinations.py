"""What finished writes become, by the first name of their path, and all tables of a server's ledger."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.ledger import datasets, jobs, publications, tables
from penstock.ledger.writes import Destination
from penstock.queue.pubsub import registry
from penstock.queue.topics import dead, journal, producers, revisions
from penstock.queue.work import messages, queues, records
from penstock.store import payload_table
from penstock.store.database import Tables

DESTINATIONS: Mapping[str, Destination] = {"store": datasets, "topic": journal, "publish": publications}
TABLES: tuple[Tables, ...] = (
    tables.TABLES,
    journal.TABLES,
    producers.TABLES,
    dead.TABLES,
    revisions.TABLES,
    registry.TABLES,
    payload_table.TABLES,
    queues.TABLES,
    messages.TABLES,
    jobs.TABLES,
    records.TABLES,
)
