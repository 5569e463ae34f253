"""Run the notebook `notebooks/vgg19bn.ipynb` without a browser: look at X-rays, train, predict, plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.workloads import vgg19bn_xray
from joulelab.workloads.training.training_parameters import (
    list_base_parameters,
    list_notebook_notes,
    list_notebook_parameters,
    start_notebook,
)
from joulelab.workloads.training.training_task import describe_notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

SUMMARY = "vgg19bn-xray as a notebook: exploration, plots, training, prediction; run without a browser, cell by cell"
STUDY = "HoreKa 2022"
NAME = "vgg19bn-notebook"
FILE = Path(__file__).with_name("notebooks") / "vgg19bn.ipynb"
# What the cell tagged `parameters` sets, with what it means there.
SAME = (
    "data", "preparation", "draft", "train_samples", "distinct", "file_pixels", "epochs", "batch", "rate",
    "momentum", "pool_stride", "divisor", "pixels", "repeats", "workers", "worker_starts",
    "device", "threads", "seed", "deterministic", "max_seconds",
)  # fmt: skip
PARAMETERS = list_notebook_parameters(vgg19bn_xray, SAME)
PRESETS = {
    "paper": {"repeats": "1"},
    "paper-250": {"epochs": "250", "repeats": "1"},
    "smoke": {key: value for key, value in vgg19bn_xray.PRESETS["smoke"].items() if key in SAME},
}
PROGRAM = describe_notebook(vgg19bn_xray.PROGRAM)
NOTES = list_notebook_notes(vgg19bn_xray, FILE, "783.6 kJ and 966 s")


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value, MissingDependency."""
    return start_notebook(NAME, FILE, vgg19bn_xray, SAME, parameters, needs=("torch", "PIL", "matplotlib"))


def prepare(parameters: Mapping[str, str]) -> list[str] | None:
    """Return the command that writes the stand-in's files, None without them. Raises ConfigError."""
    return vgg19bn_xray.prepare(list_base_parameters(vgg19bn_xray, parameters))
