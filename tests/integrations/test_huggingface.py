"""The callback for Hugging Face's Trainer in real trainings: phases, counts, energy, failures, two ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.integrations.trained import HERE, TORCHRUN, Trained, check_energy, lines

from joulelab.store.run_folder import RunState, read_end, read_run_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from joulelab.twin.twin_server import TwinServer

pytestmark = pytest.mark.system

SCRIPT = str(HERE / "train_huggingface.py")
L = 6  # tokens of a sample


@pytest.mark.no_cover
def test_trainings_of_one_process(twin: Callable[..., TwinServer], tmp_path: Path) -> None:
    trained = Trained(twin, tmp_path, [SCRIPT], code=0)
    trained.check_answer()
    found = trained.found
    rows = [row for row in found["rows"] if "loss" in row or "train_loss" in row]
    assert ["train_runtime" in row for row in rows] == [False, False, True]
    trained.check_metrics(rows, found["metrics"])
    assert rows[-1]["energy_j"] == found["metrics"]["energy_j"] == found["history"][-1]["energy_j"]
    assert found["metrics"]["j_per_token"] == pytest.approx(found["metrics"]["j_per_sample"] / L, rel=1e-4)
    assert all("energy_j" not in row for row in found["rows"] if "eval_loss" in row)
    result = trained.result(trained.joined)
    # 10 samples are batches of 4, 4 and 2; two of them are a step.
    epochs = [
        line
        for n in (1, 2)
        for line in (
            (1, f"epoch {n}", {"steps": 2, "samples": 10, "tokens": 10 * L}),
            (2, f"step {2 * n - 1}-{2 * n}", {"steps": 2, "samples": 10, "tokens": 10 * L}),
            (1, f"validation {n}", {"validated": 6}),
            (1, f"save {n}", {}),
        )
    ]
    whole = {"steps": 4, "samples": 20, "tokens": 20 * L, "validated": 12}
    assert lines(result.phases) == [(0, "train", whole), *epochs, (0, "predict", {"samples": 5, "tokens": 5 * L})]
    check_energy(result.phases)

    assert found["error"] == "on purpose"
    assert found["told"] == []
    failing = trained.others["failing"]
    assert str(failing) == found["failing"]
    assert read_run_state(failing) is RunState.CLOSED
    end = read_end(failing)
    assert end is not None
    assert (end["exit_code"], end["message"]) == (1, "ValueError: on purpose")
    itself = trained.result(failing)
    assert itself.phases[0].open_end is False
    assert itself.work == {"steps": 3, "samples": 10, "tokens": 10 * L}
    assert sum(p.work["samples"] for p in itself.phases if p.name == "step") == 10


@pytest.mark.campaign
@pytest.mark.no_cover
def test_two_ranks_are_recorded_once_and_each_counts_its_own(twin: Callable[..., TwinServer], tmp_path: Path) -> None:
    trained = Trained(twin, tmp_path, [*TORCHRUN, SCRIPT, "ranks"], code=0)
    trained.check_answer()
    # Ranks are given whole batches: 10 samples become 2 x (4 + 4), 6 of a validation 2 x 4.
    work = {"steps": 4, "samples": 32, "tokens": 32 * L}
    result = trained.result(trained.joined)
    assert result.work == work | {"validated": 16}
    titles = [p.title for p in result.phases if p.name != "step"]
    assert titles == ["train", "epoch 1", "validation 1", "epoch 2", "validation 2"]
    assert sum(p.work["steps"] for p in result.phases if p.name == "step") == 4
    by_rank: dict[int, float] = {}
    for file in trained.joined.glob("*/marks/*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            if line["mark"] == "work":
                by_rank[line["rank"]] = by_rank.get(line["rank"], 0) + line["amounts"].get("samples", 0)
    assert by_rank == {0: 16, 1: 16}
    check_energy(result.phases)
    # Where the first rank records, it reports for both.
    assert str(trained.others["alone"]) == trained.found["alone"]
    assert len(trained.others) == 1
    assert trained.result(trained.others["alone"]).work == work
