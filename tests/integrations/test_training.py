"""What callbacks share: who records, phases, work of ranks, failures."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from tests.integrations.following import Marked, marked, tensor
from tests.recorder.driving import fake
from tests.report.synthetic import make_run

import joulelab
from joulelab.analysis.results_file import load_result
from joulelab.core.errors import ConfigError
from joulelab.core.marks import count_local_ranks
from joulelab.integrations.batch_sizes import BatchCounter
from joulelab.integrations.training import TrainingCallback, TrainingMeasurement, guard_hook, print_below_bar
from joulelab.run import marking
from joulelab.store.run_folder import list_runs, read_end

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulelab.analysis.result import Result

__all__ = ["marked"]


def test_a_batch_has_as_many_samples_as_its_first_tensor_is_long() -> None:
    assert BatchCounter()({"labels": tensor(4), "input_ids": tensor(4, 6)}) == {"samples": 4, "tokens": 24}
    assert BatchCounter()({"input_ids": tensor(4)}) == {"samples": 4}
    assert BatchCounter()([None, {"x": (tensor(), tensor(3, 2))}]) == {"samples": 3}
    assert BatchCounter()(tensor(5, 1)) == {"samples": 5}
    assert BatchCounter()([[[[[tensor(5)]]]]]) == {}
    assert BatchCounter()("text") == {}


class Watched(list[Any]):
    """Count how often a batch is gone over."""

    searched = 0

    def __iter__(self) -> Iterator[Any]:
        Watched.searched += 1
        return super().__iter__()


def test_where_the_first_batch_has_its_tensor_the_next_ones_are_not_searched() -> None:
    look = BatchCounter()
    for size in (8, 8, 3):
        assert look(Watched([None, {"x": tensor(size, 2)}])) == {"samples": size}
    assert Watched.searched == 1
    assert look(Watched([tensor(5), "text"])) == {"samples": 5}  # of another form
    assert look({"labels": tensor(4), "input_ids": tensor(4, 6)}) == {"samples": 4, "tokens": 24}
    assert look({"labels": tensor(2), "input_ids": tensor(2, 6)}) == {"samples": 2, "tokens": 12}
    assert look({"labels": tensor(2), "input_ids": tensor(7)}) == {"samples": 7}
    assert look({"labels": tensor(2)}) == {"samples": 2}
    assert look("text") == {}


def test_launchers_say_how_many_ranks_a_node_has() -> None:
    assert count_local_ranks({}) == 1
    assert count_local_ranks({"LOCAL_WORLD_SIZE": "x", "MPI_LOCALNRANKS": "4"}) == 4
    assert count_local_ranks({"LOCAL_WORLD_SIZE": "8"}) == 8


def test_wrong_options_are_refused_before_the_training() -> None:
    with pytest.raises(ConfigError, match="take one of auto, wandb, mlflow, none"):
        TrainingMeasurement(log="tensorboard")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="perod_s"):
        TrainingMeasurement(perod_s=1)


def test_in_a_run_it_is_a_phase(marked: Marked, caplog: pytest.LogCaptureFixture) -> None:
    training = TrainingMeasurement("mine")
    training.enter_phase("epoch")
    training.report_step({"samples": 1})
    training.report_work({"samples": 1})
    assert marked.lines() == []  # nothing before the begin
    training.begin_training("train")
    training.enter_phase("epoch", 1)
    training.enter_phase("validation")
    training.leave_phase("nothing")
    training.leave_phase("epoch")  # ends what is open in it
    training.report_step({})
    training.end_training()
    training.end_training()
    assert marked.titles() == ["train", "epoch 1", "validation"]
    assert marked.open() == 0
    assert marked.work() == {"steps": 1}
    assert "number of samples of some steps is unknown" in caplog.text
    assert training.measurement is not None
    assert training.measurement.run is None


def test_ranks_report_their_own_work_in_a_run(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    training = TrainingMeasurement()
    training.begin_training("train", local_rank=1)  # forked: it is told late who it is
    training.enter_phase("epoch", 1)
    training.report_step({"samples": 8})
    training.end_training()
    assert marked.titles() == []
    assert marked.work() == {"samples": 8}


class Recorded:
    """Stand in for a measurement of its own run, or of one that goes on."""

    def __init__(self, run: Path, name: str) -> None:
        self.run, self.name, self.duration_s = run, name, 10.0

    @property
    def result(self) -> Result:
        return load_result(self.run)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


@pytest.mark.system  # pure, and slow
def test_only_the_first_rank_prints_a_line_and_has_metrics(
    tmp_path: Path, marked: Marked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "runs")
    monkeypatch.setenv("JOULELAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(joulelab, "measure", lambda name, **_: Recorded(run, name or "train"))
    wrong = []
    for rank, ranks, options, lines in (
        (0, {}, {}, 1),
        (0, {}, {"summary": False}, 0),
        (0, {"global_rank": 8}, {}, 0),
        (1, {"global_rank": 1}, {}, 0),
        (0, {}, {"log": "none"}, 1),
    ):
        training = TrainingMeasurement(**options)
        training.begin_training("train", local_rank=rank, **ranks)
        metrics, captured = training.end_training(), capsys.readouterr()
        has_metrics = not ranks and options != {"log": "none"}
        if (captured.out, captured.err.count("\n"), bool(metrics)) != ("", lines, has_metrics):
            wrong.append((rank, ranks, options, captured, metrics))
        if has_metrics:
            assert metrics["energy_j"] == pytest.approx(6880, rel=0.02)
            assert metrics["power_w"] == pytest.approx(688, rel=0.02)
            assert metrics["energy_kwh"] == pytest.approx(metrics["energy_j"] / 3.6e6)
            assert 0 < metrics["energy_expanded_j"] < 700
        if lines:
            answer = r"joulelab: train: 6\.\d+ ± \S+ kJ \(.*\) in 10\.00 s, \d+ W on average; .*"
            assert re.fullmatch(rf"{answer}; more: joulelab show {run.name}\n", captured.err), captured.err
    assert not wrong


def test_the_line_is_not_glued_to_a_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    tqdm = pytest.importorskip("tqdm")
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    with tqdm.tqdm(total=3, file=sys.stderr):
        print_below_bar("joulelab: train")
    print_below_bar("joulelab: again")
    assert [line for line in shown.getvalue().split("\n") if line.startswith("joulelab")] == [
        "joulelab: train",
        "joulelab: again",
    ]


def test_a_line_that_cannot_be_made_is_one_warning(
    tmp_path: Path, marked: Marked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joulelab, "measure", lambda name, **_: Recorded(tmp_path / "r1", name or "train"))
    training = TrainingMeasurement()
    training.begin_training("train")
    assert training.end_training() == {}
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
        "energy is not in the metrics of the training"
    ]


@pytest.mark.system
def test_by_itself_it_is_a_run_and_the_first_rank_reports_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    inert = TrainingMeasurement()
    inert.begin_training("train", local_rank=1)
    assert inert.measurement is None
    assert not inert.is_begun
    training = TrainingMeasurement("mine", runs=tmp_path, meters=[fake()], period_s=0.02)
    training.begin_training("train")
    assert training.measurement is not None
    first = training.measurement.run
    assert first is not None
    training.report_step({"samples": 8})
    training.mark_past_phase("save", training.measurement._start_ns, {"files": 1})
    training.begin_training("train")  # the one before has failed
    (second,) = set(list_runs(tmp_path)) - {first}
    end = read_end(first)
    assert end is not None
    assert end["message"] == "JoulelabError: the training before did not report its end"
    with joulelab.measure("inner"):
        spawner = TrainingMeasurement()
        spawner.begin_training("test", ranks=4, spawned=True)  # those that it starts are in this run, and report
        spawner.report_work({"samples": 2})
        spawner.end_training()
    del training
    gc.collect()
    assert marking.writer() is None
    end = read_end(second)
    assert end is not None
    assert end["exit_code"] == 1
    from joulelab.analysis.analyse import analyse_run
    from joulelab.store.run_reader import open_run

    with open_run(first) as run:
        result = analyse_run(run)
    assert result.name == "mine"
    assert result.work == {"steps": 1, "samples": 32, "files": 4}
    with open_run(second) as run:
        assert analyse_run(run).work == {"samples": 2}


class Callback(TrainingCallback):
    def __init__(self) -> None:
        self.training = TrainingMeasurement()
        self.called = 0

    @guard_hook
    def begin(self) -> None:
        self.training.begin_training("train")

    @guard_hook
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
    assert not callback.training.is_begun


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
        assert not other.training.is_begun
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
    training = TrainingMeasurement()
    training.begin_training("train")
    monkeypatch.setattr("joulelab.integrations.training.count_local_ranks", None)  # nobody asks again
    training.report_step({"samples": 2})
    training.report_work({"samples": 1})
    training.end_training()
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
    monkeypatch.setattr(TrainingMeasurement, "_report_end", lambda *_: {})
    monkeypatch.setattr(TrainingMeasurement, "_start_metrics", lambda *_: None)
    monkeypatch.setitem(sys.modules, "joulelab.integrations.trackers", trackers)

    def train(**options: Any) -> TrainingMeasurement:
        training = TrainingMeasurement(**options)
        training.begin_training("train")
        training.end_training()
        return training

    train()
    assert calls == []  # nobody has a tracker
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    train(log="none")
    assert calls == []
    training = train()
    assert calls == [(training.measurement, "auto")]
    assert "totals of the training are not logged: OSError: gone" in caplog.text
    caplog.clear()
    train(log="mlflow")
    assert [r.getMessage() for r in caplog.records] == ["the training is not logged: OSError: no server"]
    assert marked.open() == 0
