"""The mean load of GPUs: weighted by time, without gaps, by phase; a load that is not known has no figure."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.folders import Folder, gpu, state
from tests.analysis.nodes import END, START, T, busy
from tests.analysis.studies import by_cap
from tests.analysis.test_analyse import begin, end
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.device_load import LoadCurve
from joulelab.analysis.readings import Readings
from joulelab.analysis.results_file import list_query_rows, make_head
from joulelab.report.result_json import describe_result
from joulelab.report.run_rows import list_phase_rows
from joulelab.report.run_tables import describe_gpu_load, format_load, list_load_facts, make_phase_table
from joulelab.report.study_csv import write_cells_csv
from joulelab.report.study_tables import lay_out_study
from joulelab.report.tables import write_terminal
from joulelab.report.terminal import write_blocks
from joulelab.study.results import make_trial

SECONDS = np.arange(0.0, 20.1, 0.25)
NONE = np.nan


def curve(seconds, loads) -> LoadCurve:
    t = np.array([ns(s) for s in seconds], np.int64)
    return LoadCurve.from_readings("node1", "gpu:0", Readings.from_rows(t, t, np.array(loads, float)))


def test_a_reading_counts_for_the_time_since_the_one_before():
    found = curve([*range(1, 11), 12, 13, 14], [0.2] * 5 + [0.8] * 5 + [0.5, 0.1, 0.1])
    assert found.compute_mean(ns(0), ns(14)) == pytest.approx((1.0 + 4.0 + 1.0 + 0.2) / 14)
    assert found.compute_mean(ns(0), ns(10)) == pytest.approx(0.5)
    assert found.compute_mean(ns(2.5), ns(14)) == pytest.approx((0.5 + 4.0 + 1.0 + 0.2) / 11.5)
    assert found.find_maximum(ns(11), ns(15)) == 0.5


def test_a_gap_is_no_part_of_the_mean_and_a_load_that_was_hardly_read_is_not_known():
    found = curve([*range(1, 6), *range(16, 21)], [1.0] * 10)
    assert found.compute_mean(ns(0), ns(20)) == pytest.approx(1.0)  # ten of 20 seconds
    assert found.compute_mean(ns(0), ns(20.5)) is None
    assert found.compute_mean(ns(4), ns(4)) is None
    assert curve([1, 2, 3, 4], [1.0, NONE, NONE, 1.0]).find_maximum(ns(0), ns(9)) is None


def test_a_mean_of_few_readings_is_not_known():
    found = curve(range(1, 11), [0.98] * 10)
    assert found.compute_mean(ns(0), ns(10)) == pytest.approx(0.98)
    assert found.compute_mean(ns(0), ns(9)) is None
    assert found.find_maximum(ns(0), ns(3)) == 0.98


def make_folder(tmp_path, **meta) -> Folder:
    """Two GPUs that work, one that does not, and one whose load was never read; epoch 1 is half as busy."""
    folder = Folder(tmp_path, **meta)
    for k in range(4):
        folder.add("nvml", gpu(k), T, *busy(50.0, 400.0))
    early = SECONDS <= (START + END) / 2
    for k, (low, high) in enumerate([(0.4, 0.8), (0.5, 1.0), (0.0, 0.0), (NONE, NONE)]):
        folder.add("nvml", state(k, "load"), SECONDS, np.where(early, low, high))
    middle = (START + END) / 2
    marks = (begin(START, 1, "epoch"), end(middle, 1), begin(middle, 2, "epoch"), end(END, 2))
    return folder.marks("9-9", *marks).close(START, END)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def result(folder):
    return analyse_run(folder.open())


def test_the_mean_is_over_the_gpus_that_worked(result):
    assert [(load.scope, load.is_used) for load in result.gpu_loads] == [
        ("gpu:0", True), ("gpu:1", True), ("gpu:2", False)
    ]  # fmt: skip
    assert [load.mean for load in result.gpu_loads] == pytest.approx([0.6, 0.75, 0.0], abs=0.03)
    assert result.gpu_load == pytest.approx(0.675, abs=0.03)
    assert [p.gpu_load for p in result.phases] == pytest.approx([0.45, 0.9], abs=0.06)
    assert set(result.phases[0].gpu_loads) == {"gpu:0", "gpu:1"}
    plain = describe_result(result)
    assert (plain["gpu_load"], plain["phases"][0]["gpu_load"]) == (result.gpu_load, result.phases[0].gpu_load)
    assert plain["gpu_loads"][0].keys() == {"host", "scope", "mean", "maximum"}


def test_load_is_shown_and_in_the_views_of_query(folder, result):
    assert describe_gpu_load(result).startswith("2 GPUs 6")
    assert list_load_facts(result) == [("load", describe_gpu_load(result))]
    assert "GPU load, %" in write_terminal(make_phase_table(list_phase_rows(result)))
    head, rows = make_head(result), list_query_rows(folder.path)
    assert [row["gpu_load"] for row in rows["runs"]] == [head.gpu_load] == [result.gpu_load]
    assert [row["load"] for row in rows["energies"]] == [*(load.mean for load in result.gpu_loads), None]
    assert [row["gpu_load"] for row in rows["phases"]] == [p.gpu_load for p in result.phases]
    assert [format_load(load) for load in (0.0, 0.001, 0.93, 1.0)] == ["0", "< 1", "93", "100"]


def test_load_goes_into_trials_and_cells(result):
    trial = make_trial(result)
    assert trial.gpu_load == result.gpu_load
    assert trial.phases["epoch"].gpu_load == pytest.approx(np.mean([p.gpu_load for p in result.phases]))
    lacking = replace(result, phases=(replace(result.phases[0], gpu_loads={}), result.phases[1]))
    assert make_trial(lacking).phases["epoch"].gpu_load is None
    points = {100.0: [(90.0, 12.0), (91.0, 12.1)], 200.0: [(100.0, 10.0), (101.0, 10.1)]}
    cells = [replace(c, trials=tuple(replace(t, gpu_load=0.93) for t in c.trials)) for c in by_cap(points)]
    half = replace(cells[0], trials=(cells[0].trials[0], replace(cells[0].trials[1], gpu_load=None)))
    summary = summarise_cells([half, cells[1]])
    assert [c.gpu_load and c.gpu_load.value for c in summary.cells] == [None, pytest.approx(0.93)]
    assert "GPU" in write_blocks(lay_out_study(summary), 110)
    assert [row["gpu_load"] for row in csv.DictReader(io.StringIO(write_cells_csv(summary)))] == ["", "0.93"]


def test_of_two_meters_the_one_with_more_readings_counts_and_other_hosts_are_named(tmp_path):
    folder = Folder(tmp_path).add("nvml", gpu(0), T, *busy(50.0, 400.0))
    folder.add("prometheus", state(0, "load"), SECONDS[::20], np.full(5, 0.2))
    folder.add("nvml", state(0, "load"), SECONDS, np.where(SECONDS == 9, 2e7, 0.6))  # once a mark for "no value"
    folder.add("smi", state(0, "load"), SECONDS[::20], np.full(5, 0.3))
    (folder.path / "node2" / "marks").mkdir(parents=True)
    folder.add("nvml", state(0, "load"), SECONDS, np.full(SECONDS.size, 1.0), host="node2")
    result = analyse_run(folder.marks("9-9", begin(START, 1, "epoch"), end(END, 1)).close(START, END).open())
    assert result.busiest == {"gpu:0": 0.6}
    assert [(load.host, load.mean) for load in result.gpu_loads] == [
        ("node1", pytest.approx(0.6)), ("node2", pytest.approx(1.0))
    ]  # fmt: skip
    assert result.phases[0].gpu_loads == pytest.approx({"gpu:0": 0.6, "gpu:0@node2": 1.0})
    assert "node1/gpu:0" in describe_gpu_load(result)


def test_a_run_without_a_known_load_has_none(tmp_path):
    result = analyse_run(Folder(tmp_path).add("nvml", gpu(0), T, *busy(50.0, 400.0)).close(START, END).open())
    assert (result.gpu_load, result.gpu_loads, describe_gpu_load(result)) == (None, (), "")
