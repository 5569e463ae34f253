"""Measure a training with Lightning, of either package: `Trainer(..., callbacks=[JoulelabCallback()])`."""

from __future__ import annotations

import sys
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import MissingDependency
from joulelab.integrations.batch_sizes import BatchCounter
from joulelab.integrations.training import TrainingCallback, TrainingMeasurement, guard_hook

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
ROW_S = 1.0  # a row of metrics is not read twice within this time
STOPPED_FILE = "stopped-at-limit.ckpt"


def _find_callback_class() -> Any:
    """Return the callback class of the package that is imported, or can be."""
    why = ""
    for package in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(package).Callback
        except ImportError as error:
            why = why or str(error)
    raise MissingDependency(
        "this callback needs lightning, which cannot be imported", why=why, next='pip install "joulelab[lightning]"'
    )


class JoulelabCallback(TrainingCallback, _find_callback_class()):  # type: ignore[misc]
    """Measure a training: phases `train`, `epoch n`, steps, validation, save; a test or prediction by itself.

    Energy, power, cost and CO2e are logged with the metrics of the module at each epoch and at the end: loggers get
    them, and `monitor="energy_kwh"` works in other callbacks.
    Options are those of `joulelab.measure()`, `log` (auto, wandb, mlflow, none) and `summary` (a line at the end).
    `samples` is the size of a batch, or a function of the batch, where that is not the length of its first tensor.
    At the limit of its run (`joulelab run --stop-at`) it saves `stopped-at-limit.ckpt` in `default_root_dir` and stops.
    """

    def __init__(
        self, name: str | None = None, *, samples: float | Callable[[Any], float] | None = None, **options: Any
    ) -> None:
        self.training = TrainingMeasurement(name, **options)
        self._samples = samples
        self._since_ns = 0
        self._steps = 0
        self._count_work = BatchCounter()
        self._saving = False
        self._done: dict[str, float] = {}
        self._row: dict[str, float] = {}
        self._row_ns = 0

    @guard_hook
    def setup(self, *_: Any, **__: Any) -> None:
        """Drop the measurement before: this training may have no batches."""
        self.training.measurement, self._count_work = None, BatchCounter()

    @guard_hook
    def on_sanity_check_start(self, *_: Any) -> None:
        """Note when the sanity check begins."""
        self._since_ns = monotonic_ns()

    @guard_hook
    def on_sanity_check_end(self, *_: Any) -> None:
        """Mark the sanity check, which comes before the training."""
        self.training.mark_past_phase("sanity check", self._since_ns, {})

    @guard_hook
    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Begin to measure."""
        self._begin("train", trainer)
        self._steps, self._done = trainer.global_step, {}

    @guard_hook
    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Begin an epoch."""
        self._end_save()
        self.training.enter_phase("epoch", trainer.current_epoch + 1)

    def on_train_batch_start(self, *_: Any) -> None:
        """End the save before."""
        if self._saving:  # called at every batch
            self._end_save()

    @guard_hook
    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, batch: Any, *_: Any) -> None:
        """Report a step once the optimizer took one, with all batches since the last step."""
        if self.training.is_begun:
            done = self._count_batch(batch)
            if self._done:  # batches whose gradients were accumulated
                for name, amount in self._done.items():
                    done[name] = done.get(name, 0) + amount
            steps = trainer.global_step  # read once: the property walks through the trainer's loops
            if steps == self._steps:
                self._done = done
            else:
                self._steps, self._done = steps, {}
                self.training.report_step(done)
                if self.training.has_reached_limit():
                    self._stop_training(trainer)

    @guard_hook
    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """End an epoch, and log its energy; batches since the last step belong to it."""
        done, self._done = self._done, {}
        if done:
            self.training.report_work(done)
        self.training.leave_phase("epoch")
        self._log_row(trainer, module)

    @guard_hook
    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """Log energy for callbacks that look at a metric after a validation; loggers get it at the end of the epoch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._log_row(trainer, module, logger=False)

    @guard_hook
    def on_train_end(self, trainer: Any, *_: Any) -> None:
        """End the measurement, and log the final figures."""
        found = self.training.end_training()
        if found:
            from torch import tensor

            # A module cannot log in this hook.
            trainer.callback_metrics.update({name: tensor(value) for name, value in found.items()})
            for logger in trainer.loggers:
                logger.log_metrics(found, step=trainer.global_step)
                logger.save()

    @guard_hook
    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        """Begin a validation, of a training or by itself."""
        self._end_save()
        if self.training.is_begun:
            self.training.enter_phase("validation", trainer.current_epoch + 1)
        elif not trainer.sanity_checking:
            self._begin("validation", trainer)

    @guard_hook
    def on_validation_batch_end(self, trainer: Any, _module: Any, _outputs: Any, batch: Any, *_: Any) -> None:
        """Count a batch; inside a training as `validated`, not as its samples."""
        if self.training.is_begun:
            found = self._count_batch(batch)
            self.training.report_work({"validated": found.get("samples", 0.0)} if trainer.state.fn == "fit" else found)

    @guard_hook
    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """End a validation."""
        if trainer.state.fn == "fit":
            self.training.leave_phase("validation")
        else:
            self.training.end_training()

    @guard_hook
    def on_test_start(self, trainer: Any, *_: Any) -> None:
        """Begin to measure a test."""
        self._begin("test", trainer)

    @guard_hook
    def on_predict_start(self, trainer: Any, *_: Any) -> None:
        """Begin to measure a prediction."""
        self._begin("predict", trainer)

    @guard_hook
    def on_test_batch_end(self, _trainer: Any, _module: Any, _outputs: Any, batch: Any, *_: Any) -> None:
        """Count a batch of a test or a prediction."""
        if self.training.is_begun:
            self.training.report_work(self._count_batch(batch))

    @guard_hook
    def on_test_end(self, *_: Any) -> None:
        """End the measurement of a test or a prediction."""
        self.training.end_training()

    on_predict_batch_end, on_predict_end = on_test_batch_end, on_test_end

    @guard_hook
    def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
        """Begin to save a checkpoint; its end is not reported, so the next event ends it."""
        self._end_save()
        self.training.enter_phase("save", trainer.current_epoch + 1)
        self._saving = True

    @guard_hook
    def on_exception(self, _trainer: Any, _module: Any, exception: BaseException) -> None:
        """End the measurement of a training that failed."""
        self.training.end_training(exception)

    @guard_hook
    def teardown(self, *_: Any, **__: Any) -> None:
        """End a measurement that is still open, as when a trainer gives up."""
        self.training.end_training()

    def _stop_training(self, trainer: Any) -> None:
        """Save a checkpoint once, and let the trainer stop after this batch."""
        if not trainer.should_stop:
            trainer.should_stop = True
            trainer.save_checkpoint(Path(trainer.default_root_dir) / STOPPED_FILE)

    def _log_row(self, trainer: Any, module: Any, *, logger: bool = True) -> None:
        if monotonic_ns() - self._row_ns > ROW_S * NS:  # else it is that of the validation at the end of this epoch
            row, self._row_ns = self.training.read_row(has_gaps=True), monotonic_ns()
            # Without readings: ModelCheckpoint ends the training if its metric is missing, EarlyStopping if it is NaN.
            is_monitored = any(one.monitor in row for one in trainer.checkpoint_callbacks)
            self._row = row if is_monitored or not any(map(isnan, row.values())) else {}
        if self._row:
            is_alone = trainer.world_size == 1  # other ranks have no figures
            module.log_dict(self._row, on_epoch=True, logger=logger, batch_size=1, rank_zero_only=not is_alone)

    def _count_batch(self, batch: Any) -> dict[str, float]:
        given = self._samples
        if given is None:
            return self._count_work(batch)
        return self._count_work(batch) | {"samples": given(batch) if callable(given) else given}

    @guard_hook
    def _end_save(self) -> None:
        self._saving = False
        self.training.leave_phase("save")

    def _begin(self, name: str, trainer: Any) -> None:
        # Lightning starts the other ranks unless a launcher did: then they are part of the runs of this process.
        environment = getattr(trainer.strategy, "cluster_environment", None)
        spawned = environment is not None and not environment.creates_processes_externally
        ranks = {"local_rank": trainer.local_rank, "global_rank": trainer.global_rank, "ranks": trainer.num_devices}
        self.training.begin_training(name, spawned=spawned, **ranks)
