"""Write figures into the W&B run that the user has, without moving the user's step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.analysis.result import Fact

WANDB_SECONDS = "joulelab/seconds"


def find_wandb_run() -> WandbTracker | None:
    """Return the W&B run of this process, None where there is none; W&B is never imported by us."""
    module = sys.modules.get("wandb")
    run = getattr(module, "run", None)
    return None if run is None else WandbTracker(run)


class WandbTracker:
    """Write to one W&B run, online, offline or disabled."""

    name = "W&B"

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric("joulelab/*", step_metric=WANDB_SECONDS)

    def log_point(self, at_ns: int, seconds: float, values: Mapping[str, float]) -> None:  # noqa: ARG002 - W&B stamps it
        """Add figures to the row that the user is about to write, whether steps are counted or given.

        A row of our own would take a number from the user's. What is left at the end is written when the run finishes.
        """
        self._run.log({WANDB_SECONDS: seconds, **values}, commit=False)

    def log_summary(self, figures: Mapping[str, float], told: Mapping[str, Fact]) -> None:
        """Put the totals, and what was trained on, beside the user's own summary."""
        self._run.summary.update({**figures, **told})
