"""A headless Chromium, spoken to by its DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
_EXEC = """import os, sys
os.dup2(int(sys.argv[1]), 3), os.dup2(int(sys.argv[2]), 4)  # the numbers that the protocol has
os.execvp(sys.argv[3], sys.argv[3:])"""


class Browser:
    """One page of a browser."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = os.fdopen(to, "wb", buffering=0), os.fdopen(back, "rb", buffering=0)
        self._number, self._rest = 0, b""
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        """What the page has told, such as its requests."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        self._to.write(json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path | str) -> None:
        """Show a file or an address, and wait until it is there."""
        before = len(self.events)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[before:]):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> Path:
        """Write what is seen as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))
        return file

    def close(self) -> None:
        """Let go of the pipes, which ends the browser."""
        self._to.close()
        self._back.close()

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._back.read(1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def running(folder: Path) -> Iterator[Browser]:
    """Run a browser with its profile in a new folder; a machine without one skips the test."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium or Chrome on the PATH: `sh scripts/browser.sh` installs it, or says how")
    theirs_in, to = os.pipe()
    back, theirs_out = os.pipe()
    command = [
        sys.executable,
        "-c",
        _EXEC,
        str(theirs_in),
        str(theirs_out),
        program,
        *FLAGS,
        f"--user-data-dir={folder}",
    ]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(theirs_in, theirs_out),
            start_new_session=True, env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
    os.close(theirs_in)
    os.close(theirs_out)
    browser = None
    try:
        browser = Browser(to, back)
        yield browser
    finally:
        if browser is not None:
            browser.close()
        os.killpg(process.pid, signal.SIGKILL)  # its children, too
        process.wait()
