"""What pages and answers say: the same numbers as the terminal, whatever runs are named, empty states, studies."""

from __future__ import annotations

import base64
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from tests.dashboard.conftest import BIDI, HOSTILE
from tests.rows import every_row

from joulelab.analysis.results_file import load_head, load_result
from joulelab.dashboard.app import hide_folders
from joulelab.dashboard.security import Doors
from joulelab.dashboard.server import in_background
from joulelab.report.result_json import describe_result
from joulelab.report.run_tables import format_run_energy

if TYPE_CHECKING:
    from tests.dashboard.conftest import Asked

pytestmark = pytest.mark.system


class Seen(HTMLParser):
    """Note what a page may not have: scripts and styles within, handlers, pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        own = (
            tag != "script"
            or given.get("type") == "application/json"
            or (given.get("src") or "").startswith("/static/")
        )
        if not own or tag in ("img", "iframe", "object", "base") or "style" in given:
            self.wrong.append(f"{tag} {attrs}")
        self.wrong += [f"{tag} {name}" for name in given if name.startswith("on")]


def test_the_list_has_the_numbers_of_the_terminal(served: Asked) -> None:
    text = html.unescape(served.get("/").text)
    for name in ("first", "second", "killed", "failed", "none"):
        assert format_run_energy(load_head(served.stores.runs / served.stores.ids[name]).to_json()) in text
    for word in ("live", "killed", "exit 3", "simulated", "broken", "no meter", "batch=128", "2 more in studies"):
        assert word in text, word


def test_hostile_names_do_nothing(served: Asked) -> None:
    ids = served.stores.ids
    paths = ["/", f"/?label={HOSTILE}&host={HOSTILE}&q={HOSTILE}", f"/?study={HOSTILE}", f"/runs/{ids['hostile']}"]
    paths += [f"/compare?run={ids['hostile']}&run={ids['first']}", f"/runs/{HOSTILE}", f"/compare?run={HOSTILE}&run=x"]
    for path in paths:
        text = served.get(path).text
        assert "<img" not in text, path
        assert "<svg onload" not in text, path
        assert BIDI[0] not in text, path
        seen = Seen()
        seen.feed(text)
        assert not seen.wrong, path
    answer = served.get("/api/runs?q=onerror")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["runs"][0]["name"] == HOSTILE


def test_long_names_are_cut(served: Asked) -> None:
    assert len(served.get("/?q=xxxxxxxx").text) < 20_000


def test_what_a_page_shows_is_asked_for(served: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(served.index, "ask_for", lambda entries: shown.extend(entry.id for entry in entries))
    served.get("/?q=resnet")
    assert shown == [served.stores.ids["first"], served.stores.ids["second"]]


def test_filters_work_without_scripts(served: Asked) -> None:
    def ids(query: str) -> set[str]:
        return set(re.findall(r'data-run="([^"]+)"', served.get(f"/?{query}").text))

    of = served.stores.ids
    assert ids("q=resnet") == {of["first"], of["second"]}
    assert ids("label=batch%3D64") == {of["first"]}
    assert ids("status=killed") == {of["killed"]}
    assert ids("workload=burn") == {of["twin"]}
    assert ids("simulated=yes") == {of["twin"]}
    assert ids("from=2026-11-15&to=2026-11-15&q=resnet") == {of["first"], of["second"]}
    assert "Nothing matches" in served.get("/?q=zzzzzz").text
    assert 'aria-sort="descending"' in served.get("/?sort=energy").text
    two = served.get("/?size=2").text
    assert "1 to 2 of 13 runs" in two
    assert 'href="?page=2&amp;size=2"' in two
    assert "13 to 13 of 13 runs" in served.get("/?size=2&page=99").text  # the last page, where runs were deleted


def test_runs_can_be_read_as_json(served: Asked) -> None:
    of = served.stores.ids
    data = served.get("/api/runs?sort=energy&size=3").json()
    assert (data["total"], data["pages"], len(data["runs"])) == (13, 5, 3)
    energies = [run["energy"]["value"] for run in data["runs"]]
    assert energies == sorted(energies, reverse=True)
    assert "path" not in data["runs"][0]
    assert str(served.stores.root) not in served.get("/api/runs?size=500&study=*").text
    run = served.get(f"/api/runs/{of['first']}").json()
    assert run == describe_result(load_result(served.stores.runs / of["first"]))
    compared = served.get(f"/api/compare?run={of['first']}&run={of['second']}").json()
    assert compared["lines"][0]["a"]["value"] == pytest.approx(run["energy"]["value"])
    for bad in ("", "?run=a", f"?run={of['first']}&run=none", "&".join(["?run=a"] + [f"run={k}" for k in range(9)])):
        assert served.get(f"/api/compare{bad}").status_code == 400


def decoded(data: dict[str, Any], series: str) -> np.ndarray[Any, Any]:
    (found,) = [s for s in data["series"] if s["id"] == series]
    return np.frombuffer(base64.b64decode(found["mean"][0]), dtype="<f4")


def test_power_comes_as_fine_as_it_was_read(served: Asked) -> None:
    path = f"/api/runs/{served.stores.ids['first']}/power"
    data = served.get(f"{path}?from=0.5&to=1.5&buckets=5").json()
    assert (data["from_s"], data["to_s"], data["counts"]) == (0.5, 1.5, [5])
    # What is drawn adds up to the energy that is printed, of which this short run leaves an edge unknown.
    assert decoded(data, "gpu") == pytest.approx([300.0] * 5, rel=0.02)
    raw = served.get(f"{path}?from=0.5&to=1.5&buckets=20000").json()
    assert raw["counts"] == [10]
    assert raw["steps_s"] == [raw["raw_s"]]
    bad = [
        "buckets=0",
        "buckets=20001",
        "buckets=-1",
        "buckets=1e3",
        "from=x",
        "from=nan",
        "to=inf",
        "from=2&to=1",
        "from=1e300",
        "more=1",
    ]
    for query in bad:
        assert served.get(f"{path}?{query}").status_code == 400, query
    assert served.get(f"{path}?from=100&to=200&buckets=3").status_code in (200, 400)
    going = [served.get(f"/api/runs/{served.stores.ids[name]}/power").json()["live"] for name in ("first", "live")]
    assert going == [False, True]
    assert served.get(f"/api/runs/{served.stores.ids['none']}/power").json() is None


def test_the_page_of_a_run_goes_to_the_raw_samples(served: Asked) -> None:
    of = served.stores.ids
    ended, live = (served.get(f"/runs/{of[name]}").text for name in ("first", "live"))
    assert f'data-raw="/api/runs/{of["first"]}/power"' in ended
    assert "data-live" not in ended
    assert f'data-live="/api/runs/{of["live"]}/power"' in live
    assert 'data-renew="5"' in live


def test_studies_are_listed_and_lead_to_their_runs(served: Asked) -> None:
    text = served.get("/studies").text
    assert "1 of 3 done, 1 failed" in text
    assert "broken" in text
    data = served.get("/api/studies").json()["studies"]
    assert [study["id"] for study in data] == ["sweep", "torn"]
    told = served.get("/api/studies/sweep").json()
    (done,) = [row for row in told["slots"] if row["state"] == "done"]
    run = served.get(f"/runs/{done['id']}")
    assert run.status_code == 200
    assert 'href="/studies/sweep"' in run.text
    page = served.get("/studies/sweep")
    assert page.status_code == 200
    assert f'href="/runs/{done["id"]}"' in page.text
    assert served.get("/studies/torn").status_code == 500
    assert served.get("/studies/none").status_code == 404
    assert "in a study" in served.get("/?study=sweep").text


def test_links_in_a_study_are_not_followed(tmp_path: Path) -> None:
    from tests.study.bench import make_study

    study = make_study(tmp_path / "studies" / "s", "true", "{n}", knobs={"n": "1,2"})
    with in_background(tmp_path / "runs", tmp_path / "studies", Doors()) as (server, _):
        assert httpx.get(f"{server.url}studies/s", timeout=120).status_code == 200
        (tmp_path / "elsewhere").mkdir()
        (study.folder / "cells" / "link").symlink_to(tmp_path / "elsewhere")
        assert httpx.get(f"{server.url}api/studies/s", timeout=120).status_code == 500
        assert "leads out" in httpx.get(f"{server.url}api/studies/s", timeout=120).text


def test_runs_of_one_id_are_told_apart(tmp_path: Path) -> None:
    import shutil

    from tests.dashboard.conftest import END
    from tests.report.synthetic import make_run
    from tests.study.bench import make_study, place

    studies = tmp_path / "studies"
    study = make_study(studies / "s", "true", "{n}", knobs={"n": "1,2"})
    made = make_run(tmp_path / "runs", seconds=1.0, gpus=1, cpus=0)
    for key in study.read_cells():
        slot = place(study.get_slot_folder(key, 1), {"ticks": 1}, END)
        for old in slot.glob("2*"):
            shutil.rmtree(old)
        shutil.copytree(made, slot / made.name)
    shutil.rmtree(made)
    with in_background(tmp_path / "runs", studies, Doors()) as (server, index):
        found = index.settled().find(made.name)
        assert len(found) == 2
        several = httpx.get(f"{server.url}runs/{made.name}", timeout=120)
        assert several.status_code == 300
        assert all(f'href="/runs/{entry.id}"' in several.text for entry in found)
        assert httpx.get(f"{server.url}api/runs/{made.name}", timeout=120).status_code == 409
        assert httpx.get(f"{server.url}api/runs/{found[0].id}", timeout=120).status_code == 200


def test_empty_stores_say_what_to_do(tmp_path: Path) -> None:
    with in_background(tmp_path / "none", tmp_path / "nor", Doors()) as (server, _):
        assert "joulelab run -- COMMAND" in httpx.get(server.url, timeout=120).text
        assert "joulelab study run FILE" in httpx.get(f"{server.url}studies", timeout=120).text


@every_row(
    ("text", "shown"),
    [
        ('"/data/lab/joulelab-runs/x"', '"joulelab-runs/x"'),
        ('{"cwd":"/data/lab"}', '{"cwd":".../lab"}'),
        ("<td>python /data/lab/train.py --out=/data/lab/out</td>", "<td>python train.py --out=out</td>"),
        ("/data/laboratory/x /data/lab.old", "/data/laboratory/x /data/lab.old"),
        ("/home/alice/x, /home/bob &quot;/root/y&quot; /Users/eve/z PATH=/usr/bin:/home/al/bin",
         "~/x, ~ &quot;~/y&quot; ~/z PATH=/usr/bin:~/bin"),
        ('href="/runs/1" https://home/x http://h/home/a/b /rooted /homes/x ab/home/a/b',
         'href="/runs/1" https://home/x http://h/home/a/b /rooted /homes/x ab/home/a/b'),
    ],
)  # fmt: skip
def test_paths_of_the_machine_are_shortened(text: str, shown: str) -> None:
    folders = [Path("/data/lab"), Path("/"), Path("/data"), Path("/runs/1"), Path('/data/<"x')]
    assert hide_folders(text.encode(), folders).decode() == shown


def test_no_answer_holds_a_folder_of_the_machine(served: Asked) -> None:
    first, second = (served.stores.ids[name] for name in ("first", "second"))
    meta = json.loads((served.stores.runs / first / "run.json").read_text())
    pages = ("/", "/studies", f"/runs/{first}", f"/compare?run={first}&run={second}", "/studies/sweep")
    for path in (*pages, "/api/runs", f"/api/runs/{first}", f"/api/runs/{first}/power", "/api/studies/sweep"):
        answer = served.get(path)
        assert answer.status_code == 200, path
        for folder in (str(served.stores.root), meta["cwd"], "/root/", "/home/"):
            assert folder not in answer.text, (path, folder)
    assert f".../{Path(meta['cwd']).name}" in served.get(f"/runs/{first}").text, "the page names the folder itself"
