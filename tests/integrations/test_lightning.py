"""The callback for Lightning in real trainings: phases, counts, energy, a failure."""

from __future__ import annotations

import re
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
    assert re.search(r"^joulelab: train: .*a phase of a run that goes on; run ", trained.done.stderr, re.MULTILINE)
    assert re.search(
        r"^joulelab: alone: (?:.* ± .*Wh\) in|energy: too short) .*; run ", trained.done.stderr, re.MULTILINE
    )
    result = trained.result(trained.joined)
    # 10 samples are batches of 4, 4 and 2; two of them are a step, and what is left over at the end is one.
    epochs = [
        line
        for n in (1, 2)
        for line in (
            (1, f"epoch {n}", {"steps": 2, "samples": 10, "validated": 6}),
            (2, f"step {2 * n - 1}", {"steps": 1, "samples": 8}),
            (2, f"step {2 * n}", {"steps": 1, "samples": 2}),
            (2, f"validation {n}", {"validated": 6}),
            (1, f"save {n}", {}),
        )
    ]
    whole = (0, "train", {"steps": 4, "samples": 20, "validated": 12})
    assert lines(result.phases) == [(0, "sanity check", {}), whole, *epochs, (0, "predict", {"samples": 5})]
    check_energy(result.phases)

    assert len({trained.found[name] for name in ("alone", "test", "failing")}) == 3
    itself = trained.result(trained.found["alone"])
    assert itself.name == "alone"
    assert itself.work == {"steps": 6, "samples": 2000}
    assert [p.work["samples"] for p in itself.phases if p.name == "step"] == [400, 400, 200] * 2
    assert lines(trained.result(trained.found["test"]).phases) == [(0, "test", {"samples": 700})]

    assert trained.found["error"] == "on purpose"
    end = read_end(Path(trained.found["failing"]))
    assert end is not None
    assert (end["exit_code"], end["message"]) == (1, "ValueError: on purpose")
    assert trained.result(trained.found["failing"]).work == {"steps": 4, "samples": 14}
