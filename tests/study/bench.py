"""Make studies and slots for tests, run sweeps as processes, and wait for what they do."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.analysis.result import (
    ChannelEnergy,
    GroupResult,
    PhaseResult,
    RatedDevice,
    RatedResult,
    Result,
    ScopeResult,
)
from joulelab.analysis.results_file import write_result
from joulelab.core.clock import NS
from joulelab.core.process_identity import identify_process
from joulelab.core.quantity import Quantity
from joulelab.store.run_folder import create_run, end_run, list_runs, write_json_atomic
from joulelab.study.folder import Plan, Settings, Study, join_study
from joulelab.study.knobs import Knob
from joulelab.study.matrix import Workload, make_cells
from joulelab.study.slots import CLAIM, STOPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.study.results import SlotTrial

SRC = Path(__file__).parents[2] / "src"
LIMIT_S = 240.0


def make_study(folder: Path, *command: str, knobs: Mapping[str, str] | None = None, **settings: Any) -> Study:
    """Make a study of a command with knobs."""
    workload = Workload(command or ("true",))
    planned = make_cells(workload, [Knob.parse(name, text) for name, text in (knobs or {}).items()])
    return join_study(folder, folder.name, Plan(planned, settings=Settings(**settings)), seed=1)


def only_cell(study: Study) -> str:
    """Return the key of a study's only cell."""
    (key,) = study.read_cells()
    return key


def place(
    slot: Path, claim: Mapping[str, Any] | None = None, end: Mapping[str, Any] | None = None, **stopped: Any
) -> Path:
    """Make a slot by hand: claimed, with a run that ended, and a note of who stopped it."""
    slot.mkdir(parents=True)
    write_json_atomic(slot / CLAIM, {**identify_process(), **(claim or {})})
    if end is not None:
        run = create_run(slot, {"host": "h", "command": ["true"]})
        end_run(run, end)
    if stopped:
        write_json_atomic(slot / STOPPED, stopped)
    return slot


def store_trial(slot: Path, trial: SlotTrial) -> None:
    """Store the result that a trial is taken from beside the run of a slot."""
    (run,) = list_runs(slot)
    end_ns = round(trial.time_s * NS)
    scopes = [name for name in trial.energies if ":" in name or "." in name]
    groups = [name for name in trial.energies if name not in scopes]
    checks = [*trial.uncapped, *(check for check in trial.doubts if check not in trial.uncapped)]
    result = Result(
        run=run.name, name=None, host="h", command=["true"], state="closed", outcome="exit", exit_code=0, signal=None,
        start_utc=trial.start_utc, start_ns=0, end_ns=end_ns,
        scopes=tuple(_scope(name, trial.energies[name]) for name in scopes),
        groups=tuple(
            GroupResult(name, (trial.meters.get(name, name),), trial.energies[name], Quantity(0.0), None)
            for name in groups
        ),
        phases=tuple(
            PhaseResult(name, name, None, 0.0, one.time_s, dict(one.energies), dict(one.work))
            for name, one in trial.phases.items()
        ),
        work=dict(trial.work), load={}, gaps=(), checks=tuple(checks),
        facts=dict(trial.facts), busiest=dict(trial.busiest),
        rated=RatedResult(tuple(RatedDevice("h", scope, watts, "") for scope, watts in trial.rated.items())),
    )  # fmt: skip
    write_result(run, result)


def _scope(name: str, energy: Quantity) -> ScopeResult:
    reading = ChannelEnergy("nvml", "energy_j", "counter", energy, "datasheet", "", False, 2, 1.0)
    return ScopeResult(name, "h", None, "", "", reading, Quantity(0.0), None, None, None)


def environment(tmp_path: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a sweep that shares nothing with others on this machine."""
    dropped = ("JOULELAB_RUN", "JOULELAB_HOST", "JOULELAB_STUDIES", "JOULELAB_CONFIG", "CUDA_VISIBLE_DEVICES")
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    state = {"JOULELAB_STATE": str(tmp_path / "state"), "JOULELAB_POWERCAP": str(tmp_path / "no-powercap")}
    return environ | state | {"COLUMNS": "100"} | dict(more or {})


def start(folder: Path, environ: Mapping[str, str], *words: str) -> subprocess.Popen[str]:
    """Start a sweep in a folder and a session of its own."""
    command = [sys.executable, "-m", "joulelab", "sweep", *words]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env=dict(environ), text=True, start_new_session=True, **pipes)


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for a sweep's end; return what it wrote."""
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, out + err
    return out, err


def sweep(folder: Path, environ: Mapping[str, str], *words: str, code: int = 0) -> tuple[str, str]:
    """Run a sweep to its end."""
    return finish(start(folder, environ, *words), code)


def wait_for(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Wait until something is true, and return it."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def claims(study: Path) -> list[dict[str, Any]]:
    """Return the claims of slots that are in place."""
    found = []
    for file in study.glob(f"cells/*/*/{CLAIM}"):
        if "." not in file.parent.name:
            with contextlib.suppress(FileNotFoundError):  # its slot was set aside meanwhile
                found.append({**json.loads(file.read_text()), "slot": file.parent})
    return found


def is_alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
