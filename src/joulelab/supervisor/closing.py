"""Finish a closed run: analyse it and seal it, each only if it can be done."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.supervisor.options import RunOptions
    from joulelab.supervisor.recording import Recording

HEAVY = ("numpy", "duckdb", "joulelab.store.run", "joulelab.store.seal", "joulelab.analysis.analyse")


def preload(more: Iterable[str] = ()) -> None:
    """Import what the analysis needs, and what its caller will, in a thread that yields to everything else."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    for name in (*HEAVY, *more):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def close_run(recording: Recording, options: RunOptions, *, analyse: bool) -> Result | None:
    """Analyse and seal what was recorded, side by side; what fails is told, the record stays readable as it is."""
    run = recording.run
    if run is None:
        return None
    result: Result | None = None
    sealing = threading.Thread(target=_seal, args=(run, recording.problems), name="seal", daemon=True)
    try:
        if journal_bytes(run) < options.seal_limit:
            sealing.start()
        if analyse:
            result = analyse_run(run)
        if sealing.ident is not None:
            sealing.join()
    except KeyboardInterrupt:
        recording.problems.append(f"interrupted; the record is complete: joulelab show {run.name}")
    except Exception as error:  # noqa: BLE001 - the workload's outcome must be returned, whatever the analysis meets
        recording.problems.append(f"{type(error).__name__}: {error}")
    return result


def _seal(run: Path, problems: list[str]) -> None:
    from joulelab.store.seal import seal

    try:
        seal(run)
    except Exception as error:  # noqa: BLE001
        problems.append(f"not sealed: {type(error).__name__}: {error}")


def analyse_run(run: Path) -> Result:
    """Compute the result of a run."""
    from joulelab.analysis.analyse import analyse
    from joulelab.store.run import open_run

    with open_run(run) as opened:
        return analyse(opened)


def journal_bytes(run: Path) -> int:
    """Return the size of a run's journals in bytes."""
    return sum(p.stat().st_size for p in run.glob("*/*.journal"))
