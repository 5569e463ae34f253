"""Test `joulelab reproduce`: what is changed is what was asked for, results do not mix, and every form is printed."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.papers.prepared import make_paper, make_reproduction
from tests.rows import every_row

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.papers import reproduction
from joulelab.papers.node_changes import change_twins, read_change
from joulelab.papers.paper import PAPERS, Paper, find_paper, find_study_file
from joulelab.papers.reproduction import ReproduceOptions, Reproduction, list_assumed, make_listener, reproduce_paper
from joulelab.study.drive import SlotEvent
from joulelab.study.folder import open_study

if TYPE_CHECKING:
    from tests.cli.conftest import Call, Fail


NODE = """
name = "small"
calibrated = ["x.idle_w"]
[[gpu]]
model = "rtx6000"
count = 2
idle_w = 20.0
[cooling]
inlet_c = 20.0
[workloads.train]
parameters = { epochs = 1 }
[[workloads.train.stages]]
name = "load"
seconds = 5.0
[[workloads.train.stages]]
name = "epoch"
seconds = 9.0
busy = 0.5
[meters.analyzer]
family = "analyzer"
"""
BLUE = 'name = "blue"\n[cpu]\nidle_w = 80.0\n'
# What makes the study files of the papers short; what is left are the same cells, or some of them.
SHORT = {
    "gdansk": {
        r"(?m)^repeats = .*": "repeats = 1",
        r"(?m)^idle = .*": 'idle = "2s"',
        r"(?m)^cap = .*": "cap = [170, 260]",
        r"(?m)^gpus = .*": "gpus = [1, 8]",
        r"epochs = 5, images = \d+": "epochs = 1, images = 2000",
    },
    "bnl": {r"(?m)^idle = .*": 'idle = "2m"', r"epochs = 200": "epochs = 4", r"seconds = \d+": "seconds = 600"},
    "horeka": {r"(?m)^repeats = .*": "repeats = 1", r"epochs = [1-9]\d*": "epochs = 2", r"copies = 5": "copies = 1"},
}


def _changed(*typed: str) -> dict[str, Any]:
    texts, types = {"small": NODE, "blue": BLUE}, {"accelerated": "small", "cpuonly": "blue"}
    return {name: twin.describe() for name, twin in change_twins(texts, types, [read_change(t) for t in typed]).items()}


def test_a_dotted_key_changes_a_physical_parameter_wherever_it_is() -> None:
    found = _changed(
        "gpu.idle_w=31.5",
        "cooling.inlet_c=35",
        "cpuonly:cpu.idle_w=95",
        "workloads.train.time_scatter=0.01",
        "workloads.train.stages.epoch.busy=0.75",
        "meters.analyzer.ask_s=0.5",
        "gpu.slowdown=[0.05, 4.0]",
        "small:cooling.kind=rear-door",
        "spread=0.02",
    )
    small, blue = found["small"].node, found["blue"].node
    assert [gpu.idle_w for gpu in small.gpus] == [31.5, 31.5]
    assert small.gpus[0].slowdown == (0.05, 4.0)
    assert (small.cooling.inlet_c, blue.cooling.inlet_c) == (35.0, 35.0)
    assert (small.cooling.kind, blue.cooling.kind) == ("rear-door", "air")
    assert (small.cpu.idle_w, blue.cpu.idle_w) == (90.0, 95.0)
    model = found["small"].workloads["train"]
    assert model.time_scatter == 0.01
    assert [(s.name, s.busy, s.seconds) for s in model.stages] == [("load", 0.0, 5.0), ("epoch", 0.75, 9.0)]
    assert found["small"].meters["analyzer"].ask_s == 0.5
    assert (small.spread, blue.spread) == (0.02, 0.02)
    assert not blue.gpus or blue.gpus == _changed()["blue"].node.gpus


@every_row(
    ("typed", "named"),
    [
        ("gpu.idel_w=30", "'idle_w'"),
        ("colling.inlet_c=30", "'cooling'"),
        ("cooling.inlet=30", "'inlet_c'"),
        ("workloads.trian.time_scatter=0", "'train'"),
        ("workloads.train.time_scater=0", "'time_scatter'"),
        ("workloads.train.stages.bsy=0", "'busy'"),
        ("meters.analyser.ask_s=1", "'analyzer'"),
        ("green:gpu.idle_w=30", "'green'"),
        ("blue:gpu.idle_w=30", "'gpu'"),
        ("gpu=30", "'gpu'"),
        ("gpu.idle_w=much", "idle_w"),
        ("gpu.idle_w", "'gpu.idle_w'"),
        ("gpu..idle_w=3", "'gpu..idle_w=3'"),
        (":gpu.idle_w=3", "':gpu.idle_w=3'"),
        ("calibrated=[]", "'calibrated'"),
    ],
)
def test_what_a_twin_does_not_have_names_the_nearest(typed: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _changed(typed)
    assert named in str(caught.value)


@pytest.fixture
def options(tmp_path: Path) -> ReproduceOptions:
    return ReproduceOptions("gdansk", (), seed=None, studies=tmp_path / "studies", out=None, figures=False, keep=True)


def shortened(paper: str, folder: Path) -> Path:
    """Return a copy of a paper's study that takes seconds."""
    text = find_study_file(f"{paper}.toml").read_text()
    for long, short in SHORT[paper].items():
        text, changes = re.subn(long, short, text)
        assert changes, f"{paper}.toml has no {long}"
    file = folder / f"{paper}.toml"
    file.write_text(text)
    return file


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return shortened("gdansk", tmp_path)


def _numbers(found: Reproduction) -> dict[str, Any]:
    return {f.id: f.reproduced for f in found.figures if f.reproduced is not None}


@pytest.mark.system
def test_a_study_is_reproduced_kept_and_not_run_again_and_a_changed_twin_is_another(
    options: ReproduceOptions, small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    first = reproduce_paper(options, print, file=small)
    assert (first.slots, first.left, first.new, first.seed) == (4, 0, 4, 2023)
    assert first.ran_s > 100
    assert first.coverage.slots == 4
    assert first.coverage.scopes == 4
    assert first.coverage.cells == 4
    assert re.fullmatch(r"train, cap \d+ W, gpus \d", first.coverage.worst[0])
    assert "cooling.fan_max_w" in first.assumed
    # What the twin was calibrated on is marked, by its own file.
    kinds = {f.id: f.kind for f in first.figures}
    assert kinds["gdansk.time_s.260w.8"] == "calibrated"
    assert kinds["gdansk.time_s.170w.1"] == "predicted"
    (folder,) = (tmp_path / "studies").iterdir()
    assert first.folder.startswith(f"studies/{folder.name}/gdansk-twin (")
    assert first.files == [f"studies/{folder.name}/: figures.csv, best-caps.csv, figures.md"]
    assert all((folder / name).stat().st_size for name in ("figures.csv", "best-caps.csv", "figures.md"))

    again = reproduce_paper(options, print, file=small)
    assert (again.folder, again.new) == (first.folder, 0)
    assert _numbers(again) == _numbers(first)

    # A physical parameter moves the figures, in a folder of its own.
    hot = replace(options, changes=[read_change("host.idle_w=600"), read_change("host.max_w=600")], keep=False)
    moved = reproduce_paper(hot, print, file=small)
    assert not moved.folder.startswith("studies/")
    assert moved.changes == ["host.idle_w=600", "host.max_w=600"]
    name = "gdansk.ratio.170w.energy"
    assert _numbers(moved)[name] > _numbers(first)[name] + 0.02
    (another,) = {*(tmp_path / "studies").iterdir()} - {folder}
    assert sorted(f.name for f in another.iterdir()) == ["best-caps.csv", "figures.csv", "figures.md"]


@pytest.mark.system
@pytest.mark.parametrize(
    "paper", [pytest.param(name, marks=[] if name == "gdansk" else pytest.mark.campaign) for name in PAPERS]
)
def test_nothing_that_was_published_gets_into_what_is_reproduced(
    paper: str, tmp_path: Path, options: ReproduceOptions
) -> None:
    first = reproduce_paper(replace(options, paper=paper), print, file=shortened(paper, tmp_path))
    assert first.left == 0
    before = [f for f in first.figures if f.reproduced is not None and f.kind != "finding"]
    assert len(before) >= 5
    (folder,) = (tmp_path / "studies").glob("*/*-twin")
    known = find_paper(paper)
    other = replace(known, published=_scale_numbers(known, known.published))
    after = {f.id: f for f in other.make_figures(other.module.compute_numbers(open_study(folder), other))}
    assert {f.id: after[f.id].reproduced for f in before} == {f.id: f.reproduced for f in before}
    assert not [f.id for f in before if after[f.id].published == f.published]
    assert first.coverage.slots == first.slots
    assert first.coverage.inside >= 0.9 * first.slots


# That of bnl is also the default, which moves gdansk's: its long runs add nothing here.
@pytest.mark.system
@pytest.mark.parametrize("paper", ["gdansk", pytest.param("horeka", marks=pytest.mark.campaign)])
def test_the_change_that_is_suggested_moves_figures(paper: str, tmp_path: Path, options: ReproduceOptions) -> None:
    file = shortened(paper, tmp_path)
    head, first, *_ = re.split(r"(?m)^(?=\[workloads\.)", file.read_text())
    file.write_text(head + first)  # one workload will do
    options, example = replace(options, paper=paper, keep=False), find_paper(paper).entries.example
    before = reproduce_paper(options, print, file=file)
    after = reproduce_paper(replace(options, changes=[read_change(example)]), print, file=file)
    assert dict(before.next_commands)["other physics"] == f"joulelab reproduce {paper} --set {example}"
    found = {f.id: (f.numbers or (0.0, 0.0))[1] for f in before.figures if f.numbers}
    moved = [f.id for f in after.figures if f.numbers and f.numbers[1] != pytest.approx(found[f.id], rel=0.002)]
    assert moved


def test_what_a_twins_file_calls_list_assumed_is_named() -> None:
    sources = '[sources]\n"gpu.idle_w" = "data sheet"\n"host" = "assumed. Chosen knowing the idle power"\n'
    texts = {"small": NODE + sources, "blue": BLUE + '[sources]\n"cpu" = "Knowing the runtime"\n'}
    twins = {name: twin.describe() for name, twin in change_twins(texts, {}, []).items()}
    assert list_assumed(twins) == ["small:host", "blue:cpu"]
    assert list_assumed({"small": twins["small"]}) == ["host"]


def test_results_depend_on_packages_that_are_there() -> None:
    package = Path(reproduction.__file__).parents[1]
    assert [part for part in reproduction.CODE if not list((package / part).glob("*.py"))] == []


def _scale_numbers(paper: Paper, table: Any, path: str = "") -> Any:
    """Return a table with every number changed, but those that say how a study was set up."""
    if isinstance(table, dict):
        return {key: _scale_numbers(paper, value, f"{path}.{key}") for key, value in table.items()}
    if isinstance(table, list):
        return [_scale_numbers(paper, value, f"{path}.{k}") for k, value in enumerate(table)]
    return table * 1.7 if isinstance(table, (int, float)) and not paper.explain_setup(path[1:]) else table


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[ReproduceOptions]:
    """Give what was prepared for any paper, and keep what was asked."""
    seen: list[ReproduceOptions] = []

    def give(options: ReproduceOptions, _: Any) -> Reproduction:
        seen.append(options)
        return make_reproduction(paper=make_paper(options.paper))

    monkeypatch.setattr(reproduction, "reproduce_paper", give)
    return seen


def test_one_paper_is_printed_in_every_form(call: Call, prepared: list[ReproduceOptions]) -> None:
    text = call("reproduce", "gdansk").stdout
    assert text.index("2 of 4 ") < text.index("3 of 5 ") < text.index("MISS") < text.index("Counted strictly")
    assert "Calibrated on" in call("reproduce", "gdansk", "--all").stdout
    assert "All papers" not in text
    assert call("reproduce", "gdansk", "--format", "markdown").stdout.startswith("## A study of caps")
    assert r"\begin{table}" in call("reproduce", "gdansk", "--format", "latex").stdout
    rows = list(csv.DictReader(io.StringIO(call("reproduce", "gdansk", "--format", "csv").stdout)))
    assert {row["paper"] for row in rows} == {"gdansk"}
    for words in (["--json"], ["--format", "json"]):
        (plain,) = json.loads(call("reproduce", "gdansk", *words).stdout)["papers"]
        assert plain["counts"]["predicted"]["hits"] == 3
    assert [each.paper for each in prepared] == ["gdansk"] * 7


def test_all_papers_are_printed_one_after_another_and_counted_together(
    call: Call, prepared: list[ReproduceOptions]
) -> None:
    text = call("reproduce", "all", "--seed", "3", "--set", "cooling.inlet_c=30").stdout
    assert [each.paper for each in prepared] == ["bnl", "horeka", "gdansk"]
    assert {each.seed for each in prepared} == {3}
    assert {each.changes[0].typed for each in prepared} == {"cooling.inlet_c=30"}
    assert text.count("A study of caps") == 3
    assert "All papers, strictly: 6 of 12 " in text
    assert "All papers: 9 of 15 " in text
    assert len(json.loads(call("reproduce", "all", "--json").stdout)["papers"]) == 3


def test_wrong_words_are_refused_before_anything_runs(fail: Fail, prepared: list[ReproduceOptions]) -> None:
    for change, named in (("nonsense", "'nonsense'"), ("gdansk-rtx600:gpu.idle_w=3", "'gdansk-rtx6000'")):
        failure = fail("reproduce", "gdansk", "--set", change)
        assert (failure.kind, failure.where) == ("config", "--set")
        assert named in failure.stderr
    assert fail("reproduce", "paris").kind == "usage"
    assert not prepared


def test_a_wrong_key_names_the_nearest_and_runs_nothing(fail: Fail, tmp_path: Path) -> None:
    failure = fail("reproduce", "gdansk", "--set", "gpu.idel_w=30")
    assert failure.kind == "config"
    assert "'idle_w'" in str(failure.next)
    assert not (tmp_path / "joulelab-studies").exists()


def test_pictures_are_left_out_without_matplotlib_unless_asked_for(
    options: ReproduceOptions, small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reproduction.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match="joulelab\\[figures\\]"):
        reproduce_paper(replace(options, figures=True), print, file=small)
    said: list[str] = []
    paper = find_paper("gdansk")
    study = open_study(_kept(options, small))
    files = reproduction._write_files(
        replace(options, figures=None, out=tmp_path / "out"), make_reproduction(paper=paper), study, said.append
    )
    assert any("pip install" in text for text in said)
    assert {f.suffix for f in files} <= {".csv", ".md"}


def _kept(options: ReproduceOptions, small: Path) -> Path:
    """Return an empty study's folder."""
    from joulelab.study.folder import join_study
    from joulelab.study.study_file import read_study

    found = read_study(small)
    return join_study(options.studies / "x", found.name, found.plan, 1).folder


def test_progress_is_told_now_and_then_and_failures_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    cell: Any = None
    listen = make_listener(lambda: None, said.append)
    listen(SlotEvent("done", cell, tmp_path, finished=1, total=9))
    listen(SlotEvent("failed", cell, tmp_path / "r01", why="no model", finished=2, total=9))
    monkeypatch.setattr(reproduction, "NEWS_S", -1.0)
    listen(SlotEvent("done", cell, tmp_path, finished=3, total=9))
    assert len(said) == 2
    assert "no model" in said[0]
    assert said[1].startswith("3 of 9 ")
