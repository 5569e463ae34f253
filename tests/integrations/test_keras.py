"""The callback for Keras in real trainings on torch: phases, counts, energy, a failure."""

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
    trained = Trained(twin, tmp_path, [str(HERE / "train_keras.py")], code=0)
    trained.check_answer()
    found = trained.found
    trained.check_metrics(found["rows"], found["metrics"])
    assert found["history"]["energy_j"] == [row["energy_j"] for row in found["rows"]]
    assert len(found["history"]["energy_j"]) == 2
    result = trained.result(trained.joined)
    # 10 samples are batches of 4, 4 and 2.
    epochs = [
        line
        for n in (0, 1)
        for line in (
            (1, f"epoch {n + 1}", {"steps": 3, "samples": 10, "validated": 6}),
            (2, f"step {3 * n + 1}-{3 * n + 3}", {"steps": 3, "samples": 10}),
            (2, f"validation {n + 1}", {"validated": 6}),
        )
    ]
    whole = (0, "train", {"steps": 6, "samples": 20, "validated": 12})
    assert lines(result.phases) == [whole, *epochs, (0, "predict", {"samples": 5})]
    check_energy(result.phases)

    assert len({found["failing"], found["next"], str(trained.joined)}) == 3
    assert found["error"] == "on purpose"
    end = read_end(Path(found["failing"]))
    assert end is not None
    assert end["exit_code"] == 1
    assert "did not report its end" in end["message"]
    # The batch size counts, for a model that counts nothing.
    assert trained.result(found["failing"]).work == {"steps": 2, "samples": 8}
    assert lines(trained.result(found["next"]).phases) == [(0, "predict", {"samples": 5})]
