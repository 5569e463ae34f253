"""Draw the figures of the BNL paper: power over time of its trainings, nameplate, burn control and load of the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.errors import MissingDependency
from joulelab.report.figures import COLOURS, FORMATS, STYLE, save
from joulelab.report.papers.bnl_runs import course

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from joulelab.report.papers.bnl_runs import Course
    from joulelab.study.folder import Study

NOTE = "Node: at the PDU, once a minute. GPU load: by NVML, mean of all. In virtual time, on the node's twin."
LABELS = {"resnet-512": "ResNet-152, batch 512", "resnet-4096": "ResNet-152, batch 4096", "llava": "LLaVA, batch 128"}
PANELS = (("1-resnet", "ResNet-152 on CIFAR-10", ("resnet-512", "resnet-4096")), ("2-llava", "Llama2-13b", ("llava",)))
LOAD, LINE = "#E69F00", "#444444"
KW = 1000.0
SMOOTH_S = 300.0  # load is shown as a mean over this


def pictures_of(
    study: Study, folder: Path, *, rated_w: float, burn_w: float | None, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write the paper's two figures with what has run; return the files. Raises MissingDependency."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        install = 'pip install "joulelab[figures]"'
        raise MissingDependency("figures need matplotlib, which is not installed", next=install) from None
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with mpl.rc_context(STYLE):
        for file, title, names in PANELS:
            courses = {name: found for name in names if (found := course(study, name)) is not None}
            if courses:
                figure = Figure(figsize=(6.4, 4.0), layout="constrained")
                _draw(figure.subplots(), title, courses, rated_w, burn_w)
                written += save(figure, NOTE, folder / file, formats)
    return written


def _draw(axes: Axes, title: str, courses: Mapping[str, Course], rated_w: float, burn_w: float | None) -> None:
    for k, (name, found) in enumerate(courses.items()):
        axes.plot(found.power_h, found.power_kw, color=COLOURS[k], linewidth=0.8, label=LABELS[name])
    axes.axhline(rated_w / KW, color=LINE, linestyle="--", linewidth=1, label="node, rated")
    if burn_w is not None:
        axes.axhline(burn_w / KW, color=LINE, linestyle=":", linewidth=1.4, label="node, burn control")
    axes.set_xlabel("time, h")
    axes.set_ylabel("power of the node, kW")
    axes.set_ylim(0, 1.1 * rated_w / KW)
    axes.set_title(title, loc="left", fontsize=10)
    _draw_load(axes, courses)
    lines = [line for each in axes.figure.axes for line in each.get_lines()]
    shown = {str(line.get_label()): line for line in lines}
    axes.legend(list(shown.values()), list(shown), fontsize=8, ncols=2, loc="lower right", framealpha=0.9)


def _draw_load(axes: Axes, courses: Mapping[str, Course]) -> None:
    """Draw the load of the GPUs on an axis of its own; of several runs each, in dashes of its own."""
    if not any(found.load_h.size for found in courses.values()):
        return
    second = axes.twinx()
    for k, (name, found) in enumerate(courses.items()):
        label = "GPU load" if len(courses) == 1 else f"GPU load, {LABELS[name].rpartition(', ')[2]}"
        hours, load = _smoothed(found)
        second.plot(hours, load, color=LOAD, linewidth=1, linestyle=("-", "-.")[k % 2], label=label)
    second.set_ylim(0, 110)
    second.set_ylabel("mean load of the GPUs, %")
    second.grid(visible=False)
    second.spines["right"].set_visible(True)
    axes.set_zorder(second.get_zorder() + 1)
    axes.patch.set_visible(False)


def _smoothed(found: Course) -> tuple[list[float], list[float]]:
    """Return means of the load over stretches of a few minutes: epochs come faster than a line can show."""
    hours, load = found.load_h, found.load_pct
    step_h = float(hours[-1] - hours[0]) / max(len(hours) - 1, 1) if hours.size else 0.0
    count = max(round(SMOOTH_S / 3600 / step_h), 1) if step_h else 1
    blocks = range(0, len(hours), count)
    return [float(hours[k : k + count].mean()) for k in blocks], [float(load[k : k + count].mean()) for k in blocks]
