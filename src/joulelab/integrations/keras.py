"""Measure a training with Keras 3, on any backend: `model.fit(..., callbacks=[JoulelabCallback()])`."""

from __future__ import annotations

import math
import os
from typing import Any

from joulelab.core.errors import JoulelabError, MissingDependency
from joulelab.core.marks import read_local_rank
from joulelab.integrations.training import TrainingCallback, TrainingMeasurement, guard_hook

try:
    import keras
except ImportError as error:
    raise MissingDependency(
        "this callback needs keras, which cannot be imported", why=str(error), next='pip install "joulelab[keras]"'
    ) from error


STOPPED_FILE = "stopped-at-limit.keras"


class JoulelabCallback(TrainingCallback, keras.callbacks.Callback):
    """Measure a training: phases `train`, `epoch n`, steps, validation; a test or prediction by itself.

    Energy, power, cost and CO2e are in the logs of each epoch, for the callbacks that are listed after this one, and
    for `History`. Epochs without new readings have NaN.
    Options are those of `joulelab.measure()`, `log` (auto, wandb, mlflow, none) and `summary` (a line at the end).

    Keras does not give the size of a batch to its callbacks, but the mean of the loss counts samples. Reading it waits
    for the device, so it is read after the first batch of a training and the last of an epoch only. Batches between
    are taken to be as large as the first; the difference is reported at the end of the epoch. `batch_size` is for a
    model whose own `train_step` does not keep that mean.

    At the limit of its run (`joulelab run --stop-at`) it saves the model as `stopped-at-limit.keras` here and stops.
    """

    def __init__(self, name: str | None = None, *, batch_size: int | None = None, **options: Any) -> None:
        super().__init__()
        self.training = TrainingMeasurement(name, **options)
        self._batch_size = batch_size
        self._fitting = False
        self._epoch = 0
        self._steps: int | None = None
        self._sizes: dict[str, float] = {}
        self._counted = 0.0

    def set_params(self, params: Any) -> None:
        """Take the parameters of a new fit, test or prediction; one that is still open has failed."""
        super().set_params(params)
        self._reset(params)

    @guard_hook
    def _reset(self, params: Any) -> None:
        self._steps = (params or {}).get("steps")
        if self.training.is_begun:
            self.close(JoulelabError("the training did not report its end"))

    @guard_hook
    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to measure."""
        self._begin("train")
        self._fitting = True

    @guard_hook
    def on_epoch_begin(self, epoch: int, *_: Any, **__: Any) -> None:
        """Begin an epoch."""
        self._epoch, self._counted = epoch + 1, 0.0
        self.training.enter_phase("epoch", self._epoch)

    @guard_hook
    def on_train_batch_end(self, batch: int, *_: Any, **__: Any) -> None:
        """Report a step."""
        if self.training.is_begun:
            self.training.report_step(self._count_samples("samples", last=batch + 1 == self._steps))
            if self.training.has_reached_limit() and not self.model.stop_training:
                self.model.stop_training = True
                self.model.save(STOPPED_FILE)

    @guard_hook
    def on_epoch_end(self, _epoch: int, logs: dict[str, Any] | None = None) -> None:
        """End an epoch, and add its energy to the logs."""
        self._correct_samples("samples")
        self.training.leave_phase("epoch")
        if logs is not None:
            logs.update(self.training.read_row(has_gaps=True))

    @guard_hook
    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """End the measurement, and add the final figures to the logs."""
        self._fitting = False
        found = self.training.end_training()
        if logs is not None:
            logs.update(found)

    @guard_hook
    def on_test_begin(self, *_: Any, **__: Any) -> None:
        """Begin a validation of a training, or a test by itself."""
        if self._fitting:
            self._correct_samples("samples")
            self.training.enter_phase("validation", self._epoch)
        else:
            self._begin("test")
        self._counted = 0.0

    @guard_hook
    def on_test_batch_end(self, batch: int, *_: Any, **__: Any) -> None:
        """Count a batch of a test; inside a training as `validated`, not as its samples."""
        if self.training.is_begun:
            last = not self._fitting and batch + 1 == self._steps  # the number of batches of a validation is unknown
            self.training.report_work(self._count_samples("validated" if self._fitting else "samples", last=last))

    @guard_hook
    def on_test_end(self, *_: Any, **__: Any) -> None:
        """End a validation or a test."""
        self._correct_samples("validated" if self._fitting else "samples")
        if self._fitting:
            self.training.leave_phase("validation")
        else:
            self.training.end_training()
        # From here to the end of the epoch the mean is of the validation.
        self._counted = math.inf

    @guard_hook
    def on_predict_begin(self, *_: Any, **__: Any) -> None:
        """Begin a prediction, by itself or inside a training."""
        if self._fitting:
            self.training.enter_phase("predict")
        else:
            self._begin("predict")

    @guard_hook
    def on_predict_batch_end(self, _batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count a batch of a prediction: it has as many samples as outputs."""
        if self.training.is_begun:
            shape: Any = getattr(keras.tree.flatten(logs)[0], "shape", ())
            # The output of a single sample is a plain number.
            self.training.report_work({"predicted" if self._fitting else "samples": int(shape[0]) if len(shape) else 1})

    @guard_hook
    def on_predict_end(self, *_: Any, **__: Any) -> None:
        """End a prediction."""
        if self._fitting:
            self.training.leave_phase("predict")
        else:
            self.training.end_training()

    def close(self, error: BaseException | None = None) -> None:
        """End the measurement if Keras did not, as after a failed training."""
        self._fitting = False
        super().close(error)

    def _begin(self, name: str) -> None:
        self._fitting, self._sizes = False, {}
        self.training.begin_training(name, local_rank=read_local_rank(os.environ))

    def _count_samples(self, name: str, *, last: bool = False) -> dict[str, float]:
        """Return the samples of a batch; empty if they are not known yet, as on JAX."""
        known = self._sizes.get(name, self._batch_size)
        size = known or 0.0
        if known is None or last:
            new = self._read_loss_count() - self._counted
            size = new if new > 0 else size
        if known is None:
            self._sizes[name] = size
        self._counted += size
        return {name: size} if size else {}

    def _correct_samples(self, name: str) -> None:
        """Report the difference between the samples reported so far and the true number."""
        if self._counted == math.inf or not self.training.is_begun:
            return
        counted = self._read_loss_count()
        if counted and counted != self._counted:
            self.training.report_work({name: counted - self._counted}, is_correction=True)
            self._counted = counted

    def _read_loss_count(self) -> float:
        """Return the number of samples in the mean of the loss, 0 without such a mean. Waits for the device."""
        # On JAX `self.model` copies the whole state; at the end of an epoch it is up to date without that.
        model = self._model if keras.backend.backend() == "jax" else self.model
        mean = getattr(model, "_loss_tracker", None)
        return 0.0 if mean is None else float(keras.ops.convert_to_numpy(mean.count))
