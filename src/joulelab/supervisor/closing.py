"""Finish a closed run: analyse it and seal it, each only if it can be done."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.supervisor.options import RunOptions
    from joulelab.supervisor.recording import Recording

HEAVY = ("numpy", "duckdb", "joulelab.store.run", "joulelab.store.seal", "joulelab.analysis.analyse")


def preload() -> None:
    """Import what the analysis needs, in a thread that yields to everything else."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def close_run(recording: Recording, options: RunOptions, *, analyse: bool) -> Result | None:
    """Analyse and seal what was recorded; what fails is a problem in words, the record stays readable as it is."""
    if recording.run is None:
        return None
    result: Result | None = None
    try:
        if analyse:
            result = analyse_run(recording.run)
        if journal_bytes(recording.run) < options.seal_limit:
            from joulelab.store.seal import seal

            seal(recording.run)
    except KeyboardInterrupt:
        recording.problems.append(f"interrupted; the record is complete: joulelab show {recording.run.name}")
    except Exception as error:  # noqa: BLE001 - the workload's outcome must be returned, whatever the analysis meets
        recording.problems.append(f"{type(error).__name__}: {error}")
    return result


def analyse_run(run: Path) -> Result:
    """Compute the result of a run."""
    from joulelab.analysis.analyse import analyse
    from joulelab.store.run import open_run

    return analyse(open_run(run))


def journal_bytes(run: Path) -> int:
    """Return the size of a run's journals in bytes."""
    return sum(p.stat().st_size for p in run.glob("*/*.journal"))
