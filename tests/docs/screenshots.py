"""Make the pictures of the documents: `make screenshots`. They show twins, and say so; a minute or two.

`python -m tests.docs.screenshots --look DIR` takes every page, with cost and CO2e, in light, in dark and 400 pixels
wide into DIR instead, long pages in parts; `--only run,study` takes some of them. `--studies DIR` keeps the studies
there, and uses those of an earlier call.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.conftest import CHROMIUM
from tests.waiting import until

from joulelab.store.manifest import write_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
JOULELAB = [sys.executable, "-m", "joulelab"]
WIDE, HIGH = 1280, 860
LOOKS = (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("400", 400, "light"))  # name, width, colours
PART_HIGH, MOST_PARTS = 2000, 6  # pixels of a picture; parts of a long page
DOCS_SITE = ROOT / ".docs-site"
DOCS_PAGES = {"docs": "index", "docs-quick-start": "quick-start/ml-engineer", "docs-how-to": "how-to/serve"}
DOCS_PAGES |= {"docs-reference": "reference/messages"}
SITE = '[site]\nzone = "DE"\nprice = "0.30 EUR"\npue = 1.2\n'
SIZE = "() => [document.documentElement.scrollWidth - innerWidth, document.documentElement.scrollHeight]"
SCROLLED = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.ariaLabel)"
COLUMNS = 88
WATCHED_S = 24  # what the terminal view has seen when it is shown
TERMINAL = (
    "<html><body style='margin:0;background:#16181d;display:inline-block'>"
    "<pre style='font:15px/1.25 DejaVu Sans Mono,monospace;color:#d7dae0;padding:18px 22px;margin:0'>{code}</pre>"
    "</body></html>"
)


def joulelab(*words: str | Path) -> str:
    """Run a command of ours and return what it printed."""
    done = subprocess.run([*JOULELAB, *map(str, words)], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def set_site(folder: Path) -> None:
    """Set a site for the commands that follow, so that pages have cost and CO2e."""
    file = folder / "joulelab.toml"
    file.write_text(SITE)
    os.environ["JOULELAB_CONFIG"] = str(file)


def studies(folder: Path) -> None:
    """Run the papers' studies on their twins, into a store of studies."""
    for name, twin in (("gdansk", "gdansk-rtx6000"), ("bnl", "bnl-h100")):
        if not (folder / f"{name}-{twin}").exists():
            joulelab("study", "run", ROOT / "studies" / f"{name}.toml", "--twin", twin, "--studies", folder)


def runs_of(study: Path, *caps: str) -> list[Path]:
    """Return the first run of each cell of a study, those whose command has all of these words."""
    found = []
    for slot in sorted(study.glob("cells/*/r01")):
        run = next((p.parent for p in slot.glob("*/run.json")), None)
        if run is not None and all(cap in (run / "run.json").read_text() for cap in caps):
            found.append(run)
    return found


def as_one_of_its_own(run: Path) -> None:
    """Name a copy of a slot's run as its user would have: by its workload and settings."""
    meta = json.loads((run / "run.json").read_text())
    kept = {k: v for k, v in meta["labels"].items() if k not in ("study", "cell", "slot", "node_type", "workload")}
    name = " ".join([meta["labels"]["workload"], *kept.values()])
    (run / "run.json").write_text(json.dumps({**meta, "name": name, "labels": kept}))
    write_manifest(run, {}, ["run.json"])  # else the copy is damaged


@contextmanager
def dashboard(runs: Path, store: Path) -> Iterator[str]:
    """Serve both stores; give the address."""
    command = [*JOULELAB, "dashboard", str(runs), "--studies", str(store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            line = next(line for line in server.stdout if "http://" in line)
            yield next(word for word in line.split() if word.startswith("http://")).rstrip(".,")
        finally:
            server.terminate()


def picture(browser: Browser, address: str, name: str, *, scheme: str = "light", scroll: str = "") -> None:
    """Take a picture of a page as it is first seen, or from an element on."""
    page = browser.new_page(viewport={"width": WIDE, "height": HIGH}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address)
    page.wait_for_timeout(1500)
    page.wait_for_function("() => !document.body.innerText.includes('still being read')", timeout=240_000)
    if scroll:
        page.locator(scroll).first.evaluate("element => element.scrollIntoView()")
        page.wait_for_timeout(300)
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()


def take_looks(browser: Browser, pages: dict[str, str], folder: Path) -> None:
    """Take pages in every look; print what reaches out of a page, and which tables are scrolled."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, address in pages.items():
        for look, width, scheme in LOOKS:
            page = browser.new_page(viewport={"width": width, "height": HIGH}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(address)
            page.wait_for_timeout(1500)
            if name == "list-selected":
                for box in page.locator("input[name=run]").all()[:3]:
                    box.check()
                page.locator("#sums dt").first.wait_for()
            beyond, high = page.evaluate(SIZE)
            for top in (*range(0, high, HIGH), 0):  # charts of power are drawn when they come into view
                page.evaluate("top => scrollTo(0, top)", top)
                page.wait_for_timeout(100)
            for part in range(min(-(-high // PART_HIGH), MOST_PARTS)):
                top = part * PART_HIGH
                clip = {"x": 0, "y": top, "width": width, "height": min(high - top, PART_HIGH)}
                file = folder / f"{name}-{look}{f'-{part + 1}' if part else ''}.png"
                page.screenshot(path=file, full_page=True, clip=clip)  # type: ignore[arg-type]
            scrolled = page.locator(".scroll").evaluate_all(SCROLLED)
            print(f"{name}-{look}: {high} px high, {max(beyond, 0)} px beyond;", *scrolled)
            page.close()


def terminal(browser: Browser, folder: Path) -> None:
    """Take a picture of `joulelab watch` beside a simulated training."""
    from rich.console import Console
    from rich.text import Text

    job = [sys.executable, "-m", "joulelab.twin.job", "--workload", "resnet152-cifar10"]
    job += ["--gpus", "8", "--set", "epochs=200", "--scale", "0.01"]
    store = folder / "live"
    run = [*JOULELAB, "run", "-q", "--runs", str(store), "--name", "resnet152", "--", *job]
    with subprocess.Popen(
        [*JOULELAB, "twin", "bnl-h100", "--idle", "--", *run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as going:
        try:
            until(lambda: any((run / "run.json").exists() for run in store.glob("2*")))
            time.sleep(WATCHED_S)
            environ = os.environ | {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
            command = [*JOULELAB, "watch", "--once", "--runs", str(store)]
            seen = subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout
        finally:
            going.terminate()
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115 - ours until the end
    console.print(Text.from_ansi(seen))
    page = browser.new_page(viewport={"width": WIDE, "height": HIGH}, device_scale_factor=1)
    page.set_content(console.export_html(code_format=TERMINAL, inline_styles=True))
    page.locator("body").screenshot(path=IMAGES / "watch.png")
    page.close()


def main() -> None:
    """Make all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=Path)
    parser.add_argument("--look", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","))
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        sys.exit("no chromium here: apt install chromium")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as started:
        folder = Path(name)
        store, runs = given.studies or folder / "studies", folder / "runs"
        studies(store)
        runs.mkdir()
        if given.look:
            set_site(folder)
        trainings = [run for study in sorted(store.iterdir()) for run in runs_of(study)[:12]]
        for run in trainings:
            as_one_of_its_own(shutil.copytree(run, runs / run.name))
        joulelab("ls", "--runs", runs)  # works out what the list shows
        small, large = (runs_of(store / "bnl-bnl-h100", word)[0] for word in ("batch=512", "batch=4096"))
        report, comparison, study = (folder / f"{n}.html" for n in ("run", "comparison", "study"))
        joulelab("report", small, "-o", report)
        joulelab("report", small, large, "-o", comparison)
        joulelab("report", store / "gdansk-gdansk-rtx6000", "-o", study)
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        with dashboard(runs, store) as address:
            if given.look:
                pages = {"run": report.as_uri(), "comparison": comparison.as_uri(), "study": study.as_uri()}
                pages |= {"list": address, "list-selected": address, "studies": f"{address}studies"}
                pages |= {"list-study": f"{address}studies/bnl-bnl-h100"}
                if DOCS_SITE.exists():
                    pages |= {name: (DOCS_SITE / f"{page}.html").as_uri() for name, page in DOCS_PAGES.items()}
                pages = {name: page for name, page in pages.items() if given.only is None or name in given.only}
                take_looks(browser, pages, given.look)
                return
            picture(browser, address, "dashboard")
        picture(browser, report.as_uri(), "report-run", scroll="#power")
        picture(browser, comparison.as_uri(), "report-comparison", scheme="dark")
        picture(browser, study.as_uri(), "report-study", scroll="#metrics")
        terminal(browser, folder)
        browser.close()
    print(*sorted(path.relative_to(ROOT) for path in IMAGES.glob("*.png")), sep="\n")


if __name__ == "__main__":
    main()
