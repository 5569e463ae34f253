"""Show what a twin cannot: the quality that the paper's models reached, and what our own models count for its table 1."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from joulelab.report.papers.judged import NONE, Figure

if TYPE_CHECKING:
    from collections.abc import Mapping

INSTALL = 'counted by our own model: pip install "joulelab[zoo]"'
LEARNS = "a twin learns nothing: joulelab run {name} with the data trains the model"
NOTES = {
    "health_params_m": "20.04 by our own model; 20.4 looks like a slip",
    "health_gflop_per_sample": "forward, with the pools of the study's code",
    "energy_params_k": "the paper leaves out the last layer; that of the LSTM alone is 9.79",
    "energy_kflop_per_sample": "the paper's is that of the last layer alone",
}
LABELS = {
    "health_params_m": ("health: parameters", "M"),
    "health_gflop_per_sample": ("health: FLOP of a sample", "G"),
    "energy_params_k": ("energy: parameters", "K"),
    "energy_kflop_per_sample": ("energy: FLOP of a sample", "K"),
}


def outside(published: Mapping[str, Any]) -> list[Figure]:
    """Return quality and table 1; they are shown and not judged."""
    quality, counts = published["quality"], counted()
    made = [
        _figure("energy.mape_pct", "energy: MAPE of the forecast", quality["energy_mape_pct"], None, "%",
                LEARNS.format(name="lstm-load")),
        _figure("health.accuracy_pct", "health: accuracy", quality["health_accuracy_pct"], None, "%",
                LEARNS.format(name="vgg19bn-xray")),
    ]  # fmt: skip
    for key, value in published["table_1"].items():
        label, unit = LABELS[key]
        own = counts.get(key)
        made.append(_figure(f"table_1.{key}", label, value, own, unit, INSTALL if own is None else NOTES[key]))
    return made


def _figure(name: str, label: str, published: float, value: float | None, unit: str, note: str) -> Figure:
    return Figure(
        id=f"horeka.{name}", label=label, published=published, reproduced=value, unit=unit, tolerance=NONE,
        kind="outside", note=note,
    )  # fmt: skip


@cache
def counted() -> Mapping[str, float]:
    """Return what our own models count in the units of table 1; nothing where torch is not installed."""
    try:
        from joulelab.workloads.data.load import WEEK
        from joulelab.workloads.models.lstm import LoadForecaster
        from joulelab.workloads.models.vgg import VGG19
        from joulelab.workloads.training.counting import count
    except ImportError:
        return {}
    import torch

    def add(model: Any, batch: Any) -> Any:
        return model(batch).sum()

    health = count(VGG19, lambda on: torch.zeros(1, 1, 224, 224, device=on), add)
    energy = count(LoadForecaster, lambda on: torch.zeros(1, WEEK, 1, device=on), add)
    return {
        "health_params_m": health.parameters / 1e6,
        "health_gflop_per_sample": health.forward / 1e9,
        "energy_params_k": energy.parameters / 1e3,
        "energy_kflop_per_sample": energy.forward / 1e3,
    }
