from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.analysis.study_cells import Cell, Trial
from joulelab.core.quantity import Quantity
from joulelab.papers import gdansk
from joulelab.papers.gdansk import EDS15, METRICS, CapSweep, Metric, compare_cells, compute_sweep, get_cap, make_charts
from joulelab.papers.judgement import count_kind, count_strictly
from joulelab.papers.paper import find_paper
from joulelab.study.study_file import read_study
from joulelab.twin.nodefile import parse_node
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual import run_twin_study
from joulelab.twin.workload_progress import RunRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.papers.judgement import Figure
    from joulelab.study.folder import Study
    from joulelab.twin.nodefile import Description

ROOT = Path(__file__).parents[2]
NODE = (resources.files("joulelab.twin") / "nodes" / "gdansk-rtx6000.toml").read_text("utf-8")
PAPER = find_paper("gdansk")
CAPS = range(100, 261, 10)
# Ten repeats that differ by half a percent, and whose mean is right.
SCATTER = [0.005 * z for z in (-1.55, -1.0, -0.66, -0.38, -0.12, 0.12, 0.38, 0.66, 1.0, 1.55)]
SMALL = """
name = "small"
repeats = 1
seed = 1
idle = "5s"
reference = { cap = 260 }
scope = "node.ac"
meters = ["analyzer"]
[knobs]
cap = [170, 260]
gpus = [1, 8]
[workloads.train]
reference = "xception-birds"
phases = ["epoch"]
parameters = { images = 1000 }
"""


def node(**changes: Any) -> Description:
    return parse_node(NODE, "gdansk-rtx6000", changes)


def modelled(described: Description, caps: Sequence[int] = CAPS, scatter: Sequence[float] = SCATTER) -> CapSweep:
    """Return what a study would give on a node whose runs scatter around the truth alike, and whose meters are perfect.

    `scatter` are the shares by which time and energy of each repeat lie off.
    """
    model = replace(described.workloads["xception-birds"], time_scatter=0.0, power_scatter=0.0)
    cells = []
    for gpus in (1, 2, 4, 8):
        for cap in caps:
            ask = RunRequest({}, tuple(range(gpus)), dict.fromkeys(range(gpus), float(cap)))
            run = lay_out_run(described.node, model, ask, RunTimes(10**12), 1)
            spans = [span for span in run.spans if span.name == "epoch"]
            time_s = sum(span.end_ns - span.start_ns for span in spans) / 1e9
            energy = sum(run.energy("node.ac", span.start_ns, span.end_ns) for span in spans)
            trials = [Trial(Quantity(energy * (1 + z)), time_s * (1 + z), meter="analyzer") for z in scatter]
            cells.append(Cell(f"{gpus}-{cap}", {"cap": float(cap), "gpus": gpus}, tuple(trials)))
    return compare_cells(cells)


def by_id(figures: Sequence[Figure]) -> dict[str, Figure]:
    return {figure.id: figure for figure in figures}


def judge_sweep(sweep: CapSweep) -> dict[str, Figure]:
    return by_id(PAPER.make_figures(compute_sweep(sweep, PAPER)))


def get_percent(sweep: CapSweep, metric: Metric, gpus: int) -> float:
    gain = sweep.get_gain(metric, gpus)
    return 0.0 if gain is None else 100 * gain.value


@pytest.fixture(scope="module")
def ideal() -> CapSweep:
    return modelled(node())


@pytest.fixture(scope="module")
def truth(ideal: CapSweep) -> list[Figure]:
    return PAPER.make_figures(compute_sweep(ideal, PAPER), node().calibrated, node().chosen)


@pytest.mark.system  # pure, and slow
def test_twin_gives_what_it_was_calibrated_on(truth: list[Figure]) -> None:
    found = by_id(truth)
    solved = [
        "gdansk.time_s.260w.1", "gdansk.time_s.260w.8", "gdansk.time_s.170w.8",
        "gdansk.ratio.170w.time", "gdansk.ratio.170w.energy",
    ]  # fmt: skip
    for name in solved:
        assert found[name].kind == "calibrated"
        assert found[name].reproduced == pytest.approx(found[name].published, rel=1e-3)
    assert set(node().calibrated) <= set(found)
    assert set(node().calibrated) - set(solved) == {
        "gdansk.best.gain_minus_loss.gain_pct",
        "gdansk.best.edp.gain_pct",
    }


@pytest.mark.system
def test_most_predictions_and_all_findings_hold_without_scatter(truth: list[Figure]) -> None:
    assert count_strictly(truth).total == 12
    assert by_id(truth)["gdansk.best.energy.gain_pct"].group == "determined"  # the energy at 170 W was fitted
    assert count_strictly(truth).share >= 0.8
    assert count_kind(truth, "predicted").total == 16
    assert count_kind(truth, "finding").share == 1.0


@pytest.mark.system  # pure, and slow
def test_similar_gains_are_those_that_the_repeats_cannot_tell_apart(ideal: CapSweep) -> None:
    found = judge_sweep(ideal)
    gains = {get_cap(c): c.eds_gain[1.5].value for c in ideal.list_cells(8)}
    low, high = (found[f"gdansk.eds_k1.5.{end}_w"].reproduced for end in ("low", "high"))
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert low < max(gains, key=lambda cap: gains[cap]) < high
    # Repeats that scatter four times as much tell fewer caps apart, those that hardly do tell all.
    wide = judge_sweep(modelled(node(), CAPS, [4 * z for z in SCATTER]))
    assert wide["gdansk.eds_k1.5.low_w"].reproduced < low  # type: ignore[operator]
    assert wide["gdansk.eds_k1.5.high_w"].reproduced > high  # type: ignore[operator]
    sharp = modelled(node(), CAPS, [z / 100 for z in SCATTER])
    assert sharp.list_best(EDS15) == [max(gains, key=lambda cap: gains[cap])]


@pytest.mark.system  # pure, and slow
def test_best_caps_count_as_the_same_where_they_cannot_be_told_apart() -> None:
    # Best by energy is 140 W here, one step below what is allowed; 150 W can only be told apart if repeats agree.
    near = node(gpu={"slowdown": [0.032, 4.0]})
    loose = judge_sweep(modelled(near))
    sharp = judge_sweep(modelled(near, CAPS, [z / 100 for z in SCATTER]))
    name = "gdansk.finding.caps"
    assert "energy 140 W (no significant difference: 150 W); " in loose[name].detail
    assert loose[name].reproduced is True
    assert "energy 140 W; " in sharp[name].detail
    assert sharp[name].reproduced is False
    assert "without a significant difference" in sharp[name].note
    # The figure is strict: it misses either way, and says what else it might be.
    assert [each["gdansk.best.energy.cap_w"].verdict for each in (loose, sharp)] == ["miss", "miss"]
    assert "no significant difference from 150 W" in loose["gdansk.best.energy.cap_w"].note


@pytest.mark.system  # pure, and slow
def test_with_fewer_gpus_every_goal_but_energy_is_judged_by_a_rule_that_is_told(ideal: CapSweep) -> None:
    finding = judge_sweep(ideal)["gdansk.finding.fewer"]
    assert finding.reproduced is True
    for metric in METRICS:
        few, whole = (max(get_percent(ideal, metric, n) for n in counts) for counts in ((1, 2, 4), (8,)))
        assert f"{metric.label} {few:.1f} % of {whole:.1f} %" in finding.detail
    assert "at least half of what a goal gains on 8" in finding.detail
    # Without a host, GPUs that idle cost little: four gain as much as eight.
    bare = node(host={"idle_w": 1.0, "max_w": 1.0}, gpu={"idle_w": 1.0})
    assert judge_sweep(modelled(bare))["gdansk.finding.fewer"].reproduced is False


@pytest.mark.parametrize(
    ("changes", "moves", "stays"),
    [
        ({"cooling": {"fan_max_w": 1500.0}}, "gdansk.ratio.170w.energy", "gdansk.ratio.170w.time"),
        ({"host": {"idle_w": 900.0, "max_w": 900.0}}, "gdansk.energy_gain.1", "gdansk.time_s.170w.1"),
        ({"gpu": {"slowdown": [0.08, 4.0]}}, "gdansk.time_s.170w.8", "gdansk.time_s.260w.8"),
    ],
    ids=["fans", "host", "slowdown"],
)
def test_reproduced_figures_follow_the_twins_physics(
    truth: list[Figure], changes: dict[str, Any], moves: str, stays: str
) -> None:
    other = judge_sweep(modelled(node(**changes), (170, 220, 260)))
    before = by_id(truth)
    assert other[stays].reproduced == before[stays].reproduced
    assert other[moves].reproduced != pytest.approx(before[moves].reproduced, rel=0.02)


@pytest.mark.system
def test_pictures_are_those_of_the_paper(ideal: CapSweep) -> None:
    assert ideal.summary is not None
    charts = make_charts(ideal.summary)
    names = ["2-energy-decrease", "3-time-increase", "4-edp", "5-eds", "6-difference", "7-training-times"]
    assert [chart.name for chart in charts] == names
    assert [chart.note for chart in charts if chart.note != " ".join(chart.note.split())] == []
    labels = [[curve.label for curve in chart.curves] for chart in charts]
    assert labels[0] == ["1 GPU", "2 GPUs", "4 GPUs", "8 GPUs"]
    assert (labels[1], labels[3], labels[5]) == ([""], ["k = 1.5", "k = 2"], ["cap 260 W", "cap 170 W"])
    # No cap makes a training faster: none is marked as best by time.
    starred = {c.name: any(curve.best is not None or curve.tied for curve in c.curves) for c in charts}
    assert starred == {name: name not in ("3-time-increase", "7-training-times") for name in names}
    assert charts[1].curves[0].reference is not None


def test_findings_can_fail() -> None:
    hot = node(gpu={"slowdown": [0.2, 4.0]})
    found = judge_sweep(modelled(hot, (100, 140, 170, 220, 240, 260)))
    assert found["gdansk.finding.caps"].reproduced is False
    assert found["gdansk.finding.caps"].verdict == "miss"
    assert found["gdansk.time_s.170w.1"].verdict == "miss"
    assert found["gdansk.time_s.170w.1"].note == PAPER.entries.reasons["slowdown"]
    assert found["gdansk.time_s.260w.2"].note == ""  # it holds: nothing is to be explained


def test_study_file_is_the_papers_study() -> None:
    found = read_study(ROOT / "studies" / "gdansk.toml")
    plan = found.plan
    assert len(plan.cells) * plan.repeats == 17 * 4 * 10
    assert {float(c.knobs["cap"].value) for c in plan.cells} == set(CAPS)
    assert set(plan.goals) == {"energy", "gain-loss", "edp", "eds:1.5", "eds:2"}
    assert plan.settings.meters == ("analyzer",)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("gdansk")
    (folder / "small.toml").write_text(SMALL)
    return run_twin_study(folder / "small.toml", "gdansk-rtx6000", folder / "small")


@pytest.mark.system
def test_figures_come_from_runs(run: Study, tmp_path: Path) -> None:
    numbers = gdansk.compute_numbers(run, PAPER)
    found = by_id(PAPER.make_figures(numbers))
    steady = judge_sweep(modelled_small())
    for name in ("time_s.260w.8", "time_s.170w.1", "ratio.170w.energy", "speedup.170w.8"):
        assert found[f"gdansk.{name}"].reproduced == pytest.approx(steady[f"gdansk.{name}"].reproduced, rel=0.03)
    assert found["gdansk.time_s.260w.2"].reproduced is None
    (table,) = numbers.tables
    assert (table.records[0]["metric"], table.records[0]["cap_w"]) == ("energy", 170)
    assert any("GPUs alone" in text for text in PAPER.word_meters(numbers))
    pytest.importorskip("matplotlib")
    files = gdansk.draw_pictures(run, PAPER, tmp_path, formats=("svg",))
    assert ">k = 1.5<" in files[3].read_text()


def modelled_small() -> CapSweep:
    short = node(workloads={"xception-birds": {"parameters": {"images": 1000}}})
    return modelled(short, (170, 260))
