"""Run the Spark tests on each Spark, in an environment of its own, and write docs/compatibility.md from what came out.

    python scripts/spark_matrix.py [VERSION …] [pytest's options]

The page is written where all versions ran whole. An environment borrows everything but pyspark from this Python's.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
HOMES = ROOT / ".venv-spark"
PAGE = ROOT / "docs" / "compatibility.md"
PINS = {"3.5": "3.5.9", "4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1", "4.3": "4.3.0"}
PACKAGES = ("pyarrow", "pandas", "numpy")
SOCKETS = "ignore:unclosed <socket:ResourceWarning"  # what collect leaves open
WARNED = {  # by a Spark's own code; any other warning is an error, as in all tests
    "3.5": [SOCKETS, "ignore:distutils Version classes are deprecated:DeprecationWarning"],  # as it looks at pandas
    "4.0": [SOCKETS],
    "4.1": [SOCKETS],
}
STATES = ("passed", "failed", "skipped")


@dataclass
class Outcome:
    """What came out on one Spark."""

    version: str
    facts: dict[str, Any]
    seconds: float = 0.0
    areas: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> Counter[str]:
        """The tests of all areas."""
        return sum(self.areas.values(), Counter())

    @property
    def right(self) -> bool:
        """Whether there were tests, and none failed."""
        return self.total["passed"] > 0 and not self.total["failed"]


def main() -> int:
    """Run the versions that were named, or all; 1 if a test failed or none ran."""
    if sys.argv[1:] == ["--probe"]:
        print(json.dumps(probe()))
        return 0
    versions = [word for word in sys.argv[1:] if word in PINS]
    options = [word for word in sys.argv[1:] if word not in PINS]
    if options and re.fullmatch(r"[\d.]+", options[0]):
        raise SystemExit(f"no Spark {options[0]} here; there are {', '.join(PINS)}")
    if java() == "none":
        raise SystemExit("Spark needs Java 17 or newer, there is none here: `make setup` says how to get it")
    outcomes = [tested(version, options) for version in versions or PINS]
    for each in outcomes:
        print(f"Spark {each.version}: {format_counts(each.total)}, {each.seconds:.0f} s")
    if not versions and not options:
        PAGE.write_text(page(outcomes))
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 0 if all(each.right for each in outcomes) else 1


def tested(version: str, options: list[str]) -> Outcome:
    """The tests marked `spark`, on one Spark; but the benchmarks', which are of the newest."""
    python, report = environment(version), HOMES / f"{version}.xml"
    done = subprocess.run([python, __file__, "--probe"], check=True, capture_output=True, text=True)
    outcome = Outcome(version, json.loads(done.stdout))
    print(f"== Spark {outcome.facts['pyspark']}, Java {outcome.facts['Java']}", flush=True)
    report.unlink(missing_ok=True)
    clean = {name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "PYTHONPATH"}}
    warned = [part for each in WARNED.get(version, []) for part in ("-W", each)]
    began = time.monotonic()
    subprocess.run(
        [python, "-m", "pytest", "-q", "-m", "spark", "-n", os.environ.get("PYTEST_WORKERS", "2"), "-r", "fE",
         "-p", "no:cacheprovider", "--ignore-glob=*/test_bench*", f"--junit-xml={report}", *warned, *options],
        cwd=ROOT, env=clean, check=False,
    )  # fmt: skip
    outcome.seconds = time.monotonic() - began
    if report.exists():
        count(report, outcome)
    return outcome


def environment(version: str) -> Path:
    """The Python that has this Spark, made where it isn't there: a venv with pyspark that sees our packages behind."""
    home, pin = HOMES / version, PINS[version]
    python, stamp = home / "bin" / "python", home / "made-of"
    behind = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    made_of = f"pyspark {pin}, Python {sys.version}, {behind}"
    if stamp.exists() and stamp.read_text() == made_of:
        return python
    print(f"== Spark {pin}: making {home.relative_to(ROOT)} (about a minute)", flush=True)
    venv.create(home, clear=True, symlinks=True)
    packages = next(home.glob("lib/python*/site-packages"))
    (packages / "behind.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in behind))
    if importlib.metadata.version("pyspark") != pin:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python)]
        subprocess.run([*pip, "install", "--no-build-isolation", "--use-pep517", f"pyspark=={pin}"], check=True)
    stamp.write_text(made_of)
    return python


def probe() -> dict[str, Any]:
    """What this Python and its Spark are and have, without starting it."""
    import pyspark
    from pyspark.sql import DataFrame, types

    source: Any = None
    if importlib.util.find_spec("pyspark.sql.datasource"):
        source = importlib.import_module("pyspark.sql.datasource")
    jars = Path(str(pyspark.__file__)).parent / "jars"
    return {
        "pyspark": pyspark.__version__,
        "Java": java(),
        "Python": sys.version.split()[0],
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "has": {
            'Python data sources: `format("penstock")`': source is not None,
            "filters pushed down to them": hasattr(getattr(source, "DataSourceReader", None), "pushFilters"),
            "Connect's server within pip's package": any(jars.glob("spark-connect_*.jar")),
            "`DataFrame.toArrow`": hasattr(DataFrame, "toArrow"),
            "type `variant`": hasattr(types, "VariantType"),
            "type `time`": hasattr(types, "TimeType"),
        },
    }


def java() -> str:
    """The version of the Java that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    try:
        version = subprocess.run(
            [Path(home, "bin", "java") if home else "java", "-version"], capture_output=True, text=True, check=False
        ).stderr
    except OSError:
        return "none"
    match = re.search(r'version "([^"]+)"', version)
    return match[1] if match else "unknown"


def count(report: Path, outcome: Outcome) -> None:
    """Add up pytest's report; an area is a file of tests."""
    for case in ET.parse(report).iter("testcase"):
        module = case.get("classname") or case.get("name") or ""  # the name is a file's that was skipped as a whole
        names = module.removeprefix("tests.").split(".")
        area = next((name for name in names if name.startswith("test_")), names[0]).removeprefix("test_")
        skipped = case.find("skipped")
        if skipped is not None:
            outcome.areas[area]["skipped"] += 1
            outcome.skipped[reason(skipped)] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome.areas[area]["failed"] += 1
        else:
            outcome.areas[area]["passed"] += 1


def reason(skipped: ET.Element) -> str:
    """Why a test, or a file of them, was skipped."""
    message = skipped.get("message", "")
    if message == "collection skipped":
        message = str(ast.literal_eval(skipped.text or "")[2])
    return message.removeprefix("Skipped: ")


def format_counts(counts: Counter[str]) -> str:
    """`12 passed, 1 skipped`."""
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]) or "none ran"


def page(outcomes: list[Outcome]) -> str:
    """docs/compatibility.md."""
    today = f"{datetime.now(UTC):%d %B %Y}".lstrip("0")
    areas = sorted({area for each in outcomes for area in each.areas})
    features = list(outcomes[0].facts["has"])
    rows = [
        ["", *(f"Spark {each.version}" for each in outcomes)],
        ["---", *("---" for _ in outcomes)],
        *([name, *(each.facts[name] for each in outcomes)] for name in ("pyspark", "Java", "Python", *PACKAGES)),
        *([name, *("yes" if each.facts["has"][name] else "no" for each in outcomes)] for name in features),
        *([f"tests: {area}", *(format_counts(each.areas[area]) for each in outcomes)] for area in areas),
        ["**all tests**", *(f"**{format_counts(each.total)}**" for each in outcomes)],
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""# Compatibility

Written by `make test-spark-matrix` on {today}. A column is an environment of its own, in which the tests
marked `spark` ran against a real Spark; a row `tests: x` is the file `test_x.py` below `tests/`.

{table}

{skips(outcomes)}## What else is known

- **Java**: 17 runs every Spark here. 25 runs 4.2 and newer: 3.5 and 4.0 don't start on it, 4.1 fails in its tasks.
- **pandas** is what mapInArrow looks for at the driver; from 3 on PySpark 4.2 and 4.3 warn, so penstock's extra asks
  for 2. Executors need pyarrow alone.
- **3.5**: don't install `pyspark[sql]` or `pyspark[connect]`: they ask for numpy 1, which pyarrow refuses;
  `penstock-flight[spark]` doesn't. On Python 3.12 and newer it also needs `setuptools`, for `distutils`.
  Python data sources came with 4.0: there `penstock.write` and `penstock.read` are the way. Its Connect server is no
  part of pip's package, so no test here starts it; by hand, with Maven's spark-connect 3.5.7, write, read, do_put,
  do_get and a frame without rows did what they do elsewhere.
"""


def skips(outcomes: list[Outcome]) -> str:
    """Why tests were skipped, and on which versions."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for each in outcomes:
        for reason, times in each.skipped.items():
            reasons[reason].append(f"{each.version} ({times})")
    lines = [f"- {reason}: {', '.join(versions)}\n" for reason, versions in sorted(reasons.items())]
    return f"## Skipped, and why\n\n{''.join(lines)}\n" if lines else ""


if __name__ == "__main__":
    raise SystemExit(main())
