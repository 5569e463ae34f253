"""The HoreKa paper on twins of its nodes: what is predicted holds, follows the nodes' physics, and comes from runs."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from joulelab.papers import horeka
from joulelab.papers.horeka import (
    GpuProfile,
    JobRepeats,
    Jobs,
    compute_errors,
    compute_figures,
    judge_findings,
    list_costs,
    read_jobs,
    read_profiles,
)
from joulelab.papers.judgement import count_kind, count_strictly
from joulelab.papers.paper import PaperNumbers, find_paper
from joulelab.report.format import format_interval
from joulelab.study.study_file import read_study
from joulelab.twin.nodefile import Description, parse_node
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual import read_truth, run_twin_study
from joulelab.twin.virtual.cells import find_model, make_request, place_on_twins
from joulelab.twin.virtual.meters import Bench, count_energy_j
from joulelab.twin.workload_progress import RunRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.papers.judgement import Figure
    from joulelab.study.folder import Study

ROOT = Path(__file__).parents[2]
PAPER = find_paper("horeka")
SMALL = """
repeats = 2
seed = 5
idle = "0s"
scope = "job"
period = "500ms"
[knobs]
gpus = { values = [1], when = { node = "gpu" } }
[nodes.gpu]
gpus = 4
[nodes.cpu-mix]
uses = "cpu"
[nodes.cpu-only]
uses = "cpu"
[workloads.energy-predict]
reference = "lstm-load"
parameters = { epochs = 0, copies = 5, test = "no" }
[workloads.health-predict]
reference = "vgg19bn-xray"
parameters = { epochs = 0, repeats = 10 }
[workloads.energy-train]
reference = "lstm-load"
parameters = { epochs = 3, copies = 0 }
nodes = ["gpu"]
"""


PREDICT = {"epochs": 0.0}


def node(name: str, **changes: Any) -> Description:
    text = (resources.files("joulelab.twin") / "nodes" / f"horeka-{name}.toml").read_text("utf-8")
    return parse_node(text, name, changes)


def twins(**changes: Any) -> dict[str, Description]:
    green = node("green", **changes)
    return {"gpu": green, "cpu-mix": green, "cpu-only": node("blue")}


def modelled(on: Mapping[str, Description]) -> Jobs:
    """Return every cell of the study by the model's own integrals, without scatter."""
    plan = place_on_twins(read_study(ROOT / "studies" / "horeka.toml").plan, on)
    found = {}
    for cell in plan.cells:
        kind = cell.workload.node_type
        _, model = find_model(on[kind], cell)
        steady = replace(model, time_scatter=0.0, power_scatter=0.0)
        run = lay_out_run(on[kind].node, steady, make_request(on[kind], plan.nodes[kind], cell), RunTimes(10**15), 1)
        energy, time_s = run.energy("node.dc", run.start_ns, run.end_ns), (run.end_ns - run.start_ns) / 1e9
        found[cell.workload.name, kind] = JobRepeats((energy,), (time_s,))
    return found


def by_id(figures: Sequence[Figure]) -> dict[str, Figure]:
    return {figure.id.removeprefix("horeka."): figure for figure in figures}


def judge_jobs(jobs: Jobs) -> list[Figure]:
    numbers = PaperNumbers(figures=compute_figures(jobs), findings=dict(judge_findings(jobs, PAPER.limits)))
    green, blue = node("green"), node("blue")
    return PAPER.make_figures(numbers, green.calibrated + blue.calibrated, green.chosen + blue.chosen)


@pytest.fixture(scope="module")
def truth() -> list[Figure]:
    return judge_jobs(modelled(twins()))


@pytest.mark.system  # pure, and slow
def test_twin_gives_what_it_was_calibrated_on(truth: list[Figure]) -> None:
    rows = [figure for figure in truth if figure.kind == "calibrated" and figure.reproduced is not None]
    assert len(rows) == 8
    for figure in rows:
        assert figure.reproduced == pytest.approx(figure.published, rel=2e-3)
    assert {f.id.rsplit(".", 1)[0] for f in rows} == {
        f"horeka.{case}.train.{setup}" for case in ("energy", "health") for setup in ("gpu", "cpu-mix")
    }


def test_most_predictions_and_all_findings_hold_without_scatter(truth: list[Figure]) -> None:
    assert count_strictly(truth).total == 7
    # The former is a hit with the study's own seed, by chance.
    strict_misses = {f.id.removeprefix("horeka.") for f in truth if f.is_strict and f.verdict == "miss"}
    assert strict_misses == {"energy.predict.cpu-mix.energy_kj", "health.predict.gpu.energy_kj"}
    assert count_kind(truth, "predicted").total == 22
    assert count_kind(truth, "predicted").share >= 0.8
    assert count_kind(truth, "finding").share == 1.0
    missed = [f for f in truth if f.verdict == "miss" and f.kind == "predicted"]
    assert all(f.note for f in missed)
    near = {f"horeka.{entry.id}" for entry in PAPER.entries.figures if entry.reason == "meters"}
    assert len(near) == 12
    assert not near & {f.id for f in missed}  # that the reason given for them is true


def test_idle_power_of_the_node_is_as_calibrated() -> None:
    green, blue = node("green").node, node("blue").node
    idle = {
        n.name: sum(n.range_w(leaf)[0] for leaf in n.leaves() if not leaf.startswith("core")) for n in (green, blue)
    }
    assert idle["horeka-green"] == pytest.approx(300, abs=1)
    assert idle["horeka-green"] - idle["horeka-blue"] == pytest.approx(4 * 55 + 27 + 6, abs=2)
    assert len(blue.gpus) == 0


@pytest.mark.system  # pure, and slow
def test_idle_gpus_cost_nodes_that_have_them_and_no_others(truth: list[Figure]) -> None:
    before, after = by_id(truth), by_id(judge_jobs(modelled(twins(gpu={"idle_w": 25.0}))))
    for row in ("energy.train", "energy.predict", "health.train", "health.predict"):
        mixed, only = (before[f"{row}.{setup}.mean_w"].reproduced for setup in ("cpu-mix", "cpu-only"))
        assert isinstance(mixed, float)
        assert after[f"{row}.cpu-mix.mean_w"].reproduced == pytest.approx(mixed - 4 * 30, rel=5e-3)
        assert after[f"{row}.cpu-only.mean_w"].reproduced == only
        assert after[f"{row}.cpu-mix.time_s"].reproduced == before[f"{row}.cpu-mix.time_s"].reproduced
    assert after["energy.train.cpu-mix.mean_w"].verdict == "miss"
    assert after["finding.idle-gpus"].reproduced is False


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize(
    ("changes", "moves", "stays"),
    [
        ({"cpu": {"awake_w": 120.0}}, "energy.predict.gpu.mean_w", "energy.predict.gpu.time_s"),
        ({"host": {"idle_w": 145.0}}, "health.full.mean_w", "health.train.cpu-only.mean_w"),
        ({"gpu": {"max_w": 300.0}}, "health.train.gpu.mean_w", "energy.train.gpu.mean_w"),
    ],
    ids=["awake", "board", "chip"],
)
def test_figures_follow_the_physics(truth: list[Figure], changes: dict[str, Any], moves: str, stays: str) -> None:
    before, after = by_id(truth), by_id(judge_jobs(modelled(twins(**changes))))
    assert after[moves].reproduced != pytest.approx(before[moves].reproduced, rel=0.02)
    assert after[stays].reproduced == pytest.approx(before[stays].reproduced)


def test_the_file_runs_training_and_prediction_alone_on_three_kinds_of_nodes() -> None:
    plan = read_study(ROOT / "studies" / "horeka.toml").plan
    assert len(plan.cells) * plan.repeats == 15 * 5
    assert {name: kind.options.get("partition") for name, kind in plan.nodes.items()} == {
        "gpu": "accelerated", "cpu-mix": "accelerated", "cpu-only": "cpuonly",
    }  # fmt: skip
    assert [plan.nodes[name].uses for name in ("gpu", "cpu-mix", "cpu-only")] == ["gpu", "cpu", "cpu"]
    assert {c.workload.name for c in plan.cells if "gpus" in c.knobs} == {c.workload.name for c in plan.cells}
    assert plan.settings.period_s == 0.5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("horeka")
    (folder / "small.toml").write_text(SMALL)
    return run_twin_study(folder / "small.toml", twins(), folder / "small")


@pytest.fixture(scope="module")
def numbers(run: Study) -> PaperNumbers:
    return horeka.compute_numbers(run, PAPER)


@pytest.mark.system
def test_figures_come_from_the_accounting_of_runs(run: Study, numbers: PaperNumbers) -> None:
    found = read_jobs(run)
    assert len(found) == 7
    steady = modelled(twins())
    for names in [n for n in found if n[0].endswith("predict")]:
        assert found[names].mean_w == pytest.approx(steady[names].mean_w, rel=0.12)  # so much 10 s cost the short one
        assert found[names].time_s == pytest.approx(steady[names].time_s, rel=0.03)
    figures = by_id(PAPER.make_figures(numbers))
    assert figures["energy.predict.gpu.energy_kj"].reproduced == found["energy-predict", "gpu"].energy_j / 1000
    assert figures["gpu_idle_w"].reproduced == pytest.approx(55, rel=0.03)
    assert figures["jupyter_idle_node_w"].reproduced == pytest.approx(300, abs=1)
    assert figures["energy.gpu_above_idle_w"].reproduced == pytest.approx(30, abs=6)
    assert figures["health.train.gpu.mean_w"].reproduced is None
    tables = numbers.tables
    assert [t.name for t in tables] == ["table-2-energy", "table-3-health", "accounting"]
    assert len(tables[0].records) == 4
    assert " ± " in str(tables[0].table.rows[1].cells[2])


@pytest.mark.system
def test_accounted_energy_is_that_of_the_node(run: Study) -> None:
    for key, cell in run.read_cells().items():
        if cell.workload.name == "energy-predict":
            true = read_truth(run.folder / "cells" / key / "r01")
            own = read_jobs(run)[cell.workload.name, cell.workload.node_type]
            assert own.energies_j[0] == pytest.approx(true["energy_j"]["node.dc"], rel=0.05)
            assert own.times_s[0] == pytest.approx(true["time_s"])


@pytest.mark.system
def test_sampling_costs_short_jobs_more_and_has_a_sign(run: Study, numbers: PaperNumbers) -> None:
    found = {(c.workload, c.period_s): c for c in list_costs(run)}
    assert {name for name, _ in found} == {"health-predict"}  # trainings have not run here
    mean = [found["health-predict", period].mean for period in (1, 10, 30, 60)]
    assert mean == sorted(mean, reverse=True)
    assert mean[2] < -0.05
    green = node("green")
    lays = {
        name: lay_out_run(
            green.node, green.workloads["vgg19bn-xray"], RunRequest(parameters, (0,)), RunTimes(10**15, 60.0), 1
        )
        for name, parameters in (("train", {"repeats": 0.0}), ("predict", {"epochs": 0.0}))
    }
    off = {name: compute_errors(timeline, 30) for name, timeline in lays.items()}
    assert off["predict"].mean() < 5 * off["train"].mean() < 0
    assert off["predict"].std() > 5 * off["train"].std()
    (said,) = PAPER.word_meters(numbers)
    assert "as on this twin with a look every 10 s: energy is off by -" in said
    assert all(f"% every {period} s" in said for period in (1, 30, 60))
    assert [c.period_s for c in found.values() if c.is_own] == [10]
    remark = numbers.remarks["health.predict.gpu.mean_w"]
    for each in found.values():
        watts = f"{format_interval(each.counted_w, each.spread * each.power_w, signed=True)} W"
        assert watts == remark["own"] if each.is_own else f"{watts} every {each.period_s:g} s" in remark["others"]


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("look_s", [10, 30])
def test_jobs_of_the_study_are_accounted_as_the_table_says(look_s: int) -> None:
    """Before a job the node is at rest, also where no idle time is asked for: the bias of a short job is in its row."""
    green, ask = (
        node("green", meters={"slurm": {"gain_sd": 0.0, "options": {"frequency_s": look_s}}}),
        RunRequest(PREDICT, (0,)),
    )
    off, table = [], []
    for seed in range(60):
        one = lay_out_run(green.node, green.workloads["vgg19bn-xray"], ask, RunTimes(10**15, 0.0, 1.0), seed)
        a, b = one.start_ns, one.end_ns
        counted = count_energy_j(Bench(one, ask, seed), "slurm", green.meters["slurm"], a, b)
        off.append(counted / one.energy("node.dc", a, b) - 1)
        rested = lay_out_run(green.node, green.workloads["vgg19bn-xray"], ask, RunTimes(10**15, 60.0), seed)
        table += [*compute_errors(rested, look_s)] if seed < 10 else []
    assert np.mean(off) == pytest.approx(np.mean(table), abs=3 * np.std(table) / 60**0.5)
    assert np.mean(off) < -0.0022 * look_s
    assert np.std(off) == pytest.approx(np.std(table), rel=0.3)


@pytest.mark.system
def test_a_miss_of_the_short_job_is_explained_by_the_table(numbers: PaperNumbers) -> None:
    rows = [
        [*row[:5], 300.0 if row[1:3] == ["predict", "gpu"] else row[5], *row[6:]] for row in PAPER.published["rows"]
    ]
    other = replace(PAPER, published={**PAPER.published, "rows": rows})
    figures = by_id(other.make_figures(numbers))
    short, long = figures["health.predict.gpu.mean_w"], figures["energy.predict.gpu.mean_w"]
    assert (short.verdict, long.verdict) == ("miss", "miss")
    assert "every 10 s on this twin" in short.note
    assert "awake all the time" in short.note
    assert "on this twin" not in long.note


@pytest.mark.system
def test_profiles_show_work_between_idle_stretches(run: Study, tmp_path: Path) -> None:
    seen, _ = read_profiles(run, "energy-predict", "gpu")
    assert seen.used == (True, False, False, False)
    within = seen.watts[0][(seen.shares > 0.07) & (seen.shares < 0.27)]
    after = seen.watts[0][seen.shares > 0.35]
    assert np.median(within) - np.median(after) == pytest.approx(30, abs=6)
    assert read_profiles(run, "energy-predict", "cpu-only") == []
    pytest.importorskip("matplotlib")
    files = horeka.draw_pictures(run, PAPER, tmp_path, formats=("svg",))
    names = ["3-energy-train.svg", "3-energy-predict.svg", "4-health-predict.svg"]
    assert [file.name for file in files] == names
    text = files[2].read_text()
    assert [part for part in (">fraction of runtime<", ">gpu: at work<", ">cpu-mix: idle<") if part not in text] == []
    # Without idle GPUs beside it, nothing is above them.
    assert GpuProfile(seen.shares, seen.watts[:1], (True,)).above_idle_w is None
