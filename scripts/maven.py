"""Jars from Maven Central: mvn fetches what a pom names, once, into a folder."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path


def fetch(what: str, pom: str, target: Path, *, limit: float) -> str | None:
    """Fetch the jars unless they are there, one process at a time; return why they aren't to be had."""
    if target.exists():
        return None
    if shutil.which("mvn") is None:
        return f"the jars of {what} aren't here, nor is mvn, which fetches them: apt install maven"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(target.with_name(f"{target.name}.lock"), "w") as lock,
        tempfile.TemporaryDirectory(dir=target.parent) as folder,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return None
        Path(folder, "pom.xml").write_text(pom)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}/libs"]
        try:
            subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=limit)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as failed:
            text = str(failed.stdout or "")[-500:]
            return f"mvn couldn't fetch {what} from Maven Central within {limit:g} s: {text or failed}"
        Path(folder, "libs").rename(target)
    return None
