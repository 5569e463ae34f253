"""Test that every published number is a figure or excused, and that none of them gets into what is reproduced."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path
from typing import Any

import pytest

from joulelab.core.errors import ConfigError, StoreError
from joulelab.papers.judgement import count_kind, count_strictly
from joulelab.papers.paper import (
    PAPERS,
    Paper,
    PaperNumbers,
    find_leaf,
    find_paper,
    find_study_file,
    list_leaves,
    list_study_folders,
    read_published,
)
from joulelab.study.folder import Study
from joulelab.study.study_file import read_study
from joulelab.twin import nodefile

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "papers" / "published.toml"
# What a twin may be calibrated on was agreed before. Gdansk: four numbers, which three more figures say again; HoreKa:
# power and time of two rows for each use case, and two idle powers.
MOST_CALIBRATED = {"bnl": 4, "horeka": 12, "gdansk": 7}
papers = pytest.mark.parametrize("paper", [find_paper(name) for name in PAPERS], ids=PAPERS)


@pytest.fixture
def empty(tmp_path: Path) -> Study:
    data: dict[str, Any] = {"name": "empty", "seed": 1, "scope": None, "goals": [], "reference": {}, "work": []}
    return Study(tmp_path, {**data, "settings": {}, "repeats": 1, "nodes": {}})


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def list_paths(paper: Paper) -> list[str]:
    """List the paths in published.toml that figures are made of."""
    entries = paper.entries.figures
    paths = [path for e in entries for path in ([e.published] if isinstance(e.published, str) else e.published)]
    return paths + [e.within for e in entries if e.within not in ("share", "gain", "step")]


@papers
def test_every_published_number_is_a_figure_or_says_why_not(paper: Paper) -> None:
    numbers = {path for path, value in list_leaves(paper.published) if is_number(value)}
    shown, excused = set(list_paths(paper)), {path for path in numbers if paper.explain_setup(path)}
    assert shown | excused == numbers
    assert not shown & set(paper.setup), "what is published may not get into results"


@papers
def test_the_entries_of_a_paper_fit_together(paper: Paper) -> None:
    entries, findings = paper.entries.figures, paper.entries.findings
    ids = [e.id for e in entries]
    assert len({*ids, *(f"finding.{f.id}" for f in findings)}) == len(ids) + len(findings)
    assert {i for e in entries for i in (*e.follows, *e.fixed_by, *e.factors)} <= set(ids)
    reasons = {each.reason for each in (*entries, *findings)} - {""}
    assert reasons == set(paper.entries.reasons), "a reason that is not there, or that nobody gives"
    patterns = [p for p in paper.entries.setup if not fnmatch.filter(dict(list_leaves(paper.published)), p)]
    assert not patterns, "excuses nothing"


@papers
def test_without_a_run_every_figure_is_listed_and_nothing_is_reproduced(paper: Paper, empty: Study) -> None:
    found = paper.module.compute_numbers(empty, paper)
    assert found == PaperNumbers(findings={}, figures={}, remarks={}, meters=[], tables=[]), "reproduced from nothing"
    figures = paper.make_figures(found)
    assert count_strictly(figures).hits == 0
    assert all(f.id.startswith(f"{paper.name}.") and f.label for f in figures)
    assert all(f.kind != "calibrated" and f.group in ("measured", "derived", "") for f in figures)


@papers
def test_a_twin_says_which_figures_it_was_fitted_to_and_they_are_few(paper: Paper) -> None:
    twins = [nodefile.find_node(twin) for twin in set(paper.entries.twins.values())]
    calibrated, chosen = {i for t in twins for i in t.calibrated}, {i for t in twins for i in t.chosen}
    figures = paper.make_figures(PaperNumbers(), calibrated, chosen)
    assert calibrated, "no twin is right without"
    assert calibrated | chosen <= {f.id for f in figures if f.kind not in ("finding", "outside")}, "not a figure"
    assert count_kind(figures, "calibrated").total <= MOST_CALIBRATED[paper.name]
    assert count_kind(figures, "predicted").total >= count_kind(figures, "calibrated").total
    assert count_strictly(figures).total < count_kind(figures, "predicted").total
    assert {f.group for f in figures if f.id in chosen - calibrated} == {"chosen"}


def test_figures_are_judged_by_what_is_printed() -> None:
    figures = {f.id: f for name in PAPERS for f in find_paper(name).make_figures(PaperNumbers())}
    limits = {
        name: f.tolerance.get_limit(float(f.published or 0)) for name, f in figures.items() if is_number(f.published)
    }
    assert limits["horeka.energy.train.gpu.energy_kj"] == 6.7
    assert limits["gdansk.best.eds_k1.5.gain_pct"] == pytest.approx(0.226)
    assert limits["gdansk.energy_gain.1"] == 0.5
    assert limits["gdansk.best.energy.cap_w"] == 10
    assert limits["bnl.llava.median_w"] == 396
    assert figures["gdansk.time_s.260w.1"].published == 423.7


@papers
def test_the_study_file_is_one_that_runs_and_the_twins_are_of_its_node_types(paper: Paper) -> None:
    plan = read_study(find_study_file(paper.entries.study)).plan
    assert set(paper.entries.twins) == (set(plan.nodes) or {"local"})


def test_papers_are_found_by_their_name() -> None:
    assert [find_paper(name).name for name in PAPERS] == list(PAPERS)
    with pytest.raises(ConfigError, match="no paper 'gdanks'"):
        find_paper("gdanks")
    assert find_leaf(read_published("bnl"), "run.1.max_w") == 6480
    assert find_leaf(read_published("bnl"), "run.9.max_w") is None


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared")
def test_the_published_numbers_are_those_that_were_checked() -> None:
    assert {name: read_published(name) for name in PAPERS} == tomllib.loads(SHARED.read_text())


def test_study_files_are_found_where_they_are_installed(tmp_path: Path) -> None:
    package, tree = tmp_path / "package", tmp_path / "tree"
    tree.mkdir()
    (tree / "x.toml").write_text("")
    assert find_study_file("x.toml", [package, tree]) == tree / "x.toml"
    package.mkdir()
    (package / "x.toml").write_text("")
    assert find_study_file("x.toml", [package, tree]) == package / "x.toml"
    with pytest.raises(StoreError, match=r"y\.toml is not there"):
        find_study_file("y.toml", [package, tree])
    assert list_study_folders()[1] == ROOT / "studies"


def test_a_wheel_has_the_study_files_where_they_are_looked_for() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    target = wheel["force-include"][str(list_study_folders()[1].relative_to(ROOT))]
    assert ROOT / "src" / target == list_study_folders()[0]
