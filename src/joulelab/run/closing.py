"""Finish a closed run: analyse it and seal it, each only if it can be done."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.run.recording import RunRecording
    from joulelab.run.run_options import RunOptions
    from joulelab.run.signal_forwarding import SignalBox

# numpy loads its parts when they are first used: those that the analysis uses are named.
HEAVY = (
    "numpy",
    "numpy.fft",
    "numpy.ma",
    "mmap",
    "duckdb",
    "joulelab.store.run",
    "joulelab.store.seal",
    "joulelab.analysis.analyse",
)


def preload_modules(more: Iterable[str] = ()) -> None:
    """Import what the analysis needs, and what its caller will.

    Its thread keeps its priority: a low one would hold the interpreter's lock for long on a busy machine.
    """
    for name in (*HEAVY, *more):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def analyse_and_seal(
    recording: RunRecording, options: RunOptions, signals: SignalBox, *, analyse: bool
) -> Result | None:
    """Analyse and seal what was recorded; what fails is told, and the record stays readable as it is.

    The seal of a short run is left to whoever opens it next: it would cost the command a tenth of a second.
    """
    run = recording.run
    if run is None:
        return None
    result: Result | None = None
    try:
        with signals.interruptible():
            if analyse:
                result = analyse_run(run)
            long = result is not None and result.duration_s >= options.seal_from_s
            if long and count_journal_bytes(run) < options.seal_limit:
                from joulelab.store.seal import seal

                seal(run)
    except KeyboardInterrupt:
        recording.problems.append(f"interrupted; the record is complete: joulelab show {run.name}")
    except Exception as error:  # noqa: BLE001 - the workload's outcome must be returned, whatever the analysis meets
        recording.problems.append(f"{type(error).__name__}: {error}")
    return result


def analyse_run(run: Path) -> Result:
    """Compute the result of a run."""
    from joulelab.analysis.analyse import analyse_run
    from joulelab.store.run import open_run

    with open_run(run) as opened:
        return analyse_run(opened)


def count_journal_bytes(run: Path) -> int:
    """Return the size of a run's journals in bytes."""
    return sum(p.stat().st_size for p in run.glob("*/*.journal"))
