"""docs/deploying.md and docs/deploy/: certificates, unit, image, metrics and backup, as far as this machine goes.

There is no systemd, no container, no Prometheus and no Grafana: what they would run, ask and show is run, asked and
looked up here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.client.client import connect
from penstock.client.lease import Split
from penstock.flight_server.metrics import Gauge
from penstock.flight_server.subscription_figures import gauges_of
from penstock.pipeline import Call, Job, Stage
from penstock.wire.publish import PublishFigures
from scripts.child import free_port
from tests.kit import dead
from tests.kit.cli import serving
from tests.kit.pages import ROOT, blocks
from tests.kit.server import process_server, served

PAGE = "docs/deploying.md"
DEPLOY = ROOT / "docs" / "deploy"
BIN = Path(sys.executable).parent


def shell(lines: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run lines of a page in a folder, with penstock on the PATH, up to the first that fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    environment |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    return subprocess.run(
        ["sh", "-ec", lines], cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the token and the certificates that the page makes."""
    folder = tmp_path_factory.mktemp("secrets")
    for kind in ("sh server", "sh server with clients"):
        *making, serve = blocks(PAGE, kind)[0].splitlines()
        assert serve.startswith("penstock serve ")
        done = shell("\n".join(making), folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("server", "client", "refused"),
    [
        ("sh server", "sh client", lambda lines: lines.replace("$(cat token)", "another")),
        ("sh server with clients", "sh client with a certificate", lambda _: blocks(PAGE, "sh client")[0]),
    ],
)
def test_certificates_are_set_up_word_for_word(
    server: str, client: str, refused: Callable[[str], str], secrets: Path, tmp_path: Path
) -> None:
    """Without certificates for clients the token is asked for; with them those who have none are refused."""
    port = str(free_port())
    serve = blocks(PAGE, server)[0].splitlines()[-1].replace("0.0.0.0:8815", f"127.0.0.1:{port}")
    flags = [str(secrets / word) if word.endswith(".pem") or word == "token" else word for word in serve.split()[2:]]
    [lines] = blocks(PAGE, client)
    with serving(tmp_path / "log", *flags, "--http", "off", "--data", str(tmp_path / "data")):
        for each, works in ((lines, True), (refused(lines), False)):
            assert each.count("8815") == 1
            done = shell(each.replace("8815", port), secrets)
            assert (done.returncode == 0) == works, done.stderr


# --- unit, image, scrape --------------------------------------------------------------------


def unit() -> dict[str, str]:
    """Return the settings of the unit's [Service]."""
    text = (DEPLOY / "penstock.service").read_text().replace("\\\n", " ")
    section = text.partition("[Service]\n")[2].partition("\n[")[0]
    return dict(line.split("=", 1) for line in section.splitlines() if line and not line.startswith("#"))


def instructions() -> list[tuple[str, str]]:
    """Return the lines of the Containerfile, as instruction and arguments."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def arguments(instruction: str) -> list[str]:
    """Return the words of an instruction in JSON."""
    [words] = [rest for name, rest in instructions() if name == instruction]
    return list(map(str, json.loads(words.removeprefix("CMD "))))


@pytest.mark.process
@pytest.mark.timeout(300)
def test_unit_and_image_run_a_server_that_prometheus_can_ask(secrets: Path, tmp_path: Path) -> None:
    """The one command line of both, with this test's folders and ports; then the image's health check and its end."""
    command = shlex.split(unit()["ExecStart"])
    assert command[0] == "/opt/penstock/bin/penstock"
    assert ["penstock", *command[1:]] == [*arguments("ENTRYPOINT"), *arguments("CMD")]
    flight, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    places = {
        "/var/lib/penstock": str(tmp_path / "data"), "/etc/penstock": str(secrets),
        "0.0.0.0:8815": flight, "0.0.0.0:8816": http, "127.0.0.1:8816": http, "localhost:8816": http,
        "/etc/prometheus/penstock": str(secrets),
    }  # fmt: skip

    def here(text: str) -> str:
        for place, ours in places.items():
            text = text.replace(place, ours)
        return text

    with serving(tmp_path / "log", *map(here, command[2:])) as server:
        client = blocks(PAGE, "sh client with a certificate")[0].replace("localhost:8815", flight)
        done = shell(client + "echo '{\"x\": 1}' | penstock put topic/named -", secrets)
        assert done.returncode == 0, done.stderr
        _, *check = arguments("HEALTHCHECK")
        assert subprocess.run([sys.executable, *map(here, check)], timeout=60, check=False).returncode == 0
        [job] = yaml.safe_load(here((DEPLOY / "prometheus.yml").read_text()))["scrape_configs"]
        [target] = job["static_configs"][0]["targets"]
        request = urllib.request.Request(f"{job['scheme']}://{target}/metrics")
        request.add_header(
            "Authorization", f"Bearer {Path(job['authorization']['credentials_file']).read_text().strip()}"
        )
        trust = ssl.create_default_context(cafile=job["tls_config"]["ca_file"])
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
            families = {family.name for family in text_string_to_metric_families(answer.read().decode())}
        assert "penstock_topic_rows" in families, "the token shows what has names"
        server.process.send_signal(getattr(signal, dict(instructions())["STOPSIGNAL"]))
        assert server.process.wait(60) == 0


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    drain = 30  # seconds, the default of --drain
    assert int(unit()["TimeoutStopSec"]) > drain
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze on the PATH")
    text = (DEPLOY / "penstock.service").read_text().replace("/opt/penstock/bin/penstock", sys.executable)
    (tmp_path / "penstock.service").write_text(text)
    done = subprocess.run(
        [program, "verify", "--man=no", str(tmp_path / "penstock.service")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if "penstock.service" in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_image_copies_what_is_there() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
             "ENTRYPOINT", "CMD"}  # fmt: skip
    assert {name for name, _ in instructions()} <= known
    copied = {
        word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    }
    assert all((ROOT / word).exists() for word in copied)
    assert {"pyproject.toml", "constraints.txt", "docs", "penstock"} <= copied, "what pip needs to install a checkout"


def checkout(folder: Path) -> Path:
    """Copy what the image copies, without what the tools make."""
    for name, rest in instructions():
        if name == "COPY" and "--from" not in rest:
            for word in rest.split()[:-1]:
                if (ROOT / word).is_dir():
                    shutil.copytree(ROOT / word, folder / word, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / word, folder)
    return folder


@pytest.mark.soak  # pip downloads what it installs
@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_image_is_installed_in_a_clean_folder(tmp_path: Path) -> None:
    """Its RUN lines in order, but for the one that adds a user of the image."""
    (tmp_path / "src").mkdir()
    source = checkout(tmp_path / "src")
    for name, rest in instructions():
        if name == "RUN" and not rest.startswith("useradd"):
            line = rest.replace("/opt/penstock", str(tmp_path / "opt"))
            done = subprocess.run(
                ["sh", "-ec", line], cwd=source, capture_output=True, text=True, timeout=500, check=False
            )
            assert done.returncode == 0, done.stderr
    help_text = subprocess.run(
        [tmp_path / "opt/bin/penstock", "serve", "--help"], capture_output=True, timeout=60, check=True
    )
    assert b"--client-ca" in help_text.stdout


@pytest.mark.soak  # pip downloads what it installs
@pytest.mark.process
@pytest.mark.timeout(600)
def test_the_first_minute_runs_as_it_stands(tmp_path: Path) -> None:
    """From a clone to the first table out: docs/index.md, with another port."""
    (tmp_path / "penstock").mkdir()
    checkout(tmp_path / "penstock")
    address = f"grpc://127.0.0.1:{free_port()}"
    [lines] = blocks("docs/index.md", "sh first minute")
    done = shell(
        f"trap 'kill $!' EXIT\n{lines}", tmp_path, PENSTOCK_LISTEN=address, PENSTOCK_URL=address, PENSTOCK_HTTP="off",
        PATH=os.environ["PATH"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Bergen" in done.stdout


# --- metrics --------------------------------------------------------------------------------

Labels = dict[str, set[str]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Labels:
    """Every metric of a server, by its name, with its labels.

    A topic, its consumer, a queue and a job are real; the figures of a subscription and of what is published are not,
    as both need Pub/Sub.
    """
    labels: Labels = {}

    def note(gauges: Iterable[Gauge]) -> None:
        for gauge in gauges:
            labels.setdefault(gauge.name, set()).update(gauge.labels)

    with served(tmp_path_factory.mktemp("known") / "data") as server, connect(server.url) as client:
        registry = server.state.metrics._registry

        def look(_: Split) -> None:
            for family in registry.collect():
                note(Gauge(sample.name, "", 0, sample.labels) for sample in family.samples)

        dead.put(client, *dead.PAYLOADS)
        dead.Consumer(client).commit(len(dead.PAYLOADS))
        dead.looked_at(server)
        job = Job("known", url=server.url)
        job.stage(Stage("in", [pa.table({"x": [1]})]))
        job.stage(Stage("look", Call(look)), after="in")
        job.run()
        for collector, names in registry._collector_to_names.items():
            for name in [name for name in names if name.endswith(("_total", "_bucket", "_sum", "_count"))]:
                labels.setdefault(name, set()).update(getattr(collector, "_labelnames", ()))
                if name.endswith("_bucket"):
                    labels[name].add("le")
        figures: Any = SimpleNamespace(
            pullers=(), duplicates={"redelivery": 1}, bytes_per_second=0.0, unreleased_rows=0, unreleased_bytes=0, ids=0
        )
        note(gauges_of("subscription/p/s", figures))
        publish: Any = server.state.kinds["publish"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(publish, "_figures", lambda: {"publish/p/t": PublishFigures()})
            note(publish._gauges())
    return labels


def unknown(query: str, legend: str, known: Labels) -> list[str]:
    """Return what a query of a dashboard names that no server has."""
    [metric] = set(re.findall(r"\bpenstock_\w+", query)) or {""}
    if metric not in known:
        return [metric or query]
    named = {label for label, _ in re.findall(r"(\w+)\s*(=~|!~|!=|=)\s*\"", query)}
    kept = known[metric] | {"instance"}
    for group in re.findall(r"\bby\s*\(([^)]*)\)", query):
        kept = set(re.findall(r"\w+", group))
        named |= kept
    wrong = named - known[metric] - {"instance"}
    return sorted(wrong | (set(re.findall(r"\{\{(\w+)\}\}", legend)) - kept))


@pytest.mark.parametrize(
    ("query", "legend", "wrong"),
    [
        ("rate(penstock_rows_total[5m])", "{{way}}", []),
        ("rate(penstock_rows[5m])", "", ["penstock_rows"]),
        ('penstock_topic_rows{queue="x"}', "", ["queue"]),
        ("sum by (verb, how) (penstock_calls_total)", "{{verb}}", ["how"]),
        ("sum by (verb) (penstock_errors_total)", "{{code}}", ["code"]),
        ("histogram_quantile(0.9, sum by (le, verb) (rate(penstock_call_seconds_bucket[5m])))", "{{verb}}", []),
        ("penstock_job_workers", "{{job}} {{stage}} {{topic}}", ["topic"]),
    ],
)
def test_a_wrong_name_in_a_query_is_found(query: str, legend: str, wrong: list[str], known: Labels) -> None:
    assert unknown(query, legend, known) == wrong


def test_the_dashboard_shows_metrics_that_there_are(known: Labels) -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    variables = {each["name"]: each for each in board["templating"]["list"]}
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) > 20
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels:
        for target in panel["targets"]:
            assert unknown(target["expr"], target["legendFormat"], known) == [], panel["title"]
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= set(variables), panel["title"]
    for each in variables.values():
        if each["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"]).groups()  # type: ignore[union-attr]
            assert label in known[metric] | {"instance"}


def test_the_pages_name_metrics_that_there_are(known: Labels) -> None:
    for page in ("operating", "jobs", "pubsub"):
        for name in re.findall(r"`(penstock_\w+)[`{]", (ROOT / f"docs/{page}.md").read_text()):
            assert name in known or f"{name}_bucket" in known, page


def test_prometheus_keeps_the_names_of_jobs(known: Labels) -> None:
    """Its own label is called `job`, too: without this it would call penstock's `exported_job`."""
    assert "job" in known["penstock_job_workers"]
    [job] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert job["honor_labels"] is True


# --- backup ---------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_backup_drill_runs_word_for_word(tmp_path: Path) -> None:
    """On a server whose folder is elsewhere."""
    [lines] = blocks(PAGE, "sh drill")
    assert lines.count("/var/lib/penstock") == 1
    lines = lines.replace("/var/lib/penstock", str(tmp_path / "data")).replace("/mnt/backup", str(tmp_path))
    lines = lines.replace("127.0.0.1:8825", f"127.0.0.1:{free_port()}")
    (tmp_path / "drill").mkdir()
    with process_server(tmp_path / "data") as server:
        done = shell(lines, tmp_path / "drill", PENSTOCK_URL=server.url)
    assert done.returncode == 0, done.stdout + done.stderr
    compared = re.findall(r"^(\S+) is in the backup$", done.stdout, re.MULTILINE)
    assert compared == ["store/drill/cities", "topic/drill"]
