"""Run a command under the supervisor as the CLI does, and leave as it left: tests start this as a process.

DRIVE is JSON: runs, options; `python` replaces the interpreter of the recorder; `outcome` is a file to tell it in;
`fault` breaks the supervisor once the workload runs, or before (`start`);
`early` starts the recorder before everything else.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from joulelab.run.child_process import start_recorder
from joulelab.run.recording import RunRecording
from joulelab.run.run_command import run_command
from joulelab.run.run_options import RunOptions
from joulelab.run.signal_forwarding import SignalBox
from joulelab.run.workload_process import exit_like_workload


def fault(*_: object) -> None:
    raise RuntimeError("a fault of our own")


def main() -> None:
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)  # recorders are traced by the tests of their own
    drive = json.loads(os.environ.pop("DRIVE"))
    if "python" in drive:
        sys.executable = drive["python"]
    if drive.get("fault") == "start":
        RunRecording.start = fault  # type: ignore[method-assign, assignment]
    elif drive.get("fault"):
        RunRecording.note_workload = fault  # type: ignore[method-assign, assignment]
    recorder = start_recorder(os.environ, warm=True) if drive.get("early") else None
    options = {"ready_s": 15.0, **drive["options"]}
    if "capture" in options:
        options["capture"] = Path(options["capture"])
    signals = SignalBox().__enter__()
    outcome = run_command(
        sys.argv[1:],
        RunOptions(runs=Path(drive["runs"]), **options),
        os.environ,
        warn=lambda text: print(f"joulelab: {text}", file=sys.stderr),
        signals=signals,
        recorder=recorder,
    )
    told: dict[str, object] = {
        "kind": outcome.kind,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "start_ns": outcome.start_ns,
        "end_ns": outcome.end_ns,
        "run": str(outcome.run) if outcome.run else None,
        "problems": outcome.problems,
        "error": str(outcome.error) if outcome.error else None,
    }
    if outcome.result is not None and outcome.result.energy is not None:
        told["energy_j"] = outcome.result.energy.value
    Path(drive["outcome"]).write_text(json.dumps(told))
    exit_like_workload(outcome.exit_code, outcome.signal)


if __name__ == "__main__":
    main()
