"""VGG-19 of the HoreKa study: its size, that it learns; its workload and its notebook."""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.workloads.inprocess import run_cells
from torch.utils.data import DataLoader

from joulelab.core.errors import ConfigError
from joulelab.run import notebook
from joulelab.run.workload_registry import merge_parameters
from joulelab.workloads import lstm_load, lstm_notebook, vgg19bn_notebook, vgg19bn_xray
from joulelab.workloads.models.vgg import VGG19, least_size
from joulelab.workloads.training.model_figures import count_model

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

torch.set_num_threads(1)  # several wait for each other where other tests run too
MEMORY = {"data": "synthetic-memory", "pixels": "122", "divisor": "16", "train_samples": "32"}


def given(preset: str = "paper", **more: str) -> dict[str, str]:
    return merge_parameters("vgg19bn-xray", vgg19bn_xray.PARAMETERS, {**vgg19bn_xray.PRESETS[preset], **more})


def test_it_has_the_parameters_and_flop_of_the_study() -> None:
    task = vgg19bn_xray.task(given(data="synthetic-memory", train_samples="2"))
    counts = count_model(task.model, task.example, task.loss)
    assert (counts.parameters, counts.trained, counts.forward) == (20_035_266, 20_035_266, 10_052_814_848)
    assert counts.training == 30_100_641_792
    textbook = vgg19bn_xray.task(given(data="synthetic-memory", train_samples="2", pool_stride="2"))
    with torch.device("meta"):
        frozen = textbook.model().requires_grad_(requires_grad=False)
    assert count_model(lambda: frozen, textbook.example, textbook.loss).forward == 38_901_254_144


def test_it_learns_with_a_seed() -> None:
    task = vgg19bn_xray.task(given("smoke", **MEMORY))
    losses: list[list[float]] = []
    for steps in (4, 16):
        torch.manual_seed(0)
        model = task.model()
        optimizer, schedule = task.optimizer(model, 16)
        loader = DataLoader(task.data.train, task.batch, shuffle=True)
        losses.append([])
        while len(losses[-1]) < steps:
            for batch in loader:
                loss = task.loss(model, batch)
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses[-1].append(loss.item())
                assert task.amounts(batch) == {"samples": 8}
    assert losses[0] == losses[1][:4]
    assert sum(losses[1][-4:]) < 0.8 * sum(losses[1][:4])
    scores = task.score(task.forward(model, batch), batch)
    assert scores["samples"] == 8
    assert task.quality(scores) == {"accuracy": scores["correct"] / 8}


def test_images_of_any_size_that_the_pools_leave_something_of_are_taken() -> None:
    assert (least_size(3), least_size(2)) == (122, 32)
    model = VGG19(classes=5, channels=3, pool_stride=2, divisor=32).eval()
    assert model(torch.zeros(2, 3, 70, 33)).shape == (2, 5)


def test_the_rate_falls_as_half_a_cosine_by_whole_epochs() -> None:
    share = vgg19bn_xray.schedule(epochs=4, steps=12)
    assert [share(step) for step in (0, 2)] == [1, 1]
    assert [share(step) for step in (3, 5)] == pytest.approx([(1 + math.cos(math.pi / 4)) / 2] * 2)
    assert share(11) == pytest.approx((1 + math.cos(3 * math.pi / 4)) / 2)
    assert share(12) == 0
    assert share(13) == 0


def test_the_paper_is_the_default_and_each_test_sample_is_predicted_ten_times(tmp_path: Path) -> None:
    assert vgg19bn_xray.PRESETS["paper"] == {}
    assert given("paper-250")["epochs"] == "250"
    chosen = given()
    assert [chosen[key] for key in ("epochs", "batch", "rate", "momentum", "pool_stride", "preparation")] == [
        "25", "64", "0.1", "0.9", "3", "paper",
    ]  # fmt: skip
    task = vgg19bn_xray.task(given("smoke", **MEMORY))
    assert (task.predict_on, task.predict_times, task.epochs) == ("test", 2, 2)
    assert given()["repeats"] == "10"
    optimizer, _ = task.optimizer(torch.nn.Linear(1, 1), 10)
    group = optimizer.param_groups[0]
    assert (group["nesterov"], group["momentum"], group["weight_decay"]) == (True, 0.9, 0)
    for preset in vgg19bn_xray.PRESETS:
        assert vgg19bn_xray.command(given(preset))[1:3] == ["-m", "joulelab.workloads.vgg19bn_xray"]
    write_folder(tmp_path)
    task = vgg19bn_xray.task(given("smoke", data=str(tmp_path)))
    assert (task.predict_on, task.facts["predicted_on"]) == ("valid", "valid")


def write_folder(folder: Path) -> None:
    (folder / "imgs").mkdir()
    (folder / "imgs" / "a.png").touch()
    for part in ("train", "valid"):
        (folder / f"{part}.csv").write_text("image,label\na.png,negative\n")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("pixels", "121", r"pixels is 121 \(five pools of stride 3 leave nothing of it\); give at least 122"),
        ("pool_stride", "4", "give a whole number from 2 to 3"),
        ("preparation", "none", "give one of: paper, repository"),
        ("draft", "perhaps", "give one of: yes, no"),
        ("divisor", "65", "give a whole number from 1 to 64"),
        ("rate", "fast", "give a number"),
    ],
)
def test_wrong_values_are_told_before_anything_is_started(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        vgg19bn_xray.command(given(**{key: value}))
    if key in vgg19bn_notebook.SAME:
        with pytest.raises(ConfigError, match=why):
            vgg19bn_notebook.command(merge_parameters("vgg19bn-notebook", vgg19bn_notebook.PARAMETERS, {key: value}))


def test_the_notebook_has_the_defaults_of_the_workload_and_runs_with_all_of_its_parameters() -> None:
    book = notebook.load_notebook(vgg19bn_notebook.FILE)
    cell = book["cells"][notebook.find_parameters_place(book) - 1]
    values: Any = {
        node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(notebook.get_source(cell)).body
    }  # type: ignore[attr-defined]
    assert {key: str(value) for key, value in values.items()} == {
        key: vgg19bn_xray.PARAMETERS[key][0] for key in vgg19bn_notebook.SAME
    }
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            compile(notebook.get_source(cell), "cell", "exec")
            assert not cell["outputs"]
    asked = vgg19bn_notebook.PRESETS["smoke"]
    words = vgg19bn_notebook.command(merge_parameters("vgg19bn-notebook", vgg19bn_notebook.PARAMETERS, asked))
    assert words[3] == str(vgg19bn_notebook.FILE)
    assert {f"{key}={value}" for key, value in asked.items()} <= set(words)
    assert set(vgg19bn_notebook.PRESETS) == set(vgg19bn_xray.PRESETS)


def test_the_notebook_counts_only_what_is_trained_on_as_samples_and_gives_the_same_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    small = {**MEMORY, "train_samples": "8", "batch": "4", "momentum": "0", "deterministic": "yes", "draft": "no"}
    asked = merge_parameters(
        "vgg19bn-notebook", vgg19bn_notebook.PARAMETERS, {**vgg19bn_notebook.PRESETS["smoke"], **small}
    )
    words = {key: asked[key] for key in vgg19bn_notebook.SAME}
    try:
        found = [run_cells(vgg19bn_notebook.FILE, words, monkeypatch) for _ in range(2)]
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(mode=False)
    facts, work, names = found[0]
    assert (work["steps"], work["samples"]) == (2 * 2, 2 * 8)
    assert (work["validated"], work["predicted"]) == (2 * 2, 2 * 2)
    flop = facts["flop_training"] * work["samples"] + facts["flop_forward"] * (work["validated"] + work["predicted"])
    assert work["FLOP"] == flop
    assert (facts["divisor"], facts["draft"], facts["deterministic"], facts["threads"]) == (16, "no", "yes", 1)
    assert (names["optimizer"].defaults["momentum"], names["optimizer"].defaults["nesterov"]) == (0, False)
    assert found[1][0] == facts


@pytest.mark.parametrize(("workload", "book"), [(vgg19bn_xray, vgg19bn_notebook), (lstm_load, lstm_notebook)])
def test_notes_of_a_notebook_name_only_parameters_that_it_has(workload: Any, book: Any) -> None:
    named = {key for key in workload.PARAMETERS if re.search(rf"\b{key}[=:]", " ".join(book.NOTES))}
    assert named
    assert named <= set(book.SAME)
