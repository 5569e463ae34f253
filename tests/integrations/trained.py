"""Train by a script of this folder under `joulelab run` on the simulated node, and read what was recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.entry import JOULELAB

from joulelab.analysis.analyse import analyse_run
from joulelab.store.run_folder import list_runs, read_meta
from joulelab.store.run_reader import open_run
from joulelab.twin import profile
from joulelab.twin.model import A100, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.analysis.result import PhaseResult, Result
    from joulelab.twin.twin_server import TwinServer

HERE = Path(__file__).parent
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]


class Trained:
    """Hold what a script left: the run of `joulelab run`, those of its callbacks by name, and what it found."""

    def __init__(self, twin: Callable[..., TwinServer], folder: Path, words: list[str], code: int) -> None:
        server = twin(Node(gpus=(A100, A100)), profiles={"gpu": profile.constant(0.5)})
        environ = dict(os.environ) | server.environment
        environ |= {"JOULELAB_RUNS": str(folder / "runs"), "SCRATCH": str(folder), "OMP_NUM_THREADS": "1"}
        command = [*JOULELAB, "run", "-q", "--meter", "nvml", "--", sys.executable, *words]
        self.done = subprocess.run(command, env=environ, capture_output=True, text=True, cwd=folder, timeout=400)
        assert self.done.returncode == code, self.done.stderr
        assert "unmeasured" not in self.done.stderr
        self.found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        self.joined, *others = list_runs(folder / "runs")
        self.others = {str(read_meta(run)["name"]): run for run in others}

    def result(self, run: str | Path) -> Result:
        with open_run(Path(run)) as opened:
            return analyse_run(opened)

    def check_answer(self) -> None:
        """Check that the training of the run printed one line, which begins with the answer."""
        (line,) = re.findall(r"^joulelab: train: .*$", self.done.stderr, re.MULTILINE)
        answer = (
            r"joulelab: train: [\d.,]+ ± [\d.,]+ k?J \(± \d+ %\) in .*s, [\d.,]+ W on average; .*; more: joulelab show "
        )
        assert re.match(answer, line), line

    def check_metrics(self, rows: list[dict[str, float]], last: dict[str, float]) -> None:
        """Check the energy in the rows of a training and in its final metrics against the run itself."""
        energies = [row["energy_j"] for row in rows]
        assert energies == sorted(energies)
        train = next(p for p in self.result(self.joined).phases if p.name == "train")
        energy = train.energy["measured"]
        assert last["energy_j"] == pytest.approx(energy.value, rel=0.02)
        assert energies[-1] <= last["energy_j"] * 1.1
        assert last["energy_expanded_j"] == pytest.approx(energy.expanded, rel=0.5)
        assert last["power_w"] == pytest.approx(energy.value / train.duration_s, rel=0.05)
        assert last["j_per_sample"] == pytest.approx(last["energy_j"] / train.work["samples"], rel=1e-4)
        for row in rows:
            assert row["j_per_sample"] > 0
            assert row["energy_kwh"] == pytest.approx(row["energy_j"] / 3.6e6, rel=1e-4)


def lines(phases: tuple[PhaseResult, ...]) -> list[tuple[int, str, dict[str, float]]]:
    """Return phases as they are indented, with the work done in each; the steps of a phase are one line.

    How many steps are a block depends on their times: on a busy machine one may take fifty times as long as another.
    """
    found: list[tuple[int, str, dict[str, float]]] = []
    for phase in phases:
        if phase.name == "step" and found and found[-1][1].startswith("step"):
            work = found[-1][2]
            merged = {name: work.get(name, 0) + phase.work.get(name, 0) for name in {*work, *phase.work}}
            first, last = found[-1][1].split("-")[0], re.split("[- ]", phase.title)[-1]
            found[-1] = (phase.depth, f"{first}-{last}", merged)
        else:
            found.append((phase.depth, phase.title, phase.work))
    return found


def check_energy(phases: tuple[PhaseResult, ...]) -> None:
    """Check that every phase has energy, and that its parts have no more of it, and of its time, than the whole.

    A phase of some milliseconds may lie between two readings: then its interval, not its value, is above zero.
    """
    for k, whole in enumerate(phases):
        energy = whole.energy["measured"]
        assert energy.value + (energy.expanded or 0.0) > 0, whole.title
        after = next((i for i in range(k + 1, len(phases)) if phases[i].depth <= whole.depth), len(phases))
        parts = [p for p in phases[k + 1 : after] if p.depth == whole.depth + 1]
        assert sum(p.duration_s for p in parts) <= whole.duration_s * 1.000001
        assert sum(p.energy["measured"].value for p in parts) <= whole.energy["measured"].value * 1.000001
