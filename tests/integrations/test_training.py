"""What callbacks share: who records, phases, work of ranks, failures; and the logic of each, without its framework."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.integrations.following import Marked, load, marked, tensor
from tests.recorder.driving import fake

import joulelab
from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.core.marks import local_ranks
from joulelab.integrations.training import Following, Look, Training, amounts_of, harmless
from joulelab.store.folder import list_runs, read_end
from joulelab.supervisor import phases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["marked"]


def test_a_batch_has_as_many_samples_as_its_first_tensor_is_long() -> None:
    assert amounts_of({"labels": tensor(4), "input_ids": tensor(4, 6)}) == {"samples": 4, "tokens": 24}
    assert amounts_of({"input_ids": tensor(4)}) == {"samples": 4}
    assert amounts_of([None, {"x": (tensor(), tensor(3, 2))}]) == {"samples": 3}
    assert amounts_of(tensor(5, 1)) == {"samples": 5}
    assert amounts_of([[[[[tensor(5)]]]]]) == {}
    assert amounts_of("text") == {}


class Watched(list[Any]):
    """Count how often a batch is gone over."""

    searched = 0

    def __iter__(self) -> Iterator[Any]:
        Watched.searched += 1
        return super().__iter__()


def test_where_the_first_batch_has_its_tensor_the_next_ones_are_not_searched() -> None:
    look = Look()
    for size in (8, 8, 3):
        assert look(Watched([None, {"x": tensor(size, 2)}])) == {"samples": size}
    assert Watched.searched == 2  # the first: to find the place, and its amounts
    assert look(Watched([tensor(5), "text"])) == {"samples": 5}  # of another form
    assert look({"labels": tensor(4), "input_ids": tensor(4, 6)}) == {"samples": 4, "tokens": 24}
    assert look({"labels": tensor(2), "input_ids": tensor(2, 6)}) == {"samples": 2, "tokens": 12}
    assert look({"labels": tensor(2), "input_ids": tensor(7)}) == {"samples": 7}
    assert look({"labels": tensor(2)}) == {"samples": 2}
    assert look("text") == {}


def test_launchers_say_how_many_ranks_a_node_has() -> None:
    assert local_ranks({}) == 1
    assert local_ranks({"LOCAL_WORLD_SIZE": "x", "MPI_LOCALNRANKS": "4"}) == 4
    assert local_ranks({"LOCAL_WORLD_SIZE": "8"}) == 8


def test_wrong_options_are_refused_before_the_training() -> None:
    with pytest.raises(ConfigError, match="take one of auto, wandb, mlflow, none"):
        Training(log="tensorboard")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="perod_s"):
        Training(perod_s=1)


def test_in_a_run_it_is_a_phase(marked: Marked, caplog: pytest.LogCaptureFixture) -> None:
    training = Training("mine")
    training.enter("epoch")
    training.step({"samples": 1})
    training.work({"samples": 1})
    assert marked.lines() == []  # nothing before the begin
    training.begin("train")
    training.enter("epoch", 1)
    training.enter("validation")
    training.leave("nothing")
    training.leave("epoch")  # ends what is open in it
    training.step({})
    training.end()
    training.end()
    assert marked.titles() == ["train", "epoch 1", "validation"]
    assert marked.open() == 0
    assert marked.work() == {"steps": 1}
    assert "does not know how many samples" in caplog.text
    assert training.measurement is not None
    assert training.measurement.run is None


def test_ranks_report_their_own_work_in_a_run(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    training = Training()
    training.begin("train", local_rank=1)  # forked: it is told late who it is
    training.enter("epoch", 1)
    training.step({"samples": 8})
    training.end()
    assert marked.titles() == []
    assert marked.work() == {"samples": 8}


def test_by_itself_it_is_a_run_and_the_first_rank_reports_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    inert = Training()
    inert.begin("train", local_rank=1)
    assert inert.measurement is None
    assert not inert.begun
    training = Training("mine", runs=tmp_path, meters=[fake()], period_s=0.02)
    training.begin("train")
    assert training.measurement is not None
    first = training.measurement.run
    assert first is not None
    training.step({"samples": 8})
    training.past("save", training.measurement._start_ns, {"files": 1})
    training.begin("train")  # the one before has failed
    (second,) = set(list_runs(tmp_path)) - {first}
    end = read_end(first)
    assert end is not None
    assert end["message"] == "JoulelabError: the training before did not say that it ended"
    with joulelab.measure("inner"):
        spawner = Training()
        spawner.begin("test", ranks=4, spawned=True)  # those that it starts are in this run, and report
        spawner.work({"samples": 2})
        spawner.end()
    del training
    gc.collect()
    assert phases.writer() is None
    end = read_end(second)
    assert end is not None
    assert end["exit_code"] == 1
    from joulelab.analysis.analyse import analyse
    from joulelab.store.run import open_run

    with open_run(first) as run:
        result = analyse(run)
    assert result.name == "mine"
    assert result.work == {"steps": 1, "samples": 32, "files": 4}
    with open_run(second) as run:
        assert analyse(run).work == {"samples": 2}


class Callback(Following):
    def __init__(self) -> None:
        self.training = Training()
        self.called = 0

    @harmless
    def begin(self) -> None:
        self.training.begin("train")

    @harmless
    def fail(self) -> None:
        self.called += 1
        raise OSError("no space")


def test_a_problem_is_said_once_and_never_reaches_the_training(
    marked: Marked, caplog: pytest.LogCaptureFixture
) -> None:
    callback = Callback()
    callback.begin()
    callback.fail()
    callback.fail()
    callback.begin()
    assert callback.called == 1
    assert [r.getMessage() for r in caplog.records] == ["the training goes on unmeasured: OSError: no space"]
    assert marked.open() == 0
    assert not callback.training.begun


def test_a_block_closes_what_a_failed_training_left(marked: Marked) -> None:
    callback = Callback()
    callback.begin()
    with pytest.raises(ValueError, match="x"), callback:
        raise ValueError("x")
    assert marked.open() == 0
    assert callback.measurement is not None
    callback.begin()
    for other in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert other.measurement is None
        assert not other.training.begun
    callback.close()


def test_a_problem_at_the_end_does_not_stand_in_for_the_training_s_own(
    marked: Marked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no space")

    callback = Callback()
    callback.begin()
    assert callback.measurement is not None
    leave = callback.measurement.__exit__
    monkeypatch.setattr(callback.measurement, "__exit__", broken, raising=False)
    with pytest.raises(ValueError, match="x"), callback:
        raise ValueError("x")
    assert "OSError: no space" in caplog.text
    assert marked.titles() == ["train"]
    leave(None, None, None)


def test_at_every_step_the_environment_is_left_alone(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.begin("train")
    monkeypatch.setattr("joulelab.integrations.training.local_ranks", None)  # nobody asks again
    training.step({"samples": 2})
    training.work({"samples": 1})
    training.end()
    assert marked.work() == {"steps": 1, "samples": 3}


def test_trackers_get_the_run_if_the_user_has_them(
    marked: Marked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("JOULELAB_RUN", str(tmp_path))
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    calls: list[Any] = []
    trackers = ModuleType("trackers")

    @contextmanager
    def logged(run: Any, *, to: str) -> Iterator[None]:
        calls.append((run, to))
        if to == "mlflow":
            raise OSError("no server")
        yield
        raise OSError("gone")

    trackers.__dict__["logged"] = logged
    monkeypatch.setitem(sys.modules, "joulelab.integrations.trackers", trackers)

    def train(**options: Any) -> Training:
        training = Training(**options)
        training.begin("train")
        training.end()
        return training

    train()
    assert calls == []  # nobody has a tracker
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    train(log="none")
    assert calls == []
    training = train()
    assert calls == [(training.measurement, "auto")]
    assert "not logged to the end: OSError: gone" in caplog.text
    caplog.clear()
    train(log="mlflow")
    assert [r.getMessage() for r in caplog.records] == ["the training is not logged: OSError: no server"]
    assert marked.open() == 0


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("huggingface", ("transformers",)),
        ("lightning", ("lightning__pytorch", "pytorch_lightning")),
        ("keras", ("keras",)),
    ],
)
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
    args = SimpleNamespace(local_process_index=0, torch_compile=False, n_gpu=1, world_size=1, train_batch_size=4)
    args.include_num_input_tokens_seen = "no"
    return module, args, SimpleNamespace(num_input_tokens_seen=0, epoch=0.0, train_batch_size=4)


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
    trainer.global_step = trainer.current_epoch = 0
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
    callback.on_validation_end(trainer, None)
    callback.on_save_checkpoint(trainer, None, {})
    callback.on_train_epoch_end(trainer, None)
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
    end = callback.training.end
    monkeypatch.setattr(callback.training, "end", lambda *_: 1 / 0)
    callback.set_params({"steps": 3})  # a problem of ours is not the training's
    assert callback.training.failed
    end()
