"""Run the notebook `notebooks/lstm.ipynb` without a browser: look at load, train, predict, plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.study.program import ProgramStage
from joulelab.workloads import lstm_load
from joulelab.workloads.training.training_parameters import (
    list_base_parameters,
    list_notebook_notes,
    list_notebook_parameters,
    start_notebook,
)
from joulelab.workloads.training.training_task import describe_notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

SUMMARY = "lstm-load as a notebook: exploration, plots, training, prediction; run without a browser, cell by cell"
STUDY = "HoreKa 2022"
NAME = "lstm-notebook"
FILE = Path(__file__).with_name("notebooks") / "lstm.ipynb"
# What the cell tagged `parameters` sets, with what it means there.
SAME = (
    "data", "countries", "hours", "epochs", "batch", "rate", "units", "cell", "copies", "device", "threads", "seed",
    "max_seconds",
)  # fmt: skip
PARAMETERS = list_notebook_parameters(lstm_load, SAME)
PRESETS = {
    "paper": {"copies": "1"},
    "victoria": {key: value for key, value in lstm_load.PRESETS["victoria"].items() if key in SAME},
    "smoke": {key: value for key, value in lstm_load.PRESETS["smoke"].items() if key in SAME},
}
_FIRST_TEST = ProgramStage(name="validation", part="before", samples="a_year", batch="batch")
PROGRAM = describe_notebook(lstm_load.PROGRAM, first_test=_FIRST_TEST)
NOTES = list_notebook_notes(lstm_load, FILE, "701.9 kJ and 1046 s")


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value, MissingDependency."""
    return start_notebook(NAME, FILE, lstm_load, SAME, parameters, needs=("torch", "matplotlib"))


def prepare(parameters: Mapping[str, str]) -> list[str] | None:
    """Return the command that writes the stand-in's files, None without them. Raises ConfigError."""
    return lstm_load.prepare(list_base_parameters(lstm_load, parameters))
