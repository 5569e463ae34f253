"""The logic of each callback, without its framework."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integrations.following import Marked, load, marked, tensor

from joulelab.core.errors import MissingDependency

__all__ = ["marked"]


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("huggingface", ("transformers",)),
        ("lightning", ("lightning__pytorch", "pytorch_lightning")),
        ("keras", ("keras",)),
    ],
)
@pytest.mark.system
def test_a_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch, name: str, modules: tuple[str, ...]) -> None:
    with pytest.raises(MissingDependency, match=rf'pip install "joulelab\[{name}\]"'):
        load(monkeypatch, name, **dict.fromkeys(modules))


class Module:
    """Have hooks as a torch module has."""

    def __init__(self) -> None:
        self.training = True
        self.hooks: list[Any] = []

    def register_forward_pre_hook(self, hook: Any, **_: bool) -> SimpleNamespace:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        for hook in self.hooks:
            hook(self, args, kwargs)


class Loader:
    def __init__(self, samples: int | None, batches: int) -> None:
        self.dataset = range(samples) if samples is not None else object()
        self.batches = batches

    def __len__(self) -> int:
        return self.batches


def hugging(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, SimpleNamespace, SimpleNamespace]:
    module = load(monkeypatch, "huggingface", transformers={"TrainerCallback": object})
    args = SimpleNamespace(
        local_process_index=0, process_index=0, torch_compile=False, n_gpu=1, world_size=1, train_batch_size=4
    )
    args.include_num_input_tokens_seen = "no"
    return module, args, SimpleNamespace(num_input_tokens_seen=0, epoch=0.0, train_batch_size=4, log_history=[])


def test_hugging_face_packed_batches_and_many_passes(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args, state = hugging(monkeypatch)
    model, callback = Module(), module.JoulelabCallback()
    callback.on_train_begin(args, state, None, model=model)
    assert len(model.hooks) == 1
    callback.on_epoch_begin(args, state, None)
    model(input_ids=tensor(1, 40))  # four samples, end to end
    model(input_ids=tensor(4, 9))  # another pass of the same batch
    callback.on_substep_end(args, state, None, train_dataloader=Loader(6, 2))
    model(input_ids=tensor(1, 20))
    callback.on_step_end(args, state, None, train_dataloader=Loader(6, 2))
    assert marked.work() == {"steps": 1, "samples": 6, "tokens": 60}
    state.epoch = 1.0
    callback.on_epoch_end(args, state, None)
    model.training = False
    model(tensor(3, 5))
    callback.on_prediction_step(args, state, None)
    callback.on_evaluate(args, state, None, eval_dataloader=Loader(3, 1))
    callback.on_save(args, state, None)
    for names in (("loss",), ("train_loss",), ("train_runtime", "loss", "train_loss")):  # rows that a user may log
        callback.on_log(args, state, None, logs=dict.fromkeys(names, 1.0))
        assert callback.training.is_begun
    callback.on_log(args, state, None, logs=dict.fromkeys(module.LAST_ROW, 1.0))
    assert not callback.training.is_begun
    callback.on_train_end(args, state, None, model=model)
    assert marked.titles() == ["train", "epoch 1", "validation 1", "save 1"]
    assert marked.work()["validated"] == 3
    callback.on_save(args, state, None)  # of no training
    assert len(model.hooks) == 1  # predictions in the run are still seen
    callback.close()
    assert model.hooks == []


def test_hugging_face_without_a_look_at_the_model(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args, state = hugging(monkeypatch)
    args.torch_compile, args.include_num_input_tokens_seen = True, "all"
    model, callback = Module(), module.JoulelabCallback()
    callback.on_init_end(args, state, None, model=model)
    callback.on_train_begin(args, state, None, model=model)
    assert model.hooks == []
    callback.on_epoch_begin(args, state, None)
    for _ in range(2):
        state.num_input_tokens_seen += 50
        callback.on_step_end(args, state, None, train_dataloader=Loader(7, 2))
    assert marked.work() == {"steps": 2, "samples": 7, "tokens": 100}
    callback.on_step_end(args, state, None, train_dataloader=Loader(None, 3))  # a stream
    args.world_size = callback._world = 2
    state.num_input_tokens_seen = 200
    callback.on_step_end(args, state, None, train_dataloader=Loader(7, 2))  # of two ranks, each has half of the tokens
    assert marked.work() == {"steps": 4, "samples": 15, "tokens": 150}
    callback.on_train_end(args, state, None, model=model)
    callback.on_prediction_step(args, state, None)
    callback.on_predict(args, state, None, eval_dataloader=Loader(6, 2))
    callback.on_predict(args, state, None, eval_dataloader=Loader(6, 2))  # nothing was predicted
    assert marked.titles() == ["train", "epoch 1", "predict"]
    assert marked.work()["samples"] == 18


def test_lightning_steps_are_those_of_the_optimizer(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch, "lightning", lightning__pytorch={"Callback": object})
    ours = SimpleNamespace(creates_processes_externally=False)
    trainer = SimpleNamespace(strategy=SimpleNamespace(cluster_environment=ours), local_rank=0, num_devices=2)
    trainer.global_step = trainer.current_epoch = trainer.global_rank = 0
    trainer.world_size = 1
    trainer.sanity_checking, trainer.state = False, SimpleNamespace(fn="fit")
    callback = module.JoulelabCallback(samples=7)
    callback.on_sanity_check_start(trainer, None)
    callback.on_sanity_check_end(trainer, None)
    callback.on_train_start(trainer, None)
    callback.on_train_epoch_start(trainer, None)
    for step in (0, 1, 1):
        trainer.global_step = step
        callback.on_train_batch_start(trainer, None, None, 0)
        callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_validation_start(trainer, None)
    callback.on_validation_batch_end(trainer, None, None, None, 0)
    rows: list[Any] = []
    logging_module = SimpleNamespace(log_dict=lambda row, **how: rows.append((row, how["logger"])))
    # Without readings, only a checkpoint that looks at energy_j finds it, as NaN.
    trainer.checkpoint_callbacks = [SimpleNamespace(monitor="val_loss")]
    monkeypatch.setattr(callback.training, "read_row", lambda *, has_gaps: {"energy_j": math.nan} if has_gaps else {})
    callback.on_validation_epoch_end(trainer, logging_module)
    assert rows == []
    trainer.checkpoint_callbacks, callback._row_ns = [SimpleNamespace(monitor="energy_j")], 0
    callback.on_validation_epoch_end(trainer, logging_module)
    assert math.isnan(rows.pop()[0]["energy_j"])
    monkeypatch.setattr(callback.training, "read_row", lambda *, has_gaps: {"energy_j": 5.0})
    callback._row_ns = 0
    callback.on_validation_epoch_end(trainer, logging_module)
    callback.on_validation_end(trainer, None)
    callback.on_save_checkpoint(trainer, None, {})
    callback.on_train_epoch_end(trainer, logging_module)
    assert rows == [({"energy_j": 5.0}, False), ({"energy_j": 5.0}, True)]  # loggers get it once
    assert marked.work() == {"steps": 1, "samples": 21, "validated": 7}
    callback.on_exception(trainer, None, ValueError())
    callback.on_train_end(trainer, None)
    trainer.state.fn = "validate"
    callback.on_validation_start(trainer, None)
    callback.on_validation_batch_end(trainer, None, None, None, 0)
    callback.on_validation_end(trainer, None)
    callback.on_test_start(trainer, None)
    callback.on_test_batch_end(trainer, None, None, None, 0)
    callback.on_test_end(trainer, None)
    callback.on_predict_start(trainer, None)
    callback.on_predict_batch_end(trainer, None, None, None, 0)
    callback.on_predict_end(trainer, None)
    callback.teardown(trainer, None, stage="predict")
    assert callback.measurement is not None
    callback.setup(trainer, None, stage="fit")  # and then there is not one batch
    callback.teardown(trainer, None, stage="fit")
    assert callback.measurement is None
    assert marked.titles() == [
        "sanity check",
        "train",
        "epoch 1",
        "validation 1",
        "save 1",
        "validation",
        "test",
        "predict",
    ]
    assert marked.work() == {"steps": 1, "samples": 42, "validated": 7}
    assert marked.open() == 0


class KerasCallback:
    model: Any = None
    _model: Any = None

    def set_params(self, params: Any) -> None:
        pass


def test_keras_samples_that_are_known_late(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = {
        "callbacks": SimpleNamespace(Callback=KerasCallback),
        "backend": SimpleNamespace(backend=lambda: "jax"),
        "ops": SimpleNamespace(convert_to_numpy=lambda value: value),
        "tree": SimpleNamespace(flatten=lambda logs: list(logs.values())),
    }
    callback = load(monkeypatch, "keras", keras=stub).JoulelabCallback()
    mean = SimpleNamespace(count=0)
    callback._model = SimpleNamespace(_loss_tracker=mean)
    callback.set_params({})
    callback.on_train_begin()
    for epoch in (0, 1):
        mean.count = 0
        callback.on_epoch_begin(epoch)
        callback.on_train_batch_end(0)
        callback.on_train_batch_end(1)
        mean.count = 6  # JAX brings its state up to date at the end of an epoch
        if epoch:
            callback.on_test_begin()
            mean.count = 0
            callback.on_test_batch_end(0)
            mean.count = 3
            callback.on_test_end()
        callback.on_epoch_end(epoch)
    callback.on_predict_begin()
    callback.on_predict_batch_end(0, {"outputs": tensor(4, 1)})
    callback.on_predict_end()
    callback.on_train_end()
    callback.on_predict_begin()
    callback.on_predict_batch_end(0, {"outputs": 0.5})
    callback.on_predict_end()
    callback._model = SimpleNamespace()
    callback.on_test_begin()
    callback.on_test_batch_end(0)
    callback.on_test_end()
    assert marked.titles() == ["train", "epoch 1", "epoch 2", "validation 2", "predict", "predict", "test"]
    assert marked.work() == {"steps": 4, "samples": 13, "validated": 3, "predicted": 4}
    callback.on_train_begin()
    callback.set_params({})  # the next use: the one before has failed
    assert marked.open() == 0


def test_keras_does_not_wait_for_the_device_at_every_batch(
    marked: Marked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mean, reads = SimpleNamespace(count=0), []

    def read(value: float) -> float:
        reads.append(value)
        return value

    stub = {
        "callbacks": SimpleNamespace(Callback=KerasCallback),
        "backend": SimpleNamespace(backend=lambda: "torch"),
        "ops": SimpleNamespace(convert_to_numpy=read),
    }
    callback = load(monkeypatch, "keras", keras=stub).JoulelabCallback()
    callback.model = SimpleNamespace(_loss_tracker=mean)
    for steps in (20, None):  # a stream does not tell how many batches it has
        callback.set_params({"steps": steps})
        callback.on_train_begin()
        for epoch in (0, 1):
            mean.count = 0
            callback.on_epoch_begin(epoch)
            for batch in range(20):
                mean.count += 4 if batch < 19 else 1
                callback.on_train_batch_end(batch)
            callback.on_test_begin()
            mean.count = 0
            for batch in range(10):
                mean.count += 5 if batch % 2 else 3  # batches that are not alike
                callback.on_test_batch_end(batch)
            callback.on_test_end()
            callback.on_epoch_end(epoch)
        callback.on_train_end()
    assert marked.work() == {"steps": 80, "samples": 4 * 77, "validated": 4 * 40}
    assert len(reads) <= 16
    assert not caplog.records

    callback.on_train_begin()
    end = callback.training.end_training
    monkeypatch.setattr(callback.training, "end_training", lambda *_: 1 / 0)
    callback.set_params({"steps": 3})  # a problem of ours is not the training's
    assert callback.training.failed
    end()
