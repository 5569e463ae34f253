"""What all trainings share: limits, batches of every rank, counts, what is told; and trainings that are repeated."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import joulelab  # noqa: E402
from joulelab.core.errors import ConfigError, StoreError  # noqa: E402
from joulelab.run.workload_registry import merge_parameters  # noqa: E402
from joulelab.workloads import lstm_load  # noqa: E402
from joulelab.workloads import resnet152_cifar10 as workload  # noqa: E402
from joulelab.workloads.data.source import Data, Source  # noqa: E402
from joulelab.workloads.training import launch, loop, saving, training_parameters  # noqa: E402
from joulelab.workloads.training.feed import Feed, to_device  # noqa: E402
from joulelab.workloads.training.model_figures import count_model  # noqa: E402
from joulelab.workloads.training.ranks import Ranks, join_ranks  # noqa: E402
from joulelab.workloads.training.training_task import Limits  # noqa: E402

pytestmark = pytest.mark.system

CPU = torch.device("cpu")
ONE = Ranks(0, 0, 1, CPU)
TINY = {
    "data": "synthetic-memory", "depths": "1,1", "width": "4", "batch": "16", "test_batch": "16", "epochs": "2",
    "rate": "0.05", "worker_starts": "once",
    "train_samples": "128", "test_samples": "40", "workers": "0", "threads": "1", "warmup_steps": "1",
}  # fmt: skip


def given(**more: str) -> dict[str, str]:
    return merge_parameters("resnet", workload.PARAMETERS, {**TINY, **more})


@pytest.fixture
def told(monkeypatch):
    """Take what a training tells."""
    facts: dict[str, object] = {}
    monkeypatch.setattr(joulelab, "fact", facts.update, raising=False)
    return facts


@pytest.fixture
def reported(monkeypatch):
    """Take the work that a training reports, by verb."""
    done: list[tuple[str, dict[str, float]]] = []
    for verb in ("step", "work"):
        monkeypatch.setattr(joulelab, verb, lambda verb=verb, **amounts: done.append((verb, amounts)), raising=False)
    return done


class TestLimits:
    def test_none(self):
        limits = Limits(0, 0.0, ONE)
        assert not any(limits.count_step() for _ in range(1000))
        assert limits.reached == ""

    def test_steps(self):
        limits = Limits(3, 0.0, ONE)
        assert [limits.count_step() for _ in range(3)] == [False, False, True]
        assert limits.reached == "max_steps"

    def test_seconds_are_counted_from_the_begin(self):
        times = iter([0.0, 10.0, 11.0, 12.5])
        limits = Limits(0, 2.0, ONE, now=lambda: next(times))
        limits.start_clock()
        assert [limits.count_step(), limits.count_step()] == [False, True]
        assert limits.reached == "max_seconds"


class TestFeed:
    def feed(self, rank: int, count: int, *, samples: int = 23, batch: int = 8, **more: object) -> Feed:
        numbers = torch.arange(samples)
        data = Data(numbers, None, numbers, Source("numbers", real=False, samples=samples))
        task = replace(workload.task(given()), **{"data": data, "batch": batch, "test_batch": 0, **more})
        return Feed(task, given(), Ranks(rank, rank, count, CPU))

    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_each_sample_is_predicted_once_and_all_ranks_go_round_as_often(self, count):
        rounds = [list(self.feed(rank, count).iterate_part("test", times=2)) for rank in range(count)]
        assert len({len(batches) for batches in rounds}) == 1
        seen = sorted(n for batches in rounds for batch, counts in batches if counts for n in batch.tolist())
        assert seen == sorted([*range(23)] * 2)

    def test_parts_of_a_divided_model_always_have_a_batch(self):
        rounds = [
            list(self.feed(r, 4, samples=9, batch=4, sharded=(torch.nn.Linear,)).iterate_part("test")) for r in range(4)
        ]
        assert all(batch is not None for batches in rounds for batch, _ in batches)
        assert {len(batches) for batches in rounds} == {3}
        assert sorted(n for batches in rounds for b, counts in batches if counts for n in b.tolist()) == [*range(9)]

    def test_a_validation_has_batches_of_its_own_on_each_rank(self):
        feed = self.feed(1, 2, test_batch=5)
        assert [len(batch) for batch, _ in feed.iterate_part("test")] == [5, 5, 1]
        assert [len(batch) for batch in feed.iterate_epoch(1)] == [4, 4, 4]

    def test_what_is_not_there_has_no_rounds(self):
        assert list(self.feed(0, 1).iterate_part("valid")) == []

    def test_epochs_differ_and_come_again_the_same(self):
        feed, again = self.feed(0, 2), self.feed(0, 2)
        first, second = ([b.tolist() for b in feed.iterate_epoch(n)] for n in (1, 2))
        assert first != second
        assert [b.tolist() for b in again.iterate_epoch(1)] == first
        other = [n for b in self.feed(1, 2).iterate_epoch(1) for n in b.tolist()]
        assert len({*(n for b in first for n in b), *other}) == 23

    @pytest.mark.parametrize(("worker_starts", "expected"), [("once", 3), ("each-epoch", 6)])
    def test_processes_that_load_start_as_often_as_asked(self, worker_starts, expected):
        numbers = torch.arange(6)
        data = Data(numbers, numbers, numbers, Source("numbers", real=False, samples=6))
        settings = given(workers="1", worker_starts=worker_starts)
        feed = Feed(replace(workload.task(given()), data=data, batch=6), settings, ONE)
        for epoch in (1, 2):
            assert [sorted(batch.tolist()) for batch in feed.iterate_epoch(epoch)] == [[*range(6)]]
            assert [batch.tolist() for batch, _ in feed.iterate_part("valid")] == [[*range(6)]]
        assert len([batch.tolist() for batch, _ in feed.iterate_part("test", times=2)]) == 2
        assert feed.starts == expected

    def test_a_batch_that_cannot_be_divided_is_refused(self):
        with pytest.raises(ConfigError, match="multiple of 3"):
            self.feed(0, 3)

    def test_a_last_batch_of_one_is_left_out(self):
        assert [len(b) for b in self.feed(0, 1, samples=17).iterate_epoch(1)] == [8, 8]
        assert [len(b) for b in self.feed(0, 1, samples=18).iterate_epoch(1)] == [8, 8, 2]

    def test_nothing_to_predict_on_is_refused(self):
        with pytest.raises(ConfigError, match="nothing to predict on"):
            self.feed(0, 1, predict_on="valid")

    def test_without_predictions_nothing_is_needed_for_them(self):
        assert len(self.feed(0, 1, predict_on="valid", predict_times=0).train)

    def test_too_little_data_is_refused(self):
        with pytest.raises(ConfigError, match="nothing to train on"):
            self.feed(0, 1, samples=4, drop_last=True)

    def test_every_tensor_of_a_batch_is_moved(self):
        batch = {"a": (torch.zeros(1), [torch.ones(2)]), "b": "text"}
        moved = to_device(batch, torch.device("meta"))
        assert moved["a"][0].device.type == moved["a"][1][0].device.type == "meta"
        assert moved["b"] == "text"


class TestTraining:
    def test_the_same_seed_gives_the_same_losses_which_fall(self, told, reported):
        kept = []
        for seed, epochs in (("7", "1"), ("7", "1"), ("8", "1"), ("7", "8")):
            loop.run_training_loop("resnet", workload.task, given(seed=seed, epochs=epochs))
            kept.append((told["loss_first"], told["loss_last"], told["accuracy"]))
        assert kept[0] == kept[1] != kept[2]
        assert kept[3][1] < 0.9 * kept[3][0]

    def test_what_is_told_and_done(self, told, reported, capsys):
        loop.run_training_loop("resnet", workload.task, given())
        assert told["data"] == "synthetic-memory"
        assert (told["data_samples"], told["ranks"], told["stem"], told["stopped_by"]) == (128, 1, "cifar", "end")
        assert told["quality"] == "accuracy"
        assert told["steps"] == 16
        steps = [amounts for verb, amounts in reported if verb == "step"]
        assert len(steps) == 16
        assert all(amounts == {"samples": 16, "FLOP": 16 * told["flop_training"]} for amounts in steps)
        others = [amounts for verb, amounts in reported if verb == "work"]
        assert sum(amounts.get("validated", 0) for amounts in others) == 2 * 40
        assert sum(amounts.get("predicted", 0) for amounts in others) == 40
        assert sum(amounts["FLOP"] for amounts in others) == 3 * 40 * told["flop_forward"]
        assert "epoch 2: loss" in capsys.readouterr().out

    def test_it_stops_after_steps(self, told, reported):
        loop.run_training_loop("resnet", workload.task, given(max_steps="3", epochs="5"))
        assert (told["stopped_by"], told["steps"], told["predict_stopped_by"]) == ("max_steps", 3, "max_steps")

    @pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.campaign)])
    def test_warm_up_leaves_nothing_behind(self, told, reported, workers):
        kept = []
        for steps in ("0", "3"):
            loop.run_training_loop("resnet", workload.task, given(warmup_steps=steps, max_steps="2", workers=workers))
            kept.append(told["loss_last"])
        assert kept[0] == kept[1]

    def test_losses_are_gathered_in_order(self, monkeypatch):
        monkeypatch.setattr(loop, "GATHERED", 3)
        losses = loop.Losses()
        for k in range(5):
            losses.add(torch.tensor(float(k)))
        assert losses.take_epoch().tolist() == [0, 1, 2, 3, 4]
        losses.add(torch.tensor(5.0))
        assert losses.take_epoch().tolist() == [5]
        assert len(losses.gather_all()) == 6

    def test_no_data_is_said(self, told, reported, capsys, monkeypatch):
        monkeypatch.delenv("JOULELAB_DATA", raising=False)
        loop.run_training_loop("resnet", workload.task, given(data="auto", max_steps="1", epochs="1"))
        message = (
            "joulelab: resnet: no data was found, so synthetic-memory data is used\n-> joulelab workload info resnet\n"
        )
        assert message in capsys.readouterr().err
        assert told["data"] == "synthetic-memory"

    def test_a_saved_model_predicts_as_it_did_and_predictions_are_written(self, told, reported, tmp_path):
        model, predictions = tmp_path / "model.pt", tmp_path / "predictions.csv"
        loop.run_training_loop("resnet", workload.task, given(save=str(model), target="0.01"))
        assert (told["stopped_by"], told["epochs_trained"], told["target"]) == ("target", 1, "0.01")
        accuracy = told["accuracy"]
        loop.run_training_loop(
            "resnet", workload.task, given(load=str(model), epochs="0", predictions=str(predictions))
        )
        assert (told["accuracy"], told["steps"]) == (accuracy, 0)
        rows = [line.split(",") for line in predictions.read_text().splitlines()]
        assert rows[0] == ["sample", "class"]
        assert [int(number) for number, _ in rows[1:]] == [*range(40)]
        right = [
            int(found) == label
            for (_, found), (_, label) in zip(rows[1:], workload.task(given()).data.test, strict=False)
        ]
        assert sum(right) / len(right) == pytest.approx(accuracy)

    def test_a_training_that_no_longer_improves_ends(self, told, reported):
        loop.run_training_loop(
            "resnet", workload.task, given(rate="0", momentum="0", epochs="9", patience="2", augment="no")
        )
        assert (told["stopped_by"], told["epochs_trained"]) == ("patience", 3)

    @pytest.mark.parametrize("augment", ["cpu", "device"])
    def test_images_are_enlarged_where_they_are_augmented(self, told, reported, augment):
        settings = given(pixels="48", augment=augment, wait="yes", max_steps="1", precision="bf16")
        loop.run_training_loop("resnet", workload.task, settings)
        image, _ = workload.task(settings).data.train[0]
        assert image.shape == {"cpu": (3, 48, 48), "device": (3, 32, 32)}[augment]
        assert (told["pixels"], told["augment"], told["wait"], told["precision"]) == (48, augment, "yes", "bf16")

    def test_the_model_is_saved_whole(self, told, reported, tmp_path):
        file = tmp_path / "model.pt"
        loop.run_training_loop("resnet", workload.task, given(save=str(file), max_steps="1", precision="bf16"))
        state = torch.load(file, weights_only=True)
        workload.task(given()).model().load_state_dict(state)
        assert list(tmp_path.iterdir()) == [file]


class TestCounting:
    @pytest.mark.parametrize("groups", [1, 4, 8])
    def test_convolutions_in_groups_cost_less_backward_too(self, groups):
        def model():
            layers = [torch.nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False) for _ in range(2)]
            return torch.nn.Sequential(*layers)

        found = count_model(model, lambda device: torch.zeros(1, 8, 16, 16, device=device), lambda m, x: m(x).sum())
        once = 2 * 16 * 16 * 8 * (8 // groups) * 9
        assert found.forward == 2 * once
        assert found.training == 5 * once  # the first layer needs no gradient of its input

    def test_what_is_frozen_is_counted_forward_only(self):
        model = torch.nn.Linear(4, 3, bias=False).requires_grad_(requires_grad=False)
        found = count_model(
            lambda: model.to("meta"), lambda device: torch.zeros(1, 4, device=device), lambda m, x: m(x).sum()
        )
        assert (found.parameters, found.trained, found.forward, found.training) == (12, 0, 24, 24)


class TestSaving:
    def test_a_folder_that_is_not_there_is_refused_first(self, tmp_path):
        with pytest.raises(ConfigError, match="there is no folder"):
            saving.check_file({"save": str(tmp_path / "none" / "model.pt")}, "save")
        with pytest.raises(ConfigError, match="it is a folder"):
            saving.check_file({"predictions": str(tmp_path)}, "predictions")
        with pytest.raises(ConfigError, match="not a plain file"):
            saving.check_file({"save": "/dev/null"}, "save")

    def test_a_disk_without_room_for_predictions_is_refused_first(self, tmp_path):
        saving.check_room(str(tmp_path / "p.csv"), 10)
        with pytest.raises(ConfigError, match=r"no room for the predictions.*about 10\d*\.0 GB"):
            saving.check_room(saving.TEMPORARY, 10**15)

    def test_a_file_that_is_no_model_is_refused(self, tmp_path):
        (tmp_path / "text").write_text("no model")
        torch.save(torch.nn.Linear(2, 3).state_dict(), tmp_path / "other")
        for name, why in (
            ("text", ""),
            ("other", r"\(it is no Linear of these settings: bias differs or is missing\)"),
        ):
            with pytest.raises(ConfigError, match=f"cannot load the model.*{why}"):
                saving.load_model(torch.nn.Linear(1, 1), str(tmp_path / name))

    def test_each_rank_writes_the_numbers_of_its_own_samples(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Ranks, "is_any", lambda _, own: own)
        rows = [torch.tensor([[0.5], [1.0]]), torch.tensor([[2.0]])]
        saving.write_predictions(rows, ["class"], str(tmp_path / "p.csv"), Ranks(1, 1, 2, CPU), samples=4)
        assert (tmp_path / "p-rank1.csv").read_text() == "sample,class\n1,0.5\n3,1\n1,2\n"
        with pytest.raises(StoreError, match="cannot write the predictions"):
            saving.write_predictions(rows, ["class"], "/dev/full/p.csv", ONE, samples=4)

    def test_a_full_disk_is_said(self):
        with pytest.raises(StoreError, match="cannot be saved"):
            saving.save_model(torch.nn.Linear(1, 1), "/dev/full/model.pt", ONE)


class TestRanks:
    def test_no_gpu_is_said(self):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        with pytest.raises(ConfigError, match="finds no GPU"), join_ranks(given(device="cuda"), {}):
            pass

    def test_fp32_is_fp32(self):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True  # cuDNN's own default
        with join_ranks(given(precision="fp32"), {}):
            assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)

    def test_threads_of_the_environment_are_respected(self, told):
        before = torch.get_num_threads()
        try:
            with join_ranks(given(threads="0"), {"OMP_NUM_THREADS": "3"}) as ranks:
                loop.Training("x", workload.task(given()), given(), ranks)
                assert (torch.get_num_threads(), told["threads"]) == (3, 3)
        finally:
            torch.set_num_threads(before)

    def test_threads_that_torchrun_sets_are_not_obeyed(self, told, monkeypatch):
        monkeypatch.setattr(launch, "_start_environments", lambda: iter([{}]))
        monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1000, 1006))  # six cores
        before = torch.get_num_threads()
        environ = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        try:
            with join_ranks(given(threads="0"), environ) as ranks:
                loop.Training("x", workload.task(given()), given(), ranks)
                assert (torch.get_num_threads(), told["threads"]) == (3, 3)
        finally:
            torch.set_num_threads(before)

    def test_deterministic_on_request(self):
        try:
            with join_ranks(given(deterministic="yes"), {}) as ranks:
                assert torch.are_deterministic_algorithms_enabled()
                assert (ranks.is_first, ranks.count, ranks.share_batch(6)) == (True, 1, 6)
        finally:
            torch.use_deterministic_algorithms(mode=False)


class TestLaunch:
    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("device", "gpu", "auto, cpu, cuda"),
            ("precision", "fp8", "fp32, tf32, bf16"),
            ("deterministic", "1", "yes, no"),
            ("ranks", "-1", "whole number"),
            ("max_seconds", "soon", "number from 0"),
            ("nodes", "-1", "whole number"),
            ("rendezvous", "here", "HOST:PORT"),
            ("depths", "3,x", "whole number"),
            ("stem", "none", "cifar, imagenet"),
        ],
    )
    def test_wrong_values_are_refused_before_anything_starts(self, key, value, said):
        with pytest.raises(ConfigError, match=said):
            workload.command(given(**{key: value}))

    def test_a_folder_that_is_too_long_for_sockets_is_refused(self, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", f"/{'x' * training_parameters.MOST_TEMPORARY}")
        with pytest.raises(ConfigError, match="TMPDIR=/tmp"):
            workload.command(given(workers="2"))
        assert workload.command(given(workers="0"))

    def test_wrong_words_end_with_two(self, capsys):
        assert launch.run_training("resnet152-cifar10", workload.PARAMETERS, workload.task, words=["bach=3"]) == 2
        assert "did you mean 'batch'" in capsys.readouterr().err

    def test_a_preparation_makes_the_files_and_trains_nothing(self, tmp_path, monkeypatch, reported, capsys):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        words = [training_parameters.PREPARE, "data=synthetic-files", "countries=1", "hours=400"]
        assert launch.run_training("lstm-load", lstm_load.PARAMETERS, lstm_load.task, words=words) == 0
        assert [file.name for file in (tmp_path / "joulelab").glob("*/train.csv")] == ["train.csv"]
        assert (reported, capsys.readouterr().out) == ([], "")

    def test_a_preset_may_be_named(self, capsys):
        words = ["preset=smok"]
        assert (
            launch.run_training("resnet152-cifar10", workload.PARAMETERS, workload.task, workload.PRESETS, words) == 2
        )
        assert "did you mean 'smoke'" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("raised", "ends"),
        [
            (None, 0),
            (ConfigError("wrong"), 2),
            (StoreError("full"), 1),
            (launch.StopSignal(15), "by 15"),
            (KeyboardInterrupt(), "by 2"),
        ],
    )
    def test_it_ends_as_it_is_told(self, raised, ends, monkeypatch):
        def run():
            if raised is not None:
                raise raised

        monkeypatch.setattr(launch, "_end_by_signal", lambda number: pytest.exit(f"by {number}"))
        before = signal.getsignal(signal.SIGTERM)
        try:
            found = launch.run_workload("x", run)
        except pytest.exit.Exception as died:
            found = died.msg
        assert found == ends
        assert signal.getsignal(signal.SIGTERM) is before

    def test_a_number_alone_makes_no_rank(self):
        told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "LOCAL_RANK": "1"}
        assert launch.is_launched(told)
        assert not launch.is_launched({"RANK": "1", "WORLD_SIZE": "2"})
        with join_ranks(given(), {"RANK": "1"}) as ranks:
            assert (ranks.rank, ranks.count) == (0, 1)

    def test_what_a_cpu_has_not_is_refused(self):
        with pytest.raises(ConfigError, match="no such units"), join_ranks(given(precision="tf32", device="cpu"), {}):
            pass

    def test_an_error_of_a_loading_process_is_one_line(self):
        trace = "Caught ConfigError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  x\n"
        told = ConfigError(f"{trace}joulelab.core.errors.ConfigError: a.jpg: it is broken\n")
        assert launch._shorten_error(told) == "a.jpg: it is broken"
        assert launch._shorten_error(ConfigError("plain")) == "plain"

    def test_data_that_is_not_there_ends_with_two(self, capsys, tmp_path):
        words = [f"{key}={value}" for key, value in given(data=str(tmp_path / "none")).items()]
        assert launch.run_training("resnet152-cifar10", workload.PARAMETERS, workload.task, words=words) == 2
        assert "there is no such folder" in capsys.readouterr().err
