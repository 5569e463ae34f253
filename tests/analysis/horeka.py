"""Enter the published rows of the HoreKa study as results: number, mean and deviation of each figure."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from joulelab.analysis.cell_comparison import RepeatSample
from joulelab.analysis.study_cells import Cell
from joulelab.core.quantity import round_interval

PUBLISHED: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "published" / "horeka.toml").read_text())
USES, PHASES, SETUPS = ("energy", "health"), ("train", "predict"), ("gpu", "cpu-mix", "cpu-only")
JUPYTER = "Jupyter"  # the training in a notebook, on the GPU: one run
ROWS = [(phase, setup) for phase in PHASES for setup in ((*SETUPS, JUPYTER) if phase == "train" else SETUPS)]


def cells(meter: float | None = None) -> list[Cell]:
    """Return the fourteen rows; `meter` gives each node a meter of its own, of that relative expanded uncertainty."""
    return [
        _notebook(use, meter) if setup == JUPYTER else _cell(use, phase, setup, meter)
        for use in USES
        for phase, setup in ROWS
    ]


def printed(use: str, phase: str, setup: str) -> list[str]:
    row = PUBLISHED["jupyter"][use] if setup == JUPYTER else PUBLISHED[use][phase][setup]
    return [_round_cell(text) for text in row["printed"]]


def _round_cell(text: str) -> str:
    """Round a cell of the paper as joulelab prints it: `680.7 ± 6.7` is `681 ± 7`."""
    numbers = [float(part.replace(" ", "")) for part in text.split(" ± ")] if " ± " in text else []
    return " ± ".join(round_interval(*numbers)) if numbers else text


def key(use: str, phase: str, setup: str) -> str:
    return f"{use}-{phase}-{setup}"


def _notebook(use: str, meter: float | None) -> Cell:
    row = PUBLISHED["jupyter"][use]
    energy = RepeatSample(1, row["kj"] * 1e3)
    if meter is not None:
        energy = replace(energy, meter=meter, devices=frozenset({"gpu"}))
    knobs = {"workload": use, "phase": "train", "node": JUPYTER}
    return Cell(
        key(use, "train", JUPYTER), knobs, moments={"energy": energy, "time": RepeatSample(1, row["s"], meter=0.0)}
    )


def _cell(use: str, phase: str, setup: str, meter: float | None) -> Cell:
    row, n = PUBLISHED[use][phase][setup], PUBLISHED["repeats"]
    (kj, d_kj), (w, d_w) = row["kj"], row["w"]
    # No deviation of the runtime is printed. Derived: time is energy over power, so to first order its relative
    # deviation is at most the sum of theirs.
    time = RepeatSample(n, row["s"], row["s"] * (d_kj / kj + d_w / w), meter=0.0)
    moments = {"energy": RepeatSample(n, kj * 1e3, d_kj * 1e3), "power": RepeatSample(n, w, d_w)}
    if meter is not None:
        moments = {name: replace(s, meter=meter, devices=frozenset({setup})) for name, s in moments.items()}
    knobs = {"workload": use, "phase": phase, "node": setup}
    return Cell(key(use, phase, setup), knobs, moments={**moments, "time": time})
