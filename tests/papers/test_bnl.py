"""Test the BNL study on its twin: calibration, figures that follow physics, pictures, tables, what sampling costs."""

from __future__ import annotations

import csv
import io
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.core.spec import Spec
from joulelab.papers import bnl
from joulelab.papers.bnl import (
    NAMES,
    REST_S,
    SecondsOfPower,
    compute_cost,
    find_runs,
    integrate_readings,
    list_costs,
    read_runs,
)
from joulelab.papers.paper import PaperNumbers, find_paper
from joulelab.report.study_csv import write_records
from joulelab.store.run_reader import open_run
from joulelab.study.study_file import read_study
from joulelab.twin.nodefile import Description, find_node, merge_tables, parse_node
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual import run_twin_study
from joulelab.twin.workload_progress import RunRequest

if TYPE_CHECKING:
    from joulelab.papers.judgement import Figure
    from joulelab.study.folder import Study
    from joulelab.twin.timeline import Timeline

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "studies" / "bnl.toml"
NODE = ROOT / "src/joulelab/twin/nodes/bnl-h100.toml"
NS = 1_000_000_000
GPUS = tuple(range(8))
PAPER = find_paper("bnl")


def make_figures(numbers: PaperNumbers) -> dict[str, Figure]:
    return {f.id: f for f in PAPER.make_figures(numbers)}


def changed(**changes: object) -> Description:
    return parse_node(NODE.read_text(), "node", changes)


def short(folder: Path) -> Path:
    """Write the study with a tenth of the epochs, a few samples and short burns."""
    text = STUDY.read_text().replace("epochs = 200", "epochs = 10").replace("seconds = 1800", "seconds = 300")
    text = text.replace("epochs = 1 }", "epochs = 1, samples = 30000 }")
    file = folder / "bnl.toml"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("bnl")
    return run_twin_study(short(folder), "bnl-h100", folder / "study")


@pytest.fixture(scope="module")
def numbers(study: Study) -> PaperNumbers:
    return bnl.compute_numbers(study, PAPER)


def laid(name: str, described: Description | None = None, **parameters: float) -> Timeline:
    """Lay out a run without scatter between runs."""
    known = described or find_node("bnl-h100")
    model = replace(known.workloads[name], time_scatter=0.0, power_scatter=0.0)
    return lay_out_run(known.node, model, RunRequest(parameters, GPUS), RunTimes(0, 60.0, 60.0), 3)


def sampled(run: Timeline) -> np.ndarray:
    """Return the power of the node (W) once a minute, as means over 1 s."""
    _, curve = run.curve("node.ac")
    at = np.arange(run.start_ns + 30 * NS, run.end_ns, 60 * NS, dtype=np.int64)
    return np.asarray(curve.joules(at) - curve.joules(at - NS))


def test_the_twin_meets_what_it_was_calibrated_on() -> None:
    small = laid("resnet152-cifar10", batch=512)
    assert (small.end_ns - small.start_ns) / NS / 3600 == pytest.approx(26, abs=0.02)
    assert np.median(sampled(small)) == pytest.approx(4680, abs=5)
    assert np.median(sampled(laid("burn", seconds=600, host_memory=0.87))) == pytest.approx(8430, abs=5)
    node = find_node("bnl-h100").node
    idle_w = sum(node.range_w(leaf)[0] for leaf in node.leaves() if not leaf.startswith("core"))
    assert np.interp(idle_w, *node.to_ac()) == pytest.approx(2200, abs=2)  # without fans: immersed


def test_three_figures_are_calibrated_and_six_count_strictly() -> None:
    node = find_node("bnl-h100")
    assert set(node.calibrated) == {"bnl.resnet-512.duration_h", "bnl.resnet-512.median_w", "bnl.burn.median_w"}
    figures = PAPER.make_figures(PaperNumbers(), node.calibrated, node.chosen)
    assert {f.id for f in figures if f.kind == "calibrated"} == set(node.calibrated)
    strict = {f.id.removeprefix("bnl.") for f in figures if f.is_strict}
    of_llava = {"llava.duration_h", "llava.median_w", "llava.max_w"}
    assert strict == of_llava | {"resnet-512.max_w", "resnet-4096.max_w", "resnet-4096.energy_kwh"}


def test_the_host_is_loaded_only_where_the_burn_says_so() -> None:
    alone, both = (laid("burn", seconds=600, host_memory=share) for share in (0, 0.87))
    assert alone.energy("cpu:0", alone.start_ns, alone.end_ns) < 0.6 * both.energy("cpu:0", both.start_ns, both.end_ns)
    assert [s.name for s in alone.spans] == [s.name for s in both.spans] == ["set-up", "burn"]
    # Held by their caps, whatever they would draw.
    _, curve = both.curve("gpu:3")
    assert curve.watts(np.array([both.start_ns + 300 * NS]))[0] == 700


def test_the_study_file_is_that_of_the_paper() -> None:
    plan = read_study(STUDY).plan
    cells = {bnl.name_run(cell) for cell in plan.cells}
    assert cells == set(NAMES)
    assert plan.repeats == 1
    assert set(plan.settings.meters) == set(find_node("bnl-h100").meters)
    pdu = find_node("bnl-h100").meters["pdu"]
    assert pdu.options["period_s"] == PAPER.setup["sample_period_s"]
    entry = tomllib.loads("\n".join(line[4:] for line in STUDY.read_text().splitlines() if line.startswith("#   ")
                                    and "joulelab" not in line))["meters"]["pdu"]  # fmt: skip
    same = ("outlets", "feeds", "period_s", "energy")
    assert [pdu.options[key] for key in same] == [entry[key] for key in same]


@pytest.mark.system
def test_energy_is_made_of_power_that_was_sampled_once_a_minute(study: Study) -> None:
    ran = read_runs(study)
    for name, (_, _, folder) in find_runs(study).items():
        with open_run(folder) as run:
            cords = [stream for table in run.tables() for stream in table.streams if stream.scope.startswith("outlet")]
            (node,) = [scope for scope in analyse_run(run).scopes if scope.scope == "node.ac"]
        assert len(cords) == 6
        assert {spec.name for stream in cords for spec in stream.channels if spec.kind != "state"} == {"power_w"}, name
        assert (node.reading.kind, node.reading.channel) == ("power", "power_w")
        assert (energy := ran[name].energy) is not None
        assert energy.value == pytest.approx(node.energy.value)


@pytest.mark.system
def test_figures_are_worked_out_from_the_runs(study: Study, numbers: PaperNumbers) -> None:
    found, made = read_runs(study), make_figures(numbers)
    assert list(found) == list(NAMES)
    assert made["bnl.resnet-512.duration_h"].reproduced == pytest.approx(26 / 20, rel=0.02)
    small, large = found["resnet-512"], found["resnet-4096"]
    assert small.energy is not None
    assert small.energy.value == pytest.approx((small.mean_w or 0.0) * small.time_s)
    assert made["bnl.energy_factor"].reproduced == pytest.approx(small.energy.value / large.energy.value)  # type: ignore[union-attr]
    most = max(one.max_w or 0.0 for one in found.values())
    assert made["bnl.headline_max_w"].reproduced == most
    assert made["bnl.max_below_nameplate_pct"].reproduced == pytest.approx(100 * (1 - most / 10200))
    assert made["bnl.rack.margin"].reproduced == pytest.approx(1 - 6 * most / 70000)
    busy = 96 * (1 - 180 / found["llava"].time_s)  # all but the three minutes in which it is set up
    assert made["bnl.llava.gpu_load_mean_pct"].reproduced == pytest.approx(busy, abs=1)
    assert [f.id for f in made.values() if f.kind == "finding" and f.reproduced is not True] == []


@pytest.mark.system
def test_a_physical_parameter_moves_what_is_reproduced(numbers: PaperNumbers, tmp_path: Path) -> None:
    before = make_figures(numbers)
    file = short(tmp_path)
    text = file.read_text().replace("[512, 4096]", "[4096]").replace("reference = { batch = 512 }", "")
    file.write_text(text.replace("samples = 30000", "samples = 2000"))
    moved = run_twin_study(file, changed(cooling={"fan_max_w": 3000.0}, host={"idle_w": 1000.0}), tmp_path / "study")
    after = make_figures(bnl.compute_numbers(moved, PAPER))
    assert float(after["bnl.burn.max_w"].reproduced or 0) > float(before["bnl.burn.max_w"].reproduced or 0) + 500
    assert after["bnl.finding.rack"].reproduced is False
    assert before["bnl.finding.rack"].reproduced is True
    assert after["bnl.resnet-4096.median_w"].reproduced != before["bnl.resnet-4096.median_w"].reproduced
    assert after["bnl.resnet-512.median_w"].reproduced is None
    assert after["bnl.energy_factor"].reproduced is None


@pytest.mark.system
def test_the_summary_has_a_row_for_each_run(numbers: PaperNumbers) -> None:
    summary, sampling = numbers.tables
    assert [row.cells[1] for row in summary.table.rows] == [512, 4096, 128, None, None]
    records = {record["run"]: record for record in summary.records}
    assert records["burn"]["max_of_nameplate"] == pytest.approx(records["burn"]["max_w"] / 10200)
    rows = list(csv.DictReader(io.StringIO(write_records(summary.records))))
    assert float(rows[0]["energy_j"]) == records["resnet-512"]["energy_j"]
    assert {record["period_s"] for record in sampling.records} == {1, 10, 60, 300}


@pytest.mark.system
def test_pictures_show_power_nameplate_burn_and_load(study: Study, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = {file.stem: file.read_text() for file in bnl.draw_pictures(study, PAPER, tmp_path / "p", formats=("svg",))}
    assert set(files) == {"1-resnet-512", "1-resnet-4096", "2-llava"}
    for text in files.values():
        assert [part for part in (">rated<", ">burn control, median<", "gpu load", "load, %") if part not in text] == []
    assert "LLaVA, batch 128" in files["2-llava"]
    assert "validates" not in files["2-llava"]
    assert "ResNet-152, batch 512. Simulated" in files["1-resnet-512"]


@pytest.mark.system
def test_reading_less_often_gets_more_wrong_and_powers_are_those_that_are_printed(
    study: Study, numbers: PaperNumbers
) -> None:
    found = {(c.name, c.period_s): c for c in list_costs(study)}
    for name in NAMES:
        own = [found[name, period].energy for period in (1, 10, 60, 300)]
        assert own[0] < 5e-4
        assert own == sorted(own)
    assert found["resnet-4096", 60].max_w < found["resnet-4096", 10].max_w < 0
    each, words = found["burn", 1], PAPER.word_meters(numbers)
    assert any("once a minute" in text for text in words)
    assert 0.0005 < abs(each.gain) < 0.02  # the PDU's own
    for name in ("burn", "burn-gpus"):  # they draw nearly the same all the time; six outlets show whole watts
        assert found[name, 1].most_w == pytest.approx(numbers.figures[f"{name}.max_w"].value, abs=4)
    assert f"{100 * each.gain:+.2f} %" in words[-1]
    assert f"{100 * each.gain:+.2f} %" in numbers.tables[1].table.notes[0]


def hour(peak_w: float = 1000.0) -> SecondsOfPower:
    """Return an hour of 1000 W with one second of another power, and 200 W at rest."""
    watts = np.full(3600 + 2 * REST_S, 1000.0)
    watts[REST_S + 1800] = peak_w
    watts[:REST_S] = watts[-REST_S:] = 200.0
    return SecondsOfPower(watts, 0.01)


def test_what_a_period_misses_is_exact() -> None:
    run = hour(4600.0)
    seen = compute_cost("peak", run, 60)
    assert compute_cost("peak", run, 1).max_w == 0
    assert seen.most_w == pytest.approx(1.01 * 4600)
    assert seen.max_w == pytest.approx(-1.01 * 3600 * 59 / 60)  # 59 of 60 clocks miss it
    # One clock takes it for a minute; at the edges, half a minute is mistaken for rest or for work at most.
    assert seen.worst == pytest.approx((60 * 3600 - 3600) / run.inner.sum(), rel=0.12)
    steady = compute_cost("steady", hour(), 300)
    assert steady.worst <= 300 * 800 / 3.6e6
    assert (steady.median_w, steady.max_w) == (0, 0)


@pytest.mark.parametrize(("begin", "period_s"), [(0, 60), (17, 60), (120, 300), (0, 1)])
def test_energy_is_what_the_analysis_makes_of_the_same_readings(begin: int, period_s: int) -> None:
    seen = hour(4600.0)
    at = np.arange(begin, len(seen.watts), period_s, dtype=np.int64)
    t = (at + 1) * NS  # a mean over a second is shown at its end
    spec = Spec("power_w", "power", "W", "power", 0.0, 1.0)
    curve = PowerCurve(Readings.from_rows(t, t, seen.watts[at]), spec, name="pdu", step_s=period_s)
    last = len(seen.watts) - REST_S
    assert integrate_readings(seen, begin, period_s) == pytest.approx(
        curve.energy(REST_S * NS, last * NS).value, rel=1e-9
    )


def test_changes_are_merged_into_every_stage() -> None:
    table = merge_tables({"stages": [{"cpu": 1}, {"cpu": 2}]}, {"stages": {"cpu": 3}})
    assert table == {"stages": [{"cpu": 3}, {"cpu": 3}]}
