"""Test that every published number is shown beside a reproduced one, and that none of them gets into it."""

from __future__ import annotations

import copy
import fnmatch
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.core.errors import StoreError
from joulelab.papers import find, names
from joulelab.papers.figure_judgement import count, marked
from joulelab.papers.files import folders, study_file
from joulelab.papers.published import SETUP, everything, leaves, published
from joulelab.study.folder import Study
from joulelab.study.study_file import read_study
from joulelab.twin import nodefile

if TYPE_CHECKING:
    from joulelab.papers.figure_judgement import Figure

ROOT = Path(__file__).parents[2]
# What a twin may be calibrated on was agreed before. Gdansk: four numbers, which three more figures say again; HoreKa:
# power and time of two rows for each use case, and two idle powers.
MOST_CALIBRATED = {"bnl": 4, "horeka": 12, "gdansk": 7}


@pytest.fixture
def empty(tmp_path: Path) -> Study:
    data: dict[str, Any] = {"name": "empty", "seed": 1, "scope": None, "goals": [], "reference": {}, "work": []}
    return Study(tmp_path, {**data, "settings": {}, "repeats": 1})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _with(table: dict[str, Any], path: tuple[str, ...], change: float) -> dict[str, Any]:
    """Return the table with one number changed."""
    changed = copy.deepcopy(table)
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    last: Any = int(path[-1]) if isinstance(inner, list) else path[-1]
    inner[last] *= change
    return changed


def _shown(figures: list[Figure]) -> list[tuple[Any, ...]]:
    """Return what a reader sees of the published side."""
    return [(f.id, f.label, f.published, f.tolerance) for f in figures]


def _setup(paper: str, path: tuple[str, ...]) -> str:
    """Return why a number is no figure, empty where it is one."""
    name = ".".join(path)
    own = {f"{paper}.{key}": why for key, why in find(paper).not_figures.items()}
    return next((why for pattern, why in {**SETUP, **own}.items() if fnmatch.fnmatch(f"{paper}.{name}", pattern)), "")


@pytest.mark.parametrize("paper", names())
def test_every_published_number_is_a_figure_or_says_why_not(paper: str, empty: Study) -> None:
    table = published(paper)
    before = _shown(find(paper).figures(empty, table))
    wanted = [path for path, value in leaves(table) if _is_number(value) and value and not _setup(paper, path)]
    unseen = [p for p in wanted if _shown(find(paper).figures(empty, _with(table, p, 1.37))) == before]
    assert not unseen, "neither shown nor excused"


@pytest.mark.parametrize("paper", names())
def test_without_a_run_every_figure_is_listed_and_nothing_is_reproduced(paper: str, empty: Study) -> None:
    figures = find(paper).figures(empty, published(paper))
    assert [f.id for f in figures if f.reproduced is not None] == [], "reproduced from nothing"
    assert count(figures, "predicted").hits == 0
    assert len({f.id for f in figures}) == len(figures)
    assert all(f.id.startswith(f"{paper}.") and f.label for f in figures)
    assert all(f.kind != "calibrated" for f in figures), "the frame marks them, by the twin's own list"


@pytest.mark.parametrize("paper", names())
def test_a_twin_says_on_which_figures_it_was_calibrated_and_they_are_few(paper: str, empty: Study) -> None:
    figures = find(paper).figures(empty, published(paper))
    calibrated = {each for twin in find(paper).twins.values() for each in nodefile.find_node(twin).calibrated}
    there = {f.id for f in figures if f.kind in ("predicted", "identity")}
    assert calibrated, "no twin is right without"
    assert calibrated <= there, "not a figure of the paper"
    after = count(marked(figures, calibrated), "calibrated").total
    assert after <= MOST_CALIBRATED[paper]
    assert count(marked(figures, calibrated), "predicted").total >= after


@pytest.mark.parametrize("paper", names())
def test_the_study_file_is_one_that_runs_and_the_twins_are_of_its_node_types(paper: str) -> None:
    found = find(paper)
    plan = read_study(study_file(found.file)).plan
    assert set(found.twins) == (set(plan.nodes) or {"local"})
    assert found.title


def test_what_is_excused_is_there() -> None:
    table = everything()
    paths = [".".join(path) for path, _ in leaves(table)]
    for pattern, why in SETUP.items():
        assert why
        assert fnmatch.filter(paths, pattern), f"{pattern} excuses nothing"


def test_study_files_are_found_where_they_are_installed(tmp_path: Path) -> None:
    package, tree = tmp_path / "package", tmp_path / "tree"
    tree.mkdir()
    (tree / "x.toml").write_text("")
    assert study_file("x.toml", [package, tree]) == tree / "x.toml"
    package.mkdir()
    (package / "x.toml").write_text("")
    assert study_file("x.toml", [package, tree]) == package / "x.toml"
    with pytest.raises(StoreError, match=r"y\.toml is not there"):
        study_file("y.toml", [package, tree])
    assert folders()[1] == ROOT / "studies"


def test_a_wheel_has_the_study_files_where_they_are_looked_for() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    target = wheel["force-include"][str(folders()[1].relative_to(ROOT))]
    assert ROOT / "src" / target == folders()[0]
