"""Show what a twin cannot: the quality that the paper's models reached, and the properties of them in its table 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.papers.figure_judgement import NONE, Figure

if TYPE_CHECKING:
    from collections.abc import Mapping

LEARNS = "a twin learns nothing: `joulelab workload run {name}` with the data of the study does"
COUNTED = "`joulelab workload run {name}` counts it where torch is installed"
# Counted by our own models, whose tests hold them: see `joulelab workload info`.
TABLE_1 = {
    "health_params_m": ("health: parameters", "M", "vgg19bn-xray", "20.04 M; 20.4 looks like a slip"),
    "health_gflop_per_sample": ("health: FLOP of a sample", "G", "vgg19bn-xray", "10.05 G forward"),
    "energy_params_k": ("energy: parameters", "K", "lstm-load", "9.84 K; the paper leaves out the last layer"),
    "energy_kflop_per_sample": (
        "energy: FLOP of a sample", "K", "lstm-load", "3177 K; the paper's is that of the last layer alone",
    ),
}  # fmt: skip


def outside(published: Mapping[str, Any]) -> list[Figure]:
    """Return quality and table 1; they are shown and not judged."""
    quality = published["quality"]
    forecast, images = (LEARNS.format(name=name) for name in ("lstm-load", "vgg19bn-xray"))
    made = [
        _figure("energy.mape_pct", "energy: MAPE of the forecast", quality["energy_mape_pct"], "%", forecast),
        _figure("health.accuracy_pct", "health: accuracy", quality["health_accuracy_pct"], "%", images),
    ]
    for key, value in published["table_1"].items():
        label, unit, name, own = TABLE_1[key]
        made.append(
            _figure(f"table_1.{key}", label, value, unit, f"our own model has {own}; {COUNTED.format(name=name)}")
        )
    return made


def _figure(name: str, label: str, published: float, unit: str, note: str) -> Figure:
    return Figure(
        id=f"horeka.{name}", label=label, published=published, reproduced=None, unit=unit, tolerance=NONE,
        kind="outside", note=note,
    )  # fmt: skip
