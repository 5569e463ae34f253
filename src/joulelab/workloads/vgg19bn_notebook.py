"""Run the notebook `notebooks/vgg19bn.ipynb` without a browser: look at X-rays, train, predict, plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.workloads import vgg19bn_xray
from joulelab.workloads.training.launch import start_notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

SUMMARY = "vgg19bn-xray as a notebook: exploration, plots, training, prediction; run without a browser, cell by cell"
STUDY = "HoreKa 2022"
NAME = "vgg19bn-notebook"
FILE = Path(__file__).with_name("notebooks") / "vgg19bn.ipynb"
# What the cell tagged `parameters` sets, with what it means there.
SAME = (
    "data", "preparation", "draft", "train_samples", "distinct", "file_pixels", "epochs", "batch", "rate",
    "momentum", "pool_stride", "divisor", "pixels", "repeats", "workers", "device", "threads", "seed", "deterministic",
    "max_seconds",
)  # fmt: skip
PARAMETERS = {
    **{key: vgg19bn_xray.PARAMETERS[key] for key in SAME},
    "pause": ("0", "seconds between cells, as people need to look and think"),
    "out": ("", "file for a copy of the notebook with its outputs; empty: none"),
}
PRESETS = {
    "paper": {},
    "paper-250": {"epochs": "250"},
    "smoke": {key: value for key, value in vgg19bn_xray.PRESETS["smoke"].items() if key in SAME},
}
NOTES = (
    "One device, one process: the study's notebook ran on one GPU, all cells one after another.",
    "The study's notebook took 783.6 kJ and 966 s on a node with an A100; 300 W more for each second that it waits.",
    f"By hand: copy {FILE} and open the copy with jupyter lab; its first cell tells how to measure it.",
    *vgg19bn_xray.NOTES,
)


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value, MissingDependency."""
    return start_notebook(NAME, FILE, vgg19bn_xray, SAME, parameters, needs=("torch", "PIL", "matplotlib"))
