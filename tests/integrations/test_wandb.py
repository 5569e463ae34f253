"""Energy in the user's W&B run: offline, with the library itself, and read back from what it wrote."""

from __future__ import annotations

import json
import struct
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.recorder.driving import fake
from tests.waiting import until

import joulelab
from joulelab.core.errors import ConfigError
from joulelab.integrations.trackers import logged
from joulelab.run import live

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 32768


@pytest.fixture
def kw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("JOULELAB_RUN", "JOULELAB_HOST", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(live, "CREDIT_S", 1000.0)  # figures as often as they are asked for
    return {"runs": tmp_path / "runs", "meters": [fake(devices=2)], "period_s": 0.02}


def written(folder: Path) -> Iterator[Any]:
    """Yield the records of an offline run: protocol buffers in blocks as LevelDB's log has them, after 7 bytes."""
    from wandb.proto import wandb_internal_pb2 as wire

    (file,) = folder.glob("wandb/offline-*/*.wandb")
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if BLOCK - at % BLOCK < 7 or not kind:
            at += BLOCK - at % BLOCK
            continue
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wire.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [r.history for r in written(folder) if r.WhichOneof("record_type") == "history"]
    return [{(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in row.item} for row in found]


@pytest.mark.no_cover
@pytest.mark.system
def test_points_join_the_rows_of_the_user_whose_steps_stay_as_they_are(
    kw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    wandb = pytest.importorskip("wandb")
    settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True)
    run = wandb.init(mode="offline", dir=str(tmp_path), project="p", config={"lr": 0.1}, settings=settings)
    points_logged: list[object] = []
    log = run.log

    def counted(values: dict[str, float], **options: Any) -> None:
        log(values, **options)
        points_logged.extend([values] if "joulelab/energy_j" in values else [])

    monkeypatch.setattr(run, "log", counted)

    def next_point() -> None:
        before = len(points_logged)
        until(lambda: len(points_logged) > before, "a point is logged")

    try:
        with joulelab.measure("training", **kw) as m, logged(m, to="wandb", every_s=0.1):
            joulelab.fact(data="digits")
            for loss in range(4):
                next_point()
                joulelab.work(samples=64)
                run.log({"loss": float(loss)})
            assert run.step == 4
            for step in (10, 20):
                next_point()
                run.log({"loss": float(step)}, step=step)
        summary = {key: run.summary[key] for key in dict(run.summary) if key.startswith("joulelab/")}
        assert dict(run.config) == {"lr": 0.1}
    finally:
        run.finish()
    # The library's own process writes the file.
    until(lambda: any(r.WhichOneof("record_type") == "exit" for r in written(tmp_path)))
    history = rows(tmp_path)
    assert [(r["_step"], r["loss"]) for r in history if "loss" in r] == [
        (0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (10, 10.0), (20, 20.0),
    ]  # fmt: skip
    points = [r for r in history if "joulelab/energy_j" in r]
    assert len(points) >= 4
    assert all(r["joulelab/gpu/power_w"] == pytest.approx(200, rel=0.2) for r in points)
    energies = [r["joulelab/energy_j"] for r in points]
    assert energies == sorted(energies)
    total = summary["joulelab/total/energy_j"]
    assert energies[-1] == pytest.approx(total, rel=0.05)  # the last point is not lost
    assert total == pytest.approx(200 * summary["joulelab/total/duration_s"], rel=0.1)
    assert summary["joulelab/total/j_per_sample"] == pytest.approx(total / 256)
    assert summary["joulelab/total/energy_kwh"] == pytest.approx(total / 3.6e6, rel=1e-4)
    assert summary["joulelab/fact/data"] == "digits"
    assert m.run is not None
    assert summary["joulelab/run"] == m.run.name
    assert summary["joulelab/folder"] == str(m.run)


@pytest.mark.system
def test_a_run_that_begins_later_is_found_and_one_that_fails_is_left_out(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[dict[str, float]] = []

    def log(values: dict[str, float], *, commit: bool) -> None:
        assert not commit
        calls.append(values)
        if len(calls) == 2:
            raise ConnectionError("the server is gone")

    module = SimpleNamespace(run=None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    with joulelab.measure("training", **kw), logged(every_s=0.05):
        time.sleep(0.2)
        module.run = SimpleNamespace(log=log, define_metric=lambda *_, **__: None)
        until(lambda: len(calls) == 2)
        time.sleep(0.2)  # a third would come by now
    assert len(calls) == 2
    assert caplog.text.count("the server is gone") == 1
    assert "not logged to wandb any more" in caplog.text


@pytest.mark.system
def test_without_a_tracker_nothing_is_imported_and_what_is_asked_for_is_missed(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with joulelab.measure("training", **kw) as m:
        with pytest.raises(KeyError), logged(m, to="wandb"):
            raise KeyError("x")  # goes on
        with logged(m.run, to="none") as own:
            assert own is None
    assert "wandb" not in sys.modules
    assert "no run of wandb is active" in caplog.text
    with pytest.raises(ConfigError, match="auto, none, wandb, mlflow"), logged(to="tensorboard"):  # type: ignore[arg-type]
        pass


def test_on_other_ranks_it_is_inert(kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with logged() as m:
        assert m is not None
        assert m.run is None
    assert not kw["runs"].exists()
