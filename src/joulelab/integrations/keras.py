"""Measure a training by Keras 3: `model.fit(..., callbacks=[JoulelabCallback()])`, on any of its backends."""

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


class JoulelabCallback(TrainingCallback, keras.callbacks.Callback):
    """Measure a training: phases `train`, `epoch n`, steps, validation; a test or prediction by itself.

    Options are those of `joulelab.measure()`, `log` (auto, wandb, mlflow, none) and `summary` (a line at the end).

    Keras does not tell its callbacks how many samples a batch has, but the mean of the loss counts them. To read it
    waits for the device, so that is done after the first batch of a training and the last of an epoch; those between
    are taken to be as large as the first, and what they differ by is reported at the end of the epoch. `batch_size` is
    for a model whose own `train_step` does without that mean.
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
        """Take the parameters of a new fit, test or prediction: one that did not say that it ended has failed."""
        super().set_params(params)
        self._renew(params)

    @guard_hook
    def _renew(self, params: Any) -> None:
        self._steps = (params or {}).get("steps")
        if self.training.begun:
            self.close(JoulelabError("the training did not say that it ended"))

    @guard_hook
    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to measure."""
        self._begin("train")
        self._fitting = True

    @guard_hook
    def on_epoch_begin(self, epoch: int, *_: Any, **__: Any) -> None:
        """Begin an epoch."""
        self._epoch, self._counted = epoch + 1, 0.0
        self.training.enter("epoch", self._epoch)

    @guard_hook
    def on_train_batch_end(self, batch: int, *_: Any, **__: Any) -> None:
        """Report a step."""
        if self.training.begun:
            self.training.step(self._samples("samples", last=batch + 1 == self._steps))

    @guard_hook
    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """End an epoch."""
        self._settle("samples")
        self.training.leave("epoch")

    @guard_hook
    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the measurement."""
        self._fitting = False
        self.training.end()

    @guard_hook
    def on_test_begin(self, *_: Any, **__: Any) -> None:
        """Begin a validation of a training, or a test by itself."""
        if self._fitting:
            self._settle("samples")
            self.training.enter("validation", self._epoch)
        else:
            self._begin("test")
        self._counted = 0.0

    @guard_hook
    def on_test_batch_end(self, batch: int, *_: Any, **__: Any) -> None:
        """Count a batch of a test; in a training under a name of its own: it is not what the training is about."""
        if self.training.begun:
            last = not self._fitting and batch + 1 == self._steps  # of a validation nobody tells how many there are
            self.training.work(self._samples("validated" if self._fitting else "samples", last=last))

    @guard_hook
    def on_test_end(self, *_: Any, **__: Any) -> None:
        """End a validation or a test."""
        self._settle("validated" if self._fitting else "samples")
        if self._fitting:
            self.training.leave("validation")
        else:
            self.training.end()
        # From here to the end of the epoch the mean is that of the validation.
        self._counted = math.inf

    @guard_hook
    def on_predict_begin(self, *_: Any, **__: Any) -> None:
        """Begin to measure a prediction, or one inside of a training."""
        if self._fitting:
            self.training.enter("predict")
        else:
            self._begin("predict")

    @guard_hook
    def on_predict_batch_end(self, _batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count what was predicted: a batch has as many samples as outputs."""
        if self.training.begun:
            shape: Any = getattr(keras.tree.flatten(logs)[0], "shape", ())
            # Keras makes a plain number of the output of a single sample.
            self.training.work({"predicted" if self._fitting else "samples": int(shape[0]) if len(shape) else 1})

    @guard_hook
    def on_predict_end(self, *_: Any, **__: Any) -> None:
        """End a prediction."""
        if self._fitting:
            self.training.leave("predict")
        else:
            self.training.end()

    def close(self, error: BaseException | None = None) -> None:
        """End the measurement if Keras did not, as when the training failed; nothing if it has ended."""
        self._fitting = False
        super().close(error)

    def _begin(self, name: str) -> None:
        self._fitting, self._sizes = False, {}
        self.training.begin(name, local_rank=read_local_rank(os.environ))

    def _samples(self, name: str, *, last: bool = False) -> dict[str, float]:
        """Return the samples of a batch; none if they are not known yet, as on JAX."""
        known = self._sizes.get(name, self._batch_size)
        size = known or 0.0
        if known is None or last:
            new = self._count() - self._counted
            size = new if new > 0 else size
        if known is None:
            self._sizes[name] = size
        self._counted += size
        return {name: size} if size else {}

    def _settle(self, name: str) -> None:
        """Report what the samples counted so far differ by from those that there were."""
        if self._counted == math.inf or not self.training.begun:
            return
        counted = self._count()
        if counted and counted != self._counted:
            self.training.work({name: counted - self._counted})
            self._counted = counted

    def _count(self) -> float:
        """Return how many samples the mean of the loss holds, 0 if there is none. Waits for the device."""
        # To ask for `self.model` on JAX copies the whole state; it is up to date at the end of an epoch without that.
        model = self._model if keras.backend.backend() == "jax" else self.model
        mean = getattr(model, "_loss_tracker", None)
        return 0.0 if mean is None else float(keras.ops.convert_to_numpy(mean.count))
