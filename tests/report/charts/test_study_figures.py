from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from tests.analysis.studies import by_cap, cell, sweep, trial

from joulelab.analysis.cell_metrics import Cell, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.result import Check
from joulelab.report.charts import study_charts
from joulelab.report.charts.chart_model import COMPARED_NOTE, EXPANDED_NOTE
from joulelab.report.charts.print_painter import load_matplotlib, paint_curves
from joulelab.report.charts.print_pictures import write_study_figures
from joulelab.report.charts.study_charts import (
    ASSUMED_NOTE,
    HALF_NOTE,
    NO_BARS_NOTE,
    OWN_BARS_NOTE,
    make_metric_charts,
    make_pareto_chart,
    make_scaling_charts,
)
from joulelab.report.charts.svg_painter import paint_svg

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[3]

GOALS = [Goal.parse(g) for g in ("edp", "energy")]
NAMES = ["energy", "time", "edp", "energy-gain", "time-loss", "edp-gain", "eds-1.5", "eds-2", "gain-minus-loss"]


def _texts(path: Path) -> str:
    return " ".join(" ".join(e.itertext()) for e in ET.parse(path).iter() if e.tag.endswith("}text"))


@pytest.mark.no_cover  # other figures trace the same
def test_every_figure_is_drawn_with_units_and_the_coverage_factor(tmp_path: Path) -> None:
    drawn = write_study_figures(
        summarise_cells(sweep(gpus=(1, 8), caps=(100, 180, 260), n=3), goals=GOALS),
        tmp_path,
        formats=["svg"],
        remark="Said.",
    )
    assert {p.name for p in drawn} == {f"{n}.svg" for n in (*NAMES, "pareto", "scaling")}
    for path in drawn:
        said = _texts(path)
        assert "k = 2" in said
        assert said.count("Said.") == 1
        if path.stem == "scaling":
            assert "speed-up" in said
            assert "efficiency, %" in said
            assert "ideal" in said
        elif path.stem == "pareto":
            assert "time, s" in said
            assert "energy, kJ" in said
            assert "gpus=8, 260 W" in said  # the first cell of the front names its line
            assert "180 W" in said
        else:
            assert "power cap, W" in said
            assert "gpus=8" in said
        if path.stem in ("eds-2", "gain-minus-loss"):
            assert " ".join(HALF_NOTE.split()) in " ".join(said.split())
        elif path.stem == "edp":
            assert "MJ s" in said


@pytest.mark.campaign  # every figure is drawn by the test above
def test_figures_are_the_same_each_time_and_of_every_format(tmp_path: Path) -> None:
    times = summarise_cells([cell(f"c{c:g}", [trial(None, c), trial(None, c + 1)], cap=c) for c in (1.0, 2.0)])
    kinds = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    first = write_study_figures(times, tmp_path / "a")
    assert {p.name for p in first} == {f"{name}.{kind}" for name in ("time", "time-loss") for kind in ("svg", "png")}
    papers = write_study_figures(times, tmp_path / "a", formats=["pdf"])
    assert [p.name for p in papers] == ["time.pdf", "time-loss.pdf"]
    assert all(p.read_bytes().startswith(kinds[p.suffix[1:]]) for p in (*first, *papers))
    second = write_study_figures(times, tmp_path / "b", formats=["svg"])
    assert [p.read_bytes() for p in second] == [(tmp_path / "a" / p.name).read_bytes() for p in second]


@pytest.mark.no_cover  # other figures trace the same
def test_drawing_leaves_no_state_behind(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom tests.analysis.studies import cell, trial\n"
        "from joulelab.analysis.cell_metrics import summarise_cells\n"
        "from joulelab.report.charts.print_pictures import write_study_figures as draw\n"
        "assert 'matplotlib' not in sys.modules\nimport matplotlib\nbefore = matplotlib.rcParams.copy()\n"
        f"draw(summarise_cells([cell('a', [trial(None, 1.0)], cap=1.0)]), Path({str(tmp_path)!r}), formats=['svg'])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\nassert matplotlib.rcParams.copy() == before\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path) -> None:
    # A folder in front of the path whose matplotlib cannot be imported: what a machine without it looks like.
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')\n")
    script = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom pathlib import Path\n"
        "from joulelab.analysis.cell_metrics import summarise_cells\n"
        "from joulelab.core.errors import MissingDependency\n"
        "from joulelab.report.charts.print_pictures import write_study_figures as draw\n"
        "try:\n    draw(summarise_cells([]), Path('nowhere'))\n"
        "except MissingDependency as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert 'pip install "joulelab[figures]"' in done.stdout, done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_curves_carry_bars_the_best_the_tied_and_the_reference() -> None:
    points = {
        260.0: [(100.0, 10.0), (101.0, 10.1), (99.0, 9.9)],
        220.0: [(80.5, 10.2), (81.5, 10.3), (79.5, 10.1)],
        200.0: [(80.0, 10.4), (81.0, 10.5), (79.0, 10.3)],
    }
    found = summarise_cells(by_cap(points))
    panels = {p.name: p for p in make_metric_charts(found)}
    curve = panels["energy"].curves[0]
    assert curve.x == (200.0, 220.0, 260.0)
    assert curve.y == pytest.approx((80.0, 80.5, 100.0))
    assert (curve.best, curve.tied, curve.reference) == (0, (1,), 2)
    assert curve.expanded is not None
    assert curve.expanded[0] + curve.expanded[1] >= 0.5  # as good as the best: the bars overlap
    assert curve.expanded[0] + curve.expanded[2] < 20.0
    assert panels["energy"].bars == COMPARED_NOTE
    assert panels["gain-minus-loss"].level == 0.0
    assert HALF_NOTE in panels["gain-minus-loss"].note
    assert panels["eds-2"].curves[0].y[0] == pytest.approx(panels["gain-minus-loss"].curves[0].y[0] / 2)
    assert panels["energy"].level is None
    front = make_pareto_chart(found)
    assert front is not None
    assert front.curves[0].front == (2, 1, 0)
    assert front.curves[0].names == ("200 W", "220 W", "260 W")
    assert make_scaling_charts(found) == []


def test_the_front_names_lines_and_scaling_says_what_it_shows() -> None:
    found = summarise_cells(sweep(gpus=(1, 8)), goals=GOALS)
    front = make_pareto_chart(found)
    assert front is not None
    assert "gpus=8, 180 W" in front.curves[1].names
    assert " of 5 " in make_scaling_charts(found)[0].note
    few = make_scaling_charts(summarise_cells(sweep(gpus=(1, 8), caps=(100, 260)), goals=GOALS))[0]
    assert few.note == ""
    assert few.bars == EXPANDED_NOTE
    alone = summarise_cells([cell(f"g{g}", [trial(9.0 / g, 9.0 / g)], gpus=g) for g in (1, 2)])
    assert make_scaling_charts(alone)[0].bars == NO_BARS_NOTE


def test_a_cap_that_was_not_in_force_has_no_star() -> None:
    points = {260.0: [(100.0, 10.0)] * 2, 200.0: [(90.0, 11.0)] * 2, 100.0: [(50.0, 12.0)] * 2}
    cells = by_cap(points)
    uncapped = (Check("cap-not-enforced", "failed", "gpu:0"),)
    cells[2] = replace(cells[2], trials=tuple(replace(t, uncapped=uncapped) for t in cells[2].trials))
    found = summarise_cells(cells, goals=GOALS)
    curve = make_metric_charts(found)[0].curves[0]
    assert curve.best is not None
    assert curve.x[curve.best] == 200.0
    chart = make_metric_charts(found)[0]
    assert (curve.uncapped, chart.list_marks()["uncapped"]) == ((0,), "cap not in force")
    image = str(paint_svg(chart))
    assert (image.count("<polygon") + image.count("<circle"), image.count("<g><title>")) == (
        2,
        1,
    )  # the open one is not joined
    _mpl, Figure = load_matplotlib()
    axes = Figure().subplots()
    paint_curves(axes, chart)
    assert [list(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "-"] == [[200.0, 260.0]]
    front = make_pareto_chart(found)
    assert front is not None
    assert front.curves[0].names[0] == "100 W!"
    assert 0 not in front.curves[0].front


def test_a_goal_that_no_cell_reaches_leaves_the_intervals_of_the_cells() -> None:
    cells = by_cap({260.0: [(100.0, 10.0), (101.0, 10.1)], 200.0: [(90.0, 11.0), (91.0, 11.1)]})
    dull = [replace(c, trials=tuple(replace(t, facts={"accuracy": 0.5}) for t in c.trials)) for c in cells]
    charts = {p.name: p for p in make_metric_charts(summarise_cells(dull, goals=[Goal.parse("energy@accuracy>=0.9")]))}
    assert (charts["energy"].bars, charts["energy"].curves[0].best) == (OWN_BARS_NOTE, None)
    assert charts["energy"].curves[0].expanded
    assert charts["time"].bars == COMPARED_NOTE


def test_bars_of_single_runs_show_the_assumed_spread_and_say_so() -> None:
    found = summarise_cells(by_cap({260.0: [(100.0, 10.0)], 200.0: [(80.0, 11.0)]}))
    assert all(ASSUMED_NOTE in p.bars and p.curves[0].expanded for p in make_metric_charts(found))
    alone = make_metric_charts(summarise_cells(by_cap({260.0: [(100.0, 10.0), (102.0, 10.0)]})))[0]
    assert alone.bars == EXPANDED_NOTE
    assert alone.curves[0].expanded


def test_knobs_that_are_no_numbers_are_named_along_the_axis(tmp_path: Path) -> None:
    uncapped = [cell(f"c{c}", [trial(e, 10.0)], cap=c) for c, e in ((200.0, 80.0), (None, 100.0))]
    panel = make_metric_charts(summarise_cells(uncapped))[0]
    assert panel.ticks == ("200 W", "no cap")
    assert panel.curves[0].x == (0.0, 1.0)
    mixed = [cell(f"{b}{o}", [trial(9.0 * b, 1.0)], batch=b, optimiser=o) for b in range(1, 6) for o in ("adam", "sgd")]
    found = summarise_cells(mixed, goals=GOALS)
    panel = make_metric_charts(found)[0]
    assert not panel.is_joined
    assert panel.ticks is not None
    assert panel.ticks[0] == "batch=1 optimiser=adam"
    times = summarise_cells([replace(c, trials=(trial(None, 1.0),)) for c in mixed])
    drawn = write_study_figures(times, tmp_path, formats=["svg"])
    assert all("rotate(-30)" in path.read_text() for path in drawn)  # so that no name covers another


def test_per_unit_of_work_is_on_the_axes() -> None:
    cells = [
        Cell(f"c{c:g}", {"cap": c}, (replace(trial(e, 10.0), work={"tokens": w}),))
        for c, e, w in ((260.0, 100.0, 1000.0), (200.0, 160.0, 2000.0))
    ]
    panels = {p.name: p for p in make_metric_charts(summarise_cells(cells))}
    assert panels["energy"].y_label == "energy per token, mJ"
    assert "per token squared" in panels["edp"].y_label
    front = make_pareto_chart(summarise_cells(cells))
    assert front is not None
    assert front.x_label == "time per token, s"


def test_lines_that_cannot_be_compared_have_fronts_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [
        Cell(f"{m}{c:g}", {"cap": c, "model": m}, (replace(trial(c, 300 - c), work={kind: 5.0}),))
        for m, kind in (("vision", "images"), ("text", "tokens"))
        for c in (200.0, 260.0)
    ]
    found = summarise_cells(cells)
    front = make_pareto_chart(found)
    assert front is not None
    assert not front.has_one_front
    assert all(curve.front for curve in front.curves)
    monkeypatch.setattr(study_charts, "make_metric_charts", lambda _: [])  # the others are drawn elsewhere
    assert [p.name for p in write_study_figures(found, tmp_path, formats=["svg"])] == ["pareto.svg"]


def test_without_energy_only_time_is_drawn(tmp_path: Path) -> None:
    cells = [cell(f"c{c:g}-{g}", [trial(None, c / g)] * 2, cap=c, gpus=g) for c in (200.0, 260.0) for g in (1, 2)]
    found = summarise_cells([*cells, Cell("empty", {"cap": 100.0, "gpus": 4})], goals=[Goal("time")])
    assert [p.name for p in make_metric_charts(found)] == ["time", "time-loss"]
    assert make_pareto_chart(found) is None
    assert [p.name for p in make_scaling_charts(found)] == ["speed-up", "efficiency"]
    assert {p.name for p in write_study_figures(found, tmp_path, formats=["svg"])} == {
        "time.svg",
        "time-loss.svg",
        "scaling.svg",
    }
    assert write_study_figures(summarise_cells([]), tmp_path) == []
