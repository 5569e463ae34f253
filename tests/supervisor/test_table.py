"""What `print(m)` shows of a measurement."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.report.synthetic import make_run
from tests.report.test_facts import stepped, told

from joulelab.report.cache import result_of
from joulelab.supervisor.table import PHASES, energy, table

if TYPE_CHECKING:
    from pathlib import Path


def test_a_measurement_tells_phases_data_quality_and_work(tmp_path: Path) -> None:
    facts = told(data="x" * 99, quality="accuracy", accuracy=0.9)
    run = make_run(tmp_path, marks=[*stepped(2, 20), facts])
    text = table("training", 10.0, run, result_of(run))
    assert re.search(r"\n  train +6\.87\d kJ ± [\d.]+ +\d+\.\d W\n    epoch 1 .*\n      step 1-20 ", text)
    assert re.search(r"\n  data: x{59}…\n  quality: accuracy 0\.9\n(.*\n)*  128 samples, 53\.\d+ J/sample ± ", text)
    assert re.search(r"\n  40 TFLOP, \d+\.\d+ pJ/FLOP ± ", text)
    many = make_run(tmp_path, marks=stepped(12, 2))
    assert len([line for line in table("t", 10.0, many, result_of(many)).splitlines() if "epoch" in line]) < PHASES
    silent = make_run(tmp_path, gpus=0, cpus=0, marks=[*stepped(2, 20), facts])
    assert "no power meter" in table("t", 10.0, silent, result_of(silent))
    assert "\n  128 samples" in table("t", 10.0, silent, result_of(silent))
    result = result_of(run)
    nothing = replace(result.energy, value=0.0) if result.energy is not None else None
    assert nothing is not None
    assert energy(nothing).startswith("0.000 J")
