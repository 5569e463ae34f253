"""`joulelab report`: what it is of, where it is written, what it never writes over."""

from __future__ import annotations

import json
import webbrowser
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import make_run
from tests.study.virtual_study import write

from joulelab.cli.report import MAX_RUNS, OWN_MARKS
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail


@pytest.mark.system  # pure, and slow
def test_the_last_run_is_reported_into_a_file_named_after_it(call: Call, runs: Path, tmp_path: Path) -> None:
    make_run(runs, name="first")
    run = make_run(runs, name="second", started={**_later(), "utc_ns": 1_700_000_100 * 10**9})
    said = call("report")
    file = tmp_path / f"joulelab-report-{run.name}.html"
    assert said.stdout == f"{file.name}\n"
    text = file.read_text()
    assert text.startswith("<!doctype html>")
    assert "second" in text
    assert OWN_MARKS["html"] in text[:4096]
    assert not list(tmp_path.glob(".joulelab*"))
    call("report")  # its own report is renewed
    assert "first" in call("report", "first", "-o", "-").stdout


def _later() -> dict[str, object]:
    from tests.report.synthetic import STARTED

    return dict(STARTED)


@pytest.mark.system  # pure, and slow
def test_two_runs_are_compared_and_more_set_beside_each_other(call: Call, runs: Path, tmp_path: Path) -> None:
    paths = [make_run(runs, name=f"run-{k}", gpu_w=300 - 20 * k) for k in range(3)]
    ids = [path.name for path in paths]
    told = json.loads(call("report", ids[0], ids[1], "--json").stdout)
    assert told["kind"] == "comparison"
    assert told["runs"] == ids[:2]
    text = (tmp_path / f"joulelab-report-{ids[0]}-{ids[1]}.html").read_text()
    assert told["bytes"] == len(text.encode())
    assert "run-0 and run-1 compared" in text
    assert call("report", *ids).stdout == f"joulelab-report-{ids[0]}-{ids[1]}-and-1-more.html\n"
    compared = call("report", ids[0], paths[1], "--to", "md", "-o", "-").stdout
    assert compared.startswith(f"{OWN_MARKS['md']}\n# run-0 and run-1 compared\n")
    verdict = call("compare", ids[0], ids[1]).stdout
    assert next(line for line in compared.splitlines() if line.startswith("B uses")) in verdict


@pytest.mark.system  # pure, and slow
def test_what_is_no_report_is_not_written_over(call: Call, fail: Fail, runs: Path, tmp_path: Path) -> None:
    run = make_run(runs)
    for to, name in (("html", f"joulelab-report-{run.name}.html"), ("md", "notes.md")):
        mine = tmp_path / name
        mine.write_text("mine")
        failure = fail("report", "--to", to, *(("-o", mine) if to == "md" else ()))
        assert (failure.code, failure.where) == ("config.foreign-file", str(mine) if to == "md" else name)
        assert mine.read_text() == "mine"
        call("report", "--to", to, *(("-o", mine) if to == "md" else ()), "--force")
        assert OWN_MARKS[to] in mine.read_text()
        call("report", "--to", to, *(("-o", mine) if to == "md" else ()))
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    assert fail("report", "-o", "dangling").code == "config.foreign-file"
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "pages").mkdir()
    assert call("report", "-o", "pages").stdout == f"pages/joulelab-report-{run.name}.html\n"
    assert fail("report", "-o", tmp_path / "no" / "such.html").code == "config.write"


def test_wrong_targets_are_refused_with_what_to_do(fail: Fail, runs: Path, tmp_path: Path) -> None:
    run = make_run(runs)
    assert fail("report", "nothing-like-it", code=1).next == "joulelab ls"
    for words, code in (
        ((run.name, run), "usage.same-run"),
        ([run.name] * (MAX_RUNS + 1), "config.too-many-runs"),
        (("-o", "-", "--open"), "usage.exclusive"),
        (("-o", "-"), "usage.exclusive"),
        ((run.name, "--twin", "x"), "config.no-study"),
        ((run.name, "study.toml"), "config.not-comparable"),
    ):
        assert fail("report", *words).code == code
    assert fail("report", "x" * 5000, code=1).kind == "not-a-run"
    assert not list(tmp_path.glob("joulelab-report*"))


@pytest.mark.system
def test_a_study_is_named_by_its_name_folder_or_file(call: Call, fail: Fail, tmp_path: Path, runs: Path) -> None:
    write(tmp_path, repeats=1, caps="[150]")
    words = ("--twin", "node.toml", "--studies", "st")
    assert fail("report", "study.toml", *words, code=1).code == "store.not-run-yet"
    call("study", "run", "study.toml", *words, "--no-figures")
    folder = tmp_path / "st" / "tiny-node"
    assert call("report", "tiny-node", "--studies", "st").stdout == "joulelab-report-tiny-node.html\n"
    page = (tmp_path / "joulelab-report-tiny-node.html").read_text()
    assert "simulated: twin node, virtual time" in page
    assert "Runtime x rated power is" in page
    told = json.loads(call("report", folder, "--json", "-o", "b.html").stdout)
    assert told | {"bytes": 0} == {
        "report": "b.html", "kind": "study", "format": "html", "bytes": 0, "study": "tiny-node", "folder": str(folder),
    }  # fmt: skip
    assert call("report", "study.toml", *words, "--to", "md").stdout == "joulelab-report-tiny-node.md\n"
    text = (tmp_path / "joulelab-report-tiny-node.md").read_text()
    table = call("study", "report", "study.toml", *words, "--no-figures", "--format", "csv").stdout
    assert len(table.splitlines()) == 3
    assert "gpus=2" in text
    run = next(folder.glob("cells/*/r01/2*"))
    assert call("report", run).stdout == f"joulelab-report-{run.name}.html\n"
    assert not runs.exists()


def test_it_is_opened_in_the_browser(call: Call, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(runs)
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or len(opened) == 1)
    call("report", "-o", "a b.html", "--open")
    assert opened == [(tmp_path / "a b.html").as_uri()]
    assert "a b.html" in call("report", "-o", "a b.html", "--open").stderr


def test_a_run_that_goes_on_has_a_report(call: Call, runs: Path) -> None:
    run = make_run(runs, state="live")
    assert "live" in call("report", run.name, "-o", "-").stdout
    assert not (run / "results.json").exists()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from joulelab.cli.output import write_file

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    monkeypatch.setattr("os.rename", full)
    with pytest.raises(ConfigError) as raised:
        write_file(tmp_path / "report.html", b"x" * 100, what="report")
    assert (raised.value.code, raised.value.why) == ("config.write", "No space left on device")
    assert list(tmp_path.iterdir()) == []
