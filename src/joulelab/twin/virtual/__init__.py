"""Run studies on twins in virtual time: hours in seconds, with the same run folders as the recorder's.

What is above the run folder (analysis, statistics, tuning, reports) has no branch for it.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

from joulelab.twin.virtual.cells import make_options, place_on_twins, read_description
from joulelab.twin.virtual.slot import read_truth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from joulelab.study.drive import SlotEvent
    from joulelab.study.folder import Plan, Study
    from joulelab.twin.nodefile import Description

__all__ = ["make_options", "place_on_twins", "read_description", "read_truth", "run_plan", "run_twin_study"]


def run_twin_study(
    file: Path,
    twins: Mapping[str, Description | str] | Description | str,
    folder: Path,
    *,
    seed: int | None = None,
    tell: Callable[[SlotEvent], Any] | None = None,
) -> Study:
    """Run a study file on twins into a study's folder, or go on with it; return the study.

    `twins` are by node type, or one for all: names, files, or descriptions, changed ones too. The same seed gives the
    same results. Raises JoulelabError; SystemExit where a signal ended it: called again it goes on.
    """
    from joulelab.study.study_file import read_study

    found = read_study(file)
    plan = place_on_twins(found.plan, twins)
    return run_plan(plan, found.name, folder, seed=found.default_seed if seed is None else seed, tell=tell)


def run_plan(
    plan: Plan, name: str, folder: Path, *, seed: int | None = None, tell: Callable[[SlotEvent], Any] | None = None
) -> Study:
    """Run a plan whose node types are all twins. Raises as `run_twin_study` does."""
    from joulelab.study.drive import Driver, StopRequest
    from joulelab.study.folder import join_study
    from joulelab.study.plan_check import check_plan
    from joulelab.twin.executor import TwinExecutor

    check_plan(plan, os.environ)
    study = join_study(folder.absolute(), name, plan, seed)
    cells = {cell.key: cell for cell in plan.cells}
    with closing(TwinExecutor(os.environ)) as executor, StopRequest() as stop:
        more: Any = {"warmup": plan.warmup, "retry": True, "target": plan.target}
        driver = Driver(study, cells, plan.repeats, executor, tell or _ignore, **more)
        outcome = driver.run(stop)
    if outcome.error is not None:
        raise outcome.error
    if outcome.stopped_by is not None:
        raise SystemExit(128 + outcome.stopped_by)
    return study


def _ignore(_: SlotEvent) -> None:
    """Say nothing."""
