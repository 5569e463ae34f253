"""Trainings by Keras on torch, as the tests start them: in a run, and by itself and failing."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras  # it reads the backend when it is imported
import numpy as np
from covered import wait_for_readings

from joulelab.integrations.keras import JoulelabCallback
from joulelab.run import marking

X, Y = np.ones((10, 4), "float32"), np.ones((10, 1), "float32")


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise ValueError("on purpose")


class Own(keras.Sequential):
    """Train in a way of its own, that keeps no mean of the loss."""

    def train_step(self, data):
        loss = self.compute_loss(x=data[0], y=data[1], y_pred=self(data[0], training=True))
        self.zero_grad()
        loss.backward()
        self.optimizer.apply([v.value.grad for v in self.trainable_weights], self.trainable_weights)
        return {"loss": loss}


class Wait(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            wait_for_readings()


def model(kind=keras.Sequential) -> keras.Model:
    built = kind([keras.Input((4,)), keras.layers.Dense(1)])
    built.compile(optimizer="sgd", loss="mse")
    return built


def main() -> None:
    how = {"batch_size": 4, "verbose": 0}
    folder = Path(os.environ["SCRATCH"])
    # In the run of `joulelab run`: 10 samples are batches of 4, 4 and 2.
    callback, last = JoulelabCallback(), {}
    trained = model()
    after = keras.callbacks.LambdaCallback(on_train_end=last.update)
    callbacks = [callback, Wait(), keras.callbacks.CSVLogger(folder / "log.csv"), after]
    history = trained.fit(X, Y, epochs=2, validation_data=(X[:6], Y[:6]), callbacks=callbacks, **how).history
    assert callback.measurement.run == Path(os.environ["JOULELAB_RUN"])
    trained.predict(X[:5], callbacks=[callback], **how)
    with (folder / "log.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    found = {"rows": rows, "history": history, "metrics": last}

    # By itself, as if nobody recorded; one that fails is closed by the next use.
    marking.detach_writer()
    del os.environ["JOULELAB_RUN"], os.environ["JOULELAB_HOST"]
    failing = JoulelabCallback("failing", meters=["nvml"], batch_size=4)
    try:
        model(Own).fit(X, Y, callbacks=[failing, Stop()], **how)
    except ValueError as error:
        found["error"] = str(error)
    found["failing"] = str(failing.measurement.run)
    trained.predict(X[:5], callbacks=[failing], **how)
    found["next"] = str(failing.measurement.run)
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
