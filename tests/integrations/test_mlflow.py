"""Energy in the user's MLflow run: a store of files, with the library itself, read back by its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.recorder.driving import fake
from tests.waiting import until

import joulelab
from joulelab.core.clock import read_utc_ns
from joulelab.integrations.trackers import logged
from joulelab.run import live

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


@pytest.mark.no_cover
@pytest.mark.filterwarnings("ignore")  # the library's own
def test_points_and_totals_are_in_the_run_that_was_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("JOULELAB_RUN", "JOULELAB_HOST", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setattr(live, "CREDIT_S", 1000.0)
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    client, began = mlflow.MlflowClient(), read_utc_ns() // 10**6

    def history(run: Any, name: str) -> list[Any]:
        """Return the points of a metric."""
        try:
            return list(client.get_metric_history(run.info.run_id, name))
        except mlflow.exceptions.MlflowException:  # there is none yet, or half a line
            return []

    kw: dict[str, Any] = {"runs": tmp_path / "runs", "meters": [fake(devices=2)], "period_s": 0.02}
    with joulelab.measure("training", **kw) as m:
        with mlflow.start_run() as run:
            for least in (3, 6):  # twice in one run: the second goes on where the first one ended
                with logged(to="mlflow", every_s=0.1):
                    joulelab.fact(data="digits", accuracy=0.9)
                    joulelab.work(samples=100)
                    mlflow.log_metric("loss", 1.0, step=7)
                    until(lambda least=least: len(history(run, "joulelab/energy_j")) >= least, "points are logged")
        with logged(to="mlflow"):
            pass  # none is active any more
    assert "no run of mlflow is active" in caplog.text
    points = history(run, "joulelab/energy_j")
    assert [p.step for p in points] == list(range(len(points)))
    assert all(began <= p.timestamp <= read_utc_ns() // 10**6 for p in points)
    assert [p.timestamp for p in points] == sorted(p.timestamp for p in points)
    powers = history(run, "joulelab/gpu/power_w")
    assert [p.value for p in powers][-1] == pytest.approx(200, rel=0.2)
    kept = client.get_run(run.info.run_id).data
    assert kept.metrics["loss"] == 1.0
    total, seconds = kept.metrics["joulelab/total/energy_j"], kept.metrics["joulelab/total/duration_s"]
    assert total == pytest.approx(200 * seconds, rel=0.1)
    assert total == pytest.approx(points[-1].value, rel=0.05)
    assert kept.metrics["joulelab/total/j_per_sample"] == pytest.approx(total / 100)
    assert m.run is not None
    assert kept.tags["joulelab.run"] == m.run.name
    assert (kept.tags["joulelab.fact.data"], kept.tags["joulelab.fact.accuracy"]) == ("digits", "0.9")
    assert kept.params == {}
