"""What `print(m)` shows of a measurement."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import make_run
from tests.report.test_facts import stepped, told

from joulelab.analysis.results_file import load_result
from joulelab.core.quantity import Quantity
from joulelab.report.measurement_text import PHASES, describe_measurement, format_energy, format_watt_hours

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.system  # pure, and slow
def test_a_measurement_tells_phases_data_quality_and_work(tmp_path: Path) -> None:
    facts = told(data="x" * 99, quality="accuracy", accuracy=0.9)
    run = make_run(tmp_path, marks=[*stepped(2, 20), facts])
    text = describe_measurement("training", 10.0, run, load_result(run))
    assert re.match(r"training: 10\.000 s, 6\.8\d\d kJ ± [\d.]+ \(1\.91 Wh\), run ", text)
    assert re.search(r"\n  train +6\.87\d kJ ± [\d.]+ +\d+\.\d W\n    epoch 1 .*\n      step 1-20 ", text)
    assert re.search(r"\n  data: x{59}…\n  quality: accuracy 0\.9\n(.*\n)*  128 samples, 53\.\d+ J/sample ± ", text)
    assert re.search(r"\n  40 TFLOP, \d+\.\d+ pJ/FLOP ± ", text)
    many = make_run(tmp_path, marks=stepped(12, 2))
    assert (
        len([line for line in describe_measurement("t", 10.0, many, load_result(many)).splitlines() if "epoch" in line])
        < PHASES
    )
    silent = make_run(tmp_path, gpus=0, cpus=0, marks=[*stepped(2, 20), facts])
    assert "no power meter" in describe_measurement("t", 10.0, silent, load_result(silent))
    assert "\n  128 samples" in describe_measurement("t", 10.0, silent, load_result(silent))
    result = load_result(run)
    nothing = replace(result.energy, value=0.0) if result.energy is not None else None
    assert nothing is not None
    assert format_energy(nothing).startswith("0.000 J")


def test_the_bound_of_a_sensor_is_one_line_below_the_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path, gpus=1, cpus=0, seen=0.25)
    lines = describe_measurement("training", 10.0, run, load_result(run)).splitlines()
    assert re.search(r"^  gpu:0 +2\.9\d+ kJ ± 0\.1\d+ ", lines[1])
    (note,) = (line for line in lines if "note:" in line)
    assert "the sensors measure 25 % of the time; if the load repeats exactly in step with them, the error" in note
    assert note.endswith("-> call joulelab.step() in the training loop, or add a wall meter: joulelab meters")


def test_watt_hours_have_three_digits() -> None:
    assert [format_watt_hours(j) for j in (0.0, 0.36, 28.2e3, 442.8e6)] == ["0 Wh", "100 µWh", "7.83 Wh", "123 kWh"]


def test_no_energy_reaches_below_zero() -> None:
    assert format_energy(Quantity(1000.0, {"edge:m": 1000.0})) == "1.000 kJ (0 to 3.000)"
