"""The server's process, behind a proxy: killed, started again, looked at."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.child import free_port
from tests.chaos.oracle import Usage
from tests.kit.proxy import Proxy
from tests.kit.server import ProcessServer, process_server
from tests.kit.wait import descriptors, threads


class Server:
    """The server's process, killed and started again on one data folder; `hooks` has the files of `hooks.plant`."""

    def __init__(self, folder: Path, proxy: Proxy) -> None:
        """Make it the target of the proxy."""
        self.data, self.hooks = folder / "data", folder / "hooks"
        self.hooks.mkdir()
        proxy.target = free_port()
        self.url = f"grpc://127.0.0.1:{proxy.target}"
        """Its own address, past the proxy."""
        self.settings: dict[str, Any] = {"listen": self.url, "advertise": proxy.url, "drain": 5.0}
        self._stack = ExitStack()
        self._process: ProcessServer | None = None

    @property
    def process(self) -> ProcessServer:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start it where it was before."""
        self._stack.close()
        prelude = f"import pathlib; from tests.chaos.hooks import plant; plant(pathlib.Path({str(self.hooks)!r}))"
        self._process = self._stack.enter_context(process_server(self.data, prelude=prelude, **self.settings))

    def usage(self) -> Usage:
        """Look at what its process uses."""
        pid = self.process.pid
        memory = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        if memory is None:
            raise ProcessLookupError(pid, "it was killed just now")
        return Usage(threads(pid), descriptors(pid), int(memory[1]) * 1024)

    def is_dead(self) -> bool:
        return self.process.process.poll() is not None

    def close(self) -> None:
        self._stack.close()
