"""The Java of this machine, which Spark and the Pub/Sub emulator need."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path


def program() -> str:
    """Return the program: that of JAVA_HOME, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def missing(what: str, oldest: int) -> str | None:
    """Return why something doesn't run with this Java, and the cure."""
    java = program()
    try:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        version = ""
    match = re.search(r'version "(?:1\.)?(\d+)', version)  # 8 called itself 1.8
    if match is not None and int(match[1]) >= oldest:
        return None
    has = f"{java} is {match[1]}" if match else f"no {java}"
    return f"{what} needs Java {oldest} or newer, {has}: `sh scripts/java.sh` installs it, or says how"
