"""Enter the published rows of the HoreKa study as results: number, mean and deviation of each figure."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from joulelab.analysis.cells import Cell
from joulelab.analysis.repeats import Sample

PUBLISHED: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "published" / "horeka.toml").read_text())
USES, PHASES, SETUPS = ("energy", "health"), ("train", "predict"), ("gpu", "cpu-mix", "cpu-only")


def cells(meter: float | None = None) -> list[Cell]:
    """Return the twelve rows; `meter` gives each setup a meter of its own, of that relative expanded uncertainty."""
    return [_cell(use, phase, setup, meter) for use in USES for phase in PHASES for setup in SETUPS]


def key(use: str, phase: str, setup: str) -> str:
    return f"{use}-{phase}-{setup}"


def _cell(use: str, phase: str, setup: str, meter: float | None) -> Cell:
    row, n = PUBLISHED[use][phase][setup], PUBLISHED["repeats"]
    (kj, d_kj), (w, d_w) = row["kj"], row["w"]
    # No deviation of the runtime is printed. Derived: time is energy over power, so to first order its relative
    # deviation is at most the sum of theirs.
    time = Sample(n, row["s"], row["s"] * (d_kj / kj + d_w / w), meter=0.0)
    moments = {"energy": Sample(n, kj * 1e3, d_kj * 1e3), "power": Sample(n, w, d_w)}
    if meter is not None:
        moments = {name: replace(s, meter=meter, devices=frozenset({setup})) for name, s in moments.items()}
    knobs = {"workload": use, "phase": phase, "node": setup}
    return Cell(key(use, phase, setup), knobs, moments={**moments, "time": time})
