"""Count the FLOP of each model once in a process: many tests train the same small ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.tiers import find_tier

if TYPE_CHECKING:
    from joulelab.workloads.training.model_figures import Counts

COUNTED: dict[str, Counts] = {}


@pytest.fixture(autouse=True)
def look_once_for_counts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was counted for a model and an input; to count an LSTM takes three seconds."""
    if find_tier(request.node) == "quick":
        return
    pytest.importorskip("torch")
    from joulelab.workloads.training import loop
    from joulelab.workloads.training.model_figures import META, count_model

    def find_counts(model: Any, example: Any, loss: Any) -> Counts:
        with META:
            key = f"{model()} {example(META)}"
        if key not in COUNTED:
            COUNTED[key] = count_model(model, example, loss)
        return COUNTED[key]

    monkeypatch.setattr(loop, "count_model", find_counts)
