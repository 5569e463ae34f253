"""Run the notebook `notebooks/lstm.ipynb` without a browser: look at load, train, predict, plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.workloads import lstm_load
from joulelab.workloads.training.launch import start_notebook

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
PARAMETERS = {
    **{key: lstm_load.PARAMETERS[key] for key in SAME},
    "pause": ("0", "seconds between cells, as people need to look and think"),
    "out": ("", "file for a copy of the notebook with its outputs; empty: none"),
}
PRESETS = {
    "paper": {},
    "victoria": {key: value for key, value in lstm_load.PRESETS["victoria"].items() if key in SAME},
    "smoke": {key: value for key, value in lstm_load.PRESETS["smoke"].items() if key in SAME},
}
NOTES = (
    "One device, one process: the study's notebook ran on one GPU, all cells one after another.",
    "The study's notebook took 701.9 kJ and 1046 s on a node with an A100; 300 W more for each second that it waits.",
    f"By hand: copy {FILE} and open the copy with jupyter lab; its first cell tells how to measure it.",
    *lstm_load.NOTES,
)


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value, MissingDependency."""
    return start_notebook(NAME, FILE, lstm_load, SAME, parameters, needs=("torch", "matplotlib"))
