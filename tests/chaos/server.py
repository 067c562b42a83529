"""The server's process, behind a proxy: killed, started again, looked at."""

from __future__ import annotations

import contextlib
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from tests.chaos.driver import TOPIC
from tests.chaos.ledger import Sample
from tests.kit.proxy import Proxy
from tests.kit.server import ProcessServer, free_port, process_server
from tests.kit.wait import descriptors, threads
from tests.kit.wire import call


class Server:
    """The server's process, killed and started again on one data folder; `hooks` has the files of chaos_hooks."""

    def __init__(self, folder: Path, wire: Proxy) -> None:
        """Where `wire` leads to."""
        self.data, self.hooks = folder / "data", folder / "hooks"
        self.hooks.mkdir()
        wire.target = free_port()
        self.url = f"grpc://127.0.0.1:{wire.target}"
        self._settings: dict[str, Any] = {"listen": self.url, "advertise": wire.url, "drain": 5.0}
        self._stack = ExitStack()
        self._process: ProcessServer | None = None

    @property
    def process(self) -> ProcessServer:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Where it was before."""
        self._stack.close()
        prelude = f"import pathlib; from tests.chaos.hooks import plant; plant(pathlib.Path({str(self.hooks)!r}))"
        self._process = self._stack.enter_context(process_server(self.data, prelude=prelude, **self._settings))

    def look(self, sink: str, timeout: float = 60) -> Sample:
        """Positions, then what has landed, then the process."""
        with flight.connect(self.url) as bare:
            options = flight.FlightCallOptions(timeout=timeout)
            consumers = call(bare, "describe", options, path=TOPIC)["consumers"]
            landed = 0
            with contextlib.suppress(flight.FlightServerError, KeyError):  # there is no dataset yet
                landed = call(bare, "describe", options, path=sink)["rows"]
        positions = {
            each["consumer"]: {int(shard): offset for shard, offset in each["position"].items()} for each in consumers
        }
        pid = self.process.pid
        memory = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        if memory is None:
            raise ProcessLookupError(pid, "it was killed just now")
        return Sample(positions, landed, threads(pid), descriptors(pid), int(memory[1]) * 1024)

    def is_dead(self) -> bool:
        return self.process.process.poll() is not None

    def close(self) -> None:
        self._stack.close()
