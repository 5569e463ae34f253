"""The LSTM of the HoreKa study: its size, its errors in MW, that it learns; its workload and its notebook."""

from __future__ import annotations

import ast
import contextlib
from typing import Any

import pytest
import torch
from tests.workloads.inprocess import run_cells
from torch.utils.data import DataLoader

import joulelab
from joulelab.core.errors import ConfigError
from joulelab.run import notebook
from joulelab.run.workload_registry import find_workload, get_presets, merge_parameters
from joulelab.workloads import lstm_load, lstm_notebook
from joulelab.workloads.models.lstm import ZERO, LoadForecaster
from joulelab.workloads.training import loop
from joulelab.workloads.training.model_figures import count_model

pytestmark = pytest.mark.system

torch.set_num_threads(1)  # several wait for each other where other tests run too


def given(preset: str = "paper", **more: str) -> dict[str, str]:
    return merge_parameters("lstm-load", lstm_load.PARAMETERS, {**lstm_load.PRESETS[preset], **more})


def test_it_has_the_parameters_and_flop_of_a_week_and_learns_with_a_seed() -> None:
    task = lstm_load.task(given("smoke", hours="600", units="48"))
    counts = count_model(task.model, task.example, task.loss)
    assert (counts.parameters, counts.trained, counts.forward) == (9841, 9841, 3_177_216)
    assert counts.training == 9_448_704
    losses: list[list[float]] = []
    for steps in (3, 20):
        torch.manual_seed(0)
        model = task.model()
        optimizer, schedule = task.optimizer(model, 20)
        assert schedule is None
        loader = DataLoader(task.data.train, 32, shuffle=True, drop_last=task.drop_last, collate_fn=task.collate)
        losses.append([])
        for batch, _ in zip(loader, range(steps), strict=False):
            loss = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(loss.item())
            assert task.amounts(batch) == {"samples": 32}
    assert losses[0] == losses[1][:3]
    assert losses[1][-1] < 0.7 * losses[1][0]


def test_its_cell_begins_at_random_by_the_seed_or_at_zero() -> None:
    past = torch.rand(2, 168, 1)
    random, zero = LoadForecaster(8), LoadForecaster(8, ZERO)
    assert random(past).shape == past.shape
    assert not torch.equal(random(past), random(past))
    assert torch.equal(zero(past), zero(past))
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(random(past))
    assert torch.equal(*drawn)


def test_errors_are_in_mw_and_stand_beside_those_of_the_week_before() -> None:
    past, future = torch.full((1, 168, 1), 0.5), torch.full((1, 168, 1), 1.0)
    scale = torch.tensor([[1000.0, 3000.0]])  # so 2500 MW, then 4000 MW
    sums = lstm_load.score(torch.full_like(past, 0.8), (past, future, scale))  # says 3400 MW
    assert sums["hours"] == 168
    found = lstm_load.quality(sums)
    assert found == pytest.approx({"mape_pct": 15.0, "mape_last_week_pct": 37.5}, rel=1e-5)
    assert lstm_load.quality({}) == {}


def test_hours_of_no_load_are_left_out_of_the_errors_and_counted(tmp_path: Any) -> None:
    past, future = torch.full((1, 168, 1), 0.5), torch.full((1, 168, 1), 1.0)
    future[0, :68] = 0.0
    sums = lstm_load.score(torch.full_like(past, 0.8), (past, future, torch.tensor([[0.0, 1000.0]])))
    assert sums["hours"] == 100
    assert lstm_load.quality(sums) == pytest.approx({"mape_pct": 20.0, "mape_last_week_pct": 50.0}, rel=1e-5)
    nothing = lstm_load.score(past, (past, torch.zeros_like(past), torch.tensor([[0.0, 1.0]])))
    assert lstm_load.quality(nothing) == {}
    for part in ("train", "valid"):
        rows = [f"{k % 7},{k},DE" for k in range(700)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["Load [MW],Time [s],Country", *rows]))
    assert lstm_load.task(given("smoke", data=str(tmp_path))).facts["hours_of_zero_load"] == 200


def test_the_notebook_counts_only_what_is_trained_on_as_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    small = {"countries": "1", "hours": "400", "batch": "16", "units": "5", "cell": "zero"}
    asked = merge_parameters("lstm-notebook", lstm_notebook.PARAMETERS, {**lstm_notebook.PRESETS["smoke"], **small})
    facts, work, _ = run_cells(lstm_notebook.FILE, {key: asked[key] for key in lstm_notebook.SAME}, monkeypatch)
    trained = 400 - 336
    assert (work["steps"], work["samples"]) == (2 * trained / 16, 2 * trained)
    # Validated on one sample before, after each epoch, and in the test; two copies are predicted.
    assert (work["validated"], work["predicted"]) == (4, 2 * trained)
    flop = facts["flop_training"] * work["samples"] + facts["flop_forward"] * (work["validated"] + work["predicted"])
    assert work["FLOP"] == flop
    assert (facts["units"], facts["cell"], facts["steps"], facts["threads"]) == (5, "zero", work["steps"], 1)
    assert facts["loss_last"] < facts["loss_first"]


def test_the_paper_is_the_default_and_prediction_goes_over_copies_of_the_training_data() -> None:
    assert lstm_load.PRESETS["paper"] == {}
    chosen = given()
    assert [chosen[key] for key in ("epochs", "batch", "rate", "units", "copies")] == ["30", "64", "1e-3", "48", "5"]
    task = lstm_load.task(given("smoke", hours="400"))
    assert (task.predict_on, task.predict_times, task.epochs, task.batch) == ("train", 2, 2, 64)
    assert task.data.source.name == "synthetic-memory"
    for preset in lstm_load.PRESETS:
        assert lstm_load.command(given(preset))[1:3] == ["-m", "joulelab.workloads.lstm_load"]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("hours", "336", "give a whole number from 337"),
        ("cell", "one", "give one of: random, zero"),
        ("rate", "-1", "give a number"),
        ("epochs", "-1", "give a whole number"),
        ("device", "tpu", "give one of: auto, cpu, cuda"),
    ],
)
def test_wrong_values_are_told_before_anything_is_started(key: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        lstm_load.command(given(**{key: value}))
    if key in lstm_notebook.SAME:
        with pytest.raises(ConfigError, match=why):
            lstm_notebook.command(merge_parameters("lstm-notebook", lstm_notebook.PARAMETERS, {key: value}))


def test_the_notebook_has_the_defaults_of_the_workload_and_runs_with_all_of_its_parameters(tmp_path: Any) -> None:
    book = notebook.load_notebook(lstm_notebook.FILE)
    assert defaults(book) == {key: lstm_load.PARAMETERS[key][0] for key in lstm_notebook.SAME}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            compile(notebook.get_source(cell), "cell", "exec")
            assert not cell["outputs"]
    out = tmp_path / "done.ipynb"
    asked = {**lstm_notebook.PRESETS["smoke"], "pause": "2", "out": str(out)}
    words = lstm_notebook.command(merge_parameters("lstm-notebook", lstm_notebook.PARAMETERS, asked))
    assert words[3] == str(lstm_notebook.FILE)
    assert {"--pause=2", f"--out={out}", "data=synthetic-memory", "hours=700", "max_seconds=15"} <= set(words)
    assert set(lstm_notebook.PRESETS) == set(lstm_load.PRESETS)


@pytest.mark.parametrize(
    "name", ["lstm-load", "vgg19bn-xray", "xception-birds", "llava15-13b", "resnet152-cifar10", "lstm-notebook"]
)
def test_smoke_ends_by_steps_and_time_only_guards_it(name: str) -> None:
    smoke = get_presets(find_workload(name))["smoke"]
    assert float(smoke["max_seconds"]) >= 15
    assert int(smoke.get("max_steps") or smoke["epochs"]) > 0


def defaults(book: dict[str, Any]) -> dict[str, str]:
    """Return what the cell tagged `parameters` sets, as a workload's parameters are written."""
    cell = book["cells"][notebook.find_parameters_place(book) - 1]
    values = {node.targets[0].id: ast.unparse(node.value) for node in ast.parse(notebook.get_source(cell)).body}  # type: ignore[attr-defined]
    return {key: str(ast.literal_eval(text)) if text[0] in "'\"" else exact(text) for key, text in values.items()}


def exact(text: str) -> str:
    return {"0.001": "1e-3"}.get(text, text)


class TestPartsAlone:
    """The study trained and predicted in jobs of their own."""

    def test_one_of_training_and_prediction_may_be_left_out_and_not_both(self) -> None:
        for some in ({"epochs": "0"}, {"copies": "0"}):
            assert lstm_load.command(given(**some))[1] == "-m"
        with pytest.raises(ConfigError, match=r"epochs and copies are 0 \(nothing is left to do\)"):
            lstm_load.command(given(epochs="0", copies="0"))
        with pytest.raises(ConfigError, match="give a whole number from 1"):
            lstm_notebook.command(merge_parameters("lstm-notebook", lstm_notebook.PARAMETERS, {"copies": "0"}))

    @pytest.mark.parametrize(("left_out", "phase"), [("copies", "predict"), ("epochs", "epoch")])
    def test_what_is_left_out_is_no_phase(
        self, left_out: str, phase: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        phases: list[str] = []
        facts: dict[str, Any] = {}

        def phase_of(name: str, n: int | None = None) -> Any:
            del n
            phases.append(name)
            return contextlib.nullcontext()

        monkeypatch.setattr(joulelab, "phase", phase_of)
        monkeypatch.setattr(joulelab, "fact", lambda **told: facts.update(told))
        small = {"countries": "1", "hours": "400", "epochs": "1", "copies": "1"}
        loop.run_training_loop("lstm-load", lstm_load.task, given("smoke", **{**small, left_out: "0"}))
        assert phase not in phases
        assert {"epoch", "predict"} - {phase} <= set(phases)
        assert facts["steps"] == (0 if left_out == "epochs" else 1)
        assert "mape_pct" in facts
        assert ("only predicted" in capsys.readouterr().out) is (left_out == "epochs")
