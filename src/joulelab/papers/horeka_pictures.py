"""Draw the figures of the HoreKa paper: power of a GPU over the share of a job's runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.papers.horeka_runs import profiles
from joulelab.report.charts.print_painter import COLOURS, FORMATS, STYLE, load_matplotlib, save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from joulelab.papers.horeka_runs import Profile
    from joulelab.study.folder import Study

FILES = (("energy", "3-energy-profile"), ("health", "4-health-profile"))
PHASES = (("train", "training"), ("predict", "prediction"))
SETUPS = (("gpu", "GPU: at work"), ("cpu-mix", "CPU-mix: idle"))
NOTE = "First GPU of the node, by NVML every 500 ms, first of the repeats. In virtual time, on the node's twin."
MOST_POINTS = 4000  # a run of two days has more readings than a picture has columns: then means of a few are drawn


def pictures_of(study: Study, folder: Path, *, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure for each use case that has run; return the files. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    written: list[Path] = []
    with mpl.rc_context(STYLE):
        for case, file in FILES:
            seen = {
                (phase, setup): found
                for phase, _ in PHASES
                for setup, _ in SETUPS
                for found in profiles(study, f"{case}-{phase}", setup, 1)
            }
            if not seen:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            figure = Figure(figsize=(6.4, 5.6), layout="constrained")
            for axes, (phase, label) in zip(figure.subplots(2, 1, sharex=True), PHASES, strict=True):
                _draw(axes, f"Use case {case}, {label}", {s: p for (of, s), p in seen.items() if of == phase})
                if phase == PHASES[-1][0]:
                    axes.set_xlabel("share of the runtime")
            written += save_figure(figure, NOTE, folder / file, formats)
    return written


def _draw(axes: Axes, title: str, seen: dict[str, Profile]) -> None:
    for k, (setup, label) in enumerate(SETUPS):
        if setup in seen:
            shares, watts = thinned(seen[setup])
            axes.plot(shares, watts, color=COLOURS[(2, 0)[k]], linestyle=("-", "--")[k], linewidth=0.9, label=label)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("power of the GPU, W")
    axes.set_title(title, loc="left", fontsize=10)
    if seen:
        axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)


def thinned(of: Profile) -> tuple[list[float], list[float]]:
    """Return shares and powers of the first GPU, as means of a few where there are too many to draw."""
    count = max(len(of.shares) // MOST_POINTS, 1)
    whole = len(of.shares) // count * count
    both = [np.asarray(each[:whole]).reshape(-1, count).mean(axis=1) for each in (of.shares, of.watts[0])]
    return both[0].tolist(), both[1].tolist()
