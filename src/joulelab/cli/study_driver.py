"""Drive a study from the command line: open its executors, show how it gets on, and say how it ended."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import click

from joulelab.cli.output import print_notice

if TYPE_CHECKING:
    from joulelab.study.drive import Outcome
    from joulelab.study.executors import Executor
    from joulelab.study.folder import Plan, Study

ASK_FROM = 20
FAILED_CODE = 1


def drive(study: Study, plan: Plan, *, retry: bool) -> Outcome:
    """Run what is not done yet, and put back every cap. Raises JoulelabError where an executor cannot be opened."""
    from joulelab.cli.progress import Shown
    from joulelab.control.leftovers import restore_at_start
    from joulelab.study.drive import Driver
    from joulelab.study.stopping import Stop

    cells = {cell.key: cell for cell in plan.cells}
    print_notice(f"{matrix(plan)} in {_short(study)}, seed {study.seed}")
    with ExitStack() as stack:
        stack.callback(restore_at_start, os.environ, print_notice)
        executors = open_executors(study, plan, stack)
        stop = stack.enter_context(Stop())
        shown = stack.enter_context(Shown(sys.stderr, len(cells) * plan.repeats, scope=plan.scope))
        driver = Driver(study, cells, plan.repeats, executors, shown, warmup=plan.warmup, retry=retry, tick=shown.tick)
        outcome = driver.run(stop)
        if outcome.stopped_by is not None or outcome.error is not None:
            jobs = [job for place in dict.fromkeys(executors.values()) for job in place.going_on()]
            if jobs:
                print_notice(f"these jobs go on: {', '.join(jobs)}; scancel {' '.join(jobs)} ends them")
        return outcome


def open_executors(study: Study, plan: Plan, stack: ExitStack) -> dict[str, Executor]:
    """Return the executor of each node type; node types of one executor share it. Raises JoulelabError."""
    from joulelab.run.workload import inherited
    from joulelab.study.executors import open_executor
    from joulelab.study.nodes import LOCAL

    environ = inherited(os.environ)
    names = {name: node.executor for name, node in plan.nodes.items()} or {LOCAL: LOCAL}
    opened: dict[str, Executor] = {}
    for name in dict.fromkeys(names.values()):
        opened[name] = stack.enter_context(closing(open_executor(name, environ, plan.nodes, study.folder)))
    return {node: opened[name] for node, name in names.items()}


def tell_end(outcome: Outcome, again: str = "type the same again to go on") -> int | None:
    """Say what stopped a study, and return the exit code; None where all of it was tried."""
    if outcome.stopped_by is not None:
        print_notice(f"interrupted: {outcome.done} of {outcome.total} slots are done; {again}")
        return 128 + outcome.stopped_by
    if outcome.error is not None:
        print_notice(f"{outcome.error}")
        then = "" if outcome.error.next else f"; {again}"
        print_notice(f"stopped: {outcome.done} of {outcome.total} slots are done{then}")
        return FAILED_CODE
    return None


def tell_failed(outcome: Outcome, retry: str = "type the same with --retry to run them again") -> int:
    """Say how many slots failed or were cancelled, and return the exit code."""
    if outcome.failed:
        print_notice(f"{outcome.failed} of {outcome.total} slots failed; {retry}")
    if outcome.cancelled:
        print_notice(f"{outcome.cancelled} of {outcome.total} slots were cancelled; type the same again to run them")
    return FAILED_CODE if outcome.failed or outcome.cancelled else 0


def agreed(plan: Plan, *, yes: bool, expected: str = "") -> bool:
    """Ask before a long study, on a terminal."""
    slots = len(plan.cells) * plan.repeats
    if yes or slots < ASK_FROM or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    return click.confirm(f"{matrix(plan)}{expected}; go on?", default=True, err=True)


def matrix(plan: Plan) -> str:
    """Return how many cells and slots there are, in words."""
    cells, slots = len(plan.cells), len(plan.cells) * plan.repeats
    return f"{cells} {'cell' if cells == 1 else 'cells'} x {plan.repeats} = {slots} {'slot' if slots == 1 else 'slots'}"


def _short(study: Study) -> str:
    from joulelab.cli.output import shorten_path

    return str(shorten_path(study.folder))
