"""Judge files of a run that are damaged or missing: a check fails, and figures that need them are not given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.result import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from joulelab.store.table import Problem

# Tables of load, caps, temperature and fans: no energy is in them.
WITHOUT_ENERGY = ("host", "state", "cooling")


def needs_file(problem: Problem) -> bool:
    """Return whether totals need a file that is lost: samples of energy, and events, which name the meters."""
    meter, *table = problem.path.name.split(".")[:2]
    return problem.lost and not damages_marks(problem) and not {meter, *table} & {*WITHOUT_ENERGY}


def damages_marks(problem: Problem) -> bool:
    """Return whether marks are damaged: then nobody knows how much work was done."""
    return "marks" in (problem.path.name, problem.path.parent.name)


def damage_checks(damage: Iterable[Problem]) -> Iterator[Check]:
    """Fail a check for every file."""
    for problem in damage:
        path = problem.path
        # Not where on this machine it is: pages are shown to others.
        what = problem.what.removeprefix(f"{path.parent}: ").removeprefix("journal ").replace(f" '{path}'", "")
        named = what if what.startswith(path.name) else f"{path.name}: {what}"
        then = "; no total is given without it" if needs_file(problem) else ""
        then = "; no energy per work is given without it" if damages_marks(problem) else then
        yield Check(
            "damaged",
            "failed",
            f"{path.parent.name}/{named}{then}",
            "copy the run folder again from its origin",
            f"{path.parent.name}/{path.name}",
            problem.numbers,
        )
