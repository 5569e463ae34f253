"""Trainings by Lightning, as the tests start them: in a run, and by itself and failing."""

from __future__ import annotations

import csv
import json
import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from covered import wait_for_readings
from lightning.pytorch.loggers import CSVLogger

from joulelab.integrations.lightning import JoulelabCallback
from joulelab.run import marking

SCRATCH = Path(os.environ["SCRATCH"])


class Model(pl.LightningModule):
    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.fail_at = fail_at

    def training_step(self, batch, batch_idx):
        if self.global_step == self.fail_at:
            raise ValueError("on purpose")
        return self.validation_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        return (self.layer(batch["x"]) - batch["y"]).square().mean()

    def test_step(self, batch, batch_idx):
        return self.validation_step(batch, batch_idx)

    def predict_step(self, batch, batch_idx):
        return self.layer(batch["x"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Rows(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), k / 10), "y": torch.ones(1)}


def loader(count: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Rows(count), batch_size=4)


def trainer(callback: JoulelabCallback, *more: pl.Callback, **options) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"max_epochs": 2, "enable_checkpointing": False} | quiet | options
    return pl.Trainer(accelerator="cpu", devices=1, default_root_dir=SCRATCH, callbacks=[*more, callback], **given)


class Watch(pl.Callback):
    """Wait for the readings of an epoch, and keep the metrics that callbacks with a monitor see after it."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking:
            wait_for_readings()

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def main() -> None:
    warnings.simplefilter("ignore")
    # In the run of `joulelab run`: 10 samples are batches of 4, 4 and 2, in steps of two batches.
    callback, watch, log = JoulelabCallback(), Watch(), CSVLogger(SCRATCH)
    best = pl.callbacks.ModelCheckpoint(monitor="energy_j", save_top_k=-1, save_on_train_epoch_end=True)
    joined = trainer(callback, watch, best, logger=log, accumulate_grad_batches=2, enable_checkpointing=True)
    joined.fit(Model(), loader(10), loader(6))
    assert callback.measurement.run == Path(os.environ["JOULELAB_RUN"])
    found = {"seen": watch.seen, "best": float(best.best_model_score)}
    found["metrics"] = {name: float(value) for name, value in joined.callback_metrics.items()}
    with (Path(log.log_dir) / "metrics.csv").open() as file:
        found["rows"] = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    joined.predict(Model(), loader(5))

    # By itself, as if nobody recorded; one that fails is closed by Lightning's own word for it.
    marking.detach_writer()
    del os.environ["JOULELAB_RUN"], os.environ["JOULELAB_HOST"]
    failing = JoulelabCallback("failing", meters=["nvml"], samples=lambda batch: 100 * len(batch["x"]))
    try:
        trainer(failing).fit(Model(fail_at=4), loader(10))
    except ValueError as error:
        found["error"] = str(error)
    found["failing"] = str(failing.measurement.run)
    (SCRATCH / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
