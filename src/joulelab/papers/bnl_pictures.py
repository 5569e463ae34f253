"""Draw the figures of the BNL paper: power over time of its trainings, nameplate, burn control and load of the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.papers.bnl_runs import course
from joulelab.report.charts.print_painter import COLOURS, FORMATS, STYLE, load_matplotlib, save_figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from joulelab.papers.bnl_runs import Course
    from joulelab.study.folder import Study

NOTE = "Node: at the PDU, once a minute. GPU load: by NVML, mean of all. In virtual time, on the node's twin."
TESTS = (
    " The twin tests after each epoch, with 100 images on each GPU: more than it trains with in batches of 512 "
    "(peaks), less than in batches of 4096 (dips). Deeper dips are its pauses between epochs."
)
LABELS = {"resnet-512": "ResNet-152, batch 512", "resnet-4096": "ResNet-152, batch 4096", "llava": "LLaVA, batch 128"}
FILES = (("1-resnet", NOTE + TESTS, ("resnet-512", "resnet-4096")), ("2-llava", NOTE, ("llava",)))
POWER, LOAD, LINE = COLOURS[0], "#E69F00", "#444444"
KW = 1000.0
MINUTE_H = 1 / 60
SMOOTH_MIN = 5  # load is shown as a mean over so many minutes


def pictures_of(
    study: Study, folder: Path, *, rated_w: float, burn_w: float | None, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write the paper's two figures with what has run; return the files. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with mpl.rc_context(STYLE):
        for file, note, names in FILES:
            courses = {name: found for name in names if (found := course(study, name)) is not None}
            if courses:
                figure = Figure(figsize=(6.4, 0.8 + 3.0 * len(courses)), layout="constrained")
                panels = figure.subplots(len(courses), 1, squeeze=False)[:, 0]
                for axes, (name, found) in zip(panels, courses.items(), strict=True):
                    _draw(axes, LABELS[name], found, rated_w, burn_w)
                written += save_figure(figure, note, folder / file, formats)
    return written


def _draw(axes: Axes, title: str, found: Course, rated_w: float, burn_w: float | None) -> None:
    """Draw one run in a panel of its own: one line would hide another's."""
    lines = axes.plot(found.power_h, found.power_kw, color=POWER, linewidth=0.8, label="node, power")
    lines.append(axes.axhline(rated_w / KW, color=LINE, linestyle="--", linewidth=1, label="node, rated"))
    if burn_w is not None:
        shown = "node, burn control (median)"
        lines.append(axes.axhline(burn_w / KW, color=LINE, linestyle=":", linewidth=1.4, label=shown))
    axes.set_xlabel("time, h")
    axes.set_ylabel("power of the node, kW")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.1 * rated_w / KW)
    axes.set_title(title, loc="left", fontsize=10)
    lines += _draw_load(axes, found)
    axes.legend(handles=lines, fontsize=8, ncols=2, loc="lower right", framealpha=0.9)


def _draw_load(axes: Axes, found: Course) -> list[Line2D]:
    """Draw the load of the GPUs on an axis of its own; return its lines."""
    if not found.load_h.size:
        return []
    second = axes.twinx()
    hours, load = _smoothed(found)
    lines = second.plot(hours, load, color=LOAD, linewidth=1.2, label=f"GPU load, mean over {SMOOTH_MIN} min")
    second.set_ylim(0, 110)
    second.set_ylabel(f"load of the GPUs,\nmean over {SMOOTH_MIN} min, %")
    second.grid(visible=False)
    second.spines["right"].set_visible(True)
    return lines


def _smoothed(found: Course) -> tuple[list[float], list[float]]:
    """Return means of the load over stretches of a few minutes: epochs come faster than a line can show."""
    hours, load = found.load_h, found.load_pct
    step_h = float(hours[-1] - hours[0]) / max(len(hours) - 1, 1) if hours.size else 0.0
    count = max(round(SMOOTH_MIN * MINUTE_H / step_h), 1) if step_h else 1
    blocks = range(0, len(hours), count)
    return [float(hours[k : k + count].mean()) for k in blocks], [float(load[k : k + count].mean()) for k in blocks]
