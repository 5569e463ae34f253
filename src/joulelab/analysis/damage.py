"""Judge files of a run that cannot be read or are missing: a check fails, and totals that need them are not given."""

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
    return problem.lost and problem.path.parent.name != "marks" and not {meter, *table} & {*WITHOUT_ENERGY}


def damage_checks(damage: Iterable[Problem]) -> Iterator[Check]:
    """Fail a check for every file."""
    for problem in damage:
        path = problem.path
        # Not where on this machine it is: pages are shown to others.
        what = problem.what.removeprefix(f"{path.parent}: ").removeprefix("journal ").replace(f" '{path}'", "")
        named = what if what.startswith(path.name) else f"{path.name}: {what}"
        then = "; no total is given without it" if needs_file(problem) else ""
        yield Check(
            "damaged", "failed", f"{path.parent.name}/{named}{then}", "copy the run folder again from its origin"
        )
