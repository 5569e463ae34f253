"""The callback for Lightning in real trainings: phases, counts, energy, a failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integrations.trained import HERE, Trained, check_energy, lines

from joulelab.store.run_folder import read_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.twin.twin_server import TwinServer

pytestmark = pytest.mark.system


@pytest.mark.no_cover
def test_trainings(twin: Callable[..., TwinServer], tmp_path: Path) -> None:
    trained = Trained(twin, tmp_path, [str(HERE / "train_lightning.py")], code=0)
    trained.check_answer()
    found = trained.found
    rows = [row for row in found["rows"] if "energy_j" in row]
    assert len(rows) == 3
    trained.check_metrics(rows, found["metrics"])
    assert rows[-1]["energy_j"] == pytest.approx(found["metrics"]["energy_j"])
    # After a validation, and in a checkpoint's monitor.
    assert [seen["energy_j"] for seen in found["seen"]] == [pytest.approx(row["energy_j"]) for row in rows[:2]]
    assert found["best"] == pytest.approx(rows[0]["energy_j"])
    result = trained.result(trained.joined)
    # 10 samples are batches of 4, 4 and 2; two of them are a step, and what is left over at the end is one.
    epochs = [
        line
        for n in (1, 2)
        for line in (
            (1, f"epoch {n}", {"steps": 2, "samples": 10, "validated": 6}),
            (2, f"step {2 * n - 1}-{2 * n}", {"steps": 2, "samples": 10}),
            (2, f"validation {n}", {"validated": 6}),
            (1, f"save {n}", {}),
        )
    ]
    whole = (0, "train", {"steps": 4, "samples": 20, "validated": 12})
    assert lines(result.phases) == [(0, "sanity check", {}), whole, *epochs, (0, "predict", {"samples": 5})]
    check_energy(result.phases)

    assert found["error"] == "on purpose"
    end = read_end(Path(found["failing"]))
    assert end is not None
    assert (end["exit_code"], end["message"]) == (1, "ValueError: on purpose")
    itself = trained.result(found["failing"])
    assert itself.name == "failing"
    assert itself.work == {"steps": 4, "samples": 1400}
    assert sum(p.work["samples"] for p in itself.phases if p.name == "step") == 1400
