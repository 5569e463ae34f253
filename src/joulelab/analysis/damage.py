"""Judge files of a run that are damaged or missing: a check fails, and figures that need them are not given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.result import Check
from joulelab.core.text import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from joulelab.store.table import Problem

# Tables of load, caps, temperature and fans: no energy is in them.
WITHOUT_ENERGY = ("host", "state", "cooling")
DOCUMENTS = ("run.json", "end.json")  # they tell when the workload ran, on which host


def needs_file(problem: Problem) -> bool:
    """Return whether totals need a file that is lost: samples of energy, and events, which name the meters."""
    meter, *table = problem.path.name.split(".")[:2]
    return problem.lost and not damages_marks(problem) and not {meter, *table} & {*WITHOUT_ENERGY}


class LostTables:
    """Know the tables that no figure may be made from: damaged ones, all where the run's own documents are."""

    def __init__(self, damage: Iterable[Problem] = ()) -> None:
        lost = [p.path for p in damage if p.lost and not damages_marks(p)]
        self.all = any(path.name in DOCUMENTS for path in lost)
        self._names: set[tuple[str, ...]] = {(path.parent.name, *path.name.split(".")[:2]) for path in lost}

    def has_table(self, host: str, meter: str, table: str) -> bool:
        """Return whether a table is lost, alone or with all of its meter."""
        return self.all or not self._names.isdisjoint({(host, meter, table), (host, meter)})

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return self.all or bool(self._names)


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
        then = (
            f"; no total is given {'with' if problem.code == 'added' else 'without'} it" if needs_file(problem) else ""
        )
        then = "; no energy per work is given without it" if damages_marks(problem) else then
        yield Check(
            "damaged",
            "failed",
            escape_unprintable(f"{path.parent.name}/{named}{then}"),
            "copy the run folder again from its origin",
            escape_unprintable(f"{path.parent.name}/{path.name}"),
            problem.numbers,
        )
