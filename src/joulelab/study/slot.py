"""Run one slot in a process of its own: `python -m joulelab.study.slot FOLDER`. Here, or in a job of a cluster.

It waits for its turn on this machine, claims the slot, cools down, runs the workload under the supervisor with its
output in files, and leaves the outcome in the folder. Its answers to its caller are lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.control.leftovers import restore_at_start
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, StoreError, WriteFailed
from joulelab.instruments.visible import VisibleGpus
from joulelab.run.run_command import run_command
from joulelab.run.workload_process import strip_own_locale
from joulelab.store.run_folder import write_json_atomic
from joulelab.store.safe_files import open_append
from joulelab.study.folder import Study, open_study, read_cell
from joulelab.study.matrix import SLURM, NodeType
from joulelab.study.slot_processes import SlotSignals, WorkloadGuard, adopt_orphans, end_processes, list_processes
from joulelab.study.slot_setup import (
    HIDDEN_GPUS,
    UsedGpus,
    cool_down,
    find_used_gpus,
    list_cap_requests,
    list_cpu_packages,
    make_run_options,
    read_visible_gpus,
)
from joulelab.study.slots import ERR, NOTES, OUT, claim_slot, clear_earlier_attempt, hold_turn, note_stop, read_own_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.run.run_command import RunOutcome
    from joulelab.study.matrix import PlannedCell

OUTLIVED_S = 3.0  # from asking processes that outlived the workload to end to killing them
NOTEBOOK = "executed.ipynb"


def main(words: list[str]) -> int:
    """Run the slot whose folder is named; return 0 unless it could not be run."""
    folder = Path(words[0]).absolute()
    answers = os.dup(1)
    try:
        signals = SlotSignals()
        with signals:
            answer = run_slot(folder, strip_own_locale(os.environ), signals, lambda news: _write_answer(answers, news))
    except JoulelabError as error:
        answer = {"is": "error", "error": describe_error(error)}
    except OSError as error:
        failed = StoreError(
            "the slot cannot be run", where=str(folder), why=str(error), next="mend that, then type the same again"
        )
        answer = {"is": "error", "error": describe_error(failed)}
    _write_answer(answers, answer)
    return int(answer["is"] == "error")


def _write_answer(fd: int, answer: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the caller may be gone
        os.write(fd, json.dumps(answer).encode() + b"\n")


def describe_error(error: JoulelabError) -> dict[str, Any]:
    """Return an error as plain data."""
    then = f"{error.next}, then type the same again" if isinstance(error, WriteFailed) and error.next else error.next
    plain = {"what": error.what, "where": error.where, "why": error.why, "next": then}
    return {"kind": type(error).__name__, **plain}


def run_slot(
    folder: Path, environ: Mapping[str, str], signals: SlotSignals, report: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run a slot and return its answer: it `ended`, is `taken`, was `interrupted`. Raises JoulelabError.

    `report` gets meanwhile that it `waits`.
    """
    study = open_study(folder.parents[2])
    cell = read_cell(folder.parent)
    adopt_orphans()
    own = f"{study.name}: {cell.label} ({folder.name})"
    with hold_turn(environ, signals.pause, command=own, report=lambda who: report({"is": "waits", "for": who})) as mine:
        if not mine:
            return {"is": "interrupted"}
        restore_at_start(environ, _ignore)  # a slot that was killed with its keeper must not leave its caps to this one
        job = read_own_job(environ)
        clear_earlier_attempt(folder, study.folder, job)
        with claim_slot(folder, {"study": study.name, "cell": cell.key, **job}) as got:
            if not got:
                return {"is": "taken"}
            signals.slot = folder
            if signals.stopped_by is not None:
                note_stop(folder, "interrupted", signal=signals.stopped_by)
                return {"is": "interrupted"}
            return _run_claimed(study, cell, folder, environ, signals)


def _run_claimed(
    study: Study, cell: PlannedCell, folder: Path, environ: Mapping[str, str], signals: SlotSignals
) -> dict[str, Any]:
    began = monotonic_ns()
    # By the cell, not by the file, which may have been edited since the slot was submitted.
    node = NodeType.from_identity(cell.workload.node_type, cell.workload.node)
    settings = study.get_settings(cell.workload.name)
    argv = _make_argv(study, cell, folder, node)
    environment, used, caps = _choose_devices(cell, node, {**environ, **node.environment})
    _redirect_output(folder)
    cooled = cool_down(settings, used.used, signals.pause)
    noted = {"settings": settings.to_json(), **used.to_json(), "cooled": cooled}
    _write_notes(folder, noted)
    options, _ = make_run_options(
        settings, environment, folder, name=study.name, labels=make_labels(study, cell, folder), caps=caps
    )
    with WorkloadGuard(folder, settings.timeout_s):
        outcome = run_command(argv, options, environment, warn=_ignore, signals=signals)
    answer: dict[str, Any] = {"is": "ended", "problems": outcome.problems, "cooled": cooled, **_end_outlived(folder)}
    _check_recorded(outcome, folder)
    if outcome.result is not None and outcome.run is not None:
        from joulelab.analysis.results_file import write_result

        write_result(outcome.run, outcome.result)
    full = _write_notes(folder, {**noted, "took_s": (monotonic_ns() - began) / NS, "problems": outcome.problems})
    full = full or next((problem for problem in outcome.problems if "ENOSPC" in problem or "EDQUOT" in problem), "")
    return {**answer, "full": full} if full else answer


def _make_argv(study: Study, cell: PlannedCell, folder: Path, node: NodeType) -> list[str]:
    """Return the command to start: the cell's, its notebook or reference workload, by srun if the node type wants it.

    Raises JoulelabError.
    """
    words = cell.make_argv()
    if cell.workload.kind:
        from joulelab.run.workload_registry import make_workload_command

        beside = Path(study.data.get("file") or "").parent
        words = make_workload_command(cell.workload.kind, words, beside, folder / NOTEBOOK)
    return ["srun", *words] if node.executor == SLURM and node.launch == "srun" else words


def make_labels(study: Study, cell: PlannedCell, folder: Path) -> dict[str, str]:
    """Return the labels of a slot's run: study, cell, slot, workload, node type, knobs."""
    labels = {"study": study.name, "cell": cell.key, "slot": folder.name}
    named = {"workload": cell.workload.name, "node_type": cell.workload.node_type if study.nodes else ""}
    labels |= {name: text for name, text in named.items() if text}
    return labels | {name: value.text for name, value in cell.knobs.items()}


def _choose_devices(
    cell: PlannedCell, node: NodeType, environ: Mapping[str, str]
) -> tuple[dict[str, str], UsedGpus, list[Any]]:
    """Return the workload's environment, the devices that it uses and leaves idle, and the caps. Raises ConfigError."""
    count = cell.knobs["gpus"].value if "gpus" in cell.knobs else None
    there = read_visible_gpus(environ)
    if node.hides_gpus:
        return (
            {**environ, **HIDDEN_GPUS},
            find_used_gpus(node, VisibleGpus()),
            _list_caps(cell, there, environ),
        )
    visible = there.take_first(None if count is None else int(count))
    own = {**environ, **visible.make_environment(environ)} if count is not None else dict(environ)
    return own, find_used_gpus(node, visible), _list_caps(cell, visible, environ)


def _list_caps(cell: PlannedCell, gpus: VisibleGpus, environ: Mapping[str, str]) -> list[Any]:
    if not set(cell.knobs) & {"cap", "clock", "cpu_cap"}:
        return []
    return list_cap_requests(cell.knobs, gpus, list_cpu_packages(cell.knobs, environ))


def _redirect_output(folder: Path) -> None:
    """Send the workload's output to files; it has nothing to read."""
    for target, name in ((1, OUT), (2, ERR)):
        fd = open_append(folder / name)
        os.dup2(fd, target)
        os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)


def _write_notes(folder: Path, noted: Mapping[str, Any]) -> str:
    """Record how the slot was run; return in words why that cannot be written, empty if it was."""
    try:
        write_json_atomic(folder / NOTES, noted)
    except StoreError as error:
        return error.why or str(error)
    return ""


def _end_outlived(folder: Path) -> dict[str, int]:
    """End processes that outlived the workload, or they would disturb the next slots; return their number."""
    left = list_processes(folder)
    if not left or end_processes(folder, OUTLIVED_S):
        return {"outlived": len(left)}
    return {"outlived": len(left), "unended": len(list_processes(folder))}


def _check_recorded(outcome: RunOutcome, folder: Path) -> None:
    """Raise an error that stops the whole study: a command that cannot be started, a full disk."""
    if outcome.error is not None:
        raise outcome.error
    if outcome.run is None or not (outcome.run / "end.json").exists():
        what = "nothing could be recorded" if outcome.run is None else "the run could not be closed"
        why = "; ".join(outcome.problems)
        mend = "free some space" if "space" in why else "mend that"
        raise StoreError(what, where=str(folder), why=why, next=f"{mend}, then type the same again")


def _ignore(_: str) -> None:
    """Print nothing: the outcome lists all problems."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
