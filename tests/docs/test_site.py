"""`make docs`: the pages as a site, each link of which leads somewhere, as a reader sees it in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

from tests.kit import browser
from tests.kit.pages import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: its own, and those of headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    own = set(re.findall(r'<a id="([^"]+)">', text))
    return own | {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_an_anchor_of_it(page: Path) -> None:
    """Links of docs/ stay there: the site has nothing else."""
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target.read_text()), f"{page.name} links to {link}"
        assert page.parent == ROOT or target.is_relative_to(ROOT / "docs"), f"{page.name} links to {link}"


class Links(HTMLParser):
    """The ids of a page, and where its links lead."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {name for name in (values.get("id"), values.get("name")) if name}
        target = values.get("src") or (values.get("href") if tag in ("a", "link") else None)
        if target:
            self.targets.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site, built in a copy of what it is built from."""
    program = Path(sys.executable).with_name("zensical")
    if not program.exists():
        pytest.skip("zensical isn't installed beside this Python")
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ("Makefile", "zensical.toml", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "installed").touch()
    make = ["make", "docs", f"BIN={program.parent}", "STAMP=installed"]
    done = subprocess.run(make, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "site"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[browser.Browser]:
    with browser.running(tmp_path) as opened:
        yield opened


@pytest.mark.process
def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    files = {file: Links(file) for file in site.rglob("*.html") if file.name != "404.html"}
    names = {str(file.relative_to(site).with_suffix("")) for file in files}
    assert names == {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in ROOT.glob("docs/**/*.md")}
    for file, links in files.items():
        for link in links.targets:
            url, anchor = urldefrag(urljoin(file.as_uri(), link))
            if urlsplit(url).scheme != "file":
                continue
            target = Path(unquote(urlsplit(url).path))
            assert target.exists(), f"{file.name} links to {link}"
            if anchor and target in files:
                assert unquote(anchor) in files[target].ids | {"__top"}, f"{file.name} links to {link}"


@pytest.mark.process
def test_every_page_of_the_site_is_in_its_navigation(site: Path) -> None:
    index = site / "index.html"
    linked = {urldefrag(urljoin(index.as_uri(), link))[0] for link in Links(index).targets}
    pages = {file.as_uri() for file in site.rglob("*.html") if file.name not in ("404.html", "index.html")}
    assert pages <= linked, "zensical.toml has no line for these"


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site as a web server has it."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # the base class's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever, name="site")
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.process
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_site(address: str, page: browser.Browser, tmp_path: Path, width: int) -> None:
    """Code as code and tables as tables, on a wide and on a narrow screen; nothing is fetched from elsewhere."""
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    for name in ("index", "guarantees", "deploying", "benchmarks"):
        page.open(f"{address}{name}.html")
        words = page.evaluate(
            "[...document.querySelectorAll('article :is(p, li)')].map(each => each.innerText).join(' ')"
        )
        assert "```" not in words, name
        assert "|---" not in words, name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.open(f"{address}index.html")
    ways = page.evaluate("[...document.querySelectorAll('article h2')].map(each => each.firstChild.textContent)")
    assert ways == ["Data engineer", "ML engineer", "Notebook", "Operator"]
    page.screenshot(tmp_path / "index.png")
    page.open(page.evaluate("document.querySelector('article a[href$=\"comparison.html\"]').href"))
    assert page.evaluate("document.querySelector('h1').firstChild.textContent") == "What to take instead"
    requests = [
        each["params"]["request"]["url"] for each in page.events if each.get("method") == "Network.requestWillBeSent"
    ]
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
    failures = ("Runtime.exceptionThrown", "Network.loadingFailed", "Log.entryAdded")
    assert [each for each in page.events if each.get("method") in failures] == []
