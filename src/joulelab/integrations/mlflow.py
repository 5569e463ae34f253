"""Write figures into the MLflow run that the user has, by its id: only the user's thread knows which one is active."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns, read_utc_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.analysis.result import Fact

MLFLOW_MARKER = "joulelab/energy_j"
MOST_TAG_LETTERS = 500  # characters of a tag that every store takes


def find_mlflow_run() -> MlflowTracker | None:
    """Return the MLflow run of the calling thread, None where there is none; MLflow is never imported by us."""
    module: Any = sys.modules.get("mlflow")
    asked = getattr(module, "active_run", None)
    run = asked() if asked is not None else None
    return None if run is None else MlflowTracker(module, run.info.run_id)


class MlflowTracker:
    """Write to one MLflow run on the server or in the store that is set now."""

    name = "MLflow"

    def __init__(self, module: Any, run_id: str) -> None:
        from mlflow import entities

        self._entities = entities
        self._client = module.MlflowClient(tracking_uri=module.get_tracking_uri())
        self._run_id = run_id
        self._step: int | None = None

    def log_point(self, at_ns: int, seconds: float, values: Mapping[str, float]) -> None:  # noqa: ARG002 - it has the time itself
        """Write figures at the time that they are of (monotonic ns), in one call."""
        metric, at_ms, step = self._entities.Metric, _find_utc_ms(at_ns), self._next()
        metrics = [metric(name, value, at_ms, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def log_summary(self, figures: Mapping[str, float], told: Mapping[str, Fact]) -> None:
        """Write the totals as metrics, and what was trained on as tags."""
        metric, at_ms = self._entities.Metric, _find_utc_ms(monotonic_ns())
        metrics = [metric(name, value, at_ms, 0) for name, value in figures.items()]
        tags = [
            self._entities.RunTag(name.replace("/", "."), str(value)[:MOST_TAG_LETTERS]) for name, value in told.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)

    def _next(self) -> int:
        """Return the number of our next point: after those of an earlier block in the same run."""
        if self._step is None:
            earlier = self._client.get_metric_history(self._run_id, MLFLOW_MARKER)
            self._step = max((point.step for point in earlier), default=-1)
        self._step += 1
        return self._step


def _find_utc_ms(at_ns: int) -> int:
    return (read_utc_ns() - (monotonic_ns() - at_ns)) // 1_000_000
