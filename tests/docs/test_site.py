"""The docs site builds without a warning, has every page, and asks no other host for anything."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
# What a browser loads by itself; a link (`a href`) waits for a click.
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}


class LoadedFiles(html.parser.HTMLParser):
    """Collect the addresses that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADED.get(tag, ""))
        self.addresses += [address] if address else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix(".html").as_posix() for path in docs.rglob("*.md")}
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {page.replace("README.html", "index.html") for page in pages} <= built
    assert (site / "llms.txt").read_text() == (docs / "llms.txt").read_text()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        files = LoadedFiles()
        files.feed(page.read_text())
        assert files.addresses
        assert [one for one in files.addresses if urlsplit(one).netloc] == [], page.name
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert styles
    assert not any("url(http" in style or "url(//" in style for style in styles)


def test_the_links_of_llms_txt_are_on_the_site(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert len(links) > 20
    assert [link for link in links if not (site / link).is_file()] == []
