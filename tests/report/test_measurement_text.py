"""The text that `print(m)` shows of a measurement."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import make_run
from tests.report.test_facts import stepped, told

from joulelab import measure
from joulelab.analysis.result import Check
from joulelab.analysis.results_file import load_result
from joulelab.integrations.jupyter_figures import MeasuredCell
from joulelab.integrations.jupyter_output import describe_cell
from joulelab.report import format as fmt
from joulelab.report.run_summary import choose_notes, describe_measurement

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.system  # pure, and slow
def test_a_measurement_tells_phases_data_quality_and_work(tmp_path: Path) -> None:
    facts = told(data="x" * 99, quality="accuracy", accuracy=0.9)
    run = make_run(tmp_path, marks=[*stepped(2, 20), facts])
    text = describe_measurement("training", 10.0, run, load_result(run))
    assert re.match(
        r"joulelab   training · 10\.00 s · run .*\nenergy     6\.[89]\d* ± [\d.]+ kJ \(± \d+ %\), 68\d W ", text
    )
    assert re.search(r"\ncpu:0 .*\n\ntrain +6\.[89]\d* ± [\d.]+ +100 +68\d +10\.00 s\n  epoch 1 .*\n  epoch 2 ", text)
    assert re.search(r"\ndata +x+…x+\nquality +accuracy 0\.9000\n", text)
    assert re.search(r"\nwork +128 samples: 5\d[.\d]* ± [\d.]+ J/sample, 12\.8\d samples/s", text)
    many = make_run(tmp_path, marks=stepped(12, 2))
    lines = describe_measurement("t", 10.0, many, load_result(many)).splitlines()
    assert len([line for line in lines if "epoch x 12" in line]) == 1
    silent = make_run(tmp_path, gpus=0, cpus=0, marks=[*stepped(2, 20), facts])
    assert "no power meter" in describe_measurement("t", 10.0, silent, load_result(silent))
    assert "\nwork       128 samples" in describe_measurement("t", 10.0, silent, load_result(silent))
    assert describe_measurement("t", 10.0, None, None) == "t · 10.00 s · not recorded"


def test_the_bound_of_a_sensor_is_one_note_below_the_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path, gpus=1, cpus=0, seen=0.25)
    lines = describe_measurement("training", 10.0, run, load_result(run)).splitlines()
    assert any(re.search(r"^gpu:0 +2\.9\d+ ± 0\.1\d+ ", line) for line in lines)
    flat = re.sub(r"\s+", " ", "\n".join(lines))
    assert "the sensors measure 25 % of the time; if the load repeats at exactly the rate at which the sensors" in flat
    assert flat.endswith("Call joulelab.step() in the training loop, or add a wall meter: -> joulelab meters")


def test_an_energy_that_is_smaller_than_its_interval_is_in_words(tmp_path: Path) -> None:
    run = make_run(tmp_path, gpus=1, cpus=0)
    result = load_result(run)
    groups = tuple(replace(g, energy=replace(g.energy, value=1000.0, terms={"edge:m": 1000.0})) for g in result.groups)
    text = describe_measurement("t", 10.0, run, replace(result, groups=groups))
    assert f"\nenergy     {fmt.TOO_SHORT}\n" in text


def test_a_name_sends_no_control_characters_to_the_terminal() -> None:
    assert describe_measurement("a\x1b[31mb", 1.0, None, None) == "a\\x1b[31mb · 1.000 s · not recorded"
    assert "\x1b" not in repr(measure("a\x1b[31mb"))


def test_a_meter_that_gave_no_reading_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, gpus=0, cpus=0)
    unread = Check("not-read", "failed", "node.ac", texts={"meter": "lost", "reason": "no answer"})
    text = describe_measurement("t", 10.0, run, replace(load_result(run), checks=(unread,)))
    assert "no energy: node.ac: fewer than two readings by lost (no answer)" in text


def test_advice_in_python_names_arguments_instead_of_options(tmp_path: Path) -> None:
    run = make_run(tmp_path, gpus=1, cpus=0)
    checks = (
        Check("too-short", "warning", "gpu:0", {"edge_share": 0.3}, {"meter": "nvml", "option": "--tail 2"}),
        Check("idle-drifted", "warning", "gpu:0", {"drift_w": 12.0}),
    )
    result = replace(load_result(run), checks=checks)
    text = " ".join(describe_measurement("t", 10.0, run, result).split())
    assert "Measure longer, or use joulelab.measure(..., tail_s=2)" in text
    assert "or use a longer idle_s in joulelab.measure()" in text
    cell = MeasuredCell("cell", run, 10.0, result, None)
    shown = " ".join(describe_cell(cell).to_text().split())
    assert "tail_s=2" in shown
    for written in (text, shown):
        assert "--tail" not in written
        assert "--idle" not in written
    notes, _ = choose_notes(result)
    assert "--tail 2" in notes[0][1]  # in a terminal it is an option of `joulelab run`
